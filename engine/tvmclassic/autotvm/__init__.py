"""AutoTVM: tasks, tuners, measuring, callbacks and logs, for the workloads and configs of tvmfast.

task      tasks of a network, and their config spaces
record    logs, and builds with their best configs
template  `@autotvm.template`: a script's own schedules as tasks; space: the configs that it defines
tuner     measuring, the four tuners, the progress line, the graph tuners
"""

from tvmfast.compiler.records import shipped

from ..removed import named
from . import record, space, task, template, tuner


def _topi_is_gone(*_args, **_kwargs):
    raise NotImplementedError(
        "autotvm.register_topi_compute: TOPI has no schedules of its own since TVM 0.20; make a task of the "
        "computation and its schedule with @autotvm.template"
    )


def _tophub(target, extra_files=None) -> record.ApplyHistoryBest:
    """Apply the records shipped with tvmfast, the default of every build, and those of `extra_files`."""
    return record.ApplyHistoryBest([*shipped(), *(extra_files or ())])


_TUNERS = named(tuner, "XGBTuner GATuner RandomTuner GridSearchTuner Tuner")
_MEASURE = named(tuner, "measure_option LocalBuilder LocalRunner RPCRunner")
_MEASURE |= named(record, "MeasureInput MeasureResult MeasureErrorNo")
_TASK = named(task, "extract_from_program extract_from_multiple_program create Task")
_SPACE = named(task, "ConfigSpace ConfigEntity")
_SPACE |= named(space, "SplitEntity ReorderEntity AnnotateEntity OtherOptionEntity InstantiationError")
_CALLBACKS = {"progress_bar": tuner.progress_bar, "log_to_file": record.log_to_file}
_RECORD = named(record, "encode decode load_from_file pick_best")
_GRAPH = dict.fromkeys(("DPTuner", "PBQPTuner"), tuner.GraphTuner)
_BEST = "apply_history_best ApplyHistoryBest apply_graph_best ApplyGraphBest"
_APPLY = dict.fromkeys(_BEST.split(), record.ApplyHistoryBest)
_TEMPLATES = named(template, "template get_config")
_NOT_SERVED = dict.fromkeys(("register_topi_compute", "register_topi_schedule"), _topi_is_gone)

NAMESPACES = {
    "tvm.autotvm": {
        **_MEASURE,
        **_APPLY,
        **_TEMPLATES,
        **_NOT_SERVED,
        **_RECORD,
        **named(task, "create Task"),
    },
    "tvm.autotvm.task": {**_TASK, **_SPACE, **_APPLY, **_TEMPLATES, **_NOT_SERVED},
    "tvm.autotvm.task.space": _SPACE,
    "tvm.autotvm.task.dispatcher": _APPLY,
    "tvm.autotvm.tuner": _TUNERS,
    "tvm.autotvm.tuner.callback": _CALLBACKS,
    "tvm.autotvm.callback": _CALLBACKS,
    "tvm.autotvm.measure": _MEASURE,
    "tvm.autotvm.record": _RECORD,
    "tvm.autotvm.graph_tuner": _GRAPH,
    "tvm.autotvm.tophub": {"context": _tophub},
}
