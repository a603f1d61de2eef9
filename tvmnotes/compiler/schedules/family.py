"""The two sides of a schedule: a workload, which is what a kernel has to compute, and a family, which says how.

Each family of schedules is one file of this folder, and ends with `register(Family(…))`; importing the folder imports
them all. To add one that is tuned takes its file and its test: builds, `tn.tune` and records find it by what it serves.
"""

import functools
import json
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import ClassVar, get_args, get_origin, get_type_hints

from .annotations import attribute
from .vector import Simd

_LONGEST = 1 << 24  # numbers along an axis
FAMILIES: dict[str, "Family"] = {}


@dataclass(frozen=True)
class Loops:
    """The sizes of a kernel's loops, from which `tuning.features` makes what a cost model sees."""

    rows: int  # of the register tile, as `blocks`, vectors of sums
    blocks: int
    line: int  # what tiles cover, in rows and in blocks; so many lines
    outs: int
    lines: int
    points: int  # of all lines, those that somebody reads
    depth: int  # steps of the reduction
    chunks: int  # what is shared out to the threads
    run: int = 1
    columns: int = 1
    chunk: int = 1
    stride: int = 1


@dataclass(frozen=True)
class Family:
    """A family of schedules: one scheme for the kernels of some workloads. Its config, a dictionary, sets its numbers.

    `schedule(sch, config)` applies the scheme to a kernel, with what was fused behind it, and raises ScheduleError
    where that does not fit. It is all that a family needs whose kernels have no workload. The others say by
    `serves(workload, simd)` which workloads are theirs, and tell of each:

    default(workload, simd)              the config that runs without tuning; None leaves that to another family
    space(workload, simd)                the configs to search besides
    packed_shape(workload, config, lanes)   the shape of the weight as the kernel reads it
    pack(workload, weight, config, lanes)   that weight, of a NumPy array
    compute                                 the tensor expression; the workload's `compute` says of what arguments
    loops(workload, config, lanes)          the sizes of the kernel's loops, as `Loops`
    """

    name: str
    schedule: Callable
    serves: Callable = lambda workload, simd: False
    default: Callable = lambda workload, simd: None
    space: Callable = lambda workload, simd: []
    packed_shape: Callable = lambda workload, config, lanes: workload.weight
    pack: Callable = lambda workload, weight, config, lanes: weight
    compute: Callable | None = None
    loops: Callable | None = None


def register(family: Family) -> None:
    """Make a family known by its name."""
    FAMILIES[family.name] = family


