"""Converters of MXNet's detection operators (see call.py): anchors, boxes, their suppression, regions.

Sources: MXNet 1.9.1, src/operator/contrib: bounding_box-inl.h, multibox_prior.cc, multibox_detection.cc,
roi_align.cc; src/operator/roi_pooling.cc.
"""

import functools
import math
from dataclasses import fields, replace

import numpy as np
from tvm import relax
from tvm.relax import op

from ....kernels.detection.nms import best_indices, suppressed
from ....kernels.detection.spec import NmsSpec
from ...context import shape_of
from .call import Call, converts

# ---------------------------------------------------------------- non-maximum suppression


def _remaining(
    c: Call, name: str, data: relax.Expr, spec: NmsSpec, order: relax.Expr | None = None
) -> relax.Expr:
    """Suppress rows of data (batch, rows, width), in an order or by falling score; return the others."""
    batch, rows, width = shape_of(data)
    order = _by_score(c, data, spec) if order is None else order
    kernel = suppressed(batch, rows, width, shape_of(order)[1], spec, c.dtype)
    types = ((batch, rows, width), c.dtype), ((batch, rows, 1), c.dtype)
    return c.call(name, kernel, [data, order], *types)[0]


def _by_score(c: Call, data: relax.Expr, spec: NmsSpec) -> relax.Expr:
    """Return the rows of data (batch, rows, width) by falling score, int32: the best `topk`, or all."""
    batch, rows, _ = shape_of(data)
    scores = c.emit(op.squeeze(_column(data, spec.score_index, 2), [2]))
    is_valid = op.greater(scores, c.const(_single(spec.valid_thresh)))  # which NaN is not
    if spec.id_index >= 0:  # background must not be among the best
        kinds = op.squeeze(_column(data, spec.id_index, 2), [2])
        is_valid = op.logical_and(is_valid, op.not_equal(kinds, c.const(spec.background_id)))
    scores = c.emit(op.where(is_valid, scores, c.const(-np.inf)))
    if c.dtype == "float64" or not 0 < spec.topk < rows:
        order = c.emit(op.argsort(scores, 1, descending=True, dtype="int32"))
        return c.emit(op.strided_slice(order, [1], [0], [spec.topk])) if 0 < spec.topk < rows else order
    shape, kernel = (batch, spec.topk), best_indices(batch, rows, spec.topk)
    scores = c.emit(c.cast(scores, "float32"))
    indices, best = c.call("best_indices", kernel, [scores], (shape, "int32"), (shape, "float32"))
    return c.emit(op.gather_elements(indices, op.argsort(best, 1, descending=True, dtype="int32"), 1))


@converts("_contrib_box_nms", "_contrib_box_non_maximum_suppression")
def _box_nms(c: Call):
    """Return the boxes that remain; inference reads no indices, the second output."""
    named = {each.name: type(each.default)(c.get(each.name, each.default)) for each in fields(NmsSpec)}
    if named["topk"] == 0:
        return c.x
    given, wanted = (c.get(name, "corner") for name in ("in_format", "out_format"))
    spec = replace(NmsSpec(**named), force=bool(c.get("force_suppress", False)), center=given == "center")
    *outer, rows, width = c.shape
    data = c.x if len(outer) == 1 else c.emit(op.reshape(c.x, (math.prod(outer), rows, width)))
    remaining = c.emit(op.reshape(_remaining(c, "box_nms", data, spec), c.shape))
    if given == wanted:
        return remaining
    first, axis = spec.coord_start, c.rank - 1
    boxes = c.emit(op.strided_slice(remaining, [axis], [first], [first + 4]))
    sides = _columns(boxes, axis)
    other = _center_of_box(c, sides) if wanted == "center" else _box_of_center(c, sides)
    is_left = op.less(sides[0], c.const(0.0))  # MXNet leaves boxes as they are whose first number is below 0
    boxes = op.where(is_left, boxes, op.concat(other, axis))
    ends = [(0, first), (first + 4, width)]
    before, after = ([op.strided_slice(remaining, [axis], [a], [b])] if a < b else [] for a, b in ends)
    return op.concat([*before, boxes, *after], axis)


def _single(number: float) -> float:
    """Return an attribute as MXNet holds it, in float32."""
    return float(np.float32(number))


def _column(data: relax.Expr, number: int, axis: int) -> relax.Expr:
    return op.strided_slice(data, [axis], [number], [number + 1])


def _columns(data: relax.Expr, axis: int) -> list[relax.Expr]:
    """Return the four coordinates of boxes, which lie along an axis, as columns."""
    return [_column(data, number, axis) for number in range(4)]


def _center_of_box(c: Call, boxes: list[relax.Expr]) -> list[relax.Expr]:
    """Return the centre x, centre y, width and height of boxes that are given by their corners."""
    left, top, right, bottom = boxes
    half = c.const(0.5)
    return [(left + right) * half, (top + bottom) * half, right - left, bottom - top]


