"""Bools become bytes where they are compared or added up: TVM 0.27's LLVM back end compares vectors of one bit as if
they were floats, which LLVM refuses, and its sums of single bits overflow.
"""

import tvm
from tvm import relax
from tvm.relax import op as R

from ..base.relax import on_each_function

_COMPARED = ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")
_COMBINED = ("add", "multiply", "maximum", "minimum", "max", "min")  # as "or" and "and"
_SUMS = {"sum": R.max, "prod": R.min}  # the same, and no byte overflows
_RUNNING = {"cumsum": R.cumsum, "cumprod": R.cumprod}


def bools_as_bytes() -> tvm.transform.Pass:
    """Make the pass; an operator that gave bools still does."""
    return on_each_function("BoolsAsBytes", _AsBytes)


@relax.expr_functor.mutator
class _AsBytes(relax.PyExprMutator):
    def visit_call_(self, call):
        call = self.visit_expr_post_order(call)
        name = getattr(call.op, "name", "").removeprefix("relax.")
        known = any(name in table for table in (_COMPARED, _COMBINED, _SUMS, _RUNNING))
        if not known or str(getattr(call.args[0].ty, "dtype", "")) != "bool":
            return call
        if name in _RUNNING:
            dtype, exclusive = str(call.ty.dtype), bool(call.attrs.exclusive)
            number = R.astype(call.args[0], "int64" if dtype == "bool" else dtype)
            made = _RUNNING[name](number, call.attrs.axis, exclusive=exclusive)
            return R.astype(self.builder_.normalize(made), dtype)
        args = [R.astype(arg, "uint8") for arg in call.args]
        if name in _SUMS:
            made = _SUMS[name](*args, call.attrs.axis, call.attrs.keepdims)
        else:
            made = tvm.ir.Call(call.op, args, call.attrs)
        return made if name in _COMPARED else R.astype(self.builder_.normalize(made), "bool")
