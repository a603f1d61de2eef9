"""Relay's operators, expressions, passes and networks of tvmnotes.classic, against NumPy and PyTorch.

All operators of a family are built as one function with a tuple of results; each result is then a test of its own.
"""

import functools
import importlib
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import tvm
import tvm.relax
from torch.nn import functional as F

from tvmnotes import classic
from tvmnotes.classic.ops import OPERATORS

# All results are float32 sums of at most some hundred products of numbers near 1, in another order than NumPy's.
TOLERANCE = {"rtol": 1e-4, "atol": 1e-5}


@pytest.fixture(scope="module", autouse=True)
def _relay():
    """The old API, in this module only."""
    classic.enable()
    yield
    classic.disable()


class _Relay:
    """`tvm.relay`, or a module of it, which are there only while the fixture above holds."""

    def __init__(self, name: str = "tvm.relay"):
        self._name = name

    def __getattr__(self, name):
        return getattr(importlib.import_module(self._name), name)


relay, nn, transform, testing = (_Relay(f"tvm.relay{part}") for part in ("", ".nn", ".transform", ".testing"))


def _arrays() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(2024)
    normal = lambda *shape: rng.standard_normal(shape).astype("float32")  # noqa: E731
    edges = normal(4, 6)
    edges[0, :3] = np.nan, np.inf, -np.inf
    return {
        "m": normal(4, 6), "n": normal(4, 6), "p": rng.uniform(0.5, 2, (4, 6)).astype("float32"),
        "u": rng.uniform(-0.9, 0.9, (4, 6)).astype("float32"), "edges": edges, "row": normal(1, 6), "v": normal(6),
        "i": rng.integers(-20, 20, (4, 6)).astype("int32"), "j": rng.integers(1, 9, (4, 6)).astype("int32"),
        "k": rng.integers(0, 5, (4, 6)).astype("int32"), "b": normal(4, 6) > 0, "c": normal(4, 6) > 0,
        "t": normal(2, 3, 4), "x": normal(2, 6, 8, 10), "seq": normal(2, 4, 9), "vol": normal(1, 2, 5, 6, 7),
        "w": normal(8, 6, 3, 3), "wg": normal(6, 3, 3, 3), "wd": normal(6, 1, 3, 3), "w1": normal(5, 4, 3),
        "w3": normal(3, 2, 3, 3, 3),
        "wt": normal(6, 4, 3, 3), "wt1": normal(4, 3, 3), "dense": normal(5, 6), "bias": normal(6),
        "scale": rng.uniform(0.5, 2, 6).astype("float32"),
        "mean": normal(6), "var": rng.uniform(0.5, 2, 6).astype("float32"), "left": normal(2, 3, 4),
        "right": normal(2, 5, 4),
        "index": rng.integers(0, 4, (3, 2)).astype("int32"), "columns": rng.integers(0, 6, (4, 2)).astype("int64"),
        "points": np.stack([rng.integers(0, 4, 5), rng.integers(0, 6, 5)]).astype("int64"), "one": normal(1, 6, 1),
        "depth": normal(1, 8, 3, 4),
    }  # fmt: skip


A = SimpleNamespace(**_arrays())


def T(name: str) -> torch.Tensor:
    return torch.from_numpy(getattr(A, name))


def _variables() -> SimpleNamespace:
    return SimpleNamespace(**{n: relay.var(n, shape=a.shape, dtype=a.dtype.name) for n, a in vars(A).items()})


def op(name: str):
    """The operator as a script reaches it: relay.exp, nn.relu, relay.image.resize2d."""
    return functools.reduce(getattr, name.split("."), relay)


# ---------------------------------------------------------------- the operators

