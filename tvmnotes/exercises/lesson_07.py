"""Exercises of lesson 07: Winograd's operations, a small picture, and one large element."""

import numpy as np
import torch
from torch import nn

from .exercise import agree, exercise, require, require_keys


@exercise(
    "07.1",
    "A tile of side t has t² outputs of 9 multiply-adds each, and (t + 2)² transformed elements.",
    "Direct: 9 t². Winograd: (t + 2)² · (1 + 7 / 64 + 7 / 64).",
    minutes=15,
    difficulty=2,
)
def winograd_factor(answer):
    """The factor by which Winograd's method reduces the multiply-adds."""
    for tile, factor in ((2, 1.846), (4, 3.282), (6, 4.154)):
        got = float(answer(tile))
        direct, products = 9 * tile**2, (tile + 2) ** 2
        what = f"the factor for the {tile} × {tile} tile"
        do = "Each transformed element costs 7 / 64 multiply-adds on the way in, and 7 / 64 on the way out."
        require(abs(got - direct / products) > 0.01, what, "the transforms included", f"{got:.2f}", do)
        require(abs(got - factor) < 0.01, what, f"{factor:.2f}", f"{got:.2f}", do)


@exercise(
    "07.2",
    "The lesson's workload(…) describes a convolution; give it the channels of the layer and a size of 7.",
    "Take the default config of the rule conv2d, pack, run, and unpack as the lesson does.",
    minutes=20,
    difficulty=2,
)
def small_pictures(answer):
    """The package's schedule on pictures of 7 by 7 pixels."""
    for channels in (64, 128):
        torch.manual_seed(channels)
        net = nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1), nn.ReLU()).eval()
        x = np.random.default_rng(channels).standard_normal((1, channels, 7, 7), dtype="float32")
        with torch.inference_mode():
            reference = net(torch.from_numpy(x)).numpy()
        do = "Unpack the result to NCHW, and use the bias and the ReLU of the layer."
        agree(answer(net, x), reference, f"the result for {channels} channels", do)


@exercise(
    "07.3",
    "Leave out the outputs that read the large element: rows and columns 27 to 29 of every channel.",
    "Compare with the same layer in float64: np.abs(result - exact)[..., unread].max(), for both values.",
    minutes=20,
    difficulty=3,
)
def large_element(answer):
    """The errors that one large element causes elsewhere."""
    require_keys(answer, ("direct", "Winograd"), "Each key has two errors: before and after.")
    growth = {}
    for name in ("direct", "Winograd"):
        before, after = (float(error) for error in answer[name])
        do = "Take absolute errors, over the outputs that do not read the element."
        require(0 < before < 1e-3, f"the error of {name} before", "a rounding error, above 0", before, do)
        growth[name] = after / before
    do = (
        "A direct convolution never adds the element to outputs that do not read it: leave out those that do."
    )
    require(
        growth["direct"] < 3,
        "how often the error of direct has grown",
        "about 1",
        f"{growth['direct']:.1f}",
        do,
    )
    do = "The transforms add the element to its whole tile: set x[0, 0, 28, 28] = 1e4 before you pack."
    require(
        growth["Winograd"] > 10,
        "how often the error of Winograd has grown",
        "10 or more",
        f"{growth['Winograd']:.1f}",
        do,
    )
