"""`python -m tvmfast bench`: TVM and other runtimes, measured in one run.

Every candidate runs on the same number of threads, on the same random input, float32 or int64 tokens, and is
compared with PyTorch. If a runtime fails on a network, only that row is lost: the run continues.
"""

import contextlib
import functools
import itertools
import statistics
import subprocess
import sys
import tempfile
import textwrap
import time as clock
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tvm
from torch.fx.experimental.optimization import fuse
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from tvm import relax, tirx
from tvm.relax.frontend.torch import from_exported_program

from ..compiler.build import build
from ..core import errors, machine
from ..frontends.pytorch.importer import from_pytorch
from . import measure, networks, peak, quotas

_WIDTH = 100  # columns of the terminal


def check(
    names: Sequence[str],
    against: Sequence[str],
    source: Any = networks,
    batch: int = 1,
    quota: float = 0.0,
) -> None:
    """Raise ValueError for what `run` does not take, or cannot do here; the message says what it takes."""
    unknown = [peer for peer in against if peer not in _PEERS]
    if unknown:
        raise ValueError(f"unknown peer {', '.join(map(repr, unknown))}; there are {', '.join(_PEERS)}")
    if "openvino" in against and find_spec("openvino") is None:
        raise ValueError("the peer openvino is not installed: pip install openvino")
    for name in names:
        if name in networks.DECODERS and batch != 1:
            raise ValueError(f"{name} writes one text: expected a batch of 1, got {batch}")
        if name in networks.OTHERS:
            networks.require_installed(name)
        else:
            source.require_pictures(name)
    if quota:
        with quotas.limited(quota):
            pass  # it can be set here


def run(
    nets: Sequence[str] | Mapping[str, tuple[torch.nn.Module, np.ndarray]],
    against: Sequence[str] = ("pytorch", "onnxruntime"),
    batch: int = 1,
    seconds: float = 2.0,
    echo: Callable[[str], None] = print,
    records: Any = None,
    busy: int = 0,
    source: Any = networks,
    quota: float = 0.0,
) -> dict:
    """Measure networks, and print a table with `echo`, the rows of each network at once.

    Args:
        nets: Networks with their inputs, one array each, by name; or names that `networks.load` knows, which
            get random inputs. One with `inputs` and `state`, such as `networks.Decoding`, gets a token, and
            one position after the other. TVM, ONNX Runtime and OpenVINO write into its caches, PyTorch makes
            new ones in each call, and TVM's own importer, for "plain" and "pipeline", does not take it.
        against: Peers: "pytorch" (eager), "compile" (torch.compile), "onnxruntime", "openvino" (float32),
            "untuned" (TVM without tuning records), "plain" (`tvm.compile` as called), "pipeline" (the same
            with TVM's pipeline for CPUs, which folds and fuses); `check` knows all names.
        batch: Size of the first axis of the random inputs.
        seconds: Timed seconds per candidate.
        echo: Prints a text.
        records: As for `tn.build`.
        busy: Processes that compute beside the timed ones, each without a pause.
        quota: Cores whose time the timed calls may use, such as 0.5, in a cgroup (see `quotas.limited`):
            neither builds nor busy processes are limited. 0: all.
        source: A module whose `load` makes the networks of pictures instead, such as `models`.

    Returns:
        A dictionary with "machine" (see `describe_machine`) and "results", a dictionary per network and
        runtime: times in ms, the ratio of TVM's median to this runtime's and its 95 % interval (None for
        fewer than five rounds; see `measure.ratio_interval`), the largest difference from PyTorch relative to
        the output's largest magnitude (None if that is 0), GFLOP/s (see `count_flops`), their fraction of the
        machine's peak, and the build time in seconds: `tn.build` (less for cached kernels), torch.compile's
        first call, ONNX Runtime's session, OpenVINO's compiled model. If a runtime failed,
        "error" is the reason and its figures are None.
    """
    torch.set_num_threads(machine.threads())
    here = describe_machine()
    if "openvino" in against:
        here["versions"]["openvino"] = metadata.version("openvino")
    noun = "threads" if here["threads"] > 1 else "thread"
    head = (
        f"{here['cpu']}, {here['threads']} {noun}, {', '.join(here['isa'][-3:])}, "
        f"measured FMA peak {here['peak_gflops']:.0f} GFLOP/s"
        + ("" if isinstance(nets, Mapping) else f", batch {batch}")
        + (f", beside {busy} busy {'process' if busy == 1 else 'processes'}" if busy else "")
        + (f", with a quota of {quota:g} cores" if quota else "")
    )
    echo(f"{textwrap.fill(head, _WIDTH)}\n\n{_head()}")

    def make(name: str) -> tuple[torch.nn.Module, np.ndarray]:
        if isinstance(nets, Mapping):
            return nets[name]
        net = (networks if name in networks.OTHERS else source).load(name)
        return net, _input(net, (batch, *net.input_shape[1:]))

    results = []
    for name in nets:
        rows = _measure(name, make, against, seconds, here["peak_gflops"], records, busy, quota)
        results += rows
        echo("\n".join(_line(row, "" if i else name) for i, row in enumerate(rows)))
    if len(nets) > 1 and against:
        echo("\n".join(["", *(_summary(peer, results) for peer in against)]))
    return {"machine": here | {"busy_processes": busy, "quota": quota or None}, "results": results}


