"""ONNX operators on pictures of any height and width, against ONNX Runtime."""

import numpy as np
import onnxruntime
import pytest
import torch
import torch.nn.functional as F
from agreement import close
from onnx import numpy_helper, parser
from testing import sampled

from tvmfast import build, from_onnx

SIZES = [(3, 4), (4, 3), (5, 12), (14, 5), (11, 11)]


def model_of(node: str, weights: dict, inputs: str = "float[2, 4, h, w] x", opset: int = 18):
    text = f'<ir_version: 10, opset_import: ["": {opset}]> g ({inputs}) => (float[a, b, c, d] y) {{ {node} }}'
    model = parser.parse_model(text)
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in weights.items())
    return model


def compare(model, level: int, feeds: list[dict], terms: int, inputs=None):
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    lib = build(*from_onnx(model, inputs), opt_level=level)
    for feed in feeds:
        close(lib(*feed.values()), session.run(None, feed)[0], terms=terms, rounded=True)


def pictures(rng, sizes=SIZES, special: bool = False) -> list[dict]:
    found = [rng.standard_normal((2, 4, *size)).astype("float32") for size in sizes]
    for x in found if special else ():
        x[0, 0, 0, 0], x[0, 1, -1, -1] = np.inf, -np.inf
    return [{"x": x} for x in found]


WINDOWS = [  # strides, windows, and the side that is padded more
    ('Conv<auto_pad = "SAME_UPPER", strides = [2, 3]>(x, wide)', 0),
    ('Conv<auto_pad = "SAME_LOWER", strides = [2, 2], group = 2>(x, narrow, bias)', 3),
    ('ConvTranspose<auto_pad = "SAME_LOWER", strides = [3, 2], output_padding = [1, 0]>(x, wide)', 0),
    ('MaxPool<auto_pad = "SAME_LOWER", kernel_shape = [3, 2], strides = [2, 2]>(x)', 3),
    ('AveragePool<auto_pad = "SAME_UPPER", kernel_shape = [4, 3], strides = [2, 2]>(x)', 0),
    ('AveragePool<auto_pad = "SAME_LOWER", kernel_shape = [3, 5], strides = [2, 3], count_include_pad = 1>(x)', 3),
    ('LpPool<auto_pad = "SAME_UPPER", kernel_shape = [3, 3], strides = [2, 2]>(x)', 0),
]


@pytest.mark.parametrize(("node", "level"), WINDOWS)
def test_windows_that_are_padded_to_the_same_size(rng, node, level):
    """Sizes that leave each remainder of the stride, which the padding and its halves depend on."""
    weights = {"wide": rng.standard_normal((4, 4, 3, 3)).astype("float32"), "bias": np.array([1, 2], "float32"),
               "narrow": rng.standard_normal((2, 2, 4, 2)).astype("float32")}  # fmt: skip
    used = {name: array for name, array in weights.items() if name in node}
    feeds = pictures(rng, special=node.startswith("MaxPool"))
    compare(model_of(f"y = {node}", used), level, feeds, terms=4 * 4 * 3)


def test_dilated_windows_are_padded_by_their_span(rng):
    """ONNX Runtime refuses dilations there."""
    weight = rng.standard_normal((3, 4, 3, 3)).astype("float32")
    model = model_of('y = Conv<auto_pad = "SAME_UPPER", dilations = [2, 1], strides = [2, 2]>(x, w)', {"w": weight})
    lib = build(*from_onnx(model), opt_level=3)
    for feed in pictures(rng):
        x = torch.from_numpy(feed["x"].astype("float64"))
        less = [max((-(-size // 2) - 1) * 2 + span - size, 0) for size, span in zip(x.shape[2:], (5, 3), strict=True)]
        padded = F.pad(x, [less[1] // 2, less[1] - less[1] // 2, less[0] // 2, less[0] - less[0] // 2])
        wanted = F.conv2d(padded, torch.from_numpy(weight).double(), stride=2, dilation=(2, 1)).numpy()
        close(lib(feed["x"]), wanted, terms=36)


@pytest.mark.parametrize("level", sampled([0, 3], [0]))
def test_tiles(rng, level):
    compare(model_of("y = Tile(x, repeats)", {"repeats": np.array([1, 2, 3, 2])}), level, pictures(rng), terms=1)


def test_no_tiles(rng):
    compare(model_of("y = Tile(x, repeats)", {"repeats": np.array([1, 0, 3, 2])}), 0, pictures(rng), terms=1)


@pytest.mark.parametrize(("level", "upper"), [(0, 1), (3, 0)])
def test_a_diagonal_that_is_known_in_the_run(rng, level, upper):
    model = model_of(f"y = Trilu<upper = {upper}>(x, k)", {}, "float[2, 4, h, w] x, int64 k")
    feeds = [feed | {"k": np.array(k)} for k, feed in zip((0, -2, 3, -50, 7), pictures(rng, special=True), strict=True)]
    compare(model, level, feeds, terms=1)
    whole = parser.parse_model(
        f'<ir_version: 10, opset_import: ["": 18]> g (int64[3, 3] x, int64 k) => (int64[3, 3] y) '
        f"{{ y = Trilu<upper = {upper}>(x, k) }}"
    )
    x, lib = rng.integers(-9, 9, (3, 3)), build(*from_onnx(whole), opt_level=level)
    for k in (np.iinfo("int64").min, -1, 1, np.iinfo("int64").max):
        np.testing.assert_array_equal(lib(x, np.array(k)), (np.triu if upper else np.tril)(x, np.clip(k, -4, 4)))


def test_the_number_of_elements(rng):
    model = model_of("n = Size(x) all = Cast<to = 1>(n) y = Div(x, all)", {})
    compare(model, 0, pictures(rng), terms=1)


@pytest.mark.parametrize("level", [0, 3])
@pytest.mark.parametrize("batch", [0, 1])
def test_coordinates_that_count_from_the_end(rng, level, batch):
    """GatherND takes negative indices by the sizes of the run."""
    node = f"y = GatherND<batch_dims = {batch}>(x, i)"
    inputs = f"float[2, 4, h, w] x, int64[2, n, 1, {3 - batch}] i"
    model = model_of(node, {}, inputs)
    feeds = []
    for h, w in ((3, 5), (6, 2)):
        sizes = (2, 4, h)[batch:]
        indices = np.stack([rng.integers(-size, size, (2, 7, 1)) for size in sizes], -1)
        feeds.append({"x": rng.standard_normal((2, 4, h, w)).astype("float32"), "i": indices})
    compare(model, level, feeds, 1)
