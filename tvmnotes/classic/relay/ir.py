"""Relay's expressions and modules: the graph of Python objects that scripts build, take apart and print.

Nothing here computes, and no operator is known here. What else an expression can do installs itself, as in Relay:
`ops` the arithmetic (`a + b`, `astype`), `text` the form in which it prints, `lower` how types are inferred (`infer`).
"""

import operator
from collections.abc import Iterator
from typing import ClassVar

import numpy as np
import tvm

from ...base.spec import require_dense
from .ty import FuncType, TensorType


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

    _by_name: ClassVar[dict[str, "Op"]] = {}
    __class__ = property(lambda self: tvm.ir.Op)  # as scripts ask isinstance(call.op, tvm.ir.Op)

    def __new__(cls, name: str):
        if name not in cls._by_name:
            cls._by_name[name] = super().__new__(cls)
            cls._by_name[name].name = name
        return cls._by_name[name]

    def __reduce__(self):
        return Op, (self.name,)

    def __repr__(self) -> str:
        return f"Op({self.name})"


class Expr:
    """An expression has a value. `checked_type` is its type, once `InferType`, a print or a build has inferred it."""

    _type = None
    span = None

    @property
    def checked_type(self):
        if self._type is None:
            raise ValueError(
                "the type of this expression has not been inferred yet: run relay.transform.InferType() on its module"
            )
        return self._type

    def same_as(self, other) -> bool:
        return self is other

    def children(self) -> list:
        """These are all that it is made of, in Relay's order; of a call that is the operator too."""
        return []

    def operands(self) -> list["Expr"]:
        """These children are computed where it stands: no called function is, and nothing of a scope of its own."""
        return self.children()

    def rebuild(self, new) -> "Expr":
        """It gives the same with `new(child)` for each child, and itself where that changes none."""
        old = self.children()
        parts = [new(child) for child in old]
        return self if all(a is b for a, b in zip(old, parts, strict=True)) else self._of(*parts)

    def _of(self, *parts) -> "Expr":
        return type(self)(*parts)

    def __call__(self, *args):
        return Call(self, args)


RelayExpr = Expr


class Var(Expr):
    """A variable is a parameter of a function, or what `Let` names."""

    def __init__(self, name_hint: str, type_annotation=None):
        self.name_hint, self.type_annotation, self._type = name_hint, type_annotation, type_annotation


class Constant(Expr):
    """A constant is an array that is part of the program; `data` is a TVM tensor.

    `number` is the Python number that an operator like `+` made it of: it takes the dtype of what stands beside it.
    """

    number = None

    def __init__(self, data):
        self.data = data if isinstance(data, tvm.runtime.Tensor) else tvm.runtime.tensor(np.asarray(data))
        self._type = TensorType(self.data.shape, self.data.dtype)


class Call(Expr):
    """A call applies an operator, or a function, to its arguments. `args` are expressions, `attrs` the rest."""

    def __init__(self, op, args, attrs=None, type_args=None, span=None):
        self.op, self.args, self.type_args = op, [as_expr(arg) for arg in args], list(type_args or ())
        self.attrs = attrs if isinstance(attrs, Attrs) or attrs is None else Attrs(attrs)

    def children(self) -> list:
        return [self.op, *self.args]

    def operands(self) -> list[Expr]:
        return self.args if isinstance(self.op, Op | Function | tvm.ir.GlobalVar) else self.children()

    def _of(self, op, *args) -> "Call":
        return Call(op, args, self.attrs, self.type_args)


class Tuple(Expr):
    """A tuple has several values as one."""

    def __init__(self, fields):
        self.fields = [as_expr(field) for field in fields]

    def children(self) -> list[Expr]:
        return self.fields

    def _of(self, *fields) -> "Tuple":
        return Tuple(fields)

    def __getitem__(self, index):
        return self.fields[index]

    def __len__(self) -> int:
        return len(self.fields)


class TupleGetItem(Expr):
    """It is the value at `index` of a tuple."""

    def __init__(self, tuple_value, index: int):
        self.tuple_value, self.index = as_expr(tuple_value), int(index)

    def children(self) -> list[Expr]:
        return [self.tuple_value]

    def _of(self, tuple_value) -> "TupleGetItem":
        return TupleGetItem(tuple_value, self.index)


class TupleWrapper:
    """It wraps a call with several results, which can be indexed and unpacked."""

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
    """It is the value of `body`, in which `var` is `value`."""

    def __init__(self, variable: Var, value, body):
        self.var, self.value, self.body = variable, as_expr(value), as_expr(body)

    def children(self) -> list[Expr]:
        return [self.var, self.value, self.body]

    def operands(self) -> list[Expr]:
        return [self.value]  # the body has a variable of its own


class If(Expr):
    """It is the value of one of two branches. It can be written down and printed, but not built: see `lower`."""

    def __init__(self, cond, true_branch, false_branch):
        self.cond, self.true_branch, self.false_branch = map(as_expr, (cond, true_branch, false_branch))

    def children(self) -> list[Expr]:
        return [self.cond, self.true_branch, self.false_branch]


