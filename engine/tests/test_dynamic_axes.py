"""Networks with a dynamic length, height or width: results, what is inferred, what is refused."""

import io
import itertools
import warnings

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
import torch.nn.functional as F
from agreement import close, reference
from onnx import parser
from testing import Function, sampled
from torch import nn

import tvmfast
from tvmfast.core.dims import evaluate
from tvmfast.frontends.onnx.dynamic import _evaluated

LENGTHS = (1, 2, 7, 33, 64)
SIDES = ((32, 32), (33, 47), (64, 41), (97, 33))


class Language(nn.Module):
    """A small GPT: a table of positions, a causal mask, heads, products of lengths by lengths."""

    def __init__(self, width=32, heads=2):
        super().__init__()
        self.heads = heads
        self.tokens, self.positions = nn.Embedding(50, width), nn.Embedding(64, width)
        self.norm, self.project = nn.LayerNorm(width), nn.Linear(width, 3 * width)
        self.mix, self.head = nn.Linear(width, width), nn.Linear(width, 50)

    def forward(self, ids):
        n, length = ids.shape
        x = self.tokens(ids) + self.positions.weight[:length]
        q, k, v = (
            part.reshape(n, length, self.heads, -1).transpose(1, 2) for part in self.project(self.norm(x)).chunk(3, -1)
        )
        scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
        future = torch.ones(length, length).triu(1).bool()
        weights = scores.masked_fill(future, -torch.inf).softmax(-1)
        x = x + self.mix((weights @ v).transpose(1, 2).reshape(n, length, -1))
        return self.head(x.reshape(n * length, -1)).reshape(n, length, -1), x[:, -1]


class Encoder(nn.Module):
    """PyTorch's own layers."""

    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(24, 2, 40, activation="gelu", batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.pooled = nn.Linear(24, 5)

    def forward(self, x):
        return self.pooled(self.layers(x).mean(1))


class Pyramid(nn.Module):
    """A small detector: strided and depthwise convolutions, pools, and maps of several sizes that are added."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 7, 2, 3, bias=False), nn.BatchNorm2d(16), nn.ReLU())
        self.pool = nn.MaxPool2d(3, 2, 1)
        self.down = nn.Conv2d(16, 40, 3, 2, 1)
        self.depthwise = nn.Conv2d(40, 40, 3, padding=1, groups=40)
        self.narrow, self.lateral = nn.Conv2d(40, 24, 1), nn.Conv2d(16, 24, 1)
        self.boxes, self.classes = nn.Conv2d(24, 4, 3, padding=1), nn.Linear(40, 7)

    def forward(self, x):
        fine = self.pool(self.stem(x))
        coarse = F.relu6(self.depthwise(torch.relu(self.down(fine))))
        up = F.interpolate(self.narrow(coarse), size=fine.shape[-2:], mode="nearest")
        boxes = self.boxes(up + self.lateral(fine))
        return boxes, boxes.flatten(2).transpose(1, 2), self.classes(F.adaptive_avg_pool2d(coarse, 1).flatten(1))


def compiled(net, inputs, **options):
    return tvmfast.build(*tvmfast.from_pytorch(net.eval(), inputs), records=False, **options)


def agree(lib, net, x):
    """Compare a compiled network with PyTorch's for one input."""
    close(lib(x), reference(net, x))


def tokens(rng, *shape):
    return rng.integers(0, 50, shape)


# Lengths


@pytest.fixture(scope="module")
def language():
    torch.manual_seed(0)
    return Language().eval()


@pytest.fixture(scope="module")
def imported(language):
    return tvmfast.from_pytorch(language, {"ids": (("batch", tvmfast.Dim("length", 1, 64)), "int64")})


@pytest.fixture(scope="module")
def lib(imported):
    return tvmfast.build(*imported, records=False)


def test_a_language_model_at_every_length(lib, language, rng):
    for length in LENGTHS:
        agree(lib, language, tokens(rng, 1, length))
    agree(lib, language, tokens(rng, 3, 17))
    families = {schedule["family"] for schedule in lib.graph["kernels"].values()}
    assert families >= {"matmul", "row_reduction"}
    assert [str(spec) for spec in lib.outputs] == ["output0: float32[batch, length, 50]", "output1: float32[batch, 32]"]


@pytest.mark.parametrize("opt_level", [0, pytest.param(2, marks=pytest.mark.full)])
def test_lower_levels(imported, language, rng, opt_level):
    lib = tvmfast.build(*imported, records=False, opt_level=opt_level)
    for length in (1, 9):
        agree(lib, language, tokens(rng, 2, length))


def test_a_length_beyond_the_table_of_positions(lib, language, rng):
    with pytest.raises(ValueError, match=r"expected a length of 1 to 64, got 65"):
        lib(tokens(rng, 1, 65))
    with pytest.raises(ValueError, match="the network does not take"):
        tvmfast.from_pytorch(language, {"ids": ((1, "length"), "int64")})


def test_an_encoder(rng):
    torch.manual_seed(0)
    net = Encoder().eval()
    lib = compiled(net, {"x": (2, "length", 24)})
    for length in LENGTHS:
        agree(lib, net, rng.standard_normal((2, length, 24)).astype("float32"))


@pytest.mark.parametrize("shape", sampled([(2, 3, "n"), ("n", "n"), ("n",)], [(2, 3, "n"), ("n", "n")]))
def test_softmax(rng, shape):
    lib = compiled(Function(lambda x: x.softmax(-1)), {"x": shape})
    assert [schedule["family"] for schedule in lib.graph["kernels"].values()] == ["row_reduction"]
    for n in (*range(1, 71), 127, 511):
        x = rng.standard_normal([n if size == "n" else size for size in shape]).astype("float32")
        masked = np.where(rng.random(x.shape) < 0.5, np.float32(-np.inf), x)
        unknown = x.copy()
        unknown.flat[rng.integers(x.size)] = np.nan
        for each in (x, masked, np.full_like(x, -np.inf), unknown):
            close(lib(each), torch.from_numpy(each).double().softmax(-1), terms=n)


def test_reductions_of_nothing(rng):
    net = Function(lambda x: (x[:, 1:].sum(1), x[:, 1:].prod(1))).eval()
    imported = tvmfast.from_pytorch(net, {"x": (9, "n")})
    for level in (0, 3):
        lib = tvmfast.build(*imported, records=False, opt_level=level)
        for n in (3, 1):
            agree(lib, net, rng.standard_normal((9, n)).astype("float32"))


def test_a_profile_counts_lengths(lib, rng):
    short, long = (tvmfast.profile(lib, tokens(rng, 1, length), calls=1) for length in (1, 61))
    assert long.sizes == {"batch": 1, "length": 61}
    total = [sum(kernel.flops for kernel in profile.kernels.values()) for profile in (short, long)]
    assert total[1] > 10 * total[0]


def test_a_profile_counts_what_an_image_of_the_call_takes(rng):
    """Whole tiles of a convolution are counted as with static shapes, and not much more if some are in vain."""
    net = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU())
    lib = compiled(net, {"x": (1, 3, tvmfast.Dim("h", 16), tvmfast.Dim("w", 16))})
    for sides, in_vain in (((224, 224), 0), ((33, 47), 0.2)):
        x = rng.standard_normal((1, 3, *sides)).astype("float32")
        profiles = (tvmfast.profile(each, x, calls=1) for each in (lib, compiled(net, {"x": x.shape})))
        dynamic, static = (sum(kernel.flops for kernel in profile.kernels.values()) for profile in profiles)
        assert static <= dynamic <= (1 + in_vain) * static


