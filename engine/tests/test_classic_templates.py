"""`@autotvm.template`: config spaces, the four tuners on them, logs, and builds with the best configs of a log."""

import itertools
import json
import math
import warnings

import numpy as np
import pytest
import tvm
from agreement import close
from rpc_cluster import Cluster
from tvm import te

import tvmclassic
from tvmclassic.autotvm import space, template
from tvmfast.tuning import Trial

SIZES = 16, 24, 32


@pytest.fixture(autouse=True, scope="module")
def classic():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(template, "TEMPLATES", {})
        tvmclassic.enable()
        yield
        tvmclassic.disable()


def schedule_matmul(n, l, m, dtype):  # noqa: E741
    """As the documentation of 2021 has it: rows and columns split in two, the inner ones innermost."""
    from tvm import autotvm

    a = te.placeholder((n, l), name="A", dtype=dtype)
    b = te.placeholder((l, m), name="B", dtype=dtype)
    k = te.reduce_axis((0, l), name="k")
    c = te.compute((n, m), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="C")
    s = te.create_schedule(c.op)
    y, x = s[c].op.axis
    k = s[c].op.reduce_axis[0]
    cfg = autotvm.get_config()
    cfg.define_split("tile_y", y, num_outputs=2)
    cfg.define_split("tile_x", x, num_outputs=2)
    yo, yi = cfg["tile_y"].apply(s, c, y)
    xo, xi = cfg["tile_x"].apply(s, c, x)
    s[c].reorder(yo, xo, k, yi, xi)
    return s, [a, b, c]


@pytest.fixture(scope="module")
def matmul(classic):
    from tvm import autotvm

    return autotvm.template("tutorial/matmul")(schedule_matmul)


@pytest.fixture(scope="module")
def task(matmul):
    from tvm import autotvm

    return autotvm.task.create("tutorial/matmul", args=(*SIZES, "float32"), target="llvm")


@pytest.fixture(scope="module")
def option(classic):
    from tvm import autotvm

    runner = autotvm.LocalRunner(number=2, repeat=1, timeout=60, cooldown_interval=0)
    return autotvm.measure_option(builder=autotvm.LocalBuilder(timeout=60), runner=runner)


def run_matmul(func, rng, sizes=SIZES):
    n, l, m = sizes  # noqa: E741
    a, b = (rng.standard_normal(shape).astype("float32") for shape in ((n, l), (l, m)))
    arrays = [tvm.nd.array(x) for x in (a, b, np.empty((n, m), "float32"))]
    func(*arrays)
    close(arrays[-1].asnumpy(), a.astype("float64") @ b, l, scale=np.abs(a) @ np.abs(b))


class Quick:
    """A runner for `measure_option` that measures nothing, for tasks whose `measure` is planted."""

    n_parallel, cooldown_interval = 1, 0

    def open(self, _timeout):
        return self


def quick_option(monkeypatch, seconds):
    """Have all tasks answer with `seconds(config)`, a time or an error."""
    from tvm import autotvm

    def measure(_task, _opened, configs):
        found = [seconds(config) for config in configs]
        return [Trial((), each) if isinstance(each, str) else Trial((each,)) for each in found]

    monkeypatch.setattr(template.TemplateTask, "measure", measure)
    return autotvm.measure_option(builder=autotvm.LocalBuilder(n_parallel=4), runner=Quick())


# ---------------------------------------------------------------- spaces


def test_a_space_has_all_combinations_the_first_knob_fastest(task):
    factors = [[-1, n] for n in (1, 2, 4, 8, 16)], [[-1, n] for n in (1, 2, 4, 8, 16, 32)]
    assert len(task.config_space) == 30
    for index, (x, y) in enumerate(itertools.product(factors[1], factors[0])):
        config = task.config_space.get(index)
        assert (config["tile_y"].size, config["tile_x"].size, config.index) == (y, x, index)
    assert str(task.config_space).splitlines() == [
        "ConfigSpace (len=30, space_map=",
        "   0 tile_y: Split(policy=factors, product=16, num_outputs=2) len=5",
        "   1 tile_x: Split(policy=factors, product=32, num_outputs=2) len=6",
        ")",
    ]
    assert str(task.config_space.get(7)) == "[('tile_y', [-1, 4]), ('tile_x', [-1, 2])],None,7"
    with pytest.raises(IndexError):
        task.config_space.get(30)