def describe_machine() -> dict:
    """Collect CPU, threads, instruction sets, the measured peak in GFLOP/s, versions of the runtimes."""
    return {
        "cpu": machine.cpu_name(),
        "threads": machine.threads(),
        "isa": list(machine.instruction_sets()),
        "peak_gflops": peak.flops() / 1e9,
        "versions": versions(),
    }


def versions() -> dict[str, str]:
    """Return the versions of the runtimes by name: tvm, torch, onnxruntime."""
    packages = {"tvm": "apache-tvm", "torch": "torch", "onnxruntime": "onnxruntime"}
    return {name: metadata.version(package) for name, package in packages.items()}


def count_flops(net: torch.nn.Module, x: torch.Tensor) -> int:
    """Count the multiplications and additions, 1 each, of a network's convolutions and matrix products.

    The network is counted as in PyTorch, even for a runtime whose method needs fewer, such as Winograd's.
    Torch's counter overlooks attention if it is one kernel on the CPU: with gradients on and the math
    backend, it consists of matrix products.
    """
    with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        net(*networks.arguments(net, x))
    return counter.get_total_flops()


@contextlib.contextmanager
def _busy(count: int) -> Iterator[None]:
    """Run `count` processes that compute without a pause."""
    with contextlib.ExitStack() as stack:
        for _ in range(count):
            spinning = "print(flush=True)\nwhile True: pass"
            process: Any = subprocess.Popen([sys.executable, "-c", spinning], stdout=subprocess.PIPE)
            stack.callback(process.communicate)
            stack.callback(process.kill)
            process.stdout.readline()  # it has begun
        yield


def _measure(
    name: str,
    make: Callable,
    against: Sequence[str],
    seconds: float,
    peak_gflops: float,
    records: Any,
    busy: int,
    quota: float,
) -> list[dict]:
    """Return the rows of a network: TVM's, and one for each peer."""
    rows = {
        runtime: {"network": name, "runtime": runtime, **dict.fromkeys(_FACTS)}
        for runtime in ("TVM", *against)
    }
    try:
        net, x = make(name)
        wanted, flops = _first(net, _on_numpy(net), x), len(x) * count_flops(net, torch.from_numpy(x[:1]))
    except Exception as error:  # without PyTorch's result there is nothing to compare the others with
        return [row | {"error": _reason(error)} for row in rows.values()]
    candidates = {}
    with tempfile.TemporaryDirectory() as folder:
        for runtime, row in rows.items():
            row |= {"weights": getattr(net, "weights_kind", None), "input": list(x.shape)}
            try:
                more = {"records": records} if records is not None and runtime == "TVM" else {}
                call, build_s = _RUNTIMES[runtime](net, x, Path(folder), **more)
                row |= {"difference": _difference(_first(net, call, x), wanted), "build_s": build_s}
                candidates[runtime] = call
            except Exception as error:  # any error concerns this runtime alone
                row["error"] = _reason(error)
        with _busy(busy), quotas.limited(quota) if quota else contextlib.nullcontext():
            timings = measure.compare(candidates, x, seconds=seconds) if candidates else measure.Comparison()
    for runtime, timing in timings.items():
        gflops = flops / timing.median / 1e9
        rows[runtime] |= {
            "median_ms": timing.median * 1e3,
            "iqr_ms": timing.iqr * 1e3,
            "mean_ms": timing.mean * 1e3,
            "p95_ms": float(np.percentile(timing.seconds, 95)) * 1e3,
            "tvm_ratio": timings["TVM"].median / timing.median if "TVM" in timings else None,
            "gflops": gflops or None,  # torch's counter knows no LSTM
            "peak_share": gflops / peak_gflops or None,
        }
        if "TVM" in timings and runtime != "TVM":
            rows[runtime]["tvm_interval"] = timings.interval("TVM", to=runtime)
    return list(rows.values())


def _input(net: torch.nn.Module, shape: tuple[int, ...]) -> np.ndarray:
    rng, vocabulary = np.random.default_rng(), getattr(net, "vocabulary", None)
    return rng.integers(vocabulary, size=shape) if vocabulary else rng.standard_normal(shape, dtype="float32")


