"""Relay's expressions and modules: the graph of Python objects that scripts build, traverse and print.

This file knows no operators and computes nothing. Other files add methods to the classes, as in Relay: `ops`
arithmetic (`a + b`, `astype`), `text` the text format (`astext`), `lower` type inference (`infer`).
"""

import operator
from collections.abc import Iterator
from typing import ClassVar

import numpy as np
import tvm

from tvmfast.core.specs import require_dense

from .ty import FuncType, TensorType

# ---------------------------------------------------------------- operators and attributes


class Attrs:
    """The attributes of a call or function, by name. A leading underscore marks tvmfast's own."""

    def __init__(self, values=()):
        self.__dict__.update(values)

    def keys(self):
        """List the public names."""
        return [name for name in self.__dict__ if name[0] != "_"]

    def items(self):
        """List (name, value) of the public attributes."""
        return [(name, self[name]) for name in self.keys()]

    def get(self, name, default=None):
        """Return an attribute, or `default`."""
        return self.__dict__.get(name, default)

    def get_int(self, name) -> int:
        """Return an attribute as int."""
        return int(self[name])

    def get_int_tuple(self, name) -> tuple[int, ...]:
        """Return an attribute as a tuple of ints."""
        return tuple(int(i) for i in self[name])

    def get_str(self, name) -> str:
        """Return an attribute as str."""
        return str(self[name])

    def __getitem__(self, name):
        return self.__dict__[name]

    def __contains__(self, name) -> bool:
        return name in self.__dict__

    def __repr__(self) -> str:
        return f"Attrs({', '.join(f'{k}={v!r}' for k, v in self.items())})"


class Op:
    """An operator, one object per name. `relay.op.get` returns it."""

    _by_name: ClassVar[dict[str, "Op"]] = {}
    __class__ = property(lambda self: tvm.ir.Op)  # scripts check isinstance(call.op, tvm.ir.Op)

    def __new__(cls, name: str):
        """Return the operator called `name`."""
        if name not in cls._by_name:
            cls._by_name[name] = super().__new__(cls)
            cls._by_name[name].name = name
        return cls._by_name[name]

    def __reduce__(self):
        return Op, (self.name,)

    def __repr__(self) -> str:
        return f"Op({self.name})"


# ---------------------------------------------------------------- expressions


class Expr:
    """An expression; `known_type` is its type, None before inference."""

    known_type = None
    span = None
    parts: ClassVar[tuple[str, ...]] = ()  # the names of its children

    @property
    def checked_type(self):
        """Its type, once `InferType`, printing or a build has inferred it; ValueError before."""
        if self.known_type is None:
            raise ValueError(
                "the type of this expression has not been inferred yet: run relay.transform.InferType() on "
                "its module"
            )
        return self.known_type

    def same_as(self, other) -> bool:
        """Return whether `other` is the same object."""
        return self is other

    def children(self) -> list:
        """List the direct parts in Relay's order; a call's include its operator."""
        return [getattr(self, name) for name in self.parts]

    def operands(self) -> list["Expr"]:
        """List the children evaluated in this expression's own scope: no called function, no let body."""
        return self.children()

    def rebuild(self, new) -> "Expr":
        """Return a copy with `new(child)` for each child, or the expression itself if none changes."""
        old = self.children()
        parts = [new(child) for child in old]
        return self if all(a is b for a, b in zip(old, parts, strict=True)) else self._of(*parts)

    def _of(self, *parts) -> "Expr":
        return type(self)(*parts)

    def __call__(self, *args):
        """Return a call of this expression, as a function."""
        return Call(self, args)


RelayExpr = Expr


class Var(Expr):
    """A variable: a function parameter, or the name bound by a `Let`."""

    def __init__(self, name_hint: str, type_annotation=None):
        self.name_hint, self.type_annotation = name_hint, type_annotation
        self.known_type = type_annotation


class Constant(Expr):
    """An array constant; `data` is a TVM tensor.

    `number` is the Python number that an operator like `+` made it from: it takes the other operand's dtype.
    """

    number = None

    def __init__(self, data):
        self.data = data if isinstance(data, tvm.runtime.Tensor) else tvm.runtime.tensor(np.asarray(data))
        self.known_type = TensorType(self.data.shape, self.data.dtype)


class Call(Expr):
    """A call of an operator or function: `args` are expressions, `attrs` the attributes."""

    def __init__(self, op, args, attrs=None, type_args=None, span=None):
        self.op, self.args = op, [as_expr(arg) for arg in args]
        self.type_args = list(type_args or ())
        self.attrs = attrs if isinstance(attrs, Attrs) or attrs is None else Attrs(attrs)

    def children(self) -> list:
        """List operator and arguments."""
        return [self.op, *self.args]

    def computed_attrs(self) -> list[str]:
        """List the names of the attributes that are expressions to evaluate, such as an arange's stop."""
        values = self.attrs.items() if self.attrs else ()
        return [name for name, v in values if isinstance(v, Expr) and not isinstance(v, Constant)]

    def operands(self) -> list[Expr]:
        """List the arguments, and a callee that is computed."""
        return self.args if isinstance(self.op, Op | Function | tvm.ir.GlobalVar) else self.children()

    def _of(self, op, *args) -> "Call":
        return Call(op, args, self.attrs, self.type_args)


