"""Sessions: several states of one network side by side."""

from typing import Any

import numpy as np

from ..core.dims import evaluate
from ..core.specs import TensorSpec


class Session:
    """A network with a state of its own, called as the network is; `Compiled.session` makes one.

    It shares the weights and kernels, so that it takes the memory of its state only, and that from its first
    call on. Any thread may call any session: one call of a network runs at a time, whatever session it
    belongs to. Calls of one session by several threads advance the same state, in the order in which they
    happen to run; give each thread its own. If a call raises an error, the state may hold a part of what that
    call was to write: `reset` it.

    Attributes:
        compiled: The network, a `Compiled`.
    """

    def __init__(self, compiled: Any):
        self.compiled = compiled
        self._held: list = []

    @property
    def inputs(self) -> list[TensorSpec]:
        """The inputs of a call."""
        return self.compiled.inputs

    @property
    def outputs(self) -> list[TensorSpec]:
        """The outputs of a call."""
        return self.compiled.outputs

    @property
    def state(self) -> list[TensorSpec]:
        """The state: a `TensorSpec` for each input that a call takes from the one before."""
        return self.compiled.state

    def __call__(self, *args: Any, **kwargs: Any) -> np.ndarray | tuple[np.ndarray, ...]:
        """Run the network once, from the state that this session's call before has left."""
        return self.compiled.arrays(self.run(self.compiled.bind(args, kwargs)))

    def session(self) -> "Session":
        """Make another session of the same network."""
        return self.compiled.session()

    def run(self, values: list) -> list:
        """Run as a call does, on one value per input; see `Compiled.run`."""
        return self.compiled.run(values, held=self._held)

    def reset(self) -> None:
        """Set the state to zeros, as it is before the first call."""
        self._held = []

    def __repr__(self) -> str:
        return f"Session of {self.compiled!r}"


def shapes_of_state(compiled: Any, tensors: list, held: list) -> list[tuple[int, ...]]:
    """Return the shapes of a network's state in a call.

    Args:
        compiled: The network.
        tensors: The inputs of the call, which have the values of dynamic dims.
        held: The state before it; empty: it is the first call.

    Raises:
        ValueError: The state is of another shape.
    """
    if not compiled.graph.get("sizes"):
        return [spec.shape for spec in compiled.state]
    values = compiled.dim_values(tensors)
    shapes = [tuple(evaluate(dim, values) for dim in spec.shape) for spec in compiled.state]
    for tensor, spec, shape in zip(held, compiled.state, shapes, strict=False):
        if tuple(tensor.shape) != shape:
            raise ValueError(
                f"state {spec.name!r}: it is of shape {tuple(tensor.shape)} since the first call, and the "
                f"inputs of this one need {shape}; reset() it, or use another session()"
            )
    return shapes
