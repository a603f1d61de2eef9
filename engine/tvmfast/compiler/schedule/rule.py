"""What a schedule rule provides, the registry of the rules, and the sizes of loops that they report."""

import abc
import dataclasses
from typing import Any, ClassVar

import numpy as np
from tvm import tirx
from tvm.s_tir import Schedule

from ...core.annotations import attribute
from ...core.simd import Simd

RULES: dict[str, "ScheduleRule"] = {}  # by name


@dataclasses.dataclass(frozen=True)
class Loops:
    """The sizes of a kernel's loops, from which `tuning.features` computes what a cost model sees.

    A kernel is seen as matrix products. Their rows are pixels, rows of a matrix, or tiles; their columns are
    output channels or columns of a matrix, counted in vectors. Each size is 1 or more.
    """

    tile_m: int  # rows of the register tile, at most the registers
    tile_n: int  # vectors of columns of the register tile, at most the registers
    m: int  # rows of a product, which register tiles cover
    n: int  # vectors of columns of a product, which register tiles cover
    products: int  # number of products
    rows: int  # rows of all products that are part of the output, without padding
    k: int  # iterations of the reduction
    n_tasks: int  # tasks for the threads
    block_m: int = 1  # tiles of rows, or rows of an image, computed before the next columns
    n_outer: int = 1  # iterations of the outer loop; of Winograd's method, tiles across in a block of tiles
    k_block: int = 1  # blocks of input channels reduced at a time
    stride: int = 1  # of a convolution


class ScheduleRule(abc.ABC):
    """A way to schedule the kernels of some workloads, parametrized by a config.

    A subclass with a `name` registers itself in `RULES`, so a new rule takes one file: builds, `tn.tune` and
    records find it by the workloads that it applies to, and `tests/test_rules.py` runs its examples. A rule
    whose kernels have no workload needs `schedule` only.

    Outside of rules a config is a dictionary: "family", the rule's name, and the fields of `Config` that are
    not at their defaults. `config` and `as_dict` convert between the two.

    Attributes:
        name: The "family" of its configs, and its key in `RULES`.
        serves: The workloads that it applies to, in words, for the log; "" if its kernels have none.
        dtype: That of their data.
        priority: Of the rules that apply to a workload, the one of highest priority that has a default config
            gives it. Spaces are listed from the lowest priority up.
        EXAMPLES: Two to four small workloads that it applies to, if it is tuned; tests run them.
    """

    name: ClassVar[str]
    serves: ClassVar[str] = ""
    dtype: ClassVar[str] = "float32"
    priority: ClassVar[int] = 0
    EXAMPLES: ClassVar[tuple] = ()

    @dataclasses.dataclass(frozen=True)
    class Config:
        """The parameters of the schedule: none."""

    def __init_subclass__(cls):
        if "name" not in vars(cls):
            return
        if cls.schedule is ScheduleRule.schedule:  # `abc` does not know yet what is abstract in `cls`
            raise TypeError(f"{cls.__name__}: expected a method `schedule`, which every schedule rule has")
        RULES[cls.name] = cls()

    # ------------------------------------------------------------ configs

    def applies(self, workload, simd: Simd) -> bool:
        """Return whether the rule can compute a workload of its dtype."""
        return False

    def default(self, workload, simd: Simd) -> Any:
        """Choose the `Config` without tuning; None leaves the workload to a rule of lower priority."""
        return None

    def declined(self, workload, simd: Simd) -> str:
        """Say why another rule gives a workload its default config, for the log."""
        if workload.dtype != self.dtype or not self.applies(workload, simd):
            return f"is for {self.serves}"
        return "has none" if self.default(workload, simd) is None else "has a lower priority"

    def space(self, workload, simd: Simd) -> list:
        """List the other `Config`s to search, which may include the default one."""
        return []

    def config(self, given: dict) -> Any:
        """Convert a dictionary to a `Config`.

        Raises:
            ValueError: A field is missing or unknown.
        """
        try:
            return self.Config(**{name: value for name, value in given.items() if name != "family"})
        except TypeError:
            fields = ", ".join(field.name for field in dataclasses.fields(self.Config))
            raise ValueError(f"config of {self.name}: expected the fields {fields}; got {given}") from None

    def as_dict(self, config) -> dict:
        """Convert a `Config` to a dictionary."""
        fields = dataclasses.fields(config)
        chosen = {f.name: getattr(config, f.name) for f in fields if getattr(config, f.name) != f.default}
        return {"family": self.name, **chosen}

    # ------------------------------------------------------------ kernels

    def packed_shape(self, workload, config, lanes: int) -> tuple[int, ...]:
        """Return the shape of the weight as the kernel reads it, which is that of `pack`."""
        return workload.weight

    def packed_dtype(self, config) -> str:
        """Return the dtype of the weight as the kernel reads it."""
        return self.dtype

    def pack(self, workload, weight: np.ndarray, config, lanes: int) -> np.ndarray:
        """Pack the weight, an array of shape `workload.weight`, as the kernel reads it."""
        return weight

    def compute(self, data, weight, workload, config):
        """Return the kernel as a tensor expression, whose main stage has the attribute of `annotation`.

        Args:
            data: The data as the kernel reads them, see `Workload.packed_input_shape`.
            weight: The packed weight.
            workload: What to compute.
            config: A `Config`.
        """
        raise NotImplementedError

    def annotation(self, workload, config) -> dict[str, str]:
        """Return the attribute of a stage that requests the schedule of `config` for its kernel."""
        return attribute(self.as_dict(config), workload)

    @abc.abstractmethod
    def schedule(self, sch: Schedule, config) -> None:
        """Schedule a kernel, and what was fused after it.

        Raises:
            ScheduleError: The kernel does not fit; it gets the default schedule then.
        """

    def finish(self, func: tirx.PrimFunc, config) -> tirx.PrimFunc:
        """Rewrite a scheduled kernel as no primitive of TVM's schedules does; most rules need none."""
        return func

    def loops(self, workload, config, lanes: int) -> Loops:
        """Return the sizes of the kernel's loops."""
        raise NotImplementedError
