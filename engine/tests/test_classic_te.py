"""Schedules of tensor expressions, as TVM had them up to 0.19: what they compute, their loops, today's code for them.

Expected loops are worked out by hand from TVM 0.8's rules: `split` by 32 of 100 gives 4 loops of 32, a reduction starts
before its outermost loop, and so on.
"""

import linecache

import numpy as np
import pytest
import tvm
from agreement import close
from old_api import enabled  # noqa: F401 (a fixture)
from testing import SEED
from tvm import te, topi

from tvmclassic.te.replay import replay
from tvmclassic.te.stage import ScheduleError, Unsupported


def nest(stmt):
    """The loops of a statement: [(kind, extent, loops inside)]."""
    if isinstance(stmt, tvm.tirx.For):
        kind = stmt.thread_binding.thread_tag if stmt.thread_binding else tvm.tirx.ForKind(stmt.kind).name.lower()
        return [(kind, size(stmt.extent), nest(stmt.body))]
    if isinstance(stmt, tvm.tirx.AttrStmt) and stmt.attr_key in ("thread_extent", "virtual_thread"):
        return [(stmt.node.thread_tag, size(stmt.value), nest(stmt.body))]
    if isinstance(stmt, tvm.tirx.SeqStmt):
        return [loop for each in stmt.seq for loop in nest(each)]
    if isinstance(stmt, tvm.tirx.IfThenElse):
        return nest(stmt.then_case) + (nest(stmt.else_case) if stmt.else_case else [])
    return nest(stmt.body) if hasattr(stmt, "body") else []


def size(extent):
    return int(extent) if isinstance(extent, tvm.tirx.IntImm) else str(extent)


def loops(s, args):
    """What `tvm.lower` prints, as a nest."""
    return nest(tvm.lower(s, args, simple_mode=True)["main"].body)


def chain(*steps, inside=()):
    """A nest of loops each in the one before: "32" is serial, "v32" vectorized, "u" unrolled, "p" parallel."""
    kinds = {"v": "vectorized", "u": "unrolled", "p": "parallel"}
    found = list(inside)
    for step in reversed(steps):
        kind = kinds.get(step[0], "serial")
        found = [(kind, int(step.lstrip("vup")), found)]
    return found


def script_of(s, args):
    return replay(s, args).script()


def run_script(text):
    """Run a script as if it were pasted, and return its module; TVMScript reads its own source."""
    name = f"<pasted {len(linecache.cache)}>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    names = {"__name__": "__main__"}
    exec(compile(text, name, "exec"), names)
    return names["mod"]


def run(s, args, arrays, target="llvm"):
    """Compile a schedule, call it, and return the results; and see that today's script makes the same function."""
    func = tvm.build(s, args, target, name="kernel")
    device = tvm.device(target.split()[0])
    inputs = [tvm.nd.array(array, device) for array in arrays]
    sizes = {}
    for tensor, array in zip((arg for arg in args if isinstance(arg, te.Tensor)), arrays, strict=False):
        sizes |= {str(dim): n for dim, n in zip(tensor.shape, array.shape, strict=True)}
    results = [
        tvm.nd.array(np.full([sizes.get(str(d), d) for d in map(size, t.shape)], 7, t.dtype), device)
        for t in [arg for arg in args if isinstance(arg, te.Tensor)][len(arrays) :]
    ]
    scalars = [sizes[str(arg)] for arg in args if not isinstance(arg, te.Tensor)]
    func(*scalars, *inputs, *results)
    pasted = run_script(script_of(s, args))
    tvm.ir.assert_structural_equal(pasted["main"], tvm.lower(s, args)["main"])
    found = [result.numpy() for result in results]
    return found[0] if len(found) == 1 else found


def values(*shape, dtype="float32"):
    return np.random.default_rng([SEED, *shape]).standard_normal(shape).astype(dtype)


def f64(array):
    return array.astype("float64")


# ---------------------------------------------------------------- elementwise


def addition(n):
    a, b = te.placeholder((n,), name="a"), te.placeholder((n,), name="b")
    c = te.compute(a.shape, lambda i: a[i] + b[i], name="c")
    return a, b, c


