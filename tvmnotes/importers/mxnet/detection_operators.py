"""Converters of MXNet's detection operators (see call.py): anchors, boxes, their suppression, regions.

Sources: MXNet 1.9.1, src/operator/contrib: bounding_box-inl.h, multibox_prior.cc, multibox_detection.cc,
roi_align.cc.
"""

import math
from dataclasses import asdict, dataclass

import numpy as np
import tvm
from tvm import relax
from tvm.relax import op
from tvm.script import tirx as T

from ...base.relax import OPAQUE
from ...base.workarounds import fast_tvmscript_parser
from ...compiler.cuda_nms import ATTRIBUTE
from ...compiler.cuda_topk import sortable
from .call import Call, converts, shape_of

# ---------------------------------------------------------------- kernels


@fast_tvmscript_parser()
def best_places(rows: int, length: int, count: int) -> tvm.tirx.PrimFunc:
    """Make a kernel that finds the `count` largest scores of each row of (rows, length) float32.

    It writes their indices, places (rows, count) int32, and best (rows, count) float32, in the order of the
    row; of equal ones the first are taken. Sorting all scores would take a detector longer than its
    convolutions, so this first finds the smallest of the best by radix selection: it counts how often each
    pattern of the first 11 bits occurs, then of the next 11 among those that match, then of the last 10.
    """

    @T.prim_func(s_tir=True)
    def main(
        scores: T.Buffer((rows, length), "float32"),
        places: T.Buffer((rows, count), "int32"),
        best: T.Buffer((rows, count), "float32"),
    ):
        T.func_attr({"tirx.noalias": True, "op_pattern": OPAQUE})
        with T.sblock("best_places"):
            histogram = T.sblock_alloc_buffer((2048,), "int32")
            state = T.sblock_alloc_buffer((3,), "int32")  # still to find, the bin, indices written
            least = T.sblock_alloc_buffer(
                (1,), "uint32"
            )  # the first bits of the smallest that is kept, as far as known
            key = T.sblock_alloc_buffer((1,), "uint32")
            for row in range(rows):
                state[0] = count
                least[0] = T.uint32(0)
                for part in T.unroll(3):
                    for each in range(2048):
                        histogram[each] = 0
                    for at in range(length):
                        key[0] = sortable(scores[row, at])
                        if part == 0:
                            histogram[T.Cast("int32", key[0] >> T.uint32(21))] += 1
                        elif part == 1:
                            if (key[0] >> T.uint32(21)) == least[0]:
                                histogram[T.Cast("int32", (key[0] >> T.uint32(10)) & T.uint32(2047))] += 1
                        else:
                            if (key[0] >> T.uint32(10)) == least[0]:
                                histogram[T.Cast("int32", key[0] & T.uint32(1023))] += 1
                    state[1] = T.if_then_else(part == 2, 1023, 2047)
                    while histogram[state[1]] < state[0]:
                        state[0] = state[0] - histogram[state[1]]
                        state[1] = state[1] - 1
                    least[0] = T.if_then_else(
                        part == 2, least[0] << T.uint32(10), least[0] << T.uint32(11)
                    ) + T.Cast("uint32", state[1])
                state[2] = 0
                for at in range(length):
                    key[0] = sortable(scores[row, at])
                    if key[0] > least[0]:
                        places[row, state[2]] = at
                        best[row, state[2]] = scores[row, at]
                        state[2] = state[2] + 1
                    elif key[0] == least[0] and state[0] > 0:
                        places[row, state[2]] = at
                        best[row, state[2]] = scores[row, at]
                        state[0] = state[0] - 1
                        state[2] = state[2] + 1

    return main.with_attr(ATTRIBUTE, {"kernel": "best_places"})


