"""Fold constants on the graph: NumPy evaluates at compile time what depends on weights alone.

TVM's FoldConstant compiles a kernel for every operator that it folds, most of a build's time if batch norm is
folded into many convolutions. This pass runs first and leaves to TVM's only operators that are not in its
tables; if there are none, TVM's is skipped, which would take half a second to find that out.
"""

from collections import Counter

import numpy as np
import tvm
from tvm import relax

from ...core import bounds_check
from ...core.relax import (
    cast_array,
    constant_array,
    known_shape,
    on_each_function,
    op_name,
    shape_text,
    static_shape,
)
from ..legalize import ieee754
from ..legalize.lower import OF_FOLDED
from .conv_call import match

# NumPy functions by operator, of the arrays of its tensors; those of `_OTHERS` take the call first.
_SAME_NAME = (
    "add", "subtract", "multiply", "divide", "power", "maximum", "minimum", "negative", "exp", "sqrt",
    "equal", "not_equal", "less", "where",
)  # fmt: skip
_ELEMENTWISE = {
    **{name: getattr(np, name) for name in _SAME_NAME},
    "rsqrt": lambda x: np.asarray(1, x.dtype) / np.sqrt(x),
}
_RESHAPES = ("reshape", "expand_dims", "squeeze")
_OTHERS = {
    "astype": lambda call, x: cast_array(np.asarray(x), str(call.ty.dtype)),
    "quantize": lambda call, x: _quantize(call, x),
    "permute_dims": lambda call, x: _transpose(x, call.attrs.axes),
    "broadcast_to": lambda call, x: np.broadcast_to(x, static_shape(call.ty)),
    "concat": lambda call, *xs: np.concatenate(xs, 0 if call.attrs.axis is None else int(call.attrs.axis)),
    "full": lambda call, x: np.full(static_shape(call.ty), x),
    "take": lambda call, x, at: _take(x, at, call.attrs.axis),
    "strided_slice": lambda call, x: _slice(x, *call.args[1:]),
    **dict.fromkeys(_RESHAPES, lambda call, x: np.reshape(x, static_shape(call.ty))),
}


def _integers(values) -> list[int]:
    return [int(getattr(value, "value", value)) for value in values]


def _transpose(x, axes):
    return np.transpose(x, None if axes is None else _integers(axes))


def _quantize(call, x):
    """Return an array in 8 bits, as `legalize.quantize` does; None if the parameters are not known."""
    scale, zero = (constant_array(arg) for arg in call.args[1:])
    dtype = str(call.attrs.out_dtype)
    if scale is None or zero is None or dtype not in ("int8", "uint8"):
        return None
    along = [1] * x.ndim
    if x.ndim:
        along[int(call.attrs.axis) % x.ndim] = -1
    scale, zero = (each.reshape(() if each.size == 1 else along) for each in (scale, zero))
    zero, info = zero.astype("float32"), np.iinfo(dtype)
    rounded = np.rint(x.astype("float32") / scale.astype("float32"))
    return (np.nan_to_num(rounded).clip(info.min - zero, info.max - zero) + zero).astype(dtype)


def _take(x, at, axis):
    """Return the elements; None if an index is out of range, which is left to TVM."""
    size = x.size if axis is None else x.shape[int(axis)]
    if at.size and (at.min() < 0 or at.max() >= size):
        return None
    return np.take(x, at, None if axis is None else int(axis))


def _slice(x, axes, begins, ends, strides=None):
    axes, begins, ends = (_integers(each.fields) for each in (axes, begins, ends))
    steps = _integers(strides.fields) if strides is not None else [1] * len(axes)
    if min(steps, default=1) < 1:
        return None
    slices = [slice(None)] * x.ndim
    for axis, begin, end, step in zip(axes, begins, ends, steps, strict=True):
        slices[axis] = slice(begin, end, step)
    return x[tuple(slices)]


def fold_with_numpy() -> tvm.transform.Pass:
    """Make the pass; results keep the dtype and shape that Relax has inferred."""
    return on_each_function("FoldWithNumPy", _Fold)


def fold_the_rest() -> tvm.transform.Pass:
    """Make the pass that runs TVM's FoldConstant if an operator of constants is left."""

    @tvm.transform.module_pass(opt_level=0, name="FoldTheRest")
    def fold(mod, _context):
        return fold_constant(mod) if any(map(_of_constants, _calls(mod))) else mod

    return fold


