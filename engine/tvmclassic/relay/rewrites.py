"""Relay's passes that Relax lacks or does differently.

Each maps a function with inferred types to a function. `transform` wraps them as passes.
"""

import collections
import math

import tvm
from tvm import relax
from tvm.relax import transform as t

from tvmfast.compiler.graph import fold_constants
from tvmfast.core.relax import constant_array

from ..context import without_instruments
from . import functor, ir, lower
from .ops import OPERATORS
from .ops.arithmetic import BINARY, UNARY
from .ty import TensorType


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


def fold_constant(function: ir.Function, fold_qnn: bool = False) -> ir.Function:
    """Compute the calls that depend on constants alone; every other expression stays as it is."""
    finder = _OfConstants()
    body = finder.visit(function.body)
    roots = [node for node in ir.post_order(body, finder.parts) if node in finder.found]
    if not roots:
        return function if body is function.body else _with_body(function, body)
    replace = functor.ExprMutator()
    replace.memo_map.update(zip(roots, _evaluated(roots), strict=True))
    return _with_body(function, replace.visit(body))


class _OfConstants(functor.ExprMutator):
    """Finds the calls of constants, and puts the constants that a let names where they are read."""

    def __init__(self):
        super().__init__()
        self.found = set()

    def parts(self, expr) -> list:
        """List the parts of an expression that is not computed."""
        return [] if expr in self.found else ir.all_parts(expr)

    def _is_constant(self, expr) -> bool:
        if isinstance(expr, ir.Tuple):
            return all(map(self._is_constant, expr.fields))
        return isinstance(expr, ir.Constant) or expr in self.found

    def visit_call(self, call):
        """Note a call of constants; `shape_of` is one if the shape is known."""
        ty = call.args[0].known_type if _is(call, "shape_of") else None
        if isinstance(ty, TensorType) and lower.is_static(ty):
            return ir.const(list(ty.shape), call.attrs.dtype)
        new = self._rebuild(call)
        is_known = isinstance(new.op, ir.Op) and not new.computed_attrs()
        if is_known and all(map(self._is_constant, new.args)):
            self.found.add(new)
        return new

    def visit_tuple_getitem(self, expr):
        """Take the field of a tuple, or note that of a call of constants."""
        new = self._rebuild(expr)
        if isinstance(new.tuple_value, ir.Tuple):
            return new.tuple_value.fields[new.index]
        if self._is_constant(new.tuple_value):
            self.found.add(new)
        return new

    def visit_let(self, let):
        """Replace the variable of a constant by it."""
        value = self.visit(let.value)
        if not self._is_constant(value):
            return self._rebuild(let)
        self.memo_map[let.var] = value
        return self.visit(let.body)

    def visit_function(self, function):
        """Leave a kernel alone."""
        return function if "Primitive" in function.attrs else self._rebuild(function)


def _evaluated(calls: list) -> list:
    """Return the constant that each call of constants computes; the call itself for several results."""
    mod, _ = lower.to_relax(ir.Function([], ir.Tuple(calls)))
    with without_instruments():
        for each in (fold_constants.fold_with_numpy(), t.CanonicalizeBindings()):
            mod = each(mod)
        mod = t.CanonicalizeBindings()(fold_constants.fold_constant(mod))
    main = mod["main"].body
    bound = {binding.var: binding.value for block in main.blocks for binding in block.bindings}
    result = main.body
    while result in bound:
        result = bound[result]
    values = []
    for call, field in zip(calls, result.fields, strict=True):
        while isinstance(field, relax.Var) and field in bound:
            field = bound[field]
        values.append(call if constant_array(field) is None else ir.Constant(field.value))
    return values


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
        if conv.attrs.out_layout not in ("", "NCHW"):
            return rebuilt
        channels = node.known_type.shape[1]
        shape = getattr(node.args[1 - position].known_type, "shape", ())
        if uses[node.args[position]] != 1 or shape[-3:] != (channels, 1, 1) or math.prod(shape) != channels:
            return rebuilt
        data, weight = conv.args
        factor = OPERATORS["reshape"](scale, newshape=(channels, 1, 1, 1))
        return ir.Call(conv.op, [data, OPERATORS["multiply"](weight, factor)], conv.attrs)

    return _with_body(function, ir.rewrite(function.body, folded))


# ---------------------------------------------------------------- layouts that a script registers

_ALTERED: dict[str, tuple] = {}  # by operator: the level, and the function


def register_alter_op_layout(op_name: str, alter_layout=None, level: int = 10):
    """`relay.op.register_alter_op_layout`; without `alter_layout`, a decorator.

    `AlterOpLayout` calls the function that was registered last at the highest level, with attributes,
    arguments, their types and that of the result. It returns the same operator with other layouts, as on the
    arguments in these layouts, or None to leave the call alone.
    """

    def register(function):
        if op_name not in _ALTERED or level >= _ALTERED[op_name][0]:
            _ALTERED[op_name] = level, function
        return function

    return register if alter_layout is None else register(alter_layout)


def alter_op_layout(function: ir.Function) -> ir.Function:
    """Apply the registered functions, and transform layouts around the calls that they change.

    Elementwise operators follow a changed layout.
    """

    def altered(node, rebuilt):
        if not isinstance(rebuilt, ir.Call) or not isinstance(rebuilt.op, ir.Op):
            return rebuilt
        _, change = _ALTERED.get(rebuilt.op.name, (0, None))
        types = [arg.known_type for arg in node.args]
        new = change and change(rebuilt.attrs, list(rebuilt.args), types, node.known_type)
        if new is None:
            return _following(rebuilt, types)
        new = ir.as_expr(new)
        wanted = _layouts(new)
        if not any(wanted):
            return new
        before = dict(zip(rebuilt.args, _layouts(rebuilt), strict=False))  # of the arguments
        layouts = [*wanted, *[None] * len(new.args)]
        args = [_in_layout(arg, before.get(arg), each) for arg, each in zip(new.args, layouts, strict=False)]
        return _in_layout(ir.Call(new.op, args, new.attrs), _out_layout(new), _out_layout(rebuilt))

    return _with_body(function, ir.rewrite(function.body, altered))


def _layouts(call) -> list:
    """Return the layouts of data and weight, None where an operator has none."""
    attrs = (isinstance(call, ir.Call) and call.attrs) or ir.Attrs()
    return [attrs.get("data_layout") or attrs.get("layout"), attrs.get("kernel_layout")]


def _out_layout(call):
    return call.attrs.get("out_layout") or _layouts(call)[0]


def _in_layout(expr, source: str | None, wanted: str | None):
    if not source or not wanted or source == wanted:
        return expr
    if _is(expr, "layout_transform") and (expr.attrs.dst_layout, expr.attrs.src_layout) == (source, wanted):
        return expr.args[0]
    return OPERATORS["layout_transform"](expr, source, wanted)


def _following(call, types: list):
    """Move layout transforms from before an elementwise call, all of them the same, to behind it."""
    transforms = [arg.attrs for arg in call.args if _is(arg, "layout_transform")]
    layouts = {(attrs.src_layout, attrs.dst_layout) for attrs in transforms}
    is_elementwise = call.op.name in ("nn.leaky_relu", "clip", *UNARY, *BINARY)
    if not is_elementwise or call.op.name == "nn.batch_flatten":
        return call
    if len(transforms) != len(call.args) or len(layouts) != 1 or any(ty != types[0] for ty in types):
        return call
    inner = ir.Call(call.op, [arg.args[0] for arg in call.args], call.attrs)
    return OPERATORS["layout_transform"](inner, *layouts.pop())


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