@pytest.mark.parametrize(
    "options, expected",
    [
        ({"num_outputs": 2}, [[-1, 1], [-1, 2], [-1, 3], [-1, 4], [-1, 6], [-1, 12]]),
        ({"num_outputs": 2, "max_factor": 3}, [[-1, 1], [-1, 2], [-1, 3]]),
        ({"num_outputs": 2, "policy": "power2"}, [[-1, 1], [-1, 2], [-1, 4], [-1, 8]]),
        ({"num_outputs": 2, "policy": "power2", "no_tail": True}, [[-1, 1], [-1, 2], [-1, 4]]),
        ({"num_outputs": 2, "policy": "verbose"}, [[-1, n] for n in (1, 2, 3, 4, 6, 8, 12)]),
        ({"num_outputs": 2, "policy": "candidate", "candidate": [[3, 4], [-1, 5]]}, [[3, 4], [-1, 5]]),
        ({"num_outputs": 2, "filter": lambda entity: entity.size[-1] > 4}, [[-1, 6], [-1, 12]]),
    ],
)
def test_splits_by_policy(options, expected):
    cfg = space.TemplateSpace()
    cfg.define_split("tile", 12, **options)
    assert [entity.size for entity in cfg.space_map["tile"].entities] == expected


def test_splits_into_more_loops():
    cfg = space.TemplateSpace()
    assert len(cfg.define_split("tile", cfg.axis(12), num_outputs=3)) == 3
    sizes = [entity.size for entity in cfg.space_map["tile"].entities]
    divisors = [n for n in range(1, 13) if 12 % n == 0]
    assert sorted(sizes) == sorted([-1, a, b] for a in divisors for b in divisors if 12 % (a * b) == 0)
    cfg.define_split("fused", [3, cfg.axis(4)], num_outputs=2)
    assert "product=12" in repr(cfg.space_map["fused"])


def test_orders_annotations_and_knobs():
    cfg = space.TemplateSpace()
    axes = [cfg.axis(n) for n in (2, 3, 4)]
    cfg.define_reorder("all", axes, policy="all")
    cfg.define_reorder("some", axes, policy="candidate", candidate=[[axes[1], axes[0], axes[2]]])
    cfg.define_reorder("inner", axes, policy="interval_all", interval=(1, 3))
    cfg.define_annotate("ann", axes, policy="try_unroll_vec")
    cfg.define_annotate("vec", axes, policy="try_vec")
    cfg.define_knob("knob", [8, "a", [1, 2]])
    options = {name: [entity.value for entity in knob.entities] for name, knob in cfg.space_map.items()}
    assert sorted(options["all"]) == [list(p) for p in itertools.permutations(range(3))]
    assert options["some"] == [[1, 0, 2]] and options["inner"] == [[0, 1, 2], [0, 2, 1]]
    assert len(options["ann"]) == 12 and ["none", "unroll", "vec"] in options["ann"]
    assert options["vec"] == [["none"] * 3, ["none", "none", "vec"]]
    assert options["knob"] == [8, "a", [1, 2]] and len(cfg) == math.prod(map(len, options.values()))
    chosen = cfg.get(len(cfg) - 1)
    assert chosen["knob"].val == [1, 2] and cfg.find(chosen.to_json_dict()["entity"]) == chosen
    assert len({tuple(cfg.features(cfg.get(n).values)) for n in range(len(cfg))}) == len(cfg)


@pytest.mark.parametrize(
    "define, words",
    [
        (lambda cfg: cfg.define_split("t", 12, policy="other"), "expected the policy factors"),
        (lambda cfg: cfg.define_split("t", 12, filter=lambda _: False), "no option is left"),
        (lambda cfg: cfg.define_split("t", cfg.axis(None)), "length of the loop is not known"),
        (lambda cfg: cfg.define_split("t", 1 << 20, num_outputs=6), "over 1048576 options"),
        (lambda cfg: cfg.define_reorder("t", [1], policy="interleave"), "expected the policy identity"),
        (lambda cfg: cfg.define_annotate("t", [1], policy="bind_gpu"), "expected vec, try_vec"),
        (lambda cfg: cfg.define_split("t", te.reduce_axis((0, te.var("n")))), "length of the loop is not known"),
        (
            lambda cfg: cfg.define_reorder("t", [1, 2], policy="interval_all"),
            "expected an interval of 0 to 2; got None",
        ),
        (lambda cfg: cfg.define_reorder("t", [1], policy="candidate", candidate=[[2]]), "an axis that is not among"),
        (lambda cfg: cfg.define_annotate("t", [1], "candidate", candidate=[["vectorize"]]), "expected none, unroll or"),
        (lambda cfg: cfg["t"], "no knob 't' is defined"),
    ],
)
def test_what_a_space_does_not_take(define, words):
    with pytest.raises(ValueError, match=words):
        define(space.TemplateSpace())


