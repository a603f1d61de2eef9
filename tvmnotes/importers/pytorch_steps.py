"""What a captured PyTorch program computes, as a list that is compared with that of other input sizes."""

import hashlib

import torch
from torch.export import ExportedProgram
from torch.utils import _pytree


def steps(program: ExportedProgram) -> list[int | str]:
    """List the calls of a program with their arguments: integers as they are, all else as text."""
    listed = [_described(name, held) for name, held in program.constants.items()]
    graphs = [part for part in program.graph_module.modules() if isinstance(part, torch.fx.GraphModule)]
    for graph in graphs:
        numbers = {}
        for node in graph.graph.nodes:
            listed.append(f"{node.op} {node.target}")
            for leaf in _pytree.tree_leaves((node.args, node.kwargs)):
                if isinstance(leaf, torch.fx.Node):
                    listed.append(f"node {numbers[leaf]}")
                else:
                    listed.append(leaf if type(leaf) is int else str(leaf))
            numbers[node] = len(numbers)
    return listed


def _described(name: str, held: object) -> str:
    """Return a constant as text that equal ones share."""
    if not isinstance(held, torch.Tensor):
        return f"{name} {held}"
    content = held.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return f"{name} {held.dtype} {tuple(held.shape)} {hashlib.sha256(content).hexdigest()}"