def candidate(runtime: str, net: torch.nn.Module, x: np.ndarray, folder: Path, **more: Any) -> Callable:
    """Make a runtime's function from an input array to an output array.

    Args:
        runtime: "TVM" or a peer of `run`.
        net: The network.
        x: An input of the shape and dtype to build for.
        folder: For a model's file.
        **more: TVM takes `records`.
    """
    return _RUNTIMES[runtime](net, x, folder, **more)[0]


def with_metaschedule(net: torch.nn.Module, x: np.ndarray, records: str) -> Callable:
    """Make the same of `tvm.compile` with MetaSchedule's records, a folder that its search wrote.

    They are of convolutions with folded batch norms. Raises ValueError if none is of a kernel of the network.
    """
    target = machine.host_target()
    # TVM's pipeline for its search, without trials: it fuses, applies the records, and packs the weights.
    apply = relax.pipeline.static_shape_tuning_pipeline(0, target, records, cpu_weight_prepack=True)
    mod = apply(_exported(fuse(net), x))
    kernels = [func for _, func in mod.functions_items() if isinstance(func, tirx.PrimFunc)]
    if not any("tirx.is_scheduled" in (kernel.attrs or {}) for kernel in kernels):
        raise ValueError(f"{records}: no record is of one of the network's {len(kernels)} kernels")
    return _on_virtual_machine(tvm.compile(mod, target=target))


def _first(net: torch.nn.Module, call: Callable, x: np.ndarray) -> np.ndarray:
    """Return the first result; of a network with a cache the first three, which read it."""
    return np.stack([call(x) for _ in range(3)]) if networks.state_of(net) else call(x)


def _difference(result: np.ndarray, wanted: np.ndarray) -> float | None:
    """Return the largest difference, relative to the largest magnitude; None if that is 0.

    Raises ValueError for NaN or infinity.
    """
    difference, scale = np.abs(result - wanted).max(), np.abs(wanted).max()
    if not np.isfinite(difference):
        raise ValueError("its result, or PyTorch's, is not finite")
    return float(difference / scale) if scale > 0 else None


def _reason(error: Exception) -> str:
    return errors.one_line(f"{type(error).__name__}: {error}")[:500]


# Each runtime returns a function from an array to an array, and its build time in seconds or None.


def _tvm(net, x, folder, records=None):
    state = networks.state_of(net)
    mod, params = from_pytorch(net, net.inputs if state else {"data": (x.shape, str(x.dtype))})
    start = clock.perf_counter()
    lib = build(mod, params, records=records, state=state or None)
    return _at_positions(net, lib), clock.perf_counter() - start


def _tvm_compile(net, x, folder, cpu_pipeline=False):
    target, mod = machine.host_target(), _exported(net, x)
    start = clock.perf_counter()
    pipeline = relax.get_default_pipeline(target) if cpu_pipeline else "default"
    executable = tvm.compile(mod, target=target, relax_pipeline=pipeline)
    return _on_virtual_machine(executable), clock.perf_counter() - start


def _exported(net, x):
    return from_exported_program(torch.export.export(net, networks.arguments(net, torch.from_numpy(x))))


def _at_positions(net, call):
    """Make a function of the token of `call(token, position)`: one row of the cache after the other."""
    caches = networks.caches(net)
    if not caches:
        return call
    positions = itertools.cycle(np.arange(caches[0].shape[-2])[:, None])
    return lambda x: call(x, next(positions))


def _on_virtual_machine(executable):
    main = relax.VirtualMachine(executable, tvm.cpu())["main"]
    return lambda x: main(tvm.runtime.tensor(x))[0].numpy()


def _pytorch(net, x, folder):
    return _on_numpy(net), None


def _compile(net, x, folder):
    if lacks := machine.torch_compile_lacks():
        raise RuntimeError(lacks)
    torch.compiler.reset()  # after some networks of one class, it would stop compiling them
    compiled = torch.compile(net, dynamic=False)
    start = clock.perf_counter()
    _on_numpy(net, compiled)(x)
    spent = clock.perf_counter() - start
    return _on_numpy(net, compiled), spent  # from position 0 on


def _on_numpy(net, compiled=None):
    caches, run = networks.caches(net), net if compiled is None else compiled

    def call(*xs):
        with torch.inference_mode():
            result = run(*map(torch.from_numpy, xs), *caches)
            if caches:
                result, *caches[:] = result
            return result.numpy()

    return _at_positions(net, call)


