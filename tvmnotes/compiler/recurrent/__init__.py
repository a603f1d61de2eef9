"""Recurrent networks: a direction of a layer of LSTM, GRU or RNN is one kernel that runs all steps.

cell     what a kernel computes, `Cell`, and the arithmetic of one step
loops    the kernel, as plain loops on the weights as they are, or on packed ones in registers
emit     the call of a plain kernel, which importers use
pack     the pass that replaces it: one product for the inputs of all steps, and a kernel on packed weights,
         or for a single step one kernel
unroll   the pass for a GPU: some kernels for each step
"""
