"""Tuners: which configs of a space to measure next, given the times of those already measured.

A tuner indexes the configs of its space, the default config 0, which it proposes first. It proposes none
twice.
"""

import random
from collections.abc import Callable
from typing import Any

import numpy as np

from ..compiler.schedule.workloads.workload import Workload

_EXPLORED = 0.15  # share of random configs in a batch of `XGB`
_LEAST_SAMPLES = 8  # with fewer, a cost model is not used


class Tuner:
    """The base class of tuners; subclasses implement `_choose`. `space` begins with the default config."""

    def __init__(self, space: list[dict], seed: int | None = None):
        self.space, self.random = space, random.Random(seed)
        self.left = dict.fromkeys(range(len(space)))  # in the space's order
        self.seconds: dict[int, float] = {}
        self._indices = {_frozen(config): number for number, config in enumerate(space)}

    def number(self, config: dict) -> int | None:
        """Return the index of a config; None if the space does not contain it."""
        return self._indices.get(_frozen(config))

    def propose(self, count: int) -> list[int]:
        """Return the indices of up to `count` configs to measure next; fewer, or none, if the space ends."""
        first = [0] if 0 in self.left else []
        self._take(first)
        chosen = first + self._choose(min(count - len(first), len(self.left)))
        self._take(chosen)
        return chosen

    def update(self, number: int, seconds: float) -> None:
        """Add the seconds of a config, infinite if it failed, whether or not this tuner proposed it."""
        self.seconds[number] = seconds
        self.left.pop(number, None)

    def _take(self, indices: list[int]) -> None:
        for index in indices:
            self.left.pop(index, None)

    def _choose(self, count: int) -> list[int]:
        raise NotImplementedError


class Grid(Tuner):
    """The configs in order."""

    def _choose(self, count: int) -> list[int]:
        return list(self.left)[:count]


class Random(Tuner):
    """The configs in random order."""

    def _choose(self, count: int) -> list[int]:
        return self.random.sample(list(self.left), count)


