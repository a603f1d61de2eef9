"""Open sizes as PyTorch's exporter sees them, and what its captures take: examples, modules of scripts."""

import inspect
from typing import Any

import sympy
import torch
from torch._export.converter import TS2EPConverter
from torch.export import ExportedProgram

from ..base import errors
from ..base.sizes import Size, merged
from ..base.spec import TensorSpec
from .open_sizes import usual

SCRIPTED = torch.jit.ScriptModule | torch.jit.ScriptFunction


def check_open(model: Any, specs: list[TensorSpec]) -> list[tuple[str, int]]:
    """Raise NotImplementedError if PyTorch finds that the network's Python code fixes an open size.

    Returns:
        What `_compared` returns.
    """
    sizes = merged(spec.shape for spec in specs)
    dims = {size: torch.export.Dim(name, min=size.lower, max=size.upper) for name, size in sizes.items()}
    shapes = tuple(
        {axis: dims[size] for axis, size in enumerate(spec.shape) if size in dims} for spec in specs
    )
    examples = zeros([spec.at(usual(specs, sizes)) for spec in specs])
    if isinstance(model, ExportedProgram):
        model = model.module()
    elif isinstance(model, SCRIPTED):
        model = unscript(model, examples)
    kinds = [parameter.kind for parameter in inspect.signature(model.forward).parameters.values()]
    if inspect.Parameter.VAR_POSITIONAL in kinds:  # its inputs are a tuple of their own
        named = kinds.index(inspect.Parameter.VAR_POSITIONAL)
        shapes = (*shapes[:named], shapes[named:])
    try:
        program = torch.export.export(model, examples, dynamic_shapes=shapes)
    except Exception as error:
        reasons = [line for line in errors.lines(error) if "specialized" in line or "must be" in line]
        raise NotImplementedError(
            f"PyTorch cannot leave {', '.join(map(repr, sizes))} open in this network: "
            f"{(reasons or errors.lines(error))[0]}; give whole numbers there"
        ) from error
    return _compared(program, specs)


def _compared(program: ExportedProgram, specs: list[TensorSpec]) -> list[tuple[str, int]]:
    """Return open sizes with numbers that they are compared with, by the network's Python code or PyTorch.

    Left out are 1, and a size's upper bound, with which slices compare it.

    Args:
        program: A program that was captured with open sizes.
        specs: Its inputs.
    """
    inputs = {node.name: node.meta["val"] for node in program.graph.find_nodes(op="placeholder")}
    sizes, guards, found = {}, [], []
    for name, spec in zip(program.graph_signature.user_inputs, specs, strict=True):
        for size, symbol in zip(spec.shape, inputs[name].shape, strict=True):
            if isinstance(size, Size) and isinstance(symbol, torch.SymInt):
                sizes[symbol.node.expr] = size
                guards = symbol.node.shape_env.guards
    for guard in guards:
        symbols = list(guard.expr.free_symbols)
        if not isinstance(guard.expr, sympy.Ne) or len(symbols) != 1 or symbols[0] not in sizes:
            continue
        size = sizes[symbols[0]]
        for number in sympy.solve(guard.expr.lhs - guard.expr.rhs, symbols[0]):
            if number.is_Integer and number > 1 and size.takes(int(number)) and number != size.upper:
                found.append((size.name, int(number)))
    return sorted(set(found))


def zeros(specs: list[TensorSpec]) -> tuple[torch.Tensor, ...]:
    """Return an example of inputs of fixed sizes."""
    return tuple(torch.zeros(spec.shape, dtype=getattr(torch, spec.dtype)) for spec in specs)


def unscript(model: torch.jit.ScriptModule | torch.jit.ScriptFunction, examples: tuple) -> torch.nn.Module:
    """Convert a traced or scripted module to one that torch.export takes.

    The converter is internal to torch, and its programs have open shapes, hence the second export in
    `_capture`.
    """
    return TS2EPConverter(model, examples).convert().module()
