"""Channel repacking: concatenation and slices of channels in NCHW[x]c, where a block mixes several tensors.

Channels move in granules: `width` of them, which divides x and every border, are neighbours before and after.
The loop over a row of pixels is inside of that over granules, so that no pixel tests where a granule lies.
"""

import itertools
import math
from dataclasses import dataclass

from tvm import te
from tvm.s_tir import Schedule, ScheduleError

from ....core.annotations import attribute
from ....core.relax import ceildiv, of_one_type, unwrap_ints
from ..epilogue import block_names, parallel
from ..rule import ScheduleRule

_NAME = "regroup"  # the rule's name in records


def concat(tensors: list, channels: list[int]):
    """Concatenate tensors (N, blocks, H, W, x), each of so many channels, along the channels."""
    begins = [0, *itertools.accumulate(channels)]

    def pick(element, granule, each):
        value = element(len(tensors) - 1, granule - begins[-2] // each)
        for n in reversed(range(len(tensors) - 1)):
            inside = granule < begins[n + 1] // each
            value = te.if_then_else(inside, element(n, granule - begins[n] // each), value)
        return value

    return _repacked(tensors, begins, pick)


def part(tensor, begin: int, channels: int):
    """Slice `channels` channels of a tensor (N, blocks, H, W, x), from `begin` on."""
    return _repacked([tensor], [0, begin, channels], lambda element, k, each: element(0, k + begin // each))


def _repacked(tensors, borders, pick):
    """Compute a tensor of `borders[-1]` channels, of which `pick` finds each granule."""
    n, _, h, w, lanes = unwrap_ints(tensors[0].shape)
    channels = borders[-1]
    each = math.gcd(lanes, *borders)
    per_block = lanes // each

    def element(b, k, y, x, c):
        granule = k * per_block + c // each

        def of(number, source):
            return tensors[number][b, source // per_block, y, x, source % per_block * each + c % each]

        value = pick(of, granule, each)
        return value if channels % lanes == 0 else te.if_then_else(granule < channels // each, value, 0.0)

    attrs = attribute({"family": _NAME, "width": each})
    shape = of_one_type(ceildiv(channels, lanes), h, w, lanes)
    return te.compute((n, *shape), element, name=_NAME, attrs=attrs)


class RepackChannels(ScheduleRule):
    """Channel repacking, a row of pixels of a granule at a time."""

    name = _NAME

    @dataclass(frozen=True)
    class Config:
        """The granule.

        Attributes:
            width: Its channels.
        """

        width: int

    def schedule(self, sch: Schedule, config: Config) -> None:
        names = block_names(sch)
        loops = sch.get_loops(names[-1])
        if len(loops) != 5:
            raise ScheduleError("what follows is not blocked")
        for name in names[:-1]:
            sch.compute_inline(name)
        n, k, y, x, c = loops
        granule, c = sch.split(c, [None, config.width])
        sch.reorder(n, y, k, granule, x, c)
        parallel(sch, [n, y, k])
        sch.vectorize(c)
