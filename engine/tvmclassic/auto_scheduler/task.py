"""Search tasks, of a workload or of a network's kernels; the options of a search, the search, callbacks."""

import dataclasses
import json
import os
import shutil
import tempfile
import time
import weakref
from collections import namedtuple
from pathlib import Path

import tvm

from tvmfast import tuning
from tvmfast.compiler.schedule.workloads.kernel import Kernel
from tvmfast.core import machine
from tvmfast.tuning import metaschedule, session
from tvmfast.tuning.task import all_tasks

from ..autotvm import tuner
from ..autotvm.task import target_of
from ..context import without_instruments
from ..relay.build import relax_of
from .record import RecordToFile, fastest, key_of, read
from .workload import ComputeDAG, make_workload_key

PreloadMeasuredStates = namedtuple("PreloadMeasuredStates", ["filename"])  # have a search begin with records
_NOT_MEASURED = 1e10  # the seconds of a task without a schedule that ran
_ROW = "| {:>3} | {:<40.40} | {:>12} | {:>14} | {:>6} |"


class LocalRunner(tuner.LocalRunner):
    """Runner on this machine: `repeat` means of `number` calls or more, with random arguments."""

    def __init__(self, timeout=10, number=3, repeat=1, min_repeat_ms=100, cooldown_interval=0, *_, **_others):
        super().__init__(timeout, number, repeat, min_repeat_ms, cooldown_interval)


class RPCRunner(LocalRunner):
    """Runner on the servers that the tracker at `host`:`port` lists under `key`; see LocalRunner."""

    def __init__(self, key, host, port, priority=1, n_parallel=1, *of_local, **options):
        super().__init__(*of_local, **options)
        self._where = (f"{host}:{port}", key)


class LocalRPCMeasureContext:
    """What has a `runner` for this machine: a LocalRunner, which measures in a process apart anyway."""

    def __init__(self, priority=1, n_parallel=1, *of_local, **options):
        self.runner = LocalRunner(*of_local, **options)


class TuningOptions:
    """Options of a search: `num_measure_trials` schedules to measure, beyond those in the file of records.

    It ends after `early_stopping` trials of each task without a faster schedule. `measure_callbacks` has one
    RecordToFile, or none, and then the records live as long as the options.
    """

    def __init__(
        self, num_measure_trials=0, early_stopping=None, num_measures_per_round=64, verbose=1,
        builder="local", runner="local", measure_callbacks=None, **_others,
    ):  # fmt: skip
        callbacks = list(measure_callbacks or [])
        if len(callbacks) > 1 or not all(isinstance(each, RecordToFile) for each in callbacks):
            raise NotImplementedError(f"measure_callbacks: expected one RecordToFile; got {callbacks}")
        if num_measure_trials < 1:
            raise ValueError(f"num_measure_trials: expected 1 or more; got {num_measure_trials}")
        self.num_measure_trials, self.early_stopping = num_measure_trials, max(early_stopping or 0, 0) or None
        self.builder = tuner.LocalBuilder() if builder == "local" else builder
        self.runner = LocalRunner() if runner == "local" else runner
        if not callbacks:
            folder = tempfile.mkdtemp()
            weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
            callbacks = [RecordToFile(f"{folder}/records.json")]
        self.file = callbacks[0].filename


class XGBModel:
    """The cost model: always MetaSchedule's, of XGBoost; random until it knows a hundred trials."""

    def __init__(self, *_args, **_options):
        self.files: list[str] = []

    def update_from_file(self, file_name, n_lines=None) -> None:
        """Have the search begin with the records of a file, as `PreloadMeasuredStates` does."""
        self.files.append(os.fspath(file_name))


class SketchPolicy:
    """How to search: MetaSchedule's evolution of its own sketches; Ansor's `params` have no effect."""

    def __init__(
        self, task, program_cost_model=None, params=None, seed=None, verbose=1, init_search_callbacks=None
    ):  # fmt: skip
        callbacks = list(init_search_callbacks or [])
        if not all(isinstance(each, PreloadMeasuredStates) for each in callbacks):
            raise NotImplementedError(f"init_search_callbacks: only PreloadMeasuredStates; got {callbacks}")
        self.seed, self.files = seed, [each.filename for each in callbacks]
        self.files += getattr(program_cost_model, "files", [])


class TaskSchedulerCallback:
    """The base class of callbacks: hears of each batch of a task before and after it is measured."""

    def pre_tune(self, task_scheduler, task_id) -> None:
        """Do nothing."""

    post_tune = pre_tune


