"""Memory planning for networks with dynamic dims.

TVM's StaticPlanBlockMemory lets values share a buffer if their sizes are constants, or the same expression. A
network with dynamic dims is planned with these at their lower bounds, and each buffer is as large as the
largest of its values for any dims.
"""

import math
from collections.abc import Mapping

import tvm
from tvm import relax, tirx
from tvm.relax import transform as t

from ...core.dims import Dim
from ...core.relax import bytes_of, unwrap_ints, upper_bound

_ALLOCATE = "relax.builtin.alloc_tensor"


def plan_dynamic_memory(dims: Mapping[str, Dim]) -> tvm.transform.Pass:
    """Make the pass, which replaces StaticPlanBlockMemory for a network with these dynamic dims."""

    @tvm.transform.module_pass(opt_level=0, name="PlanDynamicMemory")
    def run(mod, _context):
        main, static = mod["main"], mod.clone()
        least = {name: tirx.IntImm("int64", dim.lower) for name, dim in dims.items()}
        static["main"] = main.bind_symbolic_vars(least)
        chosen = _chosen(t.StaticPlanBlockMemory()(static)["main"])
        values = [value for value in _values(main) if _calls(value, _ALLOCATE)]
        if len(values) != len(chosen):
            return t.StaticPlanBlockMemory()(mod)
        shared = {}  # by buffer, the bytes of its values
        for buffer, value in zip(chosen, values, strict=True):
            shared.setdefault(buffer, []).append(_bytes(value))
        mod = mod.clone()
        mod["main"] = _Share(
            chosen, {buffer: upper_bound(each) for buffer, each in shared.items()}
        ).visit_expr(main)
        return mod

    return run


def _chosen(main) -> list:
    """Return the buffer of each value in a function that TVM has planned; None for one of its own."""
    chosen = []
    for value in _values(main):
        if _calls(value, "relax.memory.alloc_tensor"):
            chosen.append(value.args[0])
        elif _calls(value, _ALLOCATE):
            chosen.append(None)
    return chosen


def _values(main):
    return (binding.value for block in main.body.blocks for binding in block.bindings)


def _calls(value, name: str) -> bool:
    return isinstance(value, tvm.ir.Call) and getattr(value.op, "name", "") == name


def _bytes(value):
    shape, dtype = value.args[:2]
    return math.prod(unwrap_ints(shape.values), start=bytes_of(dtype.value))


@relax.expr_functor.mutator
class _Share(relax.PyExprMutator):
    def __init__(self, chosen: list, sizes: dict):
        super().__init__()
        self.chosen, self.sizes = iter(chosen), sizes
        self.buffers = {}

    def visit_call_(self, call):
        if not _calls(call, _ALLOCATE):
            return super().visit_call_(call)
        buffer = next(self.chosen)
        if buffer is None:
            return call
        shape, dtype, device, scope = call.args
        if buffer not in self.buffers:
            size = relax.ShapeExpr([self.sizes[buffer]])
            storage = relax.op.memory.alloc_storage(size, device, scope, "uint8")
            self.buffers[buffer] = self.builder_.emit(storage, "storage")
        return relax.op.memory.alloc_tensor(self.buffers[buffer], 0, shape, dtype)
