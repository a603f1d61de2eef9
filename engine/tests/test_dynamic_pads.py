"""Pads with dynamic widths: as in a U-Net, their modes, and what is refused."""

import numpy as np
import onnxruntime
import pytest
import torch
import torch.nn.functional as F
import tvm
from agreement import close, reference
from onnx import parser
from testing import Function
from tvm import tirx

import tvmfast
from tvmfast.core.dims import Dim, evaluate
from tvmfast.frontends.dynamic import merge
from tvmfast.frontends.dynamic.merge import UnsupportedDynamism


def to_size(x, skip):
    """Pad a map to the size of another one, as U-Nets do, and concatenate them."""
    rows, columns = (skip.shape[axis] - x.shape[axis] for axis in (2, 3))
    x = F.pad(x, [columns // 2, columns - columns // 2, rows // 2, rows - rows // 2])
    return torch.cat([skip, x], 1)


def builds(function, inputs):
    imported = tvmfast.from_pytorch(Function(function).eval(), inputs)
    return [tvmfast.build(*imported, records=False, opt_level=level) for level in (0, 3)]


def agree(libs, function, *inputs):
    """Compare with PyTorch what moves numbers, and computes none."""
    wanted = function(*map(torch.from_numpy, inputs))
    wanted = [each.numpy() for each in (wanted if isinstance(wanted, tuple) else (wanted,))]
    for lib in libs:
        made = lib(*inputs)
        for got, want in zip(made if isinstance(made, tuple) else (made,), wanted, strict=True):
            assert got.dtype == want.dtype
            np.testing.assert_array_equal(got, want)


def test_maps_of_two_levels(rng):
    def net(x, weight):
        small = F.max_pool2d(x, 2)
        smaller = F.interpolate(F.max_pool2d(small, 2), scale_factor=2.0)
        return to_size(F.conv_transpose2d(to_size(smaller, small), weight, stride=2), x)

    weight = torch.from_numpy(rng.standard_normal((4, 3, 2, 2)).astype("float32"))
    libs = builds(lambda x: net(x, weight), {"x": (1, 2, tvmfast.Dim("h", 4, 64), 9)})
    for height in (4, 5, 6, 7, 33, 63, 64):
        x = rng.standard_normal((1, 2, height, 9)).astype("float32")
        wanted = reference(net, x, weight)
        for lib in libs:
            close(lib(x), wanted)


def test_maps_of_dynamic_height_and_width(rng):
    def net(x):
        return to_size(F.interpolate(F.max_pool2d(x, 2), scale_factor=2.0), x)

    libs = builds(net, {"x": (1, 2, tvmfast.Dim("h", 2, 40), tvmfast.Dim("w", 2, 40))})
    for sides in ((2, 2), (3, 2), (5, 7), (16, 32), (40, 39)):
        agree(libs, net, rng.standard_normal((1, 2, *sides)).astype("float32"))


def test_maps_of_two_inputs(rng):
    libs = builds(to_size, {"x": (1, 2, tvmfast.Dim("n", 1, 8), 5), "skip": (1, 3, tvmfast.Dim("m", 8, 64), 7)})
    for n, m in ((1, 8), (8, 8), (3, 33), (8, 64), (1, 64)):
        x, skip = (rng.standard_normal(shape).astype("float32") for shape in ((1, 2, n, 5), (1, 3, m, 7)))
        agree(libs, to_size, x, skip)


def test_values_and_types(rng):
    def net(x, y, length):
        width = length.shape[0] - x.shape[1]
        return F.pad(x, [0, width], value=-torch.inf), F.pad(x, [width, 1], value=0.1), F.pad(y, [2, width], value=-3)

    inputs = {"x": (2, tvmfast.Dim("n", 1, 8)), "y": ((2, "n"), "int64"), "length": (tvmfast.Dim("m", 9, 40),)}
    libs = builds(net, inputs)
    for n, m in ((1, 9), (8, 9), (5, 40)):
        x, y = rng.standard_normal((2, n)).astype("float32"), rng.integers(-(2**40), 2**40, (2, n))
        agree(libs, net, x, y, np.zeros(m, "float32"))


@pytest.mark.parametrize("mode", ["replicate", "reflect"])
def test_other_modes(rng, mode):
    def net(x, y):
        return F.pad(x, [2, y.shape[0] - x.shape[2]], mode=mode)

    libs = builds(net, {"x": (1, 2, tvmfast.Dim("n", 40, 60)), "y": (tvmfast.Dim("m", 60, 79),)})
    for n, m in ((40, 79), (60, 60), (51, 78)):
        agree(libs, net, rng.standard_normal((1, 2, n)).astype("float32"), np.zeros(m, "float32"))


@pytest.mark.parametrize(
    ("pad", "message"),
    [
        (lambda x, d: F.pad(x, [0, 40 - x.shape[2]]), r"a pad is -1\*n \+ 40|a pad is 40 \+ -1\*n"),
        (lambda x, d: F.pad(x, [d // 3, d - d // 3]), "split between both ends in an unknown way"),
    ],
    ids=["crop", "thirds"],
)
def test_what_is_refused(pad, message):
    net = Function(lambda x, y: pad(x, y.shape[0] - x.shape[2])).eval()
    with pytest.raises(NotImplementedError, match=message):
        tvmfast.from_pytorch(net, {"x": (1, 2, tvmfast.Dim("n", 30, 60)), "y": (tvmfast.Dim("m", 61, 80),)})


# ONNX


def agree_with_file(text, inputs, shapes, rng, opset=18):
    """Compare a file with one input x, and perhaps one whose shape alone counts, with ONNX Runtime."""
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}]> g {text}')
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    imported = tvmfast.from_onnx(model, inputs)
    libs = [tvmfast.build(*imported, records=False, opt_level=level) for level in (0, 3)]
    for several in shapes:
        given = {name: rng.standard_normal(shape).astype("float32") for name, shape in several.items()}
        (want,) = session.run(None, given)
        for lib in libs:
            np.testing.assert_array_equal(lib(*given.values()), want)


def test_a_file_that_pads_to_the_size_of_another_map(rng):
    text = """(float[1, 2, h, w] x) => (float[1, 4, H, W] y) {
        two = Constant<value_ints = [2]>() none = Constant<value_ints = [0]>() most = Constant<value_ints = [9]>()
        from = Constant<value_ints = [2]>() small = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(x)
        scales = Constant<value_floats = [1.0, 1.0, 2.0, 2.0]>()
        up = Resize<mode = "nearest", coordinate_transformation_mode = "asymmetric", nearest_mode = "floor">
            (small, , scales)
        all = Shape(x) whole = Slice(all, from, most) part = Shape(up) here = Slice(part, from, most)
        missing = Sub(whole, here) before = Div(missing, two) after = Sub(missing, before)
        zeros = Constant<value_ints = [0, 0]>() pads = Concat<axis = 0>(zeros, before, zeros, after)
        wide = Pad(up, pads) y = Concat<axis = 1>(x, wide) }"""
    inputs = {"x": (1, 2, tvmfast.Dim("h", 2, 40), tvmfast.Dim("w", 2, 40))}
    sides = ((2, 2), (3, 2), (5, 7), (16, 32), (40, 39))
    agree_with_file(text, inputs, [{"x": (1, 2, *each)} for each in sides], rng)


def test_a_file_that_pads_to_a_multiple(rng):
    text = """(float[1, n] x) => (float[1, m] y) {
        eight = Constant<value_ints = [8]>() none = Constant<value_ints = [0]>() at = Constant<value_ints = [1]>()
        all = Shape(x) n = Gather(all, at) less = Neg(n) missing = Mod(less, eight)
        pads = Concat<axis = 0>(none, none, none, missing) y = Pad(x, pads) }"""
    for size in (tvmfast.Dim("n"), tvmfast.Dim("n", 1, 40)):
        agree_with_file(text, {"x": (1, size)}, [{"x": (1, n)} for n in (1, 7, 8, 9, 31, 33, 40)], rng)


@pytest.mark.parametrize("mode", ["constant", "reflect", "edge", "wrap"])
def test_pads_of_dynamic_axes_in_files(rng, mode, quick):
    """Their widths are random, and below 0 in a crop."""
    for _ in range(1 if quick else 3):
        before, after = (rng.integers(0, 5, 2) for _ in range(2))
        amounts = [0, *before, 0, *after]
        if mode == "constant":
            amounts[rng.integers(6)] = -1
        text = f"""(float[2, n, m] x) => (float[a, b, c] y) {{ pads = Constant<value_ints = {[*map(int, amounts)]}>()
            y = Pad<mode = "{mode}">(x, pads) }}"""
        sizes = (tvmfast.Dim("n", 6), tvmfast.Dim("m", 6, 30))
        shapes = ((6, 6), (7, 30), (19, 6), tuple(rng.integers(6, 31, 2).tolist()))
        agree_with_file(text, {"x": (2, *sizes)}, [{"x": (2, *each)} for each in shapes], rng, opset=19)


@pytest.mark.parametrize(
    "pool",
    [
        'MaxPool<kernel_shape = [2, 2], strides = [4, 1], auto_pad = "SAME_UPPER">(x)',
        "LpPool<kernel_shape = [2, 2], strides = [4, 1], ceil_mode = 1>(x)",
    ],
)
def test_a_pool_that_pads_at_one_remainder_alone(pool):
    text = f'<ir_version: 8, opset_import: ["": 18]> g (float[1, 2, n, 8] x) => (float[1, 2, m, k] y) {{ y = {pool} }}'
    with pytest.raises(NotImplementedError, match="cannot keep 'n' dynamic: (.* depends on it|a dim is 67)"):
        tvmfast.from_onnx(parser.parse_model(text), {"x": (1, 2, tvmfast.Dim("n", 8, 200), 8)})


@pytest.mark.parametrize(("dtype", "value"), [("int64", 2**60 + 1), ("int64", -3), ("bool", 1)])
def test_pads_of_other_types_in_files(dtype, value):
    text = f"""({dtype} [2, 3] x) => ({dtype} [a, b] y) {{ pads = Constant<value_ints = [1, 0, -1, 2]>()
        value = Constant<value = {dtype} {{{value}}}>() y = Pad(x, pads, value) }}"""
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["": 18]> g {text}')
    x = np.array([[1, 0, 1], [0, 0, 1]], dtype)
    wanted = np.pad(x[:1], ((1, 0), (0, 2)), constant_values=np.array(value, dtype))
    made = tvmfast.build(*tvmfast.from_onnx(model), records=False)(x)
    assert made.dtype == wanted.dtype
    np.testing.assert_array_equal(made, wanted)


@pytest.mark.parametrize("mode", ["reflect", "edge"])
def test_widths_of_other_modes_in_files(rng, mode):
    text = f"""(float[1, 2, n] x, float[m] y) => (float[1, 2, k] z) {{
        at = Constant<value_ints = [2]>() zeros = Constant<value_ints = [0, 0, 1, 0, 0]>()
        all = Shape(x) n = Gather(all, at) m = Shape(y) missing = Sub(m, n)
        pads = Concat<axis = 0>(zeros, missing) z = Pad<mode = "{mode}">(x, pads) }}"""
    inputs = {"x": (1, 2, tvmfast.Dim("n", 40, 60)), "y": (tvmfast.Dim("m", 60, 79),)}
    shapes = [{"x": (1, 2, n), "y": (m,)} for n, m in ((40, 79), (60, 60), (51, 78))]
    agree_with_file(text, inputs, shapes, rng)


@pytest.fixture
def natural():
    """Return a check of an expression of n, 5 or more, and of m, 1 to 9; and these variables."""
    sizes, analyzer = {"n": Dim("n", 5), "m": Dim("m", 1, 9)}, tvm.sym.Analyzer()
    variables = {name: tirx.Var(name, "int64") for name in sizes}
    for name, size in sizes.items():
        ends = (tirx.IntImm("int64", end) for end in (size.lower, (size.upper or 1 << 31) + 1))
        analyzer.bind(variables[name], tvm.ir.Range(*ends))
    return lambda make: merge.is_natural(make(**variables), sizes, analyzer), variables


@pytest.mark.parametrize(
    ("make", "wanted"),
    [
        (lambda n, m: n - n // 2 * 2, True),
        (lambda n, m: n // 4 - n // 8 * 2, True),
        (lambda n, m: (n - 1) // 2 - n // 2, False),
        (lambda n, m: (n + 1) // 2 + n // 3 - n // 2, True),
        (lambda n, m: n - m, False),
        (lambda n, m: n + 5 - m, True),
        (lambda n, m: n - 5, True),
        (lambda n, m: n - 6, False),
        (lambda n, m: 200 - tirx.max(n, m * 0 + 100), False),
        (lambda n, m: n // 3 - n // 2 + 40, False),
        (lambda n, m: n // 3 - n // 3, True),
    ],
)
def test_numbers_that_are_never_negative(natural, make, wanted):
    assert natural[0](make) == wanted


def test_a_pad_is_split_in_one_way_only(natural):
    """One element may be a half of two or less, and the rest of one."""
    n = natural[1]["n"]

    def split(before, after, total):
        return merge.split_pad(before, after, total, lambda width: natural[0](lambda **_: width))

    first, last = split((0, 0), (0, 1), n - n // 2 * 2)
    assert first == 0
    assert evaluate(str(merge.dim_to_str(last)), {"n": 7}) == 1
    for before, after, total in (
        ((0, 0), (0, 1), n - n // 4 * 4),  # the second end, or both
        ((1, 3), (1, 3), n + 1),  # the larger half may be at either end
        ((1, 2), (4, 8), n),  # fifths
    ):
        with pytest.raises(UnsupportedDynamism, match="split between both ends"):
            split(before, after, total)