UNARY = {
    "abs": ("m", np.abs), "acos": ("u", np.arccos), "acosh": ("p", lambda x: np.arccosh(x + 1)), "asin": ("u",
    np.arcsin),
    "asinh": ("m", np.arcsinh), "atan": ("m", np.arctan), "atanh": ("u", np.arctanh), "bitwise_not": ("i",
    np.bitwise_not),
    "ceil": ("m", np.ceil), "cos": ("m", np.cos), "cosh": ("m", np.cosh), "erf": ("m",
    lambda x: torch.erf(torch.from_numpy(x))),
    "exp": ("m", np.exp), "floor": ("m", np.floor), "isfinite": ("edges", np.isfinite), "isinf": ("edges", np.isinf),
    "isnan": ("edges", np.isnan), "log": ("p", np.log), "log2": ("p", np.log2), "log10": ("p", np.log10),
    "logical_not": ("b", np.logical_not), "negative": ("m", np.negative), "ones_like": ("m", np.ones_like),
    "round": ("m", np.round), "rsqrt": ("p", lambda x: 1 / np.sqrt(x)), "sigmoid": ("m",
    lambda x: 1 / (1 + np.exp(-x))),
    "sign": ("m", np.sign), "sin": ("m", np.sin), "sinh": ("m", np.sinh), "sqrt": ("p", np.sqrt), "tan": ("u", np.tan),
    "tanh": ("m", np.tanh), "trunc": ("m", np.trunc), "zeros_like": ("m", np.zeros_like), "nn.relu": ("m",
    lambda x: np.maximum(x, 0)),
    "nn.batch_flatten": ("x", lambda x: x.reshape(2, -1)), "fast_exp": ("m", np.exp), "fast_tanh": ("m", np.tanh),
    "fast_erf": ("m", lambda x: torch.erf(torch.from_numpy(x))), "copy": ("m", np.copy), "identity": ("m", np.copy),
    "annotation.stop_fusion": ("m", np.copy), "shape_of": ("x", lambda x: np.asarray(x.shape, "int32")),
}  # fmt: skip

BINARY = {
    "add": ("m", "row", np.add), "subtract": ("m", "row", np.subtract), "multiply": ("m", "v", np.multiply),
    "divide": ("m", "p", np.divide), "power": ("p", "m", np.power), "mod": ("i", "j", np.fmod), "floor_divide": ("i",
    "j", np.floor_divide),
    "floor_mod": ("i", "j", np.mod), "maximum": ("m", "n", np.maximum), "minimum": ("m", "row", np.minimum),
    "equal": ("i", "k", np.equal),
    "not_equal": ("j", "k", np.not_equal), "less": ("m", "n", np.less), "less_equal": ("j", "k", np.less_equal),
    "greater": ("m", "n", np.greater),
    "greater_equal": ("j", "k", np.greater_equal), "logical_and": ("b", "c", np.logical_and), "logical_or": ("b", "c",
    np.logical_or),
    "logical_xor": ("b", "c", np.logical_xor), "bitwise_and": ("i", "j", np.bitwise_and), "bitwise_or": ("i", "j",
    np.bitwise_or),
    "bitwise_xor": ("i", "j", np.bitwise_xor), "left_shift": ("i", "k", np.left_shift), "right_shift": ("i", "k",
    np.right_shift),
    "atan2": ("m", "n", np.arctan2),
}  # fmt: skip


def _logsumexp(x, axis, keepdims=False):
    return np.log(np.sum(np.exp(x), axis=axis, keepdims=keepdims))