def fold_constant(mod: tvm.IRModule) -> tvm.IRModule:
    """Run TVM's FoldConstant with the legalizations of OF_FOLDED.

    It takes no table of them: it legalizes each operator, also those of no constants, as TVM has registered.
    So operators of ours, with these legalizations, replace TVM's while it runs.
    """
    folded = _folded(_with_operators(mod, _OURS))
    return _with_operators(folded, {ours.name: tvm.ir.Op.get(name) for name, ours in _OURS.items()})


def fold_kernels() -> tvm.transform.Pass:
    """Make the pass that folds calls of kernels with constants alone."""
    return tvm.transform.module_pass(lambda mod, _: _folded(mod), opt_level=0, name="FoldKernels")


def _folded(mod: tvm.IRModule) -> tvm.IRModule:
    with ieee754.in_place_of_tvms():
        return relax.transform.FoldConstant()(mod)


def _with_operators(mod, operators: dict):
    mod = mod.clone()
    for var, func in mod.functions_items():
        if isinstance(func, relax.Function):
            mod.update_func(var, _WithOperators(operators).visit_expr(func))
    return mod


def _registered(name: str) -> tvm.ir.Op:
    """Register an operator that differs from TVM's `name` in its legalization alone."""
    ours = name.replace("relax.", "relax.tvmfast.")

    def of_tvm(call, builder):
        return builder.normalize(tvm.ir.Call(tvm.ir.Op.get(name), call.args, call.attrs, call.ty_args))

    attributes = {
        "FPurity": True,
        "FInferType": lambda call, builder: of_tvm(call, builder).ty,
        "FLegalize": lambda builder, call: OF_FOLDED[name](builder, of_tvm(call, builder)),
    }
    for key, value in attributes.items():
        tvm.ir.register_op_attr(ours, key, value)
    return tvm.ir.Op.get(ours)


_OURS = {name: _registered(name) for name in OF_FOLDED}


def _calls(mod):
    for _, func in mod.functions_items():
        for block in func.body.blocks if isinstance(func, relax.Function) else ():
            yield from (each.value for each in block.bindings if isinstance(each.value, tvm.ir.Call))


def _of_constants(call) -> bool:
    """Tell whether all tensors that a call reads are constants."""
    fields = [f for arg in call.args for f in (arg.fields if isinstance(arg, relax.Tuple) else [arg])]
    tensors = [field for field in fields if isinstance(getattr(field, "ty", None), relax.TensorType)]
    return all(isinstance(tensor, tvm.ir.GenericConst) for tensor in tensors)


def fold_batch_norm() -> tvm.transform.Pass:
    """Make the pass that folds batch norms into the convolutions before them, with or without a bias between.

    TVM's FoldBatchnormToConv2D skips those with a bias, and compares every operator with every other: a
    second for a ResNet-101.
    """
    return on_each_function("FoldBatchNorm", _FoldBatchNorm)


def fold_affine() -> tvm.transform.Pass:
    """Make the pass that turns a chain of multiplications and additions with constants into one of each.

    Such chains remain of batch norms that no convolution precedes.
    """
    return on_each_function("FoldAffine", _FoldAffine)


@relax.expr_functor.mutator
class _FoldBatchNorm(relax.PyExprMutator):
    def visit_function_(self, func):
        self.bound = relax.analysis.get_var2val(func)
        self.uses = Counter()
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
        """Return the convolution and bias that replace a batch norm's first result; None if there is none."""
        norm, bias = self._call(item.tuple_value, "nn.batch_norm"), np.float32(0)
        if norm is None or item.index != 0 or int(norm.attrs.axis) != 1:
            return None
        source = norm.args[0]
        total = self._call(source, "add", once=True)
        if total is not None:
            source = total.args[0]
            bias = _by_channel(self._array(total.args[1]), known_shape(norm.args[0].ty))
        call = self._call(source, "nn.conv1d", "nn.conv2d", once=True)
        conv = match(call)
        if conv is None or bias is None:
            return None
        arrays = [conv.weight, *(constant_array(arg) for arg in norm.args[1:])]
        known = all(array is not None and array.dtype == np.float32 for array in arrays)
        if str(call.ty.dtype) != "float32" or not known:
            return None
        weight, gamma, beta, mean, variance = arrays
        with np.errstate(all="ignore"):
            gamma = gamma if norm.attrs.scale else np.float32(1)
            scale = gamma / np.sqrt(variance + np.float32(norm.attrs.epsilon))
            shift = (beta if norm.attrs.center else np.float32(0)) + (bias - mean) * scale
        if not (np.isfinite(scale).all() and np.isfinite(shift).all()):
            return None  # an infinity times a weight or input of 0 would be NaN
        shape, ones = static_shape(call.args[1].ty), (1,) * (1 if conv.is_line else 2)
        weight = relax.const((weight * scale.reshape(-1, 1, 1, 1)).reshape(shape))
        folded = tvm.ir.Call(call.op, [self.visit_expr(call.args[0]), weight], call.attrs, call.ty_args)
        result = self.builder_.emit(folded)
        return relax.op.add(result, relax.const(shift.astype("float32").reshape(1, -1, *ones)))

    def _array(self, expr) -> np.ndarray | None:
        """Return the array of a constant, also a reshaped one, as imported biases are."""
        reshaped = self._call(expr, "reshape")
        if reshaped is not None:
            array = constant_array(reshaped.args[0])
            return None if array is None else array.reshape(static_shape(reshaped.ty))
        return constant_array(expr)

    def _call(self, var, *names: str, once: bool = False):
        """Return the call of an operator bound to a variable; with `once`, only if not used elsewhere."""
        if not isinstance(var, relax.Var) or (once and self.uses[var] != 1):
            return None
        value = self.bound.get(var)
        return value if op_name(value) in names else None


