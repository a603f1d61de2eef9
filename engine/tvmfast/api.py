"""`tn.build`: compile an imported module with its parameters, or a model, which is imported first."""

import os
import sys
from typing import Any

import tvm

from .compiler import build as compiler
from .runtime.compiled import Compiled


def build(
    mod: Any,
    params: Any = None,
    target=None,
    opt_level: int = 3,
    records=None,
    state=None,
    sizes=None,
    allow_tf32: bool = False,
) -> Compiled:
    """Compile a network for a CPU or an NVIDIA GPU.

    Args:
        mod: An IRModule from a frontend, or a model: a PyTorch module or ExportedProgram (`from_pytorch`),
            an ONNX file, its bytes or a ModelProto (`from_onnx`), or a Gluon HybridBlock (`from_mxnet`).
        params: The frontend's parameters, name to array; for a model its inputs, as its frontend takes them.
        target: See `tvmfast.compiler.build.build`, as for all others.
        opt_level: 0 to 3.
        records: Tuning records: None for those that tvmfast ships, False for none.
        state: Inputs that are fed from an output of the call before, `{"h": "output1"}`.
        sizes: Values of dynamic dims to specialize the network for, too, `[{"height": 480, "width": 640}]`.
        allow_tf32: Whether convolutions of float32 on a GPU may round their operands to 10 bits of mantissa.

    Returns:
        The compiled network.

    Raises:
        TypeError: `mod` is of another kind.
        Exception: What the frontend or `tvmfast.compiler.build.build` raises.
    """
    if not isinstance(mod, tvm.IRModule):
        mod, params = _importer(mod)(mod, params)
    return compiler.build(mod, params, target, opt_level, records, state, sizes, allow_tf32)


def _importer(model: Any):
    """Return the importer for a model, without importing a framework that the caller does not use."""
    torch, onnx, mxnet = (sys.modules.get(name) for name in ("torch", "onnx", "mxnet"))
    if torch and isinstance(model, torch.nn.Module | torch.jit.ScriptFunction | torch.export.ExportedProgram):
        from .frontends.pytorch.importer import from_pytorch  # for speed: torch's exporter

        return from_pytorch
    if isinstance(model, str | os.PathLike | bytes) or (onnx and isinstance(model, onnx.ModelProto)):
        from .frontends.onnx.importer import from_onnx  # for speed: onnx

        return from_onnx
    if mxnet and isinstance(model, mxnet.gluon.HybridBlock):
        from .frontends.mxnet.importer import from_mxnet  # for speed: only what the model needs

        return lambda block, inputs: from_mxnet(block, None, inputs)
    raise TypeError(
        "mod: expected a tvm.IRModule with its params, as tn.from_pytorch, tn.from_onnx and tn.from_mxnet "
        "return them, or a PyTorch module, an ONNX file or model, or a Gluon HybridBlock with the shapes of "
        f"its inputs; got {type(model).__name__}"
    )
