"""`relay.expr_functor`: visitors of expressions, which scripts subclass. What a visit of an expression gave is kept."""

import sys

import tvm

from . import ir

# As `import tvm.relay` did: visitors recurse, and networks are deep.
sys.setrecursionlimit(max(sys.getrecursionlimit(), 10_000))

_METHODS = {
    ir.Function: "visit_function", ir.Call: "visit_call", ir.Let: "visit_let", ir.Var: "visit_var", ir.If: "visit_if",
    ir.Tuple: "visit_tuple", ir.TupleGetItem: "visit_tuple_getitem", ir.Constant: "visit_constant", ir.Op: "visit_op",
    tvm.ir.GlobalVar: "visit_global_var",
}  # fmt: skip


class ExprFunctor:
    """`visit(expr)` calls the method for the kind of `expr`: `visit_call`, `visit_var`, … A subclass defines them."""

    def __init__(self):
        self.memo_map = {}

    def visit(self, expr):
        if expr not in self.memo_map:
            kind = next((kind for kind in _METHODS if isinstance(expr, kind)), None)
            if kind is None:
                raise TypeError(
                    f"{type(self).__name__}.visit: expected a Relay expression, got {type(expr).__name__}"
                )
            self.memo_map[expr] = getattr(self, _METHODS[kind])(expr)
        return self.memo_map[expr]

    def visit_type(self, typ):
        return typ


def _undefined(name: str):
    def method(self, _expr):
        raise NotImplementedError(
            f"{type(self).__name__} meets a {name.removeprefix('visit_')} and has no {name}"
        )

    return method


for _name in _METHODS.values():
    setattr(ExprFunctor, _name, _undefined(_name))


class ExprVisitor(ExprFunctor):
    """Visits each part of an expression once and returns nothing; methods call `super()` to go on below."""

    def _parts(self, expr) -> None:
        for part in expr.children():
            self.visit(part)

    def _nothing(self, expr) -> None:
        pass

    visit_function = visit_call = visit_let = visit_if = visit_tuple = visit_tuple_getitem = _parts
    visit_var = visit_constant = visit_op = visit_global_var = _nothing


class ExprMutator(ExprFunctor):
    """Returns an expression made of what the visits of its parts return; itself where none has changed."""

    def _leaf(self, expr):
        return expr

    def _rebuilt(self, expr):
        return expr.rebuild(self.visit)

    visit_function = visit_call = visit_let = visit_if = visit_tuple = visit_tuple_getitem = _rebuilt
    visit_var = visit_constant = visit_op = visit_global_var = _leaf


NAMES = {"ExprFunctor": ExprFunctor, "ExprVisitor": ExprVisitor, "ExprMutator": ExprMutator}


# ---------------------------------------------------------------- functions of an expression


def post_order_visit(expr, fvisit) -> None:
    """`relay.analysis.post_order_visit`: call a function with each expression, parts before wholes."""
    body = expr.body if isinstance(expr, ir.Function) else expr
    for node in [*(expr.params if isinstance(expr, ir.Function) else ()), *ir.post_order(body)]:
        fvisit(node)


def all_vars(expr) -> list[ir.Var]:
    nodes = []
    post_order_visit(expr, nodes.append)
    return list(dict.fromkeys(node for node in nodes if isinstance(node, ir.Var)))


def bind(expr, binds: dict):
    """`expr` with variables, or names of them, replaced by values."""
    by_name = {v.name_hint: v for v in all_vars(expr)}
    table = {by_name.get(k, k) if isinstance(k, str) else k: ir.as_expr(v) for k, v in binds.items()}
    if not isinstance(expr, ir.Function):
        return ir.substitute(expr, table)
    params = [p for p in expr.params if p not in table]
    return ir.Function(params, ir.substitute(expr.body, table), attrs=expr.attrs)
