"""The memory that a run of a network allocates, for graph.json."""

import math

import tvm
from tvm import relax

from ...core.relax import bytes_of, dim_to_str


def memory(mod: tvm.IRModule) -> dict:
    """Sum up the memory that a run of `main` allocates, without inputs and parameters.

    Args:
        mod: The lowered module. Buffers that a CUDA graph keeps are allocated once, in functions of their
            own.

    Returns:
        In bytes, "buffers": the size of each buffer, in order; "peak": the most that is allocated at once,
        or, if dims are dynamic, a list of sums one of which is the most; "unshared": the sum if each value
        had a buffer of its own. Each is a number, or text as in core/dims.py.
    """
    sizes, references = {}, {}  # by buffer: its bytes, how many variables use it
    owner = {}  # by variable: its buffer
    unshared, peaks = 0, {0: None}
    functions = {
        var.name_hint: func for var, func in mod.functions_items() if isinstance(func, relax.Function)
    }
    permanent = [func for name, func in functions.items() if name.startswith("cuda_graph_alloc")]
    recorded = [func for name, func in functions.items() if name.startswith("main_cuda_graph_capture")]
    for func in [*permanent, mod["main"], *recorded]:
        for name, call, var in _calls(func):
            of = call.args[0] if call.args else None
            if name == "relax.vm.alloc_storage":
                owner[var] = var
                sizes[var] = call.args[0].values[0]
                references[var] = 1
                peaks[dim_to_str(_sum(size for buffer, size in sizes.items() if references[buffer]))] = None
            elif name == "relax.vm.alloc_tensor":
                unshared += math.prod(call.args[2].values, start=bytes_of(var.ty.dtype))
            elif name == "relax.vm.kill_object" and of in owner and func not in permanent:
                references[owner[of]] -= 1
            if name in ("relax.vm.alloc_tensor", "vm.builtin.reshape") and of in owner:
                owner[var] = owner[of]
                references[owner[var]] += 1
    static = all(isinstance(peak, int) for peak in peaks)
    return {
        "buffers": [dim_to_str(size) for size in sizes.values()],
        "peak": max(peaks) if static else [peak for peak in peaks if peak],
        "unshared": dim_to_str(unshared),
    }


def _calls(func: relax.Function):
    """Yield each call that a function binds: the name of what it calls, the call, and its variable."""
    for block in func.body.blocks:
        for binding in block.bindings:
            call = binding.value
            if isinstance(call, tvm.ir.Call):
                yield str(getattr(call.op, "name", getattr(call.op, "global_symbol", ""))), call, binding.var


def _sum(sizes):
    total = 0
    for size in sizes:
        total = total + size
    return total
