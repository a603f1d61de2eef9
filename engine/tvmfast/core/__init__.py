"""What everything stands on: this machine, files, tensor specs, and workarounds for TVM.

annotations     the annotation of a kernel: its schedule (rule and config) and its workload
bounds_check    range checks of the indices that a network is given or computes
compat          what the package knows of TVM's insides
data            files by name: bundled, cached or downloaded; atomic writes; checksums
dims            `Dim`, a size that stays open; sizes in the description of a network
errors          the package's own exception, and exceptions as short messages
folders         temporary folders, removed even after a kill; atomic replacement of files and folders
integers        `ceildiv` and `round_up`
kernel_cache    the cache of machine code: who may write to it, and its size limit
machine         this machine: usable cores, CPU, instruction sets, TVM targets; `doctor`'s report
partial_update  writes of a few elements of a tensor
protocols       what folders expect of each other's objects: a lookup of configs, a runner
relax           helpers on Relax: shapes, constants, a pass over all functions
simd            the registers of a target, the register tile that uses them best
specs           `TensorSpec`: a tensor's name, shape and dtype; parsing of a user's inputs
table           results that print as text and show as a table in a notebook
workarounds     for TVM 0.27, tvm-ffi 0.1 and other libraries
"""
