"""bench: figures agree, a failure costs a row, wrong options are refused; peak: its kernels compute what they should.

How fast anything is, is never asserted.
"""

import contextlib
import json
import os
import threading
from pathlib import Path
from statistics import geometric_mean
from types import SimpleNamespace

import forked
import numpy as np
import onnxruntime
import psutil
import pytest
import torch
import tvm
from agreement import close, reference, terms_of
from testing import QUICK, Function, SmallNet
from torch import nn
from typer.testing import CliRunner

from tvmfast import commands
from tvmfast.compiler.schedule import pairs
from tvmfast.compiler.schedule.dot import DOTS
from tvmfast.core import machine, rounding
from tvmfast.core.simd import PLAIN, simd_of
from tvmfast.profiling import benchmark, networks, peak, quotas

NETWORKS, RUNTIMES = ("small", "coarse" if QUICK else "squeezenet1_1"), ("TVM", "pytorch", "onnxruntime")


def load(name):
    """The engine's networks, and two small ones, of which "coarse" reads large pictures."""
    if name == "coarse":
        net = networks.seeded(
            lambda: nn.Sequential(nn.Conv2d(3, 8, 16, 16), nn.Flatten(), nn.Linear(8 * 14**2, 10)), 224
        )
        net.weights_kind, net.input_shape = "seeded", (1, 3, 224, 224)
        return net
    if name != "small":
        return networks.load(name)
    net = networks.seeded(SmallNet, 8)
    net.weights_kind, net.input_shape = "pretrained", (1, 3, 8, 8)
    return net


def explained(net) -> float:
    """By how much rounding may move two results of a network from each other, as a share of the largest number."""
    return 2 * rounding.share(terms_of(dict(net.named_parameters())), 2.0**-23)


SOURCE = SimpleNamespace(
    load=load, require_pictures=lambda name: name in ("small", "coarse") or networks.require_pictures(name)
)


@pytest.fixture(autouse=True)
def named(monkeypatch):
    """The command takes the names of `SOURCE`."""
    monkeypatch.setattr(commands, "find_networks", lambda: SOURCE)


def bench(*args):
    return CliRunner().invoke(commands.app, ["bench", *map(str, args)])


# ---------------------------------------------------------------- one run of the command


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """What a run of two networks on one thread prints, the lines of its table, and what it writes."""
    file = tmp_path_factory.mktemp("bench") / "figures.json"
    options = ["--threads", "1", "--batch", "2", "--seconds", "0.05", "--json", str(file)]
    code = (
        "import sys, torch, tvm; from test_benchmark import SOURCE, commands; commands.find_networks = lambda: SOURCE;"
        "commands.app(sys.argv[1:], standalone_mode=False);"
        "print(torch.get_num_threads(), tvm.get_global_func('runtime.NumThreads')())"
    )
    command, env = ["-W", "ignore", "-c", code, "bench", *NETWORKS, *options], {**os.environ, "TQDM_DISABLE": "1"}
    done = forked.run(*command, cwd=Path(__file__).parent, env=env)
    assert done.returncode == 0, done.stderr
    assert [path.name for path in file.parent.iterdir()] == [file.name]
    return done.stdout.splitlines(), json.loads(file.read_text())


def test_the_file_says_what_ran_where(run):
    _, report = run
    assert set(report) == {"machine", "results"}
    machine = report["machine"]
    assert set(machine) == {"cpu", "threads", "isa", "peak_gflops", "versions", "busy_processes", "quota"}
    assert machine["threads"] == 1 and machine["busy_processes"] == 0 and machine["peak_gflops"] > 0
    assert machine["quota"] is None
    assert machine["versions"]["torch"] == torch.__version__.split("+")[0]
    assert machine["versions"]["onnxruntime"] == onnxruntime.__version__
    rows = report["results"]
    assert [(row["network"], row["runtime"]) for row in rows] == [(n, r) for n in NETWORKS for r in RUNTIMES]
    assert {tuple(row["input"]) for row in rows} == {(2, 3, 8, 8), (2, 3, 224, 224)}
    assert {row["weights"] for row in rows} == {"pretrained", "seeded"}
    assert [row["build_s"] is None for row in rows] == [row["runtime"] == "pytorch" for row in rows]
    assert not any(row["error"] for row in rows)


