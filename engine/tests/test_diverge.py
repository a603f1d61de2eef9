"""diverge.py: faults planted in small networks, in what is compared or in the compiler, and named."""

import math
from typing import NamedTuple

import numpy as np
import onnx
import pytest
import torch
import tvm
from onnx import TensorProto, helper, numpy_helper
from testing import Function
from torch import nn
from torch.nn import functional as F
from tvm import relax, te
from tvm.relax import op as R

from tvmfast import diverge, from_onnx, from_pytorch
from tvmfast.compiler import pipeline
from tvmfast.core import annotations
from tvmfast.profiling import steps


class Fault(NamedTuple):
    """A network, its input's shape, what changes the imported module, and the operator that is wrong then."""

    net: nn.Module
    shape: tuple
    plant: object
    operator: str
    dtype: str = "float32"
    reference: str = ""


@relax.expr_functor.mutator
class _Edit(relax.PyExprMutator):
    def __init__(self, mod, edits):
        super().__init__(mod)
        self.edits = edits

    def visit_call_(self, call):
        call = self.visit_expr_post_order(call)
        make = self.edits.get(getattr(call.op, "name", "").removeprefix("relax."))
        return make(call) if make else call


def edit(**edits):
    """Replace the calls of operators, whose names have _ for a dot, by what functions of the call return."""
    by_name = {name.replace("nn_", "nn.").replace("image_", "image."): make for name, make in edits.items()}

    def plant(mod, params):
        mod = mod.clone()
        mod["main"] = relax.utils.copy_with_new_vars(_Edit(mod, by_name).visit_expr(mod["main"]))
        return mod, params

    return plant


def attributes(call, **changes):
    """The call's operator again, with other attributes."""
    kinds = type(call.attrs).__tvm_ffi_type_info__
    fields = {field.name: getattr(call.attrs, field.name) for field in kinds.fields}
    return relax.Call(call.op, call.args, tvm.ir.make_node(kinds.type_key, **{**fields, **changes}))


def weights(change):
    """Change arrays of parameters, given as a dictionary of NumPy arrays."""

    def plant(mod, params):
        arrays = {name: array.numpy() for name, array in params.items()}
        return mod, params | {name: np.ascontiguousarray(array) for name, array in change(arrays).items()}

    return plant


def swapped(arrays):
    return {"0.weight": arrays["2.weight"], "2.weight": arrays["0.weight"]}


def in_training(mod, params):
    mod, params = edit(nn_batch_norm=lambda call: attributes(call, training=True))(mod, params)
    return relax.transform.DecomposeOpsForTraining("main")(mod), params


def wrapping(_mod, _params):
    """Twice an image, and 1, that multiplies before it leaves uint8."""
    builder, x = relax.BlockBuilder(), relax.Var("x", relax.TensorType((3, 5), "uint8"))
    with builder.function("main", [x]):
        with builder.dataflow():
            twice = builder.emit(R.multiply(x, relax.const(2, "uint8")))
            result = builder.emit_output(R.add(R.astype(twice, "float32"), relax.const(1.0)))
        builder.emit_func_output(result)
    return builder.get(), {}


def conv(**options):
    return nn.Conv2d(4, 4, 3, **{"padding": 1, "bias": False, **options})


