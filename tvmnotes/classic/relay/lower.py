"""From Relay to Relax, which is also how Relay's types are inferred."""

import numpy as np
import tvm
from tvm import relax

from ...base import errors
from ...base.relax import fixed_shape
from . import ir
from .ops import OPERATORS
from .ty import Any, TensorType, TupleType


class Unservable(NotImplementedError):
    """What a script asks for, and today's TVM cannot do; the message says what to write instead."""


# ---------------------------------------------------------------- Relay to Relax


def to_relax(function: ir.Function, params: dict | None = None, functions: dict | None = None):
    """`(IRModule, params)` as `tn.build` takes them, with the parameters of `function` that `params` names as weights.

    Types are noted on the way. `functions` are those that calls of a GlobalVar mean, by name.
    """
    params = params or {}
    inputs = [p for p in function.params if p.name_hint not in params]
    weights = [p for p in function.params if p.name_hint in params]
    builder, known = relax.BlockBuilder(), {p: _parameter(p, params) for p in function.params}
    with builder.function("main", []):
        with builder.dataflow():
            result = builder.emit_output(_lower(builder, function.body, known, functions or {}))
        builder.emit_func_output(result)
    for param in function.params:
        if known[param] is None:
            raise ValueError(
                f"%{param.name_hint} has no type: give relay.var({param.name_hint!r}, shape=…), or its array in params"
            )
        param._type = relay_type(known[param].ty)
    whole = builder.get()
    main = whole["main"]
    main = relax.Function([known[p] for p in (*inputs, *weights)], main.body, main.ret_ty, attrs=main.attrs)
    main = main.with_attr("global_symbol", "main").with_attr("num_input", len(inputs))
    mod = tvm.IRModule({**dict(whole.functions_items()), whole.get_global_var("main"): main})
    function._ret_type = relay_type(main.ret_ty)
    arrays = {p.name_hint: params[p.name_hint] for p in weights}
    return mod, {
        k: v if isinstance(v, tvm.runtime.Tensor) else tvm.runtime.tensor(np.asarray(v)) for k, v in arrays.items()
    }


def infer(function: ir.Function, functions: dict | None = None) -> ir.Function:
    """Note the type of each expression of `function`, and return it; raises what Relax says of one without."""
    to_relax(function, functions=functions)
    return function


ir.Function.infer = infer


def _parameter(param: ir.Var, params: dict) -> relax.Var | None:
    """The Relax variable; None where its type is not known, but may follow from the operator that reads it."""
    given = param.type_annotation
    if given is None and param.name_hint in params:
        value = params[param.name_hint]
        given = TensorType(value.shape, value.dtype)
    given = given or param._type  # inferred before a pass took away the operator that it followed from
    return given and relax.Var(param.name_hint, _relax_type(given, param.name_hint))


