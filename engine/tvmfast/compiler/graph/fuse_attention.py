"""The pass that makes one kernel of two matrix products and the softmax between them."""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import tvm
from tvm import relax
from tvm.relax import op as R

from ...core.dims import Dim
from ...core.relax import (
    INT32_MAX,
    constant_array,
    dim_to_str,
    known_shape,
    on_each_function,
    op_name,
    round_up,
)
from ...core.simd import Simd
from ...kernels.attention import OPERATORS, Dims, ScoreOp, Tile, kernel, pad_keys, panels
from ...kernels.dynamic import DynamicDims
from ...kernels.dynamic import call as call_kernel
from .quantized import emit_noted

_TILE = 64  # keys of the widest tile
_FEW_QUERIES, _FEW_KEYS = 8, 16  # up to so many, single kernels are as fast


def fuse_attention(
    simd: Simd, dims: Mapping[str, Dim], in_float32: dict[str, str] | None = None
) -> tvm.transform.Pass:
    """Make the pass, for attention of float32, to run after constants are folded.

    Between the first product and the softmax, scores may be scaled, and masks added or applied. Products of
    few queries or keys, values that are not whole vectors, and tensors of 2**31 elements are left as they
    are. `dims` are the network's dynamic dims; `in_float32` is as in quantized.py.
    """
    notes = {} if in_float32 is None else in_float32
    return on_each_function("FuseAttention", lambda mod: _Fuser(mod, simd, dims, notes), adds_kernels=True)


@dataclass
class _Attention:
    """Attention in the graph: its operands, the operators on the scores, and the tensors that these read.

    `empty` is that of `kernel`.
    """

    operands: list[relax.Expr]
    dims: Dims
    empty: float
    score_ops: list[ScoreOp] = field(default_factory=list)
    inputs: dict[str, relax.Expr] = field(default_factory=dict)

    def name(self, tensor: relax.Expr) -> str:
        """Return the name of an input for a tensor."""
        name = f"mask{len(self.inputs)}"
        self.inputs[name] = tensor
        return name