@fast_tvmscript_parser()
def suppressed(batch: int, rows: int, width: int, count: int, c: "Suppression") -> tvm.tirx.PrimFunc:
    """Make a kernel of data (batch, rows, width) and order (batch, count) int32, the rows by falling score.

    It writes the rows that remain, in that order and followed by -1, to kept (batch, rows, width), and their
    indices to places (batch, rows, 1).
    """
    x, score, kind, background = c.coord_start, c.score_index, c.id_index, c.background_id
    valid, threshold = c.valid_thresh, c.overlap_thresh
    center, force, beaten = c.center, c.force, 2 * c.in_place

    @T.prim_func
    def main(
        data: T.Buffer((batch, rows, width), "float32"),
        order: T.Buffer((batch, count), "int32"),
        kept: T.Buffer((batch, rows, width), "float32"),
        places: T.Buffer((batch, rows, 1), "float32"),
    ):
        T.func_attr({"tirx.noalias": True, "op_pattern": OPAQUE})
        for n in range(batch):
            corners = T.alloc_buffer((4, count), "float32")  # of the boxes, in order, contiguous
            area = T.alloc_buffer((count,), "float32")
            of = T.alloc_buffer((count,), "float32")  # their class, or 0 for all if it does not matter
            alive = T.alloc_buffer((count,), "int32")
            written = T.alloc_buffer((1,), "int32", scope="local")
            for i in range(count):
                row: T.int32 = order[n, i]
                alive[i] = T.Cast("int32", data[n, row, score] > T.float32(valid))
                of[i] = T.float32(0)
                if kind >= 0:
                    if data[n, row, kind] == T.float32(background):
                        alive[i] = 0
                    if not force:
                        of[i] = data[n, row, kind]
                if center:
                    corners[0, i] = data[n, row, x] - data[n, row, x + 2] / T.float32(2)
                    corners[1, i] = data[n, row, x + 1] - data[n, row, x + 3] / T.float32(2)
                    corners[2, i] = data[n, row, x] + data[n, row, x + 2] / T.float32(2)
                    corners[3, i] = data[n, row, x + 1] + data[n, row, x + 3] / T.float32(2)
                    area[i] = data[n, row, x + 2] * data[n, row, x + 3]
                else:
                    for side in T.unroll(4):
                        corners[side, i] = data[n, row, x + side]
                    area[i] = T.if_then_else(
                        T.Or(corners[2, i] < corners[0, i], corners[3, i] < corners[1, i]),
                        T.float32(0),
                        (corners[2, i] - corners[0, i]) * (corners[3, i] - corners[1, i]),
                    )
            written[0] = 0
            for i in range(count):
                if alive[i] == 1:
                    for j in range(count - 1 - i):
                        k: T.int32 = i + 1 + j
                        across: T.float32 = T.max(
                            T.min(corners[2, i], corners[2, k]) - T.max(corners[0, i], corners[0, k]),
                            T.float32(0),
                        )
                        down: T.float32 = T.max(
                            T.min(corners[3, i], corners[3, k]) - T.max(corners[1, i], corners[1, k]),
                            T.float32(0),
                        )
                        both: T.float32 = across * down
                        beats = T.And(
                            both / (area[i] + area[k] - both) > T.float32(threshold), of[i] == of[k]
                        )
                        alive[k] = T.Select(T.And(beats, alive[k] == 1), beaten, alive[k])
                if alive[i] >= 1:
                    places[n, written[0], 0] = T.Cast("float32", order[n, i])
                    for field in range(width):
                        kept[n, written[0], field] = data[n, order[n, i], field]
                    if alive[i] == 2:
                        kept[n, written[0], kind] = T.float32(-1)
                    written[0] = written[0] + 1
            for i in range(rows - written[0]):
                places[n, written[0] + i, 0] = T.float32(-1)
                for field in range(width):
                    kept[n, written[0] + i, field] = T.float32(-1)

    return main.with_attr(ATTRIBUTE, {"kernel": "suppressed", **asdict(c)})


@dataclass(frozen=True)
class Suppression:
    """The parameters of box suppression: the attributes of box_nms, with `center` for its in_format."""

    overlap_thresh: float = 0.5
    valid_thresh: float = 0.0
    topk: int = -1
    coord_start: int = 2
    score_index: int = 1
    id_index: int = -1
    background_id: int = -1
    force: bool = False
    center: bool = False
    in_place: bool = False  # suppressed rows keep their position, with class -1


# ---------------------------------------------------------------- non-maximum suppression


def _remaining(c: Call, name: str, data: relax.Expr, how: Suppression) -> list[relax.Expr]:
    """Suppress rows of data (batch, rows, width); return the remaining rows and their indices."""
    batch, rows, width = shape_of(data)
    order = _by_score(c, data, how)
    kernel = suppressed(batch, rows, width, shape_of(order)[1], how)
    results = ((batch, rows, width), "float32"), ((batch, rows, 1), "float32")
    return _call(c, name, kernel, [data, order], *results)


def _by_score(c: Call, data: relax.Expr, how: Suppression) -> relax.Expr:
    """Return the rows of data (batch, rows, width) by falling score, int32: the best `topk`, or all."""
    batch, rows, _ = shape_of(data)
    scores = op.squeeze(_column(data, how.score_index, 2), [2])
    if how.id_index >= 0:  # background must not be among the best
        kinds = op.squeeze(_column(data, how.id_index, 2), [2])
        background = op.equal(kinds, c.const(how.background_id, "float32"))
        scores = op.where(background, c.const(-np.inf, "float32"), scores)
    if not 0 < how.topk < rows:
        return c.emit(op.argsort(scores, 1, descending=True, dtype="int32"))
    shape, kernel = (batch, how.topk), best_places(batch, rows, how.topk)
    places, best = _call(c, "best_places", kernel, [c.emit(scores)], (shape, "int32"), (shape, "float32"))
    return c.emit(op.gather_elements(places, op.argsort(best, 1, descending=True, dtype="int32"), 1))


