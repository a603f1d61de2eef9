"""Splits and slices with dynamic dims: of a static axis, and of a dynamic one, into floor divisions or backwards."""

import numpy as np
import onnxruntime
import pytest
import torch
import torch.nn.functional as F
from agreement import close, reference
from onnx import parser
from testing import Function, sampled

import tvmfast

IMAGE = (2, 12, tvmfast.Dim("h", 2, 64), 5)
LENGTH = (2, tvmfast.Dim("n", 2, 64), 12)


def agree(net, shape, lengths, rng):
    """Compare a network with a dynamic dim with PyTorch."""
    lib = tvmfast.build(*tvmfast.from_pytorch(Function(net).eval(), {"x": shape}), records=False)
    for length in lengths:
        x = rng.standard_normal([n if isinstance(n, int) else 3 if n == "batch" else length for n in shape]).astype(
            "float32"
        )
        close(lib(x), reference(net, x))


def test_parts_of_static_axes(rng):
    def channels(x):
        halves = torch.cat(x.chunk(2, 1)[::-1], 1)
        others = (x.unbind(-3)[2], x.hsplit(3)[1], F.glu(x, 1))
        return *x.split(5, -3), *x.tensor_split(5, 1), *x.tensor_split((3, 7), 1), *halves.chunk(5, 1), *others

    agree(channels, IMAGE, (2, 33, 64), rng)


def test_queries_keys_and_values(rng):
    def net(x):
        heads = x.reshape(*x.shape[:2], 3, 2, 2).permute(2, 0, 3, 1, 4)
        return *x.chunk(3, -1), *heads.unbind(0), F.glu(x, -1)

    agree(net, LENGTH, (2, 33, 64), rng)


