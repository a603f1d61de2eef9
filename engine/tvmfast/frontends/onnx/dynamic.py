"""Open sizes that an ONNX file compares or rounds, which a few imports at other sizes do not show."""

import itertools
import math
import re
from collections.abc import Iterator
from fractions import Fraction

import numpy as np
import onnx

from ...core.dims import evaluate
from ...core.specs import TensorSpec
from ..dynamic.graphs import Refused
from ..dynamic.merge import Union

_FEW = 8  # numbers that are of sizes, and not of positions
_POINTS = 1 << 16  # values of the open sizes, about, at which comparisons are evaluated
_MOST = 32  # of these that are imported
_PAST = 1 << 62  # what stands for any number beyond it
_LARGEST = 1 << 31  # value of an open size that is tried
_SCALED = 1 << 40  # the most that a fraction is multiplied to
_UNSURE = 8  # values of an open size, at most, at which rounded numbers may be equal
_COMPARISONS = ("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Min", "Max", "Clip")
_WITH_0 = ("Abs", "Sign", "Relu")
_DIVISIONS = ("Div", "Mod")
_ROUNDINGS = ("Floor", "Ceil", "Round", "Cast")
_EXTREMES = ("ReduceMax", "ReduceMin", "ArgMax", "ArgMin", "TopK")


def operands(node: onnx.NodeProto, inputs: list[np.ndarray | None]) -> dict[str, tuple]:
    """Return the pairs of numbers that a folded node compares, by its operator, output and their place.

    If the node rounds, these are what it rounds and the distance of the results, and the place is "rounded".
    """
    if not inputs or inputs[0] is None or inputs[0].dtype.kind not in "iuf":
        return {}
    x, given = inputs[0], [each for each in inputs if each is not None]
    makes_bool = node.op_type == "Cast" and _makes_bool(node)
    pairs, places = [], itertools.count()
    if node.op_type in _COMPARISONS:
        pairs = itertools.combinations(given, 2)
    elif node.op_type in _WITH_0 or makes_bool:
        pairs = [(x, np.zeros_like(x))]
    elif node.op_type in _EXTREMES and x.size <= _FEW:
        pairs = [(x.reshape(-1, 1), x.reshape(-1))]
    elif node.op_type in _DIVISIONS and (node.op_type, x.dtype.kind) != ("Div", "f"):
        pairs, places = [given], ["rounded"]
    elif node.op_type in _ROUNDINGS:
        x = x + x.dtype.type(0.5) if node.op_type == "Round" else x
        pairs, places = [(x, np.ones_like(x))], ["rounded"]
    return {f"{node.op_type} {node.output[0]} {n}": pair for n, pair in zip(places, pairs, strict=False)}


def _makes_bool(cast: onnx.NodeProto) -> bool:
    return any(each.name == "to" and each.i == onnx.TensorProto.BOOL for each in cast.attribute)


def compared(
    specs: list[TensorSpec], made: Union, several: dict[tuple, dict[str, tuple]]
) -> list[dict[str, int]]:
    """Return open sizes with numbers at which the result of a comparison is, or may be, another one.

    Args:
        specs: The inputs, with open sizes.
        made: The union of the imports.
        several: By the inputs of fixed sizes of an import: the operands of its comparisons of constants, as
            `operands` lists them.

    Raises:
        NotImplementedError: Operands depend on the sizes in an unknown way, or there are too many results.
            Rounded numbers are known if they depend on one size alone, and linearly.
    """
    samples = [several[tuple(spec.at(sample) for spec in specs)] for sample in made.samples]
    found, differences = [], []
    near = {name: [] for name in made.sizes}
    for result in samples[0]:
        pairs = [np.broadcast_arrays(*each[result]) for each in samples if result in each]
        errors = [np.finfo(side.dtype).eps for side in pairs[0] if side.dtype.kind == "f"]
        is_rounded = result.endswith(" rounded")
        if len(pairs) < len(samples) or len({a.shape for a, _ in pairs}) > 1:
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
            texts, unsure = _texts(made, a, b), None
            if texts is None and (errors or is_rounded):
                unsure = _unsure(made, a, b, max(errors, default=0))
            if texts is not None:
                is_equality = result.startswith(("Equal", "Cast")) and not is_rounded
                differences.append((is_equality, *texts))
                for name, number in _roots(made, difference):
                    near[name].append(number)
            elif unsure is not None:
                found += unsure
            else:
                operator, _, output = result.rpartition(" ")[0].partition(" ")
                raise NotImplementedError(
                    f"this network cannot leave {', '.join(map(repr, made.sizes))} open: the operands of "
                    f"{operator} {output!r} are no sums or products of these and of the sizes before; give "
                    "whole numbers there"
                )
    return [*found, *_others(made, list(dict.fromkeys(differences)), near)]


