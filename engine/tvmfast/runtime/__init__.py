"""The runtime: runs, saves, loads and times compiled networks; only the stopwatch needs TVM's compiler.

compiled    `Compiled`, a network that runs; `Session`, another state of it; `load`
pool        opens libraries, and runs their parallel loops on the threads of pool.cc
saved       the files of a saved network: writing, checking, reading
narrow      weights of a quantized network in int8, as they are saved
stopwatch   the times of all calls in a run
tensors     TVM tensors in the CPU's memory; inputs as kernels read them
on_gpu      whether a GPU runs a network, and inputs in its memory
fork        runs on TVM's threads in children of a fork
"""