def _by_channel(array: np.ndarray | None, shape: tuple | None) -> np.ndarray | None:
    """Return one element per channel of a constant added to (N, C, …); None if it varies otherwise."""
    if array is None or shape is None:
        return None
    rank = len(shape)
    if ((1,) * rank + array.shape)[-rank:] not in ((1, shape[1], *(1,) * (rank - 2)), (1,) * rank):
        return None
    return np.broadcast_to(array.reshape(-1), shape[1])


@relax.expr_functor.mutator
class _FoldAffine(relax.PyExprMutator):
    """A mutator; its `chains` maps a variable x * scale + shift to (x, scale, shift, number of operators)."""

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
        if shape_text(x.ty) is None or shape_text(x.ty) != shape_text(call.ty):
            return None
        x, scale, shift, operators = self.chains.get(x, (x, np.float32(1), np.float32(0), 0))
        if name in ("multiply", "divide"):
            with np.errstate(divide="ignore"):
                factor = value if name == "multiply" else 1 / value
            if not _moderate(factor):
                return None
            scale, shift = scale * factor, shift * factor
        else:
            added = value if name == "add" else -value
            if not _moderate(added) or np.any(shift * added < 0):
                return None  # it may round on purpose, as 1 + x - 1 in log1p
            shift = shift + added
        if not (np.all(scale) and _moderate(scale) and _moderate(shift)):
            return None
        return x, np.asarray(scale, "float32"), np.asarray(shift, "float32"), operators + 1


def _moderate(array) -> bool:
    """Tell whether constants are 0 or so moderate that no product of two overflows or vanishes in float32."""
    magnitude = np.abs(array)
    return bool(((magnitude == 0) | ((magnitude > 1e-18) & (magnitude < 1e18))).all())


@relax.expr_functor.mutator
class _WithOperators(relax.PyExprMutator):
    """A mutator; its `operators` replace those of these names."""

    def __init__(self, operators: dict):
        super().__init__()
        self.operators = operators

    def visit_call_(self, call):
        call = self.visit_expr_post_order(call)
        operator = self.operators.get(getattr(call.op, "name", ""))
        return call if operator is None else tvm.ir.Call(operator, call.args, call.attrs, call.ty_args)


@relax.expr_functor.mutator
class _Fold(relax.PyExprMutator):
    def visit_call_(self, call):
        call = self.visit_expr_post_order(call)
        name = op_name(call)
        if check := bounds_check.arguments(call):
            array, limits = self._value(check[0]), check[1:]
            known = array is not None and isinstance(check[2], int)
            return call if not known else relax.const(bounds_check.within(array, *limits), str(array.dtype))
        if name not in _ELEMENTWISE and name not in _OTHERS:
            return call
        shape, args = static_shape(call.ty), self._arrays(call, name)
        if shape is None or args is None:
            return call
        with np.errstate(all="ignore"):
            result = _ELEMENTWISE[name](*args) if name in _ELEMENTWISE else _OTHERS[name](call, *args)
        if result is None or np.shape(result) != shape:
            return call
        dtype = str(call.ty.dtype)
        return relax.const(np.ascontiguousarray(result).astype(dtype, copy=False).reshape(shape), dtype)

    def _arrays(self, call, name) -> list | None:
        """Return the arrays of the tensors that `call` reads; None if one of them is not constant."""
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
        """Return the array or scalar of a constant, else None."""
        if isinstance(arg, relax.Var):
            arg = self.lookup_binding(arg)
        return arg.value if isinstance(arg, tvm.tirx.FloatImm | tvm.tirx.IntImm) else constant_array(arg)
