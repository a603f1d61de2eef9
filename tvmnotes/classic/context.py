"""`tvm.transform.PassContext` as scripts enter it: opt levels, passes by their old names, options that are gone."""

import contextlib
import contextvars
import threading
import warnings

import tvm

# Relay's passes, and those of tn.build that do their work.
PASSES = {
    "AlterOpLayout": ["BlockLayouts"],
    "FoldConstant": ["FoldWithNumPy", "FoldTheRest", "FoldConstant"],
    "FoldScaleAxis": ["FoldBatchNorm", "FoldAffine"],
    "SimplifyInference": ["DecomposeOpsForInference"],
    "FuseOps": ["FuseOps", "FuseTIR"],
    "EliminateCommonSubexpr": ["EliminateCommonSubexpr"],
    "DeadCodeElimination": ["DeadCodeElimination"],
}
apply_best = contextvars.ContextVar("apply_best", default=None)  # the innermost `autotvm.apply_history_best`
_entered = threading.local()
_warned: set[str] = set()
_instruments: dict[int, list] = {}  # by a PassContext's id, which keeps no attributes of ours


def opt_level() -> int:
    """That of the innermost PassContext a script has entered, at most 3, which is the highest; 3 outside of any."""
    stack = getattr(_entered, "stack", [])
    return min(int(stack[-1].opt_level), 3) if stack else 3


def arguments(opt_level=2, required_pass=None, disabled_pass=None, instruments=None, config=None, **others):
    """What today's PassContext takes: passes by today's names, unknown options left out with a warning."""
    options = {str(name) for name in tvm.transform.PassContext.list_configs()}
    kept = {}
    for name, value in (config or {}).items():
        today = (
            name if name in options else name.replace("tir.", "tirx.", 1) if name.startswith("tir.") else name
        )
        if today in options:
            kept[today] = value
        else:
            _warn(name)
    disabled = [new for old in disabled_pass or () for new in PASSES.get(old, [old])]
    required = [new for old in required_pass or () for new in PASSES.get(old, [old])]
    return {"opt_level": opt_level, "required_pass": required, "disabled_pass": disabled, "instruments": instruments,
            "config": kept}  # fmt: skip


def _warn(name: str) -> None:
    if name not in _warned:
        _warned.add(name)
        warnings.warn(f"PassContext: the option {name!r} no longer exists and is left out", stacklevel=4)


def remember(context, instruments) -> None:
    """Note the instruments that a script gave to a PassContext, to hear of Relay's passes as well."""
    _instruments[id(context)] = list(instruments or ())


def instruments() -> list:
    """Those of the innermost PassContext that a script has entered."""
    stack = getattr(_entered, "stack", [])
    return _instruments.get(id(stack[-1]), []) if stack else []


def enter(context) -> None:
    _entered.stack = [*getattr(_entered, "stack", []), context]


def leave() -> None:
    with contextlib.suppress(IndexError):
        _entered.stack = _entered.stack[:-1]