@pytest.mark.parametrize("n", [1, 64, 1000, 1023])
def test_a_split_loop_of_any_length(n):
    a, b, c = addition(n)
    s = te.create_schedule(c.op)
    outer, inner = s[c].split(c.op.axis[0], factor=64)
    s[c].parallel(outer)
    s[c].vectorize(inner)
    x, y = values(n), values(n + 1)[:n]
    close(run(s, [a, b, c], [x, y]), f64(x) + f64(y))
    outer, inner = outer.dom.extent, inner.dom.extent
    assert (outer, inner) == (-(-n // 64), 64)


def test_loops_of_a_split_have_the_kinds_and_order_that_were_asked_for():
    a, b, c = addition(128)
    s = te.create_schedule(c.op)
    assert loops(s, [a, b, c]) == chain("128")
    outer, inner = s[c].split(c.op.axis[0], factor=32)
    assert loops(s, [a, b, c]) == chain("4", "32")
    s[c].reorder(inner, outer)
    s[c].parallel(inner)
    s[c].unroll(outer)
    assert loops(s, [a, b, c]) == chain("p32", "u4")
    s = te.create_schedule(c.op)
    outer, inner = s[c].split(c.op.axis[0], nparts=32)
    s[c].vectorize(inner)
    assert loops(s, [a, b, c]) == chain("32", "v4")
    assert s[c].leaf_iter_vars[1].var.name == "i.inner"


def test_a_factor_larger_than_the_loop_is_the_loop():
    a, b, c = addition(10)
    s = te.create_schedule(c.op)
    s[c].split(c.op.axis[0], factor=64)
    assert loops(s, [a, b, c]) == chain("10")  # loops of one step vanish, as they did


def test_fused_loops():
    a = te.placeholder((6, 7, 8), name="a")
    b = te.compute(a.shape, lambda i, j, k: a[i, j, k] * 2, name="b")
    s = te.create_schedule(b.op)
    i, j, k = s[b].op.axis
    fused = s[b].fuse(i, j, k)
    outer, inner = s[b].split(fused, factor=16)
    s[b].parallel(outer)
    s[b].vectorize(inner)
    assert fused.dom.extent == 336 and fused.var.name == "i.j.fused.k.fused"
    assert loops(s, [a, b]) == chain("p21", "v16")
    x = values(6, 7, 8)
    np.testing.assert_array_equal(run(s, [a, b], [x]), x * 2)


@pytest.mark.parametrize("n", [1, 31, 32, 100])
def test_a_length_known_when_it_runs(n):
    length = te.var("n")
    a = te.placeholder((length,), name="a")
    b = te.compute((length,), lambda i: a[i] * 3, name="b")
    s = te.create_schedule(b.op)
    outer, inner = s[b].split(b.op.axis[0], factor=32)
    s[b].parallel(outer)
    s[b].vectorize(inner)
    x = values(n)
    np.testing.assert_array_equal(run(s, [a, b], [x]), x * 3)
    np.testing.assert_array_equal(run(s, [length, a, b], [x]), x * 3)


def test_an_inlined_stage_has_no_loop():
    a, b, c = addition(40)
    d = te.compute(c.shape, lambda i: te.exp(c[i]), name="d")
    s = te.create_schedule([d.op])
    assert loops(s, [a, b, d]) == chain("40") + chain("40")
    s[c].compute_inline()
    assert loops(s, [a, b, d]) == chain("40")
    x, y = values(40), values(41)[:40]
    close(run(s, [a, b, d], [x, y]), np.exp(f64(x) + f64(y)), 4)
    s[c].compute_root()
    assert loops(s, [a, b, d]) == chain("40") + chain("40")


# ---------------------------------------------------------------- matrix products


def matmul(m, k, n):
    a, b = te.placeholder((m, k), name="A"), te.placeholder((k, n), name="B")
    along = te.reduce_axis((0, k), name="k")
    c = te.compute((m, n), lambda i, j: te.sum(a[i, along] * b[along, j], axis=along), name="C")
    return a, b, c


def tiled(s, a, b, c):
    i, j = s[c].op.axis
    (k,) = s[c].op.reduce_axis
    io, jo, ii, ji = s[c].tile(i, j, 8, 16)
    ko, ki = s[c].split(k, factor=4)
    s[c].reorder(io, jo, ko, ii, ki, ji)
    s[c].vectorize(ji)
    s[c].unroll(ki)
    s[c].parallel(io)


def cached(s, a, b, c):
    cc = s.cache_write(c, "local")
    fused = s[c].fuse(*s[c].op.axis)
    outer, inner = s[c].split(fused, 32)
    s[cc].compute_at(s[c], outer)
    s[c].vectorize(inner)
    s[c].parallel(outer)
    aa = s.cache_read(a, "global", [cc])
    s[aa].compute_at(s[cc], s[cc].op.reduce_axis[0])


def factored(s, a, b, c):
    _ko, ki = s[c].split(s[c].op.reduce_axis[0], factor=5)
    part = s.rfactor(c, ki)
    s[part].compute_at(s[c], s[c].op.axis[0])
    s[part].vectorize(s[part].op.axis[2])
    assert [axis.dom.extent for axis in s[part].op.axis][:1] == [5]
    assert len(s[part].op.reduce_axis) == len(s[c].op.reduce_axis) == 1


def plain(s, a, b, c):
    pass


@pytest.mark.parametrize("shape", [(32, 16, 48), (33, 47, 29), (1, 1, 1), (7, 3, 130)], ids=str)
@pytest.mark.parametrize("schedule", [plain, tiled, cached, factored])
def test_matrix_products(schedule, shape):
    m, k, n = shape
    a, b, c = matmul(*shape)
    s = te.create_schedule(c.op)
    schedule(s, a, b, c)
    x, y = values(m, k), values(k, n)
    close(run(s, [a, b, c], [x, y]), f64(x) @ f64(y), k, scale=np.abs(f64(x)) @ np.abs(f64(y)))


def test_loops_of_a_tiled_product():
    a, b, c = matmul(32, 16, 64)
    s = te.create_schedule(c.op)
    assert loops(s, [a, b, c]) == chain("32", "64", inside=chain("16"))
    tiled(s, a, b, c)
    start, add = chain("8", "v16"), chain("4", "8", "u4", "v16")
    assert loops(s, [a, b, c]) == chain("p4", "4", inside=start + add)


def test_loops_of_a_cached_product():
    a, b, c = matmul(32, 16, 64)
    s = te.create_schedule(c.op)
    cc = s.cache_write(c, "global")
    io, jo, _ii, ji = s[c].tile(*s[c].op.axis, 8, 16)
    s[cc].compute_at(s[c], jo)
    ko, ki = s[cc].split(s[cc].op.reduce_axis[0], factor=4)
    s[cc].reorder(ko, s[cc].op.axis[0], ki, s[cc].op.axis[1])
    s[cc].vectorize(s[cc].op.axis[1])
    s[cc].unroll(ki)
    s[c].parallel(io)
    s[c].vectorize(ji)
    inside = chain("8", "v16") + chain("4", "8", "u4", "v16") + chain("8", "v16")
    assert loops(s, [a, b, c]) == chain("p4", "4", inside=inside)
    assert [stage.op.name for stage in s.stages] == ["A", "B", "C.global", "C"]


def test_packed_operands():
    m, k, n, width = 20, 30, 40, 8
    a, b = te.placeholder((m, k), name="A"), te.placeholder((k, n), name="B")
    packed = te.compute((n // width, k, width), lambda o, i, x: b[i, o * width + x], name="packed")
    along = te.reduce_axis((0, k), name="k")
    c = te.compute(
        (m, n), lambda i, j: te.sum(a[i, along] * packed[j // width, along, te.indexmod(j, width)], along), name="C"
    )
    s = te.create_schedule(c.op)
    io, jo, ii, ji = s[c].tile(*s[c].op.axis, 5, width)
    s[c].reorder(io, jo, along, ii, ji)
    s[c].vectorize(ji)
    x, _, z = s[packed].op.axis
    s[packed].vectorize(z)
    s[packed].parallel(x)
    assert loops(s, [a, b, c])[0] == chain("p5", "30", "v8")[0]
    x, y = values(m, k), values(k, n)
    close(run(s, [a, b, c], [x, y]), f64(x) @ f64(y), k, scale=np.abs(f64(x)) @ np.abs(f64(y)))


# ---------------------------------------------------------------- layers


def convolution(channels=6, filters=8, size=11, kernel=3, depthwise=False):
    """A padded convolution of one picture, or a depthwise one, then a ReLU; and its reference."""
    x = te.placeholder((channels, size, size), name="x")
    w = te.placeholder((filters, channels, kernel, kernel) if not depthwise else (channels, kernel, kernel), name="w")
    border = kernel // 2
    inside = lambda y, z: tvm.tir.all(y >= border, y < size + border, z >= border, z < size + border)  # noqa: E731
    padded = te.compute(
        (channels, size + 2 * border, size + 2 * border),
        lambda c, y, z: tvm.tir.if_then_else(inside(y, z), x[c, y - border, z - border], tvm.tir.const(0, "float32")),
        name="padded",
    )
    ry, rx = te.reduce_axis((0, kernel), name="ry"), te.reduce_axis((0, kernel), name="rx")
    if depthwise:
        shape = (channels, size, size)
        body = lambda c, y, z: te.sum(padded[c, y + ry, z + rx] * w[c, ry, rx], axis=[ry, rx])  # noqa: E731
    else:
        rc, shape = te.reduce_axis((0, channels), name="rc"), (filters, size, size)
        body = lambda f, y, z: te.sum(  # noqa: E731
            padded[rc, y + ry, z + rx] * w[f, rc, ry, rx], axis=[rc, ry, rx]
        )
    conv = te.compute(shape, body, name="conv")
    relu = te.compute(shape, lambda *i: te.max(conv(*i), tvm.tir.const(0, "float32")), name="relu")
    return x, w, padded, conv, relu


def reference_conv(x, w):
    border = w.shape[-1] // 2
    padded = np.pad(f64(x), ((0, 0), (border, border), (border, border)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, w.shape[-2:], axis=(1, 2))
    equation = "cyzab,fcab->fyz" if w.ndim == 4 else "cyzab,cab->cyz"
    found, scale = (np.einsum(equation, g(windows), g(f64(w))) for g in (lambda v: v, np.abs))
    return np.maximum(found, 0), scale


@pytest.mark.parametrize("depthwise", [False, True])
@pytest.mark.parametrize("pad", ["root", "inline", "at"])
def test_a_convolution_in_tiles(depthwise, pad):
    x, w, padded, conv, relu = convolution(depthwise=depthwise)
    s = te.create_schedule(relu.op)
    f, y, z = s[relu].op.axis
    yo, yi = s[relu].split(y, factor=4)
    zo, zi = s[relu].split(z, factor=4)
    s[relu].reorder(f, yo, zo, yi, zi)
    s[relu].vectorize(zi)
    s[relu].parallel(f)
    s[conv].compute_at(s[relu], zo)
    summed = s[conv].op.reduce_axis
    s[conv].reorder(*summed, *s[conv].op.axis)
    s[conv].vectorize(s[conv].op.axis[2])
    if pad == "inline":
        s[padded].compute_inline()
    elif pad == "at":
        s[padded].compute_at(s[relu], yo)
    a, b = values(6, 11, 11), values(*map(int, w.shape))
    wanted, scale = reference_conv(a, b)
    close(run(s, [x, w, relu], [a, b]), wanted, 9 if depthwise else 54, scale=scale)


@pytest.mark.parametrize("n", [12, 13])
def test_pooling_with_its_input_in_pieces(n):
    x = te.placeholder((3, n, n), name="x")
    scaled = te.compute(x.shape, lambda c, y, z: x[c, y, z] * 2, name="scaled")
    ry, rx = te.reduce_axis((0, 2), name="ry"), te.reduce_axis((0, 2), name="rx")
    pooled = te.compute(
        (3, n // 2, n // 2),
        lambda c, y, z: te.max(scaled[c, y * 2 + ry, z * 2 + rx], axis=[ry, rx]),
        name="pooled",
    )
    s = te.create_schedule(pooled.op)
    _c, y, _z = s[pooled].op.axis
    s[scaled].compute_at(s[pooled], y)
    assert loops(s, [x, pooled]) == chain(
        "3", str(n // 2), inside=chain("2", str(n // 2 * 2)) + chain(str(n // 2), inside=chain("2", "2"))
    )
    a = values(3, n, n)
    cut = a[:, : n // 2 * 2, : n // 2 * 2].reshape(3, n // 2, 2, n // 2, 2)
    np.testing.assert_array_equal(run(s, [x, pooled], [a]), cut.max((2, 4)) * 2)


def test_batch_norm_of_topi():
    x, mean, var = te.placeholder((4, 5, 6, 6), name="x"), *(te.placeholder((5,), name=name) for name in "mv")
    fixed = lambda p: topi.expand_dims(topi.expand_dims(p, 1), 1)  # noqa: E731
    out = topi.divide(topi.subtract(x, fixed(mean)), topi.sqrt(topi.add(fixed(var), 1e-5)))
    s = te.create_schedule(out.op)
    for stage in s.stages:
        if isinstance(stage.op, te.ComputeOp) and not stage.is_output:
            stage.compute_inline()
    n, c, _y, z = s[out].op.axis
    s[out].parallel(s[out].fuse(n, c))
    s[out].vectorize(z)
    assert loops(s, [x, mean, var, out]) == chain("p20", "6", "v6")
    a, m, v = values(4, 5, 6, 6), values(5), np.abs(values(5)) + 1
    column = lambda p: f64(p)[:, None, None]  # noqa: E731
    close(run(s, [x, mean, var, out], [a, m, v]), (f64(a) - column(m)) / np.sqrt(column(v) + 1e-5), 4)


def test_softmax_of_topi_with_its_parts_in_a_row():
    x = te.placeholder((9, 20), name="x")
    out = topi.nn.softmax(x)
    s = te.create_schedule(out.op)
    row = s[out].op.axis[0]
    for stage in s.stages:
        if isinstance(stage.op, te.ComputeOp) and not stage.is_output:
            stage.compute_at(s[out], row)
    s[out].parallel(row)
    assert [kind for kind, _, _ in loops(s, [x, out])] == ["parallel"]
    a = values(9, 20)
    e = np.exp(f64(a) - f64(a).max(1, keepdims=True))
    close(run(s, [x, out], [a]), e / e.sum(1, keepdims=True), 20)


# ---------------------------------------------------------------- reductions


@pytest.mark.parametrize("n", [64, 100])
def test_a_factored_sum(n):
    x = te.placeholder((5, n), name="x")
    k = te.reduce_axis((0, n), name="k")
    total = te.compute((5,), lambda i: te.sum(x[i, k], axis=k), name="total")
    s = te.create_schedule(total.op)
    _ko, ki = s[total].split(k, factor=16)
    part = s.rfactor(total, ki)
    if n == 64:
        rows = chain("16", "5", inside=chain("4"))
        assert loops(s, [x, total]) == rows + chain("5", inside=chain("16"))
    s[part].reorder(s[part].op.axis[1], s[part].op.reduce_axis[0], s[part].op.axis[0])
    s[part].vectorize(s[part].op.axis[0])
    s[part].compute_at(s[total], s[total].op.axis[0])
    a = values(5, n)
    close(run(s, [x, total], [a]), f64(a).sum(1), n, scale=np.abs(f64(a)).sum(1))


@pytest.mark.parametrize("known", [True, False])
def test_a_factored_sum_with_a_rest_that_another_stage_reads(known):
    length = 100 if known else te.var("n")
    x = te.placeholder((5, length), name="x")
    k = te.reduce_axis((0, length), name="k")
    total = te.compute((5,), lambda i: te.sum(x[i, k], axis=k), name="total")
    out = te.compute((5,), lambda i: total[i] * 2, name="out")
    s = te.create_schedule(out.op)
    ko, ki = s[total].split(k, factor=8)
    part = s.rfactor(total, s[total].split(ko, nparts=4)[0] if known else ki)
    s[part].compute_at(s[total], s[total].op.axis[0])
    s[total].compute_at(s[out], s[out].op.axis[0])
    a = values(5, 100)
    close(run(s, [x, out], [a]), f64(a).sum(1) * 2, 100, scale=2 * np.abs(f64(a)).sum(1))


def test_a_sum_over_two_axes_factored_by_the_last():
    x = te.placeholder((4, 6, 8), name="x")
    r, k = te.reduce_axis((0, 6), name="r"), te.reduce_axis((0, 8), name="k")
    total = te.compute((4,), lambda i: te.sum(x[i, r, k], axis=[r, k]), name="total")
    s = te.create_schedule(total.op)
    part = s.rfactor(total, k, factor_axis=1)
    assert [int(axis.dom.extent) for axis in s[part].op.axis] == [4, 8]
    s[part].vectorize(s[part].op.axis[1])
    a = values(4, 6, 8)
    close(run(s, [x, total], [a]), f64(a).sum((1, 2)), 48, scale=np.abs(f64(a)).sum((1, 2)))


@pytest.mark.parametrize("factored", [False, True])
def test_a_reduction_of_pairs(factored):
    def first_largest(p, q):
        keep = tvm.tir.any(p[1] > q[1], tvm.tir.all(p[1] == q[1], p[0] < q[0]))
        return tvm.tir.Select(keep, p[0], q[0]), tvm.tir.Select(p[1] > q[1], p[1], q[1])

    argmax = te.comm_reducer(
        first_largest, lambda t0, t1: (tvm.tir.const(-1, t0), tvm.tir.min_value(t1)), name="argmax"
    )
    index, x = te.placeholder((7, 30), "int32", name="index"), te.placeholder((7, 30), name="x")
    k = te.reduce_axis((0, 30), name="k")
    at, largest = te.compute((7,), lambda i: argmax((index[i, k], x[i, k]), axis=k), name="best")
    s = te.create_schedule(at.op)
    if factored:
        parts = s.rfactor(at, s[at].split(k, factor=8)[1])
        assert [part.dtype for part in parts] == ["int32", "float32"] and s[parts[1]] is s[parts[0]]
        s[parts[0]].reorder(*reversed(s[parts[0]].leaf_iter_vars))
    outer, _inner = s[at].split(s[at].op.axis[0], factor=3)
    s[at].parallel(outer)
    a = values(7, 30)
    numbers = np.tile(np.arange(30, dtype="int32"), (7, 1))
    found, best = run(s, [index, x, at, largest], [numbers, a])
    np.testing.assert_array_equal(found, a.argmax(1))
    np.testing.assert_array_equal(best, a.max(1))


def test_a_sum_factored_twice_and_a_cache_of_its_parts():
    x = te.placeholder((4, 6, 20), name="x")
    r, k = te.reduce_axis((0, 6), name="r"), te.reduce_axis((0, 20), name="k")
    total = te.compute((4,), lambda i: te.sum(x[i, r, k], axis=[r, k]), name="total")
    s = te.create_schedule(total.op)
    part = s.rfactor(total, s[total].split(k, factor=8)[1], factor_axis=1)
    row, outer = s[part].op.reduce_axis
    assert (int(row.dom.extent), int(outer.dom.extent)) == (6, 3)
    again = s.rfactor(part, row)
    assert [int(axis.dom.extent) for axis in s[again].op.axis] == [6, 4, 8]
    (last,) = s[total].op.reduce_axis
    fewer = s.rfactor(total, s[total].split(last, factor=3)[0])
    s[fewer].compute_at(s[total], s[total].op.axis[0])
    cache = s.cache_write(again, "global")
    s[cache].vectorize(s[cache].op.axis[2])
    s[again].compute_at(s[part], s[part].op.axis[0])
    a = values(4, 6, 20)
    with pytest.raises(ScheduleError, match="compute_at of stage total.rf at total, axis i: the loops of its splits"):
        run(s, [x, total], [a])
    s[fewer].compute_root()
    close(run(s, [x, total], [a]), f64(a).sum((1, 2)), 120, scale=np.abs(f64(a)).sum((1, 2)))


def test_several_results_without_a_reduction():
    x = te.placeholder((7,), name="x")
    double, square = te.compute((7,), lambda i: (x[i] * 2, x[i] * x[i]), name="both")
    s = te.create_schedule(double.op)
    a = values(7)
    for found, wanted in zip(run(s, [x, double, square], [a]), (a * 2, a * a), strict=True):
        np.testing.assert_array_equal(found, wanted)
    s[double].split(s[double].op.axis[0], 2)
    with pytest.raises(Unsupported, match="stage both: it has 2 results and no reduction"):
        tvm.lower(s, [x, double, square])


def test_the_forms_of_extern():
    x, y = te.placeholder((6,), name="x"), te.placeholder((6,), "int32", name="y")
    call = lambda ins, outs: tvm.tir.call_packed("tests.classic_te.none", *ins, *outs)  # noqa: E731
    assert te.extern(6, x, call).dtype == "float32"
    both = te.extern([x.shape, (2, 3)], [x], call, dtype=["float32", "int32"])
    assert [(tuple(map(int, each.shape)), each.dtype) for each in both] == [((6,), "float32"), ((2, 3), "int32")]
    for given in ({"inputs": [x, y]}, {"inputs": [x], "dtype": ["int8", "int8", "int8"]}):
        with pytest.raises(ValueError, match="te.extern out: give the dtype of the results, one or 2; got"):
            te.extern([x.shape, x.shape], fcompute=call, name="out", **given)


def test_a_function_of_its_own_is_a_stage():
    x = te.placeholder((6,), name="x")
    more = te.compute((6,), lambda i: x[i] + 1, name="more")
    out = te.extern(
        (6,),
        [more],
        lambda ins, outs: tvm.tir.call_packed("tests.classic_te.twice", ins[0], outs[0]),
        name="out",
    )

    @tvm.register_func("tests.classic_te.twice", override=True)
    def twice(a, b):
        b.copyfrom(a.numpy() * 2)

    s = te.create_schedule(out.op)
    _outer, inner = s[more].split(more.op.axis[0], 2)
    s[more].vectorize(inner)
    a = values(6)
    func = tvm.build(s, [x, out], "llvm")
    result = tvm.nd.empty((6,))
    func(tvm.nd.array(a), result)
    np.testing.assert_array_equal(result.numpy(), (a + 1) * 2)
    s[more].storage_align(more.op.axis[0], 8, 0)
    with pytest.raises(ScheduleError, match="storage_align of stage more: the function out of te.extern takes it"):
        tvm.lower(s, [x, out])
    s[more].compute_inline()
    with pytest.raises(ScheduleError, match="compute_inline of stage more: the function out of te.extern takes it"):
        tvm.lower(s, [x, out])
    again = te.compute((6,), lambda i: out[i] + 1, name="again")
    with pytest.raises(Unsupported, match="cache_read of out: TVM 0.27 does not see what a function of te.extern"):
        te.create_schedule(again.op).cache_read(out, "global", [again])


# ---------------------------------------------------------------- memory and hints


def test_a_copy_that_several_read():
    x = te.placeholder((40,), name="x")
    up = te.compute((40,), lambda i: x[i] + 1, name="up")
    down = te.compute((40,), lambda i: x[i] - 1, name="down")
    out = te.compute((40,), lambda i: up[i] * down[i], name="out")
    s = te.create_schedule(out.op)
    copy = s.cache_read(x, "global", [up, down])
    s[copy].vectorize(s[copy].split(s[copy].op.axis[0], factor=8)[1])
    assert loops(s, [x, out]) == chain("5", "v8") + chain("40") * 3
    a = values(40)
    np.testing.assert_array_equal(run(s, [x, out], [a]), (a + 1) * (a - 1))


def test_a_copy_of_one_of_two_inputs_of_the_same_name():
    x, y = te.placeholder((8,)), te.placeholder((8, 2))
    out = te.compute((8,), lambda i: x[i] + y[i, 1], name="out")
    s = te.create_schedule(out.op)
    copy = s.cache_read(y, "global", out)
    assert len(s[copy].op.axis) == copy.ndim == 2
    s[copy].vectorize(s[copy].op.axis[1])
    assert loops(s, [x, y, out]) == chain("8", "v2") + chain("8")
    a, b = values(8), values(8, 2)
    close(run(s, [x, y, out], [a, b]), f64(a) + f64(b)[:, 1])


def test_hints_of_before_a_cache_stay_with_the_copy():
    a, b, c = addition(64)
    s = te.create_schedule(c.op)
    s[c].parallel(c.op.axis[0])
    s.cache_write(c, "global")
    assert loops(s, [a, b, c]) == chain("64") + chain("p64")


def test_hints_are_in_the_lowered_code():
    a, b, c = matmul(16, 16, 16)
    s = te.create_schedule(c.op)
    cc = s.cache_write(c, "global")
    s[cc].compute_at(s[c], s[c].op.axis[0])
    s[c].pragma(s[c].op.axis[0], "auto_unroll_max_step", 16)
    s[c].pragma(s[c].op.axis[0], "unroll_explicit", True)
    s[cc].storage_align(s[cc].op.axis[0], 32, 4)
    s[cc].double_buffer()
    text = tvm.lower(s, [a, b, c]).script()
    assert '"pragma_auto_unroll_max_step": 16' in text and '"pragma_unroll_explicit": 1' in text
    assert "buffer_dim_align" in text and "double_buffer_scope" in text
    x, y = values(16, 16), values(16, 17)[:, :16].copy()
    close(run(s, [a, b, c], [x, y]), f64(x) @ f64(y), 16, scale=np.abs(f64(x)) @ np.abs(f64(y)))


def test_a_hint_on_a_loop_that_is_split_later_is_forgotten_as_tvm_did():
    a, b, c = addition(64)
    s = te.create_schedule(c.op)
    s[c].parallel(c.op.axis[0])
    s[c].split(c.op.axis[0], 8)
    assert loops(s, [a, b, c]) == chain("8", "8")


def test_sums_have_conditions(rng):
    x = te.placeholder((6,), name="x")
    k, l = te.reduce_axis((0, 6), "k"), te.reduce_axis((0, 6), "l")  # noqa: E741
    y = te.compute((3,), lambda i: te.sum(x[k] * x[i], axis=k, where=k > i), name="y")
    smallest = te.comm_reducer(
        lambda a, b: (tvm.tirx.Select(a[1] <= b[1], a[0], b[0]), te.min(a[1], b[1])),
        lambda place, of: (tvm.tirx.const(-1, place), te.max_value(of)),
    )
    place, least = te.compute((3,), lambda i: smallest((l, x[l]), axis=l, where=l >= 2 * i), name="least")
    array = rng.standard_normal(6).astype("float32")
    s = te.create_schedule([y.op, place.op])
    s[y].split(s[y].op.reduce_axis[0], 2)
    results = [tvm.nd.empty((3,), dtype) for dtype in ("float32", "int32", "float32")]
    tvm.build(s, [x, y, place, least], "llvm")(tvm.nd.array(array), *results)
    wide = array.astype("float64")
    close(
        results[0].numpy(),
        np.array([wide[i + 1 :].sum() * wide[i] for i in range(3)]),
        6,
        scale=2 * np.abs(wide).max() ** 2,
    )
    assert results[1].numpy().tolist() == [2 * i + int(np.argmin(array[2 * i :])) for i in range(3)]
    assert results[2].numpy().tolist() == [array[2 * i :].min() for i in range(3)]
    f = te.extern((3,), [y], lambda ins, outs: tvm.tirx.call_packed("f", *ins, *outs), "f", "float32")
    with pytest.raises(Unsupported, match="y: no sum has a `where` beside te.extern"):
        tvm.lower(te.create_schedule(f.op), [x, f])
