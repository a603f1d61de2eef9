"""`relay.transform`: passes from module to module. Those that Relax has too run there, on the way down and up again."""

import sys
import warnings

import tvm
from tvm.relax import transform as t

from ...compiler.fold import fold_with_numpy
from ..context import PASSES, instruments
from . import ir
from .lift import from_relax
from .lower import to_relax
from .ops import OPERATORS

# The lowest opt level at which a Sequential runs a pass, as Relay had it.
_LEVELS = {
    "FuseOps": 0,
    "FoldConstant": 2,
    "FoldScaleAxis": 3,
    "EliminateCommonSubexpr": 3,
    "ConvertLayout": 3,
    "AlterOpLayout": 3,
}


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
        made = self.run(mod)
        _tell("run_after_pass", made, self)
        return made

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
        context = tvm.transform.PassContext.current()
        disabled, required = ({str(p) for p in which} for which in (context.disabled_pass, context.required_pass))
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
        raise TypeError(f"Sequential: {step.info.name} is a pass of today and takes no Relay module; run it on its own")
    print(mod, file=sys.stderr)
    return mod


def _relay(name):
    """Make a pass of a function from function to function; types are known before it and after it."""

    def register(body):
        def make(*args, **kwargs):
            def run(mod):
                typed = mod.infer().functions_items()
                return ir.IRModule({v: body(f, *args, **kwargs) for v, f in typed}).infer()

            return Pass(name, run)

        NAMES[name] = make
        return make

    return register


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

    def decorator(given=None, opt_level=0, name=None, required=None, traceable=False):
        def wrap(made):
            if isinstance(made, type):
                return lambda *args, **kwargs: wrap_one(getattr(made(*args, **kwargs), method), made.__name__)
            return wrap_one(made, made.__name__)

        def wrap_one(body, known_as):
            return Pass(name or known_as, lambda mod: run(body, mod, tvm.transform.PassContext.current()), opt_level)

        return wrap if given is None else wrap(given)

    return decorator


def _run_on_functions(body, mod, context):
    return ir.IRModule({v: body(f, mod, context) for v, f in mod.infer().functions_items()}).infer()


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
    "function_pass": _of_script("transform_function", _run_on_functions),
    "module_pass": _of_script("transform_module", lambda body, mod, context: body(mod, context)),
}


@_relay("InferType")
def infer_type(function):
    return function


@_relay("SimplifyInference")
def simplify_inference(function):
    """Batch norm as one multiplication and one addition, dropout as nothing."""
    make, replaced = OPERATORS, {}
    for node in ir.post_order(function.body):
        made = node.rebuild(lambda part: replaced.get(part, part))
        inner = made.tuple_value if isinstance(made, ir.TupleGetItem) else made
        if inner is not made and _is(inner, "nn.batch_norm") and made.index == 0:
            data, gamma, beta, mean, variance = inner.args
            scale = make["rsqrt"](variance + ir.const(inner.attrs.epsilon, variance._type.dtype))
            scale = scale * gamma if inner.attrs.scale else scale
            shift = -mean * scale
            shift = shift + beta if inner.attrs.center else shift
            rank = len(node._type.shape)
            behind = rank - 1 - inner.attrs.axis % rank
            scale, shift = (make["expand_dims"](v, axis=1, num_newaxis=behind) if behind else v for v in (scale, shift))
            made = data * scale + shift
        elif _is(made, "nn.dropout"):
            made = made.args[0]
        replaced[node] = made
    return ir.Function(function.params, replaced[function.body], attrs=function.attrs)


@_relay("EliminateCommonSubexpr")
def eliminate_common_subexpr(function, fskip=None):
    """Calls of the same operator, arguments and attributes become one, but for those that `fskip(call)` names."""
    replaced, first = {}, {}
    for node in ir.post_order(function.body):
        made = replaced[node] = node.rebuild(lambda part: replaced.get(part, part))
        if isinstance(made, ir.TupleGetItem):
            replaced[node] = first.setdefault((made.tuple_value, made.index), made)
        elif isinstance(made, ir.Call) and not (fskip and fskip(made)):
            again = made.attrs.get("_again") if made.attrs else None
            replaced[node] = first.setdefault((made.op, tuple(made.args), repr(made.attrs), again), made)
    return ir.Function(function.params, replaced[function.body], attrs=function.attrs)


def _layouts(desired):
    kernels = {"NCHW": "OIHW", "NHWC": "HWIO"}
    wanted = {}
    for name, layouts in desired.items():
        if name.startswith("qnn."):  # no module has such operators here
            continue
        if name != "nn.conv2d":
            raise NotImplementedError(f"ConvertLayout of {name}: Relax converts nn.conv2d and carries the rest along")
        data, kernel = [*layouts, "default"][:2]
        wanted[f"relax.{name}"] = [data, kernels.get(data, "OIHW") if kernel == "default" else kernel]
    return t.ConvertLayout(wanted)


def _precision(mixed_precision_type="float16", missing_op_mode=1):
    if mixed_precision_type != "float16":
        raise NotImplementedError(f"ToMixedPrecision to {mixed_precision_type}: Relax converts to float16 only")
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

_LATER = "tn.build chooses layouts and schedules itself, when it compiles"
for _name in (
    "AlterOpLayout",
    "Legalize",
    "CombineParallelConv2D",
    "CombineParallelDense",
    "CombineParallelBatchMatmul",
):
    _unchanged(_name, _LATER)
