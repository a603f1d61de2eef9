"""ONNX operators that TVM's frontend lacks, or has in part, where ONNX's own tests leave something open: many nodes in
one model, held against ONNX Runtime, or against ONNX's reference where that has no kernel.
"""

import itertools

import numpy as np
import onnxruntime
import pytest
import torch
import torch.nn.functional as F
from agreement import close
from onnx import parser
from onnx.reference import ReferenceEvaluator
from testing import sampled

from tvmfast import build, from_onnx

KINDS = {"float32": "float", "float64": "double"}


def model_of(feed: dict, weights: str, nodes: list[str], opset: int):
    """Make a model; behind "|" a node says name, dtype and rank of each output."""
    words = [node.partition("|")[2].split() for node in nodes]
    outputs = [
        f"{dtype}[{', '.join(f'{name}{i}' for i in range(int(rank)))}] {name}"
        for each in words
        for name, dtype, rank in zip(*[iter(each)] * 3, strict=True)
    ]
    inputs = [f"{KINDS.get(x.dtype.name, x.dtype.name)}{list(x.shape)} {name}" for name, x in feed.items()]
    body = " ".join(node.partition("|")[0] for node in nodes)
    head = f'<ir_version: 10, opset_import: ["": {opset}]> g ({", ".join(inputs)}) => ({", ".join(outputs)})'
    return parser.parse_model(f"{head} {weights} {{ {body} }}")


def agree(model, feed: dict, terms: int, reference: bool = False, level: int = 0):
    """Compare a model, whose results are sums of up to so many terms, with ONNX Runtime or ONNX's reference."""
    if reference:
        wanted = ReferenceEvaluator(model).run(None, feed)
    else:
        session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        wanted = session.run(None, feed)
    results = build(*from_onnx(model), opt_level=level)(*feed.values())
    assert [each.dtype for each in results] == [each.dtype for each in wanted]
    close(results, wanted, terms, rounded=True)


WINDOWS = [
    "z0, j0 = MaxPool<kernel_shape = [2, 3], strides = [2, 1], pads = [1, 0, 0, 1]>(x)",
    "y0, i0 = MaxPool<kernel_shape = [3, 2], pads = [1, 0, 1, 1], strides = [2, 1]>(x) | y0 float 4 i0 int64 4",
    "y1, i1 = MaxPool<kernel_shape = [2, 2], storage_order = 1>(x) | y1 float 4 i1 int64 4",
    'y2, i2 = MaxPool<kernel_shape = [3, 3], auto_pad = "SAME_LOWER", strides = [2, 2]>(x) | y2 float 4 i2 int64 4',
    "y3, i3 = MaxPool<kernel_shape = [2, 2], dilations = [2, 3], strides = [1, 2]>(x) | y3 float 4 i3 int64 4",
    "y4, i4 = MaxPool<kernel_shape = [3, 3], ceil_mode = 1, strides = [2, 2]>(x) | y4 float 4 i4 int64 4",
    "y5, i5 = MaxPool<kernel_shape = [3], strides = [2]>(line) | y5 float 3 i5 int64 3",
    "y6, i6 = MaxPool<kernel_shape = [2, 2, 2], pads = [1, 0, 0, 0, 1, 0]>(box) | y6 float 5 i6 int64 5",
    "yj = MaxUnpool<kernel_shape = [2, 3], strides = [2, 1], pads = [1, 0, 0, 1]>(z0, j0) | yj float 4",
    "y7 = CenterCropPad(x, sizes) | y7 float 4",
    "ys = LpPool<kernel_shape = [3, 2], strides = [2, 3], pads = [1, 0, 1, 1], ceil_mode = 1>(x) | ys float 4",
    'yu = LpPool<kernel_shape = [2], strides = [2], auto_pad = "VALID", ceil_mode = 1>(line) | yu float 3',
    "yv = Resize(ten, , sevenths) | yv float 1",
    "yw = Sign(signs) | yw float 1",
    'yx = Resize<coordinate_transformation_mode = "half_pixel_symmetric", nearest_mode = "floor">(five, , sevenths)'
    " | yx float 1",
    "y8 = CenterCropPad<axes = [3, -2]>(x, two) | y8 float 4",
    'y9 = Resize<mode = "cubic", antialias = 1>(x, , thirds) | y9 float 4',
    'ya = Resize<mode = "nearest", axes = [1, 0], nearest_mode = "ceil">(x, , , two) | ya float 4',
    'yk = Resize<mode = "linear", coordinate_transformation_mode = "align_corners">(x, , , row) | yk float 4',
    'yl = Resize<mode = "cubic", coordinate_transformation_mode = "pytorch_half_pixel">(x, , , row) | yl float 4',
    'yo = Resize<mode = "linear", coordinate_transformation_mode = "pytorch_half_pixel">(x, , fifth) | yo float 4',
    'yp = Resize<mode = "linear", coordinate_transformation_mode = "align_corners">(x, , thirds) | yp float 4',
    'yq = Resize<mode = "cubic", coordinate_transformation_mode = "align_corners">(x, , thirds) | yq float 4',
    'yt = Resize<keep_aspect_ratio_policy = "not_larger">(x, , , large) | yt float 4',
    'yr = Resize<coordinate_transformation_mode = "align_corners", mode = "nearest">(x, , thirds) | yr float 4',
    "yb = Col2Im<strides = [2, 1], pads = [1, 0, 2, 1], dilations = [2, 3]>(columns, seven, block) | yb float 4",
    "yc = Det(square) | yc float 1",
    'yd = BitShift<direction = "LEFT">(bytes, nine) | yd uint8 1',
    "ye = IsInf<detect_negative = 0>(signs) | ye bool 1",
    "yf = OneHot<axis = 1>(classes, depth, offon) | yf float 3",
    "yh = Elu<alpha = 0.5>(doubles) | yh double 1",
    "yi = Selu(halves) | yi float16 1",
    "yg, ym, yz = LayerNormalization(x, ones) | yg float 4 ym float 4 yz float 4",
]


