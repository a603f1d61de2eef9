"""Quantized networks (QDQ) as sums of integers: exact sums, rounding, epilogues, and the instruction of each CPU."""

import numpy as np
import pytest
from agreement import close
from testing import QUICK, by_level, of_integers, sampled, without
from tvm import relax, tirx
from tvm.relax import op as R

import tvmfast
from tvmfast.compiler.schedule.dot import DOTS
from tvmfast.compiler.schedule.rules import RULES
from tvmfast.compiler.schedule.workloads.conv2d import Convolution
from tvmfast.core import machine
from tvmfast.core.simd import PLAIN, Simd, simd_of

LEVELS = pytest.mark.parametrize("level", [0, 3])
CPUS = {  # by instruction: a target, the mnemonic in its assembly, and its registers
    "vpdpbusd 512": ({"mcpu": "cascadelake"}, "vpdpbusd", "%zmm"),
    "vpdpbusd 256": ({"mcpu": "alderlake"}, "vpdpbusd", "%ymm"),
    "vpmaddwd 512": ({"mcpu": "skylake-avx512"}, "vpmaddwd", "%zmm"),
    "vpmaddwd 256": ({"mcpu": "haswell"}, "vpmaddwd", "%ymm"),
    "pmaddwd 128": ({"mcpu": "nehalem"}, "pmaddwd", "%xmm"),
    "usdot 128": ({"mtriple": "aarch64-linux-gnu", "mcpu": "neoverse-v1"}, "usdot", ".4s"),
    PLAIN: ({"mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a72"}, "mla", ".4s"),
}


def const(value, dtype="float32"):
    return relax.const(np.asarray(value, dtype))


class Network:
    """Builds a Relax function of one float32 input, an operator at a time."""

    def __init__(self, shape, rng, dtype="float32"):
        self.rng, self.builder = rng, relax.BlockBuilder()
        self.x = relax.Var("x", relax.TensorType(shape, dtype))

    def __call__(self, body, level=3, **options):
        """The network, built; `body` gets this and the input."""
        with self.builder.function("main", [self.x]):
            with self.builder.dataflow():
                out = self.builder.emit_output(body(self, self.x))
            self.builder.emit_func_output(out)
        return tvmfast.build(self.builder.get(), {}, opt_level=level, **options)

    def __getattr__(self, name):
        return lambda *args, **options: self.builder.emit(getattr(R, name)(*args, **options))

    def nn(self, name, *args, **options):
        return self.builder.emit(getattr(R.nn, name)(*args, **options))

    def qdq(self, x, scale=1.0, zero=0, dtype="uint8"):
        parameters = const(scale), const(zero, dtype)
        return self.dequantize(self.quantize(x, *parameters, 1, dtype), *parameters, 1)

    def weight(self, values, scale=1.0, zero=0, axis=0):
        values = np.asarray(values)
        zero = np.full(np.shape(scale), zero, values.dtype)
        return self.dequantize(relax.const(values), const(scale), relax.const(zero), axis)

    def integers(self, shape, dtype="int8"):
        info = np.iinfo(dtype)
        return self.rng.integers(info.min, info.max, shape, dtype, endpoint=True)

    def conv(self, x, outs, window=3, strides=1, padding=1, relu=True):
        shape = outs, int(x.ty.shape[1]), window, window
        scale = self.rng.uniform(0.5, 1.5, outs) / (40 * np.sqrt(np.prod(shape[1:])))
        y = self.nn("conv2d", x, self.weight(self.integers(shape), scale), strides, padding)
        y = self.add(y, const(self.rng.normal(size=(1, outs, 1, 1))))
        return self.nn("relu", y) if relu else y


def result(lib, x) -> np.ndarray:
    return lib(x)


def convolved(x, weight, strides, padding, dilation):
    """The convolution by NumPy: of integers exactly, of floats in float64."""
    dtype = np.promote_types(x.dtype, "int64")
    reach = [(n - 1) * dilation + 1 for n in weight.shape[2:]]
    padded = np.pad(x.astype(dtype), [(0, 0), (0, 0), (padding,) * 2, (padding,) * 2])
    windows = np.lib.stride_tricks.sliding_window_view(padded, reach, (2, 3))
    windows = windows[:, :, ::strides, ::strides, ::dilation, ::dilation]
    return np.einsum("nchwyx,ocyx->nohw", windows, weight.astype(dtype))


