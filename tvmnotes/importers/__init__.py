"""Importers: one file per framework, each turns a model into `(IRModule, params)` for `tvmnotes.build`.

What all of them keep to: `mod["main"]` takes the model's inputs first, under the names that the caller gave,
then one parameter per weight; the function's attribute `num_input` counts the inputs; `params` maps the name of
each weight parameter to its array. A model with one output returns a tensor, one with several a tuple.
"""
