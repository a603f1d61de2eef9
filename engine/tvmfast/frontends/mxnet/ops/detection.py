"""Converters of MXNet's detection operators (see call.py): anchors, boxes, their suppression, regions.

Sources: MXNet 1.9.1, src/operator/contrib: bounding_box-inl.h, multibox_prior.cc, multibox_detection.cc,
roi_align.cc.
"""

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


def _remaining(c: Call, name: str, data: relax.Expr, spec: NmsSpec) -> list[relax.Expr]:
    """Suppress rows of data (batch, rows, width); return the remaining rows and their indices."""
    batch, rows, width = shape_of(data)
    order = _by_score(c, data, spec)
    kernel = suppressed(batch, rows, width, shape_of(order)[1], spec)
    return c.call(
        name, kernel, [data, order], ((batch, rows, width), "float32"), ((batch, rows, 1), "float32")
    )


def _by_score(c: Call, data: relax.Expr, spec: NmsSpec) -> relax.Expr:
    """Return the rows of data (batch, rows, width) by falling score, int32: the best `topk`, or all."""
    batch, rows, _ = shape_of(data)
    scores = op.squeeze(_column(data, spec.score_index, 2), [2])
    if spec.id_index >= 0:  # background must not be among the best
        kinds = op.squeeze(_column(data, spec.id_index, 2), [2])
        background = op.equal(kinds, c.const(spec.background_id, "float32"))
        scores = op.where(background, c.const(-np.inf, "float32"), scores)
    if not 0 < spec.topk < rows:
        return c.emit(op.argsort(scores, 1, descending=True, dtype="int32"))
    shape, kernel = (batch, spec.topk), best_indices(batch, rows, spec.topk)
    indices, best = c.call("best_indices", kernel, [c.emit(scores)], (shape, "int32"), (shape, "float32"))
    return c.emit(op.gather_elements(indices, op.argsort(best, 1, descending=True, dtype="int32"), 1))


@converts("_contrib_box_nms", "_contrib_box_non_maximum_suppression")
def _box_nms(c: Call):
    named = {each.name: type(each.default)(c.get(each.name, each.default)) for each in fields(NmsSpec)}
    force, is_center = bool(c.get("force_suppress", False)), c.get("in_format", "corner") == "center"
    spec = replace(NmsSpec(**named), force=force, center=is_center)
    is_other = c.get("in_format", "corner") != c.get("out_format", "corner")
    c.refuse_if(is_other, "an out_format other than the in_format")
    *outer, rows, width = c.shape
    data = c.x if len(outer) == 1 else c.emit(op.reshape(c.x, (math.prod(outer), rows, width)))
    remaining, indices = _remaining(c, "box_nms", data, spec)
    return [op.reshape(remaining, c.shape), op.reshape(indices, (*outer, rows, 1))]


def _column(data: relax.Expr, number: int, axis: int) -> relax.Expr:
    return op.strided_slice(data, [axis], [number], [number + 1])


def _columns(data: relax.Expr, axis: int) -> list[relax.Expr]:
    """Return the four coordinates of boxes, which lie along an axis, as columns."""
    return [_column(data, number, axis) for number in range(4)]


def _box_of_center(c: Call, boxes: list[relax.Expr]) -> list[relax.Expr]:
    """Return the centre x, centre y, width and height of boxes that are given by their corners."""
    left, top, right, bottom = boxes
    width, height = right - left, bottom - top
    half = c.const(0.5, "float32")
    return [left + width * half, top + height * half, width, height]


@converts("_contrib_box_decode")
def _box_decode(c: Call):
    anchors = _columns(c.inputs[1], len(shape_of(c.inputs[1])) - 1)
    if c.get("format", "center") == "corner":
        anchors = _box_of_center(c, anchors)
    scales = [float(c.get(f"std{n}", 1.0)) for n in range(4)]
    return _decoded(c, c.x, anchors, scales, c.rank - 1, float(c.get("clip", -1.0)))


