"""`tn.build` compiles an imported module with its parameters, or a model, which is imported first.

`tn.quantize` makes an imported module one that computes in int8.
"""

import os
import sys
from collections.abc import Iterable
from typing import Any

import tvm

from .compiler import build as compiler
from .core.compat import keep_interrupt
from .quantization.report import Quantized
from .quantization.static import static_int8
from .quantization.weights_only import quantize_weights
from .runtime.compiled import Compiled


def build(
    mod: Any,
    params: Any = None,
    target=None,
    opt_level: int = 3,
    records=None,
    state=None,
    sizes=None,
    dtype: str | None = None,
    allow_tf32: bool = False,
    experimental: bool = False,
) -> Compiled:
    """Compile a network for a CPU or an NVIDIA GPU.

    Args:
        mod: An IRModule from a frontend, or a model: a PyTorch module or ExportedProgram (`from_pytorch`),
            an ONNX file, its bytes or a ModelProto (`from_onnx`), or a Gluon HybridBlock (`from_mxnet`).
        params: The frontend's parameters, name to array; for a model its inputs, as its frontend takes them.
        target: See `tvmfast.compiler.build.build`, as for all others.
        opt_level: 0 to 3.
        records: Tuning records: None for those that tvmfast ships, False for none.
        state: Inputs that are fed from an output of the call before, `{"h": "output1"}`.
        sizes: Values of dynamic dims to specialize the network for, too, `[{"height": 480, "width": 640}]`.
        dtype: "bfloat16" or "float16" for weights of 16 bits on a CPU; None for the network's own.
        allow_tf32: Whether convolutions of float32 on a GPU may round their operands to 10 bits of mantissa.
        experimental: Whether to use kernels for GPUs that nobody has measured on this architecture, too.

    Returns:
        The compiled network.

    Raises:
        TypeError: `mod` is of another kind.
        Exception: What the frontend or `tvmfast.compiler.build.build` raises.
    """
    if not isinstance(mod, tvm.IRModule):
        mod, params = _importer(mod)(mod, params)
    arguments = params, target, opt_level, records, state, sizes, dtype, allow_tf32, experimental
    return compiler.build(mod, *arguments)


@keep_interrupt()
def quantize(
    mod: tvm.IRModule,
    params: dict,
    calibration: Iterable | None = None,
    *,
    method: str = "minmax",
    skip: str | Iterable[str] = (),
    budget: float | None = None,
    weights: str | None = None,
    group: int = 32,
) -> Quantized | tuple[tvm.IRModule, dict]:
    """Quantize a float32 network: convolutions and matrix products with constant weights compute in int8.

    With `weights`, only the weights of matrix products are stored in fewer bits, for language models, whose
    time is that of reading them: symmetric, with a float16 scale for each `group` of input channels. They are
    unpacked in registers, and the products are those of float32 with these weights.

    Static quantization: the scales follow from the network's values on samples. Weights become int8, with a
    scale per output channel and no zero point; activations uint8 with a scale and a zero point per tensor;
    biases stay float32. In the result, `relax.op.quantize` and `relax.op.dequantize` stand around the
    operands (QDQ), batch norms are folded, and the parameters are the int8 weights, their scales and what
    stays float32. A tensor is quantized once, where it is stored between layers, and additions of residual
    networks, average and max pools, reshapes and concatenations of such tensors read it too. The operand of
    an addition that a convolution has just computed, such as a downsampling one, is still in registers, and
    is not rounded.

    Source: Krishnamoorthi, "Quantizing deep convolutional networks for efficient inference: A whitepaper",
    2018; for the methods see `quantization/calibrate.py`.

    Args:
        mod: A module from a frontend; dims may be dynamic.
        params: Its parameters, by name.
        calibration: Samples of the inputs that the network will see, some dozens: a list (or another
            iterable) of arrays, tuples of arrays, or dictionaries by the names of the inputs.
        method: How a tensor's range is chosen from its values: "minmax", all of it; "percentile", without
            the 0.01 % at each end; "entropy", the least Kullback-Leibler divergence.
        skip: Layers that stay float32, by their names in the report or their operators, "matmul"; with
            `weights`, names of parameters.
        budget: The least signal-to-noise ratio of the output, in dB. While the output's is lower, the layer
            that alone adds the largest error stays float32.
        weights: "int8", integers from -127 to 127, or "int4", from -8 to 7, for weights alone; without
            `calibration`.
        group: Input channels of such a weight that share a scale, a multiple of 8.

    Returns:
        The module and the parameters, a tuple of two, whose attribute `report` is a `Report`: for each
        layer its range, scale and zero point, the signal-to-noise ratios of its weights and its input, and
        that of the network's output if this layer alone computes in int8, all in dB; or why it stays
        float32. The output's ratios are measured on the first four samples.

    Raises:
        TypeError: `calibration` is no list, or a sample no array; `mod` or `params` as for `build`.
        ValueError: There is no sample, one has another shape or dtype than the inputs, NaN or infinities, or
            all have one number everywhere; `method`, `skip`, `budget` or `group` is none of the above; both
            `calibration` and `weights` are given.
    """
    if weights is not None:
        if calibration is not None or budget is not None:
            raise ValueError("weights: expected no calibration and no budget beside it; they need no samples")
        return quantize_weights(mod, params, weights, group, [skip] if isinstance(skip, str) else [*skip])
    return static_int8(mod, params, calibration, method, skip, budget)


def _importer(model: Any):
    """Return the importer for a model, without importing a framework that the caller does not use."""
    torch, onnx, mxnet = (sys.modules.get(name) for name in ("torch", "onnx", "mxnet"))
    if torch and isinstance(model, torch.nn.Module | torch.jit.ScriptFunction | torch.export.ExportedProgram):
        from .frontends.pytorch.importer import from_pytorch  # for speed: torch's exporter

        return from_pytorch
    if isinstance(model, str | os.PathLike | bytes) or (onnx and isinstance(model, onnx.ModelProto)):
        from .frontends.onnx.importer import from_onnx  # for speed: onnx

        return from_onnx
    if mxnet and isinstance(model, mxnet.gluon.HybridBlock):
        from .frontends.mxnet.importer import from_mxnet  # for speed: only what the model needs

        return lambda block, inputs: from_mxnet(block, None, inputs)
    raise TypeError(
        "mod: expected a tvm.IRModule with its params, as tn.from_pytorch, tn.from_onnx and tn.from_mxnet "
        "return them, or a PyTorch module, an ONNX file or model, or a Gluon HybridBlock with the shapes of "
        f"its inputs; got {type(model).__name__}"
    )
