"""Courses that a network's Python code takes at open sizes, and the conditions that PyTorch notes on each.

A condition is asked for by Python code outside of operators, which may then call others, or by an operator of
PyTorch while it works out a shape. The latter is told by its result alone: where the shapes that the network
has are those of another course, as expressions of the open sizes, and its Python code takes the same
branches, the course is `plain`. One that is plain has to be looked at once, and not together with others.
"""

import contextlib
import functools
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

from ...core.dims import Dim
from ...core.specs import TensorSpec
from ..dynamic.merge import Union
from .graph_signature import steps

_NUMPY = {  # PyTorch's functions in conditions
    **dict.fromkeys(("Mod", "PythonMod"), np.mod),
    **dict.fromkeys(("FloorDiv", "CleanDiv"), np.floor_divide),
    **{"Max": np.maximum, "Min": np.minimum},
}
_NOT_LINEAR = (Application, Boolean, sympy.Piecewise)
_NEAR = 32  # the least values of a size that are tried, for all remainders
_MOST = 1 << 31  # the largest one
_WIDE = 1 << 15  # numbers up to which a product of four fits into 64 bits
_TORCH = str(Path(torch.__file__).parent)
_MACHINERY = tuple(
    f"{_TORCH}/{name}"
    for name in ("__init__.py", "fx/experimental/symbolic_shapes.py", "fx/experimental/sym_node.py")
)
_OF_NODES = f"{_TORCH}/fx/experimental/sym_node.py"  # what operators in C++ call first
_OPERATORS = tuple(
    f"{_TORCH}/{name}"
    for name in (
        *(
            "_decomp/",
            "_refs/",
            "_prims/",
            "_prims_common/",
            "_meta_registrations.py",
            "_library/",
            "_ops.py",
        ),
        *("_subclasses/", "_functorch/", "_dispatch/", "fx/", "utils/", "_export/"),
    )
)


class Noted(NamedTuple):
    """What PyTorch notes of open sizes while it exports a program.

    Attributes:
        symbols: A symbol for each size, by name.
        fixed: What stands for a size, by name, where it is none.
        same: By symbol, the one in `symbols`: where several inputs have a size, each may have its own.
        conditions: Those that hold, of the symbols in `symbols`.
    """

    symbols: dict[str, sympy.Symbol]
    fixed: dict[str, Any]
    same: dict[sympy.Symbol, sympy.Symbol]
    conditions: list[sympy.Basic]


def noted(program: ExportedProgram, specs: list[TensorSpec]) -> Noted:
    """Return what PyTorch has noted of the open sizes of `specs`, the inputs of a program."""
    nodes = {node.name: node for node in program.graph.find_nodes(op="placeholder")}
    symbols, fixed, same, guards = {}, {}, {}, {}
    for spec, place in zip(specs, program.graph_signature.user_inputs, strict=True):
        for size, number in zip(spec.shape, nodes[place].meta["val"].shape, strict=True):
            if not isinstance(size, Dim):
                continue
            if not isinstance(number, torch.SymInt) or not number.node.expr.is_Symbol:
                fixed[size.name] = number
                continue
            same[number.node.expr] = symbols.setdefault(size.name, number.node.expr)
            guards |= {str(guard.expr): guard.expr for guard in number.node.shape_env.guards}
    return Noted(symbols, fixed, same, [guard.xreplace(same) for guard in guards.values()])


@contextlib.contextmanager
def asked() -> Iterator[dict[sympy.Basic, None]]:
    """Collect the conditions that Python code outside of operators asks this thread's exports for."""
    found, evaluate = {}, ShapeEnv.evaluate_expr
    thread = threading.get_ident()

    def watched(self, expr, *args, **options):
        if threading.get_ident() == thread and _is_of_python(sys._getframe(1)):
            found[expr] = None
        return evaluate(self, expr, *args, **options)

    ShapeEnv.evaluate_expr = watched
    try:
        yield found
    finally:
        ShapeEnv.evaluate_expr = evaluate


