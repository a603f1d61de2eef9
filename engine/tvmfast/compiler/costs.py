"""Count what a kernel computes and moves, from its TensorIR, for graph.json.

`build` counts, because a library no longer has the TensorIR; `tn.profile` compares the counts with times.
"""

import itertools
import math
from collections import Counter
from collections.abc import Mapping
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import tvm
from tvm import s_tir, tirx

from ..core.dims import Dim
from ..core.relax import bytes_of, dim_to_str
from .schedule import dot, pairs

_ARITHMETIC = (tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.Min, tirx.Max)
_NUMPY = {
    tirx.Add: np.add, tirx.Sub: np.subtract, tirx.Mul: np.multiply, tirx.Min: np.minimum,
    tirx.Max: np.maximum, tirx.FloorDiv: np.floor_divide, tirx.FloorMod: np.mod, tirx.EQ: np.equal,
    tirx.NE: np.not_equal, tirx.LT: np.less, tirx.LE: np.less_equal, tirx.GT: np.greater,
    tirx.GE: np.greater_equal, tirx.And: np.logical_and, tirx.Or: np.logical_or,
}  # fmt: skip
_BITWISE = (tirx.LShift, tirx.RShift, tirx.BitwiseAnd, tirx.BitwiseOr, tirx.BitwiseXor)
_OTHER_BINARY = (tirx.Div, tirx.Mod, *_BITWISE)
_FIELDS = {  # by a node's class: the fields that count. `_Counter` has methods for the statements not here.
    **dict.fromkeys((tirx.AllocBuffer, tirx.DeclBuffer, tirx.ScopeIdDefStmt, tirx.Break, tirx.Continue), ()),
    **dict.fromkeys((tirx.Bind, tirx.Evaluate, tirx.Return), ("value",)),
    tirx.AssertStmt: ("condition",),
    tirx.AttrStmt: ("value", "body"),
    tirx.BufferStore: ("value", "indices"),
    tirx.SeqStmt: ("seq",),
    tirx.While: ("condition", "body"),
    s_tir.SBlock: ("body",),
    **dict.fromkeys((tirx.IntImm, tirx.FloatImm, tvm.ir.StringImm, tvm.ir.GenericConst), ()),
    **dict.fromkeys((tirx.Var, tvm.ir.GlobalVar, tvm.ir.Op), ()),
    **dict.fromkeys((*_NUMPY, *_OTHER_BINARY), ("a", "b")),
    **dict.fromkeys((tirx.Not, tirx.BitwiseNot), ("a",)),
    **dict.fromkeys((tirx.Cast, tirx.Broadcast), ("value",)),
    tirx.Let: ("value", "body"),
    tirx.Ramp: ("base", "stride"),
    tirx.Shuffle: ("vectors", "indices"),
    tirx.Select: ("condition", "true_value", "false_value"),
    tvm.ir.TensorLoad: ("indices",),
    tvm.ir.Call: ("args",),
}
_STEP = 60  # between the values of a dim at which costs are counted
_MOST_FACTORS = 3  # of a dynamic dim in a count
KINDS = ("flops", "bf16_flops", "int_ops", "reads", "writes")  # of counts
_GRID = 1 << 22  # most values of the loop variables for which a condition is evaluated


