"""Lifts a frontend's Relax module to the graph of Relay calls that scripts inspect.

A Relax call becomes a call of the Relay operator, if there is one. Others keep their Relax name and store the
original call, so that lowering restores it.
"""

import tvm
from tvm import relax

from tvmfast.core.relax import array_key, constant_array, static_shape

from . import ir
from .lower import relay_type
from .ops import OPERATORS
from .ops.nn import spatial_axes
from .ops.operator import NEEDED, as_python
from .ty import TensorType

_RENAMED = {
    "concat": "concatenate",
    "permute_dims": "transpose",
    "nn.leakyrelu": "nn.leaky_relu",
    "flip": "reverse",
}
# the same name in Relay, but other indices or results
_UNLIKE = ("gather_nd", "nn.dropout", "argmax", "argmin", "round")
_MODES = {"replicate": "edge", "circular": "wrap"}


def from_relax(mod: tvm.IRModule) -> ir.IRModule:
    """Lift `mod["main"]` to a Relay module."""
    main = mod["main"]
    lifting = _Lifting(dict(mod.functions_items()))
    for param in main.params:
        lifting.values[param] = ir.Var(param.name, TensorType(static_shape(param.ty) or (), param.ty.dtype))
    for block in main.body.blocks:
        for binding in block.bindings:
            lifting.bind(binding)
    params = [lifting.values[param] for param in main.params]
    return ir.IRModule({"main": ir.Function(params, lifting.value(main.body.body))})


