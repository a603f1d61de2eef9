"""`static_int8`: a float32 network as one of int8, from samples of its inputs."""

import difflib
import os
from collections.abc import Iterable
from typing import Any

import numpy as np
import tvm
from tqdm.auto import tqdm
from tvm import relax

from ..core.specs import shorten
from .calibrate import (
    METHODS,
    Range,
    Values,
    along,
    channel_means,
    checked,
    correction,
    quantized_weight,
)
from .insert import Scale, insert
from .layers import Graph, Layer
from .report import Quantized, Report, Row
from .switched import Switched, decibels

ANALYSED = 4  # samples on which the error of the output is measured


def static_int8(
    mod: tvm.IRModule,
    params: dict,
    calibration: Any,
    method: str,
    skip: str | Iterable[str],
    budget: float | None,
) -> Quantized:
    """Quantize a network; see `tn.quantize`."""
    if method not in METHODS:
        raise ValueError(f"method: expected one of {', '.join(METHODS)}; got {method!r}")
    if budget is not None and (
        isinstance(budget, bool) or not isinstance(budget, int | float) or not budget > 0
    ):
        raise ValueError(f"budget: expected a signal-to-noise ratio in dB, a number above 0; got {budget!r}")
    graph = Graph(mod, params)
    samples = checked(calibration, graph.main)
    _skip(graph.layers, [skip] if isinstance(skip, str) else [*skip])
    tensors = [*dict.fromkeys(var for layer in graph.layers for var in layer.reads)]
    scales = _calibrated(graph, Values(graph, tensors, samples), method)
    for layer in graph.layers:
        for var in layer.reads:
            low, high = scales[graph.of_tensor[var]][:2]
            if not np.isfinite([low, high]).all():
                layer.reason = layer.reason or "its input has NaN or infinities on a sample"
            elif not scales[graph.of_tensor[var]].scale:
                layer.reason = layer.reason or "its input is 0 on all samples"
    active = [layer for layer in graph.layers if not layer.reason]
    some = samples[:ANALYSED]
    alone, output = _measured(graph, active, scales, some, budget) if active else ({}, np.inf)
    signal = _activations(graph, Values(graph, tensors, some), scales)
    rows = [_row(graph, layer, scales, signal, alone) for layer in graph.layers]
    return Quantized(
        *insert(graph, [each for each in active if not each.reason], scales), Report(rows, output)
    )


def _skip(layers: list[Layer], skip: list) -> None:
    """Leave out layers by name or kind; raises ValueError for what is neither."""
    known = {name for layer in layers for name in (layer.name, layer.kind)}
    if unknown := [name for name in skip if name not in known]:
        near = difflib.get_close_matches(str(unknown[0]), known, n=3)
        kinds = shorten({layer.kind for layer in layers})
        hint = f"did you mean {', '.join(map(repr, near))}?" if near else f"its operators are {kinds}"
        raise ValueError(f"skip: the network has no layer or operator {unknown[0]!r}; {hint}")
    for layer in layers:
        if not layer.reason and (layer.name in skip or layer.kind in skip):
            layer.reason = "skip names it"


def _calibrated(graph: Graph, values: Values, method: str) -> dict:
    """Run the float network on the samples; return the scale of each tensor that has one of its own.

    Each layer gets its correction.
    """
    ranges = {var: Range(method) for part in values.parts for var in part}
    means: dict[Layer, list[np.ndarray]] = {layer: [] for layer in graph.layers if layer.weight is not None}
    for run in _bar(values, "calibration", len(values)):
        for var, array in run.items():
            ranges[var].add(array)
        for layer, each in means.items():
            if layer.reads[0] in run:
                each.append(channel_means(layer, run[layer.reads[0]]))
    for layer, each in means.items():
        mean = np.mean(each, axis=0)
        layer.correction = correction(layer, mean) if np.isfinite(mean).all() else None
    chosen: dict[relax.Var, tuple[float, float]] = {}
    for var, seen in ranges.items():
        low, high = seen.chosen() if seen.finite else (-np.inf, np.inf)
        before = chosen.get(graph.of_tensor[var], (0.0, 0.0))
        chosen[graph.of_tensor[var]] = min(low, before[0]), max(high, before[1])
    return {var: Scale.of(*pair) for var, pair in chosen.items()}


def _measured(
    graph: Graph, active: list[Layer], scales: dict, samples: list, budget: float | None
) -> tuple[dict, float]:
    """Return the noise that each layer alone adds to the output, and the output's ratio in dB.

    While that is below the budget, the layer that adds most stays float32.
    """
    switched = Switched(graph, active, scales, samples)
    alone = {layer: switched.noise([layer]) for layer in _bar(active, "layers", len(active))}
    left = sorted(active, key=alone.__getitem__)
    noise = switched.noise(left)
    while budget is not None and left and not decibels(noise) >= budget:
        left.pop().reason = f"the budget of {budget:g} dB"
        noise = switched.noise(left) if left else 0.0
    return alone, decibels(noise)


def _activations(graph: Graph, values: Values, scales: dict) -> dict:
    """Return the noise by the signal of each tensor as uint8."""
    sums: dict = {}
    for run in values:
        for var, array in run.items():
            scale, wide = scales[graph.of_tensor[var]], array.astype("float64")
            noise = np.square(scale.rounded(array) - wide).sum() if scale.scale else np.nan
            sums[var] = sums.get(var, 0) + np.array([noise, np.square(wide).sum()])
    return {var: noise / power if power else np.nan for var, (noise, power) in sums.items()}


def _row(graph: Graph, layer: Layer, scales: dict, noises: dict, alone: dict) -> Row:
    row: dict[str, Any] = {}
    if layer.reads:
        row = scales[graph.of_tensor[layer.reads[0]]]._asdict()
        row["scale"] = float(row["scale"])
        row["activation"] = decibels(max(noises[var] for var in layer.reads))
    if layer.weight is not None:
        q, scale = quantized_weight(layer.weight, layer.axis)
        wide = layer.weight.astype("float64")
        left = q * along(scale.astype("float64"), layer.axis, q.ndim)
        power = np.square(wide).sum()
        row["weight"] = decibels(np.square(left - wide).sum() / power if power else np.nan)
    if layer in alone:
        row["output"] = decibels(alone[layer])
    return Row(layer.name, layer.kind, reason=layer.reason, **row)


def _bar(runs: Iterable, name: str, total: int) -> Iterable:
    return tqdm(runs, desc=name, total=total, leave=False, disable="TQDM_DISABLE" in os.environ)
