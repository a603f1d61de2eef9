"""from_pytorch: every kind of model gives PyTorch's results, names are preserved, and what is unsupported says why.

The networks are small, so that TVM's own kernels do.
"""

from collections import namedtuple
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import tvm
from agreement import close, reference
from testing import Function, sampled
from torch import nn
from tvm import relax

from tvmfast import Dim, build, from_pytorch, load
from tvmfast.frontends.pytorch.dynamic import unscript

pytestmark = pytest.mark.filterwarnings(
    r"ignore:`torch\.jit\.\w+` is deprecated:DeprecationWarning",
    "ignore:Manually populate:UserWarning",
    "ignore::torch.jit.TracerWarning",
)

IMAGE = (2, 4, 9, 9)
SHAPE = {"picture": (2, 3, 8, 8)}


class Small(nn.Module):
    """A parameter, a persistent and a non-persistent buffer, a tensor attribute and a constant: one of each."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.bn = nn.BatchNorm2d(4)
        self.register_buffer("scale", torch.tensor([1.0, 2.0, 3.0, 4.0]), persistent=False)
        self.plain = torch.full((4, 1, 1), 2.0)
        self.drop = nn.Dropout(0.5)
        self.unused = nn.Linear(2, 2)

    def forward(self, x):
        y = self.drop(self.bn(self.conv(x)).relu())
        return y * self.scale[:, None, None] * self.plain + torch.tensor([1.0, -1.0, 2.0, 3.0])[:, None, None]


def apply(function):
    return Function(function).eval()


def seeded(network):
    """`network` in eval mode, with random weights and random batch norm statistics, the same in each run."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, tensor in [*network.named_parameters(), *network.named_buffers()]:
            if tensor.is_floating_point() and name != "scale":
                tensor.copy_(torch.rand(tensor.shape, generator=generator) - (0.0 if "running_var" in name else 0.5))
    return network.eval()


def run(mod, params, *arrays):
    vm = relax.VirtualMachine(tvm.compile(mod, target="llvm"), tvm.cpu())
    outputs = vm["main"](*map(tvm.runtime.tensor, arrays), *params.values())
    return outputs.numpy() if isinstance(outputs, tvm.runtime.Tensor) else [output.numpy() for output in outputs]


def dtypes(results):
    return [str(result.dtype).removeprefix("torch.") for result in results]


def assert_same(network, *inputs, eager=None):
    """Import `network` for inputs like `inputs`, run it on them, and hold it against PyTorch."""
    eager = eager or network
    with torch.no_grad():
        want = eager(*inputs)
    mod, params = from_pytorch(network, [(f"in{i}", x) for i, x in enumerate(inputs)])
    got = run(mod, params, *(x.numpy() for x in inputs))
    several = isinstance(want, tuple)
    assert dtypes(got if several else [got]) == dtypes(want if several else [want])
    close(got, reference(eager, *inputs))
    return mod, params


