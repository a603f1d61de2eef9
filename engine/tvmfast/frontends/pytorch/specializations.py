"""Specializations: programs that PyTorch exports with dynamic dims at some values, and their guards.

A guard comes from the network's Python code, which may then call other operators, or from an operator of
PyTorch that infers a shape. The latter affects the shapes alone: where these, as expressions of the dynamic
dims, are those of another specialization, and the Python code takes the same branches, both are equivalent.
Equivalent specializations are explored for each dim by itself, others in combination.
"""

import contextlib
import functools
import hashlib
import itertools
import sys
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import sympy
import torch
from sympy.core.function import Application
from sympy.logic.boolalg import Boolean, BooleanAtom
from torch.export import ExportedProgram
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils import _pytree

from ...core.dims import Dim
from ...core.specs import TensorSpec
from ..dynamic.merge import GraphMerge

aten = torch.ops.aten
_UNCHANGED = (aten.contiguous.default, aten.clone.default, aten.alias.default, aten.detach.default)
_RESHAPES = (aten.view.default, aten._unsafe_view.default, aten.reshape.default)
_ATTENTION_ARGS = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
_NUMBERS = (int, float, bool, torch.SymInt, torch.SymFloat, torch.SymBool)
_CHECKS = (
    *(aten._assert_scalar.default, aten.sym_constrain_range.default),
    aten.sym_constrain_range_for_size.default,
)
_ANY = "any"  # for an argument that has no effect

_NUMPY = {  # PyTorch's functions in guards
    **dict.fromkeys(("Mod", "PythonMod"), np.mod),
    **dict.fromkeys(("FloorDiv", "CleanDiv"), np.floor_divide),
    **{"Max": np.maximum, "Min": np.minimum},
}
_NOT_LINEAR = (Application, Boolean, sympy.Piecewise)
_NEAR = 32  # the least values of a dim that are tried, for all remainders
_MOST = 1 << 31  # the largest one
_WIDE = 1 << 15  # numbers up to which a product of four fits into 64 bits
_TORCH = str(Path(torch.__file__).parent)
_MACHINERY = tuple(
    f"{_TORCH}/{name}"
    for name in ("__init__.py", "fx/experimental/symbolic_shapes.py", "fx/experimental/sym_node.py")
)
_OF_NODES = f"{_TORCH}/fx/experimental/sym_node.py"  # what operators in C++ call first
_OF_OPERATORS = (
    *("_decomp/", "_refs/", "_prims/", "_prims_common/", "_meta_registrations.py", "_library/", "_ops.py"),
    *("_subclasses/", "_functorch/", "_dispatch/", "fx/", "utils/", "_export/"),
)
_OPERATORS = tuple(f"{_TORCH}/{name}" for name in _OF_OPERATORS)


class ShapeSymbols(NamedTuple):
    """The symbols and guards of a program that PyTorch exported with dynamic dims.

    Attributes:
        symbols: The symbol of each dim, by name.
        specialized: The numbers or expressions of dims that have no symbol of their own, by name.
        same: By symbol, the one in `symbols`: where several inputs have a dim, each may have its own.
        guards: Guards on the symbols in `symbols`.
    """

    symbols: dict[str, sympy.Symbol]
    specialized: dict[str, Any]
    same: dict[sympy.Symbol, sympy.Symbol]
    guards: list[sympy.Basic]


def shape_symbols(program: ExportedProgram, specs: list[TensorSpec]) -> ShapeSymbols:
    """Return the symbols and guards of an exported program with inputs `specs`."""
    nodes = {node.name: node for node in program.graph.find_nodes(op="placeholder")}
    symbols, specialized, same, guards = {}, {}, {}, {}
    for spec, name in zip(specs, program.graph_signature.user_inputs, strict=True):
        for dim, number in zip(spec.shape, nodes[name].meta["val"].shape, strict=True):
            if not isinstance(dim, Dim):
                continue
            if not isinstance(number, torch.SymInt) or not number.node.expr.is_Symbol:
                specialized[dim.name] = number
                continue
            same[number.node.expr] = symbols.setdefault(dim.name, number.node.expr)
            guards |= {str(guard.expr): guard.expr for guard in number.node.shape_env.guards}
    return ShapeSymbols(symbols, specialized, same, [guard.xreplace(same) for guard in guards.values()])


