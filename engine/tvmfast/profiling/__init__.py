"""Measuring: comparisons, profiles, the trace of a build, wrong values, the machine's peaks, the benchmark.

benchmark  `python -m tvmfast bench`: TVM and other runtimes on any network
networks   networks by name, with seeded weights
flowchart  graphs as SVG
diverge    `diverge`, the first value of a network that is wrong. Its parts: steps, a module as a list of
           steps; references and torch_reference, what these are compared with; values, an error and
           what rounding explains of it
measure    `compare`, the timing of several functions in one run
peak       the machine's FLOP/s and memory bandwidth
profiler   `profile`, the time of each kernel; memory
quotas     a CPU quota for this process, for the benchmark
trace      `trace_build`, what each pass changed and how long it took
"""
