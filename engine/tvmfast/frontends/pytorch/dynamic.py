"""Dynamic dims: the values of dims at which an exported program, or its guards, say that the network differs.

A guard comes from the network's Python code, which may then call other operators, or from an operator of
PyTorch that infers a shape. The latter affects the shapes alone: where these, as expressions of the dynamic
dims, are those of another specialization, and the Python code takes the same branches, both are equivalent.
Equivalent specializations are explored for each dim by itself, others in combination.
"""

import contextlib
import functools
import hashlib
import inspect
import itertools
import logging
import operator
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import sympy
import torch
from sympy.core.function import Application
from sympy.logic.boolalg import Boolean, BooleanAtom
from torch._export.converter import TS2EPConverter
from torch.export import ExportedProgram
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.jit._recursive import create_script_module
from torch.utils import _pytree
from torch.utils._sympy.functions import Max, Min
from torch.utils._sympy.value_ranges import bound_sympy

from ...core import errors
from ...core.dims import Dim, dims_of
from ...core.specs import TensorSpec
from ..dynamic.merge import GraphMerge
from ..dynamic.probing import baseline

aten = torch.ops.aten
SCRIPTED = torch.jit.ScriptModule | torch.jit.ScriptFunction
_log = logging.getLogger(__name__)
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


# ---------------------------------------------------------------- specializations
# Programs that PyTorch exports with dynamic dims at some values, and their guards.


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
        single = {name for name, symbol in known.symbols.items() if count[symbol] == 1}
        self.free = single - known.specialized.keys()
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
    return np.array(_computed(condition, symbol, tried), bool)


def _computed(expression: sympy.Basic, symbol: sympy.Symbol, tried: Sequence[int]) -> np.ndarray | list:
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


# ---------------------------------------------------------------- suspects

_SEARCHED = 10_000  # values of a dynamic dim at which a guard is evaluated
_TRIED = 8  # values of each dim in a guard on several, beside its upper bound
_COMBINED = 1024  # of these, at most
_MOST_SPECIALIZATIONS = 16  # for the values of one dim


def find_suspects(model: Any, specs: list[TensorSpec], merged: GraphMerge) -> list[dict[str, int]]:
    """Find dims at which the network may compute something else than the merged graph of its imports.

    They are values of one or several dims at which a guard fails, of the baseline specialization or another.
    Raises NotImplementedError if Python code makes a dim static, or has too many specializations.
    """
    found, pending, done = [], [{}], []
    while pending:
        values = pending.pop()
        done.append(values)
        partial = [replace(spec, shape=tuple(_bind(dim, values) for dim in spec.shape)) for spec in specs]
        if not dims_of(spec.shape for spec in partial):
            continue
        for others, equivalent in _guard_failures(model, partial, values, None if values else merged):
            each = {**values, **others}
            if each not in found:
                found.append(each)
            if not equivalent and each not in (*pending, *done):
                pending.append(each)
    return found


def _bind(dim: int | Dim, values: dict[str, int]) -> int | Dim:
    return values.get(dim.name, dim) if isinstance(dim, Dim) else dim


