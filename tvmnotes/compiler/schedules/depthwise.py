"""Depthwise convolution in NCHW[x]c: a register holds x channels of one pixel; no reduction across lanes.

A tile of `pixels` accumulators slides over the window; neighbouring pixels share loads. The kernel is bound
by memory, so the padding is not written to memory: `rows` rows at a time are copied, with their padding, into
a buffer that stays in the cache.

knob    meaning                               values that `space` tries
rows    output rows computed from one buffer  the height in equal parts: few parts, or few rows
                                              in a part
pixels  pixels of a row in the register tile  1 to min(width, registers / 2)
"""

import math

import numpy as np
from tvm import te, topi
from tvm.s_tir import Schedule

from ...base.integers import ceildiv, round_up
from ...base.relax import plain_sizes
from .convolution import Convolution, Window, pack
from .epilogue import block_names, crop, fuse_epilogue, parallel, vectorize
from .family import Family, Loops, Workload, register
from .vector import Simd

_BUFFER = 128 << 10  # bytes of padded rows: a part of a core's L2 cache
_WINDOW_UNROLLED = 25  # positions of the window; a larger one is unrolled along its rows only


def default_config(window: Window, data_shape, kernel_shape, simd: Simd) -> dict:
    """Choose the config that runs without tuning, for the shapes of data and weights that `compute` takes."""
    kernel_h, kernel_w = kernel_shape[2:4]
    height, width = window.out_size(*data_shape[2:4], kernel_h, kernel_w)
    row = (width * window.strides[1] + kernel_w) * simd.lanes * 4
    fits = max(1, (_BUFFER // row - kernel_h) // window.strides[0])
    rows = min(height, fits)
    rows = ceildiv(height, ceildiv(height, rows))  # parts of equal height
    most = simd.registers // 2 - 2
    pixels = max((p for p in range(1, most + 1) if width % p == 0), default=1)
    if pixels * 2 < most:
        pixels = ceildiv(width, ceildiv(width, most))
    return {"rows": rows, "pixels": pixels}


def compute(data, kernel, window: Window, config: dict, attrs: dict | None = None):
    """Return the convolution of data (N, blocks, H, W, x) with a kernel (blocks, 1, KH, KW, x)."""
    n, blocks, h, w, lanes = plain_sizes(data.shape)
    kernel_h, kernel_w = (int(s) for s in kernel.shape[2:4])
    (sh, sw), (top, left, _, _), (dh, dw) = window.strides, window.padding, window.dilation
    reach_h, reach_w = window.reach(kernel_h, kernel_w)
    out_h, out_w = window.out_size(h, w, kernel_h, kernel_w)
    full_h, full_w = round_up(out_h, config["rows"]), round_up(out_w, config["pixels"])
    bottom = max(0, (full_h - 1) * sh + reach_h - h - top)
    right = max(0, (full_w - 1) * sw + reach_w - w - left)
    if any((top, left, bottom, right)):
        data = topi.nn.pad(data, [0, 0, top, left, 0], [0, 0, bottom, right, 0], name="pad")
    kh, kw = te.reduce_axis((0, kernel_h), "kh"), te.reduce_axis((0, kernel_w), "kw")

    def element(b, k, y, x, c):
        pixel = data[b, k, y * sh + kh * dh, x * sw + kw * dw, c]
        return te.sum(pixel * kernel[k, 0, kh, kw, c], axis=[kh, kw])

    output = te.compute((n, blocks, full_h, full_w, lanes), element, name="depthwise", attrs=attrs)
    return crop(output, (n, blocks, out_h, out_w, lanes))


def schedule(sch: Schedule, config: dict) -> None:
    """Apply the scheme to a kernel that `compute` made and to what was fused after it."""
    names = block_names(sch)
    n, o, h, w, c, kh, kw = sch.get_loops("depthwise")
    window = int(sch.get(kh).extent) * int(sch.get(kw).extent)
    ho, hi = sch.split(h, [None, config["rows"]])
    wo, wi = sch.split(w, [None, config["pixels"]])
    sch.reorder(n, o, ho, hi, wo, kh, kw, wi, c)
    fuse_epilogue(sch, "depthwise", wo, stages=("pad",))
    loop = parallel(sch, [n, o, ho])
    vectorize(sch, [wi, c])
    sch.unroll(kw)
    if window <= _WINDOW_UNROLLED:
        sch.unroll(kh)
    if "pad" in names:
        sch.compute_at("pad", loop)
        sch.vectorize(sch.get_loops("pad")[-1])
    init = sch.decompose_reduction("depthwise", kh)
    vectorize(sch, sch.get_loops(init)[-2:])


# ---------------------------------------------------------------- as a family


def serves(conv: Workload, simd: Simd) -> bool:
    """Return whether the workload is a depthwise convolution."""
    return isinstance(conv, Convolution) and conv.is_depthwise


def default(conv: Convolution, simd: Simd) -> dict:
    """Choose the default config of a workload."""
    shapes = conv.packed_input_shape(simd.lanes), packed_shape(conv, {}, simd.lanes)
    return {"family": "depthwise", **default_config(conv.window(simd.lanes), *shapes, simd)}


def space(conv: Convolution, simd: Simd) -> list[dict]:
    """List the configs to search; see the table above."""
    height, width = conv.out_size
    few = range(1, math.isqrt(height) + 2)
    counts = *few, *(ceildiv(height, size) for size in few)  # few parts, and parts of few rows
    rows = sorted({ceildiv(height, parts) for parts in counts})
    pixels = [p for p in range(1, simd.registers // 2 + 1) if p <= width]
    return [{"family": "depthwise", "rows": r, "pixels": p} for r in rows for p in pixels]


def packed_shape(conv: Convolution, config: dict, lanes: int) -> tuple[int, ...]:
    """Return the shape of the packed weight, (blocks, 1, KH, KW, x)."""
    return ceildiv(conv.weight[0], lanes), 1, *conv.weight[2:], lanes


def packed(conv: Convolution, weight: np.ndarray, config: dict, lanes: int) -> np.ndarray:
    """Pack the weight (C, 1, KH, KW) as `compute` takes it."""
    return pack(weight, 1, lanes)[..., 0, :]


def loops(conv: Convolution, config: dict, lanes: int) -> Loops:
    """Return the sizes of the kernel's loops."""
    n = conv.data[0]
    height, width = conv.out_size
    outs = ceildiv(conv.weight[0], lanes)
    return Loops(
        rows=config["pixels"],
        blocks=1,
        line=width,
        outs=outs,
        lines=n * height,
        points=n * height * width,
        depth=math.prod(conv.weight[2:]),
        chunks=n * outs * ceildiv(height, config["rows"]),
        run=config["rows"],
        stride=conv.strides[0],
    )


EXAMPLES = (
    Convolution((1, 20, 9, 9), (20, 1, 3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 20, True),
    Convolution((1, 32, 9, 9), (32, 1, 5, 5), (2, 2), (2, 2, 2, 2), (1, 1), 32, True),
    Convolution((2, 16, 8, 10), (16, 1, 3, 3), (1, 1), (0, 2, 2, 1), (2, 2), 16, True),
)

register(
    Family(
        "depthwise",
        compute=compute,
        schedule=schedule,
        serves=serves,
        default=default,
        space=space,
        packed_shape=packed_shape,
        pack=packed,
        loops=loops,
        examples=EXAMPLES,
    )
)
