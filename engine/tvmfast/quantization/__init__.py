"""Fewer bits: networks whose weights, or weights and activations, are integers.

static      `static_int8`: all steps, what stays float, the layers that a budget leaves out
layers      which operators compute in int8, and which tensors become uint8 for them
calibrate   the samples, checked; the tensors' values in the float network; their ranges
switched    a network whose layers compute in float or int8, as its inputs say: what each adds to the error
insert      quantize and dequantize around the layers' operands; int8 weights as parameters
report      `Quantized`, what `tn.quantize` returns, and its report
weights_only  weights of matrix products in 8 or 4 bits; activations stay float32
"""
