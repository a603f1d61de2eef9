"""The loop player: the order of accesses of known nests, cache lines, registers, its HTML, and what it refuses."""

import base64
import itertools
import json
import re
import zlib

import IPython.display
import numpy as np
import pytest
import tvm
from tvm import te, topi
from tvm.s_tir import Schedule
from tvm.script import tirx as T

import tvmnotes as tn
from tvmnotes.loops import page, trace

N = 4
SQUARE = list(itertools.product(range(N), range(N)))


def matmul(n=N):
    a, b = te.placeholder((n, n), name="A"), te.placeholder((n, n), name="B")
    k = te.reduce_axis((0, n), name="k")
    return te.create_prim_func([a, b, te.compute((n, n), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="C")])


def touched(found, **wanted):
    """The accesses in their order, as (buffer, its indices, whether it is written)."""
    return [
        (
            access.buffer,
            tuple(map(int, np.unravel_index(access.element, found.grids[access.buffer].shape))),
            access.write,
        )
        for access in found.accesses
        if all(getattr(access, name) == value for name, value in wanted.items())
    ]


def of_a_matmul(indices, result="C"):
    """What the plain block touches at these (i, j, k)."""
    for i, j, k in indices:
        if k == 0:
            yield (result, (i, j), True)
        yield from [(result, (i, j), False), ("A", (i, k), False), ("B", (k, j), False), (result, (i, j), True)]


def test_plain_loops():
    found = trace(matmul())
    assert touched(found) == list(of_a_matmul(itertools.product(range(N), repeat=3)))
    assert len(found.steps) == N**3 + N**2  # each sum begins with a step of its own
    assert {access.core for access in found.accesses} == {access.lane for access in found.accesses} == {0}
    assert [text for _, text in found.code] == [
        *("for i in range(4):", "for j in range(4):", "for k in range(4):", "if k == 0:", "C[i, j] = 0.0"),
        "C[i, j] = C[i, j] + A[i, k] * B[k, j]",
    ]
    assert found.steps[-1] == (5, {0: 3, 1: 3, 2: 3})


def test_tiled_reordered_and_unrolled():
    sch = Schedule(matmul())
    i, j, k = sch.get_loops("C")
    (i0, i1), (j0, j1) = sch.split(i, [None, 2]), sch.split(j, [None, 2])
    sch.reorder(j0, i0, k, i1, j1)
    sch.unroll(j1)
    found = trace(sch.mod["main"])
    order = [
        (2 * i0 + i1, 2 * j0 + j1, k)
        for j0, i0, k, i1, j1 in itertools.product(range(2), range(2), range(N), range(2), range(2))
    ]
    assert touched(found) == list(of_a_matmul(order))


def test_a_split_that_leaves_a_remainder():
    sch = Schedule(matmul())
    sch.split(sch.get_loops("C")[1], [None, 3])
    assert touched(trace(sch.mod["main"])) == list(of_a_matmul(itertools.product(range(N), repeat=3)))


def test_the_lanes_of_a_vector_go_together():
    sch = Schedule(matmul())
    i, j, k = sch.get_loops("C")
    sch.reorder(i, k, j)
    sch.vectorize(j)
    found = trace(sch.mod["main"])
    steps = [(begin, i, k) for i, k in SQUARE for begin in ([True, False] if k == 0 else [False])]
    assert len(found.steps) == len(steps)
    for step, (begin, i, k) in enumerate(steps):
        for lane in range(N):
            wanted = list(of_a_matmul([(i, lane, k)]))
            wanted = wanted[:1] if begin else wanted[-4:]
            assert touched(found, step=step, lane=lane) == wanted


def test_cores_share_a_parallel_loop():
    sch = Schedule(matmul())
    sch.parallel(sch.get_loops("C")[0])
    found = trace(sch.mod["main"], cores=2)
    for core in range(2):
        rows = range(2 * core, 2 * core + 2)
        assert touched(found, core=core) == list(of_a_matmul(itertools.product(rows, range(N), range(N))))
    assert len(found.steps) == (N**3 + N**2) // 2  # both begin at once
    # Three pieces for four iterations: TVM gives two, two and none.
    assert {access.core for access in trace(sch.mod["main"], cores=3).accesses} == {0, 1}


def test_a_tile_of_sums_is_local_to_a_core_and_stays_in_registers():
    sch = Schedule(matmul())
    i, j, k = sch.get_loops("C")
    (i0, i1), (j0, j1) = sch.split(i, [None, 2]), sch.split(j, [None, 2])
    sch.reorder(i0, j0, k, i1, j1)
    stored = sch.cache_write("C", 0, "local")
    sch.reverse_compute_at(stored, j0)
    sch.vectorize(j1)
    sch.parallel(i0)
    tiled = sch.copy()
    sch.unroll(i1)
    sch.decompose_reduction("C", k)
    found = trace(sch.mod["main"], cores=2)
    assert found.grids["C_local"].shape == (2, 2, 2)  # a tile for each core
    updates = [access for access in found.accesses if access.held]
    assert {access.buffer for access in updates} == {"C_local"}
    assert len({access.held for access in updates}) == 4  # tiles
    assert len(updates) == 2 * N**3  # each sum is read and written there
    copied = [access for access in found.accesses if access.buffer == "C"]
    assert sorted(access.element for access in copied) == list(range(N * N)) and all(access.write for access in copied)
    # Without `unroll` the sums have no fixed names.
    assert not any(access.held for access in trace(tiled.mod["main"], cores=2).accesses)


