"""A network of PyTorch as a reference for `diverge`, in float64."""

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.utils._pytree import tree_leaves

from ..frontends.pytorch.importer import from_pytorch
from .references import Reference, imported

_WIDE = dict.fromkeys((torch.float32, torch.float16, torch.bfloat16), torch.float64) | {
    torch.complex64: torch.complex128
}


def doubled(x: Any) -> Any:
    """Return tensors of floats, and names of their types, as float64: alone, in lists, or among others."""
    if isinstance(x, torch.Tensor):
        return x.to(_WIDE.get(x.dtype, x.dtype))
    if isinstance(x, list | tuple):
        return [doubled(each) for each in x] if type(x) is list else tuple(map(doubled, x))
    return _WIDE.get(x, x) if isinstance(x, torch.dtype) else x


class _Double(torch.fx.Interpreter):
    """Runs a graph in float64, and keeps the values of the nodes that are named."""

    def __init__(self, graph: torch.fx.GraphModule, names: Collection[str]):
        super().__init__(graph)
        self.names = names
        self.found: dict[str, np.ndarray] = {}

    def run_node(self, node: torch.fx.Node) -> Any:
        value = super().run_node(node)
        if node.name in self.names:
            self.found[node.name] = value.numpy().copy()  # an operator may write to its argument
        return value

    def call_function(self, target: Any, args: tuple, kwargs: dict) -> Any:
        kwargs = {name: doubled(value) for name, value in kwargs.items()}
        return super().call_function(target, doubled(args), kwargs)


def torch_reference(model: Any, inputs: Mapping[str, np.ndarray]) -> Reference:
    """Return a network of PyTorch as a reference: the exported program, in float64.

    The outputs are those of the network itself, in its own precision, so that a fault of torch.export or of a
    decomposition shows too.
    """
    mod, _, recording = imported(from_pytorch, model, dict(inputs))
    program, arrays = recording.source, [torch.from_numpy(np.array(x)) for x in inputs.values()]

    def read(names: list[str]) -> dict[str, np.ndarray]:
        given = iter(arrays)
        every = (
            next(given) if spec.kind is InputKind.USER_INPUT else program.state_dict[spec.target].detach()
            for spec in program.graph_signature.input_specs
        )
        run = _Double(program.graph_module, set(names))
        with torch.no_grad():
            run.run(*every, enable_io_processing=False)
        return run.found

    def outputs() -> list[np.ndarray]:
        network = model.module() if isinstance(model, ExportedProgram) else model
        with torch.no_grad():
            result = network(*(x.clone() for x in arrays))
        return [x.numpy() for x in tree_leaves(result) if x is not None]

    return Reference(mod, recording.values, read, outputs, rounded=False)
