"""Division and rounding upwards, of Python's integers and of TVM's expressions."""


def ceildiv(a, b):
    """Divide, and round up to a whole number."""
    return -(-a // b)


def round_up(a, step):
    """Round up to the next multiple of `step`."""
    return ceildiv(a, step) * step
