"""`tvm.auto_scheduler` (Ansor) on today's MetaSchedule: tasks, the search, records.

workload  the registry of workloads, their computations, and schedules of these
record    files of records, and builds with the best of them
task      tasks, options, and the search; callbacks: what it tells while it runs

The search is for CPUs. A record is a line of JSON that begins with {"format" and holds a trace of
MetaSchedule's (Shao et al., "Tensor Program Optimization with Probabilistic Programs", NeurIPS 2022), or, for
a kernel that tvmfast has a rule for, a config; `tn.build(…, records=FILE)` takes the file too.
"""

from ..removed import named, refusal
from . import callbacks, record, task, workload

_OWN = "the search is MetaSchedule's, on sketches of its own; give it one with tvm.s_tir.meta_schedule."
_REFUSED = {
    "PreloadCustomSketchRule": f"{_OWN}schedule_rule.PyScheduleRule",
    "PythonBasedModel": f"{_OWN}cost_model.PyCostModel",
    "PythonBasedMeasureCallback": "Ansor's loop states are gone; read records with load_records",
    "EmptyPolicy": "the only policy is SketchPolicy",
}


_MODULES = {
    "workload_registry": named(workload, "register_workload make_workload_key"),
    "compute_dag": named(workload, "ComputeDAG"),
    "measure": named(record, "MeasureInput MeasureResult")
    | named(task, "LocalBuilder LocalRunner RPCRunner LocalRPCMeasureContext"),
    "measure_record": named(record, "RecordToFile load_records load_best_record")
    | {"load_from_file": record.load_records, "load_best": record.load_best_record},  # of TVM 0.7
    "dispatcher": named(record, "ApplyHistoryBest"),
    "search_task": named(task, "SearchTask TuningOptions create_task auto_schedule"),
    "search_policy": named(task, "SketchPolicy PreloadMeasuredStates"),
    "cost_model": named(task, "XGBModel RandomModel"),
    "relay_integration": named(task, "extract_tasks"),
    "task_scheduler": named(task, "TaskScheduler")
    | named(callbacks, "TaskSchedulerCallback PrintTableInfo LogEstimatedLatency"),
}
_ALL = {name: served for names in _MODULES.values() for name, served in names.items()}
_REFUSALS = {name: refusal(f"auto_scheduler.{name}: {reason}") for name, reason in _REFUSED.items()}
NAMESPACES = {
    "tvm.auto_scheduler": _ALL | _REFUSALS,
    **{f"tvm.auto_scheduler.{name}": names for name, names in _MODULES.items()},
}