def _decoded(c: Call, offsets, anchors: list, scales: list[float], axis: int, limit: float = -1.0):
    """Return the corners of boxes from their offsets to anchors: centre x, centre y, width, height."""
    offsets = _columns(offsets, axis)
    low, high = [], []
    for n in (0, 1):
        middle = offsets[n] * c.const(scales[n], "float32") * anchors[n + 2] + anchors[n]
        grown = offsets[n + 2] * c.const(scales[n + 2], "float32")
        if limit > 0:
            grown = op.minimum(grown, c.const(limit, "float32"))
        reach = op.exp(grown) * anchors[n + 2] * c.const(0.5, "float32")
        low.append(middle - reach)
        high.append(middle + reach)
    return op.concat([*low, *high], axis)


@converts("_contrib_box_iou")
def _box_iou(c: Call):
    c.refuse(format=("corner",))
    outer, others = c.shape[:-1], shape_of(c.inputs[1])[:-1]
    a = [op.reshape(each, (*outer, *[1] * len(others))) for each in _columns(c.x, len(outer))]
    b = [op.reshape(each, others) for each in _columns(c.inputs[1], len(others))]
    zero = c.const(0, "float32")
    sides = [op.maximum(op.minimum(a[n + 2], b[n + 2]) - op.maximum(a[n], b[n]), zero) for n in (0, 1)]
    areas = [op.maximum(box[2] - box[0], zero) * op.maximum(box[3] - box[1], zero) for box in (a, b)]
    shared = sides[0] * sides[1]
    union = areas[0] + areas[1] - shared
    return op.where(op.greater(union, zero), shared / union, zero)


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
    scores, offsets, anchors = c.inputs
    batch, classes, count = shape_of(scores)
    background, least = int(c.get("background_id", 0)), float(c.get("threshold", 0.01))
    c.refuse_if(background != 0, f"background_id={background}")
    real = op.strided_slice(scores, [1], [1], [classes])
    kind = op.astype(op.expand_dims(op.argmax(real, 1), 2), "float32")
    best = op.expand_dims(op.max(real, [1]), 2)
    best = op.where(op.less(best, c.const(least, "float32")), c.const(-1, "float32"), best)
    variances = [float(v) for v in c.get("variances", (0.1, 0.1, 0.2, 0.2))]
    centers = _box_of_center(c, _columns(anchors, 2))
    boxes = _decoded(c, op.reshape(offsets, (batch, count, 4)), centers, variances, 2)
    if c.get("clip", True):
        boxes = op.clip(boxes, 0, 1)
    overlap, topk = float(c.get("nms_threshold", 0.5)), int(c.get("nms_topk", -1))
    force = bool(c.get("force_suppress", False))
    spec = NmsSpec(overlap, topk=topk, id_index=0, force=force, in_place=True)
    return _remaining(c, "multibox_detection", c.emit(op.concat([kind, best, boxes], 2)), spec)[0]


# ---------------------------------------------------------------- regions


@converts("_contrib_ROIAlign")
def _roi_align(c: Call):
    c.refuse(position_sensitive=(False,))
    scale, aligned = float(c.need("spatial_scale")), bool(c.get("aligned", False))
    rois, valid = _regions(c)
    if aligned:  # the centres of pixels are at halves, which TVM leaves to the caller
        rois = op.subtract(rois, c.const([0, *[0.5 / scale] * 4], "float32"))
    size, samples = c.integers("pooled_size", 2, 1), int(c.get("sample_ratio", -1))
    pooled = op.vision.roi_align(c.x, rois, size, scale, samples, aligned, layout="NCHW", mode="avg")
    return op.where(valid, pooled, c.const(0.0, "float32"))


@converts("ROIPooling")
def _roi_pooling(c: Call):
    rois, _ = _regions(c)
    size = c.integers("pooled_size", 2, 1)
    return op.vision.roi_pool(c.x, rois, size, float(c.need("spatial_scale")), "NCHW")


def _regions(c: Call) -> tuple[relax.Expr, relax.Expr]:
    """Return rows of (valid image index, corners), and which rows named one: bool (rows, 1, 1, 1).

    Networks with feature maps of several sizes give each region to one map, and to the others with index -1.
    """
    rows, images = shape_of(c.inputs[1])[0], shape_of(c.x)[0]
    image, corners = _column(c.inputs[1], 0, 1), op.strided_slice(c.inputs[1], [1], [1], [5])
    valid = op.greater_equal(image, c.const(0.0, "float32"))
    return op.concat([op.clip(image, 0, images - 1), corners], 1), op.reshape(valid, (rows, 1, 1, 1))