# ---------------------------------------------------------------- tasks


def test_a_task_counts_operations_and_makes_schedules(task, rng):
    n, l, m = SIZES  # noqa: E741
    assert task.flop == 2 * n * l * m
    assert task.workload == ("tutorial/matmul", n, l, m, "float32")
    s, args = task.instantiate(task.config_space.get(17))
    text = str(tvm.lower(s, args, simple_mode=True))
    assert "C[i_0 * 4 + i_1, j_0 * 8 + j_1] = " in text
    run_matmul(tvm.build(s, args, target="llvm"), rng)


def test_a_template_is_found_by_name_or_by_itself(matmul, task):
    from tvm import autotvm

    assert autotvm.task.create(matmul, args=(*SIZES, "float32"), target="llvm").key == task.key
    with pytest.raises(ValueError, match="no template 'tutorial/other'.*tutorial/matmul, conv2d_NCHWc.x86"):
        autotvm.task.create("tutorial/other", args=SIZES, target="llvm")
    with pytest.raises(TypeError, match="expected arguments by position; got dtype"):
        matmul(*SIZES, dtype="float32")
    with pytest.raises(TypeError, match="expected numbers, strings and tuples"):
        autotvm.task.create(matmul, args=(object(),), target="llvm")

    @autotvm.template
    def bare(n):
        return n

    with pytest.raises(TypeError, match="template bare: expected a schedule and a list of tensors"):
        autotvm.task.create(bare, args=(1,), target="llvm")

    @autotvm.template("copies/only")
    def copies(n):
        a = te.placeholder((n,), name="A")
        b = te.compute((n,), lambda i: a[i], name="B")
        return te.create_schedule(b.op), [a, b]

    with pytest.raises(ValueError, match="template copies/only: cannot count its operations .there are none.; say"):
        autotvm.task.create(copies, args=(8,), target="llvm")


def test_without_records_each_knob_has_its_first_option(matmul, rng):
    with tvm.target.Target("llvm"), pytest.warns(UserWarning, match="without autotvm.apply_history_best"):
        s, args = matmul(*SIZES, "float32")
    run_matmul(tvm.build(s, args, "llvm"), rng)


# ---------------------------------------------------------------- tuning


def test_the_four_tuners_tune_a_template_and_a_build_takes_the_best(matmul, task, option, tmp_path, rng, recwarn):
    from tvm import autotvm
    from tvm.autotvm.tuner import GATuner, GridSearchTuner, RandomTuner, XGBTuner

    log = tmp_path / "matmul.log"
    for kind in (XGBTuner, GATuner, RandomTuner, GridSearchTuner):
        tuner = kind(task)
        tuner.tune(n_trial=3, measure_option=option, callbacks=[autotvm.callback.log_to_file(str(log))])
        assert tuner.best_flops > 0 and tuner.best_config in [task.config_space.get(n) for n in range(30)]
    measured = list(autotvm.record.load_from_file(str(log)))
    assert len(measured) == 12 and all(result.error_no == 0 for _, result in measured)
    entities = json.loads(log.read_text().splitlines()[0])["config"]["entity"]
    assert [entity[:2] for entity in entities] == [["tile_y", "sp"], ["tile_x", "sp"]]
    best = min(measured, key=lambda pair: np.mean(pair[1].costs))[0].config
    seen = []
    patched = pytest.MonkeyPatch()
    with patched.context() as patch, autotvm.apply_history_best(str(log)), tvm.target.Target("llvm"):
        apply = space.SplitEntity.apply
        patch.setattr(space.SplitEntity, "apply", lambda self, *a: seen.append(self.size) or apply(self, *a))
        s, args = matmul(*SIZES, "float32")
        func = tvm.build(s, args, "llvm")
    assert seen == [best["tile_y"].size, best["tile_x"].size]
    run_matmul(func, rng)
    assert not [w for w in recwarn if "no config" in str(w.message)]
    with autotvm.apply_history_best(str(log)), pytest.warns(UserWarning, match="no config in the records"):
        matmul(2, 2, 2, "float32")

    picked = tmp_path / "best.log"
    autotvm.record.pick_best(str(log), str(picked))
    ((inp, _),) = autotvm.record.load_from_file(str(picked))
    assert inp.config == best


