"""`relay.transform`: module passes. Those that Relax has too run there, between lowering and lifting."""

import sys
import warnings

import tvm
from tvm.relax import transform as t

from ..context import PASSES, instruments, without_instruments
from ..removed import ROWS
from . import ir, rewrites
from .lift import from_relax
from .lower import to_relax

# The lowest opt level at which a Sequential runs a pass, as in Relay; 0 for all others.
_AT_3 = ("FoldScaleAxis", "EliminateCommonSubexpr", "ConvertLayout", "AlterOpLayout")
_LEVELS = {"FoldConstant": 2, **dict.fromkeys(_AT_3, 3)}
_current = tvm.transform.PassContext.current
_SEQUENTIAL = tvm.transform.Sequential  # TVM's own, which `enable` replaces


class Pass:
    """A named pass, called with a module.

    `run` maps a module to a module; without an `opt_level`, the pass has Relay's.
    """

    def __init__(self, name: str, run, opt_level: int | None = None):
        self.name, self.run = name, run
        self.opt_level = _LEVELS.get(name, 0) if opt_level is None else opt_level
        self.info = self

    def __call__(self, mod: ir.IRModule) -> ir.IRModule:
        """Run the pass on a Relay module. Raises TypeError for others."""
        if not isinstance(mod, ir.IRModule):
            raise TypeError(f"relay.transform.{self.name}: expected a Relay module, got {type(mod).__name__}")
        return _instrumented(mod, self, self.run)

    def __repr__(self) -> str:
        return f"Pass({self.name})"


def _instrumented(mod, info, run):
    """Run a pass, of which the context's instruments hear before and after; one may have it skipped."""
    heard = instruments()
    callbacks = {
        event: [getattr(each, event) for each in heard if hasattr(each, event)]
        for event in ("should_run", "run_before_pass", "run_after_pass")
    }
    is_required = set(PASSES.get(info.name, [info.name])) <= {*map(str, _current().required_pass)}
    # An instrument that has no should_run of its own inherits one that returns None.
    if not is_required and any(wanted(mod, info) is False for wanted in callbacks["should_run"]):
        return mod
    for before in callbacks["run_before_pass"]:
        before(mod, info)
    mod = run(mod)
    for after in callbacks["run_after_pass"]:
        after(mod, info)
    return mod


class Sequential:
    """`tvm.transform.Sequential` for Relay's passes; a list of TVM passes makes a TVM Sequential."""

    def __new__(cls, passes=None, opt_level=0, name="sequential", required=None):
        """Create a Sequential of this class if there is a Relay pass, else TVM's."""
        if any(isinstance(p, Pass | Sequential) for p in passes or ()):
            return super().__new__(cls)
        return _SEQUENTIAL(passes, opt_level, name, required)

    def __init__(self, passes=None, opt_level=0, name="sequential", required=None):
        self.passes, self.name = list(passes), name
        self.opt_level, self.info = opt_level, self

    def __call__(self, mod):
        """Run the passes that the current PassContext enables."""
        return _instrumented(mod, self, self._run)

    def _run(self, mod):
        context = _current()
        disabled = {str(p) for p in context.disabled_pass}
        required = {str(p) for p in context.required_pass}
        for each in self.passes:
            name = getattr(each, "name", "")
            current = set(PASSES.get(name, [name]))  # PassContext stores the current names
            wanted = getattr(each, "opt_level", 0) <= int(context.opt_level) or current <= required
            if wanted and not current <= disabled:
                mod = each(mod) if isinstance(each, Pass | Sequential) else _run_tvm_pass(each, mod)
        return mod


def _run_tvm_pass(tvm_pass, mod):
    if not isinstance(mod, ir.IRModule):
        return tvm_pass(mod)
    if tvm_pass.info.name != "PrintIR":
        raise TypeError(
            f"Sequential: {tvm_pass.info.name} is a pass of today and takes no Relay module; run it on "
            "its own"
        )
    print(mod, file=sys.stderr)
    return mod


def _relay(name, body):
    """Register a pass made from a function-to-function `body`; types are inferred before and after it."""

    def make(*args, **kwargs):
        return Pass(name, lambda mod: _each(mod, lambda function: body(function, *args, **kwargs)))

    NAMES[name] = make


def _each(mod: ir.IRModule, change) -> ir.IRModule:
    return ir.IRModule({var: change(function) for var, function in mod.infer().functions_items()}).infer()


