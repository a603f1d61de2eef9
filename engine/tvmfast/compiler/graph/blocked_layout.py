"""Move convolutions, and the operators between them, from NCHW to the blocked layout NCHW[x]c.

In NCHW[x]c the channels are split into blocks of x, the target's vector width in float32, and a block's
channels are adjacent in memory: one load fills a register with x channels of one pixel. This is NeoCPU's
layout (Liu et al., "Optimizing CNN Model Inference on CPUs", USENIX ATC 2019). A tensor changes its layout
only at the edges: if an operator that is not in the tables below reads a blocked value, and at the network's
outputs. Lines, (N, C, W), are images of height 1.

The last block is padded with channels that the network does not have. A convolution's result is set to 0
there, so such a channel holds whatever the elementwise operators make of 0, and the next convolution
multiplies it by 0: operators that may turn it into a NaN or an infinity are therefore left in NCHW.
"""

import itertools
import math
from dataclasses import dataclass, replace

import numpy as np
import tvm
from tvm import relax, te, tirx

from ...core.compat import CONCATENATE, OUT_EWISE_FUSABLE
from ...core.protocols import Lookup
from ...core.relax import (
    ceildiv,
    constant_array,
    known_shape,
    on_each_function,
    shape_text,
    unwrap_ints,
)
from ...core.simd import Simd, pad_to
from ..schedule.rules import amx_conv, paired, repack_channels
from ..schedule.workloads import conv2d
from ..schedule.workloads.conv2d import Convolution, one_image
from .conv_call import as_images, match
from .half_precision import rounded
from .quantized import CONV2D, emit_noted

# Elementwise operators whose result is finite for every finite input, and those for which it may not be.
_FINITE = {f"relax.{name}" for name in (
    "abs", "add", "ceil", "clip", "cos", "erf", "floor", "left_shift", "maximum", "minimum", "multiply",
    "negative", "right_shift", "round", "sigmoid", "sin", "subtract", "tanh",
    "nn.gelu", "nn.gelu_tanh", "nn.leakyrelu", "nn.relu", "nn.relu6", "nn.silu", "nn.softplus",
)}  # fmt: skip
_OTHERS = {f"relax.{name}" for name in ("divide", "exp", "log", "power", "rsqrt", "sqrt", "square")}
# Elementwise operators with another dtype than their operand's, which is a result of these or of integers.
_CONVERSIONS = ("relax.astype", "relax.quantize", "relax.dequantize")
_BLOCKED_DTYPES = ("float32", "uint8", "int8")
_WINDOW = ("pool_size", "strides", "padding", "dilation", "ceil_mode", "count_include_pad")
_POOLS = {
    "relax.nn.max_pool2d": (relax.op.nn.max_pool2d, _WINDOW),
    "relax.nn.avg_pool2d": (relax.op.nn.avg_pool2d, _WINDOW),
    "relax.nn.adaptive_avg_pool2d": (relax.op.nn.adaptive_avg_pool2d, ("output_size",)),
}
_OF_LINES = {name.replace("2d", "1d"): name for name in _POOLS}
_BY_AXIS = ("pool_size", "strides", "padding", "dilation", "output_size")
_RESHAPES = {f"relax.{name}" for name in ("reshape", "expand_dims", "squeeze", "flatten", "nn.batch_flatten")}


def block_layouts(
    simd: Simd,
    lookup: Lookup | None = None,
    dtype: str | None = None,
    in_pairs: bool = False,
    in_float32: dict[str, str] | None = None,
) -> tvm.transform.Pass:
    """Make the pass for blocks of `simd.lanes` channels; it needs constant weights, so run it after folding.

    Convolutions become kernels at once, because Relax has no operator for a blocked grouped convolution. With
    a `dtype`, packed weights are rounded to it; see half_precision.py. With `in_pairs`, the rules of
    paired.py multiply. `in_float32` is as in quantized.py.
    """
    how = simd, lookup, dtype, in_pairs, {} if in_float32 is None else in_float32
    return on_each_function("BlockLayouts", lambda mod: _Blocker(mod, *how), adds_kernels=True)


@dataclass(frozen=True)
class _Blocked:
    """A value in NCHW[x]c: `expr`, of shape (N, blocks, H, W, x), holds the network's (N, channels, H, W).

    With `rank` 3, that is (N, channels, W), and H is 1.
    """

    expr: relax.Expr
    channels: int
    rank: int


