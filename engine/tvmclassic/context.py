"""`tvm.transform.PassContext` as old scripts use it: opt levels, Relay's pass names, removed options."""

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


def _stack() -> list:
    """Return the active PassContexts of this thread."""
    return getattr(_entered, "stack", [])


def opt_level() -> int:
    """Return the opt level of the innermost active PassContext, capped at 3; 3 outside any."""
    return min(int(_stack()[-1].opt_level), 3) if _stack() else 3


def instruments() -> list:
    """Return the instruments of the innermost active PassContext, which Relay's passes notify too."""
    return _instruments.get(id(_stack()[-1]), []) if _stack() else []


def patches() -> list:
    """List the patches of `PassContext` as (object, attribute name, new value)."""
    pass_context = tvm.transform.PassContext
    init, enter, leave = pass_context.__init__, pass_context.__enter__, pass_context.__exit__
    override = pass_context.override_instruments

    def context_init(self, *args, **kwargs):
        given = arguments(*args, **kwargs)
        _instruments[id(self)] = list(given["instruments"] or ())
        init(self, **given)

    def context_enter(self):
        _entered.stack = [*_stack(), self]
        return enter(self)

    def context_leave(self, *error):
        _entered.stack = _stack()[:-1]
        return leave(self, *error)

    return [
        (pass_context, "__init__", context_init),
        (pass_context, "__enter__", context_enter),
        (pass_context, "__exit__", context_leave),
        (pass_context, "override_instruments", lambda self, new: override(self, new or [])),
    ]


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
        elif name != "relay.backend.use_auto_scheduler":  # `auto_scheduler.ApplyHistoryBest` decides that
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