def _relax(name, *passes):
    """Register a pass that Relax has too; `passes` are its factories, called with the same arguments."""

    def make(*args, **kwargs):
        def run(mod):
            lowered, _ = to_relax(mod["main"], functions=mod.by_name())
            with without_instruments():  # they hear of this pass, not of its parts
                for factory in passes:
                    lowered = factory(*args, **kwargs)(lowered)
                lowered = t.ConvertToDataflow()(lowered)
                return from_relax(t.CanonicalizeBindings()(lowered))

        return Pass(name, run)

    NAMES[name] = make


def _of_script(method: str, run):
    """Return a decorator that turns a script's function, or a class with a `method`, into a pass."""

    def decorator(decorated=None, opt_level=0, name=None, required=None, traceable=False):
        def wrap(decorated):
            def make(body):
                return Pass(name or decorated.__name__, lambda mod: run(body, mod, _current()), opt_level)

            if isinstance(decorated, type):
                return lambda *args, **kwargs: make(getattr(decorated(*args, **kwargs), method))
            return make(decorated)

        return wrap if decorated is None else wrap(decorated)

    return decorator


def _unchanged(name):
    _, why = ROWS["passes"][f"relay.transform.{name}"]

    def make(*_args, **_kwargs):
        def run(mod):
            warnings.warn(f"relay.transform.{name} leaves the module as it is: {why}", stacklevel=3)
            return mod

        return Pass(name, run)

    NAMES[name] = make


NAMES: dict = {
    "Pass": Pass,
    "Sequential": Sequential,
    "PassContext": tvm.transform.PassContext,
    "function_pass": _of_script(
        "transform_function",
        lambda body, mod, context: _each(mod, lambda function: body(function, mod, context)),
    ),
    "module_pass": _of_script("transform_module", lambda body, mod, context: body(mod, context)),
}


_relay("InferType", lambda function: function)
_relay("SimplifyInference", rewrites.simplify_inference)
_relay("EliminateCommonSubexpr", rewrites.eliminate_common_subexpr)
_relay("FoldConstant", rewrites.fold_constant)


def _layouts(desired):
    kernels = {"NCHW": "OIHW", "NHWC": "HWIO"}
    wanted = {}
    for name, layouts in desired.items():
        if name.startswith("qnn."):  # a build chooses the layouts of integers
            continue
        if name != "nn.conv2d":
            raise NotImplementedError(
                f"ConvertLayout of {name}: Relax converts nn.conv2d and carries the rest along"
            )
        data, kernel = [*layouts, "default"][:2]
        wanted[f"relax.{name}"] = [data, kernels.get(data, "OIHW") if kernel == "default" else kernel]
    return t.ConvertLayout(wanted)


def _precision(mixed_precision_type="float16", missing_op_mode=1):
    if mixed_precision_type != "float16":
        raise NotImplementedError(
            f"ToMixedPrecision to {mixed_precision_type}: Relax converts to float16 only"
        )
    return t.ToMixedPrecision("float16")


_relax("DeadCodeElimination", lambda *_: t.DeadCodeElimination())
_relax("CanonicalizeOps", t.CanonicalizeBindings)
_relax("ConvertLayout", _layouts)
_relax("ToMixedPrecision", _precision)


def _remove_unused_functions(entry_functions=("main",)):
    def run(mod):
        used = {}
        pending = list(entry_functions)
        while pending:
            name = pending.pop()
            if name not in used:
                used[name] = mod[name]
                called = [getattr(node, "op", None) for node in ir.post_order(mod[name].body)]
                pending += [op.name_hint for op in called if isinstance(op, tvm.ir.GlobalVar)]
        return ir.IRModule({v: f for v, f in mod.functions_items() if v.name_hint in used})

    return Pass("RemoveUnusedFunctions", run)


NAMES["RemoveUnusedFunctions"] = _remove_unused_functions

_relay("AlterOpLayout", rewrites.alter_op_layout)

# names.csv says why.
for _name in (
    "Legalize",
    "CombineParallelConv2D", "CombineParallelDense", "CombineParallelBatchMatmul",
    "FastMath", "ToGraphNormalForm", "ToANormalForm", "Inline", "LazyGradientInit", "BackwardFoldScaleAxis",
    "SimplifyExpr", "DynamicToStatic", "Defunctionalization", "EtaExpand", "CanonicalizeCast",
):  # fmt: skip
    _unchanged(_name)


_relay("FoldScaleAxis", rewrites.fold_scale_axis)
NAMES["ForwardFoldScaleAxis"] = NAMES["FoldScaleAxis"]
_relay("FuseOps", rewrites.fuse_ops)

# `relay.qnn.transform`: lowered, or left to the build, which knows the CPU.
QNN = {"CanonicalizeOps": NAMES["CanonicalizeOps"], "Legalize": lambda: Pass("Legalize", lambda mod: mod)}
