"""The base has what everything else stands on: this machine, files, the specs of tensors, workarounds for TVM."""
