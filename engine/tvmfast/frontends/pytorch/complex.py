"""Complex numbers, which TVM lacks: `without_complex` turns each complex tensor into two real ones.

Discrete Fourier transforms become products with matrices of cosines and sines.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import fx

from .inline import inline

aten = torch.ops.aten
_LONGEST = 4096  # elements of a transform, whose two matrices then take 128 MiB in float32


class Pair(NamedTuple):
    """A complex tensor as two real ones of its shape, or a complex scalar as two real ones."""

    real: Any
    imag: Any


class _OfReal(Pair):
    """A real tensor and zeros."""


def _pair(x: Any) -> Pair:
    if isinstance(x, Pair):
        return x
    if isinstance(x, torch.Tensor):
        return _OfReal(x, torch.zeros_like(x))
    return Pair(complex(x).real, complex(x).imag)


def _real(dtype: torch.dtype | None) -> torch.dtype | None:
    return dtype.to_real() if dtype is not None and dtype.is_complex else dtype


def _each(function: Callable, *pairs: Pair) -> Pair:
    return Pair(*(function(*parts) for parts in zip(*pairs, strict=True)))


# ---------------------------------------------------------------- Fourier transforms


def _is_mirrored(n: int) -> torch.Tensor:
    """Return which of n frequencies are their own mirror images, and real for real signals: 0 and n / 2."""
    return 2 * torch.arange(n) % n == 0


def _transformed(x: Any, dim: int, sign: int) -> Pair:
    """Return the sums of x[j] exp(sign 2 pi i j k / n) along an axis of n elements, for k from 0 to n - 1."""
    real = _real_of(x)
    n, dtype = real.shape[dim], real.dtype
    if n > _LONGEST:
        raise ValueError(f"a Fourier transform of {n} numbers; the longest here is {_LONGEST}")
    # Cosine and sine are exactly 0 at their zeros: a product's sign decides between pi and -pi.
    phase = torch.arange(n).unsqueeze(1) * torch.arange(n) % n
    angle = phase.to(torch.float64) * (2 * math.pi / n)
    cos = torch.where(4 * phase % (2 * n) == n, 0.0, torch.cos(angle)).to(dtype)
    sin = torch.where(2 * phase % n == 0, 0.0, torch.sin(angle)).to(dtype) * sign
    shape = real.movedim(dim, -1).shape

    def rows(part: torch.Tensor) -> torch.Tensor:
        return part.movedim(dim, -1).reshape(-1, n)

    if isinstance(x, Pair):
        sums = _matrix_product(_each(rows, x), Pair(cos, sin))
    else:
        sums = Pair(rows(x) @ cos, rows(x) @ sin)
    return _each(lambda part: part.reshape(shape).movedim(-1, dim), sums)


def _along(x: Any, dims: list[int], sign: int, normalization: int) -> Pair:
    """Transform along axes, the last one first, as PyTorch does.

    Sums that are real, of a real tensor, have an imaginary part of 0 after each axis, whatever is infinite.
    """
    is_real = isinstance(x, _OfReal | torch.Tensor)
    x = x.real if isinstance(x, _OfReal) and dims else x
    shape = _real_of(x).shape
    size, mirrored = math.prod(shape[dim] for dim in dims), None
    for dim in reversed(dims):
        x = _transformed(x, dim, sign)
        if is_real:
            own = _is_mirrored(shape[dim]).reshape(-1, *[1] * (len(shape) - 1 - dim % len(shape)))
            mirrored = own if mirrored is None else mirrored & own
            x = Pair(x.real, torch.where(mirrored, 0.0, x.imag))
    scale = (1.0, size**-0.5, 1 / size)[normalization]
    return _each(lambda part: part * scale, x)


def _fft_r2c(x: torch.Tensor, dims: list[int], normalization: int, onesided: bool) -> Pair:
    result, last = _along(x, dims, -1, normalization), dims[-1]
    return _each(lambda part: part.narrow(last, 0, part.shape[last] // 2 + 1), result) if onesided else result


def _fft_c2r(x: Pair, dims: list[int], normalization: int, size: int) -> torch.Tensor:
    """Mirror the first half of the spectrum along the last axis, after transforming the other axes.

    What is its own mirror image is real: its imaginary part is not read.
    """
    last = dims[-1]
    half = _along(x, dims[:-1], 1, normalization)
    mirrored = _each(lambda part: part.narrow(last, 1, size - size // 2 - 1).flip(last), half)
    imag = torch.cat([half.imag, -mirrored.imag], last).movedim(last, -1)
    imag = torch.where(_is_mirrored(size), 0.0, imag).movedim(-1, last)
    return _along(Pair(torch.cat([half.real, mirrored.real], last), imag), [last], 1, normalization).real


# ---------------------------------------------------------------- arithmetic


def _sum(sign: int) -> Callable:
    return lambda a, b, *, alpha=1: _each(lambda x, y: x + sign * alpha * y, _pair(a), _pair(b))


def _bilinear(operator: Callable) -> Callable:
    def converted(a: Any, b: Any) -> Pair:
        a, b = _pair(a), _pair(b)
        real = operator(a.real, b.real) - operator(a.imag, b.imag)
        return Pair(real, operator(a.real, b.imag) + operator(a.imag, b.real))

    return converted


_product = _bilinear(lambda a, b: a * b)
_matrix_product = _bilinear(torch.matmul)


def _quotient(a: Any, b: Any) -> Pair:
    """Divide; both by the larger part of `b` first, as squares of 1e20 are no float32."""
    if not isinstance(b, Pair | complex):
        return _each(lambda part: part / b, a)
    if isinstance(b, complex):
        return _product(a, 1 / b if b else complex(math.nan, math.nan))
    largest = torch.maximum(b.real.abs(), b.imag.abs())
    a, b = (_each(lambda part: part / largest, each) for each in (_pair(a), b))
    size = b.real * b.real + b.imag * b.imag
    return _each(lambda part: part / size, _product(a, Pair(b.real, -b.imag)))


def _exp(x: Pair) -> Pair:
    return Pair(torch.exp(x.real) * torch.cos(x.imag), torch.exp(x.real) * torch.sin(x.imag))


def _partwise(operator: Any, of_real: Callable = torch.zeros_like) -> Callable:
    """Convert an operator that is linear, or moves elements: each part by itself.

    The imaginary part of a real tensor is `of_real`: zeros, or for indices that tensor itself.
    """

    def imaginary(x: Any) -> Any:
        return x.imag if isinstance(x, Pair) else of_real(x) if isinstance(x, torch.Tensor) else x

    def converted(*args: Any, dtype: torch.dtype | None = None, **kwargs: Any) -> Pair | list[Pair]:
        kwargs = {name: value for name, value in kwargs.items() if name != "layout"}
        kwargs = {"dtype": _real(dtype)} if dtype else kwargs
        real, imag = (operator(*_mapped(args, part), **kwargs) for part in (_real_of, imaginary))
        return Pair(real, imag) if isinstance(real, torch.Tensor) else list(map(Pair, real, imag))

    return converted


def _real_of(x: Any) -> Any:
    return x.real if isinstance(x, Pair) else x


def _padded(x: Pair, pads: list[int], value: Any = 0.0) -> Pair:
    return _each(lambda part, number: torch.constant_pad_nd(part, pads, number), x, _pair(value))


def _mapped(x: Any, function: Callable) -> Any:
    """Map the leaves of lists, tuples and dictionaries; a pair is a leaf."""
    if isinstance(x, dict):
        return {name: _mapped(each, function) for name, each in x.items()}
    if isinstance(x, list | tuple) and not isinstance(x, Pair):
        return type(x)(_mapped(each, function) for each in x)
    return function(x)


def _filled(operator: Any) -> Callable:
    """Convert an operator that fills a tensor with one number, its last argument, which may be real."""

    def converted(*args: Any, dtype: torch.dtype | None = None, **_: Any) -> Pair:
        return _each(lambda part: operator(*args[:-1], part, dtype=_real(dtype)), _pair(complex(args[-1])))

    return converted


def _copied(x: Any, *, dtype: torch.dtype | None = None, **_: Any) -> Pair | torch.Tensor:
    """Copy; to a real dtype PyTorch drops the imaginary part, with a warning."""
    if dtype is None or dtype.is_complex:
        pair = _pair(x)
        return type(pair)(*_each(lambda part: part.to(_real(dtype)) if dtype else part.clone(), pair))
    return (x.real != 0) | (x.imag != 0) if dtype == torch.bool else x.real.to(dtype)


_PARTWISE = (
    aten.neg.default, aten.sum.default, aten.sum.dim_IntList, aten.mean.default, aten.mean.dim,
    aten.cumsum.default, aten.view.default, aten.reshape.default, aten.permute.default, aten.transpose.int,
    aten.t.default, aten.clone.default, aten.slice.Tensor, aten.select.int, aten.cat.default,
    aten.stack.default, aten.unsqueeze.default, aten.squeeze.dim, aten.squeeze.dims, aten.expand.default,
    aten.roll.default, aten.flip.default, aten.split.Tensor, aten.split_with_sizes.default,
    aten.slice_scatter.default, aten.copy.default, aten.select_scatter.default, aten.repeat.default,
    aten.alias.default, aten.detach.default, aten.diagonal.default, aten.unbind.int,
    aten._unsafe_view.default, aten.zeros_like.default,
)  # fmt: skip
_INDEXED = (aten.index_select.default, aten.index.Tensor, aten.gather.default)

_OPERATORS: dict[Any, Callable] = {
    **{each: _partwise(each) for each in _PARTWISE},
    **{each: _partwise(each, lambda index: index) for each in _INDEXED},
    aten.where.self: lambda mask, a, b: _each(lambda x, y: torch.where(mask, x, y), _pair(a), _pair(b)),
    aten.constant_pad_nd.default: _padded,
    aten._fft_c2c.default: lambda x, dims, scale, forward: _along(x, dims, -1 if forward else 1, scale),
    aten._fft_r2c.default: _fft_r2c,
    aten._fft_c2r.default: _fft_c2r,
    aten.view_as_real.default: lambda x: torch.stack(tuple(x), -1),
    aten.view_as_complex.default: lambda x: Pair(x.select(-1, 0), x.select(-1, 1)),
    aten.complex.default: Pair,
    aten.polar.default: lambda size, angle: Pair(size * torch.cos(angle), size * torch.sin(angle)),
    aten.real.default: _real_of,
    aten.imag.default: lambda x: x.imag,
    aten.abs.default: lambda x: torch.hypot(x.real, x.imag),
    aten.angle.default: lambda x: torch.atan2(x.imag, x.real),
    aten.exp.default: _exp,
    **dict.fromkeys(
        (aten._conj.default, aten._conj_physical.default, aten.conj_physical.default),
        lambda x: Pair(x.real, -x.imag),
    ),
    **dict.fromkeys((aten.mul.Tensor, aten.mul.Scalar), _product),
    **dict.fromkeys((aten.div.Tensor, aten.div.Scalar), _quotient),
    **dict.fromkeys((aten.add.Tensor, aten.add.Scalar), _sum(1)),
    **dict.fromkeys((aten.sub.Tensor, aten.sub.Scalar), _sum(-1)),
    **dict.fromkeys((aten.mm.default, aten.bmm.default, aten.matmul.default), _matrix_product),
    aten._assert_tensor_metadata.default: lambda *_, **__: None,
    aten.scalar_tensor.default: _filled(torch.scalar_tensor),
    aten.full.default: _filled(torch.full),
    aten._to_copy.default: _copied,
}


def without_complex(graph: fx.Graph, table: dict) -> None:
    """Replace, in place, all nodes of complex numbers; a complex weight becomes its view_as_real.

    Raises NotImplementedError for an operator of complex numbers that is not known here, and ValueError for a
    network that returns complex numbers.
    """
    pairs: dict[fx.Node, Any] = {}
    replaced = []
    for node in list(graph.nodes):
        value = node.meta.get("val")
        is_complex = isinstance(value, torch.Tensor) and value.is_complex()
        reads_pairs = any(each in pairs for each in node.all_input_nodes)
        if node.op == "output" and reads_pairs:
            raise ValueError(
                "model: it returns complex numbers, which TVM lacks; return torch.view_as_real of them"
            )
        if node.op == "placeholder" and is_complex:
            with value.fake_mode:
                node.meta["val"] = torch.empty((*value.shape, 2), dtype=_real(value.dtype))
            pairs[node] = inline(node.next, _OPERATORS[aten.view_as_complex.default], (node,), {}, table)
        if node.op != "call_function" or not (is_complex or reads_pairs):
            continue
        replaced.append(node)
        if getattr(node.target, "__name__", "") == "getitem":
            pairs[node] = pairs[node.args[0]][node.args[1]]
            continue
        if node.target not in _OPERATORS:
            raise NotImplementedError(f"complex numbers: tvmfast lacks {node.target} of them")
        args, kwargs = (
            _mapped(each, lambda x: pairs.get(x, x) if isinstance(x, fx.Node) else x)
            for each in (node.args, dict(node.kwargs))
        )
        result = inline(node, _OPERATORS[node.target], args, kwargs, table)
        if isinstance(result, Pair | list):
            pairs[node] = result
        elif result is not None:
            node.replace_all_uses_with(result)
    for node in reversed(replaced):
        graph.erase_node(node)