def _weight_shape(call: ir.Call, position: int, data: tuple[int, ...]) -> tuple[int, ...] | None:
    """The shape that an operator's attributes and data leave for a weight that was written without one."""
    name, attrs = call.op.name, call.attrs
    if name.startswith("nn.conv") and attrs.kernel_size and attrs.channels:
        ins = data[attrs.data_layout.index("C")]
        axes = attrs.kernel_layout.translate(_NO_CHANNELS)
        window = dict(zip(axes, attrs.kernel_size, strict=True))
        out, ins = (attrs.channels // attrs.groups, ins) if "transpose" in name else (
            attrs.channels, ins // attrs.groups)  # fmt: skip
        return tuple({"O": out, "I": ins, **window}[axis] for axis in attrs.kernel_layout)
    if name == "nn.dense" and attrs.units:
        return attrs.units, data[-1]
    if name in ("nn.bias_add", "nn.batch_norm", "nn.layer_norm", "nn.prelu", "nn.instance_norm", "nn.group_norm"):
        return (data[attrs.axis],)
    return None


_NO_CHANNELS = str.maketrans("", "", "OI")


def _relax_type(given, name):
    if isinstance(given, TupleType):
        return relax.TupleType([_relax_type(field, name) for field in given.fields])
    if any(isinstance(axis, Any) for axis in given.shape):
        raise Unservable(
            f"%{name} has the shape {given.shape}: relay.Any() is of any length, and builds are for fixed shapes "
            "now; write a number for it"
        )
    return relax.TensorType(given.shape, given.dtype)


def relay_type(ty):
    """A Relax type in Relay's words."""
    if isinstance(ty, tvm.ir.TupleType):
        return TupleType([relay_type(field) for field in ty.fields])
    if isinstance(ty, relax.TensorType):
        shape = fixed_shape(ty)
        return TensorType(shape if shape is not None else [Any()] * int(ty.ndim), ty.dtype)
    return ty


def _lower(builder, expr: ir.Expr, known: dict, functions: dict):
    for node in ir.post_order(expr):
        if node not in known:
            known[node] = _one(builder, node, known, functions)
            if not isinstance(node, ir.Function):
                node._type = relay_type(known[node].ty)
    return known[expr]


def _one(builder, node, known, functions):
    if isinstance(node, ir.Constant):
        return relax.const(node.data)
    if isinstance(node, ir.Tuple):
        return builder.normalize(relax.Tuple([known[field] for field in node.fields]))
    if isinstance(node, ir.TupleGetItem):
        value = known[node.tuple_value]
        if not isinstance(value.ty, tvm.ir.TupleType):
            raise ValueError(f"expected a tuple to take value {node.index} of, got {relay_type(value.ty)}")
        return value.fields[node.index] if isinstance(value, relax.Tuple) else builder.emit(
            relax.TupleGetItem(value, node.index)
        )  # fmt: skip
    if isinstance(node, ir.Call):
        _settle_numbers(node, known)
        for position, arg in enumerate(node.args):
            if known[arg] is None and isinstance(node.op, ir.Op):
                data = known[node.args[0]]
                shape = None if data is None else _weight_shape(node, position, fixed_shape(data.ty))
                if shape is None:
                    raise ValueError(f"%{arg.name_hint} has no type: give relay.var({arg.name_hint!r}, shape=…)")
                known[arg] = relax.Var(arg.name_hint, relax.TensorType(shape, data.ty.dtype))
        return _call(builder, node, [known[arg] for arg in node.args], functions)
    if isinstance(node, ir.Function):
        return node
    if isinstance(node, ir.Var):
        raise ValueError(f"%{node.name_hint} is used and not bound: add it to the function's parameters")
    if isinstance(node, ir.Let):  # its body is lowered after it, as the variable stands in it
        known[node.var] = known[node.value]
        node.var._type = relay_type(known[node.var].ty)
        return _lower(builder, node.body, known, functions)
    raise Unservable(
        f"relay.{type(node).__name__}: control flow is not built, only networks without it; unroll the loop, "
        "or build the branches apart and choose in Python"
    )


def _settle_numbers(call, known) -> None:
    """Exchange a bare number in a call for a constant of the dtype of the expression beside it, if that can hold it."""
    for at, arg in enumerate(call.args):
        number, beside = getattr(arg, "number", None), known[call.args[1 - at]] if len(call.args) == 2 else None
        if number is not None and beside is not None:
            dtype = str(beside.ty.dtype)
            if isinstance(number, int) or "float" in dtype:
                call.args[at] = ir.const(number, dtype)
                known[call.args[at]] = relax.const(call.args[at].data)


def _call(builder, call, args, functions):
    if isinstance(call.op, tvm.ir.GlobalVar):
        if call.op.name_hint not in functions:
            raise ValueError(f"@{call.op.name_hint} is called, and the module has no such function")
        called = functions[call.op.name_hint]
    else:
        called = call.op
    if isinstance(called, ir.Function):
        if len(args) != len(called.params):
            raise ValueError(f"a function of {len(called.params)} parameters is called with {len(args)} arguments")
        return _lower(builder, called.body, dict(zip(called.params, args, strict=True)), functions)
    if not isinstance(called, ir.Op):
        raise Unservable(f"a call of {type(called).__name__}: functions as values are not built")
    if call.attrs and "_again" in call.attrs:
        return builder.emit(call.attrs["_again"](builder, args))
    if called.name not in OPERATORS:
        raise Unservable(f"relay.{called.name} has no counterpart here: write it with operators that have one")
    try:
        made = OPERATORS[called.name].lower(args, call.attrs)
        return builder.emit(made) if not isinstance(made, relax.Var | tvm.ir.GenericConst) else made
    except (ValueError, TypeError, IndexError, tvm.error.InternalError) as error:
        shapes = ", ".join(str(relay_type(arg.ty)) for arg in args)
        raise ValueError(f"relay.{called.name}({shapes}): {errors.lines(error)[0]}") from error
