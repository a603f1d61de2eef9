"""What there is to tune in a network, a task for each distinct workload, and which task is next."""

import functools
import os
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import tvm
from tqdm.auto import tqdm

from ..compiler import costs, pipeline
from ..compiler.build import bind, resolve_target
from ..compiler.context import BuildContext
from ..compiler.records import simd_of_key
from ..compiler.schedule.workloads.kernel import Kernel
from ..compiler.schedule.workloads.workload import Workload
from ..core import machine
from ..core.compat import pass_lock
from ..core.relax import dynamic_dims
from ..runtime.compiled import Compiled
from .features import features
from .trial import Candidate

_RECENT = 3  # batches whose gain predicts the next one's
_TRUST = 0.2  # weight of that prediction; the remaining weight is that of the most a task could gain
_HOPE = 0.15  # share of its time that a batch may save even of the fastest kernel of its kind


@dataclass(frozen=True)
class Task:
    """A workload to tune, which `count` kernels of a network compute; `machine.target_json` is its target."""

    workload: Workload
    count: int
    target: str

    @functools.cached_property
    def space(self) -> list[dict]:
        """The configs to choose from, the default one first; for MetaSchedule it is the only one."""
        return self.workload.configs(simd_of_key(self.target))

    @property
    def default(self) -> dict:
        """The config that runs without tuning."""
        return self.space[0]

    @property
    def operations(self) -> int:
        """Multiplications and additions of a call, counted 1 each, by the direct method.

        For MetaSchedule what `costs.count` finds: of floating-point numbers, and of integers that are stored.
        """
        if isinstance(self.workload, Kernel):
            counts = costs.count(self.workload.func)
            return counts["flops"] + counts["int_ops"]
        return 2 * self.workload.macs

    @functools.cached_property
    def _machine(self) -> tuple:
        return simd_of_key(self.target), machine.threads()

    def features(self, config: dict) -> list[float]:
        """Return what a cost model sees of a config; see `features.features`."""
        return features(self.workload, config, *self._machine)

    def candidate(self, config: dict) -> Candidate:
        """Return a config of this task as a candidate to measure."""
        return Candidate(self.workload, config, self.target)

    def __str__(self) -> str:
        return self.workload.label


def all_tasks(mod: tvm.IRModule, params: dict, target: Any = None) -> list[Task]:
    """List the workloads of all kernels that `tn.build(mod, params, target)` makes; see `tasks`."""
    target = resolve_target(target)
    counts: Counter[Workload] = Counter()

    def count(workload: Workload) -> None:
        counts[workload] += 1

    mod, _ = bind(mod, params)
    with pass_lock, target:
        context = BuildContext(target, lookup=count, dims=dynamic_dims(mod["main"]))
        tvm.transform.Sequential(pipeline.passes(context))(mod)
    described = machine.target_json(target)
    return [Task(workload, kernels, described) for workload, kernels in counts.items()]


def tasks(mod: tvm.IRModule, params: dict, target: Any = None) -> list[Task]:
    """List the distinct convolutions and matrix products of a network, in its order; as for `tn.build`."""
    return [task for task in all_tasks(mod, params, target) if not task.workload.by_metaschedule]


def tasks_by_kernel(lib: Compiled) -> dict[str, Task]:
    """Return the tasks of a compiled network by the names of their kernels; those without one are left out.

    Kernels that share a workload share a task. `tn.tune` takes some of these as its `tasks`.
    """
    found = {kernel: Workload.from_dict(described) for kernel, described in lib.graph["workloads"].items()}
    counts = Counter(found[node["kernel"]] for node in lib.graph["nodes"] if node["kernel"] in found)
    target = machine.target_json(lib.target)
    return {
        kernel: Task(workload, counts[workload], target)
        for kernel, workload in found.items()
        if not workload.by_metaschedule
    }


# ---------------------------------------------------------------- which task is next


@dataclass
class Progress:
    """The state of a task's tuning.

    Attributes:
        best: the least seconds of a call after each batch; the first batch has the default config.
        trials: configs measured so far.
        last: seconds of the last trial.
        last_gain: the last trial that improved on `best`.
    """

    task: Task
    best: list[float] = field(default_factory=list)
    trials: int = 0
    last: float = float("inf")
    last_gain: int = 0

    def update(self, seconds: list[float]) -> None:
        """Add a batch's seconds, infinite for failures."""
        best = self.best[-1] if self.best else float("inf")
        for one in seconds:
            self.trials, self.last = self.trials + 1, one
            if one < best:
                best, self.last_gain = one, self.trials
        self.best.append(best)


class Bars:
    """Progress bars in a notebook or a terminal; none if TQDM_DISABLE is set.

    A context manager, for the `states` of the tasks and the number of `trials` of all of them.
    """

    def __init__(self, states: list[Progress], trials: int):
        off = {"disable": True if "TQDM_DISABLE" in os.environ else None}  # None: disabled without a terminal
        overall = "{desc} {bar} {n_fmt}/{total_fmt} {elapsed}<{remaining}"
        self._all = tqdm(total=trials, desc="trials", bar_format=overall, **off)
        self._tasks = []
        for number, state in enumerate(states):
            size = "" if state.task.workload.by_metaschedule else f" of {len(state.task.space)}"
            layout = f"{{desc}}: {{n_fmt}}{size} configs{{postfix}}"
            self._tasks.append(tqdm(desc=str(state.task), bar_format=layout, **off))
            self.update(number, state)

    def update(self, number: int, state: Progress) -> None:
        """Show the progress of task `number`."""
        bar = self._tasks[number]
        if state.best:
            current, best = state.last * 1e3, state.best[-1] * 1e3
            bar.set_postfix_str(f"current {current:.3f} ms, best {best:.3f} ms", refresh=False)
        before = bar.n
        bar.update(state.trials - bar.n)
        self._all.update(state.trials - before)

    def __enter__(self) -> "Bars":
        return self

    def __exit__(self, *error: object) -> None:
        self._all.total = self._all.n  # an incomplete bar would be red
        for bar in (self._all, *self._tasks):
            bar.refresh()
            bar.close()


def expected_gain(progress: Progress, all_of_them: list[Progress]) -> float:
    """Estimate the seconds that a task's next batch may save per run of the network.

    After Ansor's task scheduler (Zheng et al., OSDI 2020, section 6): a weighted sum of what each of the last
    batches saved, and of the lesser of two estimates: that time falls as 1 / batches, and that a kernel of as
    many operations cannot be faster than the best of its kind.
    """
    best, batches = progress.best[-1], len(progress.best)
    if best == float("inf"):
        return best if batches < _RECENT else 0.0
    before = progress.best[max(0, batches - 1 - _RECENT)]
    recent = (before - best) / min(batches, _RECENT) if before < float("inf") else 0.0
    alike = [p for p in all_of_them if p.best and p.task.workload.kind == progress.task.workload.kind]
    speeds = [p.task.operations / p.best[-1] for p in alike]
    least = progress.task.operations / max(speeds)
    estimate = min(best / batches, max(best - least, _HOPE * best))
    return progress.task.count * (_TRUST * recent + (1 - _TRUST) * estimate)
