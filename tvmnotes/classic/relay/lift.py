"""From Relax to Relay: a module that an importer gave, as the graph of Relay calls that scripts look into.

What Relay had an operator for becomes a call of it. The rest keeps its name from Relax and remembers the call that it
was, so that nothing is lost on the way back.
"""

import tvm
from tvm import relax

from ...base.relax import array_key, constant_array, fixed_shape
from . import ir
from .lower import relay_type
from .ops import OPERATORS
from .ops.operator import plain
from .ty import TensorType

_RENAMED = {"concat": "concatenate", "permute_dims": "transpose", "nn.leakyrelu": "nn.leaky_relu", "flip": "reverse"}
_UNLIKE = ("gather_nd", "nn.dropout", "argmax", "argmin")  # of the same name in Relay, with other indices or results
_MODES = {"replicate": "edge", "circular": "wrap"}


def from_relax(mod: tvm.IRModule) -> ir.IRModule:
    """Relay's view of `mod["main"]`."""
    main, known, today = mod["main"], {}, dict(mod.functions_items())
    for param in main.params:
        known[param] = ir.Var(param.name, TensorType(fixed_shape(param.ty) or (), param.ty.dtype))
    for block in main.body.blocks:
        for binding in block.bindings:
            today[binding.var] = binding.value
            made = known[binding.var] = _lift(binding.value, known, today)
            made._type = made._type or relay_type(binding.var.ty)
    return ir.IRModule({"main": ir.Function([known[p] for p in main.params], _value(main.body.body, known))})


def _value(expr, known) -> ir.Expr:
    if expr in known:
        return known[expr]
    if isinstance(expr, relax.Tuple):
        return ir.Tuple([_value(field, known) for field in expr.fields])
    if constant_array(expr) is not None:
        return known.setdefault(array_key(expr.value), ir.Constant(expr.value))  # one constant, however often read
    raise TypeError(f"expected a Relax value, got {type(expr).__name__}")


def _lift(expr, known, today) -> ir.Expr:
    if isinstance(expr, relax.TupleGetItem):
        value = _value(expr.tuple_value, known)
        return value.fields[expr.index] if isinstance(value, ir.Tuple) else ir.TupleGetItem(value, expr.index)
    if not isinstance(expr, tvm.ir.Call):
        return _value(expr, known)
    name = getattr(expr.op, "name", "").removeprefix("relax.")
    made = _special(name, expr, known, today) or _same(name, expr, known)
    return made or _kept(name, expr, known, today)


def _same(name, call, known) -> ir.Expr | None:
    """A call of the operator that has the same tensors and attributes in Relay."""
    spec, attrs = OPERATORS.get(_RENAMED.get(name, name)), _attributes(call)
    if spec is None or name in _UNLIKE or not all(map(_is_tensor, call.args)) or len(call.args) != len(spec.tensors):
        return None
    if "max_pool" in name:
        del attrs["count_include_pad"]
    if not set(attrs) <= set(spec.defaults):
        return None
    attrs = {**spec.defaults, **attrs}
    if attrs.get("out_layout") and attrs["out_layout"] == attrs["layout"]:
        attrs["out_layout"] = ""
    if spec.signature.empty in attrs.values():
        return None
    return ir.Call(ir.Op(spec.name), [_value(arg, known) for arg in call.args], attrs)


def _attributes(call) -> dict:
    if call.attrs is None:
        return {}
    names = [n for n in dir(call.attrs) if n[0] != "_" and n not in _METHODS]
    return {n: plain(getattr(call.attrs, n)) for n in names}


_METHODS = ("get_int", "get_int_tuple", "get_str", "id_", "is_", "same_as")


def _is_tensor(arg) -> bool:
    if isinstance(arg, relax.Tuple):
        return all(map(_is_tensor, arg.fields))
    return isinstance(arg, relax.Var) or constant_array(arg) is not None


