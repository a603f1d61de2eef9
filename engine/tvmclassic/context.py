"""`tvm.transform.PassContext` as old scripts use it: opt levels, Relay's pass names, removed options."""

import contextlib
import contextvars
import threading
import time
import warnings
from collections.abc import Iterator

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
    return _instruments.get(_key(), [])


def _key() -> int:
    """Return the key of the innermost active PassContext in `_instruments`; 0 outside of any."""
    return id(_stack()[-1]) if _stack() else 0


def patches() -> list:
    """List the patches of `PassContext` as (object, attribute name, new value)."""
    pass_context = tvm.transform.PassContext
    init, enter, leave = pass_context.__init__, pass_context.__enter__, pass_context.__exit__
    override = pass_context.override_instruments

    def context_init(self, *args, **kwargs):
        given = arguments(*args, **kwargs)
        _instruments.pop(id(self), None)  # of a context that is no more
        if given["instruments"]:
            _instruments[id(self)] = list(given["instruments"])
        init(self, **given)

    def context_enter(self):
        entered = enter(self)  # an instrument may raise an error
        _entered.stack = [*_stack(), self]
        return entered

    def context_leave(self, *error):
        _entered.stack = _stack()[:-1]
        return leave(self, *error)

    def override_instruments(self, new):
        _instruments[_key()] = list(new or ())
        return override(self, new or [])

    return [
        (pass_context, "__init__", context_init),
        (pass_context, "__enter__", context_enter),
        (pass_context, "__exit__", context_leave),
        (pass_context, "override_instruments", override_instruments),
        (tvm.instrument, "PassTimingInstrument", PassTimingInstrument),
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


# ---------------------------------------------------------------- instruments


@contextlib.contextmanager
def without_instruments(but=()) -> Iterator[None]:
    """Enter a context like the current one, in which no instrument hears of passes `but` these.

    It is for passes on Relax: instruments of old scripts know Relay's modules.
    """
    current = tvm.transform.PassContext.current()
    passes = {
        "required_pass": [str(name) for name in current.required_pass],
        "disabled_pass": [str(name) for name in current.disabled_pass],
    }
    level, config = int(current.opt_level), dict(current.config)
    with tvm.transform.PassContext(level, **passes, instruments=list(but) or None, config=config):
        yield


def timing_instruments() -> list:
    """Return those of `instruments` that time passes, of whatever modules."""
    return [each for each in instruments() if isinstance(each, PassTimingInstrument)]


@tvm.instrument.pass_instrument
class PassTimingInstrument:
    """`tvm.instrument.PassTimingInstrument`: times Relay's passes and TVM's.

    `render` returns the times of the last context, a line for each pass, indented below the pass that ran it;
    those of a build are its passes on Relax.
    """

    def __init__(self):
        self._passes, self._running = [], []  # of each: depth, name, seconds in it, seconds in those below
        self._contexts = 0  # that it is in, one in the other

    def enter_pass_ctx(self) -> None:
        """Forget the times of an earlier context."""
        if not self._contexts:
            self._passes, self._running = [], []
        self._contexts += 1

    def exit_pass_ctx(self) -> None:
        """Leave a context."""
        self._contexts -= 1

    def run_before_pass(self, _mod, info) -> None:
        """Start timing a pass."""
        timed = {"name": info.name, "depth": len(self._running), "inside": 0.0}
        self._passes.append(timed)
        self._running.append(timed)
        timed["spent"] = -time.perf_counter()

    def run_after_pass(self, _mod, _info) -> None:
        """Stop timing it."""
        timed = self._running.pop()
        timed["spent"] += time.perf_counter()
        if self._running:
            self._running[-1]["inside"] += timed["spent"]

    def render(self) -> str:
        """Return the microseconds of each pass, those outside the passes that it ran, and its share."""
        done = [timed for timed in self._passes if timed not in self._running]
        total = sum(timed["spent"] for timed in done if not timed["depth"]) or 1.0
        return "".join(
            f"{'    ' * timed['depth']}{timed['name']}: {1e6 * timed['spent']:.0f}us "
            f"[{1e6 * (timed['spent'] - timed['inside']):.0f}us] ({100 * timed['spent'] / total:.2f}%)\n"
            for timed in done
        )
