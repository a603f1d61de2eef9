"""A module as a list of steps that run a few at a time, which `diverge` compares, and which step is which."""

import difflib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.relax import transform as t

from ..compiler.build import compiled, resolved
from ..compiler.costs import count
from ..core.relax import op_name, static_shape
from .trace import called
from .values import cast, eps_of

_WIDE = dict.fromkeys(("float16", "bfloat16", "float32"), "float64")


@dataclass(frozen=True, eq=False)
class Step:
    """A binding of `main`: what it computes, by which operator, and from which variables.

    `shape` is that of the tensor that it makes; None if it makes something else.
    """

    var: relax.Var
    value: relax.Expr
    operator: str
    reads: list[relax.Var]
    shape: tuple[int, ...] | None


class Graph:
    """The steps of a module's `main`, its results, and for each variable the step that reads it last."""

    def __init__(self, mod: tvm.IRModule):
        self.mod = t.CanonicalizeBindings()(t.ToNonDataflow()(mod))
        self.main = self.mod["main"]
        self.made: dict[relax.Var, Step] = {}
        for binding in (each for block in self.main.body.blocks for each in block.bindings):
            var, value = binding.var, binding.value
            operator = called(value) if isinstance(value, tvm.ir.Call) else ""
            if isinstance(value, relax.TupleGetItem) and value.tuple_value in self.made:
                operator = self.made[value.tuple_value].operator
            reads = [*relax.analysis.free_vars(value)]
            self.made[var] = Step(var, value, operator, reads, static_shape(var.ty))
        self.steps = [*self.made.values()]
        body = self.main.body.body
        value = self.made[body].value if body in self.made else body
        self.results = [*value.fields] if isinstance(value, relax.Tuple) else [body]
        self.last: dict[relax.Expr, float] = dict.fromkeys(self.results, math.inf)
        for n, step in reversed([*enumerate(self.steps)]):
            # What is no tensor is not held, but computed again where it is read.
            end = n if step.shape is not None else max(n, self.last.get(step.var, n))
            for var in step.reads:
                self.last[var] = max(self.last.get(var, 0), end)

    def parts(self, limit: int) -> Iterator[tuple[int, int]]:
        """Yield the bounds of parts, of one step or with no more than `limit` bytes of values in float64."""
        start, held = 0, 0
        for n, step in enumerate(self.steps):
            size = 0 if step.shape is None else 8 * math.prod(step.shape)
            if n > start and held + size > limit:
                yield start, n
                start, held = n, 0
            held += size
        yield start, len(self.steps)

    def run(self, start: int, stop: int, known: Mapping, *changes: Any) -> dict[Step, list[np.ndarray]]:
        """Compute the values of steps at opt level 0.

        Args:
            start: The first step.
            stop: The one after the last.
            known: Arrays that are read where they are known, rather than those that are computed.
            changes: Functions that change them; the values are computed once for each.

        Returns:
            For each step that makes a tensor its values, one for each change.
        """
        own = {
            step: relax.Var(f"own{n}", step.var.ty) if step.var in known else step.var
            for n, step in enumerate(self.steps[start:stop])
            if step.shape is not None
        }
        if not own:
            return {}
        bindings, read = [], set()
        for step in reversed(self.steps[:stop]):
            if step in own or (step.var in read and step.var not in known):
                bindings.append(relax.VarBinding(own.get(step, step.var), step.value))
                read.update(step.reads)
        params = [var for var in known if var in read]
        body = relax.SeqExpr([relax.BindingBlock(bindings[::-1])], relax.Tuple([*own.values()]))
        mod = self.mod.clone()
        mod["main"] = _function(params, body, self.main.is_pure)
        mod = t.DeadCodeElimination()(t.Normalize()(mod))
        lib = compiled(*resolved(mod, {}, opt_level=0, records=False))
        runs = [lib(*(change(known[var]) for var in params)) for change in changes]
        return {step: [*each] for step, *each in zip(own, *runs, strict=True)}

    def eps(self, step: Step) -> float:
        """Return the distance from 1 to the next number in the coarsest dtype that a step reads or makes."""
        args = getattr(step.value, "args", ())
        types = [each.ty for each in (step.var, *step.reads, *args) if isinstance(each.ty, relax.TensorType)]
        return max((eps_of(str(ty.dtype)) for ty in types), default=0.0)

    def terms(self, step: Step) -> float:
        """Return how many terms each element of a value sums, or how often it is rounded."""
        call, name, size = step.value, op_name(step.value), math.prod(step.shape or ())
        if isinstance(call, relax.TupleGetItem) and call.tuple_value in self.made:
            return self.terms(self.made[call.tuple_value])
        shapes = [static_shape(arg.ty) or () for arg in getattr(call, "args", ())]
        if not shapes or not size:
            return 1
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
        return max(1, math.prod(shapes[0]) / size)


def _function(params: Sequence[relax.Var], body: relax.Expr, is_pure: bool) -> relax.Function:
    main = relax.Function([*params], body, body.body.ty, is_pure)
    return main.with_attrs({"global_symbol": "main", "num_input": len(params)})


