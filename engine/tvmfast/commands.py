"""The engine's commands, which need nothing of the course: doctor, bench, tune, serve and tracker."""

import contextlib
import json
import math
import os
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from .core import data, kernel_cache, machine
from .core.compat import set_tvm_threads, without_torch
from .profiling import quotas

app = typer.Typer(
    help="Compile networks with TVM, time and tune them.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,
)


def find_networks():
    """Return the module that `bench` and `tune` load networks of pictures from, by name.

    The course's command puts a function here that returns its own.
    """
    from .profiling import networks  # for speed: --help loads nothing

    return networks


@app.command()
def doctor():
    """Describe this machine, and check that TVM compiles and runs a kernel and a small network on it.

    Exits with 1 if there is a problem.
    """
    from .compiler import selftest  # for speed: --help loads nothing

    typer.echo(machine.Report(machine.report() | {"kernel cache": kernel_cache.status()}))
    problems = machine.problems()
    if wrong := selftest.problem():
        problems.append(f"{wrong}: report it, with all of the above")
    for problem in problems:
        typer.secho(f"\nproblem: {problem}", fg="red", err=True)
    if problems:
        raise typer.Exit(1)
    typer.echo("\nAll is well: the pinned versions are there, and a small network compiles and runs.")


def writable(out: Path | None) -> Path | None:
    """Reject an output file that cannot be written, before any work is done."""
    if out is not None:
        try:
            tempfile.TemporaryFile(dir=out.parent).close()
        except OSError as error:
            raise typer.BadParameter(
                f"cannot write to the folder {out.parent} ({error.strerror}): "
                "name a file in one that can be written to"
            ) from None
    return out


@app.command()
def bench(
    networks: Annotated[
        list[str] | None,
        typer.Argument(
            help="Names of torchvision's classifiers (in the course, all that tn.models.load knows), "
            "lstm_256, mlp_64, gpt2_step and tiny_gpt2_step (a token, with a cache of those before it) and, "
            "where the package transformers is installed, bert_base, bert_base_512, gpt2 and "
            "whisper_tiny_encoder; none: resnet18.",
            show_default=False,
        ),
    ] = None,
    against: Annotated[
        str,
        typer.Option(
            help="Of pytorch, compile, onnxruntime, openvino (where it is installed), untuned (TVM without "
            "records), plain (tvm.compile as called) and pipeline (the same with TVM's pipeline for CPUs), "
            "with commas."
        ),
    ] = "pytorch,onnxruntime",
    threads: Annotated[
        int,
        typer.Option(
            help="Threads of each; 0: TVM_NUM_THREADS, else all cores, of which a quota leaves some."
        ),
    ] = 0,
    batch: Annotated[int, typer.Option(help="Pictures or texts in an input.")] = 1,
    seconds: Annotated[float, typer.Option(help="Timed seconds for each.")] = 2.0,
    records: Annotated[
        list[Path] | None,
        typer.Option(exists=True, help="Tuning records for TVM; none: those that tvmfast ships."),
    ] = None,
    busy: Annotated[int, typer.Option(help="Processes that compute beside them all the time.")] = 0,
    quota: Annotated[
        float, typer.Option(help="Cores whose time they may use, such as 0.5, by a cgroup of Linux; 0: all.")
    ] = 0.0,
    cores: Annotated[
        str, typer.Option(help="The CPUs to stay on, the busy processes too, such as 0,1; none: all.")
    ] = "",
    out: Annotated[
        Path | None,
        typer.Option("--json", dir_okay=False, callback=writable, help="Write the figures to this file too."),
    ] = None,
):
    """Compare TVM with other runtimes in one run: medians, ratios and the largest difference.

    Candidates are timed alternately. Exits with 1 if TVM failed on a network; the row of a peer that failed
    gives the reason.
    """
    if not 0 < seconds < math.inf:
        raise typer.BadParameter(f"expected a number above 0, got {seconds}", param_hint="--seconds")
    for option, value, least in (("--threads", threads, 0), ("--batch", batch, 1), ("--busy", busy, 0)):
        if value < least:
            raise typer.BadParameter(f"expected {least} or more, got {value}", param_hint=option)
    most = os.cpu_count() or 1
    if quota and not quotas.LEAST <= quota <= most:
        raise typer.BadParameter(
            f"expected 0 for none, or {quotas.LEAST} to {most}, got {quota}", param_hint="--quota"
        )
    if cpus := _cpus(cores):
        try:
            machine.stay_on(cpus)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None
    if threads or cpus or quota:
        usable = machine.usable_cores()
        usable = min(usable, max(1, int(quota))) if quota else usable
        set_tvm_threads(usable, threads or min(usable, machine.threads()))  # before TVM starts them
    from .profiling import benchmark  # for speed: --help loads nothing

    names, peers = _distinct(networks or ["resnet18"]), _distinct(against.split(","))
    source = find_networks()
    try:
        benchmark.check(names, peers, source, batch, quota)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    report = benchmark.run(names, peers, batch, seconds, typer.echo, records or None, busy, source, quota)
    if out is not None:
        data.atomic_write(out, json.dumps(report, indent=1))
    if any(row["runtime"] == "TVM" and row["error"] for row in report["results"]):
        raise typer.Exit(1)


