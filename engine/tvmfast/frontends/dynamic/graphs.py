"""What the union of imported graphs and its parts share."""

from collections.abc import Iterable


class Refused(Exception):
    """The imported graphs differ in more than sizes."""


def together(several: Iterable) -> list[tuple]:
    """Return the first elements of all, then the second ones; refuse lists of several lengths."""
    lists = [list(each) for each in several]
    if len({len(each) for each in lists}) > 1:
        raise Refused("the graph depends on it")
    return list(zip(*lists, strict=True))
