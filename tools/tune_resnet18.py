"""Tune ResNet-18 with TVM's MetaSchedule, and pack the fastest record of each kernel for lesson 10.

    python -m tools.tune_resnet18 avx512                 # on a quiet machine; one to two seconds a trial
    python -m tools.tune_resnet18 avx2 --trials 640      # for any CPU with AVX2
    python -m tools.tune_resnet18 avx512 --trials 3000   # goes on with what is there

Each batch of trials is in two files of tvmnotes's cache before the next begins. The script may be killed at
any moment: the next start drops a line that was not finished, and goes on until all trials together are as
many as asked for. MetaSchedule alone would keep all results in memory until every task had its first batch.
"""

import json
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import tvm
import typer
from torch.fx.experimental.optimization import fuse
from tvm import relax
from tvm.ir.utils import derived_object
from tvm.relax.frontend.torch import from_exported_program
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.transform import RemoveWeightLayoutRewriteBlock

import tvmnotes as tn
from tvmfast.core.compat import fast_tvmscript_parser
from tvmnotes import lessons

from .record_networks import ISA, target_of

FOLDER = lessons.ROOT / "data" / "metaschedule"
FILES = ("database_workload.json", "database_tuning_record.json")  # of a JSONDatabase
_FAILED = 1e10  # seconds of a trial that failed


def kernels(target: tvm.target.Target) -> list[ms.ExtractedTask]:
    """Return ResNet-18's tasks as lesson 10 makes them, with the kernels that compute most first."""
    net = tn.models.load("resnet18", pretrained=False)
    exported = torch.export.export(fuse(net), (torch.zeros(net.input_shape),))
    mod = from_exported_program(exported, unwrap_unit_return_tuple=True)
    passes = [relax.get_pipeline("zero"), relax.transform.AttachAttrLayoutFreeBuffers()]
    with target:
        mod = tvm.transform.Sequential(passes)(mod)
    found = ms.relax_integration.extract_tasks(mod, target)
    found = [task for task in found if any(word in task.task_name for word in ("conv2d", "matmul", "pool"))]
    return sorted(found, key=lambda task: -tvm.s_tir.analysis.estimate_tir_flops(task.dispatched[0]))


def build(mod: tvm.IRModule, target: tvm.target.Target, params: dict | None) -> tvm.runtime.Module:
    """Compile a candidate, without the packing of its weights, which happens once for a network."""
    mod = RemoveWeightLayoutRewriteBlock(skip_tensor_rewrite=True)(mod)
    return tvm.compile(mod, target=target).mod


def drop_torn_lines(folder: Path) -> None:
    """Cut off what a killed process did not finish writing, and records of workloads that are not there."""
    for name in FILES:
        path = folder / name
        if path.exists():
            text = path.read_bytes()
            path.write_bytes(text[: text.rfind(b"\n") + 1])
    workloads, records = (folder / name for name in FILES)
    if records.exists():
        known = len(workloads.read_bytes().splitlines()) if workloads.exists() else 0
        lines = records.read_bytes().splitlines(keepends=True)
        kept = [line for line in lines if json.loads(line)[0] < known]
        if len(kept) < len(lines):
            records.write_bytes(b"".join(kept))


def key(trace: tvm.s_tir.schedule.Trace) -> str:
    """Return the text of a trace."""
    return json.dumps(trace.as_json(), default=lambda value: value.value)


@derived_object
class Unmeasured(ms.search_strategy.PySearchStrategy):
    """MetaSchedule's evolution, without traces of earlier batches, which it would measure again."""

    def __init__(self, known: set[str]):
        super().__init__()
        self.known = known
        self.evolution = ms.search_strategy.EvolutionarySearch(population_size=256)

    def _initialize_with_tune_context(self, context: ms.TuneContext) -> None:
        self.evolution._initialize_with_tune_context(context)

    def pre_tuning(self, *given) -> None:
        """Begin."""
        self.evolution.pre_tuning(*given)

    def post_tuning(self) -> None:
        """End."""
        self.evolution.post_tuning()

    def generate_measure_candidates(self) -> list | None:
        """Return what the evolution proposes and nobody has measured."""
        found = self.evolution.generate_measure_candidates()
        return found and [each for each in found if key(each.sch.trace) not in self.known]

    def notify_runner_results(self, *given) -> None:
        """Tell the evolution what was measured."""
        self.evolution.notify_runner_results(*given)

    def clone(self) -> "Unmeasured":
        """Return a new search that leaves out the same."""
        return Unmeasured(self.known)


