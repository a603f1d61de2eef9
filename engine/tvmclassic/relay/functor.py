"""`relay.expr_functor`: visitors, which scripts subclass. Results are memoized by expression."""

import sys

import tvm

from . import ir

# `import tvm.relay` did this too: visitors recurse, and networks are deep.
sys.setrecursionlimit(max(sys.getrecursionlimit(), 10_000))

_METHODS = {
    ir.Function: "visit_function", ir.Call: "visit_call", ir.Let: "visit_let", ir.Var: "visit_var",
    ir.If: "visit_if", ir.Tuple: "visit_tuple", ir.TupleGetItem: "visit_tuple_getitem",
    ir.Constant: "visit_constant", ir.Op: "visit_op", tvm.ir.GlobalVar: "visit_global_var",
}  # fmt: skip


class ExprFunctor:
    """Visitor whose `visit(expr)` calls `visit_call`, `visit_var`, …, which a subclass defines."""

    def __init__(self):
        self.memo_map = {}

    def visit(self, expr):
        """Return the result for `expr`, computed once. Raises TypeError for other objects."""
        if expr not in self.memo_map:
            kind = next((kind for kind in _METHODS if isinstance(expr, kind)), None)
            if kind is None:
                raise TypeError(
                    f"{type(self).__name__}.visit: expected a Relay expression, got {type(expr).__name__}"
                )
            self.memo_map[expr] = getattr(self, _METHODS[kind])(expr)
        return self.memo_map[expr]

    def visit_type(self, typ):
        """Return the type unchanged."""
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
    """Visitor of each part of an expression, once; overrides call `super()` to visit the children."""

    def _visit_children(self, expr) -> None:
        for child in expr.children():
            self.visit(child)

    def _visit_leaf(self, expr) -> None:
        pass

    visit_function = visit_call = visit_let = visit_if = visit_tuple = visit_tuple_getitem = _visit_children
    visit_var = visit_constant = visit_op = visit_global_var = _visit_leaf


class ExprMutator(ExprFunctor):
    """Visitor that rebuilds each expression from the results for its children; itself if none has changed."""

    def _visit_leaf(self, expr):
        return expr

    def _rebuild(self, expr):
        return expr.rebuild(self.visit)

    visit_function = visit_call = visit_let = visit_if = visit_tuple = visit_tuple_getitem = _rebuild
    visit_var = visit_constant = visit_op = visit_global_var = _visit_leaf


NAMES = {"ExprFunctor": ExprFunctor, "ExprVisitor": ExprVisitor, "ExprMutator": ExprMutator}


# ---------------------------------------------------------------- functions of an expression


def post_order_visit(expr, fvisit) -> None:
    """`relay.analysis.post_order_visit`: calls `fvisit` with each expression, children first."""
    body = expr.body if isinstance(expr, ir.Function) else expr
    for node in [*(expr.params if isinstance(expr, ir.Function) else ()), *ir.post_order(body)]:
        fvisit(node)


def all_vars(expr) -> list[ir.Var]:
    """`relay.analysis.all_vars`: returns the variables of `expr`, each once, in post order."""
    nodes = []
    post_order_visit(expr, nodes.append)
    return list(dict.fromkeys(node for node in nodes if isinstance(node, ir.Var)))


def bind(expr, binds: dict):
    """`relay.bind`: replaces variables, given by object or name, by values."""
    by_name = {v.name_hint: v for v in all_vars(expr)}
    table = {by_name.get(k, k) if isinstance(k, str) else k: ir.as_expr(v) for k, v in binds.items()}
    if not isinstance(expr, ir.Function):
        return ir.substitute(expr, table)
    params = [p for p in expr.params if p not in table]
    return ir.Function(params, ir.substitute(expr.body, table), attrs=expr.attrs)
