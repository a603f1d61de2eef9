"""On a GPU a detector's last steps become the work of many threads: `pipeline.passes` has this for target "cuda".

The kernels `best_places` and `suppressed` of importers/mxnet/detection_operators.py are loops for a CPU, each step
of which depends on the one before; on a GPU they would be a single thread's work (`cuda.one_thread`). Here each becomes
a sequence of kernels in which every thread counts or compares for itself:

- The best scores are found by counting, as `cuda_topk.py` says.
- For a suppression all pairs of boxes are compared at once, a bit for each; only then one box after another is asked
  whether it is left, 32 at a time (`sweep`).

dlight schedules them as it does all others, except for those that know their threads themselves (`cuda.has_threads`).
The arithmetic is that of the loops, number by number, so the results are the same.
"""

import tvm
from tvm import relax, te, tirx
from tvm.script import tirx as T

from ..base.integers import round_up
from ..base.relax import OPAQUE, fixed_shape
from ..base.workarounds import fast_tvmscript_parser
from . import cuda_topk as topk
from .cuda_topk import WORD, a_thread_each, uint32

ATTRIBUTE = "detection"  # of the loops: which kernel, and its parameters
_FIELDS = 7  # of a box, for its suppression
_LARGEST_MASK = 64 << 20  # bytes


def parallelize_detection() -> tvm.transform.Pass:
    """Make the pass that turns calls of kernels with the attribute "detection" into calls of parallel ones.

    A suppression stays as it is, and with it the work of one thread, where its table of who beats whom, a bit for each
    pair of boxes, would take more than 64 MB: with more than 23,168 boxes of one picture.
    """

    @tvm.transform.module_pass(opt_level=0, name="DetectionInParallel")
    def run(mod, _context):
        if not any(ATTRIBUTE in (func.attrs or {}) for func in mod.functions.values()):
            return mod
        rewrite = _Rewrite(mod)
        main = relax.analysis.remove_all_unused(rewrite.visit_expr(mod["main"]))
        rewrite.builder_.update_func(mod.get_global_var("main"), main)
        return rewrite.builder_.finalize()

    return run


