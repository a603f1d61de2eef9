"""The samples, checked; a network's values on them; the range of each tensor that becomes uint8.

Methods that choose a range: `minmax`; `percentile`, which cuts off 0.01 % at each end (Wu et al., "Integer
Quantization for Deep Learning Inference: Principles and Empirical Evaluation", 2020, section 5.2, has 99.99 %
among others); `entropy`, the threshold whose quantized values have the least Kullback-Leibler divergence
(Migacz, "8-bit Inference with TensorRT", GTC 2017; MXNet's `quantization/calibrate.cc` has it too).
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax

from ..compiler.build import build
from ..core.dims import evaluate
from ..core.relax import bytes_of, dim_to_str, dynamic_dims, unwrap_ints
from ..core.specs import TensorSpec, shorten
from ..runtime.tensors import input_tensor, to_numpy
from .layers import Graph, Layer

METHODS = ("minmax", "percentile", "entropy")
_TAIL = 1e-4  # of the values at each end, which `percentile` cuts off
_BINS = 1 << 13  # of a histogram from -limit to limit, where limit is a power of 2
_STEP = 32  # bins between two thresholds that `entropy` compares


def checked(calibration: Any, main: relax.Function) -> list[list[np.ndarray]]:
    """Return each sample as arrays in the order of the inputs; raises what `tn.quantize` does of them."""
    if isinstance(calibration, dict | str | bytes) or hasattr(calibration, "dtype"):
        raise TypeError(
            "calibration: expected a list of samples, each an array, a tuple of arrays or a dictionary by "
            f"the names of the inputs; got {type(calibration).__name__}; put it in a list: [x]"
        )
    try:
        samples = list(calibration)
    except TypeError:
        raise TypeError(
            f"calibration: expected a list of samples; got {type(calibration).__name__}"
        ) from None
    if not samples:
        raise ValueError("calibration: expected at least one sample of the network's inputs; got none")
    dims = dynamic_dims(main)
    specs = [
        TensorSpec(
            p.name,
            tuple(dims.get(getattr(n, "name", ""), n) for n in unwrap_ints(p.ty.shape)),
            str(p.ty.dtype),
        )
        for p in main.params
    ]
    arrays = [_arrays(sample, specs, f"calibration[{n}]") for n, sample in enumerate(samples)]
    floats = [n for n, spec in enumerate(specs) if spec.dtype.startswith(("float", "bfloat"))]
    for number, sample in enumerate(arrays):
        for n in floats:
            if not np.isfinite(sample[n]).all():
                raise ValueError(
                    f"calibration[{number}]: input {specs[n].name!r} has NaN or infinities: give samples of "
                    "finite numbers"
                )
    first = [arrays[0][n].flat[0] for n in floats]
    if floats and all(
        (sample[n] == x).all() for sample in arrays for n, x in zip(floats, first, strict=True)
    ):
        raise ValueError(
            f"calibration: input {specs[floats[0]].name!r} is {first[0]} everywhere in all samples, from "
            "which no range follows: give samples like those that the network will see"
        )
    return arrays


def _arrays(sample: Any, specs: list[TensorSpec], what: str) -> list[np.ndarray]:
    names = [spec.name for spec in specs]
    if isinstance(sample, dict):
        if set(sample) != set(names):
            raise ValueError(
                f"{what}: expected the inputs {', '.join(names)}; missing: "
                f"{shorten(set(names) - set(sample))}; unknown: {shorten(map(str, set(sample) - set(names)))}"
            )
        values = [sample[name] for name in names]
    else:
        values = [*sample] if isinstance(sample, list | tuple) else [sample]
    if len(values) != len(names):
        noun = "input" if len(names) == 1 else "inputs"
        raise ValueError(f"{what}: expected {len(names)} {noun} ({', '.join(names)}), got {len(values)}")
    known: dict[str, tuple[int, str]] = {}
    try:
        tensors = [input_tensor(value, spec, known) for value, spec in zip(values, specs, strict=True)]
    except (TypeError, ValueError) as error:
        raise type(error)(f"{what}: {error}") from None
    arrays = [*map(to_numpy, tensors)]
    if empty := [spec.name for spec, array in zip(specs, arrays, strict=True) if not array.size]:
        raise ValueError(f"{what}: expected numbers for input {empty[0]!r}, got an empty array")
    return arrays


class Values:
    """The values of some tensors of a network on samples, which the network computes in float32.

    It is built with these tensors as outputs; if those of a call are more than `limit` bytes, several times,
    each with some of them.
    """

    def __init__(self, graph: Graph, tensors: Sequence[relax.Var], samples: list, limit: int = 1 << 29):
        """Divide the tensors into parts."""
        self.graph, self.samples = graph, samples
        self.parts: list[list[relax.Var]] = []
        dims = [_dim_values(graph.main, sample) for sample in samples]
        held = limit
        for var in tensors:
            size = bytes_of(var.ty.dtype) * max(
                math.prod(evaluate(_text(n), values) for n in unwrap_ints(var.ty.shape)) for values in dims
            )
            if held + size > limit:
                self.parts.append([])
                held = 0
            self.parts[-1].append(var)
            held += size

    def __len__(self) -> int:
        """Return how many runs of the network there are."""
        return len(self.parts) * len(self.samples)

    def __iter__(self) -> Iterator[dict[relax.Var, np.ndarray]]:
        """Yield the values of each run, by tensor."""
        for part in self.parts:
            inputs = [var for var in part if var in {*self.graph.main.params}]
            others = [var for var in part if var not in inputs]
            mod = with_outputs(self.graph.mod, self.graph.main, others)
            lib = build(for_samples(mod, self.samples), {}) if others else None
            for sample in self.samples:
                given = dict(zip(self.graph.main.params, sample, strict=True))
                results = lib(*sample) if lib else ()
                yield {var: given[var] for var in inputs} | dict(zip(others, results, strict=True))


def for_samples(mod: tvm.IRModule, samples: list) -> tvm.IRModule:
    """Return a module for the samples' dims if these are those of all, as it is sooner built and run."""
    first, *others = (_dim_values(mod["main"], sample) for sample in samples)
    same = first and all(each == first for each in others)
    return relax.transform.BindSymbolicVars(first, "main")(mod) if same else mod


