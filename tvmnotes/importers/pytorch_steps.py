"""What a captured PyTorch program computes, as a list that is compared with that of other input sizes."""

import hashlib

import sympy
import torch
from torch.export import ExportedProgram
from torch.utils import _pytree

from ..base.sizes import Size
from ..base.spec import TensorSpec

aten = torch.ops.aten
_UNCHANGED = (aten.contiguous.default, aten.clone.default, aten.alias.default, aten.detach.default)
_RESHAPES = (aten.view.default, aten._unsafe_view.default, aten.reshape.default)
_ANY = "any"  # for an argument that has no effect


def steps(program: ExportedProgram) -> list[int | str | None]:
    """List the calls of a program with their arguments: integers as they are, all else as text.

    Copies are left out, as PyTorch makes some for some sizes only. None stands for an argument that has no
    effect at this size.
    """
    listed = [_described(name, held) for name, held in program.constants.items()]
    graphs = [part for part in program.graph_module.modules() if isinstance(part, torch.fx.GraphModule)]
    for graph in graphs:
        numbers, calls = {}, 0
        for node in graph.graph.nodes:
            if node.target in _UNCHANGED:
                numbers[node] = numbers[node.args[0]]
                continue
            numbers[node] = calls
            calls += 1
            listed.append(f"{node.op} {'reshape' if node.target in _RESHAPES else node.target}")
            for leaf in _pytree.tree_leaves(_arguments(node)):
                if isinstance(leaf, torch.fx.Node):
                    listed.append(f"node {numbers[leaf]}")
                else:
                    listed.append(leaf if type(leaf) is int else None if leaf is _ANY else str(leaf))
            if node.op == "output":
                shapes = (getattr(each.meta.get("val"), "shape", ()) for each in node.all_input_nodes)
                listed += [n for shape in shapes for n in shape if type(n) is int]
    return listed


def compared(program: ExportedProgram, specs: list[TensorSpec]) -> list[tuple[str, int]]:
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


def _arguments(node: torch.fx.Node) -> tuple:
    """Return a call's arguments; those of attention by position, however PyTorch passes them."""
    if node.target is not aten.scaled_dot_product_attention.default:
        return node.args, node.kwargs
    names = [argument.name for argument in node.target._schema.arguments]
    given = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
    causal = str(given.pop("is_causal", False))
    queries, keys = (node.args[place].meta["val"].shape[-2] for place in (0, 1))
    rest = [str(given.pop(name, None) or None) for name in ("dropout_p", "scale", "enable_gqa")]
    given.setdefault("attn_mask", None)
    return [given[name] for name in names if name in given], rest, _ANY if queries == keys == 1 else causal


def _described(name: str, held: object) -> str:
    """Return a constant as text that equal ones share."""
    if not isinstance(held, torch.Tensor):
        return f"{name} {held}"
    content = held.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return f"{name} {held.dtype} {tuple(held.shape)} {hashlib.sha256(content).hexdigest()}"
