"""`relay.ScopeBuilder`: builds programs from successive `let`s."""

import contextlib

from . import ir


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