PIXELS = (1, 4, 8, 8)
norm = nn.BatchNorm2d(4)
norm.running_mean[:], norm.running_var[:] = torch.tensor([0.1, 0.2, 0.3, 0.4]), torch.tensor([0.5, 0.6, 0.7, 0.8])
FAULTS = {
    "weights in the wrong order": Fault(
        nn.Sequential(conv(), nn.ReLU(), conv()), PIXELS, weights(swapped), "nn.conv2d", reference="convolution"
    ),
    "transposed dense weights": Fault(
        nn.Sequential(nn.ReLU(), nn.Linear(6, 6)),
        (2, 6),
        weights(lambda w: {"1.weight": w["1.weight"].T}),
        "permute_dims",
    ),
    "missing bias": Fault(
        nn.Sequential(nn.ReLU(), conv(bias=True), nn.ReLU()), PIXELS, edit(add=lambda call: call.args[0]), "nn.conv2d"
    ),
    "broadcast along the wrong axis": Fault(
        nn.Sequential(nn.Conv2d(4, 8, 3, padding=1), nn.ReLU()),
        PIXELS,
        edit(reshape=lambda call: R.reshape(call.args[0], (1, 1, 1, 8))),
        "add",
    ),
    "stride off by one": Fault(
        nn.Sequential(nn.ReLU(), conv(stride=2), nn.ReLU()),
        PIXELS,
        edit(nn_conv2d=lambda call: attributes(call, strides=[1, 1])),
        "nn.conv2d",
    ),
    "dilation ignored": Fault(
        nn.Sequential(nn.ReLU(), conv(dilation=2, padding=2)),
        PIXELS,
        edit(nn_conv2d=lambda call: attributes(call, dilation=[1, 1], padding=[1, 1, 1, 1])),
        "nn.conv2d",
    ),
    "dropped padding": Fault(
        nn.Sequential(nn.ReLU(), conv(), nn.ReLU()),
        PIXELS,
        edit(nn_conv2d=lambda call: attributes(call, padding=[0, 0, 0, 0])),
        "nn.conv2d",
    ),
    "wrong eps": Fault(
        nn.Sequential(conv(), norm, nn.ReLU()),
        PIXELS,
        edit(nn_batch_norm=lambda call: attributes(call, epsilon=1e-3)),
        "nn.batch_norm",
    ),
    "training mode": Fault(
        nn.Sequential(conv(), norm, nn.ReLU()),
        PIXELS,
        in_training,
        "variance",
    ),
    "softmax over the wrong axis": Fault(
        nn.Sequential(nn.ReLU(), nn.Softmax(1)),
        (3, 4, 5),
        edit(nn_softmax=lambda call: R.nn.softmax(call.args[0], axis=2)),
        "nn.softmax",
    ),
    "gelu by tanh": Fault(
        nn.Sequential(nn.ReLU(), nn.GELU(), nn.ReLU()),
        PIXELS,
        edit(nn_gelu=lambda call: R.nn.gelu_tanh(call.args[0])),
        "nn.gelu_tanh",
    ),
    "ceil_mode": Fault(
        nn.Sequential(nn.ReLU(), nn.MaxPool2d(3, 2), nn.ReLU()),
        PIXELS,
        edit(nn_max_pool2d=lambda call: attributes(call, ceil_mode=True)),
        "nn.max_pool2d",
    ),
    "padding counted in an average": Fault(
        nn.Sequential(nn.ReLU(), nn.AvgPool2d(3, 1, 1, count_include_pad=False)),
        PIXELS,
        edit(nn_avg_pool2d=lambda call: attributes(call, count_include_pad=True)),
        "nn.avg_pool2d",
    ),
    "align_corners": Fault(
        Function(lambda x: F.interpolate(x.relu(), scale_factor=2, mode="bilinear", align_corners=True)),
        PIXELS,
        edit(image_resize2d=lambda call: attributes(call, coordinate_transformation_mode="half_pixel")),
        "image.resize2d",
    ),
    "wrong input scale": Fault(
        Function(lambda x: ((x - 0.5) / 0.25).relu()),
        PIXELS,
        edit(divide=lambda call: R.divide(call.args[0], relax.const(0.255, "float32"))),
        "divide",
    ),
    "swapped layout": Fault(
        nn.Sequential(nn.ReLU(), nn.Flatten(), nn.Linear(256, 3)),
        PIXELS,
        edit(reshape=lambda call: R.reshape(R.permute_dims(call.args[0], [0, 2, 3, 1]), (1, 256))),
        "reshape",
    ),
    "float16 overflow": Fault(Function(lambda x: ((x + 100) * (x + 100)) * 10), PIXELS, edit(), "astype", "float16"),
    "uint8 wraps": Fault(
        Function(lambda x: x.float() * 2 + 1),
        (3, 5),
        wrapping,
        "multiply",
        "uint8",
    ),
}


def input_of(fault, rng):
    if fault.dtype == "uint8":
        return rng.integers(100, 255, fault.shape).astype("uint8")
    return rng.standard_normal(fault.shape).astype(fault.dtype)


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_named(name, rng):
    fault = FAULTS[name]
    net = fault.net.eval()
    mod, params = from_pytorch(net, {"x": (fault.shape, fault.dtype)})
    found = diverge(*fault.plant(mod, params), net, input_of(fault, rng))
    assert found.first is not None, found
    assert fault.operator in found.first.operator.split(" + "), found
    assert fault.reference in found.first.reference
    assert found.first.fault in found.summary


