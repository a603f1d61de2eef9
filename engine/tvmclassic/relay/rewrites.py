"""Relay's passes that Relax lacks or does differently.

Each maps a function with inferred types to a function. `transform` wraps them as passes.
"""

import collections
import math

import tvm

from . import ir
from .ops import OPERATORS


def _with_body(function: ir.Function, body: ir.Expr) -> ir.Function:
    return ir.Function(function.params, body, attrs=function.attrs)


def _is(expr, name: str) -> bool:
    return isinstance(expr, ir.Call) and isinstance(expr.op, ir.Op) and expr.op.name == name


def _uses(body) -> collections.Counter:
    """Count how often each expression is read."""
    return collections.Counter(part for node in ir.post_order(body) for part in node.operands())


def simplify_inference(function: ir.Function) -> ir.Function:
    """Replace batch norm by one multiplication and one addition, and remove dropout."""

    def simpler(node, rebuilt):
        if _is(rebuilt, "nn.dropout"):
            return rebuilt.args[0]
        norm = rebuilt.tuple_value if isinstance(rebuilt, ir.TupleGetItem) else None
        if not _is(norm, "nn.batch_norm") or rebuilt.index:
            return rebuilt
        data, gamma, beta, mean, variance = norm.args
        scale = OPERATORS["rsqrt"](variance + ir.const(norm.attrs.epsilon, variance.known_type.dtype))
        scale = scale * gamma if norm.attrs.scale else scale
        shift = -mean * scale
        shift = shift + beta if norm.attrs.center else shift
        rank = len(node.known_type.shape)
        trailing = rank - 1 - norm.attrs.axis % rank  # axes after the channels
        if trailing:
            scale, shift = (OPERATORS["expand_dims"](v, axis=1, num_newaxis=trailing) for v in (scale, shift))
        return data * scale + shift

    return _with_body(function, ir.rewrite(function.body, simpler))


def eliminate_common_subexpr(function: ir.Function, fskip=None) -> ir.Function:
    """Merge calls with the same operator, arguments and attributes, unless `fskip(call)` is true."""
    first: dict = {}

    def shared(_node, rebuilt):
        if isinstance(rebuilt, ir.TupleGetItem):
            return first.setdefault((rebuilt.tuple_value, rebuilt.index), rebuilt)
        if not isinstance(rebuilt, ir.Call) or (fskip and fskip(rebuilt)):
            return rebuilt
        again = rebuilt.attrs.get("_again") if rebuilt.attrs else None
        return first.setdefault((rebuilt.op, tuple(rebuilt.args), repr(rebuilt.attrs), again), rebuilt)

    return _with_body(function, ir.rewrite(function.body, shared))


def fold_scale_axis(function: ir.Function) -> ir.Function:
    """Fold a per-channel multiplication of a convolution's result into its weight."""
    uses = _uses(function.body)

    def folded(node, rebuilt):
        if not _is(rebuilt, "multiply"):
            return rebuilt
        position = 0 if _is(rebuilt.args[0], "nn.conv2d") else 1
        conv, scale = rebuilt.args[position], rebuilt.args[1 - position]
        if not _is(conv, "nn.conv2d"):
            return rebuilt
        if (conv.attrs.data_layout, conv.attrs.kernel_layout) != ("NCHW", "OIHW"):
            return rebuilt
        channels = node.known_type.shape[1]
        shape = getattr(node.args[1 - position].known_type, "shape", ())
        if uses[node.args[position]] != 1 or shape[-3:] != (channels, 1, 1) or math.prod(shape) != channels:
            return rebuilt
        data, weight = conv.args
        factor = OPERATORS["reshape"](scale, newshape=(channels, 1, 1, 1))
        return ir.Call(conv.op, [data, OPERATORS["multiply"](weight, factor)], conv.attrs)

    return _with_body(function, ir.rewrite(function.body, folded))


# ---------------------------------------------------------------- fusion by Relay's rules

_HEAVY = ("nn.conv", "nn.dense", "nn.matmul", "nn.batch_matmul")
_NORMALIZATIONS = ("nn.softmax", "nn.log_softmax", "nn.batch_norm")
_OPAQUE = (*_NORMALIZATIONS, "split", "topk", "sort", "argsort", "take", "cumsum")
_REDUCTIONS = ("sum", "mean", "max", "min", "prod", "argmax", "argmin", "variance", "std")


def _kind(call) -> str:
    """Return how an operator fuses: "heavy" takes an epilogue, "reduction" ends a group, "opaque" is alone.

    All others are "elementwise".
    """
    if not isinstance(call, ir.Call) or not isinstance(call.op, ir.Op):
        return "opaque"
    name = call.op.name
    if name.startswith(_HEAVY):
        return "heavy"
    if name in _OPAQUE:
        return "opaque"
    return "reduction" if "pool" in name or name in _REDUCTIONS else "elementwise"


def fuse_ops(function: ir.Function, fuse_opt_level: int = -1) -> ir.Function:
    """Group the calls that become one kernel into functions with the attribute Primitive.

    A call joins the group of a value it reads if it is that value's only reader and elementwise operators may
    follow the group. At level 0 each call is alone; -1 means the level of the PassContext.
    """
    level = fuse_opt_level if fuse_opt_level >= 0 else int(tvm.transform.PassContext.current().opt_level)
    calls = [node for node in ir.post_order(function.body) if isinstance(node, ir.Call)]
    uses = _uses(function.body)
    group: dict = {}  # by call, the calls of its kernel
    for call in calls:
        group[call] = [call]
        if level == 0 or _kind(call) not in ("elementwise", "reduction"):
            continue
        for arg in call.args:
            joined = group.get(arg)
            if not joined or uses[arg] > 1 or _kind(arg) not in ("heavy", "elementwise"):
                continue
            merged = joined + [member for member in group[call] if member not in joined]
            kinds = [_kind(member) for member in merged]
            if kinds.count("heavy") + kinds.count("reduction") <= 1:  # at most one non-elementwise loop nest
                for member in merged:
                    group[member] = merged
    replaced: dict = {}
    for node in ir.post_order(function.body):
        if node not in group:
            replaced[node] = node.rebuild(lambda part: replaced.get(part, part))
        elif group[node][-1] is node or not any(node in call.args and call in group[node] for call in calls):
            replaced[node] = _primitive(node, group[node], replaced)
    return _with_body(function, replaced[function.body])


def _primitive(last, members, replaced):
    """Call a new function that computes `last` from the values that its group reads."""
    params: dict = {}  # by the outer expression
    for node in ir.post_order(last):
        for arg in node.args if node in members else ():
            if arg not in members and arg not in params and not isinstance(arg, ir.Constant):
                params[arg] = ir.Var(f"p{len(params)}", arg.known_type)
    body = ir.substitute(last, params)
    inner = ir.Function(params.values(), body, last.known_type, attrs={"Primitive": 1})
    return ir.Call(inner, [replaced.get(arg, arg) for arg in params])
