"""Any other kernel as a workload, for MetaSchedule's search."""

from dataclasses import dataclass, field
from typing import ClassVar

import tvm
import tvm_ffi

from ....core.simd import Simd
from .. import trace
from .workload import Workload


@dataclass(frozen=True)
class Kernel(Workload):
    """A kernel that no other workload describes, identified by TVM's structural hash."""

    op: ClassVar[str] = "kernel"
    by_metaschedule: ClassVar[bool] = True

    hash: str
    name: str = field(compare=False)
    func: tvm.tirx.PrimFunc | None = field(compare=False, repr=False, default=None)

    @staticmethod
    def of(func, name: str) -> "Kernel":
        """Make the workload of a kernel; `name` is for display only and not compared."""
        anonymous = func.with_attr("global_symbol", "main").without_attr("op_pattern")
        return Kernel(f"{tvm_ffi.structural_hash(anonymous) % 2**64:016x}", name, anonymous)

    @property
    def label(self) -> str:
        return self.name

    def is_config(self, config: dict, simd: Simd) -> bool:
        """Return whether a config is the default one or a trace; raises Forbidden for a forbidden trace."""
        if config.keys() == {"family", "trace"} and config["family"] == "metaschedule":
            trace.check(config["trace"])
            return True
        return super().is_config(config, simd)