def test_the_figures_agree(run):
    _, report = run
    for name in NETWORKS:
        rows = {row["runtime"]: row for row in report["results"] if row["network"] == name}
        for row in rows.values():
            assert row["p95_ms"] >= row["median_ms"] > 0 and row["iqr_ms"] >= 0 and row["mean_ms"] > 0
            # Of the same numbers as the file has them, in another order.
            assert row["tvm_ratio"] == pytest.approx(rows["TVM"]["median_ms"] / row["median_ms"])
            assert row["gflops"] * row["median_ms"] == pytest.approx(rows["TVM"]["gflops"] * rows["TVM"]["median_ms"])
            if row["tvm_interval"] is not None:
                low, high = row["tvm_interval"]
                assert 0 < low <= high
            assert row["peak_share"] == pytest.approx(row["gflops"] / report["machine"]["peak_gflops"])
            assert 0 <= row["difference"] <= explained(load(name))


def test_the_table_shows_them(run):
    lines, report = run
    assert all(len(line) <= 100 for line in lines)
    head = " ".join(lines[:2])
    assert "1 thread," in head and f"peak {report['machine']['peak_gflops']:.0f} GFLOP/s, batch 2" in head
    first = next(i for i, line in enumerate(lines) if line.startswith("network")) + 1
    for line, row in zip(lines[first : first + 6], report["results"], strict=True):
        assert line.startswith(row["network"]) == (row["runtime"] == "TVM")
        cells = line.split()[-9:]
        assert cells[0] == row["runtime"] and cells[3] == f"{row['tvm_ratio']:.2f}"
        for cell, key in zip(cells[1:3], ("median_ms", "p95_ms"), strict=True):
            assert float(cell) == pytest.approx(row[key], abs=0.0051 if row[key] > 0.99 else 5.1e-5)
        assert cells[5] == f"{row['difference']:.1e}"
    for peer, line in zip(RUNTIMES[1:], lines[first + 7 :], strict=False):
        ratios = [row["tvm_ratio"] for row in report["results"] if row["runtime"] == peer]
        assert line.startswith(f"TVM / {peer}: geometric mean {geometric_mean(ratios):.2f}, worst {max(ratios):.2f} (")


def test_all_run_on_as_many_threads(run):
    lines, _ = run
    assert lines[-1] == "1 1"  # torch's and TVM's


def test_onnx_runtime_has_them_too(monkeypatch, tmp_path):
    opened, session = [], onnxruntime.InferenceSession

    def record(file, options, **more):
        opened.append(options)
        return session(file, options, **more)

    monkeypatch.setattr(onnxruntime, "InferenceSession", record)
    monkeypatch.setenv("TVM_NUM_THREADS", "3")
    benchmark._onnxruntime(load("small"), np.zeros((1, 3, 8, 8), "float32"), tmp_path)
    assert [options.intra_op_num_threads for options in opened] == [3]


# ---------------------------------------------------------------- failures


@pytest.fixture
def quick(monkeypatch):
    """No peak is measured, "TVM" is PyTorch, and torch's thread count is as before afterwards."""
    monkeypatch.setattr(peak, "flops", lambda: 1e11)
    monkeypatch.setitem(benchmark._RUNTIMES, "TVM", benchmark._pytorch)
    threads = torch.get_num_threads()
    yield monkeypatch
    torch.set_num_threads(threads)


def fail(*args, **kwargs):
    raise NotImplementedError("no such\noperator " + "here, " * 100)


