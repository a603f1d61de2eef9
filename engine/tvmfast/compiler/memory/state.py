"""State that stays inside a network: inputs that are fed from an output of the call before.

`main` still takes them and returns the outputs; `Compiled` keeps the tensors. A write to a few elements of
such an input happens in its memory, if nothing reads the input, or a view of it, afterwards.
"""

import itertools
import math
from collections.abc import Mapping

import tvm
from tvm import relax

from ...core.relax import known_shape, op_name, shape_text, written
from ..graph import partial_update


def resolve_state(main: relax.Function, state) -> dict[str, int]:
    """Check `state` as `build` takes it against a network's function, which has no parameters but its inputs.

    Returns:
        The number of the output by name of the input, in the order of the inputs.

    Raises:
        TypeError: It is no dictionary of names.
        ValueError: A name is unknown, an output comes twice, an input has an open size that no input of a
            call has, or the output has another shape or dtype.
    """
    if state is None:
        return {}
    if not isinstance(state, Mapping) or not all(isinstance(n, str) for pair in state.items() for n in pair):
        raise TypeError(
            f"state: expected a dictionary from input name to output name, {{'h': 'output1'}}; got {state!r}"
        )
    inputs = {param.name: param.ty for param in main.params}
    several = isinstance(main.ret_ty, tvm.ir.TupleType)
    outputs = {f"output{n}": ty for n, ty in enumerate(main.ret_ty.fields if several else [main.ret_ty])}
    numbers = {name: n for n, name in enumerate(outputs)}
    for kind, given, known in (("input", state.keys(), inputs), ("output", state.values(), outputs)):
        if unknown := [name for name in given if name not in known]:
            raise ValueError(f"state: expected an {kind}, one of {', '.join(known)}; got {unknown[0]!r}")
    called = {var for name in inputs.keys() - state.keys() for var in _open(inputs[name])}
    taken = {}
    for name, output in state.items():
        if output in taken:
            raise ValueError(
                f"state: expected a different output for each input; {output!r} is given for "
                f"{taken[output]!r} and {name!r}"
            )
        taken[output] = name
        if unknown := [var for var in _open(inputs[name]) if var not in called]:
            raise ValueError(
                f"state: input {name!r} is {_text(inputs[name])}, and its zeros need a number for "
                f"{str(unknown[0])!r}, which no input of a call has: import the network with a whole number "
                "there"
            )
        if _text(inputs[name]) != _text(outputs[output]):
            raise ValueError(
                f"state: expected an output of the shape and dtype of the input {name!r}, "
                f"{_text(inputs[name])}; {output!r} is {_text(outputs[output])}"
            )
    return {name: numbers[state[name]] for name in inputs if name in state}


def _open(ty) -> list[tvm.tirx.Var]:
    """Return the open sizes of an input."""
    return [size for size in ty.shape if isinstance(size, tvm.tirx.Var)]


def _text(ty) -> str:
    return f"{ty.dtype}[{', '.join(map(str, shape_text(ty) or '?'))}]"


def write_in_place(kept: dict[str, int]) -> tvm.transform.Pass:
    """Make the pass that lets kernels of `writes` write to the memory of the inputs `kept`, where it is safe.

    It runs last of the passes on the graph: those before may move and merge calls.
    """

    @tvm.transform.module_pass(opt_level=0, name="WriteInPlace")
    def run(mod, _context):
        main = mod["main"]
        graph = _Graph(mod, main)
        found = {var for name, n in kept.items() for var in graph.writes_to(name, n)}
        if not found:
            return mod
        builder = relax.BlockBuilder(mod)
        blocks = []
        for block in main.body.blocks:
            bindings = []
            for binding in block.bindings:
                if binding.var in found:
                    kernel, args = binding.value.args[:2]
                    made = builder.add_func(partial_update.in_place(mod[kernel]), "write_in_place")
                    call = builder.normalize(relax.call_tir_inplace(made, args, 0, binding.var.ty))
                    binding = relax.VarBinding(binding.var, call)
                bindings.append(binding)
            blocks.append(type(block)(bindings))
        body = relax.SeqExpr(blocks, main.body.body)
        changed = relax.Function(main.params, body, main.ret_ty, main.is_pure, main.attrs)
        mod = builder.get()
        mod.update_func(mod.get_global_var("main"), changed)
        return relax.transform.DeadCodeElimination()(mod)

    return run


class _Graph:
    """The bindings of `main`, in the order in which they run."""

    def __init__(self, mod, main):
        self.mod = mod
        self.params = {param.name: param for param in main.params}
        self.bindings = [binding for block in main.body.blocks for binding in block.bindings]
        self.bound = {binding.var: binding.value for binding in self.bindings}
        result = self.resolved(main.body.body)
        value = self.bound.get(result, result) if isinstance(result, relax.Var) else result
        self.heads = [*map(self.resolved, value.fields if isinstance(value, relax.Tuple) else [result])]

    def resolved(self, expr):
        """Return the variable that another one is only a name for."""
        while isinstance(expr, relax.Var) and isinstance(self.bound.get(expr), relax.Var):
            expr = self.bound[expr]
        return expr

    def writes_to(self, name: str, output: int) -> list[relax.Var]:
        """Return the results of the writes that make the output of an input, if all may happen in place.

        They form a chain from the input to the output. Each ends the value before it: nothing may read that
        later, by another name or as a view, and no other output may be in the same memory.
        """
        values = [self.heads[output]] if output < len(self.heads) else []
        while values and not values[0].same_as(self.params[name]):
            call = self.bound.get(values[0]) if isinstance(values[0], relax.Var) else None
            values = [self.resolved(call.args[1].fields[0]), *values] if is_write(self.mod, call) else []
        if len(values) < 2:
            return []
        places = {binding.var: n for n, binding in enumerate(self.bindings)}
        writers = {places[value] for value in values[1:]}
        ends = {value: places[after] for value, after in itertools.pairwise(values)}
        ends[values[-1]] = len(self.bindings)
        for place, binding in enumerate(self.bindings):
            is_writer = place in writers
            reads = binding.value.args[1].fields[1:] if is_writer else [binding.value]
            read = [var for expr in reads for var in _variables(expr) if var in ends]
            if any(is_writer or place > ends[var] for var in read):
                return []
            if any(may_share(binding, var) for var in read):
                ends[binding.var] = min(ends[var] for var in read)
        others = [head for n, head in enumerate(self.heads) if n != output]
        shared = any(var in ends for head in others for var in _variables(head))
        return [] if shared else values[1:]


def may_share(binding, var: relax.Var) -> bool:
    """Return whether a result may lie in the memory of an operand: a kernel may turn out to be a view.

    It can be one of a tensor that has as many elements whatever the open sizes are. Their counts are compared
    as sums of products; one that holds a quotient, in parentheses, may be equal to another in another form.
    """
    shapes = [known_shape(each.ty) for each in (binding.var, var)]
    if op_name(binding.value) != "call_tir" or None in shapes:
        return True
    own, other = (written(math.prod(shape)) for shape in shapes)
    return None in (own, other) or own == other or "(" in f"{own}{other}"


def is_write(mod: tvm.IRModule, call) -> bool:
    """Return whether an expression calls a kernel that writes to a copy of its first argument."""
    if op_name(call) != "call_tir":
        return False
    return partial_update.PLACE in (mod[call.args[0]].attrs or {})


def _variables(expr) -> list[relax.Var]:
    found = []
    relax.analysis.post_order_visit(
        expr, lambda each: found.append(each) if isinstance(each, relax.Var) else None
    )
    return found
