"""Search tasks, of a workload or of a network's kernels; the options of a search, and the search."""

import contextlib
import copy
import functools
import json
import os
import tempfile
import time
from collections import namedtuple
from pathlib import Path

import tvm

from tvmfast import tuning
from tvmfast.compiler.schedule.workloads.kernel import Kernel
from tvmfast.core import machine
from tvmfast.runtime.compiled import cannot_run
from tvmfast.tuning import metaschedule
from tvmfast.tuning.session import Log, Session
from tvmfast.tuning.task import all_tasks

from ..autotvm import tuner
from ..autotvm.task import target_of
from ..autotvm.tuner import LocalBuilder as LocalBuilder
from ..context import without_instruments
from ..relay.build import relax_of
from .callbacks import NOT_MEASURED
from .record import RecordToFile, fastest, key_of, read
from .workload import ComputeDAG, make_workload_key


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
    RecordToFile, or none, which loses the records in the end.
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
        self.builder = LocalBuilder() if builder == "local" else builder
        self.runner = LocalRunner() if runner == "local" else runner
        self.file = callbacks[0].filename if callbacks else None


class XGBModel:
    """The cost model: always MetaSchedule's, of XGBoost; random until it knows a hundred trials."""

    def __init__(self, *_args, **_options):
        self.files: list[str] = []

    def update_from_file(self, file_name, n_lines=None) -> None:
        """Have the search begin with the records of a file, as `PreloadMeasuredStates` does."""
        self.files.append(os.fspath(file_name))


RandomModel = XGBModel  # what old scripts give by default
PreloadMeasuredStates = namedtuple("PreloadMeasuredStates", ["filename"])  # have a search begin with records


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


class SearchTask:
    """A computation to schedule for a CPU: `func` is a registered workload or its name, `args` its arguments.

    Instead, give the `workload_key` that they have, or a `compute_dag`, with a key as its name in records.
    """

    def __init__(
        self, func=None, args=None, compute_dag=None, workload_key=None, target=None, target_host=None,
        hardware_params=None, layout_rewrite_option=None, task_inputs=None, *_, desc="", **_others,
    ):  # fmt: skip
        if task_inputs:
            raise NotImplementedError("SearchTask: task_inputs: what is measured gets random arrays")
        if func is not None:
            workload_key = make_workload_key(func, args or ())
        dag = ComputeDAG(workload_key) if compute_dag is None else compute_dag
        workload = Kernel.of(dag.func, workload_key or dag.tensors[-1].op.name)
        self._set(
            tuning.Task(workload, 1, machine.target_json(target_of(target, "auto_scheduler"))), dag, desc
        )

    def _set(self, today: tuning.Task, dag: ComputeDAG | str, desc: str) -> "SearchTask":
        self.today, self.compute_dag, self.desc = today, dag, desc  # text for a network's kernel
        self.workload_key, self.target = key_of(today.workload), tvm.target.Target(json.loads(today.target))
        return self

    @classmethod
    def of_kernel(cls, today: tuning.Task) -> "SearchTask":
        """Make the task of a network's kernel, which prints as its TensorIR or as a line."""
        func = getattr(today.workload, "func", None)
        return cls.__new__(cls)._set(today, func.script() if func else str(today), str(today))

    def tune(self, tuning_options: TuningOptions, search_policy=None, adaptive_training=False) -> None:
        """Search, as `TaskScheduler.tune` does with several tasks."""
        TaskScheduler([self]).tune(tuning_options, search_policy)

    def apply_best(self, log_file, include_compatible=False, layout_rewrite_option=None) -> tuple:
        """Return the fastest schedule of a file and the tensors: what `tvm.lower` and `tvm.build` take.

        Raises RuntimeError if the file has none, and ValueError if a line is no record.
        """
        if isinstance(self.compute_dag, str):
            raise NotImplementedError(
                f"apply_best: {self.desc} is a kernel of a network; relay.build takes its best schedule "
                "under auto_scheduler.ApplyHistoryBest"
            )
        return self.compute_dag.apply_steps_from_state(self._best(log_file))

    def print_best(self, log_file, print_mode="schedule") -> str:
        """Return the fastest schedule of a file as Python; raises as `apply_best` does."""
        if print_mode != "schedule":
            raise NotImplementedError(f"print_best: expected print_mode 'schedule'; got {print_mode!r}")
        state, dag = self._best(log_file), self.compute_dag
        return str(state) if isinstance(dag, str) else dag.print_python_code_from_state(state)

    def _best(self, log_file) -> dict:
        mine = [record for record in read(log_file) if record.workload == self.today.workload]
        best = fastest(mine, self.today.target)
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
    return [SearchTask.of_kernel(task) for task in found], [task.count for task in found]


def create_task(func, args, target, target_host=None, hardware_params=None) -> SearchTask:
    """`auto_scheduler.create_task` of TVM 0.7: a task of a registered workload."""
    return SearchTask(func, args, target=target)


