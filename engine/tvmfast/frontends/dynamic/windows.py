"""Windows of convolutions and pools, and indices, which have to fit into their inputs.

Where one does not, Relax infers a result of 0 elements or less, and the network would run.
"""

import re
from collections.abc import Iterator

import numpy as np
import tvm
from tvm import relax

from ...core.bounds_check import require_fitting
from ...core.dims import Dim, evaluate
from ...core.relax import dim_to_str, op_name, shape_text

_OPERATORS = ("nn.conv", "nn.max_pool", "nn.avg_pool")  # beginnings of their names
_SEARCHED = 1 << 14  # values of a dynamic dim, from its lower bound on
_FEW = 512  # of these where each is computed by itself


def check_windows(main: relax.Function) -> None:
    """Raise ValueError for a window, or an index, that is larger than its input, where both are known."""
    for call in relax.analysis.get_var2val(main).values():
        require_fitting(call)
    for call, dims in _results(main):
        if any(isinstance(dim, int) and dim < 1 for dim in dims):
            shapes = [shape_text(arg.ty) for arg in call.args]
            window = (
                f"weight of shape {shapes[1]}" if len(shapes) > 1 else f"window of {call.attrs.pool_size}"
            )
            raise ValueError(
                f"{op_name(call)}: its result for an input of shape {shapes[0]} and a window of {window} "
                f"would be of {' x '.join(map(str, dims))} elements; give a larger input"
            )


def least_dims(main: relax.Function, dims: dict[str, Dim]) -> dict[str, int]:
    """Return the least value of each dynamic dim, by name, from which on all windows fit.

    A result that depends on several dims is left out. Raises ValueError if a window fits for none.
    """
    check_windows(main)
    least = {name: dim.lower for name, dim in dims.items()}
    found = (dim for _, several in _results(main) for dim in several if isinstance(dim, str))
    for text in dict.fromkeys(found):
        names = dims.keys() & set(re.findall(r"\w+", text))
        if len(names) != 1:
            continue
        dim = dims[names.pop()]
        most = dim.lower + _SEARCHED
        tried = np.arange(dim.lower, 1 + (most if dim.upper is None else min(dim.upper, most)))
        if re.search(r"(max|min)\(", text):  # a function of integers
            tried = tried[:_FEW]
            values = np.array([evaluate(text, {dim.name: int(n)}) for n in tried])
        else:
            values = evaluate(text, {dim.name: tried})
        fails = np.flatnonzero(values < 1)
        if fails.size:
            least[dim.name] = max(least[dim.name], int(tried[fails[-1]]) + 1)
    return least


def _results(main: relax.Function) -> Iterator[tuple[tvm.ir.Call, list[int | str | None]]]:
    """Yield each call of an operator with windows, and the dims of its result behind batch and channels.

    A grid between the outer pixels of an image, where it is reflected, needs two pixels.
    """
    for var, call in relax.analysis.get_var2val(main).items():
        if op_name(call) == "image.grid_sample" and _is_between_pixels(call.attrs):
            yield call, [dim_to_str(dim - 1) for dim in list(call.args[0].ty.shape)[2:]]
        if not op_name(call).startswith(_OPERATORS):
            continue
        layout = getattr(call.attrs, "data_layout", None) or getattr(call.attrs, "layout", "")
        if str(layout).startswith("NC") and getattr(var.ty, "shape", None) is not None:
            yield call, [dim_to_str(dim) for dim in list(var.ty.shape)[2:]]


def _is_between_pixels(grid: tvm.ir.Attrs) -> bool:
    return bool(grid.align_corners) and grid.padding_mode == "reflection"
