"""What there is to tune in a network: a task for each distinct workload; and which task deserves the next trials."""

import functools
from collections import Counter
from dataclasses import dataclass, field

import tvm

from ..base import env
from ..base.env import target_json
from ..base.workarounds import pass_lock
from ..compiler import pipeline
from ..compiler.build import bind, resolve_target
from ..compiler.records import simd_of_key
from ..compiler.schedules import Workload
from ..runtime.compiled import Compiled
from .features import features
from .trial import Candidate

_RECENT = 3  # batches whose gain tells what the next may bring
_TRUST = 0.2  # in that, against what a task could gain at most
_HOPE = 0.15  # of a time: what a batch may save at most, also of the fastest kernel of its kind


@dataclass(frozen=True)
class Task:
    """A workload of a network, which has `count` kernels of it, for a target, as `env.target_json` gives it."""

    workload: Workload
    count: int
    target: str

    @functools.cached_property
    def space(self) -> list[dict]:
        """The configs to choose from; the first is the one that needs no tuning, for MetaSchedule the only one."""
        return self.workload.configs(simd_of_key(self.target))

    @property
    def default(self) -> dict:
        """The config that needs no tuning."""
        return self.space[0]

    @property
    def operations(self) -> int:
        """Multiplications and additions of a call, counted 1 each, by the plain method."""
        return 2 * self.workload.macs

    @functools.cached_property
    def _machine(self) -> tuple:
        return simd_of_key(self.target), env.threads()

    def features(self, config: dict) -> list[float]:
        """What a cost model sees of a config; see `features.features`."""
        return features(self.workload, config, *self._machine)

    def candidate(self, config: dict) -> Candidate:
        """A config of this task, to be measured."""
        return Candidate(self.workload, config, self.target)

    def __str__(self) -> str:
        return self.workload.label


def workloads(mod: tvm.IRModule, params: dict, target=None) -> dict[Workload, int]:
    """How often `tn.build(mod, params, target)` makes a kernel of each workload, in the order of the network."""
    target, counts = resolve_target(target), {}

    def count(workload):
        counts[workload] = counts.get(workload, 0) + 1

    mod, _ = bind(mod, params)
    with pass_lock, target:
        tvm.transform.Sequential(pipeline.passes(3, target, lookup=count))(mod)
    return counts


def tasks(mod: tvm.IRModule, params: dict, target=None) -> list[Task]:
    """The convolutions, and the products with known matrices, of a network, in its order, each distinct one once."""
    target = resolve_target(target)
    counts = workloads(mod, params, target)
    described = target_json(target)
    return [
        Task(workload, count, described) for workload, count in counts.items() if not workload.by_metaschedule
    ]


def tasks_by_kernel(lib: Compiled) -> dict[str, Task]:
    """Return the task of each kernel of a compiled network that `tasks` has one for, by the kernel's name.

    `count` is the number of kernels that share the workload. tn.tune takes some of the tasks as its `tasks`.
    """
    found = {kernel: Workload.from_dict(described) for kernel, described in lib.graph["workloads"].items()}
    counts = Counter(found[node["kernel"]] for node in lib.graph["nodes"] if node["kernel"] in found)
    target = target_json(lib.target)
    return {kernel: Task(workload, counts[workload], target) for kernel, workload in found.items()
            if not workload.by_metaschedule}  # fmt: skip


# ---------------------------------------------------------------- which task is next


@dataclass
class Progress:
    """How a task's tuning has gone: the least seconds after each of its batches, the first with the default config."""

    task: Task
    best: list[float] = field(default_factory=list)
    trials: int = 0
    last: float = float("inf")
    last_gain: int = 0  # the trial that was the last to be better

    def update(self, seconds: list[float]) -> None:
        """Take in a batch's times; infinite ones failed."""
        best = self.best[-1] if self.best else float("inf")
        for one in seconds:
            self.trials, self.last = self.trials + 1, one
            if one < best:
                best, self.last_gain = one, self.trials
        self.best.append(best)


def expected_gain(progress: Progress, all_of_them: list[Progress]) -> float:
    """Seconds that a task's next batch may save a run of the network.

    After Ansor's task scheduler (Zheng et al., OSDI 2020, section 6): a part of what the last batches have saved each,
    and of the least of two guesses, that a time falls as 1 / batches, and that a kernel of as many operations cannot be
    faster than the best of its kind.
    """
    best, batches = progress.best[-1], len(progress.best)
    if best == float("inf"):
        return best if batches < _RECENT else 0.0
    before = progress.best[max(0, batches - 1 - _RECENT)]
    recent = (before - best) / min(batches, _RECENT) if before < float("inf") else 0.0
    alike = [p for p in all_of_them if p.best and p.task.workload.kind == progress.task.workload.kind]
    speeds = [p.task.operations / p.best[-1] for p in alike]
    least = progress.task.operations / max(speeds)
    guess = min(best / batches, max(best - least, _HOPE * best))
    return progress.task.count * (_TRUST * recent + (1 - _TRUST) * guess)
