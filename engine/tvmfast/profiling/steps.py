"""A module as a list of steps that run a few at a time, which `diverge` compares, and which step is which."""

import difflib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.relax import transform as t

from ..compiler.build import compiled, resolved
from ..compiler.costs import count
from ..core.relax import op_name, static_shape
from ..runtime.compiled import Compiled
from .values import cast, eps_of

_WIDE = dict.fromkeys(("float16", "bfloat16", "float32"), "float64")


@dataclass(frozen=True, eq=False)
class Step:
    """A binding of `main` that computes something."""

    var: relax.Var
    value: relax.Expr
    operator: str
    reads: list[relax.Var]

    @property
    def is_value(self) -> bool:
        """Whether it makes a tensor."""
        return static_shape(self.var.ty) is not None

    @property
    def bytes(self) -> int:
        """Of the tensor, in float64; 0 of anything else."""
        return math.prod(static_shape(self.var.ty)) * 8 if self.is_value else 0


class Graph:
    """The bindings of a module's `main` without those that only rename, and what reads them last."""

    def __init__(self, mod: tvm.IRModule):
        self.mod = t.ToNonDataflow()(mod)
        self.main = self.mod["main"]
        self.same: dict[relax.Var, relax.Expr] = {}  # by a variable that another expression has set already
        self.steps: list[Step] = []
        made: dict[relax.Var, Step] = {}
        for binding in (each for block in self.main.body.blocks for each in block.bindings):
            var, value = binding.var, self.resolved(binding.value)
            if isinstance(value, relax.TupleGetItem):
                maker = made.get(self.resolved(value.tuple_value))
                if maker and isinstance(maker.value, relax.Tuple):
                    value = self.resolved(maker.value.fields[value.index])
            if isinstance(value, relax.Var | tvm.ir.GenericConst):
                self.same[var] = value
                continue
            reads = [self.resolved(each) for each in relax.analysis.free_vars(value)]
            reads = [each for each in dict.fromkeys(reads) if isinstance(each, relax.Var)]
            step = made[var] = Step(var, value, _operator(value, made), reads)
            self.steps.append(step)
        body = self.resolved(self.main.body.body)
        tuple_ = made[body].value if body in made and isinstance(made[body].value, relax.Tuple) else body
        self.results = [self.resolved(each) for each in getattr(tuple_, "fields", [body])]
        self.last: dict[relax.Expr, float] = dict.fromkeys(self.results, math.inf)
        for n, step in reversed([*enumerate(self.steps)]):
            end = n if step.is_value else max(n, self.last.get(step.var, n))  # the rest is computed again
            for var in step.reads:
                self.last[var] = max(self.last.get(var, 0), end)

    def resolved(self, expr: relax.Expr) -> relax.Expr:
        """Return what a variable is another name of, or the expression."""
        while isinstance(expr, relax.Var) and expr in self.same:
            expr = self.same[expr]
        return expr

    def part(self, start: int, stop: int, known: Mapping) -> tuple[Compiled | None, list, list[Step]]:
        """Compile steps at opt level 0.

        Args:
            start: The first step.
            stop: The one after the last.
            known: The values that are read rather than computed, by variable.

        Returns:
            The library, None if there is nothing to compute; the variables that it takes; the steps whose
            values it returns.
        """
        params: dict[relax.Var, relax.Var] = {}
        own: dict[relax.Var, relax.Var] = {}
        steps = {step.var: step for step in self.steps[:stop]}
        bindings = []

        def read(var):
            var = self.resolved(var)
            if not isinstance(var, relax.Var):
                return var
            if var in known:
                return params.setdefault(var, relax.Var(f"in{len(params)}", var.ty))
            if var not in own:
                compute(steps[var])
            return own[var]

        def compute(step):
            replace = _Replace({var: read(var) for var in relax.analysis.free_vars(step.value)})
            value = replace.visit_expr(step.value)
            own[step.var] = relax.Var(f"value{len(own)}", step.var.ty)
            bindings.append(relax.VarBinding(own[step.var], value))

        made = [step for step in self.steps[start:stop] if step.is_value]
        for step in made:
            if step.var not in own:
                compute(step)
        if not made:
            return None, [], []
        body = relax.SeqExpr([relax.BindingBlock(bindings)], relax.Tuple([own[step.var] for step in made]))
        types = tvm.ir.TupleType([step.var.ty for step in made])
        main = relax.Function([*params.values()], body, types, self.main.is_pure)
        main = main.with_attrs({"global_symbol": "main", "num_input": len(params)})
        mod = self.mod.clone()
        mod.update_func(mod.get_global_var("main"), main)
        mod = t.DeadCodeElimination()(t.Normalize()(mod))
        return compiled(*resolved(mod, {}, opt_level=0, records=False)), [*params], made

    def eps(self, step: Step) -> float:
        """Return the distance from 1 to the next number in the coarsest dtype that a step reads or makes."""
        args = getattr(step.value, "args", ())
        types = [each.ty for each in (step.var, *step.reads, *args) if isinstance(each.ty, relax.TensorType)]
        return max((eps_of(str(ty.dtype)) for ty in types), default=0.0)

    def terms(self, step: Step) -> float:
        """Return how many terms each element of a value sums, or how often it is rounded."""
        size = max(1, math.prod(static_shape(step.var.ty) or ()))
        call = step.value
        if isinstance(call, relax.TupleGetItem):
            made = next((each for each in self.steps if each.var.same_as(call.tuple_value)), None)
            return self.terms(made) if made else 1
        if not isinstance(call, tvm.ir.Call):
            return 1
        name = op_name(call)
        shapes = [static_shape(arg.ty) or () for arg in call.args if isinstance(arg.ty, relax.TensorType)]
        if name == "call_tir":
            return max(1, count(self.mod[call.args[0]])["flops"] / size)
        if "conv" in name:
            return math.prod(shapes[1]) / shapes[1][str(call.attrs.kernel_layout).index("O")]
        if name == "matmul":
            return shapes[0][-1]
        if "pool" in name and hasattr(call.attrs, "pool_size"):
            return math.prod(map(int, call.attrs.pool_size))
        if name.endswith("batch_norm"):
            return 4
        if "attention" in name:
            return sum(shapes[1])
        if "norm" in name or "softmax" in name or name.startswith("cum"):
            axes = getattr(call.attrs, "axes", None) or getattr(call.attrs, "axis", None)
            axes = [axes] if isinstance(axes, int) else axes or range(len(shapes[0]))
            return math.prod(shapes[0][int(axis)] for axis in axes)
        return max(1, math.prod(shapes[0]) / size) if shapes else 1


