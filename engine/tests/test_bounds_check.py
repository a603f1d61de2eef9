"""An index out of range raises before a kernel uses it, whatever the framework, and one from the end counts where the
framework says so. One build serves all operators of a framework: each has an input of its own for its indices.
"""

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
import torch.nn.functional as F
import tvm
from agreement import close, reference
from emulated_gpu import run_emulated
from onnx import TensorProto, helper, parser
from testing import Function
from torchvision.ops import roi_align
from tvm import relax
from tvm.relax import op as R

import tvmfast
from tvmfast.core.bounds_check import checked

X = np.random.default_rng(15).random((4, 5), "float32")
ROW = torch.ones(1, 5)

# By name: the operator, its indices, whether they may count from the end, and how many there are of what they count.
OF_TORCH = {
    "gather": (lambda x, i: torch.gather(x, 0, i), (2, 5), False, 4),
    "index_select": (lambda x, i: x.index_select(1, i), (3,), False, 5),
    "embedding": (lambda x, i: F.embedding(i, x), (2, 3), False, 4),
    "index": (lambda x, i: x[:, i], (2, 2), True, 5),
    "index of two": (lambda x, i: x.reshape(2, 2, 5)[:, i.reshape(2, 1), i], (2,), True, 2),
    "scatter": (lambda x, i: x.scatter(0, i, ROW), (1, 5), False, 4),
    "scatter of a number": (lambda x, i: x.scatter(-1, i, 2.0), (4, 1), False, 5),
    "scatter_add": (lambda x, i: x.scatter_add(0, i, ROW), (1, 5), False, 4),
    "index_add": (lambda x, i: x.index_add(1, i, x[:, :2], alpha=2), (2,), False, 5),
    "index_copy": (lambda x, i: x.index_copy(0, i, ROW), (1,), False, 4),
    "index_put": (lambda x, i: x.index_put((i,), ROW), (1,), True, 4),
    "index_put behind": (lambda x, i: torch.ops.aten.index_put(x, [None, i], x[:, :1]), (1,), True, 5),
    "index_put, summed": (lambda x, i: x.index_put((i, i), x[0, :3], accumulate=True), (3,), True, 4),
    "index_put of index_fill": (lambda x, i: x.index_fill(0, i, 3.0), (1,), True, 4),
    "one_hot": (lambda x, i: F.one_hot(i, 7) + 0 * x[0, 0].long(), (3,), False, 7),
    "gather of a loss": (lambda x, i: F.nll_loss(x, i, reduction="none"), (4,), False, 5),
}


def _all_of_torch(x, *indices):
    return tuple(function(x, i) for (function, *_), i in zip(OF_TORCH.values(), indices, strict=True))


@pytest.fixture(scope="module")
def of_torch():
    zeros = [np.zeros(shape, "int64") for _, shape, *_ in OF_TORCH.values()]
    return tvmfast.build(*tvmfast.from_pytorch(Function(_all_of_torch).eval(), [X, *zeros]), opt_level=1), zeros


def test_indices_pick_what_pytorch_says(of_torch):
    net, _ = of_torch
    rng = np.random.default_rng(0)
    for least in (-1, 0):  # without and with those that count from the end
        indices = [
            np.resize(rng.permutation(np.arange(least * size * negative, size)), shape)
            for _, shape, negative, size in OF_TORCH.values()
        ]
        indices[5] = np.arange(5).reshape(1, 5) % 4  # each element is written once
        close(net(X, *indices), reference(_all_of_torch, X, *indices))


@pytest.mark.parametrize("name", OF_TORCH)
def test_pytorchs_indices_are_checked(of_torch, name):
    net, zeros = of_torch
    function, _, negative, size = OF_TORCH[name]
    least, argument = -size if negative else 0, list(OF_TORCH).index(name)
    operator = name.split()[0].rstrip(",")
    for wrong in (size, least - 1, 1000, 10**9, -(2**63)):
        indices = [each.copy() for each in zeros]
        indices[argument].flat[-1] = wrong
        with pytest.raises((IndexError, RuntimeError)):
            function(*map(torch.from_numpy, (X, indices[argument])))
        said = f"^{operator}: expected an index from {least} to {size - 1}, got {wrong}$"
        with pytest.raises(IndexError, match=said):
            net(X, *indices)
    net(X, *zeros)  # and it still runs


