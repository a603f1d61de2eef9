"""A network whose layers compute in float32 or as in int8, as its inputs say: what each adds to the error.

It is built once and run once for each layer, and computes each layer both ways: as plain float32 arithmetic,
which rounds the layer's operands to what int8 and uint8 leave of them.
"""

import math
from collections.abc import Collection, Mapping

import numpy as np
import tvm
from tvm import relax
from tvm.relax import op

from ..compiler.build import build
from .calibrate import along, for_samples, quantized_weight
from .insert import Scale, correcting
from .layers import Graph, Layer


class Switched:
    """The outputs of a network on samples, with some layers in int8."""

    def __init__(self, graph: Graph, layers: list[Layer], scales: Mapping[relax.Var, Scale], samples: list):
        """Build the network, and run it in float32."""
        self.layers, self.samples = layers, samples
        self.lib = build(for_samples(_switched(graph, layers, scales), samples), {})
        self.floats = [[np.float64(each) for each in self._run(sample, ())] for sample in samples]

    def noise(self, active: Collection[Layer]) -> float:
        """Return the mean square of the output's error by that of the output, with these layers in int8.

        Of several outputs it is that of the worst.
        """
        runs = [self._run(sample, active) for sample in self.samples]
        outputs = zip(zip(*runs, strict=True), zip(*self.floats, strict=True), strict=True)
        return max(map(_noise, outputs), default=0.0)

    def _run(self, sample: list, active: Collection[Layer]) -> list[np.ndarray]:
        results = self.lib(*sample, *(np.array(layer in active) for layer in self.layers))
        results = results if isinstance(results, tuple) else (results,)
        return [each for each in results if each is not None and each.dtype.kind == "f"]


def _noise(pair: tuple) -> float:
    """Return the noise by the signal of an output, where the float network's is finite."""
    error, signal = 0.0, 0.0
    for got, wanted in zip(*pair, strict=True):
        finite = np.isfinite(wanted)
        error += float(np.square(got[finite] - wanted[finite]).sum())
        signal += float(np.square(wanted[finite]).sum())
    return error / signal if signal else math.inf * error if error else 0.0


def decibels(noise: float) -> float:
    """Return a signal-to-noise ratio in dB, from the noise by the signal."""
    return math.inf if noise == 0 else math.nan if math.isnan(noise) else -10 * math.log10(noise)


def _switched(graph: Graph, layers: list[Layer], scales: Mapping[relax.Var, Scale]) -> tvm.IRModule:
    switches = {
        layer.binding.var: relax.Var(f"switch{n}", relax.TensorType((), "bool"))
        for n, layer in enumerate(layers)
    }
    by_binding = {layer.binding.var: layer for layer in layers}
    blocks = []
    for block in graph.main.body.blocks:
        bindings: list[relax.Binding] = []
        for binding in block.bindings:
            layer = by_binding.get(binding.var)
            if layer is None:
                bindings.append(binding)
                continue
            call, name = binding.value, binding.var.name
            args = [*call.args]
            for n in layer.operands:
                scale = scales[graph.of_tensor[args[n]]]
                args[n] = _rounded(args[n], scale, bindings)
            if layer.weight is not None:
                q, scales_of_channels = quantized_weight(layer.weight, layer.axis)
                args[1] = relax.const(q * along(scales_of_channels, layer.axis, q.ndim))
            rounded, exact, shifted = (relax.Var(f"{name}_{n}", binding.var.ty) for n in range(3))
            bindings += [
                relax.VarBinding(rounded, relax.Call(call.op, args, call.attrs, call.ty_args)),
                relax.VarBinding(exact, call),
            ]
            if layer.correction is not None:
                bindings.append(relax.VarBinding(shifted, op.add(rounded, relax.const(correcting(layer)))))
                rounded = shifted
            bindings.append(relax.VarBinding(binding.var, op.where(switches[binding.var], rounded, exact)))
        blocks.append(relax.BindingBlock(bindings))
    params = [*graph.main.params, *switches.values()]
    body = relax.SeqExpr(blocks, graph.main.body.body)
    mod = graph.mod.clone()
    main = relax.Function(params, body, graph.main.ret_ty, graph.main.is_pure, graph.main.attrs)
    mod["main"] = main.with_attr("num_input", len(params))
    return relax.transform.ConvertToDataflow()(relax.transform.Normalize()(mod))


def _rounded(x: relax.Var, scale: Scale, bindings: list) -> relax.Var:
    """Add the bindings that compute `Scale.rounded`, and return its variable."""
    number, zero = relax.const(scale.scale), relax.const(np.float32(scale.zero_point))
    steps = (
        lambda x: op.divide(x, number),
        op.round,
        lambda x: op.add(x, zero),
        lambda x: op.clip(x, 0, 255),
        lambda x: op.subtract(x, zero),
        lambda x: op.multiply(x, number),
    )
    for step in steps:
        var = relax.Var(f"{x.name}_", x.ty)
        bindings.append(relax.VarBinding(var, step(x)))
        x = var
    return x