def auto_schedule(task: SearchTask, search_policy=None, tuning_options=None) -> tuple:
    """`auto_scheduler.auto_schedule` of TVM 0.7: search, and return the best schedule and the tensors.

    The policy comes second and options third, or, as there, by name. Raises ValueError without options, which
    say how many schedules to measure, and what `TaskScheduler.tune` and `apply_best` raise.
    """
    if tuning_options is None:
        raise ValueError("auto_schedule: give tuning_options=TuningOptions(num_measure_trials=…)")
    with tempfile.TemporaryDirectory() as folder:
        options = copy.copy(tuning_options)
        options.file = options.file or f"{folder}/records.json"
        task.tune(options, search_policy)
        return task.apply_best(options.file)


class TaskScheduler:
    """A search over tasks for one target, whose trials go where they promise to save most.

    `task_weights` are the calls of each in the network, 1 by default; `load_log_file` is a file of records,
    or several, to begin with. `callbacks` have `pre_tune(scheduler, task_id)` called before each batch of a
    task and `post_tune` after it, by default none: progress bars tell the same.

    Attributes:
        best_costs: The seconds of each task's fastest schedule, 1e10 without one.
        task_cts: The trials of each task, with those that the records have of it.
        tic: When the search began, as `time.time` has it.
    """

    def __init__(
        self, tasks, task_weights=None, objective_func=None, strategy="gradient", load_model_file=None,
        load_log_file=None, alpha=0.2, beta=2, gamma=0.5, backward_window_size=3, callbacks=None,
    ):  # fmt: skip
        if objective_func is not None:
            raise NotImplementedError("TaskScheduler: objective_func: give task_weights")
        if load_model_file:
            raise NotImplementedError(
                "TaskScheduler: load_model_file: a cost model learns from records; give their file as "
                "load_log_file"
            )
        self.tasks, self.task_weights = list(tasks), list(task_weights or [1] * len(tasks))
        self._files = [load_log_file] if isinstance(load_log_file, str | os.PathLike) else load_log_file or []
        self.callbacks, self.tic = list(callbacks or []), time.time()
        self.best_costs, self.task_cts = [NOT_MEASURED] * len(self.tasks), [0] * len(self.tasks)

    @property
    def cur_score(self) -> float:
        """The estimated seconds of the network: the sum of `best_costs` times the weights."""
        return sum(w * seconds for w, seconds in zip(self.task_weights, self.best_costs, strict=True))

    def tune(
        self, tune_option: TuningOptions, search_policy="default", search_policy_params=None,
        adaptive_training=False, per_task_early_stopping=None,
    ) -> None:  # fmt: skip
        """Measure schedules, and append each batch to the options' file, from which the search also goes on.

        A task ends after `per_task_early_stopping` trials without a faster schedule, by default the options'
        `early_stopping`. Raises ValueError for no tasks, several targets, one that this machine cannot run,
        or a bad file.
        """
        is_default = search_policy is None or isinstance(search_policy, str)
        policy = SketchPolicy(None) if is_default else search_policy
        if not isinstance(policy, SketchPolicy):
            raise NotImplementedError(f"search_policy: expected a SketchPolicy; got {type(policy).__name__}")
        if len({task.today.target for task in self.tasks}) != 1:
            raise ValueError("auto_scheduler: expected tasks, all for one target")
        target = self.tasks[0].target
        if not tune_option.runner._where and (reason := cannot_run(target)):
            raise ValueError(f"this machine cannot measure for {target}: {reason}; give an RPCRunner")
        weighted = zip(self.tasks, self.task_weights, strict=True)
        todays = [tuning.Task(t.today.workload, max(1, round(w)), t.today.target) for t, w in weighted]
        by_search = [n for n, task in enumerate(todays) if task.workload.by_metaschedule]
        by_rule = [n for n in range(len(todays)) if n not in by_search]
        trials = tune_option.num_measure_trials
        share = trials * len(by_search) // len(todays)
        self.tic = time.time()
        with contextlib.ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            file = Path(tune_option.file or f"{folder}/records.json").resolve()
            others = {Path(each).resolve() for each in (*self._files, *policy.files)} - {file}
            known = [record for each in others for record in read(each)]
            if file.exists():
                read(file)  # a bad file is an error before anything is measured
            log = stack.enter_context(contextlib.closing(Log(file)))
            runner = tune_option.runner.open(tune_option.builder.timeout)
            stop = per_task_early_stopping or tune_option.early_stopping
            by_tuner = {"xgb": (by_rule, trials - share), "metaschedule": (by_search, share)}
            for name, (numbers, count) in by_tuner.items():
                if numbers and count:
                    session = Session([todays[n] for n in numbers], target, log, count, stop)
                    session.known += [record for record in known if record.target == todays[0].target]
                    session.before = functools.partial(self._tell, "pre_tune", session, numbers)
                    session.after = functools.partial(self._tell, "post_tune", session, numbers)
                    session.go_beyond(count)
                    session.run(name, runner, True, policy.seed)

    def _tell(self, event: str, session: Session, numbers: list[int], number: int) -> None:
        """Call a method of the callbacks for a task of a session, whose tasks have `numbers` here."""
        for task_id, state in zip(numbers, session.states, strict=True):
            if state.best:
                self.best_costs[task_id] = min(state.best[-1], NOT_MEASURED)
                self.task_cts[task_id] = state.trials
        for callback in self.callbacks:
            getattr(callback, event)(self, numbers[number])