@relax.expr_functor.mutator
class _Rewrite(relax.PyExprMutator):
    def __init__(self, mod):
        super().__init__(mod)
        self.mod = mod

    def visit_call_(self, call):
        call = self.visit_expr_post_order(call)
        if getattr(call.op, "name", "") != "relax.call_tir":
            return call
        how = (self.mod[call.args[0]].attrs or {}).get(ATTRIBUTE)
        if how is None:
            return call
        inputs, shapes = call.args[1].fields, [fixed_shape(result) for result in call.ty.fields]
        if how["kernel"] == "best_places":
            return relax.Tuple(self._best_places(*inputs, shapes[0][1]))
        kept = self._suppressed(*inputs, how)
        return relax.Tuple(kept) if kept else call

    def visit_tuple_getitem_(self, item):
        item = self.visit_expr_post_order(item)
        value = self.lookup_binding(item.tuple_value) if isinstance(item.tuple_value, relax.Var) else None
        return value.fields[item.index] if isinstance(value, relax.Tuple) else item

    def _best_places(self, scores, count):
        (rows, length), emit = fixed_shape(scores.ty), self._emit
        keys, bounds = emit(topk.sort_keys, scores), emit(topk.first_bounds, rows)
        for _ in range(32 // topk.DIGIT):
            bounds = emit(
                topk.next_bounds, emit(topk.totals, emit(topk.at_least, keys, bounds)), bounds, count
            )
        counts = [keys, emit(topk.above_and_equal, keys, bounds)]
        for _ in range(2):
            counts.append(emit(topk.sums, counts[-1]))
        kernel = topk.chosen(rows, length, count, [fixed_shape(each.ty)[-1] for each in counts])
        types = [relax.TensorType((rows, count), dtype) for dtype in ("int32", "float32")]
        return self._call(kernel, [scores, bounds, *counts], types)

    def _suppressed(self, data, order, how):
        (batch, rows, width), count, emit = fixed_shape(data.ty), fixed_shape(order.ty)[1], self._emit
        words = round_up(int(count), WORD) // WORD
        if 4 * batch * words * words * WORD > _LARGEST_MASK:
            return None
        boxes = emit(boxes_in_order, data, order, how=how)
        start = emit(alive, boxes)
        table = relax.TensorType((batch, words * WORD, words), "uint32")
        (mask,) = self._call(beaten(batch, words, float(how["overlap_thresh"])), [boxes], [table])
        (left,) = self._call(sweep(batch, words), [start, mask], [start.ty])
        stay = start if how["in_place"] else left
        types = [relax.TensorType((batch, rows, n), "float32") for n in (width, 1)]
        field = int(how["id_index"]) if how["in_place"] else -1
        return self._call(
            remaining(batch, rows, width, count, words, field), [data, order, stay, left], types
        )

    def _emit(self, compute, *args, **options):
        named = {"primfunc_name_hint": compute.__name__, "primfunc_attrs": {"op_pattern": OPAQUE}}
        return self.builder_.emit(self.builder_.call_te(compute, *args, **options, **named))

    def _call(self, kernel, inputs, types):
        name = str(kernel.attrs["global_symbol"])
        kernel = kernel.without_attr("global_symbol").with_attr({"tirx.noalias": True, "op_pattern": OPAQUE})
        var = self.builder_.add_func(kernel, name)
        result = self.builder_.emit(relax.call_tir(var, inputs, types if len(types) > 1 else types[0]))
        if len(types) == 1:
            return [result]
        return [self.builder_.emit(relax.TupleGetItem(result, n)) for n in range(len(types))]


# ---------------------------------------------------------------- the kernels of a suppression


def boxes_in_order(data, order, how):
    """Compute of each box, in order: corners, area, class, and 1 if it may remain, else 0. float32 (batch, 7, places).

    The places are a multiple of 32; boxes that are not there may not remain.
    """
    batch, count = order.shape
    x, score, kind = (int(how[name]) for name in ("coord_start", "score_index", "id_index"))
    zero, one, two, valid, background = (
        tirx.const(float(value), "float32") for value in (0, 1, 2, how["valid_thresh"], how["background_id"])
    )

    def fields(n, which, i):
        row = order[n, te.min(i, count - 1)]
        a, b, c, d = (data[n, row, x + side] for side in range(4))
        if how["center"]:
            corners, area = [a - c / two, b - d / two, a + c / two, b + d / two], c * d
        else:
            corners, area = [a, b, c, d], tirx.if_then_else(tirx.any(c < a, d < b), zero, (c - a) * (d - b))
        real = tirx.all(i < count, data[n, row, score] > valid)
        if kind >= 0:
            real = tirx.all(real, data[n, row, kind] != background)
        field = tirx.if_then_else(real, one, zero)
        of = data[n, row, kind] if kind >= 0 and not how["force"] else zero
        for each, value in enumerate([*corners, area, of]):
            field = tirx.if_then_else(which == each, value, field)
        return field

    return te.compute((batch, _FIELDS, round_up(int(count), WORD)), fields)


def alive(boxes):
    """Pack the last field of `boxes_in_order` into bits: uint32 (batch, words)."""
    batch, _, places = (int(n) for n in boxes.shape)

    def word(n, w):
        return sum(
            (boxes[n, _FIELDS - 1, w * WORD + bit] > 0).astype("uint32") << uint32(bit) for bit in range(WORD)
        )

    return te.compute((batch, places // WORD), word)


@fast_tvmscript_parser()
def beaten(batch: int, words: int, threshold: float):
    """Compare boxes: which does each beat if it remains? A bit for each that is behind it; a thread makes a word."""

    @T.prim_func(s_tir=True)
    def beaten(
        boxes: T.Buffer((batch, _FIELDS, words * 32), "float32"),
        mask: T.Buffer((batch, words * 32, words), "uint32"),
    ):
        for picture, word, box in T.grid(batch, words, words * 32):
            with T.sblock("beaten"):
                n, w, i = T.axis.remap("SSS", [picture, word, box])
                T.reads(boxes[n, 0:_FIELDS, 0 : words * 32])
                T.writes(mask[n, i, w])
                bits = T.sblock_alloc_buffer((1,), "uint32", scope="local")
                bits[0] = T.uint32(0)
                if w * 32 + 31 > i:
                    for bit in range(32):
                        k: T.int32 = w * 32 + bit
                        across: T.float32 = T.max(
                            T.min(boxes[n, 2, i], boxes[n, 2, k]) - T.max(boxes[n, 0, i], boxes[n, 0, k]),
                            T.float32(0),
                        )
                        down: T.float32 = T.max(
                            T.min(boxes[n, 3, i], boxes[n, 3, k]) - T.max(boxes[n, 1, i], boxes[n, 1, k]),
                            T.float32(0),
                        )
                        both: T.float32 = across * down
                        beats = T.And(
                            both / (boxes[n, 4, i] + boxes[n, 4, k] - both) > T.float32(threshold),
                            boxes[n, 5, i] == boxes[n, 5, k],
                        )
                        if T.And(beats, k > i):
                            bits[0] = bits[0] | (T.uint32(1) << T.Cast("uint32", bit))
                mask[n, i, w] = bits[0]

    return beaten


@fast_tvmscript_parser()
def sweep(batch: int, words: int):
    """Go through the boxes in order, 32 at a time, and strike out what those beat that remain.

    A block for each picture, a thread for each word. What the boxes of a word have lost to those before it is known
    when its turn comes: all threads see it and let these 32 beat each other, then those left beat the thread's own.
    """

    @T.prim_func(s_tir=True)
    def sweep(
        start: T.Buffer((batch, words), "uint32"),
        mask: T.Buffer((batch, words * 32, words), "uint32"),
        left: T.Buffer((batch, words), "uint32"),
    ):
        for picture in T.thread_binding(batch, "blockIdx.x"):
            with T.sblock("sweep"):
                n = T.axis.spatial(batch, picture)
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
    """All but what a box beats, if it is left. A product, so that loading `beaten` does not wait for the answer.

    (TVM 0.27 takes x & ((y & 1) - 1) of uint32 for 0.)
    """
    return (beaten * ((left >> T.Cast("uint32", bit)) & T.uint32(1))) ^ T.uint32(0xFFFFFFFF)


@fast_tvmscript_parser()
def remaining(batch: int, rows: int, width: int, count: int, words: int, kind: int):
    """Move the rows that stay to their places; behind the last there are -1.

    `kind`: the field that becomes -1 in those which stay and are not `left`; -1 where there are none.
    """

    @T.prim_func(s_tir=True)
    def remaining(
        data: T.Buffer((batch, rows, width), "float32"),
        order: T.Buffer((batch, count), "int32"),
        stay: T.Buffer((batch, words), "uint32"),
        left: T.Buffer((batch, words), "uint32"),
        kept: T.Buffer((batch, rows, width), "float32"),
        places: T.Buffer((batch, rows, 1), "float32"),
    ):
        for picture, row in T.grid(batch, rows):
            with T.sblock("remaining"):
                n, i = T.axis.remap("SS", [picture, row])
                T.reads(data[n, 0:rows, 0:width], order[n, 0:count], stay[n, 0:words], left[n, 0:words])
                T.writes(kept[n, 0:rows, 0:width], places[n, 0:rows, 0])
                staying = T.sblock_alloc_buffer(
                    (2,), "int32", scope="local"
                )  # before this row's word, and in all
                staying[0] = 0
                staying[1] = 0
                for w in range(words):
                    if w == i // 32:
                        staying[0] = staying[1]
                    staying[1] += T.Cast("int32", T.popcount(stay[n, w]))
                if i >= staying[1]:
                    places[n, i, 0] = T.float32(-1)
                    for field in range(width):
                        kept[n, i, field] = T.float32(-1)
                if i < count:
                    bit: T.uint32 = T.uint32(1) << T.Cast("uint32", i % 32)
                    if (stay[n, i // 32] & bit) != T.uint32(0):
                        at: T.int32 = staying[0] + T.Cast(
                            "int32", T.popcount(stay[n, i // 32] & (bit - T.uint32(1)))
                        )
                        places[n, at, 0] = T.Cast("float32", order[n, i])
                        for field in range(width):
                            kept[n, at, field] = data[n, order[n, i], field]
                        if kind >= 0:  # noqa: SIM102 (this is known now, the other when it runs)
                            if (left[n, i // 32] & bit) == T.uint32(0):
                                kept[n, at, kind] = T.float32(-1)

    return a_thread_each(remaining)