def _is_of_python(frame) -> bool:
    """Return whether code outside of operators asks for a condition, given the frame that evaluates it."""
    file = last = frame.f_code.co_filename
    while file in _MACHINERY and frame.f_back is not None:
        frame, last = frame.f_back, file
        file = frame.f_code.co_filename
    return last != _OF_NODES and not file.startswith(_OPERATORS)


class Course:
    """A program that was exported with open sizes at some values, as its steps and conditions.

    Attributes:
        values: The sizes, by name.
        free: The names of those that no condition fixes.
        conditions: What holds wherever the code takes this course, of symbols with the names of sizes.
        asked: The conditions among them that Python code asks for, before they hold or not.
    """

    def __init__(
        self, program: ExportedProgram, specs: list[TensorSpec], values: dict[str, int], found: dict
    ):
        known, self.values = noted(program, specs), values
        count = Counter(known.symbols.values())
        self.free = {name for name, n in known.symbols.items() if count[n] == 1 and name not in known.fixed}
        own = {symbol: _symbol(name) for name, symbol in known.symbols.items()}
        names = {symbol: own[first] for symbol, first in known.same.items()}
        self.conditions = {condition.xreplace(own) for condition in known.conditions}
        self.asked = {condition.xreplace(names) for condition in found}
        self.steps = [
            step.xreplace(names) if isinstance(step, sympy.Basic) else step for step in steps(program, True)
        ]

    def holds(self, name: str, tried: Sequence[int]) -> np.ndarray:
        """Return at which values of a size all its conditions hold."""
        if name not in self.free:
            return np.array(tried) == self.values[name]
        result = np.ones(len(tried), bool)
        for condition in self.conditions:
            result &= self.evaluated(condition, name, tried)
        return result

    def evaluated(self, condition: sympy.Basic, name: str, tried: Sequence[int]) -> np.ndarray | bool:
        """Return at which values of a size a condition holds; True if it depends on none, or on others."""
        condition = self._alone(condition, name)
        if condition.free_symbols != {_symbol(name)}:
            return True
        return _evaluated(condition, _symbol(name), tried)

    def computed(self, expression: sympy.Basic, name: str, tried: Sequence[int]) -> list:
        """Return what an expression is at values of a size."""
        expression = self._alone(expression, name)
        if not expression.free_symbols:
            return [_number(expression, {})] * len(tried)
        return list(_computed(expression, _symbol(name), tried))

    def _alone(self, expression: sympy.Basic, name: str) -> sympy.Basic:
        """Return an expression with the values of all sizes but one."""
        return expression.xreplace(
            {_symbol(each): sympy.Integer(n) for each, n in self.values.items() if each != name}
        )


def _symbol(name: str) -> sympy.Symbol:
    return sympy.Symbol(name, integer=True, positive=True)


def is_plain(usual: Course, other: Course, name: str) -> bool:
    """Return whether another value of a size changes nothing but conditions in PyTorch's operators."""
    at = [{_symbol(each): sympy.Integer(n) for each, n in course.values.items()} for course in (usual, other)]
    if usual.free - other.free - {each for each, n in other.values.items() if n == 1}:
        return False
    own = _symbol(name)
    if any(own in each.free_symbols and len(each.free_symbols) > 1 for each in usual.asked):
        return False
    if any(each.xreplace(at[0]) != each.xreplace(at[1]) for each in usual.asked):
        return False
    if any(each.free_symbols - {own} and each not in usual.conditions for each in other.conditions):
        return False
    if len(usual.steps) != len(other.steps):
        return False
    pairs = {pair for pair in zip(usual.steps, other.steps, strict=True) if pair[0] != pair[1]}
    return all(_at(a, at[1]) == _at(b, at[1]) for a, b in pairs)


def _at(step: Any, values: dict) -> Any:
    return step.xreplace(values) if isinstance(step, sympy.Basic) else step


