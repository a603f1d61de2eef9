"""Open sizes as PyTorch's exporter sees them, and what its captures take: examples, modules of scripts."""

import functools
import inspect
import itertools
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
from ...core.dims import Dim, evaluate, merged
from ...core.specs import TensorSpec
from ..dynamic.merge import Union
from ..dynamic.probing import usual
from .specializations import Course, asked, covered, is_plain, noted, telling, unlike

SCRIPTED = torch.jit.ScriptModule | torch.jit.ScriptFunction
_SEARCHED = 10_000  # values of an open size at which a condition is evaluated
_TRIED = 8  # values of each open size in a condition on several, beside its upper bound
_COMBINED = 1024  # of these, at most
_PROGRAMS = 16  # that the values of one size may have


def check_open(model: Any, specs: list[TensorSpec], made: Union) -> list[dict[str, int]]:
    """Raise NotImplementedError if PyTorch finds that the network's Python code fixes an open size.

    Args:
        model: The network.
        specs: Its inputs.
        made: The union of its imports at a few sizes.

    Returns:
        Values of one or several open sizes for which the code, or PyTorch's own, may compute in another way
        than for the usual ones. Conditions on the other sizes that are tested at these values alone count.
    """
    found, pending, done = [], [{}], []
    while pending:
        values = pending.pop()
        done.append(values)
        fixed = [replace(spec, shape=tuple(_fixed(size, values) for size in spec.shape)) for spec in specs]
        if not merged(spec.shape for spec in fixed):
            continue
        for others, plain in _exceptions(model, fixed, values, None if values else made):
            each = {**values, **others}
            if each not in found:
                found.append(each)
            if not plain and each not in (*pending, *done):
                pending.append(each)
    return found


def _fixed(size: int | Dim, values: dict[str, int]) -> int | Dim:
    return values.get(size.name, size) if isinstance(size, Dim) else size


def _exceptions(
    model: Any, specs: list[TensorSpec], values: dict[str, int], made: Union | None
) -> list[tuple[dict[str, int], bool]]:
    """Return values of open sizes for which a condition has another result than for the usual ones.

    Each comes with whether it is `plain`: then conditions on the other sizes are the usual ones there.
    `values` are those of the sizes that are open in the network, but not in `specs`. `made` is the union of
    imports, or None if there are such sizes.
    """
    sizes = merged(spec.shape for spec in specs)
    dims = {name: torch.export.Dim(name, min=size.lower, max=size.upper) for name, size in sizes.items()}
    # Without names, PyTorch takes what it would report for true.
    unnamed = {name: torch.export.Dim.AUTO(min=size.lower, max=size.upper) for name, size in sizes.items()}
    first = usual(specs, sizes)
    examples = zeros([spec.at(first) for spec in specs])
    if isinstance(model, ExportedProgram):
        model = model.module()
    elif isinstance(model, SCRIPTED):
        model = unscript(model, examples)
    kinds = [parameter.kind for parameter in inspect.signature(model.forward).parameters.values()]
    is_tuple = inspect.Parameter.VAR_POSITIONAL in kinds  # its inputs are a tuple of their own

    def program(dims, examples):
        shapes = tuple(
            {axis: dims[size.name] for axis, size in enumerate(spec.shape) if isinstance(size, Dim)}
            for spec in specs
        )
        if is_tuple:
            named = kinds.index(inspect.Parameter.VAR_POSITIONAL)
            shapes = (*shapes[:named], shapes[named:])
        with asked() as conditions:
            return torch.export.export(model, examples, dynamic_shapes=shapes), conditions

    def course_at(values):
        exported, conditions = program(unnamed, zeros([spec.at(values) for spec in specs]))
        return Course(exported, specs, values, conditions)

    found, reported = [], []
    try:
        exported, conditions = program(dims, examples)
    except Exception as error:
        lines = errors.lines(error)
        failed = [line for line in lines if line.lstrip(" -").startswith("Not all values of")]
        reported = [_exception_in(line, sizes) for line in failed]
        if not reported or None in reported:
            fixes = [line for line in lines if "specialized" in line or "must be" in line]
            reason = [*failed, *fixes, *lines][0].strip(" -")
            where = " and ".join(f"{name} is {n}" for name, n in values.items())
            unbounded = [f"Dim({name!r}, {n.lower}, 1024)" for name, n in sizes.items() if n.upper is None]
            way_out = f"upper bounds, such as {', '.join(unbounded)}, or " if failed and unbounded else ""
            raise NotImplementedError(
                f"PyTorch cannot leave {', '.join(map(repr, sizes))} open in this network"
                f"{where and f' where {where}'}: {reason}; give {way_out}whole numbers there"
            ) from error
        exported, conditions = program(unnamed, examples)
    base = Course(exported, specs, first, conditions)
    for name, number in dict.fromkeys(unlike(base, base, made, _SEARCHED)) if made else ():
        if number > _SEARCHED:
            raise _beyond(sizes[name], number)
        found.append(({name: number}, True))
    for name in dict.fromkeys(itertools.chain(*reported)):
        own = [each[name] for each in reported if name in each]
        others = _others(base, course_at, sizes[name], made)
        plain = all(each for _, each in others)
        alone = base.holds(name, tuple(own)) if plain else [True] * len(own)  # not among `others`
        found += [({name: n}, False) for n, is_alone in zip(own, alone, strict=True) if is_alone]
        found += [({name: n}, each) for n, each in others]
    several = len(sizes) + len(values) > 1  # else 1, which PyTorch leaves out, is imported anyway
    for name in [name for name, size in sizes.items() if several and size.lower == 1]:
        found.append(({name: 1}, _is_plain_at(base, course_at, name, 1)))
    return found + [(values, False) for values in _relations(exported, specs)]


