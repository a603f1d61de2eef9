"""torch.compile(net, backend="tvmfast"): PyTorch's results, memory and errors, whatever Dynamo makes of a network.

A test fails if a graph is left to PyTorch, but for those that say so.
"""

import importlib.metadata
import re
import warnings
from dataclasses import dataclass
from pathlib import Path

import forked
import numpy as np
import pytest
import test_networks
import torch
import torch.nn.functional as F
from agreement import close, terms_of
from testing import Function, SmallNet
from torch import fx, nn
from torch._dynamo.backends import registry
from torch.utils import _pytree as pytree

from tvmfast.backends import torch_compile
from tvmfast.backends.torch_compile import backend
from tvmfast.profiling import networks

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10, where pytest brings it
    import tomli as tomllib

LEFT = "tvmfast leaves a graph to PyTorch"

pytestmark = pytest.mark.filterwarnings(f"error:{LEFT}")


@pytest.fixture(autouse=True)
def dynamo():
    """No test finds what Dynamo recorded for another; no gradients."""
    torch._dynamo.reset()
    with torch.no_grad():
        yield
    torch._dynamo.reset()


@pytest.fixture
def builds(capfd):
    """The lines about builds since the last look."""
    return lambda: [line for line in capfd.readouterr().err.splitlines() if line.startswith("tvmfast: compiled")]


def compiled(function, **options):
    return torch.compile(function, backend=backend, **options)


def assert_equal(got, want, terms=32):
    """Hold outputs against PyTorch's: structure, dtypes, shapes, strides and values, sums of up to so many terms."""
    (got, form), (want, wanted) = pytree.tree_flatten(got), pytree.tree_flatten(want)
    assert form == wanted
    for a, b in zip(got, want, strict=True):
        if not isinstance(b, torch.Tensor):
            assert a == b
            continue
        assert (a.dtype, a.shape, a.stride()) == (b.dtype, b.shape, b.stride())
        close(*(x.float() if x.dtype == torch.bfloat16 else x for x in (a, b)), terms, rounded=True)


def assert_same(function, *args, **kwargs):
    fast = compiled(function)
    assert_equal(fast(*args), function(*args), **kwargs)
    return fast


# ---------------------------------------------------------------- how PyTorch finds it


def test_pytorch_finds_the_backend_by_its_entry_point(tmp_path, monkeypatch):
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    ((group, entries),) = project["entry-points"].items()
    info = tmp_path / "tvmfast-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tvmfast\nVersion: 0.1.0\n")
    lines = (f"{name} = {value}\n" for name, value in entries.items())
    (info / "entry_points.txt").write_text(f"[{group}]\n{''.join(lines)}")
    monkeypatch.syspath_prepend(tmp_path)  # before the environment's own, which may be older than pyproject.toml
    (entry,) = importlib.metadata.entry_points(group="torch_dynamo_backends", name="tvmfast")
    assert entry.load() is backend
    registry._lazy_import()
    for table in ("_BACKENDS", "_COMPILER_FNS"):
        others = {name: each for name, each in getattr(registry, table).items() if name != "tvmnotes"}
        monkeypatch.setattr(registry, table, others)
    registry._discover_entrypoint_backends.cache_clear()
    registry._discover_entrypoint_backends()
    assert "tvmnotes" in torch.compiler.list_backends()
    x = torch.randn(3)
    fast = torch.compile(lambda x: torch.tanh(x) + 1, backend="tvmnotes", options={"opt_level": 1, "records": False})
    assert_equal(fast(x), torch.tanh(x) + 1)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"options": {"optlevel": 1}}, "expected target, opt_level, records.*got 'optlevel'"),
        ({"options": {"opt_level": 4}}, "opt_level of 0, 1, 2, 3; got 4"),
        ({"options": {"target": "nonsense"}}, "unknown target 'nonsense'"),
        ({"options": {"records": "missing.jsonl"}}, "missing.jsonl"),
        ({"mode": "max-autotune"}, "mode: tvmfast has none, got 'max-autotune'"),
    ],
    ids=str,
)
def test_wrong_options_are_errors(arguments, message):
    with pytest.raises(Exception, match=message):
        compiled(torch.relu, **arguments)(torch.randn(3))


