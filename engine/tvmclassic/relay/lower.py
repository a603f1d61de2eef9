"""Lowers Relay functions to Relax, which is also how Relay's types are inferred."""

import tvm
from tvm import relax

from tvmfast.core import errors
from tvmfast.core.compat import pass_lock
from tvmfast.core.relax import static_shape

from . import ir
from .ops import OPERATORS
from .ty import Any, TensorType, TupleType


class Unservable(NotImplementedError):
    """Raised for what current TVM cannot do; the message says what to write instead."""


def to_relax(function: ir.Function, params: dict | None = None, functions: dict | None = None):
    """Lower a function to Relax, and record the type of each of its expressions.

    Args:
        function: The program; a parameter without a type takes that of its array, or one implied by the
            operator that reads it.
        params: Weights by name, as TVM tensors; the other parameters of `function` are inputs.
        functions: Callees of GlobalVar calls, by name.

    Returns:
        `(IRModule, params)` for `tn.build`, with only the params that `function` has.

    Raises:
        Unservable: The program contains what is not supported, such as control flow.
        ValueError: A type is missing, or an operator rejects its arguments.
    """
    params = params or {}
    inputs = [p for p in function.params if p.name_hint not in params]
    weights = [p for p in function.params if p.name_hint in params]
    builder = relax.BlockBuilder()
    values = {p: _parameter(p, params) for p in function.params}
    lowering = _Lowering(builder, values, functions or {})
    with pass_lock, builder.function("main", []):
        with builder.dataflow():
            result = builder.emit_output(lowering.value(function.body))
        builder.emit_func_output(result)
    for param in function.params:
        if values[param] is None:
            raise ValueError(
                f"%{param.name_hint} has no type: give relay.var({param.name_hint!r}, shape=…), or its "
                "array in params"
            )
        param.known_type = relay_type(values[param].ty)
    mod = builder.get()
    main = mod["main"]
    main = relax.Function([values[p] for p in (*inputs, *weights)], main.body, main.ret_ty, attrs=main.attrs)
    mod[mod.get_global_var("main")] = main.with_attr({"global_symbol": "main", "num_input": len(inputs)})
    function.known_ret_type = relay_type(main.ret_ty)
    return mod, {p.name_hint: params[p.name_hint] for p in weights}


def infer(function: ir.Function, functions: dict | None = None) -> ir.Function:
    """Record the type of each expression of `function`, and return it; raises like `to_relax`."""
    to_relax(function, functions=functions)
    return function


ir.Function.infer = infer


def _parameter(param: ir.Var, params: dict) -> relax.Var | None:
    """Return the Relax variable; None if its type may follow from the operator that reads it."""
    annotation, array = param.type_annotation, params.get(param.name_hint)
    if annotation is None and array is not None:
        annotation = TensorType(array.shape, array.dtype)
    annotation = annotation or param.known_type  # known before a pass removed the operator it follows from
    return annotation and relax.Var(param.name_hint, _relax_type(annotation, param.name_hint))


def _weight_shape(call: ir.Call, position: int, data: tuple[int, ...]) -> tuple[int, ...] | None:
    """Infer the shape of an untyped weight from the operator's attributes and its data's shape."""
    name, attrs = call.op.name, call.attrs
    if name.startswith("nn.conv") and attrs.kernel_size and attrs.channels:
        out, ins = attrs.channels, data[attrs.data_layout.index("C")]
        axes = attrs.kernel_layout.translate(_NO_CHANNELS)
        window = dict(zip(axes, attrs.kernel_size, strict=True))
        if "transpose" in name:
            out //= attrs.groups
        else:
            ins //= attrs.groups
        return tuple({"O": out, "I": ins, **window}[axis] for axis in attrs.kernel_layout)
    if name == "nn.dense" and attrs.units:
        return attrs.units, data[-1]
    return (data[attrs.axis],) if name in _PER_CHANNEL else None


_NORMS = tuple(f"nn.{kind}_norm" for kind in ("batch", "layer", "instance", "group"))
_PER_CHANNEL = ("nn.bias_add", "nn.prelu", *_NORMS)
_NO_CHANNELS = str.maketrans("", "", "OI")


def _relax_type(annotation, name):
    if isinstance(annotation, TupleType):
        return relax.TupleType([_relax_type(field, name) for field in annotation.fields])
    if any(isinstance(axis, Any) for axis in annotation.shape):
        raise Unservable(
            f"%{name} has the shape {annotation.shape}: relay.Any() is of any length, and builds are for "
            "static shapes now; write a number for it"
        )
    return relax.TensorType(annotation.shape, annotation.dtype)


def relay_type(ty):
    """Convert a Relax type to Relay's."""
    if isinstance(ty, tvm.ir.TupleType):
        return TupleType([relay_type(field) for field in ty.fields])
    if isinstance(ty, relax.TensorType):
        shape = static_shape(ty)
        return TensorType(shape if shape is not None else [Any()] * int(ty.ndim), ty.dtype)
    return ty


