"""Kernels that frontends and compiler both emit.

attention         softmax(q kᵀ + mask) v, with a running maximum and sum for each query
detection         the k best scores and non-maximum suppression
dynamic           dynamic dims of kernels that are emitted as loops; softmax over a dynamic axis
elementwise       exp, tanh and others in vectorizable arithmetic
linalg            matrix factorizations, on stacks of matrices
recurrent         LSTM, GRU and RNN: one kernel for all time steps
resize            linear and cubic resizes of images
special           gamma, Bessel and error functions; greatest common divisors
"""
