"""Parallelize top-k and non-maximum suppression on a GPU; `pipeline.passes` runs this for target "cuda".

The kernels of `kernels/detection/nms.py` are loops whose iterations depend on each other; on a GPU they would
run in a single thread (`gpu.one_thread`). Here each becomes a sequence of kernels in which every thread
counts or compares by itself:

- The best scores are found by counting, as in `topk.py`.
- Suppression compares all pairs of boxes at once, one bit per pair; only then does it test one box after
  another, 32 at a time, for whether it is left (`greedy_sweep`).

dlight schedules them like all others, except those with threads of their own (`gpu.has_threads`). The
arithmetic is that of the loops, element by element, so the results are equal.
"""

from functools import partial

import tvm
from tvm import relax, te, tirx
from tvm.script import tirx as T

from ...core.compat import OPAQUE, fast_tvmscript_parser
from ...core.relax import field_of_tuple, on_each_function, round_up, static_shape
from ...kernels.detection.arithmetic import box_area, decode, iou, overlap, uint32
from ...kernels.detection.spec import NmsSpec, TopKSpec, spec_of
from . import topk
from .topk import WORD, a_thread_each

_FIELDS = 7  # per box, for suppression
_LARGEST_MASK = 64 << 20  # bytes


def parallelize_detection() -> tvm.transform.Pass:
    """Make the pass that replaces calls of kernels that carry a spec by calls of parallel ones.

    A suppression stays in a single thread if it is not of float32, or if its mask, one bit for each pair of
    boxes, would take more than 64 MB: with more than 23,168 boxes of one image.
    """
    return on_each_function("DetectionInParallel", _Rewrite, adds_kernels=True, needs=spec_of)


