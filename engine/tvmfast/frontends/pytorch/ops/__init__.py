"""PyTorch's operators.

converters      converters to Relax, of operators that TVM gets wrong or lacks
decompositions  the table of decompositions into other PyTorch operators; the files below hold most
attention       scaled dot product attention
numeric         elementwise functions, products, reductions and scans
indexing        sorting, indexing and windows
linalg          linear algebra
recurrent       LSTM, GRU and RNN
"""
