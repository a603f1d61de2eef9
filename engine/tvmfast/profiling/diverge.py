"""`diverge`: where a network's values leave those of a reference by more than rounding explains."""

import dataclasses
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax

from ..compiler import pipeline
from ..compiler.build import compiled, resolved
from ..core import annotations
from ..core.compat import pass_lock
from ..core.relax import op_name
from ..core.table import Table
from ..runtime.compiled import Compiled
from ..runtime.tensors import to_numpy
from .profiler import schedule_text
from .references import Reference, mxnet_reference, onnx_reference
from .steps import Graph, Itself, Step, in_float64, matched
from .values import Value, cast, compare, shifted

_LIMIT = 1 << 28
_TEXTS = "value", "operator", "reference", "rule", "fault"


class Divergence(Table):
    """The values of a network beside a reference's, in the order of the graph.

    Attributes:
        values: A `Value` for each that was compared, first those of the imported module, then the build's
            kernels, which are compared if the import is right, then the outputs.
        moved_by: The passes after which the result has moved: mostly one, or several that a build cannot stop
            between; empty if it has not moved, None if that was not asked.
    """

    formatters = (
        dict.fromkeys(("error", "tolerance"), "{:.1e}".format)
        | {"cosine": "{:.6f}".format}
        | {"shape": lambda shape: "x".join(map(str, shape)) or "a number"}
    )

    def __init__(self, values: list[Value], moved_by: str | None = None):
        """Keep the values."""
        self.values, self.moved_by = values, moved_by

    @property
    def text_columns(self) -> tuple[str, ...]:  # type: ignore[override]
        """The columns of text that the table has."""
        return tuple(name for name in self.frame() if name in _TEXTS)

    @property
    def first(self) -> Value | None:
        """The first value beyond its tolerance."""
        return next((value for value in self.values if value.fault), None)

    @property
    def summary(self) -> str:  # type: ignore[override]
        """What was found, in a sentence or two."""
        bad = self.first
        if not bad:
            text = f"All {len(self.values)} values agree within what rounding explains."
        else:
            beside = f" (the reference's {bad.reference})" if bad.reference else ""
            text = f"The first value beyond the tolerance is {bad.name}{beside}, made by {bad.operator}"
            text += f" with the schedule {bad.rule}: {bad.fault}." if bad.rule else f": {bad.fault}."
        if self.moved_by is not None:
            text += (
                f" The result moves after {self.moved_by}." if self.moved_by else " No pass moves the result."
            )
        return text

    def frame(self) -> Any:
        """Make a pandas DataFrame with a row per value."""
        import pandas as pd  # for speed: only where a table is shown

        rows = [dataclasses.asdict(value) for value in self.values]
        frame = pd.DataFrame(rows, columns=[field.name for field in dataclasses.fields(Value)])
        frame = frame.rename(columns={"name": "value", "nans": "NaN", "infinities": "infinite"})
        return frame[[name for name in frame if name in ("value", "error") or frame[name].astype(bool).any()]]