def test_reorder_annotate_and_knobs_take_part(option, rng, tmp_path):
    from tvm import autotvm

    @autotvm.template("all/kinds")
    def scaled(n, m):
        a = te.placeholder((n, m), name="A")
        b = te.compute((n, m), lambda i, j: a[i, j] * 2.0, name="B")
        s = te.create_schedule(b.op)
        cfg = autotvm.get_config()
        y, x = s[b].op.axis
        cfg.define_split("x", x, num_outputs=2, filter=lambda entity: entity.size[-1] == 4)
        cfg.define_knob("parallel", [0, 1])
        xo, xi = cfg["x"].apply(s, b, x)
        cfg.define_reorder("order", [y, xo], policy="all")
        cfg.define_annotate("inner", [xi], policy="try_unroll_vec")
        loops = cfg["order"].apply(s, b, [y, xo])
        cfg["inner"].apply(s, b, [xi], axis_lens=[cfg["x"].size[-1]], max_unroll=16, vec_size=[4, 8], cfg=cfg)
        if cfg["parallel"].val:
            s[b].parallel(loops[0])
        cfg.add_flop(n * m)
        return s, [a, b]

    task = autotvm.task.create("all/kinds", args=(6, 8), target="llvm")
    assert len(task.config_space) == 12 and task.flop == 48
    log = tmp_path / "kinds.log"
    autotvm.tuner.GridSearchTuner(task).tune(12, option, callbacks=[autotvm.callback.log_to_file(str(log))])
    measured = list(autotvm.record.load_from_file(str(log)))
    assert [inp.config.index for inp, _ in measured] == list(range(12))
    assert not [str(result.costs[0]) for _, result in measured if result.error_no]
    x = rng.standard_normal((6, 8)).astype("float32")
    for config in [measured[0][0].config, measured[-1][0].config]:
        arrays = tvm.nd.array(x), tvm.nd.array(np.empty_like(x))
        tvm.build(*task.instantiate(config), "llvm")(*arrays)
        assert (arrays[1].asnumpy() == 2 * x).all()


def test_a_bad_config_costs_its_trial_only(option, tmp_path):
    from tvm import autotvm

    @autotvm.template("some/bad")
    def some_bad(n):
        a = te.placeholder((n,), name="A")
        b = te.compute((n,), lambda i: a[i] + 1.0, name="B")
        s = te.create_schedule(b.op)
        cfg = autotvm.get_config()
        cfg.define_knob("what", ["good", "refuse", "raise", "crash", "good too"])
        what = cfg["what"].val
        if what == "refuse":
            cfg.raise_error("refused by name")
        if what == "raise":
            s[b].split(b.op.axis[0], factor=0)
        if what == "crash":
            c = te.compute((n,), lambda i: tvm.tirx.call_packed("no.such.function", a[i]), name="B")
            return te.create_schedule(c.op), [a, c]
        return s, [a, b]

    task = autotvm.task.create("some/bad", args=(8,), target="llvm")
    log = tmp_path / "bad.log"
    autotvm.tuner.GridSearchTuner(task).tune(5, option, callbacks=[autotvm.callback.log_to_file(str(log))])
    results = {inp.config["what"].val: result for inp, result in autotvm.record.load_from_file(str(log))}
    assert len(results) == 5
    assert [results[what].error_no for what in ("good", "refuse", "raise", "good too")] == [0, 1, 1, 0]
    assert results["crash"].error_no != 0
    assert "refused by name" in str(results["refuse"].costs[0])


@pytest.mark.parametrize("kind", ["XGBTuner", "GATuner", "RandomTuner", "GridSearchTuner"])
def test_tuners_find_the_best_and_measure_nothing_twice(task, monkeypatch, kind):
    from tvm import autotvm

    seen = []
    option = quick_option(monkeypatch, lambda config: 1e-3 + 1e-4 * abs(config.index - 13))
    tuner = getattr(autotvm.tuner, kind)(task)
    tuner.tune(100, option, callbacks=[lambda _tuner, inputs, _results: seen.extend(i.config.index for i in inputs)])
    assert sorted(seen) == list(range(30)) and seen[0] == 0
    assert tuner.best_config.index == 13 and not tuner.has_next()
    history = [(autotvm.MeasureInput(task.target, task, task.config_space.get(n)),
                autotvm.MeasureResult((1e-3,), 0, 1.0, 1.0)) for n in range(28)]  # fmt: skip
    again = getattr(autotvm.tuner, kind)(task)
    again.load_history(history)
    again.tune(100, option)
    assert again.best_iter in (1, 2)


