"""Division and rounding up, for Python integers and TVM expressions."""

INT32_MAX = (1 << 31) - 1  # elements of a tensor of fixed size that a kernel's indices, int32, reach


def ceildiv(a, b):
    """Divide and round up."""
    if isinstance(b, int) and b == 1:
        return a
    return -(-a // b) if isinstance(a, int) else (a + b - 1) // b


def round_up(a, step):
    """Round up to the next multiple of `step`."""
    return ceildiv(a, step) * step
