"""Operators of com.microsoft, as ONNX Runtime's optimizer writes them, against its kernels."""

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
import torch.nn.functional as F
from agreement import close
from onnx import helper, numpy_helper
from testing import sampled

from tvmfast import Dim, build, from_onnx

LEVELS = [0, 3]
MS = {"domain": "com.microsoft"}


def model_of(nodes: list, feed: dict, outputs: dict, weights: dict | None = None, opset: int = 17, dims=()):
    """A model of nodes; `outputs` have their ranks, or a dtype and a rank, and `dims` of each input are dynamic."""

    def value(name, array):
        shape = [f"d{n}" if n in dims else n for n in array.shape]
        return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), shape)

    def result(name, what):
        dtype, rank = what if isinstance(what, tuple) else ("float32", what)
        return helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), [f"{name}{n}" for n in range(rank)]
        )

    graph = helper.make_graph(
        nodes,
        "g",
        [value(*each) for each in feed.items()],
        [result(*each) for each in outputs.items()],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in (weights or {}).items()],
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def runtime(model: onnx.ModelProto, feed: dict) -> list[np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"]).run(None, feed)


def agree(model, feeds: dict | list[dict], terms: int, level: int, scale=None, inputs=None):
    lib = build(*from_onnx(model, inputs), opt_level=level)
    for feed in feeds if isinstance(feeds, list) else [feeds]:
        results, wanted = lib(*feed.values()), runtime(model, feed)
        results = results if isinstance(results, tuple | list) else [results]
        assert [each.dtype for each in results] == [each.dtype for each in wanted]
        close(results, wanted, terms, rounded=True, scale=scale)


def normal(rng, *shape, dtype="float32"):
    return rng.standard_normal(shape).astype(dtype)


@pytest.mark.parametrize(("opset", "level"), [(13, 0), (20, 3)])
def test_functions_of_each_element(rng, level, opset):
    nodes = [
        helper.make_node("Gelu", ["x"], ["y0"], **MS),
        helper.make_node("BiasGelu", ["x", "bias"], ["y1"], **MS),
        helper.make_node("FastGelu", ["x"], ["y2"], **MS),
        helper.make_node("FastGelu", ["x", "bias"], ["y3"], **MS),
        helper.make_node("QuickGelu", ["x"], ["y4"], **MS),
        helper.make_node("QuickGelu", ["x"], ["y5"], alpha=1.0, **MS),
    ]
    x = normal(rng, 3, 4, 20) * 4
    x[0, 0, :8] = np.nan, np.inf, 0, -0.0, 1e-30, -1e-30, 3e38, 60
    feed = {"x": x}
    model = model_of(nodes, feed, {f"y{n}": 3 for n in range(6)}, {"bias": normal(rng, 20)}, opset, dims=(3,))
    agree(model, [feed, {"x": x[:2].copy()}], terms=16, level=level)


@pytest.mark.parametrize("level", sampled(LEVELS, [3]))
def test_products(rng, level):
    kinds = [
        ({"alpha": 0.125}, (2, 3, 4, 5), (2, 3, 5, 6)),
        ({"transA": 1, "alpha": -2.0}, (3, 5, 4), (5, 6)),
        ({"transB": 1}, (2, 3, 4, 5), (3, 6, 5)),
        ({"transA": 1, "transB": 1}, (5, 4), (2, 6, 5)),
        ({"transBatchA": 1}, (4, 2, 3, 5), (2, 3, 5, 6)),
        ({"transBatchA": 1, "transBatchB": 1, "transB": 1, "alpha": 3.0}, (4, 2, 5), (6, 2, 5)),
        ({"transBatchB": 1, "transA": 1}, (2, 5, 4), (5, 2, 6)),
    ]
    nodes, feed = [], {}
    for n, (how, a, b) in enumerate(kinds):
        feed |= {f"a{n}": normal(rng, *a), f"b{n}": normal(rng, *b)}
        nodes.append(helper.make_node("FusedMatMul", [f"a{n}", f"b{n}"], [f"y{n}"], **how, **MS))
    outputs = {f"y{n}": max(len(a), len(b)) for n, (_, a, b) in enumerate(kinds)}
    agree(model_of(nodes, feed, outputs), feed, terms=5, level=level, scale=20)
    weights = {"w": normal(rng, 5, 6), "c": normal(rng, 6)}
    nodes = [
        helper.make_node("FusedGemm", ["x", "w", "c"], [f"y{n}"], activation=name, alpha=0.5, beta=2.0, **how, **MS)
        for n, (name, how) in enumerate([("Relu", {}), ("LeakyRelu", {"activation_alpha": 0.2}), ("Tanh", {})])
    ]
    feed = {"x": normal(rng, 4, 5)}
    agree(model_of(nodes, feed, {"y0": 2, "y1": 2, "y2": 2}, weights), feed, terms=7, level=level, scale=5)


@pytest.mark.parametrize("level", sampled(LEVELS, [3]))
@pytest.mark.parametrize("opset", [10, 17])
def test_convolutions(rng, level, opset):
    weights = {"w": normal(rng, 6, 4, 3, 3), "b": normal(rng, 6), "z": normal(rng, 1, 6, 6, 8)}
    nodes = [
        helper.make_node("FusedConv", ["x", "w", "b"], ["y0"], activation="Relu", **MS),
        helper.make_node("FusedConv", ["x", "w"], ["y1"], activation="LeakyRelu", activation_params=[0.3], **MS),
        helper.make_node("FusedConv", ["x", "w", "b", "z"], ["y2"], activation="Relu", pads=[1, 1, 0, 0], **MS),
        helper.make_node("FusedConv", ["x", "w"], ["y3"], activation="Clip", activation_params=[-1.0, 2.0], **MS),
        helper.make_node("FusedConv", ["x", "w", "b"], ["y4"], activation="Sigmoid", strides=[2, 2], **MS),
        helper.make_node("FusedConv", ["x", "w"], ["y5"], activation="HardSigmoid", activation_params=[0.3, 0.4], **MS),
        helper.make_node("FusedConv", ["x", "w", "b"], ["y6"], **MS),
    ]
    weights["z"] = normal(rng, 1, 6, 6, 8)
    feed = {"x": normal(rng, 1, 4, 7, 9)}
    agree(model_of(nodes, feed, {f"y{n}": 4 for n in range(7)}, weights, opset), feed, terms=38, level=level, scale=20)


@pytest.mark.parametrize(("opset", "level"), [(12, 0), (17, 3), (18, 0), (18, 3)])
def test_normalization(rng, level, opset):
    weights = {"gamma": normal(rng, 32), "beta": normal(rng, 32), "bias": normal(rng, 32)}
    nodes = [
        helper.make_node("SkipLayerNormalization", ["x", "skip", "gamma", "beta", "bias"], ["y0", "", "", "s0"],
                         epsilon=1e-5, **MS),
        helper.make_node("SkipLayerNormalization", ["x", "row", "gamma", "beta"], ["y1"], **MS),
        helper.make_node("SkipLayerNormalization", ["x", "skip", "gamma"], ["y2"], **MS),
        helper.make_node("SkipSimplifiedLayerNormalization", ["x", "skip", "gamma", "bias"], ["y3", "", "", "s3"],
                         **MS),
        helper.make_node("SkipSimplifiedLayerNormalization", ["s3", "skip", "gamma"], ["y4"], epsilon=1e-3, **MS),
        helper.make_node("SimplifiedLayerNormalization", ["x", "gamma"], ["y5"], axis=-1, epsilon=1e-6),
        helper.make_node("LayerNormalization", ["s0", "gamma", "beta"], ["y6"], axis=-1),
        helper.make_node("Gelu", ["y6"], ["y7"], **MS),
    ]  # fmt: skip
    feed = {"x": normal(rng, 2, 7, 32), "skip": normal(rng, 2, 7, 32), "row": normal(rng, 1, 7, 32)}
    outputs = dict.fromkeys(("y0", "s0", "y1", "y2", "y3", "s3", "y4", "y5", "y6", "y7"), 3)
    model = model_of(nodes, feed, outputs, weights, opset, dims=(7,))
    feeds = [feed, {name: x[:, :3].copy() for name, x in feed.items()}]
    agree(model, feeds, terms=64, level=level, scale=12)


@pytest.mark.parametrize("level", sampled(LEVELS, [3]))
def test_embeddings(rng, level):
    weights = {"words": normal(rng, 50, 16), "places": normal(rng, 20, 16), "kinds": normal(rng, 2, 16)}
    weights |= {"gamma": normal(rng, 16), "beta": normal(rng, 16)}
    tables = ["words", "places", "kinds", "gamma", "beta"]
    op = "EmbedLayerNormalization"
    nodes = [
        helper.make_node(op, ["ids", "segments", *tables, "mask"], ["y0", "m0", "s0"], **MS),
        helper.make_node(op, ["ids", "", "words", "places", "", "gamma", "beta", "", "at"], ["y1", "m1"], **MS),
        helper.make_node(op, ["ids", "segments", *tables], ["y2", ""], epsilon=1e-3, **MS),
    ]
    feed = {"ids": rng.integers(0, 50, (2, 9)).astype("int32"), "segments": rng.integers(0, 2, (2, 9)).astype("int32")}
    feed |= {"mask": np.array([[1] * 9, [1] * 5 + [0] * 4], "int32")}
    feed |= {"at": rng.integers(0, 20, (2, 9)).astype("int32")}
    outputs = {"y0": 3, "m0": ("int32", 1), "s0": 3, "y1": 3, "m1": ("int32", 1), "y2": 3}
    model = model_of(nodes, feed, outputs, weights, dims=(9,))
    length = {name: (2, Dim("length", 2, 20)) for name in feed}
    feeds = [feed, {name: x[:, 2:7].copy() for name, x in feed.items()}]
    agree(model, feeds, terms=32, level=level, scale=10, inputs=length)
    lib = build(*from_onnx(model, dict.fromkeys(feed, (2, 9))), opt_level=level)
    for wrong in (-1, 50):
        with pytest.raises(IndexError):
            lib(*(feed | {"ids": np.full((2, 9), wrong, "int32")}).values())


ATTENTION = {  # attributes, and the shape of the mask
    "plain": ({}, None),
    "lengths": ({}, (2,)),
    "of keys": ({"mask_filter_value": -300.0}, (2, 7)),
    "of pairs": ({"scale": 0.3}, (2, 7, 7)),
    "causal": ({"unidirectional": 1}, None),
    "causal, of keys": ({"unidirectional": 1}, (2, 7)),
    "of other sizes": ({"qkv_hidden_sizes": [24, 24, 36]}, (2, 7)),
}


@pytest.mark.parametrize(
    ("kind", "level", "opset"),
    [
        *((kind, 3 * (n % 2), 17) for n, kind in enumerate(ATTENTION)),
        *((kind, 0, opset) for kind in ("plain", "of other sizes") for opset in (12, 18)),  # of Split
    ],
)
def test_attention(rng, kind, level, opset):
    how, shape = ATTENTION[kind]
    size = sum(how.get("qkv_hidden_sizes", [24] * 3))
    weights = {"w": normal(rng, 24, size), "b": normal(rng, size)}
    feed = {"x": normal(rng, 2, 7, 24)}
    if shape:
        feed["mask"] = np.array([7, 3], "int32") if len(shape) == 1 else (rng.random(shape) < 0.7).astype("int32")
        if len(shape) > 1:
            feed["mask"][..., 0] = 1
    names = ["x", "w", "b", "mask" if shape else ""]
    nodes = [
        helper.make_node("Attention", names, ["y0"], num_heads=3, **how, **MS),
        helper.make_node("Attention", [*names, "", "bias"], ["y1"], num_heads=3, **how, **MS),
    ]
    feed["bias"] = normal(rng, 2, 3, 7, 7)
    model = model_of(nodes, feed, {"y0": 3, "y1": 3}, weights, opset, dims=(7,))
    agree(model, feed, terms=24 * 8, level=level, scale=100)


@pytest.mark.parametrize("level", sampled(LEVELS, [0]))
def test_attention_with_a_past(rng, level):
    weights = {"w": normal(rng, 24, 72), "b": normal(rng, 72)}
    feed = {"x": normal(rng, 2, 4, 24), "past": normal(rng, 2, 2, 3, 5, 8), "mask": np.ones((2, 9), "int32")}
    feed["mask"][1, :2] = 0
    node = helper.make_node("Attention", ["x", "w", "b", "mask", "past"], ["y", "present"], num_heads=3,
                            unidirectional=1, **MS)  # fmt: skip
    agree(model_of([node], feed, {"y": 3, "present": 5}, weights), feed, terms=24 * 8, level=level, scale=100)


MULTI_HEAD = ["plain", "bias", "mask", "causal", "past", "cross", "bias of scores"]


@pytest.mark.parametrize(("kind", "level"), [(kind, 3 * (n % 2)) for n, kind in enumerate(MULTI_HEAD)])
def test_multi_head_attention(rng, kind, level):
    how, weights, outputs = {"num_heads": 3}, {}, {"y": 3}
    feed = {"q": normal(rng, 2, 7, 24), "k": normal(rng, 2, 7, 24), "v": normal(rng, 2, 7, 24)}
    names = ["q", "k", "v", *[""] * 5]
    if kind == "bias":
        weights["b"], names[3] = normal(rng, 72), "b"
    if kind == "mask":
        feed["mask"], names[4] = np.array([[1] * 7, [1] * 4 + [0] * 3], "int32"), "mask"
    if kind == "causal":
        how |= {"unidirectional": 1, "scale": 0.2}
    if kind == "past":
        feed |= {"pk": normal(rng, 2, 3, 5, 8), "pv": normal(rng, 2, 3, 5, 8)}
        names[6:], outputs = ["pk", "pv"], {"y": 3, "nk": 4, "nv": 4}
    if kind == "cross":
        feed |= {"k": normal(rng, 2, 3, 9, 8), "v": normal(rng, 2, 3, 9, 8)}
    if kind == "bias of scores":
        feed["s"], names[5] = normal(rng, 1, 3, 7, 7), "s"
    nodes = [helper.make_node("MultiHeadAttention", names, list(outputs), **how, **MS)]
    dims = (7, 5) if kind == "past" else (7,)
    agree(model_of(nodes, feed, outputs, weights, dims=dims), feed, terms=24 * 8, level=level, scale=20)


def test_packed_heads(rng):
    """ONNX Runtime has these on GPUs alone: the same numbers, apart, on a CPU."""
    packed, keys = normal(rng, 2, 7, 3, 3, 8), normal(rng, 2, 5, 3, 2, 8)
    apart = [packed[:, :, :, n].reshape(2, 7, 24) for n in range(3)]
    query, pair = apart[0], [keys[:, :, :, n].reshape(2, 5, 24) for n in range(2)]
    for whole, parts in (({"q": packed}, apart), ({"q": query, "k": keys}, [query, *pair])):
        split = dict(zip("qkv", parts, strict=True))
        models = [
            model_of([helper.make_node("MultiHeadAttention", list(feed), ["y"], num_heads=3, **MS)], feed, {"y": 3})
            for feed in (whole, split)
        ]
        (wanted,) = runtime(models[1], split)
        close(build(*from_onnx(models[0]), opt_level=3)(*whole.values()), wanted, terms=24 * 8, rounded=True, scale=20)


@pytest.mark.parametrize(("interleaved", "level"), [(0, 0), (1, 3)])
def test_rotary_embedding(rng, interleaved, level):
    """Heads that are one axis or apart, whole or in part, at positions that are given or counted."""
    angles = rng.uniform(-np.pi, np.pi, (30, 4))
    weights = {"cos": np.cos(angles).astype("float32"), "sin": np.sin(angles).astype("float32")}
    feed = {"x": normal(rng, 2, 5, 24), "apart": normal(rng, 2, 3, 5, 8), "wide": normal(rng, 2, 5, 36)}
    feed |= {"at": rng.integers(0, 30, (2, 5)), "first": np.array([7])}
    kinds = [("x", "at", {}), ("x", "first", {"num_heads": 3}), ("apart", "at", {}), ("apart", "first", {})]
    kinds.append(("wide", "at", {"num_heads": 3, "rotary_embedding_dim": 8}))
    nodes = [
        helper.make_node("RotaryEmbedding", [x, at, "cos", "sin"], [f"y{n}"], interleaved=interleaved, **how, **MS)
        for n, (x, at, how) in enumerate(kinds)
    ]
    outputs = {f"y{n}": feed[x].ndim for n, (x, *_) in enumerate(kinds)}
    model = model_of(nodes, feed, outputs, weights, dims=(5,))
    at = {"x": (2, "length", 24), "apart": (2, 3, "length", 8), "wide": (2, "length", 36), "at": (2, "length")}
    shorter = {name: np.ascontiguousarray(x.take(range(3), at[name].index("length")) if name in at else x)
               for name, x in feed.items()}  # fmt: skip
    agree(model, [feed, shorter], terms=4, level=level)


def test_operators_that_onnx_runtime_has_on_gpus_alone(rng):
    """They are what ONNX Runtime says of them, in float64."""
    weights = {"b": normal(rng, 10), "w": normal(rng, 6, 3, 3, 4), "c": normal(rng, 6)}
    weights |= {"g": normal(rng, 4), "h": normal(rng, 4)}
    feed = {"x": normal(rng, 2, 7, 10), "skip": normal(rng, 2, 7, 10), "image": normal(rng, 2, 7, 9, 4)}
    feed |= {"first": normal(rng, 2, 4, 5, 3), "row": normal(rng, 2, 4)}
    nodes = [
        helper.make_node("BiasAdd", ["x", "b", "skip"], ["y0"], **MS),
        helper.make_node("BiasSplitGelu", ["x", "b"], ["y1"], **MS),
        helper.make_node("NhwcConv", ["image", "w", "c"], ["y2"], strides=[2, 1], pads=[1, 0, 0, 1], **MS),
        helper.make_node("GroupNorm", ["image", "g", "h"], ["y3"], groups=2, activation=1, **MS),
        helper.make_node("GroupNorm", ["first", "g", "h"], ["y4"], groups=4, channels_last=0, epsilon=0.1, **MS),
        helper.make_node("SkipGroupNorm", ["image", "g", "h", "row", "g"], ["y5", "y6"], groups=1, **MS),
    ]
    wide = {name: torch.from_numpy(x.astype("float64")) for name, x in (feed | weights).items()}
    left, right = (wide["x"] + wide["b"]).chunk(2, -1)
    image = F.pad(wide["image"].permute(0, 3, 1, 2), (0, 1, 1, 0))
    convolved = F.conv2d(image, wide["w"].permute(0, 3, 1, 2), wide["c"], stride=(2, 1)).permute(0, 2, 3, 1)
    total = wide["image"] + wide["row"][:, None, None] + wide["g"]
    parts, affine = (x.permute(0, 3, 1, 2) for x in (wide["image"], total)), (wide["g"], wide["h"])
    grouped, summed = (F.group_norm(x, n, *affine).permute(0, 2, 3, 1) for x, n in zip(parts, (2, 1), strict=True))
    wanted = [wide["x"] + wide["b"] + wide["skip"], left * F.gelu(right), convolved]
    wanted += [F.silu(grouped), F.group_norm(wide["first"], 4, *affine, eps=0.1), summed, total]
    for level in LEVELS:
        model = model_of(nodes, feed, {f"y{n}": x.ndim for n, x in enumerate(wanted)}, weights)
        close(list(build(*from_onnx(model), opt_level=level)(*feed.values())), wanted, terms=64, scale=30)


GROUPED = {  # attributes; the length of the queries and of the past, and how much of that is read for each sequence
    "packed": ({"do_rotary": 1}, 4, 0, [0, 0]),
    "prompts": ({}, 4, 0, [0, 0]),
    "pasts of several lengths": ({"do_rotary": 1}, 1, 5, [5, 2]),
    "pasts with room": ({}, 1, 12, [1, 4]),
    "a past with room": ({}, 4, 12, [3]),
    "prompts with room": ({"do_rotary": 1}, 4, 12, [0, 0]),
    "window": ({"local_window_size": 3, "scale": 0.2}, 4, 5, [5]),
    "bounded": ({"softcap": 2.0}, 4, 5, [5]),
    "bias of scores": ({"softcap": 2.0}, 1, 5, [5, 3]),
}


@pytest.mark.parametrize(("kind", "level"), [(kind, 3 * (1 - n % 2)) for n, kind in enumerate(GROUPED)])
def test_group_query_attention(rng, kind, level):
    """Six heads of queries for two of keys."""
    how, length, before, read = GROUPED[kind]
    batch, most = len(read), max(read) + length
    feed = {name: normal(rng, batch, length, heads * 16) for name, heads in zip("qkv", (6, 2, 2), strict=True)}
    names = [*feed, "", "", "read", "total", *[""] * 4]
    if kind == "packed":
        feed, names[1:3] = {"q": np.concatenate(list(feed.values()), -1)}, ("", "")
    if before:
        feed |= {name: normal(rng, batch, 2, before, 16) for name in ("past_keys", "past_values")}
        names[3:5] = "past_keys", "past_values"
    feed["read"] = np.array(read, "int32") + length - 1
    weights = {"total": np.array(most, "int32")}
    if "do_rotary" in how:
        angles = rng.uniform(-np.pi, np.pi, (30, 8))
        weights |= {"cos": np.cos(angles).astype("float32"), "sin": np.sin(angles).astype("float32")}
        names[7:9] = "cos", "sin"
    if kind == "bias of scores":
        feed["bias"], names[10] = normal(rng, 1, 6, length, most), "bias"
    node = helper.make_node("GroupQueryAttention", names, ["y", "nk", "nv"], num_heads=6, kv_num_heads=2, **how, **MS)
    agree(model_of([node], feed, {"y": 3, "nk": 4, "nv": 4}, weights), feed, terms=16 * 12, level=level, scale=20)
