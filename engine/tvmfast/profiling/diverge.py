"""`diverge`: where a network's values leave those of a reference by more than rounding explains."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax

from ..compiler import pipeline
from ..compiler.build import compiled, resolved
from ..core import annotations
from ..core.compat import pass_lock
from ..core.relax import op_name, static_shape
from ..core.specs import dtype_of
from ..core.table import Table
from ..runtime.compiled import Compiled
from .profiler import schedule_text
from .references import reference_of
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
    def last_good(self) -> Value | None:
        """The value before that."""
        first = self.values.index(self.first) if self.first else len(self.values)
        return self.values[first - 1] if first else None

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
    inputs = _inputs(mod["main"], x)
    with pass_lock, context.target:
        graph = Graph(mod)
        if reference is None:
            wide = in_float64(mod)
            beside: Any = Itself(wide or mod, inputs, rounded=wide is None)
            pairs = {n: n for n, step in enumerate(graph.steps) if step.is_value}
        else:
            beside = reference_of(reference, inputs, params)
            pairs = matched(Graph(beside.mod), graph, beside.values)
        values = list(_compared(graph, inputs, beside, pairs, limit))
        lib = compiled(mod, context)
        if not any(value.fault for value in values) and (scheduled := _scheduled(mod, context)):
            plain, graph_of_kernels = scheduled
            pairs = {n: n for n, step in enumerate(graph_of_kernels.steps) if step.is_value}
            values += _compared(graph_of_kernels, inputs, Itself(plain, inputs, rounded=True), pairs, limit)
        outputs = _Outputs(graph, inputs, lib)
        values += outputs.compared(lib, beside.outputs())
        moved = outputs.moved_by(mod, context, passes) if passes else None
    return Divergence(values, moved)


def _inputs(main: relax.Function, x: Any) -> dict[str, np.ndarray]:
    """Return the inputs by name, as arrays of main's types."""
    params = list(main.params)
    given = x if isinstance(x, list | tuple | Mapping) else [] if x is None else [x]
    listed = "; ".join(f"{p.name}: {p.ty.dtype}{static_shape(p.ty)}" for p in params)
    names = {p.name for p in params}
    if len(given) != len(params) or (isinstance(given, Mapping) and set(given) != names):
        raise ValueError(f"x: expected {len(params)} inputs ({listed}), got {len(given)}")
    arrays = {}
    for n, param in enumerate(params):
        value = given[param.name] if isinstance(given, Mapping) else given[n]
        array = np.asarray(value.numpy() if hasattr(value, "numpy") else value)
        if (array.shape, dtype_of(array)) != (static_shape(param.ty), str(param.ty.dtype)):
            raise ValueError(f"x: expected {listed}; got {array.dtype}{array.shape} for {param.name}")
        arrays[param.name] = array
    return arrays


# ---------------------------------------------------------------- comparing


def _compared(
    graph: Graph, inputs: Mapping[str, np.ndarray], beside: Any, pairs: Mapping[int, Any], limit: int
) -> Iterator[Value]:
    """Yield a value of a graph beside a reference's for each pair of a step and a name in the reference.

    Each step reads the reference's values where there are any. Values are held for as long as they are read.
    """
    known: dict[relax.Var, np.ndarray] = dict(zip(graph.main.params, inputs.values(), strict=True))
    # What has been computed since the reference's last values: terms and operators, one after another, and
    # the coarsest eps.
    since: dict[relax.Var, tuple[float, float, tuple]] = {}
    stop = 0
    while stop < len(graph.steps):
        start, held = stop, 0
        while stop < len(graph.steps) and (stop == start or held + graph.steps[stop].bytes <= limit):
            held += graph.steps[stop].bytes
            stop += 1
        wanted = beside.read([pairs[n] for n in range(start, stop) if n in pairs])
        for n in range(start, stop):
            step = graph.steps[n]
            array = wanted.get(pairs.get(n))
            if array is not None and array.shape == static_shape(step.var.ty):
                known[step.var] = cast(array, step.var.ty.dtype)
        lib, reads, made = graph.part(start, stop, known)
        if lib is not None:
            arrays = [known[var] for var in reads]
            results, moved = lib(*arrays), lib(*map(shifted, arrays))
            own = {step.var: pair for step, *pair in zip(made, results, moved, strict=True)}
        for n in range(start, stop):
            step = graph.steps[n]
            before = [since[var] for var in step.reads if var in since]
            terms = graph.terms(step) + max((each[0] for each in before), default=0)
            eps = max(graph.eps(step), *(each[1] for each in before), 0)
            operators = tuple(dict.fromkeys(name for each in before for name in each[2]))
            if step.reads and not isinstance(step.value, relax.TupleGetItem):
                operators += (step.operator,)
            array = wanted.get(pairs.get(n)) if step.is_value else None
            if array is not None:
                yield dataclasses.replace(
                    compare(*own[step.var], array, terms, eps, beside.rounded),
                    name=step.var.name,
                    operator=" + ".join(operators) or step.operator,
                    reference=pairs[n] if isinstance(pairs[n], str) else "",
                    rule=_rule(graph.mod, step),
                )
            if step.var not in known:
                since[step.var] = terms, eps, operators
                if step.is_value:
                    known[step.var] = own[step.var][0]
        known = {var: array for var, array in known.items() if graph.last.get(var, -1) >= stop}


