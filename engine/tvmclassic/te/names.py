"""What `tvmclassic.enable` adds to `tvm` and `tvm.te`, and the modules `tvm.tir` that it installs."""

import tvm
from tvm import te, tirx

from . import build
from .schedule import Schedule, create_schedule, inline_all
from .stage import Stage

# TVM 0.5 had these in `tvm` itself.
_OF_TE = "var const placeholder compute thread_axis reduce_axis comm_reducer tag_scope"
_OF_TIR = (
    "all any sum max min exp tanh sigmoid log sqrt floor ceil trunc round abs power popcount if_then_else "
    "decl_buffer call_packed call_extern call_pure_extern min_value max_value erf cos sin log2 rsqrt "
    "nearbyint isnan fmod div indexdiv indexmod truncdiv truncmod floordiv floormod"
)
_MODULES = "analysis buffer expr function op stmt transform"


def patches() -> list[tuple[object, str, object]]:
    """List the attributes to set, as (object, attribute name, value)."""
    return [
        (te, "create_schedule", create_schedule),
        (te, "size_var", te.var),
        (tvm, "size_var", te.var),
        (tvm, "create_schedule", create_schedule),
        (tvm, "lower", build.lower),
        (tvm, "build", build.build),
        *((tvm, name, getattr(te, name)) for name in _OF_TE.split()),
        *((tvm, name, getattr(tirx, name)) for name in _OF_TIR.split()),
        (tvm, "select", tirx.Select),
    ]


def spaces() -> dict[str, dict]:
    """Return the contents of `tvm.te.schedule`, `tvm.tir` and its modules: {module: {attribute: value}}."""
    schedule = {"Schedule": Schedule, "Stage": Stage, "create_schedule": create_schedule}
    schedule["AutoInlineInjective"] = inline_all
    moved = {name: getattr(tvm.s_tir, name) for name in ("Schedule", "TensorIntrin")}
    moved |= {"Call": tvm.ir.Call, "StringImm": tvm.ir.StringImm, "PrimExpr": tvm.ir.Expr}
    of_tir = {**_public(tirx), **moved}
    parts = {f"tvm.tir.{name}": _public(getattr(tirx, name)) for name in _MODULES.split()}
    return {"tvm.te.schedule": schedule, "tvm.tir": {**of_tir, "schedule": tvm.s_tir.schedule}, **parts}


def _public(module) -> dict:
    return {name: value for name, value in vars(module).items() if name[0] != "_"}