POOL = """pool_int64s = [2, 3, 5, 4, 9, 5, 4, 5, 6, 7, 8, 6, 7, 2, 2, 2, 3, 5, 4], ngram_counts = [0, 5, 13],
    ngram_indexes = [4, 10, 1, 0, 2, 3, 9, 6, 5, 7, 8],
    weights = [1.5, 2.0, 0.5, 1.0, -1.0, 3.0, 2.5, 1.0, 4.0, 0.1, 7.0]"""
GRAMS = [("TF", 1, 3, 0), ("IDF", 1, 2, 3), ("TFIDF", 2, 3, 4), ("TFIDF", 1, 1, 2), ("TF", 3, 3, 40)]
NGRAMS = [
    f'y{i} = TfIdfVectorizer<mode = "{mode}", min_gram_length = {least}, max_gram_length = {most}, '
    f"max_skip_count = {skips}, {POOL}>(x) | y{i} float 2"
    for i, (mode, least, most, skips) in enumerate(GRAMS)
]


def test_ngrams(rng):
    feed = {"x": rng.integers(2, 8, (3, 20))}
    agree(model_of(feed, "", NGRAMS, 18), feed, terms=1)


@pytest.mark.parametrize("level", sampled([0, 3], [0]))
def test_windows_and_corrections(rng, level):
    shapes = {"x": (2, 3, 7, 6), "line": (1, 2, 9), "box": (1, 2, 3, 4, 3), "columns": (2, 12, 12), "square": (4, 9, 9)}
    shapes |= {"five": (5,), "ten": (10,)}
    # ties too: the first maximum counts
    feed = {name: rng.integers(-4, 5, shape).astype("float32") for name, shape in shapes.items()}
    feed["bytes"] = rng.integers(0, 256, 5).astype("uint8")
    feed["signs"] = np.array([np.inf, -np.inf, np.nan, 0], "float32")
    feed["classes"] = rng.integers(-5, 5, (2, 3))
    feed["doubles"], feed["halves"] = rng.standard_normal(9), rng.standard_normal(9).astype("float16")
    weights = """<int64[4] sizes = {2, 4, 5, 9}, int64[2] two = {4, 9}, float[4] thirds = {1.0, 1.0, 0.6, 0.7},
        int64[4] large = {2, 3, 14, 18}, float[1] sevenths = {0.7},
        float[4] fifth = {1.0, 1.0, 0.2, 0.7}, int64[4] row = {2, 3, 1, 9}, int64[2] seven = {7, 8},
        int64[2] block = {2, 3}, uint8[1] nine = {9},
        float depth = {5.0}, float[2] offon = {-1.0, 2.0}, float[6] ones = {1.0, 1.0, 1.0, 1.0, 1.0, 1.0}>"""
    agree(model_of(feed, weights, WINDOWS, 18), feed, terms=7 * 6, level=level)  # of a cubic sample with antialias


PADDED = [
    'y0 = AveragePool<kernel_shape = [2, 3], strides = [3, 5], auto_pad = "SAME_UPPER">(x) | y0 float 4',
    'y1 = AveragePool<kernel_shape = [3, 2], strides = [2, 4], auto_pad = "SAME_LOWER", count_include_pad = 1>(x)'
    " | y1 float 4",
    'y2 = LpPool<kernel_shape = [3, 2], strides = [2, 4], auto_pad = "SAME_LOWER">(x) | y2 float 4',
    'y3 = LpPool<kernel_shape = [1, 1], strides = [3, 4], auto_pad = "SAME_UPPER", ceil_mode = 1>(x) | y3 float 4',
    "y4 = LRN<size = 5, alpha = 0.5, beta = 0.6, bias = 2.0>(x) | y4 float 4",
]


@pytest.mark.parametrize("level", sampled([0, 3], [0]))
def test_windows_that_are_padded_without_numbers(rng, level):
    feed = {"x": rng.standard_normal((2, 6, 7, 9), "float32")}
    agree(model_of(feed, "", PADDED, 22), feed, terms=6, level=level)


def test_windows_without_an_opinion_of_onnxruntime(rng):
    """It pads for kernels without dilations, and has no LRN of float64, nor of an even size."""
    x = rng.standard_normal((2, 6, 7, 9))
    nodes = [f"y{i} = AveragePool<kernel_shape = [3, 2], dilations = [2, 1], {pads}>(x) | y{i} double 4"
             for i, pads in enumerate(('auto_pad = "SAME_LOWER"', "pads = [2, 1, 2, 0]"))]  # fmt: skip
    nodes.append("y2 = LRN<size = 2, alpha = 0.5, beta = 0.5>(x) | y2 double 4")
    padded, wanted, normalized = build(*from_onnx(model_of({"x": x}, "", nodes, 22)), opt_level=0)(x)
    np.testing.assert_array_equal(padded, wanted)
    squares = x**2 + np.pad(x**2, ((0, 0), (0, 1), (0, 0), (0, 0)))[:, 1:]
    close(normalized, x / np.sqrt(1 + 0.25 * squares), terms=4)


