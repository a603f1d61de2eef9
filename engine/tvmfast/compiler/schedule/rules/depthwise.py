"""Depthwise convolution in NCHW[x]c: a register holds x channels of one pixel; no reduction across lanes.

A tile of `tile_ow` accumulators slides over the window; neighbouring pixels share loads. The kernel is bound
by memory, so the padding is not stored there: what lies outside of the image is not read (see
../post_rewrite.py). Of images of dynamic size, `tile_oh` rows at a time are copied, with their padding, into
a buffer that stays in the cache; so are bytes, converted, where the registers are few.
"""

import math
from dataclasses import dataclass

import numpy as np
from tvm import te, tirx
from tvm.s_tir import Schedule

from ....core.annotations import attribute
from ....core.relax import ceildiv, of_one_type, round_up, simplified, unwrap_ints
from ....core.simd import Simd
from .. import post_rewrite
from ..epilogue import block_names, crop, fuse_epilogue, parallel, vectorize
from ..rule import Loops, ScheduleRule
from ..workloads.conv2d import Convolution, pack
from ..workloads.workload import Workload

_BUFFER = 128 << 10  # bytes of padded rows: a part of a core's L2 cache
_WINDOW_UNROLLED = 25  # positions of the window; a larger one is unrolled along its rows only


class Depthwise(ScheduleRule):
    """Depthwise convolution."""

    name = "depthwise"
    serves = "depthwise convolutions"

    @dataclass(frozen=True)
    class Config:
        """The rows of a task, and the register tile.

        Attributes:
            tile_oh: Output rows of a task, computed from one buffer if there is one. Searched: the height in
                equal parts: few parts, or few rows in a part.
            tile_ow: Pixels of a row in the register tile. Searched: 1 to min(width, registers / 2).
        """

        tile_oh: int
        tile_ow: int

    EXAMPLES = (
        Convolution((1, 20, 9, 9), (20, 1, 3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 20, True),
        Convolution((1, 32, 9, 9), (32, 1, 5, 5), (2, 2), (2, 2, 2, 2), (1, 1), 32, True),
        Convolution((2, 16, 8, 10), (16, 1, 3, 3), (1, 1), (0, 2, 2, 1), (2, 2), 16, True),
    )

    def applies(self, workload: Workload, simd: Simd) -> bool:
        return isinstance(workload, Convolution) and workload.is_depthwise

    def default(self, workload: Convolution, simd: Simd) -> Config:
        """Choose parts of equal height that fit into the buffer, and a tile that divides the width."""
        (height, width), (kernel_h, kernel_w) = workload.out_size, workload.weight[2:]
        row = (width * workload.strides[1] + kernel_w) * simd.lanes * 4
        fits = max(1, (_BUFFER // row - kernel_h) // workload.strides[0])
        tile_oh = ceildiv(height, ceildiv(height, min(height, fits)))
        most = simd.registers // 2 - (1 if workload.dtype == "uint8" else 2)
        tile_ow = max((p for p in range(1, most + 1) if width % p == 0), default=1)
        if tile_ow * 2 < most:
            tile_ow = ceildiv(width, ceildiv(width, most))
        return self.Config(tile_oh, tile_ow)

    def space(self, workload: Convolution, simd: Simd) -> list[Config]:
        height, width = workload.out_size
        few = range(1, math.isqrt(height) + 2)
        counts = *few, *(ceildiv(height, size) for size in few)  # few parts, and parts of few rows
        rows = sorted({ceildiv(height, parts) for parts in counts})
        pixels = [p for p in range(1, simd.registers // 2 + 1) if p <= width]
        return [self.Config(oh, ow) for oh in rows for ow in pixels]

    def packed_shape(self, workload: Convolution, config: Config, lanes: int) -> tuple[int, ...]:
        """Return the shape of the packed weight, (blocks, 1, KH, KW, x)."""
        return ceildiv(workload.weight[0], lanes), 1, *workload.weight[2:], lanes

    def pack(self, workload: Convolution, weight: np.ndarray, config: Config, lanes: int) -> np.ndarray:
        """Pack the weight (C, 1, KH, KW) as `compute` takes it."""
        return pack(weight, 1, lanes)[..., 0, :]

    def compute(self, data, weight, workload: Convolution, config: Config):
        """Return the convolution of data (N, blocks, H, W, x) with a weight (blocks, 1, KH, KW, x)."""
        return self._compute(data, weight, workload, config, self.annotation(workload, config))

    def of_bytes(self, data, weight, workload: Convolution, config: Config, zero: int, stored: bool):
        """Return the same of uint8 data less a zero point, padded with that, and weights of whole numbers.

        The sums in float32 are exact for up to 2^24 / (255 * 128) terms. If `stored`, rows are converted
        once, into a buffer, not for each row of the window.
        """
        stage = "rows" if stored else "pad"
        return self._compute(data, weight, workload, config, attribute(self.as_dict(config)), zero, stage)

    def _compute(self, data, weight, workload, config, attrs, zero=0, stage="pad"):
        n, blocks, h, w, lanes = unwrap_ints(data.shape)
        (kernel_h, kernel_w), (out_h, out_w) = workload.weight[2:], workload.out_size_of(h, w)
        (sh, sw), (dh, dw) = workload.strides, workload.dilation
        full_h, full_w = round_up(out_h, config.tile_oh), round_up(out_w, config.tile_ow)
        if str(data.dtype) == "uint8":
            data = _floats(data, workload, full_h, full_w, zero, stage)
        else:
            data = workload.pad(data, full_h, full_w)
        kernel_h, kernel_w, *shape = of_one_type(kernel_h, kernel_w, blocks, full_h, full_w, lanes)
        kh, kw = te.reduce_axis((0, kernel_h), "kh"), te.reduce_axis((0, kernel_w), "kw")

        def element(b, k, y, x, c):
            pixel = data[b, k, y * sh + kh * dh, x * sw + kw * dw, c]
            return te.sum(pixel * weight[k, 0, kh, kw, c], axis=[kh, kw])

        output = te.compute((n, *shape), element, name="depthwise", attrs=attrs)
        return crop(output, (n, blocks, out_h, out_w, lanes))

    def schedule(self, sch: Schedule, config: Config) -> None:
        names = block_names(sch)
        n, o, h, w, c, kh, kw = sch.get_loops("depthwise")
        window = int(sch.get(kh).extent) * int(sch.get(kw).extent)
        ho, hi = sch.split(h, [None, config.tile_oh])
        wo, wi = sch.split(w, [None, config.tile_ow])
        sch.reorder(n, o, ho, hi, wo, kh, kw, wi, c)
        fuse_epilogue(sch, "depthwise", wo, stages=("pad", "rows"))
        loop = parallel(sch, [n, o, ho])
        vectorize(sch, [wi, c])
        sch.unroll(kw)
        if window <= _WINDOW_UNROLLED:
            sch.unroll(kh)
        for name in {"pad", "rows"} & {*names}:
            known = all(isinstance(sch.get(each).extent, tirx.IntImm) for each in sch.get_loops(name)[1:])
            if known and name == "pad":
                sch.compute_inline(name)
                post_rewrite.annotate_window(sch, kh, columns=(3, 6), axis=3)
            else:
                sch.compute_at(name, loop)
                sch.vectorize(sch.get_loops(name)[-1])
        init = sch.decompose_reduction("depthwise", kh)
        vectorize(sch, sch.get_loops(init)[-2:])

    def finish(self, func: tirx.PrimFunc, config: Config) -> tirx.PrimFunc:
        """Leave out what the window finds outside of the image."""
        return post_rewrite.skip_padding(func)

    def loops(self, workload: Convolution, config: Config, lanes: int) -> Loops:
        """Return the sizes of the kernel's loops: a product for each row of each image."""
        images, (height, width) = workload.data[0], workload.out_size
        n = ceildiv(workload.weight[0], lanes)
        return Loops(
            tile_m=config.tile_ow,
            tile_n=1,
            m=width,
            n=n,
            products=images * height,
            rows=images * height * width,
            k=math.prod(workload.weight[2:]),
            n_tasks=images * n * ceildiv(height, config.tile_oh),
            block_m=config.tile_oh,
            stride=workload.strides[0],
        )


def _floats(data, workload: Convolution, rows: int, columns: int, zero: int, name: str):
    """Return uint8 data less a zero point, in float32, padded as `Convolution.pad` does."""
    n, blocks, h, w, lanes = unwrap_ints(data.shape)
    (top, left), (sh, sw), (reach_h, reach_w) = workload.padding[:2], workload.strides, workload.reach
    height, width = simplified((rows - 1) * sh + reach_h), simplified((columns - 1) * sw + reach_w)
    ends = h + top, w + left
    if static := all(isinstance(n, int) for n in (h, w)):
        height, width = max(ends[0], height), max(ends[1], width)

    def element(b, k, y, x, c):
        value = data[b, k, y - top, x - left, c].astype("float32")
        value = value - float(zero) if zero else value
        tests = [
            *([y >= top] if top else []),
            *([y < ends[0]] if not static or height > ends[0] else []),
            *([x >= left] if left else []),
            *([x < ends[1]] if not static or width > ends[1] else []),
        ]
        return te.if_then_else(tirx.all(*tests), value, 0.0) if tests else value

    return te.compute((n, *of_one_type(blocks, height, width, lanes)), element, name=name)
