"""Sizes as expressions of the open ones, guessed from their values at a few samples of these."""

import itertools
import math
from collections.abc import Iterable
from typing import Any

import numpy as np
from tvm import tirx

from ...core.dims import Dim, evaluate
from ...core.relax import written
from .graphs import Refused

_DIVISORS = range(2, 9)  # of a size before
_NEAR = 512  # values of an open size, at most, at which two quotients are compared
_MOST_FACTORS = 3  # of a product of sizes before


class Guesses:
    """Expressions of open sizes, by their values at some of them.

    Attributes:
        sizes: The open sizes, by name.
        samples: Their values, by name, of each sample.
        known: Expressions by their values in the samples; those found earlier help to find others.
        texts: The same, as `written` has them.
    """

    def __init__(self, sizes: dict[str, Dim], samples: list[dict[str, int]]):
        self.sizes, self.samples = sizes, samples
        self.vars = {name: tirx.Var(name, "int64") for name in sizes}
        self.known = {tuple(each[name] for each in samples): var for name, var in self.vars.items()}
        self.texts = {key: written(var) for key, var in self.known.items()}
        self.doubts = {}  # texts by values, where several have these
        self.quotients = set()  # the values of quotients that are guessed

    def undecided(self) -> dict[str, int] | None:
        """Return a sample that tells quotients apart between which those there are leave the choice."""
        return next(filter(None, map(self._difference, self.doubts.values())), None)

    def _difference(self, texts: list[str]) -> dict[str, int] | None:
        """Return open sizes at which expressions differ, of which one is not that of the first sample."""
        first = self.samples[0]
        for name, size in self.sizes.items() if texts else ():
            end = size.lower + _NEAR if size.upper is None else min(size.upper, size.lower + _NEAR)
            tried = np.arange(size.lower, end + 1)
            values = [evaluate(text, {**first, name: tried}) + 0 * tried for text in texts]
            differ = (np.stack(values) != values[0]).any(0)
            if differ.any():
                return {**first, name: int(tried[differ.argmax()])}
        return None

    def _know(self, numbers: tuple, size) -> None:
        self.known[numbers] = size
        self.texts[numbers] = written(size)

    def _size(self, sizes: Iterable):
        """Return an integer if the sizes are the same in all samples, else an expression of the open ones."""
        numbers = tuple(int(size) for size in sizes)
        if len(set(numbers)) == 1:
            return numbers[0]
        if numbers not in self.known:
            found = next((size for size in self._guesses(numbers) if size is not None), None)
            if found is None:
                where = ", ".join("x".join(map(str, sample.values())) for sample in self.samples)
                raise Refused(
                    f"a size is {', '.join(map(str, numbers))} where it is {where}, and no sum or product of "
                    "these and of the sizes before"
                )
            self._know(numbers, found)
        return self.known[numbers]

    def _guesses(self, numbers: tuple):
        """Yield expressions that have these values in the samples, or None, the simplest ones first."""
        yield self._line(numbers)
        yield self._product(numbers, list(self.vars.values()), 2 * len(self.vars))
        yield self._multiple(numbers)
        yield self._quotient(numbers)
        yield self._product(numbers, list(self.known.values()), _MOST_FACTORS)
        yield self._remainder(numbers)

    def _line(self, numbers: tuple):
        """Return the sum of multiples of open sizes that has these values in the samples, or None.

        The first sample is the usual one, the next ones differ from it in one size each, and others check.
        """
        usual, total = self.samples[0], tirx.IntImm("int64", 0)
        constant, factors = numbers[0], {}
        for name, sample, number in zip(usual, self.samples[1:], numbers[1:], strict=False):
            factors[name], rest = divmod(number - numbers[0], sample[name] - usual[name])
            constant -= factors[name] * usual[name]
            if rest:
                return None
        for sample, number in zip(self.samples, numbers, strict=True):
            if constant + sum(factor * sample[name] for name, factor in factors.items()) != number:
                return None
        for name, factor in factors.items():
            total = total + self.vars[name] * factor
        return total + constant

    def _multiple(self, numbers: tuple):
        """Return the multiple of one of the sizes before, and a constant, as `_line`."""
        for values, size in self.known.items():
            place = next(i for i, value in enumerate(values) if value != values[0])
            factor, rest = divmod(numbers[place] - numbers[0], values[place] - values[0])
            constant = numbers[0] - factor * values[0]
            if not rest and all(factor * v + constant == n for v, n in zip(values, numbers, strict=True)):
                return size * factor + constant
        return None

    def _quotient(self, numbers: tuple):
        """Return one of the sizes before, plus a constant, over a small number, rounded down, as `_line`.

        It may be multiplied again, as a size that is padded to a multiple.
        """
        found, sizes = [], self._plain()
        for divisor in _DIVISORS:
            factors = (1, divisor) if len({n % divisor for n in numbers}) == 1 else (1,)
            for (values, size), factor in itertools.product(sizes.items(), factors):
                rest = numbers[0] % factor
                least = [n // factor * divisor - value for n, value in zip(numbers, values, strict=True)]
                constants = range(max(least), min(least) + divisor)
                if factor > 1:  # most often rounded up
                    constants = reversed(constants)
                found += [(size + constant) // divisor * factor + rest for constant in constants]
        if found:
            self.quotients.add(numbers)
        return self._first(numbers, found)

    def _remainder(self, numbers: tuple):
        """Return the difference of two of the sizes before, as `_line`."""
        found = [
            size - part
            for (values, size), (parts, part) in itertools.permutations(self._plain().items(), 2)
            if all(value - other == n for value, other, n in zip(values, parts, numbers, strict=True))
        ]
        return self._first(numbers, found)

    def _plain(self) -> dict[tuple, Any]:
        """Return the sizes before that are made of sums, products and quotients alone."""
        return {key: size for key, size in self.known.items() if _is_plain(self.texts[key])}

    def _first(self, numbers: tuple, found: list):
        """Return the first of several expressions with these values in the samples, or None."""
        if len(found) > 1:
            self.doubts[numbers] = [written(each) for each in found]
        return found[0] if found else None

    def _product(self, numbers: tuple, sizes: list, most: int):
        """Return the multiple of a product of 2 to `most` of some sizes, as `_line`."""
        values = {written(size): values for values, size in self.known.items()}
        for count in range(2, most + 1):
            for several in itertools.combinations_with_replacement(sizes, count):
                products = [
                    math.prod(each) for each in zip(*(values[written(s)] for s in several), strict=True)
                ]
                factor = numbers[0] // (products[0] or 1)
                if factor and all(factor * p == n for p, n in zip(products, numbers, strict=True)):
                    return math.prod(several, start=tirx.IntImm("int64", factor))
        return None


def _is_plain(text: str | None) -> bool:
    return text is not None and "max(" not in text and "min(" not in text