NUMBERS = [
    "y0 = ReduceLogSumExp<keepdims = 0>(infinite, one) | y0 float 1",
    "y1 = ReduceLogSumExp(infinite) | y1 float 2",
    "y2 = Pow(large, two) | y2 int64 1",
    "y3 = Pow(large, three) | y3 int64 1",
    "y4 = Sign(bytes) | y4 uint8 1",
    "y5 = ReduceLogSumExp(doubles, one) | y5 double 2",
    "y8 = ReduceSumSquare<noop_with_empty_axes = 1>(infinite) | y8 float 2",
    "y9 = Slice(infinite, four, one) | y9 float 2",
    "y6, y7 = TopK(infinite, none) | y6 float 2 y7 int64 2",
    "ya = Slice(infinite, below, least, none, backwards) | ya float 2",
    "yb = Slice(infinite, none, four, none, most) | yb float 2",
    "yc = Pow(large, twice) | yc int64 1",
    "yd = Pad(infinite, crops) | yd float 2",
    "ye = Pad(infinite, empty, , empty) | ye float 2",
    "yf = Shrink<lambd = 1.5, bias = 1.0>(bytes) | yf uint8 1",
    "yg = Shrink<lambd = -1.0, bias = 0.5>(infinite) | yg float 2",
    "yi = Trilu<upper = 0>(infinite, large_one) | yi float 2",
    "scalar = Squeeze(single) yk = Celu<alpha = 2.0>(scalar) | yk float 0",
    "yh = Gemm<beta = 0.0, transA = 1>(ordinary, ordinary, row) | yh float 2",
]


def test_numbers(rng):
    infinite = rng.standard_normal((4, 5), "float32")
    infinite[0, 1], infinite[1], infinite[2, 2] = np.inf, -np.inf, -np.inf
    feed = {
        "infinite": infinite,
        "large": np.array([-(2**62), 2**40 + 1, 3, -5]),
        "bytes": np.array([0, 1, 255], "uint8"),
    }
    feed["single"], feed["row"] = np.array([-0.5], "float32"), np.array([np.nan, np.inf, 1, 2, 3], "float32")
    feed["doubles"], feed["ordinary"] = infinite.astype("float64"), rng.standard_normal((4, 5), "float32")
    weights = "<int64[1] one = {1}, int64 two = {2}, int64 three = {3}, int64[1] four = {4}, int64[1] none = {0}, "
    weights += "int64[1] below = {-9}, int64[1] least = {-9223372036854775808}, int64[1] most = {9223372036854775807}, "
    weights += "int64[1] backwards = {-1}, int64[1] twice = {2}, int64[4] crops = {-5, 0, 4, 0}, int64[0] empty = {}, "
    weights += "int64 large_one = {9223372036854775807}>"
    agree(model_of(feed, weights, NUMBERS, 18), feed, terms=5)


def test_an_ellipsis_that_is_summed(rng):
    """ONNX Runtime refuses it; ONNX's reference, NumPy and PyTorch sum."""
    feed = {"x": rng.standard_normal((4, 5), "float32"), "row": rng.standard_normal(5, "float32")}
    nodes = ['y0 = Einsum<equation = "b... , ... -> b">(x, row) | y0 float 1']
    nodes.append('y1 = Einsum<equation = "...i -> i">(x) | y1 float 1')
    agree(model_of(feed, "", nodes, 12), feed, terms=5, reference=True)


PARTS = [
    "parts = SplitToSequence<axis = 1>(x, four) y0 = SequenceAt(parts, first) y1 = SequenceAt(parts, last)"
    " | y0 float 2 y1 float 2",
    "more = SequenceInsert(parts, x, last) y2 = ConcatFromSequence<axis = -1>(more) | y2 float 2",
    "fewer = SequenceErase(more, first) y3 = ConcatFromSequence<axis = 1>(fewer) y4 = SequenceLength(fewer)"
    " | y3 float 2 y4 int64 0",
    "rows = SplitToSequence<keepdims = 0>(x) y5 = ConcatFromSequence<axis = 1, new_axis = 1>(rows) | y5 float 2",
    "given = SplitToSequence<axis = -1>(x, sizes) y6 = SequenceAt(given, last) | y6 float 2",
]


def test_sequences(rng):
    feed = {"x": rng.standard_normal((2, 9), "float32")}
    weights = "<int64 four = {4}, int64 first = {0}, int64 last = {-1}, int64[3] sizes = {2, 4, 3}>"
    agree(model_of(feed, weights, PARTS, 18), feed, terms=1)


