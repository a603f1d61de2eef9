"""Constants are folded on the graph: NumPy computes while compiling what depends on weights alone.

TVM's own FoldConstant compiles a kernel for every operator that it folds, most of a build's time where batch norm
is folded into many convolutions. This pass comes first, and leaves to TVM's what is not in its table; where that is
nothing, TVM's is left out, which would take half a second to find that out.
"""

from collections import Counter

import numpy as np
import tvm
from tvm import relax

from ..base import indices
from ..base.relax import constant_array, fixed_shape, on_each_function

# By operator, what it makes of the arrays of its tensors; those of the second table read the call's attributes too.
_ELEMENTWISE = {
    **{name: getattr(np, name) for name in (
        "add", "subtract", "multiply", "divide", "power", "maximum", "minimum", "negative", "exp", "sqrt", "equal",
        "not_equal", "less", "where",
    )},
    "rsqrt": lambda x: np.asarray(1, x.dtype) / np.sqrt(x),
    "astype": lambda x: x,
}  # fmt: skip
_OTHERS = {
    "permute_dims": lambda call, x: np.transpose(
        x, None if call.attrs.axes is None else _numbers(call.attrs.axes)
    ),
    "broadcast_to": lambda call, x: np.broadcast_to(x, fixed_shape(call.ty)),
    "concat": lambda call, *xs: np.concatenate(xs, 0 if call.attrs.axis is None else int(call.attrs.axis)),
    "full": lambda call, x: np.full(fixed_shape(call.ty), x),
    "take": lambda call, x, at: _take(x, at, call.attrs.axis),
    "strided_slice": lambda call, x: _slice(x, *call.args[1:]),
    **dict.fromkeys(
        ("reshape", "expand_dims", "squeeze"), lambda call, x: np.reshape(x, fixed_shape(call.ty))
    ),
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


def fold_with_numpy() -> tvm.transform.Pass:
    """Make the pass; results keep the dtype and shape that Relax has inferred for them."""
    return on_each_function("FoldWithNumPy", _Fold)


def fold_the_rest() -> tvm.transform.Pass:
    """Make the pass that runs TVM's FoldConstant where an operator of constants is left."""

    @tvm.transform.module_pass(opt_level=0, name="FoldTheRest")
    def fold(mod, _context):
        return relax.transform.FoldConstant()(mod) if any(map(_of_constants, _calls(mod))) else mod

    return fold


def _calls(mod):
    for _, func in mod.functions_items():
        for block in func.body.blocks if isinstance(func, relax.Function) else ():
            yield from (each.value for each in block.bindings if isinstance(each.value, tvm.ir.Call))


def _of_constants(call) -> bool:
    """Whether all tensors that a call reads are constants."""
    fields = [f for arg in call.args for f in (arg.fields if isinstance(arg, relax.Tuple) else [arg])]
    tensors = [field for field in fields if isinstance(getattr(field, "ty", None), relax.TensorType)]
    return all(isinstance(tensor, tvm.ir.GenericConst) for tensor in tensors)


def fold_batch_norm() -> tvm.transform.Pass:
    """Make the pass that folds batch norms into the convolutions before them, with or without a bias between.

    TVM's FoldBatchnormToConv2D leaves those with a bias, and compares every operator with every other: a second for a
    ResNet-101.
    """
    return on_each_function("FoldBatchNorm", _FoldBatchNorm)


def fold_affine() -> tvm.transform.Pass:
    """Make the pass that turns a chain of multiplications and additions with constants into one of each.

    Such chains are what is left of a batch norm that no convolution precedes.
    """
    return on_each_function("FoldAffine", _FoldAffine)


@relax.expr_functor.mutator
class _FoldBatchNorm(relax.PyExprMutator):
    def visit_function_(self, func):
        self.bound, self.uses = relax.analysis.get_var2val(func), Counter()
        for value in (*self.bound.values(), func.body.body):
            relax.analysis.post_order_visit(value, self._count)
        return relax.analysis.remove_all_unused(super().visit_function_(func))

    def _count(self, expr):
        if isinstance(expr, relax.Var):
            self.uses[expr] += 1

    def visit_tuple_getitem_(self, item):
        folded = self._folded(item)
        return super().visit_tuple_getitem_(item) if folded is None else folded

    def _folded(self, item):
        """The convolution with a bias that a batch norm's first result is; None where it is no such thing."""
        norm, bias = self._call(item.tuple_value, "nn.batch_norm"), np.float32(0)
        if norm is None or item.index != 0 or int(norm.attrs.axis) != 1:
            return None
        source = norm.args[0]
        if (total := self._call(source, "add", once=True)) is not None:
            source, bias = (
                total.args[0],
                _by_channel(self._array(total.args[1]), fixed_shape(norm.args[0].ty)),
            )
        conv = self._call(source, "nn.conv2d", once=True)
        if (
            conv is None
            or bias is None
            or (conv.attrs.data_layout, conv.attrs.kernel_layout) != ("NCHW", "OIHW")
        ):
            return None
        arrays = [constant_array(arg) for arg in (*conv.args[1:], *norm.args[1:])]
        if str(conv.ty.dtype) != "float32" or any(
            array is None or array.dtype != np.float32 for array in arrays
        ):
            return None
        weight, gamma, beta, mean, variance = arrays
        with np.errstate(all="ignore"):
            scale = (gamma if norm.attrs.scale else np.float32(1)) / np.sqrt(
                variance + np.float32(norm.attrs.epsilon)
            )
            shift = (beta if norm.attrs.center else np.float32(0)) + (bias - mean) * scale
        if not (
            np.isfinite(scale).all() and np.isfinite(shift).all()
        ):  # times a weight or input of 0, it is NaN
            return None
        weight = relax.const(weight * scale.reshape(-1, 1, 1, 1))
        call = tvm.ir.Call(conv.op, [self.visit_expr(conv.args[0]), weight], conv.attrs, conv.ty_args)
        return relax.op.add(
            self.builder_.emit(call), relax.const(shift.astype("float32").reshape(1, -1, 1, 1))
        )

    def _array(self, expr) -> np.ndarray | None:
        """The array of a constant, or of one that is reshaped, as biases are when they are imported."""
        if (reshaped := self._call(expr, "reshape")) is not None:
            array = constant_array(reshaped.args[0])
            return None if array is None else array.reshape(fixed_shape(reshaped.ty))
        return constant_array(expr)

    def _call(self, var, name: str, once: bool = False):
        """The call of an operator that a variable is bound to; with `once`, where that is its only use; else None."""
        if not isinstance(var, relax.Var) or (once and self.uses[var] != 1):
            return None
        value = self.bound.get(var)
        return value if getattr(getattr(value, "op", None), "name", "") == f"relax.{name}" else None


def _by_channel(array: np.ndarray | None, shape: tuple | None) -> np.ndarray | None:
    """The number of each channel, of a constant that is added to a tensor (N, C, H, W); None where it has others."""
    if (
        array is None
        or shape is None
        or (1, 1, 1, *array.shape)[-4:] not in ((1, shape[1], 1, 1), (1, 1, 1, 1))
    ):
        return None
    return np.broadcast_to(array.reshape(-1), shape[1])


@relax.expr_functor.mutator
class _FoldAffine(relax.PyExprMutator):
    """`chains` holds, by variable, (x, scale, shift, operators) where the variable is x * scale + shift."""

    def __init__(self):
        super().__init__()
        self.chains = {}

    def visit_var_binding_(self, binding):
        chain = self._chain(binding) if isinstance(binding.var, relax.DataflowVar) else None
        if chain is not None:
            self.chains[binding.var] = chain
        if chain is None or chain[-1] < 3:
            super().visit_var_binding_(binding)
            return
        x, scale, shift, _ = chain
        scaled = self.builder_.emit(relax.op.multiply(self.visit_expr(x), relax.const(scale)))
        self.set_var_remap(binding.var, self.builder_.emit(relax.op.add(scaled, relax.const(shift))))

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
            with np.errstate(divide="ignore"):
                factor = value if name == "multiply" else 1 / value
            if not _moderate(factor):
                return None
            scale, shift = scale * factor, shift * factor
        else:
            shift = shift + (value if name == "add" else -value)
        if not (np.all(scale) and _moderate(scale) and _moderate(shift)):
            return None
        return x, np.asarray(scale, "float32"), np.asarray(shift, "float32"), operators + 1


def _moderate(array) -> bool:
    """Whether constants are 0 or far from float32's limits, so that a product of two neither overflows nor vanishes."""
    size = np.abs(array)
    return bool(((size == 0) | ((size > 1e-18) & (size < 1e18))).all())


@relax.expr_functor.mutator
class _Fold(relax.PyExprMutator):
    def visit_call_(self, call):
        call = self.visit_expr_post_order(call)
        name = getattr(call.op, "name", "").removeprefix("relax.")
        if check := indices.arguments(call):
            array = self._value(check[0])
            return call if array is None else relax.const(indices.within(array, *check[1:]), str(array.dtype))
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