# By operator, and variant behind a colon: what a script writes, and the same in NumPy or PyTorch.
REDUCTIONS = {
    "sum": (lambda v: relay.sum(v.t), lambda: A.t.sum()),
    "sum: axes": (lambda v: relay.sum(v.t, axis=(0, 2), keepdims=True), lambda: A.t.sum((0, 2), keepdims=True)),
    "sum: exclude": (lambda v: relay.sum(v.t, axis=-1, exclude=True), lambda: A.t.sum((0, 1))),
    "max": (lambda v: relay.max(v.t, axis=1), lambda: A.t.max(1)),
    "min": (lambda v: relay.min(v.t, 1), lambda: A.t.min(1)),
    "mean": (lambda v: relay.mean(v.t, axis=[1, 2]), lambda: A.t.mean((1, 2))),
    "prod": (lambda v: relay.prod(v.p, axis=0), lambda: A.p.prod(0)),
    "std": (lambda v: relay.std(v.t, axis=2), lambda: A.t.std(2)),
    "all": (lambda v: relay.all(v.b, axis=0), lambda: A.b.all(0)),
    "any": (lambda v: relay.any(v.b, axis=1, keepdims=True), lambda: A.b.any(1, keepdims=True)),
    "variance": (lambda v: relay.variance(v.t, axis=1), lambda: A.t.var(1)),
    "variance: unbiased": (lambda v: relay.variance(v.t, axis=(0, 2), unbiased=True), lambda: A.t.var((0, 2), ddof=1)),
    "variance: exclude": (lambda v: relay.variance(v.t, axis=1, exclude=True), lambda: A.t.var((0, 2))),
    "logsumexp": (lambda v: relay.logsumexp(v.t, axis=1), lambda: _logsumexp(A.t, 1)),
    "logsumexp: keepdims": (lambda v: relay.logsumexp(v.t, axis=(1, 2), keepdims=True),
                            lambda: _logsumexp(A.t, (1, 2), True)),
    "argmax": (lambda v: relay.argmax(v.m, axis=1), lambda: A.m.argmax(1).astype("int32")),
    "argmin": (lambda v: relay.argmin(v.m, axis=0, keepdims=True), lambda: A.m.argmin(0)[None].astype("int32")),
}  # fmt: skip