# ---------------------------------------------------------------- networks


def test_operators_that_tvm_gets_wrong():
    def function(x):
        index = (x[:1, :, :2] > 0).long()
        return (
            *(F.interpolate(x[None, :, :3], scale_factor=1.3, mode=mode) for mode in ("nearest", "bilinear")),
            *(F.interpolate(x, scale_factor=1.05, mode="linear"), F.batch_norm(x, None, None, training=True)),
            *(x.scatter_add(1, index, x[:1, :, :2]), (x > 9).byte().argmax(1), (x.round() * 300).to(torch.int8)),
        )

    assert_same(function, torch.randn(4, 3, 10))


@dataclass
class Result:
    logits: torch.Tensor
    hidden: torch.Tensor


class Structured(nn.Module):
    """Embeddings, a keyword, a Python number, None, a size and a dataclass."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(11, 6), nn.Linear(6, 4)
        self.plain = torch.full((6,), 2.0)

    def forward(self, ids, *, mask=None, scale=1.5):
        hidden = self.embed(ids) * self.plain * scale
        if mask is not None:
            hidden = hidden * mask[..., None]
        return {"result": Result(self.head(hidden), hidden), "cache": None, "length": ids.shape[1]}


pytree.register_dataclass(Result)


def test_a_convolutional_network(builds):
    net = networks.seeded(SmallNet, 8)
    fast = assert_same(net, torch.randn(2, 3, 8, 8))
    (line,) = builds()
    assert re.search(r"operators: 1\d; inputs: float32\[2, 3, 8, 8\]; weights: 1\d\) in [\d.]+ s$", line)
    fast(torch.randn(2, 3, 8, 8))
    assert not builds()


def test_keywords_dataclasses_none_and_sizes():
    net, ids = Structured().eval(), torch.randint(11, (2, 5))
    fast = assert_same(net, ids)
    mask = torch.randn(2, 5) > 0
    assert_equal(fast(ids, mask=mask, scale=-0.5), net(ids, mask=mask, scale=-0.5))


def test_none_among_the_results():
    assert_same(lambda x: (x + 1, None, {"a": None, "b": [x * 2, None]}), torch.randn(2, 3))


def test_a_transformer_encoder():
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=True, activation="gelu")
    assert_same(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval(), torch.randn(2, 5, 8))


CAUSAL = nn.Transformer.generate_square_subsequent_mask(5)
PADDING = torch.tensor([[False] * 5, [False, False, True, True, True]])


@pytest.mark.parametrize(
    "options",
    [
        {"attn_mask": CAUSAL, "need_weights": False},
        {"key_padding_mask": PADDING, "average_attn_weights": False},
        {"attn_mask": CAUSAL < 0, "key_padding_mask": PADDING},
    ],
    ids=["causal", "padding", "both"],
)
def test_attention_with_masks(options):
    net = nn.MultiheadAttention(8, 2, batch_first=True).eval()
    assert_same(lambda x: net(x, x, x, **options), torch.randn(2, 5, 8))


def test_a_short_network_of_torchvision():
    net = test_networks.network("convnext_tiny", 32, short=True)
    assert_same(net, torch.randn(1, 3, 32, 32), terms=terms_of(net.state_dict()))


@pytest.mark.full
@pytest.mark.parametrize("name", test_networks.NETWORKS)
def test_networks_of_torchvision(name):
    size = test_networks.NETWORKS[name]
    net = test_networks.network(name, size, short=False)
    assert_same(net, torch.randn(1, 3, size, size), terms=terms_of(net.state_dict()))


def test_autocast_is_left_to_pytorch():
    net, x = nn.Linear(3, 2), torch.randn(4, 3)

    def inside(x):
        with torch.autocast("cpu", torch.bfloat16):
            return net(x).float()

    with pytest.warns(UserWarning, match=f"{LEFT}.*autocast is on"):
        assert_same(inside, x)
    with torch.autocast("cpu", torch.bfloat16), pytest.warns(UserWarning, match=f"{LEFT}.*autocast is on"):
        assert_same(net, x)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_autocast_that_is_off_or_for_another_device_stays_in_the_graph(device):
    net = nn.Linear(3, 2)

    @torch.no_grad()  # as rotary embeddings of transformers have it
    def inside(x):
        with torch.autocast(device, enabled=False):
            y = net(x.float())
        return y.tanh()

    assert_same(inside, torch.randn(4, 3))


# ---------------------------------------------------------------- shapes and scalars


@pytest.mark.parametrize("dynamic", [None, True, False])
def test_every_shape_has_its_own_build_which_is_cached(dynamic, builds):
    net = nn.Linear(3, 2)
    fast = compiled(lambda x: (net(x).softmax(0), x.shape[0] * 2), dynamic=dynamic)

    def check(sizes):
        for size in sizes:
            x = torch.randn(size, 3)
            assert_equal(fast(x), (net(x).softmax(0), size * 2))
        return len(builds())

    assert check([4, 6, 1, 4]) >= 3  # Dynamo traces again when a dim turns out to be dynamic
    assert check([1, 4, 6]) == 0


def test_scalars_are_told_apart_by_their_bits():
    fast = compiled(lambda x, n: 1 / (x * n))
    for n in (2.0, 3.0, 0.0, -0.0, 4, 5):
        x = torch.rand(3) + 1
        close(fast(x, n), 1 / (x.double() * n), terms=2)


def test_from_the_limit_on_further_shapes_run_in_pytorch(monkeypatch, builds):
    monkeypatch.setattr(torch_compile, "_MOST_SETS", 2)
    fast = compiled(torch.tanh, dynamic=True)
    with pytest.warns(UserWarning, match="built for 2 other sets of shapes"):
        for size in (2, 3, 4, 2, 4):
            x = torch.randn(size)
            assert_equal(fast(x), torch.tanh(x))
    assert len(builds()) == 2


# ---------------------------------------------------------------- weights


def test_weights_may_change_in_place_be_replaced_or_belong_to_another_network(builds):
    nets = [SmallNet().eval() for _ in range(2)]
    fast = [compiled(net) for net in nets]
    x = torch.randn(1, 3, 8, 8)

    def check(count):
        for net, f in zip(nets, fast, strict=True):
            assert_equal(f(x), net(x))
        assert len(builds()) == count

    check(2)
    check(0)
    nets[0].conv1.weight.mul_(-2)
    check(1)
    nets[0].bn2.running_mean = torch.randn(8)
    check(1)
    nets[1].classify.weight = nn.Parameter(torch.randn(5, 128))
    check(1)
    nets[0].classify.bias.data = torch.randn(5)
    check(1)
    nets[0].load_state_dict(nets[1].state_dict())
    check(1)
    check(0)


def test_a_weight_that_keeps_changing_becomes_an_input(builds):
    net = nn.Linear(3, 2).eval()
    fast = compiled(net)
    x = torch.randn(4, 3)
    for _ in range(8):
        assert_equal(fast(x), net(x))
        net.weight.add_(1)
    assert len(builds()) == 1 + torch_compile._MOST_CHANGES
    net.bias.add_(1)
    assert_equal(fast(x), net(x))


def test_weights_made_in_inference_mode(builds):
    with torch.inference_mode():
        net = nn.Linear(3, 2)
        fast, x = compiled(net), torch.randn(4, 3)
        for _ in range(3):
            net.weight.add_(1)
            assert_equal(fast(x), net(x))
    assert len(builds()) == 1


RESIDENT = """
import gc, torch
from tvmfast.backends.torch_compile import backend
def resident():
    gc.collect()
    return next(int(line.split()[1]) << 10 for line in open("/proc/self/status") if line.startswith("VmRSS"))
