"""What a captured PyTorch program computes, as a list that is compared with that of other input sizes."""

import hashlib

import sympy
import torch
from torch.export import ExportedProgram
from torch.utils import _pytree

aten = torch.ops.aten
_UNCHANGED = (aten.contiguous.default, aten.clone.default, aten.alias.default, aten.detach.default)
_RESHAPES = (aten.view.default, aten._unsafe_view.default, aten.reshape.default)
_OF_ATTENTION = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
_NUMBERS = (int, float, bool, torch.SymInt, torch.SymFloat, torch.SymBool)
_CHECKS = (
    *(aten._assert_scalar.default, aten.sym_constrain_range.default),
    aten.sym_constrain_range_for_size.default,
)
_ANY = "any"  # for an argument that has no effect


def steps(program: ExportedProgram, is_open: bool = False) -> list[int | str | sympy.Expr | None]:
    """List the calls of a program with their arguments: integers as they are, all else as text.

    Copies are left out, as PyTorch makes some for some sizes only. None stands for an argument that has no
    effect at this size.

    Args:
        program: The program.
        is_open: Whether it has open sizes: then they are expressions, arithmetic on them is left out, and the
            shape of each result is listed.
    """
    listed = [_described(name, held) for name, held in program.constants.items()]
    graphs = [part for part in program.graph_module.modules() if isinstance(part, torch.fx.GraphModule)]
    for graph in graphs:
        numbers, calls = {}, 0
        for node in graph.graph.nodes:
            if node.target in _UNCHANGED:
                numbers[node] = numbers[node.args[0]]
                continue
            value = node.meta.get("val")
            if is_open and (isinstance(value, _NUMBERS) or node.target in _CHECKS):
                continue
            numbers[node] = calls
            calls += 1
            listed.append(f"{node.op} {'reshape' if node.target in _RESHAPES else node.target}")
            listed.append(f"axes: {getattr(node.meta.get('val'), 'ndim', None)}")  # squeeze drops those of 1
            for leaf in _pytree.tree_leaves(_arguments(node, is_open)):
                if isinstance(leaf, torch.fx.Node):
                    listed.append(f"node {numbers[leaf]}" if leaf in numbers else _written(leaf.meta["val"]))
                else:
                    listed.append(leaf if type(leaf) is int else None if leaf is _ANY else str(leaf))
            if is_open:
                listed += [
                    _written(n) for each in _pytree.tree_leaves(value) for n in getattr(each, "shape", ())
                ]
            elif node.op == "output":
                shapes = (getattr(each.meta.get("val"), "shape", ()) for each in node.all_input_nodes)
                listed += [n for shape in shapes for n in shape if type(n) is int]
    return listed


def _written(number: object) -> sympy.Basic:
    """Return a number, perhaps an open one, as an expression."""
    is_open = isinstance(number, torch.SymInt | torch.SymFloat | torch.SymBool)
    return number.node.expr if is_open else sympy.sympify(number)


def _arguments(node: torch.fx.Node, is_open: bool) -> tuple:
    """Return a call's arguments; those of attention by position, however PyTorch passes them."""
    if node.target is not aten.scaled_dot_product_attention.default:
        return node.args, node.kwargs
    given = {**dict(zip(_OF_ATTENTION, node.args, strict=False)), **node.kwargs}
    causal = str(given.get("is_causal", False))
    queries, keys = (0, 0) if is_open else (node.args[place].meta["val"].shape[-2] for place in (0, 1))
    options = (str(given.get(name) or None) for name in ("dropout_p", "scale", "enable_gqa"))
    tensors = [given.get(name, "None") for name in _OF_ATTENTION[:4]]
    return *tensors, *options, _ANY if queries == keys == 1 else causal


def _described(name: str, held: object) -> str:
    """Return a constant as text that equal ones share."""
    if not isinstance(held, torch.Tensor):
        return f"{name} {held}"
    content = held.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return f"{name} {held.dtype} {tuple(held.shape)} {hashlib.sha256(content).hexdigest()}"