def _rule(mod: tvm.IRModule, step: Step) -> str:
    if op_name(step.value) != "call_tir":
        return ""
    schedule = annotations.of_function(mod[step.value.args[0]])["schedule"]
    return "" if schedule["family"] == "none" else schedule_text(schedule)


def _scheduled(mod: tvm.IRModule, context: Any) -> tuple[tvm.IRModule, Graph] | None:
    """Return the kernels of a build before they are scheduled and after; None if none is."""
    for step in pipeline.passes(context):
        if str(step.info.name) == "ScheduleKernels":
            return mod, Graph(step(mod))
        mod = step(mod)
    return None


class _Outputs:
    """A build's outputs, and what rounding may do to them: all sums of the network one after another."""

    def __init__(self, graph: Graph, inputs: Mapping[str, np.ndarray], lib: Compiled):
        self.inputs = [*inputs.values()]
        self.terms = sum(map(graph.terms, graph.steps))
        self.eps = max(map(graph.eps, graph.steps), default=0.0)
        self.moved = self.run(lib, map(shifted, self.inputs))

    def run(self, lib: Compiled, inputs: Any = None) -> tuple[np.ndarray, ...]:
        """Run a library on the inputs."""
        results = lib(*(self.inputs if inputs is None else inputs))
        return results if isinstance(results, tuple) else (results,)

    def compared(self, lib: Compiled, wanted: Sequence[np.ndarray]) -> list[Value]:
        """Compare the outputs of a library."""
        got = self.run(lib)
        if len(got) != len(wanted):
            raise ValueError(f"mod: it has {len(got)} outputs, and the reference {len(wanted)}")
        values = [
            compare(*each, self.terms, self.eps, True) for each in zip(got, self.moved, wanted, strict=True)
        ]
        return [
            dataclasses.replace(value, name=f"output{n}", operator="the whole build")
            for n, value in enumerate(values)
        ]

    def moved_by(self, mod: tvm.IRModule, context: Any, passes: Any) -> str:
        """Return the names of the passes after which the outputs leave those of opt level 0."""
        listed = pipeline.passes(context) if passes is True else list(passes)

        def build_at(number):
            if passes is True:
                return compiled(mod, dataclasses.replace(context, cut=number))
            changed = mod
            for each in listed[:number]:
                changed = each(changed)
            return compiled(changed, dataclasses.replace(context, opt_level=0))

        plain = self.run(build_at(0))

        def has_moved(number):
            try:
                lib = build_at(number)
            except Exception:  # a build cannot stop there: FuseOps has made groups that FuseTIR has to merge
                if number == len(listed):
                    raise
                return None
            return any(value.fault for value in self.compared(lib, plain))

        low, high = 0, len(listed)
        if not has_moved(high):
            return ""
        untried = set(range(high))
        while between := [number for number in sorted(untried) if low < number < high]:
            middle = between[len(between) // 2]
            untried.remove(middle)
            moved = has_moved(middle)
            if moved is not None:
                low, high = (low, middle) if moved else (middle, high)
        return ", ".join(str(each.info.name) for each in listed[low:high])
