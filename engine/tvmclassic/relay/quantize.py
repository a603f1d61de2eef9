"""`relay.quantize`: a float32 network as one of int8, by what `tn.quantize` is made of.

Convolutions, and dense layers if asked for, read activations as uint8 with a zero point, and weights as int8
with a scale for each output channel, which is finer than Relay's one scale for all.
"""

import contextvars
import warnings
from typing import Any

import numpy as np
from tvm import relax

from tvmfast.quantization.insert import Scale, insert
from tvmfast.quantization.layers import Graph
from tvmfast.quantization.static import static_int8

from ..context import without_instruments
from . import ir
from .build import relax_of
from .lift import from_relax

# Relay's options with their defaults.
_DEFAULTS = {
    "calibrate_mode": "global_scale",
    "global_scale": 8.0,
    "weight_scale": "power2",
    "skip_conv_layers": (0,),
    "skip_dense_layer": True,
    "do_simulation": False,
    **{"nbit_input": 8, "nbit_weight": 8, "nbit_activation": 32},
    **{"dtype_input": "int8", "dtype_weight": "int8", "dtype_activation": "int32"},
    **{"round_for_shift": True, "debug_enabled_ops": None, "rounding": "UPWARD"},
    **{"calibrate_chunk_by": -1, "partition_conversions": "disabled"},
}
_FIXED = [name for name in _DEFAULTS if name.startswith(("nbit_", "dtype_"))]  # one value is served
_IGNORED = {  # and why
    "weight_scale": "each output channel has a scale of its own, its largest weight over 127",
    "do_simulation": "the operators are those of float32, between quantize and dequantize",
    **dict.fromkeys(("round_for_shift", "rounding"), "scales are multiplied in float32"),
    **dict.fromkeys(("debug_enabled_ops", "partition_conversions"), "the whole module is quantized"),
    "calibrate_chunk_by": "the samples are read in one go",
}
_CHOICES = {
    "calibrate_mode": ("global_scale", "kl_divergence", "percentile"),
    "weight_scale": ("power2", "max"),
    **{name: (_DEFAULTS[name],) for name in _FIXED},
}
_METHODS = {"kl_divergence": "entropy", "percentile": "percentile"}


class QConfig:
    """The options of `quantize`, by name; a context in which they hold.

    Warns of an option that has no effect here.
    """

    def __init__(self, **options):
        if unknown := sorted(options.keys() - _DEFAULTS.keys()):
            raise AttributeError(f"qconfig has no option {unknown[0]!r}; it has {', '.join(_DEFAULTS)}")
        self.__dict__.update(_DEFAULTS | options)
        for name, known in _CHOICES.items():
            if getattr(self, name) not in known:
                raise NotImplementedError(
                    f"qconfig: {name} is one of {', '.join(map(repr, known))}; got {getattr(self, name)!r}"
                )
        if not 0 < self.global_scale < np.inf:
            raise ValueError(f"qconfig: global_scale is a number above 0; got {self.global_scale!r}")
        for name, why in _IGNORED.items():
            if getattr(self, name) != _DEFAULTS[name]:
                warnings.warn(f"qconfig: {name} has no effect: {why}", stacklevel=2)

    def __enter__(self) -> "QConfig":
        self._token = _current.set(self)
        return self

    def __exit__(self, *_error) -> None:
        _current.reset(self._token)


_current: contextvars.ContextVar[QConfig] = contextvars.ContextVar("qconfig")


def current_qconfig() -> QConfig:
    """Return the options of the innermost `qconfig`."""
    return _current.get(None) or QConfig()


@without_instruments()
def quantize(mod: ir.IRModule, params: dict | None = None, dataset: Any = None) -> ir.IRModule:
    """Quantize a Relay module, by the options of `qconfig`.

    With "global_scale", activations are from -global_scale to global_scale; "kl_divergence" and "percentile"
    choose each range from the network's values on `dataset`, as the methods "entropy" and "percentile" of
    `tn.quantize` do. `skip_conv_layers` numbers convolutions that stay float32, as all dense layers do by
    `skip_dense_layer`.

    Args:
        mod: A module or function of float32.
        params: Its weights, by name.
        dataset: Samples, each a dictionary of arrays by the names of the inputs.

    Returns:
        A module with its weights as constants: its operators are those of float32, between `dequantize` and
        `quantize`, and a build computes them in int8.

    Raises:
        ValueError: A range has to be chosen, and `dataset` is None or of other inputs.
    """
    config = current_qconfig()
    given, weights = relax_of(mod, params)
    graph = Graph(given, weights)
    convs = [layer for layer in graph.layers if layer.kind == "conv2d"]
    skip = [convs[n].name for n in config.skip_conv_layers or () if 0 <= n < len(convs)]
    skip += [each.name for each in graph.layers if each.kind == "matmul" and config.skip_dense_layer]
    if config.calibrate_mode == "global_scale":
        limit, step = float(config.global_scale), np.float32(config.global_scale / 128)
        scale = Scale(-limit, limit - float(step), step, 128)
        active = [layer for layer in graph.layers if not layer.reason and layer.name not in skip]
        changed, arrays = insert(graph, active, dict.fromkeys(graph.of_tensor.values(), scale))
    elif dataset is None:
        raise ValueError(
            f"relay.quantize: {config.calibrate_mode} chooses ranges from samples of the inputs: give "
            "dataset=[{name: array}, …]"
        )
    else:
        samples = [
            {name: array.numpy() if hasattr(array, "numpy") else array for name, array in sample.items()}
            for sample in dataset
        ]
        changed, arrays = static_int8(given, weights, samples, _METHODS[config.calibrate_mode], skip, None)
    return from_relax(relax.transform.BindParams("main", arrays)(changed))


NAMES = {
    "quantize": quantize,
    "qconfig": QConfig,
    "QConfig": QConfig,
    "current_qconfig": current_qconfig,
}