def _special(name, call, known, today) -> ir.Expr | None:
    """The operators whose arguments Relax passes in another way."""

    def make(op, tensors, **attrs):
        return OPERATORS[op](*(_value(t, known) for t in tensors), **attrs)

    x = call.args[0] if call.args else None
    if name == "matmul":
        return _product(call, make, today)
    if name == "add":
        return _bias(call, make, today)
    if name in ("nn.conv1d", "nn.conv2d", "nn.conv3d", "nn.conv1d_transpose", "nn.conv2d_transpose"):
        return _convolution(name, call, known)
    if name == "expand_dims":
        axes = sorted(int(a) % len(call.ty.shape) for a in call.attrs.axis)
        if axes == list(range(axes[0], axes[0] + len(axes))):
            return make("expand_dims", [x], axis=axes[0], num_newaxis=len(axes))
    if name in ("reshape", "expand_dims"):
        return make("reshape", [x], newshape=fixed_shape(call.ty)) if fixed_shape(call.ty) else None
    if name == "clip":
        return make("clip", [x], a_min=plain(call.args[1]), a_max=plain(call.args[2]))
    if name == "astype":
        return make("cast", [x], dtype=str(call.attrs.dtype))
    if name == "permute_dims":
        return make("transpose", [x], axes=plain(call.attrs.axes))
    attrs = _attributes(call)
    if name in ("argmax", "argmin"):  # which count in int32 in Relay
        made = make(name, [x], axis=attrs["axis"], keepdims=attrs["keepdims"])
        return OPERATORS["cast"](made, dtype=str(call.ty.dtype))
    if name in ("sort", "argsort", "topk"):
        attrs["is_ascend"] = not attrs.pop("largest" if name == "topk" else "descending")
        made = make(name, [x], **attrs)
        return made.astuple() if isinstance(made, ir.TupleWrapper) else made
    if name == "nn.pad":
        widths = [attrs["pad_width"][i : i + 2] for i in range(0, len(attrs["pad_width"]), 2)]
        mode = _MODES.get(attrs["pad_mode"], attrs["pad_mode"])
        return make("nn.pad", [x], pad_width=widths, pad_value=attrs["pad_value"], pad_mode=mode)
    if name == "nn.layer_norm" and len(attrs["axes"]) == 1:
        (attrs["axis"],) = attrs.pop("axes")
        return make(name, call.args, **attrs)
    if name in ("nn.instance_norm", "nn.group_norm") and attrs["axes"] == list(range(2, len(call.ty.shape))):
        del attrs["axes"]
        return make(name, call.args, axis=attrs.pop("channel_axis"), **attrs)
    if name == "nn.batch_norm":
        kept = ("axis", "epsilon", "center", "scale")
        return make(name, call.args, **{k: attrs[k] for k in kept}).astuple()
    if name == "strided_slice":
        axes, begin, end, *strides = (plain(list(part.fields)) for part in call.args[1:])
        return make("strided_slice", [x], begin=begin, end=end, strides=(strides or [None])[0], axes=axes)
    if name == "split":
        made = make("split", [x], **attrs)
        return made.astuple() if isinstance(made, ir.TupleWrapper) else made
    return None


def _convolution(name, call, known):
    """With the channels and the window in its attributes, which Relax reads off the weight."""
    attrs = {k: v for k, v in _attributes(call).items() if k in OPERATORS[name].defaults}
    shape = dict(zip(attrs["kernel_layout"], fixed_shape(call.args[1].ty), strict=True))
    attrs["channels"] = shape["O"] * (attrs["groups"] if name.endswith("transpose") else 1)
    attrs["kernel_size"] = [size for axis, size in shape.items() if axis not in "OI"]
    attrs["out_layout"] = "" if attrs["out_layout"] == attrs["data_layout"] else attrs["out_layout"]
    attrs["out_dtype"] = "" if attrs["out_dtype"] == str(call.args[0].ty.dtype) else attrs["out_dtype"]
    return OPERATORS[name](*(_value(arg, known) for arg in call.args), **attrs)


def _product(call, make, today):
    """nn.dense where the right matrix is a transposed weight."""
    left, right = call.args
    turned = today.get(right)
    out_dtype = str(call.ty.dtype) if str(call.ty.dtype) != str(left.ty.dtype) else ""
    is_dense = (
        _called(turned) == "relax.permute_dims"
        and len(fixed_shape(right.ty) or ()) == len(fixed_shape(left.ty) or ()) == 2
        and not isinstance(today.get(turned.args[0]), tvm.ir.Call)
    )
    if is_dense:
        return make("nn.dense", [left, turned.args[0]], units=fixed_shape(call.ty)[-1], out_dtype=out_dtype)
    return make("nn.matmul", [left, right], out_dtype=out_dtype)


def _bias(call, make, today):
    """nn.bias_add of a vector along one axis: reshaped to lie along it, or added to a matrix product."""
    shape = fixed_shape(call.ty)
    for left, right in (call.args, reversed(call.args)):
        if shape is None or fixed_shape(left.ty) != shape:
            continue
        turned, axes = today.get(right), [axis for axis, size in enumerate(fixed_shape(right.ty)) if size > 1]
        if len(fixed_shape(right.ty)) == 1 and _called(today.get(left)) == "relax.matmul":
            return make("nn.bias_add", [left, right], axis=-1)
        along = len(axes) == 1 and len(right.ty.shape) == len(shape)
        if along and _called(turned) in ("relax.reshape", "relax.expand_dims"):
            vector = turned.args[0]
            return make("nn.bias_add", [left, vector], axis=axes[0]) if len(vector.ty.shape) == 1 else None
    return None


def _called(value) -> str:
    """The name of the operator that a Relax binding calls; "" for any other."""
    return getattr(value.op, "name", "") if isinstance(value, tvm.ir.Call) else ""


def _kept(name, call, known, today) -> ir.Expr:
    """A call under Relax's name, with what makes the same call again, within a builder that has its kernel."""
    tensors = []

    def collect(arg):
        if isinstance(arg, relax.Tuple):
            return [collect(field) for field in arg.fields]
        if _is_tensor(arg):
            tensors.append(arg)
            return len(tensors) - 1
        return (arg, today.get(arg) if isinstance(arg, tvm.ir.GlobalVar) else None)

    slots = [collect(arg) for arg in call.args]

    def again(builder, args):
        def fill(slot):
            if isinstance(slot, list):
                return relax.Tuple([fill(s) for s in slot])
            if isinstance(slot, int):
                return args[slot]
            other, kernel = slot
            return other if kernel is None else builder.add_func(kernel, other.name_hint)

        return tvm.ir.Call(call.op, [fill(slot) for slot in slots], call.attrs, call.ty_args)

    return ir.Call(ir.Op(name), [_value(t, known) for t in tensors], {**_attributes(call), "_again": again})
