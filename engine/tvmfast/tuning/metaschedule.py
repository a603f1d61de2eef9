"""MetaSchedule's own search, for the kernels that tvmfast has no rule for; its traces become records.

On its own, MetaSchedule keeps measurements in memory until every task had its first batch, 20 minutes for a
ResNet. Here each batch is written at once, and the next search starts from the records.
"""

import contextlib
import json
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import tvm
from tvm.ir.utils import derived_object
from tvm.s_tir import Schedule, ScheduleError
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.transform import RemoveWeightLayoutRewriteBlock
from tvm.tirx import IterVar

from ..compiler import codegen, records
from ..compiler.schedule.rules import RULES
from ..compiler.schedule.workloads.kernel import Kernel
from ..core import annotations, errors, machine
from ..core.compat import lazy_tensor_intrinsics
from ..core.protocols import Runner
from .task import Bars, Task, all_tasks
from .trial import KILLED
from .workers import Builder

_BATCH = 16
_BUILD_SECONDS = 30.0
_POPULATION = 128  # traces that evolve between batches; with TVM's 512 a batch takes half a minute


def tasks(mod: tvm.IRModule, params: dict, target: Any = None) -> list[Task]:
    """List the kernels of a network that reduce over an axis and that have no other workload, as tasks."""
    found = all_tasks(mod, params, target)
    return [task for task in found if isinstance(task.workload, Kernel) and reduces(task.workload.func)]


def reduces(func: tvm.tirx.PrimFunc) -> bool:
    """Tell whether a kernel reduces over an axis."""
    sch = Schedule(tvm.IRModule({"main": func}))
    axes = (axis for block in annotations.blocks_of(sch) for axis in sch.get(block).iter_vars)
    return any(axis.iter_type == IterVar.CommReduce for axis in axes)


@derived_object
class _WriteRecords(ms.measure_callback.PyMeasureCallback):
    """A callback that writes each measured batch to the session's records."""

    def __init__(self, session: Any, machine: dict | None, bars: Bars):
        super().__init__()
        self.session, self.machine = session, machine
        self.bars = bars

    def apply(self, scheduler: Any, task_id: int, candidates: list, built: list, results: list) -> None:
        """Write a batch of task `task_id`, except candidates whose processes were killed from outside."""
        task, state = self.session.tasks[task_id], self.session.states[task_id]
        measured = []
        for candidate, result in zip(candidates, results, strict=True):
            message = result.error_msg
            if message is None or KILLED not in message:
                seconds = () if message else map(float, result.run_secs)
                error = errors.lines(message)[-1] if message else None
                about = task.workload, task.target, as_config(candidate.sch.trace), seconds, error
                measured.append(records.new_record(*about, machine=self.machine))
        self.session.write(measured)
        state.update([record.call_seconds for record in measured])
        self.bars.update(task_id, state)
        if len(candidates):  # TVM measures an empty batch, too
            self.session.tell(True, task_id)


@derived_object
class _Builder(ms.builder.PyBuilder):
    """A builder with workers that live on.

    TVM's starts some for each batch, and each with the import that `lazy_tensor_intrinsics` avoids.
    """

    def __init__(self, workers: Builder):
        super().__init__()
        self.workers = workers

    def build(self, build_inputs: list) -> list:
        return [ms.builder.BuilderResult(*built) for built in self.workers.build(_build, build_inputs)]


def _build(given: Any) -> Any:
    mod = RemoveWeightLayoutRewriteBlock(skip_tensor_rewrite=True)(given.mod)
    return codegen.compile_kernels(dict(mod.functions_items()), given.target, runs_here=False)


def as_config(trace: Any) -> dict:
    """Return a trace as the config of a record."""
    text = json.dumps(trace.as_json(), default=lambda value: value.value)
    return {"family": "metaschedule", "trace": json.loads(text)}


def scheduled(mod: tvm.IRModule, config: dict) -> Schedule:
    """Return the schedule of a module by a record's config; raises ScheduleError if it does not fit."""
    sch, rule = Schedule(mod), RULES["metaschedule"]
    rule.schedule(sch, rule.config(config))
    return sch