def test_onnx_keeps_named_lengths_dynamic(rng):
    model = parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]> g (float[N, L, 8] x) => (float[N, L, 8] y) {
            k = Transpose<perm = [0, 2, 1]>(x) s = MatMul(x, k) w = Softmax<axis = -1>(s) v = MatMul(w, x)
            shape = Shape(x) flat = Constant<value = int64[2] {-1, 8}>() rows = Reshape(v, flat)
            y = Reshape(rows, shape) }"""
    )
    lib = tvmfast.build(*tvmfast.from_onnx(model), records=False)
    assert str(lib.inputs[0]) == "x: float32[N, L, 8]"
    for shape in ((1, 1), (2, 1), (3, 7), (1, 50)):
        x = rng.standard_normal((*shape, 8)).astype("float32")
        agree(lib, lambda x: (x @ x.mT).softmax(-1) @ x, x)


# Images


@pytest.fixture(scope="module")
def pyramid():
    torch.manual_seed(0)
    return Pyramid().eval()


def test_a_detector_at_ragged_sizes(pyramid, rng, quick):
    """Of a width that is dynamic too in `make test-full`, where each stride doubles the specializations."""
    height, width = tvmfast.Dim("height", 32, 128), 47 if quick else tvmfast.Dim("width", 32, 128)
    lib = compiled(pyramid, {"x": (1, 3, height, width)})
    families = {schedule["family"] for schedule in lib.graph["kernels"].values()}
    assert families >= {"conv2d", "depthwise"}
    for sides in SIDES:
        sides = (sides[0], 47) if quick else sides
        agree(lib, pyramid, rng.standard_normal((1, 3, *sides)).astype("float32"))


def test_upsampling(rng):
    net = Function(lambda x: (F.interpolate(x, scale_factor=2.0), F.interpolate(x, scale_factor=3.0, mode="bilinear")))
    lib = compiled(net, {"x": (1, 2, "height", 5)})
    for height in (1, 2, 9, 31):
        agree(lib, net, rng.standard_normal((1, 2, height, 5)).astype("float32"))


def test_upsampling_by_a_factor_that_leaves_the_other_axis_as_it_is(rng):
    modes = ("nearest", "bilinear")
    net = Function(lambda x: tuple(F.interpolate(x, scale_factor=(2.0, 1.3), mode=mode) for mode in modes))
    lib = compiled(net, {"x": (1, 2, "height", 3)})
    for height in (1, 62, 63):  # PyTorch has the nearest pixels of an image above 128 in another way
        x = rng.standard_normal((1, 2, height, 3)).astype("float32")
        close(lib(x), net(torch.from_numpy(x)), terms=4, rounded=True)


def test_scatters_by_an_index_smaller_than_dynamic_data(rng):
    net = Function(lambda x, index: (x.scatter_add(2, index, index.float()), x.scatter(0, index[:, :, :2], 5.0)))
    lib = compiled(net, {"x": (tvmfast.Dim("n", 2), "m", 2), "index": ((2, 1, 3), "int64")})
    for shape in ((2, 1, 2), (5, 3, 2)):
        x, index = rng.standard_normal(shape).astype("float32"), rng.permuted(np.tile([0, 1, 1], (2, 1, 1)), axis=2)
        for got, wanted in zip(lib(x, index), net(*map(torch.from_numpy, (x, index))), strict=True):
            np.testing.assert_array_equal(got, wanted.numpy())


def test_norms_by_the_statistics_of_the_batch_and_of_dynamic_rows(rng):
    net = Function(lambda x, y: (F.batch_norm(x, None, None, training=True), F.layer_norm(x[:, 0], x.shape[3:], y, y)))
    lib = compiled(net, {"x": ("batch", 6, "height", tvmfast.Dim("width", 2)), "y": ("width",)})
    for shape in ((1, 6, 1, 2), (3, 6, 5, 37)):
        x, y = (100 + rng.standard_normal(each).astype("float32") for each in (shape, shape[3:]))
        close(lib(x, y), reference(net, x, y, runs=30))


def test_norms_of_groups_and_parts_of_channels(rng):
    torch.manual_seed(0)
    net = Function(lambda x: (net.norms(x), *x.chunk(2, 1), *x.split([1, 2, 3], 1), F.glu(x, 1)))
    net.norms = nn.Sequential(nn.GroupNorm(2, 6), nn.InstanceNorm2d(6, affine=True), nn.GroupNorm(6, 6, affine=False))
    lib = compiled(net, {"x": ("batch", 6, tvmfast.Dim("height", 2), "width")})
    for shape in ((1, 2, 1), (2, 5, 7), (1, 17, 33)):
        agree(lib, net, rng.standard_normal((shape[0], 6, *shape[1:])).astype("float32"))


def test_groups_of_channels_at_a_padded_height(rng):
    torch.manual_seed(0)
    net = nn.Conv2d(2, 4, (1, 6), padding=(3, 5), groups=2)
    lib = compiled(net, {"x": ("batch", 2, tvmfast.Dim("height", 24, 128), 25)})
    for n, height in ((1, 24), (3, 65)):
        agree(lib, net, rng.standard_normal((n, 2, height, 25)).astype("float32"))


def test_groups_of_one_channel_with_several_results(rng):
    torch.manual_seed(0)
    net = nn.Conv2d(4, 12, 3, padding=1, groups=4)
    lib = compiled(net, {"x": ("batch", 4, "height", "width")})
    for n, height, width in ((1, 1, 1), (3, 5, 33)):
        agree(lib, net, rng.standard_normal((n, 4, height, width)).astype("float32"))


def test_windows_and_crops(rng):
    def cropped(x):
        inner = F.max_pool2d(x, 3, 1)
        top = (x.shape[2] - inner.shape[2]) // 2
        return x[:, :, top : top + inner.shape[2], top : top + inner.shape[3]] + inner

    net = Function(lambda x: (F.max_pool2d(x, 3, 2, ceil_mode=True), F.unfold(x, 3, padding=1), cropped(x)))
    with pytest.raises(
        NotImplementedError, match=r"give upper bounds, such as Dim\('height', 8, 1024\), .*, or static"
    ):
        compiled(net, {"x": (1, 2, tvmfast.Dim("height", 8), tvmfast.Dim("width", 8))})
    lib = compiled(net, {"x": (1, 2, tvmfast.Dim("height", 8, 128), tvmfast.Dim("width", 8, 128))})
    for shape in ((8, 8), (9, 12), (32, 31)):
        agree(lib, net, rng.standard_normal((1, 2, *shape)).astype("float32"))


def test_the_nearest_pixels_of_a_dynamic_axis_for_another(rng):
    net = Function(lambda x, y: F.interpolate(x, size=y.shape))
    lib = compiled(net, {"x": (1, 2, "n", 5), "y": ("m", 4)})
    for n, m in ((1, 1), (7, 3), (4, 9), (33, 70)):
        x, y = rng.standard_normal((1, 2, n, 5)).astype("float32"), np.zeros((m, 4), "float32")
        assert np.array_equal(lib(x, y), net(*map(torch.from_numpy, (x, y))).numpy())


def test_samples_of_a_dynamic_axis_for_another(rng):
    def resized(x, y):
        return (
            *(F.interpolate(x, size=y.shape), F.interpolate(x, size=y.shape, mode="linear")),
            F.interpolate(x, size=y.shape, mode="linear", align_corners=True),
            F.interpolate(x[None], (y.shape[0], 3), mode="bicubic", align_corners=True),
            F.interpolate(x[None, None], (2, 3, y.shape[0])),
        )

    lib = compiled(Function(resized), {"x": (1, 2, "n"), "y": ("m",)})
    for n, m in ((1, 1), (7, 3), (33, 70)):
        x, y = rng.standard_normal((1, 2, n)).astype("float32"), np.zeros(m, "float32")
        close(lib(x, y), reference(resized, x, y))


def test_a_norm_of_groups_without_an_image(rng):
    net = nn.GroupNorm(2, 8).eval()
    agree(compiled(net, {"x": ("batch", 8)}), net, rng.standard_normal((3, 8)).astype("float32"))


# Dims


def test_floor_divisions(rng):
    net = Function(lambda x: (x[:, ::2] * 2, x[:, :-1].reshape(-1), x[:, 1:3]))
    lib = compiled(net, {"x": (2, tvmfast.Dim("n", 3))})
    for n in (3, 4, 5, 90):
        agree(lib, net, rng.standard_normal((2, n)).astype("float32"))


def test_indices_of_two_dynamic_axes(rng):
    net = Function(lambda x: x[torch.arange(x.shape[0])[:, None], torch.arange(x.shape[1])] + x[-1])
    lib = compiled(net, {"x": ("n", "m")})
    for shape in ((1, 1), (3, 2), (4, 70)):
        agree(lib, net, rng.standard_normal(shape).astype("float32"))


def test_an_index_out_of_a_dynamic_axis(rng):
    net = Function(lambda x, i: torch.index_select(x, 1, i))
    lib = compiled(net, {"x": (2, "n"), "i": ((3,), "int64")})
    x = rng.standard_normal((2, 6)).astype("float32")
    assert np.array_equal(lib(x, np.array([5, 0, 2])), x[:, [5, 0, 2]])
    with pytest.raises(IndexError, match=r"index_select: expected an index from 0 to n - 1, got 6"):
        lib(x, np.array([1, 6, 0]))


def test_embeddings_of_flat_indices(rng):
    table = nn.Embedding(50, 6)
    net = nn.Sequential(nn.Flatten(0), table)
    lib = compiled(net, {"ids": (("n", 4), "int64")})
    for n in (1, 5):
        agree(lib, net, tokens(rng, n, 4))
    with pytest.raises(IndexError, match="got 50"):
        lib(np.full((2, 4), 50))


def test_rolls_by_more_than_the_dim(rng):
    net = Function(lambda x: (x.roll((2, -5), (0, 1)), x.roll(3)))
    lib = compiled(net, {"x": ("n", "m")})
    for shape in ((1, 1), (1, 2), (2, 3), (3, 70)):
        agree(lib, net, rng.standard_normal(shape).astype("float32"))


def test_a_partial_update_at_the_end_of_a_dynamic_axis(rng):
    def net(x, y, index):
        x = x.clone()
        x[-1, index] = y
        return x

    lib = compiled(Function(net), {"x": ("n", 5), "y": (3,), "index": ((3,), "int64")})
    y, index = rng.standard_normal(3).astype("float32"), np.array([4, 0, -3])
    for n in (1, 2, 70):
        x = rng.standard_normal((n, 5)).astype("float32")
        assert np.array_equal(lib(x, y, index), net(*map(torch.from_numpy, (x, y, index))).numpy())


def test_infinities(rng):
    net = Function(lambda x: torch.minimum(torch.full((x.shape[0], 4), torch.inf), x))
    lib = compiled(net, {"x": ("n", 4)})
    agree(lib, net, rng.standard_normal((3, 4)).astype("float32"))


def test_numbers_that_are_dims(rng):
    net = Function(lambda x: x.sum(1) / x.shape[1] + x.shape[0])
    lib = compiled(net, {"x": ("n", "m")})
    for shape in ((1, 1), (3, 50)):
        agree(lib, net, rng.standard_normal(shape).astype("float32"))


@pytest.mark.filterwarnings("ignore:.*degrees of freedom is <= 0:UserWarning")
@pytest.mark.parametrize("level", sampled([0, 3], [3]))
def test_spreads_of_dynamic_axes(level, rng):
    """By the number of elements less a correction; NaN or an infinity where that leaves none."""

    def spreads(x):
        return x.var(1), x.std(1, correction=2), x.std((0, 2), correction=0), x.var(), *torch.std_mean(x, (0, 1))

    lib = compiled(Function(spreads), {"x": ("n", "m", 3)}, opt_level=level)
    for shape in ((1, 1, 3), (1, 2, 3), (3, 1, 3), (2, 70, 3)):
        agree(lib, spreads, 100 + rng.standard_normal(shape).astype("float32"))


def test_two_values(rng):
    lib = compiled(Function(lambda x: torch.relu(x)), {"x": (tvmfast.Dim("n", 1, 2), 4)})
    for n in (1, 2):
        agree(lib, torch.relu, rng.standard_normal((n, 4)).astype("float32"))


def test_dims_are_arithmetic():
    assert evaluate("((n + -1) // 2) + 1", {"n": 8}) == 4
    assert evaluate("max(n, 3*m) % 5", {"n": 8, "m": 3}) == 4
    with pytest.raises(ValueError, match="invalid literal"):
        evaluate("n.__class__", {"n": 8})


# What is refused


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: x if x.shape[1] != 57 else x * 2, r"something else where 'n' is 57 .*; give static"),
        pytest.param(
            lambda x: x * 2 if x.shape[1] % 8 == 0 and x.shape[1] > 100 else x,
            "something else where 'n' is",
            marks=pytest.mark.full,
        ),
        (lambda x: x * 2 if x.shape[1] % 8 == 0 and x.shape[1] == 1232 else x, "something else where 'n' is 1232"),
        (lambda x: x * 2 if x.shape[1] % 8 == 3 and x.shape[1] % 7 == 3 else x, "something else where 'n' is 3"),
        pytest.param(
            lambda x: x * 2 if x.shape[1] % 8 == 0 and x.shape[1] > 3000 else x,
            "something else where 'n' is 3008",
            marks=pytest.mark.full,
        ),
        (lambda x: x * 2 if x.shape[1] % 8 == 0 and x.shape[1] / 2 == 616 else x, "something else where 'n' is 1232"),
        (
            lambda x: x * 2 if x.shape[1] % 8 == 0 and x.shape[1] > 20000 else x,
            "another specialization where it is 32768",
        ),
        (lambda x: x * 2 if x.shape[1] > 12000 else x, "n <= 12000 may fail beyond 10,000, .*; give upper bounds"),
        (lambda x: x.repeat(1, 3, 1)[:, : x.shape[1] // 2 + 1], "'n' dynamic"),
        (lambda x: x.tile((x.shape[1], 1, 1)), "'n' dynamic|depends on it"),
    ],
    ids=["equality", "multiples", "a multiple", "remainders", "large", "quotient", "far", "beyond", "half", "tile"],
)
def test_networks_that_depend_on_a_length(function, message):
    with pytest.raises(NotImplementedError, match=message):
        tvmfast.from_pytorch(Function(function).eval(), {"x": (1, "n", 3)})


@pytest.mark.parametrize("number", [0, 1])
def test_guards_on_a_dim_that_two_inputs_have(number):
    """PyTorch has a symbol for each of them."""
    net = Function(lambda *xs: xs[0] * 2 if xs[number].shape[0] % 8 == 0 and xs[number].shape[0] == 1232 else xs[0])
    with pytest.raises(NotImplementedError, match="something else where 'n' is 1232"):
        tvmfast.from_pytorch(net.eval(), {"x": ("n", 4), "y": ("n", 5)})


def test_specializations_after_one_that_pytorch_cannot_export():
    def net(x):
        length = x.shape[1]
        if length % 8 == 5:
            length.to_bytes(4, "little")  # which PyTorch's SymInt lacks
        return x * 2 if length % 8 == 0 and length > 3000 else x

    message = r"more than 16 specializations, .* cannot be exported where 'n' is \d+: .*to_bytes.*; give bounds"
    with pytest.raises(NotImplementedError, match=message):
        tvmfast.from_pytorch(Function(net).eval(), {"x": (1, "n", 3)})
    tvmfast.from_pytorch(Function(net).eval(), {"x": (1, tvmfast.Dim("n", 2, 64), 3)})


@pytest.mark.parametrize(
    ("function", "sizes", "values"),
    [
        (
            lambda x: x * 2 if 2 * x.shape[0] == x.shape[1] + 3 else x,
            (tvmfast.Dim("n", 2), tvmfast.Dim("m", 2)),
            r"\d+, \d+",
        ),
        (lambda x: x * 2 if x.shape[0] == x.shape[1] else x, (tvmfast.Dim("n", 2), tvmfast.Dim("m", 3)), "3, 3"),
    ],
    ids=["twice", "equal"],
)
def test_networks_that_compare_two_sizes(function, sizes, values):
    with pytest.raises(NotImplementedError, match=f"something else where 'n', 'm' is {values}"):
        tvmfast.from_pytorch(Function(function).eval(), {"x": sizes})


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: x * 2 if x.shape[2] == 40 and x.shape[3] == 80 else x, "something else where 'h', 'w' is 40, 80"),
        (
            lambda x: F.conv2d(x * 2 if 2 * x.shape[2] == x.shape[3] + 3 else x, torch.ones(1, 2, 3, 3), None, 2),
            "where [hw] is",
        ),
    ],
    ids=["and", "beside a convolution"],
)
def test_conditions_on_two_sizes_beside_those_on_one(function, message):
    sizes = tvmfast.Dim("h", 3), tvmfast.Dim("w", 3)
    with pytest.raises(NotImplementedError, match=message):
        tvmfast.from_pytorch(Function(function).eval(), {"x": (1, 2, *sizes)})


def test_a_condition_where_one_of_two_sizes_is_1():
    net = Function(lambda x: x * 2 if x.shape[0] == 1 and x.shape[1] > 1 else x)
    with pytest.raises(NotImplementedError, match="something else where 'n', 'm' is 1, 68"):
        tvmfast.from_pytorch(net.eval(), {"x": ("n", "m")})


@pytest.mark.parametrize(
    "what",
    [
        "a = Equal(h, forty) b = Equal(w, three) d = And(a, b)",
        "a = Equal(h, forty) b = Equal(w, h) d = And(a, b)",
        "a = Mod(h, forty) d = Equal(a, three)",
        "a = Sub(h, forty) d = Cast<to = 9>(a)",
    ],
)
def test_files_that_compare_two_sizes(what):
    numbers = " ".join(
        f"{name} = Constant<value = int64 {{{number}}}>()"
        for name, number in (("zero", 0), ("one", 1), ("three", 3), ("forty", 40))
    )
    text = f"""<ir_version: 9, opset_import: ["": 17]>
        g (float[h, w] x) => (float[h, w] y) <float p = {{1}}, float q = {{2}}> {{
            {numbers} s = Shape(x) h = Gather(s, zero) w = Gather(s, one) {what} f = Where(d, p, q) y = Mul(x, f) }}"""
    sizes = tvmfast.Dim("h", 2), tvmfast.Dim("w", 2)
    message = "something else where 'h', 'w' is|cannot keep 'h', 'w' dynamic: the operands"
    with pytest.raises(NotImplementedError, match=message):
        tvmfast.from_onnx(parser.parse_model(text), {"x": sizes})


FLOATS = {
    "halves": ("a = Mul(h, half) d = Greater(a, limit)", (2, None), (2, None), False),
    "halves from 32": ("a = Mul(h, half) d = Greater(a, limit)", (32, None), (2, None), True),
    "tenths from 150": ("a = Mul(h, tenth) d = Greater(a, limit)", (150, None), (2, None), True),
    "rounded tenths": ("a = Mul(h, tenth) b = Floor(a) d = Less(b, limit)", (2, 110), (2, None), False),
    "rounded tenths to 80": ("a = Mul(h, tenth) b = Floor(a) d = Less(b, limit)", (2, 80), (2, None), True),
    "two halves": ("a = Mul(h, half) b = Mul(w, half) d = Less(a, b)", (71, 80), (60, 70), True),
    "a product": ("c = Mul(h, w) a = Mul(c, half) d = Greater(a, many)", (2, 600), (2, 600), False),
    "a product to 256": ("c = Mul(h, w) a = Mul(c, half) d = Greater(a, many)", (2, 256), (2, 600), True),
    "a whole product": ("c = Mul(h, w) d = Greater(c, many)", (2, 500), (2, 500), False),
    "a product of tenths": ("c = Mul(h, w) a = Mul(c, tenth) d = Greater(a, limit)", (60, 600), (60, 600), False),
    "a ratio": ("a = Div(h, w) d = Greater(a, limit)", (2, 600), (50, 100), False),
    "many rounded halves": ("a = Mul(h, half) b = Floor(a) d = Greater(b, many)", (3, None), (2, None), False),
    "half floats": (
        "a = Cast<to = 10>(h) b = Div(many, limit) c = Cast<to = 10>(b) d = Greater(a, c)",
        *((2, None), (2, None), False),
    ),
    "the largest of three": ("c = Max(half, h, w) d = Equal(c, h)", (5000, None), (2, None), False),
    "up to the largest float": ("a = Clip(h, half, most) d = Equal(a, h)", (2, None), (2, None), True),
    "up to the largest integer": ("i = Gather(s, zero) a = Min(i, last) d = Equal(a, i)", (2, None), (2, None), True),
    "parts": ("i = Gather(s, zero) a = Div(i, far) d = Equal(a, zero)", (2, None), (2, None), False),
    "parts from 0 on": (
        "i = Gather(s, zero) j = Sub(i, far) a = Div(j, far) d = Equal(a, zero)",
        (2, None),
        (2, None),
        False,
    ),
    "parts to 9000": ("i = Gather(s, zero) a = Div(i, far) d = Equal(a, zero)", (2, 9000), (2, None), True),
    "far squares": (
        "i = Gather(s, zero) a = Mul(i, i) b = Mul(i, beyond) d = Greater(a, b)",
        *((2, None), (2, None), False),
    ),
    "remainders": ("i = Gather(s, zero) a = Mod(i, far) d = Equal(a, i)", (2, None), (2, None), False),
    "parts of floats": ("a = Div(h, many) b = Floor(a) d = Greater(b, half)", (2, None), (2, None), False),
    "round parts of floats": ("a = Div(h, many) b = Round(a) d = Greater(b, half)", (2, 60000), (2, None), False),
    "round parts to 50000": ("a = Div(h, many) b = Round(a) d = Greater(b, half)", (2, 50000), (2, None), True),
    "whole parts of floats": ("a = Div(h, many) b = Cast<to = 7>(a) d = Equal(b, zero)", (2, None), (2, None), False),
}


# Of what else these are: for `make test-full` alone.
LIKE_OTHERS = (
    "halves from 32", "a whole product", "a product of tenths", "many rounded halves", "parts from 0 on",
    "parts of floats", "round parts to 50000",
)  # fmt: skip


@pytest.mark.parametrize("name", sampled(FLOATS, FLOATS.keys() - LIKE_OTHERS))
def test_files_that_compare_floats(rng, name):
    what, height, width, served = FLOATS[name]
    numbers = " ".join(
        f"{name} = Constant<value = float {{{number}}}>()"
        for name, number in (("half", 0.5), ("tenth", 0.1), ("limit", 10.25), ("many", 100000.5), ("most", 3.4e38))
    )
    integers = " ".join(
        f"{name} = Constant<value = int64 {{{number}}}>()"
        for name, number in (("zero", 0), ("one", 1), ("far", 10000), ("beyond", 70000), ("last", 2**63 - 1))
    )
    text = f"""<ir_version: 9, opset_import: ["": 17]>
        g (float[h, w] x) => (float[h, w] y) <float p = {{1}}, float q = {{2}}> {{
            {numbers} {integers} s = Shape(x) e = Cast<to = 1>(s) h = Gather(e, zero) w = Gather(e, one) {what}
            f = Where(d, p, q) y = Mul(x, f) }}"""
    sizes = tvmfast.Dim("h", *height), tvmfast.Dim("w", *width)
    model = parser.parse_model(text)
    if not served:
        with pytest.raises(NotImplementedError, match="something else where 'h', 'w' is|cannot keep 'h', 'w' dynamic"):
            tvmfast.from_onnx(model, {"x": sizes})
        return
    lib = tvmfast.build(*tvmfast.from_onnx(model, {"x": sizes}), records=False, opt_level=0)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for shape in itertools.product(*((each[0], min(each[1] or 300, 9000)) for each in (height, width))):
        x = rng.standard_normal(shape).astype("float32")
        assert np.array_equal(lib(x), session.run(None, {"x": x})[0])


def test_a_file_whose_comparison_is_the_same_at_all_sizes(rng):
    model = parser.parse_model(
        """<ir_version: 9, opset_import: ["": 17]> g (float[h, w] x) => (float[h, w] y) <float p = {1}, float q = {2}> {
        none = Constant<value = int64 {-1}>() s = Shape(x) n = Size(x) e = Equal(s, none) a = Equal(n, none)
        c = Cast<to = 6>(e) b = ReduceMax<keepdims = 0>(c) g = Cast<to = 9>(b) d = Or(a, g) f = Where(d, q, p)
        y = Mul(x, f) }"""
    )
    lib = tvmfast.build(*tvmfast.from_onnx(model), records=False, opt_level=0)
    x = rng.standard_normal((3, 5)).astype("float32")
    np.testing.assert_array_equal(lib(x), x)


def test_comparisons_beyond_64_bits():
    sizes = {name: np.array([3, 1 << 31]) for name in "abc"}
    assert _evaluated("2*a*b*c + -1", sizes).tolist() == [53, 2**94 - 1]
    assert _evaluated("2*a*b + -1*c", sizes).tolist() == [15, 2**63 - 2**31]


def test_an_error_at_a_size_that_was_not_asked_for_says_so():
    model = parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]> g (float[1, 2, H, 8] x) => (float[1, 2, A, 8] y)
            <int64[8] pads = {0, 0, -2, 0, 0, 0, 0, 0}> { y = Pad (x, pads) }"""
    )
    with pytest.raises(ValueError, match=r"tried with H 1: .* Dim\('H', lower, upper\), or static dims"):
        tvmfast.from_onnx(model)
    tvmfast.from_onnx(model, {"x": (1, 2, tvmfast.Dim("H", 3), 8)})


