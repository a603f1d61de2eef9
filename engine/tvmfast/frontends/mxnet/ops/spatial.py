"""Converters of MXNet's grids, and of what is sampled at them (see call.py).

A grid (batch, 2, height, width) has the x and y of each result, from -1, the centre of the first pixel, to 1.
Sources: MXNet 1.9.1, src/operator: grid_generator-inl.h, bilinear_sampler.cc, spatial_transformer.cc.
"""

import numpy as np
from tvm import relax
from tvm.relax import op

from ...context import dtype_of, shape_of
from .call import Call, converts


def _affine_grid(c: Call, transforms: relax.Expr) -> relax.Expr:
    """Return the grids of transforms (batch, 6); one of a single row or column is NaN, as MXNet's."""
    height, width = c.integers("target_shape", 2, 0)
    batch = shape_of(transforms)[0]
    with np.errstate(divide="ignore", invalid="ignore"):
        y, x = (-1 + np.arange(n) * (np.float64(2) / (n - 1)) for n in (height, width))
    x, y = np.meshgrid(x, y)
    points = c.const(np.stack([x, y, np.ones_like(x)]).reshape(3, -1), dtype_of(transforms))
    grid = op.matmul(op.reshape(transforms, (batch, 2, 3)), points)
    return c.emit(op.reshape(grid, (batch, 2, height, width)))


@converts("GridGenerator")
def _grid_generator(c: Call):
    if c.need("transform_type") == "affine":
        return _affine_grid(c, c.x)
    c.refuse(transform_type=("warp",))
    height, width = c.shape[2:]
    y, x = np.meshgrid(np.arange(height), np.arange(width), indexing="ij")
    half = c.const(np.array([(width - 1) / 2, (height - 1) / 2]).reshape(2, 1, 1), c.dtype)
    return (c.x + c.const(np.stack([x, y]), c.dtype)) / half - c.const(1)


@converts("BilinearSampler")
def _bilinear_sampler(c: Call):
    return _sampled(c, c.x, c.inputs[1])


@converts("SpatialTransformer")
def _spatial_transformer(c: Call):
    c.refuse(transform_type=("affine",), sampler_type=("bilinear",))
    if not any(c.integers("target_shape", 2, 0)):
        raise ValueError("target_shape: expected the height and width of the result")
    return _sampled(c, c.x, _affine_grid(c, c.inputs[1]))


def _sampled(c: Call, data: relax.Expr, grid: relax.Expr) -> relax.Expr:
    """Interpolate data at a grid: pixels outside are 0, weights of NaN give NaN."""
    own, dtype = dtype_of(data), "float64" if dtype_of(data) == "float64" else "float32"
    (batch, channels, height, width), (rows, columns) = shape_of(data), shape_of(grid)[2:]
    count = rows * columns
    flat = c.emit(op.reshape(c.cast(data, dtype), (batch, channels, height * width)))

    def taps(number: int, size: int) -> list[tuple]:
        """Return the two neighbours along an axis, and their weights: (batch, 1, count)."""
        at = op.strided_slice(grid, [1], [number], [number + 1])
        at = c.emit(c.cast(c.emit(op.reshape(at, (batch, 1, count))), dtype))
        one, two = relax.const(1, dtype), relax.const(2, dtype)
        at = c.emit((at + one) * relax.const(size - 1, dtype) / two)
        low = c.emit(op.floor(at))
        weight = c.emit(one - (at - low))
        return [(low, weight), (c.emit(low + one), c.emit(one - weight))]

    def inside(at, size):
        return op.logical_and(
            op.greater_equal(at, relax.const(0, dtype)), op.less_equal(at, relax.const(size - 1, dtype))
        )

    total, zero = None, relax.const(0, dtype)
    for y, weight_y in taps(1, height):
        for x, weight_x in taps(0, width):
            near = c.emit(op.logical_and(inside(x, width), inside(y, height)))
            row, column = (op.astype(c.emit(op.where(near, each, zero)), "int32") for each in (y, x))
            index = c.emit(row * relax.const(width, "int32") + column)
            index = c.emit(op.broadcast_to(index, (batch, channels, count)))
            pixels = c.emit(op.where(near, op.gather_elements(flat, index, 2), zero))
            part = c.emit(pixels * weight_y * weight_x)
            total = part if total is None else c.emit(total + part)
    return c.cast(c.emit(op.reshape(total, (batch, channels, rows, columns))), own)
