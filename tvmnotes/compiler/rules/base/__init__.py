"""What schedule rules share.

rule         what a rule provides, and the registry of rules
annotations  the annotation of a kernel: its schedule (family and config) and its workload
epilogue     operators fused after a kernel; vector and parallel loops
marked       loops that a schedule marks, and that are rewritten afterwards
prefetch     software prefetch of weights
padding      windows over an image whose padding is not in memory
tails        tiles of rows whose number is open
elementwise  exp, tanh and others in vectorizable arithmetic
trace        what a trace of MetaSchedule's may do
"""
