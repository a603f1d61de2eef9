"""Converters of ONNX's LSTM, GRU and RNN: a kernel for each direction."""

from tvm import relax
from tvm.relax import op as R

from ....kernels.recurrent.cell import FUNCTIONS, Cell
from ....kernels.recurrent.emit import emit
from ...context import shape_of
from .node import Node, converts

_GATES = {"LSTM": "iofg", "GRU": "zrn", "RNN": "n"}
_FUNCTIONS = {"LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh"), "RNN": ("Tanh",)}
# The defaults of alpha and beta, by the function's name in lower case; others have none.
_ALPHA = {"leakyrelu": 0.01, "hardsigmoid": 0.2}
_ALPHA |= dict.fromkeys(("affine", "thresholdedrelu", "scaledtanh", "elu"), 1.0)
_BETA = {"affine": 0.0, "scaledtanh": 1.0, "hardsigmoid": 0.5}


@converts("LSTM", "GRU", "RNN")
def _recurrent(n: Node):
    x, weights, recurrents, biases, lengths, *states, peepholes = [*n.inputs, *[None] * 8][:8]
    directions = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
    direction = n.text("direction", "forward").lower()
    reason = f"direction is {direction!r}; expected 'forward', 'reverse' or 'bidirectional'"
    n.refuse_if(direction not in directions, reason)
    shape, size = shape_of(weights), n.get("hidden_size", None)
    if shape[0] != len(directions[direction]):
        raise ValueError(
            f"{n.op}: {direction!r} takes {len(directions[direction])} directions, W has the shape {shape}"
        )
    if size is not None and shape[1] != len(_GATES[n.op]) * size:
        raise ValueError(f"{n.op}: hidden_size is {size}, and W has the shape {shape}")
    by_batch = n.get("layout", 0) == 1
    x = n.builder.emit(R.permute_dims(x, (1, 0, 2))) if by_batch else x

    results = []
    for number, cell in enumerate(_cells(n, directions[direction])):
        both, seen = n.element(biases, number), n.element(peepholes, number)
        if seen is not None:
            seen = n.builder.emit(R.reshape(seen, (3, -1)))
        own = [n.element(state, number, 1 if by_batch else 0) for state in states]
        matrices = n.element(weights, number), n.element(recurrents, number)
        results.append(
            emit(n.builder, cell, x, *matrices, _halves(n, both), own, lengths=lengths, peepholes=seen)
        )
    outputs = []
    for number, parts in enumerate(zip(*results, strict=True)):
        first = number == 0  # the outputs of all time steps, with time as the first axis
        if by_batch and first:
            parts = [n.builder.emit(R.permute_dims(each, (1, 0, 2))) for each in parts]
        outputs.append(n.stacked(parts, first + by_batch))
    return relax.Tuple(outputs[: n.outputs]) if n.outputs > 1 else outputs[0]


def _halves(n: Node, both: relax.Expr | None) -> tuple[relax.Expr | None, relax.Expr | None]:
    """Return the bias of the input and that of the state."""
    if both is None:
        return None, None
    half = shape_of(both)[0] // 2
    first, second = (R.strided_slice(both, [0], [begin], [begin + half]) for begin in (0, half))
    return n.builder.emit(first), n.builder.emit(second)


def _cells(n: Node, directions: tuple[bool, ...]) -> list[Cell]:
    count = len(_FUNCTIONS[n.op])
    names = [each.decode() for each in n.get("activations", [])] or list(_FUNCTIONS[n.op]) * len(directions)
    reason = f"activations are {', '.join(names)}; expected {count} for each direction"
    n.refuse_if(len(names) != count * len(directions), reason)
    for name in names:
        n.refuse_if(name.lower() not in FUNCTIONS, f"activations: {name!r} is not a function that ONNX lists")
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