@derived_object
class _Search(ms.search_strategy.PySearchStrategy):
    """MetaSchedule's evolution of traces, without those of earlier records, which it may choose again.

    TVM asks for a whole batch after one that was not full, and ends after the batch that reaches the number
    of trials. So all searches take from `left`, an iterator with an element for each trial. A search ends
    after its first batch at the earliest, where task `number` of the session has stopped.
    """

    def __init__(self, session: Any, number: int, known: set[str], left: Iterator):
        super().__init__()
        self.session, self.number, self.known, self.left = session, number, known, left
        self.earlier = session.states[number].trials
        self.evolution = ms.search_strategy.EvolutionarySearch(population_size=_POPULATION)

    def _initialize_with_tune_context(self, context: Any) -> None:
        self.evolution._initialize_with_tune_context(context)

    def pre_tuning(self, *given: Any) -> None:
        self.evolution.pre_tuning(*given)

    def post_tuning(self) -> None:
        self.evolution.post_tuning()

    def generate_measure_candidates(self) -> list | None:
        """Return the evolution's candidates that are not known, while trials are left; None at the end."""
        state = self.session.states[self.number]
        if state.trials > self.earlier and self.session.has_stopped(state):
            return None
        found = self.evolution.generate_measure_candidates()
        if found is None:
            return None
        fresh = [each for each in found if records.key(as_config(each.sch.trace)) not in self.known]
        batch = [each for each, _ in zip(fresh, self.left, strict=False)]
        if batch:
            self.session.tell(False, self.number)
        return batch

    def notify_runner_results(self, *given: Any) -> None:
        self.evolution.notify_runner_results(*given)

    def clone(self) -> "_Search":
        """Return a new search with the same known traces, which takes from the same trials."""
        return _Search(self.session, self.number, self.known, self.left)


@derived_object
class _Model(ms.cost_model.XGBModel._cls):
    """MetaSchedule's cost model with its own generator for its first, random scores; TVM's is global."""

    def __init__(self, seed: int):
        super().__init__(num_tuning_cores=machine.usable_cores())
        self.random = np.random.default_rng(seed)

    def predict(self, context: Any, candidates: list) -> np.ndarray:
        """Return the scores of candidates, random ones until the model is trained."""
        if self.data_size >= self.num_warmup_samples and self.booster is not None:
            return super().predict(context, candidates)
        return self.random.uniform(size=len(candidates))


def _space() -> ms.SpaceGenerator:
    """Return TVM's search space for any CPU; others insert intrinsics, which a record may not hold."""
    return ms.space_generator.PostOrderApply(sch_rules="llvm", postprocs="llvm", mutator_probs="llvm")


def _with_cores(target: tvm.target.Target) -> tvm.target.Target:
    """Return a target with a number of cores, which MetaSchedule asks for: if need be this machine's."""
    if target.attrs.get("num-cores"):
        return target
    return tvm.target.Target({**json.loads(machine.target_json(target)), "num-cores": machine.usable_cores()})


def search(session: Any, runner: Runner, seed: int | None) -> None:
    """Run MetaSchedule until the session's trials are used up.

    With a seed it runs on one core, because its threads would draw random numbers in any order. A continued
    search derives another seed, or it would find the same traces.
    """
    seeds = random.Random(seed if seed is None else f"{seed}, {session.earlier}")
    measured = []  # for each task, its records from before
    for task, state in zip(session.tasks, session.states, strict=True):
        measured.append([r for r in session.known if r.workload == task.workload and not r.final])
        if measured[-1]:
            state.update([record.call_seconds for record in measured[-1]])
    left = iter(range(session.trials - session.done))
    with lazy_tensor_intrinsics():
        contexts = []
        for number, task in enumerate(session.tasks):
            known = {records.key(r.config) for r in session.known if r.workload == task.workload}
            context = ms.TuneContext(
                mod=tvm.IRModule({"main": task.workload.func}),
                target=_with_cores(session.target),
                task_name=task.workload.name,
                space_generator=_space(),
                num_threads=machine.usable_cores() if seed is None else 1,
                search_strategy=_Search(session, number, known, left),
                rand_state=seeds.randrange(1, 2**31),
            )
            contexts.append(context.clone())
    database = ms.database.MemoryDatabase()
    for earlier, context in zip(measured, contexts, strict=True):
        for record in earlier:
            if record.seconds:
                with contextlib.suppress(ScheduleError):  # the trace does not fit, from another TVM say
                    tuning_record = _as_tuning_record(record, context, database, session.target)
                    database.commit_tuning_record(tuning_record)
    with contextlib.ExitStack() as stack:
        bars = stack.enter_context(Bars(session.states, session.trials))
        if session.done >= session.trials:
            return
        builder = stack.enter_context(contextlib.closing(Builder(_BUILD_SECONDS)))
        callbacks = [
            ms.measure_callback.AddToDatabase(),
            _WriteRecords(session, runner.machine, bars),
            ms.measure_callback.RemoveBuildArtifact(),
            ms.measure_callback.UpdateCostModel(),
        ]
        ms.tune.tune_tasks(
            tasks=contexts,
            task_weights=[float(task.count) for task in session.tasks],
            work_dir=builder.folder,
            max_trials_global=session.trials - session.done,
            num_trials_per_iter=_BATCH,
            builder=_Builder(builder),
            runner=runner.for_metaschedule(),
            database=database,
            cost_model=_Model(seeds.getrandbits(64)),
            measure_callbacks=callbacks,
        )


def _as_tuning_record(record: records.Record, context: Any, database: Any, target: Any) -> Any:
    workload = database.commit_workload(context.mod)
    sch = scheduled(context.mod, record.config)
    args = ms.arg_info.ArgInfo.from_entry_func(context.mod, remove_preproc=True)
    return ms.database.TuningRecord(sch.trace, workload, list(record.seconds), target, args)
