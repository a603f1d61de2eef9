"""Products with weights of 8 or 4 bits, and look-ups of their rows, that core/packed_weights.py describes.

No kernel, and no folding of constants, makes a float weight of them: a library stores the bits.
"""

import math

import tvm
from tvm import relax, te
from tvm.relax import op as R

from ...core import packed_weights
from ...core.compat import OUT_EWISE_FUSABLE
from ...core.packed_weights import Packed
from ...core.relax import array_key, constant_array, dim_hint, known_shape, on_each_function, static_shape
from ...core.simd import Simd
from ..schedule.rules import packed_weights as rule

_FUSABLE = {"op_pattern": OUT_EWISE_FUSABLE}
_DYNAMIC_ROWS = 8  # rows of a product, at least, if their number is dynamic


def packed_weights_to_kernels(simd: Simd | None) -> tvm.transform.Pass:
    """Make the pass that turns the calls into kernels.

    With a CPU's vector registers, these are kernels of `rules.packed_weights`, which read panels; with None,
    for a GPU or below opt level 3, ones that read the weight as it came.
    """
    return on_each_function(
        "PackedWeightsToKernels", lambda mod: _ToKernels(mod, simd), adds_kernels=True, needs=_has_packed
    )


def _has_packed(func) -> bool:
    names = packed_weights.MATMUL, packed_weights.TAKE
    values = relax.analysis.get_var2val(func).values() if isinstance(func, relax.Function) else ()
    return any(packed_weights.arguments(value, name) for value in values for name in names)


@relax.expr_functor.mutator
class _ToKernels(relax.PyExprMutator):
    def __init__(self, mod, simd):
        super().__init__(mod)
        self.simd = simd
        self.panels = {}  # of each weight, by the key of its integers: a product and a look-up may share them

    def visit_call_(self, call):
        call = self.visit_expr_post_order(call)
        if found := packed_weights.arguments(call, packed_weights.MATMUL):
            return self._product(*found)
        if found := packed_weights.arguments(call, packed_weights.TAKE):
            return self._take(*found)
        return call

    def _product(self, x, weight: Packed):
        shape, columns = known_shape(x.ty), int(weight.integers.ty.shape[0])
        if self.simd is None or len(shape) < 2 or 0 in shape:
            return self._call(_plain_product, x, weight, "packed_dense", _FUSABLE)
        rows = math.prod(shape[:-1]) if static_shape(x.ty) else None
        flat = rows is not None and len(shape) > 2
        if flat:
            x = self.builder_.emit(R.reshape(x, (rows, weight.depth)))
        if rows is None:
            rows = max(dim_hint(shape[-2]), _DYNAMIC_ROWS)

        def compute(x, integers, scales, group, _depth):
            return rule.product(x, integers, scales, group, columns, self.simd, rows)

        result = self._call(compute, x, self._in_panels(weight), "packed_dense", _FUSABLE)
        return R.reshape(self.builder_.emit(result), (*shape[:-1], columns)) if flat else result

    def _take(self, index, weight: Packed):
        last = int(weight.integers.ty.shape[0]) - 1
        look_up = _plain
        if self.simd is not None:
            weight, look_up = self._in_panels(weight), rule.element

        def compute(index, integers, scales, group, depth):
            def element(*at):
                row = te.max(te.min(index[at[:-1]], last), 0)
                return look_up(integers, scales, group, row, at[-1])

            return te.compute((*index.shape, depth), element, name="take")

        return self._call(compute, index, weight, "packed_take", {})

    def _call(self, compute, x, weight: Packed, hint: str, attrs: dict):
        return self.builder_.call_te(
            compute,
            *(x, *weight),
            primfunc_name_hint=hint,
            primfunc_attrs=attrs,
        )

    def _in_panels(self, weight: Packed) -> Packed:
        key = array_key(weight.integers.value)
        if key not in self.panels:
            arrays = weight._replace(
                integers=constant_array(weight.integers), scales=constant_array(weight.scales)
            )
            self.panels[key] = [relax.const(array) for array in rule.pack(arrays, self.simd)]
        integers, scales = self.panels[key]
        return weight._replace(integers=integers, scales=scales)


def _plain_product(x, integers, scales, group: int, depth: int):
    k = te.reduce_axis((0, depth), "k")

    def element(*at):
        *rows, n = at
        return te.sum(x[(*rows, k)] * _plain(integers, scales, group, n, k), axis=[k])

    return te.compute((*x.shape[:-1], integers.shape[0]), element, name="matmul")


def _plain(integers, scales, group: int, n, k):
    at = (n, k) if integers.dtype == "int8" else (n, k // packed_weights.WORD)
    return rule.as_float(integers[at], k) * scales[n, k // group].astype("float32")
