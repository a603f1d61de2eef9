"""Convolutions and matrix products in bfloat16, two channels at a time, by `vdpbf16ps`; see pairs.py.

The rules are those of float32 on pairs: the data are rounded once, in a stage before the products, and every
two blocks of channels become one of pairs, so that layouts, tiles and loops stay as they are. A build asks
for them by its dtype; they are no part of tuning. A CPU with AMX multiplies tiles instead, where it gains.

Data and weights of Winograd's method are rounded after their transforms. With F(4x4, 3x3) the error of a
layer is up to five times that of a direct convolution in bfloat16; in the results of a ResNet-18, twice. A
NaN or an infinity reaches every output of the tiles that read it.
"""

from typing import ClassVar

import numpy as np
from tvm import te, tirx
from tvm.s_tir import Schedule

from ....core.relax import ceildiv, round_up, unwrap_ints
from ....core.simd import Simd
from .. import pairs
from ..epilogue import block_names, parallel
from ..rule import RULES, ScheduleRule
from ..workloads.conv2d import Convolution
from ..workloads.dense import Dense
from ..workloads.workload import Workload
from . import amx_conv, amx_matmul, direct_conv, matmul, pointwise, winograd

_STAGE, _TILES = "pairs", "tdpbf16ps"
_FEW = 4  # rows, for which the weights' memory counts, not the arithmetic


class _Paired:
    """What the rules share."""

    EXAMPLES: ClassVar[tuple] = ()
    stages: ClassVar[tuple] = (_STAGE,)
    serves: ClassVar[str] = ""
    applies, loops = ScheduleRule.applies, ScheduleRule.loops  # not tuned

    def multiply(self, element, weight):
        return pairs.dot(element, weight)

    def finish(self, func: tirx.PrimFunc, config) -> tirx.PrimFunc:
        return pairs.accumulate(super().finish(func, config))


def instead_of(workload: Workload, config: dict, shape: tuple, simd: Simd) -> dict:
    """Return the config of the rule that computes in bfloat16 what a config of float32 does, or this one.

    A product of few rows keeps its own: it waits for its weights, and rounds no data. So do convolutions of
    groups, and of a single block of channels. `shape` is that of the data, with its dynamic dims.
    """
    if isinstance(workload, Dense):
        paired = workload.rows >= _FEW
    else:
        paired = workload.blocked and workload.groups == 1 and workload.data[1] > pairs.LANES
    if isinstance(workload, Dense):
        if amx_matmul.fits(shape, simd, _TILES):
            return RULES["amx_matmul"].as_dict(amx_matmul.default(*workload.data, workload.columns, _TILES))
    elif amx_conv.fits(workload, shape, simd, _TILES):
        return RULES["amx_conv"].as_dict(amx_conv.default(workload, _TILES))
    name = f"{config['family']}_bf16"
    return config | {"family": name} if paired and name in RULES else config


def _of_blocks(data, name: str = _STAGE):
    """Return data (N, blocks, H, W, x) of float32 as pairs of blocks."""
    n, blocks, h, w, lanes = unwrap_ints(data.shape)

    def element(b, k, y, x, c):
        return pairs.paired(lambda block: data[b, block, y, x, c], k, blocks)

    return te.compute((n, ceildiv(blocks, 2), h, w, lanes), element, name=name)


class PairedConv(_Paired, direct_conv.DirectConv):
    """Direct convolution."""

    name = "conv2d_bf16"

    def pack(self, workload: Convolution, weight: np.ndarray, config, lanes: int) -> np.ndarray:
        return pairs.pack(super().pack(workload, weight, config, lanes), 1, 1)

    def compute(self, data, weight, workload: Convolution, config):
        paired, (height, width) = _of_blocks(data), workload.out_size
        full = round_up(height, config.tile_oh), round_up(width, config.tile_ow)
        if workload.pad(paired, *full) is paired:
            paired = _of_blocks(data, "pad")  # which is scheduled as such
        return super().compute(paired, weight, workload, config)

    def schedule(self, sch: Schedule, config) -> None:
        if _STAGE in block_names(sch):
            sch.compute_inline(_STAGE)
        super().schedule(sch, config)


class PairedPointwise(_Paired, pointwise.Pointwise):
    """1x1 convolution of stride 1."""

    name = "pointwise_bf16"

    def pack(self, workload: Convolution, weight: np.ndarray, config, lanes: int) -> np.ndarray:
        return pairs.pack(super().pack(workload, weight, config, lanes), 1, 1)

    def compute(self, data, weight, workload: Convolution, config):
        return super().compute(_of_blocks(data), weight, workload, config)

    def schedule(self, sch: Schedule, config) -> None:
        super().schedule(sch, config)
        *outer, _, c = sch.get_loops(_STAGE)
        parallel(sch, outer)
        sch.vectorize(c)


class PairedMatmul(_Paired, matmul.Matmul):
    """Products of several rows with weights; the second half of a row is paired with the first."""

    name = "matmul_bf16"

    def pack(self, workload: Dense, weight: np.ndarray, config, lanes: int) -> np.ndarray:
        depth = ceildiv(workload.depth, 2)
        return pairs.pack(super().pack(workload, weight, config, lanes), 1, depth)

    def compute(self, data, weight, workload: Dense, config):
        *batch, rows, depth = unwrap_ints(data.shape)
        half = ceildiv(depth, 2)

        def element(*at):
            *row, k = at
            second = data[(*row, k + half)]
            if depth % 2:
                second = tirx.if_then_else(k + half < depth, second, tirx.const(0, "float32"))
            return pairs.pair(data[at], second)

        paired = te.compute((*batch, rows, half), element, name=_STAGE)
        return super().compute(paired, weight, workload, config)

    def schedule(self, sch: Schedule, config) -> None:
        super().schedule(sch, config)
        *outer, k = sch.get_loops(_STAGE)
        lanes = int(sch.get(sch.get_loops("matmul_update")[-1]).extent)
        if int(sch.get(k).extent) % lanes == 0:
            _, inner = sch.split(k, [None, lanes])
            sch.vectorize(inner)
        if outer:
            parallel(sch, outer)


class PairedWinograd(_Paired, winograd.Winograd):
    """Winograd's convolution, whose transformed tiles are rounded."""

    name = "winograd_bf16"

    def pack(self, workload: Convolution, weight: np.ndarray, config, lanes: int) -> np.ndarray:
        return pairs.pack(super().pack(workload, weight, config, lanes), 3, 1)

    def factor(self, transformed, block, blocks: int):
        return pairs.paired(transformed, block, blocks)