def _is_plain_at(base: Course, course_at: Callable, name: str, value: int) -> bool:
    if len(base.values) == 1:  # there are no other sizes
        return True
    try:
        return is_plain(base, course_at({**base.values, name: value}), name)
    except Exception:  # raised again where the network is captured, if it fails there, too
        return False


def _others(base: Course, course_at: Callable, size: Dim, made: Union | None) -> list[tuple[int, bool]]:
    """Return values of a size for which the network's code may take another course, one for each course.

    The conditions that PyTorch notes while it exports at one value tell at which others the same happens; it
    is exported again at the least value that is left, until none is. A value at which it cannot be exported
    stands for itself alone.

    Args:
        base: The usual course.
        course_at: Exports the network at other values of its sizes.
        size: One of them.
        made: The union of imports, whose sizes are compared with those of plain courses. None if there are
            sizes that are open in it and not in the courses.

    Returns:
        The values, each with whether its course is plain.
    """
    tried = range(max(2, size.lower), min(size.upper or _SEARCHED, _SEARCHED) + 1)
    left = ~base.holds(size.name, tried)
    courses, plain, found, doubtful, failure = [base], [base], [], [], ""
    while left.any():
        if len(found) == _PROGRAMS:
            raise NotImplementedError(
                f"PyTorch cannot leave {size.name!r} open in this network: its Python code takes more than "
                f"{_PROGRAMS} courses, as it is tested{failure}; give bounds, Dim({size.name!r}, lower, "
                "upper), within which it takes fewer, or whole numbers"
            )
        value = tried[left.argmax()]
        left[left.argmax()] = False
        try:
            course = course_at({**base.values, size.name: value})
        except Exception as error:  # raised again where the network is captured, if it fails there, too
            found.append((value, False))
            failure = f", and cannot be exported where {size.name!r} is {value}: {errors.one_line(error)}"
            continue
        courses.append(course)
        found.append((value, is_plain(base, course, size.name)))
        left &= ~course.holds(size.name, tried)
        if found[-1][1]:
            plain.append(course)
            left &= ~covered(plain, size.name, tried)
            several = dict(unlike(base, course, made, _SEARCHED)) if made else {}
            doubtful += [(n, True) for name, n in several.items() if name == size.name and n <= _SEARCHED]
    _require_known_beyond(courses, plain, size)
    return found + doubtful


def _require_known_beyond(courses: list[Course], plain: list[Course], size: Dim) -> None:
    """Raise NotImplementedError if the code may take another course at values that are not all searched."""
    conditions = itertools.chain(*(each.conditions for each in courses))
    tried = tuple(sorted(n for n in telling(conditions, size) if n > _SEARCHED))
    if not tried:
        return
    left = ~covered(plain, size.name, tried) if len(plain) > 1 else ~courses[0].holds(size.name, tried)
    for course in courses:
        left &= ~course.holds(size.name, tried)
    if left.any():
        raise _beyond(size, tried[left.argmax()])


def _beyond(size: Dim, value: int) -> NotImplementedError:
    return NotImplementedError(
        f"PyTorch cannot leave {size.name!r} open in this network: its Python code may take another course "
        f"where it is {value}, and {_SEARCHED:,} values are searched; give an upper bound, "
        f"Dim({size.name!r}, {size.lower}, {_SEARCHED}), or whole numbers"
    )


