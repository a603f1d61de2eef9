"""Lockstep iteration over imported graphs, and the error if they differ."""

from collections.abc import Iterable


class UnsupportedDynamism(Exception):
    """The imported graphs differ in more than dims, or a dim has no known expression."""


def zip_equal(several: Iterable) -> list[tuple]:
    """Return the first elements of all, then the second ones; raise if the lengths differ."""
    lists = [list(each) for each in several]
    if len({len(each) for each in lists}) > 1:
        raise UnsupportedDynamism("the graph depends on it")
    return list(zip(*lists, strict=True))