def bench_to(file, *args):
    """Run the command; gives its exit code, the lines of its table, and its rows by network and runtime."""
    done = bench(*args, "--seconds", 0.01, "--json", file)
    rows = json.loads(file.read_text())["results"]
    lines = done.stdout.splitlines()
    assert all(len(line) <= 100 for line in lines)
    return done.exit_code, lines, {(row["network"], row["runtime"]): row for row in rows}


def assert_failed(row, line):
    assert row["error"].startswith("NotImplementedError: no such operator here, here")
    assert {row[key] for key in benchmark._COLUMNS} == {None}
    assert "— NotImplementedError: no such operator here" in line and line.endswith("…")


def test_a_network_that_tvm_cannot_build_costs_its_row(quick, tmp_path):
    quick.setitem(benchmark._RUNTIMES, "TVM", benchmark._tvm)
    quick.setattr(benchmark, "build", fail)
    code, lines, rows = bench_to(tmp_path / "figures.json", "small", "--against", "pytorch")
    assert code == 1
    assert_failed(rows["small", "TVM"], next(line for line in lines if line.startswith("small")))
    other = rows["small", "pytorch"]
    assert other["error"] is None and other["tvm_ratio"] is None and other["median_ms"] > 0
    assert lines[-1].split()[:4] == ["pytorch", *(benchmark._ms(other[key]) for key in ("median_ms", "p95_ms")), "—"]


def test_a_network_that_a_peer_cannot_take_costs_its_row(quick, tmp_path):
    quick.setattr(networks, "export_onnx", fail)
    code, lines, rows = bench_to(tmp_path / "figures.json", "small", "--against", "onnxruntime")
    assert code == 0
    assert_failed(rows["small", "onnxruntime"], lines[-1])
    assert rows["small", "TVM"]["tvm_ratio"] == 1


def test_ratios_have_their_intervals(quick, tmp_path):
    quick.setattr(benchmark.measure, "ratio_interval", lambda times, reference: (0.5, 1.25))
    _, lines, rows = bench_to(tmp_path / "figures.json", "small", "--against", "pytorch")
    assert "interval" in next(line for line in lines if line.startswith("network"))
    assert lines[-1].split()[4] == "0.50-1.25" and rows["small", "pytorch"]["tvm_interval"] == [0.5, 1.25]


def test_a_network_that_does_not_load_does_not_end_the_run(quick, tmp_path):
    quick.setattr(SOURCE, "load", lambda name: fail() if name == "resnet18" else load(name))
    code, lines, rows = bench_to(tmp_path / "figures.json", "resnet18", "small", "resnet18", "--against", " pytorch,")
    assert code == 1
    assert list(rows) == [(network, runtime) for network in ("resnet18", "small") for runtime in ("TVM", "pytorch")]
    for runtime in ("TVM", "pytorch"):
        assert_failed(rows["resnet18", runtime], next(line for line in lines if f"{runtime:12}—" in line))
    assert not rows["small", "TVM"]["error"]
    assert lines[-1].startswith("TVM / pytorch: geometric mean") and lines[-1].endswith("(small), 1 network")


def test_a_wrong_result_is_no_time(quick, tmp_path):
    quick.setitem(benchmark._RUNTIMES, "onnxruntime", lambda net, x, folder: (lambda x: np.zeros((7, 3)), 0.0))
    quick.setitem(benchmark._RUNTIMES, "compile", lambda net, x, folder: (lambda x: np.full((1, 5), np.nan), 0.0))
    code, _, rows = bench_to(tmp_path / "figures.json", "small", "--against", "onnxruntime,compile")
    assert code == 0
    assert {rows["small", peer]["median_ms"] for peer in ("onnxruntime", "compile")} == {None}
    assert "(7,3)" in rows["small", "onnxruntime"]["error"]
    assert rows["small", "compile"]["error"] == "ValueError: its result, or PyTorch's, is not finite"


