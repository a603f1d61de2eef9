"""`relay.transform`: passes from module to module. Those that Relax has too run there, on the way down and up again."""

import sys
import warnings

import tvm
from tvm.relax import transform as t

from ...compiler.fold import fold_with_numpy
from ..context import PASSES, instruments
from . import ir, rewrites
from .lift import from_relax
from .lower import to_relax

# The lowest opt level at which a Sequential runs a pass, as Relay had it; 0 for the others.
_LEVELS = {
    "FoldConstant": 2,
    "FoldScaleAxis": 3,
    "EliminateCommonSubexpr": 3,
    "ConvertLayout": 3,
    "AlterOpLayout": 3,
}
_current = tvm.transform.PassContext.current
_SEQUENTIAL = tvm.transform.Sequential  # today's, whatever `enable` puts in its place


class Pass:
    """A pass by name; call it with a module."""

    def __init__(self, name: str, run, opt_level: int | None = None):
        self.name, self.run = name, run
        self.opt_level = _LEVELS.get(name, 0) if opt_level is None else opt_level
        self.info = self

    def __call__(self, mod: ir.IRModule) -> ir.IRModule:
        if not isinstance(mod, ir.IRModule):
            raise TypeError(f"relay.transform.{self.name}: expected a Relay module, got {type(mod).__name__}")
        _tell("run_before_pass", mod, self)
        mod = self.run(mod)
        _tell("run_after_pass", mod, self)
        return mod

    def __repr__(self) -> str:
        return f"Pass({self.name})"


def _tell(event: str, mod, info) -> None:
    """Call a method of the context's instruments that are classes of a script; TVM's own hear of its passes only."""
    for instrument in instruments():
        heard = getattr(instrument, event, None)
        if heard is not None:
            heard(mod, info)


class Sequential:
    """`tvm.transform.Sequential` for Relay's passes; a list of today's passes gives today's Sequential."""

    def __new__(cls, passes=None, opt_level=0, name="sequential", required=None):
        if any(isinstance(p, Pass | Sequential) for p in passes or ()):
            return super().__new__(cls)
        return _SEQUENTIAL(passes, opt_level, name, required)

    def __init__(self, passes=None, opt_level=0, name="sequential", required=None):
        self.passes, self.name = list(passes), name

    def __call__(self, mod):
        context = _current()
        disabled, required = (
            {str(p) for p in which} for which in (context.disabled_pass, context.required_pass)
        )
        for step in self.passes:
            name = getattr(step, "name", "")
            today = set(PASSES.get(name, [name]))  # PassContext keeps the names of today
            wanted = getattr(step, "opt_level", 0) <= int(context.opt_level) or today <= required
            if wanted and not today <= disabled:
                mod = step(mod) if isinstance(step, Pass | Sequential) else _step_of_today(step, mod)
        return mod


def _step_of_today(step, mod):
    if not isinstance(mod, ir.IRModule):
        return step(mod)
    if step.info.name != "PrintIR":
        raise TypeError(
            f"Sequential: {step.info.name} is a pass of today and takes no Relay module; run it on its own"
        )
    print(mod, file=sys.stderr)
    return mod


def _relay(name, body):
    """A pass of a function from function to function; types are known before it and after it."""

    def make(*args, **kwargs):
        return Pass(name, lambda mod: _each(mod, lambda function: body(function, *args, **kwargs)))

    NAMES[name] = make


def _each(mod: ir.IRModule, change) -> ir.IRModule:
    return ir.IRModule({var: change(function) for var, function in mod.infer().functions_items()}).infer()


def _relax(name, *passes):
    """A pass that Relax has as well; `passes` make it from the same arguments."""

    def make(*args, **kwargs):
        def run(mod):
            lowered, _ = to_relax(mod["main"], functions=mod.by_name())
            for step in passes:
                lowered = step(*args, **kwargs)(lowered)
            lowered = t.ConvertToDataflow()(lowered)
            return from_relax(t.CanonicalizeBindings()(lowered))

        return Pass(name, run)

    NAMES[name] = make


def _of_script(method: str, run):
    """A decorator that makes a pass of a script's own function, or of a class whose `method` is one."""

    def decorator(decorated=None, opt_level=0, name=None, required=None, traceable=False):
        def wrap(decorated):
            def make(body):
                return Pass(name or decorated.__name__, lambda mod: run(body, mod, _current()), opt_level)

            if isinstance(decorated, type):
                return lambda *args, **kwargs: make(getattr(decorated(*args, **kwargs), method))
            return make(decorated)

        return wrap if decorated is None else wrap(decorated)

    return decorator


def _unchanged(name, why):
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


def _layouts(desired):
    kernels = {"NCHW": "OIHW", "NHWC": "HWIO"}
    wanted = {}
    for name, layouts in desired.items():
        if name.startswith("qnn."):  # no module has such operators here
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


_relax("FoldConstant", fold_with_numpy, t.FoldConstant)
_relax("DeadCodeElimination", lambda *_: t.DeadCodeElimination())
_relax("CanonicalizeOps", t.CanonicalizeBindings)
_relax("ConvertLayout", _layouts)
_relax("ToMixedPrecision", _precision)


def _remove_unused_functions(entry_functions=("main",)):
    def run(mod):
        kept, left = {}, list(entry_functions)
        while left:
            name = left.pop()
            if name not in kept:
                kept[name] = mod[name]
                called = [getattr(node, "op", None) for node in ir.post_order(mod[name].body)]
                left += [op.name_hint for op in called if isinstance(op, tvm.ir.GlobalVar)]
        return ir.IRModule({v: f for v, f in mod.functions_items() if v.name_hint in kept})

    return Pass("RemoveUnusedFunctions", run)


NAMES["RemoveUnusedFunctions"] = _remove_unused_functions

for _name in ("AlterOpLayout", "Legalize", "CombineParallelConv2D", "CombineParallelDense",
              "CombineParallelBatchMatmul"):  # fmt: skip
    _unchanged(_name, "tn.build chooses layouts and schedules itself, when it compiles")
for _name in ("FastMath", "ToGraphNormalForm", "ToANormalForm", "Inline", "LazyGradientInit",
              "BackwardFoldScaleAxis", "SimplifyExpr", "DynamicToStatic", "Defunctionalization", "EtaExpand",
              "CanonicalizeCast"):  # fmt: skip
    _unchanged(_name, "Relax has no such pass, or does it in another way")


_relay("FoldScaleAxis", rewrites.fold_scale_axis)
NAMES["ForwardFoldScaleAxis"] = NAMES["FoldScaleAxis"]
_relay("FuseOps", rewrites.fuse_ops)
