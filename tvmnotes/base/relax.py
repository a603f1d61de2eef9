"""Helpers on Relax for all layers above: shapes, constants, a pass over all functions."""

import numpy as np
import tvm
from tvm import relax


def fixed_shape(ty: tvm.ir.Type) -> tuple[int, ...] | None:
    """Return a tensor type's shape as integers; None if it is not known before the network runs."""
    shape = getattr(ty, "shape", None)
    fixed = shape is not None and all(isinstance(n, tvm.tirx.IntImm) for n in shape)
    return tuple(int(n) for n in shape) if fixed else None


def constant_array(expr) -> np.ndarray | None:
    """Return the array of a constant; None for any other expression."""
    is_array = isinstance(expr, tvm.ir.GenericConst) and isinstance(expr.value, tvm.runtime.Tensor)
    return expr.value.numpy() if is_array else None


def array_key(array: tvm.runtime.Tensor) -> int:
    """Return a key that is equal for two handles of one array in memory."""
    return array.__hash__()


def bytes_of(dtype) -> int:
    """Return the size of an element of a dtype in bytes."""
    return (tvm.DataType(str(dtype)).bits + 7) // 8


def on_each_function(
    name: str, mutator: type[relax.PyExprMutator], adds_kernels: bool = False
) -> tvm.transform.Pass:
    """Make a pass that runs a mutator on each Relax function; one on all if its builder adds kernels."""

    @tvm.transform.module_pass(opt_level=0, name=name)
    def run(mod, _context):
        if adds_kernels:
            rewrite = mutator(mod)
            for var, func in mod.functions_items():
                if isinstance(func, relax.Function):
                    rewrite.builder_.update_func(var, rewrite.visit_expr(func))
            return rewrite.builder_.get()
        mod = mod.clone()
        for var, func in mod.functions_items():
            if isinstance(func, relax.Function):
                mod.update_func(var, mutator().visit_expr(func))
        return mod

    return run
