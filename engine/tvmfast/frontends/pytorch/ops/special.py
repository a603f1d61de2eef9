"""PyTorch's special functions, and what reads or changes the bits of numbers.

SPECIAL decomposes some of the operators into others; CONVERTERS has the rest: kernels of
tvmfast.kernels.special, in double precision whatever the dtype, and view(dtype).
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from tvm import relax, te, tirx
from tvm.relax import op as R

from ....core.compat import OPAQUE
from ....kernels import special
from ...context import dtype_of, shape_of
from .call import Call

aten = torch.ops.aten

# ---------------------------------------------------------------- the bits of numbers

_INTEGERS = {8: torch.int8, 16: torch.int16, 32: torch.int32, 64: torch.int64}


def _bits(x: Tensor) -> Tensor:
    return x.view(_INTEGERS[torch.finfo(x.dtype).bits])


def _signbit(x: Tensor) -> Tensor:
    """Return whether the sign is negative, that of NaN too."""
    if x.dtype == torch.bool:
        return torch.zeros_like(x)
    return (_bits(x) if x.is_floating_point() else x) < 0


def _copysign(a: Tensor, b: Tensor) -> Tensor:
    dtype = torch.result_type(a, b)
    dtype = dtype if dtype.is_floating_point else torch.get_default_dtype()
    a, b = a.to(dtype), b.to(dtype)
    return torch.where(_signbit(b), -a.abs(), a.abs())


def _nextafter(x: Tensor, to: Tensor) -> Tensor:
    """Count the bits up or down by one: they are ordered as the magnitudes of numbers are."""
    dtype = torch.result_type(x, to)
    x, to = torch.broadcast_tensors(x.to(dtype), to.to(dtype))
    bits, least = _bits(x), torch.iinfo(_bits(x).dtype).min
    smallest = torch.where(to > 0, torch.ones_like(bits), torch.full_like(bits, least + 1))
    moved = torch.where(x == 0, smallest, torch.where((to > x) == (x > 0), bits + 1, bits - 1))
    return torch.where(
        x == to, to, torch.where(torch.isnan(x) | torch.isnan(to), math.nan, moved.view(dtype))
    )


def _frexp(x: Tensor) -> tuple[Tensor, Tensor]:
    """Split into a mantissa of 0.5 to 1 and an exponent; zeros and what is not finite have the exponent 0."""
    is_tiny = x.abs() < torch.finfo(torch.float64).smallest_normal
    value = torch.where(is_tiny, x.double() * 2.0**54, x.double())
    bits = value.view(torch.int64)
    exponent = torch.bitwise_and(bits >> 52, 0x7FF)
    split = (exponent != 0) & (exponent != 0x7FF)
    half = torch.bitwise_or(torch.bitwise_and(bits, ~(0x7FF << 52)), 0x3FE << 52).view(torch.float64)
    exponent = exponent - torch.where(is_tiny, 0x3FE + 54, 0x3FE)
    return torch.where(split, half.to(x.dtype), x), torch.where(split, exponent, 0).to(torch.int32)


def _viewed(c: Call) -> relax.Expr:
    """Reinterpret the bits of elements; those of wider ones begin with the lowest."""
    before, after = (each.dtype for each in (c.node.args[0].meta["val"], c.result))
    c.refuse_if(before.is_complex or after.is_complex, f"view of {before} as {after}: use view_as_real")
    unsigned = [f"uint{each.itemsize * 8}" for each in (before, after)]
    width, ratio = after.itemsize * 8, before.itemsize // after.itemsize

    # TVM has no bits of bool, and computes bfloat16 in float32, whose upper half it is.
    def read(value):
        if before is torch.bfloat16:
            return (tirx.reinterpret("uint32", value.astype("float32")) >> 16).astype("uint16")
        return value.astype("uint8") if before is torch.bool else tirx.reinterpret(unsigned[0], value)

    def written(bits):
        if after is torch.bfloat16:
            return tirx.reinterpret("float32", bits.astype("uint32") << 16).astype("bfloat16")
        return bits.astype("bool") if after is torch.bool else tirx.reinterpret(c.dtype_in_tvm(after), bits)

    if before.itemsize < after.itemsize:
        narrow, count = before.itemsize * 8, after.itemsize // before.itemsize

        def joined(x, *at):
            every = (read(x[(*at[:-1], at[-1] * count + n)]).astype(unsigned[1]) for n in range(count))
            return written(
                functools.reduce(tirx.bitwise_or, (part << n * narrow for n, part in enumerate(every)))
            )

        def kernel(x):
            return te.compute(c.result_shape, lambda *at: joined(x, *at), name="view")

        return c.builder.call_te(kernel, c.x, primfunc_name_hint="view")
    named = c.dtype_in_tvm(after)
    parts = [
        _of_each(c, c.x, named, lambda value, n=n: written((read(value) >> n * width).astype(unsigned[1])))
        for n in range(ratio)
    ]
    return R.reshape(c.stacked(parts, c.rank), c.result_shape) if ratio > 1 else parts[0]


def _of_each(c: Call, x: relax.Expr, dtype: str, function: Callable) -> relax.Expr:
    """Call a kernel that applies a function to each element: one of all dims, unfused, if any is dynamic."""
    is_dynamic = c.importer.has_dynamic_dims
    shape = [
        tirx.Var(f"n{k}", "int64") if is_dynamic else tirx.const(n, "int64")
        for k, n in enumerate(shape_of(x))
    ]
    given = te.placeholder(shape, dtype_of(x), "x")
    kernel = te.create_prim_func([given, te.compute(shape, lambda *at: function(given[at]), name=c.op)])
    kernel = kernel.with_attr("op_pattern", OPAQUE) if is_dynamic else kernel
    return c.call(c.op, kernel, [x], (shape_of(x), dtype))[0]


# ---------------------------------------------------------------- functions


def _lcm(a: Tensor, b: Tensor) -> Tensor:
    divisor = torch.gcd(a, b)
    quotient = torch.div(a, torch.where(divisor == 0, 1, divisor), rounding_mode="trunc")
    return (quotient * b).abs()


def _kaiser_window(
    length: int,
    periodic: bool = True,
    beta: float = 12.0,
    *,
    dtype: torch.dtype | None = None,
    **_options: Any,
) -> Tensor:
    dtype = dtype or torch.get_default_dtype()
    if length < 2:
        return torch.ones(length, dtype=dtype)
    ratio = torch.arange(length).double() * (2 / (length - 1 + periodic)) - 1
    window = torch.special.i0(beta * torch.sqrt(1 - ratio * ratio))
    return (window / torch.special.i0(torch.full((), beta, dtype=torch.float64))).to(dtype)


def _of_doubles(function: Callable) -> Callable:
    return lambda c: _computed(c, c.x, function)


def _computed(c: Call, x: relax.Expr, function: Callable) -> relax.Expr:
    """Apply a function of float64 to each element: of halves and integers by way of float32."""
    dtype = c.dtype_in_tvm(c.result.dtype)
    given = dtype if dtype in ("float32", "float64") else "float32"

    def of_given(value):
        return function(value.astype("float64")).astype(given)

    return c.cast(_of_each(c, c.emit(c.cast(x, given)), given, of_given), dtype)


def _polygamma(c: Call) -> relax.Expr:
    order, x = c.inputs
    c.refuse_if(order > special.HIGHEST_ORDER, f"polygamma of the order {order}")
    return _computed(c, x, functools.partial(special.polygamma, order) if order else special.digamma)


def _gcd(c: Call) -> relax.Expr:
    count, dtype = math.prod(c.result_shape), c.dtype_in_tvm(c.result.dtype)
    both = (c.emit(R.broadcast_to(c.emit(c.cast(x, dtype)), c.result_shape)) for x in c.inputs)
    flat = [c.emit(R.reshape(x, [count])) for x in both]
    return R.reshape(*c.call("gcd", special.gcd(count, dtype), flat, ((count,), dtype)), c.result_shape)


SPECIAL = {
    aten.signbit.default: _signbit,
    aten.copysign.Tensor: _copysign,
    aten.nextafter.default: _nextafter,
    aten.frexp.Tensor: _frexp,
    aten.special_log_ndtr.default: lambda x: NotImplemented,  # which PyTorch decomposes
    aten.lcm.default: _lcm,
    **dict.fromkeys(
        (getattr(aten.kaiser_window, name) for name in ("default", "periodic", "beta")), _kaiser_window
    ),
}
CONVERTERS = {
    "view.dtype": _viewed,
    "gcd.default": _gcd,
    "polygamma.default": _polygamma,
    **{
        f"{name}.default": _of_doubles(getattr(special, name))
        for name in ("lgamma", "digamma", "erfinv", "erfc", "i0")
    },
    **{
        f"special_{name}.default": _of_doubles(getattr(special, name))
        for name in ("erfcx", "i0e", "i1", "i1e", "ndtri", "log_ndtr")
    },
}
