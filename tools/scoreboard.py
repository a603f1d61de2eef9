"""The course's scoreboard: ResNet-18 on one image, in every runtime, in one run.

`python -m tools.scoreboard`, in a checkout, writes the run to tvmnotes/scoreboard.json, which
`plots.scoreboard` and README.md (`python -m tvmnotes.lessons`) show. MetaSchedule's row uses the records
that tune_resnet18.py made.
"""

import datetime
import json
import shutil
import tempfile
from pathlib import Path

import numpy as np
import torch

from tvmfast.core import data, machine
from tvmfast.profiling import benchmark, measure, profiler
from tvmfast.runtime.compiled import Compiled
from tvmnotes import models, plots, vision

ROWS = {
    "PyTorch eager": "pytorch",
    "torch.compile": "compile",
    "ONNX Runtime": "onnxruntime",
    "tvm.compile": "plain",
    "tvm.compile, CPU pipeline": "pipeline",
    "tvm.compile, MetaSchedule": "metaschedule",
    "tvmnotes, untuned": "untuned",
    "tvmnotes, shipped records": "TVM",
}
BOUNDED = "tvmnotes, shipped records"  # the row whose lower bound is computed
_SECONDS = 5.0  # timed, for each row
_TOLERANCE = 1e-4  # of the largest output; a runtime that differs more from PyTorch has no time


def measure_rows(name: str = "resnet18", seconds: float = _SECONDS) -> dict:
    """Time a network on an image in each runtime of `ROWS`, alternately, each on all threads.

    Args:
        name: A name that `models.load` knows.
        seconds: Timed seconds per row.

    Returns:
        A dictionary with "network", "input" (its shape), "date", "machine", "versions", "bound" (that of
        `at_the_limit`), and "rows": by row, the seconds "low", "median" and "high" (the quartiles), and
        "calls".

    Raises:
        ValueError: A runtime's result differs from PyTorch's.
    """
    torch.set_num_threads(machine.threads())
    net = models.load(name)
    x = np.random.default_rng(0).standard_normal(net.input_shape, dtype="float32")
    if net.input_shape[1] == 3:
        x = vision.preprocess(vision.open_picture())
    with tempfile.TemporaryDirectory() as folder:
        shutil.unpack_archive(_archive(), Path(folder, "metaschedule"))
        calls = {}
        for row, runtime in ROWS.items():
            if runtime == "metaschedule":
                calls[row] = benchmark.with_metaschedule(net, x, str(Path(folder, "metaschedule")))
            else:
                calls[row] = benchmark.candidate(runtime, net, x, Path(folder))
        reference = calls["PyTorch eager"](x)
        for row, call in calls.items():
            if not np.allclose(call(x), reference, rtol=0, atol=_TOLERANCE * np.abs(reference).max()):
                raise ValueError(f"{row}: its result is not PyTorch's")
        timings = measure.compare(calls, x, seconds=seconds)
    return {
        "network": name,
        "input": list(x.shape),
        "date": datetime.date.today().isoformat(),
        "machine": machine.machine(),
        "versions": benchmark.versions(),
        "bound": at_the_limit(calls[BOUNDED], x),
        "rows": {row: _quartiles(timing) for row, timing in timings.items()},
    }


def at_the_limit(lib: Compiled, x: np.ndarray) -> float:
    """Return the seconds of a run whose kernels reach the machine's limits; faster ones keep their time."""
    kernels = profiler.profile(lib, x).kernels.values()
    return sum(min(kernel.limit, kernel.timing.median) for kernel in kernels)


def _archive() -> Path:
    """Return the shipped records of MetaSchedule for this CPU's vectors."""
    wide = "avx512f" in machine.target_instruction_sets(machine.host_target())
    return data.path(f"metaschedule/resnet18_{'avx512' if wide else 'avx2'}.tar.xz")


def _quartiles(timing: measure.Timing) -> dict:
    low, median, high = (float(value) for value in np.percentile(timing.seconds, [25, 50, 75]))
    return {"low": low, "median": median, "high": high, "calls": len(timing.seconds)}


if __name__ == "__main__":
    run = measure_rows()
    data.atomic_write(plots.SCOREBOARD, json.dumps(run, indent=1) + "\n")
    for row, times in run["rows"].items():
        print(f"{row:26} {times['median'] * 1e3:10.2f} ms")