class Whole(nn.Module):
    """A convolution with batch norm, a function that is a kernel of its own, and a product: (1, 3, 8, 8) to (1, 5)."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.classify = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Linear(8, 5)

    def forward(self, x):
        x = F.relu(self.norm(self.conv(x)))
        return F.softmax(self.classify(x.mean((2, 3))), 1)


@pytest.fixture(scope="module")
def whole():
    torch.manual_seed(0)
    net = Whole().eval()
    return net, *from_pytorch(net, {"x": (1, 3, 8, 8)}), torch.randn(1, 3, 8, 8)


@pytest.mark.parametrize("beside", ["PyTorch", "itself"])
def test_without_a_fault_all_values_agree(whole, beside):
    net, mod, params, x = whole
    found = diverge(mod, params, net if beside == "PyTorch" else None, x, passes=True)
    assert found.first is None and found.moved_by == "", found
    operators = [value.operator for value in found.values]
    assert operators.count("nn.batch_norm") == 1 and operators[-1] == "the whole build"
    assert any(value.rule for value in found.values)
    assert all(value.error <= value.tolerance and value.cosine > 0.999999 for value in found.values)


def wrong_tail(schedule):
    """The pass that schedules kernels, and leaves out the last element of each row of a mean."""

    def make(simd, lookup=None):
        @tvm.transform.module_pass(opt_level=0, name="ScheduleKernels")
        def run(mod, _context):
            mod = schedule(simd, lookup)(mod).clone()
            (var,) = (var for var, _ in mod.functions_items() if var.name_hint == "mean")
            shapes = [tuple(map(int, each.ty.shape)) for each in mod[var].params]
            x = te.placeholder(shapes[0], "float32", name="x")
            axes = [te.reduce_axis((0, n - (k == 3))) for k, n in enumerate(shapes[0]) if k in (2, 3)]
            sums = te.compute(
                shapes[1],
                lambda *i: te.sum(x[(*i[:2], *axes, *i[4:])] / math.prod(shapes[0][2:4]), axes),
            )
            kernel = te.create_prim_func([x, sums]).without_attr("global_symbol")
            mod.update_func(var, kernel.with_attr(annotations.NAME, mod[var].attrs[annotations.NAME]))
            return mod

        return run

    return make


def test_a_wrong_tail_of_a_schedule_is_named_with_its_kernel_and_its_rule(whole, monkeypatch):
    net, mod, params, x = whole
    monkeypatch.setattr(pipeline, "schedule_kernels", wrong_tail(pipeline.schedule_kernels))
    for reference, passes, by in ((net, False, None), (None, True, "ScheduleKernels")):
        found = diverge(mod, params, reference, x, passes)
        assert (found.first.operator, found.moved_by) == ("mean", by), found
        assert found.first.rule.startswith("default") and found.first.rule in found.summary


def wrong_order():
    """A pass that folds a batch norm with the shift before the scale."""

    @tvm.transform.module_pass(opt_level=0, name="FoldBatchNorm")
    def run(mod, _context):
        def fold(call):
            x, scale, shift, mean, variance = call.args
            zero = R.zeros_like(shift)
            moved = R.add(x, R.reshape(shift, (1, -1, 1, 1)))
            return relax.Call(call.op, [moved, scale, zero, mean, variance], call.attrs)

        return edit(nn_batch_norm=fold)(mod, {})[0]

    return run


def test_a_wrong_order_of_folding_is_named_by_its_pass(whole, monkeypatch):
    _, mod, params, x = whole
    params = params | {"norm.bias": np.linspace(1, 2, 8, dtype="float32"), "norm.running_var": np.full(8, 4, "float32")}
    monkeypatch.setattr(pipeline, "fold_batch_norm", wrong_order)
    found = diverge(mod, params, None, x, passes=True)
    assert (found.first.operator, found.moved_by) == ("the whole build", "FoldBatchNorm"), found


def test_of_passes_of_ones_own_the_wrong_one_is_named(whole):
    _, mod, params, x = whole
    good = [relax.transform.DecomposeOpsForInference(), relax.transform.CanonicalizeBindings()]
    bad = tvm.transform.module_pass(
        lambda mod, _: edit(nn_relu=lambda call: R.abs(call.args[0]))(mod, {})[0], opt_level=0, name="Careless"
    )
    after = [relax.transform.LegalizeOps(), relax.transform.FuseOps(), relax.transform.FuseTIR()]
    found = diverge(mod, params, None, x, passes=[*good, bad, *after])
    assert (found.first, found.moved_by) == (None, "Careless"), found


# ---------------------------------------------------------------- other references


@pytest.fixture(scope="module")
def onnx_model():
    rng = np.random.default_rng(0)
    arrays = {
        "w1": rng.standard_normal((4, 3, 3, 3)),
        "b1": rng.standard_normal(4),
        "w2": rng.standard_normal((4, 4, 3, 3)),
        "w3": rng.standard_normal((4, 5)),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["a"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Conv", ["b", "w2"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Add", ["b", "c"], ["d"]),
        helper.make_node("GlobalAveragePool", ["d"], ["e"]),
        helper.make_node("Flatten", ["e"], ["f"]),
        helper.make_node("MatMul", ["f", "w3"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 5])],
        [numpy_helper.from_array(array.astype("float32"), name) for name, array in arrays.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    return model


def test_an_onnx_file_is_a_reference_by_its_inner_values(onnx_model, rng, tmp_path):
    x = rng.standard_normal((1, 3, 8, 8)).astype("float32")
    mod, params = from_onnx(onnx_model)
    file = tmp_path / "small.onnx"
    onnx.save(onnx_model, file)
    found = diverge(mod, params, file, x)
    assert found.first is None, found
    assert {value.reference for value in found.values} >= set("abcdefy")
    wrong = params | {"w2": params["w2"].numpy().transpose(1, 0, 2, 3).copy()}
    for reference in (onnx_model, onnx_model.SerializeToString()):
        assert diverge(mod, wrong, reference, x).first.reference == "c"


def test_a_symbol_of_mxnet_is_a_reference_by_its_internals(rng):
    mx = pytest.importorskip("mxnet")
    from tvmfast import from_mxnet

    x = mx.sym.Variable("data")
    x = mx.sym.Convolution(x, kernel=(3, 3), num_filter=4, pad=(1, 1), name="conv")
    x = mx.sym.BatchNorm(x, fix_gamma=False, eps=1e-3, name="norm")
    x = mx.sym.Activation(x, act_type="relu", name="relu")
    symbol = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(x, num_hidden=5, name="dense"), name="softmax")
    shapes, _, held = symbol.infer_shape(data=(1, 3, 8, 8))
    args = dict(zip(symbol.list_arguments(), shapes, strict=True))
    given = {name: shape for name, shape in args.items() if name not in ("data", "softmax_label")}
    arrays = {name: rng.standard_normal(shape).astype("float32") for name, shape in given.items()}
    for name, shape in zip(symbol.list_auxiliary_states(), held, strict=True):
        arrays[name] = rng.uniform(0.5, 1, shape).astype("float32")
    data = rng.standard_normal((1, 3, 8, 8)).astype("float32")
    mod, params = from_mxnet(symbol, arrays, {"data": (1, 3, 8, 8)})
    for reference in (symbol, (symbol, arrays)):
        found = diverge(mod, params, reference, data)
        assert found.first is None, found
        assert {value.reference for value in found.values} >= {"conv_output", "norm_output", "dense_output"}
    plant = edit(nn_batch_norm=lambda call: attributes(call, epsilon=1e-2))
    assert diverge(*plant(mod, params), symbol, data).first.reference == "norm_output"


def test_the_reference_need_not_be_what_was_imported(tmp_path):
    net, x = (
        nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 5)).eval(),
        torch.randn(1, 3, 8, 8),
    )
    torch.onnx.export(net, (x,), str(tmp_path / "net.onnx"), dynamo=False, opset_version=17, input_names=["x"])
    found = diverge(*from_onnx(tmp_path / "net.onnx"), net, x)
    assert found.first is None, found
    assert {"convolution", "relu", "addmm"} <= {value.reference for value in found.values}


# ---------------------------------------------------------------- memory, arguments


def test_values_are_held_for_as_long_as_they_are_read(whole, monkeypatch):
    net, mod, params, x = whole
    held, run = [], steps.Graph.run

    def watched(graph, start, stop, known, *changes):
        held.append((stop - start, len(known)))
        return run(graph, start, stop, known, *changes)

    monkeypatch.setattr(steps.Graph, "run", watched)
    found = diverge(mod, params, net, x, limit=1)
    assert max(number for number, _ in held) < 4 and max(known for _, known in held) < 5
    assert len(held) > 10 and found.first is None
    assert [value.name for value in found.values] == [value.name for value in diverge(mod, params, net, x).values]


def test_wrong_arguments_are_errors_that_say_so(whole):
    net, mod, params, x = whole
    with pytest.raises(TypeError, match="mod: expected a tvm.IRModule"):
        diverge(net, params, net, x)
    with pytest.raises(TypeError, match=r"expected 1 input \(x: float32\[1, 3, 8, 8\]\), got 0"):
        diverge(mod, params, net)
    with pytest.raises(ValueError, match="got float64"):
        diverge(mod, params, net, x.double())
    with pytest.raises(TypeError, match="reference: expected a PyTorch module"):
        diverge(mod, params, 5, x)
    with pytest.raises(ValueError, match="training mode"):
        diverge(mod, params, Whole().train(), x)
    with pytest.raises(ValueError, match="static dims, this module has batch"):
        diverge(*from_pytorch(net, {"x": ("batch", 3, 8, 8)}), net, x)


def test_the_result_is_a_table(whole):
    net, mod, params, x = whole
    fault = edit(nn_relu=lambda call: R.abs(call.args[0]))
    found = diverge(*fault(mod, params), net, x)
    frame = found.frame()
    assert frame["operator"].tolist()[:3] == ["nn.conv2d + add", "nn.batch_norm", "abs"]
    assert "fault" in frame and "NaN" not in frame
    assert "1x8x8x8" in str(found) and "the first value" in found._repr_html_().lower()
