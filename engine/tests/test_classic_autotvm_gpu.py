"""AutoTVM for target "cuda" in the old API: tasks, tiles, tuners, logs, builds with the best tiles; without a GPU."""

import json
import warnings
from pathlib import Path

import numpy as np
import pytest
import tvm
from agreement import close
from emulated_gpu import TARGET as TARGET_OF_TODAY
from emulated_gpu import machine_code, run_emulated
from fake_runner import FakeRunner
from old_api import enabled  # noqa: F401 (a fixture)

from tvmclassic.autotvm import old_cuda
from tvmfast.compiler.build import build
from tvmfast.compiler.cuda.tile_configs import FIELDS, TileLookup
from tvmfast.compiler.cuda.tiles import TENSOR_CORES
from tvmfast.core import errors
from tvmfast.tuning import RpcRunner

TARGET = "cuda -arch=sm_80"
DEFAULT = {"family": "default"}
HIGH, LOW = ({"family": "dlight", **dict(zip(FIELDS, t, strict=True))} for t in ((16, 8, 4, 4, 16), (8, 8, 2, 4, 16)))


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
    return sorted(autotvm.task.extract_from_program(mod["main"], params, TARGET), key=lambda task: task.name)


def compiled(program, target=TARGET):
    from tvm import relay

    return relay.build(program[0], target, params=program[1]).compiled


@pytest.fixture(scope="module")
def untuned(program):
    return compiled(program)


def conv(data, weight, stride=1, padding=(1, 1, 1, 1), dilation=1, dtype="float32"):
    tensors = ("TENSOR", data, dtype), ("TENSOR", weight, dtype)
    return "conv2d_nchw.cuda", *tensors, (stride,) * 2, padding, (dilation,) * 2, dtype


def dense(rows, depth, columns, batch="small", dtype="float32"):
    tensors = ("TENSOR", (rows, depth), dtype), ("TENSOR", (columns, depth), dtype)
    return f"dense_{batch}_batch.gpu", *tensors, None, dtype


def created(workload, target=TARGET):
    from tvm import autotvm

    return autotvm.task.create(workload[0], args=json.loads(json.dumps(workload[1:])), target=target)


HALVES = conv((2, 64, 14, 14), (64, 64, 3, 3), dtype="float16")
LAYERS = {
    "stride": conv((2, 6, 7, 9), (20, 6, 3, 3), stride=2),
    "dilation": conv((1, 5, 8, 8), (12, 5, 3, 3), padding=(2, 0, 1, 2), dilation=2),
    "dense": dense(7, 26, 35),
}


# ---------------------------------------------------------------- tasks and their spaces


def test_a_task_for_each_layer_that_has_tiles(program, tasks):
    """The depthwise convolution has none."""
    from tvm import autotvm, relay

    assert [task.workload for task in tasks] == [conv((4, 32, 14, 14), (64, 32, 3, 3)), dense(4, 64, 40)]
    assert [task.flop for task in tasks] == [2 * 64 * (4 * 14 * 14) * (32 * 9), 2 * 4 * 40 * 64]
    (only,) = autotvm.task.extract_from_program(*program, TARGET, ops=(relay.op.nn.dense,))
    assert only.workload == tasks[1].workload


@pytest.mark.parametrize("name", LAYERS)
def test_the_layer_that_a_task_was_made_of_has_the_same_task(name):
    from tvm import autotvm

    today = created(LAYERS[name]).today
    params = {"weight": np.zeros(today.workload.weight, "float32")}
    (again,) = autotvm.task.extract_from_program(today.module(), params, TARGET)
    assert again.workload == LAYERS[name] and again.today.key == today.key


def test_other_layers_have_none(enabled):  # noqa: F811 (the fixture)
    from tvm import autotvm, relay

    assert created(dense(64, 128, 96, "large")).name == "dense_large_batch.gpu"
    for workload in (
        ("conv2d_NCHWc.x86", *conv((1, 8, 6, 6), (8, 8, 3, 3))[1:]),
        conv((1, 8, 6, 6), (8, 4, 3, 3)),  # two groups
        conv((1, 8, 2, 2), (8, 8, 5, 5)),
        conv((1, 8, 6, 6), (8, 8, 3, 3), dtype="int8"),
        dense(4, 64, 40)[:2],
    ):
        with pytest.raises(ValueError, match=r"no template .* there are .*conv2d_nchw\.cuda, dense_small_batch\.gpu"):
            created(workload)
    x, w = relay.var("x", shape=(1, 64)), relay.var("w", shape=(40, 64))
    assert autotvm.task.extract_from_program(relay.Function([x, w], relay.nn.dense(x, w)), target=TARGET) == []
    assert created(dense(1, 64, 40)).today.space == [DEFAULT]