class Tuple(Expr):
    """A tuple of expressions, `fields`."""

    def __init__(self, fields):
        self.fields = [as_expr(field) for field in fields]

    def children(self) -> list[Expr]:
        """List the fields."""
        return self.fields

    def _of(self, *fields) -> "Tuple":
        return Tuple(fields)

    def __getitem__(self, index):
        return self.fields[index]

    def __len__(self) -> int:
        return len(self.fields)


class TupleGetItem(Expr):
    """The field of a tuple at `index`."""

    parts = ("tuple_value",)

    def __init__(self, tuple_value, index: int):
        self.tuple_value, self.index = as_expr(tuple_value), int(index)

    def _of(self, tuple_value) -> "TupleGetItem":
        return TupleGetItem(tuple_value, self.index)


class TupleWrapper:
    """A call with several results, which can be indexed and unpacked."""

    def __init__(self, tuple_value: Expr, size: int):
        self.tuple_value, self.size = tuple_value, size

    def astuple(self) -> Expr:
        """Return the wrapped expression."""
        return self.tuple_value

    def astext(self) -> str:
        """Return the text of the wrapped expression."""
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
    """A let binding: the value of `body`, with `var` bound to `value`."""

    parts = ("var", "value", "body")

    def __init__(self, variable: Var, value, body):
        self.var, self.value = variable, as_expr(value)
        self.body = as_expr(body)

    def operands(self) -> list[Expr]:
        """List the value only, as the body has its own scope."""
        return [self.value]


class If(Expr):
    """A conditional, which `relay.vm` runs."""

    parts = ("cond", "true_branch", "false_branch")

    def __init__(self, cond, true_branch, false_branch):
        self.cond, self.true_branch, self.false_branch = map(as_expr, (cond, true_branch, false_branch))


class Function(Expr):
    """A function of `params`, with the result `body`."""

    def __init__(self, params, body, ret_type=None, type_params=None, attrs=None):
        self.params, self.body = list(params), as_expr(body)
        self.type_params = list(type_params or ())
        self.known_ret_type, self.attrs = ret_type, attrs if isinstance(attrs, Attrs) else Attrs(attrs or {})

    def children(self) -> list[Expr]:
        """List parameters and body."""
        return [*self.params, self.body]

    def operands(self) -> list[Expr]:
        """Return no operands: parameters and body have their own scope."""
        return []

    def _of(self, *parts) -> "Function":
        return Function(parts[:-1], parts[-1], None, self.type_params, self.attrs)

    @property
    def ret_type(self):
        """The type of the result, inferred if need be."""
        if self.known_ret_type is None:
            self.infer()
        return self.known_ret_type

    @property
    def checked_type(self) -> FuncType:
        """The function type; ValueError if a parameter's type is unknown."""
        return FuncType([p.checked_type for p in self.params], self.ret_type)

    def with_attr(self, name, value=None) -> "Function":
        """Return a copy with one more attribute, or with those of a dictionary."""
        attrs = {**dict(self.attrs.items()), **(name if isinstance(name, dict) else {name: value})}
        return Function(self.params, self.body, self.known_ret_type, self.type_params, attrs)


def as_expr(value) -> Expr:
    """Convert a value to an expression: tuples and lists to `Tuple`, numbers and arrays to `Constant`."""
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
    """Create a variable; `shape` and `dtype` are short for a TensorType."""
    if type_annotation is not None and shape is not None:
        raise ValueError("relay.var: expected type_annotation or shape, got both")
    if shape is not None:
        type_annotation = TensorType(shape, dtype)
    elif isinstance(type_annotation, str):
        type_annotation = TensorType((), type_annotation)
    return Var(name_hint, type_annotation)


def const(value, dtype: str | None = None) -> Constant:
    """Create a constant. As in Relay, Python floats become float32, ints int32; int64 if one is too large."""
    if isinstance(value, tvm.runtime.Tensor):
        return Constant(value)
    require_dense(value, "relay.const")
    array = np.asarray(value, dtype)
    if dtype is None and not isinstance(value, np.ndarray | np.generic):
        narrow = array.astype({"float64": "float32", "int64": "int32"}.get(array.dtype.name, array.dtype))
        array = array if array.dtype == "int64" and (array != narrow).any() else narrow
    return Constant(array)


