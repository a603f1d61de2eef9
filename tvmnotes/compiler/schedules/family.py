"""The two sides of a schedule: a workload is what a kernel has to compute, a family is how.

Each family of schedules is one file of this folder and ends with `register(Family(…))`; importing the folder
imports them all. A new tunable family takes one file: builds, `tn.tune` and records find it by what it
serves, and `tests/test_rules.py` runs its examples. A table at the top of the file lists its configs' knobs.
"""

import functools
import json
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, fields
from typing import ClassVar, get_args, get_origin, get_type_hints

from .annotations import attribute
from .vector import Simd

_LONGEST = 1 << 24  # indices of an axis
FAMILIES: dict[str, "Family"] = {}


@dataclass(frozen=True)
class Loops:
    """The sizes of a kernel's loops, from which `tuning.features` computes what a cost model sees."""

    rows: int  # rows of the register tile: pixels, rows of a matrix, or tiles
    blocks: int  # vectors of output channels or columns in the register tile
    line: int  # rows of a line, which register tiles cover
    outs: int  # vectors of output channels or columns, which register tiles cover
    lines: int  # number of lines
    points: int  # rows of all lines that are part of the output, without padding
    depth: int  # steps of the reduction
    chunks: int  # tasks for the threads
    run: int = 1
    columns: int = 1
    chunk: int = 1  # blocks of input channels reduced at a time
    stride: int = 1


@dataclass(frozen=True)
class Family:
    """A family of schedules: one scheme for the kernels of some workloads, parametrized by a config.

    A config is a dictionary of plain values. A family whose kernels have no workload needs `schedule` only.

    Attributes:
        name: the "family" of its configs, and its key in `FAMILIES`.
        priority: of the families that serve a workload, the one of highest priority that offers a default
            config gives it; of equal ones, the workload's general family first.
        compute: the kernel as a tensor expression; the workload's `compute` says with which arguments.
        schedule: `schedule(sch, config) -> None` applies the scheme to a kernel and to what was fused after
            it, and raises ScheduleError if the kernel does not fit.
        serves: `serves(workload, simd) -> bool`, whether the family can compute a workload.
        default: `default(workload, simd) -> dict | None`, the config that runs without tuning; None leaves
            the workload to the family of the next lower priority.
        space: `space(workload, simd) -> list[dict]`, the other configs to search.
        packed_shape: `packed_shape(workload, config, lanes)`, the shape of the weight as the kernel reads it.
        pack: `pack(workload, weight, config, lanes)`, the weight, a NumPy array, in that shape.
        loops: `loops(workload, config, lanes) -> Loops`, the sizes of the kernel's loops.
        examples: two to four small workloads that it serves, if it is tunable; tests run them.
    """

    name: str
    _: KW_ONLY
    priority: int = 0
    compute: Callable | None = None
    schedule: Callable
    serves: Callable = lambda workload, simd: False
    default: Callable = lambda workload, simd: None
    space: Callable = lambda workload, simd: []
    packed_shape: Callable = lambda workload, config, lanes: workload.weight
    pack: Callable = lambda workload, weight, config, lanes: weight
    loops: Callable | None = None
    examples: tuple["Workload", ...] = ()


def register(family: Family) -> None:
    """Register a family under its name."""
    FAMILIES[family.name] = family