class _Lowering:
    """A translation of Relay expressions into a Relax builder.

    `values` maps expressions to Relax values; None for a parameter whose type follows from the operator that
    reads it. `functions` are the module's, by name.
    """

    def __init__(self, builder: relax.BlockBuilder, values: dict, functions: dict):
        self.builder, self.values = builder, values
        self.functions = functions

    def value(self, expr: ir.Expr):
        """Emit `expr` and record the types of all its parts."""
        for node in ir.post_order(expr):
            if node not in self.values:
                self.values[node] = self._lowered(node)
                if not isinstance(node, ir.Function):
                    node.known_type = relay_type(self.values[node].ty)
        return self.values[expr]

    def _lowered(self, node: ir.Expr):
        match node:
            case ir.Constant():
                return relax.const(node.data)
            case ir.Tuple():
                return self.builder.normalize(relax.Tuple([self.values[field] for field in node.fields]))
            case ir.TupleGetItem():
                value = self.values[node.tuple_value]
                if not isinstance(value.ty, tvm.ir.TupleType):
                    raise ValueError(
                        f"expected a tuple to take value {node.index} of, got {relay_type(value.ty)}"
                    )
                if isinstance(value, relax.Tuple):
                    return value.fields[node.index]
                return self.builder.emit(relax.TupleGetItem(value, node.index))
            case ir.Call():
                return self._call(node)
            case ir.Function():
                return node
            case ir.Var():
                raise ValueError(
                    f"%{node.name_hint} is used and not bound: add it to the function's parameters"
                )
            case ir.Let():  # lower the body after the value, which its variable stands for
                self.values[node.var] = self.values[node.value]
                node.var.known_type = relay_type(self.values[node.var].ty)
                return self.value(node.body)
        raise Unservable(
            f"relay.{type(node).__name__}: control flow is not built, only networks without it; unroll the "
            "loop, or build the branches apart and choose in Python"
        )

    def _settle_scalars(self, call: ir.Call) -> None:
        """Give a Python number the dtype of the other operand if it can represent it."""
        for position, arg in enumerate(call.args if len(call.args) == 2 else ()):
            number = getattr(arg, "number", None)
            other = self.values[call.args[1 - position]]
            if number is not None and other is not None:
                dtype = str(other.ty.dtype)
                if isinstance(number, int) or "float" in dtype:
                    constant = call.args[position] = ir.const(number, dtype)
                    self.values[constant] = relax.const(constant.data)

    def _settle_weights(self, call: ir.Call) -> None:
        """Give untyped arguments the type that the operator implies."""
        for position, arg in enumerate(call.args if isinstance(call.op, ir.Op) else ()):
            if self.values[arg] is None:
                data = self.values[call.args[0]]
                shape = None if data is None else _weight_shape(call, position, static_shape(data.ty))
                if shape is None:
                    raise ValueError(
                        f"%{arg.name_hint} has no type: give relay.var({arg.name_hint!r}, shape=…)"
                    )
                self.values[arg] = relax.Var(arg.name_hint, relax.TensorType(shape, data.ty.dtype))

    def _call(self, call: ir.Call):
        self._settle_scalars(call)
        self._settle_weights(call)
        args = [self.values[arg] for arg in call.args]
        op = call.op
        if isinstance(op, tvm.ir.GlobalVar):
            if op.name_hint not in self.functions:
                raise ValueError(f"@{op.name_hint} is called, and the module has no such function")
            op = self.functions[op.name_hint]
        if isinstance(op, ir.Function):
            if len(args) != len(op.params):
                raise ValueError(
                    f"a function of {len(op.params)} parameters is called with {len(args)} arguments"
                )
            values = dict(zip(op.params, args, strict=True))
            return _Lowering(self.builder, values, self.functions).value(op.body)
        if not isinstance(op, ir.Op):
            raise Unservable(f"a call of {type(op).__name__}: functions as values are not built")
        if call.attrs and "_again" in call.attrs:
            return self.builder.emit(call.attrs["_again"](self.builder, args))
        if op.name not in OPERATORS:
            raise Unservable(
                f"relay.{op.name} has no counterpart here: write it with operators that have one"
            )
        try:
            result = OPERATORS[op.name].lower(args, call.attrs)
            is_value = isinstance(result, relax.Var | tvm.ir.GenericConst)
            return result if is_value else self.builder.emit(result)
        except (ValueError, TypeError, IndexError, tvm.error.InternalError) as error:
            shapes = ", ".join(str(relay_type(arg.ty)) for arg in args)
            raise ValueError(f"relay.{op.name}({shapes}): {errors.lines(error)[0]}") from error
