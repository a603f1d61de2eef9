"""The base holds what everything else stands on: this machine, files, the specs of tensors, workarounds for TVM."""