def rounded(x, scale, zero, dtype):
    info = np.iinfo(dtype)
    return (np.rint(x / np.float32(scale)) + zero).clip(info.min, info.max).astype(dtype)


@pytest.mark.parametrize(("dtype", "level"), by_level(["uint8", "int8"], ["int8"]))
def test_quantize_rounds_a_half_to_the_even_neighbour_and_saturates(rng, level, dtype):
    values = np.array([-0.5, 0.5, 1.5, 2.5, -1.5, 300, -300, 0.49999997, 1e30, -1e30, np.inf, -np.inf], "float32")
    x = np.concatenate([values, rng.normal(size=52, scale=90).astype("float32")]).reshape(1, 2, 32) * 0.25
    scale, zero = np.array([0.25, 0.1], "float32"), np.array([3, 7])

    def body(net, x):
        by_channel = net.quantize(x, const(scale), const(zero, dtype), 1, dtype)
        return net.concat([net.quantize(x, const(0.25), const(5, dtype), 1, dtype), by_channel], 1)

    got = result(Network(x.shape, rng)(body, level), x)
    np.testing.assert_array_equal(got[:, :2], rounded(x, 0.25, 5, dtype))
    np.testing.assert_array_equal(got[:, 2:], rounded(x, scale[:, None], zero[:, None], dtype))


@LEVELS
def test_a_nan_becomes_the_zero_point(rng, level):
    lib = Network((1, 33), rng)(lambda net, x: net.quantize(x, const(0.1), const(9, "uint8"), 1, "uint8"), level)
    assert (result(lib, np.full((1, 33), np.nan, "float32")) == 9).all()


CONVOLUTIONS = {  # the image, the output channels, window, strides, padding, dilation, zero point and dtype
    "of pictures": ((2, 3, 17, 19), 40, 7, 2, 3, 1, 7, "uint8"),
    "of blocks": ((1, 32, 9, 14), 32, 3, 1, 1, 1, 0, "uint8"),
    "of odd channels": ((1, 20, 9, 9), 24, 3, 2, 1, 1, 130, "uint8"),
    "of int8": ((1, 32, 8, 8), 16, 3, 1, 2, 2, -3, "int8"),
    "pointwise": ((2, 40, 7, 9), 72, 1, 1, 0, 1, 200, "uint8"),
    "pointwise of strides": ((1, 16, 9, 9), 32, 1, 2, 0, 1, 1, "uint8"),
    "of one pixel": ((1, 64, 1, 1), 16, 1, 1, 0, 1, 1, "int8"),
}


@pytest.mark.parametrize(("case", "level"), by_level(CONVOLUTIONS, ["of odd channels"]))
def test_sums_of_a_convolution_are_exact(rng, level, case):
    """With scales of 1 the result is a whole number, in float32 exact as well while it is small."""
    shape, outs, window, strides, padding, dilation, zero, dtype = CONVOLUTIONS[case]
    net = Network(shape, rng)
    x = net.integers(shape, dtype)
    weight = net.integers((outs, shape[1], window, window))

    def body(net, x):
        scale = 2.0 ** np.arange(-3, outs - 3).clip(-3, 3)
        return net.nn("conv2d", net.qdq(x, 1.0, zero, dtype), net.weight(weight, scale), strides, padding, dilation)

    lib = net(body, level)
    wanted = convolved(x.astype("int64") - zero, weight, strides, padding, dilation)
    wanted = wanted * 2.0 ** np.arange(-3, outs - 3).clip(-3, 3).reshape(-1, 1, 1)
    np.testing.assert_array_equal(result(lib, x.astype("float32") - zero), wanted)
    assert level == 0 or of_integers(lib) == 1


DEPTHWISE = {  # channels, size, window, strides, padding, dilation, zero point and dtype
    "of blocks": (32, 9, 3, 1, 1, 1, 0, "uint8"),
    "of odd channels": (20, 11, 5, 2, 2, 1, 200, "uint8"),
    "of int8": (16, 8, 3, 1, 2, 2, 5, "int8"),
    "without padding": (48, 6, 3, 1, 0, 1, 3, "uint8"),
}