def _text(made: Union, numbers: tuple) -> int | str | None:
    numbers = tuple(max(-_PAST, min(int(n), _PAST)) for n in numbers)
    try:
        text = made.text(numbers)
    except Refused:
        return None
    return None if numbers in made.quotients else text  # whose equal operands are hard to find


def _texts(made: Union, a: tuple, b: tuple) -> tuple | None:
    """Return operands, times a power of 2 that makes them whole, as sizes are written; None if unknown."""
    scale = max(Fraction(n).denominator for n in a + b)
    a, b = ([int(Fraction(n) * scale) for n in side] for side in (a, b))
    if scale > 1 and max(map(abs, a + b)) > _SCALED:
        return None
    texts = _text(made, a), _text(made, b)
    return None if None in texts else texts


def _ends(a: tuple, b: tuple) -> Iterator[tuple]:
    """Yield operands that are equal where a quotient, rounded the same in all samples, is another one."""
    parts = [divmod(abs(x), abs(y)) for x, y in zip(a, b, strict=True)] if all(b) else []
    wholes = {whole for whole, _ in parts}
    if len(wholes) == 1 and any(rest for _, rest in parts):
        (whole,) = wholes
        for factor in (whole, whole + 1, -whole, -whole - 1):
            yield a, tuple(factor * y for y in b)


def _unsure(made: Union, a: tuple, b: tuple, error: float) -> list[dict[str, int]] | None:
    """Return the values of the one open size around which rounded operands may be equal.

    None if they depend on several sizes, or are too far from linear ones. `error` is the relative error of
    their dtype.
    """
    difference = [x - y for x, y in zip(a, b, strict=True)]
    names = {name for name, _ in _steps(made, difference)}
    if len(names) != 1:
        return None
    name = names.pop()
    size, start = made.sizes[name], made.samples[0][name]
    distances = [sample[name] - start for sample in made.samples]
    farthest = max(range(len(distances)), key=lambda place: abs(distances[place]))
    slope = (difference[farthest] - difference[0]) / distances[farthest]
    if not slope:
        return None
    rest = max(
        abs(each - difference[0] - slope * distance)
        for each, distance in zip(difference, distances, strict=True)
    )
    is_whole = any(len(set(side)) > 1 and all(float(n).is_integer() for n in side) for side in (a, b))
    largest = size.upper or _LARGEST
    root = start - difference[0] / slope
    # Beyond the samples, errors of the slope grow with the distance.
    reach = abs(min(max(root, size.lower), largest) - start)
    rest = max(2 * rest, is_whole) * max(1, reach / abs(distances[farthest]))
    width = (rest + error * max(map(abs, a + b))) / abs(slope)
    first, last = max(root - width, size.lower), min(root + width, largest)
    if first > last:
        return []
    values = range(math.floor(first), min(math.floor(last) + 1, largest) + 1)
    return [{name: n} for n in values] if len(values) <= _UNSURE else None


def _steps(made: Union, difference: list) -> list[tuple[str, int]]:
    """Return the open sizes that alone change a difference, each with the number of such a sample."""
    first, found = made.samples[0], []
    for place, sample in enumerate(made.samples):
        changed = [name for name, value in sample.items() if value != first[name]]
        if len(changed) == 1 and difference[place] != difference[0]:
            found.append((changed[0], place))
    return found