@contextlib.contextmanager
def record_python_guards() -> Iterator[dict[sympy.Basic, None]]:
    """Collect the conditions that Python code, not operators, evaluates in this thread's exports."""
    found, evaluate = {}, ShapeEnv.evaluate_expr
    thread = threading.get_ident()

    def recording(self, expr, *args, **options):
        if threading.get_ident() == thread and _is_of_python(sys._getframe(1)):
            found[expr] = None
        return evaluate(self, expr, *args, **options)

    ShapeEnv.evaluate_expr = recording
    try:
        yield found
    finally:
        ShapeEnv.evaluate_expr = evaluate


def _is_of_python(frame) -> bool:
    """Return whether Python code, not an operator, evaluates a condition, given the evaluating frame."""
    file = last = frame.f_code.co_filename
    while file in _MACHINERY and frame.f_back is not None:
        frame, last = frame.f_back, file
        file = frame.f_code.co_filename
    return last != _OF_NODES and not file.startswith(_OPERATORS)


class Specialization:
    """A program exported with dynamic dims at some values: its graph signature and guards.

    Attributes:
        values: The dims, by name.
        free: The names of dims that are not specialized to a number.
        guards: What holds wherever this specialization is valid, of symbols with the names of dims.
        python_guards: The conditions that Python code evaluates, whatever their results.
        signature: What the program computes, as `signature_of` lists it.
    """

    def __init__(
        self, program: ExportedProgram, specs: list[TensorSpec], values: dict[str, int], found: dict
    ):
        known, self.values = shape_symbols(program, specs), values
        count = Counter(known.symbols.values())
        self.free = {
            name for name, n in known.symbols.items() if count[n] == 1 and name not in known.specialized
        }
        own = {symbol: _symbol(name) for name, symbol in known.symbols.items()}
        names = {symbol: own[first] for symbol, first in known.same.items()}
        self.guards = {guard.xreplace(own) for guard in known.guards}
        self.python_guards = {guard.xreplace(names) for guard in found}
        self.signature = [
            part.xreplace(names) if isinstance(part, sympy.Basic) else part
            for part in signature_of(program, True)
        ]

    def holds(self, name: str, tried: Sequence[int]) -> np.ndarray:
        """Return at which values of a dim all guards hold."""
        if name not in self.free:
            return np.array(tried) == self.values[name]
        result = np.ones(len(tried), bool)
        for guard in self.guards:
            result &= self.evaluated(guard, name, tried)
        return result

    def evaluated(self, condition: sympy.Basic, name: str, tried: Sequence[int]) -> np.ndarray | bool:
        """Return at which values of a dim a condition holds; True if it does not depend on this dim alone."""
        condition = self._alone(condition, name)
        if condition.free_symbols != {_symbol(name)}:
            return True
        return _evaluated(condition, _symbol(name), tried)

    def computed(self, expression: sympy.Basic, name: str, tried: Sequence[int]) -> list:
        """Return the results of an expression at values of a dim."""
        expression = self._alone(expression, name)
        if not expression.free_symbols:
            return [_number(expression, {})] * len(tried)
        return list(_computed(expression, _symbol(name), tried))

    def _alone(self, expression: sympy.Basic, name: str) -> sympy.Basic:
        """Substitute the values of all dims but one."""
        return expression.xreplace(
            {_symbol(each): sympy.Integer(n) for each, n in self.values.items() if each != name}
        )


def _symbol(name: str) -> sympy.Symbol:
    return sympy.Symbol(name, integer=True, positive=True)