SHAPES = {
    "reshape": (lambda v: relay.reshape(v.t, (4, -1)), lambda: A.t.reshape(4, -1)),
    "reshape: codes": (lambda v: relay.reshape(v.x, (0, -3, -2)), lambda: A.x.reshape(2, 48, 10)),
    "reshape: rest": (lambda v: relay.reshape(v.x, (-4, 1, -1, -2)), lambda: A.x.reshape(1, 2, 6, 8, 10)),
    "reshape: flat": (lambda v: relay.reshape(v.t, -1), lambda: A.t.ravel()),
    "reshape_like": (lambda v: relay.reshape_like(relay.reshape(v.t, (24,)), v.t), lambda: A.t),
    "transpose": (lambda v: relay.transpose(v.t, (2, 0, 1)), lambda: A.t.transpose(2, 0, 1)),
    "transpose: reversed": (lambda v: relay.transpose(v.t), lambda: A.t.T),
    "expand_dims": (lambda v: relay.expand_dims(v.m, 1, 2), lambda: A.m.reshape(4, 1, 1, 6)),
    "expand_dims: last": (lambda v: relay.expand_dims(v.m, axis=-1), lambda: A.m[..., None]),
    "squeeze": (lambda v: relay.squeeze(v.one, axis=[0]), lambda: A.one[0]),
    "squeeze: all": (lambda v: relay.squeeze(v.one), lambda: A.one[0, :, 0]),
    "concatenate": (lambda v: relay.concatenate((v.m, v.n, v.row), axis=0), lambda: np.concatenate((A.m, A.n, A.row))),
    "concatenate: of a split": (lambda v: relay.concatenate(relay.split(v.m, 2, axis=1), axis=0),
                                lambda: np.concatenate(np.split(A.m, 2, 1))),
    "stack": (lambda v: relay.stack([v.m, v.n], axis=1), lambda: np.stack([A.m, A.n], 1)),
    "split": (lambda v: relay.split(v.m, 3, axis=1), lambda: np.split(A.m, 3, 1)),
    "split: at": (lambda v: relay.split(v.m, (1, 3), axis=0), lambda: np.split(A.m, (1, 3))),
    "take": (lambda v: relay.take(v.m, v.index, axis=0), lambda: A.m[A.index]),
    "take: flat": (lambda v: relay.take(v.m, v.index), lambda: A.m.ravel()[A.index]),
    "strided_slice": (lambda v: relay.strided_slice(v.m, begin=[1, 0], end=[3, 6], strides=[1, 2]),
                      lambda: A.m[1:3, ::2]),
    "strided_slice: negative": (lambda v: relay.strided_slice(v.m, begin=[0, -3], end=[-1, 6]), lambda: A.m[:-1, -3:]),
    "strided_slice: axes": (lambda v: relay.strided_slice(v.t, begin=[1], end=[100], axes=[-1]), lambda: A.t[..., 1:]),
    "strided_slice: size": (lambda v: relay.strided_slice(v.m, [1, 2], [2, -1], slice_mode="size"),
                            lambda: A.m[1:3, 2:]),
    "strided_slice: constants": (lambda v: relay.strided_slice(v.m, relay.const([1, 2]), relay.const([3, 4])),
                                 lambda: A.m[1:3, 2:4]),
    "slice_like": (lambda v: relay.slice_like(v.dense, v.m), lambda: A.dense[:4]),
    "slice_like: axes": (lambda v: relay.slice_like(v.x, v.t, axes=(1,)), lambda: A.x[:, :3]),
    "broadcast_to": (lambda v: relay.broadcast_to(v.row, (3, 6)), lambda: np.broadcast_to(A.row, (3, 6))),
    "broadcast_to_like": (lambda v: relay.broadcast_to_like(v.v, v.m), lambda: np.broadcast_to(A.v, (4, 6))),
    "collapse_sum_like": (lambda v: relay.collapse_sum_like(v.m, v.row), lambda: A.m.sum(0, keepdims=True)),
    "repeat": (lambda v: relay.repeat(v.m, 2, axis=1), lambda: A.m.repeat(2, 1)),
    "tile": (lambda v: relay.tile(v.m, (2, 1, 3)), lambda: np.tile(A.m, (2, 1, 3))),
    "reverse": (lambda v: relay.reverse(v.t, axis=1), lambda: A.t[:, ::-1]),
    "full": (lambda v: relay.full(relay.const(1.5), (2, 3), "float32"), lambda: np.full((2, 3), 1.5, "float32")),
    "full: int": (lambda v: relay.full(relay.const(7), (2,)), lambda: np.full(2, 7, "int32")),
    "full_like": (lambda v: relay.full_like(v.m, relay.const(2.5)), lambda: np.full_like(A.m, 2.5)),
    "zeros": (lambda v: relay.zeros((2, 3), "int32"), lambda: np.zeros((2, 3), "int32")),
    "ones": (lambda v: relay.ones((2, 3), "float32"), lambda: np.ones((2, 3), "float32")),
    "arange": (lambda v: relay.arange(relay.const(2), relay.const(11), relay.const(3)),
               lambda: np.arange(2, 11, 3, "float32")),
    "arange: int": (lambda v: relay.arange(relay.const(5), dtype="int32"), lambda: np.arange(5, dtype="int32")),
    "where": (lambda v: relay.where(v.b, v.m, v.n), lambda: np.where(A.b, A.m, A.n)),
    "cast": (lambda v: relay.cast(v.m, "int32"), lambda: A.m.astype("int32")),
    "cast_like": (lambda v: relay.cast_like(v.i, v.m), lambda: A.i.astype("float32")),
    "clip": (lambda v: relay.clip(v.m, -0.5, 0.5), lambda: A.m.clip(-0.5, 0.5)),
    "gather": (lambda v: relay.gather(v.m, 1, v.columns), lambda: np.take_along_axis(A.m, A.columns, 1)),
    "gather_nd": (lambda v: relay.gather_nd(v.m, v.points), lambda: A.m[tuple(A.points)]),
    "scatter_elements": (lambda v: relay.scatter_elements(v.m, v.columns, relay.strided_slice(v.n, [0, 0], [4, 2]), 1,
    "add"),
                         lambda: T("m").scatter_add(1, T("columns"), T("n")[:, :2])),
    "one_hot": (lambda v: relay.one_hot(v.index, relay.const(2.0), relay.const(-1.0), 4, -1, "float32"),
                lambda: np.where(np.eye(4)[A.index] > 0, 2, -1).astype("float32")),
    "topk": (lambda v: relay.topk(v.m, k=2, axis=1),
             lambda: (-np.sort(-A.m, 1)[:, :2], np.argsort(-A.m, 1)[:, :2].astype("int32"))),
    "topk: values": (lambda v: relay.topk(v.m, k=3, ret_type="values", is_ascend=True), lambda: np.sort(A.m)[:, :3]),
    "sort": (lambda v: relay.sort(v.m, axis=0, is_ascend=False), lambda: -np.sort(-A.m, 0)),
    "argsort": (lambda v: relay.argsort(v.m, axis=1), lambda: np.argsort(A.m, 1).astype("int32")),
    "cumsum": (lambda v: relay.cumsum(v.m, axis=1), lambda: A.m.cumsum(1)),
    "layout_transform": (lambda v: relay.layout_transform(v.x, "NCHW", "NHWC"), lambda: A.x.transpose(0, 2, 3, 1)),
}  # fmt: skip