def _roots(made: Union, difference: list) -> list[tuple[str, int]]:
    """Return open sizes with the numbers around which operands are equal, if they are linear."""
    first, found = made.samples[0], set()
    for name, place in _steps(made, difference):
        distance = made.samples[place][name] - first[name]
        number = int(first[name] - difference[0] * distance // (difference[place] - difference[0]))
        several = (n for n in (number, number + 1) if made.sizes[name].takes(n) and n <= _LARGEST)
        found |= {(name, n) for n in several}
    return sorted(found)


def _others(
    made: Union, differences: list[tuple[bool, str, str]], near: dict[str, list[int]]
) -> list[dict[str, int]]:
    """Return values of the open sizes where comparisons have other results than in the samples.

    Args:
        made: The union of the imports.
        differences: By comparison: whether it asks for equality alone, and both operands.
        near: Numbers to try, by open size.
    """
    if not differences:
        return []
    axes, first_sample = [], made.samples[0]
    for name, size in made.sizes.items():
        near[name] += {n for _, *sides in differences for n in _crossings(made, name, *sides)}
        first = first_sample[name], *near[name], size.upper or size.lower
        several = *first, *range(size.lower, size.lower + _POINTS)
        axes.append([n for n in dict.fromkeys(several) if size.takes(n)])
    while math.prod(map(len, axes)) > 2 * _POINTS:
        longest = max(axes, key=len)
        del longest[-1 - len(longest) // 64 :]
    grids = (grid.reshape(-1) for grid in np.meshgrid(*axes, indexing="ij"))
    values = {
        name: np.append([sample[name] for sample in made.samples], grid)
        for name, grid in zip(made.sizes, grids, strict=True)
    }
    results = []
    for is_equality, a, b in differences:
        difference = _evaluated(a, values) - _evaluated(b, values)
        result = difference == 0 if is_equality else np.sign(difference)
        if (result != result[0]).any():
            results.append(result.astype("int8"))
    if not results:
        return []
    places = np.sort(np.unique(np.stack(results), axis=1, return_index=True)[1]).tolist()
    places = [place for place in places if place >= len(made.samples)]
    if len(places) > _MOST:
        raise NotImplementedError(
            f"this network cannot leave {', '.join(map(repr, made.sizes))} open: it compares sizes, with "
            f"{len(places)} different results; give whole numbers there"
        )
    return [{name: int(several[place]) for name, several in values.items()} for place in places]


def _crossings(made: Union, name: str, a: int | str, b: int | str) -> set[int]:
    """Return values of an open size, beyond those that are all tried, around which operands are equal.

    The other sizes are the usual ones, or the least. Operands are taken to cross once between powers of 2.
    """
    size, found = made.sizes[name], set()
    largest = min(size.upper or _LARGEST, _LARGEST)
    tried = [*(n for n in (1 << bit for bit in range(32)) if size.lower < n < largest), largest]

    for others in (made.samples[0], {other: each.lower for other, each in made.sizes.items()}):

        def order(n, others=others):
            values = {**others, name: n}
            difference = evaluate(a, values) - evaluate(b, values)
            return (difference > 0) - (difference < 0)

        for (low, high), least in itertools.product(itertools.pairwise([size.lower, *tried]), (0, 1)):
            before = order(low) >= least
            if (order(high) >= least) == before:
                continue
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (middle, high) if (order(middle) >= least) == before else (low, middle)
            found |= {low, high}
    return {n for n in found if size.takes(n)}


def _evaluated(text: int | str, values: dict[str, np.ndarray]) -> np.ndarray | int:
    magnitude = re.sub("//|%", "*", str(text)).replace("-", "")
    if evaluate(magnitude, {name: int(several.max()) for name, several in values.items()}) > _PAST:
        values = {name: several.astype(object) for name, several in values.items()}
    try:
        return evaluate(text, values)
    except ValueError:  # max and min take single numbers
        points = zip(*values.values(), strict=True)
        return np.array([evaluate(text, dict(zip(values, point, strict=True))) for point in points])