def is_equivalent(baseline: Specialization, other: Specialization, name: str) -> bool:
    """Return whether another value of a dim changes only guards of operators."""
    at = [{_symbol(each): sympy.Integer(n) for each, n in case.values.items()} for case in (baseline, other)]
    if baseline.free - other.free - {each for each, n in other.values.items() if n == 1}:
        return False
    own = _symbol(name)
    if any(own in each.free_symbols and len(each.free_symbols) > 1 for each in baseline.python_guards):
        return False
    if any(each.xreplace(at[0]) != each.xreplace(at[1]) for each in baseline.python_guards):
        return False
    if any(each.free_symbols - {own} and each not in baseline.guards for each in other.guards):
        return False
    if len(baseline.signature) != len(other.signature):
        return False
    pairs = {pair for pair in zip(baseline.signature, other.signature, strict=True) if pair[0] != pair[1]}
    return all(_at(a, at[1]) == _at(b, at[1]) for a, b in pairs)


def _at(part: Any, values: dict) -> Any:
    return part.xreplace(values) if isinstance(part, sympy.Basic) else part


def covered(equivalent: list[Specialization], name: str, tried: Sequence[int]) -> np.ndarray:
    """Return at which values of a dim each condition has a result that it has in some specialization.

    The first of `equivalent` is the baseline.
    """
    baseline = equivalent[0]
    result = np.ones(len(tried), bool)
    for guard in baseline.python_guards:
        here = baseline.evaluated(guard, name, (baseline.values[name],))
        result &= baseline.evaluated(guard, name, tried) == here
    seen = set().union(*(each.guards for each in equivalent))
    for guard in seen:
        if sympy.Not(guard) not in seen:
            result &= baseline.evaluated(guard, name, tried)
    return result


def separating_values(expressions: Iterable[sympy.Basic], dim: Dim) -> set[int]:
    """Return values of a dim that separate expressions: powers of 2, and what is next to their numbers."""
    numbers = {int(n) for each in expressions for n in each.atoms(sympy.Integer)}
    tried = {n + step for n in numbers for step in (-1, 0, 1)} | {1 << bit for bit in range(31)}
    return {n for n in tried | {dim.upper or _MOST} if dim.takes(n)}


def mismatches(
    baseline: Specialization, other: Specialization, merged: GraphMerge, most: int
) -> Iterator[tuple[str, int]]:
    """Yield dims and their values at which a specialization has other numbers than the merged graph.

    By the probes alone, a number such as `length // 1000` would be taken for 0. `other` is the baseline, or
    one equivalent to it; values are at most `most`, unless all probes satisfy its guards.
    """
    probes = [{_symbol(name): sympy.Integer(n) for name, n in probe.items()} for probe in merged.probes]
    if all(each.xreplace(probe) == sympy.true for each in other.guards for probe in probes):
        most = _MOST
    for first, part in dict.fromkeys(zip(baseline.signature, other.signature, strict=True)):
        if first == part and not (isinstance(part, sympy.Basic) and part.has(*_NOT_LINEAR)):
            continue
        names = {symbol.name for symbol in part.free_symbols} if isinstance(part, sympy.Basic) else set()
        if not names or not names <= other.free:
            continue
        numbers = tuple(_number(sympy.sympify(first), probe) for probe in probes)
        for name in sorted(names):
            dim = merged.dims[name]
            near = {n for n in range(dim.lower, dim.lower + _NEAR) if dim.takes(n)}
            tried = tuple(n for n in sorted(separating_values([part], dim) | near) if 1 < n <= most)
            if not tried:
                continue
            results, holds = baseline.computed(part, name, tried), other.holds(name, tried)
            for n, result in itertools.compress(zip(tried, results, strict=True), holds):
                if not merged.allows(numbers, {**baseline.values, name: n}, result):
                    yield name, n
                    break


@functools.lru_cache(maxsize=1024)
def _evaluated(condition: sympy.Basic, symbol: sympy.Symbol, tried: Sequence[int]) -> np.ndarray:
    """Return at which values of a symbol a condition holds."""
    return np.array(_computed(condition, symbol, tried), bool)


def _computed(expression: sympy.Basic, symbol: sympy.Symbol, tried: Sequence[int]) -> np.ndarray | list:
    """Return the results of an expression at values of a symbol."""
    values = np.array(tried, object if max(tried) > _WIDE else int)
    try:
        results = sympy.lambdify([symbol], expression, [_NUMPY, "numpy"])(values)
        return np.broadcast_to(results, len(tried))
    except (NameError, TypeError, ValueError, ZeroDivisionError):  # PyTorch's own functions: one by one
        return [_number(expression, {symbol: sympy.Integer(n)}) for n in tried]