def test_a_sum_stays_in_a_register_only_if_its_loop_is_innermost():
    sch = Schedule(matmul())
    held = [access.held for access in trace(sch.mod["main"]).accesses if access.buffer == "C"]
    assert all(held) and len(set(held)) == N * N
    i, j, k = sch.get_loops("C")
    sch.reorder(i, k, j)
    assert not any(access.held for access in trace(sch.mod["main"]).accesses)


def padded_conv():
    data, weight = te.placeholder((1, 2, 4, 4), name="data"), te.placeholder((2, 2, 3, 3), name="weight")
    pad = topi.nn.pad(data, [0, 0, 1, 1], name="pad")
    axes = [te.reduce_axis((0, n), name) for n, name in ((2, "ci"), (3, "kh"), (3, "kw"))]
    conv = te.compute(
        (1, 2, 4, 4),
        lambda n, o, y, x: te.sum(
            pad[n, axes[0], y + axes[1], x + axes[2]] * weight[o, axes[0], axes[1], axes[2]], axis=axes
        ),
        name="conv",
    )
    return te.create_prim_func([data, weight, conv])


def test_a_padded_convolution():
    wanted = []
    for c, y, x in itertools.product(range(2), range(6), range(6)):
        if 1 <= y < 5 and 1 <= x < 5:
            wanted.append(("data", (0, c, y - 1, x - 1), False))
        wanted.append(("pad", (0, c, y, x), True))
    for o, y, x in itertools.product(range(2), range(4), range(4)):
        wanted.append(("conv", (0, o, y, x), True))
        for c, kh, kw in itertools.product(range(2), range(3), range(3)):
            wanted += [("conv", (0, o, y, x), False), ("pad", (0, c, y + kh, x + kw), False)]
            wanted += [("weight", (o, c, kh, kw), False), ("conv", (0, o, y, x), True)]
    assert touched(trace(padded_conv())) == wanted


def test_padding_inside_a_tile_of_the_convolution():
    sch = Schedule(padded_conv())
    sch.compute_at("pad", sch.get_loops("conv")[2])
    found = trace(sch.mod["main"])
    assert found.grids["pad"].shape == (1, 2, 3, 6)  # the rows that one row of the result needs
    rows = [
        touched(found, step=step) for step, (_, values) in enumerate(found.steps) if list(values.values())[:2] == [0, 0]
    ]
    read = {indices for accesses in rows for buffer, indices, _ in accesses if buffer == "data"}
    assert read == set(itertools.product([0], range(2), range(2), range(4)))  # of row -1 there is none


def threads(by_row):
    """A warp of 32 threads: each sums a row, or each a column."""
    a, k = te.placeholder((32, 32), name="A"), te.reduce_axis((0, 32), name="k")
    total = te.compute((32,), lambda t: te.sum(a[t, k] if by_row else a[k, t], axis=k), name="total")
    sch = Schedule(te.create_prim_func([a, total]))
    sch.bind(sch.get_loops("total")[0], "threadIdx.x")
    return sch.mod["main"]