@pytest.mark.parametrize("opset", [11, 13])
def test_parts_without_elements(rng, opset):
    feed, nodes = {"x": rng.standard_normal((2, 5), "float32")}, ["y0, y1, y2 = Split<axis = 1>(x, sizes)"]
    if opset < 13:
        nodes = ["y0, y1, y2 = Split<axis = 1, split = [0, 2, 3]>(x)"]
    nodes[0] += " | y0 float 2 y1 float 2 y2 float 2"
    agree(model_of(feed, "<int64[3] sizes = {0, 2, 3}>" if opset >= 13 else "", nodes, opset), feed, terms=1)


@pytest.mark.parametrize("kind", ["float", "double", "float16"])
def test_hyperbolic_functions_of_vectors(rng, kind):
    x = rng.uniform(-3, 3, 64).astype({"float": "float32", "double": "float64"}.get(kind, kind))
    functions = {"Sinh": np.sinh, "Cosh": np.cosh, "Tanh": np.tanh}
    nodes = [f"y{i} = {name}(x) | y{i} {kind} 1" for i, name in enumerate(functions)]
    results = build(*from_onnx(model_of({"x": x}, "", nodes, 18)), opt_level=3)(x)
    for got, function in zip(results, functions.values(), strict=True):
        close(got, function(x.astype("float64")), terms=16)


SCATTERED = [
    "y0 = ScatterElements<axis = 2>(x, small, updates) | y0 float 3",
    "y1 = ScatterElements<axis = -2>(x, small, updates) | y1 float 3",
    'y2 = ScatterElements<axis = 0, reduction = "add">(x, small, updates) | y2 float 3',
    'y3 = ScatterElements<axis = 2, reduction = "mul">(x, small, updates) | y3 float 3',
    'y4 = ScatterElements<axis = 1, reduction = "max">(x, small, updates) | y4 float 3',
    'y5 = ScatterElements<axis = 2, reduction = "min">(x, small, updates) | y5 float 3',
    "y6 = GatherElements<axis = 2>(x, small) | y6 float 3",
]


@pytest.mark.parametrize("opset", sampled([9, 11, 16, 18], [9, 18]))  # 11 and 16 have the nodes of 9 by another name
def test_scatters_by_an_index_smaller_than_the_data(rng, opset):
    feed = {"x": rng.integers(-3, 4, (3, 3, 4)).astype("float32"), "small": rng.integers(-3, 3, (2, 1, 2))}
    feed["updates"] = rng.integers(-3, 4, (2, 1, 2)).astype("float32")
    feed["small"][..., 1] = (feed["small"][..., 0] + 1) % 3 - 3  # in each row another place
    nodes = SCATTERED if opset >= 18 else [node for node in SCATTERED if "reduction" not in node]
    if opset == 9:
        nodes = [node.replace("ScatterElements", "Scatter").replace("-2", "1") for node in nodes[:2]]
    agree(model_of(feed, "", nodes, opset), feed, terms=1)


FAR_BELOW = [-120.0, -95.0, -20.0, -17.0, -3.0, -1e-3, -1e-9, -0.0, 1e-9, 0.1, 5.0, 20.0, 95.0, np.inf]
FUNCTIONS = {
    "Softplus(x)": F.softplus,
    "Mish(x)": F.mish,
    "Elu<alpha = 0.5>(x)": lambda x: F.elu(x, 0.5),
    "Selu(x)": lambda x: 1.05070102214813232421875 * F.elu(x, 1.67326319217681884765625),  # ONNX's are float32
    "Celu<alpha = 2.0>(x)": lambda x: F.celu(x, 2.0),
}


@pytest.mark.parametrize("level", sampled([0, 3], [3]))
def test_functions_far_below_0_and_near_it(level):
    """Each number has a tolerance of its own: none is lost in a sum with 1."""
    for dtype in ("float32", "float64", "float16"):
        x = np.array(FAR_BELOW, dtype)
        chosen = [node for node in FUNCTIONS if dtype == "float32" or node[0] in "SE"]
        nodes = [f"y{n} = {node} | y{n} {KINDS.get(dtype, dtype)} 1" for n, node in enumerate(chosen)]
        results = build(*from_onnx(model_of({"x": x}, "", nodes, 18)), opt_level=level)(x)
        for node, got in zip(chosen, results if len(chosen) > 1 else [results], strict=True):
            wanted = FUNCTIONS[node](torch.from_numpy(x.astype("float64"))).numpy()
            size = np.maximum(np.abs(wanted), np.finfo(dtype).tiny)
            close(got, wanted, terms=64 if dtype == "float64" else 16, scale=size)


CROPS = [((0.1, 0.3), (1.0, 1.0), (5, 4)), ((0.7, 0.2), (1.0, 0.9), (3, 7)), ((-0.2, 0.5), (1.3, 0.4), (4, 3)),
         ((0.4, 0.6), (0.6, 0.8), (1, 1)), ((0.15, 0.35), (0.85, 1.0), (1, 6))]  # fmt: skip


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_crops_that_are_resized(rng, mode):
    """Regions up to the last pixel, whose position float32 may place beyond it, and past it; of one row."""
    feed, weights, nodes = {"x": rng.normal(size=(1, 2, 6, 8)).astype("float32")}, [], []
    how = f'mode = "{mode}", coordinate_transformation_mode = "tf_crop_and_resize", extrapolation_value = 7.0'
    for number, (begins, ends, size) in enumerate(CROPS):
        region = ", ".join(map(str, (0.0, 0.0, *begins, 1.0, 1.0, *ends)))
        weights += [
            f"float[8] region{number} = {{{region}}}",
            f"int64[4] size{number} = {{1, 2, {size[0]}, {size[1]}}}",
        ]
        nodes.append(f"y{number} = Resize<{how}>(x, region{number}, , size{number}) | y{number} float 4")
    agree(model_of(feed, f"<{', '.join(weights)}>", nodes, 18), feed, terms=64)


