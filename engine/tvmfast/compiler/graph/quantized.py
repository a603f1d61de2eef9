"""Quantized networks in the QDQ form, as sums of integers: operators between `dequantize` and `quantize`.

A convolution or matrix product of `dequantize`d data and constant weights becomes one of the integers
themselves, whose int32 sums are exact. What follows, a bias, a residual sum, a ReLU or clip and the next
`quantize`, becomes its epilogue: a multiplication by a scale and an addition in float32, the activation, a
rounding. The scale of that `quantize` is part of the constants, and the zero point of the data one int32 for
each channel, as an image is padded with it. Pools of maxima and operators that move elements run on the
integers, and an average pool is a depthwise convolution with weights of 1. The rest stays: `dequantize`, the
operator in float32, `quantize`. A product in int32 of bytes less their zero point, as Relay's `qnn` and
ONNX's ConvInteger have it, becomes such a sum, too.

B. Jacob et al., "Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only
Inference" (CVPR 2018).
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import tvm
from tvm import relax
from tvm.relax import op as R

from ...core.relax import (
    constant_array,
    known_shape,
    on_each_function,
    op_name,
    shape_text,
    static_shape,
)
from .conv_call import match

# A convolution of uint8 data, int8 weights and the value of the padding, the zero point. It sums the products
# in int32; a depthwise one those of the data less the zero point, in float32.
CONV2D = "relax.tvmfast.conv2d_of_integers"

_MOST_TERMS = (1 << 31) // (255 * 128)  # of a sum in int32
_MOST_IN_FLOAT32 = (1 << 24) // (255 * 128)
_LARGE = 1e12  # a scale that products in float32 might overflow with, as divisions by its inverse
_MOVES = (
    "reshape",
    "flatten",
    "squeeze",
    "expand_dims",
    "permute_dims",
    "strided_slice",
    "nn.max_pool1d",
    "nn.max_pool2d",
)  # and "nn.pad"
_BYTES = ("uint8", "int8")
_LAYERS = ("conv", "pool", "norm", "softmax", "attention", "mean")  # in the names of operators


def _registered() -> tvm.ir.Op:
    def infer_type(call, builder):
        conv = tvm.ir.Call(tvm.ir.Op.get("relax.nn.conv2d"), call.args[:2], call.attrs)
        return builder.normalize(conv).ty

    for key, value in {"FPurity": True, "FInferType": infer_type}.items():
        tvm.ir.register_op_attr(CONV2D, key, value)
    return tvm.ir.Op.get(CONV2D)


_CONV2D = _registered()


def sums_of_integers(in_float32: dict[str, str] | None = None) -> tvm.transform.Pass:
    """Make the pass, for a CPU; it needs constant scales, zero points and weights.

    `in_float32` gets why an operator of a quantized network is left in float32, by the name of a variable:
    that of its result, and of what is dequantized for it. `emit_noted` keeps it from pass to pass.
    """
    notes = {} if in_float32 is None else in_float32
    return on_each_function("SumsOfIntegers", lambda: _SumsOfIntegers(notes), needs=_is_quantized)


def emit_noted(in_float32: dict[str, str], var: relax.Var, emit: Callable, value: relax.Expr) -> relax.Var:
    """Emit what replaces the value of a variable; why that is in float32, if noted, goes with it."""
    if var.name not in in_float32:
        return emit(value)
    made = emit(value, f"{var.name}_made")
    in_float32[made.name] = in_float32[var.name]
    return made


def _is_quantized(func) -> bool:
    if not isinstance(func, relax.Function):
        return False
    values = [each.value for block in func.body.blocks for each in block.bindings]
    return any(op_name(value) == "dequantize" or _is_wide(value) for value in values)


def _is_wide(value) -> bool:
    """Tell whether a value is computed bytes in int32."""
    if op_name(value) != "astype" or not isinstance(value.args[0], relax.Var):
        return False
    return str(value.ty.dtype) == "int32" and str(value.args[0].ty.dtype) in _BYTES


# ---------------------------------------------------------------- values that are not computed yet


@dataclass(frozen=True)
class _Integers:
    """The value (q - zero) * scale of uint8 or int8."""

    q: relax.Expr
    scale: float
    zero: int


@dataclass(frozen=True)
class _Sums:
    """The value sums * scale + bias of whole numbers, int32 or float32, with arrays that broadcast."""

    sums: relax.Expr
    scale: np.ndarray
    bias: np.ndarray


@dataclass(frozen=True)
class _Of:
    """An operator of such values, which commutes with a positive factor; `call` is that of the network."""

    call: tvm.ir.Call
    parts: tuple


@dataclass(frozen=True)
class _Weight:
    """Constant weights: int8, less their zero point, and the scale, of one element or for each of an axis."""

    values: np.ndarray
    scale: np.ndarray
    axis: int | None


@relax.expr_functor.mutator
class _SumsOfIntegers(relax.PyExprMutator):
    def __init__(self, in_float32):
        super().__init__()
        self.in_float32 = in_float32
        self.reason = ""  # why the operator at hand is left in float32
        self.values = {}  # those not computed yet, by the network's variable
        self.floats: dict[relax.Var, relax.Expr] = {}  # the same computed, where another operator reads them
        self.unsigned: dict[relax.Var, relax.Expr] = {}  # int8 of the network as uint8, 128 larger

    def visit_function_(self, func):
        self.bound = relax.analysis.get_var2val(func)
        self.uses, self.readers = Counter(), {}
        for value in (*self.bound.values(), func.body.body):
            relax.analysis.post_order_visit(value, lambda expr, value=value: self._note(expr, value))
        return relax.analysis.remove_all_unused(super().visit_function_(func))

    def _note(self, expr, value):
        if isinstance(expr, relax.Var):
            self.uses[expr] += 1
            self.readers.setdefault(expr, []).append(value)

    # ------------------------------------------------------------ bindings and variables

    def visit_var_binding_(self, binding):
        var, call, self.reason = binding.var, binding.value, ""
        is_output = not isinstance(var, relax.DataflowVar)
        value = self._value(call)
        if value is None:
            result = self._quantize(var, call) if op_name(call) == "quantize" else self._whole(call)
        elif is_output:
            result = self._computed(value)
        else:
            self.values[var] = value
            return
        if result is None and (reason := self._why_in_float32(call)):
            self.reason = reason
            result = self.visit_expr_post_order(call)
        if result is None:
            super().visit_var_binding_(binding)
        elif isinstance(result, relax.Var) and not is_output:
            self.set_var_remap(var, result)
        else:
            emit = self.builder_.emit_output if is_output else self.builder_.emit
            self.set_var_remap(var, self._noted(emit, result))

    def visit_var_(self, var):
        return self._float(var) if var in self.values else super().visit_var_(var)

    def visit_dataflow_var_(self, var):
        return self._float(var) if var in self.values else super().visit_dataflow_var_(var)

    def _float(self, var):
        if var not in self.floats:
            self.floats[var] = self._noted(self.builder_.emit, self._computed(self.values[var]))
        return self.floats[var]

    def _noted(self, emit, value) -> relax.Var:
        """Emit a value, and note why it is left in float32 if it is."""
        if not self.reason:
            return emit(value)
        var = emit(value, "in_floats")
        self.in_float32[var.name] = self.reason
        return var

    def _computed(self, value, factor: float = 1.0) -> relax.Expr:
        """Return a call that computes a value, or its product with a factor."""
        emit = self.builder_.emit
        if isinstance(value, _Integers):
            return R.dequantize(value.q, _float32(value.scale * factor), relax.const(value.zero, "int32"))
        if isinstance(value, _Sums):
            is_float = str(value.sums.ty.dtype) == "float32"
            floats = value.sums if is_float else emit(R.astype(value.sums, "float32"))
            scaled = R.multiply(floats, _float32(value.scale * factor))
            return R.add(emit(scaled), _float32(value.bias * factor)) if value.bias.any() else scaled
        parts = [emit(self._computed(part, factor)) for part in value.parts]
        if op_name(value.call) == "clip":
            return R.clip(*parts, *(float(bound.value) * factor for bound in value.call.args[1:]))
        return tvm.ir.Call(value.call.op, parts, value.call.attrs)

    # ------------------------------------------------------------ operators

    def _value(self, call):
        """Return the value of a call if it is one that can wait; else None."""
        name = op_name(call)
        if name == "dequantize":
            return self._dequantize(call)
        if name in ("nn.conv1d", "nn.conv2d"):
            return self._of_floats(self._conv, call)
        if name == "matmul":
            return self._of_floats(self._matmul, call)
        if name == "add":
            return self._add(call)
        if name in ("nn.relu", "clip"):
            value = self._waiting(call.args[0])
            return None if value is None or isinstance(value, _Integers) else _Of(call, (value,))
        if name == "concat":
            return self._concat(call)
        if name == "nn.max_pool2d" and _has_sums(value := self._waiting(call.args[0])):
            return _Of(call, (value,))
        if name in ("nn.avg_pool1d", "nn.avg_pool2d"):
            return self._average(call)
        if name == "nn.pad":
            return self._pad(call)
        if name in _MOVES and isinstance(value := self.values.get(call.args[0]), _Integers):
            moved = tvm.ir.Call(call.op, [value.q, *call.args[1:]], call.attrs, call.ty_args)
            return replace(value, q=self.builder_.emit(moved))
        return None

    def _pad(self, call):
        """Pad integers with their own elements, or with the integer that stands for the constant exactly."""
        value, attrs = self.values.get(call.args[0]), call.attrs
        if not isinstance(value, _Integers):
            return None
        q, padding = value.zero, np.float32(attrs.pad_value)
        if str(attrs.pad_mode) == "constant" and padding:
            q = round(float(padding) / value.scale) + value.zero if np.isfinite(padding) else -1
            if not 0 <= q <= 255 or np.float32(q - value.zero) * np.float32(value.scale) != padding:
                return None
        moved = R.nn.pad(value.q, [int(n) for n in attrs.pad_width], attrs.pad_mode, float(q))
        return replace(value, q=self.builder_.emit(moved))

    def _waiting(self, var):
        """Return the value of a variable that nothing else reads."""
        return self.values.get(var) if self.uses[var] == 1 else None

    def _dequantize(self, call):
        if not _is_of_tensor(call):
            return None
        q, scale, zero = call.args[0], *map(_number, call.args[1:])
        if str(q.ty.dtype) == "int8":
            return _Integers(self._as_unsigned(q), scale, zero + 128)
        return _Integers(self.visit_expr(q), scale, zero)

    def _as_unsigned(self, var) -> relax.Expr:
        if var not in self.unsigned:
            wide = self.builder_.emit(R.astype(self.visit_expr(var), "int16"))
            moved = self.builder_.emit(R.add(wide, relax.const(128, "int16")))
            self.unsigned[var] = self.builder_.emit(R.astype(moved, "uint8"))
        return self.unsigned[var]

    def _quantize(self, var, call):
        """Return what replaces a `quantize` of a value that waits; None to keep it."""
        value, scale, zero = self.values.get(call.args[0]), *map(_number, call.args[1:])
        dtype = str(call.attrs.out_dtype)
        if dtype not in _BYTES or not _are_parameters(scale, zero, dtype):
            return None
        if isinstance(value, _Integers) and self._dtype(value, call) == (dtype, scale, zero):
            if dtype == "uint8":
                return value.q
            self.unsigned[var] = value.q
        elif dtype == "int8" and all(map(_is_of_tensor, self.readers.get(var, []))):
            zero, dtype = zero + 128, "uint8"
            self.unsigned[var] = self.builder_.emit(self._rounded(value, call, scale, zero, dtype))
            return self.unsigned[var]
        return self._rounded(value, call, scale, zero, dtype)

    def _dtype(self, value: _Integers, call) -> tuple:
        """Return dtype, scale and zero point of integers as the network has them, if `call` reads int8."""
        signed = str(call.attrs.out_dtype) == "int8"
        return str(call.attrs.out_dtype), value.scale, value.zero - (128 if signed else 0)

    def _rounded(self, value, call, scale: float, zero: int, dtype: str) -> relax.Expr:
        """Return the `quantize` of a value; its constants have the scale where nothing else reads it."""
        if value is None or not _has_sums(value) or self.uses[call.args[0]] != 1:
            at = relax.const(int(zero), "int32")
            return R.quantize(self.visit_expr(call.args[0]), _float32(scale), at, out_dtype=dtype)
        if isinstance(value, _Of) and op_name(value.call) == "nn.max_pool2d":  # of bytes, which is the same
            (part,), pool = value.parts, value.call
            q = self.builder_.emit(self._quantized(part, scale, zero, dtype))
            return tvm.ir.Call(pool.op, [q], pool.attrs)
        return self._quantized(value, scale, zero, dtype)

    def _quantized(self, value, scale: float, zero: int, dtype: str) -> relax.Expr:
        at = relax.const(int(zero), "int32")
        scaled = self.builder_.emit(self._computed(value, 1 / scale))
        return R.quantize(scaled, _float32(1.0), at, out_dtype=dtype)

    def _whole(self, call):
        """Return the sums of a product in int32 of bytes less a zero point and constant weights, or None."""
        product = {"nn.conv2d": self._conv, "matmul": self._matmul}.get(op_name(call))
        if product is None or str(call.ty.dtype) != "int32":
            return None
        data, weight = self._centred(call.args[0]), self._array(call.args[1])
        if data is None or weight is None or weight.min(initial=0) < -128 or weight.max(initial=0) > 127:
            return None
        value = product(call, data, _Weight(weight.astype("int8"), np.ones(1), None))
        if value is None:
            return None
        return value.sums if str(value.sums.ty.dtype) == "int32" else R.astype(value.sums, "int32")

    def _centred(self, expr) -> _Integers | None:
        """Return bytes that are read in int32, less a number that is one of them."""
        value, zero = self._resolved(expr), 0
        if op_name(value) == "subtract":
            zero = _number(value.args[1])
            value = self._resolved(value.args[0])
        if not _is_wide(value) or not _are_parameters(1.0, zero, str(value.args[0].ty.dtype)):
            return None
        if str(value.args[0].ty.dtype) == "int8":
            return _Integers(self._as_unsigned(value.args[0]), 1.0, zero + 128)
        return _Integers(self.visit_expr(value.args[0]), 1.0, zero)

    def _of_floats(self, product, call):
        """Return the value of a product of dequantized data and constant weights; None if it is none."""
        data, weight = self.values.get(call.args[0]), self._weight(call.args[1])
        if not isinstance(data, _Integers) or weight is None or str(call.ty.dtype) != "float32":
            return None
        return product(call, data, weight)

    def _conv(self, call, data: _Integers, weight: _Weight) -> _Sums | None:
        integers = tvm.ir.Call(call.op, [call.args[0], relax.const(weight.values)], call.attrs)
        found = match(integers)
        terms = int(np.prod(weight.values.shape[1:]))
        if found is None or weight.axis not in (None, 0):
            return None
        depthwise = found.groups > 1 and weight.values.shape[:2] == (found.groups, 1)
        shape = shape_text(call.args[0].ty) or (0,)
        fixed = shape[1:] if found.is_line else shape[1:2]  # as kernels need them
        if 0 in shape or not all(isinstance(n, int) for n in fixed):
            return None
        if terms > (_MOST_IN_FLOAT32 if depthwise else _MOST_TERMS):
            return None
        options = (*found.window, found.groups)
        dtype = "float32" if depthwise else "int32"
        q = self.builder_.emit(R.expand_dims(data.q, 2)) if found.is_line else data.q  # of height 1
        conv = R.nn.conv2d(q, relax.const(found.weight), *options, out_dtype=dtype)
        conv = tvm.ir.Call(_CONV2D, [*conv.args, relax.const(data.zero, "int32")], conv.attrs)
        less = (0 if depthwise else -data.zero) * found.weight.astype("int64").sum((1, 2, 3))
        value = self._sums(conv, less.reshape(1, -1, 1, 1), data, weight.scale.reshape(1, -1, 1, 1))
        if not found.is_line:
            return value
        of_lines = self.builder_.emit(R.squeeze(value.sums, 2))
        return replace(value, sums=of_lines, scale=value.scale[..., 0])

    def _average(self, call) -> _Sums | None:
        """Return an average pool of integers: sums of its windows, and a scale that divides them."""
        data, attrs, (x,) = self.values.get(call.args[0]), call.attrs, call.args
        shape, layouts = known_shape(x.ty), {str(attrs.layout), str(attrs.out_layout)}
        if not isinstance(data, _Integers) or attrs.ceil_mode or shape is None:
            return None
        if layouts != {"NCW" if len(shape) == 3 else "NCHW"}:
            return None
        window = attrs.pool_size, attrs.strides, attrs.padding, attrs.dilation
        size, strides, padding, dilation = ([int(n) for n in each] for each in window)
        partial = any(padding) and not attrs.count_include_pad
        if not all(isinstance(n, int) for n in (shape[1:] if partial else shape[1:2])):
            return None
        ones = np.ones((shape[1], 1, *size), "int8")
        conv = R.nn.conv2d if len(size) == 2 else R.nn.conv1d
        call = conv(x, relax.const(ones), strides, padding, dilation, groups=shape[1])
        value = self._conv(call, data, _Weight(ones, np.array([1 / ones[0].size]), None))
        if value is None or not partial:
            return value
        shares, ends = np.ones(()), padding[len(size) :]  # of each window, in the image
        for n, k, s, before, after, d in zip(shape[2:], size, strides, padding, ends, dilation, strict=False):
            taps = np.arange(-before, n + after - (k - 1) * d, s)[:, None] + d * np.arange(k)
            shares = np.multiply.outer(shares, ((taps >= 0) & (taps < n)).sum(1).clip(1) / k)
        return replace(value, scale=value.scale / shares)

    def _matmul(self, call, data: _Integers, weight: _Weight) -> _Sums | None:
        shape = known_shape(call.args[0].ty)
        if weight.values.ndim != 2 or weight.axis not in (None, 1) or len(weight.values) > _MOST_TERMS:
            return None
        if shape is None or len(shape) < 2 or 0 in shape or 0 in weight.values.shape:
            return None
        product = R.matmul(data.q, relax.const(weight.values), out_dtype="int32")
        less = -data.zero * weight.values.astype("int64").sum(0)
        return self._sums(product, less, data, weight.scale)

    def _sums(self, call, less: np.ndarray, data: _Integers, scale: np.ndarray) -> _Sums:
        sums = self.builder_.emit(call)
        if less.any():
            sums = self.builder_.emit(R.add(sums, relax.const(less.astype("int32"))))
        return _Sums(sums, scale * data.scale, np.zeros((), "float64"))

    def _add(self, call):
        first, second = (self._waiting(arg) if isinstance(arg, relax.Var) else None for arg in call.args)
        shapes = [shape_text(arg.ty) for arg in (*call.args, call)]
        arrays = [self._array(arg) for arg in call.args]
        for value, own, array in ((first, shapes[0], arrays[1]), (second, shapes[1], arrays[0])):
            if isinstance(value, _Sums) and array is not None and own in (None, shapes[2]):
                known = array.dtype == np.float32 and np.isfinite(array).all()
                return replace(value, bias=value.bias + array.astype("float64")) if known else None
        residual = shapes[0] is not None and shapes[0] == shapes[1]
        if residual and first is None and isinstance(self.values.get(call.args[0]), _Integers):
            first = self.values[call.args[0]]
        if residual and second is None and isinstance(self.values.get(call.args[1]), _Integers):
            second = self.values[call.args[1]]
        if not residual or first is None or second is None or not (_has_sums(first) or _has_sums(second)):
            return None
        return _Of(call, (first, second))

    def _concat(self, call):
        parts = call.args[0].fields if isinstance(call.args[0], relax.Tuple) else []
        values = [self.values.get(part) for part in parts]
        if not values or not all(isinstance(value, _Integers) for value in values):
            return None
        if len({(value.scale, value.zero) for value in values}) != 1:
            return None
        joined = R.concat([value.q for value in values], call.attrs.axis)
        return replace(values[0], q=self.builder_.emit(joined))

    # ------------------------------------------------------------ what is left in float32

    def _why_in_float32(self, call) -> str:
        """Return which operator stays in float32 and why; "" of one that is no layer, nor reads integers."""
        name = op_name(call)
        if not name or str(getattr(call.ty, "dtype", "")) != "float32":
            return ""
        kind = name.rpartition(".")[2]
        fields = (arg.fields if isinstance(arg, relax.Tuple) else [arg] for arg in call.args)
        read = [self.values.get(var) for each in fields for var in each if isinstance(var, relax.Var)]
        if kind in ("conv1d", "conv2d", "matmul"):
            return f"{kind}: {self._why_no_sums(call)}"
        if any(isinstance(value, _Integers) for value in read):
            return f"{kind}: there is no kernel of integers for it"
        return f"{kind}: its input is not quantized" if any(part in kind for part in _LAYERS) else ""

    def _why_no_sums(self, call) -> str:
        """Return why a product does not become one of integers."""
        data, weight = call.args
        if not self._is_constant(weight):
            return f"{'both its operands' if op_name(call) == 'matmul' else 'its weights'} are computed"
        if not isinstance(self.values.get(data), _Integers):
            is_quantized = op_name(self._resolved(data)) == "dequantize"
            return f"its input is not {'of 8 bits with one scale' if is_quantized else 'quantized'}"
        if constant_array(self._resolved(weight)) is not None:
            return "its weights are not quantized"
        if self._weight(weight) is None:
            return "its weights do not fit into int8"
        return "there is no kernel of integers for its shape, layout or number of products"

    def _is_constant(self, expr) -> bool:
        expr = self._resolved(expr)
        if op_name(expr) in ("dequantize", "permute_dims", "reshape", "expand_dims"):
            return self._is_constant(expr.args[0])
        return constant_array(expr) is not None

    # ------------------------------------------------------------ constants

    def _resolved(self, expr):
        while isinstance(expr, relax.Var) and expr in self.bound:
            expr = self.bound[expr]
        return expr

    def _array(self, expr) -> np.ndarray | None:
        """Return a constant as an array, also a bias that is dequantized and reshaped; else None."""
        expr = self._resolved(expr)
        if op_name(expr) in ("reshape", "expand_dims") and static_shape(expr.ty) is not None:
            array = self._array(expr.args[0])
            return None if array is None else array.reshape(static_shape(expr.ty))
        if op_name(expr) != "dequantize":
            return constant_array(expr)
        q, scale, zero = map(constant_array, map(self._resolved, expr.args))
        if q is None or scale is None or zero is None or str(expr.ty.dtype) != "float32":
            return None
        scale, zero = (_along(each, int(expr.attrs.axis), q.ndim) for each in (scale, zero))
        return (q.astype("int64") - zero.astype("int64")).astype("float32") * scale.astype("float32")

    def _weight(self, expr) -> _Weight | None:
        """Return constant weights that are dequantized, and perhaps transposed then; else None."""
        expr = self._resolved(expr)
        if op_name(expr) == "permute_dims":
            weight = self._weight(expr.args[0])
            if weight is None:
                return None
            rank = weight.values.ndim
            axes = [int(a) % rank for a in expr.attrs.axes] if expr.attrs.axes else [*reversed(range(rank))]
            axis = None if weight.axis is None else axes.index(weight.axis)
            return _Weight(np.ascontiguousarray(weight.values.transpose(axes)), weight.scale, axis)
        if op_name(expr) != "dequantize":
            return None
        q, scale, zero = map(constant_array, map(self._resolved, expr.args))
        if q is None or scale is None or zero is None or str(q.dtype) not in _BYTES:
            return None
        axis = int(expr.attrs.axis) % max(q.ndim, 1)
        values = q.astype("int32") - _along(zero, axis, q.ndim).astype("int32")
        scale = scale.astype("float64")
        if values.min(initial=0) < -128 or values.max(initial=0) > 127 or not (np.abs(scale) < _LARGE).all():
            return None
        one = scale.size == 1
        return _Weight(values.astype("int8"), scale.reshape(-1), None if one else axis)


def _is_of_tensor(call) -> bool:
    """Tell whether a call dequantizes computed bytes to float32, with one constant scale and zero point."""
    if op_name(call) != "dequantize" or not isinstance(call.args[0], relax.Var):
        return False
    dtypes = str(call.args[0].ty.dtype), str(call.ty.dtype)
    parameters = map(_number, call.args[1:])
    return dtypes[0] in _BYTES and dtypes[1] == "float32" and _are_parameters(*parameters, dtypes[0])


def _are_parameters(scale: float | None, zero: int | None, dtype: str) -> bool:
    """Tell whether a scale is known and moderate, and a zero point one of the dtype."""
    if scale is None or not isinstance(zero, int):
        return False
    info = np.iinfo(dtype)
    return 1 / _LARGE < scale < _LARGE and info.min <= zero <= info.max


def _along(array: np.ndarray, axis: int, rank: int) -> np.ndarray:
    """Reshape a scale or zero point of one element, or one for each index of an axis, to broadcast."""
    if array.size == 1:
        return array.reshape(())
    return array.reshape([-1 if each == axis % rank else 1 for each in range(rank)])


def _has_sums(value) -> bool:
    return isinstance(value, _Sums) or (isinstance(value, _Of) and any(map(_has_sums, value.parts)))


def _number(expr) -> float | int | None:
    array = constant_array(expr)
    return array.reshape(()).item() if array is not None and array.size == 1 else None


def _float32(value) -> relax.Expr:
    return relax.const(np.asarray(value, "float32"))
