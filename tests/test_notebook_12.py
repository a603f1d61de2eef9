"""What notebook 12 claims beyond test_rpc.py: a tuning that loses a server loses nothing; its commands are real."""

import re
import shlex
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import nbformat
import psutil
import pytest
import typer
from agreement import close
from rpc_cluster import QUICK, Cluster, wait_until
from testing import SEED

import tvmnotes as tn
from tvmfast.commands import app
from tvmfast.compiler.build import resolve_target
from tvmnotes import processes

NOTEBOOK = Path(__file__).parents[1] / "notebooks" / "12_distributed_tuning.ipynb"
TEXT = "\n".join(cell.source for cell in nbformat.read(NOTEBOOK, as_version=4).cells if cell.cell_type == "markdown")


@pytest.fixture
def cluster(tmp_path):
    with Cluster(tmp_path) as found:
        found.serve_all("first", "second")
        yield found


@pytest.mark.alone
@pytest.mark.full
def test_a_tuning_loses_a_server_and_nothing_else_and_the_tracker_comes_back(small, cluster, tmp_path):
    log = tmp_path / "records.jsonl"

    def pull():
        wait_until(lambda: log.exists() and log.read_text())
        cluster.unplug_in_mid_trial("second")

    tasks = tn.tuning.tasks(small.mod, small.params)[:2]
    with tn.tuning.RpcRunner(cluster.tracker, "k", **QUICK) as runner, ThreadPoolExecutor() as threads:
        pulled = threads.submit(pull)
        tn.tune(small.mod, small.params, tuner="random", tasks=tasks, trials=40, records=log, runner=runner, seed=SEED)
        pulled.result()
    trials = [record for record in tn.records.read(log) if not record.final]
    assert len(trials) == 40
    assert len({(record.workload, tn.records.key(record.config)) for record in trials}) == 40
    assert not any(record.error for record in trials)
    names = [record.machine["server"] for record in trials]
    assert set(names) == {"first", "second"} and set(names[-8:]) == {"first"}
    close(tn.build(small.mod, small.params, records=log)(small.x), small.exact)

    cluster.unplug("tracker")
    assert cluster.start_tracker()
    wait_until(lambda: len(cluster.servers()) == 1)  # the server registers again by itself


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


def test_the_figure_has_a_row_for_each_server():
    axes = tn.plots.by_server(["b", "a", "b"], {"killed": 2}).axes[0]
    assert axes.collections[0].get_offsets().tolist() == [[1, 1], [2, 0], [3, 1]]
    assert axes.lines[0].get_xdata()[0] == 2.5
