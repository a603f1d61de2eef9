"""Random schedules of tensor expressions compute what the plain loops do, or are refused by `ScheduleError`.

The numbers are small whole ones, so that every order of a sum gives the same float32. Behind each array lie NaNs (or
huge integers), which a read beyond the end brings into the result, and which a store beyond the end removes.
"""

import collections

import numpy as np
import pytest
import tvm
import tvm_ffi
from old_api import enabled  # noqa: F401 (a fixture)
from testing import SEED
from tvm import te

from tvmclassic.te.ops import SPATIAL, axes_of, constant, reduced_of
from tvmclassic.te.stage import ScheduleError

BEHIND, WILD = 64, 1 << 30  # elements, and what those of integers are


# ---------------------------------------------------------------- programs: arguments, inputs first, and a reference


def chain(rng):
    n, m = rng.integers(1, 40, 2).tolist()
    x = te.placeholder((n, m), name="x")
    up = te.compute((n, m), lambda i, j: x[i, j] + 1.0, name="up")
    twice = te.compute((m, n), lambda j, i: up[i, j] * 2.0, name="twice")
    out = te.compute((n, m), lambda i, j: twice[j, i] - up[i, j], name="out")
    return [x, out], lambda a: [(a + 1) * 2 - (a + 1)]


def product(rng):
    m, k, n = rng.integers(1, 24, 3).tolist()
    a, b = te.placeholder((m, k), name="A"), te.placeholder((k, n), name="B")
    along = te.reduce_axis((0, k), name="k")
    c = te.compute((m, n), lambda i, j: te.sum(a[i, along] * b[along, j], axis=along), name="C")
    out = te.compute((m, n), lambda i, j: te.max(c[i, j], tvm.tirx.const(0, "float32")), name="out")
    return [a, b, out], lambda x, y: [np.maximum(x @ y, 0)]


def known_when_it_runs(rng):
    n = te.var("n")
    x = te.placeholder((n, 6), name="x")
    up = te.compute((n, 6), lambda i, j: x[i, j] + 1.0, name="up")
    along = te.reduce_axis((0, n), name="k")
    total = te.compute((6,), lambda j: te.sum(up[along, j], axis=along), name="total")
    out = te.compute((n, 6), lambda i, j: up[i, j] + total[j], name="out")
    return [x, out], lambda a: [(a + 1) + (a + 1).sum(0)]


def convolution(rng):
    channels, filters, size = rng.integers(1, 9, 3).tolist()
    x, w = te.placeholder((channels, size, size), name="x"), te.placeholder((filters, channels, 3, 3), name="w")
    inside = lambda y, z: tvm.tirx.all(y >= 1, y <= size, z >= 1, z <= size)  # noqa: E731
    padded = te.compute(
        (channels, size + 2, size + 2),
        lambda c, y, z: tvm.tirx.if_then_else(inside(y, z), x[c, y - 1, z - 1], tvm.tirx.const(0, "float32")),
        name="padded",
    )
    rc, ry, rx = (te.reduce_axis((0, n), name=name) for n, name in ((channels, "rc"), (3, "ry"), (3, "rx")))
    conv = te.compute(
        (filters, size, size),
        lambda f, y, z: te.sum(padded[rc, y + ry, z + rx] * w[f, rc, ry, rx], axis=[rc, ry, rx]),
        name="conv",
    )
    out = te.compute((filters, size, size), lambda f, y, z: conv[f, y, z] + 1.0, name="out")

    def reference(a, b):
        windows = np.lib.stride_tricks.sliding_window_view(np.pad(a, ((0, 0), (1, 1), (1, 1))), (3, 3), axis=(1, 2))
        return [np.einsum("cyzab,fcab->fyz", windows, b) + 1]

    return [x, w, out], reference


