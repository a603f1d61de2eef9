"""What all other folders use: the machine, files, tensor specs, helpers on Relax, compatibility with TVM.

annotations     the annotation of a kernel: its schedule (rule and config) and its workload
bounds_check    range checks of the indices that a network is given or computes
compat          compatibility with TVM: its internals, and workarounds for it and other libraries
data            files by name: bundled, cached or downloaded; atomic writes; checksums
dims            `Dim`, a dynamic dim; dims in the description of a network
errors          the package's own exception, and exceptions as short messages
folders         temporary folders, removed even after a kill; atomic replacement of files and folders
kernel_cache    the cache of machine code: who may write to it, and its limit in bytes
logs            what the variable TVMFAST_LOG shows
machine         this machine: usable cores, CPU, instruction sets, TVM targets; `doctor`'s report
partial_update  partial updates of a tensor: a few elements replaced
protocols       what folders expect of each other's objects: a lookup of configs, a runner
relax           helpers on Relax: shapes and dims, constants, a pass over all functions
renamed         what bears the engine's name, which was another until 0.1: variables, the cache, saved files
rounding        how far rounding may move a sum
simd            the registers of a target, the register tile that uses them best
specs           `TensorSpec`: a tensor's name, shape and dtype; parsing of a user's inputs
table           results that print as text and show as a table in a notebook
"""