@pytest.mark.parametrize(("case", "level"), by_level(DEPTHWISE, ["of odd channels"]))
def test_sums_of_a_depthwise_convolution_are_exact(rng, level, case):
    channels, size, window, strides, padding, dilation, zero, dtype = DEPTHWISE[case]
    shape = 1, channels, size, size
    net = Network(shape, rng)
    x, weight = net.integers(shape, dtype), net.integers((channels, 1, window, window))

    def body(net, x):
        x = net.qdq(x, 1.0, zero, dtype)
        return net.nn("conv2d", x, net.weight(weight, 1.0), strides, padding, dilation, channels)

    lib = net(body, level)
    diagonal = np.zeros((channels, channels, window, window), "int8")
    diagonal[range(channels), range(channels)] = weight[:, 0]
    wanted = convolved(x.astype("int64") - zero, diagonal, strides, padding, dilation)
    np.testing.assert_array_equal(result(lib, x.astype("float32") - zero), wanted)
    assert level == 0 or any("uint8" in each["dtype"] for node in lib.graph["nodes"] for each in node["makes"])


GROUPED = {  # channels, output channels, groups, size, window, strides, padding, zero point
    "of whole blocks": (64, 64, 2, (6, 9), 3, 1, 1, 0),
    "narrow": (64, 64, 16, (5, 17), 3, 2, 1, 130),
    "across blocks": (60, 72, 3, (6, 7), 3, 1, 1, 255),
    "of more outputs": (12, 36, 12, (6, 5), 3, 1, 0, 9),
    "of few outputs": (72, 18, 6, (4, 9), 5, 1, 2, 1),
    "pointwise": (72, 120, 3, (5, 7), 1, 1, 0, 128),
}


def whole(weight, groups):
    """The weights (O, I, …) of groups as those of one group."""
    outs, ins = weight.shape[:2]
    dense = np.zeros((outs, ins * groups, *weight.shape[2:]), weight.dtype)
    for out in range(outs):
        first = out // (outs // groups) * ins
        dense[out, first : first + ins] = weight[out]
    return dense