def _nhwc(x):
    return np.asarray(x).transpose(0, 2, 3, 1)


def _normed(x, axis, shape):
    mean, var = x.mean(axis, keepdims=True), x.var(axis, keepdims=True)
    return (x - mean) / np.sqrt(var + 1e-5) * A.scale.reshape(shape) + A.bias.reshape(shape)


NETWORK = {
    "nn.conv1d": (lambda v: nn.conv1d(v.seq, v.w1, strides=2, padding=1),
                  lambda: F.conv1d(T("seq"), T("w1"), stride=2, padding=1)),
    "nn.conv2d": (lambda v: nn.conv2d(v.x, v.w, strides=(2, 1), padding=(1, 2)),
                  lambda: F.conv2d(T("x"), T("w"), stride=(2, 1), padding=(1, 2))),
    "nn.conv2d: int": (lambda v: nn.conv2d(v.x, v.w, padding=1, channels=8, kernel_size=3),
                       lambda: F.conv2d(T("x"), T("w"), padding=1)),
    "nn.conv2d: sides": (lambda v: nn.conv2d(v.x, v.w, padding=(0, 1, 2, 3)),
                         lambda: F.conv2d(F.pad(T("x"), (1, 3, 0, 2)), T("w"))),
    "nn.conv2d: dilation": (lambda v: nn.conv2d(v.x, v.w, dilation=2), lambda: F.conv2d(T("x"), T("w"), dilation=2)),
    "nn.conv2d: groups": (lambda v: nn.conv2d(v.x, v.wg, groups=2, channels=6, kernel_size=(3, 3)),
                          lambda: F.conv2d(T("x"), T("wg"), groups=2)),
    "nn.conv2d: depthwise": (lambda v: nn.conv2d(v.x, v.wd, groups=6, padding=(1, 1)),
                             lambda: F.conv2d(T("x"), T("wd"), groups=6, padding=1)),
    "nn.conv2d: NHWC": (lambda v: nn.conv2d(relay.transpose(v.x, (0, 2, 3, 1)), relay.transpose(v.w, (2, 3, 1, 0)),
    padding=(1, 1), data_layout="NHWC", kernel_layout="HWIO"),
                        lambda: _nhwc(F.conv2d(T("x"), T("w"), padding=1))),
    "nn.conv2d: NHWC depthwise": (lambda v: nn.conv2d(relay.transpose(v.x, (0, 2, 3, 1)), relay.transpose(v.wd, (2, 3,
    0, 1)), groups=6, data_layout="NHWC", kernel_layout="HWOI"),
                                  lambda: _nhwc(F.conv2d(T("x"), T("wd"), groups=6))),
    "nn.conv3d": (lambda v: nn.conv3d(v.vol, v.w3, padding=(1, 0, 1)),
                  lambda: F.conv3d(T("vol"), T("w3"), padding=(1, 0, 1))),
    "nn.conv1d_transpose": (lambda v: nn.conv1d_transpose(v.seq, v.wt1, strides=(2,), padding=(1,)),
                            lambda: F.conv_transpose1d(T("seq"), T("wt1"), stride=2, padding=1)),
    "nn.conv2d_transpose": (lambda v: nn.conv2d_transpose(v.x, v.wt, strides=(2, 2), padding=(1, 1),
    output_padding=(1, 0)),
                            lambda: F.conv_transpose2d(T("x"), T("wt"), stride=2, padding=1, output_padding=(1, 0))),
    "nn.dense": (lambda v: nn.dense(v.m, v.dense, units=5), lambda: A.m @ A.dense.T),
    "nn.matmul": (lambda v: nn.matmul(v.m, v.n, transpose_a=True), lambda: A.m.T @ A.n),
    "nn.batch_matmul": (lambda v: nn.batch_matmul(v.left, v.right), lambda: A.left @ A.right.transpose(0, 2, 1)),
    "nn.bias_add": (lambda v: nn.bias_add(v.x, v.bias), lambda: A.x + A.bias[:, None, None]),
    "nn.bias_add: last": (lambda v: nn.bias_add(v.m, v.bias, axis=-1), lambda: A.m + A.bias),
    "nn.batch_norm": (lambda v: nn.batch_norm(v.x, v.scale, v.bias, v.mean, v.var, epsilon=1e-3)[0],
                      lambda: F.batch_norm(T("x"), T("mean"), T("var"), T("scale"), T("bias"), eps=1e-3)),
    "nn.batch_norm: without scale": (lambda v: nn.batch_norm(v.x, v.scale, v.bias, v.mean, v.var, scale=False)[0],
                                     lambda: F.batch_norm(T("x"), T("mean"), T("var"), None, T("bias"))),
    "nn.layer_norm": (lambda v: nn.layer_norm(v.m, v.scale, v.bias),
                      lambda: F.layer_norm(T("m"), (6,), T("scale"), T("bias"))),
    "nn.instance_norm": (lambda v: nn.instance_norm(v.x, v.scale, v.bias), lambda: _normed(A.x, (2, 3), (6, 1, 1))),
    "nn.group_norm": (lambda v: nn.group_norm(v.x, v.scale, v.bias, num_groups=3),
                      lambda: F.group_norm(T("x"), 3, T("scale"), T("bias"))),
    "nn.leaky_relu": (lambda v: nn.leaky_relu(v.m, alpha=0.2), lambda: np.where(A.m > 0, A.m, 0.2 * A.m)),
    "nn.prelu": (lambda v: nn.prelu(v.x, v.bias), lambda: F.prelu(T("x"), T("bias"))),
    "nn.softmax": (lambda v: nn.softmax(v.t, axis=1), lambda: F.softmax(T("t"), 1)),
    "nn.fast_softmax": (lambda v: nn.fast_softmax(v.m), lambda: F.softmax(T("m"), -1)),
    "nn.log_softmax": (lambda v: nn.log_softmax(v.m), lambda: F.log_softmax(T("m"), -1)),
    "nn.dropout": (lambda v: nn.dropout(v.n, rate=0.9), lambda: A.n),
    "nn.max_pool1d": (lambda v: nn.max_pool1d(v.seq, pool_size=(3,), strides=(2,)),
                      lambda: F.max_pool1d(T("seq"), 3, 2)),
    "nn.max_pool2d": (lambda v: nn.max_pool2d(v.x, pool_size=(3, 3), strides=(2, 2), padding=(1, 1)),
                      lambda: F.max_pool2d(T("x"), 3, 2, 1)),
    "nn.max_pool2d: ceil": (lambda v: nn.max_pool2d(v.x, pool_size=(3, 3), strides=(2, 2), ceil_mode=True),
                            lambda: F.max_pool2d(T("x"), 3, 2, ceil_mode=True)),
    "nn.max_pool2d: NHWC": (lambda v: nn.max_pool2d(relay.transpose(v.x, (0, 2, 3, 1)), (2, 2), (2, 2), layout="NHWC"),
                            lambda: _nhwc(F.max_pool2d(T("x"), 2))),
    "nn.max_pool3d": (lambda v: nn.max_pool3d(v.vol, pool_size=(2, 2, 2), strides=(2, 2, 2)),
                      lambda: F.max_pool3d(T("vol"), 2)),
    "nn.avg_pool1d": (lambda v: nn.avg_pool1d(v.seq, pool_size=(2,), strides=(2,)), lambda: F.avg_pool1d(T("seq"), 2)),
    "nn.avg_pool2d": (lambda v: nn.avg_pool2d(v.x, pool_size=(3, 3), strides=(2, 2), padding=(1, 1)),
                      lambda: F.avg_pool2d(T("x"), 3, 2, 1, count_include_pad=False)),
    "nn.avg_pool2d: padded": (lambda v: nn.avg_pool2d(v.x, pool_size=(3, 3), padding=(1, 1), count_include_pad=True),
                              lambda: F.avg_pool2d(T("x"), 3, 1, 1)),
    "nn.avg_pool3d": (lambda v: nn.avg_pool3d(v.vol, pool_size=(2, 2, 2), strides=(2, 2, 2)),
                      lambda: F.avg_pool3d(T("vol"), 2)),
    "nn.global_avg_pool2d": (lambda v: nn.global_avg_pool2d(v.x), lambda: A.x.mean((2, 3), keepdims=True)),
    "nn.global_max_pool2d": (lambda v: nn.global_max_pool2d(v.x, layout="NHWC"),
                             lambda: A.x.max((1, 2), keepdims=True)),
    "nn.adaptive_avg_pool2d": (lambda v: nn.adaptive_avg_pool2d(v.x, (3, 4)),
                               lambda: F.adaptive_avg_pool2d(T("x"), (3, 4))),
    "nn.adaptive_max_pool2d": (lambda v: nn.adaptive_max_pool2d(v.x, (4, 2)),
                               lambda: F.adaptive_max_pool2d(T("x"), (4, 2))),
    "nn.pad": (lambda v: nn.pad(v.m, ((1, 0), (2, 3))), lambda: np.pad(A.m, ((1, 0), (2, 3)))),
    "nn.pad: value": (lambda v: nn.pad(v.m, pad_width=((1, 0), (2, 3)), pad_value=1.5),
                      lambda: np.pad(A.m, ((1, 0), (2, 3)), constant_values=1.5)),
    "nn.pad: constant": (lambda v: nn.pad(v.m, ((0, 0), (2, 3)), relay.const(-2.0)),
                         lambda: np.pad(A.m, ((0, 0), (2, 3)), constant_values=-2)),
    "nn.pad: edge": (lambda v: nn.pad(v.x, ((0, 0), (0, 0), (1, 2), (2, 1)), pad_mode="edge"),
                     lambda: np.pad(A.x, ((0, 0), (0, 0), (1, 2), (2, 1)), "edge")),
    "nn.mirror_pad": (lambda v: nn.mirror_pad(v.x, ((0, 0), (0, 0), (1, 2), (2, 1)), "REFLECT"),
                      lambda: np.pad(A.x, ((0, 0), (0, 0), (1, 2), (2, 1)), "reflect")),
    "nn.mirror_pad: symmetric": (lambda v: nn.mirror_pad(v.m, ((1, 2), (0, 3))),
                                 lambda: np.pad(A.m, ((1, 2), (0, 3)), "symmetric")),
    "nn.upsampling": (lambda v: nn.upsampling(v.x, 2, 3), lambda: A.x.repeat(2, 2).repeat(3, 3)),
    "nn.upsampling: bilinear": (lambda v: nn.upsampling(v.x, 2, 2, method="bilinear", align_corners=True),
                                lambda: F.interpolate(T("x"), scale_factor=2, mode="bilinear", align_corners=True)),
    "image.resize2d": (lambda v: relay.image.resize2d(v.x, (5, 13)),
                       lambda: F.interpolate(T("x"), (5, 13), mode="bilinear")),
    "image.resize2d: cubic": (lambda v: relay.image.resize2d(v.x, (12, 7), method="cubic", cubic_alpha=-0.75),
                              lambda: F.interpolate(T("x"), (12, 7), mode="bicubic")),
    "image.resize2d: nearest": (lambda v: relay.image.resize2d(v.x, (16, 20), method="nearest_neighbor",
    coordinate_transformation_mode="asymmetric"),
                                lambda: F.interpolate(T("x"), (16, 20), mode="nearest")),
    "image.resize": (lambda v: relay.image.resize(v.x, (16, 5), method="bilinear",
    coordinate_transformation_mode="align_corners"),
                     lambda: F.interpolate(T("x"), (16, 5), mode="bilinear", align_corners=True)),
    "nn.lrn": (lambda v: nn.lrn(v.x, size=3, axis=1, bias=1.5, alpha=0.1, beta=0.75),
               lambda: F.local_response_norm(T("x"), 3, alpha=0.1, beta=0.75, k=1.5)),
    "nn.l2_normalize": (lambda v: nn.l2_normalize(v.x, eps=1e-6, axis=[1]), lambda: F.normalize(T("x"), dim=1)),
    "nn.depth_to_space": (lambda v: nn.depth_to_space(v.depth, 2, mode="CRD"), lambda: F.pixel_shuffle(T("depth"), 2)),
    "nn.depth_to_space: DCR": (lambda v: nn.depth_to_space(v.depth, 2),
                               lambda: A.depth.reshape(1, 2, 2, 2, 3, 4).transpose(0, 3, 4, 1, 5, 2).reshape(1, 2, 6,
                                   8)),
    "nn.space_to_depth": (lambda v: nn.space_to_depth(nn.depth_to_space(v.depth, 2), 2), lambda: A.depth),
    "nn.cross_entropy": (lambda v: nn.cross_entropy(nn.softmax(v.m), nn.softmax(v.n)),
                         lambda: F.cross_entropy(T("m"), F.softmax(T("n"), 1))),
}  # fmt: skip

