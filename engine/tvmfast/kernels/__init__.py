"""Kernels that frontends and compiler both emit.

attention         softmax(q kᵀ + mask) v, with a running maximum and sum for each query
detection         the k best scores and non-maximum suppression
dynamic           softmax over an axis of open length; what kernels written as loops need for open sizes
elementwise       exp, tanh and others in vectorizable arithmetic
integer_division  integers divided by data, and LLVM's remainders
linalg            matrix factorizations, on stacks of matrices
recurrent         LSTM, GRU and RNN: one kernel for all steps
"""
