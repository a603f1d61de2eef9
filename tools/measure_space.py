"""Measure each config of lesson 11's space, for the table that its races replay.

    python -m tools.measure_space     # ten minutes on a quiet machine

The kernel and the space are those of the lesson's cells. Each batch is in a file of tvmnotes's cache before
the next begins, so that a second start goes on after a kill. Delete that file to measure again.
"""

import itertools
import json
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm import te, topi
from tvm.s_tir import Schedule
from tvm.s_tir import meta_schedule as ms

import tvmnotes as tn
from tvmnotes import lessons

LESSON = lessons.ROOT / "notebooks" / "11_search.ipynb"
TABLE = lessons.ROOT / "data" / "search" / "conv2d_256_14x14.csv"
_BATCH = 16


def names() -> dict[str, Any]:
    """Run the lesson's cells that define the kernel and its space, and return what they define."""
    found = {"te": te, "topi": topi, "Schedule": Schedule, "itertools": itertools}
    for cell in json.loads(LESSON.read_text(encoding="utf-8"))["cells"]:
        if cell["id"] in ("convolution", "space"):
            exec("".join(cell["source"]), found)
    return found


def arguments(kernel: tvm.tirx.PrimFunc) -> list[tvm.runtime.Tensor]:
    """Return random arguments of a kernel; the last is its result."""
    rng = np.random.default_rng(0)
    shapes = [tuple(map(int, each.shape)) for each in ms.arg_info.ArgInfo.from_prim_func(kernel)]
    return [tvm.runtime.tensor(rng.standard_normal(shape, dtype="float32")) for shape in shapes]


def measured(kernel: tvm.tirx.PrimFunc, schedule: Callable, batch: Iterable[tuple]) -> Iterator[float]:
    """Yield the ms of each config: all are built first, on all cores, and timed one after the other."""
    target, given = tn.env.host_target(), arguments(kernel)

    def build(config: tuple) -> Any:
        library = tvm.compile(schedule(*config).mod, target=target).jit()
        library["main"]  # LLVM compiles here
        return library

    with ThreadPoolExecutor(tn.env.threads()) as pool:
        libraries = list(pool.map(build, batch))
    reference = None
    for library in libraries:
        library["main"](*given)
        result = given[-1].numpy()
        reference = result if reference is None else reference
        np.testing.assert_allclose(result, reference, atol=1e-4 * np.abs(reference).max())
        timed = library.time_evaluator("main", tvm.cpu(), number=1, repeat=5, min_repeat_ms=20)(*given)
        yield min(timed.results) * 1e3


def read(file: Path) -> dict[tuple, float]:
    """Return the ms by config of a file, without a line that a kill left unfinished."""
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    lines = text[: text.rfind("\n") + 1].splitlines()
    rows = [line.split(",") for line in lines if line[0].isdigit()]
    return {tuple(map(int, config)): float(time) for *config, time in rows}


def main() -> None:
    """Measure what is not measured yet, in random order, and write the table in that of the space."""
    lesson = names()
    part = tn.data.writable_cache() / "search" / TABLE.name
    part.parent.mkdir(parents=True, exist_ok=True)
    done = read(part)
    part.write_text("".join(_line(*each) for each in done.items()), encoding="utf-8")
    left = [config for config in lesson["space"] if config not in done]
    left = [left[number] for number in np.random.default_rng(0).permutation(len(left))]
    for first in range(0, len(left), _BATCH):
        batch = left[first : first + _BATCH]
        found = dict(zip(batch, measured(lesson["conv"], lesson["schedule"], batch), strict=True))
        with part.open("a", encoding="utf-8") as file:
            file.writelines(_line(*each) for each in found.items())
        done |= found
        print(f"{len(done)} of {len(lesson['space'])} configs", flush=True)
    TABLE.parent.mkdir(parents=True, exist_ok=True)
    cpu, cores, target, version = tn.env.machine().rsplit(", ", 3)  # in another order: no lesson ran there
    lines = [f"# {cpu}, {target}, {version}, {cores}\n", ",".join([*lesson["choices"], "ms"]) + "\n"]
    TABLE.write_text("".join(lines + [_line(each, done[each]) for each in lesson["space"]]), encoding="utf-8")
    print(f"{TABLE}: {TABLE.stat().st_size // 1024} KiB")


def _line(config: tuple, time: float) -> str:
    return ",".join(map(str, config)) + f",{time:.4f}\n"


if __name__ == "__main__":
    main()
