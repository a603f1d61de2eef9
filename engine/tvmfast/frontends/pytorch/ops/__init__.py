"""PyTorch's operators.

call            what a converter takes
converters      converters to Relax, of operators that TVM gets wrong or lacks
decompositions  the table of decompositions into other PyTorch operators; the files below hold most
numeric         elementwise functions, products, reductions and scans
indexing        sorting, indexing and windows
linalg          linear algebra
recurrent       LSTM, GRU and RNN
"""