def test_of_a_large_space_some_configs_are_searched(monkeypatch):
    from tvm import autotvm

    @autotvm.template("large")
    def large(n):
        cfg = autotvm.get_config()
        for number in range(8):
            cfg.define_knob(f"k{number}", list(range(10)))
        a = te.placeholder((n,), name="A")
        b = te.compute((n,), lambda i: a[i] + 1.0, name="B")
        return te.create_schedule(b.op), [a, b]

    task = autotvm.task.create("large", args=(8,), target="llvm")
    assert len(task.config_space) == 10**8 and len(task.numbers) == len(set(task.numbers)) == 1 << 14
    seen = []
    option = quick_option(monkeypatch, lambda config: 1.0)
    tuner = autotvm.tuner.RandomTuner(task)
    tuner.tune(8, option, callbacks=[lambda _tuner, inputs, _results: seen.extend(i.config.index for i in inputs)])
    assert seen[0] == 0 and set(seen) <= set(task.numbers) and max(seen) > 1 << 20


@pytest.mark.alone
def test_an_rpc_runner_measures_templates(task, tmp_path):
    from tvm import autotvm

    with Cluster(tmp_path) as cluster:
        cluster.serve("one", key="shelf")
        options = {"number": 2, "repeat": 2, "timeout": 60, "cooldown_interval": 0}
        runner = autotvm.RPCRunner("shelf", "127.0.0.1", cluster.port, **options)
        seen = []
        option = autotvm.measure_option(builder=autotvm.LocalBuilder(), runner=runner)
        autotvm.tuner.GridSearchTuner(task).tune(3, option, callbacks=[lambda *batch: seen.extend(batch[2])])
    assert [(len(result.costs), result.error_no) for result in seen] == [(2, 0)] * 3


# ---------------------------------------------------------------- logs


def line_of(task, index, seconds):
    from tvm import autotvm

    inp = autotvm.MeasureInput(task.target, task, task.config_space.get(index))
    return autotvm.record.encode(inp, autotvm.MeasureResult((seconds,), 0, 1.0, 1.0)) + "\n"


def test_a_log_outlives_a_kill_at_any_byte(task, tmp_path, monkeypatch):
    from tvm import autotvm

    log = tmp_path / "kill.log"
    first, second = line_of(task, 3, 1e-3), line_of(task, 4, 2e-3)
    option = quick_option(monkeypatch, lambda config: 3e-3)
    for cut in range(0, len(second) + 1, 7):
        log.write_text(first + second[:cut])
        tuner = autotvm.tuner.GridSearchTuner(task)
        tuner.tune(1, option, callbacks=[autotvm.callback.log_to_file(str(log))])
        indices = [inp.config.index for inp, _ in load_quietly(log)]
        assert indices[0] == 3 and indices[-1] == 0 and len(indices) == 2 + (cut >= len(second) - 1)


def load_quietly(log):
    from tvm import autotvm

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return list(autotvm.record.load_from_file(str(log)))


def test_lines_of_other_templates_and_spaces_are_left_out(task, tmp_path):
    from tvm import autotvm

    log = tmp_path / "mixed.log"
    good = line_of(task, 7, 1e-3)
    changes = ("tutorial/matmul", "yours"), ("[-1, 4]", "[-1, 5]"), ("[0.001]", "[NaN]"), ("[16, 24,", "[16, 0,")
    assert all(old in good for old, _ in changes)
    log.write_text("".join(good.replace(*change) for change in changes) + good)
    with pytest.warns(UserWarning, match="4 lines are torn, or of schedules that are not here"):
        ((inp, result),) = autotvm.record.load_from_file(str(log))
    assert inp.config.index == 7 and inp.task.key == task.key and result.costs == (1e-3,)


def test_a_log_of_2021_is_read(task, tmp_path):
    from tvm import autotvm

    log = tmp_path / "old.log"
    log.write_text(
        '{"input": ["llvm -keys=cpu -link-params=0", "tutorial/matmul", [16, 24, 32, "float32"], {}], "config": '
        '{"index": 22, "code_hash": null, "entity": [["tile_y", "sp", [-1, 4]], ["tile_x", "sp", [-1, 16]]]}, '
        '"result": [[0.0013], 0, 1.9, 1611111111.1], "version": 0.2, "tvm_version": "0.8.dev0"}\n'
    )
    with pytest.warns(UserWarning, match="-link-params no longer exists"):
        ((inp, _),) = autotvm.record.load_from_file(str(log))
    assert inp.config.index == 22 and inp.config["tile_x"].size == [-1, 16] and inp.task.key == task.key