def count(func: tirx.PrimFunc, dims: Mapping[str, int] | None = None) -> dict[str, int]:
    """Count the operations of one call of a kernel, and the bytes that it reads and writes.

    Conditions on loop variables are evaluated exactly. If a condition depends on data, both branches count,
    and a loop whose length depends on data counts as a single iteration.

    Args:
        func: The kernel as it is scheduled.
        dims: The values of the dynamic dims, by name.

    Returns:
        "flops": Each addition, subtraction, multiplication, division, minimum, maximum and mathematical
            function of floating-point numbers counts 1, once for each iteration of the loops around it.
            Comparisons, selections and conversions count 0. The count is of what the kernel executes:
            Winograd's method has its transforms and its fewer products, and what a tile computes in vain is
            included.
        "bf16_flops": Those of "flops" that are products and sums of pairs of bfloat16; see schedule/pairs.py.
        "int_ops": Each addition, subtraction, multiplication, minimum and maximum of integers that are part
            of a stored value counts 1; a dot product of bytes its products and its sums, each 1. The
            arithmetic of indices and conditions counts 0.
        "reads" and "writes": The bytes of the elements of the kernel's arguments that are loaded, or stored,
            each once however often that happens, without loads of what the kernel itself has stored: the
            memory traffic if no cache holds the data. An argument passed to a library function counts as a
            whole, both ways.

    Raises:
        NotImplementedError: The kernel has a statement or an expression of a class that is not known.
    """
    counter = _Counter(func, dims or {})
    counter.stmt(func.body, _Scope())
    elements = {buffer: math.prod(counter.dim(n) for n in buffer.shape) for buffer in counter.arguments}

    def moved(accesses, excluded=()):
        total = 0
        for buffer, size in elements.items():
            if buffer not in excluded or accesses[buffer] == math.inf:
                total += math.ceil(min(size, accesses[buffer])) * bytes_of(buffer.dtype)
        return total

    reads, writes = moved(counter.loads, excluded=counter.stores), moved(counter.stores)
    operations = {kind: round(counter.operations[kind]) for kind in KINDS[:3]}
    return operations | {"reads": reads, "writes": writes}


def cost(func: tirx.PrimFunc, dims: Mapping[str, Dim]) -> dict[str, int | str]:
    """Return `count` of a kernel, each count a number or an expression as in core/dims.py.

    A count that depends on dynamic dims is interpolated by a polynomial. It is exact at the interpolation
    points, each dim's lower bound and 60 more; elsewhere it may miss what tiles compute in vain.
    """
    degrees = _degrees(func)
    own = [dim for name, dim in dims.items() if name in degrees]
    least = {name: dim.lower for name, dim in dims.items()}
    counts = {}  # by the index of an interpolation point
    for at in itertools.product(*(range(degrees[dim.name] + 1) for dim in own)):
        values = {dim.name: dim.lower + _STEP * n for dim, n in zip(own, at, strict=True)}
        counts[at] = count(func, least | values)
    return {kind: _polynomial({at: each[kind] for at, each in counts.items()}, own) for kind in KINDS}


class _Scope(NamedTuple):
    """The context of a node: the `iterations` of its loops, and conditions true in a `share` of them.

    `stored` tells whether it is part of a stored value, and not of an index or a condition.
    """

    iterations: float = 1
    conditions: tuple = ()
    share: float = 1
    stored: bool = False

    @property
    def times(self) -> float:
        """How often a node is executed."""
        return self.iterations * self.share


class _Unknown(Exception):
    """The value of an expression does not depend on loop variables alone."""


