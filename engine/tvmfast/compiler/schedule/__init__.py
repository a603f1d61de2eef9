"""A schedule for each kernel of a CPU.

apply         the pass that schedules each kernel
workloads     what kernels have to compute, and their configs
rules         a schedule for each kind of workload, a file each

What rules share:

rule          what a rule provides, and the registry of rules
amx           tiles of AMX: their blocks in a schedule, and the instructions
direct_tiles  tiles of Winograd's convolution that are not finite
dot           instructions for dot products of 8-bit integers
epilogue      operators fused after a kernel; vector and parallel loops
pairs         products of pairs of bfloat16
parallel      parallel loops of dynamic length, run by one thread where that is short
post_rewrite  rewrites of loops that a schedule annotates: padding, prefetches, remainder tiles
trace         what a trace of MetaSchedule's may do
"""
