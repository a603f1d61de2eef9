"""What a TE schedule records: the steps of one stage, and those that make a new stage."""

import dataclasses

from tvm.tirx import IterVar


@dataclasses.dataclass(frozen=True)
class Split:
    """`parent` became `outer` and `inner`; of `factor` and `nparts` one is None."""

    parent: IterVar
    outer: IterVar
    inner: IterVar
    factor: int | None
    nparts: int | None

    @property
    def of(self) -> tuple:
        """Return the axes that the step starts from."""
        return (self.parent,)


@dataclasses.dataclass(frozen=True)
class Fuse:
    """`outer` and `inner`, neighbours, became `fused`."""

    outer: IterVar
    inner: IterVar
    fused: IterVar

    @property
    def of(self) -> tuple:
        """Return the axes that the step starts from."""
        return (self.outer, self.inner)


@dataclasses.dataclass(frozen=True)
class Reorder:
    """The places of these axes were given to them in this order."""

    of: tuple


@dataclasses.dataclass(frozen=True)
class CacheRead:
    """`readers` read `source` by way of `stage`."""

    source: object
    stage: object
    readers: list


@dataclasses.dataclass(frozen=True)
class CacheWrite:
    """`stage` computes what `result` was, and `result` copies it."""

    result: object
    stage: object


@dataclasses.dataclass(frozen=True)
class RFactor:
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