def _guard_failures(
    model: Any, specs: list[TensorSpec], values: dict[str, int], merged: GraphMerge | None
) -> list[tuple[dict[str, int], bool]]:
    """Return values of dynamic dims at which a guard of the baseline specialization fails.

    Each comes with whether its specialization is equivalent: then guards on the other dims are the same.
    `values` are the network's dynamic dims that are bound in `specs`. `merged` is the merged graph, or None
    if there are such dims.
    """
    dims = dims_of(spec.shape for spec in specs)
    # PyTorch refuses guards on named dims, and assumes those on these.
    auto = {name: torch.export.Dim.AUTO(min=dim.lower, max=dim.upper) for name, dim in dims.items()}
    first = baseline(specs, dims)
    examples = zeros([spec.at(first) for spec in specs])
    if isinstance(model, ExportedProgram):
        model = as_module(model)
    elif isinstance(model, SCRIPTED):
        model = unscript(model, examples)
    kinds = [parameter.kind for parameter in inspect.signature(model.forward).parameters.values()]
    is_tuple = inspect.Parameter.VAR_POSITIONAL in kinds  # its inputs are a tuple of their own

    def program(examples):
        shapes = tuple(
            {axis: auto[dim.name] for axis, dim in enumerate(spec.shape) if isinstance(dim, Dim)}
            for spec in specs
        )
        if is_tuple and len(shapes) > kinds.index(inspect.Parameter.VAR_POSITIONAL):
            count = kinds.index(inspect.Parameter.VAR_POSITIONAL)
            shapes = (*shapes[:count], shapes[count:])
        with record_python_guards() as guards:
            return torch.export.export(model, examples, dynamic_shapes=shapes), guards

    def specialize_at(values):
        exported, guards = program(zeros([spec.at(values) for spec in specs]))
        return Specialization(exported, specs, values, guards)

    found, names = [], ", ".join(map(repr, dims))
    where = " and ".join(f"{name} is {n}" for name, n in values.items())
    refused = f"PyTorch cannot keep {names} dynamic in this network{where and f' where {where}'}"
    try:
        exported, guards = program(examples)
    except Exception as error:
        raise NotImplementedError(f"{refused}: {errors.lines(error)[0]}; give static dims there") from error
    for name, number in shape_symbols(exported, specs).specialized.items():
        raise NotImplementedError(f"{refused}: {name!r} is always {number} in it; give a static dim there")
    base = Specialization(exported, specs, first, guards)
    _require_proven(base, dims, refused)
    for name, number in dict.fromkeys(mismatches(base, base, merged, _SEARCHED)) if merged else ():
        if number > _SEARCHED:
            raise _beyond(dims[name], number)
        found.append(({name: number}, True))
    for name in dims:
        if _guards_on(base, name):
            others = _other_specializations(base, specialize_at, dims[name], merged)
            found += [({name: n}, is_equivalent) for n, is_equivalent in others]
    several = len(dims) + len(values) > 1  # else 1, which PyTorch excludes, is imported anyway
    for name in [name for name, dim in dims.items() if several and dim.lower == 1]:
        found.append(({name: 1}, _is_equivalent_at(base, specialize_at, name, 1)))
    return found + [(values, False) for values in _joint_guard_failures(exported, specs)]


def _guards_on(base: Specialization, name: str) -> list[sympy.Basic]:
    """Return the guards on one dim alone."""
    return sorted((each for each in base.guards if each.free_symbols == {_symbol(name)}), key=str)


def _require_proven(base: Specialization, dims: dict[str, Dim], refused: str) -> None:
    """Raise NotImplementedError if a guard that holds at all values that are searched may fail beyond."""
    far = {name: dim for name, dim in dims.items() if dim.upper is None or dim.upper > _SEARCHED}
    for name, dim in far.items():
        lower = max(2, dim.lower)
        tried = range(lower, _SEARCHED + 1)
        every = {_symbol(name): lower + sympy.Symbol("distance", integer=True, nonnegative=True)}
        for guard in _guards_on(base, name):
            plain = guard.replace(Max, sympy.Max).replace(Min, sympy.Min).xreplace(every)
            fails = tried and not np.all(base.evaluated(guard, name, tried))
            if fails or bound_sympy(plain).lower == sympy.true:
                continue
            bounds = ", ".join(f"Dim({n!r}, {dim.lower}, 1024)" for n, dim in far.items() if dim.lower < 1024)
            raise NotImplementedError(
                f"{refused}: {guard} may fail beyond {_SEARCHED:,}, as far as is known; give "
                f"{bounds and f'upper bounds, such as {bounds}, or '}static dims there"
            )


