"""The graph signature of an exported program: its calls as a list, to compare with those for other dims."""

import hashlib

import sympy
import torch
from torch.export import ExportedProgram
from torch.utils import _pytree

aten = torch.ops.aten
_UNCHANGED = (aten.contiguous.default, aten.clone.default, aten.alias.default, aten.detach.default)
_RESHAPES = (aten.view.default, aten._unsafe_view.default, aten.reshape.default)
_ATTENTION_ARGS = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
_NUMBERS = (int, float, bool, torch.SymInt, torch.SymFloat, torch.SymBool)
_CHECKS = (
    *(aten._assert_scalar.default, aten.sym_constrain_range.default),
    aten.sym_constrain_range_for_size.default,
)
_ANY = "any"  # for an argument that has no effect


def signature_of(program: ExportedProgram, is_dynamic: bool = False) -> list[int | str | sympy.Expr | None]:
    """List the calls of a program with their arguments: integers as they are, all else as text.

    Copies are left out, as PyTorch makes some for some dims only. None stands for an argument that has no
    effect for these dims.

    Args:
        program: The program.
        is_dynamic: Whether it has dynamic dims: then dims are expressions, arithmetic on them is left out,
            and the shape of each result is listed.
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
            if is_dynamic and (isinstance(value, _NUMBERS) or node.target in _CHECKS):
                continue
            numbers[node] = calls
            calls += 1
            listed.append(f"{node.op} {'reshape' if node.target in _RESHAPES else node.target}")
            listed.append(f"axes: {getattr(node.meta.get('val'), 'ndim', None)}")  # squeeze drops those of 1
            for leaf in _pytree.tree_leaves(_arguments(node, is_dynamic)):
                if isinstance(leaf, torch.fx.Node):
                    listed.append(
                        f"node {numbers[leaf]}" if leaf in numbers else _expression(leaf.meta["val"])
                    )
                else:
                    listed.append(leaf if type(leaf) is int else None if leaf is _ANY else str(leaf))
            if is_dynamic:
                listed += [
                    _expression(n) for each in _pytree.tree_leaves(value) for n in getattr(each, "shape", ())
                ]
            elif node.op == "output":
                shapes = (getattr(each.meta.get("val"), "shape", ()) for each in node.all_input_nodes)
                listed += [n for shape in shapes for n in shape if type(n) is int]
    return listed


def _expression(number: object) -> sympy.Basic:
    """Return a number, perhaps a symbolic one, as an expression."""
    is_symbolic = isinstance(number, torch.SymInt | torch.SymFloat | torch.SymBool)
    return number.node.expr if is_symbolic else sympy.sympify(number)


def _arguments(node: torch.fx.Node, is_dynamic: bool) -> tuple:
    """Return a call's arguments; those of attention by position, however PyTorch passes them."""
    if node.target is not aten.scaled_dot_product_attention.default:
        return node.args, node.kwargs
    given = {**dict(zip(_ATTENTION_ARGS, node.args, strict=False)), **node.kwargs}
    causal = str(given.get("is_causal", False))
    queries, keys = (0, 0) if is_dynamic else (node.args[n].meta["val"].shape[-2] for n in (0, 1))
    options = (str(given.get(name) or None) for name in ("dropout_p", "scale", "enable_gqa"))
    tensors = [given.get(name, "None") for name in _ATTENTION_ARGS[:4]]
    return *tensors, *options, _ANY if queries == keys == 1 else causal


def _described(name: str, held: object) -> str:
    """Return text that is equal for equal constants."""
    if not isinstance(held, torch.Tensor):
        return f"{name} {held}"
    content = held.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return f"{name} {held.dtype} {tuple(held.shape)} {hashlib.sha256(content).hexdigest()}"