def _call(c: Call, name: str, kernel, inputs: list[relax.Expr], *results: tuple) -> list[relax.Expr]:
    """Call a kernel that returns two arrays, of these shapes and dtypes."""
    types = [relax.TensorType(shape, dtype) for shape, dtype in results]
    function = c.builder.add_func(kernel.without_attr("global_symbol"), name)
    both = c.emit(relax.call_tir(function, inputs, types))
    return [relax.TupleGetItem(both, n) for n in (0, 1)]


@converts("_contrib_box_nms", "_contrib_box_non_maximum_suppression")
def _box_nms(c: Call):
    how = Suppression(
        float(c.get("overlap_thresh", 0.5)),
        float(c.get("valid_thresh", 0)),
        int(c.get("topk", -1)),
        int(c.get("coord_start", 2)),
        int(c.get("score_index", 1)),
        int(c.get("id_index", -1)),
        int(c.get("background_id", -1)),
        bool(c.get("force_suppress", False)),
        c.get("in_format", "corner") == "center",
    )
    if c.get("in_format", "corner") != c.get("out_format", "corner"):
        raise NotImplementedError("an out_format other than the in_format")
    *outer, rows, width = c.shape
    data = c.x if len(outer) == 1 else c.emit(op.reshape(c.x, (math.prod(outer), rows, width)))
    kept, places = _remaining(c, "box_nms", data, how)
    return [op.reshape(kept, c.shape), op.reshape(places, (*outer, rows, 1))]


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


def _decoded(
    c: Call, offsets, anchors: list[relax.Expr], scales: list[float], axis: int, limit: float = -1.0
):
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
    if c.get("format", "corner") != "corner":
        raise NotImplementedError("format=center")
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
    if background != 0:
        raise NotImplementedError(f"background_id={background}")
    real = op.strided_slice(scores, [1], [1], [classes])
    kind = op.astype(op.expand_dims(op.argmax(real, 1), 2), "float32")
    best = op.expand_dims(op.max(real, [1]), 2)
    best = op.where(op.less(best, c.const(least, "float32")), c.const(-1, "float32"), best)
    variances = [float(v) for v in c.get("variances", (0.1, 0.1, 0.2, 0.2))]
    centers = _box_of_center(c, _columns(anchors, 2))
    boxes = _decoded(c, op.reshape(offsets, (batch, count, 4)), centers, variances, 2)
    if c.get("clip", True):
        boxes = op.clip(boxes, 0, 1)
    how = Suppression(
        overlap_thresh=float(c.get("nms_threshold", 0.5)),
        topk=int(c.get("nms_topk", -1)),
        id_index=0,
        force=bool(c.get("force_suppress", False)),
        in_place=True,
    )
    return _remaining(c, "multibox_detection", c.emit(op.concat([kind, best, boxes], 2)), how)[0]


# ---------------------------------------------------------------- regions


@converts("_contrib_ROIAlign")
def _roi_align(c: Call):
    if c.get("position_sensitive", False):
        raise NotImplementedError("position_sensitive=True")
    scale, aligned = float(c.need("spatial_scale")), bool(c.get("aligned", False))
    rois, valid = _regions(c)
    if aligned:  # the centres of pixels are at halves, which TVM leaves to the caller
        rois = op.subtract(rois, c.const([0, *[0.5 / scale] * 4], "float32"))
    size, samples = c.numbers("pooled_size", 2, 1), int(c.get("sample_ratio", -1))
    pooled = op.vision.roi_align(c.x, rois, size, scale, samples, aligned, layout="NCHW", mode="avg")
    return op.where(valid, pooled, c.const(0.0, "float32"))


@converts("ROIPooling")
def _roi_pooling(c: Call):
    rois, _ = _regions(c)
    size = c.numbers("pooled_size", 2, 1)
    return op.vision.roi_pool(c.x, rois, size, float(c.need("spatial_scale")), "NCHW")


def _regions(c: Call) -> tuple[relax.Expr, relax.Expr]:
    """Return rows of (valid image index, corners), and which rows named one: bool (rows, 1, 1, 1).

    Networks with feature maps of several sizes give each region to one map, and to the others with index -1.
    """
    rows, images = shape_of(c.inputs[1])[0], shape_of(c.x)[0]
    image, corners = _column(c.inputs[1], 0, 1), op.strided_slice(c.inputs[1], [1], [1], [5])
    valid = op.greater_equal(image, c.const(0.0, "float32"))
    return op.concat([op.clip(image, 0, images - 1), corners], 1), op.reshape(valid, (rows, 1, 1, 1))
