"""The call of a recurrent kernel, for frontends."""

import numpy as np
from tvm import relax
from tvm.relax import op as R

from ...core.bounds_check import checked
from ...core.relax import known_shape, static_shape
from .cell import Cell
from .loops import Dims, kernel

_OPTIONAL = ("peepholes", "projection", "lengths")


def emit(
    builder: relax.BlockBuilder,
    cell: Cell,
    x: relax.Expr,
    weight: relax.Expr,
    recurrent: relax.Expr,
    biases: tuple[relax.Expr | None, relax.Expr | None] = (None, None),
    states: tuple[relax.Expr | None, ...] = (None, None),
    **optional: relax.Expr | None,
) -> list[relax.Expr]:
    """Emit one direction of one layer of a recurrent network.

    Args:
        builder: The builder of the graph.
        cell: What the layer computes.
        x: Its input, (steps, batch, input).
        weight: Weights of the input, (gates * units, input).
        recurrent: Weights of the state, (gates * units, outputs).
        biases: Added to the products with `weight` and with `recurrent`, (gates * units,); None: 0.
        states: The first result, (batch, outputs), and an LSTM's first state, (batch, units); None: 0.
        optional: "peepholes", (3, units), for gates i, o, f; "projection", (outputs, units), which makes the
            results of the units; "lengths", (batch,), how many time steps each sequence has, 0 to steps: the
            results of others are 0. They may be None.

    Returns:
        The results of all time steps, (steps, batch, outputs), the last result, and an LSTM's last state.

    Raises:
        ValueError: A tensor has another shape.
    """
    dtype = str(x.ty.dtype)
    steps, batch, width = static_shape(x.ty)
    units = static_shape(weight.ty)[0] // len(cell.gates)
    dims = Dims(steps, batch, width, units, static_shape(recurrent.ty)[1])
    zero = relax.const(np.zeros(len(cell.gates) * units), dtype)
    first, second = (zero if bias is None else bias for bias in biases)
    values = {"x": x, "weight": weight, "recurrent": recurrent}
    if cell.reset_after:
        number = cell.gates.index("n")
        parts = [
            builder.emit(R.strided_slice(second, [0], [units * n], [units * (n + 1)]))
            for n in range(len(cell.gates))
        ]
        values["inner"] = parts[number]
        parts[number] = relax.const(np.zeros(units), dtype)
        second = builder.emit(R.concat(parts))
    values["bias"] = builder.emit(R.add(first, second))
    shapes = {"h": (batch, dims.outputs)} | ({"c": (batch, units)} if cell.kind == "lstm" else {})
    for (name, shape), state in zip(shapes.items(), states, strict=False):
        values[name] = builder.emit(R.zeros(shape, dtype)) if state is None else state
    values |= {name: value for name, value in optional.items() if value is not None}
    if "lengths" in values:
        kind, expected = cell.kind.upper(), "lengths of sequences"
        values["lengths"] = checked(values["lengths"], [steps + 1], kind, False, builder, expected)
    names = cell.inputs(*(name in values for name in _OPTIONAL))
    _check_shapes(cell, dims, {name: static_shape(values[name].ty) for name in names})
    result = builder.emit(call(builder, cell, {name: values[name] for name in names}))
    return [builder.emit(relax.TupleGetItem(result, n)) for n in range(1 + len(shapes))]


def call(builder: relax.BlockBuilder, cell: Cell, values: dict[str, relax.Expr]) -> relax.Call:
    """Call the kernel of a cell on unpacked weights.

    Args:
        builder: Gets the kernel.
        cell: What it computes.
        values: The kernel's inputs, as `Cell.inputs` lists them. The time steps and the batch of x may be
            dynamic.
    """
    steps, batch, width = known_shape(values["x"].ty)
    rows, outputs = static_shape(values["recurrent"].ty)
    dims = Dims(steps, batch, width, rows // len(cell.gates), outputs)
    dtype = str(values["x"].ty.dtype)
    function = builder.add_func(kernel(cell, list(values), dims, dtype), f"{cell.kind}_loops")
    shapes = [(steps, batch, outputs), (batch, outputs)]
    shapes += [(batch, dims.units)] if cell.kind == "lstm" else []
    types = [relax.TensorType(shape, dtype) for shape in shapes]
    return relax.call_tir(function, [*values.values(), *dims.dynamic.outer], types)


def _check_shapes(cell: Cell, dims: Dims, shapes: dict[str, tuple[int, ...]]) -> None:
    rows = len(cell.gates) * dims.units
    wanted = {
        "x": (dims.steps, dims.batch, dims.input),
        "weight": (rows, dims.input),
        "recurrent": (rows, dims.outputs),
        "bias": (rows,),
        "inner": (dims.units,),
        "h": (dims.batch, dims.outputs),
        "c": (dims.batch, dims.units),
        "peepholes": (3, dims.units),
        "projection": (dims.outputs, dims.units),
        "lengths": (dims.batch,),
    }
    for name, shape in shapes.items():
        if shape != wanted[name]:
            raise ValueError(f"{cell.kind.upper()}: expected {name} of shape {wanted[name]}, got {shape}")
    if dims.outputs != dims.units and "projection" not in shapes:
        raise ValueError(f"{cell.kind.upper()}: expected {dims.units} outputs, got {dims.outputs}")
