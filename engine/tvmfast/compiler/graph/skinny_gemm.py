"""The pass for skinny GEMM: a product of a few rows with a strided view of a tensor, which is not copied."""

import math
from collections.abc import Iterator

import numpy as np
import tvm
from tvm import relax
from tvm.relax import op as R

from ...core.compat import OUT_EWISE_FUSABLE
from ...core.relax import INT32_MAX, on_each_function, op_name, static_shape
from ...core.simd import Simd
from ..schedule.rules.skinny_gemm import View, product, tile

_FEW = 8  # rows
_LARGE = 1 << 12  # elements of a matrix whose copy would take long


def lower_skinny_gemms(simd: Simd) -> tvm.transform.Pass:
    """Make the pass, for float32 and static shapes."""
    return on_each_function("LowerSkinnyGemms", lambda mod: _SkinnyGemm(mod, simd), adds_kernels=True)


@relax.expr_functor.mutator
class _SkinnyGemm(relax.PyExprMutator):
    def __init__(self, mod, simd):
        super().__init__(mod)
        self.simd = simd

    def visit_function_(self, func):
        self.bound = relax.analysis.get_var2val(func)
        return super().visit_function_(func)

    def visit_call_(self, call):
        found = self._match(call) if op_name(call) == "matmul" else None
        if found is None:
            return super().visit_call_(call)
        source, view = found
        flat = self.builder_.emit(R.reshape(self.visit_expr(source), (math.prod(static_shape(source.ty)),)))
        return self.builder_.call_te(
            lambda left, flat: product(left, flat, view, self.simd),
            *(self.visit_expr(call.args[0]), flat),
            primfunc_name_hint="matmul",
            primfunc_attrs={"op_pattern": OUT_EWISE_FUSABLE},
        )

    def _match(self, call) -> tuple[relax.Expr, View] | None:
        """Match a skinny GEMM; return the tensor that its right-hand matrices are a view of, and the view."""
        left, right = call.args
        shapes = [static_shape(each.ty) for each in (left, right, call)]
        dtypes = {str(each.ty.dtype) for each in (left, right, call)}
        if None in shapes or dtypes != {"float32"} or min(map(len, shapes[:2])) < 2:
            return None
        a, b, c = shapes
        is_weight = not isinstance(right, relax.Var)
        if is_weight or a[-2] > _FEW or math.prod(b[-2:]) < _LARGE or a[:-2] != c[:-2] or 0 in c:
            return None
        found = None
        for source, view in self._sources(right, (*c[:-2], *b[-2:])):
            found = (source, view) if tile(view, a[-2], self.simd) else found
        return found

    def _sources(self, tensor, shape) -> Iterator[tuple[relax.Var, View]]:
        """Yield each tensor that `tensor`, broadcast to a shape, is a view of, and the view; itself first."""
        moves = []
        while isinstance(tensor, relax.Var):
            view = _view(static_shape(tensor.ty), moves, shape)
            if view is not None:
                yield tensor, view
            value = self.bound.get(tensor)
            move = _move(value)
            if isinstance(value, relax.Var):
                tensor = value
            elif move is None:
                return
            else:
                tensor, moves = value.args[0], [move, *moves]


def _move(value):
    """Return a function of an array that moves elements as a call does; None if the call does more."""
    name = op_name(value)
    if name not in ("reshape", "broadcast_to", "squeeze", "expand_dims", "permute_dims", "strided_slice"):
        return None
    before, after = static_shape(value.args[0].ty), static_shape(value.ty)
    if before is None or after is None:
        return None
    if name == "broadcast_to":
        return lambda array: np.broadcast_to(array, after)
    if name == "permute_dims":
        axes = None if value.attrs.axes is None else [int(axis) for axis in value.attrs.axes]
        return lambda array: array.transpose(axes)
    if name != "strided_slice":
        return lambda array: array.reshape(after)
    slices = _slices(value, len(before))
    return None if slices is None else lambda array: array[slices]


def _slices(call, rank: int) -> tuple[slice, ...] | None:
    """Return the slices of a strided_slice; None if they are not known, or negative."""
    fields = [getattr(each, "fields", None) for each in call.args[1:]]
    if None in fields or not all(hasattr(n, "value") for each in fields for n in each):
        return None
    axes, *bounds = ([int(n.value) for n in each] for each in fields)
    if any(n < 0 for each in bounds for n in each):
        return None
    slices = [slice(None)] * rank
    for axis, begin, end, *step in zip(axes, *bounds, strict=True):
        slices[axis] = slice(begin, end, *step)
    return tuple(slices)


def _view(shape: tuple[int, ...], moves: list, wanted: tuple[int, ...]) -> View | None:
    """Return the view of a tensor after `moves` and a broadcast to `wanted`; None if that needs a copy."""
    if math.prod(shape) > INT32_MAX:
        return None
    base = np.empty(shape, np.int8)
    array = base
    for move in moves:
        array = move(array)
    array = np.broadcast_to(array, wanted)
    if not np.may_share_memory(base, array):
        return None
    offset = array.__array_interface__["data"][0] - base.__array_interface__["data"][0]
    return View(wanted, array.strides, offset)
