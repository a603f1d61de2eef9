"""How tests compare computed numbers: with a float64 reference, within what rounding explains on any CPU.

    close(lib(*xs), reference(net, *xs))           # a network or function of PyTorch, in double precision
    close(lib(a, b), a.astype("float64") @ b, 80)  # a formula whose results are sums of 80 terms

The tolerance is computed from what was summed, and fits no machine: `tvmfast.core.rounding.share` of its size. What
rounding does to a whole network `reference` finds out by Monte Carlo arithmetic (Parker, 1997): it runs the network
again with such errors in the result of each operator.
"""

import math
import os
from collections import defaultdict
from typing import NamedTuple

import ml_dtypes
import numpy as np
import torch
from torch._decomp import decomposition_table
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tvmfast.core import rounding
from tvmfast.profiling.torch_reference import doubled

shares = defaultdict(float)  # by test: the largest share of its tolerance that an error had

_RUNS = 3  # with errors
_aten = torch.ops.aten
_PRODUCTS = {_aten.mm, _aten.bmm, _aten.addmm, _aten.baddbmm}
_SUMS = _PRODUCTS | {_aten.convolution, _aten.sum, _aten.mean, _aten.cumsum, torch.ops.prims.sum}
_HALVES = (torch.float16, torch.bfloat16)
_FFT = {_aten._fft_r2c, _aten._fft_c2r, _aten._fft_c2c}
_RESIZED = {_aten._upsample_bilinear2d_aa, _aten._upsample_bicubic2d_aa, _aten.grid_sampler_3d}
# Operators of several steps, each of which rounds.
_STEPS = {getattr(_aten, name) for name in (
    "addmv", "mv", "dot", "native_layer_norm", "native_group_norm", "native_batch_norm",
    "_native_batch_norm_legit", "_native_batch_norm_legit_no_training", "_fused_rms_norm", "linalg_vector_norm",
    "_softmax", "_log_softmax", "_safe_softmax", "logsumexp", "_scaled_dot_product_flash_attention_for_cpu",
    "gelu", "silu", "mish", "softplus", "elu", "grid_sampler_2d", "var_mean",
    "upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d", "upsample_bicubic2d",
)}  # fmt: skip
# Functions that libraries compute to some units in the last place only: OpenCL's table allows 3 to 16.
_FUNCTIONS = {getattr(_aten, name + end) for end in ("", "_") for name in (
    "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "pow", "sin", "cos", "tan", "sinh", "cosh", "tanh",
    "asin", "acos", "atan", "atan2", "asinh", "acosh", "atanh", "sigmoid", "erf", "erfc", "erfinv", "rsqrt",
    "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa",
) if hasattr(_aten, name + end)}  # fmt: skip
# What chooses or moves numbers, and rounds none.
_EXACT = {getattr(_aten, name) for name in (
    "abs", "neg", "relu", "clamp", "clamp_min", "clamp_max", "hardtanh", "maximum", "minimum", "max", "min", "amax",
    "amin", "where", "masked_fill", "cat", "stack", "unsafe_split", "clone", "copy", "_to_copy", "lift_fresh",
    "index", "index_select", "index_put", "gather", "scatter", "embedding", "constant_pad_nd", "reflection_pad1d",
    "reflection_pad2d", "repeat", "max_pool2d_with_indices", "sort", "topk", "median", "floor", "ceil", "round",
    "trunc", "sign", "flip", "arange",
)}  # fmt: skip


class Reference(NamedTuple):
    """The float64 results of a network, and by how much errors of rounding moved each at most."""

    values: list[np.ndarray]
    moved: list[float]


