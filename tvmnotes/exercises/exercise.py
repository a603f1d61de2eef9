"""What an exercise is, and what its check uses to tell which property an answer lacks."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np


class Wrong(Exception):
    """A property that an answer should have and lacks, as a sentence."""


class Exercise(NamedTuple):
    """An exercise of a lesson; its task and its starter cell are in the lesson."""

    number: str  # "06.1": the first exercise of lesson 06
    title: str
    minutes: int
    difficulty: int  # 1 to 3
    hints: tuple[str, ...]
    test: Callable[[Any], None]  # raises Wrong

    @property
    def lesson(self) -> str:
        """The number of the lesson."""
        return self.number.partition(".")[0]


EXERCISES: dict[str, Exercise] = {}


def exercise(number: str, *hints: str, minutes: int, difficulty: int) -> Callable:
    """Register a function as the check of an exercise, whose title is the function's docstring.

    The function gets the answer, and calls `require` or `agree` for each property. Each hint says more than
    the one before.
    """

    def register(test: Callable[[Any], None]) -> Callable[[Any], None]:
        title = (test.__doc__ or "").strip().rstrip(".")
        EXERCISES[number] = Exercise(number, title, minutes, difficulty, hints, test)
        return test

    return register


def require(holds: bool, what: str, expected: Any, got: Any, do: str) -> None:
    """Raise Wrong if a property does not hold.

    Args:
        holds: Whether it does.
        what: The property, such as "the number of blocks".
        expected: What it should be, without giving the answer away.
        got: What the answer has.
        do: What to do about it, as a sentence.
    """
    if not holds:
        raise Wrong(f"{what}: expected {expected}, got {got}. {do}")


def require_keys(answer: Any, keys: tuple, do: str) -> None:
    """Raise Wrong if the answer has not exactly these keys."""
    got = list(answer.keys()) if hasattr(answer, "keys") else type(answer).__name__
    require(isinstance(got, list) and set(got) == set(keys), "the keys", list(keys), got, do)


def array(value: Any) -> np.ndarray:
    """Return the result of a network, a tensor of any framework or a tuple of one, as a NumPy array."""
    if isinstance(value, tuple | list) and len(value) == 1:
        value = value[0]
    to_numpy = getattr(value, "numpy", None)
    return np.asarray(value if to_numpy is None else to_numpy())


def agree(result: Any, reference: np.ndarray, what: str, do: str, within: float = 1e-5) -> None:
    """Raise Wrong if a result has another shape than the reference, or differs by more than rounding."""
    got = array(result)
    require(got.shape == reference.shape, f"the shape of {what}", reference.shape, got.shape, do)
    difference = np.abs(got - reference).max() / np.abs(reference).max()
    require(
        difference <= within,
        what,
        f"a difference to the reference of {within:.0e} or less, relative to its largest number",
        f"{difference:.0e}",
        do,
    )
