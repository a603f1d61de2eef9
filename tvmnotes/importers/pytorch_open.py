"""Open sizes as PyTorch's exporter sees them, and what its captures take: examples, modules of scripts."""

import inspect
import itertools
import operator
import re
from typing import Any

import sympy
import torch
from torch._export.converter import TS2EPConverter
from torch.export import ExportedProgram

from ..base import errors
from ..base.sizes import Size, evaluate, merged
from ..base.spec import TensorSpec
from .open_sizes import usual

SCRIPTED = torch.jit.ScriptModule | torch.jit.ScriptFunction
_SEARCHED = 10_000  # values of an open size at which a condition is evaluated
_MOST_RELATED = 3  # open sizes in a condition
_TRIED = 8  # values of each of these but one


def check_open(model: Any, specs: list[TensorSpec]) -> list[dict[str, int]]:
    """Raise NotImplementedError if PyTorch finds that the network's Python code fixes an open size.

    Returns:
        Values of one or several open sizes for which the code, or PyTorch's own, may compute in another way
        than for the usual ones.
    """
    sizes = merged(spec.shape for spec in specs)
    dims = {size: torch.export.Dim(name, min=size.lower, max=size.upper) for name, size in sizes.items()}
    shapes = tuple(
        {axis: dims[size] for axis, size in enumerate(spec.shape) if size in dims} for spec in specs
    )
    examples = zeros([spec.at(usual(specs, sizes)) for spec in specs])
    if isinstance(model, ExportedProgram):
        model = model.module()
    elif isinstance(model, SCRIPTED):
        model = unscript(model, examples)
    kinds = [parameter.kind for parameter in inspect.signature(model.forward).parameters.values()]
    if inspect.Parameter.VAR_POSITIONAL in kinds:  # its inputs are a tuple of their own
        named = kinds.index(inspect.Parameter.VAR_POSITIONAL)
        shapes = (*shapes[:named], shapes[named:])
    try:
        program = torch.export.export(model, examples, dynamic_shapes=shapes)
    except Exception as error:
        lines = errors.lines(error)
        failed = [line for line in lines if line.lstrip(" -").startswith("Not all values of")]
        found = [_exception(line, sizes) for line in failed]
        if found and None not in found:
            return found
        unbounded = ", ".join(
            f"Size({name!r}, {size.lower}, 1024)" for name, size in sizes.items() if size.upper is None
        )
        way_out = f"upper bounds, such as {unbounded}, or " if failed and unbounded else ""
        reasons = [*failed, *(line for line in lines if "specialized" in line or "must be" in line), *lines]
        raise NotImplementedError(
            f"PyTorch cannot leave {', '.join(map(repr, sizes))} open in this network: "
            f"{reasons[0].strip(' -')}; give {way_out}whole numbers there"
        ) from error
    return _relations(program, specs)


def _relations(program: ExportedProgram, specs: list[TensorSpec]) -> list[dict[str, int]]:
    """Return values of several open sizes for which a condition does not hold that PyTorch takes for true.

    Its exporter reports conditions on one size alone.
    """
    nodes = {node.name: node for node in program.graph.find_nodes(op="placeholder")}
    sizes, conditions = {}, {}  # by symbol; by text
    for spec, name in zip(specs, program.graph_signature.user_inputs, strict=True):
        for size, number in zip(spec.shape, nodes[name].meta["val"].shape, strict=True):
            if isinstance(size, Size) and isinstance(number, torch.SymInt):
                sizes[number.node.expr] = size
                conditions |= {str(guard.expr): guard.expr for guard in number.node.shape_env.guards}
    several = [each for each in conditions.values() if 1 < len(each.free_symbols) <= _MOST_RELATED]
    own = ({symbol: sizes.get(symbol) for symbol in each.free_symbols} for each in several)
    found = [values for values in map(_unrelated, several, own) if values]
    return [values for number, values in enumerate(found) if values not in found[:number]]


def _unrelated(condition: sympy.Basic, sizes: dict[sympy.Symbol, Size | None]) -> dict[str, int] | None:
    """Return small values of open sizes for which a condition does not hold; None if none are found."""
    if None in sizes.values() or not isinstance(condition, sympy.core.relational.Relational):
        return None
    *others, last = sorted(sizes, key=str)
    difference = condition.lhs - condition.rhs
    least = {symbol: max(2, size.lower) for symbol, size in sizes.items()}
    for steps in itertools.product(range(_TRIED), repeat=len(others)):
        values = {
            symbol: sympy.Integer(least[symbol] + step) for symbol, step in zip(others, steps, strict=True)
        }
        here, there = (difference.xreplace({**values, last: sympy.Integer(least[last] + n)}) for n in (0, 1))
        root = least[last] - (here // (there - here) if there != here else 0)  # if it is linear
        for value in (root, root - 1, root + 1):
            values[last] = sympy.Integer(value)
            taken = all(least[symbol] <= n and sizes[symbol].takes(n) for symbol, n in values.items())
            if taken and condition.xreplace(values) == sympy.false:
                return {sizes[symbol].name: int(n) for symbol, n in values.items()}
    return None


_CONDITION = re.compile(
    r".*?Not all values of (\w+) = (\S+) in the specified range.* satisfy the generated guard (.*)\."
)
_RELATIONS = {
    "==": operator.eq,
    "!=": operator.ne,
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}


def _exception(line: str, sizes: dict[str, Size]) -> dict[str, int] | None:
    """Return an open size with its least value for which a condition in PyTorch's message does not hold.

    If it holds for all values, one of these. None if the message is another one, or there are too many.
    """
    found = _CONDITION.fullmatch(line)
    sides = re.split(r"(==|!=|<=|>=|<|>)", found[3].replace(found[2], found[1])) if found else []
    if len(sides) != 3 or found[1] not in sizes:
        return None
    name, size = found[1], sizes[found[1]]
    for value in range(max(2, size.lower), min(size.upper or _SEARCHED, _SEARCHED) + 1):
        try:
            left, right = (evaluate(side.strip(), {name: value}) for side in (sides[0], sides[2]))
        except (ValueError, KeyError):
            return None
        if not _RELATIONS[sides[1]](left, right):
            return {name: value}
    return {name: size.lower} if size.upper is not None and size.upper <= _SEARCHED else None


def zeros(specs: list[TensorSpec]) -> tuple[torch.Tensor, ...]:
    """Return an example of inputs of fixed sizes."""
    return tuple(torch.zeros(spec.shape, dtype=getattr(torch, spec.dtype)) for spec in specs)


def unscript(model: torch.jit.ScriptModule | torch.jit.ScriptFunction, examples: tuple) -> torch.nn.Module:
    """Convert a traced or scripted module to one that torch.export takes.

    The converter is internal to torch, and its programs have open shapes, hence the second export in
    `_capture`.
    """
    return TS2EPConverter(model, examples).convert().module()