def test_torch_compile_is_no_peer_where_it_cannot_build(quick, tmp_path, monkeypatch):
    monkeypatch.setattr(benchmark.machine, "torch_compile_lacks", lambda: "there is no Python.h")
    code, _, rows = bench_to(tmp_path / "figures.json", "small", "--against", "compile")
    assert code == 0 and rows["small", "TVM"]["error"] is None
    assert rows["small", "compile"]["error"] == "RuntimeError: there is no Python.h"


def test_a_difference_is_relative_to_the_largest_magnitude():
    assert benchmark._difference(np.array([1.0, -7.0]), np.array([1.0, -8.0])) == 1 / 8
    assert benchmark._difference(np.array([1e-9, 0.0]), np.zeros(2)) is None


def test_times_of_microseconds_have_four_digits():
    assert [*map(benchmark._ms, (0.01234, 0.99, 1.234, 123.456))] == ["0.0123", "0.9900", "1.23", "123.46"]


# ---------------------------------------------------------------- other networks, and OpenVINO


def test_busy_processes_run_while_networks_are_timed_and_no_longer(quick, tmp_path):
    seen, compare = [], benchmark.measure.compare

    def children():
        return [child for child in psutil.Process().children() if "while True" in " ".join(child.cmdline())]

    def record(*args, **options):
        seen.append(len(children()))
        return compare(*args, **options)

    quick.setattr(benchmark.measure, "compare", record)
    code, lines, _ = bench_to(tmp_path / "figures.json", "small", "--against", "onnxruntime", "--busy", 2)
    assert code == 0 and seen == [2] and not children()
    assert "beside 2 busy processes" in " ".join(lines)
    assert json.loads((tmp_path / "figures.json").read_text())["machine"]["busy_processes"] == 2


def test_networks_may_be_given_with_their_inputs(quick):
    given = {"mine": (nn.Linear(4, 2).eval(), np.ones((3, 4), "float32"))}
    lines = []
    report = benchmark.run(given, ["pytorch", "onnxruntime"], seconds=0.01, echo=lines.append)
    assert "batch" not in lines[0] and lines[1].startswith("mine ")
    for row in report["results"]:
        assert row["error"] is None and row["difference"] <= explained(given["mine"][0])
        assert row["input"] == [3, 4] and row["weights"] is None
        assert row["gflops"] * row["median_ms"] == pytest.approx(3 * 2 * 4 * 2 / 1e6)


@pytest.fixture
def under_quota(quick):
    """`quotas.limited` notes its arguments, and whether it is entered; quotas of this machine are left alone."""
    noted = SimpleNamespace(inside=False, cores=[])

    @contextlib.contextmanager
    def limited(cores):
        noted.cores.append(cores)
        noted.inside = True
        yield
        noted.inside = False

    quick.setattr(quotas, "limited", limited)
    return noted


class Counting(nn.Module):
    """A network with an attribute `state`, and no `inputs`."""

    def __init__(self, state):
        super().__init__()
        self.linear, self.state = nn.Linear(4, 2), state

    def forward(self, x):
        return self.linear(x)


@pytest.mark.parametrize("state", [torch.zeros(3), {"calls": 1}])
def test_a_network_may_have_an_attribute_state(quick, state):
    given = {"mine": (Counting(state).eval(), np.ones((3, 4), "float32"))}
    for row in benchmark.run(given, ["pytorch", "onnxruntime"], seconds=0.01, echo=str)["results"]:
        assert row["error"] is None and row["difference"] < 1e-6 and row["input"] == [3, 4]


def test_a_compiled_network_has_no_length():
    net, x = Counting({}).eval(), np.ones((3, 4), "float32")
    with torch.inference_mode():
        wanted = net(torch.from_numpy(x)).numpy()
    np.testing.assert_array_equal(benchmark._on_numpy(net, torch.compile(net, backend="eager"))(x), wanted)


def test_caches_have_the_dtypes_of_the_inputs():
    net = Counting({"cache": "output1"})
    net.inputs = {"data": ((1, 1), "int64"), "cache": ((2, 3), "float16")}
    assert [(cache.shape, cache.dtype) for cache in networks.caches(net)] == [((2, 3), torch.float16)]


