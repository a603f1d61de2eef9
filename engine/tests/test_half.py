"""Half precision: weights in bfloat16 and float16, at all levels, in files and with dynamic dims; what is refused;
networks in halves, of which each operation is rounded once, as PyTorch does.

Products of pairs of bfloat16 run where the CPU has AVX512_BF16, and their assembly is read everywhere.
"""

import copy

import numpy as np
import pytest
import torch
from agreement import close, reference
from testing import Function, without
from torch import nn

import tvmfast
from tvmfast.core import machine

HAS_PAIRS = "avx512bf16" in machine.instruction_sets()
HALVES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


class Convolutions(nn.Module):
    """Convolutions that no rule but the direct one computes, one of groups, one transposed, and a linear layer."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 24, 5, 2, 2), nn.ReLU(), nn.Conv2d(24, 40, 1), nn.Conv2d(40, 40, (1, 3), groups=4),
            nn.ReLU(), nn.ConvTranspose2d(40, 16, 2, 2), nn.Flatten(), nn.Linear(16 * 12 * 8, 20),
        )  # fmt: skip

    def forward(self, x):
        return self.layers(x)


class Words(nn.Module):
    """An embedding, a layer of a transformer, an LSTM and a linear layer that shares the embedding's weights."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(50, 32)
        self.encoder = nn.TransformerEncoderLayer(32, 2, 48, batch_first=True, norm_first=True)
        self.lstm = nn.LSTM(32, 32, batch_first=True)

    def forward(self, tokens):
        x = self.encoder(self.embedding(tokens))
        return self.lstm(x)[0] @ self.embedding.weight.T


def rounded(net: nn.Module, dtype: str) -> nn.Module:
    """A copy whose weights are halves, stored in float32; biases are as they were."""
    net = copy.deepcopy(net)
    for weight in net.parameters():
        if weight.dim() > 1:
            weight.data = weight.data.to(HALVES[dtype]).float()
    return net


def without_pairs():
    """This machine's target, without AVX512_BF16."""
    return without("avx512bf16")


def bytes_of(lib) -> int:
    return sum(array.numpy().nbytes for array in lib.params.values())


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("level", [0, 3])
def test_convolutions_are_those_of_the_rounded_weights(level, dtype):
    net, x = Convolutions().eval(), torch.randn(1, 3, 12, 12)
    mod, params = tvmfast.from_pytorch(net, (x,))
    half = tvmfast.build(mod, params, without_pairs(), opt_level=level, dtype=dtype)
    close(half(x), reference(rounded(net, dtype), x))
    assert bytes_of(half) < 0.6 * bytes_of(tvmfast.build(mod, params, opt_level=level))


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("level", [0, 3])
def test_words_are_those_of_the_rounded_weights(level, dtype):
    net, tokens = Words().eval(), torch.randint(0, 50, (1, 7))
    mod, params = tvmfast.from_pytorch(net, (tokens,))
    half = tvmfast.build(mod, params, without_pairs(), opt_level=level, dtype=dtype)
    close(half(tokens), reference(rounded(net, dtype), tokens))
    assert bytes_of(half) < 0.6 * bytes_of(tvmfast.build(mod, params, opt_level=level))


@pytest.mark.parametrize("dtype", HALVES)
def test_a_transformed_convolution_has_an_error_of_rounded_weights(dtype):
    net, x = nn.Conv2d(32, 48, 3, padding=1).eval(), torch.randn(1, 32, 24, 24)
    lib = tvmfast.build(*tvmfast.from_pytorch(net, (x,)), without_pairs(), dtype=dtype)
    assert "winograd" in families(lib)
    # Five standard deviations of the sum of so many roundings, of which F(4x4, 3x3) makes five times as much.
    assert error_of(lib, net, x) < 25 / np.sqrt(12) * torch.finfo(HALVES[dtype]).eps


def error_of(lib, net, x) -> float:
    """The largest error of a padded convolution, as a share of the size of the terms of a sum."""
    x, net = x.double(), copy.deepcopy(net).double()
    size = nn.functional.conv2d(x**2, net.weight**2, padding=1).sqrt().max().item()
    return np.abs(lib(x.float()) - net(x).detach().numpy()).max() / size


LAYERS = {
    "conv2d_bf16": (nn.Conv2d(48, 40, 3, 2, 1), (1, 48, 15, 13)),  # an odd number of blocks
    "conv2d_bf16 without padding": (nn.Conv2d(32, 40, 1, 2), (2, 32, 9, 8)),
    "conv2d_bf16 of lines": (nn.Conv1d(32, 32, 3, 2), (1, 32, 40)),
    "pointwise_bf16": (nn.Conv2d(40, 70, 1), (1, 40, 7, 9)),
    "matmul_bf16": (nn.Linear(64, 40), (5, 64)),
    "matmul_bf16 of an odd depth": (nn.Linear(67, 40), (2, 7, 67)),
    "matmul of few rows": (nn.Linear(64, 40), (1, 64)),
}


