"""Batched matrix products of two activations, such as those of attention, as a workload."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from .workload import Workload


@dataclass(frozen=True)
class BatchMatmul(Workload):
    """A float32 product (…, M, K) x (…, K, N), given by both shapes; batch axes broadcast."""

    op: ClassVar[str] = "batch_matmul"

    data: tuple[int, ...]
    weight: tuple[int, ...]

    @property
    def label(self) -> str:
        return f"matmul {'x'.join(map(str, self.data))} by {'x'.join(map(str, self.weight))}"

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the product, (…, M, N)."""
        return (*np.broadcast_shapes(self.data[:-2], self.weight[:-2]), self.data[-2], self.weight[-1])

    @property
    def macs(self) -> int:
        return int(np.prod(self.shape)) * self.data[-1]

    def output_shape(self, config: dict, lanes: int) -> tuple[int, ...]:
        return self.shape

    def reference(self, data: np.ndarray, weight: np.ndarray) -> np.ndarray:
        return data @ weight