class GA(Tuner):
    """A genetic search: a child takes each knob from one of two good configs, or sometimes any value."""

    def __init__(self, space: list[dict], seed: int | None = None, parents: int = 16, mutation: float = 0.1):
        super().__init__(space, seed)
        self.parents, self.mutation = parents, mutation
        knobs = dict.fromkeys(knob for config in space for knob in config)
        self._values = {knob: sorted({c[knob] for c in space if knob in c}, key=str) for knob in knobs}

    def _choose(self, count: int) -> list[int]:
        children: dict[int, None] = {}
        fit = sorted((n for n, s in self.seconds.items() if s < float("inf")), key=lambda n: self.seconds[n])
        fit = fit[: max(2, min(self.parents, len(fit) // 2))]
        for _ in range(50 * count if len(fit) >= 2 else 0):
            if len(children) < count and (child := self._child(*self.random.sample(fit, 2))) in self.left:
                children[child] = None
        others = [n for n in self.left if n not in children]
        return [*children, *self.random.sample(others, count - len(children))]

    def _child(self, first: int, second: int) -> int | None:
        """Return the number of a config with knobs of two others; None if there is no such config."""
        other = self.space[second]
        child = {}
        for knob, value in self.space[first].items():
            child[knob] = self.random.choice([value, other.get(knob, value)])
            if self.random.random() < self.mutation:
                child[knob] = self.random.choice(self._values[knob])
        return self.number(child)


def _frozen(config: dict) -> frozenset:
    return frozenset(config.items())


class CostModel:
    """A ranking of configs by their features, by gradient-boosted trees.

    XGBoost (Chen and Guestrin, KDD 2016) with a ranking loss on pairs of configs of one workload, as in
    AutoTVM (Chen et al., "Learning to Optimize Tensor Programs", NeurIPS 2018). One model may serve several
    tasks, each of which is then ranked with what it learned from the others.
    """

    def __init__(self, seed: int = 0):
        import xgboost  # here, not at the first prediction, where Ctrl-C would break the import

        self._xgboost, self.seed = xgboost, seed
        self._samples: dict[Workload, list[tuple[list[float], float]]] = {}
        self._booster: Any = None
        self._stale = True

    def add(self, workload: Workload, features: list[float], seconds: float) -> None:
        """Add a config's features and seconds, infinite if it failed; those of one workload are compared."""
        self._samples.setdefault(workload, []).append((features, seconds))
        self._stale = True

    def __len__(self) -> int:
        return sum(map(len, self._samples.values()))

    def predict(self, features: list[list[float]]) -> np.ndarray:
        """Predict scores, float32, of configs of one workload, by their features: the higher, the faster."""
        if self._stale:
            self._train()
        return self._booster.predict(self._xgboost.DMatrix(np.array(features, "float32"), nthread=1))

    def _train(self) -> None:
        rows, speeds = [], []
        groups = []
        for samples in self._samples.values():
            best = min(seconds for _, seconds in samples)
            rows += [features for features, _ in samples]
            speeds += [0.0 if seconds == float("inf") else best / seconds for _, seconds in samples]
            groups.append(len(samples))
        matrix = self._xgboost.DMatrix(np.array(rows, "float32"), np.array(speeds, "float32"), nthread=1)
        matrix.set_group(groups)
        settings = {
            "objective": "rank:pairwise",
            "lambdarank_pair_method": "mean",
            "lambdarank_num_pair_per_sample": 8,
            "max_depth": 6,
            "eta": 0.2,
            "min_child_weight": 0.1,
            "seed": self.seed,
            "verbosity": 0,
            "nthread": 1,  # the model is small, and idle threads that spin would disturb the trials
        }
        self._booster = self._xgboost.train(settings, matrix, num_boost_round=80)
        self._stale = False


class XGB(Tuner):
    """The configs that a cost model ranks highest and a few random ones; only these until it has samples."""

    def __init__(
        self, space: list, seed: int | None = None, *, workload: Any, features: Callable, model: CostModel
    ):
        super().__init__(space, seed)
        self.workload, self.model = workload, model
        self._features = [features(config) for config in space]

    def update(self, number: int, seconds: float) -> None:
        """Add the seconds of a config, to the cost model as well."""
        super().update(number, seconds)
        self.model.add(self.workload, self._features[number], seconds)

    def predicted(self) -> np.ndarray:
        """Return the model's score of each config of the space."""
        return self.model.predict(self._features)

    def _choose(self, count: int) -> list[int]:
        if len(self.model) < _LEAST_SAMPLES:
            return self.random.sample(list(self.left), count)
        scores = self.predicted()
        explored = int(_EXPLORED * count + self.random.random())
        guided = sorted(self.left, key=lambda n: -scores[n])[: count - explored]
        others = [n for n in self.left if n not in set(guided)]
        return guided + self.random.sample(others, min(count - len(guided), len(others)))


TUNERS = {"grid": Grid, "random": Random, "ga": GA, "xgb": XGB}


def tuner(
    name: str, task: Any, seed: int | None = None, space: list | None = None, model: CostModel | None = None
) -> Tuner:
    """Make a tuner for a task, by a name of `TUNERS`; raises ValueError for any other.

    A tuner has `propose(count)`, which returns indices of configs to measure next, and `update(number,
    seconds)`, which takes what was measured. It searches the task's space, or the one given; xgb makes a cost
    model, or takes the one given.
    """
    if name not in TUNERS:
        raise ValueError(f"tuner: expected one of {', '.join(TUNERS)}; got {name!r}")
    space = task.space if space is None else space
    if TUNERS[name] is not XGB:
        return TUNERS[name](space, seed)
    model = CostModel() if model is None else model
    return XGB(space, seed, workload=task.workload, features=task.features, model=model)
