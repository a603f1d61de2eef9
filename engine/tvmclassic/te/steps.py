"""What a TE schedule records: steps of a stage, from the axes `of` to `parts`, and those that make stages."""

from typing import NamedTuple

from tvm.tirx import IterVar


class Split(NamedTuple):
    """An axis became an outer and an inner one, `parts`, of which that at `sized` has `size` steps."""

    of: tuple
    parts: tuple
    sized: int
    size: int


class Fuse(NamedTuple):
    """Two axes, neighbours, became one."""

    of: tuple
    parts: tuple


class Reorder(NamedTuple):
    """The places of these axes were given to them in this order."""

    of: tuple
    parts: tuple = ()


class CacheRead(NamedTuple):
    """`readers` read `source` by way of `stage`."""

    source: object
    stage: object
    readers: list


class CacheWrite(NamedTuple):
    """`stage` computes what `result` was, and `result` copies it."""

    result: object
    stage: object


class RFactor(NamedTuple):
    """`stage` has the sums of each step of `axis`, which `result` adds up.

    `steps` made the loops of `result` before, from `roots`. Of these, `reduced` were of the reduction, in
    this order; `others` are all of them but `axis`, in the order of the reduction axes of `stage`.
    """

    result: object
    stage: object
    axis: IterVar
    factor_axis: int
    steps: list
    roots: list
    reduced: list
    others: list
