"""Top-k and non-maximum suppression as sequential loops for a CPU."""

import numpy as np
import tvm
from tvm import tirx
from tvm.script import tirx as T

from ...core.compat import OPAQUE, fast_tvmscript_parser
from .arithmetic import box_area, decode, iou, overlap, sortable
from .spec import NmsSpec, TopKSpec, with_spec


@fast_tvmscript_parser()
def best_indices(rows: int, length: int, count: int) -> tvm.tirx.PrimFunc:
    """Make a kernel that finds the `count` largest scores of each row of (rows, length) float32.

    It writes their indices (rows, count) int32, and best (rows, count) float32, in the order of the
    row; of equal ones the first are taken. Sorting all scores would take a detector longer than its
    convolutions, so this first finds the smallest of the best by radix selection: it counts how often each
    pattern of the first 11 bits occurs, then of the next 11 among those that match, then of the last 10.
    """

    @T.prim_func(s_tir=True)
    def main(
        scores: T.Buffer((rows, length), "float32"),
        indices: T.Buffer((rows, count), "int32"),
        best: T.Buffer((rows, count), "float32"),
    ):
        T.func_attr({"tirx.noalias": True, "op_pattern": OPAQUE})
        with T.sblock("best_indices"):
            histogram = T.sblock_alloc_buffer((2048,), "int32")
            state = T.sblock_alloc_buffer((3,), "int32")  # still to find, the bin, indices written
            least = T.sblock_alloc_buffer((1,), "uint32")  # first bits of the smallest kept, as far as known
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
                        indices[row, state[2]] = at
                        best[row, state[2]] = scores[row, at]
                        state[2] = state[2] + 1
                    elif key[0] == least[0] and state[0] > 0:
                        indices[row, state[2]] = at
                        best[row, state[2]] = scores[row, at]
                        state[0] = state[0] - 1
                        state[2] = state[2] + 1

    return with_spec(main, TopKSpec())


@fast_tvmscript_parser()
def suppressed(
    batch: int, rows: int, width: int, count: int, spec: NmsSpec, dtype: str = "float32"
) -> tvm.tirx.PrimFunc:
    """Make a kernel of data (batch, rows, width) and order (batch, count) int32, the rows by falling score.

    It writes the rows that remain, in that order and followed by -1, to kept (batch, rows, width), and their
    indices to indices (batch, rows, 1).
    """
    x, score = spec.coord_start, spec.score_index
    kind, background = spec.id_index, spec.background_id
    thresholds = (spec.valid_thresh, spec.overlap_thresh)  # in MXNet of float32
    valid, threshold = (tirx.const(float(np.float32(each)), dtype) for each in thresholds)
    center, force = spec.center, spec.force
    beaten, number = 2 * spec.in_place, getattr(T, dtype)

    @T.prim_func
    def main(
        data: T.Buffer((batch, rows, width), dtype),
        order: T.Buffer((batch, count), "int32"),
        kept: T.Buffer((batch, rows, width), dtype),
        indices: T.Buffer((batch, rows, 1), dtype),
    ):
        T.func_attr({"tirx.noalias": True, "op_pattern": OPAQUE})
        for n in range(batch):
            corners = T.alloc_buffer((4, count), dtype)  # of the boxes, in order, contiguous
            area = T.alloc_buffer((count,), dtype)
            of = T.alloc_buffer((count,), dtype)  # their class, or 0 for all if it does not matter
            alive = T.alloc_buffer((count,), "int32")
            written = T.alloc_buffer((1,), "int32", scope="local")
            for i in range(count):
                row: T.int32 = order[n, i]
                alive[i] = T.Cast("int32", data[n, row, score] > valid)
                of[i] = T.Cast(dtype, 0)
                if kind >= 0:
                    if data[n, row, kind] == T.Cast(dtype, background):
                        alive[i] = 0
                    if not force:
                        of[i] = data[n, row, kind]
                if center:
                    corners[0, i] = decode(data, n, row, x)[0]
                    corners[1, i] = decode(data, n, row, x)[1]
                    corners[2, i] = decode(data, n, row, x)[2]
                    corners[3, i] = decode(data, n, row, x)[3]
                    area[i] = data[n, row, x + 2] * data[n, row, x + 3]
                else:
                    for side in T.unroll(4):
                        corners[side, i] = data[n, row, x + side]
                    area[i] = box_area(corners[0, i], corners[1, i], corners[2, i], corners[3, i], dtype)
            written[0] = 0
            for i in range(count):
                if alive[i] == 1:
                    for j in range(count - 1 - i):
                        k: T.int32 = i + 1 + j
                        across: number = overlap(
                            corners[0, i], corners[2, i], corners[0, k], corners[2, k], dtype
                        )
                        down: number = overlap(
                            corners[1, i], corners[3, i], corners[1, k], corners[3, k], dtype
                        )
                        both: number = across * down
                        beats = T.And(iou(both, area[i], area[k]) > threshold, of[i] == of[k])
                        alive[k] = T.Select(T.And(beats, alive[k] == 1), beaten, alive[k])
                if alive[i] >= 1:
                    indices[n, written[0], 0] = T.Cast(dtype, order[n, i])
                    for field in range(width):
                        kept[n, written[0], field] = data[n, order[n, i], field]
                    if alive[i] == 2:
                        kept[n, written[0], kind] = T.Cast(dtype, -1)
                    written[0] = written[0] + 1
            for i in range(rows - written[0]):
                indices[n, written[0] + i, 0] = T.Cast(dtype, -1)
                for field in range(width):
                    kept[n, written[0] + i, field] = T.Cast(dtype, -1)

    return with_spec(main, spec)
