"""Recurrent networks: a direction of a layer of LSTM, GRU or RNN is one kernel that runs all time steps.

cell     what a kernel computes, `Cell`, and the arithmetic of one time step
loops    the kernel, as scalar loops on unpacked weights, or tiled in registers on packed ones
emit     the call of the kernel on unpacked weights, which frontends use

The compiler replaces it: `compiler/graph/pack_recurrent.py`, and for a GPU
`compiler/cuda/unroll_recurrent.py`.
"""
