"""What everything else stands on: this machine, files, the specs of tensors."""