class Search:
    """A search that goes on from a database, a batch at a time."""

    def __init__(self, tasks: list[ms.ExtractedTask], target: tvm.target.Target, folder: Path, batch: int):
        self.tasks, self.target, self.folder, self.batch = tasks, target, folder, batch
        drop_torn_lines(folder)
        self.database = ms.database.JSONDatabase(work_dir=str(folder))
        self.workloads = [self.database.commit_workload(task.dispatched[0]) for task in tasks]
        self.batches = [0] * len(tasks)
        self.model = ms.cost_model.XGBModel(num_warmup_samples=2 * batch)
        self.builder = ms.builder.LocalBuilder(f_build=build, max_workers=tn.env.threads(), timeout_sec=120)
        timing = ms.runner.EvaluatorConfig(number=1, repeat=3, min_repeat_ms=50, enable_cpu_cache_flush=True)
        self.runner = ms.runner.LocalRunner(timeout_sec=120, evaluator_config=timing)
        for number in range(len(tasks)):
            if records := self.records(number):
                self.batches[number] = -(-len(records) // batch)
                self.learn(number, records)

    def records(self, number: int) -> list[ms.database.TuningRecord]:
        """Return all records of a task, failed ones too."""
        found = self.database.get_all_tuning_records()
        return [record for record in found if record.workload.same_as(self.workloads[number])]

    def seconds(self, number: int) -> float | None:
        """Return the time of a task's fastest record; None: it has none yet."""
        top = self.database.get_top_k(self.workloads[number], 1)
        return float(np.mean([float(s) for s in top[0].run_secs])) if top else None

    def context(self, number: int) -> ms.TuneContext:
        """Return what MetaSchedule needs to search on a task."""
        known = {key(record.trace) for record in self.records(number)}
        return ms.TuneContext(
            mod=self.tasks[number].dispatched[0],
            target=self.target,
            task_name=self.tasks[number].task_name,
            space_generator=ms.space_generator.PostOrderApply(
                sch_rules="llvm", postprocs="llvm", mutator_probs="llvm"
            ),
            search_strategy=Unmeasured(known),
            num_threads=tn.env.threads(),
        ).clone()

    def learn(self, number: int, records: list[ms.database.TuningRecord]) -> None:
        """Teach the model what an earlier process measured."""
        good = [record for record in records if record.run_secs and float(record.run_secs[0]) < _FAILED]
        candidates = [record.as_measure_candidate() for record in good]
        results = [ms.runner.RunnerResult(list(record.run_secs), None) for record in good]
        if good:
            self.model.update(self.context(number), candidates, results)

    def next(self) -> int:
        """Choose the task of the next batch: one without any, else where a batch promises most."""

        def promise(number: int) -> float:
            if not self.batches[number]:
                return float("inf")
            time = self.seconds(number) or 1e-3  # all trials have failed
            return self.tasks[number].weight * time / self.batches[number]

        return max(range(len(self.tasks)), key=promise)

    def run(self, number: int, trials: int) -> None:
        """Measure a batch of a task; it is in the files afterwards."""
        ms.tune.tune_tasks(
            tasks=[self.context(number)],
            task_weights=[1.0],
            work_dir=str(self.folder),
            max_trials_global=trials,
            num_trials_per_iter=trials,
            builder=self.builder,
            runner=self.runner,
            database=self.database,
            cost_model=self.model,
        )
        self.batches[number] += 1


def pack(database: ms.database.Database, to: Path) -> None:
    """Write the fastest record of each kernel as a JSONDatabase in an archive."""
    to.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        database.dump_pruned(ms.database.JSONDatabase(work_dir=folder))
        with tarfile.open(Path(folder) / to.name, "w:xz", preset=9) as archive:
            for name in FILES:
                archive.add(Path(folder) / name, arcname=name)
        to.write_bytes((Path(folder) / to.name).read_bytes())


def main(
    name: Annotated[str, typer.Argument(help="avx512 or avx2.")],
    trials: Annotated[int, typer.Option(help="All of them, those of earlier starts too.")] = 1000,
    batch: Annotated[int, typer.Option(help="Trials between two writes.")] = 32,
    to: Annotated[Path, typer.Option(help="Folder of the archive.")] = FOLDER,
) -> None:
    """Tune until there are so many trials, and pack the fastest."""
    if name not in ("avx512", "avx2"):
        sys.exit(f"expected avx512 or avx2, got {name!r}")
    target = target_of(name)
    sets = tn.env.target_instruction_sets(target)
    if next((isa for isa in ISA.values() if isa in sets), None) != ISA[name]:
        sys.exit(f"this machine's target, {target}, is not one for {name}")
    with fast_tvmscript_parser():
        from tvm.s_tir import tensor_intrin  # noqa: F401  # for speed: MetaSchedule's own import is slow
    folder = tn.data.writable_cache() / "metaschedule" / f"resnet18_{name}"
    folder.mkdir(parents=True, exist_ok=True)
    search = Search(kernels(target), target, folder, batch)
    while (left := trials - len(search.database)) > 0:
        number = search.next()
        before = len(search.database)
        search.run(number, min(batch, left))
        seconds = search.seconds(number)
        shown = "no time yet" if seconds is None else f"{seconds * 1e3:.3f} ms"
        print(f"{len(search.database)} trials; {search.tasks[number].task_name}: {shown}", flush=True)
        if len(search.database) == before:  # its space is exhausted
            search.batches[number] = sys.maxsize
            if min(search.batches) == sys.maxsize:
                break
    archive = to / f"resnet18_{name}.tar.xz"
    pack(search.database, archive)
    total = sum(task.weight * (search.seconds(n) or 0) for n, task in enumerate(search.tasks))
    print(f"{archive}, {archive.stat().st_size / 1024:.0f} KiB; its kernels take {total * 1e3:.1f} ms")


if __name__ == "__main__":
    typer.run(main)
