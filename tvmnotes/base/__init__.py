"""The bottom layer: this machine, files, tensor specs, and workarounds for TVM.

data          files by name: bundled, cached or downloaded; atomic writes; checksums
env           this machine: usable cores, CPU, instruction sets, TVM targets; `doctor`'s report
errors        the package's own exception, and exceptions as short messages
folders       temporary folders, removed even after a kill; atomic replacement of files and folders
indices       range checks of the indices that a network is given or computes
integers      `ceildiv` and `round_up`
kept          the cache of machine code: who may write to it, and its size limit
protocols     what layers expect of each other's objects: a lookup of configs, a runner
relax         helpers on Relax: shapes, constants, a pass over all functions
simd          `Simd`, the vector registers of a target; the register tile that uses them best
sizes         `Size`, a size that stays open; sizes in the description of a network
spec          `TensorSpec`: a tensor's name, shape and dtype; parsing of a user's inputs
table         results that print as text and show as a table in a notebook; the registry of what draws them
tvm_seam      what the package knows of TVM's insides
workarounds   for TVM 0.27, tvm-ffi 0.1 and other libraries
writes        writes of a few elements of a tensor
"""
