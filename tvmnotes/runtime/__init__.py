"""What runs: compiled networks, their files, and the clock inside them. None of it needs TVM's compiler."""