@relax.expr_functor.mutator
class _Replace(relax.PyExprMutator):
    def __init__(self, by: Mapping):
        super().__init__()
        self.by = by

    def visit_var_(self, var):
        return self.by.get(var, var)


def _operator(value: Any, made: Mapping) -> str:
    """Return the name of what a binding calls, of a part of a tuple that of what has made the tuple."""
    if isinstance(value, relax.TupleGetItem):
        return made[value.tuple_value].operator if value.tuple_value in made else "a part of a tuple"
    name = op_name(value)
    if name in ("call_tir", "call_tir_inplace"):
        return str(value.args[0].name_hint)
    if name in ("call_pure_packed", "call_dps_packed"):
        return str(value.args[0].global_symbol)
    return name or str(getattr(getattr(value, "op", None), "name_hint", type(value).__name__))


def in_float64(mod: tvm.IRModule) -> tvm.IRModule | None:
    """Return a module with the same bindings in float64; None if it calls functions or kernels of its own."""
    if len(mod.get_global_vars()) > 1:
        return None
    graph, builder = Graph(mod), relax.BlockBuilder()

    def wide(ty):
        return relax.TensorType(ty.shape, _WIDE.get(str(ty.dtype), str(ty.dtype)))

    new = {param: relax.Var(param.name, wide(param.ty)) for param in graph.main.params}

    def expr(old):
        old = graph.resolved(old)
        if isinstance(old, relax.Var):
            return new[old]
        if isinstance(old, tvm.ir.GenericConst) and str(old.ty.dtype) in _WIDE:
            return relax.const(old.value.numpy().astype("float64"), "float64")
        if isinstance(old, relax.Tuple):
            return relax.Tuple([*map(expr, old.fields)])
        if isinstance(old, relax.TupleGetItem):
            return relax.TupleGetItem(expr(old.tuple_value), old.index)
        if isinstance(old, tvm.ir.Call):
            return relax.Call(old.op, [*map(expr, old.args)], _wide_attrs(old.attrs))
        return old

    bindings = []
    for step in graph.steps:
        value = builder.normalize(expr(step.value))
        new[step.var] = relax.Var(step.var.name, value.ty)
        bindings.append(relax.VarBinding(new[step.var], value))
    results = [*map(expr, graph.results)]
    body = relax.SeqExpr([relax.BindingBlock(bindings)], relax.Tuple(results))
    types = tvm.ir.TupleType([each.ty for each in results])
    main = relax.Function([new[param] for param in graph.main.params], body, types, graph.main.is_pure)
    return t.Normalize()(tvm.IRModule({"main": main.with_attr("global_symbol", "main")}))