# The least length, and what is made of it.
PARTS = {
    "halves": (2, lambda x: x.chunk(2, 1)),
    "turned": (2, lambda x: torch.cat([part.softmax(1) for part in x.chunk(2, 1)[::-1]], 1)),
    "halves of tensor_split": (2, lambda x: x.tensor_split(2, 1)),
    "thirds": (5, lambda x: x.chunk(3, 1)),
    "sizes": (2, lambda x: x.split([x.shape[1] // 2, x.shape[1] - x.shape[1] // 2], 1)),
    "twice": (2, lambda x: torch.cat([x, x + 1], 1).chunk(2, 1)),
    "three": (2, lambda x: torch.cat([x, x + 1, x], 1).split(x.shape[1], -2)),
    "slices": (2, lambda x: (x[:, : x.shape[1] // 2], x[:, x.shape[1] // 2 :])),
    "quarter": (2, lambda x: x[:, : x.shape[1] // 4 + 1].relu()),
}


@pytest.mark.parametrize("name", sampled(PARTS, PARTS.keys() - {"halves", "twice", "slices"}))
def test_parts_of_a_dynamic_axis(rng, name):
    least, net = PARTS[name]
    agree(net, (2, tvmfast.Dim("n", least, 64), 12), (least, *range(7, 15), 33, 63, 64), rng)


def test_halves_of_a_length_in_a_dynamic_batch(rng):
    agree(lambda x: [part * 2 for part in x.chunk(2, 1)], ("batch", tvmfast.Dim("n", 2, 1024), 3), (2, 3, 7, 501), rng)


def test_halves_of_a_length_without_a_bound():
    with pytest.raises(NotImplementedError, match=r"give upper bounds, such as Dim\('n', 2, 1024\)"):
        tvmfast.from_pytorch(Function(lambda x: x.chunk(2, 1)).eval(), {"x": (2, tvmfast.Dim("n", 2), 3)})


@pytest.mark.parametrize(
    ("net", "message"),
    [
        (lambda x: x.split(x.shape[1] // 2, 1)[:2], "it is split into [23] or [23] parts"),
        (lambda x: x.split(7, 1)[0], "it is split into .* parts"),
        (lambda x: x.unbind(1)[0], "'n' dynamic"),
        (lambda x: x.tensor_split(3, 1)[1], "'n' dynamic: a dim is"),
    ],
    ids=["two or three", "sevens", "unbind", "a third of tensor_split"],
)
def test_parts_that_are_refused(net, message):
    with pytest.raises(NotImplementedError, match=message):
        tvmfast.from_pytorch(Function(net).eval(), {"x": LENGTH})


def test_halves_of_an_even_length_in_a_file(rng):
    model = parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]> g (float[n, 3] x) => (float[n, 3] y, float[n, 3] z) {
            twice = Concat<axis = 0>(x, x) negative = Neg(twice) y, z = Split<axis = 0>(negative) }"""
    )
    lib = tvmfast.build(*tvmfast.from_onnx(model), records=False)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for n in (1, 2, 7, 70):
        x = rng.standard_normal((n, 3)).astype("float32")
        for got, want in zip(lib(x), session.run(None, {"x": x}), strict=True):
            np.testing.assert_array_equal(got, want)


def sliced(end):
    return parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 17]> g (float[2, n] x) => (float[2, m] y) {{
            begin = Constant<value_ints = [0]>() end = Constant<value_ints = [{end}]>()
            axis = Constant<value_ints = [1]>() part = Slice(x, begin, end, axis) y = Mul(part, part) }}"""
    )


def test_a_slice_up_to_the_largest_number_in_a_file(rng):
    lib = tvmfast.build(*tvmfast.from_onnx(sliced(2**31 - 1)), records=False, opt_level=0)
    for n in (1, 70):
        x = rng.standard_normal((2, n)).astype("float32")
        np.testing.assert_array_equal(lib(x), x * x)


def test_a_slice_that_some_lengths_end_before_in_a_file():
    with pytest.raises(NotImplementedError, match="cannot keep 'n' dynamic: a dim is .*5000"):
        tvmfast.from_onnx(sliced(5000))


LONG, INT = np.iinfo("int64"), np.iinfo("int32")
# The begin, end and step of slices of an axis of 10 or more; some are empty.
BACKWARDS = [
    *((-1, LONG.min, -1), (LONG.max, LONG.min, -1), (-1, -LONG.max, -1), (-1, INT.min, -1), (5, LONG.min, -1)),
    *((-2, 0, -2), (7, 1, -3), (-1, -4, -1), (INT.max, 2, -2), (-9, LONG.min, -1), (2, 5, -1), (0, LONG.min, -1)),
    *((1, LONG.max, 2), (LONG.min, LONG.max, 1), (LONG.min, 2, 1), (3, LONG.min, 1)),
]
BEYOND = [(-30, LONG.min, -1), (30, -30, -7)]  # they depend on the size of a shorter axis


def backwards(dtype: str, bounds: list):
    """Make a model of slices of the second axis of a tensor (2, n, 3), one of them of the third too."""
    names = [f"y{number}" for number in range(len(bounds))]
    outputs = ", ".join(f"{dtype}[a_{name}, b_{name}, c_{name}] {name}" for name in [*names, "z"])
    parts = []
    for name, each in zip(names, bounds, strict=True):
        given = zip(("begin", "end", "step"), each, strict=True)
        parts += [f"{name}_{what} = Constant<value_ints = [{number}]>()" for what, number in given]
        parts.append(f"{name} = Slice(x, {name}_begin, {name}_end, axis, {name}_step)")
    constants = {"last": [-1, -1], "least": [LONG.min, -3], "axes": [-2, 2], "back": [-1, -1], "axis": [1]}
    parts = [f"{name} = Constant<value_ints = {value}>()" for name, value in constants.items()] + parts
    head = f'<ir_version: 10, opset_import: ["": 18]> g ({dtype}[2, n, 3] x) => ({outputs})'
    return parser.parse_model(f"{head} {{ {' '.join(parts)} z = Slice(x, last, least, axes, back) }}")


@pytest.mark.parametrize("level", [0, 3])
@pytest.mark.parametrize(
    ("dtype", "sizes"),
    [("float", (10, 11, 67)), ("uint8", (1,)), ("float16", (2,)), ("int64", (10,)), ("bool", (13,))],
    ids=str,
)
def test_slices_backwards_in_a_file(rng, level, dtype, sizes):
    is_dynamic = len(sizes) > 1
    model = backwards(dtype, BACKWARDS if is_dynamic else BACKWARDS + BEYOND)
    shape = (2, tvmfast.Dim("n", 10) if is_dynamic else sizes[0], 3)
    lib = tvmfast.build(*tvmfast.from_onnx(model, {"x": shape}), opt_level=level)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for n in sizes:
        x = rng.integers(0, 2 if dtype == "bool" else 100, (2, n, 3)).astype("float32" if is_dynamic else dtype)
        for got, want in zip(lib(x), session.run(None, {"x": x}), strict=True):
            assert (got.dtype, got.shape) == (want.dtype, want.shape)
            np.testing.assert_array_equal(got, want)