class _Counter:
    def __init__(self, func, dims):
        self.dims = dims
        self.operations = Counter()
        self.loads, self.stores = Counter(), Counter()
        self.arguments = [param for param in func.params if isinstance(param.ty, tirx.BufferType)]
        self._loops = {}  # by loop variable: first value, extent and depth
        self._bound = {}  # by block variable: its expression
        self._viewed = {}  # by buffer that stands for a part of another: the other

    def stmt(self, node, scope):
        """Count a statement."""
        getattr(self, "_" + type(node).__name__, self._others)(node, scope)

    def _others(self, node, scope):
        for part in _parts(node):
            count_part = self.stmt if isinstance(part, tirx.Stmt) else self.expr
            count_part(part, scope)

    def _For(self, node, scope):
        try:
            extents, first = self._values(node.extent), self._values(node.min)
        except _Unknown:
            extents, first = 1, None
        if first is not None and np.ndim(extents) == np.ndim(first) == 0:
            self._loops[node.loop_var] = int(first), int(extents), len(self._loops)
        self.stmt(node.body, scope._replace(iterations=scope.iterations * float(np.mean(extents))))
        self._loops.pop(node.loop_var, None)

    def _SBlockRealize(self, node, scope):
        block = node.block
        self._bound.update(zip((axis.var for axis in block.iter_vars), node.iter_values, strict=True))
        for part in block.match_buffers:
            self._viewed[part.buffer] = self._viewed.get(part.source.source, part.source.source)
        self.stmt(block.body, self._where(node.predicate, scope))

    def _IfThenElse(self, node, scope):
        self.expr(node.condition, scope)
        self.stmt(node.then_case, self._where(node.condition, scope))
        if node.else_case is not None:
            self.stmt(node.else_case, self._where(tirx.Not(node.condition), scope))

    def _BufferStore(self, node, scope):
        self.stores[self._viewed.get(node.buffer, node.buffer)] += scope.times * _lanes(node.value)
        self.expr(node.value, scope._replace(stored=True))
        for index in node.indices:
            self.expr(index, scope)

    def expr(self, node, scope):
        """Count an expression."""
        kind = type(node)
        if kind is tirx.Select:
            self._choice(node.condition, node.true_value, node.false_value, scope)
            return
        if kind is tvm.ir.Call:
            self._call(node, scope)
            return
        if kind is tvm.ir.TensorLoad:
            self.loads[self._viewed.get(node.source, node.source)] += scope.times * _lanes(node)
            scope = scope._replace(stored=False)  # for its indices
        elif kind is tirx.Var:
            if isinstance(node.ty, tirx.BufferType):  # its address: the callee may read and write all of it
                self.loads[node] = self.stores[node] = math.inf
        elif kind in _ARITHMETIC:
            self._operate(node, 1, scope)
        for part in _parts(node):
            self.expr(part, scope)

    def _call(self, node, scope):
        name = str(getattr(node.op, "name", "")).rpartition(".")[2]
        if name == "if_then_else":
            self._choice(*node.args, scope)
            return
        if name not in ("reinterpret", "likely") and _is_float(node):
            of_pairs = pairs.flops(node)
            self._operate(node, of_pairs, scope)
            self.operations["bf16_flops"] += (of_pairs if of_pairs > 1 else 0) * scope.times * _lanes(node)
        elif operations := dot.operations(node):
            self._operate(node, operations, scope)
        for arg in node.args if name != "address_of" else ():  # a prefetch takes an address only
            self.expr(arg, scope)

    def _operate(self, node, each: int, scope):
        """Count operations of each lane of a node's result."""
        if _is_float(node):
            self.operations["flops"] += each * scope.times * _lanes(node)
        elif scope.stored:
            self.operations["int_ops"] += each * scope.times * _lanes(node)

    def _choice(self, condition, yes, no, scope):
        self.expr(condition, scope._replace(stored=False))
        self.expr(yes, self._where(condition, scope))
        self.expr(no, self._where(tirx.Not(condition), scope))

    def _where(self, condition, scope) -> _Scope:
        """Return the scope in which `condition` holds too; the same one if that depends on data."""
        if isinstance(condition, tirx.IntImm) and condition.value:
            return scope
        conditions = (*scope.conditions, condition)
        try:
            holds = np.True_
            for each in conditions:
                holds = holds & self._values(each)
        except _Unknown:
            return scope
        return scope._replace(conditions=conditions, share=float(np.mean(holds)))

    def dim(self, expr) -> int:
        """Evaluate a dim of a buffer; 1 if it depends on other variables than the dynamic dims."""
        try:
            return int(self._values(expr))
        except _Unknown:
            return 1

    def _values(self, expr):
        """Evaluate an integer or condition in all iterations: an axis per loop, the outermost last."""
        kind = type(expr)
        if kind is tirx.IntImm:
            return int(expr.value)
        if kind is tirx.Var:
            if expr in self._bound:
                return self._values(self._bound[expr])
            if expr.name in self.dims and expr not in self._loops:
                return self.dims[expr.name]
            if expr in self._loops:
                first, extent, depth = self._loops[expr]
                return np.arange(first, first + extent).reshape(extent, *[1] * depth)
        elif kind in _NUMPY:
            a, b = self._values(expr.a), self._values(expr.b)
            if math.prod(np.broadcast_shapes(np.shape(a), np.shape(b))) <= _GRID:
                return _NUMPY[kind](a, b)
        elif kind is tirx.Not:
            return np.logical_not(self._values(expr.a))
        elif kind is tirx.Cast:
            return self._values(expr.value)
        elif kind is tvm.ir.Call and str(getattr(expr.op, "name", "")).endswith(".likely"):
            return self._values(expr.args[0])
        _parts(expr)  # raises an error for a class that is not known
        raise _Unknown


