"""Partial updates of an input, such as a cache, as one operator.

PyTorch exports `cache[layer, :, :, position] = k` as views of the cache, an index_put of the innermost one,
and copies of the outer views with the result put back. `combine` replaces them by one partial update of the
cache, see core/partial_update.py; compiler/memory/state.py can do it in place. The same goes for index_copy,
slices, and layers that stack or cat concatenates again.
"""

import contextlib
import io
import logging
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.overrides import TorchFunctionMode
from tvm import relax

from ...core.bounds_check import checked
from ...core.partial_update import partial_update
from ..context import shape_of
from .ops.call import Call

aten = torch.ops.aten

_library = torch.library.Library("tvmfast", "FRAGMENT")
_library.define(
    "partial_update(Tensor x, Tensor? index, Tensor values, int[] given, int[] sizes, int axis, "
    "int[] starts, bool negative) -> Tensor"
)
_COPIES = (aten.clone.default, aten.alias.default)
_VIEWS = (*_COPIES, aten.slice.Tensor, aten.squeeze.dims)
_UPDATES = (aten.index_put.default, aten.index_copy.default, aten.slice_scatter.default)


@dataclass(frozen=True)
class _Box:
    """A region of a tensor: `sizes` elements from `starts` on; a view of it has only `axes` of its axes."""

    root: fx.Node
    starts: tuple[int, ...]
    sizes: tuple[int, ...]
    axes: tuple[int, ...]

    @property
    def is_whole(self) -> bool:
        return self.sizes == _shape(self.root) and len(self.axes) == len(self.sizes)

    def narrowed(self, dim: int, start: int | None, end: int | None) -> "_Box":
        """Return the slice from `start` to `end` along an axis of the view."""
        axis = self.axes[dim]
        start, end, _ = slice(start, end).indices(self.sizes[axis])
        starts, sizes = list(self.starts), list(self.sizes)
        starts[axis] += start
        sizes[axis] = max(0, end - start)
        return replace(self, starts=tuple(starts), sizes=tuple(sizes))


@dataclass(frozen=True)
class _Update:
    """An update of a region of a tensor: at `index` along `axis`, or of the whole region.

    Attributes:
        node: The node that computes it, an operator on a view.
        view: That view.
        part: The region that is updated.
        outer: The outer view that the result is put back into; `view` itself if there is none.
        values: The new values.
        given: The shape to which the operator broadcasts the values.
        index: Indices along `axis`; None: the values fill the region.
        axis: An axis of the root.
        negative: Whether indices may count from the end.
    """

    node: fx.Node
    view: _Box
    part: _Box
    outer: _Box
    values: fx.Node
    given: tuple[int, ...]
    index: fx.Node | None = None
    axis: int = 0
    negative: bool = False


def _shape(node: fx.Node) -> tuple[int, ...]:
    return tuple(node.meta["val"].shape)


def _is_static(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, Tensor) and all(type(n) is int for n in value.shape)


def _box(node: fx.Node) -> _Box:
    """Return the region of an earlier node's result that a node is a view, or a copy, of."""
    x = node.args[0] if node.target in _VIEWS else None
    if x is not None and _is_static(x) and _is_static(node):
        if node.target in _COPIES:
            return _box(x)
        if node.target is aten.slice.Tensor:
            dim, start, end, step = (*node.args[1:], *(0, None, None, 1)[len(node.args) - 1 :])
            if step == 1 and not any(isinstance(n, fx.Node) for n in (start, end)):
                return _box(x).narrowed(dim, start, end)
        else:
            box, shape = _box(x), _shape(x)
            dims = node.args[1] if shape else ()
            dropped = {dim % len(shape) for dim in dims if shape[dim] == 1}
            return replace(box, axes=tuple(a for dim, a in enumerate(box.axes) if dim not in dropped))
    shape = _shape(node)
    return _Box(node, (0,) * len(shape), shape, tuple(range(len(shape))))