class _Lifting:
    """A translation of Relax bindings to Relay expressions.

    `values` maps Relax variables to expressions; `bound` maps variables and GlobalVars to what Relax binds.
    """

    def __init__(self, functions: dict):
        self.values, self.bound = {}, functions

    def bind(self, binding) -> None:
        """Translate one binding and note its type."""
        self.bound[binding.var] = binding.value
        expr = self.values[binding.var] = self._lifted(binding.value)
        expr.known_type = expr.known_type or relay_type(binding.var.ty)

    def value(self, expr) -> ir.Expr:
        """Return the Relay expression for a Relax variable, tuple or constant; TypeError for others."""
        if expr in self.values:
            return self.values[expr]
        if isinstance(expr, relax.Tuple):
            return ir.Tuple([self.value(field) for field in expr.fields])
        if constant_array(expr) is not None:  # one per array, however often it is read
            return self.values.setdefault(array_key(expr.value), ir.Constant(expr.value))
        raise TypeError(f"expected a Relax value, got {type(expr).__name__}")

    def _lifted(self, expr) -> ir.Expr:
        if isinstance(expr, relax.TupleGetItem):
            whole = self.value(expr.tuple_value)
            if isinstance(whole, ir.Tuple):
                return whole.fields[expr.index]
            return ir.TupleGetItem(whole, expr.index)
        if not isinstance(expr, tvm.ir.Call):
            return self.value(expr)
        name = getattr(expr.op, "name", "").removeprefix("relax.")
        return self._special(name, expr) or self._same(name, expr) or self._preserved(name, expr)

    def _make(self, name: str, tensors, **attrs) -> ir.Expr:
        """Call the Relay operator `name` on Relax tensors."""
        return ir.as_expr(OPERATORS[name](*map(self.value, tensors), **attrs))

    def _same(self, name, call) -> ir.Expr | None:
        """Call the Relay operator with the same tensors and attributes, if there is one."""
        spec = OPERATORS.get(_RENAMED.get(name, name))
        attrs = _attributes(call)
        if spec is None or name in _UNLIKE or not all(map(_is_tensor, call.args)):
            return None
        if "max_pool" in name:
            del attrs["count_include_pad"]
        if len(call.args) != len(spec.tensors) or not set(attrs) <= set(spec.defaults):
            return None
        attrs = {**spec.defaults, **attrs}
        if attrs.get("out_layout") and attrs["out_layout"] == attrs["layout"]:
            attrs["out_layout"] = ""
        if NEEDED in attrs.values():
            return None
        return ir.Call(ir.Op(spec.name), [self.value(arg) for arg in call.args], attrs)

    def _special(self, name, call) -> ir.Expr | None:
        """Call the operators whose arguments Relax passes differently."""
        x = call.args[0] if call.args else None
        attrs = _attributes(call)
        match name:
            case "matmul":
                return self._product(call)
            case "add":
                return self._bias(call)
            case "nn.conv1d" | "nn.conv2d" | "nn.conv3d" | "nn.conv1d_transpose" | "nn.conv2d_transpose":
                return self._convolution(name, call, attrs)
            case "expand_dims" if axes := _adjacent_axes(call):
                return self._make(name, [x], axis=axes[0], num_newaxis=len(axes))
            case "reshape" | "expand_dims":
                shape = static_shape(call.ty)
                return self._make("reshape", [x], newshape=shape) if shape else None
            case "clip":
                return self._make(name, [x], a_min=as_python(call.args[1]), a_max=as_python(call.args[2]))
            case "astype":
                return self._make("cast", [x], dtype=str(call.attrs.dtype))
            case "permute_dims":
                return self._make("transpose", [x], axes=attrs["axes"])
            case "argmax" | "argmin":  # int32 in Relay
                indices = self._make(name, [x], axis=attrs["axis"], keepdims=attrs["keepdims"])
                return OPERATORS["cast"](indices, dtype=str(call.ty.dtype))
            case "sort" | "argsort" | "topk":
                attrs["is_ascend"] = not attrs.pop("largest" if name == "topk" else "descending")
                return self._make(name, [x], **attrs)
            case "nn.pad":
                widths = [attrs["pad_width"][i : i + 2] for i in range(0, len(attrs["pad_width"]), 2)]
                mode = _MODES.get(attrs["pad_mode"], attrs["pad_mode"])
                return self._make(name, [x], pad_width=widths, pad_value=attrs["pad_value"], pad_mode=mode)
            case "nn.layer_norm" if len(attrs["axes"]) == 1:
                (axis,) = attrs.pop("axes")
                return self._make(name, call.args, axis=axis, **attrs)
            case "nn.instance_norm" | "nn.group_norm" if attrs["axes"] == spatial_axes(
                x, attrs["channel_axis"]
            ):
                del attrs["axes"]
                return self._make(name, call.args, axis=attrs.pop("channel_axis"), **attrs)
            case "nn.batch_norm":
                names = ("axis", "epsilon", "center", "scale")
                return self._make(name, call.args, **{key: attrs[key] for key in names})
            case "strided_slice":
                axes, begin, end, *strides = (as_python(list(part.fields)) for part in call.args[1:])
                return self._make(name, [x], begin=begin, end=end, strides=(strides or [None])[0], axes=axes)
            case "split" if _is_even(x, **attrs):
                return self._make(name, [x], **attrs)
        return None

    def _convolution(self, name, call, attrs) -> ir.Expr:
        """Call a convolution, with channels and kernel size, which Relax infers, as attributes."""
        attrs = {key: value for key, value in attrs.items() if key in OPERATORS[name].defaults}
        shape = dict(zip(attrs["kernel_layout"], static_shape(call.args[1].ty), strict=True))
        attrs["channels"] = shape["O"] * (attrs["groups"] if name.endswith("transpose") else 1)
        attrs["kernel_size"] = [size for axis, size in shape.items() if axis not in "OI"]
        attrs["out_layout"] = "" if attrs["out_layout"] == attrs["data_layout"] else attrs["out_layout"]
        attrs["out_dtype"] = "" if attrs["out_dtype"] == str(call.args[0].ty.dtype) else attrs["out_dtype"]
        return self._make(name, call.args, **attrs)

    def _product(self, call) -> ir.Expr:
        """Call nn.dense if the right operand is a transposed weight, nn.matmul otherwise."""
        left, right = call.args
        transposed = self.bound.get(right)
        out_dtype = str(call.ty.dtype) if str(call.ty.dtype) != str(left.ty.dtype) else ""
        is_dense = (
            _called(transposed) == "relax.permute_dims"
            and len(static_shape(right.ty) or ()) == len(static_shape(left.ty) or ()) == 2
            and not isinstance(self.bound.get(transposed.args[0]), tvm.ir.Call)
        )
        if is_dense:
            units = static_shape(call.ty)[-1]
            return self._make("nn.dense", [left, transposed.args[0]], units=units, out_dtype=out_dtype)
        return self._make("nn.matmul", [left, right], out_dtype=out_dtype)

    def _bias(self, call) -> ir.Expr | None:
        """Call nn.bias_add for a vector reshaped to lie along one axis, or added to a matrix product."""
        shape = static_shape(call.ty)
        for left, right in (call.args, reversed(call.args)):
            if shape is None or static_shape(left.ty) != shape:
                continue
            reshaped, sizes = self.bound.get(right), static_shape(right.ty)
            axes = [axis for axis, size in enumerate(sizes) if size > 1]
            if len(sizes) == 1 and _called(self.bound.get(left)) == "relax.matmul":
                return self._make("nn.bias_add", [left, right], axis=-1)
            along = len(axes) == 1 and len(sizes) == len(shape)
            if along and _called(reshaped) in ("relax.reshape", "relax.expand_dims"):
                vector = reshaped.args[0]
                is_vector = len(vector.ty.shape) == 1
                return self._make("nn.bias_add", [left, vector], axis=axes[0]) if is_vector else None
        return None

    def _preserved(self, name, call) -> ir.Expr:
        """Preserve a call under its Relax name, with a function `_again` that emits it and its kernel."""
        tensors = []

        def collect(arg):
            if isinstance(arg, relax.Tuple):
                return [collect(field) for field in arg.fields]
            if _is_tensor(arg):
                tensors.append(arg)
                return len(tensors) - 1
            return (arg, self.bound.get(arg) if isinstance(arg, tvm.ir.GlobalVar) else None)

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

        return ir.Call(ir.Op(name), [self.value(t) for t in tensors], {**_attributes(call), "_again": again})


def _attributes(call) -> dict:
    if call.attrs is None:
        return {}
    names = [n for n in dir(call.attrs) if n[0] != "_" and n not in _METHODS]
    return {n: as_python(getattr(call.attrs, n)) for n in names}


_METHODS = ("get_int", "get_int_tuple", "get_str", "id_", "is_", "same_as")


def _is_even(x, indices_or_sections, axis) -> bool:
    """Return whether sections are of one size, as Relay's are, or begin at indices."""
    shape = static_shape(x.ty)
    return not isinstance(indices_or_sections, int) or (bool(shape) and not shape[axis] % indices_or_sections)


def _adjacent_axes(call) -> list[int]:
    """Return the axes that a Relax expand_dims adds if they are adjacent, else []."""
    axes = sorted(int(axis) % len(call.ty.shape) for axis in call.attrs.axis)
    return axes if axes == list(range(axes[0], axes[0] + len(axes))) else []


def _is_tensor(arg) -> bool:
    if isinstance(arg, relax.Tuple):
        return all(map(_is_tensor, arg.fields))
    return isinstance(arg, relax.Var) or constant_array(arg) is not None


def _called(value) -> str:
    """Return the name of the operator that a Relax value calls, or ""."""
    return getattr(value.op, "name", "") if isinstance(value, tvm.ir.Call) else ""