def diverge(
    mod: tvm.IRModule,
    params: Mapping,
    reference: Any = None,
    x: Any = None,
    passes: bool | Sequence[tvm.transform.Pass] = False,
    *,
    records: Any = None,
    limit: int = _LIMIT,
) -> Divergence:
    """Run a network value by value beside a reference, and find the first value that is wrong.

    First the imported module: each operator runs by itself, as plain loops, on the reference's inputs
    where these are known, so that errors do not accumulate. If all its values are right, the kernels of
    `build`: each beside the same kernel without its schedule. Last the build's outputs beside the
    reference's.

    A value may be off by what rounding explains. An error of a sum of n terms grows as the square root of n
    (see `core.rounding.share`), in units of the largest number, and of how far the value moves if its inputs
    move in proportion: the operator's condition, measured by moving them once. An infinity where the
    reference is finite, a NaN where it has none, and an integer that differs are always faults.

    Higham and Mary, see `core.rounding`; N. J. Higham, "Accuracy and Stability of Numerical Algorithms", 2nd
    edition, 2002, section 1.6, has the condition.

    Args:
        mod: A module from a frontend, with static dims, or one made from such a module.
        params: Its parameters, by name.
        reference: What computes the same values: a PyTorch module in eval mode or an ExportedProgram, whose
            program runs in float64; an ONNX file, its bytes or a ModelProto, which run in ONNX Runtime; an
            MXNet symbol, or a pair of one and its parameters. Where an exporter has folded a batch norm into
            a convolution, the convolution's values are others. None: the module itself at opt level 0, in
            float64 where its operators have that.
        x: The input, an array or a tensor; of several inputs a list, or a dictionary by name.
        passes: Whether to find the pass after which the result moves, by bisection: of `build`, or of a
            list of passes, which run before a build of level 0.
        records: As for `build`.
        limit: How many bytes of values are held at once, those that are read later apart.

    Returns:
        A `Divergence`, which shows itself as a table. Values that the reference does not have have no row.

    Raises:
        TypeError: `mod`, `params` or `reference` is of another kind.
        ValueError: The inputs do not fit the module, or the module has dynamic dims.
        Exception: What the reference's frontend raises: the reference is imported too.
    """
    mod, context = resolved(mod, params, records=records)
    if context.dims:
        raise ValueError(
            f"mod: expected static dims, this module has {', '.join(context.dims)}; import it for x's shape"
        )
    lib = compiled(mod, context)
    positions = x if isinstance(x, list | tuple) else [] if x is None or isinstance(x, Mapping) else [x]
    given = lib.input_tensors(lib.bind(tuple(positions), dict(x) if isinstance(x, Mapping) else {}))
    inputs = {spec.name: to_numpy(each) for spec, each in zip(lib.inputs, given, strict=True)}
    with pass_lock, context.target:
        if reference is None:
            wide = in_float64(mod)
            graph, beside, pairs = _beside_itself(mod, wide or mod, inputs, wide is None)
        else:
            graph, beside = Graph(mod), _reference(reference, inputs, params)
            pairs = matched(Graph(beside.mod), graph, beside.values)
        values = [*_compared(graph, inputs, beside, pairs, limit)]
        if not any(value.fault for value in values) and (kernels := _scheduled(mod, context)):
            of_kernels, plain, both = _beside_itself(*kernels, inputs, True)
            values += _compared(of_kernels, inputs, plain, both, limit)
        compared = _comparison(graph, inputs, lib)
        values += compared(lib, beside.outputs())
        listed = pipeline.passes(context) if passes is True else [*passes] if passes else []
        moved = _moved_by(mod, context, listed, inputs, compared) if listed else None
    return Divergence(values, moved)


def _reference(model: Any, inputs: Mapping[str, np.ndarray], params: Mapping) -> Reference:
    """Return the reference for a framework's model.

    Args:
        model: A PyTorch module in eval mode, or an ExportedProgram; an ONNX file, its bytes or a ModelProto;
            an MXNet symbol, which takes `params`, or a pair of one and its parameters.
        inputs: The arrays of the inputs, by name, in order.
        params: The parameters of the network that is compared.

    Raises:
        TypeError: The model is of another kind.
        ModuleNotFoundError: The framework is missing.
        Exception: What the frontend raises that imports the model.
    """
    torch, onnx = sys.modules.get("torch"), sys.modules.get("onnx")
    if torch and isinstance(model, torch.nn.Module | torch.export.ExportedProgram):
        from .torch_reference import torch_reference  # for speed: torch's exporter

        return torch_reference(model, inputs)
    if isinstance(model, str | os.PathLike | bytes) or (onnx and isinstance(model, onnx.ModelProto)):
        return onnx_reference(model, inputs)
    symbol, arrays = model if isinstance(model, tuple) and len(model) == 2 else (model, params)
    if hasattr(symbol, "tojson") and hasattr(symbol, "get_internals"):
        return mxnet_reference(symbol, arrays, inputs)
    raise TypeError(
        "reference: expected a PyTorch module or ExportedProgram, an ONNX file, an mx.sym.Symbol or a pair "
        f"of one and its parameters, or None for the network itself; got {type(model).__name__}"
    )


def _run(lib: Compiled, inputs: Iterable[np.ndarray]) -> tuple[np.ndarray, ...]:
    results = lib(*inputs)
    results = results if isinstance(results, tuple) else (results,)
    return tuple(each for each in results if each is not None)


# ---------------------------------------------------------------- comparing