def _match(node: fx.Node) -> _Update | None:
    """Match a node as a partial update, else None."""
    if node.target not in _UPDATES:
        return None
    x, values = node.args[0], node.args[1 if node.target is aten.slice_scatter.default else -1]
    index, axis = None, 0
    negative = node.target is aten.index_put.default
    if node.target is aten.index_put.default:
        indices, values, summed = (*node.args[1:], False)[:3]
        picked = [(axis, index) for axis, index in enumerate(indices) if index is not None]
        if summed or len(picked) != 1 or picked[0][1].meta["val"].dtype in (torch.bool, torch.uint8):
            return None
        axis, index = picked[0]
    elif node.target is aten.index_copy.default:
        axis, index = node.args[1:3]
    if not all(map(_is_static, filter(None, (x, values, index)))) or not _shape(x):
        return None
    dtype = x.meta["val"].dtype
    if dtype == torch.bool or dtype.is_complex or values.meta["val"].dtype != dtype:
        return None
    view = _box(x)
    if index is None:
        return _match_slice_scatter(node, view, values)
    axis %= len(_shape(x))
    picked = _shape(index) if negative else (math.prod(_shape(index)),)
    given = (*_shape(x)[:axis], *picked, *_shape(x)[axis + 1 :])
    return _Update(node, view, view, view, values, given, index, view.axes[axis], negative)


def _match_slice_scatter(node: fx.Node, view: _Box, values: fx.Node) -> _Update | None:
    """Match a slice_scatter, or the partial update of this slice that it puts back."""
    dim, start, end, step = _slice_scatter_args(node)
    if step != 1 or any(isinstance(n, fx.Node) for n in (start, end)):
        return None
    part = view.narrowed(dim, start, end)
    inner = _match(_peeled(values))
    if inner is not None and replace(inner.outer, axes=()) == replace(part, axes=()):
        return replace(inner, outer=view)
    if not math.prod(part.sizes) or part.sizes == view.sizes:
        return None
    return _Update(node, view, part, view, values, _shape(values))


def _slice_scatter_args(node: fx.Node) -> tuple:
    return (*node.args[2:], *(0, None, None, 1)[len(node.args) - 2 :])


def _peeled(node: fx.Node) -> fx.Node:
    """Return the node that a node is a copy of, without unsqueezed axes."""
    while True:
        if node.target is aten.unsqueeze.default:
            node = node.args[0]
        elif node.target is aten.copy.default and _alike(*node.args[:2]):
            node = node.args[1]
        else:
            return node


def _alike(a: fx.Node, b: fx.Node) -> bool:
    return (_shape(a), a.meta["val"].dtype) == (_shape(b), b.meta["val"].dtype)


def _match_cat(node: fx.Node) -> list[_Update]:
    """Return the partial updates of regions of a tensor that a cat concatenates again, else none.

    A stack is a cat along the first axis, and then a view.
    """
    cat = node.args[0] if node.target is aten.view.default else node
    if cat.target is not aten.cat.default or not all(map(_is_static, (node, cat, *cat.args[0]))):
        return []
    shape, dim = _shape(node), (*cat.args, 0)[1]
    if not shape or (cat is not node and dim != 0):
        return []
    dim %= len(shape)
    offset = 0
    updates, roots = [], []
    for part in cat.args[0]:
        update = _match(_peeled(part))
        box = update.outer if update else _box(_peeled(part))
        if len(box.sizes) != len(shape):
            return []
        starts = tuple(offset if axis == dim else 0 for axis in range(len(shape)))
        if box.starts != starts or box.sizes != (*shape[:dim], box.sizes[dim], *shape[dim + 1 :]):
            return []
        offset += box.sizes[dim]
        roots.append(box.root)
        updates += [update] if update else []
    return updates if len(set(roots)) == 1 and _shape(roots[0]) == shape and offset == shape[dim] else []