def test_a_space_has_the_default_and_tiles_that_fit(tasks):
    for task, known in zip(tasks, (HIGH, LOW), strict=True):
        default, *others = task.today.space
        assert default == DEFAULT and known in others and {config["family"] for config in others} == {"dlight"}
        assert len({tuple(task.features(config)) for config in others}) == len(others) > 10
        for config in others:
            x, y, own_x, own_y, step = (config[name] for name in FIELDS)
            assert 64 <= x * y <= 256
            assert not x * own_x * step % (2 * x * y) and not y * own_y * step % (2 * x * y), "whole vectors are copied"
            assert (x * own_x + y * own_y) * (step + 2) * 4 <= 48 << 10, "shared memory of a block"
    default, *others = created(HALVES).today.space
    assert default == DEFAULT and {config["family"] for config in others} == {TENSOR_CORES}
    assert created(HALVES, "cuda -arch=sm_75").today.space == [DEFAULT], "their tensor cores have other instructions"


# ---------------------------------------------------------------- what tiles compute


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("which", [1, -1])
def test_a_tile_computes_the_layer(name, which, rng):
    """With threads one after another; the smallest tile, and the largest."""
    today = created(LAYERS[name]).today
    x, w = (rng.standard_normal(shape).astype("float32") for shape in (today.workload.data, today.workload.weight))
    lookup = TileLookup({today.key: today.space[which]}, "test")
    got = run_emulated(today.module(), {"weight": w}, x, lookup=lookup)
    assert str(lookup) == "test: 1 of this target"
    close(got, today.workload.reference(x.astype("float64"), w.astype("float64")), today.key[4])


