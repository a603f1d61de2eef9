"""Importers turn the models of a framework, in one file each, into `(IRModule, params)` for `tvmnotes.build`.

All of them keep to this: `mod["main"]` takes the model's inputs first, under the names that the caller gave,
then one parameter per weight; the function's attribute `num_input` counts the inputs; `params` maps the name of
each weight parameter to its array. A model with one output returns a tensor, one with several a tuple.
"""