@pytest.mark.parametrize("by_row", [True, False])
def test_threads_of_a_warp_go_together(by_row):
    found = trace(threads(by_row))
    assert len(found.steps) == 33
    for step in range(1, 33):
        elements = [access.element for access in found.accesses if access.step == step and access.buffer == "A"]
        k = step - 1
        assert elements == [32 * t + k if by_row else 32 * k + t for t in range(32)]
        lines = {element // 32 for element in elements}
        assert len(lines) == (32 if by_row else 1)


def test_blocks_shared_memory_and_threads_that_have_nothing_to_do():
    @T.prim_func(s_tir=True)
    def half(a: T.Buffer((2, 8), "float32"), out: T.Buffer((2, 8), "float32")):
        for block in T.thread_binding(2, "blockIdx.x"):
            for thread in T.thread_binding(8, "threadIdx.x"):
                with T.sblock("out"):
                    i, j = T.axis.remap("SS", [block, thread])
                    if j < 4:
                        out[i, j] = a[i, j]
                    else:
                        out[i, j] = T.float32(0)

    found = trace(half)
    assert {access.core for access in found.accesses} == {0, 1}
    # The threads of a block part ways at the condition, one way after the other.
    assert [(a.step, a.lane) for a in found.accesses if a.core == 1 and a.write] == [(t // 4, t) for t in range(8)]
    assert all(access.lane < 4 for access in found.accesses if not access.write)


# ---------------------------------------------------------------- cache lines


def test_the_lines_of_a_cache():
    plain = trace(matmul(16))
    lines = {(access.buffer, access.element // 16) for access in plain.accesses}
    assert len(lines) == 48  # a row of 16 float32 has 64 bytes
    assert plain.fetched(cache=64, line=64) == 48
    # Each walk down a column of B takes 16 lines, more than the cache has.
    assert plain.fetched(cache=8, line=64) == 16**3 + 16 * (16 + 1)
    sch = Schedule(matmul(16))
    i, j, k = sch.get_loops("C")
    sch.reorder(i, k, j)
    assert trace(sch.mod["main"]).fetched(cache=8, line=64) == 16 * 16 + 16 + 16
    sch.parallel(i)
    assert trace(sch.mod["main"]).fetched(cache=64, line=64) == 4 * 16 + 16 + 16  # each core has its own B


# ---------------------------------------------------------------- the page


def test_the_page_needs_nothing_else_and_has_a_still_picture():
    found = trace(matmul())
    text = page(found)
    assert "http" not in text and not re.search(r"<(link|iframe)|\bsrc=\"(?!data:)|@import|url\(|fetch\(|«", text)
    still = base64.b64decode(re.search(r'src="data:image/svg\+xml;base64,([^"]+)"', text)[1]).decode()
    assert all(f">{name}</text>" in still for name in "ABC")
    assert "80 steps, 272 reads and writes" in text.partition("<script>")[0]
    data = json.loads(re.search(r"^\}\)\((.+)\);$", text, re.M)[1])
    steps, columns = json.loads(zlib.decompress(base64.b64decode(data["stream"])))
    assert len(steps) == len(found.steps) and list(zip(*columns, strict=True)) == [tuple(a) for a in found.accesses]
    assert [grid["line"] for grid in data["grids"]] == [16, 16, 16]
    assert page(found) == text  # stored outputs do not change by themselves


def test_show_loops_shows_the_page(monkeypatch):
    shown = []
    monkeypatch.setattr(IPython.display, "display", shown.append)
    assert tn.show.loops(matmul(), line=16) is None
    (output,) = shown
    assert '"line":4' in output.data


# ---------------------------------------------------------------- what it refuses


def test_what_is_no_prim_func_is_refused():
    with pytest.raises(TypeError, match="func: expected a PrimFunc, such as .*; got IRModule"):
        trace(tvm.IRModule({"main": matmul()}))


def test_a_nest_that_is_too_large_says_what_to_shrink():
    wanted = (
        r"more than 60,000 accesses by the loops i in range\(64\), j in range\(64\), k in range\(64\): make the same "
    )
    with pytest.raises(ValueError, match=wanted):
        trace(matmul(64))
    with pytest.raises(ValueError, match="A has 65,536 elements, and a picture shows 4,096: make the same schedule"):
        trace(matmul(256))
    with pytest.raises(ValueError, match="more than 100 accesses"):
        trace(matmul(), limit=100)


def test_what_depends_on_data_is_refused():
    @T.prim_func(s_tir=True)
    def gather(index: T.Buffer((4,), "int32"), a: T.Buffer((4,), "float32"), out: T.Buffer((4,), "float32")):
        for i in range(4):
            with T.sblock("out"):
                v = T.axis.spatial(4, i)
                out[v] = a[index[v]]

    @T.prim_func(s_tir=True)
    def positive(a: T.Buffer((4,), "float32"), out: T.Buffer((4,), "float32")):
        for i in range(4):
            with T.sblock("out"):
                v = T.axis.spatial(4, i)
                if a[v] > T.float32(0):
                    out[v] = a[v]

    for func, load in (gather, r"index\[i\]"), (positive, r"a\[i\]"):
        with pytest.raises(ValueError, match=f"an index or a condition depends on data, on {load}"):
            trace(func)


def test_sizes_that_are_not_known_are_refused():
    @T.prim_func(s_tir=True)
    def some(a: T.handle, n: T.int32):
        buffer = T.match_buffer(a, (n,), "float32")
        for i in range(n):
            with T.sblock("a"):
                v = T.axis.spatial(n, i)
                buffer[v] = T.float32(0)

    with pytest.raises(ValueError, match="buffer has no fixed shape: give the function its sizes with `specialize`"):
        trace(some)


def test_a_call_that_hides_what_it_touches_is_refused():
    @T.prim_func(s_tir=True)
    def hidden(a: T.Buffer((4,), "float32")):
        with T.sblock("a"):
            T.reads(a[0:4])
            T.writes(a[0:4])
            T.evaluate(T.call_extern("int32", "fill", a.data))

    with pytest.raises(ValueError, match="the player does not know what Evaluate does: .*fill"):
        trace(hidden)
