"""Find comparisons and roundings of dynamic dims in an ONNX graph that probing misses."""

import itertools
import logging
import math
import re
from collections.abc import Iterator
from fractions import Fraction

import numpy as np
import onnx

from ...core.dims import evaluate
from ...core.specs import TensorSpec
from ..dynamic.merge import GraphMerge, UnsupportedDynamism

_log = logging.getLogger(__name__)
_FEW = 8  # elements, at most, of a tensor that holds dims, not indices
_POINTS = 1 << 16  # values of the dynamic dims, about, at which comparisons are evaluated
_MOST = 32  # of these that become probes
_PAST = 1 << 62  # larger numbers are clamped to it
_LARGEST = 1 << 31  # the largest value of a dynamic dim that is tried
_SCALED = 1 << 40  # the largest operand after scaling fractions to integers
_UNSURE = 8  # values of a dynamic dim, at most, at which rounded operands may be equal
_COMPARISONS = ("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Min", "Max", "Clip")
_WITH_0 = ("Abs", "Sign", "Relu")
_DIVISIONS = ("Div", "Mod")
_ROUNDINGS = ("Floor", "Ceil", "Round", "Cast")
_EXTREMES = ("ReduceMax", "ReduceMin", "ArgMax", "ArgMin", "TopK")


def operands(node: onnx.NodeProto, inputs: list[np.ndarray | None]) -> dict[str, tuple]:
    """Return the pairs of operands that a folded node compares, by operator, output and the pair's number.

    For a node that rounds, the pair is the operand and the rounding interval, and "rounded" the number.
    """
    if not inputs or inputs[0] is None or inputs[0].dtype.kind not in "iuf":
        return {}
    x, given = inputs[0], [each for each in inputs if each is not None]
    targets = [each.i for each in node.attribute if node.op_type == "Cast" and each.name == "to"]
    makes_bool = targets == [onnx.TensorProto.BOOL]
    pairs, numbers = [], itertools.count()
    if node.op_type in _COMPARISONS:
        pairs = itertools.combinations(given, 2)
    elif node.op_type in _WITH_0 or makes_bool:
        pairs = [(x, np.zeros_like(x))]
    elif node.op_type in _EXTREMES and x.size <= _FEW:
        pairs = [(x.reshape(-1, 1), x.reshape(-1))]
    elif node.op_type in _DIVISIONS and (node.op_type, x.dtype.kind) != ("Div", "f"):
        pairs, numbers = [given], ["rounded"]
    elif node.op_type in _ROUNDINGS:
        x = x + x.dtype.type(0.5) if node.op_type == "Round" else x
        pairs, numbers = [(x, np.ones_like(x))], ["rounded"]
    return {f"{node.op_type} {node.output[0]} {n}": pair for n, pair in zip(numbers, pairs, strict=False)}


def compared(specs: list[TensorSpec], merged: GraphMerge, folded: dict[tuple, dict]) -> list[dict[str, int]]:
    """Return values of the dynamic dims at which a comparison has, or may have, a result unlike the probes'.

    `folded` has the operands of the folded comparisons, as `operands` lists them, by an import's static
    inputs. Raises NotImplementedError if operands depend on the dims in an unknown way, or for too many
    results. A rounded operand is known if it is linear in one dim.
    """
    at_probes = [folded[tuple(spec.at(probe) for spec in specs)] for probe in merged.probes]
    found, differences = [], []
    near = {name: [] for name in merged.dims}
    for result in at_probes[0]:
        pairs = [np.broadcast_arrays(*each[result]) for each in at_probes if result in each]
        errors = [np.finfo(side.dtype).eps for side in pairs[0] if side.dtype.kind == "f"]
        is_rounded = result.endswith(" rounded")
        if len(pairs) < len(at_probes) or len({a.shape for a, _ in pairs}) > 1:
            continue
        if (errors or is_rounded) and pairs[0][0].size > _FEW:
            continue
        sides = ([pair[k].reshape(-1).tolist() for pair in pairs] for k in (0, 1))
        a_side, b_side = (list(zip(*side, strict=True)) for side in sides)
        both = zip(a_side, b_side, strict=True)
        if is_rounded:
            both = itertools.chain.from_iterable(itertools.starmap(_ends, both))
        for a, b in dict.fromkeys(both):
            difference = [x - y for x, y in zip(a, b, strict=True)]
            if not all(map(math.isfinite, difference)) or len(set(difference)) == 1:
                continue
            texts, unsure = _texts(merged, a, b), None
            if texts is None and (errors or is_rounded):
                unsure = _unsure(merged, a, b, max(errors, default=0))
            if texts is not None:
                is_equality = result.startswith(("Equal", "Cast")) and not is_rounded
                differences.append((is_equality, *texts))
                for name, number in _roots(merged, difference):
                    near[name].append(number)
            elif unsure is not None:
                found += unsure
            else:
                operator, _, output = result.rpartition(" ")[0].partition(" ")
                raise NotImplementedError(
                    f"this network cannot keep {', '.join(map(repr, merged.dims))} dynamic: the operands of "
                    f"{operator} {output!r} are no sums or products of these and of the dims before; give "
                    "static dims there"
                )
    return [*found, *_others(merged, list(dict.fromkeys(differences)), near)]