# By name: attributes, the shape of indices, of updates, and how many there are of what they count, by column.
OF_ONNX = {
    "Gather": ({"axis": 1}, (2, 2), None, [5]),
    "GatherElements": ({}, (2, 5), None, [4]),
    "GatherND": ({}, (3, 2), None, [4, 5]),
    "ScatterElements": ({}, (1, 5), (1, 5), [4]),
    "ScatterND": ({}, (1, 2), (1,), [4, 5]),
}


def _onnx_model():
    tensor, nodes = helper.make_tensor_value_info, []
    inputs = [tensor("x", TensorProto.FLOAT, X.shape)]
    for name, (attributes, shape, updates, _) in OF_ONNX.items():
        inputs.append(tensor(f"{name}.i", TensorProto.INT64, shape))
        if updates:
            inputs.append(tensor(f"{name}.u", TensorProto.FLOAT, updates))
        nodes.append(
            helper.make_node(
                name, ["x", *(v.name for v in inputs if v.name.startswith(f"{name}."))], [name], **attributes
            )
        )
    outputs = [
        tensor(name, TensorProto.FLOAT, [None] * (3 if name == "Gather" else 1 if name == "GatherND" else 2))
        for name in OF_ONNX
    ]
    graph = helper.make_graph(nodes, "indices", inputs, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def test_onnxs_indices_are_checked():
    model = _onnx_model()
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    net = tvmfast.build(*tvmfast.from_onnx(model), opt_level=1)
    feed = {spec.name: np.ones(spec.shape, spec.dtype) for spec in net.inputs} | {"x": X}
    feed["ScatterElements.u"] *= np.arange(5)
    for name, (_, _, _, sizes) in OF_ONNX.items():
        for column, size in enumerate(sizes):
            for index in (size - 1, -1, -size):
                feed[f"{name}.i"].flat[column] = index
                for output, wanted in zip(net(**feed), session.run(None, feed), strict=True):
                    np.testing.assert_array_equal(output, wanted)
            for wrong in (size, -size - 1, 10**9):
                feed[f"{name}.i"].flat[column] = wrong
                with pytest.raises(IndexError, match=f"^{name}: expected .* from -{size} to {size - 1}, got {wrong}$"):
                    net(**feed)
            feed[f"{name}.i"].flat[column] = 1


IMAGES = np.random.default_rng(16).random((2, 1, 6, 6), "float32")
REGIONS = np.array([[1, 0, 0, 4, 3], [0, 1, 2, 5, 5]], "float32")  # each begins with the index of an image


def test_regions_of_images_that_do_not_exist():
    def aligned(x, rois):
        own = (roi_align(x, rois, 2, scale, 2, aligned) for scale in (1.0, 0.7) for aligned in (False, True))
        return *own, roi_align(x, rois, (2, 1), 0.7, aligned=True), roi_align(x.half(), rois.half(), 2, 0.5, 2)

    net = tvmfast.build(*tvmfast.from_pytorch(Function(aligned).eval(), [IMAGES, REGIONS]), opt_level=1)
    outputs = net(IMAGES, REGIONS)
    assert [str(output.dtype) for output in outputs] == [*["float32"] * 5, "float16"]
    close(outputs, reference(aligned, IMAGES, REGIONS))
    flat = REGIONS.copy()
    flat[1, 4] = flat[1, 2]
    assert not net(IMAGES, flat)[4][1].any()  # as in PyTorch, if it counts the samples itself
    for wrong in (-1, 2, 10**6):
        with pytest.raises(IndexError, match=f"^roi_align: expected an index from 0 to 1, got {wrong}$"):
            net(IMAGES, np.concatenate([REGIONS[:1], REGIONS[1:] + np.array([wrong, 0, 0, 0, 0], "float32")]))


def test_indices_of_onnx_that_count_images_and_elements():
    model = parser.parse_model("""<ir_version: 8, opset_import: ["" : 18]>
        g (float[2, 1, 6, 6] x, float[2, 5] rois, int64[2] images, float[2, 1, 3, 3] small, int64[2, 1, 3, 3] maxima)
        => (float[2, 1, 2, 2] a, float[2, 1, 2, 2] b, float[2, 1, 6, 6] c, float[2, 1, 2, 2] d) {
            from = Constant<value_ints = [1]>() to = Constant<value_ints = [5]>() boxes = Slice(rois, from, to, from)
            a = RoiAlign<output_height = 2, output_width = 2, sampling_ratio = 2>(x, boxes, images)
            d = RoiAlign<output_height = 2, output_width = 2, spatial_scale = 0.7>(x, boxes, images)
            b = MaxRoiPool<pooled_shape = [2, 2]>(x, rois)
            c = MaxUnpool<kernel_shape = [2, 2], strides = [2, 2]>(small, maxima) }""")
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    net = tvmfast.build(*tvmfast.from_onnx(model), opt_level=1)
    feed = {
        "x": IMAGES,
        "rois": REGIONS,
        "images": np.array([1, 0]),
        "small": IMAGES[..., :3, :3].copy(),
        "maxima": np.arange(18).reshape(2, 1, 3, 3) * 4 + 1,
    }
    close(net(**feed), session.run(None, feed), 2 * 2 * 4, rounded=True)  # a mean of samples, each of four pixels
    for name, operator, size in (("images", "RoiAlign", 2), ("rois", "MaxRoiPool", 2), ("maxima", "MaxUnpool", 72)):
        for wrong in (-1, size):
            changed = feed[name].copy()
            changed.flat[0] = wrong
            with pytest.raises(IndexError, match=f"^{operator}: expected an index from 0 to {size - 1}, got {wrong}$"):
                net(**feed | {name: changed})


@pytest.mark.parametrize("kind", ["initializer", "constant"])
def test_indices_that_a_model_holds_are_checked_when_it_is_imported(kind, capsys):
    indices = onnx.numpy_helper.from_array(np.array([1, 4]), "i")
    constant = helper.make_node("Constant", [], ["i"], value=indices)
    graph = helper.make_graph(
        [*([constant] if kind == "constant" else []), helper.make_node("Gather", ["x", "i"], ["y"])],
        "held",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, X.shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (2, 5))],
        [indices] if kind == "initializer" else [],
    )
    with pytest.raises(IndexError, match="^Gather: expected an index from -4 to 3, got 4$"):
        tvmfast.from_onnx(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8))
    assert not capsys.readouterr().out  # TVM prints a node that it fails on


