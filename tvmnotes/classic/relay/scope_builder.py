"""`relay.ScopeBuilder`: programs written one `let` after another."""

import contextlib

from . import ir


class ScopeBuilder:
    """`let` names a value, `ret` says what a scope gives, `get` returns the expression of it all."""

    def __init__(self):
        self._scopes = [([], [])]  # of each open scope, its (variable, value) pairs and what it returns

    def let(self, var, value) -> ir.Var:
        """Name a value: `var` is a variable, its name, or (name, type)."""
        if not isinstance(var, ir.Var):
            var = ir.var(var) if isinstance(var, str) else ir.var(*var)
        self._scopes[-1][0].append((var, ir.as_expr(value)))
        return var

    def ret(self, value) -> None:
        if self._scopes[-1][1]:
            raise RuntimeError("ScopeBuilder: this scope has returned already")
        self._scopes[-1][1].append(ir.as_expr(value))

    @contextlib.contextmanager
    def if_scope(self, cond):
        """What is written within is the branch for a true `cond`; `else_scope` follows."""
        self._scopes.append(([], []))
        yield
        branch = self._close()
        self.ret(ir.If(cond, branch, branch))

    @contextlib.contextmanager
    def else_scope(self):
        result = self._scopes[-1][1]
        if not result or not isinstance(result[0], ir.If):
            raise RuntimeError("ScopeBuilder: an else_scope follows an if_scope")
        self._scopes.append(([], []))
        yield
        result[0] = ir.If(result[0].cond, result[0].true_branch, self._close())

    def get(self) -> ir.Expr:
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