IMAGES = [((1, 2, 5, 6), (1, 2, 9, 7)), ((5, 6), (9, 4)), ((2, 2, 5, 6), (2, 2, 3, 6)), ((2, 8, 5, 6), (2, 8, 10, 12)),
          ((1, 5, 6, 3), (1, 9, 7, 3)), ((1, 8, 10, 4), (1, 3, 7, 4)), ((1, 1, 5, 6), (1, 1, 1, 6))]  # fmt: skip


@pytest.mark.parametrize(("dtype", "level"), [("uint8", 0), ("int8", 3), ("int32", 0)])
def test_images_of_integers_are_resized(rng, dtype, level):
    kinds, feed, weights, nodes = ("half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel"), {}, [], []
    for number, (shape, size) in enumerate(IMAGES):
        feed[f"x{number}"] = rng.integers(np.iinfo(dtype).min, np.iinfo(dtype).max, shape, dtype, endpoint=True)
        weights.append(f"int64[{len(size)}] size{number} = {{{', '.join(map(str, size))}}}")
        for kind in kinds:
            how = f'mode = "linear", coordinate_transformation_mode = "{kind}"'
            name = f"y{number}{kind}"
            nodes.append(f"{name} = Resize<{how}>(x{number}, , , size{number}) | {name} {dtype} {len(shape)}")
    model = model_of(feed, f"<{', '.join(weights)}>", nodes, 19)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for got, want in zip(
        build(*from_onnx(model), opt_level=level)(*feed.values()), session.run(None, feed), strict=True
    ):
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        # at level 3 a fused multiply-add may round the other way what is then truncated
        assert np.abs(np.asarray(got).astype("int64") - want).max() <= (level > 0)


@pytest.mark.parametrize("opset", [6, 11, 13])
def test_a_bound_that_is_left_out_is_the_largest_finite_number(opset):
    feed = {"x": np.array([np.inf, -np.inf, 3.4e38, -3.4e38, 0.5, -2], "float32")}
    nodes = ["y0 = Clip<min = -1.0>(x)", "y1 = Clip<max = 1.0>(x)", "y2 = Clip(x)"]
    if opset > 6:
        bounds = "least = Constant<value = float {-1.0}>() most = Constant<value = float {1.0}>() "
        nodes = [f"{bounds} y0 = Clip(x, least)", "y1 = Clip(x, , most)", "y2 = Clip(x)"]
    agree(model_of(feed, "", [f"{node} | y{n} float 1" for n, node in enumerate(nodes)], opset), feed, terms=1)


GRIDS = [
    "y0 = GridSample(x, at) | y0 {0} 4",
    'y1 = GridSample<mode = "cubic", align_corners = 1>(x, at) | y1 {0} 4',
    'y2 = GridSample<mode = "nearest">(x, at) | y2 {0} 4',
    "y3 = GridSample<align_corners = 1>(box, inside) | y3 {0} 5",
]


@pytest.mark.parametrize(("dtype", "far"), [("float16", 6e4), ("float32", 3e38), ("float64", 1e90)])
def test_grids_far_outside(rng, dtype, far):
    """Each dtype has the results of float64."""
    shapes = {"x": (1, 2, 4, 5), "at": (1, 3, 4, 2), "box": (1, 2, 3, 3, 4), "inside": (1, 2, 2, 3, 3)}
    feed = {name: rng.uniform(-1.5, 1.5, shape).astype(dtype) for name, shape in shapes.items()}
    feed["at"][0, 0, :3, 0] = feed["inside"][0, 0, 0, :, 2] = far, -far, 1
    wide = {name: each.astype("float64") for name, each in feed.items()}
    model, exact = (
        model_of(each, "", [node.format(kind) for node in GRIDS], 20)
        for each, kind in ((feed, KINDS.get(dtype, dtype)), (wide, "double"))
    )
    session = onnxruntime.InferenceSession(exact.SerializeToString(), providers=["CPUExecutionProvider"])
    results = build(*from_onnx(model), opt_level=0)(*feed.values())
    assert [str(each.dtype) for each in results] == [dtype] * len(GRIDS)
    close(results, session.run(None, wide), terms=64)  # of up to 16 pixels and their weights


def test_reflected_grids():
    """At a tie between pixels, and in pictures of one pixel."""
    at = np.array([[2, -2], [0.5, 1], [-1.5, 0.3], [5, -7]], "float32").reshape(1, 1, 4, 2)
    feed = {"x": np.arange(12, dtype="float32").reshape(1, 1, 3, 4), "one": np.ones((1, 1, 1, 1), "float32"), "at": at}
    kinds = itertools.product(("nearest", "linear"), (0, 1), ("x", "one"))
    how = 'mode = "{}", padding_mode = "reflection", align_corners = {}'
    nodes = [f"y{i} = GridSample<{how.format(*kind)}>({kind[2]}, at) | y{i} float 4" for i, kind in enumerate(kinds)]
    agree(model_of(feed, "", nodes, 20), feed, terms=64)


