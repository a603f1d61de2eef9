"""Top-k and NMS of a detector by many threads of a GPU: the same as the loops for a CPU give, bit by bit.

The kernels run on the CPU, without a schedule or with that for a GPU and the threads one after another.
"""

import re

import numpy as np
import pytest
from emulated_gpu import TARGET, emulate_all, machine_code, run_emulated
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from testing import sampled
from tvm import relax

import tvmfast
from tvmfast.compiler import pipeline
from tvmfast.compiler.build import resolve_target
from tvmfast.compiler.context import BuildContext
from tvmfast.compiler.cuda.nms import parallelize_detection
from tvmfast.core import machine
from tvmfast.kernels.detection.nms import best_indices, suppressed
from tvmfast.kernels.detection.spec import NmsSpec

RNG = np.random.default_rng(7)


def module(kernel):
    """A module that calls a kernel with two results."""
    types = [relax.TensorType([int(n) for n in param.ty.shape], param.ty.dtype) for param in kernel.params]
    builder, inputs = relax.BlockBuilder(), [relax.Var(f"x{n}", each) for n, each in enumerate(types[:-2])]
    with builder.function("main", inputs):
        with builder.dataflow():
            name = builder.add_func(kernel.without_attr("global_symbol"), "loops")
            results = builder.emit(relax.call_tir(name, inputs, types[-2:]))
            both = relax.Tuple([builder.emit(relax.TupleGetItem(results, n)) for n in (0, 1)])
            result = builder.emit_output(both)
        builder.emit_func_output(result)
    return builder.get()


def both(mod):
    """What runs the loops, and what runs the kernels that replace them, on this CPU."""
    parallel = emulate_all(parallelize_detection()(mod))
    return tvmfast.build(mod, {}, opt_level=0), tvmfast.build(parallel, {}, opt_level=0)


def assert_same(ours, wanted):
    for a, b in zip(ours, wanted, strict=True):
        np.testing.assert_array_equal(a.view("uint32"), b.view("uint32"))


# ---------------------------------------------------------------- the best scores


def scores_of_all_kinds(rows, length):
    shape = rows, length
    yield RNG.standard_normal(shape)
    yield RNG.integers(-3, 3, shape)
    yield np.zeros(shape)
    yield np.where(RNG.random(shape) < 0.9, -np.inf, RNG.random(shape))
    yield RNG.choice([-0.0, 0.0, np.inf, 1e-42, -1e-42], shape)
    yield RNG.standard_normal(shape) * 10.0 ** RNG.integers(-30, 30, shape)


SHAPES = [(2, 33, 1), (3, 100, 100), (1, 5000, 77), (2, 40_000, 400)]


@pytest.mark.parametrize("shape", sampled(SHAPES, SHAPES[1:3]), ids=str)
def test_the_best_indices_are_those_of_the_loops(shape):
    loops, parallel = both(module(best_indices(*shape)))
    for scores in scores_of_all_kinds(*shape[:2]):
        scores = scores.astype("float32")
        assert_same(parallel(scores), loops(scores))


@pytest.fixture(scope="module")
def selection():
    return both(module(best_indices(2, 70, 9)))


@settings(max_examples=50)
@given(arrays("float32", (2, 70), elements=st.sampled_from([-1.0, 0.0, 0.5, 1.0, 1.0 + 2.0**-23])))
def test_equal_scores_are_taken_from_the_front(selection, scores):
    loops, parallel = selection
    assert_same(parallel(scores), loops(scores))


# ---------------------------------------------------------------- suppression


def boxes(batch, rows, width=6):
    """Rows of class, score, and the coordinates of a box either way, with equal scores and a few empty boxes."""
    low = RNG.random((batch, rows, 2))
    columns = [
        RNG.integers(0, 3, (batch, rows, 1)),
        RNG.integers(-4, 20, (batch, rows, 1)) / 20,
        low,
        low + RNG.uniform(-0.02, 0.4, (batch, rows, 2)),
        RNG.random((batch, rows, width - 6)),
    ]
    return np.concatenate(columns, 2).astype("float32")


def by_score(data, count):
    return np.argsort(-data[..., 1], 1, kind="stable")[:, :count].astype("int32")


CASES = [
    ((1, 300, 6), {"id_index": 0, "background_id": 0, "valid_thresh": 0.3}),
    ((3, 100, 6), {"id_index": 0, "force": True, "in_place": True, "topk": 33, "background_id": 1}),
    ((1, 1200, 6), {"center": True, "topk": 1100, "overlap_thresh": 0.7}),
    ((1, 5, 6), {"valid_thresh": 2.0}),
    ((2, 90, 6), {"topk": 77, "id_index": 0}),
    ((2, 64, 6), {"id_index": 0, "in_place": True}),
    ((2, 50, 9), {"id_index": 0, "center": True, "force": True, "overlap_thresh": 0.1}),
    ((1, 1, 6), {"id_index": 0, "in_place": True}),
]


@pytest.mark.parametrize("case", sampled(CASES, CASES[:4]), ids=str)
def test_suppression_leaves_what_the_loops_leave(case):
    shape, how = case
    count = min(how.get("topk", shape[1]), shape[1])
    loops, parallel = both(module(suppressed(*shape, count, NmsSpec(**{"overlap_thresh": 0.3, **how}))))
    for _ in range(3):
        data = boxes(*shape)
        order = by_score(data, count)
        assert_same(parallel(data, order), loops(data, order))