def _is_equivalent_at(base: Specialization, specialize_at: Callable, name: str, value: int) -> bool:
    if len(base.values) == 1:  # there are no other dims
        return True
    try:
        return is_equivalent(base, specialize_at({**base.values, name: value}), name)
    except Exception:  # raised again where the network is captured, if it fails there, too
        return False


def _other_specializations(
    base: Specialization, specialize_at: Callable, dim: Dim, merged: GraphMerge | None
) -> list[tuple[int, bool]]:
    """Return a value of a dim for each specialization other than the baseline.

    The guards of a specialization say at which values it is valid; the network is exported again at the least
    value that none covers, until there is none. A value at which it cannot be exported stands for itself.
    Each comes with whether its specialization is equivalent to the baseline. `merged` is None if dims that
    are dynamic in it are not in the specializations.
    """
    tried = range(max(2, dim.lower), min(dim.upper or _SEARCHED, _SEARCHED) + 1)
    left = ~base.holds(dim.name, tried)
    specializations, equivalent, found, suspects, failure = [base], [base], [], [], ""
    while left.any():
        if len(found) == _MOST_SPECIALIZATIONS:
            raise NotImplementedError(
                f"PyTorch cannot keep {dim.name!r} dynamic in this network: its Python code has more than "
                f"{_MOST_SPECIALIZATIONS} specializations{failure}; give bounds, Dim({dim.name!r}, lower, "
                "upper), within which it has fewer, or static dims"
            )
        value = tried[left.argmax()]
        left[left.argmax()] = False
        try:
            specialization = specialize_at({**base.values, dim.name: value})
        except Exception as error:  # raised again where the network is captured, if it fails there, too
            found.append((value, False))
            failure = f", and cannot be exported where {dim.name!r} is {value}: {errors.one_line(error)}"
            continue
        specializations.append(specialization)
        found.append((value, is_equivalent(base, specialization, dim.name)))
        _log.debug("another specialization at %s = %s, equivalent: %s", dim.name, *found[-1])
        left &= ~specialization.holds(dim.name, tried)
        if found[-1][1]:
            equivalent.append(specialization)
            left &= ~covered(equivalent, dim.name, tried)
            several = dict(mismatches(base, specialization, merged, _SEARCHED)) if merged else {}
            suspects += [(n, True) for name, n in several.items() if name == dim.name and n <= _SEARCHED]
    _require_known_beyond(specializations, equivalent, dim)
    return found + suspects


def _require_known_beyond(
    specializations: list[Specialization], equivalent: list[Specialization], dim: Dim
) -> None:
    """Raise NotImplementedError if there may be another specialization beyond the searched values."""
    guards = itertools.chain(*(each.guards for each in specializations))
    tried = tuple(sorted(n for n in separating_values(guards, dim) if n > _SEARCHED))
    if not tried:
        return
    left = np.ones(len(tried), bool)
    if len(equivalent) > 1:
        left = ~covered(equivalent, dim.name, tried)
    for each in specializations:
        left &= ~each.holds(dim.name, tried)
    if left.any():
        raise _beyond(dim, tried[left.argmax()])


def _beyond(dim: Dim, value: int) -> NotImplementedError:
    return NotImplementedError(
        f"PyTorch cannot keep {dim.name!r} dynamic in this network: its Python code may have another "
        f"specialization where it is {value}, and {_SEARCHED:,} values are searched; give an upper bound, "
        f"Dim({dim.name!r}, {dim.lower}, {_SEARCHED}), or static dims"
    )


def _joint_guard_failures(program: ExportedProgram, specs: list[TensorSpec]) -> list[dict[str, int]]:
    """Return values of several dynamic dims at which a joint guard fails."""
    symbols, _, _, guards = shape_symbols(program, specs)
    known = dims_of(spec.shape for spec in specs)
    dims = {symbol: known[name] for name, symbol in symbols.items()}
    joint = [each for each in guards if len(each.free_symbols) > 1]
    several = [part for each in joint for part in sympy.And.make_args(each)]
    own = ({symbol: dims.get(symbol) for symbol in each.free_symbols} for each in several)
    found = [values for values in map(_joint_guard_failure, several, own) if values]
    return [values for number, values in enumerate(found) if values not in found[:number]]


