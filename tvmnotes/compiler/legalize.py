"""Operators become kernels here, instead of in TVM's way: the computations that opt level 3 has schedules for and, at
every level, those that TVM gets wrong for special values.
"""

from collections.abc import Callable

import tvm
from tvm import relax

from ..base.relax import OPAQUE, OUT_EWISE_FUSABLE, fixed_shape
from . import special_values
from .schedules import elementwise, matmul, row_reduction
from .schedules.batch_matmul import BatchMatmul
from .schedules.vector import Simd
from .special_values import default

_FUSABLE = {"op_pattern": OUT_EWISE_FUSABLE}


def legalizations(v: Simd | None, lookup: Callable | None, opt_level: int) -> dict:
    """Return by operator what `relax.transform.LegalizeOps` takes, for a CPU's vector registers or, None, a GPU.

    Below level 3 it holds only what corrects TVM's numbers. `lookup` is that of `Workload.config`.
    """
    corrected = special_values.legalizations() | dict.fromkeys(
        elementwise.FUNCTIONS if v else (), _elementwise
    )
    if opt_level < 3:
        return corrected
    if v is None:
        return corrected | {"relax.concat": _concat}
    return corrected | {
        "relax.matmul": lambda bb, call: _matmul(bb, call, v, lookup),
        "relax.nn.softmax": lambda bb, call: _softmax(bb, call, v),
        "relax.nn.layer_norm": lambda bb, call: _layer_norm(bb, call, v),
        "relax.concat": _concat,
    }


def _matmul(bb, call, v, lookup):
    left, right = call.args
    a, b = fixed_shape(left.ty), fixed_shape(right.ty)
    dtypes = {str(each.ty.dtype) for each in (left, right, call)}
    if a is None or b is None or len(a) < 2 or len(b) < 2 or dtypes != {"float32"}:
        return default(bb, call)
    if len(b) == 2 and isinstance(right, tvm.ir.GenericConst):
        dense = matmul.Dense(a[-2], *b)
        config = dense.config(lookup, v)
        panels = relax.const(dense.pack(right.value.numpy(), config, v.lanes))
        return bb.call_te(dense.compute, left, panels, config,
                          primfunc_name_hint="dense", primfunc_attrs=_FUSABLE)  # fmt: skip
    product = BatchMatmul(a, b)
    return bb.call_te(product.compute, left, right, product.config(lookup, v),
                      primfunc_name_hint="matmul", primfunc_attrs=_FUSABLE)  # fmt: skip


def _softmax(bb, call, v):
    shape = fixed_shape(call.ty)
    if not shape or str(call.ty.dtype) != "float32" or int(call.attrs.axis) % len(shape) != len(shape) - 1:
        return default(bb, call)
    return bb.call_te(row_reduction.softmax, call.args[0], v.lanes,
                      primfunc_name_hint="softmax", primfunc_attrs=_FUSABLE)  # fmt: skip


def _layer_norm(bb, call, v):
    shape, attrs = fixed_shape(call.ty), call.attrs
    last = shape and [int(a) % len(shape) for a in attrs.axes] == [len(shape) - 1]
    if not last or str(call.ty.dtype) != "float32" or not (attrs.center and attrs.scale):
        return default(bb, call)
    return bb.call_te(row_reduction.layer_norm, *call.args, float(attrs.epsilon), v.lanes,
                      primfunc_name_hint="layer_norm", primfunc_attrs=_FUSABLE)  # fmt: skip


def _elementwise(bb, call):
    if str(call.ty.dtype) != "float32" or fixed_shape(call.ty) is None:
        return default(bb, call)
    name = call.op.name.rpartition(".")[2]
    return bb.call_te(elementwise.FUNCTIONS[call.op.name], call.args[0], primfunc_name_hint=name)


def _concat(bb, call):
    parts = call.args[0]
    if not isinstance(parts, relax.Tuple) or len(parts.fields) < 3 or call.attrs.axis is None:
        return default(bb, call)
    axis = int(call.attrs.axis) % len(call.ty.shape)
    # A concatenation of concatenations, fused to one, would ask for each number which of dozens of parts it is from.
    apart = {"op_pattern": OPAQUE} if any(_is_concat(bb, part) for part in parts.fields) else None
    return bb.call_te(lambda *xs: elementwise.concat(xs, axis), *parts.fields,
                      primfunc_name_hint="concatenate", primfunc_attrs=apart)  # fmt: skip


def _is_concat(bb, part) -> bool:
    made = bb.lookup_binding(part) if isinstance(part, relax.Var) else None
    called = made.args[0] if isinstance(made, tvm.ir.Call) and made.args else None
    return isinstance(called, tvm.ir.GlobalVar) and called.name_hint.startswith("concatenate")