def test_boxes_beat_each_other_within_a_word_and_across():
    """In a chain each box overlaps the next alone: every second one is left."""
    data = np.zeros((1, 200, 6), "float32")
    data[0, :, 1] = np.linspace(1, 0.1, 200)
    data[0, :, 2] = np.arange(200)
    data[0, :, 4:] = np.stack([np.arange(200) + 1.5, np.ones(200)], 1)
    how = NmsSpec(overlap_thresh=0.1)
    _, parallel = both(module(suppressed(1, 200, 6, 200, how)))
    _, indices = parallel(data, by_score(data, 200))
    np.testing.assert_array_equal(indices[0, :, 0], [*range(0, 200, 2), *[-1] * 100])


def test_too_many_boxes_are_left_to_the_loops():
    for count, left in ((23_168, False), (23_169, True)):
        mod = parallelize_detection()(module(suppressed(1, 23_169, 6, count, NmsSpec())))
        called = [
            binding.value.args[0].name_hint
            for binding in mod["main"].body.blocks[0].bindings
            if getattr(getattr(binding.value, "op", None), "name", "") == "relax.call_tir"
        ]
        assert ("loops" in called) == left


# ---------------------------------------------------------------- scheduled for a GPU


@pytest.mark.parametrize("shape", sampled([(2, 100, 40), (1, 40_000, 400)], [(2, 100, 40)]), ids=str)
def test_the_threads_of_a_gpu_choose_the_same(shape):
    mod = module(best_indices(*shape))
    for scores in [*scores_of_all_kinds(*shape[:2])][:2]:
        scores = scores.astype("float32")
        assert_same(run_emulated(mod, {}, scores), tvmfast.build(mod, {}, opt_level=0)(scores))


@pytest.mark.parametrize("in_place", sampled([False, True], [True]))
def test_the_threads_of_a_gpu_leave_the_same(in_place):
    how = NmsSpec(overlap_thresh=0.3, id_index=0, background_id=2, in_place=in_place)
    mod = module(suppressed(2, 150, 6, 130, how))
    data = boxes(2, 150)
    order = by_score(data, 130)
    assert_same(run_emulated(mod, {}, data, order), tvmfast.build(mod, {}, opt_level=0)(data, order))


def test_the_threads_of_the_sweep_wait_for_each_other():
    """They share a word: a barrier before it is written, which all reach, and one before it is read."""
    lib = tvmfast.build(module(suppressed(1, 900, 6, 900, NmsSpec())), {}, TARGET)
    source = lib.source("sweep")
    assert "__launch_bounds__(29)" in source and "__shared__" in source
    assert re.search(
        r"for \(int w = 0; .*\n"
        r"    __syncthreads\(\);\n"
        r"    if \(\(\(int\)threadIdx.x\) == w\) {\n"
        r"      known_ptr\[0\] = mine_ptr\[0\];\n"
        r"    }\n"
        r"    __syncthreads\(\);\n"
        r"    now_ptr\[0\] = known_ptr\[0\];\n",
        source,
    )
    assert source.count("known_ptr[0]") == source.count("__syncthreads();") == 2


def test_a_cpu_keeps_the_loops_and_a_gpu_has_none_at_any_level():
    gpu, cpu = resolve_target(TARGET, ("cuda",)), machine.host_target()
    for level in pipeline.OPT_LEVELS:
        for target, there in ((gpu, True), (cpu, False)):
            names = [p.info.name for p in pipeline.passes(BuildContext(target, level))]
            assert ("DetectionInParallel" in names) == there
    mod = module(best_indices(1, 300, 40))
    assert [*tvmfast.build(mod, {}).kernels.index] == ["loops"]
    assert "loops" not in tvmfast.build(mod, {}, TARGET, opt_level=0).kernels.index


def test_a_detectors_choice_compiles_with_tvms_sort():
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, 300), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            types = [relax.TensorType((1, 40), dtype) for dtype in ("int32", "float32")]
            name = builder.add_func(best_indices(1, 300, 40).without_attr("global_symbol"), "best_indices")
            best = builder.emit(relax.TupleGetItem(builder.emit(relax.call_tir(name, [x], types)), 1))
            result = builder.emit_output(relax.op.argsort(best, 1, descending=True, dtype="int32"))
        builder.emit_func_output(result)
    lib = tvmfast.build(builder.get(), {}, TARGET)
    rules = lib.kernels.family
    assert rules["argsort"] == rules["chosen"] == "by_hand" and rules["at_least"] == "fallback"
    assert lib.kernels.launches["chosen"] == [{"grid": [2, 1, 1], "block": [256, 1, 1]}]
    assert "chosen_kernel(" in lib.source("chosen") and "argsort_kernel" in lib.source("argsort")


def test_detectors_of_mxnet_have_no_loops_left():
    mx = pytest.importorskip("mxnet")
    x, y, anchors = (mx.symbol.var(name) for name in ("x", "y", "anchors"))
    for symbol, shapes in (
        (mx.symbol.contrib.box_nms(x, id_index=0, topk=50, overlap_thresh=0.3), {"x": (2, 700, 6)}),
        (
            mx.symbol.contrib.MultiBoxDetection(x, y, anchors, nms_topk=40),
            {"x": (2, 4, 90), "y": (2, 360), "anchors": (1, 90, 4)},
        ),
    ):
        lib = tvmfast.build(*tvmfast.from_mxnet(symbol, {}, shapes), TARGET)
        assert {"at_least", "chosen", "beaten", "sweep", "remaining"} <= set(lib.kernels.index)
        assert "one_thread" not in set(lib.kernels.family)
        assert all("__global__" in lib.source(kernel) for kernel in lib.kernels.index)
        assert machine_code(lib)[:4] == b"\x7fELF"