for _name in ("FastMath", "ToGraphNormalForm", "ToANormalForm", "Inline", "LazyGradientInit",
              "BackwardFoldScaleAxis", "SimplifyExpr", "DynamicToStatic", "Defunctionalization", "EtaExpand",
              "CanonicalizeCast"):  # fmt: skip
    _unchanged(_name, "Relax has no such pass, or does it in another way")


@_relay("FoldScaleAxis")
def fold_scale_axis(function):
    """Multiply a convolution's weight by what its result is multiplied with, channel by channel."""
    uses = _uses(function.body)
    replaced: dict = {}
    for node in ir.post_order(function.body):
        made = node.rebuild(lambda part: replaced.get(part, part))
        if _is(made, "multiply"):
            conv, scale = made.args if _is(made.args[0], "nn.conv2d") else reversed(made.args)
            plain = _is(conv, "nn.conv2d") and conv.attrs.data_layout == "NCHW" and conv.attrs.kernel_layout == "OIHW"
            channels = node._type.shape[1] if plain else 0
            shape = next(getattr(a._type, "shape", ()) for a in node.args if not _is(a, "nn.conv2d")) if plain else ()
            if (
                plain
                and uses[next(a for a in node.args if _is(a, "nn.conv2d"))] == 1
                and shape[-3:] == (channels, 1, 1)
            ):
                data, weight = conv.args
                factor = OPERATORS["reshape"](scale, newshape=(channels, 1, 1, 1))
                made = ir.Call(conv.op, [data, OPERATORS["multiply"](weight, factor)], conv.attrs)
        replaced[node] = made
    return ir.Function(function.params, replaced[function.body], attrs=function.attrs)


NAMES["ForwardFoldScaleAxis"] = NAMES["FoldScaleAxis"]


def _is(expr, name: str) -> bool:
    return isinstance(expr, ir.Call) and isinstance(expr.op, ir.Op) and expr.op.name == name


def _uses(body) -> dict:
    counts: dict = {}
    for node in ir.post_order(body):
        for part in node.operands():
            counts[part] = counts.get(part, 0) + 1
    return counts


# ---------------------------------------------------------------- fusion, as Relay drew it

_HEAVY = ("nn.conv", "nn.dense", "nn.matmul", "nn.batch_matmul")
_APART = ("nn.softmax", "nn.log_softmax", "nn.batch_norm", "split", "topk", "sort", "argsort", "take", "cumsum")


def _kind(call) -> str:
    """How an operator fuses: "heavy" takes elementwise ones, "reduction" ends a group, "opaque" is alone."""
    if not isinstance(call, ir.Call) or not isinstance(call.op, ir.Op):
        return "opaque"
    name = call.op.name
    if name.startswith(_HEAVY):
        return "heavy"
    if name in _APART:
        return "opaque"
    if "pool" in name or name in ("sum", "mean", "max", "min", "prod", "argmax", "argmin", "variance", "std"):
        return "reduction"
    return "elementwise"


@_relay("FuseOps")
def fuse_ops(function, fuse_opt_level=-1):
    """Groups of calls that become one kernel each, as functions with the attribute Primitive.

    A call joins the group of the value that it reads where nothing else reads that value, and the group is one that
    elementwise operators may follow. At level 0, which is that of the PassContext where it is -1, each is alone.
    """
    level = fuse_opt_level if fuse_opt_level >= 0 else int(tvm.transform.PassContext.current().opt_level)
    nodes = [node for node in ir.post_order(function.body) if isinstance(node, ir.Call)]
    uses, group = _uses(function.body), {}
    for node in nodes:
        group[node] = [node]
        if level == 0 or _kind(node) not in ("elementwise", "reduction"):
            continue
        for arg in node.args:
            joined = group.get(arg)
            if not joined or uses[arg] > 1 or _kind(arg) not in ("heavy", "elementwise"):
                continue
            merged = joined + [n for n in group[node] if n not in joined]
            kinds = [_kind(n) for n in merged]
            if kinds.count("heavy") + kinds.count("reduction") <= 1:  # one loop nest that is not elementwise
                for member in merged:
                    group[member] = merged
    replaced: dict = {}
    for node in ir.post_order(function.body):
        if node not in group:
            replaced[node] = node.rebuild(lambda part: replaced.get(part, part))
        elif group[node][-1] is node or not any(n in group[node] for n in _readers(nodes, node)):
            replaced[node] = _primitive(node, group[node], replaced)
    return ir.Function(function.params, replaced[function.body], attrs=function.attrs)


def _readers(nodes, value) -> list:
    return [n for n in nodes if value in n.args]


def _primitive(last, members, replaced):
    """The call of a function that computes `last` from what its group reads."""
    params, inner, outside = [], {}, []
    for node in ir.post_order(last):
        if node in members:
            for arg in node.args:
                if arg not in members and arg not in inner and not isinstance(arg, ir.Constant):
                    param = ir.Var(f"p{len(params)}", arg._type)
                    inner[arg] = param
                    params.append(param)
                    outside.append(replaced.get(arg, arg))
    body = ir.substitute(last, inner)
    return ir.Call(ir.Function(params, body, last._type, attrs={"Primitive": 1}), outside)
