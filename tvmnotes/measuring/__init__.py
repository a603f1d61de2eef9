"""This room measures: comparisons, profiles, the trace of a build, peaks, threads, the benchmark."""