def _relations(program: ExportedProgram, specs: list[TensorSpec]) -> list[dict[str, int]]:
    """Return values of several open sizes for which a condition does not hold that PyTorch takes for true.

    Its exporter reports conditions on one size alone.
    """
    symbols, fixed, _, conditions = noted(program, specs)
    if fixed:
        name, number = next(iter(fixed.items()))
        raise NotImplementedError(
            f"PyTorch cannot leave {name!r} open in this network, where it is {number}; give a whole number "
            "there"
        )
    known = merged(spec.shape for spec in specs)
    sizes = {symbol: known[name] for name, symbol in symbols.items()}
    related = [each for each in conditions if len(each.free_symbols) > 1]
    several = [part for each in related for part in sympy.And.make_args(each)]
    own = ({symbol: sizes.get(symbol) for symbol in each.free_symbols} for each in several)
    found = [values for values in map(_unrelated, several, own) if values]
    return [values for number, values in enumerate(found) if values not in found[:number]]


def _unrelated(condition: sympy.Basic, sizes: dict[sympy.Symbol, Dim | None]) -> dict[str, int] | None:
    """Return a few open sizes for which a condition does not hold; None if none are found."""
    if None in sizes.values():
        return None
    *others, last = sorted(sizes, key=str)
    is_relation = isinstance(condition, sympy.core.relational.Relational)
    numbers = () if is_relation else map(int, condition.atoms(sympy.Integer))
    near = {n + step for n in numbers for step in (-1, 0, 1)}
    axes = {}
    for symbol, size in sizes.items():
        low = max(2, size.lower)
        tried = dict.fromkeys((low, size.upper or low, *range(low, low + _TRIED), *sorted(near)))
        axes[symbol] = [n for n in tried if n >= low and size.takes(n)]
    for several in itertools.islice(itertools.product(*(axes[each] for each in others)), _COMBINED):
        values = dict(zip(others, map(sympy.Integer, several), strict=True))
        roots = ()
        if is_relation:  # perhaps a linear one
            low = max(2, sizes[last].lower)
            difference = (condition.lhs - condition.rhs).xreplace(values)
            here, there = (difference.xreplace({last: sympy.Integer(low + n)}) for n in (0, 1))
            root = low - (here // (there - here) if there != here else 0)
            roots = (n for n in (root, root - 1, root + 1) if n >= low and sizes[last].takes(n))
        for value in (*roots, *axes[last]):
            values[last] = sympy.Integer(value)
            if condition.xreplace(values) == sympy.false:
                return {sizes[symbol].name: int(n) for symbol, n in values.items()}
    return None


_CONDITION = re.compile(
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


def _exception_in(line: str, sizes: dict[str, Dim]) -> dict[str, int] | None:
    """Return an open size with the least value for which a condition in PyTorch's message does not hold.

    If it holds for all values, one of these. None if the message is another one, or there are too many.
    """
    found = _CONDITION.fullmatch(line)
    sides = re.split(r"(==|!=|<=|>=|<|>)", found[3].replace(found[2], found[1])) if found else []
    if len(sides) != 3 or found[1] not in sizes:
        return None
    name, size = found[1], sizes[found[1]]
    holds = functools.partial(_holds, *sides, name)
    tried = range(max(2, size.lower), min(size.upper or _SEARCHED, _SEARCHED) + 1)
    try:
        failing = next((value for value in tried if not holds(value)), None)
    except (ValueError, KeyError):
        return None
    if failing is not None:
        return {name: failing}
    if size.upper is not None and size.upper <= _SEARCHED:
        return {name: size.lower}
    try:
        always = holds(sympy.Symbol(name, integer=True, positive=True))
        return {name: size.lower} if always else None
    except TypeError:  # it depends on the value, as far as SymPy knows
        return None


def _holds(left: str, relation: str, right: str, name: str, value: int | sympy.Symbol) -> bool:
    """Evaluate a condition on a size."""
    sides = (evaluate(side.strip(), {name: value}) for side in (left, right))
    return bool(_RELATIONS[relation](*sides))


def zeros(specs: list[TensorSpec]) -> tuple[torch.Tensor, ...]:
    """Return an example of inputs of fixed sizes."""
    return tuple(torch.zeros(spec.shape, dtype=getattr(torch, spec.dtype)) for spec in specs)


def unscript(model: torch.jit.ScriptModule | torch.jit.ScriptFunction, examples: tuple) -> torch.nn.Module:
    """Convert a traced or scripted module to one that torch.export takes.

    The converter is internal to torch, and its programs have open shapes, hence the second export in
    `_capture`.
    """
    return TS2EPConverter(model, examples).convert().module()
