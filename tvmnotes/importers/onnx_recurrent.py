"""Converters of ONNX's LSTM, GRU and RNN: a kernel for each direction."""

from tvm import relax
from tvm.relax import op as R

from ..base.relax import fixed_shape
from ..compiler.recurrent.cell import FUNCTIONS, Cell
from ..compiler.recurrent.emit import emit
from .onnx_node import Node, converts

_GATES = {"LSTM": "iofg", "GRU": "zrn", "RNN": "n"}
_FUNCTIONS = {"LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh"), "RNN": ("Tanh",)}
# The defaults of alpha and beta, by the function's name in lower case; others have none.
_ALPHA = {
    "affine": 1.0,
    "leakyrelu": 0.01,
    "thresholdedrelu": 1.0,
    "scaledtanh": 1.0,
    "hardsigmoid": 0.2,
    "elu": 1.0,
}
_BETA = {"affine": 0.0, "scaledtanh": 1.0, "hardsigmoid": 0.5}


@converts("LSTM", "GRU", "RNN")
def _recurrent(n: Node):
    x, weights, recurrents, biases, lengths, *states, peepholes = [*n.inputs, *[None] * 8][:8]
    directions = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
    direction = n.text("direction", "forward").lower()
    if direction not in directions:
        raise NotImplementedError(
            f"direction is {direction!r}; expected 'forward', 'reverse' or 'bidirectional'"
        )
    by_batch = n.get("layout", 0) == 1
    x = n.builder.emit(R.permute_dims(x, (1, 0, 2))) if by_batch else x

    def part(tensor, number: int, axis: int = 0):
        """Return what a tensor has for a direction, or None."""
        if tensor is None:
            return None
        taken = R.strided_slice(tensor, [axis], [number], [number + 1])
        return n.builder.emit(R.squeeze(n.builder.emit(taken), [axis]))

    results = []
    for number, cell in enumerate(_cells(n, directions[direction])):
        both = part(biases, number)
        halves = R.split(both, 2) if both is not None else None
        pair = (
            tuple(n.builder.emit(half) for half in n.builder.emit(halves))
            if halves is not None
            else (None, None)
        )
        seen = part(peepholes, number)
        if seen is not None:
            seen = n.builder.emit(R.reshape(seen, (3, fixed_shape(seen.ty)[0] // 3)))
        own = [part(state, number, 1 if by_batch else 0) for state in states]
        matrices = part(weights, number), part(recurrents, number)
        results.append(emit(n.builder, cell, x, *matrices, pair, own, lengths=lengths, peepholes=seen))
    outputs = []
    for place, parts in enumerate(zip(*results, strict=True)):
        axis = (2 if place == 0 else 1) if by_batch else (1 if place == 0 else 0)
        parts = [R.permute_dims(each, (1, 0, 2)) if by_batch and place == 0 else each for each in parts]
        outputs.append(n.emit(R.stack([n.builder.emit(each) for each in parts], axis)))
    return relax.Tuple(outputs[: n.outputs]) if n.outputs > 1 else outputs[0]


def _cells(n: Node, directions: tuple[bool, ...]) -> list[Cell]:
    """Return the cell of each direction."""
    count = len(_FUNCTIONS[n.op])
    names = [each.decode() for each in n.get("activations", [])] or list(_FUNCTIONS[n.op]) * len(directions)
    if len(names) != count * len(directions):
        raise NotImplementedError(
            f"activations are {', '.join(names)}; expected {count} for each of {len(directions)} directions"
        )
    if unknown := [name for name in names if name.lower() not in FUNCTIONS]:
        raise NotImplementedError(f"activations: {unknown[0]!r} is not a function that ONNX lists")
    alphas, betas = iter(n.get("activation_alpha", [])), iter(n.get("activation_beta", []))
    functions = []
    for name in map(str.lower, names):
        alpha = next(alphas, _ALPHA[name]) if name in _ALPHA else 0.0
        beta = next(betas, _BETA[name]) if name in _BETA else 0.0
        functions.append((name, float(alpha), float(beta)))
    return [
        Cell(
            n.op.lower(),
            _GATES[n.op],
            tuple(functions[number * count : (number + 1) * count]),
            clip=float(n.get("clip", 0.0)),
            coupled=bool(n.get("input_forget", 0)),
            reset_after=n.op == "GRU" and bool(n.get("linear_before_reset", 0)),
            reverse=reverse,
        )
        for number, reverse in enumerate(directions)
    ]
