"""What `tvm.tir` and `tvm.ir` had for passes and intrinsics of one's own: functors, the IR builder, rules."""

import contextlib
import contextvars

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import Op
from tvm.tirx.op import register_intrin_lowering as _register

from .te.ops import constant

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
    """Call `fvisit` with each statement and expression, once, after those in it."""

    def visit(node, inside):
        inside()
        fvisit(node)

    _visit(stmt, visit)


def pre_order_visit(stmt, fvisit) -> None:
    """Call `fvisit` with each statement and expression, once, before those in it, which False leaves out."""

    def visit(node, inside):
        go_on = fvisit(node)
        if go_on is None or go_on:
            inside()

    _visit(stmt, visit)


def _visit(stmt, visit) -> None:
    """Call `visit(node, inside)` with each node, once; `inside()` does so with those in it."""
    seen = {}  # by handle, which no other node gets while the node is kept

    def once(node, visitor):
        if node.__chandle__() not in seen:
            seen[node.__chandle__()] = node
            visit(node, lambda: visitor.default_visit(node))

    tvm_ffi.structural_visit(stmt, [(_NODES, once)])


def ir_transform(stmt, preorder, postorder, only_enable=None):
    """Replace statements and expressions.

    Args:
        stmt: A statement.
        preorder: A function of a node, called before those in it; None, or what replaces it, as it is.
        postorder: A function of a node in which the others have been replaced; None, or what replaces it.
        only_enable: The kinds of nodes to call these for, such as ["tir.For"]; by default all.

    Raises:
        ValueError: A kind that TensorIR no longer has, of which no node would be found.
    """
    kinds = tuple(map(_kind, only_enable or ())) or _NODES

    def replaced(node, mutator):
        if not isinstance(node, kinds):
            return mutator.default_mutate(node)
        new = preorder(node) if preorder else None
        if new is not None:
            return new
        node = mutator.default_mutate(node)
        new = postorder(node) if postorder else None
        return node if new is None else new

    return tvm_ffi.structural_mutate(stmt, [(_NODES, replaced)])


def _kind(name: str) -> type:
    """Return the class of nodes that was called so, such as "tir.For"."""
    short = name.rpartition(".")[2]
    short = f"S{short}" if short in ("Block", "BlockRealize") else short
    for module in (tirx, tvm.s_tir, tvm.ir):
        if isinstance(found := getattr(module, short, None), type):
            return found
    raise ValueError(f"ir_transform: TensorIR has no nodes {name!r} today; expected such as 'tir.For'")


def substitute(node, vmap: dict):
    """Return a statement or expression with variables replaced by expressions or numbers."""
    new = {
        var.__chandle__(): tirx.const(value, str(var.ty)) if isinstance(value, int | float) else value
        for var, value in vmap.items()
    }

    def used(var, region):  # a loop keeps its own variable
        return new.get(var.__chandle__(), var) if region == tvm_ffi.DefRegionKind.NONE else var

    return tvm_ffi.structural_map(node, with_def_region_kind=[(tvm.ir.Var, used)])


# ---------------------------------------------------------------- the IR builder

_KINDS = {
    "serial": tirx.ForKind.SERIAL,
    "parallel": tirx.ForKind.PARALLEL,
    "vectorize": tirx.ForKind.VECTORIZED,
    "unroll": tirx.ForKind.UNROLLED,
}


class IRBuilder:
    """`tvm.tir.ir_builder.create()`: statements one after the other, with loops and conditions by `with`."""

    def __init__(self):
        self._statements: list[list] = [[]]

    def __getattr__(self, name: str):
        raise AttributeError(
            f"the IR builder has no {name!r} here, but emit, for_range, if_scope, buffer_ptr and get; write "
            "the statements in TVMScript, tvm.script.tirx"
        )

    def emit(self, stmt) -> None:
        """Add a statement, or the call of a function."""
        self._statements[-1].append(stmt if isinstance(stmt, tirx.Stmt) else tirx.Evaluate(stmt))

    def get(self):
        """Return the statement that all are together."""
        return self._joined(self._statements[-1])

    @contextlib.contextmanager
    def for_range(self, begin, end, name: str = "i", dtype=None, kind: str = "serial", for_type=None):
        """Put what follows into a loop from `begin` to `end`, whose variable this gives.

        The `dtype` is by default that of the bounds, of ints int32. The `kind`, until TVM 0.7 `for_type`, is
        "serial", "parallel", "vectorize" or "unroll"; ValueError for others.
        """
        if (kind := for_type or kind) not in _KINDS:
            raise ValueError(f"for_range: expected a kind of {', '.join(_KINDS)}; got {kind!r}")
        if dtype is None:
            given = [str(getattr(each, "ty", "")) for each in (begin, end)]
            dtype = "int64" if "int64" in given else "int32"
        first, last = (_of_dtype(each, dtype) for each in (begin, end))
        var = tirx.Var(name, dtype)
        with self._inside() as body:
            yield var
        self.emit(tirx.For(var, first, last - first, _KINDS[kind], self._joined(body)))

    @contextlib.contextmanager
    def if_scope(self, cond):
        """Put what follows under a condition."""
        with self._inside() as body:
            yield
        self.emit(tirx.IfThenElse(cond, self._joined(body), None))

    def buffer_ptr(self, buf, shape=None) -> "_Elements":
        """Return what reads and writes elements of a buffer.

        An element has an index for each axis of `shape`, by default the buffer's, or one among all elements.
        """
        return _Elements(self, buf, buf.shape if shape is None else shape)

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
    def __init__(self, builder: IRBuilder, buffer, shape):
        self._builder, self._buffer = builder, buffer
        self._shape = [_of_dtype(extent, "int32") if isinstance(extent, int) else extent for extent in shape]
        self._is_whole = tvm_ffi.structural_equal(list(buffer.shape), self._shape)

    def __getitem__(self, at):
        return tirx.BufferLoad(self._buffer, self._indices(at))

    def __setitem__(self, at, value):
        value = tirx.const(value, self._buffer.dtype) if isinstance(value, int | float) else value
        self._builder.emit(tirx.BufferStore(self._buffer, value, self._indices(at)))

    def _indices(self, at) -> list:
        """Return the buffer's indices of an element: of axes of `shape`, or of all elements in a row."""
        at = list(at) if isinstance(at, tuple | list) else [at]
        if len(at) not in (1, len(self._shape)):
            raise IndexError(
                f"{self._buffer.name}: expected {len(self._shape)} indices, or one among all elements; "
                f"got {len(at)}"
            )
        own = list(self._buffer.shape)
        if not own or (self._is_whole and len(at) == len(own)):
            return at[: len(own)]
        place, *rest = [_of_dtype(index, "int32") if isinstance(index, int) else index for index in at]
        for index, extent in zip(rest, self._shape[1:], strict=False):
            place = place * extent + index
        indices = []
        for extent in reversed(own[1:]):
            indices.append(place % extent)
            place = place // extent
        return [place, *reversed(indices)]


def _of_dtype(value, dtype: str):
    """Return a number or an expression as an expression of a dtype."""
    number = constant(value)
    return value.astype(dtype) if number is None else tirx.const(number, dtype)


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
