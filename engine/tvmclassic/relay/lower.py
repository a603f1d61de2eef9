"""Lowers Relay functions to Relax, which is also how Relay's types are inferred."""

import itertools

import tvm
from tvm import relax

from tvmfast.core import errors
from tvmfast.core.compat import pass_lock
from tvmfast.core.relax import known_shape, static_shape

from . import ir
from .ops import OPERATORS
from .ty import Any, TensorType, TupleType


class Unservable(NotImplementedError):
    """Raised for what current TVM cannot do; the message says what to write instead."""


class UnknownType(Unservable):
    """Raised for a type that is known only when the program runs."""


_BY_VM = "by relay.vm.compile or relay.create_executor('vm', …)"


def to_relax(
    function: ir.Function, params: dict | None = None, functions: dict | None = None, runs: bool = True
):
    """Lower a function to Relax, and record the type of each of its expressions.

    Args:
        function: The program; a parameter without a type takes that of its array, or one implied by the
            operator that reads it.
        params: Weights by name, as TVM tensors; the other parameters of `function` are inputs.
        functions: Callees of GlobalVar calls, by name.
        runs: Whether the result has to compute what the function does. If not, only the types are right:
            branches and dims of any length are accepted.

    Returns:
        `(IRModule, params)` for `tn.build`, with only the params that `function` has.

    Raises:
        Unservable: The program contains what is not supported; with `runs`, this includes control flow.
        UnknownType: A type follows from none of its parts before the program runs.
        ValueError: A type is missing, or an operator rejects its arguments.
    """
    params = params or {}
    inputs = [p for p in function.params if p.name_hint not in params]
    weights = [p for p in function.params if p.name_hint in params]
    builder = relax.BlockBuilder()
    values = {p: _parameter(p, params, runs) for p in function.params}
    lowering = _Lowering(builder, values, functions or {}, runs, (function,))
    with pass_lock, builder.function("main", []):
        with builder.dataflow():
            body = lowering.body(function)
            function.known_ret_type = relay_type(body.ty)
            result = builder.emit_output(body)
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
    return mod, {p.name_hint: params[p.name_hint] for p in weights}


def infer(function: ir.Function, functions: dict | None = None) -> ir.Function:
    """Record the type of each expression of `function`, and return it; raises like `to_relax`."""
    to_relax(function, functions=functions, runs=False)
    return function


def today(program: ir.IRModule) -> None:
    """Print the Relax module that a build makes of a Relay program."""
    print(to_relax(program["main"], functions=program.by_name())[0].script().rstrip())


ir.Function.infer = infer
ir.IRModule.today = today


def _parameter(param: ir.Var, params: dict, runs: bool) -> relax.Var | None:
    """Return the Relax variable; None if its type may follow from the operator that reads it."""
    annotation, array = param.type_annotation, params.get(param.name_hint)
    if annotation is None and array is not None:
        annotation = TensorType(array.shape, array.dtype)
    annotation = annotation or param.known_type  # known before a pass removed the operator it follows from
    return annotation and relax.Var(param.name_hint, _relax_type(annotation, param.name_hint, runs))


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


_ANY = itertools.count()


def _relax_type(annotation, name, runs):
    if isinstance(annotation, TupleType):
        return relax.TupleType([_relax_type(field, name, runs) for field in annotation.fields])
    if runs and not is_static(annotation):
        raise Unservable(
            f"%{name} has the shape {annotation.shape}: relay.Any() is of any length, and relay.build is for "
            f"static shapes; write a number for it, or run the program {_BY_VM}"
        )
    dims = [tvm.tirx.Var(f"any{next(_ANY)}", "int64") if isinstance(n, Any) else n for n in annotation.shape]
    return relax.TensorType(dims, annotation.dtype)


def is_static(ty) -> bool:
    """Return whether a Relay type is known and has no `Any`."""
    if isinstance(ty, TupleType):
        return all(map(is_static, ty.fields))
    return isinstance(ty, TensorType) and not any(isinstance(n, Any) for n in ty.shape)


def _common(a, b):
    """Return the type of a value that is of either type; None if there is none."""
    if isinstance(a, TupleType) and isinstance(b, TupleType) and len(a.fields) == len(b.fields):
        fields = [_common(*pair) for pair in zip(a.fields, b.fields, strict=True)]
        return None if None in fields else TupleType(fields)
    if not isinstance(a, TensorType) or not isinstance(b, TensorType) or a.dtype != b.dtype:
        return None
    if len(a.shape) != len(b.shape):
        return None
    return TensorType([n if n == m else Any() for n, m in zip(a.shape, b.shape, strict=True)], a.dtype)


def relay_type(ty):
    """Convert a Relax type to Relay's."""
    if isinstance(ty, tvm.ir.TupleType):
        return TupleType([relay_type(field) for field in ty.fields])
    if isinstance(ty, relax.TensorType):
        dims = known_shape(ty)
        dims = [None] * int(ty.ndim) if dims is None else dims
        return TensorType([n if isinstance(n, int) else Any() for n in dims], ty.dtype)
    return ty