class Positions(torch.nn.Module):
    """Its own indices are a buffer, and then computed from it."""

    def __init__(self, last, offset=0):
        super().__init__()
        self.offset = offset
        self.register_buffer("at", torch.tensor([0, last]))

    def forward(self, x):
        return x[self.at + self.offset if self.offset else self.at]


def test_indices_of_a_buffer_are_checked_before_it_runs():
    with pytest.raises(IndexError, match="^index: .* from -4 to 3, got 4$"):
        tvmfast.from_pytorch(Positions(4).eval(), [X])
    with pytest.raises(IndexError, match="^index: .* from -4 to 3, got 5$"):
        tvmfast.build(*tvmfast.from_pytorch(Positions(3, 2).eval(), [X]))
    net = tvmfast.build(
        *tvmfast.from_pytorch(Positions(3, 2).eval(), [X]), opt_level=1
    )  # which computes nothing beforehand
    with pytest.raises(IndexError, match="^index: .* from -4 to 3, got 5$"):
        net(X)
    net = tvmfast.build(*tvmfast.from_pytorch(Positions(-1, 0).eval(), [X]))
    assert not [kernel for kernel in net.kernels.index if "indices" in kernel]  # nothing is left to check
    np.testing.assert_array_equal(net(X), X[[0, 3]])


def test_every_opt_level_checks_and_a_profile_names_the_check(quick):
    mod, params = tvmfast.from_pytorch(Function(lambda x, i: x[i] * 2).eval(), [X, np.zeros(2, "int64")])
    last = np.array([3, -1])
    for level in (0, 3) if quick else range(4):
        net = tvmfast.build(mod, params, opt_level=level)
        np.testing.assert_array_equal(net(X, last), X[last] * 2)
        with pytest.raises(IndexError, match="^index: expected an index from -4 to 3, got 4$"):
            net(X, np.array([4, 0]))
    assert "checked_indices" in tvmfast.profile(net, X, last, calls=2).kernels
    assert "ChecksToKernels" in {step.name for _, step in tvmfast.trace_build(mod, params)[1].walk()}


def test_saved_networks_and_builds_for_a_gpu_check_as_well(tmp_path, python):
    model = tvmfast.from_pytorch(Function(lambda x, i: x[i]).eval(), [X, np.zeros(2, "int64")])
    tvmfast.build(*model).save(tmp_path / "net")
    said = python(
        "import sys, numpy as np, tvmfast\n"
        f"net = tvmfast.load({str(tmp_path / 'net')!r})\n"
        "try: net(np.zeros((4, 5), 'float32'), np.array([0, 1000]))\n"
        "except IndexError as error: print(error, 'tvm' in sys.modules)"
    )
    assert "index: expected an index from -4 to 3, got 1000 False" in said
    np.testing.assert_array_equal(run_emulated(*model, X, np.array([3, -1])), X[[3, 3]])
    with pytest.raises(IndexError, match="^index: expected an index from -4 to 3, got 4$"):
        run_emulated(*model, X, np.array([3, 4]))


