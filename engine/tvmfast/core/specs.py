"""Tensor specs: name, shape and dtype.

Frontends parse the user's inputs into `TensorSpec`s, `Compiled` checks arguments against them, and a saved
network's graph.json stores them.
"""

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from .dims import Dim, dims_of, evaluate, is_name


@dataclass(frozen=True)
class TensorSpec:
    """A tensor's name, its `shape` in elements per axis, its `dtype` as NumPy and TVM spell it (bfloat16).

    A dynamic dim is a `Dim`, or the text of an expression of such, see dims.py.
    """

    name: str
    shape: tuple[int | Dim | str, ...]
    dtype: str = "float32"

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}[{', '.join(map(str, self.shape))}]"

    def at(self, values: Mapping[str, int]) -> "TensorSpec":
        """Return the spec for these values of the dynamic dims."""
        return TensorSpec(self.name, tuple(evaluate(dim, values) for dim in self.shape), self.dtype)


def dtype_of(array: Any) -> str:
    """Return the dtype of a NumPy array, a torch tensor or a TVM tensor, spelled as in `TensorSpec`."""
    return _spelled(array.dtype)


@functools.cache
def _spelled(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def require_dense(array: Any, what: str, data: bool = True) -> None:
    """Raise TypeError unless `array` is a dense array and nothing more.

    Rejected are masked NumPy arrays, and torch tensors that are sparse, nested or in a oneDNN layout.

    Args:
        array: A NumPy array, or a torch or TVM tensor.
        what: What the error message calls it.
        data: Whether to reject torch tensors on the device "meta" too, which have no elements.
    """
    if isinstance(array, np.ma.MaskedArray):
        raise TypeError(
            f"{what}: expected an array without a mask, got a masked array; fill it first: x.filled(0)"
        )
    if getattr(array, "is_nested", False):
        raise TypeError(
            f"{what}: expected a dense tensor, got a nested one; pad it first: x.to_padded_tensor(0)"
        )
    if str(getattr(array, "layout", "torch.strided")) != "torch.strided":
        raise TypeError(
            f"{what}: expected a dense tensor, got one of layout {array.layout}; convert it: x.to_dense()"
        )
    if data and getattr(array, "is_meta", False):
        raise TypeError(
            f"{what}: expected numbers, got a tensor on the device 'meta', which holds none; load them"
        )


def parse_inputs(
    inputs: Any,
    names: list[str] | None = None,
    dtypes: Mapping[str, str] | None = None,
    least: int = 1,
    dynamic_dims: bool = False,
) -> list[TensorSpec]:
    """Parse a user's description of a model's inputs.

    A shape without a dtype gets the one that `dtypes` has for its name, else float32.

    Args:
        inputs: Maps each name to a shape `(1, 3, 224, 224)`, to a pair of shape and dtype `((1, 64),
            "int64")`, or to an example (NumPy array or torch tensor). Also a list of such (name, value)
            pairs, as in Relay, or one example or a list of examples.
        names: Names for examples without one; by default input0, input1, …
        dtypes: Default dtype by name.
        least: Smallest static dim.
        dynamic_dims: Whether a shape may have names and `Dim`s, ("batch", 3, 224, 224), as dynamic dims.

    Raises:
        TypeError: An entry is none of these; the message names it.
        ValueError: A shape or dtype is not valid, there is no input, or a name occurs twice.
    """
    if hasattr(inputs, "items"):
        pairs = list(inputs.items())
    elif isinstance(inputs, list | tuple) and inputs and all(_is_pair(entry) for entry in inputs):
        pairs = list(inputs)
    elif hasattr(inputs, "dtype") or (
        isinstance(inputs, list | tuple) and any(hasattr(x, "dtype") for x in inputs)
    ):
        examples = [inputs] if hasattr(inputs, "dtype") else list(inputs)
        names = names or [f"input{i}" for i in range(len(examples))]
        if len(names) != len(examples):
            raise ValueError(
                f"expected {len(names)} inputs ({', '.join(names)}), got {len(examples)} examples"
            )
        pairs = list(zip(names, examples, strict=True))
    else:
        raise TypeError(
            "inputs: expected a dictionary from input name to shape, such as {'input0': (1, 3, 224, 224)}, "
            f"or example arrays; got {type(inputs).__name__}: {inputs!r:.80}"
        )
    if not pairs:
        raise ValueError(
            "inputs: expected at least one input, such as {'input0': (1, 3, 224, 224)}; got none"
        )
    specs = [
        _parse_one(name, value, (dtypes or {}).get(name, "float32"), least, dynamic_dims)
        for name, value in pairs
    ]
    used = [spec.name for spec in specs]
    if twice := sorted({name for name in used if used.count(name) > 1}):
        raise ValueError(
            f"inputs: expected a different name for each, but {twice[0]!r} comes {used.count(twice[0])} times"
        )
    return unify_dims(specs)


def unify_dims(specs: list[TensorSpec]) -> list[TensorSpec]:
    """Return the specs, with all bounds of a dynamic dim wherever it occurs.

    A dim with only one value within its bounds becomes static.
    """
    dims = dims_of(spec.shape for spec in specs)
    known = {name: dim.lower if dim.lower == dim.upper else dim for name, dim in dims.items()}
    shapes = (tuple(known[n.name] if isinstance(n, Dim) else n for n in spec.shape) for spec in specs)
    return [TensorSpec(spec.name, shape, spec.dtype) for spec, shape in zip(specs, shapes, strict=True)]


def _is_pair(entry: Any) -> bool:
    return isinstance(entry, list | tuple) and len(entry) == 2 and isinstance(entry[0], str)


def _parse_one(name: str, value: Any, dtype: str, least: int, dynamic_dims: bool) -> TensorSpec:
    if not isinstance(name, str) or not name:
        raise TypeError(f"inputs: expected a non-empty string as the name of an input, got {name!r}")
    require_dense(value, f"input {name!r}", data=False)
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        value, dtype = tuple(value.shape), dtype_of(value)
    elif isinstance(value, list | tuple) and len(value) == 2 and isinstance(value[0], list | tuple):
        value, dtype = value[0], str(value[1]).removeprefix("torch.")
        if not _is_dtype(dtype):
            raise ValueError(
                f"input {name!r}: unknown dtype {dtype!r}; expected one such as 'float32' or 'int64'"
            )
    if dynamic_dims and isinstance(value, list | tuple):
        value = tuple(Dim(n) if is_name(n) else n for n in value)
    if not isinstance(value, list | tuple) or not all(_is_dim(n, least, dynamic_dims) for n in value):
        wanted = "positive integers" if least else "integers from 0 on"
        raise ValueError(
            f"input {name!r}: expected a shape of {wanted} such as (1, 3, 224, 224), "
            f"(shape, dtype), or an example array; got {value!r}"
        )
    return TensorSpec(name, tuple(n if isinstance(n, Dim) else int(n) for n in value), dtype)


def _is_dim(n: Any, least: int, dynamic_dims: bool) -> bool:
    if isinstance(n, Dim):
        return dynamic_dims
    return isinstance(n, int | np.integer) and not isinstance(n, bool) and n >= least


def _is_dtype(name: str) -> bool:
    if name in ("bfloat16", "float8_e4m3fn", "float8_e5m2"):
        return True
    try:
        return np.dtype(name).kind in "biuf"
    except TypeError:
        return False


def shorten(names: Iterable[str]) -> str:
    """Join the first five names in sorted order and the number of others for a message; "none" for none."""
    listed = sorted(names)
    more = f" and {len(listed) - 5} more" if len(listed) > 5 else ""
    return ", ".join(listed[:5]) + more or "none"
