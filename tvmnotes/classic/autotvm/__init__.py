"""AutoTVM: tasks, tuners, measuring, callbacks and logs, over the workloads and configs of tvmnotes's schedules.

task      tasks of a network, and their configs
record    logs, and builds with the best of one
tuner     measuring, the four tuners, the progress line, the graph tuners
"""

import contextlib

from .record import (
    ApplyHistoryBest,
    MeasureErrorNo,
    MeasureInput,
    MeasureResult,
    decode,
    encode,
    load_from_file,
    log_to_file,
    pick_best,
)  # fmt: skip
from .task import ConfigEntity, ConfigSpace, Task, create, extract_from_multiple_program, extract_from_program
from .tuner import (
    GATuner,
    GraphTuner,
    GridSearchTuner,
    LocalBuilder,
    LocalRunner,
    RandomTuner,
    Tuner,
    XGBTuner,
    measure_option,
    progress_bar,
    rpc_runner,
)  # fmt: skip


def _templates_are_gone(*_args, **_kwargs):
    raise NotImplementedError(
        "autotvm.template: templates were TE schedules, which TVM 0.20 dropped; write the kernel in TensorIR and tune "
        "it with tvm.s_tir.meta_schedule, or tune a network's convolutions with autotvm.task.extract_from_program"
    )


_TUNERS = {"XGBTuner": XGBTuner, "GATuner": GATuner, "RandomTuner": RandomTuner, "GridSearchTuner": GridSearchTuner,
           "Tuner": Tuner}  # fmt: skip
_MEASURE = {"measure_option": measure_option, "LocalBuilder": LocalBuilder, "LocalRunner": LocalRunner,
            "RPCRunner": rpc_runner, "MeasureInput": MeasureInput, "MeasureResult": MeasureResult,
            "MeasureErrorNo": MeasureErrorNo}  # fmt: skip
_TASK = {"extract_from_program": extract_from_program, "create": create, "Task": Task,
         "extract_from_multiple_program": extract_from_multiple_program}  # fmt: skip
_SPACE = {"ConfigSpace": ConfigSpace, "ConfigEntity": ConfigEntity}
_CALLBACKS = {"progress_bar": progress_bar, "log_to_file": log_to_file}
_RECORD = {"encode": encode, "decode": decode, "load_from_file": load_from_file, "pick_best": pick_best}
_GRAPH = {"DPTuner": GraphTuner, "PBQPTuner": GraphTuner}
_APPLY = {"apply_history_best": ApplyHistoryBest, "ApplyHistoryBest": ApplyHistoryBest,
          "apply_graph_best": ApplyHistoryBest, "ApplyGraphBest": ApplyHistoryBest}  # fmt: skip
_NOT_SERVED = dict.fromkeys(["template", "get_config", "register_topi_compute", "register_topi_schedule"],
                            _templates_are_gone)  # fmt: skip

SPACES = {
    "tvm.autotvm": {**_MEASURE, **_APPLY, **_NOT_SERVED, **_RECORD, "create": create, "Task": Task},
    "tvm.autotvm.task": {**_TASK, **_SPACE, **_APPLY, "template": _templates_are_gone},
    "tvm.autotvm.task.space": _SPACE,
    "tvm.autotvm.task.dispatcher": _APPLY,
    "tvm.autotvm.tuner": _TUNERS,
    "tvm.autotvm.tuner.callback": _CALLBACKS,
    "tvm.autotvm.callback": _CALLBACKS,
    "tvm.autotvm.measure": _MEASURE,
    "tvm.autotvm.record": _RECORD,
    "tvm.autotvm.graph_tuner": _GRAPH,
    "tvm.autotvm.tophub": {"context": lambda *_args, **_kwargs: contextlib.nullcontext()},
}
