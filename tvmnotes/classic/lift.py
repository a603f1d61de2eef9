"""From Relax to Relay: a module that an importer gave, as the graph of Relay calls that scripts look into.

What Relay had an operator for becomes a call of it. The rest keeps its name from Relax and remembers the call that it
was, so that nothing is lost on the way back.
"""

import tvm
from tvm import relax

from ..compiler.fold import constant_array, fixed_shape
from . import ir
from .ops import OPERATORS

_RENAMED = {
    "concat": "concatenate",
    "permute_dims": "transpose",
    "nn.leakyrelu": "nn.leaky_relu",
    "flip": "reverse",
    "image.resize2d": "image.resize2d",
}


def from_relax(mod: tvm.IRModule) -> ir.IRModule:
    """Relay's view of `mod["main"]`."""
    main, known, today = mod["main"], {}, {}
    for param in main.params:
        known[param] = ir.Var(param.name, ir.TensorType(fixed_shape(param.ty) or (), param.ty.dtype))
    for block in main.body.blocks:
        for binding in block.bindings:
            today[binding.var] = binding.value
            known[binding.var] = _lift(binding.value, known, today)
    return ir.IRModule({"main": ir.Function([known[p] for p in main.params], _value(main.body.body, known))})


def _value(expr, known) -> ir.Expr:
    if expr in known:
        return known[expr]
    if isinstance(expr, relax.Tuple):
        return ir.Tuple([_value(field, known) for field in expr.fields])
    array = constant_array(expr)
    if array is not None:
        return ir.Constant(expr.value)
    raise TypeError(f"expected a Relax value, got {type(expr).__name__}")


def _lift(expr, known, today) -> ir.Expr:
    if isinstance(expr, relax.TupleGetItem):
        return ir.TupleGetItem(_value(expr.tuple_value, known), expr.index)
    if not isinstance(expr, tvm.ir.Call):
        return _value(expr, known)
    name = getattr(expr.op, "name", "").removeprefix("relax.")
    made = _special(name, expr, known, today) or _same(name, expr, known)
    return made or _kept(name, expr, known)


def _same(name, call, known) -> ir.Expr | None:
    """A call of the operator that has the same tensors and attributes in Relay."""
    spec = OPERATORS.get(_RENAMED.get(name, name))
    if spec is None or any(not _is_tensor(arg) for arg in call.args) or len(call.args) > len(spec.tensors):
        return None
    attrs = {k: ir.plain(getattr(call.attrs, k)) for k in spec.defaults if hasattr(call.attrs, k)}
    unknown = [k for k, default in spec.defaults.items() if default is spec.signature.empty and k not in attrs]
    if unknown:
        return None
    defaults = {k: v for k, v in spec.defaults.items() if k not in attrs}
    return ir.Call(ir.Op(spec.name), [_value(arg, known) for arg in call.args], {**defaults, **attrs})


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
    if name in ("nn.conv1d", "nn.conv2d", "nn.conv3d", "nn.conv1d_transpose", "nn.conv2d_transpose"):
        return _convolution(name, call, known)
    if name == "expand_dims":
        axes = sorted(int(a) % len(call.ty.shape) for a in call.attrs.axis)
        if axes == list(range(axes[0], axes[0] + len(axes))):
            return make("expand_dims", [x], axis=axes[0], num_newaxis=len(axes))
    if name in ("reshape", "expand_dims"):
        return make("reshape", [x], newshape=fixed_shape(call.ty)) if fixed_shape(call.ty) else None
    if name == "clip":
        return make("clip", [x], a_min=ir.plain(call.args[1]), a_max=ir.plain(call.args[2]))
    if name == "astype":
        return make("cast", [x], dtype=str(call.attrs.dtype))
    if name == "permute_dims":
        return make("transpose", [x], axes=ir.plain(call.attrs.axes))
    if name == "nn.layer_norm" and len(call.attrs.axes) == 1:
        attrs = call.attrs
        return make("nn.layer_norm", call.args, axis=int(attrs.axes[0]), epsilon=float(attrs.epsilon))
    if name == "nn.batch_norm":
        return make("nn.batch_norm", call.args, axis=int(call.attrs.axis), epsilon=float(call.attrs.epsilon)).astuple()
    if name == "strided_slice":
        axes, begin, end, *strides = (ir.plain(list(part.fields)) for part in call.args[1:])
        return make("strided_slice", [x], begin=begin, end=end, strides=(strides or [None])[0], axes=axes)
    if name == "split":
        made = make(
            "split", [x], indices_or_sections=ir.plain(call.attrs.indices_or_sections), axis=int(call.attrs.axis)
        )
        return made.astuple() if isinstance(made, ir.TupleWrapper) else made
    return None


def _convolution(name, call, known):
    """With the channels and the window in its attributes, which Relax reads off the weight."""
    attrs = {k: ir.plain(getattr(call.attrs, k)) for k in OPERATORS[name].defaults if hasattr(call.attrs, k)}
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
    is_dense = (
        isinstance(turned, tvm.ir.Call)
        and getattr(turned.op, "name", "") == "relax.permute_dims"
        and len(fixed_shape(right.ty) or ()) == len(fixed_shape(left.ty) or ()) == 2
        and not isinstance(today.get(turned.args[0]), tvm.ir.Call)
    )
    if is_dense:
        return make("nn.dense", [left, turned.args[0]], units=fixed_shape(call.ty)[-1])
    return make("nn.matmul", [left, right])


def _kept(name, call, known) -> ir.Expr:
    """A call under Relax's name, with what makes the same call again."""
    tensors = []

    def collect(arg):
        if isinstance(arg, relax.Tuple):
            return [collect(field) for field in arg.fields]
        if _is_tensor(arg):
            tensors.append(arg)
            return len(tensors) - 1
        return (arg,)

    slots = [collect(arg) for arg in call.args]

    def again(args):
        def fill(slot):
            if isinstance(slot, list):
                return relax.Tuple([fill(s) for s in slot])
            return args[slot] if isinstance(slot, int) else slot[0]

        return tvm.ir.Call(call.op, [fill(slot) for slot in slots], call.attrs, call.ty_args)

    names = [n for n in dir(call.attrs) if n[0] != "_" and n not in _METHODS] if call.attrs is not None else []
    shown = {n: ir.plain(getattr(call.attrs, n)) for n in names}
    return ir.Call(ir.Op(name), [_value(t, known) for t in tensors], {**shown, "_again": again})


_METHODS = ("get_int", "get_int_tuple", "get_str", "id_", "is_", "same_as")