def _text(merged: GraphMerge, numbers: tuple) -> int | str | None:
    numbers = tuple(max(-_PAST, min(int(n), _PAST)) for n in numbers)
    try:
        text = merged.text(numbers)
    except UnsupportedDynamism:
        return None
    return None if numbers in merged.floor_divs else text  # whose equal operands are hard to find


def _texts(merged: GraphMerge, a: tuple, b: tuple) -> tuple | None:
    """Return operands as expressions of the dims, scaled to integers by a power of 2; None if unknown."""
    scale = max(Fraction(n).denominator for n in a + b)
    a, b = ([int(Fraction(n) * scale) for n in side] for side in (a, b))
    if scale > 1 and max(map(abs, a + b)) > _SCALED:
        return None
    texts = _text(merged, a), _text(merged, b)
    return None if None in texts else texts


def _ends(a: tuple, b: tuple) -> Iterator[tuple]:
    """Yield pairs that are equal where a quotient, which rounds alike in all probes, rounds to another."""
    parts = [divmod(abs(x), abs(y)) for x, y in zip(a, b, strict=True)] if all(b) else []
    wholes = {whole for whole, _ in parts}
    if len(wholes) == 1 and any(rest for _, rest in parts):
        (whole,) = wholes
        for factor in (whole, whole + 1, -whole, -whole - 1):
            yield a, tuple(factor * y for y in b)


def _unsure(merged: GraphMerge, a: tuple, b: tuple, error: float) -> list[dict[str, int]] | None:
    """Return the values of the one dynamic dim around which rounded operands may be equal.

    None if they depend on several dims, or are too far from linear in it. `error` is the relative error of
    their dtype.
    """
    difference = [x - y for x, y in zip(a, b, strict=True)]
    names = {name for name, _ in _differing(merged, difference)}
    if len(names) != 1:
        return None
    name = names.pop()
    dim, start = merged.dims[name], merged.probes[0][name]
    distances = [probe[name] - start for probe in merged.probes]
    farthest = max(range(len(distances)), key=lambda n: abs(distances[n]))
    slope = (difference[farthest] - difference[0]) / distances[farthest]
    if not slope:
        return None
    rest = max(
        abs(each - difference[0] - slope * distance)
        for each, distance in zip(difference, distances, strict=True)
    )
    is_whole = any(len(set(side)) > 1 and all(float(n).is_integer() for n in side) for side in (a, b))
    largest = dim.upper or _LARGEST
    root = start - difference[0] / slope
    # Beyond the probes, errors of the slope grow with the distance.
    reach = abs(min(max(root, dim.lower), largest) - start)
    rest = max(2 * rest, is_whole) * max(1, reach / abs(distances[farthest]))
    width = (rest + error * max(map(abs, a + b))) / abs(slope)
    first, last = max(root - width, dim.lower), min(root + width, largest)
    if first > last:
        return []
    values = range(math.floor(first), min(math.floor(last) + 1, largest) + 1)
    return [{name: n} for n in values] if len(values) <= _UNSURE else None


def _differing(merged: GraphMerge, difference: list) -> list[tuple[str, int]]:
    """Return the dims that alone change a difference, each with the number of a probe that shows it."""
    first, found = merged.probes[0], []
    for number, probe in enumerate(merged.probes):
        changed = [name for name, value in probe.items() if value != first[name]]
        if len(changed) == 1 and difference[number] != difference[0]:
            found.append((changed[0], number))
    return found


