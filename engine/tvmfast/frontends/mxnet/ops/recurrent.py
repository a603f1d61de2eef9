"""The converter of MXNet's RNN, one operator for all layers and directions of a recurrent network."""

from dataclasses import replace

from tvm import relax
from tvm.relax import op

from ....kernels.recurrent.cell import OF_CUDNN
from ....kernels.recurrent.emit import emit
from .call import Call, converts, shape_of


@converts("RNN")
def _recurrent(c: Call):
    """Convert all layers; the parameters are one vector, the weights of all layers and then all biases."""
    c.refuse(projection_size=(), lstm_state_clip_min=(), lstm_state_clip_max=(), use_sequence_length=(False,))
    mode, units = c.need("mode"), int(c.need("state_size"))
    layers = int(c.need("num_layers"))
    if mode not in OF_CUDNN:
        raise ValueError(f"mode={mode}; expected one of {', '.join(OF_CUDNN)}")
    if c.rank != 3:
        raise ValueError(f"an input of shape {c.shape}; expected three axes")
    cell, directions = OF_CUDNN[mode], 2 if c.get("bidirectional") else 1
    rows, (_, batch, width) = len(cell.gates) * units, c.shape
    inner = units * directions
    widths = [width if layer == 0 else inner for layer in range(layers) for _ in range(directions)]
    shapes = [shape for n in widths for shape in ((rows, n), (rows, units))] + [(rows,)] * 2 * len(widths)
    weights = _cut(c, shapes)
    given = [_state(c, n, len(widths), batch, units) for n in range(2, 4 if mode == "lstm" else 3)]
    x, last = c.x, []
    for layer in range(layers):
        results = []
        for direction in range(directions):
            n = layer * directions + direction
            weight, recurrent = weights[2 * n : 2 * n + 2]
            biases = tuple(weights[2 * (len(widths) + n) :][:2])
            states = [_taken(c, state, n) for state in given]
            each = replace(cell, reverse=direction == 1)
            results.append(emit(c.builder, each, x, weight, recurrent, biases, states))
        x = c.emit(op.concat([result[0] for result in results], 2)) if directions > 1 else results[0][0]
        last += [result[1:] for result in results]
    finals = [
        c.emit(op.stack(parts, 0) if len(parts) > 1 else op.expand_dims(*parts, 0))
        for parts in zip(*last, strict=True)
    ]
    return [x, *finals] if c.get("state_outputs") else [x]


def _state(c: Call, number: int, *shape: int) -> relax.Expr | None:
    """Return the states of all layers, an input; None for Gluon's own, zeros of a dynamic batch."""
    empty = number < len(c.inputs) and 0 in shape_of(c.inputs[number])
    return None if empty else c.expect(number, *shape)


def _taken(c: Call, state: relax.Expr | None, number: int) -> relax.Expr | None:
    if state is None:
        return None
    return c.emit(op.squeeze(op.strided_slice(state, [0], [number], [number + 1]), [0]))


def _cut(c: Call, shapes: list[tuple[int, ...]]) -> list[relax.Expr]:
    """Cut the vector of parameters, the second input, into tensors."""
    parts, begin = [], 0
    sizes = [shape[0] * (shape[1] if len(shape) > 1 else 1) for shape in shapes]
    vector = c.expect(1, sum(sizes))
    for shape, size in zip(shapes, sizes, strict=True):
        part = c.emit(op.strided_slice(vector, [0], [begin], [begin + size]))
        parts.append(c.emit(op.reshape(part, shape)))
        begin += size
    return parts
