"""MetaSchedule's own search, for the kernels that tvmnotes has no schedule of; its traces become our records.

By itself it keeps what it measured in memory until every task had its first batch, 20 minutes for a ResNet. Here each
batch is written down at once, and what the records hold is where the next search begins.
"""

import tempfile

import tvm
from tvm.ir.utils import derived_object
from tvm.s_tir import meta_schedule as ms

from .. import env, records
from ..compiler.schedules import Kernel
from .progress import Bars
from .task import Task, workloads

_BATCH = 16
_REDUCTION = 2  # tvm's IterVar.CommReduce


def tasks(mod: tvm.IRModule, params: dict, target: tvm.target.Target) -> list[Task]:
    """The kernels of a network that sum or compare over something and have no schedule of ours."""
    found = workloads(mod, params, target)
    return [Task(workload, count, str(target)) for workload, count in found.items()
            if isinstance(workload, Kernel) and _reduces(workload.func)]  # fmt: skip


def _reduces(func) -> bool:
    found = []

    def visit(node):
        if isinstance(node, tvm.tirx.SBlock):
            found.extend(var for var in node.iter_vars if var.iter_type == _REDUCTION)

    tvm.tirx.stmt_functor.post_order_visit(func.body, visit)
    return bool(found)


@derived_object
class _Write(ms.measure_callback.PyMeasureCallback):
    """Writes each measured batch to the session's records."""

    def __init__(self, session, machine, bars):
        super().__init__()
        self.session, self.machine, self.bars = session, machine, bars

    def apply(self, task_scheduler, task_id, measure_candidates, builder_results, runner_results):
        task, state, seconds = self.session.tasks[task_id], self.session.states[task_id], []
        made = []
        for candidate, result in zip(measure_candidates, runner_results, strict=True):
            spent = [] if result.error_msg else [float(s) for s in result.run_secs]
            seconds.append(min(spent, default=float("inf")))
            if spent:
                made.append(
                    records.measured(
                        task.workload, task.target, as_config(candidate.sch.trace), spent, None, "", self.machine
                    )
                )
        self.session.log.append(made)
        self.session.known += made
        state.update(seconds)
        self.bars.update(task_id, state)


def as_config(trace) -> dict:
    """A trace as the config of a record."""
    return {"family": "metaschedule", "trace": tvm.ir.save_json(trace.as_json())}


def search(session, runner) -> None:
    """Have MetaSchedule search until the session's trials are used up."""
    contexts = [
        ms.TuneContext(
            mod=tvm.IRModule({"main": task.workload.func}), target=session.target, task_name=task.workload.name,
            space_generator="post-order-apply", search_strategy="evolutionary", num_threads=env.usable_cores(),
        ).clone()
        for task in session.tasks
    ]  # fmt: skip
    database = ms.database.MemoryDatabase()
    for task, state, context in zip(session.tasks, session.states, contexts, strict=True):
        known = [r for r in session.known if r.workload == task.workload and r.seconds and not r.final]
        for record in known:
            database.commit_tuning_record(_as_tuning_record(record, context, database, session.target))
        if known:
            state.update([record.call_seconds for record in known])
    with Bars(session.tasks, session.trials) as bars, tempfile.TemporaryDirectory() as folder:
        for number, state in enumerate(session.states):
            bars.update(number, state)
        if session.done >= session.trials:
            return
        ms.tune.tune_tasks(
            tasks=contexts,
            task_weights=[float(task.count) for task in session.tasks],
            work_dir=folder,
            max_trials_global=session.trials - session.done,
            num_trials_per_iter=_BATCH,
            builder=ms.builder.LocalBuilder(max_workers=env.usable_cores()),
            runner=runner.for_metaschedule(),
            database=database,
            measure_callbacks=[
                ms.measure_callback.AddToDatabase(), _Write(session, runner.machine, bars),
                ms.measure_callback.RemoveBuildArtifact(), ms.measure_callback.UpdateCostModel(),
            ],
        )  # fmt: skip


def _as_tuning_record(record, context, database, target):
    workload = database.commit_workload(context.mod)
    sch = tvm.s_tir.Schedule(context.mod)
    from tvm.s_tir.schedule import Trace

    Trace.apply_json_to_schedule(tvm.ir.load_json(record.config["trace"]), sch)
    args = ms.arg_info.ArgInfo.from_entry_func(context.mod, remove_preproc=True)
    return ms.database.TuningRecord(sch.trace, workload, list(record.seconds), target, args)