@pytest.mark.parametrize(("case", "level"), by_level(GROUPED, ["narrow"]))
def test_sums_of_a_convolution_of_groups_are_exact(rng, level, case):
    channels, outs, groups, size, window, strides, padding, zero = GROUPED[case]
    shape = 1, channels, *size
    net = Network(shape, rng)
    x, weight = net.integers(shape, "uint8"), net.integers((outs, channels // groups, window, window))

    def body(net, x):
        y = net.nn("conv2d", net.qdq(x, 1.0, zero), net.weight(weight, 1.0), strides, padding, groups=groups)
        return net.add(y, const(np.arange(outs).reshape(1, outs, 1, 1)))

    lib = net(body, level)
    wanted = convolved(x.astype("int64") - zero, whole(weight, groups), strides, padding, 1)
    wanted = wanted + np.arange(outs)[:, None, None]
    np.testing.assert_array_equal(result(lib, x.astype("float32") - zero), wanted)
    assert level == 0 or of_integers(lib) == 1


POOLS = {  # channels, size, window, strides, padding, dilation, and whether the padding counts
    "of parts": (32, (8, 10), (2, 2), 2, 0, 1, False),
    "with its padding": (20, (7, 9), (3, 3), 1, 1, 1, True),
    "of the image alone": (32, (7, 10), (3, 3), 2, 1, 1, False),
    "dilated": (20, (9, 9), (2, 3), 1, (0, 1, 1, 0), (2, 1), False),
    "of the whole": (1, (7, 5), (7, 5), 1, 0, 1, True),
}


@pytest.mark.parametrize(("case", "level"), by_level(POOLS, ["of the image alone"]))
def test_average_pools_sum_integers_and_round_once(rng, level, case):
    channels, size, window, strides, padding, dilation, counted = POOLS[case]
    shape = 2, channels, *size
    net, scale, zero = Network(shape, rng), 0.5, 77
    x = net.integers(shape, "uint8")

    def body(net, x):
        y = net.qdq(x, scale, zero)
        return net.nn("avg_pool2d", y, window, strides, padding, dilation, count_include_pad=counted)

    lib = net(body, level)
    pads = [(padding, padding)] * 2 if isinstance(padding, int) else [padding[::2], padding[1::2]]
    steps = dilation if isinstance(dilation, tuple) else (dilation,) * 2

    def windows(array, fill):
        array = np.pad(array, [(0, 0), (0, 0), *pads], constant_values=fill)
        reach = [(n - 1) * d + 1 for n, d in zip(window, steps, strict=True)]
        found = np.lib.stride_tricks.sliding_window_view(array, reach, (2, 3))
        return found[:, :, ::strides, ::strides, :: steps[0], :: steps[1]].sum((4, 5))

    floats = (x.astype("float64") - zero) * scale
    wanted = windows(floats, 0) / windows(np.ones(shape), float(counted))
    got = result(lib, floats.astype("float32"))
    close(got, wanted, terms=window[0] * window[1], scale=255 * scale)
    rounded = Network(shape, rng)(lambda net, x: net.qdq(body(net, x), scale, zero), level)
    steps = np.abs(result(rounded, floats.astype("float32")) / scale + zero - (np.rint(wanted / scale) + zero))
    assert steps.max() <= 1 and (steps > 0).mean() < 0.05  # ties alone
    names = [*lib.kernels.index, *rounded.kernels.index]
    assert level == 0 or sum("of_integers" in name for name in names) == 2


@LEVELS
def test_an_average_pool_of_lines(rng, level):
    net = Network((2, 20, 11), rng)
    x = net.integers((2, 20, 11), "uint8")
    lib = net(lambda net, x: net.nn("avg_pool1d", net.qdq(x, 1.0, 9), 3, 2, (1, 1), count_include_pad=False), level)
    floats = x.astype("float64") - 9
    wanted = [floats[..., max(0, at - 1) : at + 2].mean(-1) for at in range(0, 11, 2)]
    close(lib(floats.astype("float32")), np.stack(wanted, -1), 3, scale=255)
    assert level == 0 or any("of_integers" in name for name in lib.kernels.index)


def test_a_pool_between_convolutions_reads_and_writes_bytes(rng):
    def body(net, x):
        x = net.qdq(net.conv(net.qdq(x, 0.02, 128), 32), 0.03)
        x = net.qdq(net.nn("avg_pool2d", x, (3, 3), 2, 1, count_include_pad=False), 0.03)
        return net.conv(x, 16, 1, 1, 0)

    lib = Network((1, 16, 9, 9), rng)(body, target=without("amx-int8"))
    assert of_integers(lib) == 2 and sum("avg_pool2d_of_integers" in name for name in lib.kernels.index) == 1
    made = [each["dtype"] for node in lib.graph["nodes"] for each in node["makes"]]
    assert made.count("float32") <= 2  # the output, and that in blocks


PRODUCTS = {  # the left matrix, the columns, whether the weight is transposed, and the dtypes of data and weight
    "one row": ((1, 64), 70, True, "uint8", "int8"),
    "few rows": ((5, 35), 33, False, "int8", "int8"),
    "a batch": ((2, 7, 32), 48, True, "int8", "int8"),
    "unsigned weights": ((3, 16), 20, False, "uint8", "uint8"),
}


@pytest.mark.parametrize(("case", "level"), by_level(PRODUCTS, ["few rows"]))
def test_sums_of_a_product_are_exact(rng, level, case):
    shape, columns, transposed, dtype, of_weight = PRODUCTS[case]
    net, shift = Network(shape, rng), 128 if of_weight == "uint8" else 0
    x = net.integers(shape, dtype)
    weight = net.integers((columns, shape[-1]) if transposed else (shape[-1], columns), of_weight)

    def body(net, x):
        w = net.weight(weight, np.full(columns, 0.5), shift, axis=0 if transposed else 1)
        return net.matmul(net.qdq(x, 2.0, 3, dtype), net.permute_dims(w) if transposed else w)

    lib = net(body, level, target=without("amx-int8"))
    right = (weight.T if transposed else weight).astype("int64") - shift
    np.testing.assert_array_equal(result(lib, (x.astype("float32") - 3) * 2), (x.astype("int64") - 3) @ right)
    assert level == 0 or [*lib.kernels.family].count("dot_matmul") == 1


def test_a_product_of_dynamic_rows_is_exact(rng):
    rows = tirx.Var("rows", "int64")
    net = Network((rows, 36), rng)
    weight = net.integers((36, 50))
    lib = net(lambda net, x: net.matmul(net.qdq(x, 1.0, 9), net.weight(weight, np.ones(50), axis=1)))
    assert "dot_matmul" in [*lib.kernels.family]
    for count in (1, 7, 30):
        x = net.integers((count, 36), "uint8").astype("int64") - 9
        np.testing.assert_array_equal(result(lib, x.astype("float32")), x @ weight)


def residual(net, x):
    """A network like a ResNet: a picture, a pool, a residual sum, uint8 and int8, odd channels, a head."""
    x = net.qdq(x, 0.02, 128)
    x = net.conv(x, 32, 7, 2, 3)
    x = y = net.qdq(net.nn("max_pool2d", x, (3, 3), 2, padding=1), 0.03)
    y = net.qdq(net.conv(y, 32), 0.03)
    y = net.add(net.conv(y, 32, relu=False), x)
    x = net.qdq(net.nn("relu", y), 0.04, 3)
    x = net.qdq(net.clip(net.conv(x, 40, 1, 1, 0), 0, 6), 0.03, -120, "int8")
    x = net.qdq(net.conv(x, 24, 3, 2, relu=False), 0.05, 5, "int8")
    x = net.qdq(net.mean(x, [2, 3]), 0.02, 120)
    weight = net.weight(net.integers((10, 24)), net.rng.uniform(0.001, 0.003, 10))
    return net.add(net.matmul(x, net.permute_dims(weight)), const(net.rng.normal(size=10)))


def test_a_network_computes_what_its_operators_do_and_keeps_bytes_between_them(rng):
    shape = 2, 3, 20, 20
    x = rng.normal(size=shape).astype("float32")
    seeds = rng.integers(1 << 30, size=1)
    here = without("amx-int8")
    plain, fused = (Network(shape, np.random.default_rng(seeds))(residual, level, target=here) for level in (0, 3))
    wanted, got = result(plain, x), result(fused, x)
    # A sum next to a half may be rounded to the other side: a step of the scale 0.05 in one of 9 pixels.
    assert np.abs(got - wanted).max() < 0.01 * np.abs(wanted).max()
    families = [*fused.kernels.family]
    assert of_integers(fused) == 5 and families.count("dot_matmul") == 1
    blocked = [each for node in fused.graph["nodes"] for each in node["makes"] if len(each["shape"]) == 5]
    assert {each["dtype"] for each in blocked[:-2]} == {"uint8"}  # all but the mean and what it reads


def grouped(net, x):
    """A network of all layers that have kernels of integers, with odd channels."""
    x = net.qdq(net.conv(net.qdq(x, 0.02, 128), 24, 3, 2), 0.03)
    y = net.qdq(
        net.nn("relu", net.nn("conv2d", x, net.weight(net.integers((24, 8, 3, 3)), 2e-3), 1, 1, groups=3)), 0.05
    )
    y = net.qdq(net.nn("conv2d", y, net.weight(net.integers((24, 1, 3, 3)), 4e-3), 1, 1, groups=24), 0.05, 120)
    x = net.qdq(net.add(net.conv(y, 24, 1, 1, 0, relu=False), x), 0.04, 100)
    x = net.qdq(net.nn("avg_pool2d", x, (2, 2), 2), 0.04, 100)
    return net.conv(net.qdq(net.conv(x, 40), 0.04), 20, 1, 2, 0)


HASWELL = {"kind": "llvm", "mcpu": "haswell"}


@pytest.mark.parametrize("target", ["this CPU", "haswell"])
def test_dynamic_images_are_computed_in_integers(rng, target):
    if target == "haswell" and "avx2" not in machine.instruction_sets():
        pytest.skip("a CPU with AVX2 runs this target")
    target = without("amx-int8") if target == "this CPU" else HASWELL
    seed = rng.integers(1 << 30)
    dims = [tirx.Var(name, "int64") for name in "hw"]
    lib = Network((1, 3, *dims), np.random.default_rng(seed))(grouped, target=target)
    assert of_integers(lib) == 5 and [*lib.kernels.family].count("depthwise") == 2
    made = [each["dtype"] for node in lib.graph["nodes"] for each in node["makes"]]
    assert made.count("float32") == 2, "the output, and that in blocks"
    for size in ((33, 17), (12, 40))[: 1 if QUICK and target == HASWELL else 2]:
        x = rng.normal(size=(1, 3, *size)).astype("float32")
        wanted = result(Network(x.shape, np.random.default_rng(seed))(grouped, target=target), x)
        # Sums are the same; a compiler may contract the multiplication by a scale and an addition, or not.
        assert np.abs(result(lib, x) - wanted).max() < 0.01 * np.abs(wanted).max()


@pytest.mark.parametrize("axis", [2, 3])
def test_one_dynamic_axis_of_images_is_enough(rng, axis):
    """The sums of a grouped and of a pointwise convolution, exactly."""
    shape = [2, 24, 6, 9]
    weight, last = rng.integers(-128, 128, (24, 12, 3, 3)).astype("int8"), rng.integers(-3, 4, (17, 24, 1, 1))

    def body(net, x):
        y = net.nn("conv2d", net.qdq(x, 1.0, 7), net.weight(weight, 1.0), 1, 1, groups=2)
        return net.nn("conv2d", net.qdq(y, 64.0, 128), net.weight(last.astype("int8"), 1.0))

    x = rng.integers(0, 256, shape).astype("int64") - 7
    dims = [tirx.Var("n", "int64") if n == axis else size for n, size in enumerate(shape)]
    lib = Network(dims, rng)(body)
    assert of_integers(lib) == 2
    q = rounded(convolved(x, whole(weight, 2), 1, 1, 1).astype("float32"), 64, 128, "uint8")
    wanted = convolved(q.astype("int64") - 128, last, 1, 0, 1) * 64
    np.testing.assert_array_equal(result(lib, x.astype("float32")), wanted)


def test_a_network_names_the_instruction_of_this_cpu(rng):
    lib = Network((1, 16, 8, 8), rng)(lambda net, x: net.conv(net.qdq(x, 0.1), 16))
    (config,) = lib.kernels.config[lib.kernels.family != "default"]
    assert config["instruction"] == simd_of(machine.host_target()).dot


@pytest.mark.parametrize("name", sampled([*CPUS], ["vpdpbusd 256", "vpmaddwd 256", "usdot 128"]))
def test_each_cpu_gets_its_instruction(rng, name):
    target, mnemonic, registers = CPUS[name]
    target = {"kind": "llvm", "num-cores": 2, **target}

    def body(net, x):
        x = net.qdq(net.conv(net.qdq(x, 0.1), 32), 0.1)
        return net.matmul(net.qdq(net.mean(x, [2, 3]), 0.1), net.weight(net.integers((32, 64)), 0.01))

    lib = Network((1, 32, 14, 14), rng)(body, target=target)
    used = lib.kernels[lib.kernels.family.str.startswith(("dot_", "winograd_int"))]
    assert len(used) == 2 and {config["instruction"] for config in used.config} == {name}
    for kernel in used.index:
        lines = [line for line in lib.source(kernel, "asm").splitlines() if mnemonic in line]
        assert any(registers in line for line in lines) and not any("ubs" in line for line in lines)


def test_products_of_16_bits_are_added_one_by_one(rng):
    """Where LLVM may, it adds those of several steps to each other first, and keeps the sums on the stack."""

    def body(net, x):
        x = net.qdq(net.conv(net.qdq(x, 0.1), 64, 1, padding=0), 0.1)
        x = net.qdq(net.conv(x, 64, 3, 2), 0.1)
        return net.matmul(net.reshape(x, (49, 64)), net.weight(net.integers((64, 96)), 0.01, axis=1))

    lib = Network((1, 64, 14, 14), rng)(body, target=HASWELL | {"num-cores": 2})
    used = lib.kernels.index[lib.kernels.family.str.startswith("dot_")]
    assert len(used) == 3
    for kernel in used:
        lines = [line.split() for line in lib.source(kernel, "asm").splitlines()]
        products = [at for at, line in enumerate(lines) if line[:1] == ["vpmaddwd"]]
        assert products and all(lines[at + 1][0] == "vpaddd" for at in products)
        assert not any("(%rsp)" in line[-1] and "%ymm" in line[1] for line in lines[products[0] : products[-1]])


AVX2 = Simd(8, 16, dot="vpmaddwd 256")


def test_with_16_registers_bytes_of_a_depthwise_convolution_use_seven_for_sums():
    """Seven divides the widths of most networks."""
    for size in (7, 14, 28, 56, 112):
        workload = Convolution((1, 32, size, size), (32, 1, 3, 3), (1, 1), (1,) * 4, (1, 1), 32, True, "uint8")
        assert RULES["depthwise"].default(workload, AVX2).tile_ow == 7


def test_tasks_that_pack_their_own_pixels_are_enough_for_the_threads():
    rule = RULES["dot_conv"]
    for size in (14, 28, 56):
        workload = Convolution((1, 64, size, size), (64, 64, 1, 1), (1, 1), (0,) * 4, (1, 1), 1, True, "uint8")
        assert rule.loops(workload, rule.default(workload, AVX2), 8).n_tasks >= 8


def test_a_chain_of_quantized_functions_takes_no_time_to_compile(rng):
    """TVM's code generator took a minute for these two functions, and more than twice as long for each step more."""

    def chain(net, x):
        y = net.conv(net.qdq(x, 0.02, 128), 16, relu=False)
        y = net.qdq(net.tanh(net.qdq(net.sigmoid(y), 1 / 256)), 1 / 128, 128)
        for step in range(4):
            y = net.qdq(y, 1 / (120 - step), 128)
        return y

    shape, seed = (1, 16, 8, 8), rng.integers(1 << 30)
    x = rng.normal(size=shape).astype("float32")
    plain, fused = (Network(shape, np.random.default_rng(seed))(chain, level) for level in (0, 3))
    steps = (result(fused, x) - result(plain, x)) * 117
    assert len(fused.kernels) < 5 and np.abs(steps).max() <= 4.01 and (np.abs(steps) > 0.5).mean() < 0.05


def test_every_instruction_is_some_cpus():
    assert set(DOTS) == set(CPUS)


MISFITS = "wide weights", "by channel", "int8 by channel", "dynamic", "tiny scale"


@pytest.mark.parametrize(("case", "level"), by_level(MISFITS, ["by channel"]))
def test_what_does_not_fit_runs_in_float32(rng, level, case):
    shape = 1, 8, 6, 6
    weight = rng.integers(-128, 128, (8, 4, 3, 3)).astype("int8")
    whole, scales = np.concatenate([weight, weight], 1), np.linspace(0.1, 0.2, 8, dtype="float32")

    def body(net, x):
        if case.endswith("by channel"):
            dtype = "int8" if "int8" in case else "uint8"
            scale, zero = const(scales), const(np.zeros(8), dtype)
            given = (const(0.1), const(3, dtype)) if dtype == "int8" else (scale, zero)
            x = net.dequantize(net.quantize(x, *given, 1, dtype), scale, zero, 1)
        else:
            x = net.qdq(x, 0.1, 3)
        if case == "tiny scale":
            return net.qdq(net.nn("conv2d", x, net.weight(whole, 0.01), 1, 1), 1e-45, 128)
        if case == "wide weights":
            return net.nn("conv2d", x, net.weight((whole + np.int16(128)).astype("uint8"), 0.01, 3), 1, 1)
        if case == "dynamic":
            scale = net.max(net.abs(x))
            return net.nn("conv2d", net.qdq(x, 0.1), net.weight(whole, 0.01), 1, 1) * scale
        return net.nn("conv2d", x, net.weight(whole, 0.01), 1, 1)

    x = rng.normal(size=shape).astype("float32")
    lib = Network(shape, rng)(body, level)
    # The last two fit up to the convolution's sums, and no further.
    assert of_integers(lib) == (level == 3 and case in ("dynamic", "tiny scale"))
    wide, of_weight, factor, zero = np.float64(scales)[:, None, None], np.float64(np.float32(0.01)), 1.0, 0
    if case == "by channel":
        floats = rounded(x, scales[:, None, None], 0, "uint8") * wide
    elif case == "int8 by channel":
        floats = rounded(x, 0.1, 3, "int8") * wide
    else:
        floats = (rounded(x, 0.1, 3, "uint8") - 3.0) * np.float64(np.float32(0.1))
    if case == "dynamic":
        factor = np.abs(floats).max()
        floats = rounded(floats.astype("float32"), 0.1, 0, "uint8") * np.float64(np.float32(0.1))
    if case == "wide weights":
        zero = 3 - 128
    wanted = convolved(floats, whole.astype("float64") - zero, 1, 1, 1) * of_weight * factor
    got = result(lib, x)
    if case == "tiny scale":  # every number but 0, of which rounding leaves a small one, is out of the range
        far = np.abs(wanted) > 1e-4
        np.testing.assert_array_equal(got[far], np.where(wanted > 0, 127, -128)[far] * np.float32(1e-45))
    else:
        close(got, wanted, 4 * 8 * 9)  # four times: Winograd's method may double the error


LINES = {  # channels, output channels, groups, strides, padding and zero point
    "a line": (20, 40, 1, 2, 2, 7),
    "of few channels": (3, 16, 1, 1, 1, 200),
    "depthwise": (32, 32, 32, 1, 1, 9),
}


@pytest.mark.parametrize(("case", "level"), by_level(LINES, ["a line"]))
def test_sums_of_a_convolution_of_lines_are_exact(rng, level, case):
    channels, outs, groups, strides, padding, zero = LINES[case]
    shape = 2, channels, 30
    net = Network(shape, rng)
    x, weight = net.integers(shape, "uint8"), net.integers((outs, channels // groups, 3))

    def body(net, x):
        y = net.nn("conv1d", net.qdq(x, 1.0, zero), net.weight(weight, 1.0), strides, padding, groups=groups)
        return net.nn("relu", net.add(y, const(np.arange(outs).reshape(1, outs, 1))))

    lib = net(body, level)
    whole = np.zeros((outs, channels, 1, 3), "int8")
    of_group = outs // groups
    for out in range(outs):
        first = out // of_group * (channels // groups)
        whole[out, first : first + channels // groups, 0] = weight[out]
    padded = np.pad(x.astype("int64") - zero, [(0, 0), (0, 0), (padding,) * 2])
    wanted = convolved(padded[:, :, None], whole, 1, 0, 1)[:, :, 0, ::strides]
    wanted = np.maximum(wanted + np.arange(outs)[:, None], 0)
    np.testing.assert_array_equal(result(lib, x.astype("float32") - zero), wanted)
    assert level == 0 or case == "depthwise" or of_integers(lib) == 1


PADS = {  # the mode, the value, the zero point, and whether integers hold the padding exactly
    "zeros": ("constant", 0.0, 130, True),
    "an exact number": ("constant", -1.5, 130, True),
    "an inexact number": ("constant", 0.3, 130, False),
    "a number out of range": ("constant", 100.0, 130, False),
    "minus infinity": ("constant", -np.inf, 130, False),
    "its own elements": ("reflect", 0.0, 3, True),
}


PADDED = [(case, dtype, level) for case in PADS for dtype in ("uint8", "int8") for level in (0, 3)]
SOME = {("an inexact number", "uint8", 0), ("its own elements", "int8", 3), *((case, "uint8", 3) for case in PADS)}


@pytest.mark.parametrize("given", sampled(PADDED, SOME), ids=str)
def test_a_padded_tensor_stays_in_bytes_if_they_hold_the_padding(rng, given):
    case, dtype, level = given
    mode, value, zero, stays = PADS[case]
    shape, zero = (1, 16, 6, 7), zero - (128 if dtype == "int8" else 0)
    net = Network(shape, rng)
    x, weight = net.integers(shape, dtype), net.integers((16, 16, 3, 3))

    def body(net, x):
        x = net.nn("pad", net.qdq(x, 0.5, zero, dtype), [0, 0, 0, 0, 1, 2, 2, 1], mode, value)
        return net.nn("conv2d", x, net.weight(weight, 1.0)) if np.isfinite(value) else x

    lib = net(body, level)
    floats = (x.astype("float64") - zero) / 2
    how = {"constant_values": value} if mode == "constant" else {}
    wanted = np.pad(floats, [(0, 0), (0, 0), (1, 2), (2, 1)], mode, **how)
    if np.isfinite(value):
        windows = np.lib.stride_tricks.sliding_window_view(wanted, (3, 3), (2, 3))
        wanted = np.einsum("nchwyx,ocyx->nohw", windows, weight.astype("float64"))
    got = result(lib, floats.astype("float32"))
    if stays or not np.isfinite(value):  # halves of integers below 2^24
        np.testing.assert_array_equal(got, wanted)
    else:
        close(got, wanted, 4 * 16 * 9)  # as above
    if level and np.isfinite(value):
        assert stays == (of_integers(lib) == 1)