def pooling(rng):
    n = int(rng.integers(5, 20))
    size = (n - 3) // 2 + 1
    x = te.placeholder((3, n, n), name="x")
    scaled = te.compute(x.shape, lambda c, y, z: x[c, y, z] * 2.0, name="scaled")
    ry, rx = te.reduce_axis((0, 3), name="ry"), te.reduce_axis((0, 3), name="rx")
    windows = lambda c, y, z: te.max(scaled[c, y * 2 + ry, z * 2 + rx], axis=[ry, rx])  # noqa: E731
    pooled = te.compute((3, size, size), windows, name="pooled")
    rz = te.reduce_axis((0, 2), name="rz")
    out = te.compute((3, size - 1, size), lambda c, y, z: te.sum(pooled[c, y + rz, z], axis=rz), name="out")

    def reference(a):
        largest = np.lib.stride_tricks.sliding_window_view(a * 2, (3, 3), axis=(1, 2))[:, ::2, ::2].max((3, 4))
        return [largest[:, :-1] + largest[:, 1:]]

    return [x, out], reference


def rows(rng):
    n, p, q = rng.integers(1, 14, 3).tolist()
    x = te.placeholder((n, p, q), name="x")
    r, k, last = te.reduce_axis((0, p), name="r"), te.reduce_axis((0, q), name="k"), te.reduce_axis((0, q), name="l")
    most = te.compute((n, p), lambda i, j: te.max(x[i, j, last], axis=last), name="most")
    total = te.compute((n,), lambda i: te.sum(x[i, r, k] - most[i, r], axis=[r, k]), name="total")
    out = te.compute((n,), lambda i: total[i] * 2.0, name="out")
    return [x, out], lambda a: [(a - a.max(2, keepdims=True)).sum((1, 2)) * 2]


def first_largest(rng):
    def better(p, q):
        keep = tvm.tirx.any(p[1] > q[1], tvm.tirx.all(p[1] == q[1], p[0] < q[0]))
        return tvm.tirx.Select(keep, p[0], q[0]), tvm.tirx.Select(keep, p[1], q[1])

    n, m = rng.integers(1, 24, 2).tolist()
    argmax = te.comm_reducer(better, lambda t0, t1: (tvm.tirx.const(-1, t0), tvm.tirx.min_value(t1)), name="argmax")
    index, x = te.placeholder((n, m), "int32", name="index"), te.placeholder((n, m), name="x")
    k = te.reduce_axis((0, m), name="k")
    at, best = te.compute((n,), lambda i: argmax((index[i, k], x[i, k]), axis=k), name="best")
    return [index, x, at, best], lambda i, a: [i[range(len(i)), (a - i * 1e-6).argmax(1)], a.max(1)]


PROGRAMS = chain, product, known_when_it_runs, convolution, pooling, rows, first_largest


# ---------------------------------------------------------------- schedules