def _compared(
    graph: Graph, inputs: Mapping[str, np.ndarray], beside: Any, pairs: Mapping[Step, Any], limit: int
) -> Iterator[Value]:
    """Yield a value of a graph beside a reference's for each pair of a step and a name in the reference.

    Each step reads the reference's values where there are any. Values are held for as long as they are read.
    """
    known: dict[relax.Var, np.ndarray] = dict(zip(graph.main.params, inputs.values(), strict=True))
    since: dict[relax.Var, list[Step]] = {}  # what has been computed since the reference's last values
    for start, stop in graph.parts(limit):
        steps = graph.steps[start:stop]
        wanted = beside.read([pairs[step] for step in steps if step in pairs])
        for step in steps:
            array = wanted[pairs[step]] if step in pairs else None
            if array is not None and array.shape == step.shape:
                known[step.var] = cast(array, step.var.ty.dtype)
        made = graph.run(start, stop, known, lambda array: array, shifted)
        for step in steps:
            chain = [*dict.fromkeys(each for var in step.reads for each in since.get(var, ())), step]
            if step in pairs:
                eps, terms = max(map(graph.eps, chain)), sum(map(graph.terms, chain))
                operators = dict.fromkeys(each.operator for each in chain if each.reads and each.operator)
                got, moved = made[step]
                yield dataclasses.replace(
                    compare(got, moved, wanted[pairs[step]], terms, eps, beside.rounded),
                    name=step.var.name,
                    operator=" + ".join(operators) or step.operator,
                    reference=pairs[step] if isinstance(pairs[step], str) else "",
                    rule=_rule(graph.mod, step),
                )
            if step.var not in known:
                since[step.var] = chain
                if step in made:
                    known[step.var] = made[step][0]
        known = {var: array for var, array in known.items() if graph.last.get(var, -1) >= stop}


def _rule(mod: tvm.IRModule, step: Step) -> str:
    if op_name(step.value) != "call_tir":
        return ""
    schedule = annotations.of_function(mod[step.value.args[0]])["schedule"]
    return "" if schedule["family"] == "none" else schedule_text(schedule)


def _beside_itself(mod: tvm.IRModule, twin: tvm.IRModule, inputs: Mapping, rounded: bool) -> tuple:
    """Return a module's graph, a reference that is the twin, and which step is which."""
    graph, beside = Graph(mod), Itself(twin, inputs, rounded)
    both = zip(graph.steps, beside.graph.steps, strict=True)
    return graph, beside, {step: other for step, other in both if step.shape is not None}


def _scheduled(mod: tvm.IRModule, context: Any) -> tuple[tvm.IRModule, tvm.IRModule] | None:
    """Return the kernels of a build after they are scheduled and before; None if none is."""
    for step in pipeline.passes(context):
        if str(step.info.name) == "ScheduleKernels":
            return step(mod), mod
        mod = step(mod)
    return None


def _comparison(graph: Graph, inputs: Mapping[str, np.ndarray], lib: Compiled) -> Callable:
    """Return a function that compares a library's outputs: all sums of the network follow one another."""
    terms = sum(map(graph.terms, graph.steps))
    eps = max(map(graph.eps, graph.steps), default=0.0)
    moved = _run(lib, map(shifted, inputs.values()))

    def compared(lib: Compiled, wanted: list[np.ndarray]) -> list[Value]:
        got = _run(lib, inputs.values())
        if len(got) != len(wanted):
            raise ValueError(f"mod: it has {len(got)} outputs, and the reference {len(wanted)}")
        values = [compare(*each, terms, eps, True) for each in zip(got, moved, wanted, strict=True)]
        return [
            dataclasses.replace(value, name=f"output{n}", operator="the whole build")
            for n, value in enumerate(values)
        ]

    return compared


def _moved_by(mod: tvm.IRModule, context: Any, passes: list, inputs: Mapping, compared: Callable) -> str:
    """Return the names of the passes after which the outputs leave those of opt level 0."""
    plain, modules = dataclasses.replace(context, opt_level=0), [mod]
    for each in passes:
        modules.append(each(modules[-1]))
    wanted = _run(compiled(mod, plain), inputs.values())

    def has_moved(number: int) -> bool:
        return any(value.fault for value in compared(compiled(modules[number], plain), wanted))

    low, high = 0, len(passes)
    if not has_moved(high):
        return ""
    between = [*range(1, high)]
    while between:
        middle = between.pop(len(between) // 2)
        try:
            low, high = (low, middle) if has_moved(middle) else (middle, high)
        except Exception:  # a build cannot stop there: FuseOps has made groups that FuseTIR has to merge
            continue
        between = [number for number in between if low < number < high]
    return ", ".join(str(each.info.name) for each in passes[low:high])