def test_sizes_that_an_exporter_has_turned_into_those_of_its_example():
    file, ones = io.BytesIO(), Function(lambda x: torch.ones(int(x.shape[0]), 3) + x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        names = {"input_names": ["x"], "dynamic_axes": {"x": {0: "N"}}}
        torch.onnx.export(ones.eval(), (torch.zeros(2, 3),), file, dynamo=False, **names)
    advice = r".* tried with N .*\. The file comes from .* older exporter, .* export it with dynamo=True$"
    with pytest.raises(ValueError, match=advice):
        tvmfast.from_onnx(file.getvalue())
    with pytest.raises(ValueError, match=r"not work with inputs of these shapes.* export it with dynamo=True$"):
        tvmfast.from_onnx(file.getvalue(), {"x": (5, 3)})
    tvmfast.from_onnx(file.getvalue(), {"x": (2, 3)})
    model = onnx.load_from_string(file.getvalue())
    model.graph.node[0].metadata_props.add(key="namespace", value="of the newer exporter")
    with pytest.raises(ValueError, match="or static dims\\)$"):
        tvmfast.from_onnx(model)


def test_a_length_of_1_may_be_another_network():
    net = Function(lambda x: x * 2 if x.shape[1] == 1 else x).eval()
    with pytest.raises(NotImplementedError, match=r"something else where 'n' is 1 .*use Dim\('n', 2\)"):
        tvmfast.from_pytorch(net, {"x": (1, "n")})


def test_a_squeeze_that_may_drop_a_dynamic_axis():
    net = Function(lambda x: x.squeeze()).eval()
    with pytest.raises(NotImplementedError, match=r"squeeze\(\) drops axis 0, too, where n is 1: write squeeze\(1\)"):
        tvmfast.from_pytorch(net, {"x": ("n", 1, 4)})
    mod, _ = tvmfast.from_pytorch(net, {"x": (tvmfast.Dim("n", 2), 1, 4)})
    assert str(mod["main"].ret_ty.shape) == "R.shape([n, 4])"


@pytest.mark.parametrize("size", [100, 512])
def test_a_table_of_positions_names_its_length(size):
    class Positions(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(size, 4)
            self.register_buffer("ids", torch.arange(size).unsqueeze(0))

        def forward(self, x):
            return x + self.table(self.ids[:, : x.shape[1]])

    net = Positions().eval()
    with pytest.raises((ValueError, NotImplementedError), match=rf"Dim\('length', 1, {size}\)"):
        tvmfast.from_pytorch(net, {"x": (1, "length", 4)})
    tvmfast.from_pytorch(net, {"x": (1, tvmfast.Dim("length", 1, size), 4)})


def test_a_refusal_says_nothing_else(capfd):
    net = Function(lambda x: x + torch.zeros(1, 64, 4)).eval()
    with pytest.raises((ValueError, NotImplementedError)):
        tvmfast.from_pytorch(net, {"x": (1, "length", 4)})
    assert capfd.readouterr() == ("", "")


def test_a_tuple_of_inputs_may_be_empty(rng):
    class Stateful(nn.Module):
        def forward(self, x, *state):
            return x * 2 if not state else x * 2 + state[0]

    net, x = Stateful().eval(), rng.standard_normal((3, 4)).astype("float32")
    np.testing.assert_array_equal(compiled(net, {"x": ("n", 4)})(x), 2 * x)
    np.testing.assert_array_equal(compiled(net, {"x": ("n", 4), "h": ("n", 4)})(x, x), 2 * x + x)