@pytest.mark.parametrize("level", [0, 3])
def test_an_index_or_k_that_is_larger_than_its_data_where_dims_are_dynamic(level):
    n, m = (tvm.tirx.Var(name, "int64") for name in "nm")
    shapes = {"x": ((n, 5), "float32"), "i": ((m, 2), "int64"), "u": ((m, m), "float32"), "z": ((3, n), "float32")}
    x, i, u, z = inputs = [relax.Var(name, relax.TensorType(*each)) for name, each in shapes.items()]
    builder = relax.BlockBuilder()
    with builder.function("main", inputs):
        with builder.dataflow():
            results = R.gather_elements(x, i, 1), R.scatter_elements(x, i, u, 1), R.topk(z, 3, ret_type="indices")
            results = builder.emit_output(relax.Tuple([builder.emit(each) for each in results]))
        builder.emit_func_output(results)
    mod = builder.get()
    mod["main"] = mod["main"].with_attr("num_input", 4)
    net = tvmfast.build(mod, {}, opt_level=level)

    def outputs(n, m):
        i = np.arange(2 * m).reshape(m, 2) % 5
        x, u, z = (np.arange(a * b, dtype="float32").reshape(a, b) for a, b in ((n, 5), (m, m), (3, n)))
        return x, i, u, net(x, i, u, z)

    for n, m in ((3, 2), (4, 4), (5, 3)):
        x, i, u, (gathered, scattered, best) = outputs(n, m)
        np.testing.assert_array_equal(gathered, np.take_along_axis(x[:m], i, 1))
        np.put_along_axis(x[:m], i, u[:, :2], 1)
        np.testing.assert_array_equal(scattered, x)
        np.testing.assert_array_equal(best, [[n - 1, n - 2, n - 3]] * 3)
    for n, m, said in (
        (3, 4, "(gather|scatter)_elements: .* of at most n elements along axis 0, as the data have, got 4"),
        (3, 1, "scatter_elements: .* of at most m elements along axis 1, as the updates have, got 2"),
        (2, 2, "topk: expected k of at most n, the size of axis 1, got 3"),
    ):
        with pytest.raises(IndexError, match=f"^{said}$"):
            outputs(n, m)


@pytest.mark.parametrize(
    ("node", "said"),
    [
        (
            "GatherElements<axis = 1>(x, i)",
            "gather_elements: .* at most 4 elements along axis 0, as the data have, got 6",
        ),
        ("ScatterElements<axis = 1>(x, i, u)", "scatter_elements: .* at most 4 elements along axis 0, .* got 6"),
    ],
    ids=["gather", "scatter"],
)
def test_an_onnx_index_of_static_shape_that_is_larger_than_its_data_is_refused_at_import(node, said):
    model = parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 18]>
        g (float[4, 5] x, int64[6, 2] i, float[6, 2] u) => (float[a, b] y) {{ y = {node} }}""")
    with pytest.raises(ValueError, match=f"^{said}$"):
        tvmfast.from_onnx(model)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16"])
def test_positions_that_narrow_indices_do_not_hold(dtype):
    """An index of -1 into 200 elements is 199, and one into a matrix of 200 columns counts further."""
    builder = relax.BlockBuilder()
    x, i = (
        relax.Var("x", relax.TensorType((200,), "float32")),
        relax.Var("i", relax.TensorType((2,), dtype)),
    )
    with builder.function("main", [x, i]):
        with builder.dataflow():
            inside = checked(i, [200], "take", negative=True, bb=builder)
            y = builder.emit_output(R.take(x, inside, mode="clip"))
        builder.emit_func_output(y)
    mod = builder.get()
    mod["main"] = mod["main"].with_attr("num_input", 2)
    least = -2 if dtype.startswith("int") else 255 - 56
    x, indices = np.arange(200, dtype="float32"), np.array([least, 3], dtype)
    np.testing.assert_array_equal(tvmfast.build(mod, {}, opt_level=0)(x, indices), x[[least, 3]])
    held = checked(relax.const(indices), [200], "take", negative=True)
    np.testing.assert_array_equal(held.value.numpy(), np.arange(200)[[least, 3]])