def post_order(expr: Expr, parts=operator.methodcaller("operands")) -> list[Expr]:
    """List `expr` and its parts, each once, after its own `parts`; iterative, because networks are deep."""
    order, seen = [], set()
    stack = [(expr, False)]
    while stack:
        node, done = stack.pop()
        if done:
            order.append(node)
        elif node not in seen:
            seen.add(node)
            stack.append((node, True))
            stack.extend((part, False) for part in reversed(parts(node)))
    return order


def all_parts(node: Expr) -> list[Expr]:
    """List the children of `node` that are expressions, including the body of a function or a `Let`."""
    return [part for part in node.children() if isinstance(part, Expr)]


def rewrite(expr: Expr, change, done=()) -> Expr:
    """Rewrite an expression bottom-up.

    Args:
        expr: Root of the expression.
        change: `change(node, rebuilt)` returns the new node; `rebuilt` is `node` with rewritten parts.
        done: Dictionary of nodes that are not visited, and their replacements.
    """
    new = dict(done)
    for node in post_order(expr):
        if node not in new:
            new[node] = change(node, node.rebuild(lambda part: new.get(part, part)))
    return new[expr]


def substitute(expr: Expr, replace: dict) -> Expr:
    """Replace the expressions in `expr` that are keys of `replace` by their values."""

    def change(node, rebuilt):
        if not isinstance(node, Let):
            return rebuilt
        return Let(node.var, rebuilt.value, substitute(node.body, replace))

    return rewrite(expr, change, replace)


def free_vars(expr: Expr) -> list[Var]:
    """List the free variables of `expr` in the order of their first use."""
    free, bound = [], set()
    for node in post_order(expr):
        if isinstance(node, Var):
            free.append(node)
        elif isinstance(node, Let):  # a function may call itself by the variable that it is the value of
            bound.add(node.var)
            free += free_vars(node.body)
        elif isinstance(node, Function):
            free += [v for v in free_vars(node.body) if v not in node.params]
        elif isinstance(node, Call) and isinstance(node.op, Function):
            free += free_vars(node.op)
    return [v for v in dict.fromkeys(free) if v not in bound]


# ---------------------------------------------------------------- modules


class _ModuleType(type(tvm.IRModule)):
    """Metaclass of `IRModule`: a `tvm.IRModule` that was given Relay functions is an instance as well."""

    def __instancecheck__(cls, value) -> bool:
        if super().__instancecheck__(value):
            return True
        return isinstance(value, tvm.IRModule) and "_functions" in vars(value)


class IRModule(tvm.IRModule, metaclass=_ModuleType):
    """A module: functions by name; `main` is the entry point."""

    def __init__(self, functions=None, type_definitions=None):
        super().__init__({})
        self._vars, self._functions = {}, {}  # both by name
        for name, function in (functions or {}).items():
            self[name] = function

    @classmethod
    def from_expr(cls, expr, functions=None, type_defs=None) -> "IRModule":
        """Create a module whose main is `expr`, made a function of its free variables if it is none."""
        if not isinstance(expr, Function):
            expr = Function(free_vars(as_expr(expr)), expr)
        return cls({"main": expr, **(functions or {})})

    @property
    def functions(self) -> dict:
        """The functions by GlobalVar, in the order of insertion."""
        return {self._vars[name]: function for name, function in self._functions.items()}

    def by_name(self) -> dict[str, Function]:
        """Return the functions by name, sorted."""
        return dict(sorted(self._functions.items()))

    def functions_items(self) -> list:
        """List (GlobalVar, function), sorted by name."""
        return [(self._vars[name], function) for name, function in self.by_name().items()]

    def get_global_vars(self) -> list:
        """List the GlobalVars, sorted by name."""
        return [self._vars[name] for name in self.by_name()]

    def get_global_var(self, name: str):
        """Return the GlobalVar of a function. Raises ValueError if there is no such function."""
        if name not in self._vars:
            raise ValueError(
                f"the module has no function {name!r}; it has {', '.join(self.by_name()) or 'none'}"
            )
        return self._vars[name]

    def __getitem__(self, name):
        return self._functions[self.get_global_var(getattr(name, "name_hint", name)).name_hint]

    def __setitem__(self, name, function):
        var = name if isinstance(name, tvm.ir.GlobalVar) else tvm.ir.GlobalVar(name)
        self._vars.setdefault(var.name_hint, var)
        self._functions[var.name_hint] = function

    update_func = __setitem__

    def update(self, other: "IRModule") -> None:
        """Add or replace the functions of `other`."""
        for name, function in other.functions_items():
            self[name] = function

    def __contains__(self, name) -> bool:
        return getattr(name, "name_hint", name) in self._functions

    def infer(self) -> "IRModule":
        """Infer all types in place, and return the module."""
        functions = self.by_name()
        for function in functions.values():
            function.infer(functions)
        return self

    def show(self, *_args, **_kwargs) -> None:
        """Print the module."""
        print(self.astext())
