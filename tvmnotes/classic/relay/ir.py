"""Relay's expressions, types and modules: the graph of Python objects that scripts build, take apart and print.

Nothing here computes. `lower` turns a function into Relax, which is also how types are inferred; `lift` makes Relay of
what the importers give; `text` prints.
"""

from collections.abc import Iterator
from typing import ClassVar

import numpy as np
import tvm


class TensorType:
    """The type of an array: `shape` in whole numbers and `dtype`."""

    def __init__(self, shape, dtype: str = "float32"):
        self.shape, self.dtype = tuple(s if isinstance(s, Any) else int(s) for s in shape), str(dtype)

    @property
    def concrete_shape(self) -> tuple[int, ...]:
        return self.shape

    def __eq__(self, other) -> bool:
        return isinstance(other, TensorType) and (self.shape, self.dtype) == (other.shape, other.dtype)

    def __hash__(self):
        return hash((self.shape, self.dtype))

    def __repr__(self) -> str:
        return f"Tensor[({', '.join(map(str, self.shape))}{',' * (len(self.shape) == 1)}), {self.dtype}]"


class TupleType:
    """The type of a tuple of values."""

    def __init__(self, fields):
        self.fields = list(fields)

    def __eq__(self, other) -> bool:
        return isinstance(other, TupleType) and self.fields == other.fields

    def __repr__(self) -> str:
        return f"({', '.join(map(repr, self.fields))}{',' * (len(self.fields) == 1)})"


class FuncType:
    """The type of a function: the types of its arguments and of its result."""

    def __init__(self, arg_types, ret_type, type_params=(), type_constraints=()):
        self.arg_types, self.ret_type = list(arg_types), ret_type
        self.type_params, self.type_constraints = list(type_params), list(type_constraints)

    def __repr__(self) -> str:
        return f"fn ({', '.join(map(repr, self.arg_types))}) -> {self.ret_type}"


class Any:
    """An axis whose length is known only when the network runs. It can be written down, but not built."""

    def __repr__(self) -> str:
        return "?"


class Attrs:
    """The attributes of a call or function, by name. Those that begin with an underscore are the project's own."""

    def __init__(self, values=()):
        self.__dict__.update(values)

    def keys(self):
        return [name for name in self.__dict__ if name[0] != "_"]

    def items(self):
        return [(name, self[name]) for name in self.keys()]

    def get(self, name, default=None):
        return self.__dict__.get(name, default)

    def get_int(self, name) -> int:
        return int(self[name])

    def get_int_tuple(self, name) -> tuple[int, ...]:
        return tuple(int(i) for i in self[name])

    def get_str(self, name) -> str:
        return str(self[name])

    def __getitem__(self, name):
        return self.__dict__[name]

    def __contains__(self, name) -> bool:
        return name in self.__dict__

    def __repr__(self) -> str:
        return f"Attrs({', '.join(f'{k}={v!r}' for k, v in self.items())})"


class Op:
    """An operator by its name; the same name is the same object. `relay.op.get` gives one."""

    _known: ClassVar[dict[str, "Op"]] = {}
    __class__ = property(lambda self: tvm.ir.Op)  # as scripts ask isinstance(call.op, tvm.ir.Op)

    def __new__(cls, name: str):
        if name not in cls._known:
            cls._known[name] = super().__new__(cls)
            cls._known[name].name = name
        return cls._known[name]

    def __reduce__(self):
        return Op, (self.name,)

    def __repr__(self) -> str:
        return f"Op({self.name})"


class Expr:
    """What has a value. `checked_type` is its type, once `InferType`, a print or a build has inferred it."""

    _type = None
    span = None

    @property
    def checked_type(self):
        if self._type is None:
            raise ValueError(
                "the type of this expression has not been inferred yet: run relay.transform.InferType() on its module"
            )
        return self._type

    def astype(self, dtype):
        from . import ops

        return ops.OPERATORS["cast"](self, dtype)

    def astext(self, show_meta_data: bool = False, annotate=None) -> str:
        from .text import astext

        return astext(self)

    __str__ = astext

    def same_as(self, other) -> bool:
        return self is other

    def _binary(name, swapped=False):
        def method(self, other):
            from . import ops

            if isinstance(other, int | float):
                other, number = const(other), other
                other.number = number
            return ops.OPERATORS[name](*((other, self) if swapped else (self, other)))

        return method

    __add__, __radd__ = _binary("add"), _binary("add", True)
    __sub__, __rsub__ = _binary("subtract"), _binary("subtract", True)
    __mul__, __rmul__ = _binary("multiply"), _binary("multiply", True)
    __truediv__, __rtruediv__ = _binary("divide"), _binary("divide", True)
    __pow__, __mod__, __floordiv__ = _binary("power"), _binary("floor_mod"), _binary("floor_divide")
    __lt__, __le__, __gt__, __ge__ = (
        _binary("less"),
        _binary("less_equal"),
        _binary("greater"),
        _binary("greater_equal"),
    )

    def __neg__(self):
        from . import ops

        return ops.OPERATORS["negative"](self)

    def __call__(self, *args):
        return Call(self, args)


