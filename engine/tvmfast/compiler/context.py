"""What a build was asked for, checked: `build` makes one `BuildContext`, and every step reads it."""

import dataclasses
from collections.abc import Mapping
from functools import cached_property

import tvm

from ..core.dims import Dim
from ..core.machine import target_instruction_sets
from ..core.protocols import Lookup
from ..core.relax import array_key
from ..core.simd import Simd, simd_of


@dataclasses.dataclass(frozen=True, eq=False)
class BuildContext:
    """The arguments of a build, resolved.

    Attributes:
        target: The target.
        opt_level: One of `pipeline.OPT_LEVELS`.
        lookup: Gives tuned configs of kernels; None: each gets its default config.
        dims: The network's dynamic dims with their bounds, by name.
        state: The index of the output that is fed back, by the name of the input.
        arrays: The network's parameters, by name.
        dtype: The half precision of the weights, "bfloat16" or "float16"; None: that of the network.
        allow_tf32: Whether convolutions of float32 on a GPU may round their operands to TF32.
        experimental: Whether kernels may be used on a GPU that nobody has measured there.
        in_float32: Why an operator of a quantized network is left in float32, by the name of its variable;
            graph/quantized.py notes it.
        specializations: Values of dynamic dims, and the network specialized for them, in the order in which
            a call tries them.
    """

    target: tvm.target.Target
    opt_level: int = 3
    lookup: Lookup | None = None
    dims: Mapping[str, Dim] = dataclasses.field(default_factory=dict)
    state: Mapping[str, int] = dataclasses.field(default_factory=dict)
    arrays: Mapping[str, tvm.runtime.Tensor] = dataclasses.field(default_factory=dict)
    dtype: str | None = None
    allow_tf32: bool = False
    experimental: bool = False
    in_float32: dict[str, str] = dataclasses.field(default_factory=dict)
    specializations: tuple[tuple[dict[str, int], tvm.IRModule], ...] = ()

    @property
    def for_gpu(self) -> bool:
        """Whether the target is a GPU."""
        return self.target.kind.name == "cuda"

    @cached_property
    def simd(self) -> Simd | None:
        """The vector registers of a CPU; None for a GPU."""
        return None if self.for_gpu else simd_of(self.target)

    @property
    def in_pairs(self) -> bool:
        """Whether products are computed in bfloat16, two at a time, by AVX512_BF16."""
        return self.dtype == "bfloat16" and "avx512bf16" in target_instruction_sets(self.target)

    @cached_property
    def names(self) -> dict[int, str]:
        """The names of the parameters by `array_key`, which holds as long as `arrays` does."""
        return {array_key(array): name for name, array in self.arrays.items()}

    def specialized(self, values: Mapping[str, int]) -> "BuildContext":
        """Return the context of the network specialized for values of dynamic dims."""
        dims = {name: dim for name, dim in self.dims.items() if name not in values}
        return dataclasses.replace(self, dims=dims, specializations=(), in_float32={})
