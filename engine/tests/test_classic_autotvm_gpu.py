"""AutoTVM for target "cuda" in the old API: tasks, tiles, tuners, logs, builds with the best tiles; without a GPU."""

import json
import re
import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import tvm
from agreement import close
from emulated_gpu import machine_code, run_emulated
from fake_runner import FakeRunner
from old_api import enabled  # noqa: F401 (a fixture)

from tvmclassic.autotvm import old_cuda
from tvmfast.compiler.build import build
from tvmfast.compiler.cuda import codegen, products
from tvmfast.compiler.cuda.tile_configs import TileLookup
from tvmfast.compiler.cuda.tiles import TENSOR_CORES, Tile
from tvmfast.core import errors

TARGET = "cuda -arch=sm_80"
without_gpu = pytest.mark.skipif(tvm.cuda().exist, reason="this machine has a GPU")

TILE = {"block_size_x": 16, "block_size_y": 8, "micro_size_x": 4, "micro_size_y": 4, "micro_size_k": 16}
LOW = {"block_size_x": 8, "block_size_y": 8, "micro_size_x": 2, "micro_size_y": 4, "micro_size_k": 16}


def of_threads(tile):
    return {"family": "dlight", **tile}


@pytest.fixture(scope="module")
def program(enabled):  # noqa: F811 (the fixture)
    """A convolution, a depthwise one and a dense layer: float32 (4, 32, 14, 14) to (4, 40)."""
    from tvm import relay

    rng = np.random.default_rng(0)
    shapes = {"w": (64, 32, 3, 3), "d": (64, 1, 3, 3), "v": (40, 64)}
    x = relay.var("x", shape=(4, 32, 14, 14))
    w, d, v = (relay.var(name, shape=shape) for name, shape in shapes.items())
    y = relay.nn.relu(relay.nn.conv2d(x, w, padding=(1, 1)))
    y = relay.nn.relu(relay.nn.conv2d(y, d, padding=(1, 1), groups=64))
    y = relay.nn.dense(relay.nn.batch_flatten(relay.nn.global_avg_pool2d(y)), v)
    mod = tvm.IRModule.from_expr(relay.Function([x, w, d, v], y))
    return mod, {name: rng.standard_normal(shape).astype("float32") for name, shape in shapes.items()}


@pytest.fixture(scope="module")
def tasks(program):
    from tvm import autotvm

    mod, params = program
    return autotvm.task.extract_from_program(mod["main"], params, TARGET)


@pytest.fixture(scope="module")
def untuned(program):
    """A build that has no records."""
    from tvm import relay

    mod, params = program
    return relay.build(mod, TARGET, params=params).compiled


def conv_args(data, weight, stride=1, padding=1, dilation=1, dtype="float32"):
    tensors = ("TENSOR", data, dtype), ("TENSOR", weight, dtype)
    return (*tensors, (stride,) * 2, (padding,) * 4, (dilation,) * 2, dtype)


def dense_args(rows, depth, columns, dtype="float32"):
    return ("TENSOR", (rows, depth), dtype), ("TENSOR", (columns, depth), dtype), None, dtype


def created(name, args, target=TARGET):
    from tvm import autotvm

    return autotvm.task.create(name, args=args, target=target)


# ---------------------------------------------------------------- tasks and their spaces


def test_a_task_for_each_layer_that_has_tiles(program, tasks):
    """The depthwise convolution has none."""
    from tvm import autotvm, relay

    conv, dense = tasks
    assert conv.workload == ("conv2d_nchw.cuda", *conv_args((4, 32, 14, 14), (64, 32, 3, 3)))
    assert dense.workload == ("dense_small_batch.gpu", *dense_args(4, 64, 40))
    assert conv.flop == 2 * 64 * (4 * 14 * 14) * (32 * 9)
    assert dense.flop == 2 * 4 * 40 * 64
    assert conv.target.kind.name == "cuda"
    assert conv.key == ("float32", 1, 64, 784, 288, 3, 3, 1)
    mod, params = program
    (only,) = autotvm.task.extract_from_program(mod, params, TARGET, ops=(relay.op.nn.dense,))
    assert only.workload == dense.workload
    again = autotvm.task.extract_from_multiple_program([mod, mod], [params, params], TARGET)
    assert [task.workload for task in again] == [task.workload for task in tasks]