@torch.no_grad()
def called(width):
    net = torch.nn.Linear(width, width, bias=False).eval()
    fast, before = torch.compile(net, backend=backend), resident()
    fast(torch.ones(4, width))
    return fast, net, (resident() - before) / net.weight.nbytes
called(64)
print(called(5000)[-1])
"""


def test_a_build_keeps_one_copy_of_the_weights():
    """Packed for its kernels; those of PyTorch and of the importer are not kept."""
    done = forked.run("-W", "ignore", "-c", RESIDENT)
    assert done.returncode == 0, done.stderr
    assert 0.9 < float(done.stdout) < 1.5


def test_weights_that_a_graph_holds_itself_are_left_to_pytorch():
    class Tuple(nn.Linear):
        def forward(self, x):
            return (F.linear(x, self.weight, self.bias),)

    net, x = Tuple(3, 2), torch.randn(4, 3)
    fast = backend(fx.symbolic_trace(net), [])
    with pytest.warns(UserWarning, match=f"{LEFT}.*tensors of its own"):
        fast(x)
    net.weight.mul_(2)
    assert_equal(fast(x), net(x))


# ---------------------------------------------------------------- memory


def alike(function, *args):
    """Run with PyTorch and compiled, and write to each output: all outputs and inputs must look alike afterwards."""
    copies = [arg.clone() for arg in args]
    wants, gots = function(*args), compiled(function)(*copies)
    assert_equal(gots, wants)
    for want, got in zip(wants, gots, strict=True):
        want.mul_(3)
        got.mul_(3)
        assert_equal([*gots, *copies], [*wants, *args])


def test_outputs_share_memory_with_inputs_as_pytorchs_do():
    alike(lambda x: (x.relu(), x, x[1:], x.t(), F.dropout(x, training=False)), torch.randn(3, 4))


def test_outputs_that_tvm_may_return_without_a_copy_are_copies():
    alike(lambda x: (x.clone(), x * 1, x + 0, x.relu(), x.relu(), x.reshape(-1).clone()), torch.randn(3, 4))


def test_outputs_share_memory_with_each_other():
    def function(x):
        y = x * 2
        return *y.chunk(3, 1), y.t(), y, y, y[1:]

    alike(function, torch.randn(3, 9))


def test_views_need_gradients_as_pytorchs_do():
    weight = nn.Parameter(torch.randn(3, 4))

    def function(x):
        views = x.view(-1), x.detach(), x.detach()[1:], x.t().detach(), weight.t(), weight.detach()[0], weight
        return *views, x + weight

    fast = compiled(function)
    for needed in (False, True):
        x = torch.randn(3, 4, requires_grad=needed)
        with torch.no_grad():
            wants, gots = function(x), fast(x)
        assert_equal(gots, wants)
        assert [got.requires_grad for got in gots] == [want.requires_grad for want in wants]
        assert [got.data_ptr() for got in gots[:-1]] == [want.data_ptr() for want in wants[:-1]]


def test_constants_are_not_handed_out():
    net = Function(lambda: None)
    net.weight = nn.Parameter(torch.randn(5))
    fast = compiled(lambda x: (x + 1, net.weight * 2, net.weight.neg()))
    for _ in range(2):
        outputs = fast(torch.ones(2))
        assert_equal(outputs, (torch.full((2,), 2.0), net.weight * 2, net.weight.neg()))
        for output in outputs:
            output.zero_()


def test_outputs_outlive_the_next_calls():
    fast, inputs = compiled(torch.tanh), [torch.randn(7) for _ in range(20)]
    outputs = [fast(x) for x in inputs]
    assert_equal(outputs, [torch.tanh(x) for x in inputs])


def test_strides_are_pytorchs():
    def function(x):
        y = F.conv2d(x, torch.ones(4, 3, 3, 3))
        return y, y.permute(0, 2, 3, 1), (x * 2).sum(1, keepdim=True).expand(2, 4, 8, 8), y.transpose(0, 1).relu()

    for layout in (torch.contiguous_format, torch.channels_last):
        assert_same(function, torch.randn(2, 3, 8, 8).to(memory_format=layout))
    assert_same(lambda x: x @ x.t(), torch.randn(6, 4)[::2])


# ---------------------------------------------------------------- dtypes


def test_dtypes():
    def function(x):
        counts = (x > 0).sum(), x.argmax(), (x * 3).to(torch.int8), (x * 3).to(torch.int16).clamp(0, 5)
        return x > 0, *counts, x.half() * 2, x.bfloat16() * 2, x.double() / 3, x.sum()

    assert_same(function, torch.randn(4, 5))
    assert_same(lambda a, b: (a & b, ~a, a.sum()), torch.randn(4) > 0, torch.randn(4) > 0)
    assert_same(lambda a, b, c: (a * b + 1, c + c), torch.tensor(2.0), torch.tensor(3), torch.randn(3).bfloat16())
    assert_same(lambda x: x * 2 + 1, torch.randn(0, 5))


# ---------------------------------------------------------------- what PyTorch runs


def test_a_graph_break_compiles_both_pieces(builds):
    def function(x):
        y = torch.tanh(x)
        np.zeros(int(y.sum() * 0))  # a value that Dynamo does not know
        return y * 2 + x

    assert_same(function, torch.randn(3))
    assert len(builds()) >= 2


def writes(x):
    x.add_(1)
    return x.sum()


def counts(x):
    x[0] = 5
    return x[1] * 2, x.sum()


LEFT_OUT = {
    "an operator that the importer lacks": (lambda x: torch.linalg.svd(x + 1)[1] * 2, "lacks .*svd"),
    "random numbers": (lambda x: torch.rand(3).relu() * 0 + x, "draws random numbers"),
    "an input that is written to": (writes, "writes to its inputs"),
    "a part of an input that is written to": (counts, "writes to its inputs"),
    "a view of an input that is written to": (lambda x: (x.detach().t().add_(1) * 2).sum(), "writes to its inputs"),
    "strides of its own": (lambda x: torch.as_strided(x.t().clone(), (9,), (1,)) * 2, "as_strided reads the memory"),
    "complex results": (lambda x: torch.fft.fft(x), "complex"),
    "elements that overlap": (lambda x: (x * 2).unfold(0, 2, 1), "overlap"),
    "bits as another dtype": (lambda x: x.view(torch.int32), "another dtype"),
}


@pytest.mark.parametrize("case", LEFT_OUT)
def test_what_cannot_be_compiled_runs_in_pytorch_and_one_warning_says_why(case):
    function, reason = LEFT_OUT[case]
    x = torch.randn(3, 3)
    fast, copy = compiled(function), x.clone()
    with pytest.warns(UserWarning) as caught:
        got = fast(copy)
    mine = [str(warning.message) for warning in caught if LEFT in str(warning.message)]
    assert len(mine) == 1 and re.search(reason, mine[0])
    want = function(x)
    assert all(map(torch.equal, pytree.tree_leaves((got, copy)), pytree.tree_leaves((want, x))))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fast(copy)


# ---------------------------------------------------------------- training


def test_gradients_are_refused():
    net, x = nn.Linear(3, 2), torch.randn(4, 3)
    with torch.enable_grad(), pytest.raises(Exception, match=r"for inference.*torch\.no_grad\(\)"):
        compiled(net)(x)
    fast = compiled(net)
    fast(x)
    with torch.enable_grad(), pytest.raises(Exception, match="for inference"):
        fast(x)
    net.requires_grad_(False)
    with torch.enable_grad():
        assert_equal(fast(x), net(x))
        with pytest.raises(Exception, match="for inference"):
            fast(x.clone().requires_grad_())


@pytest.mark.parametrize(
    "net", [nn.Sequential(nn.Linear(3, 3), nn.Dropout()), nn.BatchNorm1d(3)], ids=["dropout", "bn"]
)
def test_training_mode_is_refused(net):
    fast, x = compiled(net), torch.randn(4, 3)
    net.train()
    with pytest.raises(ValueError, match=r"training mode.*call net\.eval\(\)"):
        fast(x)
    net.eval()
    assert_equal(fast(x), net(x))


def test_gradients_that_the_network_itself_switches_off():
    net, x = nn.Linear(3, 2), torch.randn(4, 3)

    def function(context):
        def inside(x):
            with context():
                return net(x) + 1

        return inside

    with torch.enable_grad():
        for context in (torch.no_grad, torch.inference_mode):
            assert_same(function(context), x)
        assert_same(lambda x: net(x).detach(), x)


def test_batch_norm_without_statistics_is_no_training():
    assert_same(nn.BatchNorm2d(3, track_running_stats=False).eval(), torch.randn(2, 3, 4, 4))