def combine(program: ExportedProgram, has_dynamic_dims: bool) -> None:
    """Replace, in place, the nodes that update a part of an input by one partial update of the input.

    With dynamic dims, slices stay as they are: their bounds may depend on these.
    """
    graph = program.graph
    inputs = {s.arg.name for s in program.graph_signature.input_specs if s.kind is InputKind.USER_INPUT}
    roots = {node for node in graph.find_nodes(op="placeholder") if node.name in inputs}
    order = {node: number for number, node in enumerate(graph.nodes)}
    for node in list(graph.nodes):
        if node.target in (aten.cat.default, aten.view.default):
            updates = _match_cat(node)
        else:
            update = _match(node)
            updates = [update] if update and update.outer.is_whole else []
        numbers = [order[update.node] for update in updates]
        if not updates or updates[0].part.root not in roots or numbers != sorted(set(numbers)):
            continue
        if has_dynamic_dims and any(update.index is None for update in updates):
            continue
        result = updates[0].part.root
        for update in updates:
            result = _emit(graph, update, result)
            roots.add(result)
        node.replace_all_uses_with(result)


def _emit(graph: fx.Graph, update: _Update, root: fx.Node) -> fx.Node:
    """Insert a partial update of `root` before the matched node, and replace the latter by a view of it."""
    view, part = update.view, update.part
    with graph.inserting_before(update.node):
        args = root, update.index, update.values, list(update.given), list(part.sizes)
        args = (*args, update.axis, list(part.starts), update.negative)
        result = shown = graph.call_function(torch.ops.tvmfast.partial_update.default, args)
        result.meta["val"] = part.root.meta["val"]
        for axis, (start, size) in enumerate(zip(view.starts, view.sizes, strict=True)):
            if size != _shape(root)[axis]:
                shown = _call(graph, aten.slice.Tensor, shown, axis, start, start + size)
        dropped = [axis for axis in range(len(view.sizes)) if axis not in view.axes]
        shown = _call(graph, aten.squeeze.dims, shown, dropped) if dropped else shown
    update.node.replace_all_uses_with(shown)
    return result


def export(model: torch.nn.Module, examples: tuple[Tensor, ...]) -> ExportedProgram:
    """Export a module as torch.export does, also one with a tensor of rank 0 as an index."""
    try:
        with _without_partial_graph():
            return torch.export.export(model, examples)
    except GuardOnDataDependentSymNode:
        with _ScalarTensorIndices(), _without_partial_graph():
            return torch.export.export(model, examples)


@contextlib.contextmanager
def _without_partial_graph() -> Iterator[None]:
    """Keep from stderr what PyTorch prints of a branch on values: the error, and the graph as far as that."""
    logger = logging.getLogger("torch.fx.experimental.symbolic_shapes")
    said = io.StringIO()
    logger.disabled = True
    try:
        with contextlib.redirect_stderr(said):
            yield
    except GuardOnDataDependentSymNode:
        said = io.StringIO()
        raise
    finally:
        logger.disabled = False
        sys.stderr.write(said.getvalue())


class _ScalarTensorIndices(TorchFunctionMode):
    """A context in which a tensor of rank 0 is an index like any other, as in x[:, position] = y.

    PyTorch reads the number in such a tensor, which is unknown during an export.
    """

    def __torch_function__(self, func, types, args=(), kwargs=None):
        """Run a function of PyTorch, with an index of rank 1 in place of one of rank 0."""
        if func not in (Tensor.__getitem__, Tensor.__setitem__):
            return func(*args, **(kwargs or {}))
        x, items, *values = args
        items = list(items) if isinstance(items, tuple) else [items]
        tensors = [n for n, item in enumerate(items) if isinstance(item, Tensor)]
        at = tensors[0] if len(tensors) == 1 else None
        is_only = all(type(item) in _BASIC for item in items if not isinstance(item, Tensor))
        if at is None or not is_only or items[at].ndim or items[at].dtype not in _INTEGERS:
            return func(*args, **(kwargs or {}))
        items[at] = items[at].reshape(1)
        used = sum(item is not None and item is not Ellipsis for item in items)
        after = sum(item is None or isinstance(item, slice) for item in items[at + 1 :])
        if not any(item is Ellipsis for item in items[:at]):  # the axes that no item names
            after += x.ndim - used
        if not values:
            result = func(x, tuple(items))
            return result.squeeze(result.ndim - after - 1)
        (value,) = values
        if isinstance(value, Tensor):
            value = value.to(x.dtype)
            value = value.unsqueeze(value.ndim - after) if value.ndim > after else value
        return func(x, tuple(items), value)