def families(lib) -> set[str]:
    return {kernel["family"] for kernel in lib.graph["kernels"].values()}


@pytest.mark.parametrize("case", LAYERS)
def test_pairs_are_multiplied_by_the_instruction(case):
    net, shape = LAYERS[case]
    x = torch.randn(shape)
    mod, params = tvmfast.from_pytorch(net.eval(), (x,))
    if not HAS_PAIRS:
        target = {"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "znver4"}
        lib = tvmfast.build(mod, params, target, dtype="bfloat16")
    else:
        lib = tvmfast.build(mod, params, without("amx-bf16"), dtype="bfloat16")
        given = x if "few" in case else x.bfloat16().float()
        close(lib(x), reference(rounded(net, "bfloat16"), given))
    assert case.split()[0] in families(lib)
    assert ("vdpbf16ps" in lib.source(fmt="asm")) == ("few" not in case)
    multiplied = net.weight.numel() * (net(x).numel() // len(net.weight))
    assert sum(each["flops"] for each in lib.graph["costs"].values()) >= 2 * multiplied


@pytest.mark.skipif(not HAS_PAIRS, reason="the CPU has no AVX512_BF16")
@pytest.mark.parametrize("channels", [48, 64])  # three blocks, four blocks
def test_transformed_tiles_are_multiplied_in_pairs(channels):
    net, x = nn.Conv2d(channels, 48, 3, padding=1).eval(), torch.randn(1, channels, 24, 24)
    lib = tvmfast.build(*tvmfast.from_pytorch(net, (x,)), without("amx-bf16"), dtype="bfloat16")
    assert "winograd_bf16" in families(lib)
    assert error_of(lib, net, x) < 50 / np.sqrt(12) * torch.finfo(torch.bfloat16).eps  # of data and weights


@pytest.mark.skipif(not HAS_PAIRS, reason="the CPU has no AVX512_BF16")
@pytest.mark.parametrize("size", [5, 40])
def test_pairs_of_dynamic_rows(size):
    net, x = nn.Sequential(nn.Linear(64, 40), nn.ReLU(), nn.Linear(40, 33)).eval(), torch.randn(size, 64)
    lib = tvmfast.build(*tvmfast.from_pytorch(net, {"x": ("rows", 64)}), dtype="bfloat16")
    assert "matmul_bf16" in families(lib)
    close(lib(x), reference(copy.deepcopy(net).bfloat16(), x.bfloat16()))


@pytest.mark.skipif(not HAS_PAIRS, reason="the CPU has no AVX512_BF16")
def test_special_values_in_pairs():
    net, x = nn.Linear(64, 40).eval(), torch.randn(6, 64)
    x[0, 0], x[1, 33], x[2, 5], x[3, 1] = float("nan"), float("inf"), -float("inf"), 1e-40
    lib = tvmfast.build(*tvmfast.from_pytorch(net, (x,)), dtype="bfloat16")
    close(lib(x), reference(rounded(net, "bfloat16"), x.bfloat16().float()))


def test_a_saved_network_has_half_the_bytes_and_computes_the_same(tmp_path):
    net, x = Convolutions().eval(), torch.randn(1, 3, 12, 12)
    mod, params = tvmfast.from_pytorch(net, (x,))
    sizes = []
    for dtype in (None, "bfloat16"):
        lib = tvmfast.build(mod, params, dtype=dtype)
        folder = lib.save(tmp_path / str(dtype))
        np.testing.assert_array_equal(tvmfast.load(folder)(x), lib(x))
        sizes.append(max(file.stat().st_size for file in folder.glob("params*")))
    assert sizes[1] < 0.6 * sizes[0]


def test_weights_that_overflow_or_are_special_stay_what_they_are(compile_function):
    big = torch.randn(40, 64)
    big[3, 5] = 1e5  # float16 ends at 65,504
    odd = torch.randn(40, 64)
    odd[0, 0], odd[1, 1], odd[2, 2] = float("nan"), float("inf"), -float("inf")
    x = torch.randn(2, 64)
    for weight in (big, odd):
        kept = weight if weight is big else weight.half().float()
        lib = compile_function(lambda x, weight=weight: x @ weight.T, {"x": x.shape}, dtype="float16")
        close(lib(x), reference(lambda x, kept=kept: x @ kept.T.to(x.dtype), x))


def test_inputs_and_outputs_keep_their_dtypes():
    net = Words().eval()
    lib = tvmfast.build(*tvmfast.from_pytorch(net, (torch.randint(0, 50, (1, 7)),)), dtype="bfloat16")
    assert [spec.dtype for spec in lib.inputs] == ["int64"] and [spec.dtype for spec in lib.outputs] == ["float32"]


def test_dynamic_dims_and_specializations():
    net = Convolutions().layers[:-2].eval()
    x = torch.randn(1, 3, 16, 12)
    mod, params = tvmfast.from_pytorch(net, {"x": (1, 3, "height", "width")})
    lib = tvmfast.build(mod, params, without_pairs(), dtype="bfloat16", sizes=[{"height": 16, "width": 12}])
    exact = rounded(net, "bfloat16")
    for each in (x, x[..., :11, :10].contiguous()):
        close(lib(each), reference(exact, each))


def test_a_network_of_halves_keeps_its_weights_in_half():
    net, x = nn.Linear(64, 40).bfloat16().eval(), torch.randn(1, 64).bfloat16()
    mod, params = tvmfast.from_pytorch(net, (x,))
    plain, half = tvmfast.build(mod, params), tvmfast.build(mod, params, dtype="bfloat16")
    np.testing.assert_array_equal(half(x), plain(x))
    assert bytes_of(half) < 0.6 * bytes_of(plain)


def test_what_is_refused():
    mod, params = tvmfast.from_pytorch(nn.Linear(4, 4).half().eval(), (torch.zeros(1, 4).half(),))
    with pytest.raises(ValueError, match="expected 'bfloat16' or 'float16', or None for the network's own; got 'int8'"):
        tvmfast.build(mod, params, dtype="int8")
    with pytest.raises(ValueError, match="the network has tensors of float16 already; build it without dtype"):
        tvmfast.build(mod, params, dtype="bfloat16")
    with pytest.raises(ValueError, match="is for CPUs: for a GPU convert the model"):
        tvmfast.build(mod, params, {"kind": "cuda", "arch": "sm_80"}, dtype="float16")


# ---------------------------------------------------------------- networks in halves

ROUNDED = {  # functions of halves that PyTorch computes in float32 and rounds once
    "chains": lambda x, y: (x * y + y, x * 0.3 + x * x - y / 7, (x + y) * (x - y), torch.where(x > y, x, -y) * y),
    "casts": lambda x, y: (x.float(), (x.float() * 1.01).to(x.dtype).float(), (x > y).to(x.dtype) * y),
    "exact": lambda x, y: (x.abs(), x.floor(), x.trunc(), x.round(), torch.maximum(x, y), x.clamp(-0.3, 1.7), x >= y),
    "sums": lambda x, y: (x + y, x - y, x + 0.1, 1 - x),
    "quotients": lambda x, y: (x / y, x / 3, 1 / x, x.sqrt(), x * 0.1, nn.functional.leaky_relu(x)),
}
SPECIAL = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, -1e-40, 6e-8, 3e38, -3e38, 65504, 1, -1, 0.5]


def halves(dtype: str) -> tuple:
    x = torch.cat([torch.tensor(SPECIAL), torch.randn(500), 10 * torch.randn(300), 1e-3 * torch.randn(210)])
    return x.to(HALVES[dtype]), torch.cat([x.flip(0)[:512], x[:512].flip(0)]).to(HALVES[dtype])


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("level", [0, 1, 3])
def test_each_operation_is_rounded_once(level, dtype):
    xs = halves(dtype)
    net = Function(lambda *xs: [y for function in ROUNDED.values() for y in function(*xs)]).eval()
    lib = tvmfast.build(*tvmfast.from_pytorch(net, xs), opt_level=level)
    for number, (got, theirs) in enumerate(zip(lib(*xs), net(*xs), strict=True)):
        np.testing.assert_array_equal(np.asarray(got).astype("float64"), theirs.double().numpy(), str(number))


def finite(x: torch.Tensor) -> torch.Tensor:
    return torch.nan_to_num(x, 1.0, 1.0, 1.0).clamp(-8, 8)


def resized(x, size: int | tuple, mode: str):
    shape = {"linear": (1, 32, 32), "bicubic": (1, 4, 16, 16), "trilinear": (1, 1, 8, 8, 16)}[mode]
    return nn.functional.interpolate(finite(x).reshape(shape), size, mode=mode)


def normalized(x, y):
    shift, scale = finite(y)[14:18], finite(y)[18:22].abs() + 0.25
    return nn.functional.batch_norm(finite(x).reshape(4, 4, 64), shift, scale, scale, shift)


def square(x):
    return finite(x).reshape(32, 32)


ROWS = torch.arange(32) % 8

COMPOSED = {  # of several operators here; PyTorch rounds once, or after the same steps
    "alpha": lambda x, y: (torch.add(x, y, alpha=0.3), torch.sub(x, y, alpha=1.7), torch.rsub(x, y, alpha=0.3)),
    "alpha of a scalar": lambda x, y: (
        *(torch.add(x, 1.3, alpha=0.3), torch.sub(x, 1.3, alpha=0.3), torch.rsub(x, 2.1, alpha=0.3)),
    ),
    "exponentials": lambda x, y: (
        *(torch.expm1(x), torch.log1p(x), torch.hypot(x, y), nn.functional.elu(x, 0.3)),
        *(nn.functional.selu(x), nn.functional.celu(x, 0.3), nn.functional.softshrink(x, 0.3)),
    ),
    "logarithms": lambda x, y: (
        *(torch.logit(x), torch.logit(x, 1e-3), torch.xlogy(x, y), torch.xlogy(x, 0.3), torch.xlogy(0.3, x)),
        *(torch.special.xlog1py(x, y), torch.special.entr(x)),
    ),
    "powers": lambda x, y: (x**3, x**4, x**-2, x**1.7, x**0.3333, 2.3**x),
    "losses": lambda x, y: (
        nn.functional.mse_loss(finite(x), finite(y), reduction="none"),
        nn.functional.soft_margin_loss(finite(x), finite(y).sign(), reduction="none"),
        nn.functional.binary_cross_entropy(finite(x).sigmoid(), finite(y).sigmoid(), reduction="none"),
    ),
    "sums": lambda x, y: (
        *(torch.logcumsumexp(square(x), 1), torch.logsumexp(square(x), 1)),
        *(torch.trapezoid(square(x), dx=0.3), torch.cumulative_trapezoid(square(x), dx=0.3)),
    ),
    "scattered": lambda x, y: (
        square(x)[:8].index_add(0, ROWS, square(y)),
        square(x)[:8].scatter_add(0, ROWS[:, None].expand(32, 32), square(y)),
        square(x)[:8].scatter_reduce(0, ROWS[:, None].expand(32, 32), square(y), "mean"),
        square(x)[:8].scatter_reduce(0, ROWS[:, None].expand(32, 32), square(y), "prod"),
    ),
    "batch norm": lambda x, y: (normalized(x, y), normalized(y, x)),
    "resized": lambda x, y: (
        *(resized(x, 45, "linear"), resized(x, (23, 29), "bicubic"), resized(x, (9, 11, 7), "trilinear")),
    ),
}


def ordinals(x: torch.Tensor) -> torch.Tensor:
    """Number the halves in their order; both zeros are 0."""
    bits = x.view(torch.int16).int()
    return torch.where(bits < 0, -(2**15) - bits, bits)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("level", [0, 3])
@pytest.mark.parametrize("case", COMPOSED)
def test_what_is_composed_of_several_operations_is_rounded_as_in_pytorch(case, level, dtype):
    xs = halves(dtype)
    net = Function(COMPOSED[case]).eval()
    lib = tvmfast.build(*tvmfast.from_pytorch(net, xs), opt_level=level)
    for number, (ours, theirs) in enumerate(zip(lib(*xs), net(*xs), strict=True)):
        ours = torch.from_numpy(np.asarray(ours).astype("float64")).to(theirs.dtype)
        equal = (ours == theirs) | (ours.isnan() & theirs.isnan())
        assert (~equal).sum() <= theirs.numel() / 100, number
        assert ((ordinals(ours) - ordinals(theirs))[~equal].abs() == 1).all(), number


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("level", [0, 3])
def test_infinities_and_zeros_of_halves(level, dtype):
    def extremes(x):
        zero = torch.zeros((), dtype=x.dtype)
        return x.amax(-1), nn.functional.max_pool2d(x, 2), (-x).amin((2, 3)), x.argmax(-1), x * zero, x + zero

    x = torch.full((1, 2, 8, 32), -np.inf).to(HALVES[dtype])
    x[0, 1] = torch.randn(8, 32)
    lib = tvmfast.build(*tvmfast.from_pytorch(Function(extremes).eval(), (x,)), opt_level=level)
    for number, (got, theirs) in enumerate(zip(lib(x), extremes(x), strict=True)):
        np.testing.assert_array_equal(np.asarray(got).astype("float64"), theirs.double().numpy(), str(number))


def test_a_product_and_its_epilogue_in_bfloat16():
    """A Let in what is rounded."""
    xs = [torch.randn(16, 16).bfloat16() for _ in range(3)]
    net = Function(lambda a, b, c: nn.functional.gelu(a @ b + c) * c).eval()
    lib = tvmfast.build(*tvmfast.from_pytorch(net, tuple(xs)))
    close(lib(*xs), reference(net, *xs))
