"""Dims at which PyTorch's guards fail; examples of inputs, and modules from TorchScript, for the exporter."""

import functools
import inspect
import itertools
import logging
import operator
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import sympy
import torch
from torch._export.converter import TS2EPConverter
from torch.export import ExportedProgram

from ...core import errors
from ...core.dims import Dim, dims_of, evaluate
from ...core.specs import TensorSpec
from ..dynamic.merge import GraphMerge
from ..dynamic.probing import baseline
from .specializations import (
    Specialization,
    covered,
    is_equivalent,
    mismatches,
    record_python_guards,
    separating_values,
    shape_symbols,
)

SCRIPTED = torch.jit.ScriptModule | torch.jit.ScriptFunction
_log = logging.getLogger(__name__)
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
    named = {name: torch.export.Dim(name, min=dim.lower, max=dim.upper) for name, dim in dims.items()}
    # Of dims without names PyTorch assumes what it would report.
    unnamed = {name: torch.export.Dim.AUTO(min=dim.lower, max=dim.upper) for name, dim in dims.items()}
    first = baseline(specs, dims)
    examples = zeros([spec.at(first) for spec in specs])
    if isinstance(model, ExportedProgram):
        model = model.module()
    elif isinstance(model, SCRIPTED):
        model = unscript(model, examples)
    kinds = [parameter.kind for parameter in inspect.signature(model.forward).parameters.values()]
    is_tuple = inspect.Parameter.VAR_POSITIONAL in kinds  # its inputs are a tuple of their own

    def program(export_dims, examples):
        shapes = tuple(
            {axis: export_dims[dim.name] for axis, dim in enumerate(spec.shape) if isinstance(dim, Dim)}
            for spec in specs
        )
        if is_tuple:
            count = kinds.index(inspect.Parameter.VAR_POSITIONAL)
            shapes = (*shapes[:count], shapes[count:])
        with record_python_guards() as guards:
            return torch.export.export(model, examples, dynamic_shapes=shapes), guards

    def specialize_at(values):
        exported, guards = program(unnamed, zeros([spec.at(values) for spec in specs]))
        return Specialization(exported, specs, values, guards)

    found, reported = [], []
    try:
        exported, guards = program(named, examples)
    except Exception as error:
        lines = errors.lines(error)
        failed = [line for line in lines if line.lstrip(" -").startswith("Not all values of")]
        reported = [_guard_failure_in(line, dims) for line in failed]
        if not reported or None in reported:
            fixes = [line for line in lines if "specialized" in line or "must be" in line]
            reason = [*failed, *fixes, *lines][0].strip(" -")
            where = " and ".join(f"{name} is {n}" for name, n in values.items())
            unbounded = [f"Dim({name!r}, {n.lower}, 1024)" for name, n in dims.items() if n.upper is None]
            way_out = f"upper bounds, such as {', '.join(unbounded)}, or " if failed and unbounded else ""
            raise NotImplementedError(
                f"PyTorch cannot keep {', '.join(map(repr, dims))} dynamic in this network"
                f"{where and f' where {where}'}: {reason}; give {way_out}static dims there"
            ) from error
        exported, guards = program(unnamed, examples)
    base = Specialization(exported, specs, first, guards)
    for name, number in dict.fromkeys(mismatches(base, base, merged, _SEARCHED)) if merged else ():
        if number > _SEARCHED:
            raise _beyond(dims[name], number)
        found.append(({name: number}, True))
    for name in dict.fromkeys(itertools.chain(*reported)):
        own = [each[name] for each in reported if name in each]
        others = _other_specializations(base, specialize_at, dims[name], merged)
        equivalent = all(each for _, each in others)
        alone = base.holds(name, tuple(own)) if equivalent else [True] * len(own)  # not among `others`
        found += [({name: n}, False) for n, is_alone in zip(own, alone, strict=True) if is_alone]
        found += [({name: n}, each) for n, each in others]
    several = len(dims) + len(values) > 1  # else 1, which PyTorch excludes, is imported anyway
    for name in [name for name, dim in dims.items() if several and dim.lower == 1]:
        found.append(({name: 1}, _is_equivalent_at(base, specialize_at, name, 1)))
    return found + [(values, False) for values in _joint_guard_failures(exported, specs)]


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
    left = (
        ~covered(equivalent, dim.name, tried)
        if len(equivalent) > 1
        else ~specializations[0].holds(dim.name, tried)
    )
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
    """Return values of several dynamic dims at which a joint guard fails.

    PyTorch's exporter reports guards on one dim alone, and assumes the others.
    """
    symbols, specialized, _, guards = shape_symbols(program, specs)
    if specialized:
        name, number = next(iter(specialized.items()))
        raise NotImplementedError(
            f"PyTorch cannot keep {name!r} dynamic in this network, where it is {number}; give a static dim "
            "there"
        )
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


_GUARD = re.compile(
    r".*?Not all values of (\w+) = (\S+) in the specified range.* satisfy the generated guard (.*?)\."
    r"(?:Specializations unexpectedly required.*)?"
)
_RELATIONS = {
    "==": sympy.Eq,
    "!=": sympy.Ne,
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}


def _guard_failure_in(line: str, dims: dict[str, Dim]) -> dict[str, int] | None:
    """Return a dim, by name, with the least value at which the guard in PyTorch's message fails.

    If it holds at all values, one of these. None if the message is another one, or there are too many.
    """
    found = _GUARD.fullmatch(line)
    sides = re.split(r"(==|!=|<=|>=|<|>)", found[3].replace(found[2], found[1])) if found else []
    if len(sides) != 3 or found[1] not in dims:
        return None
    name, dim = found[1], dims[found[1]]
    holds = functools.partial(_holds, *sides, name)
    tried = range(max(2, dim.lower), min(dim.upper or _SEARCHED, _SEARCHED) + 1)
    try:
        failing = next((value for value in tried if not holds(value)), None)
    except (ValueError, KeyError):
        return None
    if failing is not None:
        return {name: failing}
    if dim.upper is not None and dim.upper <= _SEARCHED:
        return {name: dim.lower}
    try:
        always = holds(sympy.Symbol(name, integer=True, positive=True))
        return {name: dim.lower} if always else None
    except TypeError:  # it depends on the value, as far as SymPy knows
        return None


def _holds(left: str, relation: str, right: str, name: str, value: int | sympy.Symbol) -> bool:
    sides = (evaluate(side.strip(), {name: value}) for side in (left, right))
    return bool(_RELATIONS[relation](*sides))


def zeros(specs: list[TensorSpec]) -> tuple[torch.Tensor, ...]:
    """Return an example of inputs with static dims."""
    return tuple(torch.zeros(spec.shape, dtype=getattr(torch, spec.dtype)) for spec in specs)


def unscript(model: torch.jit.ScriptModule | torch.jit.ScriptFunction, examples: tuple) -> torch.nn.Module:
    """Convert a traced or scripted module to one that torch.export accepts.

    The converter is internal to torch, and its programs have dynamic shapes, hence the second export in
    `_capture`.
    """
    return TS2EPConverter(model, examples).convert().module()