def test_a_quota_limits_the_timed_calls_alone(quick, under_quota, tmp_path):
    seen, compare, popen = [], benchmark.measure.compare, benchmark.subprocess.Popen

    def note(what, call):
        return lambda *args, **options: seen.append((what, under_quota.inside)) or call(*args, **options)

    quick.setattr(benchmark.measure, "compare", note("timed", compare))
    quick.setattr(benchmark.subprocess, "Popen", note("busy", popen))
    quick.setitem(benchmark._RUNTIMES, "TVM", note("built", benchmark._pytorch))
    args = "small", "--against", "pytorch", "--quota", 0.5, "--busy", 1
    code, lines, _ = bench_to(tmp_path / "figures.json", *args)
    assert code == 0 and under_quota.cores == [0.5, 0.5]  # the first sees whether it can be set
    assert seen == [("built", False), ("busy", False), ("timed", True)] and not under_quota.inside
    assert "with a quota of 0.5 cores" in " ".join(lines)
    assert json.loads((tmp_path / "figures.json").read_text())["machine"]["quota"] == 0.5


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="the system binds no process to CPUs")
def test_cores_bind_the_process_and_leave_a_thread_for_each(quick, under_quota):
    set_to, seen = [], []
    quick.setattr(os, "sched_setaffinity", lambda process, cpus: set_to.append(cpus))
    quick.setattr(os, "sched_getaffinity", lambda process: {0, 1})
    quick.setattr(commands, "set_tvm_threads", lambda cores, threads: seen.append((cores, threads)))
    quick.setattr(machine, "usable_cores", lambda: 3)
    quick.setenv("TVM_NUM_THREADS", "4")
    quick.setenv("TVM_BIND_THREADS", "")
    quick.setattr(benchmark, "run", lambda *args, **options: {"results": []})
    for args in (["--cores", "0, 1"], ["--quota", "0.5"], ["--cores", "0", "--threads", "5"], []):
        assert bench("small", *args).exit_code == 0
    assert set_to == [[0, 1], [0]] and seen == [(3, 3), (1, 1), (3, 5)]
    assert os.environ["TVM_BIND_THREADS"] == "0"


@pytest.fixture
def small_decoder(quick):
    quick.setitem(networks.DECODERS, "gpt2_step", (2, 32, 4, 100, 5))


