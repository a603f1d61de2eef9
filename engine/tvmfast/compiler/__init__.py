"""The compiler: `build.build` turns a module from a frontend into a `runtime.compiled.Compiled`.

build             checks the module and its parameters, resolves the target, runs everything below
context           what a build was asked for, which every step reads
pipeline          the passes of each opt level, the lowering after them, the graph as data for graph.json
records           tuning records, and the lookup of the best config for a workload
shape_variants    the network specialized for given values of dynamic dims, in the same library
prepare           what of a quantized network is saved in int8, and the library's function that widens it
costs             flops and bytes of each kernel, numbers or expressions of dynamic dims
codegen           machine code for a CPU, each kernel compiled once
combine_parallel  horizontal fusion, which `build` does not run by itself
selftest          a small network, built and run, for the doctor

graph             passes over the graph of operators
legalize          operators become kernels
schedule          a schedule for each kernel: rules and workloads
memory            memory planning, output aliasing, shape CSE, state
cuda              targets, kernels and code for an NVIDIA GPU
"""