RelayExpr = Expr


class Var(Expr):
    """A parameter of a function, or what `Let` names."""

    def __init__(self, name_hint: str, type_annotation=None):
        self.name_hint, self.type_annotation, self._type = name_hint, type_annotation, type_annotation


class Constant(Expr):
    """An array that is part of the program; `data` is a TVM tensor.

    `number` is the Python number that an operator like `+` made it of: it takes the dtype of what stands beside it.
    """

    number = None

    def __init__(self, data):
        self.data = data if isinstance(data, tvm.runtime.Tensor) else tvm.runtime.tensor(np.asarray(data))
        self._type = TensorType(self.data.shape, self.data.dtype)


class Call(Expr):
    """An operator, or a function, with its arguments. `args` are expressions, `attrs` the rest."""

    def __init__(self, op, args, attrs=None, type_args=None, span=None):
        self.op, self.args, self.type_args = op, [as_expr(arg) for arg in args], list(type_args or ())
        self.attrs = attrs if isinstance(attrs, Attrs) or attrs is None else Attrs(attrs)


class Tuple(Expr):
    """Several values as one."""

    def __init__(self, fields):
        self.fields = [as_expr(field) for field in fields]

    def __getitem__(self, index):
        return self.fields[index]

    def __len__(self) -> int:
        return len(self.fields)


class TupleGetItem(Expr):
    """The value at `index` of a tuple."""

    def __init__(self, tuple_value, index: int):
        self.tuple_value, self.index = as_expr(tuple_value), int(index)


class TupleWrapper:
    """A call with several results, which can be indexed and unpacked."""

    def __init__(self, tuple_value: Expr, size: int):
        self.tuple_value, self.size = tuple_value, size

    def astuple(self) -> Expr:
        return self.tuple_value

    def astext(self) -> str:
        return self.tuple_value.astext()

    def __getitem__(self, index: int) -> TupleGetItem:
        if not -self.size <= index < self.size:
            raise IndexError(f"expected an index below {self.size}, got {index}")
        return TupleGetItem(self.tuple_value, index % self.size)

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[TupleGetItem]:
        return (self[i] for i in range(self.size))


class Let(Expr):
    """`body`, in which `var` is `value`."""

    def __init__(self, variable: Var, value, body):
        self.var, self.value, self.body = variable, as_expr(value), as_expr(body)


class If(Expr):
    """One of two branches. It can be written down and printed, but not built: see `lower`."""

    def __init__(self, cond, true_branch, false_branch):
        self.cond, self.true_branch, self.false_branch = map(as_expr, (cond, true_branch, false_branch))


class Function(Expr):
    """A function of `params`, with a `body`."""

    def __init__(self, params, body, ret_type=None, type_params=None, attrs=None):
        self.params, self.body, self.type_params = list(params), as_expr(body), list(type_params or ())
        self._ret_type, self.attrs = ret_type, attrs if isinstance(attrs, Attrs) else Attrs(attrs or {})

    @property
    def ret_type(self):
        if self._ret_type is None:
            from .lower import infer

            infer(self)
        return self._ret_type

    @property
    def checked_type(self) -> FuncType:
        return FuncType([p.checked_type for p in self.params], self.ret_type)

    def with_attr(self, name, value=None) -> "Function":
        changed = name if isinstance(name, dict) else {name: value}
        return Function(
            self.params, self.body, self._ret_type, self.type_params, {**dict(self.attrs.items()), **changed}
        )


def as_expr(value) -> Expr:
    """`value` as an expression: itself, or a tuple or constant of it."""
    if isinstance(value, Expr):
        return value
    if isinstance(value, TupleWrapper):
        return value.tuple_value
    if isinstance(value, list | tuple):
        return Tuple(value)
    if isinstance(value, bool | int | float | np.ndarray | np.generic | tvm.runtime.Tensor):
        return const(value)
    raise TypeError(f"expected a Relay expression, a number or an array; got {type(value).__name__}")


def var(name_hint: str, type_annotation=None, shape=None, dtype: str = "float32", span=None) -> Var:
    """A variable; `shape` and `dtype` together are short for a TensorType."""
    if type_annotation is not None and shape is not None:
        raise ValueError("relay.var: expected type_annotation or shape, got both")
    if shape is not None:
        type_annotation = TensorType(shape, dtype)
    elif isinstance(type_annotation, str):
        type_annotation = TensorType((), type_annotation)
    return Var(name_hint, type_annotation)


def const(value, dtype: str | None = None) -> Constant:
    """A constant. A Python float is a float32, an int an int32, as Relay had it."""
    if isinstance(value, tvm.runtime.Tensor):
        return Constant(value)
    array = np.asarray(value, dtype)
    if dtype is None and not isinstance(value, np.ndarray | np.generic):
        array = array.astype({"float64": "float32", "int64": "int32"}.get(array.dtype.name, array.dtype))
    return Constant(array)


def plain(value):
    """An attribute in Python's own types."""
    if isinstance(value, tvm.tirx.IntImm | tvm.tirx.FloatImm):
        return value.value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, str | int | float | Expr) or value is None:
        return value
    return [plain(v) for v in value] if hasattr(value, "__iter__") else str(value)


