"""`relay.expr_functor`: visitors, which scripts subclass, memoized; `relay.ScopeBuilder`; `relay.loops`."""

import contextlib
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


# ---------------------------------------------------------------- programs of lets


class ScopeBuilder:
    """Builder of lets: `let` names a value, `ret` sets a scope's result, `get` returns the expression."""

    def __init__(self):
        self._scopes = [([], [])]  # per open scope: its (variable, value) pairs, and its result in a list

    def let(self, var, value) -> ir.Var:
        """Name a value: `var` is a variable, its name, or (name, type)."""
        if not isinstance(var, ir.Var):
            var = ir.var(var) if isinstance(var, str) else ir.var(*var)
        self._scopes[-1][0].append((var, ir.as_expr(value)))
        return var

    def type_of(self, expr):
        """Return the type of an expression, None if it is not known yet."""
        return ir.as_expr(expr).known_type

    def ret(self, value) -> None:
        """Set the result of the scope. Raises RuntimeError if it has one."""
        if self._scopes[-1][1]:
            raise RuntimeError("ScopeBuilder: this scope has returned already")
        self._scopes[-1][1].append(ir.as_expr(value))

    @contextlib.contextmanager
    def if_scope(self, cond):
        """Open the branch taken if `cond` is true; `else_scope` must follow."""
        self._scopes.append(([], []))
        yield
        branch = self._close()
        self.ret(ir.If(cond, branch, branch))

    @contextlib.contextmanager
    def else_scope(self):
        """Open the other branch. Raises RuntimeError without an `if_scope` before it."""
        result = self._scopes[-1][1]
        if not result or not isinstance(result[0], ir.If):
            raise RuntimeError("ScopeBuilder: an else_scope follows an if_scope")
        self._scopes.append(([], []))
        yield
        result[0] = ir.If(result[0].cond, result[0].true_branch, self._close())

    def get(self) -> ir.Expr:
        """Return the whole expression. Raises RuntimeError without a result."""
        program = self._close()
        self._scopes.append(([], [program]))
        return program

    def _close(self) -> ir.Expr:
        values, result = self._scopes.pop()
        if not result:
            raise RuntimeError("ScopeBuilder: a scope ends without ret(value)")
        (body,) = result
        for var, value in reversed(values):
            body = ir.Let(var, value, body)
        return body


# ---------------------------------------------------------------- loops: relay.loops


def while_loop(cond, loop_vars, loop_bodies) -> ir.Expr:
    """`relay.loops.while_loop`: returns a loop as a function of the initial values; `relay.vm` runs it.

    Args:
        cond: Function of the variables that returns whether the loop goes on, a bool expression.
        loop_vars: List of variables or initial values, of which the names and types count.
        loop_bodies: Function of the variables that returns their next values, a list.
    """
    params = []
    for n, each in enumerate(map(ir.as_expr, loop_vars)):
        params.append(ir.Var(each.name_hint if isinstance(each, ir.Var) else f"arg{n}", each.known_type))
    loop, builder = ir.Var("while_loop"), ScopeBuilder()
    with builder.if_scope(cond(*params)):
        builder.ret(loop(*loop_bodies(*params)))
    with builder.else_scope():
        builder.ret(ir.Tuple(params))
    return ir.Let(loop, ir.Function(params, builder.get()), loop)