def test_a_task_is_made_of_name_and_arguments(tasks):
    for task in tasks:
        again = created(task.name, json.loads(json.dumps(task.args)))
        assert again.workload == task.workload
        assert len(again.config_space) == len(task.config_space) > 10
    assert created("dense_large_batch.gpu", dense_args(64, 128, 96)).key == ("float32", 1, 64, 96, 128)
    for name, args in (
        ("conv2d_NCHWc.x86", conv_args((1, 8, 6, 6), (8, 8, 3, 3))),
        ("conv2d_nchw.cuda", conv_args((1, 8, 6, 6), (8, 4, 3, 3))),  # two groups
        ("conv2d_nchw.cuda", conv_args((1, 8, 2, 2), (8, 8, 5, 5), padding=0)),
        ("conv2d_nchw.cuda", conv_args((1, 8, 6, 6), (8, 8, 3, 3), dtype="int8")),
        ("dense_small_batch.gpu", dense_args(4, 64, 40)[:1]),
    ):
        with pytest.raises(ValueError, match=r"no template .* there are .*for a GPU conv2d_nchw\.cuda"):
            created(name, args)


def test_a_product_with_a_vector_has_no_tiles():
    """Another rule computes it, which has no choice."""
    from tvm import autotvm, relay

    x, w = relay.var("x", shape=(1, 64)), relay.var("w", shape=(40, 64))
    assert autotvm.task.extract_from_program(relay.Function([x, w], relay.nn.dense(x, w)), target=TARGET) == []
    space = created("dense_small_batch.gpu", dense_args(1, 64, 40)).config_space
    assert len(space) == 1 and space[0].values == {"family": "default"}


def test_a_space_begins_with_the_default_and_has_tiles_that_fit(tasks):
    for task in tasks:
        default, *others = (task.config_space[n].values for n in task.numbers)
        assert default == {"family": "default"}
        assert {config["family"] for config in others} == {"dlight"}
        assert len({tuple(config.items()) for config in others}) == len(others)
        for config in others:
            threads = config["block_size_x"] * config["block_size_y"]
            sides = [config[f"block_size_{axis}"] * config[f"micro_size_{axis}"] for axis in "xy"]
            assert 64 <= threads <= 256
            assert all(side * config["micro_size_k"] % (2 * threads) == 0 for side in sides), "whole vectors are copied"
            assert sum(sides) * (config["micro_size_k"] + 2) * 4 <= 48 << 10, "shared memory of a block"
    conv, dense = tasks
    assert of_threads(TILE) in [conv.config_space[n].values for n in conv.numbers]
    assert of_threads(LOW) in [dense.config_space[n].values for n in dense.numbers]
    assert str(conv.config_space).startswith(f"ConfigSpace (len={len(conv.config_space)}, space_map=\n   0 family: ")


def test_the_space_of_halves_has_tiles_of_tensor_cores():
    args = conv_args((1, 64, 28, 28), (64, 64, 3, 3), dtype="float16")
    space = created("conv2d_nchw.cuda", args).config_space
    families = [space[n].values["family"] for n in range(len(space))]
    assert families[0] == "default"
    assert {*families[1:]} == {TENSOR_CORES}
    older = created("conv2d_nchw.cuda", args, "cuda -arch=sm_75").config_space
    assert len(older) == 1, "their tensor cores have other instructions"


def test_features_are_as_many_for_each_config_and_tell_them_apart(tasks):
    halves = created("conv2d_nchw.cuda", conv_args((1, 64, 28, 28), (64, 64, 3, 3), dtype="float16"))
    lengths = set()
    for task in (*tasks, halves):
        rows = [tuple(task.features(task.config_space[n].values)) for n in task.numbers]
        assert np.isfinite(rows).all()
        lengths |= {*map(len, rows)}
        assert len({*rows}) == len(rows)
    assert len(lengths) == 1


# ---------------------------------------------------------------- what tiles compute