def close(got, wanted, terms: int = 1, *, scale=None, dtype="float32", rounded: bool = False) -> None:
    """Assert that results are those of a reference within what rounding explains, and integers and bools equal.

    Args:
        got: an array or tensor, or a tuple or list of them.
        wanted: as many of float64 or complex128, or a `Reference`. `got` has NaN and infinities where these have them.
        terms: of how many terms a result is the sum; of a function that rounds several times, a tanh, some as well.
        scale: the largest magnitude that was summed, or that of each element; by default the largest of `wanted`.
        dtype: of the accumulator. Where `got` is of float64, it is too.
        rounded: whether `wanted` was computed in the precision of `got`, and so has such errors itself.
    """
    wanted, moved = wanted if isinstance(wanted, Reference) else (wanted, None)
    got, wanted = ([*map(_array, each if isinstance(each, tuple | list) else [each])] for each in (got, wanted))
    assert len(got) == len(wanted), f"expected {len(wanted)} results, got {len(got)}"
    for place, (ours, theirs) in enumerate(zip(got, wanted, strict=True)):
        name, kind = f"result {place} of {len(got)}", _kind(theirs)
        expected = f"{name}: expected {kind} {theirs.shape}, got {ours.dtype} {ours.shape}"
        assert (ours.shape, _kind(ours)) == (theirs.shape, kind), expected
        if kind not in ("float", "complex"):
            np.testing.assert_array_equal(ours, theirs, name)
            continue
        if theirs.dtype not in ("float64", "complex128") and not rounded:
            raise TypeError(f"{name}: give a float64 reference, not {theirs.dtype}, or say that it is rounded")
        if kind == "complex":
            ours, theirs = (np.stack([each.real, each.imag], -1) for each in (ours, theirs))
        info = ml_dtypes.finfo(ours.dtype)
        eps = float(info.eps)
        with np.errstate(over="ignore"):  # what overflows is an infinity
            special = np.where(np.isfinite(theirs.astype(ours.dtype)), 0, theirs.astype(ours.dtype).astype("float64"))
        ours, theirs = ours.astype("float64"), theirs.astype("float64")
        unlike = f"{name}: NaN or infinities"
        np.testing.assert_array_equal(np.where(np.isfinite(ours), 0, ours), special, unlike)
        ours, theirs = (np.where(special == 0, each, 0) for each in (ours, theirs))
        size = np.abs(theirs).max(initial=0) if scale is None else np.where(special == 0, scale, 0)
        if moved:
            tolerance = 2 * moved[place] + 2 * eps * size
        else:
            summed = min(float(ml_dtypes.finfo(dtype).eps), eps)
            tolerance = size * rounding.share(terms, eps, summed) * (2 if rounded or info.bits == 64 else 1)
        _hold(name, ours, theirs, tolerance + np.zeros(ours.shape) + float(info.smallest_subnormal))


def _hold(name, ours, theirs, tolerance) -> None:
    errors = np.abs(ours - theirs)
    share = errors / tolerance
    if not share.size:
        return
    at = np.unravel_index(share.argmax(), share.shape)
    test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]
    shares[test] = max(shares[test], float(share[at]))
    assert share[at] <= 1, (
        f"{name}: an error of {errors[at]:.2e} at {[*map(int, at)]}, of which rounding explains {tolerance[at]:.2e}: "
        f"expected {theirs[at]:.9g}, got {ours[at]:.9g}; {(share > 1).sum()} of {share.size} elements differ by more"
    )


def _array(x) -> np.ndarray:
    if isinstance(x, torch.Tensor):
        return x.detach().resolve_conj().resolve_neg().numpy()
    return np.asarray(x)


def _kind(array) -> str:
    if array.dtype == ml_dtypes.bfloat16:
        return "float"
    return {"f": "float", "c": "complex", "b": "bool", "i": "int", "u": "uint"}[array.dtype.kind]


def terms_of(params) -> int:
    """How many terms the layers of a network sum, one after another, by its weights: what an output of each reads."""
    return sum(math.prod(weight.shape[1:]) for weight in params.values() if len(weight.shape) > 1)


# ---------------------------------------------------------------- PyTorch in double precision


def reference(function, *inputs, dtype="float32", runs=_RUNS) -> Reference:
    """The results of a network or function of tensors in float64, and how far rounding moves them.

    Args:
        function: a module, in its mode of evaluation, or a function. Weights that it holds are converted too.
        inputs: tensors or arrays, converted if they are of floats.
        dtype: of the accumulators of sums, for numbers that are not of float64.
        runs: with errors. Few numbers, or one that decides the others, need more for the largest error to show.
    """
    inputs = [x if isinstance(x, torch.Tensor) else torch.from_numpy(np.asarray(x)) for x in inputs]
    held = [*function.parameters(), *function.buffers()] if isinstance(function, torch.nn.Module) else []
    floats = [x.dtype for x in (*inputs, *held) if x.is_floating_point()] or [torch.float32]
    lowest = max(floats, key=lambda each: torch.finfo(each).eps)
    kept, results, fast = [x.data for x in held], [], torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # whole layers of transformers in one operator
    try:
        for x in held:
            x.data = doubled(x)
        for run in range(1 + runs):
            with torch.no_grad(), _Double(lowest, getattr(torch, dtype), run):
                results.append([*map(_array, tree_leaves(function(*(doubled(x).clone() for x in inputs))))])
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        for x, data in zip(held, kept, strict=True):
            x.data = data
    moved = [_distance(np.stack(each), torch.finfo(lowest).max) for each in zip(*results, strict=True)]
    return Reference(results[0], moved)


