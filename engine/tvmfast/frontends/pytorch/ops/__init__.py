"""PyTorch's operators.

call            what a converter takes
converters      converters to Relax, of operators that TVM gets wrong or lacks
decompositions  decompositions into other PyTorch operators: functions of numbers, norms, attention; the table
halves          which halves are rounded once, which by steps
indexing        sorting, indexing and windows
linalg          linear algebra
losses          losses that PyTorch's own decompositions get wrong
quantized       numbers of 8 and 16 bits, as pt2e writes them
recurrent       LSTM, GRU and RNN
special         special functions, and the bits of numbers
uint8_images    images of uint8, resized in fixed point
"""
