"""Programs of Relay as data, for files: JSON and arrays. Nothing that is read back runs as code.

An expression is a list of its kind and its parts. All expressions are in one list, each after its parts,
which are numbers of it: what functions or branches share stays shared. An axis of any length is a negative
number.
"""

import tvm

from . import ir
from .lower import Unservable
from .ops import OPERATORS
from .ty import Any, FuncType, TensorType, TupleType


def dump(functions: dict[str, ir.Function], weights: dict[ir.Var, ir.Constant]) -> tuple[dict, dict]:
    """Return a program as what `json.dumps` takes, and its arrays by name.

    Args:
        functions: Functions by name.
        weights: The constants in the place of variables of these.

    Raises:
        Unservable: An attribute is neither a number, text, expression nor a list of these.
    """
    roots = [*functions.values(), *weights, *weights.values()]
    number: dict[ir.Expr, int] = {}
    for root in roots:
        for node in ir.post_order(root, _parts):
            number.setdefault(node, len(number))
    arrays = {f"c{at}": node.data for node, at in number.items() if isinstance(node, ir.Constant)}
    lengths: dict[Any, int] = {}
    return {
        "expressions": [_dumped(node, number, lengths) for node in number],
        "functions": {name: number[function] for name, function in functions.items()},
        "weights": [[number[var], number[value]] for var, value in weights.items()],
    }, arrays


def load(data: dict, arrays: dict) -> tuple[dict[str, ir.Function], dict[ir.Var, ir.Constant]]:
    """Return the functions and weights that `dump` was given. Raises ValueError for other data."""
    try:
        nodes: list[ir.Expr] = []
        lengths: dict[int, Any] = {}
        for at, (kind, *parts) in enumerate(data["expressions"]):
            nodes.append(_loaded(kind, parts, nodes, lengths, arrays.get(f"c{at}")))
        weights = {nodes[var]: nodes[value] for var, value in data["weights"]}
        return {name: nodes[at] for name, at in data["functions"].items()}, weights
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"expected a program as exe.save() gives it; it is damaged: {error!r}") from error


def _parts(node: ir.Expr) -> list[ir.Expr]:
    """List the expressions that an expression is made of, those among its attributes too."""
    attrs = getattr(node, "attrs", None)
    return [*ir.all_parts(node), *_expressions(list(vars(attrs).values()) if attrs else [])]


def _expressions(values: list) -> list[ir.Expr]:
    found = []
    for value in values:
        if isinstance(value, list | tuple):
            found += _expressions(list(value))
        elif isinstance(value, ir.Expr):
            found.append(value)
    return found


# ---------------------------------------------------------------- expressions


def _dumped(node: ir.Expr, number: dict, lengths: dict) -> list:
    match node:
        case ir.Var():
            return ["var", node.name_hint, _type(node.type_annotation, lengths)]
        case ir.Constant():
            return ["constant", node.number]
        case ir.Call():
            op = node.op
            if isinstance(op, ir.Op | tvm.ir.GlobalVar):
                callee = op.name if isinstance(op, ir.Op) else f"@{op.name_hint}"
            else:
                callee = number[op]
            attrs = node.attrs and {k: _value(v, k, number) for k, v in vars(node.attrs).items()}
            return ["call", callee, [number[arg] for arg in node.args], attrs]
        case ir.Tuple():
            return ["tuple", [number[field] for field in node.fields]]
        case ir.TupleGetItem():
            return ["item", number[node.tuple_value], node.index]
        case ir.Let():
            return ["let", *(number[part] for part in node.children())]
        case ir.If():
            return ["if", *(number[part] for part in node.children())]
        case ir.Function():
            attrs = {k: _value(v, k, number) for k, v in vars(node.attrs).items()}
            params = [number[param] for param in node.params]
            return ["function", params, number[node.body], _type(node.known_ret_type, lengths), attrs]
    raise Unservable(f"exe.save: a {type(node).__name__} cannot be saved")


def _loaded(kind: str, parts: list, nodes: list, lengths: dict, array) -> ir.Expr:
    match kind, parts:
        case "var", [name, ty]:
            return ir.Var(name, _typed(ty, lengths))
        case "constant", [value]:
            constant = ir.Constant(array)
            constant.number = value
            return constant
        case "call", [callee, args, attrs]:
            if isinstance(callee, int):
                op = nodes[callee]
            elif callee.startswith("@"):
                op = tvm.ir.GlobalVar(callee[1:])
            else:
                op = ir.Op(OPERATORS[callee].name)
            attrs = attrs and {k: _read(v, nodes) for k, v in attrs.items()}
            return ir.Call(op, [nodes[arg] for arg in args], attrs)
        case "tuple", [fields]:
            return ir.Tuple([nodes[field] for field in fields])
        case "item", [whole, index]:
            return ir.TupleGetItem(nodes[whole], index)
        case "let", [var, value, body]:
            return ir.Let(nodes[var], nodes[value], nodes[body])
        case "if", [cond, then, other]:
            return ir.If(nodes[cond], nodes[then], nodes[other])
        case "function", [params, body, ty, attrs]:
            attrs = {k: _read(v, nodes) for k, v in attrs.items()}
            return ir.Function([nodes[p] for p in params], nodes[body], _typed(ty, lengths), attrs=attrs)
    raise ValueError(f"no expression is a {kind!r} of {len(parts)} parts")


def _value(value, name: str, number: dict):
    """Return an attribute; an expression as a dictionary, which no attribute is."""
    if isinstance(value, ir.Expr):
        return {"expression": number[value]}
    if isinstance(value, list | tuple):
        return [_value(each, name, number) for each in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise Unservable(
        f"exe.save: the attribute {name!r} is a {type(value).__name__}; expected numbers or text"
    )


def _read(value, nodes: list):
    if isinstance(value, dict):
        return nodes[value["expression"]]
    return [_read(each, nodes) for each in value] if isinstance(value, list) else value


# ---------------------------------------------------------------- types


def _type(ty, lengths: dict):
    match ty:
        case None:
            return None
        case TensorType():
            shape = [-1 - lengths.setdefault(n, len(lengths)) if isinstance(n, Any) else n for n in ty.shape]
            return ["tensor", shape, ty.dtype]
        case TupleType():
            return ["tuple", [_type(field, lengths) for field in ty.fields]]
        case FuncType():
            return ["function", [_type(arg, lengths) for arg in ty.arg_types], _type(ty.ret_type, lengths)]
    raise Unservable(f"exe.save: the type {ty!r} cannot be saved")


def _typed(ty, lengths: dict):
    match ty:
        case None:
            return None
        case ["tensor", shape, dtype]:
            return TensorType([lengths.setdefault(n, Any()) if n < 0 else n for n in shape], dtype)
        case ["tuple", fields]:
            return TupleType([_typed(field, lengths) for field in fields])
        case ["function", args, result]:
            return FuncType([_typed(arg, lengths) for arg in args], _typed(result, lengths))
    raise ValueError(f"no type is {ty!r}")