def scheduled(outputs, rng):
    """A random schedule of `outputs`."""
    s = te.create_schedule([output.op for output in outputs])
    chance = lambda p: rng.random() < p  # noqa: E731
    readers = collections.defaultdict(list)
    for stage in s.stages:
        for tensor in stage.op.input_tensors:
            readers[id(s[tensor])].append(stage)
    for stage in list(s.stages):
        if readers[id(stage)] and chance(0.25):
            copy = s[s.cache_read(stage.op.output(0), "global", [each.op for each in readers[id(stage)]])]
            readers[id(copy)], readers[id(stage)] = readers[id(stage)], [copy]
    for stage in list(s.stages):
        if not axes_of(stage.op) or stage.op is not stage.origin_op or stage.op.num_outputs > 1:
            continue
        if "." not in stage.name and chance(0.25):
            cache = s[s.cache_write(stage.op.output(0), "global")]
            for others in readers.values():
                others[:] = [cache if each is stage else each for each in others]
            readers[id(cache)] = [stage]
            stage = cache
        if reduced_of(stage.op) and chance(0.3):
            axis = reduced_of(stage.op)[rng.integers(len(reduced_of(stage.op)))]
            parts = s[stage.op].split(axis, **{str(rng.choice(["factor", "nparts"])): int(rng.integers(1, 6))})
            made = s.rfactor(stage.op.output(0), parts[rng.integers(2)], int(rng.integers(len(axes_of(stage.op)) + 1)))
            for others in readers.values():
                others[:] = [s[made] if each is stage else each for each in others]
            readers[id(s[made])] = [stage]
    for stage in reversed(s.stages):
        if not axes_of(stage.op):
            continue
        within = readers[id(stage)]
        if len(within) == 1 and within[0].leaf_iter_vars and within[0].attach_type != "inline" and chance(0.6):
            loops = within[0].leaf_iter_vars
            stage.compute_at(within[0], loops[rng.integers(len(loops))])
        elif within and not reduced_of(stage.op) and "." not in stage.name and chance(0.2):
            stage.compute_inline()
            continue
        for _ in range(rng.integers(3)):
            axis = stage.leaf_iter_vars[rng.integers(len(stage.leaf_iter_vars))]
            stage.split(axis, **{str(rng.choice(["factor", "nparts"])): int(rng.integers(1, 9))})
        if chance(0.5):
            stage.reorder(*(stage.leaf_iter_vars[i] for i in rng.permutation(len(stage.leaf_iter_vars))))
        for _ in range(rng.integers(2)):
            place = rng.integers(len(stage.leaf_iter_vars))
            pair = stage.leaf_iter_vars[place : place + 2]
            if len(pair) == 2 and pair[0].iter_type == pair[1].iter_type:
                stage.fuse(*pair)
        spatial = [axis for axis in stage.leaf_iter_vars if axis.iter_type == SPATIAL]
        if chance(0.3) and stage.attach_type == "root":  # TVM has no parallel loops within another
            stage.parallel(spatial[0])
        if chance(0.3) and constant(spatial[-1].dom.extent):
            stage.vectorize(spatial[-1])
        elif chance(0.3) and constant(spatial[-1].dom.extent):
            stage.unroll(spatial[-1])
    return s


def framed(array):
    """A copy with something behind it that no result may have: the tensor, and what lies behind."""
    whole = np.full(array.size + 2 * BEHIND, np.nan if array.dtype.kind == "f" else WILD, array.dtype)
    start = -whole.ctypes.data % 64 // array.itemsize
    inside = whole[start : start + array.size].reshape(array.shape)
    inside[...] = array
    return inside, whole[start + array.size :]


def compare(seed):
    """Compare a random schedule of a random program with NumPy; says why it is refused, if it is."""
    rng = np.random.default_rng([SEED, seed])
    args, reference = PROGRAMS[seed % len(PROGRAMS)](rng)
    inputs = sum(isinstance(arg.op, te.PlaceholderOp) for arg in args)
    length = int(rng.integers(1, 20))  # what is known when it runs
    shapes = [[size if (size := constant(n)) is not None else length for n in arg.shape] for arg in args]
    arrays = [rng.integers(-4, 5, shape).astype(str(arg.dtype)) for arg, shape in zip(args, shapes, strict=True)]
    for arg, array in zip(args, arrays, strict=True):
        if arg.op.name == "index":
            array[...] = np.arange(array.shape[1])
    try:
        func = tvm.build(scheduled(args[inputs:], rng), args, "llvm")
    except (ScheduleError, tvm.error.InternalError) as error:  # the latter for some lengths that are not known
        return str(error)
    frames = [framed(array) for array in arrays]
    func(*(tvm_ffi.from_dlpack(inside) for inside, _ in frames))
    for (found, _), wanted in zip(frames[inputs:], reference(*arrays[:inputs]), strict=True):
        np.testing.assert_array_equal(found, wanted)
    for (found, _), array in zip(frames[:inputs], arrays, strict=False):
        np.testing.assert_array_equal(found, array)
    assert all(((behind != behind) | (behind == WILD)).all() for _, behind in frames), "a store beyond the end"
    return ""


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_random_schedules(program):
    seeds = range(PROGRAMS.index(program), 6 * len(PROGRAMS), len(PROGRAMS))
    refused = [compare(seed) for seed in seeds]
    assert not all(refused), refused


@pytest.mark.full
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_many_random_schedules(program):
    seeds = range(PROGRAMS.index(program), 60 * len(PROGRAMS), len(PROGRAMS))
    refused = [compare(seed) for seed in seeds]
    assert not all(refused), refused
