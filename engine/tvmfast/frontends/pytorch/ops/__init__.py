"""PyTorch's operators.

converters      converters to Relax
decompositions  operators expressed in other PyTorch operators; the files below hold most
attention       scaled dot product attention
composites      activations, norms, losses and others
indexing        positions, order and selection
linalg          linear algebra
recurrent       LSTM, GRU and RNN
"""