@relax.expr_functor.mutator
class _Fuser(relax.PyExprMutator):
    def __init__(self, mod, simd, dims, in_float32):
        super().__init__(mod)
        self.simd, self.dynamic, self.in_float32 = simd, dims, in_float32
        self.var = None  # the variable whose value is rewritten

    def visit_function_(self, func):
        self.bound = relax.analysis.get_var2val(func)
        self.uses = Counter()
        for value in (*self.bound.values(), func.body.body):
            relax.analysis.post_order_visit(value, self._count)
        return super().visit_function_(func)

    def visit_var_binding_(self, binding):
        self.var = binding.var
        super().visit_var_binding_(binding)

    def _count(self, expr):
        if isinstance(expr, relax.Var):
            self.uses[expr] += 1

    def visit_call_(self, call):
        if op_name(call) == "broadcast_to" and _same(known_shape(call.args[0].ty), known_shape(call.ty)):
            return self.visit_expr(call.args[0])  # TVM drops those of static shapes itself
        found = self._match(call)
        return super().visit_call_(call) if found is None else self._fused(found, known_shape(call.ty))

    # ------------------------------------------------------------ matching

    def _value(self, var, uses: int | None = 1):
        """Return what a variable, if it is read so often, is bound to, behind reshapes of its batch."""
        while isinstance(var, relax.Var) and uses in (None, self.uses[var]):
            value = self.bound.get(var)
            uses = uses and 1
            if not isinstance(value, relax.Var) and not _keeps_matrices(value):
                return value
            var = value if isinstance(value, relax.Var) else value.args[0]
        return None

    def _call(self, var, name: str):
        """Return the call of an operator that a variable, which is read once, is bound to; else None."""
        value = self._value(var)
        return value if op_name(value) == name else None

    def _match(self, call) -> _Attention | None:
        if op_name(call) != "matmul" or str(call.ty.dtype) != "float32":
            return None
        weights, values = call.args
        softmax, empty = self._call(weights, "nn.softmax"), 0.0
        if softmax is None:
            softmax, empty = self._safe(weights), 1.0
        if softmax is None:
            return None
        scores, shape = softmax.args[0], known_shape(softmax.ty)
        if shape is None or len(shape) < 3 or int(softmax.attrs.axis) % len(shape) != len(shape) - 1:
            return None
        between = []
        uses = 2 if empty else 1
        while op_name(product := self._value(scores, uses)) != "matmul":
            between.append(product)
            scores, uses = self._source(product, shape), 1
            if scores is None:
                return None
        batch = shape[:-2]
        shapes = [known_shape(tensor.ty) for tensor in (*product.args, values, call)]
        if None in shapes or min(map(len, shapes)) < 2:
            return None
        if any(not _alike(each[:-2], batch) for each in shapes):
            return None
        (*_, queries, depth), (*_, keys), (*_, width), _ = shapes
        if any(map(_is_large, shapes)):
            return None
        few = self._at_most(queries, _FEW_QUERIES) or self._at_most(keys, _FEW_KEYS)
        dtypes = {str(tensor.ty.dtype) for tensor in (*product.args, product)}
        if few or not isinstance(depth, int) or not isinstance(width, int):
            return None
        if width % self.simd.lanes or dtypes != {"float32"}:
            return None
        found = _Attention([*product.args, values], Dims(batch, queries, keys, depth, width), empty)
        for value in reversed(between):
            found.score_ops.append(self._score_op(value, shape, found))
        masks = [known_shape(tensor.ty) or () for tensor in found.inputs.values()]
        return None if any(map(_is_large, masks)) else found

    def _at_most(self, dim, number: int) -> bool:
        """Return whether a dim, or the upper bound of a dynamic one, is not larger than a number."""
        largest = dim if isinstance(dim, int) else getattr(self.dynamic.get(dim_to_str(dim)), "upper", None)
        return largest is not None and largest <= number

    def _safe(self, weights):
        """Return the softmax of weights that are 0 where all scores of a query are -infinity; else None."""
        chosen = self._call(weights, "where")
        if chosen is None:
            return None
        condition, zero, value = chosen.args
        softmax, equal = self._call(value, "nn.softmax"), self._call(condition, "equal")
        largest = self._call(equal.args[0], "max") if equal is not None else None
        if softmax is None or largest is None or _number(zero) != 0 or _number(equal.args[1]) != -math.inf:
            return None
        scores, axes = softmax.args[0], [int(axis) for axis in largest.attrs.axis or ()]
        rank = len(softmax.ty.shape)
        if [axis % rank for axis in axes] != [rank - 1] or not largest.attrs.keepdims:
            return None
        return softmax if largest.args[0].same_as(scores) else None

    def _source(self, value, shape):
        """Return the scores that an operator on scores reads; None if it is none."""
        name, args = op_name(value), list(getattr(value, "args", ()))
        if name == "where":
            condition, left, right = args
            flipped = _number(left) is not None
            scores, other = (right, left) if flipped else (left, right)
            known = _number(other) is not None and _same(known_shape(value.ty), shape)
            return scores if known and self._broadcasts(condition, shape) else None
        if name not in OPERATORS:
            return None
        scores, other = args if self._leads_to_scores(args[0], shape) else args[::-1]
        own = known_shape(value.ty) or ()
        known, number = self._broadcasts(other, shape) and _same(own, shape), _number(other)
        if number == 0 and name in ("multiply", "divide"):  # TVM's simplifier drops it, and with it a NaN
            return None
        scaled = number is not None and _alike(own, shape)
        return scores if known or scaled else None

    def _leads_to_scores(self, arg, shape) -> bool:
        """Return whether an operand is computed from the product, and is not a mask of its shape."""
        seen, remaining = set(), [arg]
        while remaining:
            arg = remaining.pop()
            if not isinstance(arg, relax.Var) or arg in seen:
                continue
            seen.add(arg)
            value = self._value(arg, None)
            if op_name(value) == "matmul" and _alike(known_shape(value.ty) or (), shape):
                return True
            if op_name(value) in (*OPERATORS, "where"):
                remaining.extend(value.args)
        return False

    def _broadcasts(self, tensor, shape) -> bool:
        own = known_shape(tensor.ty) if isinstance(getattr(tensor, "ty", None), relax.TensorType) else None
        return own is not None and len(own) <= len(shape) and str(tensor.ty.dtype) in ("float32", "bool")

    def _score_op(self, value, shape, found: _Attention) -> ScoreOp:
        name, args = op_name(value), list(value.args)
        if name == "where":
            condition, left, right = args
            flipped = _number(left) is not None
            replaced = _number(left if flipped else right)
            return ScoreOp(name, replaced, flipped, found.name(condition))
        flipped = not self._leads_to_scores(args[0], shape)
        operand = args[0] if flipped else args[1]
        number = _number(operand)
        if number is None:
            return ScoreOp(name, found.name(operand), flipped)
        if name == "divide" and not flipped and math.frexp(number)[0] == 0.5:
            return ScoreOp("multiply", 1 / number)
        return ScoreOp(name, number, flipped)

    # ------------------------------------------------------------ the fused kernel

    def _fused(self, found: _Attention, shape: tuple):
        emit, dims = self.builder_.emit, found.dims
        tile, batch = Tile.of(dims, self.simd), math.prod(dims.batch)
        flat = [
            emit(R.reshape(self.visit_expr(tensor), (batch, *known_shape(tensor.ty)[-2:])))
            for tensor in found.operands
        ]
        packed = self.builder_.call_te(lambda keys: panels(keys, tile), flat[1], primfunc_name_hint="panels")
        flat[1] = emit(packed)
        length = tile.panels(dims.keys) * tile.lanes
        inputs = {name: self._padded(tensor, dims.keys, length) for name, tensor in found.inputs.items()}
        shapes = {name: known_shape(tensor.ty) for name, tensor in inputs.items()}
        own = DynamicDims(shape, dims.batch, (dims.queries, dims.keys), *shapes.values())
        inner = Dims(own.inside(dims.batch), *own.inside((dims.queries, dims.keys)), dims.depth, dims.width)
        shapes = {name: own.inside(each) for name, each in shapes.items()}
        made = kernel(inner, tile, found.score_ops, shapes, found.empty, own)
        result = (batch, dims.queries, dims.width)
        call = call_kernel(self.builder_, made, "attention", [*flat, *inputs.values()], own, result)
        return R.reshape(emit_noted(self.in_float32, self.var, emit, call), shape)

    def _padded(self, tensor, keys, length):
        """Return a mask as float32, zero-padded up to `length` keys."""
        array, own = constant_array(tensor), known_shape(tensor.ty) or (1,)
        along_keys = not _same(own[-1:], (1,)) and _same(own[-1:], (keys,))
        if array is not None:
            array = array.astype("float32").reshape(own)
            return relax.const(
                np.pad(array, [(0, 0)] * (len(own) - 1) + [(0, length - keys if along_keys else 0)])
            )
        tensor = self.visit_expr(tensor)
        if not known_shape(tensor.ty):
            tensor = self.builder_.emit(R.reshape(tensor, own))
        if str(tensor.ty.dtype) == "bool":
            tensor = self.builder_.emit(R.astype(tensor, "float32"))
        if not along_keys or _same((length,), (keys,)):
            return tensor
        padded = self.builder_.call_te(pad_keys, tensor, length, primfunc_name_hint="pad")
        return self.builder_.emit(padded)