class Workload:
    """What a kernel has to compute. Its subclasses are frozen dataclasses of plain values, compared by these.

    The config of its kernel comes from records, or is the default one; `tn.tune` measures its `configs`. A
    subclass that is tuned by its families provides `op`, `general`, `label`, `data`, `weight`, `macs`,
    `compute`, `output_shape` and `reference`; and, if the kernel's layouts differ from the network's,
    `packed_input_shape`, `pack_input` and `unpack_output`. `tuning.trial` uses them to check the kernel
    against NumPy.
    """

    op: ClassVar[str]  # its name in records
    general: ClassVar[str]  # fallback family, also assumed for configs without a "family" key
    by_metaschedule: ClassVar[bool] = False  # whether TVM's search tunes it: configs without a list
    kinds: ClassVar[dict[str, type]] = {}  # the classes of workloads by their `op`

    data: tuple[int, ...]  # shape of the data, in the network's layout
    weight: tuple[int, ...]  # shape of the weight, or of the right-hand matrix, in the network's layout

    def __init_subclass__(cls):
        Workload.kinds[cls.op] = cls

    @staticmethod
    def from_dict(described: dict) -> "Workload":
        """Restore the workload that `as_dict` described.

        Args:
            described: the plain data, as parsed from JSON.

        Raises:
            KeyError, TypeError, ValueError: if it describes no workload, or one with axes longer than any
                network's, whose configs nobody could list.
        """
        values = {}
        for name, value in described.items():
            values[name] = tuple(value) if isinstance(value, list) else value
        workload = Workload.kinds[values.pop("op")](**values)
        for name, kind in _kinds(type(workload)).items():
            value = getattr(workload, name)
            if not _fits(value, kind):
                raise ValueError(f"{workload.op}: expected {kind} for {name}; got {value!r:.200}")
        return workload

    def as_dict(self) -> dict:
        """Return the workload as plain data: its operator, and the fields that it is compared by."""
        return {"op": self.op, **{f.name: getattr(self, f.name) for f in fields(self) if f.repr}}

    @property
    def label(self) -> str:
        """The workload in a few words."""
        raise NotImplementedError

    @property
    def kind(self) -> tuple:
        """What it has in common with workloads that may reach the same speed."""
        return (self.op,)

    @property
    def macs(self) -> int:
        """Multiply-adds of a call by the plain method."""
        raise NotImplementedError

    # ------------------------------------------------------------ configs

    def families(self, simd: Simd) -> list[Family]:
        """Return the families that serve it: the general one, then the others as they were registered."""
        serving = [family for family in FAMILIES.values() if family.serves(self, simd)]
        return sorted(serving, key=lambda family: family.name != self.general)

    def default_config(self, simd: Simd) -> dict:
        """Return the config without tuning, of the family of highest priority that offers one."""
        serving = sorted(self.families(simd), key=lambda family: family.priority, reverse=True)
        offers = (family.default(self, simd) for family in serving)
        return next(config for config in offers if config is not None)

    def space(self, simd: Simd) -> list[dict]:
        """Return the configs to search besides the default one, which may be among them."""
        return [config for family in self.families(simd) for config in family.space(self, simd)]

    def configs(self, simd: Simd) -> list[dict]:
        """Return the configs to choose from, in a fixed order, the default one first."""
        default = self.default_config(simd)
        return [default, *(config for config in self.space(simd) if config != default)]

    def config(self, lookup: Callable | None, simd: Simd) -> dict:
        """Return the config of the workload's kernel.

        Args:
            lookup: `lookup(workload) -> dict | None`, the tuned config if there is one; None looks nothing
                up.
            simd: the vector registers of the target.

        Returns:
            The config of `lookup`, else the default one.
        """
        config = lookup(self) if lookup else None
        return self.default_config(simd) if config is None else config

    def is_config(self, config: dict, simd: Simd) -> bool:
        """Return whether the registered families know the config."""
        return key(config) in _keys(self, simd)

    # ------------------------------------------------------------ the kernel, its inputs and its output

    def compute(self, data, weight, config: dict):
        """Return the kernel as a tensor expression, of data and weight as the kernel reads them."""
        raise NotImplementedError

    def output_shape(self, config: dict, lanes: int) -> tuple[int, ...]:
        """Return the shape of the kernel's output, a float32 array."""
        raise NotImplementedError

    def reference(self, data, weight):
        """Compute the output in the network's layout with NumPy, of arrays of shape `data` and `weight`."""
        raise NotImplementedError

    def packed_input_shape(self, lanes: int) -> tuple[int, ...]:
        """Return the shape of the data as the kernel reads them."""
        return self.data

    def pack_input(self, data, lanes: int):
        """Pack the data, an array of shape `data`, into `packed_input_shape`."""
        return data

    def unpack_output(self, made, lanes: int):
        """Unpack the kernel's output, an array of `output_shape`, into the network's layout."""
        return made

    def family(self, config: dict) -> Family:
        """Return the family of a config."""
        return FAMILIES[config.get("family", self.general)]

    def attribute(self, config: dict) -> dict:
        """Return the attribute of the tensor expression that requests the schedule of `config`."""
        return attribute({"family": self.family(config).name, **config}, self)

    def packed_shape(self, config: dict, lanes: int) -> tuple[int, ...]:
        """Return the shape of the weight as the kernel reads it, which is that of `pack`."""
        return self.family(config).packed_shape(self, config, lanes)

    def pack(self, weight, config: dict, lanes: int):
        """Pack the weight, an array of shape `weight`, as the kernel with `config` reads it."""
        return self.family(config).pack(self, weight, config, lanes)

    def loops(self, config: dict, lanes: int) -> Loops:
        """Return the sizes of the kernel's loops."""
        return self.family(config).loops(self, config, lanes)


@functools.cache
def _kinds(workload: type[Workload]) -> dict[str, type]:
    """Return the types of the fields that describe a class of workloads."""
    hints = get_type_hints(workload)
    return {f.name: hints[f.name] for f in fields(workload) if f.repr}


def _fits(value, kind) -> bool:
    if get_origin(kind) is not tuple:
        return type(value) is kind and (kind is not int or abs(value) <= _LONGEST)
    kinds = get_args(kind)
    whole = isinstance(value, tuple) and (kinds[-1] is Ellipsis or len(value) == len(kinds))
    return whole and all(_fits(each, kinds[0]) for each in value)


def key(config: dict) -> str:
    """Return a config as text that equal configs share."""
    return json.dumps(config, sort_keys=True)


@functools.lru_cache(maxsize=1024)
def _keys(workload: Workload, simd: Simd) -> frozenset[str]:
    return frozenset(map(key, workload.configs(simd)))
