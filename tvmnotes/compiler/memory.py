"""The memory that a run of a network allocates, for graph.json."""

import math

import tvm
from tvm import relax

from ..base.relax import bytes_of


def memory(main: relax.Function) -> dict:
    """Sum up the memory that a run allocates, without inputs and parameters.

    Args:
        main: The lowered function.

    Returns:
        In bytes, "buffers": the size of each buffer, in order; "peak": the most that is allocated at once;
        "unshared": the sum if each value had a buffer of its own.
    """
    sizes, references = {}, {}  # by buffer: its bytes, how many variables use it
    owner = {}  # by variable: its buffer
    unshared = peak = 0
    for block in main.body.blocks:
        for binding in block.bindings:
            call, var = binding.value, binding.var
            if not isinstance(call, tvm.ir.Call):
                continue
            name = str(getattr(call.op, "name", getattr(call.op, "global_symbol", "")))
            if name == "relax.vm.alloc_storage":
                owner[var] = var
                sizes[var] = int(call.args[0].values[0])
                references[var] = 1
                peak = max(peak, sum(size for buffer, size in sizes.items() if references[buffer]))
            elif name == "relax.vm.alloc_tensor" or (name == "vm.builtin.reshape" and call.args[0] in owner):
                owner[var] = owner[call.args[0]]
                references[owner[var]] += 1
                if name == "relax.vm.alloc_tensor":
                    shape = [int(n) for n in call.args[2].values]
                    unshared += math.prod(shape) * bytes_of(var.ty.dtype)
            elif name == "relax.vm.kill_object" and call.args[0] in owner:
                references[owner[call.args[0]]] -= 1
    return {"buffers": list(sizes.values()), "peak": peak, "unshared": unshared}