@relax.expr_functor.mutator
class _Blocker(relax.PyExprMutator):
    def __init__(self, mod, simd, lookup, dtype, in_pairs, in_float32):
        super().__init__(mod)
        self.simd, self.lookup, self.dtype, self.in_pairs = simd, lookup, dtype, in_pairs
        self.in_float32 = in_float32
        self.lanes = simd.lanes
        self.layout = f"NCHW{self.lanes}c"
        self.blocked: dict[relax.Var, _Blocked] = {}  # by the network's variable
        self.unblocked: dict[relax.Var, relax.Expr] = {}  # the same values in NCHW, if an operator needs them
        self.several: dict[relax.Var, list[_Blocked]] = {}  # the results of splits
        self.readers: dict[relax.Var, set[str]] = {}  # operators, by a variable that they read
        for value in relax.analysis.get_var2val(mod["main"]).values():
            for arg in _variables(value) if isinstance(value, tvm.ir.Call) else ():
                if isinstance(arg, relax.Var):
                    self.readers.setdefault(arg, set()).add(getattr(value.op, "name", ""))
        self.bound = None  # the variable whose value is rewritten

    # ------------------------------------------------------------ bindings and variables

    def visit_var_binding_(self, binding):
        self.bound = binding.var
        var, value = binding.var, self._rewrite(binding.value)
        is_output = not isinstance(var, relax.DataflowVar)
        if value is None or (isinstance(value, list) and is_output):
            super().visit_var_binding_(binding)
        elif isinstance(value, list):
            self.several[var] = value
        elif isinstance(value, _Blocked):
            expr = emit_noted(self.in_float32, var, self.builder_.emit, value.expr)
            self.blocked[var] = replace(value, expr=expr)
            if is_output:
                self.set_var_remap(var, self.builder_.emit_output(self._unblock(self.blocked[var])))
        else:
            emit = self.builder_.emit_output if is_output else self.builder_.emit
            self.set_var_remap(var, emit_noted(self.in_float32, var, emit, value))

    def visit_var_(self, var):
        return self._nchw(var) if self._is_blocked(var) else super().visit_var_(var)

    def visit_dataflow_var_(self, var):
        if var in self.several:
            return relax.Tuple([self.builder_.emit(self._unblock(part)) for part in self.several[var]])
        return self._nchw(var) if self._is_blocked(var) else super().visit_dataflow_var_(var)

    def _is_blocked(self, var) -> bool:
        return var in self.blocked and isinstance(var, relax.DataflowVar)

    def _nchw(self, var):
        if var not in self.unblocked:
            self.unblocked[var] = self.builder_.emit(self._unblock(self.blocked[var]))
        return self.unblocked[var]

    def _rewrite(self, value):
        """Return `value` rewritten: a _Blocked, a list of them, an expression in NCHW; None to keep it."""
        if isinstance(value, relax.TupleGetItem) and value.tuple_value in self.several:
            return self.several[value.tuple_value][value.index]
        if not isinstance(value, tvm.ir.Call) or not isinstance(value.op, tvm.ir.Op):
            return None
        name = value.op.name
        if name in ("relax.nn.conv1d", "relax.nn.conv2d"):
            return self._conv2d(value)
        if name == CONV2D:
            return self._conv2d_of_integers(value)
        if not any(arg in self.blocked for arg in _variables(value)):
            return None
        if name in _FINITE or name in _OTHERS:
            return self._elementwise(value)
        if name in _CONVERSIONS:
            return self._converted(value)
        if name in _POOLS or name in _OF_LINES:
            return self._pool(value)
        if name in _RESHAPES:
            return self._reshape(value)
        rule = {
            "relax.concat": self._concat,
            "relax.split": self._split,
            "relax.mean": self._mean,
        }.get(name)
        return rule(value) if rule else None

    # ------------------------------------------------------------ between the layouts

    def _block(self, arg) -> _Blocked | None:
        """Return `arg` in NCHW[x]c; None unless it is a tensor of images or lines, of float32 or bytes."""
        if arg in self.blocked:
            return self.blocked[arg]
        shape = _image_shape(arg.ty)
        if shape is None or str(arg.ty.dtype) not in _BLOCKED_DTYPES:
            return None
        name = f"to_{self.layout}"
        call = self.builder_.call_te(_to_blocks, self.visit_expr(arg), self.lanes, primfunc_name_hint=name)
        blocked = _Blocked(self.builder_.emit(call), shape[1], len(arg.ty.shape))
        if isinstance(arg, relax.DataflowVar):
            self.blocked[arg], self.unblocked[arg] = blocked, self.visit_expr(arg)
        return blocked

    def _unblock(self, value: _Blocked):
        name = f"from_{self.layout}"
        args = value.expr, value.channels, value.rank
        return self.builder_.call_te(_from_blocks, *args, primfunc_name_hint=name)

    # ------------------------------------------------------------ operators

    def _conv2d(self, call):
        found = match(call)
        if found is None or _image_shape(call.args[0].ty) is None or found.weight.dtype != np.float32:
            return None
        data, weight = call.args[0], found.weight
        groups, lanes = found.groups, self.lanes
        # Few channels, as of an image, are read in NCHW.
        is_image = groups == 1 and weight.shape[1] < lanes and data not in self.blocked
        block = None if is_image else self._block(data)
        if not is_image and block is None:
            return None
        conv = Convolution(one_image(found.shape), weight.shape, *found.window, groups, not is_image)
        static = all(isinstance(dim, int) for dim in found.shape[1:])
        config = conv.config(self.lookup, self.simd) if static else conv.config_for_dynamic_dims(self.simd)
        if self.in_pairs and static:
            config = paired.instead_of(conv, config, found.shape, self.simd)
        source = self.visit_expr(data) if is_image else block.expr
        if is_image and found.is_line:
            source = self.builder_.emit(relax.op.expand_dims(source, 2))
        if _channels(known_shape(source.ty)) != _channels(conv.packed_input_shape(lanes)):
            _, groups, _, _, channels = conv.packed_input_shape(lanes)
            source = self.builder_.emit(self.builder_.call_te(conv2d.group, source, groups, channels))
        has_gaps = conv.has_gaps(config, lanes)
        # `ungroup` pads a result with gaps itself.
        is_complete = len(weight) % lanes == 0 or conv.is_depthwise or has_gaps

        def compute(data, kernel):
            result = conv.compute(data, kernel, config)
            return result if is_complete else _zero_fill(result, len(weight))

        result = self.builder_.call_te(
            compute,
            source,
            relax.const(rounded(conv.pack(weight, config, lanes), self.dtype)),
            primfunc_name_hint="depthwise_conv2d" if conv.is_depthwise else "conv2d",
            primfunc_attrs={"op_pattern": OUT_EWISE_FUSABLE},
        )
        if has_gaps:
            result = self.builder_.emit(result)
            result = self.builder_.call_te(conv2d.ungroup, result, conv.kernel_groups(lanes), len(weight))
        return _Blocked(result, len(weight), 3 if found.is_line else 4)

    def _conv2d_of_integers(self, call):
        data, weight, zero = call.args
        found = match(tvm.ir.Call(tvm.ir.Op.get("relax.nn.conv2d"), [data, weight], call.attrs))
        (outs, ins, *_), padding = found.weight.shape, int(constant_array(zero))
        conv = Convolution(one_image(found.shape), found.weight.shape, *found.window, found.groups, True)
        static = all(isinstance(dim, int) for dim in found.shape[1:])
        if conv.is_depthwise:
            return self._depthwise_of_bytes(conv, self._block(data), found.weight, padding, static)
        # Of few channels no more are read than needed.
        is_image = found.groups == 1 and ins < self.lanes and data not in self.blocked
        conv = replace(conv, blocked=not is_image, dtype="uint8", zero=padding)
        if is_image:
            inner = conv.packed_input_shape(self.lanes)[-1]
            name = f"to_NCHW{inner}c"
            source = self.builder_.call_te(_to_blocks, self.visit_expr(data), inner, primfunc_name_hint=name)
            source = self.builder_.emit(source)
        else:
            source = self._block(data).expr
        config = amx_conv.config_of_integers(conv, found.shape, self.simd)
        if config is None and static:
            config = replace(conv, zero=0).config(self.lookup, self.simd)  # as trials have it
        config = config or conv.config_for_dynamic_dims(self.simd)
        result = self.builder_.call_te(
            lambda data, kernel: conv.compute(data, kernel, config),
            source,
            relax.const(conv.pack(found.weight, config, self.lanes)),
            primfunc_name_hint="conv2d_of_integers",
            primfunc_attrs={"op_pattern": OUT_EWISE_FUSABLE},
        )
        return _Blocked(result, outs, 4)

    def _depthwise_of_bytes(
        self, conv: Convolution, data: _Blocked, weight: np.ndarray, zero: int, static: bool
    ):
        packed, compute = conv.depthwise_of_bytes(weight.astype("float32"), zero, self.simd, static)
        name = "avg_pool2d" if (weight == 1).all() else "depthwise_conv2d"
        result = self.builder_.call_te(
            compute,
            data.expr,
            relax.const(packed),
            primfunc_name_hint=f"{name}_of_integers",
            primfunc_attrs={"op_pattern": OUT_EWISE_FUSABLE},
        )
        return replace(data, expr=result)

    def _converted(self, call):
        """Convert the dtype, with one scale and zero point for all channels."""
        block = self.blocked[call.args[0]]
        arrays = [constant_array(arg) for arg in call.args[1:]]
        if any(array is None or array.size != 1 for array in arrays):
            return None
        if call.op.name == "relax.astype" and "int" not in str(block.expr.ty.dtype):
            return None
        args = [block.expr, *call.args[1:]]
        return replace(block, expr=tvm.ir.Call(call.op, args, call.attrs, call.ty_args))

    def _elementwise(self, call):
        found = [self.blocked[arg] for arg in call.args if arg in self.blocked]
        channels, rank = max(each.channels for each in found), found[0].rank
        shape = _image_shape(call.ty)
        padded = channels % self.lanes != 0
        if shape is None or shape[1] != channels or len(call.ty.shape) != rank:
            return None
        if padded and (call.op.name not in _FINITE or _clips_to_infinity(call)):
            return None
        args = []
        for arg in call.args:
            if not isinstance(getattr(arg, "ty", None), relax.TensorType):  # a bound of clip, for example
                args.append(arg)
                continue
            array, own = constant_array(arg), known_shape(arg.ty) or ()
            if array is not None and len(own) <= rank and array.dtype in (np.float32, np.int32, np.int64):
                if padded and not np.isfinite(array).all():
                    return None
                args.append(relax.const(self._block_constant(array, rank), array.dtype.name))
                continue
            if len(own) != rank:
                return None
            if own[1] == 1 != channels:  # one value for all channels
                if padded:  # which may be infinite
                    return None
                args.append(relax.op.expand_dims(self.visit_expr(arg), -1 if rank == 4 else [2, 4]))
                continue
            block = self._block(arg)
            if block is None or block.channels != channels:
                return None
            args.append(block.expr)
        return _Blocked(tvm.ir.Call(call.op, args, call.attrs, call.ty_args), channels, rank)

    def _block_constant(self, array: np.ndarray, rank: int) -> np.ndarray:
        """Reshape a constant to broadcast against a blocked value as it did against the one in NCHW."""
        array = array.reshape(as_images((1,) * (rank - array.ndim) + array.shape))
        if array.size == 1:
            return array.reshape(())
        if array.shape[1] == 1:
            return array[..., None]
        return _blocks(array, self.lanes)

    def _pool(self, call):
        attrs, block, name = call.attrs, self.blocked[call.args[0]], call.op.name
        if {attrs.layout, attrs.out_layout} != {"NCW" if name in _OF_LINES else "NCHW"}:
            return None
        pool, names = _POOLS[_OF_LINES.get(name, name)]
        values = {each: getattr(attrs, each) for each in names}
        if name in _OF_LINES:
            values |= {each: _of_height_1(each, values[each]) for each in names if each in _BY_AXIS}
        result = pool(block.expr, **values, layout=self.layout, out_layout=self.layout)
        return replace(block, expr=result)

    def _concat(self, call):
        parts = list(call.args[0].fields) if isinstance(call.args[0], relax.Tuple) else []
        rank = len(call.ty.shape)
        of_channels = call.attrs.axis is not None and int(call.attrs.axis) % rank == 1
        if not parts or not of_channels or _image_shape(call.ty) is None:
            return None
        whole = not any((_image_shape(part.ty) or (0, 1))[1] % self.lanes for part in parts)
        if not whole and not all(part in self.blocked for part in parts):
            return None
        if not whole and self.readers.get(self.bound, set()) <= _RESHAPES:  # of a shuffle, for example
            return None
        blocks = [self._block(part) for part in parts]
        if None in blocks:
            return None
        channels = [b.channels for b in blocks]
        if whole:
            joined = relax.op.concat([b.expr for b in blocks], axis=1)
        else:
            args = repack_channels.concat, [b.expr for b in blocks], channels
            joined = self.builder_.call_te(*args, primfunc_name_hint=CONCATENATE)
        return _Blocked(joined, sum(channels), rank)

    def _split(self, call):
        block = self.blocked[call.args[0]]
        if int(call.attrs.axis) != 1:
            return None
        parts = call.attrs.indices_or_sections
        if isinstance(parts, tvm.tirx.IntImm | int):
            each = math.ceil(block.channels / int(parts))
            ends = [min(each * (i + 1), block.channels) for i in range(int(parts))]
        else:
            ends = [*(int(i) for i in parts), block.channels]
        if ends != sorted(set(ends)):
            return None
        several = []
        for begin, end in itertools.pairwise([0, *ends]):
            if begin % self.lanes or end % self.lanes:
                args = repack_channels.part, block.expr, begin, end - begin
                part = self.builder_.call_te(*args, primfunc_name_hint="part")
            else:
                part = relax.op.strided_slice(block.expr, [1], [begin // self.lanes], [end // self.lanes])
            several.append(_Blocked(self.builder_.emit(part), end - begin, block.rank))
        return several

    def _mean(self, call):
        """Compute a mean over the image; without keepdims the result is (N, channels)."""
        block = self.blocked[call.args[0]]
        axes = call.attrs.axis
        if axes is None or sorted(int(a) % block.rank for a in axes) != [*range(2, block.rank)]:
            return None
        mean = relax.op.mean(block.expr, [2, 3], keepdims=True)
        mean = replace(block, expr=emit_noted(self.in_float32, self.bound, self.builder_.emit, mean))
        return mean if call.attrs.keepdims else self._as_vector(mean)

    def _reshape(self, call):
        """Reshape images of height 1 to lines and lines to these, or one pixel for each image to a vector."""
        block, shape = self.blocked[call.args[0]], shape_text(call.ty)
        n, _, h, w, _ = shape_text(block.expr.ty)
        if shape == (n, block.channels, h, w) or (h == 1 and shape == (n, block.channels, w)):
            return replace(block, rank=len(shape))
        return self._as_vector(block) if (h, w) == (1, 1) and shape == (n, block.channels) else None

    def _as_vector(self, value: _Blocked):
        n, blocks, _, _, lanes = known_shape(value.expr.ty)
        flat = relax.op.reshape(value.expr, (n, blocks * lanes))
        if value.channels % lanes == 0:
            return flat
        return relax.op.strided_slice(self.builder_.emit(flat), [1], [0], [value.channels])


def _of_height_1(name: str, values) -> list[int] | None:
    """Return what an attribute of a pool of lines, such as its strides, is for images of height 1."""
    of_height = 0 if name == "padding" else 1
    return None if values is None else [n for value in values for n in (of_height, int(value))]


def _image_shape(ty) -> tuple | None:
    """Return the shape (N, C, H, W) of images or lines, of which C is static, and W of lines; else None."""
    shape = known_shape(ty)
    if shape_text(ty) is None or len(shape) not in (3, 4):
        return None
    fixed = shape[1:] if len(shape) == 3 else shape[1:2]
    return as_images(shape) if all(isinstance(n, int) for n in fixed) else None


def _channels(shape: tuple) -> tuple:
    """Return the channel dims of (N, C, H, W) or (N, blocks, H, W, x)."""
    return shape[1], *shape[4:]


def _clips_to_infinity(call) -> bool:
    """Tell whether a call clips 0 to an infinity or NaN."""
    if call.op.name != "relax.clip":
        return False
    return not np.isfinite(np.clip(0.0, *(float(bound.value) for bound in call.args[1:])))


def _variables(call):
    for arg in call.args:
        yield from arg.fields if isinstance(arg, relax.Tuple) else [arg]


def _to_blocks(data, lanes: int):
    n, channels, h, w = as_images(unwrap_ints(data.shape))
    of_images = len(data.shape) == 4

    def element(b, k, y, x, c):
        value = data[b, k * lanes + c, y, x] if of_images else data[b, k * lanes + c, x]
        if channels % lanes == 0:
            return value
        return te.if_then_else(k * lanes + c < channels, value, tirx.const(0, data.dtype))

    return te.compute((n, ceildiv(channels, lanes), h, w, lanes), element, name="to_blocks")


def _zero_fill(data, channels: int):
    """Set the padded channels to 0: a convolution may compute 0 * infinity there."""
    lanes = int(data.shape[-1])

    def element(b, k, y, x, c):
        return tirx.Select(k * lanes + c < channels, data[b, k, y, x, c], 0.0)

    return te.compute(data.shape, element, name="zero_fill")


def _from_blocks(data, channels: int, rank: int):
    n, _, h, w, lanes = unwrap_ints(data.shape)

    def element(b, c, *at):
        y, x = at if rank == 4 else (0, *at)
        return data[b, c // lanes, y, x, c % lanes]

    return te.compute((n, channels, *(h, w)[4 - rank :]), element, name="from_blocks")


def _blocks(array: np.ndarray, lanes: int) -> np.ndarray:
    """Convert (N, C, H, W) to (N, C / lanes, H, W, lanes), padded with zeros."""
    n, channels, h, w = array.shape
    count = ceildiv(channels, lanes)
    array = pad_to(array, (n, count * lanes, h, w)).reshape(n, count, lanes, h, w)
    return np.ascontiguousarray(array.transpose(0, 1, 3, 4, 2))