FAMILIES = {
    "unary": {n: (lambda v, n=n, x=x: op(n)(getattr(v, x) + relay.const(1.0) if n == "acosh" else getattr(v, x)),
                  lambda f=f, x=x: f(getattr(A, x))) for n, (x, f) in UNARY.items()},
    "binary": {n: (lambda v, n=n, x=x, y=y: op(n)(getattr(v, x), getattr(v, y)),
                   lambda f=f, x=x, y=y: f(getattr(A, x), getattr(A, y))) for n, (x, y, f) in BINARY.items()},
    "reductions": REDUCTIONS, "shapes": SHAPES, "network": NETWORK,
}  # fmt: skip


def outputs_of(program, opt_level=0, params=None, **inputs) -> list[np.ndarray]:
    """What a Relay program gives for the inputs, by the old way of relay.build and the graph executor."""
    from tvm.contrib import graph_executor

    with tvm.transform.PassContext(opt_level=opt_level):
        lib = relay.build(program, target="llvm", params=params)
    module = graph_executor.GraphModule(lib["default"](tvm.cpu()))
    module.run(**inputs)
    return [module.get_output(i).numpy() for i in range(module.get_num_outputs())]


@functools.cache
def family(name: str, opt_level: int) -> dict[str, list[np.ndarray]]:
    """The results of all operators of a family, from one build."""
    variables, made = _variables(), {}
    for case, (write, _) in FAMILIES[name].items():
        written = write(variables)
        made[case] = list(written) if isinstance(written, classic.ir.TupleWrapper) else [written]
    body = relay.Tuple([value for values in made.values() for value in values])
    params = relay.analysis.free_vars(body)
    results = iter(
        outputs_of(relay.Function(params, body), opt_level, **{p.name_hint: getattr(A, p.name_hint) for p in params})
    )
    return {case: [next(results) for _ in values] for case, values in made.items()}


@pytest.mark.parametrize(
    ("of", "case", "opt_level"),
    [(f, case, level) for f, cases in FAMILIES.items() for level in (0, 3) for case in cases],
)
def test_an_operator_gives_what_numpy_or_pytorch_gives(of, case, opt_level):
    wanted = FAMILIES[of][case][1]()
    wanted = wanted if isinstance(wanted, list | tuple) else [wanted]
    results = family(of, opt_level)[case]
    assert len(results) == len(wanted)
    for result, array in zip(results, wanted, strict=True):
        array = np.asarray(array)
        assert (result.shape, result.dtype) == (array.shape, array.dtype)
        np.testing.assert_allclose(result, array, **TOLERANCE)


def test_each_operator_is_tested():
    assert {case.partition(":")[0] for cases in FAMILIES.values() for case in cases} == set(OPERATORS)