@app.command()
def tune(
    network: Annotated[
        str,
        typer.Argument(
            help="A classifier of torchvision's (in the course, any name of tn.models.load), or an ONNX file."
        ),
    ],
    tuner: Annotated[str, typer.Option(help="grid, random, ga, xgb or metaschedule.")] = "xgb",
    trials: Annotated[
        int | None, typer.Option(help="Configs to measure in all, those in the records included.")
    ] = None,
    early_stopping: Annotated[
        int | None, typer.Option(help="A task is done after so many trials in a row that were no better.")
    ] = None,
    records: Annotated[
        Path | None,
        typer.Option(dir_okay=False, help="The file to go on with; none: NETWORK.jsonl.", show_default=False),
    ] = None,
    target: Annotated[
        str | None, typer.Option(help="The CPU to tune for, by LLVM's name; none: this one.")
    ] = None,
    tracker: Annotated[
        str | None, typer.Option(help="Measure on the servers of this RPC tracker, HOST:PORT.")
    ] = None,
    key: Annotated[str, typer.Option(help="The servers' key.")] = "tvmfast",
    batch: Annotated[int, typer.Option(help="Pictures in an input.")] = 1,
    seed: Annotated[int | None, typer.Option(help="For the tuner's choices.")] = None,
):
    """Search for faster configs of a network's kernels. The same command resumes an interrupted search.

    tn.build(…, records=FILE) uses the result. Ctrl-C ends the search and keeps the best configs found so far.
    """
    if batch < 1:
        raise typer.BadParameter(f"expected 1 or more, got {batch}", param_hint="--batch")
    from . import tuning  # for speed: --help loads nothing

    try:
        cpu = {"kind": "llvm", "mcpu": target} if target else None
        with tuning.RpcRunner(tracker, key) if tracker else contextlib.nullcontext() as runner:
            mod, params = _imported(network, batch)
            file = records or f"{Path(network).stem}.jsonl"
            tuned = tuning.tune(mod, params, cpu, tuner, trials, early_stopping, file, runner, seed=seed)
    except (ValueError, OSError, RuntimeError) as error:
        raise typer.BadParameter(str(error)) from None
    typer.echo(tuned)
    if tuned.interrupted:
        raise typer.Exit(130)


def _imported(network: str, batch: int):
    """Import a network by name, or from an ONNX file; return its module and parameters."""
    from . import from_onnx, from_pytorch  # for speed: --help loads nothing
    from .frontends.onnx.importer import shapes_with_batch  # for speed: --help loads nothing

    if network.endswith(".onnx"):
        return from_onnx(network, shapes_with_batch(network, batch))
    source = find_networks()
    source.require_pictures(network)
    net = source.load(network)
    return from_pytorch(net, {"data": (batch, *net.input_shape[1:])})


@app.command()
def serve(
    tracker: Annotated[
        str, typer.Option(help="The RPC tracker to register with, HOST:PORT.")
    ] = "127.0.0.1:9190",
    key: Annotated[
        str, typer.Option(help="What kind of machine this is; those who tune ask for it.")
    ] = "tvmfast",
    host: Annotated[str, typer.Option(help="The address to serve on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The first port to try, of a hundred.")] = 9090,
    name: Annotated[
        str, typer.Option(help="What records call this server; none: the machine's name and the port.")
    ] = "",
    threads: Annotated[
        int | None,
        typer.Option(help="Threads of a kernel; none: one for each usable core.", show_default=False),
    ] = None,
    cores: Annotated[str, typer.Option(help="The CPUs to stay on, such as 0,1; none: all.")] = "",
):
    """Run an RPC server on which others measure. It runs whatever is sent by clients that know the secret.

    The secret comes from the variable TVMFAST_RPC_SECRET, else from a file of yours, which is created on
    first use; "none" means no secret.
    """
    if threads is not None and threads < 1:
        raise typer.BadParameter(f"expected 1 or more, got {threads}", param_hint="--threads")
    cpus = _cpus(cores)
    with without_torch():
        from .tuning import server  # for speed: --help loads nothing

    try:
        server.serve(tracker, key, host, port, name, threads, cpus, typer.echo)
    except (ValueError, OSError) as error:
        raise typer.BadParameter(str(error)) from None


@app.command()
def tracker(
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port.")] = 9190,
):
    """Run an RPC tracker: it hands out free servers to clients that know the secret, which this prints.

    The secret comes from the variable TVMFAST_RPC_SECRET, else from a file of yours, which is created on
    first use; "none" means no secret.
    """
    with without_torch():
        from .tuning import tracker  # for speed: --help loads nothing

    try:
        tracker.run(host, port, typer.echo)
    except (ValueError, OSError) as error:
        raise typer.BadParameter(str(error)) from None


def _cpus(text: str) -> list[int]:
    """Return the numbers of an option such as 0,1; none for an empty one."""
    if not all(cpu.strip().isdecimal() for cpu in text.split(",") if text):
        raise typer.BadParameter(
            f"expected numbers with commas such as 0,1; got {text!r}", param_hint="--cores"
        )
    return [int(cpu) for cpu in text.split(",") if text]


def _distinct(names: list[str]) -> list[str]:
    """Strip the names and drop empty ones and duplicates, keeping the order."""
    return list(dict.fromkeys(name.strip() for name in names if name.strip()))
