"""The memory that a run of a network allocates, for graph.json."""

import math

import tvm
from tvm import relax

from ..base.relax import bytes_of, written


def memory(main: relax.Function) -> dict:
    """Sum up the memory that a run allocates, without inputs and parameters.

    Args:
        main: The lowered function.

    Returns:
        In bytes, "buffers": the size of each buffer, in order; "peak": the most that is allocated at once,
        or, if sizes are open, a list of sums one of which is the most; "unshared": the sum if each value had
        a buffer of its own. Each is a number, or text as in base/sizes.py.
    """
    sizes, references = {}, {}  # by buffer: its bytes, how many variables use it
    owner = {}  # by variable: its buffer
    unshared, peaks = 0, {0: None}
    for block in main.body.blocks:
        for binding in block.bindings:
            call, var = binding.value, binding.var
            if not isinstance(call, tvm.ir.Call):
                continue
            name = str(getattr(call.op, "name", getattr(call.op, "global_symbol", "")))
            if name == "relax.vm.alloc_storage":
                owner[var] = var
                sizes[var] = call.args[0].values[0]
                references[var] = 1
                peaks[written(_sum(size for buffer, size in sizes.items() if references[buffer]))] = None
            elif name == "relax.vm.alloc_tensor" or (name == "vm.builtin.reshape" and call.args[0] in owner):
                owner[var] = owner[call.args[0]]
                references[owner[var]] += 1
                if name == "relax.vm.alloc_tensor":
                    unshared += math.prod(call.args[2].values, start=bytes_of(var.ty.dtype))
            elif name == "relax.vm.kill_object" and call.args[0] in owner:
                references[owner[call.args[0]]] -= 1
    fixed = all(isinstance(peak, int) for peak in peaks)
    return {
        "buffers": [written(size) for size in sizes.values()],
        "peak": max(peaks) if fixed else [peak for peak in peaks if peak],
        "unshared": written(unshared),
    }


def _sum(sizes):
    total = 0
    for size in sizes:
        total = total + size
    return total