def covered(plain: list[Course], name: str, tried: Sequence[int]) -> np.ndarray:
    """Return at which values of a size each condition has a result that it has in one of several courses.

    Args:
        plain: The usual course, and those that are plain beside it.
        name: The size.
        tried: Its values.
    """
    usual = plain[0]
    result = np.ones(len(tried), bool)
    for condition in usual.asked:
        here = usual.evaluated(condition, name, (usual.values[name],))
        result &= usual.evaluated(condition, name, tried) == here
    seen = set().union(*(course.conditions for course in plain))
    for condition in seen:
        if sympy.Not(condition) not in seen:
            result &= usual.evaluated(condition, name, tried)
    return result


def telling(expressions: Iterable[sympy.Basic], size: Dim) -> set[int]:
    """Return values of a size that tell expressions apart: powers of 2, and what is next to their numbers."""
    numbers = {int(n) for each in expressions for n in each.atoms(sympy.Integer)}
    tried = {n + step for n in numbers for step in (-1, 0, 1)} | {1 << bit for bit in range(31)}
    return {n for n in tried | {size.upper or _MOST} if size.takes(n)}


def unlike(usual: Course, course: Course, made: Union, most: int) -> Iterator[tuple[str, int]]:
    """Yield open sizes with values at which a course computes other numbers from them than a union.

    The imports of a union do not show that a number such as `length // 1000` is not always 0.

    Args:
        usual: The usual course.
        course: It, or one that is plain beside it.
        made: The union.
        most: The largest value, unless the union was imported in this course alone.
    """
    samples = [{_symbol(name): sympy.Integer(n) for name, n in sample.items()} for sample in made.samples]
    if all(each.xreplace(sample) == sympy.true for each in course.conditions for sample in samples):
        most = _MOST
    for first, step in dict.fromkeys(zip(usual.steps, course.steps, strict=True)):
        if first == step and not (isinstance(step, sympy.Basic) and step.has(*_NOT_LINEAR)):
            continue
        names = {symbol.name for symbol in step.free_symbols} if isinstance(step, sympy.Basic) else set()
        if not names or not names <= course.free:
            continue
        numbers = tuple(_number(sympy.sympify(first), sample) for sample in samples)
        for name in sorted(names):
            size = made.sizes[name]
            near = {n for n in range(size.lower, size.lower + _NEAR) if size.takes(n)}
            tried = tuple(n for n in sorted(telling([step], size) | near) if 1 < n <= most)
            if not tried:
                continue
            results, holds = usual.computed(step, name, tried), course.holds(name, tried)
            for n, result in itertools.compress(zip(tried, results, strict=True), holds):
                if not made.allows(numbers, {**usual.values, name: n}, result):
                    yield name, n
                    break


@functools.lru_cache(maxsize=1024)
def _evaluated(condition: sympy.Basic, symbol: sympy.Symbol, tried: Sequence[int]) -> np.ndarray:
    """Return at which values of a symbol a condition holds."""
    return np.array(_computed(condition, symbol, tried), bool)


def _computed(expression: sympy.Basic, symbol: sympy.Symbol, tried: Sequence[int]) -> np.ndarray | list:
    """Return what an expression is at values of a symbol."""
    values = np.array(tried, object if max(tried) > _WIDE else int)
    try:
        results = sympy.lambdify([symbol], expression, [_NUMPY, "numpy"])(values)
        return np.broadcast_to(results, len(tried))
    except (NameError, TypeError, ValueError, ZeroDivisionError):  # PyTorch's own functions: one by one
        return [_number(expression, {symbol: sympy.Integer(n)}) for n in tried]


def _number(expression: sympy.Basic, values: dict) -> bool | int | float | None:
    """Return the number that an expression is at values of its symbols; None if there is none."""
    try:
        value = expression.xreplace(values)
    except ZeroDivisionError:
        return None
    if isinstance(value, BooleanAtom):
        return bool(value)
    if value.is_Integer:
        return int(value)
    return float(value) if value.is_number else None