class PrintTableInfo(TaskSchedulerCallback):
    """Prints a table before each batch: of each task the fastest schedule's time and rate, and the trials."""

    def pre_tune(self, task_scheduler, task_id) -> None:
        """Print the table."""
        print(_ROW.format("ID", "Task", "Latency (ms)", "Speed (GFLOPS)", "Trials"))
        state = zip(task_scheduler.tasks, task_scheduler.best_costs, task_scheduler.task_cts, strict=True)
        for number, (task, seconds, trials) in enumerate(state):
            told = f"{seconds * 1e3:.3f}", f"{task.today.operations / seconds / 1e9:.2f}"
            told = told if seconds < _NOT_MEASURED else ("-", "-")
            print(_ROW.format(number, task.desc or task.workload_key, *told, trials))


class LogEstimatedLatency(TaskSchedulerCallback):
    """Appends a line to a new file after each batch: seconds so far, milliseconds of the network, trials.

    The network's time is the sum of its tasks' best times their weights, or N/A until each task has one.
    """

    def __init__(self, log_file):
        self.log_file = Path(log_file)
        self.log_file.unlink(missing_ok=True)

    def post_tune(self, task_scheduler, task_id) -> None:
        """Append the line."""
        best = task_scheduler.best_costs
        total = sum(w * seconds for w, seconds in zip(task_scheduler.task_weights, best, strict=True))
        latency = f"{total * 1e3:.3f}" if max(best) < _NOT_MEASURED else "N/A"
        spent, trials = time.time() - task_scheduler.tic, sum(task_scheduler.task_cts)
        with open(self.log_file, "a") as file:
            file.write(f"ElapsedTime(s)\t{spent:.0f}\tEstimatedLatency(ms)\t{latency}\tTrials\t{trials}\n")


class TaskScheduler:
    """A search over tasks for one target, whose trials go where they promise to save most.

    `task_weights` are the calls of each in the network, 1 by default; `load_log_file` is a file of records,
    or several, to begin with; `callbacks` are by default none, as progress bars tell the same.
    `best_costs` has the seconds of each task's fastest schedule, 1e10 without one, `task_cts` the trials of
    each, with those in the records, and `tic` the time at which the search began, as `time.time` has it.
    """

    def __init__(
        self, tasks, task_weights=None, objective_func=None, strategy="gradient", load_model_file=None,
        load_log_file=None, alpha=0.2, beta=2, gamma=0.5, backward_window_size=3, callbacks=None,
    ):  # fmt: skip
        if objective_func is not None:
            raise NotImplementedError("TaskScheduler: objective_func: give task_weights")
        if load_model_file:
            raise NotImplementedError("load_model_file: a cost model learns from records: give load_log_file")
        self.tasks, self.task_weights = list(tasks), list(task_weights or [1] * len(tasks))
        self._files = [load_log_file] if isinstance(load_log_file, str | os.PathLike) else load_log_file or []
        self.callbacks, self.tic = list(callbacks or []), time.time()
        self.best_costs, self.task_cts = [_NOT_MEASURED] * len(self.tasks), [0] * len(self.tasks)

    def tune(
        self, tune_option: TuningOptions, search_policy="default", search_policy_params=None,
        adaptive_training=False, per_task_early_stopping=None,
    ) -> None:  # fmt: skip
        """Measure schedules, and append each batch to the options' file, from which the search also goes on.

        A task ends after `per_task_early_stopping` trials without a faster schedule, by default the options'
        `early_stopping`. Raises ValueError for no tasks, several targets, one that is not measured here, or a
        bad file.
        """
        policy = SketchPolicy(None) if isinstance(search_policy, str | None) else search_policy
        if not isinstance(policy, SketchPolicy):
            raise NotImplementedError(f"search_policy: expected a SketchPolicy; got {type(policy).__name__}")
        own = [tune_option.file] if os.path.exists(tune_option.file) else []  # first: it may be a bad one
        files = dict.fromkeys(map(os.path.realpath, (*own, *self._files, *policy.files)))
        known = [record for each in files for record in read(each)]
        weighted = zip(self.tasks, self.task_weights, strict=True)
        todays = [dataclasses.replace(task.today, count=max(1, round(w))) for task, w in weighted]
        runner = tune_option.runner.open(tune_option.builder.timeout)
        limits = tune_option.num_measure_trials, per_task_early_stopping or tune_option.early_stopping
        self.tic = time.time()
        session.search_beyond(todays, tune_option.file, known, *limits, runner, policy.seed, self._tell)

    def _tell(self, is_measured: bool, task_id: int, states: dict) -> None:
        """Take over the progress of tasks, and tell the callbacks of a batch of one."""
        for number, state in states.items():
            if state.best:
                self.best_costs[number] = min(state.best[-1], _NOT_MEASURED)
                self.task_cts[number] = state.trials
        for callback in self.callbacks:
            (callback.post_tune if is_measured else callback.pre_tune)(self, task_id)