def _roots(merged: GraphMerge, difference: list) -> list[tuple[str, int]]:
    """Return dynamic dims with the values around which operands are equal, if they are linear."""
    first, found = merged.probes[0], set()
    for name, number in _differing(merged, difference):
        distance = merged.probes[number][name] - first[name]
        root = int(first[name] - difference[0] * distance // (difference[number] - difference[0]))
        values = (n for n in (root, root + 1) if merged.dims[name].takes(n) and n <= _LARGEST)
        found |= {(name, n) for n in values}
    return sorted(found)


def _others(merged: GraphMerge, differences: list[tuple], near: dict[str, list[int]]) -> list[dict[str, int]]:
    """Return values of the dynamic dims where comparisons have other results than in the probes.

    Each of `differences` says whether it asks for equality alone, and its operands. `near` are values to try.
    """
    if not differences:
        return []
    axes, baseline = [], merged.probes[0]
    for name, dim in merged.dims.items():
        near[name] += {n for _, *sides in differences for n in _crossings(merged, name, *sides)}
        first = baseline[name], *near[name], dim.upper or dim.lower
        several = *first, *range(dim.lower, dim.lower + _POINTS)
        axes.append([n for n in dict.fromkeys(several) if dim.takes(n)])
    while math.prod(map(len, axes)) > 2 * _POINTS:
        longest = max(axes, key=len)
        del longest[-1 - len(longest) // 64 :]
    grids = (grid.reshape(-1) for grid in np.meshgrid(*axes, indexing="ij"))
    values = {
        name: np.append([probe[name] for probe in merged.probes], grid)
        for name, grid in zip(merged.dims, grids, strict=True)
    }
    results = []
    for is_equality, a, b in differences:
        difference = _evaluated(a, values) - _evaluated(b, values)
        result = difference == 0 if is_equality else np.sign(difference)
        if (result != result[0]).any():
            results.append(result.astype("int8"))
    if not results:
        return []
    points = np.sort(np.unique(np.stack(results), axis=1, return_index=True)[1]).tolist()
    points = [point for point in points if point >= len(merged.probes)]
    _log.debug("%d comparisons of dims have %d other results", len(results), len(points))
    if len(points) > _MOST:
        raise NotImplementedError(
            f"this network cannot keep {', '.join(map(repr, merged.dims))} dynamic: it compares dims, with "
            f"{len(points)} different results; give static dims there"
        )
    return [{name: int(column[point]) for name, column in values.items()} for point in points]


def _crossings(merged: GraphMerge, name: str, a: int | str, b: int | str) -> set[int]:
    """Return values of a dynamic dim, beyond those that are all tried, around which operands are equal.

    The other dims have their baseline values, or the least. Operands are taken to cross once between powers
    of 2.
    """
    dim, found = merged.dims[name], set()
    largest = min(dim.upper or _LARGEST, _LARGEST)
    tried = [*(n for n in (1 << bit for bit in range(32)) if dim.lower < n < largest), largest]

    for others in (merged.probes[0], {other: each.lower for other, each in merged.dims.items()}):

        def order(n, others=others):
            values = {**others, name: n}
            difference = evaluate(a, values) - evaluate(b, values)
            return (difference > 0) - (difference < 0)

        for (low, high), least in itertools.product(itertools.pairwise([dim.lower, *tried]), (0, 1)):
            before = order(low) >= least
            if (order(high) >= least) == before:
                continue
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (middle, high) if (order(middle) >= least) == before else (low, middle)
            found |= {low, high}
    return {n for n in found if dim.takes(n)}


def _evaluated(text: int | str, values: dict[str, np.ndarray]) -> np.ndarray | int:
    magnitude = re.sub("//|%", "*", str(text)).replace("-", "")
    if evaluate(magnitude, {name: int(column.max()) for name, column in values.items()}) > _PAST:
        values = {name: column.astype(object) for name, column in values.items()}
    try:
        return evaluate(text, values)
    except ValueError:  # max and min take single numbers
        points = zip(*values.values(), strict=True)
        return np.array([evaluate(text, dict(zip(values, point, strict=True))) for point in points])
