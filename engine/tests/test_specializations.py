"""How many specializations are exported, and which guards on dynamic dims are found."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from agreement import close, reference
from testing import Function

import tvmfast

SIZES = (1, 2, tvmfast.Dim("h", 8, 128), tvmfast.Dim("w", 8, 128))


def to_size(x, skip):
    rows, columns = (skip.shape[axis] - x.shape[axis] for axis in (2, 3))
    return skip + F.pad(x, [columns // 2, columns - columns // 2, rows // 2, rows - rows // 2])


def small_unet(x):
    """Two levels, whose pads depend on both dims."""
    small = F.max_pool2d(x, 2)
    smaller = F.interpolate(F.max_pool2d(small, 2), scale_factor=2.0)
    return to_size(F.interpolate(to_size(smaller, small), scale_factor=2.0), x)


@pytest.fixture
def exports(monkeypatch):
    """Return a list that gets, for each export, whether it has dynamic dims."""
    listed, export = [], torch.export.export

    def counted(*args, dynamic_shapes=None, **options):
        listed.append(bool(dynamic_shapes))
        return export(*args, dynamic_shapes=dynamic_shapes, **options)

    monkeypatch.setattr(torch.export, "export", counted)
    return listed


def test_guards_of_operators_are_tried_for_each_dim_alone(exports, rng):
    """Each of two dims is even or not, and so is its half: of 16 specializations, 3 of each dim are exported."""
    lib = tvmfast.build(*tvmfast.from_pytorch(Function(small_unet).eval(), {"x": SIZES}), records=False)
    assert sum(exports) <= 8
    for sides in ((8, 8), (9, 12), (10, 11), (33, 127), (128, 65)):
        x = rng.standard_normal((1, 2, *sides)).astype("float32")
        np.testing.assert_array_equal(lib(x), small_unet(torch.from_numpy(x)))  # exact: of each number, no or one sum


def guards_first(x):
    tall, wide = (bool(x.shape[axis] == number) for axis, number in ((2, 40), (3, 80)))
    return x * 2 if tall and wide else x


def guards_late(x):
    y = small_unet(x)
    return y * 2 if y.shape[2] == 40 and y.shape[3] == 80 else y


def guards_as_an_operator_did(x):
    y = F.pad(x, [0, 0, 0, 40 - torch.sym_min(x.shape[2], 40)])
    tall = bool(x.shape[2] < 40)
    return y * 2 if tall and x.shape[3] == 80 else y


@pytest.mark.parametrize("net", [guards_first, guards_late])
def test_guards_of_code_are_tried_in_combination(net):
    with pytest.raises(NotImplementedError, match="something else where 'h', 'w' is 40, 80"):
        tvmfast.from_pytorch(Function(net).eval(), {"x": SIZES})


def test_a_guard_that_an_operator_has_first():
    with pytest.raises(NotImplementedError, match="cannot keep|something else"):
        tvmfast.from_pytorch(Function(guards_as_an_operator_did).eval(), {"x": SIZES})


@pytest.mark.parametrize(
    "holds",
    [
        lambda x: (x.shape[2] == 40) | (x.shape[3] == 80),
        pytest.param(lambda x: (x.shape[2] > 100) & (x.shape[3] > 100), marks=pytest.mark.full),
        lambda x: x.numel() > 30_000,
    ],
    ids=["either", "both", "elements"],
)
def test_guards_on_both_dims(holds):
    net = Function(lambda x: x * 2 if holds(x) else x).eval()
    with pytest.raises(NotImplementedError, match="something else where 'h', 'w' is"):
        tvmfast.from_pytorch(net, {"x": SIZES})


def test_a_guard_on_four_dims():
    net = Function(lambda x: x * 2 if x.numel() > 2000 else x).eval()
    with pytest.raises(NotImplementedError, match="something else where 'a', 'b', 'c', 'd' is"):
        tvmfast.from_pytorch(net, {"x": tuple(tvmfast.Dim(name, 2, 7) for name in "abcd")})


@pytest.mark.parametrize(
    ("net", "value"),
    [
        (lambda x: x + x.shape[1] // 1000, 1000),
        pytest.param(lambda x: x * (x.shape[1] % 1000), 1000, marks=pytest.mark.full),
        (lambda x: x * torch.sym_min(x.shape[1], 1000), 1001),
        (lambda x: x * torch.sym_ite(x.shape[1] == 40, 2, 1), 40),
        (lambda x: torch.cond(x.shape[1] > 1000, lambda x: x.sin(), lambda x: x.cos(), (x,)), 1001),
    ],
    ids=["quotient", "remainder", "smaller", "choice", "branch"],
)
def test_numbers_that_few_probes_do_not_separate(rng, net, value):
    """They depend on a dim without a guard, and at the probes are a constant or the dim itself."""
    with pytest.raises(NotImplementedError, match=f"something else where 'n' is {value} "):
        tvmfast.from_pytorch(Function(net).eval(), {"x": (2, tvmfast.Dim("n", 2))})
    size = tvmfast.Dim("n", 50, value - 1) if value > 50 else tvmfast.Dim("n", 50)
    lib = tvmfast.build(*tvmfast.from_pytorch(Function(net).eval(), {"x": (2, size)}), records=False, opt_level=0)
    for n in (50, 300, 511):
        x = rng.standard_normal((2, n)).astype("float32")
        close(lib(x), net(torch.from_numpy(x).double()), terms=4)


def test_a_batch_of_one_is_tried_alone(exports, rng):
    net = torch.nn.Sequential(torch.nn.Conv2d(2, 4, 3, 2, 1), torch.nn.ReLU(), torch.nn.MaxPool2d(2)).eval()
    lib = tvmfast.build(*tvmfast.from_pytorch(net, {"x": ("batch", *SIZES[1:])}), records=False)
    assert sum(exports) <= 5
    for shape in ((1, 8, 8), (3, 33, 127)):
        x = rng.standard_normal((shape[0], 2, *shape[1:])).astype("float32")
        close(lib(x), reference(net, x))
