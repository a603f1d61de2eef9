"""State: inputs that alias an output of the call before.

`main` still takes them and returns the outputs; `Compiled` holds the tensors. A partial update of such an
input happens in place if nothing reads the input, or a view of it, afterwards.
"""

import itertools
import math
from collections.abc import Mapping

import tvm
from tvm import relax

from ...core.relax import dim_to_str, known_shape, op_name, shape_text
from ..graph import partial_update


def resolve_state(main: relax.Function, state) -> dict[str, int]:
    """Check `state`, as `build` takes it, against a network's function, whose only parameters are its inputs.

    Returns:
        The index of the output by the name of the input, in the order of the inputs.

    Raises:
        TypeError: It is no dictionary of names.
        ValueError: A name is unknown, an output comes twice, an input has a dynamic dim that no input of a
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
    called = {var for name in inputs.keys() - state.keys() for var in _dynamic(inputs[name])}
    taken = {}
    for name, output in state.items():
        if output in taken:
            raise ValueError(
                f"state: expected a different output for each input; {output!r} is given for "
                f"{taken[output]!r} and {name!r}"
            )
        taken[output] = name
        if unknown := [var for var in _dynamic(inputs[name]) if var not in called]:
            raise ValueError(
                f"state: input {name!r} is {_text(inputs[name])}, and its zeros need a number for "
                f"{str(unknown[0])!r}, which no input of a call has: import the network with a static dim "
                "there"
            )
        if _text(inputs[name]) != _text(outputs[output]):
            raise ValueError(
                f"state: expected an output of the shape and dtype of the input {name!r}, "
                f"{_text(inputs[name])}; {output!r} is {_text(outputs[output])}"
            )
    return {name: numbers[state[name]] for name in inputs if name in state}


def _dynamic(ty) -> list[tvm.tirx.Var]:
    return [dim for dim in ty.shape if isinstance(dim, tvm.tirx.Var)]


def _text(ty) -> str:
    return f"{ty.dtype}[{', '.join(map(str, shape_text(ty) or '?'))}]"


def update_in_place(aliases: Mapping[str, int]) -> tvm.transform.Pass:
    """Make the pass that does partial updates of the inputs `aliases` in place, where it is safe.

    It runs last of the passes on the graph: those before may move and merge calls.
    """

    @tvm.transform.module_pass(opt_level=0, name="UpdateInPlace")
    def run(mod, _context):
        main = mod["main"]
        graph = _Graph(mod, main)
        found = {var for name, n in aliases.items() for var in graph.updates_of(name, n)}
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

    def updates_of(self, name: str, output: int) -> list[relax.Var]:
        """Return the results of the partial updates from an input to its output, if all may be in place.

        They form a chain from the input to the output. Each ends the value before it: nothing may read that
        later, by another name or as a view, and no other output may alias it.
        """
        values = [self.heads[output]] if output < len(self.heads) else []
        while values and not values[0].same_as(self.params[name]):
            call = self.bound.get(values[0]) if isinstance(values[0], relax.Var) else None
            values = [self.resolved(call.args[1].fields[0]), *values] if is_update(self.mod, call) else []
        if len(values) < 2:
            return []
        order = {binding.var: n for n, binding in enumerate(self.bindings)}
        writers = {order[value] for value in values[1:]}
        ends = {value: order[after] for value, after in itertools.pairwise(values)}
        ends[values[-1]] = len(self.bindings)
        for n, binding in enumerate(self.bindings):
            is_writer = n in writers
            reads = binding.value.args[1].fields[1:] if is_writer else [binding.value]
            read = [var for expr in reads for var in _variables(expr) if var in ends]
            if any(is_writer or n > ends[var] for var in read):
                return []
            if any(may_alias(binding, var) for var in read):
                ends[binding.var] = min(ends[var] for var in read)
        others = [head for n, head in enumerate(self.heads) if n != output]
        shared = any(var in ends for head in others for var in _variables(head))
        return [] if shared else values[1:]


def may_alias(binding, var: relax.Var) -> bool:
    """Return whether a result may alias an operand: a reshape kernel may turn out to be a view.

    It can be one if both have equally many elements for all values of the dynamic dims. These counts are
    compared as sums of products; one with a floor division, in parentheses, may equal one of another form.
    """
    shapes = [known_shape(each.ty) for each in (binding.var, var)]
    if op_name(binding.value) != "call_tir" or None in shapes:
        return True
    own, other = (dim_to_str(math.prod(shape)) for shape in shapes)
    return None in (own, other) or own == other or "(" in f"{own}{other}"


def is_update(mod: tvm.IRModule, call) -> bool:
    """Return whether an expression calls a kernel that updates a copy of its first argument in part."""
    if op_name(call) != "call_tir":
        return False
    return partial_update.OFFSETS in (mod[call.args[0]].attrs or {})


def _variables(expr) -> list[relax.Var]:
    found = []
    relax.analysis.post_order_visit(
        expr, lambda each: found.append(each) if isinstance(each, relax.Var) else None
    )
    return found