def _box_of_center(c: Call, boxes: list[relax.Expr]) -> list[relax.Expr]:
    """Return the corners of boxes that are given by centre x, centre y, width and height."""
    x, y, width, height = boxes
    half = c.const(0.5)
    width, height = width * half, height * half
    return [x - width, y - height, x + width, y + height]


@converts("_contrib_box_decode")
def _box_decode(c: Call):
    anchors = _columns(c.inputs[1], len(shape_of(c.inputs[1])) - 1)
    if c.get("format", "center") == "corner":
        anchors = _center_of_box(c, anchors)
    scales = [float(c.get(f"std{n}", 1.0)) for n in range(4)]
    return _decoded(c, c.x, anchors, scales, c.rank - 1, float(c.get("clip", -1.0)))


def _decoded(c: Call, offsets, anchors: list, scales: list[float], axis: int, limit: float = -1.0):
    """Return the corners of boxes from their offsets to anchors: centre x, centre y, width, height."""
    offsets = _columns(offsets, axis)
    low, high = [], []
    for n in (0, 1):
        middle = offsets[n] * c.const(_single(scales[n])) * anchors[n + 2] + anchors[n]
        grown = offsets[n + 2] * c.const(_single(scales[n + 2]))
        if limit > 0:
            grown = op.minimum(grown, c.const(_single(limit)))
        reach = op.exp(grown) * anchors[n + 2] * c.const(0.5)
        low.append(middle - reach)
        high.append(middle + reach)
    return op.concat([*low, *high], axis)


@converts("_contrib_box_iou")
def _box_iou(c: Call):
    c.refuse(format=("corner", "center"))
    outer, others, is_center = c.shape[:-1], shape_of(c.inputs[1])[:-1], c.get("format") == "center"
    a = [op.reshape(each, (*outer, *[1] * len(others))) for each in _columns(c.x, len(outer))]
    b = [op.reshape(each, others) for each in _columns(c.inputs[1], len(others))]
    zero, sides = c.const(0.0), []
    a_box, b_box = (_box_of_center(c, box) if is_center else box for box in (a, b))
    one, other = (b_box, a_box) if is_center else (a_box, b_box)  # beside NaN, MXNet takes the other
    for n in (0, 1):
        low = op.where(op.greater(one[n], other[n]), one[n], other[n])
        high = op.where(op.less(one[n + 2], other[n + 2]), one[n + 2], other[n + 2])
        side = c.emit(high - low)
        sides.append(op.where(op.greater(side, zero), side, zero))
    shared = c.emit(sides[0] * sides[1])
    total = functools.reduce(op.add, [_area(c, box, is_center) for box in (a, b)])
    return op.where(op.less_equal(shared, zero), zero, shared / (total - shared))


def _area(c: Call, box: list[relax.Expr], is_center: bool) -> relax.Expr:
    width, height = box[2:] if is_center else (box[2] - box[0], box[3] - box[1])
    zero = c.const(0.0)
    return op.where(op.logical_or(op.less(width, zero), op.less(height, zero)), zero, width * height)


# ---------------------------------------------------------------- SSD's operators from before GluonCV


@converts("_contrib_MultiBoxPrior", "MultiBoxPrior")
def _multibox_prior(c: Call):
    """Return the anchors of a feature map, which are constants, as its shape alone decides them."""
    height, width = c.shape[2:]
    sizes = np.atleast_1d(np.asarray(c.get("sizes", (1.0,)), "float32"))
    ratios = np.atleast_1d(np.asarray(c.get("ratios", (1.0,)), "float32"))
    step_y, step_x = c.get("steps", (-1.0, -1.0))
    offset_y, offset_x = c.get("offsets", (0.5, 0.5))
    step_y, step_x = (step_y, step_x) if step_y > 0 else (1 / height, 1 / width)
    root = np.sqrt(ratios)
    spans = [(size * height / width * root[0] / 2, size / root[0] / 2) for size in sizes]
    spans += [(sizes[0] * height / width * each / 2, sizes[0] / each / 2) for each in root[1:]]
    rows, columns = (np.arange(height) + offset_y) * step_y, (np.arange(width) + offset_x) * step_x
    y, x = np.meshgrid(rows, columns, indexing="ij")
    boxes = [np.stack([x - w, y - h, x + w, y + h], -1) for w, h in spans]
    anchors = np.stack(boxes, 2).reshape(1, -1, 4).astype("float32")
    return c.const(anchors.clip(0, 1) if c.get("clip", False) else anchors, "float32")