def children(expr: Expr) -> list[Expr]:
    """What `expr` is made of, functions that it calls left out."""
    if isinstance(expr, Call):
        return [*([] if isinstance(expr.op, Op | Function | tvm.ir.GlobalVar) else [expr.op]), *expr.args]
    if isinstance(expr, Tuple):
        return expr.fields
    if isinstance(expr, TupleGetItem):
        return [expr.tuple_value]
    if isinstance(expr, Let):
        return [expr.value]  # the body has a variable of its own
    if isinstance(expr, If):
        return [expr.cond, expr.true_branch, expr.false_branch]
    return []


def post_order(expr: Expr, parts=children) -> list[Expr]:
    """`expr` and all it is made of, each once and after its own `parts`; no recursion, as networks are deep."""
    order, seen, stack = [], set(), [(expr, False)]
    while stack:
        node, done = stack.pop()
        if done:
            order.append(node)
        elif node not in seen:
            seen.add(node)
            stack.append((node, True))
            stack.extend((part, False) for part in reversed(parts(node)))
    return order


def rebuild(expr: Expr, replace: dict) -> Expr:
    """`expr` with its parts as `replace` has them; itself where none has changed."""
    parts = children(expr)
    new = [replace.get(part, part) for part in parts]
    if all(a is b for a, b in zip(parts, new, strict=True)):
        return expr
    if isinstance(expr, Call):
        return Call(expr.op, new[-len(expr.args) :] if expr.args else [], expr.attrs, expr.type_args)
    if isinstance(expr, Tuple):
        return Tuple(new)
    if isinstance(expr, TupleGetItem):
        return TupleGetItem(new[0], expr.index)
    if isinstance(expr, Let):
        return Let(expr.var, new[0], expr.body)
    return If(*new)


def substitute(expr: Expr, replace: dict) -> Expr:
    """`expr` with the expressions that are keys of `replace` exchanged for its values."""
    made = dict(replace)
    for node in post_order(expr):
        if node not in made:
            made[node] = rebuild(node, made)
            if isinstance(made[node], Let):
                made[node] = Let(node.var, made[node].value, substitute(node.body, replace))
    return made[expr]


def free_vars(expr: Expr) -> list[Var]:
    """The variables of `expr` that it does not bind itself, in the order of their first use."""
    if isinstance(expr, Function):
        return [v for v in free_vars(expr.body) if v not in expr.params]
    found = []
    for node in post_order(expr):
        if isinstance(node, Var):
            found.append(node)
        elif isinstance(node, Let):
            found += [v for v in free_vars(node.body) if v is not node.var and v not in found]
    return found


class _ModuleType(type(tvm.IRModule)):
    """The class of `IRModule`: a `tvm.IRModule` that has got functions of Relay is an instance of that as well."""

    def __instancecheck__(cls, value) -> bool:
        return super().__instancecheck__(value) or (isinstance(value, tvm.IRModule) and "_functions" in vars(value))


class IRModule(tvm.IRModule, metaclass=_ModuleType):
    """Functions by name; `main` is where a program starts."""

    def __init__(self, functions=None, type_definitions=None):
        super().__init__({})
        self._functions = {_global(name): function for name, function in (functions or {}).items()}

    @classmethod
    def from_expr(cls, expr, functions=None, type_defs=None) -> "IRModule":
        """A module whose main is `expr`, made a function of its free variables where it is not one."""
        if not isinstance(expr, Function):
            expr = Function(free_vars(as_expr(expr)), expr)
        return cls({"main": expr, **(functions or {})})

    @property
    def functions(self) -> dict:
        return dict(self._functions)

    def functions_items(self) -> list:
        return sorted(self._functions.items(), key=lambda item: item[0].name_hint)

    def get_global_vars(self) -> list:
        return [v for v, _ in self.functions_items()]

    def get_global_var(self, name: str):
        for known in self._functions:
            if known.name_hint == name:
                return known
        raise ValueError(f"the module has no function {name!r}; it has {', '.join(self._names()) or 'none'}")

    def _names(self) -> list[str]:
        return [v.name_hint for v in self.get_global_vars()]

    def __getitem__(self, name):
        return self._functions[self.get_global_var(getattr(name, "name_hint", name))]

    def __setitem__(self, name, function):
        name = getattr(name, "name_hint", name)
        known = self.get_global_var(name) if name in self._names() else _global(name)
        self._functions[known] = function

    update_func = __setitem__

    def update(self, other: "IRModule") -> None:
        for name, function in other.functions_items():
            self[name] = function

    def __contains__(self, name) -> bool:
        return getattr(name, "name_hint", name) in self._names()

    def astext(self, show_meta_data: bool = False, annotate=None) -> str:
        from .text import astext

        return astext(self)

    __str__ = __repr__ = astext

    def show(self, *_args, **_kwargs) -> None:
        print(self.astext())


def _global(name) -> tvm.ir.GlobalVar:
    return name if isinstance(name, tvm.ir.GlobalVar) else tvm.ir.GlobalVar(name)
