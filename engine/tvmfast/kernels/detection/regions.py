"""The maxima of regions of images, as ONNX's RoiAlign in mode max has them, as loops for a CPU."""

import tvm
from tvm import tirx
from tvm.script import tirx as T

from ...core.compat import OPAQUE, fast_tvmscript_parser


def _larger(a, b):
    """Return the larger of two numbers, and the first if one is NaN: C++'s std::max."""
    return tirx.Select(a < b, b, a)


@fast_tvmscript_parser()
def region_maxima(
    dtype: str, size: tuple[int, int], scale: float, samples: int, half_pixel: bool
) -> tvm.tirx.PrimFunc:
    """Make a kernel of images (n, channels, height, width), regions' corners (count, 4) and images (count,).

    It writes the bins (count, channels, *size): the maximum of `samples` by `samples` points, or for 0 of as
    many as pixels. A point has the maximum of its four neighbours, each times its bilinear weight, and 0
    outside the image; a bin without points is 0. All tensors may be of any size; images' indices are int64.
    """
    rows, columns = size
    factor, zero, half, one = (tirx.const(number, dtype) for number in (scale, 0, 0.5, 1))
    offset = half if half_pixel else zero

    @T.prim_func
    def main(x_: T.handle, regions_: T.handle, images_: T.handle, maxima_: T.handle):
        T.func_attr({"tirx.noalias": True, "op_pattern": OPAQUE})
        n, channels, height, width, count = T.int64(), T.int64(), T.int64(), T.int64(), T.int64()
        x = T.match_buffer(x_, (n, channels, height, width), dtype)
        regions = T.match_buffer(regions_, (count, 4), dtype)
        images = T.match_buffer(images_, (count,), "int64")
        maxima = T.match_buffer(maxima_, (count, channels, rows, columns), dtype)
        for region in T.parallel(count):
            begin = T.alloc_buffer((2,), dtype, scope="local")
            span = T.alloc_buffer((2,), dtype, scope="local")  # of a bin
            steps = T.alloc_buffer((2,), "int64", scope="local")
            at = T.alloc_buffer((2,), dtype, scope="local")
            low = T.alloc_buffer((2,), "int64", scope="local")
            high = T.alloc_buffer((2,), "int64", scope="local")
            largest = T.alloc_buffer((1,), dtype, scope="local")
            for axis in T.unroll(2):
                begin[axis] = regions[region, 1 - axis] * factor - offset
                span[axis] = regions[region, 3 - axis] * factor - offset - begin[axis]
                if not half_pixel:
                    span[axis] = _larger(span[axis], one)
                span[axis] = span[axis] / T.Cast(dtype, T.Select(axis == 0, rows, columns))
                steps[axis] = samples if samples > 0 else T.Cast("int64", T.ceil(span[axis]))
            for row, column in T.grid(rows, columns):
                for channel in range(channels):
                    maxima[region, channel, row, column] = zero
                for i, j in T.grid(steps[0], steps[1]):
                    for axis in T.unroll(2):
                        tap: T.int64 = T.Select(axis == 0, i, j)
                        number: T.int32 = T.Select(axis == 0, row, column)
                        at[axis] = (T.Cast(dtype, tap) + half) * span[axis] / T.Cast(dtype, steps[axis])
                        at[axis] = begin[axis] + T.Cast(dtype, number) * span[axis] + at[axis]
                    is_inside = T.And(
                        T.And(at[0] >= zero - one, at[0] <= T.Cast(dtype, height)),
                        T.And(at[1] >= zero - one, at[1] <= T.Cast(dtype, width)),
                    )
                    for axis in T.unroll(2):
                        last: T.int64 = T.Select(axis == 0, height, width) - 1
                        at[axis] = T.min(_larger(zero, at[axis]), T.Cast(dtype, last))
                        low[axis] = T.Cast("int64", at[axis])
                        high[axis] = T.min(low[axis] + 1, last)
                        at[axis] = at[axis] - T.Cast(dtype, low[axis])  # the weight of `high`
                    for channel in range(channels):
                        largest[0] = zero
                        if is_inside:
                            image: T.int64 = images[region]
                            largest[0] = (one - at[0]) * (one - at[1]) * x[image, channel, low[0], low[1]]
                            largest[0] = _larger(
                                largest[0], (one - at[0]) * at[1] * x[image, channel, low[0], high[1]]
                            )
                            largest[0] = _larger(
                                largest[0], at[0] * (one - at[1]) * x[image, channel, high[0], low[1]]
                            )
                            largest[0] = _larger(
                                largest[0], at[0] * at[1] * x[image, channel, high[0], high[1]]
                            )
                        if i + j > 0:
                            largest[0] = _larger(maxima[region, channel, row, column], largest[0])
                        maxima[region, channel, row, column] = largest[0]

    return main
