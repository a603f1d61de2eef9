"""`build(…, sizes=[…])` and `tune(…, sizes=…)`: kernels for given values of dynamic dims, in one library."""

import numpy as np
import pytest
import torch
import tvm
from agreement import close, reference
from fake_runner import FakeRunner
from torch import nn
from tvm import relax, te, topi

import tvmfast
from tvmfast.compiler import shape_variants
from tvmfast.profiling import profiler


class Net(nn.Module):
    """Convolutions, a map that is upsampled, a dense layer, and softmax over a dynamic axis."""

    def __init__(self):
        super().__init__()
        self.stem, self.down = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 24, 3, 2, 1)
        self.dense = nn.Linear(24, 10)

    def forward(self, x):
        x = torch.relu(self.down(torch.relu(self.stem(x))))
        return self.dense(x.mean((2, 3))), x.flatten(2).softmax(-1)


BOUNDS = {"h": tvmfast.Dim("h", 4, 64), "w": tvmfast.Dim("w", 4, 64)}
STATED = [{"batch": 1, "h": 16, "w": 24}, {"h": 16, "w": 24}, {"batch": 1, "h": 32, "w": 32}]


@pytest.fixture(scope="module")
def net():
    torch.manual_seed(0)
    return Net().eval()


@pytest.fixture(scope="module")
def imported(net):
    return tvmfast.from_pytorch(net, {"x": ("batch", 3, *BOUNDS.values())})


@pytest.fixture(scope="module")
def lib(imported):
    return tvmfast.build(*imported, records=False, sizes=STATED)


def agree(lib, net, rng):
    """Compare a network with PyTorch's at the given dims, and at others."""
    for batch, height, width in ((1, 16, 24), (3, 16, 24), (1, 32, 32), (2, 32, 32), (1, 24, 16), (2, 5, 63)):
        x = rng.standard_normal((batch, 3, height, width)).astype("float32")
        close(lib(x), reference(net, x))


def chosen(lib, *shape):
    """Return the number of the variant that an image of this shape runs; None if it is the dynamic network."""
    serving = lib.serving([np.zeros(shape, "float32")])
    return None if serving is lib else lib.variants.index(serving)


def test_a_call_runs_the_first_entry_that_fits(lib, net, rng):
    shapes = ((1, 3, 16, 24), (3, 3, 16, 24), (1, 3, 32, 32), (2, 3, 32, 32), (1, 3, 24, 16))
    assert [chosen(lib, *shape) for shape in shapes] == [0, 1, 2, None, None]
    assert "also for batch 1, h 16, w 24; h 16, w 24; batch 1, h 32, w 32" in repr(lib)
    agree(lib, net, rng)


def test_the_kernels_of_an_entry_are_those_of_a_build_for_that_size(lib, net):
    fixed = tvmfast.build(*tvmfast.from_pytorch(net, {"x": (1, 3, 32, 32)}), records=False)
    assert list(lib.variants[2].graph["kernels"].values()) == list(fixed.graph["kernels"].values())
    assert lib.variants[2].graph["memory"] == fixed.graph["memory"]


def test_what_a_bad_shape_says(lib):
    with pytest.raises(ValueError, match="expected a h of 4 to 64, got 65"):
        lib(np.zeros((1, 3, 65, 24), "float32"))


def test_a_saved_network_keeps_its_entries(lib, net, rng, tmp_path):
    loaded = tvmfast.load(lib.save(tmp_path / "net.zip"))
    assert [each.graph["at"] for each in loaded.variants] == STATED
    agree(loaded, net, rng)
    one = tvmfast.load(lib.variants[2].save(tmp_path / "one"))
    x = rng.standard_normal((1, 3, 32, 32)).astype("float32")
    assert np.array_equal(one(x)[0], lib(x)[0])


def test_weights_are_stored_once(lib, imported):
    dense = [array for array in lib.arrays_of_all.values() if 10 in array.shape]
    assert len(dense) == 1  # the bias, which no kernel packs
    alone = tvmfast.build(*imported, records=False)
    assert sum(a.numpy().nbytes for a in lib.arrays_of_all.values()) <= 4 * sum(
        a.numpy().nbytes for a in alone.params.values()
    )
    profiler.memory(lib, batch=1)


