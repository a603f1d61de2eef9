"""PyTorch's LSTM, GRU and RNN: RECURRENT decomposes them into layers, which CONVERTERS lowers to kernels."""

import traceback
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence
from torch.overrides import TorchFunctionMode
from tvm import relax

from ....kernels.recurrent.cell import OF_CUDNN
from ....kernels.recurrent.emit import emit
from .call import Call
from .indexing import CALLED
from .linalg import STATISTICS

aten = torch.ops.aten

_library = torch.library.Library("tvmfast", "FRAGMENT")
_library.define(
    "recurrent(Tensor x, Tensor weight, Tensor recurrent, Tensor? bias, Tensor? inner, Tensor? projection, "
    "Tensor h, Tensor c, str kind, bool reverse) -> (Tensor, Tensor, Tensor)"
)


@torch.library.register_fake("tvmfast::recurrent")
def _shapes(x, weight, recurrent, bias, inner, projection, h, c, kind, reverse) -> tuple[Tensor, ...]:
    """Return the results of all time steps, the last result, and an LSTM's last cell state (else again h)."""
    return x.new_empty((*x.shape[:2], h.shape[-1])), torch.empty_like(h), torch.empty_like(c)


def _decomposition(kind: str) -> Callable:
    def layers(x, hx, params, has_biases, num_layers, dropout, train, bidirectional, batch_first) -> Any:
        if train and dropout:
            return NotImplemented
        h, c = hx if kind == "lstm" else (hx, hx)
        directions, projects = 1 + bidirectional, h.shape[-1] != c.shape[-1]
        each = 2 + 2 * has_biases + projects
        x = x.transpose(0, 1) if batch_first else x
        last = []
        for layer in range(num_layers):
            results = []
            for direction in range(directions):
                number = layer * directions + direction
                weight, recurrent, *others = params[number * each : (number + 1) * each]
                bias, inner = others[:2] if has_biases else (None, None)
                projection = others[-1] if projects else None
                tensors = weight, recurrent, bias, inner, projection, h[number], c[number]
                results.append(torch.ops.tvmfast.recurrent(x, *tensors, kind, direction == 1))
            x = torch.cat([result[0] for result in results], -1) if bidirectional else results[0][0]
            last += [result[1:] for result in results]
        x = x.transpose(0, 1) if batch_first else x
        states = [torch.stack(each) if len(each) > 1 else each[0][None] for each in zip(*last, strict=True)]
        return (x, *states) if kind == "lstm" else (x, states[0])

    return layers


PACKED = (
    "pack_padded_sequence: the lengths of packed sequences set shapes, which TVM has to know before a "
    "run; pass the padded sequences to the layer, or export the network with torch.onnx.export, whose LSTM "
    "takes lengths"
)


def packs(error: BaseException | None) -> bool:
    """Return whether an error comes from packed sequences."""
    while error is not None:
        frames = traceback.walk_tb(error.__traceback__)
        held = (value for frame, _ in frames for value in frame.f_locals.values())
        if "_pack_padded_sequence" in str(error) or any(isinstance(each, PackedSequence) for each in held):
            return True
        error = error.__cause__ or error.__context__
    return False


def _packed(*_args, **_options):
    raise NotImplementedError(PACKED)


_LAYERS = {kind: _decomposition(kind) for kind in OF_CUDNN}
RECURRENT = {getattr(aten, kind).input: layers for kind, layers in _LAYERS.items()}
_CALLED = RECURRENT | {getattr(torch, kind): layers for kind, layers in _LAYERS.items()}
_OTHERS = STATISTICS | CALLED
RECURRENT |= {getattr(aten, kind).data: _packed for kind in OF_CUDNN}


class WholeLayers(TorchFunctionMode):
    """A context in which recurrent layers are exported as this module's operator, and others in known terms.

    PyTorch runs its own layers, time step by time step, while it exports, to infer the shapes of the results.
    """

    def __torch_function__(self, func, types, args=(), kwargs=None):
        """Run a function of PyTorch, or the decomposition of a layer."""
        # Packed sequences have their weights in place of the flag.
        is_layer = func in _CALLED and len(args) > 3 and isinstance(args[3], int)
        other = _CALLED[func] if is_layer else _OTHERS.get(func)
        result = other(*args, **(kwargs or {})) if other else NotImplemented
        return func(*args, **(kwargs or {})) if result is NotImplemented else result


def _recurrent(call: Call) -> relax.Expr:
    x, weight, recurrent, *biases, projection, h, c, kind, reverse = call.inputs
    cell, states = replace(OF_CUDNN[kind], reverse=reverse), (h, c)
    results = emit(call.builder, cell, x, weight, recurrent, biases, states, projection=projection)
    return call.emit(relax.Tuple(results if kind == "lstm" else [*results, results[-1]]))


CONVERTERS = {"recurrent.default": _recurrent}
