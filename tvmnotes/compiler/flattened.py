"""The pass that computes products with a weight, and what follows, on (1, M, K) where that was made (M, K).

Exporters write a linear layer on a sequence as reshape, product, sum, reshape. Without the reshapes,
activations and residual sums are computed at the end of the product's kernel.
"""

import math

import tvm
from tvm import relax
from tvm.relax import op as R

from ..base.relax import constant_array, fixed_shape, on_each_function

_ELEMENTWISE = {
    *("nn.relu", "nn.gelu", "nn.gelu_tanh", "nn.silu", "tanh", "sigmoid", "erf", "exp", "square", "negative"),
    *("add", "subtract", "multiply", "divide", "power", "maximum", "minimum"),
}


def products_of_one_batch() -> tvm.transform.Pass:
    """Make the pass, for fixed sizes, to run after constants are folded."""
    return on_each_function("ProductsOfOneBatch", _Flattened)


@relax.expr_functor.mutator
class _Flattened(relax.PyExprMutator):
    def visit_call_(self, call):
        call = super().visit_call_(call)
        name = getattr(call.op, "name", "").removeprefix("relax.")
        shape = fixed_shape(call.ty)
        if shape is None:
            return call
        if name == "reshape":
            whole = self._whole(call.args[0])
            if whole is None:
                return call
            return whole if fixed_shape(whole.ty) == shape else R.reshape(whole, shape)
        if len(shape) != 2 or not (name in _ELEMENTWISE or name == "matmul"):
            return call
        wholes = [self._whole(arg) for arg in call.args]
        pairs = list(zip(wholes, call.args, strict=True))
        if name == "matmul":
            fits = wholes[0] is not None and constant_array(call.args[1]) is not None
        else:
            known = [whole is not None or _is_row(arg) for whole, arg in pairs]
            fits = all(known) and any(whole is not None for whole in wholes)
        if not fits:
            return call
        operands = [arg if whole is None else whole for whole, arg in pairs]
        result = self.builder_.emit(tvm.ir.Call(call.op, operands, call.attrs, call.ty_args))
        return R.reshape(result, shape)

    def _whole(self, var) -> relax.Var | None:
        """Return the tensor (1, M, K) of which a variable (M, K) is a reshape; None if there is none."""
        value = self.lookup_binding(var) if isinstance(var, relax.Var) else None
        if getattr(getattr(value, "op", None), "name", "") != "relax.reshape":
            return None
        shape, whole = fixed_shape(var.ty), value.args[0]
        is_whole = shape is not None and len(shape) == 2 and fixed_shape(whole.ty) == (1, *shape)
        return whole if is_whole else None


def _is_row(arg) -> bool:
    """Return whether an operand is a constant that is one number, or one for each column."""
    array = constant_array(arg)
    return array is not None and array.ndim <= 2 and math.prod(array.shape[:-1]) == 1
