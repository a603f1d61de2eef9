"""A matrix product with a weight that is known at compile time, as a workload."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from .workload import Workload


@dataclass(frozen=True)
class Dense(Workload):
    """A product (rows, depth) x (depth, columns) with a right matrix known at compile time."""

    op: ClassVar[str] = "dense"

    rows: int
    depth: int
    columns: int
    dtype: str = "float32"

    @property
    def label(self) -> str:
        rows = f", {self.rows} rows" if self.rows > 1 else ""
        dtype = "" if self.dtype == "float32" else f", {self.dtype}"
        return f"dense {self.depth} to {self.columns}{rows}{dtype}"

    @property
    def kind(self) -> tuple:
        """The operator and the dtype."""
        return self.op, self.dtype

    @property
    def data(self) -> tuple[int, int]:
        """The shape of the left matrix."""
        return self.rows, self.depth

    @property
    def weight(self) -> tuple[int, int]:
        """The shape of the right matrix."""
        return self.depth, self.columns

    @property
    def macs(self) -> int:
        return self.rows * self.depth * self.columns

    def output_shape(self, config: dict, lanes: int) -> tuple[int, int]:
        return self.rows, self.columns

    def reference(self, data: np.ndarray, weight: np.ndarray) -> np.ndarray:
        return data @ weight
