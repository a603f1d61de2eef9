"""What a recurrent kernel computes, and the arithmetic of one time step of it.

Gates have letters: i, f, o and g (the candidate) of an LSTM, r, z and n (the candidate) of a GRU, and n of an
RNN. Names and formulas are those of ONNX's operators, of which PyTorch's and MXNet's are special cases.
"""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass

import tvm
from tvm import tirx
from tvm.tirx.script.builder import ir as T

from .. import elementwise

_ATTRIBUTE = "recurrent"  # of a kernel: its cell


@dataclass(frozen=True)
class Cell:
    """A recurrent cell.

    Attributes:
        kind: "lstm", "gru" or "rnn".
        gates: The letters of its gates, in the order in which the weights have them.
        functions: The activations, each a name of FUNCTIONS, alpha and beta: of the gates, of the candidate
            if there is another, and of an LSTM's result.
        clip: What is passed to an activation is clipped to -clip and clip; 0: it is not.
        coupled: Whether an LSTM's f is 1 - i.
        reset_after: Whether a GRU multiplies by r after the product with the recurrent weights, not before.
        reverse: Whether it processes the sequence in reverse.
    """

    kind: str
    gates: str
    functions: tuple[tuple[str, float, float], ...]
    clip: float = 0.0
    coupled: bool = False
    reset_after: bool = False
    reverse: bool = False

    def inputs(self, peepholes: bool = False, projection: bool = False, lengths: bool = False) -> list[str]:
        """List the names of its kernel's inputs; `emit` explains them.

        "bias" is the sum of both biases; where a GRU resets after the product, "inner" is what the state adds
        to n besides it, and "bias" has the input's alone.
        """
        names = ["x", "weight", "recurrent", "bias"]
        names += ["inner"] if self.reset_after else []
        names += ["h", "c"] if self.kind == "lstm" else ["h"]
        optional = {"peepholes": peepholes, "projection": projection, "lengths": lengths}
        return names + [name for name, given in optional.items() if given]

    def attach(self, kernel: tvm.tirx.PrimFunc) -> tvm.tirx.PrimFunc:
        """Return a kernel that carries the cell."""
        return kernel.with_attr(_ATTRIBUTE, json.dumps(asdict(self)))

    @staticmethod
    def of(func: tvm.ir.BaseFunc) -> "Cell | None":
        """Return the cell that a function carries, or None."""
        text = (func.attrs or {}).get(_ATTRIBUTE)
        if text is None:
            return None
        values = json.loads(str(text))
        return Cell(**values | {"functions": tuple(map(tuple, values["functions"]))})

    @staticmethod
    def of_call(mod: tvm.IRModule, call: tvm.ir.Call) -> "tuple[Cell, dict] | None":
        """Return the cell that a call of a recurrent kernel computes, and its inputs by name; else None."""
        if getattr(call.op, "name", "") != "relax.call_tir":
            return None
        func = mod[call.args[0]]
        cell = Cell.of(func)
        given = zip(func.params, call.args[1].fields, strict=False)  # the results come last
        inputs = {param.name: arg for param, arg in given if isinstance(param.ty, tirx.BufferType)}
        return None if cell is None else (cell, inputs)


def _sigmoid(x, alpha, beta):
    return elementwise.sigmoid(x) if x.ty.dtype == "float32" else tirx.sigmoid(x)


def _tanh(x, alpha=0.0, beta=0.0):
    if x.ty.dtype == "float32":
        return elementwise.tanh(x)
    # TVM's tanh of float64 loses the digits of a small number.
    near = tirx.max(tirx.min(x, _number(20, x)), _number(-20, x))
    return elementwise.libm("sinh", near) / elementwise.libm("cosh", near)


def _exp(x):
    return elementwise.exp(x) if x.ty.dtype == "float32" else tirx.exp(x)


def _number(value: float, like):
    return tirx.const(value, like.ty.dtype)


def _factor(value: float, like):
    """Return a number to multiply by; 0 as its own square root, as TVM drops 0 * x, which may be NaN."""
    return tirx.sqrt(_number(0, like)) if value == 0 else _number(value, like)


def _hard_sigmoid(x, alpha, beta):
    return tirx.max(tirx.min(x * _factor(alpha, x) + _number(beta, x), _number(1, x)), _number(0, x))