def _number(expression: sympy.Basic, values: dict) -> bool | int | float | None:
    """Evaluate an expression at values of its symbols; None if it has no number there."""
    try:
        value = expression.xreplace(values)
    except ZeroDivisionError:
        return None
    if isinstance(value, BooleanAtom):
        return bool(value)
    if value.is_Integer:
        return int(value)
    return float(value) if value.is_number else None


# ---------------------------------------------------------------- graph signatures
# The calls of a program as a list, to compare with those for other dims.


def signature_of(program: ExportedProgram, is_dynamic: bool = False) -> list[int | str | sympy.Expr | None]:
    """List the calls of a program with their arguments: integers as they are, all else as text.

    Copies are left out, as PyTorch makes some for some dims only. None stands for an argument that has no
    effect for these dims. If the program has dynamic dims, these are expressions, arithmetic on them is left
    out, and the shape of each result is listed.
    """
    listed = [_described(name, held) for name, held in program.constants.items()]
    graphs = [part for part in program.graph_module.modules() if isinstance(part, torch.fx.GraphModule)]
    for graph in graphs:
        numbers, calls = {}, 0
        for node in graph.graph.nodes:
            if node.target in _UNCHANGED:
                numbers[node] = numbers[node.args[0]]
                continue
            value = node.meta.get("val")
            if is_dynamic and (isinstance(value, _NUMBERS) or node.target in _CHECKS):
                continue
            numbers[node] = calls
            calls += 1
            listed.append(f"{node.op} {'reshape' if node.target in _RESHAPES else node.target}")
            listed.append(f"axes: {getattr(node.meta.get('val'), 'ndim', None)}")  # squeeze drops those of 1
            for leaf in _pytree.tree_leaves(_arguments(node, is_dynamic)):
                if isinstance(leaf, torch.fx.Node):
                    listed.append(
                        f"node {numbers[leaf]}" if leaf in numbers else _expression(leaf.meta["val"])
                    )
                else:
                    listed.append(leaf if type(leaf) is int else None if leaf is _ANY else str(leaf))
            if is_dynamic:
                listed += [
                    _expression(n) for each in _pytree.tree_leaves(value) for n in getattr(each, "shape", ())
                ]
            elif node.op == "output":
                shapes = (getattr(each.meta.get("val"), "shape", ()) for each in node.all_input_nodes)
                listed += [n for shape in shapes for n in shape if type(n) is int]
    return listed


def _expression(number: object) -> sympy.Basic:
    """Return a number, perhaps a symbolic one, as an expression."""
    is_symbolic = isinstance(number, torch.SymInt | torch.SymFloat | torch.SymBool)
    return number.node.expr if is_symbolic else sympy.sympify(number)


def _arguments(node: torch.fx.Node, is_dynamic: bool) -> tuple:
    """Return a call's arguments; those of attention by position, however PyTorch passes them."""
    if node.target is not aten.scaled_dot_product_attention.default:
        return node.args, node.kwargs
    given = {**dict(zip(_ATTENTION_ARGS, node.args, strict=False)), **node.kwargs}
    causal = str(given.get("is_causal", False))
    queries, keys = (0, 0) if is_dynamic else (node.args[n].meta["val"].shape[-2] for n in (0, 1))
    options = (str(given.get(name) or None) for name in ("dropout_p", "scale", "enable_gqa"))
    tensors = [given.get(name, "None") for name in _ATTENTION_ARGS[:4]]
    return *tensors, *options, _ANY if queries == keys == 1 else causal


def _described(name: str, held: object) -> str:
    """Return text that is equal for equal constants."""
    if not isinstance(held, torch.Tensor):
        return f"{name} {held}"
    content = held.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return f"{name} {held.dtype} {tuple(held.shape)} {hashlib.sha256(content).hexdigest()}"
