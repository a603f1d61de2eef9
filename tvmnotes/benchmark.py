"""`python -m tvmnotes bench`: networks in TVM and in other runtimes, measured in one run.

Every candidate runs on the same number of threads, on the same random input (float32), and is held against PyTorch.
"""

import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from . import env, measure, models
from .compiler import build
from .importers.pytorch import from_pytorch


def run(networks: list[str], against: list[str], seconds: float, echo: Callable[[str], None]) -> list[dict]:
    """Measure each network and print its table with `echo`; returns one dictionary per network and candidate.

    `against` names peers: "pytorch" (eager), "compile" (torch.compile), "onnxruntime". Raises ValueError for an
    unknown network or peer, before anything is measured.
    """
    unknown = set(against) - set(_PEERS)
    if unknown:
        raise ValueError(f"unknown peer {', '.join(sorted(unknown))}; there are {', '.join(_PEERS)}")
    strangers = [name for name in networks if name not in models.names()]
    if strangers:
        models.load(strangers[0])  # raises, with near names
    torch.set_num_threads(env.threads())
    echo(f"{env.cpu_name()}, {env.threads()} threads, {', '.join(env.instruction_sets()[-3:])}")
    results = []
    for name in networks:
        rows = _measure(name, against, seconds)
        results += rows
        echo(f"\n{name}, {rows[0]['weights']} weights, input {rows[0]['input']}")
        echo(f"{'':14}{'median ms':>10}{'iqr ms':>8}{'TVM / it':>10}{'difference':>12}")
        for row in rows:
            echo(
                f"{row['runtime']:14}{row['median_ms']:10.2f}{row['iqr_ms']:8.2f}"
                f"{row['tvm_ratio']:10.2f}{row['difference']:12.1e}"
            )
    return results


def _measure(name: str, against: list[str], seconds: float) -> list[dict]:
    net = models.load(name)
    x = np.random.default_rng().standard_normal(net.input_shape, dtype="float32")
    with tempfile.TemporaryDirectory() as folder:
        candidates = {"TVM": build(*from_pytorch(net, {"data": net.input_shape}))}
        candidates |= {peer: _PEERS[peer](net, Path(folder)) for peer in against}
        with torch.inference_mode():
            wanted = net(torch.from_numpy(x)).numpy()
        results = {runtime: np.asarray(call(x)) for runtime, call in candidates.items()}
        timings = measure.compare(candidates, x, seconds=seconds)
    return [
        {
            "network": name,
            "weights": net.weights_kind,
            "input": list(net.input_shape),
            "threads": env.threads(),
            "runtime": runtime,
            "median_ms": timing.median * 1e3,
            "iqr_ms": timing.iqr * 1e3,
            "tvm_ratio": timings["TVM"].median / timing.median,
            "difference": float(np.abs(results[runtime] - wanted).max() / np.abs(wanted).max()),
        }
        for runtime, timing in timings.items()
    ]


def _pytorch(net, folder):
    return _on_numpy(net)


def _compile(net, folder):
    return _on_numpy(torch.compile(net))


def _on_numpy(net):
    def call(x):
        with torch.inference_mode():
            return net(torch.from_numpy(x)).numpy()

    return call


def _onnxruntime(net, folder: Path):
    import onnxruntime

    file = folder / "model.onnx"
    models.export_onnx(net, file, net.input_shape)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = env.threads()
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    return lambda x: session.run(None, {"data": x})[0]


_PEERS = {"pytorch": _pytorch, "compile": _compile, "onnxruntime": _onnxruntime}