class SearchTask:
    """A computation to schedule for a CPU: `func` is a registered workload or its name, `args` its arguments.

    Instead, give the `workload_key` that they have, or a `compute_dag`, with a key as its name in records.
    `today` is a task of tvmfast, a network's kernel, whose `compute_dag` is text.
    """

    def __init__(
        self, func=None, args=None, compute_dag=None, workload_key=None, target=None, target_host=None,
        hardware_params=None, layout_rewrite_option=None, task_inputs=None, *_, desc="", today=None, **_more,
    ):  # fmt: skip
        if task_inputs:
            raise NotImplementedError("SearchTask: task_inputs: what is measured gets random arrays")
        if func is not None:
            workload_key = make_workload_key(func, args or ())
        if today is None:
            compute_dag = ComputeDAG(workload_key) if compute_dag is None else compute_dag
            workload = Kernel.of(compute_dag.func, workload_key or compute_dag.tensors[-1].op.name)
            today = tuning.Task(workload, 1, machine.target_json(target_of(target, "auto_scheduler")))
        else:
            compute_dag = today.workload.func.script() if today.workload.by_metaschedule else str(today)
        self.today, self.compute_dag, self.desc = today, compute_dag, desc
        self.workload_key, self.target = key_of(today.workload), tvm.target.Target(json.loads(today.target))

    def tune(self, tuning_options: TuningOptions, search_policy=None, adaptive_training=False) -> None:
        """Search, as `TaskScheduler.tune` does with several tasks."""
        TaskScheduler([self]).tune(tuning_options, search_policy)

    def apply_best(self, log_file, include_compatible=False, layout_rewrite_option=None) -> tuple:
        """Return the fastest schedule of a file and the tensors: what `tvm.lower` and `tvm.build` take.

        Raises RuntimeError if the file has none, and ValueError if a line is no record.
        """
        if isinstance(self.compute_dag, str):
            raise NotImplementedError(
                "apply_best: a network's kernel: relay.build takes it under auto_scheduler.ApplyHistoryBest"
            )
        return self.compute_dag.apply_steps_from_state(self._best(log_file))

    def print_best(self, log_file, print_mode="schedule") -> str:
        """Return the fastest schedule of a file as Python; raises as `apply_best` does."""
        state, dag = self._best(log_file), self.compute_dag
        return str(state) if isinstance(dag, str) else dag.print_python_code_from_state(state)

    def _best(self, log_file) -> dict:
        best = fastest(log_file, lambda workload: workload == self.today.workload, self.today.target)
        if best is None:
            raise RuntimeError(f"{log_file}: no schedule of {self.workload_key} that ran; tune it first")
        return best.config


@without_instruments()
def extract_tasks(mod, params=None, target=None, *_, include_simple_tasks=False, **_others) -> tuple:
    """Return the tasks of a network, and how often it calls each: two lists.

    A task is a kernel of tvmfast's build, with a reduction unless `include_simple_tasks`. For convolutions,
    matrix products and what else tvmfast has rules for, the search chooses among the rules' configs; for the
    others it is MetaSchedule's. `mod` is a Relay module or function, `params` its weights by name.
    """
    found = all_tasks(*relax_of(mod, params), target_of(target, "auto_scheduler"))
    if not include_simple_tasks:
        found = [t for t in found if not t.workload.by_metaschedule or metaschedule.reduces(t.workload.func)]
    return [SearchTask(today=task, desc=str(task)) for task in found], [task.count for task in found]


def create_task(func, args, target, target_host=None, hardware_params=None) -> SearchTask:
    """`auto_scheduler.create_task` of TVM 0.7: a task of a registered workload."""
    return SearchTask(func, args, target=target)


def auto_schedule(task: SearchTask, search_policy=None, tuning_options=None) -> tuple:
    """`auto_scheduler.auto_schedule` of TVM 0.7: search, and return the best schedule and the tensors.

    Raises what `TuningOptions`, which has to say how many trials, `tune` and `apply_best` raise.
    """
    options = tuning_options or TuningOptions()
    task.tune(options, search_policy)
    return task.apply_best(options.file)
