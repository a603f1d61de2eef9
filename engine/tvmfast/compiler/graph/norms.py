"""The pass that makes one kernel of norms along rows: x / sqrt(mean(x * x) + epsilon), and of x - mean(x).

Frameworks export the root mean square norm as single operators, and the layer norm, too, below ONNX's opset
17: the sum of squares of each row is one kernel, the rest another.
"""

import tvm
from tvm import relax

from ...core.compat import OUT_EWISE_FUSABLE
from ...core.relax import constant_array, known_shape, on_each_function, op_name
from ...core.simd import Simd
from ..schedule.rules import row_reduction


def fuse_norms(simd: Simd) -> tvm.transform.Pass:
    """Make the pass, for float32 and rows of static length; weight and bias may be the kernel's epilogue."""
    return on_each_function("FuseNorms", lambda mod: _Fuser(mod, simd), adds_kernels=True)


@relax.expr_functor.mutator
class _Fuser(relax.PyExprMutator):
    def __init__(self, mod, simd):
        super().__init__(mod)
        self.simd = simd

    def visit_function_(self, func):
        self.bound = relax.analysis.get_var2val(func)
        return super().visit_function_(func)

    def visit_call_(self, call):
        found = self._match(call) if op_name(call) in ("multiply", "divide") else None
        if found is None:
            return super().visit_call_(call)
        x, epsilon = found
        y, norm, weights = self._centred(x), row_reduction.rms_norm, ()
        if y is not None:
            x, norm, weights = y, row_reduction.layer_norm, (None, None)
        return self.builder_.call_te(
            norm,
            *(self.visit_expr(x), *weights, epsilon, self.simd.lanes),
            primfunc_name_hint=norm.__name__,
            primfunc_attrs={"op_pattern": OUT_EWISE_FUSABLE},
        )

    def _centred(self, x) -> relax.Expr | None:
        """Return the y of which x is y - mean(y), each of its row; None for another expression."""
        value = self._value(x)
        if op_name(value) != "subtract":
            return None
        y, mean = value.args[0], self._value(value.args[1])
        is_mean = self._is_mean_of_rows(mean, x.ty.ndim) and self._same(mean.args[0], y)
        return y if is_mean else None

    def _match(self, call) -> tuple[relax.Var, float] | None:
        """Return the x and the epsilon of which a product or quotient is the norm; else None."""
        if op_name(call) == "divide":
            choices = [(call.args[0], self._operand(call.args[1], "sqrt"))]
        else:
            left, right = call.args
            choices = [(left, self._under_root(right)), (right, self._under_root(left))]
        for x, total in choices:
            shape = known_shape(x.ty)
            if total is None or not shape or not isinstance(shape[-1], int) or str(x.ty.dtype) != "float32":
                continue
            if call.ty.ndim > len(shape):  # by a number of higher rank
                continue
            epsilon = self._epsilon(total, x, len(shape))
            if epsilon is not None:
                return x, epsilon
        return None

    def _value(self, expr):
        while isinstance(expr, relax.Var):
            expr = self.bound.get(expr)
        return expr

    def _operand(self, expr, name: str):
        """Return the first operand of a call of the operator `name`; None for another expression."""
        value = self._value(expr)
        return value.args[0] if op_name(value) == name else None

    def _under_root(self, expr):
        """Return the v of 1 / sqrt(v); None for another expression."""
        value = self._value(expr)
        if op_name(value) == "divide" and _number(value.args[0]) == 1:
            return self._operand(value.args[1], "sqrt")
        return self._operand(value, "rsqrt")

    def _epsilon(self, total, x, rank: int) -> float | None:
        """Return the epsilon of mean(x * x) + epsilon; None for another expression."""
        value = self._value(total)
        if op_name(value) != "add":
            return None
        for mean, number in (value.args, value.args[::-1]):
            epsilon, mean = _number(number), self._value(mean)
            if epsilon is not None and self._is_mean_of_rows(mean, rank) and self._is_square(mean.args[0], x):
                return epsilon
        return None

    @staticmethod
    def _is_mean_of_rows(value, rank: int) -> bool:
        """Whether it is a mean along the last axis, which stays as one of size 1."""
        return op_name(value) == "mean" and bool(
            value.attrs.keepdims and [int(axis) % rank for axis in value.attrs.axis or ()] == [rank - 1]
        )

    def _is_square(self, expr, x) -> bool:
        value = self._value(expr)
        name, args = op_name(value), getattr(value, "args", ())
        own = [arg for arg in args if self._same(arg, x)]
        if name == "power":
            return len(own) == 1 and own[0] is args[0] and _number(args[1]) == 2
        return (name, len(own)) in (("multiply", 2), ("square", 1))

    def _same(self, a, b) -> bool:
        return self._resolved(a).same_as(self._resolved(b))

    def _resolved(self, expr):
        """Return the variable that another is only a name for."""
        while isinstance(expr, relax.Var) and isinstance(self.bound.get(expr), relax.Var):
            expr = self.bound[expr]
        return expr


def _number(expr) -> float | None:
    array = constant_array(expr)
    return float(array.flat[0]) if array is not None and array.size == 1 else None
