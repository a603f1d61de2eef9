"""The abstract workload: what a kernel has to compute, and the configs that schedule rules have for it."""

import abc
import functools
import json
import logging
from dataclasses import fields
from typing import ClassVar, get_args, get_origin, get_type_hints

from ....core.protocols import Lookup
from ....core.simd import Simd
from ..rule import RULES, Loops, ScheduleRule

_LOG = logging.getLogger(__name__)
_LONGEST = 1 << 24  # indices of an axis


class Workload(abc.ABC):
    """What a kernel has to compute. Its subclasses are frozen dataclasses of JSON values, compared by these.

    The config of its kernel comes from records, or is the default one; `tn.tune` measures its `configs`. A
    subclass that is tuned by schedule rules provides all that is declared here without a result; and, if the
    kernel's layouts differ from the network's, `packed_input_shape`, `pack_input` and `unpack_output`.
    `tuning.trial` uses them to check the kernel against NumPy.
    """

    op: ClassVar[str]  # its name in records
    by_metaschedule: ClassVar[bool] = False  # whether TVM's search tunes it: configs without a list
    kinds: ClassVar[dict[str, type]] = {}  # the classes of workloads by their `op`

    data: tuple[int, ...]  # shape of the data, in the network's layout
    weight: tuple[int, ...]  # shape of the weight, or of the right-hand matrix, in the network's layout
    dtype: str = "float32"  # of the data; "uint8" has weights of int8 and sums of int32

    def __init_subclass__(cls):
        Workload.kinds[cls.op] = cls

    @staticmethod
    def from_dict(described: dict) -> "Workload":
        """Restore the workload that `as_dict` described.

        Args:
            described: the data, as parsed from JSON.

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
        """Return the workload as JSON data: its operator, and the fields that are not at their defaults."""
        given = {f.name: getattr(self, f.name) for f in fields(self) if f.repr and not self._is_default(f)}
        return {"op": self.op, **given}

    def _is_default(self, field) -> bool:
        return getattr(self, field.name) == field.default

    @property
    @abc.abstractmethod
    def label(self) -> str:
        """The workload in a few words."""

    @property
    def kind(self) -> tuple:
        """What it has in common with workloads that may reach the same speed."""
        return (self.op,)

    @property
    def macs(self) -> int:
        """Multiply-adds of a call by the direct method."""
        raise NotImplementedError

    # ------------------------------------------------------------ configs

    def rules(self, simd: Simd) -> list[ScheduleRule]:
        """Return the schedule rules that apply, from the lowest priority up."""
        of_dtype = (rule for rule in RULES.values() if rule.dtype == self.dtype)
        return sorted((r for r in of_dtype if r.applies(self, simd)), key=lambda rule: rule.priority)

    def default_config(self, simd: Simd) -> dict:
        """Return the config without tuning, of the rule of highest priority that has one."""
        offers = ((rule, rule.default(self, simd)) for rule in reversed(self.rules(simd)))
        rule, config = next((rule, config) for rule, config in offers if config is not None)
        if _LOG.isEnabledFor(logging.DEBUG):
            others = [each for each in RULES.values() if each.serves and each is not rule]
            reasons = "; ".join(f"{each.name} {each.declined(self, simd)}" for each in others)
            _LOG.debug("%s: default config of rule %s; %s", self.label, rule.name, reasons)
        return rule.as_dict(config)

    def space(self, simd: Simd) -> list[dict]:
        """Return the configs to search besides the default one, which may be among them."""
        return [rule.as_dict(config) for rule in self.rules(simd) for config in rule.space(self, simd)]

    def configs(self, simd: Simd) -> list[dict]:
        """Return the configs to choose from, in a fixed order, the default one first."""
        default = self.default_config(simd)
        return [default, *(config for config in self.space(simd) if config != default)]

    def config(self, lookup: Lookup | None, simd: Simd) -> dict:
        """Return the config of the workload's kernel.

        Args:
            lookup: gives the tuned config if there is one; None looks nothing up.
            simd: the vector registers of the target.

        Returns:
            The config of `lookup`, else the default one.
        """
        config = lookup(self) if lookup else None
        return self.default_config(simd) if config is None else config

    def is_config(self, config: dict, simd: Simd) -> bool:
        """Return whether a config is one of `configs`."""
        return key(config) in _keys(self, simd, simd.dot, tuple(RULES.values()))

    # ------------------------------------------------------------ the kernel, its inputs and its output

    def output_shape(self, config: dict, lanes: int) -> tuple[int, ...]:
        """Return the shape of the kernel's output."""
        raise NotImplementedError

    @property
    def dtypes(self) -> tuple[str, str, str]:
        """The dtypes of the data, of the weight before it is packed, and of the output."""
        return (self.dtype,) * 3 if self.dtype == "float32" else (self.dtype, "int8", "int32")

    def reference(self, data, weight):
        """Compute the output in the network's layout with NumPy, of arrays of shape `data` and `weight`."""
        raise NotImplementedError

    def packed_input_shape(self, lanes: int) -> tuple[int, ...]:
        """Return the shape of the data as the kernel reads them."""
        return self.data

    def pack_input(self, data, lanes: int):
        """Pack the data, an array of shape `data`, into `packed_input_shape`."""
        return data

    def unpack_output(self, output, lanes: int):
        """Unpack the kernel's output, an array of `output_shape`, into the network's layout."""
        return output

    # ------------------------------------------------------------ what the rule of a config answers

    def compute(self, data, weight, config: dict):
        """Return the kernel as a tensor expression, of data and weight as the kernel reads them."""
        rule = RULES[config["family"]]
        return rule.compute(data, weight, self, rule.config(config))

    def packed_shape(self, config: dict, lanes: int) -> tuple[int, ...]:
        """Return the shape of the weight as the kernel reads it, which is that of `pack`."""
        rule = RULES[config["family"]]
        return rule.packed_shape(self, rule.config(config), lanes)

    def packed_dtype(self, config: dict) -> str:
        """Return the dtype of the weight as the kernel reads it, which is that of `pack`."""
        rule = RULES[config["family"]]
        return rule.packed_dtype(rule.config(config))

    def pack(self, weight, config: dict, lanes: int):
        """Pack the weight, an array of shape `weight`, as the kernel with `config` reads it."""
        rule = RULES[config["family"]]
        return rule.pack(self, weight, rule.config(config), lanes)

    def loops(self, config: dict, lanes: int) -> Loops:
        """Return the sizes of the kernel's loops."""
        rule = RULES[config["family"]]
        return rule.loops(self, rule.config(config), lanes)


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
def _keys(workload: Workload, simd: Simd, _dot: str, _rules: tuple[ScheduleRule, ...]) -> frozenset[str]:
    return frozenset(map(key, workload.configs(simd)))