def test_grids_that_are_not_finite():
    image, at = np.ones((1, 1, 2, 2), "float32"), np.zeros((1, 1, 4, 2), "float32")
    at[0, 0, :3, 0] = np.nan, np.inf, -np.inf
    nodes = [*GRIDS[:3], "y3 = GridSample<align_corners = 1>(x, at) | y3 {0} 4"]
    feed = {"x": image, "at": at}
    agree(model_of(feed, "", [node.format("float") for node in nodes], 20), feed, terms=64)


@pytest.mark.parametrize("level", sampled([0, 3], [3]))
@pytest.mark.parametrize("n", [2, "n"])
def test_constants_of_float64(rng, n, level):
    """ONNX's attributes are float32 in all dtypes; ONNX Runtime computes with them in float64."""
    feed, nodes = {"x": rng.normal(size=(2, 50))}, ("Selu", "LeakyRelu", "HardSigmoid", "LeakyRelu<alpha = 0.3>")
    model = model_of(feed, "", [f"y{i} = {node}(x) | y{i} double 2" for i, node in enumerate(nodes)], 18)
    if n == "n":
        model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = n
    wanted = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feed)
    close(build(*from_onnx(model, {"x": (n, 50)}), opt_level=level)(feed["x"]), wanted, terms=4, rounded=True)
    thresholds = "y = ThresholdedRelu<alpha = 0.5>(x) | y {} 2"
    for dtype in ("float32", "float64", "float16"):
        x = feed["x"].astype(dtype)
        x[0, :2] = np.nan, np.inf
        got = build(*from_onnx(model_of({"x": x}, "", [thresholds.format(KINDS.get(dtype, dtype))], 18)))(x)
        np.testing.assert_array_equal(got, np.where(x > np.float32(0.5), x, 0))
        assert got.dtype == dtype


HALVES = {  # of 3,000 numbers between 0 and 1, and up to 300 of them; functions of the axes of length 50
    "ReduceL1(x, last)": lambda x: x.sum((2, 3), keepdims=True),
    "ReduceL2(x, last)": lambda x: np.sqrt((x * x).sum((2, 3), keepdims=True)),
    "ReduceSumSquare(small, last)": lambda x: (x * x / 2**16).sum((2, 3), keepdims=True),
    "ReduceLogSum(x, last)": lambda x: np.log(x.sum((2, 3), keepdims=True)),
    "ReduceLogSumExp(x, last)": lambda x: np.log(np.exp(x).sum((2, 3), keepdims=True)),
    "LpPool<kernel_shape = [50, 50]>(x)": lambda x: np.sqrt((x * x).sum((2, 3), keepdims=True)),
    "LpPool<kernel_shape = [50, 50], p = 1>(x)": lambda x: x.sum((2, 3), keepdims=True),
    "GlobalLpPool(x)": lambda x: np.sqrt((x * x).sum((2, 3), keepdims=True)),
}


@pytest.mark.parametrize("level", sampled([0, 3], [3]))
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_norms_of_halves_are_rounded_once(rng, dtype, level):
    """Their squares are no halves, 300 squared is not even finite, and a sum in halves ends at 2,048."""
    x = (rng.random((1, 2, 50, 50)) * 12).astype(dtype)
    x[0, 0, 0, 0] = 300
    feed = {"x": x, "small": x / np.array(256, dtype)}
    nodes = [f"y{i} = {node} | y{i} {dtype} 4" for i, node in enumerate(HALVES)]
    results = build(*from_onnx(model_of(feed, "<int64[2] last = {2, 3}>", nodes, 18)), opt_level=level)(*feed.values())
    for (node, function), got in zip(HALVES.items(), results, strict=True):
        assert got.dtype == dtype, node
        close(got, function(x.astype("float64")), terms=2500)


ONCE = {  # their parameters are float32; weights of a doubled size are exact
    "Celu<alpha = 0.3>(x)": lambda x: F.celu(x, _single(0.3)),
    "HardSigmoid<alpha = 0.3, beta = 0.4>(x)": lambda x: (_single(0.3) * x + _single(0.4)).clamp(0, 1),
    "HardSwish(x)": F.hardswish,
    "LeakyRelu<alpha = 0.3>(x)": lambda x: F.leaky_relu(x, _single(0.3)),
    "Mish(x)": F.mish,
    "PRelu(x, slope)": lambda x: torch.where(x < 0, x * 0.375, x),
    "Softsign(x)": F.softsign,
    "Shrink<lambd = 0.5, bias = 0.2>(x)": lambda x: torch.where(x.abs() > 0.5, x - x.sign() * _single(0.2), 0),
    "Swish<alpha = 0.7>(x)": lambda x: x * torch.sigmoid(_single(0.7) * x),
    'Resize<mode = "linear">(x, , , size)': lambda x: F.interpolate(x, (32, 32), mode="bilinear"),
    'Resize<mode = "cubic">(x, , , size)': lambda x: F.interpolate(x, (32, 32), mode="bicubic"),
}


def _single(number: float) -> float:
    return float(np.float32(number))


