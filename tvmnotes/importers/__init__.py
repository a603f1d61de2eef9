"""Importers: each turns the models of one framework into `(IRModule, params)` for `tvmnotes.build`.

The contract: `mod["main"]` takes the model's inputs first, under the names that the caller gave, then one
parameter per weight; the function's attribute `num_input` counts the inputs; `params` maps the name of each
weight parameter to its array. A model with one output returns a tensor, one with several a tuple. The
attribute `tvmnotes.sizes` holds the bounds of open sizes.

build                  `tn.build`: import a model if need be, and compile it
model                  `as_model`, the last step of every importer
open_sizes             networks with open sizes, from imports at a few fixed ones; union, with graphs,
                       open_guesses and open_pads: how these are merged
onnx                   `from_onnx`; onnx_branches, onnx_graph, onnx_limits, onnx_open and onnx_values:
                       the steps before TVM's frontend
onnx_operators         converters of ONNX operators, with onnx_corrections, onnx_indices, onnx_node (how to
                       write one), onnx_recurrent, onnx_resize and onnx_windows
onnx_backend           the interface of ONNX's own test suites
pytorch                `from_pytorch`; pytorch_complex, pytorch_inline, pytorch_types, pytorch_writes: passes
                       over its graph
pytorch_backend        `torch.compile(net, backend="tvmnotes")`, with pytorch_outputs
pytorch_decompositions operators expressed in other PyTorch operators, with pytorch_attention,
                       pytorch_composites, pytorch_linalg, pytorch_places and pytorch_recurrent
pytorch_open           open sizes as PyTorch's exporter sees them; pytorch_courses: what its conditions say
pytorch_steps          what a program computes, to compare with other input sizes
pytorch_operators      converters of PyTorch operators to Relax
mxnet                  `from_mxnet`, in a folder of its own
composites             operators that several importers share, with fourier, matrices and resampling
"""