def random(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


# ---- the ways in


@pytest.mark.parametrize(
    "way",
    sampled(
        ["module", "traced", "scripted", "frozen", "frozen script", "exported", "dynamic shapes"],
        ["module", "traced", "frozen script", "dynamic shapes"],
    ),
)
def test_every_way_in_gives_the_results_of_pytorch(way):
    network, example = seeded(Small()), torch.zeros(2, 3, 8, 8)
    auto = torch.export.Dim.AUTO
    model = {
        "module": lambda: network,
        "traced": lambda: torch.jit.trace(network, example),
        "scripted": lambda: torch.jit.script(network),
        "frozen": lambda: torch.jit.freeze(torch.jit.trace(network, example)),
        "frozen script": lambda: torch.jit.freeze(torch.jit.script(network)),
        "exported": lambda: torch.export.export(network, (example,)),
        "dynamic shapes": lambda: torch.export.export(
            network, (example,), dynamic_shapes=({0: auto, 2: auto, 3: auto},)
        ),
    }[way]()
    mod, params = assert_same(model, random(2, 3, 8, 8), eager=network)
    assert all(isinstance(n, tvm.tirx.IntImm) for n in mod["main"].ret_ty.shape)
    held = {"conv.weight_fused_bn", "conv.bias_fused_bn"} if "frozen" in way else {"conv.weight", "bn.running_var"}
    assert held <= params.keys()


def test_a_saved_traced_module_keeps_its_weights(tmp_path):
    network = seeded(Small())
    torch.jit.save(torch.jit.trace(network, torch.zeros(2, 3, 8, 8)), tmp_path / "net.pt")
    assert_same(torch.jit.load(tmp_path / "net.pt"), random(2, 3, 8, 8), eager=network)


def test_the_converter_internal_to_torch_gives_a_module_with_the_weights():
    network, example = seeded(Small()), torch.zeros(2, 3, 8, 8)
    module = unscript(torch.jit.trace(network, example), (example,))
    assert torch.equal(module.state_dict()["conv.weight"], network.conv.weight)
    assert torch.equal(module(random(2, 3, 8, 8)), network(random(2, 3, 8, 8)))


def test_a_function_that_was_traced_or_scripted():
    def function(x, y):
        return x * 2 + y

    examples = (torch.zeros(2, 3), torch.zeros(3))
    for model in (torch.jit.trace(function, examples), torch.jit.script(function)):
        assert_same(model, random(2, 3), random(3), eager=function)
        with pytest.raises(ValueError, match=r"forward takes 2 \(x, y\), got 1"):
            from_pytorch(model, {"x": (2, 3)})


def test_what_is_traced_already_is_not_to_be_traced():
    model = torch.jit.trace(apply(F.one_hot), torch.zeros(2, dtype=torch.int64))
    with pytest.raises(NotImplementedError, match="cannot capture") as raised:
        from_pytorch(model, {"x": ((2,), "int64")})
    assert "torch.jit.trace" not in str(raised.value) and "torch.onnx.export" in str(raised.value)


def of_sizes(x):
    """What computes with sizes, which a trace does with tensors."""
    batch, channels, height, width = x.shape
    half, spread = height // 2, torch.zeros(batch, 2 * channels, height, width)
    spread[:, ::2], spread[:, 1:-1:2, 1 - height :] = x, 7.0
    padded = F.pad(x, (0, (3 - width) % 3 + 1))
    rows = 2 * x.reshape(batch * channels, -1).view(batch, channels, height * width)
    return x[:, :, :half] * half + x[:, :, -half:], spread, padded, rows, torch.arange(batch + channels) * (width - 1)


def test_sizes_in_a_trace():
    x, y = random(2, 3, 4, 5), random(4, 3, 4, 5)
    traced = torch.jit.trace(of_sizes, x)
    assert_same(traced, x, eager=of_sizes)
    lib = build(*from_pytorch(traced, {"x": ("batch", 3, 4, 5)}), opt_level=0)
    for example in (x, y):
        for got, wanted in zip(lib(example.numpy()), traced(example), strict=True):
            np.testing.assert_array_equal(got, wanted.numpy())  # products with 2, and sums of two


@pytest.mark.parametrize("span", [(0, None, 2), (1, None, 2), (-5, -1, 3), (2, 6, 4), (5, 2, 2), (0, 99, 7)], ids=str)
def test_a_write_with_a_step(span):
    part = slice(*span)

    def function(x, y):
        z = x.clone()
        z[:, part] = y[:, : len(range(*part.indices(7)))]
        return z, x.int().slice_scatter(y[:, : len(range(*part.indices(7)))].int(), 1, *span)

    assert_same(apply(function), random(3, 7, 2), random(3, 7, 2))


def test_a_write_with_a_step_into_a_dynamic_dim():
    def function(x):
        z = x.clone()
        z[:, 1::2], z[:, ::3] = z[:, 1::2] * 2, 0
        return z

    lib = build(*from_pytorch(apply(function), {"x": ("batch", Dim("n", 4), 2)}), opt_level=0)
    for n in (4, 5, 9):
        x = random(2, n, 2)
        np.testing.assert_array_equal(lib(x.numpy()), function(x).numpy())


class WithDefaults(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.full((3,), 2.0))

    def forward(self, x, y: torch.Tensor | None = None, times: int = 2):
        return (x * self.weight if y is None else x + y) * times


def test_a_scripted_module_whose_inputs_have_defaults():
    network = torch.jit.script(WithDefaults().eval())
    assert assert_same(network, random(2, 3))[1].keys() == {"weight"}
    assert_same(network, random(2, 3), random(2, 3))
    with pytest.raises(NotImplementedError, match="a frozen or loaded module needs all inputs, also y, times"):
        from_pytorch(torch.jit.freeze(network), {"x": (2, 3)})


def test_a_scripted_lstm_alone_is_refused():
    with pytest.raises(NotImplementedError, match="scripted LSTM has one forward for tensors and one for packed"):
        from_pytorch(torch.jit.script(nn.LSTM(3, 2).eval()), {"x": (4, 1, 3)})


def test_a_scripted_branch_is_taken_at_run_time():
    class Branch(nn.Module):
        def forward(self, x):
            return x + 1 if x.sum() > 0 else x - 1

    model = torch.jit.script(Branch().eval())
    mod, params = from_pytorch(model, {"x": (3,)})
    for x in (np.ones(3, "float32"), -np.ones(3, "float32")):
        # Exact: one sum of integers.
        np.testing.assert_array_equal(run(mod, params, x), model(torch.from_numpy(x)).numpy())


# ---- what comes out


def test_params_are_the_state_that_forward_reads():
    network = seeded(Small())
    _, params = from_pytorch(network, SHAPE)
    state = network.state_dict() | {"scale": network.scale, "plain": network.plain}
    assert params.keys() - state.keys() == {"lifted_tensor_0"}  # torch.export's name for the constant in forward
    assert state.keys() - params.keys() == {"unused.weight", "unused.bias", "bn.num_batches_tracked"}
    for name in state.keys() & params.keys():
        np.testing.assert_array_equal(params[name].numpy(), state[name].numpy())


def test_params_are_copies():
    network = seeded(Small())
    _, params = from_pytorch(network, SHAPE)
    before = params["conv.weight"].numpy().copy()
    with torch.no_grad():
        network.conv.weight.zero_()
    np.testing.assert_array_equal(params["conv.weight"].numpy(), before)


def test_an_exported_program_brings_its_own_inputs():
    program = torch.export.export(seeded(Small()), (torch.zeros(2, 3, 8, 8),))
    state = dict(program.state_dict)
    mod, _ = from_pytorch(program)
    assert mod["main"].params[0].name == "x"
    assert state.keys() == program.state_dict.keys()  # the caller's program is as it was
    assert len(program.constants) == 3


@pytest.mark.parametrize("batch", [3, "n"])
def test_a_program_has_inputs_by_name_and_in_lists(batch):
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x, *, parts, scale):
            return self.linear(x) * scale + parts[0] - 2 * parts[1]

    network, n = seeded(Named()), torch.export.Dim("n", min=2, max=16)
    x, first, second, scale = (random(3, 4) for _ in range(4))
    named = {"parts": [first, second], "scale": scale}
    axes = {"x": {0: n}, "parts": [{0: n}, {0: n}], "scale": {0: n}}
    program = torch.export.export(network, (x,), named, dynamic_shapes=axes)
    shape = (batch if batch == 3 else Dim("n", 2, 16), 4)
    mod, params = from_pytorch(program, dict.fromkeys(("x", "first", "second", "scale"), shape))
    assert list(params) == ["linear.weight", "linear.bias"]
    ours = build(mod, params, opt_level=1)(x, first, second, scale)
    close(ours, reference(lambda x, *parts: network(x, parts=parts[:2], scale=parts[2]), x, first, second, scale))


