"""Dim inference: expressions of the dynamic dims that have given values at all probes."""

import itertools
import logging
import math
import re
from collections.abc import Iterable
from typing import Any

import numpy as np
from tvm import tirx

from ...core.dims import Dim, evaluate
from ...core.relax import dim_to_str

_log = logging.getLogger(__name__)
_DIVISORS = range(2, 9)  # of a known dim
_EXTREME = re.compile(r"(max|min)\(")
_NEAR = 512  # values of a dynamic dim, at most, at which two floor divisions are compared
_MOST_FACTORS = 3  # of a product of known dims


class UnsupportedDynamism(Exception):
    """The imported graphs differ in more than dims, or a dim has no known expression."""


class DimInference:
    """Infers dims of a graph as expressions of its dynamic dims, from their values at the probes.

    Attributes:
        dims: The dynamic dims, by name.
        probes: Their values, by name, in each import.
        known: Expressions by their values at the probes; those found earlier help to find others.
        texts: The same as text.
        ambiguous: By values at the probes, the texts of several candidates that have them.
        floor_divs: The values of inferred floor divisions.
    """

    def __init__(self, dims: dict[str, Dim], probes: list[dict[str, int]]):
        self.dims, self.probes = dims, probes
        self.vars = {name: tirx.Var(name, "int64") for name in dims}
        self.known = {tuple(each[name] for each in probes): var for name, var in self.vars.items()}
        self.texts = {key: dim_to_str(var) for key, var in self.known.items()}
        self.ambiguous = {}
        self.floor_divs = set()

    def separating_probe(self) -> dict[str, int] | None:
        """Return dims that separate floor-division candidates which the current probes cannot."""
        return next(filter(None, map(self._separate, self.ambiguous.values())), None)

    def _separate(self, texts: list[str]) -> dict[str, int] | None:
        """Return dims at which candidates differ: those of the baseline probe, with another value of one."""
        first = self.probes[0]
        for name, dim in self.dims.items() if texts else ():
            end = dim.lower + _NEAR if dim.upper is None else min(dim.upper, dim.lower + _NEAR)
            tried = np.arange(dim.lower, end + 1)
            values = [evaluate(text, {**first, name: tried}) + 0 * tried for text in texts]
            differ = (np.stack(values) != values[0]).any(0)
            if differ.any():
                return {**first, name: int(tried[differ.argmax()])}
        return None

    def _record(self, numbers: tuple, dim) -> None:
        self.known[numbers] = dim
        self.texts[numbers] = dim_to_str(dim)

    def _dim(self, dims: Iterable):
        """Return an integer if a dim is the same at all probes, else an expression of the dynamic dims."""
        numbers = tuple(int(dim) for dim in dims)
        if len(set(numbers)) == 1:
            return numbers[0]
        if numbers not in self.known:
            found = next((dim for dim in self._candidates(numbers) if dim is not None), None)
            if found is None:
                where = ", ".join("x".join(map(str, probe.values())) for probe in self.probes)
                raise UnsupportedDynamism(
                    f"a dim is {', '.join(map(str, numbers))} where it is {where}, and no sum or product of "
                    "these and of known dims"
                )
            _log.debug("a dim that is %s at the probes is %s", numbers, found)
            self._record(numbers, found)
        return self.known[numbers]

    def _candidates(self, numbers: tuple):
        """Yield expressions that have these values at the probes, or None, the simplest ones first."""
        yield self._linear(numbers)
        yield self._product(numbers, list(self.vars.values()), 2 * len(self.vars))
        yield self._affine(numbers)
        yield self._floor_div(numbers)
        yield self._product(numbers, list(self.known.values()), _MOST_FACTORS)
        yield self._subtraction(numbers)

    def _linear(self, numbers: tuple):
        """Return the linear combination of dynamic dims that has these values at the probes, or None.

        The first probe is the baseline, the next ones differ from it in one dim each, and others check.
        """
        baseline, total = self.probes[0], tirx.IntImm("int64", 0)
        constant, factors = numbers[0], {}
        for name, probe, number in zip(baseline, self.probes[1:], numbers[1:], strict=False):
            factors[name], rest = divmod(number - numbers[0], probe[name] - baseline[name])
            constant -= factors[name] * baseline[name]
            if rest:
                return None
        for probe, number in zip(self.probes, numbers, strict=True):
            if constant + sum(factor * probe[name] for name, factor in factors.items()) != number:
                return None
        for name, factor in factors.items():
            total = total + self.vars[name] * factor
        return total + constant

    def _affine(self, numbers: tuple):
        """Return a multiple of a known dim, plus a constant, that has these values, or None."""
        for values, dim in self.known.items():
            other = next(i for i, value in enumerate(values) if value != values[0])
            factor, rest = divmod(numbers[other] - numbers[0], values[other] - values[0])
            constant = numbers[0] - factor * values[0]
            if not rest and all(factor * v + constant == n for v, n in zip(values, numbers, strict=True)):
                return dim * factor + constant
        return None

    def _floor_div(self, numbers: tuple):
        """Return the floor division of a known dim plus a constant by a small number, or None.

        It may be multiplied again, as a dim that is padded to a multiple.
        """
        found, dims = [], self._without_extremes()
        for divisor in _DIVISORS:
            factors = (1, divisor) if len({n % divisor for n in numbers}) == 1 else (1,)
            for (values, dim), factor in itertools.product(dims.items(), factors):
                rest = numbers[0] % factor
                least = [n // factor * divisor - value for n, value in zip(numbers, values, strict=True)]
                constants = range(max(least), min(least) + divisor)
                if factor > 1:  # most often rounded up
                    constants = reversed(constants)
                found += [(dim + constant) // divisor * factor + rest for constant in constants]
        if found:
            self.floor_divs.add(numbers)
        return self._first(numbers, found)

    def _subtraction(self, numbers: tuple):
        """Return the difference of two known dims that has these values, or None."""
        found = [
            dim - part
            for (values, dim), (parts, part) in itertools.permutations(self._without_extremes().items(), 2)
            if all(value - other == n for value, other, n in zip(values, parts, numbers, strict=True))
        ]
        return self._first(numbers, found)

    def _without_extremes(self) -> dict[tuple, Any]:
        texts = {key: text for key, text in self.texts.items() if text is not None}
        return {key: self.known[key] for key, text in texts.items() if not _EXTREME.search(str(text))}

    def _first(self, numbers: tuple, found: list):
        """Return the first of the candidates, or None, and note the others as ambiguous."""
        if len(found) > 1:
            self.ambiguous[numbers] = [dim_to_str(each) for each in found]
        return found[0] if found else None

    def _product(self, numbers: tuple, dims: list, most: int):
        """Return the multiple of a product of 2 to `most` of some dims that has these values, or None."""
        values = {dim_to_str(dim): values for values, dim in self.known.items()}
        for count in range(2, most + 1):
            for several in itertools.combinations_with_replacement(dims, count):
                products = [
                    math.prod(each) for each in zip(*(values[dim_to_str(s)] for s in several), strict=True)
                ]
                factor = numbers[0] // (products[0] or 1)
                if factor and all(factor * p == n for p, n in zip(products, numbers, strict=True)):
                    return math.prod(several, start=tirx.IntImm("int64", factor))
        return None