def test_a_decoder_with_its_cache_computes_what_a_whole_sequence_gives(small_decoder, rng):
    net, tokens = networks.load("gpt2_step").double(), torch.from_numpy(rng.integers(100, size=(1, 5)))
    x = net.embed(tokens) + net.places(torch.arange(5))
    for qkv, out, hidden in net.blocks:
        q, k, v = (each.unflatten(-1, (4, 8)).transpose(1, 2) for each in qkv(x).chunk(3, -1))
        x = x + out(nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        x = x + hidden(x)
    wanted = (net.norm(x) @ net.embed.weight.T).detach()
    cache = [each.double() for each in networks.caches(net)]
    for n in range(5):
        logits, *cache = net(tokens[:, n : n + 1], torch.tensor([n]), *cache)
        close(logits, wanted[:, n : n + 1].numpy(), terms=128)


@pytest.mark.parametrize("peer", ["TVM", "pytorch", "onnxruntime", "openvino"])
def test_each_runtime_keeps_the_cache_and_begins_again_when_it_is_full(small_decoder, peer, tmp_path, rng):
    if peer == "openvino":
        pytest.importorskip("openvino", reason="openvino is not installed")
    net = networks.load("gpt2_step")
    make = {**benchmark._RUNTIMES, "TVM": benchmark._tvm}[peer]
    tokens = rng.integers(100, size=(7, 1, 1))
    call, _ = make(net, tokens[0], tmp_path)
    got = np.stack([call(token) for token in tokens])

    def steps(tokens):
        logits, caches = [], [each.to(net.norm.weight.dtype) for each in networks.caches(net)]
        for n, token in enumerate(tokens):
            result, *caches = net(token, torch.tensor([n % 5]), *caches)
            logits.append(result)
        return torch.stack(logits)

    whole = Function(steps)
    whole.net = net
    close(got, reference(whole.eval(), torch.from_numpy(tokens)))


@pytest.mark.parametrize("name", ["gpt2_step", "tiny_gpt2_step", "mlp_64"])
def test_decoding_and_a_small_network_are_measured_by_name(small_decoder, quick, tmp_path, name):
    quick.setitem(networks.DECODERS, "tiny_gpt2_step", (1, 32, 4, 100, 5))
    quick.setitem(benchmark._RUNTIMES, "TVM", benchmark._tvm)
    peers = "pytorch", "onnxruntime"
    code, lines, rows = bench_to(tmp_path / "figures.json", name, "--against", ",".join(peers))
    assert code == 0 and [*rows] == [(name, runtime) for runtime in ("TVM", *peers)]
    assert any(line.startswith(f"{name} ") for line in lines)
    for row in rows.values():
        assert row["error"] is None and row["difference"] <= explained(load(name)) and row["gflops"] > 0
        assert row["weights"] == "seeded" and row["input"] == ([1, 64] if name == "mlp_64" else [1, 1])


SMALL_BERT = {
    **{"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64},
    **{"vocab_size": 100},
}


@pytest.fixture
def small_bert(quick):
    """The network "bert_base" is small, and reads 6 tokens."""
    pytest.importorskip("transformers", reason="transformers is not installed")
    small = ("bert", SMALL_BERT, "AutoModel", "", "input_ids", (1, 6))
    quick.setitem(networks.TRANSFORMERS, "bert_base", small)


@pytest.mark.parametrize("name", ["bert_base", "gpt2", "whisper_tiny_encoder", "lstm_256"])
def test_a_transformer_is_measured_by_name(small_bert, quick, tmp_path, name):
    if name == "gpt2":
        small = {"n_embd": 32, "n_layer": 1, "n_head": 2, "vocab_size": 100, "use_cache": False}
        quick.setitem(networks.TRANSFORMERS, name, (name, small, "AutoModelForCausalLM", "", "input_ids", (1, 6)))
    elif name == "whisper_tiny_encoder":
        sizes = {"d_model": 32, "encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 64}
        sizes |= {"decoder_layers": 1, "decoder_attention_heads": 2, "decoder_ffn_dim": 64}
        small = sizes | {"num_mel_bins": 8, "max_source_positions": 6, "vocab_size": 100}
        small |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2}
        network = ("whisper", small, "AutoModel", "encoder", "input_features", (1, 8, 12))
        quick.setitem(networks.TRANSFORMERS, name, network)
    quick.setitem(benchmark._RUNTIMES, "TVM", benchmark._tvm)
    code, _, rows = bench_to(tmp_path / "figures.json", name, "--against", "onnxruntime", "--batch", 2)
    assert code == 0
    for row in rows.values():
        assert row["error"] is None and row["difference"] <= explained(load(name))
        assert (row["gflops"] is None) == (name == "lstm_256")  # torch's counter knows no LSTM
        assert row["weights"] == "seeded" and row["input"][0] == 2


def test_openvino_is_a_peer(small_bert, tmp_path):
    pytest.importorskip("openvino", reason="openvino is not installed")
    code, _, rows = bench_to(tmp_path / "figures.json", "small", "bert_base", "--against", "openvino")
    assert code == 0
    for name in ("small", "bert_base"):
        # Ten times what rounding explains: its functions are approximations.
        assert rows[name, "openvino"]["difference"] <= 10 * explained(load(name))
        assert rows[name, "openvino"]["median_ms"] > 0
    assert json.loads((tmp_path / "figures.json").read_text())["machine"]["versions"]["openvino"]


@pytest.mark.parametrize("args, package", [(["bert_base"], "transformers"), (["--against", "openvino"], "openvino")])
def test_a_package_that_is_not_installed_is_named_before_any_work(monkeypatch, args, package):
    for module in (benchmark, networks):
        monkeypatch.setattr(module, "find_spec", lambda name: None)
    monkeypatch.setattr(benchmark, "run", fail)
    done = CliRunner().invoke(commands.app, ["bench", *args], env={"COLUMNS": "300"})
    assert done.exit_code == 2
    assert f"not installed: pip install {package}" in " ".join(done.output.split())


# ---------------------------------------------------------------- at the door


@pytest.mark.parametrize(
    "args, message",
    [
        (["resnet81"], "unknown model 'resnet81'; near names: resnet18"),
        (["--against", "pytorch,onnx"], "unknown peer 'onnx'; there are pytorch, compile, onnxruntime"),
        (["--threads", "-1"], "Invalid value for --threads: expected 0 or more, got -1"),
        (["--batch", "0"], "Invalid value for --batch: expected 1 or more, got 0"),
        (["--busy", "-1"], "Invalid value for --busy: expected 0 or more, got -1"),
        (["--quota", "-1"], f"Invalid value for --quota: expected 0 for none, or 0.01 to {os.cpu_count()}, got -1.0"),
        (["--quota", "0.001"], f"expected 0 for none, or 0.01 to {os.cpu_count()}, got 0.001"),
        (["--quota", "nan"], f"expected 0 for none, or 0.01 to {os.cpu_count()}, got nan"),
        (["--quota", "1000"], f"expected 0 for none, or 0.01 to {os.cpu_count()}, got 1000.0"),
        (["--cores", "0;1"], "Invalid value for --cores: expected numbers with commas such as 0,1; got '0;1'"),
        (["--cores", "4000"], "cores: cannot stay on [4000] ("),
        (["--cores", "9999999999999"], "cores: cannot stay on [9999999999999] ("),
        (["gpt2_step", "--batch", "2"], "gpt2_step writes one text: expected a batch of 1, got 2"),
        (["--seconds", "0"], "Invalid value for --seconds: expected a number above 0, got 0.0"),
        (["--seconds", "nan"], "Invalid value for --seconds: expected a number above 0, got nan"),
        (["--seconds", "inf"], "Invalid value for --seconds: expected a number above 0, got inf"),
        (["--json", "/nowhere/figures.json"], "cannot write to the folder /nowhere (No such file or directory)"),
        (["--json", "/"], "'/' is a directory"),
    ],
)
def test_refused_before_any_work(monkeypatch, args, message):
    monkeypatch.setattr(benchmark, "run", fail)
    done = CliRunner().invoke(commands.app, ["bench", *args], env={"COLUMNS": "300"})
    assert done.exit_code == 2, done.exception
    assert message in " ".join(done.output.split())


# ---------------------------------------------------------------- what is counted, and the peak


def test_the_operations_of_a_network():
    """Here of a convolution and a linear layer: two for each weight and each place where it is used."""
    net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 5))
    assert benchmark.count_flops(net, torch.zeros(2, 3, 6, 6)) == 2 * 2 * (8 * 3 * 9 * 36 + 8 * 36 * 5)


