"""`tvm.auto_scheduler` (Ansor) on today's MetaSchedule, for CPUs.

workload  the registry of workloads, their computations, and schedules of these
record    files of records, and builds with the best of them
task      tasks, options, and the search; callbacks: what it tells while it runs

A record is a line of JSON that begins with {"format" and holds a trace of MetaSchedule's (Shao et al.,
"Tensor Program Optimization with Probabilistic Programs", NeurIPS 2022), or, for a kernel that tvmfast has a
rule for, a config; `tn.build(…, records=FILE)` takes the file too.
"""

from ..autotvm import tuner
from ..removed import named
from . import record, task, workload

_MODULES = {
    "workload_registry": named(workload, "register_workload make_workload_key"),
    "compute_dag": named(workload, "ComputeDAG"),
    "measure": named(record, "MeasureInput MeasureResult")
    | {**named(task, "LocalRunner RPCRunner LocalRPCMeasureContext"), "LocalBuilder": tuner.LocalBuilder},
    "measure_record": named(record, "RecordToFile load_records load_best_record")
    | {"load_from_file": record.load_records, "load_best": record.load_best_record},  # of TVM 0.7
    "dispatcher": named(record, "ApplyHistoryBest"),
    "search_task": named(task, "SearchTask TuningOptions create_task auto_schedule"),
    "search_policy": named(task, "SketchPolicy PreloadMeasuredStates"),
    "cost_model": dict.fromkeys(("XGBModel", "RandomModel"), task.XGBModel),
    "relay_integration": named(task, "extract_tasks"),
    "task_scheduler": named(task, "TaskScheduler TaskSchedulerCallback PrintTableInfo LogEstimatedLatency"),
}
_ALL = {name: served for names in _MODULES.values() for name, served in names.items()}
NAMESPACES = {"tvm.auto_scheduler": _ALL, **{f"tvm.auto_scheduler.{k}": v for k, v in _MODULES.items()}}
