"""Recurrent networks: a direction of a layer of LSTM, GRU or RNN is one kernel that runs all steps.

cell     what a kernel computes, `Cell`, and the arithmetic of one step
loops    the kernel, as plain loops on the weights as they are, or on packed ones in registers
emit     the call of a plain kernel, which frontends use

The compiler replaces it: `compiler/graph/pack_recurrent.py`, and for a GPU
`compiler/cuda/unroll_recurrent.py`.
"""
