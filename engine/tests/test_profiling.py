"""profiler.py, stopwatch.py, the compiler's counts, held against formulas. No assertion is on a time."""

import io
import json
import os
import threading

import forked
import numpy as np
import pandas as pd
import pytest
import torch
import tvm
from test_dot import CPUS
from testing import Function, SmallNet
from torch import nn
from tvm.script import tirx as T

import tvmfast
from tvmfast.compiler import costs, pipeline
from tvmfast.compiler.build import resolve_target
from tvmfast.compiler.context import BuildContext
from tvmfast.compiler.schedule.rules import winograd
from tvmfast.compiler.schedule.workloads.conv2d import Convolution
from tvmfast.core import machine
from tvmfast.core.relax import ceildiv
from tvmfast.profiling import measure, networks, peak, profiler
from tvmfast.profiling.measure import Timing
from tvmfast.runtime.stopwatch import Call, Stopwatch
from tvmfast.tuning import Candidate, trial

AVX512 = {"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "skylake-avx512"}
ARM = {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a72"}


@pytest.fixture(scope="module", autouse=True)
def limits():
    """A machine of 100 GFLOP/s and 10 GB/s."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(peak, "flops", lambda: 100e9)
        patch.setattr(peak, "bandwidth", lambda: 10e9)
        yield


@pytest.fixture(scope="module")
def profiled(lib, small):
    return tvmfast.profile(lib, small.x, calls=5)


def cost_of(net, *shapes, **options):
    """The costs of a network's convolution, and its row of `kernels`."""
    inputs = {f"x{i}": shape for i, shape in enumerate(shapes)}
    lib = tvmfast.build(*tvmfast.from_pytorch(networks.seeded(lambda: net, shapes[0][1]), inputs), **options)
    (name,) = (name for name in lib.kernels.index if "conv2d" in name)
    return lib.graph["costs"][name], lib.kernels.loc[name]


# ---------------------------------------------------------------- counting


@pytest.mark.parametrize("options", [{"opt_level": 0}, {"target": AVX512, "records": False}], ids=["level0", "level3"])
def test_a_direct_convolution_counts_as_its_formula(options):
    """2 for each product and sum, for each output, input channel and position in the window; a byte of data once."""
    conv = nn.Conv2d(32, 48, 3, stride=2, padding=1, bias=False)
    cost, _ = cost_of(conv, (1, 32, 28, 28), **options)
    products, inside = 48 * 14 * 14 * 32 * 9, 28 * 28  # stride 2 and padding 1 leave no input out
    assert cost["flops"] == 2 * products
    assert cost["reads"] == 4 * (32 * inside + 48 * 32 * 9)
    assert cost["writes"] == 4 * 48 * 14 * 14


def test_winograds_method_counts_its_own_products_and_transforms():
    cost, schedule = cost_of(nn.Conv2d(64, 64, 3, padding=1, bias=False), (1, 64, 24, 24), target=AVX512, records=False)
    config = schedule["config"]
    assert schedule["family"] == "winograd"
    of_input, _, of_output = winograd._TRANSFORMS[config["m"]]

    def transform(matrix):
        """The operations of a matrix times a column: an addition between its elements, a product but with 1."""
        rows = [[n for n in row if n] for row in matrix]
        return sum(len(row) - 1 + sum(n != 1 for n in row) for row in rows)

    tile, side = config["m"], config["m"] + 2
    block = tile * config["tile_oh"], tile * config["tile_ow"]
    tiles = ceildiv(24, block[0]) * ceildiv(24, block[1]) * config["tile_oh"] * config["tile_ow"]
    inputs = 2 * side * transform(of_input)
    outputs = side * transform(of_output)
    finish = 24 * 24 * transform(of_output) // tile  # only of what is within the image
    assert cost["flops"] == tiles * (2 * side**2 * 64 * 64 + 64 * inputs + 64 * outputs) + 64 * finish
    assert cost["flops"] < 2 * 64 * 64 * 24 * 24 * 9, "fewer than the direct way"


@pytest.mark.parametrize("level", [0, 3])
@pytest.mark.parametrize(
    ("function", "shapes", "flops", "reads", "writes"),
    [
        # of whole tiles, on any CPU
        (torch.matmul, [(1, 12, 32), (1, 32, 64)], 2 * 12 * 32 * 64, 4 * (12 * 32 + 32 * 64), 4 * 12 * 64),
        (torch.add, [(1, 24), (1, 24)], 24, 8 * 24, 4 * 24),
        (lambda x, y: x / 2 * torch.sqrt(y), [(1, 32), (1, 32)], 3 * 32, 8 * 32, 4 * 32),
        (lambda x: x[:, 4:8], [(1, 64)], 0, 16, 16),
        (lambda x: nn.functional.pad(x, (1, 2)), [(1, 8)], 0, 32, 44),
    ],
    ids=["matmul", "add", "arithmetic", "slice", "pad"],
)
def test_kernels_count_as_their_formulas(function, shapes, flops, reads, writes, level):
    inputs = {f"x{i}": shape for i, shape in enumerate(shapes)}
    lib = tvmfast.build(*tvmfast.from_pytorch(Function(function).eval(), inputs), opt_level=level)
    found = [lib.graph["costs"][node["kernel"]] for node in lib.graph["nodes"]]
    assert sum(cost["flops"] for cost in found) == flops
    if len(found) == 1:
        assert (found[0]["reads"], found[0]["writes"]) == (reads, writes)


def test_a_gather_reads_the_rows_that_it_takes_and_not_the_table(compile_function):
    table = torch.arange(4000.0).reshape(1000, 4)
    lib = compile_function(lambda rows: table[rows], {"rows": ((3,), "int64")})
    cost = lib.graph["costs"]["take"]
    assert (cost["flops"], cost["reads"], cost["writes"]) == (0, 3 * 8 + 3 * 16, 3 * 16)


def test_conditions_on_loop_variables_are_exact_and_those_on_data_count_both_ways():
    @T.prim_func(s_tir=True)
    def known(a: T.Buffer((8, 8), "float32"), b: T.Buffer((8, 8), "float32")):
        for i, j in T.grid(8, 8):
            with T.sblock("b"):
                y, x = T.axis.remap("SS", [i, j])
                T.where(i * 8 + j < 60)
                b[y, x] = T.if_then_else(y < x and x != 7, a[y, x] + T.float32(1), a[0, 0])

    inside = [(y, x) for y in range(8) for x in range(8) if y * 8 + x < 60 and y < x != 7]
    others = [(y, x) for y in range(8) for x in range(8) if y * 8 + x < 60 and not y < x != 7]
    found = costs.count(known)
    assert (found["flops"], found["int_ops"], found["writes"]) == (len(inside), 0, 4 * 60)
    assert found["reads"] == 4 * min(64, len(inside) + len(others))

    @T.prim_func(s_tir=True)
    def data(a: T.Buffer((8,), "float32"), b: T.Buffer((8,), "float32"), n: T.Buffer((1,), "int32")):
        for i in range(8):
            if a[i] > T.float32(0):
                b[i] = a[i] * T.float32(2)
            else:
                b[i] = a[i] * T.float32(3) + T.float32(1)
        for i in range(n[0]):
            b[i] = b[i] + T.float32(1)

    assert costs.count(data)["flops"] == 8 * 3 + 1


def test_a_loop_as_long_as_the_one_outside_says_is_a_triangle():
    @T.prim_func(s_tir=True)
    def triangle(a: T.Buffer((8, 8), "float32"), b: T.Buffer((8,), "float32")):
        for i in range(8):
            for j in range(i):
                b[i] = b[i] + a[i, j]

    wanted = {"flops": 28, "bf16_flops": 0, "int_ops": 0, "reads": 4 * 28, "writes": 4 * 8}
    assert costs.count(triangle) == wanted


def test_integers_count_in_values_and_not_in_indices_and_conditions():
    @T.prim_func(s_tir=True)
    def mixed(a: T.Buffer((8,), "int32"), b: T.Buffer((8,), "int32"), c: T.Buffer((8,), "float32")):
        for i in range(8):
            b[(i + 1) % 8] = T.max(a[i * 3 % 8] * T.int32(2) + T.int32(1), a[i])  # 3
            if i * 2 < 8:
                c[i + 4] = T.Select(i + 1 > 2, c[i * 2] + T.float32(1), T.float32(0))

    found = costs.count(mixed)
    assert (found["int_ops"], found["flops"], found["bf16_flops"]) == (3 * 8, 2, 0)


@pytest.mark.parametrize("name", CPUS)
def test_a_convolution_of_bytes_counts_its_products_and_sums(name):
    """By the instruction of any CPU: 2 for each product, none in vain here; each byte once; int16 takes two."""
    target = str(resolve_target({"kind": "llvm", **({"mtriple": "x86_64-linux-gnu"} | CPUS[name][0])}))
    workload = Convolution((1, 32, 8, 8), (32, 32, 3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 1, True, "uint8")
    config = {"family": "dot_conv", "instruction": name, "tile_ow": 4, "tile_oc": 1, "loop_order": "rows"}
    found = costs.count(trial.kernel(Candidate(workload, config, target))["main"])
    weights = 32 * 32 * 9 * (2 if "maddwd" in name else 1)
    assert found["int_ops"] == 2 * 32 * 32 * 9 * 8 * 8 and found["flops"] == 0
    assert (found["reads"], found["writes"]) == (32 * 8 * 8 + weights, 4 * 32 * 8 * 8)


def test_products_of_pairs_are_among_the_flops():
    """Of whole tiles: a product and a sum for each weight and row."""
    mod, params = tvmfast.from_pytorch(nn.Linear(64, 64, bias=False).eval(), {"x": (8, 64)})
    target = {"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "znver4"}
    lib = tvmfast.build(mod, params, target, records=False, dtype="bfloat16")
    (cost,), (config,) = lib.graph["costs"].values(), lib.kernels.config
    rows, columns = (ceildiv(n, config[tile]) * config[tile] for n, tile in ((8, "tile_m"), (4, "tile_n")))
    assert cost["bf16_flops"] == cost["flops"] == 2 * rows * columns * 16 * 64


def test_operators_are_those_that_a_kernel_fuses(small):
    built = {level: tvmfast.build(small.mod, small.params, opt_level=level).graph["costs"] for level in (0, 1, 3)}
    assert all(len(cost["operators"]) == 1 for cost in built[0].values())
    assert [c["operators"] for name, c in built[0].items() if name.startswith("conv2d")] == [["conv2d"]] * 2
    assert {len(cost["operators"]) for cost in built[1].values()} > {1}
    (second,) = (c["operators"] for n, c in built[3].items() if n.startswith("fused_conv2d1"))
    assert second == ["conv2d", "add", "add", "relu"], "numbers of shapes are left out"


# ---------------------------------------------------------------- memory


@pytest.mark.parametrize("level", [0, 3])
def test_the_planned_buffers_are_those_that_a_run_allocates(small, level):
    lib, seen = tvmfast.build(small.mod, small.params, opt_level=level), []

    def instrument(_function, name, before, _result, *args):
        if before and str(name) == "vm.builtin.alloc_storage":
            seen.append(int(args[1][0]))

    with lib.instrumented(instrument):
        lib(small.x)
    plan = lib.graph["memory"]
    assert plan["buffers"] == seen and 0 < plan["peak"] <= sum(seen)
    values = [np.prod(output["shape"]) * 4 for node in lib.graph["nodes"] for output in node["makes"]]
    assert plan["peak"] < plan["unshared"] <= sum(values), "less those that are views"


def names_of_calls(lib, *inputs) -> list[str]:
    """Return what the virtual machine calls in a run, in order."""
    names = []
    with lib.instrumented(lambda _function, name, before, *_: names.append(str(name)) if before else None):
        lib(*inputs)
    return names


def test_values_are_killed_where_that_frees_memory_for_others(rng):
    """Of three in a row, the first, by two variables, before the result is allocated; nothing needs the second's."""
    x = rng.standard_normal((1, 4, 8, 8)).astype("float32")
    net = nn.Sequential(*(nn.MaxPool2d(3, 1, 1) for _ in range(3))).eval()
    names = names_of_calls(tvmfast.build(net, {"x": x.shape}), x)
    *_, last = (n for n, name in enumerate(names) if name == "vm.builtin.alloc_storage")
    kills = [n for n, name in enumerate(names) if name == "vm.builtin.null_value"]
    assert len(kills) == 2 and kills[-1] < last
    step = rng.standard_normal((1, 1, 8)).astype("float32")
    names = names_of_calls(tvmfast.build(nn.LSTM(8, 8).eval(), {"x": step.shape}), step)
    assert "vm.builtin.null_value" not in names and names.count("vm.builtin.make_tuple") == 1


def test_the_peak_is_what_is_held_at_once():
    """x1 is made from x, x2 from x1, x3 from x2: two at a time, in two buffers."""

    def chain(x):
        for _ in range(3):
            x = torch.nn.functional.max_pool2d(x, 3, 1, 1)
        return x

    lib = tvmfast.build(*tvmfast.from_pytorch(Function(chain).eval(), {"x": (1, 4, 8, 8)}), opt_level=0)
    size = 4 * 4 * 8 * 8
    assert lib.graph["memory"]["unshared"] == 3 * size
    assert lib.graph["memory"]["peak"] == 2 * size
    assert profiler.alive(lib) == [size, 2 * size, 2 * size]
    report = profiler.memory(lib)
    assert report["peak of a run"] == f"{3 * size / 1e6:.2f} MB" and report["parameters"] == "0.00 MB in 0 arrays"


# ---------------------------------------------------------------- the stopwatch


def test_the_stopwatch_sees_every_call_of_a_run_in_order(lib, small):
    seen = []
    with lib.instrumented(lambda _f, name, before, *_: seen.append(str(name)) if before else None):
        lib(small.x)
    watch = Stopwatch(lib, lambda: lib(small.x))
    watch()
    watch()
    for run in watch.take():
        assert [call.name for call in run] == seen
        times = [time for call in run for time in (call.begin, call.end)]
        assert times == sorted(times) and times[0] == 0 < times[-1]


def test_nothing_is_called_any_more_when_an_instrument_is_gone(lib, small):
    seen = []
    with lib.instrumented(lambda *_: seen.append(1)):
        lib(small.x)
    before = len(seen)
    lib(small.x)
    assert before > 0 and len(seen) == before
    assert len(lib.timed(small.x)) == len([n for n in lib.graph["nodes"] if n["kernel"] in lib.graph["kernels"]])


def test_a_run_of_another_thread_meanwhile_is_an_error(lib, small):
    def run():
        lib(small.x)
        if armed:
            threading.Thread(target=lib, args=(small.x,)).run()

    armed = False
    watch = Stopwatch(lib, run)
    armed = True
    with pytest.raises(RuntimeError, match="another thread"):
        watch()


# ---------------------------------------------------------------- a profile


def test_a_profile_has_all_kernels_of_the_network(profiled, lib):
    frame = profiled.frame()
    assert set(frame.index) == {n["kernel"] for n in lib.graph["nodes"]} & set(lib.kernels.index)
    assert len(profiled.runs) >= 5 and len(profiled.unprofiled.seconds) == len(profiled.profiled.seconds) == 5
    assert frame["share"].sum() == pytest.approx(1) and frame["ms"].is_monotonic_decreasing
    assert 0 < profiled.sum < max(run[-1].end for run in profiled.runs)
    for name, kernel in profiled.kernels.items():
        assert len(kernel.timing.seconds) == len(profiled.runs)
        cost = lib.graph["costs"][name]
        assert (kernel.flops, kernel.bytes) == (cost["flops"], cost["reads"] + cost["writes"])
    nodes = [lib.graph["nodes"][number]["kernel"] for number in profiled.calls()["node"]]
    assert nodes == list(profiled.calls()["kernel"])
    for text in (str(profiled), profiled._repr_html_()):
        assert "with the stopwatch" in text and "conv2d + add + add + relu" in text


def invented_profile(instruction: str = "", **counts) -> profiler.Profile:
    """A profile of two runs with invented times: conv 2 and 4 ms in two calls each, dense 1 ms."""
    names = {"conv": (10**8, 10**6), "dense": (10**5, 10**7)}
    of_tiles = {"instruction": instruction} if instruction else {}
    graph = {
        "kernels": {"conv": {"family": "winograd", "m": 4} | of_tiles, "dense": {"family": "none"}},
        "costs": {k: {"flops": f, "reads": b, "writes": 0, "operators": [k], **counts} for k, (f, b) in names.items()},
        "nodes": [
            {"kernel": k, "makes": [{"shape": [1, n]}]}
            for n, k in enumerate(("conv", "relax.reshape", "conv", "dense"))
        ],
        "tuned": "",
    }
    runs = []
    for conv in (1e-3, 2e-3):
        calls, now = [], 0.0
        for name, seconds in (("vm", 1e-4), ("conv", conv), ("conv", conv), ("dense", 1e-3)):
            calls.append(Call(name, now, now + seconds))
            now += seconds
        runs.append(calls)
    compiled = type("Network", (), {"graph": graph, "__str__": lambda self: "made up"})()
    return profiler.Profile(compiled, runs, Timing("", [4e-3]), Timing("", [4.1e-3]))


def test_the_arithmetic_of_a_profile():
    small_profile = invented_profile()
    conv, dense = small_profile.frame().to_dict("records")
    assert conv["calls"] == 2 and conv["ms"] == pytest.approx(3) and conv["iqr (ms)"] == pytest.approx(1)
    assert conv["share"] == pytest.approx(0.75) and dense["share"] == pytest.approx(0.25)
    assert conv["GFLOP/s"] == pytest.approx(2e8 / 3e-3 / 1e9) and dense["GB/s"] == pytest.approx(10)
    assert (conv["bound"], dense["bound"]) == ("compute", "memory")
    assert conv["of limit"] == pytest.approx(2 / 3) and dense["of limit"] == pytest.approx(1)
    assert (conv["makes"], conv["schedule"], dense["schedule"]) == ("1x0", "winograd m=4", "none")
    assert small_profile.sum == pytest.approx(4e-3) and small_profile.overhead == pytest.approx(0.025)
    assert "(+2.5%); kernels 4.00 ms, 100.0% of a run; 2 runs" in small_profile.summary
    calls = small_profile.calls()
    assert list(calls["node"]) == [0, 2, 3] and calls["ms"].tolist() == pytest.approx([1.5, 1.5, 1])


def test_a_profile_says_that_the_machine_was_busy(lib, small, monkeypatch):
    monkeypatch.setattr(measure, "_share_lost", lambda *_: 0.25)
    busy = tvmfast.profile(lib, small.x, calls=2)
    said = (
        " runs profiled. The machine is busy: for 25% of the time, threads waited for a CPU that other processes had."
    )
    assert str(busy).endswith(said) and said in busy._repr_html_()
    for lost in (None, 0.0, 0.04):
        monkeypatch.setattr(measure, "_share_lost", lambda *_, lost=lost: lost)
        quiet = tvmfast.profile(lib, small.x, calls=2)
        assert "busy" not in str(quiet) and quiet.summary.endswith(" runs profiled")


def test_a_trace_is_one_real_run_for_perfetto(profiled, lib, tmp_path):
    path = profiled.to_chrome_trace(tmp_path / "run.json")
    events = json.loads(path.read_text())["traceEvents"]
    whole, *calls = events
    assert all(event["ph"] == "X" and event["dur"] >= 0 for event in events)
    assert whole["name"] == "run" and whole["ts"] == 0
    ends = [call["ts"] + call["dur"] for call in calls]
    assert all(end <= following["ts"] + 1e-3 for end, following in zip(ends, calls[1:], strict=False))
    assert ends[-1] <= whole["dur"] + 1e-3
    kernels = [call for call in calls if call["cat"] == "kernel"]
    assert [call["name"] for call in kernels] == list(profiled.calls()["kernel"])
    assert kernels[1]["args"]["operators"] == "conv2d + add + add + relu"
    lengths = [[round(call.end - call.begin, 9) * 1e6 for call in run] for run in profiled.runs]
    assert any(np.allclose([call["dur"] for call in calls], run, atol=2e-3) for run in lengths)
    assert [file.name for file in tmp_path.iterdir()] == ["run.json"]


def test_a_file_has_the_table(profiled, tmp_path):
    text = profiled.to_csv(tmp_path / "profile.csv").read_text()
    read = pd.read_csv(io.StringIO(text)).set_index("kernel")
    pd.testing.assert_frame_equal(read, profiled.frame())
    with pytest.raises(FileNotFoundError):
        profiled.to_csv(tmp_path / "no such folder" / "profile.csv")


def test_a_loaded_network_has_the_same_profile(profiled, lib, small, tmp_path):
    loaded = tvmfast.load(lib.save(tmp_path / "small"))
    again = tvmfast.profile(loaded, small.x, calls=2).frame()
    fixed = ["operators", "makes", "calls", "MFLOP", "MB", "bound", "schedule"]
    pd.testing.assert_frame_equal(again[fixed].sort_index(), profiled.frame()[fixed].sort_index())
    assert loaded.graph["memory"] == lib.graph["memory"]


def test_wrong_arguments_are_errors_before_anything_is_measured(lib, small, monkeypatch):
    monkeypatch.setattr(profiler.measure, "compare", lambda *_, **__: pytest.fail("it measured"))
    with pytest.raises(TypeError, match="profile: expected a Compiled, as tn.build and tn.load give; got SmallNet"):
        tvmfast.profile(networks.seeded(SmallNet, 8), small.x)
    with pytest.raises(TypeError, match=r"expected 1 input \(image: .*\), got 0 by position; missing: image"):
        tvmfast.profile(lib)
    with pytest.raises(ValueError, match=r"'image': expected the shape \(1, 3, 8, 8\), got \(1, 3, 9, 9\)"):
        tvmfast.profile(lib, np.zeros((1, 3, 9, 9), "float32"))
    with pytest.raises(ValueError, match="expected the dtype float32, got float64"):
        tvmfast.profile(lib, np.zeros((1, 3, 8, 8)))
    same = tvmfast.build(*tvmfast.from_pytorch(Function(lambda x: x).eval(), {"x": (3,)}))
    with pytest.raises(ValueError, match="profile: this network calls no kernel"):
        tvmfast.profile(same, np.zeros(3, "float32"))
    with pytest.raises(RuntimeError, match="this library cannot run here"):
        tvmfast.profile(tvmfast.build(small.mod, small.params, target=ARM), small.x)


# ---------------------------------------------------------------- threads


def test_tvm_takes_half_of_the_processors_unless_it_is_told(python):
    code, listed = "import tvm; print(tvm.runtime.num_threads())", os.cpu_count()
    taken = int(python(code, TVM_NUM_THREADS=None, OMP_NUM_THREADS=None))
    if tvm.target.codegen.llvm_get_system_triple().startswith("x86_64"):
        # Some C libraries count the CPUs of the affinity mask alone.
        assert taken in [max(1, count // 2) for count in (listed, len(os.sched_getaffinity(0)))]
    told = forked.run("-c", code, env={**os.environ, "TVM_NUM_THREADS": str(listed)})
    assert told.stdout.strip() == str(listed), told.stderr


def test_the_pass_that_notes_operators_stands_behind_fuse_ops():
    names = [str(step.info.name) for step in pipeline.passes(BuildContext(machine.host_target()))]
    assert names[names.index("FuseOps") + 1] == "NoteOperators"


def test_the_limit_adds_the_times_of_all_kinds_at_their_peaks(monkeypatch):
    monkeypatch.setattr(peak, "int8_ops", lambda: 400e9)
    monkeypatch.setattr(peak, "bf16_flops", lambda: 200e9)
    profile = invented_profile(int_ops=8 * 10**8, bf16_flops=4 * 10**7)
    conv = profile.kernels["conv"]
    seconds = 2 * (6e7 / 100e9 + 4e7 / 200e9 + 8e8 / 400e9)
    assert conv.limit == pytest.approx(seconds) and conv.bound == "compute"
    assert profile.dots[0][0] == 2 * (10**8 + 8 * 10**8)
    assert list(profile.frame()["int Mop"]) == [1600, 800] and "int Gop/s" in profile.frame()
    assert "int Mop" not in invented_profile().frame()


def test_the_limit_of_a_kernel_with_tiles_is_that_of_its_instruction(monkeypatch):
    monkeypatch.setattr(peak, "tile_ops", {"tdpbusd": 3200e9, "tdpbf16ps": 1600e9}.__getitem__)
    monkeypatch.setattr(peak, "int8_ops", lambda: 400e9)
    monkeypatch.setattr(peak, "bf16_flops", lambda: 200e9)
    for counts, instruction, of_all in (
        ({"int_ops": 8 * 10**8}, "tdpbusd", 1e8 / 100e9 + 8e8 / 3200e9),
        ({"bf16_flops": 10**8}, "tdpbf16ps", 1e8 / 1600e9),
        ({"int_ops": 8 * 10**8}, "vpdpbusd 512", 1e8 / 100e9 + 8e8 / 400e9),
    ):
        conv = invented_profile(instruction=instruction, **counts).kernels["conv"]
        assert conv.computing == pytest.approx(2 * of_all)
        assert conv.tiles == (instruction if instruction.startswith("t") else "")