def _keeps_matrices(value) -> bool:
    """Return whether a call reshapes the batch of its matrices, and nothing else."""
    if op_name(value) not in ("reshape", "broadcast_to"):
        return False
    before, after = known_shape(value.args[0].ty), known_shape(value.ty)
    if before is None or after is None or not _alike(before, after):
        return False
    return len(before) >= 2 and _same(before[-2:], after[-2:])


def _is_large(shape: tuple) -> bool:
    """Return whether a static tensor, in whole tiles, has elements that an int32 does not reach."""
    if not shape or not all(isinstance(n, int) for n in shape):
        return False
    return math.prod(shape[:-1]) * round_up(shape[-1], _TILE) > INT32_MAX


def _same(a: tuple | None, b: tuple | None) -> bool:
    """Return whether two shapes are known and equal for all values of the dynamic dims."""
    return (
        a is not None
        and b is not None
        and len(a) == len(b)
        and all(_alike((m,), (n,)) for m, n in zip(a, b, strict=True))
    )


def _alike(a: tuple, b: tuple) -> bool:
    """Return whether two shapes have equally many elements for all values of the dynamic dims."""
    first, second = (dim_to_str(math.prod(shape)) for shape in (a, b))
    return first is not None and first == second


def _number(expr) -> float | None:
    """Return the number that all elements of a constant are; None for another expression."""
    array = constant_array(expr)
    if array is None or not array.size or not (array == array.flat[0]).all():
        return None
    return float(array.flat[0])
