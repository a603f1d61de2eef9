"""The pass that unrolls recurrent layers on a GPU, where a kernel for all time steps would be one thread's.

Each time step becomes a few kernels, so a network of many time steps takes long to build.
"""

import tvm
from tvm import relax
from tvm.relax import op as R

from ...core.relax import field_of_tuple, on_each_function, static_shape
from ...kernels.recurrent.cell import Cell

_FUNCTIONS = {"sigmoid": R.sigmoid, "tanh": R.tanh, "relu": R.nn.relu}


def unroll_recurrent() -> tvm.transform.Pass:
    """Make the pass; cells that it does not serve stay in one thread."""
    return on_each_function("UnrollRecurrent", _Unroller, adds_kernels=True, needs=Cell.of)


@relax.expr_functor.mutator
class _Unroller(relax.PyExprMutator):
    def __init__(self, mod):
        super().__init__(mod)
        self.mod = mod

    def visit_call_(self, call):
        call = self.visit_expr_post_order(call)
        found = Cell.of_call(self.mod, call)
        if found is None:
            return call
        cell, given = found
        known = all(name in _FUNCTIONS for name, *_ in cell.functions)
        if not known or cell.clip or cell.coupled or given.keys() & {"lengths", "peepholes"}:
            return call
        return relax.Tuple(self._results(cell, given))

    def visit_function_(self, func):
        return relax.analysis.remove_all_unused(super().visit_function_(func))

    def visit_tuple_getitem_(self, item):
        return field_of_tuple(self, self.visit_expr_post_order(item))

    def _results(self, cell: Cell, given: dict) -> list:
        emit, gates = self.builder_.emit, len(cell.gates)
        steps, batch, width = static_shape(given["x"].ty)
        matrices = {
            name: emit(R.permute_dims(given[name]))
            for name in ("weight", "recurrent", "projection")
            if name in given
        }
        product = emit(R.matmul(emit(R.reshape(given["x"], (steps * batch, width))), matrices["weight"]))
        rows = static_shape(product.ty)[1]
        from_input = emit(R.reshape(emit(R.add(product, given["bias"])), (steps, batch, rows)))
        state = {name: given[name] for name in ("h", "c") if name in given}
        outputs = [None] * steps
        for step in reversed(range(steps)) if cell.reverse else range(steps):
            own = emit(R.strided_slice(from_input, [0], [step], [step + 1]))
            own = emit(R.reshape(own, (batch, rows)))
            state = self._step(cell, own, state, matrices, given, rows // gates)
            outputs[step] = state["h"]
        return [emit(R.stack(outputs, 0)), *state.values()]

    def _step(self, cell: Cell, own, state: dict, matrices: dict, given: dict, units: int) -> dict:
        """Return the state after a time step; `own` is what its input and the bias add."""
        emit = self.builder_.emit
        functions = [_FUNCTIONS[name] for name, *_ in cell.functions]

        def gate(gates, letter):
            begin = cell.gates.index(letter) * units
            return emit(R.strided_slice(gates, [1], [begin], [begin + units]))

        h = state["h"]
        product = emit(R.matmul(h, matrices["recurrent"]))
        total = emit(R.add(own, product))
        if cell.kind == "rnn":
            return {"h": emit(functions[0](total))}
        if cell.kind == "lstm":
            i, f, o = (functions[0](gate(total, letter)) for letter in "ifo")
            c = emit(R.add(R.multiply(f, state["c"]), R.multiply(i, functions[1](gate(total, "g")))))
            h = emit(R.multiply(o, functions[2](c)))
            return {"h": emit(R.matmul(h, matrices["projection"])) if "projection" in given else h, "c": c}
        r, z = (emit(functions[0](gate(total, letter))) for letter in "rz")
        if cell.reset_after:
            added = R.multiply(r, R.add(gate(product, "n"), given["inner"]))
        else:
            added = R.matmul(emit(R.multiply(r, h)), gate(matrices["recurrent"], "n"))
        n = emit(functions[1](R.add(gate(own, "n"), emit(added))))
        return {"h": emit(R.add(n, R.multiply(z, R.subtract(h, n))))}
