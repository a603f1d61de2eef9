"""Frontends: each turns the models of one framework into `(IRModule, params)` for `tvmfast.build`.

The contract: `mod["main"]` takes the model's inputs first, under the names that the caller gave, then one
parameter per weight; the function's attribute `num_input` counts the inputs; `params` maps the name of each
weight parameter to its array. A model with one output returns a tensor, one with several a tuple. The
attribute `tvmfast.sizes` holds the bounds of dynamic dims, `tvmfast.absent` the positions of None among the
results of a call.

context   what every converter needs of the operator that it converts
contract  `as_model`, the last step of every frontend
dynamic   networks with dynamic dims, merged from imports at a few static ones
onnx      `from_onnx`
pytorch   `from_pytorch`
mxnet     `from_mxnet`
ops       operators that several frontends share
"""
