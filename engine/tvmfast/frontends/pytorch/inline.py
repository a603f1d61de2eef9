"""Replacements of operators that need the whole graph.

`inline` replaces a node by a function of PyTorch; `used_results` does so for nodes of which the network reads
results that TVM's importer fills with zeros, `foreign` for other libraries' operators, and `resizes_of_uint8`
for those with dynamic dims. `with_known_repeats` does so before the decomposition.
"""

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch._decomp import decomposition_table
from torch._guards import detect_fake_mode
from torch.export import ExportedProgram
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from .dynamic import as_module
from .ops.decompositions import group_norm_with_statistics, grouped_product, layer_norm_with_statistics
from .ops.indexing import max_pool_with_indices
from .ops.uint8_images import RESIZES, resize_dynamic

aten = torch.ops.aten


def inline(node: fx.Node, function: Callable, args: Any, kwargs: dict, table: dict) -> Any:
    """Insert before `node` the nodes of a `function` of tensors, decomposed by a decomposition `table`.

    `args` and `kwargs` hold nodes of the graph in place of tensors. Returns what the function returns, with
    nodes in place of tensors; `node` itself stays.
    """
    leaves, spec = pytree.tree_flatten((args, kwargs))
    nodes, forms = [leaf for leaf in leaves if isinstance(leaf, fx.Node)], []

    def flat(*values):
        given = iter(values)
        args, kwargs = pytree.tree_unflatten(
            [next(given) if isinstance(leaf, fx.Node) else leaf for leaf in leaves], spec
        )
        results, form = pytree.tree_flatten(function(*args, **kwargs))
        forms.append(form)
        return results

    with detect_fake_mode([each.meta.get("val") for each in node.graph.nodes]), torch.no_grad():
        traced = make_fx(flat, decomposition_table=table)(*(each.meta["val"] for each in nodes)).graph
    inputs = dict(zip(traced.find_nodes(op="placeholder"), nodes, strict=True))
    with node.graph.inserting_before(node):
        results = node.graph.graph_copy(traced, inputs)
    return pytree.tree_unflatten(results, forms[-1])


_BATCH_NORM = aten._native_batch_norm_legit.no_stats
_MULTI_RESULT = {
    aten.max_pool2d_with_indices.default: max_pool_with_indices,
    aten.max_pool3d_with_indices.default: max_pool_with_indices,
    aten.native_layer_norm.default: layer_norm_with_statistics,
    aten.native_group_norm.default: group_norm_with_statistics,
    _BATCH_NORM: decomposition_table[_BATCH_NORM],
}


def used_results(graph: fx.Graph, table: dict) -> None:
    """Replace, in place, operators with several results of which a later one is read."""
    for node in list(graph.nodes):
        if node.target in _MULTI_RESULT and any(user.args[1] for user in node.users):
            results = inline(node, _MULTI_RESULT[node.target], node.args, node.kwargs, table)
            for user in list(node.users):
                user.replace_all_uses_with(results[user.args[1]])
                graph.erase_node(user)
            graph.erase_node(node)


def resizes_of_uint8(graph: fx.Graph, table: dict) -> None:
    """Replace, in place, resizes of uint8 images, whose weights depend on dynamic dims."""
    for node in list(graph.nodes):
        cubic, antialias = RESIZES.get(node.target, (False, True))
        if not antialias and node.args[0].meta["val"].dtype == torch.uint8:
            node.replace_all_uses_with(
                inline(node, resize_dynamic, node.args, {**node.kwargs, "cubic": cubic}, table)
            )
            graph.erase_node(node)


# Those of a library exist only where it is imported, hence the names.
_FOREIGN = {"transformers.grouped_mm_fallback.default": grouped_product}


def foreign(graph: fx.Graph, table: dict) -> None:
    """Replace, in place, operators that another library registers with PyTorch."""
    for node in list(graph.nodes):
        if function := _FOREIGN.get(str(node.target)):
            node.replace_all_uses_with(inline(node, function, node.args, node.kwargs, table))
            graph.erase_node(node)


_REPEATS = aten.repeat_interleave.Tensor, aten.repeat_interleave.self_Tensor


def with_known_repeats(program: ExportedProgram) -> torch.nn.Module | None:
    """Return a program as a module that gathers where it repeated elements by constants; None if nowhere.

    The sizes that follow from the constants are unknown in the program; an export of the module knows them.
    """
    if not any(node.target in _REPEATS for node in program.graph.nodes):
        return None
    module, found = as_module(program), False
    for part in module.modules():
        if isinstance(part, fx.GraphModule):
            constants = _constants(part.graph)
            for node in [each for each in part.graph.nodes if each.target in _REPEATS]:
                repeats = node.args[node.target is _REPEATS[1]]
                if repeats in constants:
                    _repeat(part, node, _value(part, repeats))
                    found = True
            part.recompile()
    return module if found else None


def _constants(graph: fx.Graph) -> set[fx.Node]:
    """Return the nodes whose values depend on no input, on no chance, and on no order of writes."""
    known = set()
    for node in graph.nodes:
        written = any(getattr(getattr(each.target, "_schema", 0), "is_mutable", 0) for each in node.users)
        is_drawn = torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
        is_constant = node.op == "get_attr" or (node.op == "call_function" and not is_drawn)
        is_constant &= not written or len(node.users) == 1
        if is_constant and known.issuperset(node.all_input_nodes):
            known.add(node)
    return known


def _value(module: fx.GraphModule, node: fx.Node) -> Any:
    if node.op == "get_attr":
        return operator.attrgetter(node.target)(module).detach().clone()
    args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda each: _value(module, each))
    return node.target(*args, **kwargs)


def _repeat(module: fx.GraphModule, node: fx.Node, repeats: torch.Tensor) -> None:
    """Replace a node that repeats elements as often as `repeats` says, or returns their indices."""
    x, _, dim = [*node.args, node.kwargs.get("dim")][:3] if node.target is _REPEATS[1] else [None] * 3
    with module.graph.inserting_before(node):
        if x is not None and repeats.numel() == 1:
            result = module.graph.call_function(aten.repeat_interleave.self_int, (x, int(repeats), dim))
        else:
            name = f"_repeated_{len(dict(module.named_buffers()))}"
            module.register_buffer(name, torch.repeat_interleave(repeats), persistent=False)
            result = module.graph.get_attr(name)
            if x is not None:
                x = module.graph.call_function(aten.flatten.using_ints, (x,)) if dim is None else x
                result = module.graph.call_function(aten.index_select.default, (x, dim or 0, result))
    node.replace_all_uses_with(result)
    module.graph.erase_node(node)