@relax.expr_functor.mutator
class _InFloat64(relax.PyExprMutator):
    def visit_generic_const_(self, constant: Any) -> Any:
        if str(constant.ty.dtype) not in _WIDE:
            return constant
        return relax.const(constant.value.numpy().astype("float64"), "float64")

    def visit_call_(self, call: Any) -> Any:
        call = self.visit_expr_post_order(call)
        if op_name(call).startswith("call_"):
            return call
        info = type(call.attrs).__tvm_ffi_type_info__ if call.attrs else None
        fields = {field.name: getattr(call.attrs, field.name) for field in info.fields} if info else {}
        changed = {name: _WIDE[str(value)] for name, value in fields.items() if str(value) in _WIDE}
        attrs = tvm.ir.make_node(info.type_key, **{**fields, **changed}) if info and changed else call.attrs
        return relax.Call(call.op, call.args, attrs)  # whose type is inferred again


def in_float64(mod: tvm.IRModule) -> tvm.IRModule | None:
    """Return a module with the same bindings in float64; None if it calls functions or kernels of its own."""
    main = mod["main"]
    calls = map(op_name, relax.analysis.get_var2val(main).values())
    if len(mod.get_global_vars()) > 1 or "call_dps_packed" in calls:
        return None
    mutator, params = _InFloat64(), []
    for param in main.params:
        dtype = str(param.ty.dtype)
        params.append(relax.Var(param.name, relax.TensorType(param.ty.shape, _WIDE.get(dtype, dtype))))
        mutator.set_var_remap(param, params[-1])
    return tvm.IRModule({"main": _function(params, mutator.visit_with_new_scope(main.body), main.is_pure)})


# ---------------------------------------------------------------- which value is which


def matched(twin: Graph, graph: Graph, values: Mapping[str, str]) -> dict[Step, str]:
    """Return the reference's value of each step that has one.

    Args:
        twin: The reference's own import.
        graph: The graph, which may be another one: steps in the same order, of the same operators, are equal.
        values: By a variable of `twin`, the reference's name of its value.
    """

    def name(step: Step) -> str:  # "conv2d" of the operator nn.conv2d as of the kernel conv2d1
        return step.operator.rpartition(".")[2].rstrip("0123456789")

    def aligned(rows: Sequence, columns: Sequence, key: Callable, *others: Callable) -> Iterator[tuple]:
        matcher = difflib.SequenceMatcher(None, [*map(key, rows)], [*map(key, columns)], autojunk=False)
        for tag, i, j, k, m in matcher.get_opcodes():
            if tag == "equal" or (not others and j - i == m - k):
                yield from zip(rows[i:j], columns[k:m], strict=True)
            elif others:
                yield from aligned(rows[i:j], columns[k:m], *others)

    # The first operator of one is not the second one of the other.
    inputs = {var: n for each in (twin, graph) for n, var in enumerate(each.main.params)}
    pairs = {
        step: other
        for step, other in aligned(twin.steps, graph.steps, lambda step: (name(step), step.shape), name)
        if [inputs.get(var) for var in step.reads] == [inputs.get(var) for var in other.reads]
    }
    tensors = [step for step in twin.steps if step.shape is not None]
    owned = {step: values[step.var.name] for step in tensors if step.var.name in values}
    found = {pairs[step]: value for step, value in owned.items() if step in pairs}
    # What reads a value tells which other step has taken the place of the one that made it.
    readers = [(twin.results, graph.results)]
    readers += [(step.reads, other.reads) for step, other in pairs.items()]
    for ours, theirs in readers:
        for var, other in zip(ours, theirs, strict=False) if len(ours) == len(theirs) else ():
            step, in_place = twin.made.get(var), graph.made.get(other)
            if step in owned and step not in pairs and in_place and in_place.shape == step.shape:
                found.setdefault(in_place, owned[step])
    return {step: value for step, value in found.items() if step.shape is not None}


class Itself:
    """A module at opt level 0 as the reference, a few steps at a time; see `references.Reference`."""

    def __init__(self, mod: tvm.IRModule, inputs: Mapping[str, np.ndarray], rounded: bool):
        """Begin with the inputs, in the module's dtypes."""
        self.graph, self.at, self.rounded = Graph(mod), 0, rounded
        arrays = zip(self.graph.main.params, inputs.values(), strict=True)
        self.known = {param: cast(array, param.ty.dtype) for param, array in arrays}

    def read(self, steps: Sequence[Step], stop: int = 0) -> dict[Step, np.ndarray]:
        """Return the values of steps, and run up to these, and to `stop`; each step runs once."""
        stop = max([stop, self.at, *(self.graph.steps.index(step) + 1 for step in steps)])
        made = self.graph.run(self.at, stop, self.known, lambda array: array)
        self.known |= {step.var: array for step, (array,) in made.items()}
        found = {step: self.known[step.var] for step in steps}
        self.known = {var: array for var, array in self.known.items() if self.graph.last.get(var, -1) >= stop}
        self.at = stop
        return found

    def outputs(self) -> list[np.ndarray]:
        """Return the module's outputs, after all else has been read."""
        self.read([], len(self.graph.steps))
        return [self.known[each] if each in self.known else each.value.numpy() for each in self.graph.results]