class Function(Expr):
    """A function has `params`, and a `body` that computes its result of them."""

    def __init__(self, params, body, ret_type=None, type_params=None, attrs=None):
        self.params, self.body, self.type_params = list(params), as_expr(body), list(type_params or ())
        self._ret_type, self.attrs = ret_type, attrs if isinstance(attrs, Attrs) else Attrs(attrs or {})

    def children(self) -> list[Expr]:
        return [*self.params, self.body]

    def operands(self) -> list[Expr]:
        return []

    def _of(self, *parts) -> "Function":
        return Function(parts[:-1], parts[-1], None, self.type_params, self.attrs)

    @property
    def ret_type(self):
        if self._ret_type is None:
            self.infer()
        return self._ret_type

    @property
    def checked_type(self) -> FuncType:
        return FuncType([p.checked_type for p in self.params], self.ret_type)

    def with_attr(self, name, value=None) -> "Function":
        attrs = {**dict(self.attrs.items()), **(name if isinstance(name, dict) else {name: value})}
        return Function(self.params, self.body, self._ret_type, self.type_params, attrs)


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
    require_dense(value, "relay.const")
    array = np.asarray(value, dtype)
    if dtype is None and not isinstance(value, np.ndarray | np.generic):
        array = array.astype({"float64": "float32", "int64": "int32"}.get(array.dtype.name, array.dtype))
    return Constant(array)


def post_order(expr: Expr, parts=operator.methodcaller("operands")) -> list[Expr]:
    """It lists `expr` and its parts, each once and after its own `parts`, without recursion: networks are deep."""
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


def all_parts(node: Expr) -> list[Expr]:
    """These are the expressions that `node` is made of, the body of a function and of a `Let` as well."""
    return [part for part in node.children() if isinstance(part, Expr)]


def rewrite(expr: Expr, change, done=()) -> Expr:
    """It gives `expr` with `change(node, rebuilt)` for each node, parts first: `rebuilt` is the node of changed parts.

    `done` are the nodes, with what each becomes, that are not to be looked into.
    """
    new = dict(done)
    for node in post_order(expr):
        if node not in new:
            new[node] = change(node, node.rebuild(lambda part: new.get(part, part)))
    return new[expr]


def substitute(expr: Expr, replace: dict) -> Expr:
    """It exchanges the expressions in `expr` that are keys of `replace` for its values."""

    def within(node, rebuilt):
        return (
            Let(node.var, rebuilt.value, substitute(node.body, replace)) if isinstance(node, Let) else rebuilt
        )

    return rewrite(expr, within, replace)


def free_vars(expr: Expr) -> list[Var]:
    """These are the variables of `expr` that it does not bind itself, in the order of their first use."""
    if isinstance(expr, Function):
        return [v for v in free_vars(expr.body) if v not in expr.params]
    free = []
    for node in post_order(expr):
        if isinstance(node, Var):
            free.append(node)
        elif isinstance(node, Let):
            free += [v for v in free_vars(node.body) if v is not node.var and v not in free]
    return free


class _ModuleType(type(tvm.IRModule)):
    """The class of `IRModule`: a `tvm.IRModule` that has got functions of Relay is an instance of that as well."""

    def __instancecheck__(cls, value) -> bool:
        return super().__instancecheck__(value) or (
            isinstance(value, tvm.IRModule) and "_functions" in vars(value)
        )


class IRModule(tvm.IRModule, metaclass=_ModuleType):
    """A module has functions by name; `main` is where a program starts."""

    def __init__(self, functions=None, type_definitions=None):
        super().__init__({})
        self._vars, self._functions = {}, {}  # both by name
        for name, function in (functions or {}).items():
            self[name] = function

    @classmethod
    def from_expr(cls, expr, functions=None, type_defs=None) -> "IRModule":
        """A module whose main is `expr`, made a function of its free variables where it is not one."""
        if not isinstance(expr, Function):
            expr = Function(free_vars(as_expr(expr)), expr)
        return cls({"main": expr, **(functions or {})})

    @property
    def functions(self) -> dict:
        return {self._vars[name]: function for name, function in self._functions.items()}

    def by_name(self) -> dict[str, Function]:
        return dict(sorted(self._functions.items()))

    def functions_items(self) -> list:
        return [(self._vars[name], function) for name, function in self.by_name().items()]

    def get_global_vars(self) -> list:
        return [self._vars[name] for name in self.by_name()]

    def get_global_var(self, name: str):
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
        for name, function in other.functions_items():
            self[name] = function

    def __contains__(self, name) -> bool:
        return getattr(name, "name_hint", name) in self._functions

    def infer(self) -> "IRModule":
        """Note the types of all its functions, and return it."""
        functions = self.by_name()
        for function in functions.values():
            function.infer(functions)
        return self

    def show(self, *_args, **_kwargs) -> None:
        print(self.astext())