def test_several_inputs_in_order_one_of_them_int64():
    class Text(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(10, 4)
            self.out = nn.Linear(4, 10, bias=False)
            self.out.weight = self.table.weight

        def forward(self, ids, scale, shift=None):
            return self.out(self.table(ids) * scale if shift is None else self.table(ids) * scale - shift)

    network = seeded(Text())
    ids = torch.tensor([[0, 9, 3, 3, 1]])
    mod, params = assert_same(network, ids, random(4), random(1, 5, 4))
    assert len(params) == 1  # tied weights come once
    assert_same(network, ids, random(4))
    mod, _ = from_pytorch(network, {"words": ((1, 5), "int64"), "by": (4,)})
    assert [(p.name, str(p.ty.dtype)) for p in mod["main"].params[:2]] == [("words", "int64"), ("by", "float32")]


Pair = namedtuple("Pair", "first second")


def test_outputs_come_out_flat():
    assert_same(apply(lambda x: (x + 1, x.argmax(1))), random(2, 3))
    assert_same(apply(lambda x: Pair(x + 1, x - 1)), random(2, 3))
    nested = apply(lambda x: {"b": x + 1, "a": [x, (x * 2,)]})
    flat = apply(lambda x: (x + 1, x, x * 2))
    assert_same(nested, random(2, 3), eager=flat)
    assert_same(apply(lambda x: (x.exp(),)), random(2, 3), eager=apply(lambda x: x.exp()))


@pytest.mark.parametrize(
    ("level", "shape"),
    [
        *((0, (2, 3)), (3, ("rows", 3))),
        *(pytest.param(*each, marks=pytest.mark.full) for each in ((3, (2, 3)), (0, ("rows", 3)))),
    ],
)
def test_none_comes_back_in_its_place(level, shape, tmp_path):
    def network(x, h):
        return None, x + h, {"a": None, "b": [None, (x * 2, None)]}, h + 1

    x, h = random(2, 3), random(2, 3)
    specs = {"x": shape, "h": shape}
    sizes = [{"rows": 2}] if level and shape[0] == "rows" else None
    lib = build(*from_pytorch(apply(network), specs), opt_level=level, sizes=sizes)
    lib.save(tmp_path / "net.zip")
    for each in (lib, load(tmp_path / "net.zip"), lib.session()):
        assert len(each.outputs) == 3
        first, total, a, b, twice, last, more = each(x, h)
        assert [first, a, b, last] == [None] * 4
        close((total, twice, more), reference(lambda x, h: (x + h, x * 2, h + 1), x, h))

    for outputs, places in (((None, "h", "x"), [0]), (("h", None, "x"), [0]), (("h", "x", None), [1])):

        def step(x, h, outputs=outputs):
            return tuple({"h": h + x, "x": x * 3, None: None}[each] for each in outputs)

        number = [each for each in outputs if each].index("h")
        lib = build(*from_pytorch(apply(step), specs), opt_level=level, state={"h": f"output{number}"})
        result = lib(x)
        assert [n for n, each in enumerate(result) if each is None] == places
        close(result[1 - places[0]], reference(lambda x: x * 3, x))
    alone = build(*from_pytorch(apply(lambda x: (x.exp(), None)), {"x": shape}), opt_level=level)
    result, none = alone(x)
    assert none is None
    close(result, reference(torch.exp, x))


def test_a_buffer_that_forward_writes_counts_as_it_was():
    class Counter(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("calls", torch.zeros(1))

        def forward(self, x):
            self.calls.add_(1)
            return x + self.calls

    mod, params = from_pytorch(Counter().eval(), {"x": (3,)})
    np.testing.assert_array_equal(run(mod, params, np.zeros(3, "float32")), np.ones(3, "float32"))


def test_importing_says_nothing(recwarn, capfd):
    network = seeded(Small())
    model = torch.jit.trace(network, torch.zeros(2, 3, 8, 8))
    recwarn.clear()
    capfd.readouterr()
    from_pytorch(model, SHAPE)
    from_pytorch(network, SHAPE)
    assert [str(warning.message) for warning in recwarn] == []
    assert capfd.readouterr() == ("", "")


def test_a_refused_branch_on_values_says_nothing_else(capfd):
    """PyTorch checks the variances of this loss in Python, and prints its graph as far as that."""
    loss = Function(lambda x, target: F.gaussian_nll_loss(x, target, target.abs()))
    with pytest.raises(NotImplementedError, match="branches on values"):
        from_pytorch(loss.eval(), {"x": (2, 3), "target": (2, 3)})
    assert capfd.readouterr() == ("", "")


# ---- operators that TVM's own importer gets wrong or lacks

OPERATORS = {
    "add alpha": lambda x: torch.add(x, x.flip(1), alpha=3),
    "sub alpha": lambda x: torch.sub(x, x.flip(1), alpha=3),
    "divide integers": lambda x: x.argmax(1) / 2,
    "elu": lambda x: F.elu(x, 0.5),
    "selu": F.selu,
    "celu": lambda x: F.celu(x, 2.0),
    "rrelu": lambda x: F.rrelu(x, 0.1, 0.2),
    "select the last": lambda x: x[:, -1],
    "average pool": lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False),
    "roll": lambda x: x.roll((1, -2, 9), (1, -1, 2)),
    "roll all": lambda x: x.roll(5),
    "slice set": lambda x: x.slice_scatter(x[:, :2] * 2, 1, -3, -1).slice_scatter(x[:, :, :5], 2, 0, 99, 2),
    "slice set, all": lambda x: x.slice_scatter(x * 2, 1),
    "amax": lambda x: x.amax((2, 3)),
    "amax of all": lambda x: x.amax(),
    "amin": lambda x: x.amin(1, keepdim=True),
    "prod": lambda x: x.prod(1),
    "index": lambda x: x[:, [0, -1, 2]],
    "two indices": lambda x: x[:, [0, 1], [2, -1]],
    "two indices apart": lambda x: x[:, [0, 1], :, [2, -1]],
    "indices that broadcast": lambda x: x[torch.tensor([[0], [1]]), torch.tensor([1, 3])],
    "nearest": lambda x: F.interpolate(x, size=(13, 4)),
    "nearest, scaled": lambda x: F.interpolate(x, scale_factor=2),
    "bilinear": lambda x: F.interpolate(x, size=(13, 4), mode="bilinear"),
    "bilinear, corners": lambda x: F.interpolate(x, scale_factor=1.5, mode="bilinear", align_corners=True),
    "bicubic": lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"),
    "grid": lambda x: F.grid_sample(x, x[:, :2].permute(0, 2, 3, 1), align_corners=False),
    "grid, nearest": lambda x: F.grid_sample(
        x, x[:, :2].permute(0, 2, 3, 1), mode="nearest", padding_mode="border", align_corners=True
    ),
    "max pool": lambda x: F.max_pool2d(x, 3, 2, 1, ceil_mode=True),
    "nearest, by half a pixel": lambda x: F.interpolate(x, scale_factor=1.5),
    "group norm": lambda x: F.group_norm(x, 1),
    "layer norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "cumulative sum": lambda x: torch.cumsum(x, 1),
    "sort": lambda x: torch.sort(x, dim=-1)[0],
}


def test_operators():
    x = random(*IMAGE)
    network = apply(lambda x: tuple(function(x) for function in OPERATORS.values()))
    got = run(*from_pytorch(network, {"x": IMAGE}), x.numpy())
    assert dtypes(got) == dtypes(network(x))
    for name, ours in zip(OPERATORS, got, strict=True):
        close(ours, reference(OPERATORS[name], x))


SIZES = {"linear": (3,), "bilinear": (3, 10), "trilinear": (3, 2, 10), "bicubic": (3, 10), "nearest": (3, 10),
         "nearest-exact": (3, 10), "area": (3, 10)}  # fmt: skip


@pytest.mark.parametrize("nearest", [True, False])
def test_images_resized_by_factors_that_leave_an_axis_as_it_is(nearest):
    """PyTorch copies along such an axis, or not, by mode and size; and along one that a factor above 2 doubles."""
    shapes = [(mode, (1, 2, *sizes)) for mode, sizes in SIZES.items() if mode.startswith("nearest") == nearest]
    shapes += [("nearest", shape) for shape in ((1, 1, 3), (1, 4, 3, 120), (2, 1, 3, 3, 4)) if nearest]
    factors = (1.05, 1.3, 2.2, (1.3, 1.05, 1.7), (2.05, 1.3, 1.3))

    cases = []  # with the numbers of their inputs
    for number, (mode, shape) in enumerate(shapes):
        for factor in factors:
            factor = factor if isinstance(factor, float) else factor[: len(shape) - 2]
            for more in ({}, {"antialias": True}, {"recompute_scale_factor": True})[: 3 if mode[:2] == "bi" else 1]:
                cases.append((number, partial(F.interpolate, scale_factor=factor, mode=mode, **more)))
    inputs = [random(*shape) for _, shape in shapes]
    network = apply(lambda *inputs: tuple(resize(inputs[number]) for number, resize in cases))
    got = run(*from_pytorch(network, inputs), *(x.numpy() for x in inputs))
    for ours, (number, resize) in zip(got, cases, strict=True):
        if nearest:
            np.testing.assert_array_equal(ours, resize(inputs[number]).numpy())
        else:
            # A weight is as inexact as its position, a number as large as the image; then come some products.
            close(ours, resize(inputs[number].double()), terms=16 + max(inputs[number].shape[2:]) ** 2)


# ---- at the door


def small():
    return seeded(Small())


@pytest.mark.parametrize(
    ("make", "inputs", "error", "message"),
    [
        (lambda: "net.pt", SHAPE, TypeError, "expected an nn.Module.*got str"),
        (lambda: Small, SHAPE, TypeError, "got the class Small"),
        (small, None, TypeError, "expected a dictionary"),
        (small, {}, ValueError, "at least one input"),
        (Small, SHAPE, ValueError, r"the network is in training mode.*net\.eval\(\)"),
        (lambda: torch.jit.script(Small()), SHAPE, ValueError, "the network is in training mode"),
        (small, [("a", (1,)), ("a", (2,))], ValueError, "'a' comes 2 times"),
        (small, {"a": (2, 3, 8, 8), "b": (1,)}, ValueError, r"forward takes 1 \(x\), got 2: a: .*; b: float32\[1\]"),
        (lambda: torch.jit.script(small()), {"a": (1,), "b": (1,)}, ValueError, r"forward takes 1 \(x\), got 2"),
        (lambda: apply(lambda x: x), {"bn.bias": (2,), "b": (0,)}, ValueError, "positive integers"),
        (small, {"bn.bias": (2, 3, 8, 8)}, ValueError, "'bn.bias': the network has a weight of this name"),
        (small, {"x": (2, 4, 8, 8)}, ValueError, r"does not take x: float32\[2, 4, 8, 8\]; PyTorch says: .*channels"),
        (small, {"x": (3,)}, ValueError, r"does not take x: float32\[3\]"),
        (small, {"x": ((2, 3, 8, 8), "int64")}, ValueError, r"does not take x: int64\[2, 3, 8, 8\]"),
        (lambda: torch.jit.script(small()), {"x": (2, 4, 8, 8)}, ValueError, "does not take x.*channels"),
        (lambda: apply(lambda x: (x, None, 3)), {"x": (2,)}, ValueError, "3 is among its outputs"),
        (lambda: apply(lambda x: (None, None)), {"x": (2,)}, ValueError, "None is all of its outputs"),
        (lambda: apply(lambda x: x if x.sum() > 0 else -x), {"x": (2,)}, NotImplementedError, "cannot capture"),
        (
            lambda: apply(lambda x: (torch.special.bessel_j0(x), torch.special.airy_ai(x))),
            {"x": (2,)},
            NotImplementedError,
            r"operators: aten\.special_airy_ai\.default, aten\.special_bessel_j0\.default; .*onnx",
        ),
    ],
)
def test_bad_models_and_inputs(make, inputs, error, message):
    with pytest.raises(error, match=f"(?s){message}"):
        from_pytorch(make(), inputs)


def test_the_number_of_inputs_may_vary():
    class Optional(nn.Module):
        def forward(self, x, y=None, z=None):
            return x if y is None else x + y

    network = Optional().eval()
    from_pytorch(network, {"x": (2,), "y": (2,)})
    with pytest.raises(ValueError, match=r"forward takes 1 to 3 \(x, y, z\), got 4"):
        from_pytorch(network, dict.fromkeys("abcd", (2,)))


def test_a_network_that_does_not_take_the_inputs_shows_torchs_own_error():
    with pytest.raises(ValueError, match="does not take") as raised:
        from_pytorch(small(), {"x": (2, 4, 8, 8)})
    assert isinstance(raised.value.__cause__, RuntimeError)


def test_training_mode_inside_and_in_programs():
    network = small()
    network.drop.train()
    with pytest.raises(ValueError, match="but drop is in training mode"):
        from_pytorch(network, SHAPE)
    example = torch.zeros(2, 3, 8, 8)
    for network in (Small(), nn.Dropout()):
        with pytest.raises(ValueError, match="captured in training mode"):
            from_pytorch(torch.export.export(network, (example,)))
    with pytest.raises(ValueError, match="captured in training mode"):
        from_pytorch(torch.jit.trace(nn.BatchNorm2d(3), example).eval(), SHAPE)


def test_exported_programs_are_held_to_their_inputs():
    network, example = small(), torch.zeros(2, 3, 8, 8)
    auto = torch.export.Dim.AUTO
    program = torch.export.export(network, (example,))
    with pytest.raises(ValueError, match=r"exported for x: float32\[2, 3, 8, 8\], got x: float32\[2, 3, 9, 9\]"):
        from_pytorch(program, {"x": (2, 3, 9, 9)})
    with pytest.raises(ValueError, match=r"got x: float64\[2, 3, 8, 8\]"):
        from_pytorch(program, {"x": ((2, 3, 8, 8), "float64")})
    with pytest.raises(ValueError, match=r"forward takes 1 \(x\), got 2"):
        from_pytorch(program, {"x": (2, 3, 8, 8), "y": (1,)})
    program = torch.export.export(network, (example,), dynamic_shapes=({0: auto},))
    with pytest.raises(ValueError, match="has a dynamic shape"):
        from_pytorch(program)
    with pytest.raises(ValueError, match="got x: float32"):
        from_pytorch(program, {"x": (4, 4, 8, 8)})
    program = torch.export.export(apply(lambda x, flag: x + 1 if flag else x), (example, True))
    with pytest.raises(ValueError, match="expected every input of the program to be a tensor; this one is True"):
        from_pytorch(program)


def test_an_operator_of_another_library_is_not_taken_for_pytorchs():
    @torch.library.custom_op("tvmnotes_test::relu", mutates_args=())
    def relu(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    relu.register_fake(torch.empty_like)
    with pytest.raises(NotImplementedError, match=r"lacks these operators: tvmnotes_test\.relu\.default"):
        from_pytorch(apply(relu), {"x": (2,)})
