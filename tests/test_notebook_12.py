"""What notebook 12 claims beyond its cells and test_rpc.py: what TVM's RPC does when something is lost, and ours."""

import contextlib
import inspect
import os
import re
import shlex
import socket
import subprocess
import sys
import tarfile
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import nbformat
import psutil
import pytest
import tvm
import typer
from agreement import close
from rpc_cluster import QUICK, Cluster, wait_until
from testing import SEED
from tvm import rpc, te, tirx
from tvm.rpc.tracker import Tracker
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.meta_schedule.builder import local_builder

import tvmnotes as tn
from tvmfast.commands import app
from tvmfast.compiler.build import resolve_target
from tvmnotes import processes

NOTEBOOK = Path(__file__).parents[1] / "notebooks" / "12_distributed_tuning.ipynb"
CELLS = nbformat.read(NOTEBOOK, as_version=4).cells
TEXT = "\n".join(cell.source for cell in CELLS if cell.cell_type == "markdown")
CODE = {cell.id: cell.source for cell in CELLS if cell.cell_type == "code"}


# ---------------------------------------------------------------- TVM's own


def test_tvms_defaults_are_one_connection_every_network_and_object_files_that_the_server_links(tmp_path, monkeypatch):
    assert "Defaults to 1" in ms.runner.RPCRunner.__init__.__doc__
    for start in (rpc.Server, Tracker):
        assert inspect.signature(start).parameters["host"].default == "0.0.0.0"
    assert "full remote code execution capabilities" in " ".join(rpc.Server.__doc__.split())
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    x = te.placeholder((4,), name="x")
    kernel = te.create_prim_func([x, te.compute((4,), lambda i: x[i] + 1.0, name="y")])
    with tarfile.open(local_builder.default_export(tvm.compile(kernel, target="llvm").mod)) as exported:
        assert exported.getnames() and all(name.endswith((".o", ".c", ".cc")) for name in exported.getnames())


@contextlib.contextmanager
def measured(config, path="none.tar"):
    """A trial of TVM's runner, which ends in any case."""
    runner = ms.runner.RPCRunner(config, ms.runner.EvaluatorConfig(1, 1, 0), max_workers=1)
    try:
        yield runner.run([ms.runner.RunnerInput(str(path), "cpu", [ms.arg_info.TensorInfo("float32", (1,))] * 2)])[0]
    finally:
        runner.pool.shutdown(wait=False)


def test_without_a_tracker_a_trial_of_tvms_fails_after_the_sessions_limit():
    config = ms.runner.RPCConfig("127.0.0.1", processes.free_port(), "k", session_timeout_sec=1)
    with measured(config) as trial:
        assert "Unable to connect to the tracker" in trial.result().error_msg


def calls(name, folder, *arguments):
    """A library whose main calls a function of C's."""
    x = te.placeholder((1,), name="x")
    y = te.extern((1,), [x], lambda ins, outs: tirx.call_extern("int32", name, *arguments), name="y", dtype="float32")
    path = folder / f"{name}.so"
    tvm.compile(te.create_prim_func([x, y]), target="llvm").export_library(str(path))
    return path


@pytest.mark.alone
@pytest.mark.full
def test_a_kernel_that_crashes_ends_a_server_of_tvms_and_one_that_hangs_does_not(tmp_path):
    """The two errors of a crash and of a kill have the same words, as the answers say."""
    with Cluster(tmp_path, tvms_own=True) as cluster:
        # Connecting to the tracker has the same limit. One out of reach is for the sessions that end otherwise.
        short, long = (
            ms.runner.RPCConfig("127.0.0.1", cluster.port, "k", session_timeout_sec=limit) for limit in (30, 3600)
        )
        cluster.serve("first", module="tvm.exec.rpc_server")
        with measured(short, calls("sleep", tmp_path, 7200)) as trial:
            assert "RPCSessionTimeoutError" in trial.result().error_msg
        wait_until(lambda: cluster.free() == 1)
        with measured(long, calls("abort", tmp_path)) as trial:
            assert "kShutdown" in trial.result().error_msg
        wait_until(lambda: not cluster.servers())
        assert cluster.processes["first"].poll() is None, "it runs, and serves nobody"
        with measured(long, tmp_path / "sleep.so") as trial:
            wait_until(lambda: rpc.connect_tracker("127.0.0.1", cluster.port).summary()["queue_info"]["k"]["pending"])
            assert not trial.done()
            cluster.serve("second", module="tvm.exec.rpc_server", wait=False)
            wait_until(lambda: any(tmp_path.glob("*/sleep.so")))  # the server has it
            cluster.unplug("second")
            assert "kShutdown" in trial.result().error_msg


def test_tvm_alone_is_at_most_20_lines_without_our_packages():
    lines = [line for line in CODE["alone"].splitlines() if line.strip()]
    assert len(lines) <= 20
    assert not re.search(r"\btn\b|tvmnotes|tvmfast", CODE["alone"])


def test_the_lesson_types_no_port():
    assert not re.findall(r"\b\d{4,}\b", "\n".join(CODE.values()))


# ---------------------------------------------------------------- ours


@pytest.fixture
def cluster(tmp_path):
    with Cluster(tmp_path) as found:
        found.serve_all("first", "second")
        yield found


