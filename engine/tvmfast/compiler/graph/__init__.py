"""Passes over the graph of operators, in the order in which a network passes through them.

conv_call         a convolution, as the passes below recognise it
fold_constants    constants folded with NumPy; batch norms and affine chains
decompose         functions that TVM gets wrong, or lacks for float64, made of others
pack_recurrent    LSTM, GRU and RNN: one product for all time steps' inputs, a kernel on packed weights
conv_transpose    transposed convolutions as ordinary ones
half_precision    weights rounded to bfloat16 or float16, and read as such by kernels
quantized         quantized networks as sums of integers
fuse_attention    softmax between two matrix products: a kernel for all three
skinny_gemm       products of few rows with a strided view, without a copy of it
norms             root mean square and layer norms of single operators, each fused into one kernel
blocked_layout    NCHW to the blocked layout NCHW[x]c; convolutions become kernels
packed_weights    products with weights of 8 or 4 bits, and look-ups of their rows, as kernels
partial_update    partial updates of tensors, as kernels
"""