def test_cudas_compiler_takes_tiles(tasks):
    halves = created(HALVES).today
    config = halves.space[-1]
    on_cores = halves.build(config)
    assert launched(on_cores)[0]["grid"][:2] == [-(-64 // config["m"]), -(-2 * 14 * 14 // config["n"])]
    assert machine_code(on_cores) and machine_code(tasks[0].today.build(HIGH))


def test_a_lookup_gives_what_is_in_the_space_only(tasks):
    today = tasks[0].today
    layer = today.module(), {"weight": np.zeros(today.workload.weight, "float32")}

    def lib(config):
        return build(*layer, TARGET_OF_TODAY, records=TileLookup({today.key: config}, "mine"))

    untuned = build(*layer, TARGET_OF_TODAY).source()
    assert lib(HIGH).source() != untuned
    assert lib(DEFAULT).source() == untuned and lib(DEFAULT).tuned == "mine: none for this network and target"
    for config in ({**HIGH, "micro_size_k": 17}, created(HALVES).today.space[-1]):  # which would round to TF32
        assert lib(config).source() == untuned
        with pytest.raises(ValueError, match="no kernel of conv2d 3x3, 32 to 64, 14x14, batch 4 takes the tile"):
            today.build(config)
    with pytest.raises(TypeError, match="records"):
        build(*layer, None, records=TileLookup({}, "mine"))


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
    return 1e-3 if config == DEFAULT else 1e-5 * (1 + sum(abs(np.log2(config[name] / LOW[name])) for name in FIELDS))


def tuned(kind, task, seconds, *callbacks):
    from tvm import autotvm

    tuner = getattr(autotvm.tuner, kind)(task)
    option = autotvm.measure_option(builder=autotvm.LocalBuilder(n_parallel=8), runner=Quick(seconds))
    tuner.tune(n_trial=1000, measure_option=option, callbacks=callbacks)
    return tuner


@pytest.mark.parametrize("kind", ["GridSearchTuner", "RandomTuner", "GATuner", "XGBTuner"])
def test_each_tuner_finds_the_fastest_tile(kind, tasks, tmp_path):
    from tvm import autotvm

    log, task = tmp_path / "dense.log", tasks[1]
    tuner = tuned(kind, task, seconds_of, autotvm.callback.log_to_file(str(log)))
    measured = list(autotvm.record.load_from_file(str(log)))
    numbers = [inp.config.index for inp, _ in measured]
    assert numbers[0] == 0 and sorted(numbers) == list(task.numbers), "each config once, the default first"
    assert tuner.best_config.values == LOW and tuner.best_flops == pytest.approx(task.flop / 1e-5)
    again = getattr(autotvm.tuner, kind)(task)
    again.load_history(measured)
    assert not again.has_next(), "what a log has is not measured again"


def test_a_search_whose_trials_all_fail_says_so(tasks):
    with pytest.warns(UserWarning, match=r"no config of dense_small_batch\.gpu ran.*last error: too many registers"):
        assert tuned("XGBTuner", tasks[1], lambda _: "too many registers").best_config is None


def on_this_machine():
    from tvm import autotvm

    return autotvm.measure_option("local", autotvm.LocalRunner(number=1, repeat=1, cooldown_interval=0))


@pytest.mark.skipif(tvm.cuda().exist, reason="this machine has a GPU")
def test_without_a_gpu_each_trial_has_tvms_words(tasks, tmp_path):
    from tvm import autotvm

    with pytest.raises(Exception) as said:
        tvm.runtime.tensor(np.zeros(4, "float32"), tvm.cuda(0))
    words, log = errors.lines(said.value)[-1][-40:], tmp_path / "dense.log"
    with pytest.warns(UserWarning, match=r"no config of dense_small_batch\.gpu ran"):
        autotvm.tuner.GridSearchTuner(tasks[1]).tune(
            3, on_this_machine(), callbacks=[autotvm.callback.log_to_file(str(log))]
        )
    measured = list(autotvm.record.load_from_file(str(log)))
    assert [inp.config.index for inp, _ in measured] == [0, 1, 2]
    assert all(result.error_no == 8 and words in str(result.costs[0]) for _, result in measured)


@pytest.mark.skipif(not tvm.cuda().exist, reason="there is no GPU")
@pytest.mark.parametrize("name", LAYERS)
def test_on_a_gpu_trials_have_times(name):
    from tvm import autotvm

    tuner, results = autotvm.tuner.RandomTuner(created(LAYERS[name], "cuda")), []
    tuner.tune(5, on_this_machine(), callbacks=[lambda _tuner, _inputs, given: results.extend(given)])
    assert all(result.error_no == 0 for result in results) and tuner.best_flops > 0


def test_servers_measure_for_cpus(tasks):
    with pytest.raises(NotImplementedError, match=r"autotvm\.RPCRunner for target 'cuda'"):
        tasks[0].measure(RpcRunner.__new__(RpcRunner), [tasks[0].config_space[0]])


# ---------------------------------------------------------------- logs, and builds with them


def line_of(task, config, seconds):
    from tvm import autotvm

    inp = autotvm.MeasureInput(task.target, task, task.config_space[task.config_space.index(config)])
    return autotvm.record.encode(inp, autotvm.MeasureResult((seconds,), 0, 0.1, 1.0)) + "\n"


def launched(lib):
    return [launch for launches in lib.kernels.launches for launch in launches]


def test_a_build_takes_the_best_tiles_of_a_log_within_its_context_only(program, tasks, untuned, tmp_path):
    from tvm import autotvm

    log = tmp_path / "best.log"
    log.write_text("".join(map(line_of, tasks * 2, (DEFAULT, DEFAULT, HIGH, LOW), (2e-3, 2e-3, 1e-3, 1e-3))))
    with autotvm.apply_history_best(str(log)) as best:
        lib = compiled(program)
        assert best.query(TARGET, tasks[0].workload).values == HIGH
        assert best.query("cuda -arch=sm_90", tasks[0].workload) is None
        with pytest.warns(UserWarning, match="takes none of the logs' configs"):
            newer = compiled(program, "cuda -arch=sm_90")
    for wanted in (  # 64 pixels and 32 channels a block; 16 rows and 32 columns
        {"grid": [-(-4 * 14 * 14 // 64), 64 // 32, 1], "block": [16, 8, 1]},
        {"grid": [1, -(-40 // 32), 1], "block": [8, 8, 1]},
    ):
        assert wanted in launched(lib) and wanted not in launched(untuned)
    assert lib.tuned == "autotvm.apply_history_best: 2 of this target" and not untuned.tuned
    assert compiled(program).source() == untuned.source()
    assert launched(newer) == launched(untuned)


def test_a_log_is_read_as_it_was_written_and_its_best_picked(program, tasks, untuned, tmp_path):
    from tvm import autotvm

    row = line_of(tasks[0], HIGH, 1e-3)
    inp, result = autotvm.record.decode(row)
    assert (inp.task.workload, inp.task.target_key) == (tasks[0].workload, tasks[0].target_key)
    assert inp.config.values == HIGH and result.costs == (1e-3,)
    assert autotvm.record.decode(row.replace('["micro_size_k", "ot", 16]', '["micro_size_k", "ot", 17]')) is None
    log, best = (str(tmp_path / name) for name in ("all.log", "best.log"))
    Path(log).write_text(line_of(tasks[0], DEFAULT, 5e-4) + row)
    autotvm.record.pick_best(log, best)
    with autotvm.apply_history_best(best) as applied:
        assert applied.query(TARGET, tasks[0].workload).values == DEFAULT
        assert compiled(program).source() == untuned.source()


# ---------------------------------------------------------------- logs of 2018 to 2021

KNOBS = {
    "tile_f": [-1, 2, 8, 8], "tile_y": [-1, 1, 1, 7], "tile_x": [-1, 1, 7, 1], "tile_rc": [-1, 2, 1],
    "tile_ry": [-1, 1, 1], "tile_rx": [-1, 3, 1], "auto_unroll_max_step": 1500, "unroll_explicit": 1,
}  # fmt: skip
ARGS = [["TENSOR", [1, 512, 7, 7], "float32"], ["TENSOR", [512, 512, 3, 3], "float32"], [1, 1], [1, 1], [1, 1]]
DIRECT = (
    "128 output channels (tile_f) by 49 pixels (tile_y, tile_x) a block, in steps of 6 summands (tile_rc, tile_ry, "
    "tile_rx), by 56 threads; of today's tiles for float32, which have to be measured, block_size_x 8, block_size_y 8, "
    "micro_size_x 8, micro_size_y 8, micro_size_k 8 is the nearest"
)


def row_of(knobs, year=2020, target="cuda -keys=cuda,gpu -max_num_threads=1024"):
    entity = [[name, "sp" if isinstance(value, list) else "ot", value] for name, value in knobs.items()]
    result = [[0.00012], 0, 1.6, 1611111111.0]
    if year == 2018:
        config = {"i": 8921, "t": "direct", "c": None, "e": entity}
        return json.dumps({"i": [target, "topi_nn_conv2d", ARGS, {}, ["conv2d", 1], config], "r": result, "v": 0.1})
    config = {"index": 8921, "code_hash": None, "entity": entity}
    return json.dumps({"input": [target, "conv2d_nchw.cuda", ARGS, {}], "config": config, "result": result})


PRINTED = f"No: 12\tGFLOPS: 9.10/91.00\tresult: MeasureResult(costs=(0.0025,))\t{[*KNOBS.items()]},None,8921"
OLD = {
    "printed": (PRINTED, DIRECT),
    "2018": (row_of(KNOBS, 2018), DIRECT),
    "2020": (row_of(KNOBS), DIRECT),
    "winograd": (row_of({"tile_b": [1, 1, 1, 16], "tile_y": [2, 1, 8, 4]}), "Winograd's method (tile_b), of which"),
    "depthwise": (row_of({name: KNOBS[name] for name in list(KNOBS)[:3]}), "no tile of today cuts by tile_f, tile_y"),
    "dense": (
        row_of({"tile_x": [-1, 2, 8, 4], "tile_y": [-1, 1, 16, 2], "tile_k": [-1, 16]}),
        "32 columns (tile_y) by 64 rows (tile_x) a block, in steps of 16 summands (tile_k), by 128 threads",
    ),
}  # fmt: skip


def test_an_old_line_says_what_it_is_today():
    for line, wanted in OLD.values():
        assert old_cuda.today(line).startswith(wanted)


def test_no_other_line_does():
    torn = "", "[]", "{}", "null", row_of(KNOBS)[:200], "[('tile_f', [-1, 2, 8", "[('tile_f', [0, 2, 8, 8])],None,1"
    of_cpus = "[('family', 'conv2d'), ('tile_ow', 4)],None,3", "[('tile_ic', [-1, 3]), ('tile_oc', [-1, 32])],None,3"
    for line in (*torn, *of_cpus, row_of(KNOBS, target="llvm"), row_of({"unroll": 1})):
        assert old_cuda.today(line) is None, line


def test_old_logs_are_said_and_not_applied(program, untuned, tmp_path):
    from tvm import autotvm

    log = tmp_path / "tophub.log"
    rows = [OLD[name][0] for name in ("2018", "winograd", "2020", "depthwise", "dense")]
    log.write_text("# of 2018 and 2020\n" + "".join(f"{row}\n" for row in rows))
    with pytest.warns(UserWarning, match="5 lines are torn, or of schedules that are not here, and left out") as said:
        assert list(autotvm.record.load_from_file(str(log))) == []
    (text,) = [str(each.message) for each in said if "left out" in str(each.message)]
    assert [line.partition(": ")[0] for line in text.splitlines()[1:]] == ["line 2", "line 3", "line 4"]
    assert text.endswith(DIRECT)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with autotvm.apply_history_best(str(log)):
            assert compiled(program).source() == untuned.source()