@pytest.mark.alone
@pytest.mark.full
def test_a_tuning_loses_a_server_and_nothing_else_and_the_tracker_comes_back(small, cluster, tmp_path):
    log = tmp_path / "records.jsonl"

    def written():
        return log.read_text().splitlines() if log.exists() else []

    def pull():
        wait_until(written)
        cluster.unplug_in_mid_trial("second")
        return len(written())

    tasks = tn.tuning.tasks(small.mod, small.params)[:2]
    with tn.tuning.RpcRunner(cluster.tracker, "k", **QUICK) as runner, ThreadPoolExecutor() as threads:
        pulled = threads.submit(pull)
        tn.tune(small.mod, small.params, tuner="random", tasks=tasks, trials=40, records=log, runner=runner, seed=SEED)
        before = pulled.result()
    trials = [record for record in tn.records.read(log) if not record.final]
    assert len(trials) == 40
    assert len({(record.workload, tn.records.key(record.config)) for record in trials}) == 40
    assert not any(record.error for record in trials)
    names = [record.machine["server"] for record in trials]
    assert set(names) == {"first", "second"}
    assert set(names[before + 8 :]) <= {"first"}  # a batch that was under way may have trials of both
    close(tn.build(small.mod, small.params, records=log)(small.x), small.exact)

    cluster.unplug("tracker")
    assert cluster.start_tracker()
    wait_until(lambda: len(cluster.servers()) == 1)  # the server registers again by itself


@pytest.mark.alone
@pytest.mark.full
def test_without_its_tracker_a_tuning_of_ours_ends_with_an_error_and_keeps_whole_batches(small, cluster, tmp_path):
    log = tmp_path / "records.jsonl"

    def pull():
        wait_until(lambda: log.exists() and len(log.read_text().splitlines()) >= 8)
        cluster.unplug("tracker")

    task = tn.tuning.tasks(small.mod, small.params)[:1]
    told = f"no RPC tracker answers at {cluster.tracker}: start one with python -m tvmfast tracker"
    with tn.tuning.RpcRunner(cluster.tracker, "k", **QUICK) as runner, ThreadPoolExecutor() as threads:
        threads.submit(pull)
        with pytest.raises(ConnectionError, match=told):
            tn.tune(small.mod, small.params, tuner="random", tasks=task, trials=100, records=log, runner=runner)
    assert len(tn.records.read(log)) in range(8, 100, 8)


COMMANDS = re.findall(r"python -m tvmfast (\w+) (.*)$", TEXT, re.M)


def test_the_lesson_names_commands():
    assert [name for name, _ in COMMANDS] == ["tracker", "serve", "serve", "tune", "tracker", "serve", "serve"]


@pytest.mark.parametrize("name, options", COMMANDS)
def test_the_commands_of_the_lesson_are_real(name, options):
    command = typer.main.get_command(app).commands[name]
    with command.make_context(name, shlex.split(options)) as context:
        tracker = context.params.get("tracker") or "{host}:{port}".format(**context.params)
        if context.params.get("target"):
            resolve_target({"kind": "llvm", "mcpu": context.params["target"]})
    assert tn.tuning.server.address(tracker)[1] == 9190


def test_programs_of_a_lesson_start_and_end():
    running, port = processes.Processes(), processes.free_port()
    running.start("server", "http.server", "--bind", "127.0.0.1", port)

    def answers():
        with socket.create_connection(("127.0.0.1", port)):
            return True

    processes.wait_until(answers)
    process = psutil.Process(running.pid("server"))
    running.end_all()
    assert not running.running and not process.is_running()
    with pytest.raises(TimeoutError, match="not so after 0.1 seconds"):
        processes.wait_until(answers, 0.1)


def test_programs_of_a_lesson_end_with_its_kernel_even_if_that_is_killed():
    script = f"""
from tvmnotes.processes import Processes
running = Processes()
running.start("server", "http.server", "--bind", "127.0.0.1", {processes.free_port()})
print(running.pid("server"), flush=True)
input()
"""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", script], **pipes) as kernel:
        program = psutil.Process(int(kernel.stdout.readline()))
        kernel.kill()

    def has_ended():
        try:
            return program.status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True

    processes.wait_until(has_ended)


def test_programs_of_a_lesson_do_not_import_a_torch_that_is_hidden(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "elsewhere")
    processes.hide_torch(tmp_path / "no_torch")
    assert os.environ["PYTHONPATH"] == f"{tmp_path / 'no_torch'}{os.pathsep}elsewhere"
    monkeypatch.delenv("PYTHONPATH")
    processes.hide_torch(tmp_path)
    assert os.environ["PYTHONPATH"] == str(tmp_path)
    script = "import sys; import tvm; print(*sorted(name for name in ('torch', 'tvm') if sys.modules.get(name)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=1200)
    assert done.stdout.split() == ["tvm"]


def test_the_figure_has_a_row_for_each_server():
    axes = tn.plots.by_server(["b", "a", "b"], {"killed": 2}).axes[0]
    assert axes.collections[0].get_offsets().tolist() == [[1, 1], [2, 0], [3, 1]]
    assert axes.lines[0].get_xdata()[0] == 2.5