_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8)
_BASIC = (int, torch.SymInt, slice, type(None), type(...))  # the items of basic indexing


def _call(graph: fx.Graph, target: Any, x: fx.Node, *args: Any) -> fx.Node:
    node = graph.call_function(target, (x, *args))
    node.meta["val"] = target(x.meta["val"], *args)
    return node


def select_scatter(x: Tensor, part: Tensor, dim: int, index: int) -> Tensor:
    """Return x with x[index] along `dim` set to part, as a slice_scatter."""
    start = index % x.shape[dim]
    return aten.slice_scatter.default(x, part.unsqueeze(dim), dim, start, start + 1)


def _convert(c: Call) -> relax.Expr:
    x, index, values, given, sizes, axis, starts, negative = c.inputs
    sizes = list(sizes)
    if index is None:
        index = relax.const(np.arange(sizes[axis]), "int64")
    else:
        name = "index_put" if negative else "index_copy"
        index = checked(index, [sizes[axis]], name, negative, c.builder)
        sizes[axis] = math.prod(shape_of(index))
        index = c.emit(relax.op.reshape(relax.op.astype(index, "int64"), [sizes[axis]]))
    values = c.emit(relax.op.broadcast_to(values, list(given)))
    values = c.emit(relax.op.reshape(values, sizes))
    return partial_update(x, values, index, axis, list(starts))


def _slice_scatter(c: Call) -> relax.Expr:
    """Join slices, or with a step pick from both tensors; TVM scatters element by element."""
    dim, start, end, step = _slice_scatter_args(c.node)
    (x, values), size = c.inputs[:2], c.result_shape[dim]
    start, end, _ = slice(start, end).indices(size)
    if end <= start:
        return x
    if step != 1:
        both = c.emit(relax.op.concat([x, c.emit(relax.op.astype(values, x.ty.dtype))], dim))
        return relax.op.take(both, _places(c, size, start, end, step), dim, mode="clip")
    parts = [c.emit(relax.op.strided_slice(x, [dim], [0], [start]))] if start else []
    parts.append(c.emit(relax.op.astype(values, x.ty.dtype)))
    if end < size:
        parts.append(c.emit(relax.op.strided_slice(x, [dim], [end], [sys.maxsize])))
    return relax.op.concat(parts, dim)


def _places(c: Call, size: int, start: int, end: int, step: int) -> relax.Expr:
    """Return for each index of an axis its own place, or that of a value behind all of them."""
    if not c.importer.has_dynamic_dims:
        places = np.arange(size)
        places[start:end:step] = size + np.arange(len(places[start:end:step]))
        return relax.const(places, "int64")
    here = c.emit(relax.op.arange(0, size, 1, "int64"))
    start, end, step, size = (relax.const(n, "int64") for n in (start, end, step, size))
    past = c.emit(relax.op.subtract(here, start))
    on_step = relax.op.equal(c.emit(relax.op.floor_mod(past, step)), relax.const(0, "int64"))
    between = relax.op.logical_and(relax.op.greater_equal(here, start), relax.op.less(here, end))
    behind = relax.op.add(c.emit(relax.op.floor_divide(past, step)), size)
    return c.emit(relax.op.where(relax.op.logical_and(between, on_step), behind, here))


CONVERTERS = {"partial_update.default": _convert, "slice_scatter.default": _slice_scatter}