def test_the_operations_of_attention():
    class Attend(nn.Module):
        def __init__(self):
            super().__init__()
            self.attend = nn.MultiheadAttention(16, 4, batch_first=True)

        def forward(self, x):
            return self.attend(x, x, x, need_weights=False)[0]

    projections, scores = 4 * 7 * 16 * 16, 2 * 7 * 7 * 16
    with torch.inference_mode():
        assert benchmark.count_flops(Attend().eval(), torch.zeros(1, 7, 16)) == 2 * (projections + scores)


@pytest.mark.parametrize("threads, chains, lanes", [(2, 24, 16), (3, 12, 8), (1, 1, 4)])
@pytest.mark.parametrize("steps", [0, 1, 7])
def test_the_kernel_of_flops_computes_the_recurrence(threads, chains, lanes, steps):
    rng = np.random.default_rng(1)
    x, y = (rng.uniform(0.5, 1.5, lanes).astype("float32") for _ in range(2))
    start = rng.random((threads, chains, lanes), "float32")
    accumulators = tvm.runtime.tensor(start)
    peak.recurrence(threads, chains, lanes)(tvm.runtime.tensor(x), tvm.runtime.tensor(y), accumulators, steps)
    wanted = start.astype("float64")
    for _ in range(steps):
        wanted = wanted * x + y
    close(accumulators.numpy(), wanted, terms=2 * steps + 1)  # a product and a sum each