def _joint_guard_failure(guard: sympy.Basic, dims: dict[sympy.Symbol, Dim | None]) -> dict[str, int] | None:
    """Return values of a few dims at which a guard fails; None if none are found."""
    if None in dims.values():
        return None
    *others, last = sorted(dims, key=str)
    is_relation = isinstance(guard, sympy.core.relational.Relational)
    numbers = () if is_relation else map(int, guard.atoms(sympy.Integer))
    near = {n + step for n in numbers for step in (-1, 0, 1)}
    axes = {}
    for symbol, dim in dims.items():
        low = max(2, dim.lower)
        tried = dict.fromkeys((low, dim.upper or low, *range(low, low + _TRIED), *sorted(near)))
        axes[symbol] = [n for n in tried if n >= low and dim.takes(n)]
    for several in itertools.islice(itertools.product(*(axes[each] for each in others)), _COMBINED):
        values = dict(zip(others, map(sympy.Integer, several), strict=True))
        roots = ()
        if is_relation:  # perhaps a linear one
            low = max(2, dims[last].lower)
            difference = (guard.lhs - guard.rhs).xreplace(values)
            here, there = (difference.xreplace({last: sympy.Integer(low + n)}) for n in (0, 1))
            root = low - (here // (there - here) if there != here else 0)
            roots = (n for n in (root, root - 1, root + 1) if n >= low and dims[last].takes(n))
        for value in (*roots, *axes[last]):
            values[last] = sympy.Integer(value)
            if guard.xreplace(values) == sympy.false:
                return {dims[symbol].name: int(n) for symbol, n in values.items()}
    return None


def zeros(specs: list[TensorSpec]) -> tuple[torch.Tensor, ...]:
    """Return an example of inputs with static dims."""
    return tuple(torch.zeros(spec.shape, dtype=getattr(torch, spec.dtype)) for spec in specs)


OF_PROGRAM = "tvmfast_program."  # the prefix of weights' names in what `as_module` makes of a program


def as_module(program: ExportedProgram) -> torch.nn.Module:
    """Return a program as a module that takes its inputs by position, also those that it has by name."""
    module, spec = program.module(), program.call_spec.in_spec
    args, kwargs = _pytree.tree_unflatten(range(spec.num_leaves), spec)
    if not kwargs and args == tuple(range(spec.num_leaves)):
        return module

    class Flat(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.add_module(OF_PROGRAM.removesuffix("."), module)

        def forward(self, *inputs):
            args, kwargs = _pytree.tree_unflatten(inputs, spec)
            return module(*args, **kwargs)

    return Flat()


def unscript(model: torch.jit.ScriptModule | torch.jit.ScriptFunction, examples: tuple) -> torch.nn.Module:
    """Convert a traced or scripted module to one that torch.export accepts.

    The converter is internal to torch, and its programs have dynamic shapes, hence the second export in
    `_capture`.
    """
    function = isinstance(model, torch.jit.ScriptFunction)
    arguments = model.schema.arguments if function else model.forward.schema.arguments[1:]
    if len(arguments) > len(examples):  # the others have a default, which the converter does not know
        if not function and not hasattr(model, "_concrete_type"):
            names = ", ".join(argument.name for argument in arguments[len(examples) :])
            raise ValueError(f"a frozen or loaded module needs all inputs, also {names}")
        holder, name = torch.nn.Module(), OF_PROGRAM.removesuffix(".")
        setattr(holder, name, model)
        given = ", ".join(argument.name for argument in arguments[: len(examples)])
        model = create_script_module(holder, lambda _: [], share_types=False).eval()
        model.define(f"def forward(self, {given}):\n    return self.{name}({given})\n")
    return _Converter(model, examples).convert().module()


_OF_NUMBERS = {
    **dict.fromkeys((aten.add.Tensor, aten.add.Scalar), operator.add),
    **dict.fromkeys((aten.sub.Tensor, aten.sub.Scalar), operator.sub),
    **dict.fromkeys((aten.rsub.Tensor, aten.rsub.Scalar), lambda a, b: b - a),
    **dict.fromkeys((aten.mul.Tensor, aten.mul.Scalar), operator.mul),
    **dict.fromkeys((aten.floor_divide.default, aten.floor_divide.Scalar), operator.floordiv),
    **dict.fromkeys((aten.remainder.Tensor, aten.remainder.Scalar), operator.mod),
    aten.neg.default: operator.neg,
}
_READ = (aten._local_scalar_dense.default, aten.ScalarImplicit.default, aten.IntImplicit.default)


class _Converter(TS2EPConverter):
    """The converter; numbers that a trace computes of sizes stay numbers, which can be sizes and bounds.

    torch.jit.trace makes a tensor of each size, computes with tensors, and reads the number in the result.
    """

    def retrace_as_exported_program(self, gm: torch.fx.GraphModule, name_to_constant: dict) -> Any:
        """Replace numbers that are read from such tensors, before they are exported."""
        numbers: dict[torch.fx.Node, Any] = {}  # of tensors of rank 0
        for node in list(gm.graph.nodes):
            given = [numbers.get(arg) if isinstance(arg, torch.fx.Node) else arg for arg in node.args]
            if node.op == "get_attr":
                held = name_to_constant.get(node.target)
                if isinstance(held, torch.Tensor) and held.dtype == torch.int64 and held.ndim == 0:
                    numbers[node] = held.item()
            elif node.target is aten.scalar_tensor:
                numbers[node] = node.args[0]
            elif node.target is aten._to_copy.default:  # before the number is read
                numbers[node] = given[0]
            elif node.target in _READ and isinstance(given[0], torch.fx.Node):
                node.replace_all_uses_with(given[0])
            elif node.target in _OF_NUMBERS and all(type(n) in (int, torch.fx.Node) for n in given):
                if any(n != 1 for n in (*given[2:], *node.kwargs.values())):  # alpha
                    continue
                with gm.graph.inserting_after(node):
                    numbers[node] = gm.graph.call_function(_OF_NUMBERS[node.target], tuple(given[:2]))
        return super().retrace_as_exported_program(gm, name_to_constant)


# ---------------------------------------------------------------- graph signatures
# The calls of a program as a list, to compare with those for other dims.

_UNCHANGED = (aten.contiguous.default, aten.clone.default, aten.alias.default, aten.detach.default)
_RESHAPES = (aten.view.default, aten._unsafe_view.default, aten.reshape.default)
_ATTENTION_ARGS = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
_NUMBERS = (int, float, bool, torch.SymInt, torch.SymFloat, torch.SymBool)
_CHECKS = (aten._assert_scalar.default, aten.sym_constrain_range.default)
_CHECKS += (aten.sym_constrain_range_for_size.default,)
_ANY = "any"  # for an argument that has no effect


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
                    is_number = leaf not in numbers
                    listed.append(_expression(leaf.meta["val"]) if is_number else f"node {numbers[leaf]}")
                else:
                    listed.append(leaf if type(leaf) is int else None if leaf is _ANY else str(leaf))
            if is_dynamic:
                shapes = (getattr(each, "shape", ()) for each in _pytree.tree_leaves(value))
                listed += [_expression(n) for shape in shapes for n in shape]
            elif node.op == "output":
                shapes = (getattr(each.meta.get("val"), "shape", ()) for each in node.all_input_nodes)
                listed += [n for shape in shapes for n in shape if type(n) is int]
    return listed


def _expression(number: object) -> sympy.Basic:
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
