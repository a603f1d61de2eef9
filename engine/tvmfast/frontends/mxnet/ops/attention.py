"""Converters of MXNet's attention of interleaved heads (see call.py), as GluonNLP's BERT has them.

Projections are (length, batch, heads * parts * size): of each head its queries, keys and values, or its keys
and values, beside each other. Products are (batch * heads, rows, columns).
Source: MXNet 1.9.1, src/operator/contrib/transformer.cc.
"""

import math

from tvm import relax
from tvm.relax import op

from ...context import shape_of
from ...ops.common import product
from .call import Call, converts


def _heads(c: Call, x: relax.Expr, parts: int, number: int) -> relax.Expr:
    """Return one of the `parts` of each head: (batch * heads, length, size)."""
    length, batch, width = shape_of(x)
    heads = int(c.need("heads"))
    if width % (heads * parts):
        raise ValueError(f"{heads} heads of {parts} parts each in {width} columns")
    size = width // heads // parts
    x = c.emit(op.reshape(x, (length, batch, heads, parts * size)))
    x = c.emit(op.strided_slice(x, [3], [number * size], [(number + 1) * size]))
    x = c.emit(op.permute_dims(x, [1, 2, 0, 3]))
    return c.emit(op.reshape(x, (batch * heads, length, size)))


def _scores(c: Call, queries: relax.Expr, keys: relax.Expr) -> relax.Expr:
    scale = c.const(1 / math.sqrt(shape_of(queries)[2]))
    return product(c.emit(queries * scale), keys, False, True)


def _outputs(c: Call, values: relax.Expr) -> relax.Expr:
    """Return weighted values, (length, batch, heads * size); the second input has the weights."""
    heads = int(c.need("heads"))
    rows, size = shape_of(c.inputs[1])[1], shape_of(values)[2]
    batch = shape_of(values)[0] // heads
    result = c.emit(op.reshape(op.matmul(c.inputs[1], values), (batch, heads, rows, size)))
    return op.reshape(op.permute_dims(result, [2, 0, 1, 3]), (rows, batch, heads * size))


@converts("_contrib_interleaved_matmul_selfatt_qk")
def _selfatt_qk(c: Call):
    return _scores(c, _heads(c, c.x, 3, 0), _heads(c, c.x, 3, 1))


@converts("_contrib_interleaved_matmul_encdec_qk")
def _encdec_qk(c: Call):
    return _scores(c, _heads(c, c.x, 1, 0), _heads(c, c.inputs[1], 2, 0))


converts("_contrib_interleaved_matmul_selfatt_valatt")(lambda c: _outputs(c, _heads(c, c.x, 3, 2)))
converts("_contrib_interleaved_matmul_encdec_valatt")(lambda c: _outputs(c, _heads(c, c.x, 2, 1)))
