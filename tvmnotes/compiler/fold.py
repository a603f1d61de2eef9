"""Constant folding on the graph: what depends on weights alone is computed by NumPy while compiling.

TVM's own FoldConstant compiles a kernel for every operator that it folds, most of a build's time where batch norm
is folded into many convolutions. This pass comes first, and leaves to TVM's what is not in its table.
"""

import numpy as np
import tvm
from tvm import relax

# By operator, what it makes of the arrays of its tensors; those of the second table read the call's attributes too.
_ELEMENTWISE = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": np.divide,
    "power": np.power,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "negative": np.negative,
    "exp": np.exp,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: np.asarray(1, x.dtype) / np.sqrt(x),
    "equal": np.equal,
    "not_equal": np.not_equal,
    "less": np.less,
    "where": np.where,
    "astype": lambda x: x,
}
_OTHERS = {
    "permute_dims": lambda call, x: np.transpose(x, None if call.attrs.axes is None else _numbers(call.attrs.axes)),
    "broadcast_to": lambda call, x: np.broadcast_to(x, fixed_shape(call.ty)),
    "concat": lambda call, *xs: np.concatenate(xs, 0 if call.attrs.axis is None else int(call.attrs.axis)),
    "full": lambda call, x: np.full(fixed_shape(call.ty), x),
    "take": lambda call, x, at: _take(x, at, call.attrs.axis),
    "strided_slice": lambda call, x: _slice(x, *call.args[1:]),
    **dict.fromkeys(("reshape", "expand_dims", "squeeze"), lambda call, x: np.reshape(x, fixed_shape(call.ty))),
}


def _numbers(which) -> list[int]:
    return [int(getattr(i, "value", i)) for i in which]


def _take(x, at, axis):
    """The elements, or None where an index lies outside: what happens there is TVM's to say."""
    size = x.size if axis is None else x.shape[int(axis)]
    if at.size and (at.min() < 0 or at.max() >= size):
        return None
    return np.take(x, at, None if axis is None else int(axis))


def _slice(x, axes, begins, ends, strides=None):
    axes, begins, ends = (_numbers(which.fields) for which in (axes, begins, ends))
    steps = _numbers(strides.fields) if strides is not None else [1] * len(axes)
    if min(steps, default=1) < 1:
        return None
    at = [slice(None)] * x.ndim
    for axis, begin, end, step in zip(axes, begins, ends, steps, strict=True):
        at[axis] = slice(begin, end, step)
    return x[tuple(at)]


def fixed_shape(ty: tvm.ir.Type) -> tuple[int, ...] | None:
    """The shape of a tensor type in whole numbers; None where it is not known before the network runs."""
    shape = getattr(ty, "shape", None)
    fixed = shape is not None and all(isinstance(n, tvm.tirx.IntImm) for n in shape)
    return tuple(int(n) for n in shape) if fixed else None


def fold_with_numpy() -> tvm.transform.Pass:
    """The pass. Results keep the dtype and shape that Relax has inferred for them."""
    return on_each_function("FoldWithNumPy", _Fold)


def fold_affine() -> tvm.transform.Pass:
    """The pass that makes one multiplication and one addition of a chain of them with constants.

    Such chains are what is left of a batch norm that no convolution precedes.
    """
    return on_each_function("FoldAffine", _FoldAffine)


def on_each_function(name: str, mutator: type[relax.PyExprMutator]) -> tvm.transform.Pass:
    """A pass that runs a mutator on each Relax function."""

    @tvm.transform.module_pass(opt_level=0, name=name)
    def fold(mod, _context):
        mod = mod.clone()
        for var, func in mod.functions_items():
            if isinstance(func, relax.Function):
                mod.update_func(var, mutator().visit_expr(func))
        return mod

    return fold


@relax.expr_functor.mutator
class _FoldAffine(relax.PyExprMutator):
    """`chains` holds, by variable, (x, scale, shift, operators) where the variable is x * scale + shift."""

    def __init__(self):
        super().__init__()
        self.chains = {}

    def visit_var_binding_(self, binding):
        chain = self._chain(binding)
        if chain is None or not isinstance(binding.var, relax.DataflowVar):
            super().visit_var_binding_(binding)
            return
        self.chains[binding.var] = chain
        x, scale, shift, operators = chain
        if operators < 3:
            super().visit_var_binding_(binding)
            return
        made = self.builder_.emit(relax.op.multiply(self.visit_expr(x), relax.const(scale)))
        self.set_var_remap(binding.var, self.builder_.emit(relax.op.add(made, relax.const(shift))))

    def _chain(self, binding):
        call = binding.value
        name = call.op.name.removeprefix("relax.") if isinstance(getattr(call, "op", None), tvm.ir.Op) else ""
        if name not in ("add", "subtract", "multiply", "divide"):
            return None
        x, constant = call.args
        value = constant_array(constant)
        if not isinstance(x, relax.Var) or value is None or value.dtype != np.float32:
            return None
        if fixed_shape(x.ty) is None or fixed_shape(x.ty) != fixed_shape(call.ty):
            return None
        x, scale, shift, operators = self.chains.get(x, (x, np.float32(1), np.float32(0), 0))
        if name in ("multiply", "divide"):
            factor = value if name == "multiply" else 1 / value
            scale, shift = scale * factor, shift * factor
        else:
            shift = shift + (value if name == "add" else -value)
        return x, np.asarray(scale, "float32"), np.asarray(shift, "float32"), operators + 1


def constant_array(expr) -> np.ndarray | None:
    """The array of a constant; None for any other expression."""
    known = isinstance(expr, tvm.ir.GenericConst) and isinstance(expr.value, tvm.runtime.Tensor)
    return expr.value.numpy() if known else None


@relax.expr_functor.mutator
class _Fold(relax.PyExprMutator):
    def visit_call_(self, call):
        call = self.visit_expr_post_order(call)
        name = getattr(call.op, "name", "").removeprefix("relax.")
        if name not in _ELEMENTWISE and name not in _OTHERS:
            return call
        shape, args = fixed_shape(call.ty), self._arrays(call, name)
        if shape is None or args is None:
            return call
        with np.errstate(all="ignore"):
            result = _ELEMENTWISE[name](*args) if name in _ELEMENTWISE else _OTHERS[name](call, *args)
        if result is None or np.shape(result) != shape:
            return call
        dtype = str(call.ty.dtype)
        return relax.const(np.ascontiguousarray(result).astype(dtype, copy=False).reshape(shape), dtype)

    def _arrays(self, call, name) -> list | None:
        """The arrays of the tensors that `call` reads; None where one of them is not known."""
        if name == "concat":
            tensors = call.args[0].fields if isinstance(call.args[0], relax.Tuple) else []
        elif name == "full":
            tensors = call.args[1:]
        elif name == "take" or name in _ELEMENTWISE:
            tensors = call.args
        else:
            tensors = call.args[:1]
        values = [self._value(arg) for arg in tensors]
        return values if values and all(value is not None for value in values) else None

    def _value(self, arg):
        """The array or number that `arg` is known to be, or None."""
        if isinstance(arg, relax.Var):
            arg = self.lookup_binding(arg)
        return arg.value if isinstance(arg, tvm.tirx.FloatImm | tvm.tirx.IntImm) else constant_array(arg)