def _parts(node) -> list:
    """List the statements and expressions that count as parts of one."""
    if type(node) not in _FIELDS:
        raise NotImplementedError(
            f"costs.count does not know {type(node).__name__}, a class of TVM's: add it to costs._FIELDS"
        )
    parts = []
    for name in _FIELDS[type(node)]:
        part = getattr(node, name)
        parts += [part] if isinstance(part, tirx.Stmt | tvm.ir.Expr) else part
    return parts


def _is_float(node) -> bool:
    return "float" in str(getattr(node.ty, "dtype", ""))


def _lanes(node) -> int:
    """Return the elements of a node's value, of which a vector has several."""
    return int(str(getattr(node.ty, "dtype", "")).partition("x")[2] or 1)


def _degrees(func: tirx.PrimFunc) -> dict[str, int]:
    """Return the degree in which the counts depend on each dynamic dim of a kernel's arguments, at most 3.

    That is how often the shape of one argument has it as a factor.
    """
    degrees = {}
    for param in func.params:
        if isinstance(param.ty, tirx.BufferType):
            axes = [dim for dim in param.ty.shape if not isinstance(dim, int)]
            for name in {var.name for dim in axes for var in tirx.analysis.undefined_vars(dim)}:
                degree = sum(_degree(dim, name) for dim in axes)
                degrees[name] = max(degrees.get(name, 1), min(_MOST_FACTORS, degree))
    return degrees


def _degree(dim, name: str) -> int:
    """Return the degree of an axis, as a polynomial, in a dynamic dim."""
    factors = max(term.split("*").count(name) for term in str(dim_to_str(dim)).split(" + "))
    return factors or int(any(var.name == name for var in tirx.analysis.undefined_vars(dim)))


def _polynomial(counts: dict[tuple[int, ...], int], dims: list[Dim]) -> int | str:
    """Return the polynomial through the counts at the interpolation points (Newton's method)."""
    for axis in range(len(dims)):
        for order in range(1, _MOST_FACTORS + 1):
            before = dict(counts)
            for at in counts:
                if at[axis] >= order:
                    lower = (*at[:axis], at[axis] - 1, *at[axis + 1 :])
                    counts = counts | {at: Fraction(before[at] - before[lower], order)}
    terms = {}  # by the powers of the dims
    for at, factor in counts.items():
        bases = [_falling(dim.lower, count) for dim, count in zip(dims, at, strict=True)]
        for powers in itertools.product(*(range(len(base)) for base in bases)):
            value = factor * math.prod(base[power] for base, power in zip(bases, powers, strict=True))
            terms[powers] = terms.get(powers, 0) + value
    divisor = math.lcm(*(Fraction(value).denominator for value in terms.values()))
    products = []
    for powers, value in sorted(terms.items()):
        names = [dim.name for dim, power in zip(dims, powers, strict=True) for _ in range(power)]
        if value:
            products.append("*".join([str(int(value * divisor)), *names]))
    text = " + ".join(products) or "0"
    if divisor > 1:
        return f"(({text}) // ({divisor}))"
    return int(text) if text.isdigit() else text


def _falling(least: int, count: int) -> list[Fraction]:
    """Return the factors of the powers of n in the product of (n - least) / _STEP - i for all i < count."""
    factors = [Fraction(1)]
    for i in range(count):
        root = Fraction(-least, _STEP) - i
        shifted = [Fraction(0), *(factor / _STEP for factor in factors)]
        factors = [a + b for a, b in zip([*(root * factor for factor in factors), 0], shifted, strict=True)]
    return factors