def test_a_profile_is_that_of_the_entry(lib):
    x = np.zeros((1, 3, 32, 32), "float32")
    profile = tvmfast.profile(lib, x, calls=1)
    assert profile.compiled is lib.variants[2]
    # A reshape may be an output alias: a kernel of the graph that no run calls.
    called = set(profile.kernels)
    assert called <= set(lib.variants[2].graph["kernels"]) and not called & set(lib.variants[0].graph["kernels"])
    assert {name for name, _ in lib.timed(x)} == called
    assert profiler.alive(lib.variants[2])
    name = next(iter(profile.kernels))
    assert name in lib.variants[2].source(name)


def test_state_is_shared_by_the_entries(rng):
    class Sum(nn.Module):
        def forward(self, x, total):
            total = total + x.sum(0)
            return x * 2, total

    lib = tvmfast.build(
        *tvmfast.from_pytorch(Sum().eval(), {"x": ("n", 4), "total": (4,)}),
        state={"total": "output1"},
        sizes=[{"n": 3}],
    )
    several = [rng.standard_normal((n, 4)).astype("float32") for n in (3, 2, 3)]
    session = lib.session()
    for x in several:
        lib(x)
        session(x)
    tvmfast.compare({"network": lib, "entry": lib.variants[0]}, several[0], calls=1)  # in sessions of their own
    rows = np.concatenate(several).astype("float64")
    for held in (lib._held, session._held):
        close(held[0].numpy(), rows.sum(0), len(rows), scale=np.abs(rows).sum(0))


def test_a_comparison_runs_the_entry(lib):
    entry, names = lib.variants[2], set()
    with lib.instrumented(lambda _f, name, *_: names.add(str(name))):
        timings = tvmfast.compare({"network": lib, "entry": entry}, np.zeros((1, 3, 32, 32), "float32"), calls=2)
    assert [len(timing.seconds) for timing in timings.values()] == [2, 2]
    kernels = [set(each.graph["kernels"]) for each in (lib, *lib.variants)]
    called = names & set.union(*kernels)
    assert called and called <= kernels[3]  # a reshape may be an output alias, which no run calls


def test_lower_levels(imported, net, rng):
    agree(tvmfast.build(*imported, opt_level=0, sizes=STATED[2:]), net, rng)


def test_an_array_is_never_named_like_an_input():
    arrays = shape_variants.Arrays({"x", "weight_"})
    one, other, third = (tvm.runtime.tensor(np.full(3, n, "float32")) for n in range(3))
    named = [arrays.name(array, "weight") for array in (one, other, one)]
    assert named == ["weight", "weight__", "weight"] and arrays.name(third, "x") == "x_"


def test_two_kernels_never_get_one_name():
    def module(*kernels):
        builder, x = relax.BlockBuilder(), te.placeholder((4,), name="x")
        for name, factor in kernels:
            func = te.create_prim_func([x, topi.multiply(x, factor)])
            builder.add_func(func.with_attr("global_symbol", name), name)
        return builder.finalize()

    mod, names = shape_variants.join(module(("scale", 2.0)), module(("scale", 3.0), ("scale_1", 4.0)), 1)
    assert len({*names.values()} - {"scale"}) == 2
    assert len(mod.functions_items()) == 3


@pytest.mark.parametrize(
    "sizes",
    [{"h": 16}, [{"height": 16}], [{"h": 65}], [{"h": "16"}], [{}], [16]],
    ids=["no list", "unknown", "beyond", "text", "empty", "number"],
)
def test_sizes_that_are_none(imported, sizes):
    with pytest.raises(ValueError, match=r"sizes: expected .*; got"):
        tvmfast.build(*imported, sizes=sizes)


def test_a_network_with_static_shapes(net):
    with pytest.raises(ValueError, match="the network has none"):
        tvmfast.build(*tvmfast.from_pytorch(net, {"x": (1, 3, 16, 16)}), sizes=[{"h": 16}])


def test_tuning_at_a_size_serves_a_build_for_it(imported, tmp_path):
    records, at = tmp_path / "tuning.jsonl", {"batch": 1, "h": 16, "w": 24}
    tvmfast.tune(*imported, trials=60, seed=0, records=records, runner=FakeRunner(), sizes=at)
    lib = tvmfast.build(*imported, records=records, sizes=[at])
    untuned = tvmfast.build(*imported, records=False, sizes=[at])
    configs = [[*each.variants[0].graph["kernels"].values()] for each in (lib, untuned)]
    assert configs[0] != configs[1]
    with pytest.raises(ValueError, match="sizes: expected values of dynamic dims by name"):
        tvmfast.tune(*imported, records=records, runner=FakeRunner(), sizes={"h": 1})
