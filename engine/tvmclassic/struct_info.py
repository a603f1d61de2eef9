"""Relax's struct info: what its types were called, and the arguments that took it."""

import functools

import tvm
from tvm import relax
from tvm.script import relax as script

_TYPES = {
    "TensorStructInfo": relax.TensorType,
    "ShapeStructInfo": relax.ShapeType,
    "ObjectStructInfo": relax.AnyType,
    "FuncStructInfo": relax.FuncType,
    "TupleStructInfo": tvm.ir.TupleType,
    "PrimStructInfo": tvm.ir.PrimType,
}
_CALLS = "call_tir call_tir_inplace call_dps_packed call_pure_packed"
_ARGUMENTS = {"out_sinfo": "out_ty", "sinfo_args": "ty_args"}


def patches() -> list[tuple[object, str, object]]:
    """List the attributes to set, as (object, attribute name, value)."""
    owners = [(owner, name) for owner in (relax, relax.op, script) for name in _CALLS.split()]
    there = [(owner, name, getattr(owner, name)) for owner, name in owners if hasattr(owner, name)]
    calls = {function: _with_old_arguments(function) for _, _, function in there}
    return [
        *((relax, name, value) for name, value in _TYPES.items()),
        *((owner, name, calls[function]) for owner, name, function in there),
        (tvm.ir.Expr, "struct_info", property(lambda value: value.ty)),
    ]


def _with_old_arguments(function):
    @functools.wraps(function)
    def call(*args, **options):
        return function(*args, **{_ARGUMENTS.get(name, name): value for name, value in options.items()})

    return call
