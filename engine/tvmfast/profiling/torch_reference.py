"""A network of PyTorch as a reference for `diverge`, in float64."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.utils._pytree import tree_leaves

from ..compiler.build import bind
from ..frontends.contract import recorded
from ..frontends.pytorch.importer import from_pytorch

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


class TorchReference:
    """A network of PyTorch: the exported program, an operator at a time, in float64.

    The outputs are those of the network itself, in its own precision, so that a fault of torch.export or of a
    decomposition shows too.
    """

    rounded = False

    def __init__(self, model: Any, inputs: Mapping[str, np.ndarray]):
        self.model, self.inputs = model, [torch.from_numpy(np.array(x)) for x in inputs.values()]
        with recorded() as recording:
            self.mod, _ = bind(*from_pytorch(model, dict(inputs)))
        self.values = {var: name for name, var in recording.values.items()}
        self.run = self._run(recording.source)

    def _run(self, program: ExportedProgram) -> Iterator[tuple[str, np.ndarray]]:
        """Yield the name and the array of each value in the order of the graph; a value ends with its use."""
        given = iter(self.inputs)
        arrays = (
            next(given) if spec.kind is InputKind.USER_INPUT else program.state_dict[spec.target].detach()
            for spec in program.graph_signature.input_specs
        )

        class Double(torch.fx.Interpreter):
            def call_function(self, target, args, kwargs):
                kwargs = {name: doubled(value) for name, value in kwargs.items()}
                return super().call_function(target, doubled(args), kwargs)

        interpreter = Double(program.graph_module)
        interpreter.args_iter = map(doubled, arrays)
        for node in program.graph_module.graph.nodes:
            if node.op == "output":
                return
            with torch.no_grad():
                value = interpreter.env[node] = interpreter.run_node(node)
            if isinstance(value, torch.Tensor):
                yield node.name, value.detach().numpy()
            for used in interpreter.user_to_last_uses.get(node, ()):
                del interpreter.env[used]

    def read(self, names: Sequence[str]) -> dict[str, np.ndarray]:
        """Return values by their names."""
        missing, found = set(names), {}
        for name, array in self.run if missing else ():
            if name in missing:
                found[name] = array.copy()  # an operator may write to its argument
                missing.remove(name)
            if not missing:
                break
        return found

    def outputs(self) -> list[np.ndarray]:
        """Return the outputs."""
        model = self.model.module() if isinstance(self.model, ExportedProgram) else self.model
        with torch.no_grad():
            result = model(*(x.clone() for x in self.inputs))
        return [x.detach().numpy() for x in tree_leaves(result)]
