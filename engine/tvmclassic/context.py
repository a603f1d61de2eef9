"""`tvm.transform.PassContext` as old scripts use it: opt levels, Relay's pass names, removed options."""

import contextlib
import contextvars
import threading
import warnings

import tvm

# Relay's passes, and the passes of tn.build that replace them.
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
_instruments: dict[int, list] = {}  # by id(PassContext), which does not keep Python attributes


def opt_level() -> int:
    """Return the opt level of the innermost active PassContext, capped at 3; 3 outside any."""
    stack = getattr(_entered, "stack", [])
    return min(int(stack[-1].opt_level), 3) if stack else 3


def arguments(opt_level=2, required_pass=None, disabled_pass=None, instruments=None, config=None, **others):
    """Convert PassContext arguments to current TVM's: rename passes, drop unknown options with a warning."""
    options = {str(name) for name in tvm.transform.PassContext.list_configs()}
    current_config = {}
    for name, value in (config or {}).items():
        current = name
        if name not in options and name.startswith("tir."):
            current = name.replace("tir.", "tirx.", 1)
        if current in options:
            current_config[current] = value
        else:
            _warn(name)
    required, disabled = (
        [new for old in given or () for new in PASSES.get(old, [old])]
        for given in (required_pass, disabled_pass)
    )
    passes = {"required_pass": required, "disabled_pass": disabled}
    return {"opt_level": opt_level, **passes, "instruments": instruments, "config": current_config}


def _warn(name: str) -> None:
    if name not in _warned:
        _warned.add(name)
        warnings.warn(f"PassContext: the option {name!r} no longer exists and is left out", stacklevel=4)


def remember(context, instruments) -> None:
    """Register the instruments of a PassContext, so that Relay's passes notify them too."""
    _instruments[id(context)] = list(instruments or ())


def instruments() -> list:
    """Return the instruments of the innermost active PassContext."""
    stack = getattr(_entered, "stack", [])
    return _instruments.get(id(stack[-1]), []) if stack else []


def enter(context) -> None:
    """Push a PassContext onto this thread's stack."""
    _entered.stack = [*getattr(_entered, "stack", []), context]


def leave() -> None:
    """Pop the innermost PassContext of this thread, if there is one."""
    with contextlib.suppress(IndexError):
        _entered.stack = _entered.stack[:-1]
