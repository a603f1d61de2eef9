"""Expressions that kernels for a CPU and for a GPU share, so that their results are equal bit by bit."""

from tvm import tirx
from tvm.script import tirx as T


def decode(data, n, row, x) -> list:
    """Return left, top, right and bottom of the box data[n, row, x : x + 4]: its centre, width and height."""
    center_x, center_y, width, height = (data[n, row, x + field] for field in range(4))
    two = tirx.const(2.0, data.dtype)
    return [center_x - width / two, center_y - height / two, center_x + width / two, center_y + height / two]


def box_area(left, top, right, bottom, dtype="float32"):
    """Return the area of a box: 0 if its sides are in the wrong order."""
    wrong = tirx.any(right < left, bottom < top)
    return tirx.if_then_else(wrong, tirx.const(0.0, dtype), (right - left) * (bottom - top))


def overlap(low, high, other_low, other_high, dtype="float32"):
    """Return the length that two intervals share."""
    return T.max(T.min(high, other_high) - T.max(low, other_low), tirx.const(0.0, dtype))


def iou(shared, area, other_area):
    """Return the intersection over union of two boxes, whose intersection has the area `shared`."""
    return shared / (area + other_area - shared)


def sortable(score):
    """Map the bits of a float32 to a uint32 of the same order."""
    bits = T.reinterpret("uint32", score)
    return bits ^ T.if_then_else((bits >> uint32(31)) == uint32(1), uint32(0xFFFFFFFF), uint32(0x80000000))


def uint32(value: int):
    """Make a uint32 constant."""
    return tirx.const(value, "uint32")