LAYERS = {
    "convolution": ("conv2d_nchw.cuda", conv_args((2, 6, 7, 9), (20, 6, 3, 3), stride=2)),
    "dilation": ("conv2d_nchw.cuda", conv_args((1, 5, 8, 8), (12, 5, 3, 3), padding=2, dilation=2)),
    "dense": ("dense_small_batch.gpu", dense_args(7, 26, 35)),
}


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("which", [1, -1])
def test_a_tile_computes_the_layer(name, which, rng):
    """With threads one after another; the smallest tile, and the largest."""
    task = created(*LAYERS[name])
    config = task.config_space[range(len(task.config_space))[which]].values
    x, w = (rng.standard_normal(tensor[1]).astype("float32") for tensor in task.args[:2])
    lookup = TileLookup({task.key: config}, "test")
    got = run_emulated(task.module(), {"weight": w}, x, lookup=lookup)
    assert lookup.taken == {task.key}
    wide = [torch.from_numpy(each).double() for each in (x, w)]
    if name == "dense":
        wanted = F.linear(*wide)
    else:
        strides, (padding, *_), dilation = task.args[2:5]
        wanted = F.conv2d(*wide, stride=strides, padding=padding, dilation=dilation)
    close(got, wanted, task.key[4])


def test_tensor_cores_take_the_tile_of_a_record():
    task = created("conv2d_nchw.cuda", conv_args((2, 64, 14, 14), (64, 64, 3, 3), dtype="float16"))
    weight = np.zeros((64, 64, 3, 3), "float16")
    tile = Tile(32, 64, 128, 16, 32, 4)
    lookup = TileLookup({task.key: {"family": TENSOR_CORES, **tile._asdict()}}, "test")
    lib = build(task.module(), {"weight": weight}, task.target, records=lookup)
    assert lookup.taken == {task.key}
    assert list(lib.kernels.family) == [TENSOR_CORES]
    ((launch,),) = lib.kernels.launches
    assert launch["grid"] == [64 // tile.m, -(-2 * 14 * 14 // tile.n), 1]
    untuned = build(task.module(), {"weight": weight}, task.target)
    assert TENSOR_CORES not in list(untuned.kernels.family), "no state is left"


def test_cudas_compiler_takes_a_tile(tasks):
    conv, _ = tasks
    lookup = TileLookup({conv.key: of_threads(TILE)}, "test")
    lib = build(conv.module(), {"weight": np.zeros(conv.args[1][1], "float32")}, conv.target, records=lookup)
    assert machine_code(lib)


# ---------------------------------------------------------------- tuning


class Quick:
    """A runner for `measure_option` that measures nothing: it answers with `seconds(config)`, see `FakeRunner`."""

    n_parallel, cooldown_interval = 1, 0

    def __init__(self, seconds):
        self.opened = FakeRunner(seconds)

    def open(self, _timeout):
        return self.opened


def seconds_of(config):
    """What a GPU might take: the less the nearer the tile is to `LOW`."""
    if config["family"] == "default":
        return 1e-3
    return 1e-5 * (1 + sum(abs(np.log2(config[name] / LOW[name])) for name in LOW))


@pytest.mark.parametrize("kind", ["GridSearchTuner", "RandomTuner", "GATuner", "XGBTuner"])
def test_each_tuner_finds_the_fastest_tile(kind, tasks, tmp_path):
    from tvm import autotvm

    _, dense = tasks
    log, size = tmp_path / "dense.log", len(dense.config_space)
    tuner = getattr(autotvm.tuner, kind)(dense)
    option = autotvm.measure_option(builder=autotvm.LocalBuilder(n_parallel=4), runner=Quick(seconds_of))
    tuner.tune(n_trial=1000, measure_option=option, callbacks=[autotvm.callback.log_to_file(str(log))])
    measured = list(autotvm.record.load_from_file(str(log)))
    numbers = [inp.config.index for inp, _ in measured]
    assert numbers[0] == 0 and sorted(numbers) == list(range(size)), "each config once, the default first"
    assert tuner.best_config.values == of_threads(LOW)
    assert tuner.best_flops == pytest.approx(dense.flop / 1e-5)

    again = getattr(autotvm.tuner, kind)(dense)
    again.load_history(measured)
    assert not again.has_next(), "what a log has is not measured again"


def test_xgb_takes_over_what_is_known_of_another_layer(tasks):
    from tvm import autotvm

    conv, dense = tasks
    inputs = [autotvm.MeasureInput(conv.target, conv, conv.config_space.get(n)) for n in conv.numbers]
    results = [autotvm.MeasureResult((seconds_of(inp.config.values),), 0, 0.1, 1.0) for inp in inputs]
    tuner = autotvm.tuner.XGBTuner(dense)
    tuner.load_history(zip(inputs, results, strict=True))
    assert len(tuner._search.model) == len(conv.config_space)
    default, *guided = tuner.next_batch(8)
    assert default.index == 0 and len({each.index for each in guided}) == 7


@pytest.fixture
def compiled(monkeypatch):
    """What was given to CUDA's compiler, which is not called: (source, arch)."""
    given = []
    monkeypatch.setattr(codegen, "machine_code", lambda *args: given.append(args) or b"")
    return given


def without_numbers(text):
    """A message without the line numbers and times that TVM may begin it with."""
    return re.sub(r"\d+", "", text)


def local_option():
    from tvm import autotvm

    runner = autotvm.LocalRunner(number=1, repeat=1, timeout=60, cooldown_interval=0)
    return autotvm.measure_option(builder=autotvm.LocalBuilder(n_parallel=2), runner=runner)


@without_gpu
def test_without_a_gpu_each_trial_has_tvms_words_and_the_search_says_so(program, tasks, compiled, tmp_path):
    from tvm import autotvm, relay

    with pytest.raises(Exception) as said:
        tvm.runtime.tensor(np.zeros(4, "float32"), tvm.cuda(0))
    words = without_numbers(errors.one_line(said.value))
    _, dense = tasks
    log = tmp_path / "dense.log"
    tuner = autotvm.tuner.GridSearchTuner(dense)
    message = (
        r"no config of dense_small_batch\.gpu was measured, as each trial failed: it is built for CUDA \(sm_80\), "
        "and TVM finds no CUDA device on this machine"
    )
    with pytest.warns(UserWarning, match=message):
        tuner.tune(3, local_option(), callbacks=[autotvm.callback.log_to_file(str(log))])
    assert tuner.best_config is None
    measured = list(autotvm.record.load_from_file(str(log)))
    assert [inp.config.index for inp, _ in measured] == [0, 1, 2]
    assert all(result.error_no == 8 for _, result in measured)
    assert all(without_numbers(str(result.costs[0]))[:60] == words[:60] for _, result in measured), measured[0][1]
    assert len({source for source, _ in compiled}) == 3 and {arch for _, arch in compiled} == {"sm_80"}
    assert all("__global__" in source for source, _ in compiled)
    mod, params = program
    with autotvm.apply_history_best(str(log)), pytest.warns(UserWarning, match="takes none of the logs' configs"):
        relay.build(mod, TARGET, params=params)


@without_gpu
@pytest.mark.parametrize("what", ["the compiler", "the rule"])
def test_what_fails_costs_its_trial_only(what, tasks, compiled, monkeypatch):
    _, dense = tasks

    def refused(*_):
        raise RuntimeError("nvrtc: too many registers")

    if what == "the compiler":
        monkeypatch.setattr(codegen, "machine_code", refused)
        wanted = ["nvrtc: too many registers"] * 2
    else:  # which does not find the product, and so not its tile
        monkeypatch.setattr(products, "match", lambda _func: None)
        wanted = [None, "the rule dlight does not take this tile"]
    opened = local_option()["runner"].open(10)
    trials = dense.measure(opened, [dense.config_space[n] for n in (0, 1)])
    assert [trial.seconds for trial in trials] == [(), ()]
    for trial, start in zip(trials, wanted, strict=True):
        assert start is None or trial.error.startswith(start)


@pytest.mark.skipif(not tvm.cuda().exist, reason="there is no GPU")
def test_on_a_gpu_trials_have_times(tmp_path):
    from tvm import autotvm

    log = tmp_path / "here.log"
    for name, args in (LAYERS["convolution"], LAYERS["dense"]):
        tuner = autotvm.tuner.RandomTuner(created(name, args, "cuda"))
        tuner.tune(3, local_option(), callbacks=[autotvm.callback.log_to_file(str(log))])
        assert tuner.best_flops > 0
    assert all(result.error_no == 0 for _, result in autotvm.record.load_from_file(str(log)))


def test_servers_measure_for_cpus(tasks):
    from tvmfast.tuning import RpcRunner

    with pytest.raises(NotImplementedError, match=r"autotvm\.RPCRunner for target 'cuda'"):
        tasks[0].measure(RpcRunner.__new__(RpcRunner), [tasks[0].config_space[0]])


# ---------------------------------------------------------------- logs, and builds with them


def line_of(task, config, seconds):
    from tvm import autotvm

    index = task.config_space.index(config)
    assert index is not None, f"{config} is not in the space of {task}"
    inp = autotvm.MeasureInput(task.target, task, task.config_space[index])
    return autotvm.record.encode(inp, autotvm.MeasureResult((seconds,), 0, 0.1, 1.0)) + "\n"


def of_products(compiled):
    return [launches[-1] for launches in compiled.kernels.launches[compiled.kernels.family == "matmul"]]


def test_a_build_takes_the_best_tiles_of_a_log_within_its_context_only(program, tasks, untuned, tmp_path):
    from tvm import autotvm, relay

    mod, params = program
    conv, dense = tasks
    log = tmp_path / "best.log"
    lines = [line_of(task, {"family": "default"}, 2e-3) for task in tasks]
    lines += [line_of(conv, of_threads(TILE), 1e-3), line_of(dense, of_threads(LOW), 1e-3)]
    log.write_text("".join(lines))

    with autotvm.apply_history_best(str(log)) as best:
        lib = relay.build(mod, TARGET, params=params).compiled
        assert best.query(TARGET, conv.workload).values == of_threads(TILE)
        assert best.query("cuda -arch=sm_90", conv.workload) is None
    after = relay.build(mod, TARGET, params=params).compiled
    wanted = [  # 64 pixels and 32 channels a block; 16 rows and 32 columns
        {"grid": [-(-4 * 14 * 14 // 64), 64 // 32, 1], "block": [16, 8, 1]},
        {"grid": [1, -(-40 // 32), 1], "block": [8, 8, 1]},
    ]
    assert sorted(map(str, of_products(lib))) == sorted(map(str, wanted))
    assert lib.tuned == "autotvm.apply_history_best: 2 of this target"
    assert lib.source() != untuned.source()
    for other in (untuned, after):
        assert not [launch for launch in of_products(other) if launch in wanted]
        assert "apply_history_best" not in other.tuned
    assert after.source() == untuned.source()


def test_a_tile_is_for_one_product_and_one_architecture(program, tasks, untuned, tmp_path):
    from tvm import autotvm, relay

    mod, params = program
    conv, _ = tasks
    log = tmp_path / "conv.log"
    log.write_text(line_of(conv, of_threads(TILE), 1e-3))

    with autotvm.apply_history_best(str(log)):
        lib = relay.build(mod, TARGET, params=params).compiled
        same = [launch for launch in of_products(lib) if launch in of_products(untuned)]
        assert len(same) == 1, "that of the dense layer"
        assert lib.tuned == "autotvm.apply_history_best: 1 of this target"
        with pytest.warns(UserWarning, match="takes none of the logs' configs"):
            newer = relay.build(mod, "cuda -arch=sm_90", params=params).compiled
    assert of_products(newer) == of_products(untuned)


def test_the_default_of_a_log_is_what_a_build_chooses(program, tasks, untuned, tmp_path):
    from tvm import autotvm, relay

    mod, params = program
    log = tmp_path / "default.log"
    log.write_text(line_of(tasks[0], {"family": "default"}, 1e-3) + line_of(tasks[0], of_threads(TILE), 2e-3))
    with autotvm.apply_history_best(str(log)):
        lib = relay.build(mod, TARGET, params=params).compiled
    assert lib.source() == untuned.source()
    assert lib.tuned == "autotvm.apply_history_best: none for this network and target"


def test_a_log_is_read_as_it_was_written(tasks, tmp_path):
    from tvm import autotvm

    conv, _ = tasks
    row = line_of(conv, of_threads(TILE), 1e-3)
    inp, result = autotvm.record.decode(row)
    assert inp.task.workload == conv.workload and inp.task.key == conv.key
    assert inp.task.target_key == conv.target_key
    assert inp.config.values == of_threads(TILE) and result.costs == (1e-3,)
    assert autotvm.record.decode(row.replace('["micro_size_k", "ot", 16]', '["micro_size_k", "ot", 17]')) is None
    log, best = tmp_path / "all.log", tmp_path / "best.log"
    log.write_text(line_of(conv, {"family": "default"}, 2e-3) + row)
    autotvm.record.pick_best(str(log), str(best))
    ((inp, _),) = autotvm.record.load_from_file(str(best))
    assert inp.config.values == of_threads(TILE)


def test_a_build_of_today_takes_a_lookup(tasks):
    conv, _ = tasks
    weight = {"weight": np.zeros(conv.args[1][1], "float32")}
    lookup = TileLookup({conv.key: of_threads(TILE)}, "mine")
    lib = build(conv.module(), weight, {"kind": "cuda", "arch": "sm_80"}, records=lookup)
    assert lib.tuned == "mine: 1 of this target"
    with pytest.raises(TypeError, match="records"):
        build(conv.module(), weight, None, records=lookup)


# ---------------------------------------------------------------- logs of 2018 to 2021

KNOBS = {
    "tile_f": [-1, 2, 8, 8], "tile_y": [-1, 1, 1, 7], "tile_x": [-1, 1, 7, 1], "tile_rc": [-1, 2, 1],
    "tile_ry": [-1, 1, 1], "tile_rx": [-1, 3, 1], "auto_unroll_max_step": 1500, "unroll_explicit": 1,
}  # fmt: skip
DIRECT = (
    "m = 128 output channels (tile_f) by n = 49 pixels (tile_y and tile_x) a block, in steps of k = 6 summands "
    "(tile_rc, tile_ry and tile_rx), by 56 threads, which are 2 warps, in one stage; the nearest tile of today is "
    "block_size_x 8, block_size_y 8, micro_size_x 8, micro_size_y 8, micro_size_k 8, which has to be measured."
)
WINOGRAD = {"tile_b": [1, 1, 1, 16], "tile_y": [2, 1, 8, 4], "tile_x": [49, 1, 16, 1], "tile_rc": [16, 16]}
DENSE = {"tile_x": [-1, 2, 8, 4], "tile_y": [-1, 1, 16, 2], "tile_k": [-1, 16], "auto_unroll_max_step": 64}
ARGS = [["TENSOR", [1, 512, 7, 7], "float32"], ["TENSOR", [512, 512, 3, 3], "float32"], [1, 1], [1, 1], [1, 1]]


def entity(knobs):
    return [[name, "sp" if isinstance(value, list) else "ot", value] for name, value in knobs.items()]


def row_of_2018(name, args, knobs, key="direct", target="cuda -model=1080ti"):
    config = {"i": 8921, "t": key, "c": None, "e": entity(knobs)}
    row = {"i": [target, name, args, {}, ["conv2d", 1], config], "r": [[0.00012], 0, 1.6, 1556703115.0], "v": 0.1}
    return json.dumps(row)


def row_of_2020(name, args, knobs, target="cuda -keys=cuda,gpu -max_num_threads=1024"):
    config = {"index": 8921, "code_hash": None, "entity": entity(knobs)}
    result = [[0.00012], 0, 1.6, 1611111111.0]
    return json.dumps(
        {"input": [target, name, args, {}], "config": config, "result": result, "version": 0.2, "tvm_version": "0.8"}
    )


PRINTED = f"{[*KNOBS.items()]},None,8921"
OLD = {
    "printed": (PRINTED, DIRECT),
    "printed by a tuner": (
        f"No: 12\tGFLOPS: 9.10/91.00\tresult: MeasureResult(costs=(0.0025,), error_no=0)\t{PRINTED}", DIRECT,
    ),
    "printed in 2018": (PRINTED.replace(",None,", ",direct,None,"), DIRECT),
    "2018": (row_of_2018("topi_nn_conv2d", [*ARGS, "NCHW", "float32"], KNOBS), f"topi_nn_conv2d: {DIRECT}"),
    "2020": (row_of_2020("conv2d_nchw.cuda", [*ARGS, "float32"], KNOBS), f"conv2d_nchw.cuda: {DIRECT}"),
    "the tutorial": (
        row_of_2020("tutorial/conv2d_no_batching", [1, 7, 7, 512, 512, 3, 3, [1, 1], [1, 1]], KNOBS),
        f"tutorial/conv2d_no_batching: {DIRECT}",
    ),
    "bytes": (
        row_of_2020("conv2d_nchw.cuda", [[t, s, "int8"] for t, s, _ in ARGS[:2]] + [*ARGS[2:], "int32"], KNOBS),
        "conv2d_nchw.cuda: " + DIRECT.partition("; ")[0] + "; today's rules have no tile for this layer.",
    ),
    "winograd": (
        row_of_2018("topi_nn_conv2d", [*ARGS, "NCHW", "float32"], WINOGRAD, "winograd"),
        "topi_nn_conv2d: it is of Winograd's method (tile_b), of which there is no kernel for GPUs.",
    ),
    "depthwise": (
        row_of_2020("depthwise_conv2d_nchw.cuda", [*ARGS, "float32"], {name: KNOBS[name] for name in list(KNOBS)[:3]}),
        "depthwise_conv2d_nchw.cuda: there is no counterpart of tile_f, tile_y, tile_x: its kernel is scheduled by "
        "rule, and has no tiles.",
    ),
    "dense": (
        row_of_2020("dense_large_batch.gpu", [*dense_args(64, 512, 128)], DENSE),
        "dense_large_batch.gpu: m = 64 rows (tile_x) by n = 32 columns (tile_y) a block, in steps of k = 16 summands "
        "(tile_k), by 128 threads, which are 4 warps, in one stage; the nearest tile of today is block_size_x 8, "
        "block_size_y 16, micro_size_x 8, micro_size_y 2, micro_size_k 16, which has to be measured.",
    ),
    "dense of a few rows": (
        row_of_2020("dense_small_batch.gpu", [*dense_args(1, 512, 128)], {"tile_k": [-1, 64]}),
        "dense_small_batch.gpu: there is no counterpart of tile_k: its kernel is scheduled by rule, and has no tiles.",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OLD)
def test_an_old_line_says_what_it_is_today(name):
    line, wanted = OLD[name]
    assert old_cuda.today(line) == wanted


@pytest.mark.parametrize(
    "line",
    [
        "",
        "[]",
        "{}",
        "null",
        "[('family', 'conv2d'), ('tile_ow', 4)],None,3",
        "[('tile_ic', [-1, 3]), ('tile_oc', [-1, 32])],None,3",
        "[('tile_f', [-1, 2, 8",
        "[('tile_f', [0, 2, 8, 8])],None,1",
        row_of_2020("conv2d_nchw.cuda", 5, KNOBS, target="llvm -mcpu=core-avx2"),
        row_of_2020("conv2d_nchw.cuda", [*ARGS, "float32"], KNOBS)[:200],
        row_of_2020("conv2d_nchw.cuda", [*ARGS, "float32"], {"unroll": 1}),
    ],
)
def test_no_other_line_does(line):
    assert old_cuda.today(line) is None


def test_a_line_with_other_arguments_is_read():
    said = old_cuda.today(row_of_2020("conv2d_nchw.cuda", 5, KNOBS))
    assert said.endswith("today's rules have no tile for this layer.")


def test_old_logs_are_said_and_not_applied(program, untuned, tmp_path):
    from tvm import autotvm, relay

    mod, params = program
    log = tmp_path / "tophub.log"
    rows = [OLD[name][0] for name in ("2018", "winograd", "2020", "depthwise", "dense")]
    log.write_text("# of 2018 and 2020\n" + "".join(f"{row}\n" for row in rows))
    with pytest.warns(UserWarning, match="5 lines are torn, or of schedules that are not here, and left out") as said:
        assert list(autotvm.record.load_from_file(str(log))) == []
    (text,) = [str(each.message) for each in said if "left out" in str(each.message)]
    assert text.splitlines()[1:] == [
        f"line {number}: {OLD[name][1]}" for number, name in enumerate(("2018", "winograd", "2020"), start=2)
    ], "the first three"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with autotvm.apply_history_best(str(log)):
            lib = relay.build(mod, TARGET, params=params).compiled
    assert lib.source() == untuned.source()