def _onnxruntime(net, x, folder):
    import onnxruntime  # for speed: only where it is a peer

    file = folder / "model.onnx"
    networks.export_onnx(net, file, x.shape, torch.from_numpy(x).dtype)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = machine.threads()
    options.add_session_config_entry("session.force_spinning_stop", "1")  # else for 30 ms more
    options.add_free_dimension_override_by_name("N", len(x))  # the others know the shape too
    start = clock.perf_counter()
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    spent = clock.perf_counter() - start
    if not (caches := networks.caches(net)):
        return lambda x: session.run(None, {"data": x})[0], spent
    binding, held = session.io_binding(), []
    binding.bind_output("logits")
    for name, cache in zip(net.state, caches, strict=True):
        held.append(onnxruntime.OrtValue.ortvalue_from_numpy(cache.numpy()))
        binding.bind_ortvalue_input(name, held[-1])
        binding.bind_ortvalue_output(f"{name}_next", held[-1])  # in place: a row that `position` masks

    def call(x, position):
        binding.bind_cpu_input("data", x)
        binding.bind_cpu_input("position", position)
        session.run_with_iobinding(binding)
        return binding.get_outputs()[0].numpy().copy()

    return _at_positions(net, call), spent


def _openvino(net, x, folder):
    import openvino  # for speed: only where it is a peer
    from openvino._offline_transformations import apply_make_stateful_transformation  # for speed: the same

    file = folder / "openvino.onnx"
    networks.export_onnx(net, file, x.shape, torch.from_numpy(x).dtype)
    settings = {
        "INFERENCE_PRECISION_HINT": "f32",
        "INFERENCE_NUM_THREADS": machine.threads(),
        "PERFORMANCE_HINT": "LATENCY",
    }
    start = clock.perf_counter()
    core = openvino.Core()
    model = core.read_model(file)
    if state := networks.state_of(net):
        apply_make_stateful_transformation(model, {name: f"{name}_next" for name in state})
    else:
        model.reshape(list(x.shape))
    request = core.compile_model(model, "CPU", settings).create_infer_request()
    spent = clock.perf_counter() - start
    return _at_positions(net, lambda *xs: request.infer([*xs], share_inputs=True)[0]), spent


_PEERS: dict[str, Callable] = {
    "pytorch": _pytorch,
    "compile": _compile,
    "onnxruntime": _onnxruntime,
    "openvino": _openvino,
    "untuned": functools.partial(_tvm, records=False),
    "plain": _tvm_compile,
    "pipeline": functools.partial(_tvm_compile, cpu_pipeline=True),
}
_RUNTIMES: dict[str, Callable] = {"TVM": _tvm, **_PEERS}


def _ms(milliseconds: float) -> str:
    return f"{milliseconds:.{2 if milliseconds >= 0.995 else 4}f}"


def _interval(ends: tuple[float, float]) -> str:
    return " " + "-".join(f"{end:.{2 if end < 9.995 else 0}f}" for end in ends)


# Of the table, after network and runtime: head, width, format.
_COLUMNS: dict[str, tuple[str, int, Callable[..., str]]] = {
    "median_ms": ("median ms", 10, _ms),
    "p95_ms": ("95 % ms", 8, _ms),
    "tvm_ratio": ("TVM / it", 9, "{:.2f}".format),
    "tvm_interval": ("interval", 10, _interval),
    "difference": ("differs", 8, "{:.1e}".format),
    "gflops": ("GFLOP/s", 8, "{:.0f}".format),
    "peak_share": ("peak", 5, "{:.0%}".format),
    "build_s": ("build s", 8, "{:.1f}".format),
}
_FACTS = ("weights", "input", "iqr_ms", "mean_ms", *_COLUMNS, "error")


def _head() -> str:
    return f"{'network':21}{'runtime':12}" + "".join(
        f"{head:>{width}}" for head, width, _ in _COLUMNS.values()
    )


def _line(row: dict, name: str) -> str:
    left = f"{name:21}{row['runtime']:12}"
    if row["error"] is not None:
        error, width = row["error"], _WIDTH - len(left) - 2
        return f"{left}— {error if len(error) <= width else error[: width - 1] + '…'}"
    return left + "".join(
        f"{'—' if row[key] is None else text(row[key]):>{width}}"
        for key, (_, width, text) in _COLUMNS.items()
    )


def _summary(peer: str, results: list[dict]) -> str:
    """Format the geometric mean and the worst of a peer's ratios."""
    ratios = {
        row["network"]: row["tvm_ratio"] for row in results if row["runtime"] == peer and row["tvm_ratio"]
    }
    if not ratios:
        return f"TVM / {peer}: no network ran in both"
    worst = max(ratios, key=lambda name: ratios[name])
    return (
        f"TVM / {peer}: geometric mean {statistics.geometric_mean(ratios.values()):.2f}, "
        f"worst {ratios[worst]:.2f} ({worst}), {len(ratios)} network{'s' if len(ratios) > 1 else ''}"
    )