def with_outputs(mod: tvm.IRModule, main: relax.Function, outputs: Sequence[relax.Expr]) -> tvm.IRModule:
    """Return a module whose `main` returns a tuple of other values of the same bindings."""
    body = relax.SeqExpr(main.body.blocks, relax.Tuple([*outputs]))
    changed = relax.Function(main.params, body, body.body.ty, main.is_pure, main.attrs)
    mod = mod.clone()
    mod["main"] = changed
    mod = relax.transform.Normalize()(mod)
    return relax.transform.DeadCodeElimination()(relax.transform.ConvertToDataflow()(mod))


def _text(dim: Any) -> Any:
    text = dim_to_str(dim)
    if text is None:
        raise ValueError(
            f"mod: a value of the network has an axis of {dim} elements: import it with static dims"
        )
    return text


def _dim_values(main: relax.Function, sample: list[np.ndarray]) -> dict[str, int]:
    pairs = (
        pair
        for p, x in zip(main.params, sample, strict=False)
        for pair in zip(p.ty.shape, x.shape, strict=True)
    )
    return {dim.name: n for dim, n in pairs if isinstance(dim, tvm.tirx.Var)}


class Range:
    """The range of a tensor's values: what has been seen, and which part of it a method chooses.

    Attributes:
        low: The least value.
        high: The greatest.
        finite: Whether all are finite.
    """

    def __init__(self, method: str):
        """Begin with nothing."""
        self.method, self.low, self.high, self.finite = method, math.inf, -math.inf, True
        self.limit, self.zeros, self.counts = 0.0, 0, np.zeros(_BINS, "int64")

    def add(self, array: np.ndarray) -> None:
        """Add values. The histogram's limit doubles where they exceed it: two bins become one."""
        low, high = float(array.min()), float(array.max())
        self.finite &= math.isfinite(low) and math.isfinite(high)
        self.low, self.high = min(self.low, low), max(self.high, high)
        if self.method == "minmax" or not self.finite:
            return
        largest = max(-low, high)
        if not largest:
            self.zeros += array.size
            return
        self.limit = self.limit or math.ldexp(1.0, math.frexp(largest)[1])
        while largest > self.limit:
            quarter = _BINS // 4
            self.counts = np.pad(self.counts.reshape(-1, 2).sum(1), quarter)
            self.limit *= 2
        self.counts += np.histogram(array, _BINS, (-self.limit, self.limit))[0]

    def chosen(self) -> tuple[float, float]:
        """Return the range that the method chooses; all if that would be nothing."""
        if self.method == "minmax" or not self.finite or not self.limit:
            return self.low, self.high
        counts = self.counts.copy()
        counts[_BINS // 2] += self.zeros
        low, high = (self._percentile if self.method == "percentile" else self._entropy)(counts)
        low, high = max(low, self.low), min(high, self.high)
        return (low, high) if low < high else (self.low, self.high)

    def _percentile(self, counts: np.ndarray) -> tuple[float, float]:
        share, edges = counts.cumsum() / counts.sum(), np.linspace(-self.limit, self.limit, _BINS + 1)
        return edges[np.searchsorted(share, _TAIL, "right")], edges[np.searchsorted(share, 1 - _TAIL) + 1]

    def _entropy(self, counts: np.ndarray) -> tuple[float, float]:
        half = _BINS // 2
        levels = 255 if self.low >= 0 or self.high <= 0 else 128
        sizes = (counts[half:] + counts[:half][::-1]).astype("float64")  # of the absolute values
        sizes[0] = sizes[1]  # exact at any scale; as the zeros of a ReLU it would decide alone
        if not sizes.any():
            return self.low, self.high
        last = int(sizes.nonzero()[0][-1]) + 1
        ends = sorted({*range(levels, last, _STEP), max(last, levels)})
        threshold = min(ends, key=lambda end: _divergence(sizes, end, levels)) * self.limit / half
        return -threshold, threshold


def _divergence(sizes: np.ndarray, end: int, levels: int) -> float:
    """Return how far a histogram is from itself with `levels` bins up to `end`, where all else is put."""
    wanted, inside = sizes[:end].copy(), sizes[:end]
    wanted[-1] += sizes[end:].sum()
    level = np.arange(end) * levels // end
    filled = inside > 0
    mean = np.bincount(level, inside, levels) / np.maximum(np.bincount(level, filled, levels), 1)
    got = np.where(filled, mean[level], 0)
    if not got.any():
        return math.inf
    wanted, got = wanted / wanted.sum(), got / got.sum()
    there = wanted > 0
    return float((wanted[there] * np.log(wanted[there] / np.maximum(got[there], 1e-10))).sum())


def scale_of(low: float, high: float) -> tuple[np.float32, int]:
    """Return the scale and the zero point of uint8 for a range with 0; a scale of 0 if there is none."""
    low, high = min(low, 0.0), max(high, 0.0)
    if not math.isfinite(high - low):
        return np.float32(0), 0
    scale = np.float32((high - low) / 255)
    if scale < np.finfo("float32").tiny:
        return np.float32(0), 0
    return scale, int(np.clip(np.rint(-low / float(scale)), 0, 255))


def quantized_weight(weight: np.ndarray, axis: int) -> tuple[np.ndarray, np.ndarray]:
    """Return weights as int8 from -127 to 127, and a scale per output channel, float32."""
    largest = (
        np.abs(weight).max(tuple(n for n in range(weight.ndim) if n != axis), initial=0).astype("float64")
    )
    scale = np.where(largest > 0, largest / 127, 1).astype("float32")
    scale = np.maximum(scale, np.finfo("float32").tiny)
    q = np.clip(np.rint(weight / along(scale.astype("float64"), axis, weight.ndim)), -127, 127)
    return q.astype("int8"), scale


def channel_means(layer: Layer, x: np.ndarray) -> np.ndarray:
    """Return the mean of each input channel of a layer, float64."""
    axis = x.ndim - 1 if layer.kind == "matmul" else 1
    return x.mean(tuple(n for n in range(x.ndim) if n != axis), dtype="float64")


def correction(layer: Layer, means: np.ndarray) -> np.ndarray:
    """Return what to add to each output channel so that rounded weights do not shift its mean, float32 (O,).

    Source: Nagel et al., "Data-Free Quantization Through Weight Equalization and Bias Correction", ICCV 2019,
    section 4.2, with the means of the input channels, (C,), on the samples.
    """
    q, scale = quantized_weight(layer.weight, layer.axis)
    error = layer.weight - q * along(scale.astype("float64"), layer.axis, q.ndim)
    if layer.kind == "matmul":
        return (means @ error).astype("float32")
    error = error.sum(tuple(range(2, error.ndim)))  # (O, C / groups)
    groups = len(means) // error.shape[1]
    of_group = np.repeat(means.reshape(groups, -1), len(error) // groups, axis=0)
    return (error * of_group).sum(1).astype("float32")


def along(array: np.ndarray, axis: int, ndim: int) -> np.ndarray:
    """Return an array of one dim so that it broadcasts along an axis of one of `ndim` dims."""
    return array.reshape([-1 if n == axis else 1 for n in range(ndim)])