@pytest.mark.parametrize("level", [0, 3])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_functions_of_halves_are_rounded_once(rng, dtype, level):
    x = (3 * rng.standard_normal((1, 4, 16, 16))).astype(dtype)
    feed = {"x": x, "slope": np.array([0.375], dtype)}
    nodes = [f"y{i} = {node} | y{i} {dtype} 4" for i, node in enumerate(ONCE)]
    model = model_of(feed, "<int64[4] size = {1, 4, 32, 32}>", nodes, 24)
    results = build(*from_onnx(model), opt_level=level)(*feed.values())
    for (node, function), got in zip(ONCE.items(), results, strict=True):
        wanted = function(torch.from_numpy(x.astype("float64"))).numpy().astype(dtype)
        assert got.dtype == dtype, node
        bits = got.view("int16").astype("int32"), wanted.view("int16").astype("int32")
        differences = abs(bits[0] - bits[1])[got != wanted]  # of two numbers of one sign
        assert len(differences) <= wanted.size / 100 and (differences == 1).all(), node


def test_variances_of_numbers_far_from_0(rng):
    x = rng.random((2, 3, 40, 50)).astype("float32") * 2 + 100
    feed = {"x": x, "scale": np.array([1, 2, 3], "float32"), "bias": np.array([3, 2, 1], "float32")}
    nodes = ["y0 = InstanceNormalization(x, scale, bias) | y0 float 4",
             "y1 = MeanVarianceNormalization(x) | y1 float 4",
             "y2 = GroupNormalization<num_groups = 3>(x, scale, bias) | y2 float 4",
             "y3 = LayerNormalization<axis = 2>(x, wide) | y3 float 4",
             "y4 = MeanVarianceNormalization<axes = [1, 3]>(x) | y4 float 4"]  # fmt: skip
    feed["wide"] = np.ones((40, 50), "float32")
    doubled, scale, bias = (torch.from_numpy(feed[name]).double() for name in ("x", "scale", "bias"))
    each = F.instance_norm(doubled, weight=scale, bias=bias)
    parts = [(doubled - doubled.mean(axes, True)) / doubled.var(axes, correction=0, keepdim=True).sqrt()
             for axes in ((0, 2, 3), (1, 3))]  # fmt: skip
    wanted = each, parts[0], each, F.layer_norm(doubled, (40, 50)), parts[1]
    for level in (0, 3):
        results = build(*from_onnx(model_of(feed, "", nodes, 21)), opt_level=level)(*feed.values())
        close(results, [part.numpy() for part in wanted], terms=2 * 40 * 50, scale=300)


SIGNALS = [
    "y0 = DFT(pairs, four, one) | y0 float 4",
    "y1 = DFT<onesided = 1>(reals, nine, minus) | y1 double 4",
    "y2 = DFT<inverse = 1>(pairs, , two) | y2 float 4",
    "y3 = DFT<inverse = 1, onesided = 1>(pairs, seven, one) | y3 float 4",
    "y4 = STFT(signal, four, window) | y4 float 4",
    "y5 = STFT<onesided = 0>(signal, seven, , nine) | y5 float 4",
    "y6 = DFT(long) | y6 float 3",
]


def test_signals(rng):
    shapes = {"pairs": (2, 5, 3, 2), "signal": (2, 50, 1), "window": (9,), "long": (1, 257, 1)}
    feed = {name: rng.standard_normal(shape).astype("float32") for name, shape in shapes.items()}
    feed["reals"] = rng.standard_normal((2, 3, 5, 1))
    weights = (
        "<int64 one = {1}, int64 two = {2}, int64 four = {4}, int64 seven = {7}, int64 nine = {9}, int64 minus = {-2}>"
    )
    agree(model_of(feed, weights, SIGNALS, 20), feed, terms=257, reference=True)


CONVOLVED = "<strides = [2, 1], pads = [1, 2, 0, 1], dilations = [1, 2], group = 2, offset_group = 2>"
DEFORMED = [
    f"y0 = DeformConv{CONVOLVED}(x, weight, offset, bias, mask) | y0 float 4",
    f"y1 = DeformConv{CONVOLVED}(x, weight, far) | y1 float 4",
]


def test_deformable_convolution(rng):
    """One reads far outside, another at NaN, where a plausible number must not come from."""
    shapes = {"x": (2, 4, 7, 8), "weight": (6, 2, 3, 2), "offset": (2, 24, 3, 9), "mask": (2, 12, 3, 9), "bias": (6,)}
    feed = {name: rng.standard_normal(shape).astype("float32") for name, shape in shapes.items()}
    far = feed["far"] = feed["offset"].copy()
    far[0, 3], far[1, ::2, 0, 0] = np.inf, 3e9
    agree(model_of(feed, "", DEFORMED, 19), feed, terms=2 * 3 * 2)


