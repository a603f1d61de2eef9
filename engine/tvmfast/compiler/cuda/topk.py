"""Kernels that find the k best of many scores on a GPU; `nms.py` replaces a sequential loop by them.

The k-th best score is found digit by digit, as in radix selection: how many scores reach each value of the
next digit? Then each selected score counts the selected ones before it, by sums of 32, 1024 and 32768
neighbours, and so knows its position in the order of the input.
"""

from tvm import te, tirx
from tvm.s_tir import Schedule
from tvm.script import tirx as T

from ...core.compat import fast_tvmscript_parser
from ...core.relax import round_up
from ...kernels.detection.arithmetic import sortable, uint32

DIGIT = 4  # bits per step of the selection
_VALUES = 1 << DIGIT
WORD = 32  # elements that a thread counts
_THREADS = 256  # of a block, if dlight does not choose


def sort_keys(scores):
    """Compute keys, the `sortable` bits, of float32 scores (rows, length): uint32 (rows, padded length).

    The length is padded to a multiple of 1024 with zeros, which are not larger than any key.
    """
    rows, length = (int(n) for n in scores.shape)

    def key(row, at):
        return tirx.if_then_else(at < length, sortable(scores[row, at]), uint32(0))

    return te.compute((rows, round_up(int(length), WORD * WORD)), key)


def first_bounds(rows):
    """Return the smallest key for each value of the first digit: uint32 (rows, 16)."""
    return te.compute((rows, _VALUES), lambda row, digit: digit.astype("uint32") << uint32(32 - DIGIT))


def at_least(keys, bounds):
    """Count the keys of each group that reach each bound: int32 (rows, 15, groups).

    The members of a group are strided, so that neighbouring threads read adjacent keys at the same time.
    """
    rows, length = (int(n) for n in keys.shape)
    groups = length // WORD

    def members(row, bound, group):
        each = [keys[row, n * groups + group] for n in range(WORD)]
        return sum((key >= bounds[row, bound + 1]).astype("int32") for key in each)

    return te.compute((rows, _VALUES - 1, groups), members)


def totals(parts):
    """Sum over the last axis."""
    each = te.reduce_axis((0, parts.shape[2]))
    return te.compute(parts.shape[:2], lambda row, bound: te.sum(parts[row, bound, each], each))


def next_bounds(counts, bounds, count):
    """Set the next digit's bounds, between the largest bound that `count` keys reach and the one above it.

    `counts` (rows, 15) holds how many keys reach each bound. After the last digit all bounds are equal: the
    smallest of the best keys.
    """

    def bound(row, digit):
        reached = sum((counts[row, n] >= count).astype("int32") for n in range(_VALUES - 1))
        step = (bounds[row, 1] - bounds[row, 0]) >> uint32(DIGIT)
        return bounds[row, reached] + digit.astype("uint32") * step

    return te.compute(bounds.shape, bound)


def above_and_equal(keys, bounds):
    """Count, of 32 neighbouring keys, those above and those equal to the bound: int32 (rows, 2, groups)."""
    rows, length = (int(n) for n in keys.shape)

    def members(row, kind, group):
        each, least = [keys[row, group * WORD + n] for n in range(WORD)], bounds[row, 0]
        return sum(tirx.Select(kind == 0, key > least, key == least).astype("int32") for key in each)

    return te.compute((rows, 2, length // WORD), members)


def sums(few):
    """Sum each 32 neighbours along the last axis."""
    rows, kinds, length = (int(n) for n in few.shape)

    def members(row, kind, group):
        indices = [group * WORD + n for n in range(WORD)]
        return sum(tirx.if_then_else(at < length, few[row, kind, at], 0) for at in indices)

    return te.compute((rows, kinds, round_up(int(length), WORD) // WORD), members)


@fast_tvmscript_parser()
def chosen(rows: int, length: int, count: int, sizes: list[int]):
    """Gather the `count` best: each selected key counts those before it to find its position.

    `sizes`: the last axes of the keys and of the counts of 32, 1024 and 32768 of them.
    """
    keys_padded, groups, blocks, parts = sizes

    @T.prim_func(s_tir=True)
    def chosen(
        scores: T.Buffer((rows, length), "float32"),
        bounds: T.Buffer((rows, _VALUES), "uint32"),
        keys: T.Buffer((rows, keys_padded), "uint32"),
        few: T.Buffer((rows, 2, groups), "int32"),
        many: T.Buffer((rows, 2, blocks), "int32"),
        most: T.Buffer((rows, 2, parts), "int32"),
        indices: T.Buffer((rows, count), "int32"),
        best: T.Buffer((rows, count), "float32"),
    ):
        for row, at in T.grid(rows, length):
            with T.sblock("chosen"):
                r, i = T.axis.remap("SS", [row, at])
                T.writes(indices[r, 0:count], best[r, 0:count])
                before = T.sblock_alloc_buffer((2,), "int32", scope="local")  # those above, those equal
                room = T.sblock_alloc_buffer((1,), "int32", scope="local")  # for equal ones
                if keys[r, i] >= bounds[r, 0]:
                    room[0] = count
                    for part in range(parts):
                        room[0] -= most[r, 0, part]
                    for kind in T.unroll(2):
                        before[kind] = 0
                        for part in range(i // 32768):
                            before[kind] += most[r, kind, part]
                        for block in range(i // 1024 % 32):
                            before[kind] += many[r, kind, i // 32768 * 32 + block]
                        for group in range(i // 32 % 32):
                            before[kind] += few[r, kind, i // 1024 * 32 + group]
                    for n in range(i % 32):
                        before[0] += T.Cast("int32", keys[r, i // 32 * 32 + n] > bounds[r, 0])
                        before[1] += T.Cast("int32", keys[r, i // 32 * 32 + n] == bounds[r, 0])
                    if keys[r, i] > bounds[r, 0] or before[1] < room[0]:
                        indices[r, before[0] + T.min(before[1], room[0])] = i
                        best[r, before[0] + T.min(before[1], room[0])] = scores[r, i]

    return a_thread_each(chosen)


def a_thread_each(func):
    """Bind each iteration to a thread; dlight needs kernels whose threads write to fixed positions."""
    sch = Schedule(func.with_attr("global_symbol", "main"))
    (block,) = sch.get_child_blocks(sch.get_sblock("root"))
    outer, inner = sch.split(sch.fuse(*sch.get_loops(block)), [None, _THREADS])
    sch.bind(outer, "blockIdx.x")
    sch.bind(inner, "threadIdx.x")
    return sch.mod["main"].with_attr("global_symbol", func.attrs["global_symbol"])