def _wide_attrs(attrs: Any) -> Any:
    """Return an operator's attributes with float64 for other floats."""
    info = type(attrs).__tvm_ffi_type_info__ if attrs else None
    fields = {field.name: getattr(attrs, field.name) for field in info.fields} if info else {}
    changed = {name: _WIDE[str(value)] for name, value in fields.items() if str(value) in _WIDE}
    return tvm.ir.make_node(info.type_key, **{**fields, **changed}) if changed else attrs


# ---------------------------------------------------------------- which value is which


def matched(twin: Graph, graph: Graph, values: Mapping[str, str]) -> dict[int, str]:
    """Return the reference's value of each step that has one.

    Args:
        twin: The reference's own import.
        graph: The graph, which may be another one: steps in the same order, of the same operators, are equal.
        values: By a variable of `twin`, the reference's name of its value.
    """

    def match(key, rows, columns, same_length):
        matcher = difflib.SequenceMatcher(None, [*map(key, rows)], [*map(key, columns)], autojunk=False)
        for tag, i, j, k, m in matcher.get_opcodes():
            if tag == "equal" or (same_length and tag == "replace" and j - i == m - k):
                yield from zip(rows[i:j], columns[k:m], strict=True)
            elif not same_length:
                yield from match(name, rows[i:j], columns[k:m], True)

    def name(step):  # "conv2d" of the operator nn.conv2d as of the kernel conv2d1
        return step[1].operator.rpartition(".")[2].rstrip("0123456789")

    def key(step):
        return name(step), str(static_shape(step[1].var.ty))

    both = match(key, [*enumerate(twin.steps)], [*enumerate(graph.steps)], False)
    pairs = {n: m for (n, _), (m, _) in both}
    position = {step.var: n for n, step in enumerate(twin.steps)}
    named = {var.name: twin.resolved(var) for var in (*twin.same, *position)}
    owned: dict[int, str] = {}  # by step of the twin
    for name, value in values.items():
        if (var := named.get(name)) in position and twin.steps[position[var]].is_value:
            owned.setdefault(position[var], value)
    inputs = {var: n for each in (twin, graph) for n, var in enumerate(each.main.params)}
    for n, m in [*pairs.items()]:  # the first operator of one is not the second one of the other
        reads = [[inputs.get(var) for var in step.reads] for step in (twin.steps[n], graph.steps[m])]
        if reads[0] != reads[1]:
            del pairs[n]
    found = {pairs[n]: value for n, value in owned.items() if n in pairs}
    where = {step.var: n for n, step in enumerate(graph.steps)}
    for n in sorted(owned.keys() - pairs.keys()):  # what reads it tells which other step has taken its place
        least = max((m for k, m in pairs.items() if k < n and k in owned), default=-1)
        most = min((m for k, m in pairs.items() if k > n and k in owned), default=len(graph.steps))
        readers = [(twin.results, graph.results)]
        readers += [(twin.steps[k].reads, graph.steps[m].reads) for k, m in pairs.items()]
        for ours, theirs in readers:
            for var, other in zip(ours, theirs, strict=False) if len(ours) == len(theirs) else ():
                m = where.get(other, -1)
                same = var.same_as(twin.steps[n].var) and static_shape(var.ty) == static_shape(other.ty)
                if same and least < m < most:
                    found.setdefault(m, owned[n])
    return found


class Itself:
    """A module at opt level 0 as the reference, a few steps at a time; see `references`."""

    def __init__(self, mod: tvm.IRModule, inputs: Mapping[str, np.ndarray], rounded: bool):
        """Begin with the inputs, in the module's dtypes."""
        self.graph, self.at, self.rounded = Graph(mod), 0, rounded
        arrays = zip(self.graph.main.params, inputs.values(), strict=True)
        self.known = {param: cast(array, param.ty.dtype) for param, array in arrays}

    def read(self, numbers: Sequence[int]) -> dict[int, np.ndarray]:
        """Return the values of steps."""
        return self._advance(max(numbers, default=self.at - 1) + 1, numbers)

    def outputs(self) -> list[np.ndarray]:
        """Return the module's outputs, after all else has been read."""
        self._advance(len(self.graph.steps), ())
        return [self.known[each] if each in self.known else each.value.numpy() for each in self.graph.results]

    def _advance(self, stop: int, numbers: Sequence[int]) -> dict[int, np.ndarray]:
        lib, reads, made = self.graph.part(self.at, stop, self.known)
        if lib is not None:
            results = lib(*(self.known[var] for var in reads))
            self.known |= {step.var: array for step, array in zip(made, results, strict=True)}
        found = {n: self.known[self.graph.steps[n].var] for n in numbers}
        self.known = {var: array for var, array in self.known.items() if self.graph.last.get(var, -1) >= stop}
        self.at = stop
        return found