@pytest.mark.parametrize(
    ("opset", "kind", "level"),
    [
        *((16, "float", 3), (10, "float", 0), (16, "double", 0)),
        pytest.param(16, "float", 0, marks=pytest.mark.full),
    ],
)
def test_the_maxima_of_regions(rng, opset, kind, level):
    """Of a number of regions, and pictures of a width, that are known in the run; some regions have no area."""
    modes = ["half_pixel", "output_half_pixel"] if opset >= 16 else [""]
    nodes, count = [], itertools.count()
    for mode, (samples, scale, height) in itertools.product(modes, [(0, 0.4, 3), (1, 1.0, 1), (3, 0.7, 2)]):
        how = f'mode = "max", sampling_ratio = {samples}, spatial_scale = {scale}, output_height = {height}'
        how += f', output_width = 2, coordinate_transformation_mode = "{mode}"' if mode else ", output_width = 2"
        name = f"y{next(count)}"
        nodes.append(f"{name} = RoiAlign<{how}>(x, regions, images) | {name} {kind} 4")
    dtype = {"float": "float32"}.get(kind, "float64")
    feed = {
        "x": rng.standard_normal((2, 3, 9, 12)),
        "regions": rng.uniform(-3, 16, (8, 2, 2)),
        "images": np.arange(8) % 2,
    }
    feed["regions"] = np.sort(feed["regions"], 1).reshape(8, 4)
    feed["regions"][:3] = (3, 4, 3, 4), (9, 8, 2, 1), (0, 0, 2, 3)
    feed["x"][0, 0, 2, 3], feed["x"][1, 1, 4, 4] = np.inf, np.nan
    feed = {name: each.astype(dtype) if each.dtype.kind == "f" else each for name, each in feed.items()}
    model = model_of(feed, "", nodes, opset)
    shapes = {"x": (2, 3, 9, "width"), "regions": ("count", 4), "images": ("count",)}
    for value, shape in zip(model.graph.input, shapes.values(), strict=True):
        for dim, size in zip(value.type.tensor_type.shape.dim, shape, strict=True):
            dim.Clear()
            dim.MergeFrom(type(dim)(dim_value=size) if isinstance(size, int) else type(dim)(dim_param=size))
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    lib = build(*from_onnx(model), opt_level=level)
    for width, regions in ((12, 8), (5, 1)):
        given = feed["x"][..., :width], feed["regions"][:regions], feed["images"][:regions]
        given = [np.ascontiguousarray(each) for each in given]
        # a corner is rounded to a part of the coordinates, up to 16
        close(lib(*given), session.run(None, dict(zip(feed, given, strict=True))), terms=16 * 16, rounded=True)


ONE = "float[1, 4, 5] x, int64 n, int64[1] many, int64[2] two, int64[2, 2] whole"


@pytest.mark.parametrize(
    ("node", "words"),
    [
        ("Expand(x, two)", "Expand 'y': its input 'two' has to be known before the run.*give that in"),
        ("TopK(x, many)", "TopK 'y,z': its input 'many'"),
        ("SequenceAt(parts, n)", "SequenceAt 'y': its input 'n' has to be known before the run"),
        ("NonZero(x)", "NonZero 'y': the shape of its output depends on the data"),
        ("NonMaxSuppression(x, x)", "cut the graph before it, by .*extract_model with the outputs 'x' and 'x'"),
        ("DFT(x, n)", "DFT 'y': its input 'n'"),
        ('Pad<mode = "symmetric">(x, ends)', "Pad with mode 'symmetric': expected constant, edge, reflect or wrap"),
        ('Pad<mode = "edge">(x, crops)', "Pad with mode 'edge' of an axis without elements"),
        ("Dropout(x, half, yes)", "training mode"),
        ('Resize<mode = "cubic">(whole, , , four)', "Resize of int64 with mode 'cubic': only floats, and images of"),
        ("ReduceL2(n)", "ReduceL2 of int64: ONNX does not say how it is rounded; cast to float32 before"),
        ("ReduceLogSumExp(many)", "ReduceLogSumExp of int64"),
        ("AffineGrid<align_corners = 1>(x, flat)", "AffineGrid with align_corners of an axis of size 1"),
        ("Gemm<alpha = 0.5>(whole, whole)", "Gemm of int64 with alpha 0.5 and beta 1.0: expected whole numbers"),
        ("Cast<to = 17>(x)", "Cast 'y': 'y' is of FLOAT8E4M3FN"),
        ("RandomNormalLike(x)", r"no counterpart of 1 operator.*RandomNormalLike"),
    ],
)
def test_what_cannot_be_is_refused_by_name(node, words):
    outputs = "y, z" if node.startswith("TopK") else "y"
    given = "float[1, 4, 5] x" if node.startswith(("Cast", "RandomNormalLike", "Non", "Dropout", "Pad")) else ONE
    model = parser.parse_model(
        f'<ir_version: 10, opset_import: ["": 21]> g ({given}) => ({_typed(node, outputs)}) '
        f"<float half = {{0.5}}, bool yes = {{1}}, int64[6] ends = {{0, 0, 1, 0, 0, 1}}, "
        f"int64[6] crops = {{0, 0, -5, 0, 0, 2}}, int64[4] flat = {{1, 3, 1, 4}}, "
        f"int64[2] four = {{4, 4}}> {{ parts = SequenceConstruct(x) {outputs} = {node} }}"
    )
    with pytest.raises(NotImplementedError, match=words):
        from_onnx(model)


def _typed(node: str, outputs: str) -> str:
    wide = ("NonZero", "Reduce", "Gemm", "NonMaxSuppression", "Resize")
    kinds = dict.fromkeys(wide, "int64") | {"Cast": "float8e4m3fn"}
    first = next((kind for op, kind in kinds.items() if node.startswith(op)), "float")
    return f"{first} y" + (f", {'int64' if node.startswith('TopK') else 'float'} z" if "z" in outputs else "")