class _Lowering:
    """A translation of Relay expressions into a Relax builder.

    `values` maps expressions to Relax values; None for a parameter whose type follows from the operator that
    reads it, and for a recursive call, whose type follows from the other branch. `functions` are the
    module's, by name; `called` are those whose body is being lowered.
    """

    def __init__(self, builder: relax.BlockBuilder, values, functions: dict, runs: bool, called=()):
        self.builder, self.values = builder, values
        self.functions, self.runs = functions, runs
        self.called = called

    def body(self, function: ir.Function):
        """Emit the body of `function`, which returns a tensor or a tuple."""
        self.value(function.body)
        result = self._typed(function.body)
        if isinstance(result, ir.Function):
            raise Unservable("a function that returns a function: call it, so that arrays are the result")
        return result

    def value(self, expr: ir.Expr):
        """Emit `expr` and record the types of all its parts."""
        for node in ir.post_order(expr):
            if node not in self.values:
                value = self.values[node] = self._lowered(node)
                if value is not None and not isinstance(value, ir.Function):
                    node.known_type = relay_type(value.ty)
        return self.values[expr]

    def _lowered(self, node: ir.Expr):
        match node:
            case ir.Constant():
                return relax.const(node.data)
            case ir.Tuple():
                return self.builder.normalize(relax.Tuple([self._typed(field) for field in node.fields]))
            case ir.TupleGetItem():
                value = self._typed(node.tuple_value)
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
                value = self.values[node.var] = self.values[node.value]
                if not isinstance(value, ir.Function):
                    node.var.known_type = relay_type(value.ty)
                return self.value(node.body)
            case ir.If() if not self.runs:
                return self._either(self.values[node.true_branch], self.values[node.false_branch])
        raise Unservable(
            f"relay.{type(node).__name__}: relay.build makes networks without control flow; programs with "
            f"branches and loops run {_BY_VM}"
        )

    def _either(self, yes, no):
        """Return a value of the type that both branches have; a dim is `Any` where they differ."""
        if yes is None or no is None or isinstance(yes, ir.Function) or isinstance(no, ir.Function):
            return no if yes is None else yes
        ty = _common(relay_type(yes.ty), relay_type(no.ty))
        if ty is None:
            raise ValueError(
                f"relay.If: its branches are {relay_type(yes.ty)} and {relay_type(no.ty)}; expected the same "
                "dtype and number of axes"
            )
        return yes if ty == relay_type(yes.ty) else relax.Var("branch", _relax_type(ty, "branch", self.runs))

    def _typed(self, expr: ir.Expr):
        """Return the value of `expr`. Raises ValueError if it has no type."""
        if self.values[expr] is None:
            what = f"%{expr.name_hint}" if isinstance(expr, ir.Var) else "the result of a recursive call"
            raise ValueError(f"{what} has no type: give relay.var a shape, and relay.Function a ret_type")
        return self.values[expr]

    def _settle_scalars(self, call: ir.Call) -> None:
        """Give a Python number the dtype of the other operand if it can represent it."""
        for position, arg in enumerate(call.args if len(call.args) == 2 else ()):
            number = getattr(arg, "number", None)
            other = self.values[call.args[1 - position]]
            if number is not None and other is not None:
                dtype = str(other.ty.dtype)
                if isinstance(number, int) or "float" in dtype:
                    constant = call.args[position] = ir.const(number, dtype)
                    constant.number = number  # a function may be called with another dtype
                    self.values[constant] = relax.const(constant.data)

    def _settle_weights(self, call: ir.Call) -> None:
        """Give untyped arguments the type that the operator implies."""
        for position, arg in enumerate(call.args if isinstance(call.op, ir.Op) else ()):
            if self.values[arg] is None:
                data = self.values[call.args[0]]
                shape = None if data is None else _weight_shape(call, position, static_shape(data.ty))
                if shape is None:
                    self._typed(arg)
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
        if isinstance(op, ir.Expr) and isinstance(self.values.get(op), ir.Function):
            op = self.values[op]
        if isinstance(op, ir.Function):
            return self._inlined(op, args)
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
            types = [relay_type(arg.ty) for arg in args]
            shapes = ", ".join(map(str, types))
            is_known = all(map(is_static, types)) and not call.computed_attrs()
            kind = ValueError if is_known else UnknownType
            raise kind(f"relay.{op.name}({shapes}): {errors.lines(error)[0]}") from error

    def _inlined(self, function: ir.Function, args: list):
        """Lower the body of a called function; a recursive call has the type that the function declares."""
        if len(args) != len(function.params):
            raise ValueError(
                f"a function of {len(function.params)} parameters is called with {len(args)} arguments"
            )
        if function in self.called:
            if self.runs:
                raise Unservable(
                    f"a function that calls itself: relay.build makes networks without recursion; it runs "
                    f"{_BY_VM}"
                )
            declared = function.known_ret_type
            return declared and relax.Var("result", _relax_type(declared, "result", self.runs))
        values = dict(zip(function.params, args, strict=True))
        for param, arg in zip(function.params, args, strict=True):
            name, declared = param.name_hint, param.type_annotation
            if not isinstance(declared, TensorType):
                continue
            is_tensor = isinstance(arg, relax.Expr) and isinstance(arg.ty, relax.TensorType)
            if is_tensor and arg.ty.ndim >= 0 and not declared.accepts(given := relay_type(arg.ty)):
                raise ValueError(f"%{name}: its function takes {declared}, and is called with {given}")
            if not self.runs and not is_static(declared):  # any length, whatever it is in this call
                values[param] = relax.Var(name, _relax_type(declared, name, self.runs))
        around = [node for node in ir.post_order(function, ir.all_parts) if node in self.values]
        values = {node: self.values[node] for node in around if isinstance(node, ir.Var)} | values
        inner = _Lowering(self.builder, values, self.functions, self.runs, (*self.called, function))
        result = inner.value(function.body)
        if isinstance(result, ir.Function) and not self.values.keys() >= {*ir.free_vars(result)}:
            raise UnknownType(f"a function that returns a function of its own variables runs {_BY_VM}")
        return result