def _elu(x, alpha, beta):
    """Compute exp(x) - 1 as 2 t / (1 - t) with t = tanh(x / 2), which keeps the digits of a small x."""
    half = tirx.Var("half", str(x.ty.dtype))  # bound, because it is used twice
    below = tirx.Let(
        half,
        _tanh(tirx.min(x, _number(0, x)) * _number(0.5, x)),
        _factor(2 * alpha, x) * half / (_number(1, x) - half),
    )
    return tirx.Select(x >= _number(0, x), x, below)


def _softplus(x, alpha, beta):
    zero = _number(0, x)
    return tirx.max(x, zero) + tirx.log(_number(1, x) + _exp(zero - tirx.abs(x)))


# By ONNX's names in lower case, of an expression, alpha and beta.
FUNCTIONS: dict[str, Callable] = {
    "sigmoid": _sigmoid,
    "tanh": _tanh,
    "relu": lambda x, alpha, beta: tirx.max(x, _number(0, x)),
    "affine": lambda x, alpha, beta: x * _factor(alpha, x) + _number(beta, x),
    "leakyrelu": lambda x, alpha, beta: tirx.Select(x >= _number(0, x), x, x * _factor(alpha, x)),
    "thresholdedrelu": lambda x, alpha, beta: tirx.Select(x < _number(alpha, x), _number(0, x), x),
    "scaledtanh": lambda x, alpha, beta: _factor(alpha, x) * _tanh(_factor(beta, x) * x),
    "hardsigmoid": _hard_sigmoid,
    "elu": _elu,
    "softsign": lambda x, alpha, beta: x / (_number(1, x) + tirx.abs(x)),
    "softplus": _softplus,
}


class TimeStep:
    """The arithmetic of a time step for one unit, as statements on a buffer of its gates.

    `gates` is the buffer; its element `(*at, number of the gate)` has a gate before and after its activation.
    """

    def __init__(self, cell: Cell, gates, at: Callable):
        self.cell, self.gates = cell, gates
        self.at = at

    def get(self, gate: str):
        """Return a gate."""
        return self.gates[self.at(self.cell.gates.index(gate))]

    def set(self, gate: str, value) -> None:
        """Set a gate."""
        T.buffer_store(self.gates, value, self.at(self.cell.gates.index(gate)))

    def activate(self, gate: str, function: int, added=None) -> None:
        """Replace a gate's sum, with something `added`, by its activation."""
        total = self.get(gate) if added is None else self.get(gate) + added
        if self.cell.clip:
            limit = _number(self.cell.clip, total)
            total = tirx.max(tirx.min(total, limit), -limit)
        name, alpha, beta = self.cell.functions[function]
        self.set(gate, FUNCTIONS[name](total, alpha, beta))

    def lstm(self, c, peephole: Callable):
        """Return the new state and result; `peephole(gate)` is a gate's weight for the state, or None."""

        def seen(gate, state):
            weight = peephole(gate)
            return None if weight is None else weight * state

        self.activate("i", 0, seen("i", c))
        if self.cell.coupled:
            self.set("f", _number(1, c) - self.get("i"))
        else:
            self.activate("f", 0, seen("f", c))
        self.activate("g", 1)
        self.set("g", self.get("f") * c + self.get("i") * self.get("g"))
        self.activate("o", 0, seen("o", self.get("g")))
        name, alpha, beta = self.cell.functions[2]
        self.set("o", self.get("o") * FUNCTIONS[name](self.get("g"), alpha, beta))
        return self.get("g"), self.get("o")

    def gru(self, h, from_input=None):
        """Return the new result; `from_input` is what the input adds to n, if n does not have it."""
        if from_input is not None:
            self.activate("r", 0)
            self.activate("z", 0)
            self.set("n", from_input + self.get("r") * self.get("n"))
        self.activate("n", 1)
        return (_number(1, h) - self.get("z")) * self.get("n") + self.get("z") * h

    def rnn(self):
        """Return the new result."""
        self.activate("n", 0)
        return self.get("n")


_TANH, _SIGMOID, _RELU = ((name, 0.0, 0.0) for name in ("tanh", "sigmoid", "relu"))

# The cells that cuDNN has, and with it PyTorch and MXNet, by their names there.
OF_CUDNN = {
    "lstm": Cell("lstm", "ifgo", (_SIGMOID, _TANH, _TANH)),
    "gru": Cell("gru", "rzn", (_SIGMOID, _TANH), reset_after=True),
    "rnn_tanh": Cell("rnn", "n", (_TANH,)),
    "rnn_relu": Cell("rnn", "n", (_RELU,)),
}