class Workload:
    """What a kernel has to compute. Its classes are frozen dataclasses of plain values, compared by these.

    The config of its kernel comes from records, or is the default one; what `tn.tune` measures are its `configs`.
    `data` and `weight` are the shapes of what it computes with, `macs` counts those of the plain method.
    `tuning.trial` needs, besides: `compute`, the tensor expression of its kernel, and `pack_input`, `output_shape`, `unpack_output`
    and `reference`, by which it holds that kernel against NumPy.
    """

    op: ClassVar[str]  # its name in records
    general: ClassVar[str]  # the family that serves what no other does, and that of configs that name none
    by_metaschedule: ClassVar[bool] = (
        False  # whether TVM's own search tunes it, whose configs nobody can list
    )
    kinds: ClassVar[dict[str, type]] = {}  # the classes of workloads by their `op`

    def __init_subclass__(cls):
        Workload.kinds[cls.op] = cls

    @staticmethod
    def from_dict(described: dict) -> "Workload":
        """The workload that `as_dict` has described.

        Raises KeyError, TypeError or ValueError where there is none, or one with axes longer than any network's, whose
        configs nobody could list.
        """
        values = {
            name: tuple(value) if isinstance(value, list) else value for name, value in described.items()
        }
        workload = Workload.kinds[values.pop("op")](**values)
        for name, kind in _kinds(type(workload)).items():
            if not _fits(getattr(workload, name), kind):
                raise ValueError(
                    f"{workload.op}: expected {kind} for {name}; got {getattr(workload, name)!r:.200}"
                )
        return workload

    def as_dict(self) -> dict:
        """The workload as plain data: its operator, and what it is compared by."""
        return {"op": self.op, **{f.name: getattr(self, f.name) for f in fields(self) if f.repr}}

    @property
    def label(self) -> str:
        """The workload in a few words."""
        raise NotImplementedError

    @property
    def kind(self) -> tuple:
        """What it has in common with workloads that may reach the same speed."""
        return (self.op,)

    # ------------------------------------------------------------ configs

    def families(self, simd: Simd) -> list[Family]:
        """The families that serve it, the general one first."""
        serving = [family for family in FAMILIES.values() if family.serves(self, simd)]
        return sorted(serving, key=lambda family: family.name != self.general)

    def default_config(self, simd: Simd) -> dict:
        """The config that runs without tuning: another family's where one has any, else the general one's."""
        offers = (family.default(self, simd) for family in reversed(self.families(simd)))
        return next(config for config in offers if config is not None)

    def space(self, simd: Simd) -> list[dict]:
        """Configs to search besides the default one, which may be among them."""
        return [config for family in self.families(simd) for config in family.space(self, simd)]

    def configs(self, simd: Simd) -> list[dict]:
        """The configs to choose from, in an order that does not change, the default one first."""
        default = self.default_config(simd)
        return [default, *(config for config in self.space(simd) if config != default)]

    def config(self, lookup: Callable | None, simd: Simd) -> dict:
        """The config that `lookup(workload)` gives, where there is one and it has any; else the default one."""
        config = lookup(self) if lookup else None
        return self.default_config(simd) if config is None else config

    def is_config(self, config: dict, simd: Simd) -> bool:
        """Whether the families of today know the config."""
        return key(config) in _keys(self, simd)

    # ------------------------------------------------------------ the kernel; its data and result as they are

    def packed_input_shape(self, lanes: int) -> tuple[int, ...]:
        """The shape of the data that the kernel reads."""
        return self.data

    def pack_input(self, data, lanes: int):
        """The data, an array, as the kernel reads them."""
        return data

    def unpack_output(self, made, lanes: int):
        """What the kernel made, an array, as the network has it."""
        return made

    def family(self, config: dict) -> Family:
        """The family of a config."""
        return FAMILIES[config.get("family", self.general)]

    def attribute(self, config: dict) -> dict:
        """The attribute of the tensor expression that is to get the schedule of `config`."""
        return attribute({"family": self.family(config).name, **config}, self)

    def packed_shape(self, config: dict, lanes: int) -> tuple[int, ...]:
        """The shape of the weight that the kernel reads, as `pack` makes it."""
        return self.family(config).packed_shape(self, config, lanes)

    def pack(self, weight, config: dict, lanes: int):
        """The weight, an array, as the kernel with `config` reads it."""
        return self.family(config).pack(self, weight, config, lanes)

    def loops(self, config: dict, lanes: int) -> Loops:
        """The sizes of the kernel's loops."""
        return self.family(config).loops(self, config, lanes)


@functools.cache
def _kinds(workload: type[Workload]) -> dict[str, type]:
    """The types of the values that a class of workloads is described by."""
    hints = get_type_hints(workload)
    return {f.name: hints[f.name] for f in fields(workload) if f.repr}


def _fits(value, kind) -> bool:
    if get_origin(kind) is not tuple:
        return type(value) is kind and (kind is not int or abs(value) <= _LONGEST)
    kinds = get_args(kind)
    whole = isinstance(value, tuple) and (kinds[-1] is Ellipsis or len(value) == len(kinds))
    return whole and all(_fits(each, kinds[0]) for each in value)


def key(config: dict) -> str:
    """A config as something to look up."""
    return json.dumps(config, sort_keys=True)


@functools.lru_cache(maxsize=1024)
def _keys(workload: Workload, simd: Simd) -> frozenset[str]:
    return frozenset(map(key, workload.configs(simd)))
