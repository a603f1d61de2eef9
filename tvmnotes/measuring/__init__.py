"""The measuring layer: comparisons, profiles, the trace of a build, the machine's peaks, the benchmark.

benchmark    `python -m tvmnotes bench`: TVM and other runtimes on any network
transformer_nets   its transformers
measure      `compare`, the timing of several functions in one run
peak         the machine's FLOP/s and memory bandwidth
profiling    `profile`, the time of each kernel; memory
scoreboard   the course's stored run of ResNet-18 in every runtime
threads      time against TVM's threads, bound to cores or not
tracing      `trace_build`, what each pass changed and how long it took
"""