def _distance(runs: np.ndarray, largest: float) -> float:
    """How far the first run's finite numbers are from those of the others at most."""
    if runs.dtype.kind not in "fc":
        return 0.0
    with np.errstate(invalid="ignore"):
        distances = np.abs(runs[1:] - runs[0])
        return float(distances[np.isfinite(distances) & (np.abs(runs[0]) <= largest)].max(initial=0))


class _Double(TorchDispatchMode):
    """Floats are of float64, and in a run other than 0 each result has a random error as large as one of rounding."""

    def __init__(self, lowest, summed, run):
        super().__init__()
        self.eps = torch.finfo(lowest).eps
        self.summed = min(self.eps, torch.finfo(summed).eps)
        self.random = torch.Generator().manual_seed(run) if run else None

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        packet, given = func.overloadpacket, (kwargs or {}).get("dtype")
        cast = torch.finfo(given).eps if packet is _aten._to_copy and given in _HALVES else 0.0
        args, kwargs = doubled(args), {name: doubled(value) for name, value in (kwargs or {}).items()}
        with self:
            if packet in _STEPS and func in decomposition_table:
                return decomposition_table[func](*args, **kwargs)
            result = func.decompose(*args, **kwargs)
        if result is not NotImplemented:
            return result
        if self.random and packet is _aten._linalg_solve_ex:
            args = (self._moved(args[0]), *args[1:])
        result = doubled(func(*args, **kwargs))
        if self.random and (packet not in _EXACT or cast > self.eps) and not func.is_view:
            for each in result if isinstance(result, list | tuple) else [result]:
                if isinstance(each, torch.Tensor) and each.dtype in (torch.float64, torch.complex128):
                    self._round(packet, args, kwargs, each, cast)
        return result

    def _round(self, packet, args, kwargs, result, cast):
        """Add to each element an error of its own size; to a sum one of the size of its partial sums.

        `cast` is the distance from 1 to the next number in the half floats that the result is cast to, or 0.
        """
        sizes, terms, steps = result.abs(), 1, 4 if packet in _FUNCTIONS else 1
        if packet in _SUMS:
            terms = _terms(packet, args, result)
            powers = (x.abs() ** 2 if isinstance(x, torch.Tensor) and x.dtype != torch.bool else x for x in args)
            squares = packet(*powers, **kwargs).sqrt()
            sizes = torch.maximum(sizes, squares / math.sqrt(terms) if packet is _aten.mean else squares)
        elif packet in (_aten.add, _aten.add_):  # to a sum; it may be the first term of it
            terms = max(getattr(x, "terms", 1) for x in args)
        elif packet is _aten._linalg_slogdet:  # logarithms of what has errors in proportion
            sizes, terms = sizes.clamp(min=1), args[0].shape[-1]
        elif packet in _FFT:
            terms = math.prod(args[0].shape[axis] for axis in args[1])
            sizes = torch.maximum(sizes, sizes.square().mean().sqrt())
        elif packet in _RESIZED:  # sums whose terms may cancel, of pixels whose weights have the errors of positions
            sizes = torch.maximum(sizes, packet(args[0].abs(), *args[1:], **kwargs).abs())
            steps = max(steps, 2 * max(args[0].shape[2:]))
        result.terms = terms
        error = sizes * max(self.eps * steps, self.summed * math.sqrt(terms), cast)
        if result.is_complex():
            result, error = torch.view_as_real(result), error[..., None]
        else:
            # Whole numbers, such as indices that are computed, stay whole, but for large ones: all of those are.
            error *= (result != result.round()) | (result.abs() > 2 / self.eps)
        random = 2 * torch.rand(result.shape, generator=self.random, dtype=torch.float64) - 1
        result += (error * (random + random.sign()) / 2).nan_to_num_(0, 0, 0)

    def _moved(self, matrix):
        """Return a matrix with the backward error of a factorization, a share of its largest element (Higham, 9.3)."""
        share = self.eps * math.sqrt(matrix.shape[-1]) * matrix.abs().amax((-2, -1), keepdim=True)
        return matrix + share * (2 * torch.rand(matrix.shape, generator=self.random, dtype=torch.float64) - 1)


def _terms(packet, args, result) -> float:
    if packet in _PRODUCTS:
        return args[-2].shape[-1]
    if packet is _aten.convolution:
        weight, stride = args[1], args[3]
        winograd = weight.shape[2:] == (3, 3) and set(stride) == {1}  # may double the error
        return weight[0].numel() * (4 if winograd else 1)
    if packet is _aten.cumsum:
        return (args[0].shape or (1,))[args[1]]
    return args[0].numel() / max(result.numel(), 1)