@pytest.mark.parametrize("name", sorted({PLAIN, simd_of(machine.host_target()).dot}))
@pytest.mark.parametrize("steps", [0, 1, 7])
def test_the_kernel_of_bytes_computes_the_recurrence(name, steps):
    dot, lanes, chains = DOTS[name], simd_of(machine.host_target()).lanes, 12
    rng = np.random.default_rng(1)
    weights = rng.integers(-127, 127, (lanes, dot.terms)).astype(dot.weight)
    sums = rng.integers(-1000, 1000, (2, chains, lanes)).astype("int32")
    accumulators = tvm.runtime.tensor(sums)
    kernel = peak.dot_recurrence(2, chains, lanes, dot)
    kernel(tvm.runtime.tensor(weights.reshape(-1)), accumulators, steps)
    for _ in range(steps):
        data = sums[..., None] if name == PLAIN else sums.view(dot.data).reshape(2, chains, lanes, dot.terms)
        sums = (sums + (data.astype("int64") * weights).sum(-1)).astype("int32")  # which wraps
    np.testing.assert_array_equal(accumulators.numpy(), sums)


@pytest.mark.skipif("avx512bf16" not in machine.instruction_sets(), reason="the CPU has no AVX512_BF16")
def test_the_kernel_of_pairs_adds_their_products():
    x = np.arange(32, dtype="float32").reshape(2, 16)
    given = [tvm.runtime.tensor(pairs.pack(each, 0, 1).reshape(16)) for each in (x, x + 1)]
    accumulators = tvm.runtime.tensor(np.ones((1, 3, 16), "float32"))
    peak.pair_recurrence(1, 3, 16)(*given, accumulators, 5)
    np.testing.assert_array_equal(accumulators.numpy(), np.broadcast_to(1 + 5 * (x * (x + 1)).sum(0), (1, 3, 16)))


def test_the_kernel_of_bandwidth_adds_all_rows():
    data = np.random.default_rng(1).integers(0, 100, (2, 4, 1001, 3, 8)).astype("float32")
    accumulators = tvm.runtime.tensor(np.ones((2, 4, 3, 8), "float32"))
    peak.column_sums(*data.shape)(tvm.runtime.tensor(data), accumulators)
    np.testing.assert_array_equal(accumulators.numpy(), 1 + data.sum(axis=2))


def test_a_peak_is_the_best_moment_of_all_threads(monkeypatch):
    """Two threads make calls of one second by a clock of their own; the second is disturbed in its first call."""
    lasting = threading.local()

    class Clock:
        def perf_counter(self):
            return lasting.now

    def calls(*seconds):
        left = iter([0.0, *seconds])  # the first warms up

        def call():
            lasting.now = getattr(lasting, "now", 0.0) + next(left)

        return [call]

    monkeypatch.setattr(peak, "clock", Clock())
    assert peak._rate([calls(1, 1, 1, 1), calls(2, 1, 1)], 4.0) == 2
    assert peak._rate([calls(1, 1, 1, 1), calls(4)], 4.0) == 1.25


def test_the_peaks_are_measured_once(monkeypatch):
    monkeypatch.setattr(peak, "_BYTES", 1 << 24)
    for _ in range(2):
        assert min(measure(0.01) for measure in (peak.flops, peak.int8_ops, peak.bf16_flops, peak.bandwidth)) > 0
        monkeypatch.setattr(peak, "_best", fail)
