"""Some operators are said with others once the whole graph is known: `inline` puts a function of PyTorch in the place
of a node, `used_results` does it where a network reads results that TVM's importer fills with zeros.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch._guards import detect_fake_mode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from .pytorch_places import pooled_with_places

aten = torch.ops.aten


def inline(node: fx.Node, function: Callable, args: Any, kwargs: dict, table: dict) -> Any:
    """Insert before `node` what a `function` of tensors computes, taken apart by the decompositions of a `table`.

    `args` and `kwargs` hold nodes of the graph in the place of tensors. Returns what the function returns, with nodes
    in the place of tensors; `node` itself stays.
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
    with node.graph.inserting_before(node):
        results = node.graph.graph_copy(traced, dict(zip(traced.find_nodes(op="placeholder"), nodes, strict=True)))
    return pytree.tree_unflatten(results, forms[-1])


def _layer_norm(x, shape, weight, bias, eps) -> tuple[torch.Tensor, ...]:
    axes = list(range(x.ndim - len(shape), x.ndim))
    mean = x.mean(axes, keepdim=True)
    rstd = torch.rsqrt((x - mean).square().mean(axes, keepdim=True) + eps)
    result = (x - mean) * rstd
    result = result if weight is None else result * weight
    return result if bias is None else result + bias, mean, rstd


def _by_channel(x, weight, bias) -> torch.Tensor:
    shape = [-1, *[1] * (x.ndim - 2)]
    x = x if weight is None else x * weight.reshape(shape)
    return x if bias is None else x + bias.reshape(shape)


def _group_norm(x, weight, bias, _n, _c, _size, groups, eps) -> tuple[torch.Tensor, ...]:
    apart = x.reshape(x.shape[0], groups, -1)
    result, mean, rstd = _layer_norm(apart, apart.shape[2:], None, None, eps)
    return _by_channel(result.reshape(x.shape), weight, bias), mean.squeeze(-1), rstd.squeeze(-1)


def _batch_norm(x, weight, bias, _training, _momentum, eps) -> tuple[torch.Tensor, ...]:
    rows = x.transpose(0, 1).flatten(1)
    result, mean, rstd = _layer_norm(rows, rows.shape[1:], None, None, eps)
    result = result.unflatten(1, (x.shape[0], *x.shape[2:])).transpose(0, 1)
    return _by_channel(result, weight, bias), mean.squeeze(-1), rstd.squeeze(-1)


_WHOLE = {
    aten._native_batch_norm_legit.no_stats: _batch_norm,
    aten.max_pool2d_with_indices.default: pooled_with_places,
    aten.max_pool3d_with_indices.default: pooled_with_places,
    aten.native_layer_norm.default: _layer_norm,
    aten.native_group_norm.default: _group_norm,
}


def used_results(graph: fx.Graph, table: dict) -> None:
    """Replace, in place, operators of several results of which the later ones are read."""
    for node in list(graph.nodes):
        if node.target in _WHOLE and any(user.args[1] for user in node.users):
            results = inline(node, _WHOLE[node.target], node.args, node.kwargs, table)
            for user in list(node.users):
                user.replace_all_uses_with(results[user.args[1]])
                graph.erase_node(user)
            graph.erase_node(node)
