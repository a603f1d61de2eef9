"""What `tvm.tir` and `tvm.ir` had for passes and intrinsics of one's own: functors, the IR builder, rules."""

import contextlib
import contextvars

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import Op
from tvm.tirx.op import register_intrin_lowering as _register

_NODES = (tirx.Stmt, tvm.ir.Expr)


def patches() -> list[tuple[object, str, object]]:
    """List the attributes to set, as (object, attribute name, value)."""
    return [
        (tvm.ir, "structural_equal", structural_equal),
        (tvm.ir, "structural_hash", structural_hash),
        (tvm.ir, "register_intrin_lowering", register_intrin_lowering),
        (tvm.ir, "register_op_attr", register_op_attr),
        (Op, "name", property(_name_of)),
    ]


def spaces() -> dict[str, dict]:
    """Return the contents of the modules: {module: {attribute: value}}."""
    functors = (post_order_visit, pre_order_visit, ir_transform, substitute)
    builder = {"create": IRBuilder, "IRBuilder": IRBuilder}
    return {
        "tvm.tir.stmt_functor": {each.__name__: each for each in functors},
        "tvm.tir.ir_builder": builder,
        "tvm.ir_builder": builder,
    }


def structural_equal(lhs, rhs, map_free_vars: bool = False) -> bool:
    """`tvm.ir.structural_equal`: whether two values are the same but for the names of variables."""
    return tvm_ffi.structural_equal(lhs, rhs, map_free_vars)


def structural_hash(node, map_free_vars: bool = False) -> int:
    """`tvm.ir.structural_hash`: the same for values that `structural_equal` finds equal."""
    return tvm_ffi.structural_hash(node, map_free_vars)


# ---------------------------------------------------------------- functors


def post_order_visit(stmt, fvisit) -> None:
    """Call `fvisit` with each statement and expression, after those in it."""
    tvm_ffi.structural_walk(stmt, [(_NODES, lambda node: fvisit(node) and None)])


def pre_order_visit(stmt, fvisit) -> None:
    """Call `fvisit` with each statement and expression, before those in it, which False leaves out."""
    skip, go_on = tvm_ffi.WalkResult.SKIP, tvm_ffi.WalkResult.ADVANCE
    tvm_ffi.structural_walk(
        stmt, [(_NODES, lambda node: go_on if fvisit(node) in (None, True) else skip)], order="pre"
    )


def ir_transform(stmt, preorder, postorder, only_enable=None):
    """Replace statements and expressions.

    Args:
        stmt: A statement.
        preorder: A function of a node, called before those in it; None, or what replaces it, as it is.
        postorder: A function of a node in which the others have been replaced; None, or what replaces it.
        only_enable: The kinds of nodes to call these for, such as ["tir.For"]; by default all.
    """
    kinds = {name.rpartition(".")[2] for name in only_enable or ()}

    def replaced(node, mutator):
        if kinds and type(node).__name__ not in kinds:
            return mutator.default_mutate(node)
        new = preorder(node) if preorder else None
        if new is not None:
            return new
        node = mutator.default_mutate(node)
        new = postorder(node) if postorder else None
        return node if new is None else new

    return tvm_ffi.structural_mutate(stmt, [(_NODES, replaced)])


def substitute(node, vmap: dict):
    """Return a statement or expression with variables replaced by expressions."""
    new = {var.__chandle__(): tvm.runtime.convert(value) for var, value in vmap.items()}
    return tvm_ffi.structural_map(node, [(tvm.ir.Var, lambda var: new.get(var.__chandle__(), var))])


# ---------------------------------------------------------------- the IR builder


class IRBuilder:
    """`tvm.tir.ir_builder.create()`: statements one after the other, with loops and conditions by `with`."""

    def __init__(self):
        self._statements: list[list] = [[]]

    def emit(self, stmt) -> None:
        """Add a statement, or the call of a function."""
        self._statements[-1].append(stmt if isinstance(stmt, tirx.Stmt) else tirx.Evaluate(stmt))

    def get(self):
        """Return the statement that all are together."""
        return self._joined(self._statements[-1])

    @contextlib.contextmanager
    def for_range(self, begin, end, name: str = "i", dtype: str = "int32", kind: str = "serial"):
        """Put what follows into a loop from `begin` to `end`, whose variable this gives."""
        var = tirx.Var(name, dtype)
        with self._inside() as body:
            yield var
        first = tirx.const(begin, dtype) if isinstance(begin, int) else begin
        self.emit(tirx.For(var, first, end - begin, tirx.ForKind[kind.upper()], self._joined(body)))

    @contextlib.contextmanager
    def if_scope(self, cond):
        """Put what follows under a condition."""
        with self._inside() as body:
            yield
        self.emit(tirx.IfThenElse(cond, self._joined(body), None))

    def buffer_ptr(self, buf, shape=None) -> "_Elements":
        """Return what reads and writes elements of a buffer, by one index for each of its axes."""
        return _Elements(self, buf)

    @contextlib.contextmanager
    def _inside(self):
        self._statements.append([])
        yield self._statements[-1]
        self._statements.pop()

    @staticmethod
    def _joined(statements: list):
        if not statements:
            return tirx.Evaluate(0)
        return statements[0] if len(statements) == 1 else tirx.SeqStmt(statements)


class _Elements:
    def __init__(self, builder: IRBuilder, buffer):
        self._builder, self._buffer = builder, buffer

    def __getitem__(self, at):
        return tirx.BufferLoad(self._buffer, list(at) if isinstance(at, tuple) else [at])

    def __setitem__(self, at, value):
        value = tirx.const(value, self._buffer.dtype) if isinstance(value, int | float) else value
        self._builder.emit(tirx.BufferStore(self._buffer, value, list(at) if isinstance(at, tuple) else [at]))


# ---------------------------------------------------------------- rules for intrinsics

_REGISTER = tvm.ir.register_op_attr
_NAME = vars(Op)["name"].__get__
_in_rule = contextvars.ContextVar("in_rule", default=False)


def register_intrin_lowering(op_name: str, target: str, *, f=None, level: int = 10):
    """`tvm.ir.register_intrin_lowering`: have `f` lower calls of an operator for a target.

    `f` reads the operator's name as it was, "tir.exp", where TVM has "tirx.exp" today.
    """

    def register(rule):
        def of_today(call):
            token = _in_rule.set(True)
            try:
                return rule(call)
            finally:
                _in_rule.reset(token)

        known = {str(each) for each in Op.list_op_names()}
        name = op_name if op_name in known else op_name.replace("tir.", "tirx.", 1)
        _register(name, target, f=of_today, level=level)
        return rule

    return register if f is None else register(f)


def register_op_attr(op_name: str, attr_key: str, value=None, level: int = 10):
    """`tvm.ir.register_op_attr`, with numbers of TVM's too, such as `tvm.tir.CallEffectKind.Pure`."""
    plain = getattr(value, "value", value)
    return _REGISTER(op_name, attr_key, plain, level)


def _name_of(op) -> str:
    name = _NAME(op)
    return name.replace("tirx.", "tir.", 1) if _in_rule.get() else name