@relax.expr_functor.mutator
class _Rewrite(relax.PyExprMutator):
    def __init__(self, mod):
        super().__init__(mod)
        self.mod = mod

    def visit_function_(self, func):
        return relax.analysis.remove_all_unused(super().visit_function_(func))

    def visit_call_(self, call):
        call = self.visit_expr_post_order(call)
        if getattr(call.op, "name", "") != "relax.call_tir":
            return call
        spec = spec_of(self.mod[call.args[0]])
        if spec is None:
            return call
        inputs, shapes = call.args[1].fields, [static_shape(result) for result in call.ty.fields]
        if isinstance(spec, TopKSpec):
            return relax.Tuple(self._best_indices(*inputs, shapes[0][1]))
        results = self._suppressed(*inputs, spec)
        return relax.Tuple(results) if results else call

    def visit_tuple_getitem_(self, item):
        return field_of_tuple(self, self.visit_expr_post_order(item))

    def _best_indices(self, scores, count):
        emit = self._emit
        rows, length = static_shape(scores.ty)
        keys, bounds = emit(topk.sort_keys, scores), emit(topk.first_bounds, rows)
        for _ in range(32 // topk.DIGIT):
            reached = emit(topk.totals, emit(topk.at_least, keys, bounds))
            bounds = emit(topk.next_bounds, reached, bounds, count)
        counts = [keys, emit(topk.above_and_equal, keys, bounds)]
        for _ in range(2):
            counts.append(emit(topk.sums, counts[-1]))
        kernel = topk.chosen(rows, length, count, [static_shape(each.ty)[-1] for each in counts])
        types = [relax.TensorType((rows, count), dtype) for dtype in ("int32", "float32")]
        return self._call(kernel, [scores, bounds, *counts], types)

    def _suppressed(self, data, order, spec):
        emit = self._emit
        batch, rows, width = static_shape(data.ty)
        count = static_shape(order.ty)[1]
        words = round_up(int(count), WORD) // WORD
        if str(data.ty.dtype) != "float32" or 4 * batch * words * words * WORD > _LARGEST_MASK:
            return None
        boxes = emit(boxes_in_order, data, order, spec=spec)
        start = emit(alive, boxes)
        mask_type = relax.TensorType((batch, words * WORD, words), "uint32")
        (mask,) = self._call(iou_mask(batch, words, spec.overlap_thresh), [boxes], [mask_type])
        (left,) = self._call(greedy_sweep(batch, words), [start, mask], [start.ty])
        stay = start if spec.in_place else left
        types = [relax.TensorType((batch, rows, n), "float32") for n in (width, 1)]
        field = spec.id_index if spec.in_place else -1
        kernel = compact(batch, rows, width, count, words, field)
        return self._call(kernel, [data, order, stay, left], types)

    def _emit(self, compute, *args, **options):
        named = {"primfunc_name_hint": compute.__name__, "primfunc_attrs": {"op_pattern": OPAQUE}}
        return self.builder_.emit(self.builder_.call_te(partial(compute, **options), *args, **named))

    def _call(self, kernel, inputs, types):
        name = str(kernel.attrs["global_symbol"])
        kernel = kernel.without_attr("global_symbol").with_attr({"tirx.noalias": True, "op_pattern": OPAQUE})
        var = self.builder_.add_func(kernel, name)
        result = self.builder_.emit(relax.call_tir(var, inputs, types if len(types) > 1 else types[0]))
        if len(types) == 1:
            return [result]
        return [self.builder_.emit(relax.TupleGetItem(result, n)) for n in range(len(types))]


# ---------------------------------------------------------------- the kernels of a suppression


def boxes_in_order(data, order, spec: NmsSpec):
    """Compute corners, area, class and validity (1 or 0) of each box, in order.

    The result is float32 (batch, 7, count), with count padded to a multiple of 32 by boxes that are not
    valid.
    """
    batch, count = order.shape
    x, score = spec.coord_start, spec.score_index
    kind = spec.id_index
    constants = 0.0, 1.0, spec.valid_thresh, float(spec.background_id)
    zero, one, valid, background = (tirx.const(value, "float32") for value in constants)

    def fields(n, which, i):
        row = order[n, te.min(i, count - 1)]
        a, b, c, d = (data[n, row, x + side] for side in range(4))
        if spec.center:
            corners, area = decode(data, n, row, x), c * d
        else:
            corners, area = [a, b, c, d], box_area(a, b, c, d)
        real = tirx.all(i < count, data[n, row, score] > valid)
        if kind >= 0:
            real = tirx.all(real, data[n, row, kind] != background)
        field = tirx.if_then_else(real, one, zero)
        class_ = data[n, row, kind] if kind >= 0 and not spec.force else zero
        for each, value in enumerate([*corners, area, class_]):
            field = tirx.if_then_else(which == each, value, field)
        return field

    return te.compute((batch, _FIELDS, round_up(int(count), WORD)), fields)


def alive(boxes):
    """Pack the last field of `boxes_in_order` into bits: uint32 (batch, words)."""
    batch, _, count = (int(n) for n in boxes.shape)

    def word(n, w):
        valid = [boxes[n, _FIELDS - 1, w * WORD + bit] > 0 for bit in range(WORD)]
        return sum(each.astype("uint32") << uint32(bit) for bit, each in enumerate(valid))

    return te.compute((batch, count // WORD), word)


@fast_tvmscript_parser()
def iou_mask(batch: int, words: int, threshold: float):
    """Make the kernel of the mask of suppressions: per box, a bit for each later box that it would suppress.

    A thread computes a word.
    """

    @T.prim_func(s_tir=True)
    def beaten(
        boxes: T.Buffer((batch, _FIELDS, words * 32), "float32"),
        mask: T.Buffer((batch, words * 32, words), "uint32"),
    ):
        for image, word, box in T.grid(batch, words, words * 32):
            with T.sblock("beaten"):
                n, w, i = T.axis.remap("SSS", [image, word, box])
                T.reads(boxes[n, 0:_FIELDS, 0 : words * 32])
                T.writes(mask[n, i, w])
                bits = T.sblock_alloc_buffer((1,), "uint32", scope="local")
                bits[0] = T.uint32(0)
                if w * 32 + 31 > i:
                    for bit in range(32):
                        k: T.int32 = w * 32 + bit
                        across: T.float32 = overlap(
                            boxes[n, 0, i], boxes[n, 2, i], boxes[n, 0, k], boxes[n, 2, k]
                        )
                        down: T.float32 = overlap(
                            boxes[n, 1, i], boxes[n, 3, i], boxes[n, 1, k], boxes[n, 3, k]
                        )
                        both: T.float32 = across * down
                        beats = T.And(
                            iou(both, boxes[n, 4, i], boxes[n, 4, k]) > T.float32(threshold),
                            boxes[n, 5, i] == boxes[n, 5, k],
                        )
                        if T.And(beats, k > i):
                            bits[0] = bits[0] | (T.uint32(1) << T.Cast("uint32", bit))
                mask[n, i, w] = bits[0]

    return beaten


@fast_tvmscript_parser()
def greedy_sweep(batch: int, words: int):
    """Make the kernel that goes through the boxes in order, 32 at a time, and drops the suppressed ones.

    It has a block for each image and a thread for each word. When a word's turn comes, what its boxes have
    lost to earlier ones is known: all threads read it and resolve these 32 among themselves, then each drops
    from its own word those that the remaining ones suppress.
    """

    @T.prim_func(s_tir=True)
    def sweep(
        start: T.Buffer((batch, words), "uint32"),
        mask: T.Buffer((batch, words * 32, words), "uint32"),
        left: T.Buffer((batch, words), "uint32"),
    ):
        for image in T.thread_binding(batch, "blockIdx.x"):
            with T.sblock("sweep"):
                n = T.axis.spatial(batch, image)
                T.reads(start[n, 0:words], mask[n, 0 : words * 32, 0:words])
                T.writes(left[n, 0:words])
                mine = T.sblock_alloc_buffer((words,), "uint32", scope="local")
                now = T.sblock_alloc_buffer((words,), "uint32", scope="local")
                known = T.sblock_alloc_buffer((words,), "uint32", scope="shared")
                for t in T.thread_binding(words, "threadIdx.x"):
                    mine[t] = start[n, t]
                for w in range(words):
                    for t in T.thread_binding(words, "threadIdx.x"):
                        if t == w:
                            known[w] = mine[t]
                    # TVM puts a barrier here, and one before the next round.
                    for t in T.thread_binding(words, "threadIdx.x"):
                        now[t] = known[w]
                        for bit in T.unroll(32):
                            now[t] = now[t] & _unbeaten(mask[n, w * 32 + bit, w], now[t], bit)
                        if t == w:
                            left[n, w] = now[t]
                        if t > w:
                            for bit in T.unroll(32):
                                mine[t] = mine[t] & _unbeaten(mask[n, w * 32 + bit, t], now[t], bit)

    return sweep


def _unbeaten(beaten, left, bit):
    """Return all bits except those of boxes that a box suppresses if it is `left`.

    It is a product, so that loading `beaten` does not wait for `left`. (TVM 0.27 simplifies x & ((y & 1) - 1)
    of uint32 to 0.)
    """
    return (beaten * ((left >> T.Cast("uint32", bit)) & T.uint32(1))) ^ T.uint32(0xFFFFFFFF)


@fast_tvmscript_parser()
def compact(batch: int, rows: int, width: int, count: int, words: int, kind: int):
    """Make the kernel that moves the rows that stay to the front; the rows after the last are -1.

    `kind`: the field that becomes -1 in rows that stay but are not `left`; -1 if there are none.
    """

    @T.prim_func(s_tir=True)
    def remaining(
        data: T.Buffer((batch, rows, width), "float32"),
        order: T.Buffer((batch, count), "int32"),
        stay: T.Buffer((batch, words), "uint32"),
        left: T.Buffer((batch, words), "uint32"),
        kept: T.Buffer((batch, rows, width), "float32"),
        indices: T.Buffer((batch, rows, 1), "float32"),
    ):
        for image, row in T.grid(batch, rows):
            with T.sblock("remaining"):
                n, i = T.axis.remap("SS", [image, row])
                T.reads(data[n, 0:rows, 0:width], order[n, 0:count], stay[n, 0:words], left[n, 0:words])
                T.writes(kept[n, 0:rows, 0:width], indices[n, 0:rows, 0])
                # How many rows stay: before this row's word, and in all.
                staying = T.sblock_alloc_buffer((2,), "int32", scope="local")
                staying[0] = 0
                staying[1] = 0
                for w in range(words):
                    if w == i // 32:
                        staying[0] = staying[1]
                    staying[1] += T.Cast("int32", T.popcount(stay[n, w]))
                if i >= staying[1]:
                    indices[n, i, 0] = T.float32(-1)
                    for field in range(width):
                        kept[n, i, field] = T.float32(-1)
                if i < count:
                    bit: T.uint32 = T.uint32(1) << T.Cast("uint32", i % 32)
                    if (stay[n, i // 32] & bit) != T.uint32(0):
                        at: T.int32 = staying[0] + T.Cast(
                            "int32", T.popcount(stay[n, i // 32] & (bit - T.uint32(1)))
                        )
                        indices[n, at, 0] = T.Cast("float32", order[n, i])
                        for field in range(width):
                            kept[n, at, field] = data[n, order[n, i], field]
                        if kind >= 0:  # noqa: SIM102 (this is known now, the other when it runs)
                            if (left[n, i // 32] & bit) == T.uint32(0):
                                kept[n, at, kind] = T.float32(-1)

    return a_thread_each(remaining)