@converts("_contrib_MultiBoxDetection", "MultiBoxDetection")
def _multibox_detection(c: Call):
    """Return the detections; class 0 is the background, as in MXNet, which does not read background_id."""
    scores, offsets, anchors = c.inputs
    batch, classes, count = shape_of(scores)
    least, none = _single(c.get("threshold", 0.01)), c.const(-1.0)
    real = op.strided_slice(scores, [1], [1], [classes])
    real = c.emit(op.where(op.greater(real, none), real, none))  # what is not above -1, as NaN, is no class's
    kind = op.astype(op.expand_dims(op.argmax(real, 1), 2), c.dtype)
    best = op.expand_dims(op.max(real, [1]), 2)
    best = c.emit(op.where(op.less(best, c.const(least)), none, best))
    variances = [float(v) for v in c.get("variances", (0.1, 0.1, 0.2, 0.2))]
    centers = _center_of_box(c, _columns(anchors, 2))
    boxes = _decoded(c, op.reshape(offsets, (batch, count, 4)), centers, variances, 2)
    if c.get("clip", True):
        boxes = op.clip(boxes, 0, 1)
    data, overlap = c.emit(op.concat([kind, best, boxes], 2)), np.float32(c.get("nms_threshold", 0.5))
    spec = NmsSpec(valid_thresh=-1.0, id_index=0, force=bool(c.get("force_suppress", False)), in_place=True)
    if not 0 < overlap <= 1:  # all of them, in the order of their anchors
        is_valid = op.squeeze(op.astype(op.greater(best, none), "int32"), [2])
        order = c.emit(op.argsort(is_valid, 1, descending=True, dtype="int32"))
        return _remaining(c, "multibox_detection", data, replace(spec, overlap_thresh=np.inf), order)
    # Boxes are suppressed that overlap by as much as the threshold.
    below = float(np.nextafter(overlap, np.float32(-1)))
    spec = replace(spec, overlap_thresh=below, topk=int(c.get("nms_topk", -1)))
    return _remaining(c, "multibox_detection", data, spec)


# ---------------------------------------------------------------- regions


@converts("_contrib_ROIAlign")
def _roi_align(c: Call):
    scale, aligned = _single(c.need("spatial_scale")), bool(c.get("aligned", False))
    rois, valid = _regions(c)
    if aligned:  # the centres of pixels are at halves, which TVM leaves to the caller
        rois = op.subtract(rois, c.const(np.array([0, *[0.5 / scale] * 4], c.dtype)))
    size, samples = c.integers("pooled_size", 2, 1), int(c.get("sample_ratio", -1))
    pooled = op.vision.roi_align(c.x, rois, size, scale, samples, aligned, layout="NCHW", mode="avg")
    if c.get("position_sensitive", False):  # each bin has channels of its own
        bins = math.prod(size)
        shape = (shape_of(c.inputs[1])[0], c.shape[1] // bins)
        places = c.const(np.arange(bins, dtype="int64") * (bins + 1))
        pooled = op.take(c.emit(op.reshape(c.emit(pooled), (*shape, bins * bins))), places, 2)
        pooled = op.reshape(c.emit(pooled), (*shape, *size))
    return op.where(valid, pooled, c.const(0.0))


@converts("ROIPooling")
def _roi_pooling(c: Call):
    """Return the maxima of bins, 0 of no image; what is not above float32's least number counts as that."""
    rois, valid = _regions(c)
    image, corners = _column(rois, 0, 1), op.strided_slice(rois, [1], [1], [5])
    corners = c.emit(corners * c.const(_single(c.need("spatial_scale"))))
    whole = c.emit(op.floor(op.abs(corners)))  # halves are rounded away from 0
    up = op.greater_equal(op.abs(corners) - whole, c.const(0.5))
    corners = op.sign(corners) * op.where(up, whole + c.const(1.0), whole)
    rois = c.emit(op.concat([image, corners], 1))
    least = c.const(-np.inf if c.dtype == "float16" else float(np.finfo("float32").min))
    x = c.emit(op.where(op.greater(c.x, least), c.x, least))
    pooled = op.vision.roi_pool(x, rois, c.integers("pooled_size", 2, 1), 1.0, "NCHW")
    return op.where(valid, pooled, c.const(0.0))


def _regions(c: Call) -> tuple[relax.Expr, relax.Expr]:
    """Return rows of (valid image index, corners), and which rows named one: bool (rows, 1, 1, 1).

    Networks with feature maps of several sizes give each region to one map, and to the others with index -1.
    """
    rows, images = shape_of(c.inputs[1])[0], shape_of(c.x)[0]
    image, corners = _column(c.inputs[1], 0, 1), op.strided_slice(c.inputs[1], [1], [1], [5])
    valid = op.logical_and(op.greater(image, c.const(-1.0)), op.less(image, c.const(float(images))))
    return op.concat([op.clip(image, 0, images - 1), corners], 1), op.reshape(valid, (rows, 1, 1, 1))
