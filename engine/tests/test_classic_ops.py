"""Relay's operators, expressions, passes and networks of tvmclassic, against NumPy and PyTorch.

All operators of a family are built as one function with a tuple of results; each result is then a test of its own.
"""

import contextlib
import functools
import importlib
import json
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse
import torch
import tvm
import tvm.relax
from agreement import close, reference, terms_of
from old_api import Module, enabled  # noqa: F401 (a fixture)
from testing import sampled
from torch.nn import functional as F

import tvmclassic
from tvmclassic.relay import ir
from tvmclassic.relay import testing as networks
from tvmclassic.relay.ops import OPERATORS

TERMS = 60  # of the longest sums of an operator


relay, nn, transform, testing = (Module(f"tvm.relay{part}") for part in ("", ".nn", ".transform", ".testing"))


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
        "depth": normal(1, 8, 3, 4), "wd2": normal(12, 1, 3, 3),
    }  # fmt: skip


A = SimpleNamespace(**_arrays())


@contextlib.contextmanager
def double_precision():
    """The arrays of floats are of float64."""
    with pytest.MonkeyPatch.context() as patch:
        for name, array in list(vars(A).items()):
            patch.setattr(A, name, array.astype("float64") if array.dtype == "float32" else array)
        yield


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
    "std: unbiased": (lambda v: relay.std(v.t, axis=(0, 2), unbiased=True), lambda: A.t.std((0, 2), ddof=1)),
    "all": (lambda v: relay.all(v.b, axis=0), lambda: A.b.all(0)),
    "any": (lambda v: relay.any(v.b, axis=1, keepdims=True), lambda: A.b.any(1, keepdims=True)),
    "variance": (lambda v: relay.variance(v.t, axis=1), lambda: A.t.var(1)),
    "variance: unbiased": (lambda v: relay.variance(v.t, axis=(0, 2), unbiased=True), lambda: A.t.var((0, 2), ddof=1)),
    "variance: exclude": (lambda v: relay.variance(v.t, axis=1, exclude=True), lambda: A.t.var((0, 2))),
    "logsumexp": (lambda v: relay.logsumexp(v.t, axis=1), lambda: _logsumexp(A.t, 1)),
    "logsumexp: keepdims": (
        lambda v: relay.logsumexp(v.t, axis=(1, 2), keepdims=True),
        lambda: _logsumexp(A.t, (1, 2), True),
    ),
    "mean_variance": (
        lambda v: relay.mean_variance(v.t, axis=1, unbiased=True),
        lambda: (A.t.mean(1), A.t.var(1, ddof=1)),
    ),
    "argmax": (lambda v: relay.argmax(v.m, axis=1), lambda: A.m.argmax(1).astype("int32")),
    "argmax: the last": (
        lambda v: relay.argmax(v.k, axis=1, select_last_index=True),
        lambda: (5 - A.k[:, ::-1].argmax(1)).astype("int32"),
    ),
    "argmin: the last of all": (
        lambda v: relay.argmin(v.k, keepdims=True, select_last_index=True),
        lambda: (23 - A.k.ravel()[::-1].argmin()).astype("int32").reshape(1, 1),
    ),
    "argmin": (lambda v: relay.argmin(v.m, axis=0, keepdims=True), lambda: A.m.argmin(0)[None].astype("int32")),
}

FEW, NINES = np.zeros((2, 1, 1, 3), "int64"), np.full((2, 1, 1, 3), 9.0, "float32")
SHAPES = {
    "reshape": (lambda v: relay.reshape(v.t, (4, -1)), lambda: A.t.reshape(4, -1)),
    "reshape: constant": (lambda v: relay.reshape(v.t, relay.const([4, 6])), lambda: A.t.reshape(4, 6)),
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
    "strided_slice: size, from the end": (lambda v: relay.strided_slice(v.m, [-2, -3], [2, 3], slice_mode="size"),
                                          lambda: A.m[-2:, -3:]),
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
    "arange: int64": (lambda v: relay.arange(relay.const(1 << 40, "int64"), relay.const(2 + (1 << 40), "int64"),
    dtype="int64"), lambda: np.arange(1 << 40, 2 + (1 << 40))),
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
    "scatter_elements: few": (lambda v: relay.scatter_elements(v.x, relay.const(FEW), relay.const(NINES), 2),
                              lambda: T("x").scatter(2, torch.from_numpy(FEW), 9.0)),
    "argmax: of the least": (lambda v: relay.argmax(relay.zeros((3, 4), "uint8"), axis=1),
                             lambda: np.zeros(3, "int32")),
    "cast: out of range": (lambda v: relay.cast(v.m * relay.const(300.0), "uint8"), lambda: (T("m") * 300).byte()),
    "one_hot": (lambda v: relay.one_hot(v.index, relay.const(2.0), relay.const(-1.0), 4, -1, "float32"),
                lambda: np.where(np.eye(4)[A.index] > 0, 2, -1).astype("float32")),
    "topk": (lambda v: relay.topk(v.m, k=2, axis=1),
             lambda: (-np.sort(-A.m, 1)[:, :2], np.argsort(-A.m, 1)[:, :2].astype("int32"))),
    "topk: values": (lambda v: relay.topk(v.m, k=3, ret_type="values", is_ascend=True), lambda: np.sort(A.m)[:, :3]),
    "sort": (lambda v: relay.sort(v.m, axis=0, is_ascend=False), lambda: -np.sort(-A.m, 0)),
    "argsort": (lambda v: relay.argsort(v.m, axis=1), lambda: np.argsort(A.m, 1).astype("int32")),
    "scatter": (lambda v: relay.scatter(v.m, relay.const(np.array([[3], [1]])), relay.const(np.full((2, 1), 9.0,
    "float32")), 1),
                lambda: T("m").scatter(1, torch.tensor([[3], [1]]), 9.0)),
    "scatter_add": (lambda v: relay.scatter_add(v.m, v.columns, relay.strided_slice(v.n, [0, 0], [4, 2]), axis=1),
                    lambda: T("m").scatter_add(1, T("columns"), T("n")[:, :2])),
    "cumprod": (lambda v: relay.cumprod(v.m, axis=0), lambda: A.m.cumprod(0)),
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
    "nn.conv2d: out layout": (lambda v: nn.conv2d(v.x, v.w, out_layout="NHWC"),
                              lambda: _nhwc(F.conv2d(T("x"), T("w")))),
    "nn.conv2d: dilation": (lambda v: nn.conv2d(v.x, v.w, dilation=2), lambda: F.conv2d(T("x"), T("w"), dilation=2)),
    "nn.conv2d: groups": (lambda v: nn.conv2d(v.x, v.wg, groups=2, channels=6, kernel_size=(3, 3)),
                          lambda: F.conv2d(T("x"), T("wg"), groups=2)),
    "nn.conv2d: depthwise": (lambda v: nn.conv2d(v.x, v.wd, groups=6, padding=(1, 1)),
                             lambda: F.conv2d(T("x"), T("wd"), groups=6, padding=1)),
    "nn.conv2d: depthwise with a multiplier": (
        lambda v: nn.conv2d(v.x, relay.reshape(v.wd2, (6, 2, 3, 3)), groups=6, channels=12, kernel_size=3),
        lambda: F.conv2d(T("x"), T("wd2"), groups=6),
    ),
    "nn.conv2d: NHWC depthwise with a multiplier": (
        lambda v: nn.conv2d(
            relay.transpose(v.x, (0, 2, 3, 1)), relay.transpose(relay.reshape(v.wd2, (6, 2, 3, 3)), (2, 3, 0, 1)),
            groups=6, data_layout="NHWC", kernel_layout="HWOI",
        ),
        lambda: _nhwc(F.conv2d(T("x"), T("wd2"), groups=6)),
    ),
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
    "nn.instance_norm: last": (lambda v: nn.instance_norm(relay.transpose(v.x, (0, 2, 3, 1)), v.scale, v.bias, axis=-1),
                               lambda: _nhwc(_normed(A.x, (2, 3), (6, 1, 1)))),
    "nn.group_norm: last": (lambda v: nn.group_norm(relay.transpose(v.x, (0, 2, 3, 1)), v.scale, v.bias, 3, axis=3),
                            lambda: _nhwc(F.group_norm(T("x"), 3, T("scale"), T("bias")))),
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
    "nn.global_avg_pool1d": (lambda v: nn.global_avg_pool1d(v.seq), lambda: A.seq.mean(2, keepdims=True)),
    "nn.global_max_pool1d": (lambda v: nn.global_max_pool1d(v.seq), lambda: A.seq.max(2, keepdims=True)),
    "nn.global_avg_pool3d": (lambda v: nn.global_avg_pool3d(v.vol), lambda: A.vol.mean((2, 3, 4), keepdims=True)),
    "nn.global_max_pool3d": (lambda v: nn.global_max_pool3d(v.vol), lambda: A.vol.max((2, 3, 4), keepdims=True)),
    "nn.adaptive_avg_pool1d": (lambda v: nn.adaptive_avg_pool1d(v.seq, 3), lambda: F.adaptive_avg_pool1d(T("seq"), 3)),
    "nn.adaptive_avg_pool3d": (lambda v: nn.adaptive_avg_pool3d(v.vol, (2, 3, 2)),
                               lambda: F.adaptive_avg_pool3d(T("vol"), (2, 3, 2))),
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
    "image.resize: one row": (lambda v: relay.image.resize(v.x, (1, 7), coordinate_transformation_mode="align_corners"),
                              lambda: F.interpolate(T("x"), (1, 7), mode="bilinear", align_corners=True)),
    "nn.lrn": (lambda v: nn.lrn(v.x, size=3, axis=1, bias=1.5, alpha=0.1, beta=0.75),
               lambda: F.local_response_norm(T("x"), 3, alpha=0.1, beta=0.75, k=1.5)),
    "nn.lrn: last": (lambda v: nn.lrn(relay.transpose(v.x, (0, 2, 3, 1)), 3, -1, 1.5, 0.1),
                     lambda: _nhwc(F.local_response_norm(T("x"), 3, alpha=0.1, beta=0.75, k=1.5))),
    "nn.l2_normalize": (lambda v: nn.l2_normalize(v.x, eps=1e-6, axis=[1]), lambda: F.normalize(T("x"), dim=1)),
    "nn.depth_to_space": (lambda v: nn.depth_to_space(v.depth, 2, mode="CRD"), lambda: F.pixel_shuffle(T("depth"), 2)),
    "nn.depth_to_space: DCR": (lambda v: nn.depth_to_space(v.depth, 2),
                               lambda: A.depth.reshape(1, 2, 2, 2, 3, 4).transpose(0, 3, 4, 1, 5, 2).reshape(1, 2, 6,
                                   8)),
    "nn.space_to_depth": (lambda v: nn.space_to_depth(nn.depth_to_space(v.depth, 2), 2), lambda: A.depth),
    "nn.sparse_dense": (lambda v: nn.sparse_dense(v.m, relay_csr()), lambda: A.m @ CSR.toarray().T),
    "nn.sparse_dense: BSR": (lambda v: nn.sparse_dense(v.m, BSR), lambda: A.m @ BSR.toarray().T),
    "nn.sparse_dense: left": (lambda v: nn.sparse_dense(v.m, BSR, sparse_lhs=True), lambda: BSR.toarray() @ A.m.T),
    "nn.cross_entropy": (lambda v: nn.cross_entropy(nn.softmax(v.m), nn.softmax(v.n)),
                         lambda: F.cross_entropy(T("m"), F.softmax(T("n"), 1))),
}  # fmt: skip


def _sparse():
    """A matrix of 8 rows for 6 columns in which rows and blocks are empty, as CSR and as BSR."""
    dense = np.random.default_rng(3).standard_normal((8, 6)).astype("float32")
    dense[2:4], dense[:, 3] = 0, 0
    dense[4:6, 2:4] = 0
    return scipy.sparse.csr_matrix(dense), scipy.sparse.bsr_matrix(dense, blocksize=(2, 3))


CSR, BSR = _sparse()


def relay_csr() -> tuple:
    return tuple(map(relay.const, (CSR.data, CSR.indices, CSR.indptr)))


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
def family(name: str, way: str) -> dict[str, list[np.ndarray]]:
    """The results of all operators of a family, from one build: as written, or as Relax and back, whose kernels are
    mostly the same and found in the cache; "back, level 0" is at opt level 0, the others at 3."""
    variables, expressions = _variables(), {}
    for case, (write, _) in FAMILIES[name].items():
        written = write(variables)
        expressions[case] = list(written) if isinstance(written, ir.TupleWrapper) else [written]
    body = relay.Tuple([value for values in expressions.values() for value in values])
    params = relay.analysis.free_vars(body)
    mod = tvm.IRModule.from_expr(relay.Function(params, body))
    if way != "there":
        mod = transform.CanonicalizeOps()(mod)
    inputs = {p.name_hint: getattr(A, p.name_hint) for p in params}
    results = iter(outputs_of(mod, 0 if way == "back, level 0" else 3, **inputs))
    return {case: [next(results) for _ in values] for case, values in expressions.items()}


@pytest.mark.parametrize("way", ["there", "back", pytest.param("back, level 0", marks=pytest.mark.full)])
@pytest.mark.parametrize(("of", "case"), [(of, case) for of, cases in FAMILIES.items() for case in cases])
def test_an_operator_gives_what_numpy_or_pytorch_gives(of, case, way):
    write = FAMILIES[of][case][1]
    with double_precision():
        exact = arrays(write())
    results = family(of, way)[case]
    assert [result.dtype for result in results] == [array.dtype for array in arrays(write())]
    close(results, [array.astype("float64") if array.dtype == "float32" else array for array in exact], TERMS)


def arrays(results) -> list[np.ndarray]:
    return [*map(np.asarray, results if isinstance(results, list | tuple) else [results])]


LIMITS = {dtype: np.iinfo(dtype) for dtype in ("int8", "uint8", "int32", "uint32", "int64", "uint64")}
ENDS = {dtype: np.array([[ends.min, ends.max, 1], [0, 0, 0]], dtype) for dtype, ends in LIMITS.items()}
HALVES = np.array([0.5, 1.5, 2.5, -0.5, -1.5, 0.49999997, -8388609, np.inf, -np.inf, np.nan], "float32")
AWAY = np.array([1, 2, 3, -1, -2, 0, -8388609, np.inf, -np.inf, np.nan], "float32")
ROWS = np.array([[0, np.inf, -1], [-np.inf] * 3, [np.inf, -np.inf, 0], [np.nan, 0, np.inf]], "float32")
BYTES = np.arange(-36, 36, dtype="int8").reshape(1, 2, 6, 6)
HOT = np.eye(3, dtype=bool)[[2, 0]]


def _exact() -> dict[str, tuple]:
    """By operator, and variant behind a colon: an array, what a script does with it, and the values, each exact."""
    cases = {
        "round": (HALVES, lambda x: relay.round(x), AWAY),
        "round: half": (HALVES[:5].astype("float16"), lambda x: relay.round(x), AWAY[:5].astype("float16")),
        "logsumexp": (ROWS, lambda x: relay.logsumexp(x, 1), np.array([np.inf, -np.inf, np.inf, np.nan], "float32")),
        "any: fractions": (np.float32([[0.5, 0], [0, 0]]), lambda x: relay.any(x, 1), np.array([True, False])),
        "all: fractions": (np.float32([[0.5, -0.1], [0, 1]]), lambda x: relay.all(x, 1), np.array([True, False])),
        "variance: of one": (
            np.ones((1, 2), "float32"),
            lambda x: relay.variance(x, 0, unbiased=True),
            np.full(2, np.nan, "float32"),
        ),
        "one_hot: infinite": (
            np.array([2, 0]),
            lambda i: relay.one_hot(i, relay.const(0.0), relay.const(-np.inf), 3, -1, "float32"),
            np.where(HOT, 0, -np.inf).astype("float32"),
        ),
        "one_hot: bool": (
            np.array([2, 0]),
            lambda i: relay.one_hot(i, relay.const(1), relay.const(0), 3, -1, "bool"),
            HOT,
        ),
        "nn.avg_pool2d: int": (
            BYTES,
            lambda x: nn.avg_pool2d(x, (2, 3), (2, 3)) + relay.const(1, "int8"),
            np.trunc(BYTES.reshape(1, 2, 3, 2, 2, 3).mean((3, 5))).astype("int8") + np.int8(1),
        ),
        "clip: half": (ROWS.astype("float16"), lambda x: relay.clip(x, -np.inf, 1e30), ROWS.astype("float16")),
    }
    for dtype, ends in ENDS.items():
        cases |= {
            f"negative: {dtype}": (ends[0], lambda x: relay.negative(x), np.negative(ends[0])),
            f"sign: {dtype}": (ends, lambda x: relay.sign(x), np.sign(ends)),
            f"round: {dtype}": (ends, lambda x: relay.round(x), ends),
            f"clip: {dtype}": (ends, lambda x: relay.clip(x, -np.inf, 1e30), ends),
            f"sort: {dtype}": (ends, lambda x: relay.sort(x, 1), np.sort(ends, 1)),
            f"topk: {dtype}": (ends, lambda x: relay.topk(x, 2, 1, "values"), np.sort(ends, 1)[:, :0:-1]),
            f"clip: {dtype}, cast": (ends, lambda x: relay.clip(x, 1.9, 6.9), ends.clip(1, 6)),
            f"all: {dtype}": (ends[:, :2], lambda x: relay.all(x, 1), (ends[:, :2] != 0).all(1)),
            f"any: {dtype}": (ends[:, :2], lambda x: relay.any(x, 1), (ends[:, :2] != 0).any(1)),
        }
    return cases


@functools.cache
def exact(level: int) -> dict[str, np.ndarray]:
    cases = _exact()
    inputs = {f"x{n}": array for n, (array, _, _) in enumerate(cases.values())}
    variables = [relay.var(name, shape=array.shape, dtype=array.dtype.name) for name, array in inputs.items()]
    calls = [write(x) for x, (_, write, _) in zip(variables, cases.values(), strict=True)]
    return dict(zip(cases, outputs_of(relay.Function(variables, relay.Tuple(calls)), level, **inputs), strict=True))


@pytest.mark.parametrize("level", [0, 3])
@pytest.mark.parametrize("case", _exact())
def test_values_at_the_ends_of_a_dtype_and_between_whole_numbers(case, level):
    result, wanted = exact(level)[case], _exact()[case][2]
    assert result.dtype == wanted.dtype
    np.testing.assert_array_equal(result, wanted)


def nearest(sizes, mode: str, rounding: str) -> np.ndarray:
    """The nearest neighbours of `A.x`, as TVM 0.12 chose them."""
    image = A.x
    for axis, size in zip((2, 3), sizes, strict=True):
        before, at = image.shape[axis], np.arange(size)
        at = {
            "half_pixel": (at + 0.5) * before / size - 0.5,
            "asymmetric": at * before / size,
            "align_corners": at * (before - 1) / (size - 1),
        }[mode]
        at = {
            "round": np.floor(at + 0.5),  # none is a half below 0
            "floor": np.floor(at + 1e-5),
            "ceil": np.ceil(at - 1e-5),
            "round_prefer_floor": np.ceil(at - 0.5),
        }[rounding]
        image = image.take(at.astype(int), axis, mode="clip")
    return image


def test_nearest_neighbours_are_those_of_the_mode_and_the_rounding():
    x, calls, wanted = relay.var("x", shape=A.x.shape), [], []
    for sizes in ((16, 20), (5, 7), (3, 13)):
        for mode in ("half_pixel", "asymmetric", "align_corners"):
            default = "round" if mode == "align_corners" else "floor"
            for rounding in ("", "round", "floor", "ceil", "round_prefer_floor"):
                calls.append(relay.image.resize2d(x, sizes, None, "NCHW", "nearest_neighbor", mode, rounding))
                wanted.append(nearest(sizes, mode, rounding or default))
    calls += [relay.image.resize(x, (5, 7), method="nearest_neighbor"), nn.upsampling(x, 2, 3, align_corners=True)]
    wanted += [nearest((5, 7), "half_pixel", "floor"), nearest((16, 30), "align_corners", "round")]
    calls.append(nn.upsampling(x, 1.2, 0.29))
    wanted.append(nearest((10, 3), "asymmetric", "floor"))
    for result, each in zip(outputs_of(relay.Function([x], relay.Tuple(calls)), x=A.x), wanted, strict=True):
        np.testing.assert_array_equal(result, each)


def test_indices_outside_are_refused_by_operators_that_do_not_clip_them():
    x, points = relay.var("x", shape=(4, 6)), relay.var("points", shape=(2, 1), dtype="int64")
    i, u = relay.var("i", shape=(2, 1), dtype="int64"), relay.var("u", shape=(2, 1))
    written = {
        "take": relay.take(x, i, axis=0, mode="fast"),
        "gather": relay.gather(x, 1, i),
        "gather_nd": relay.gather_nd(x, points),
        "scatter_elements": relay.scatter_elements(x, i, u),
        "scatter": relay.scatter(x, i, u, axis=0),
        "scatter_add": relay.scatter_add(x, i, u, axis=0),
    }
    far = np.array([[1 << 40], [-1]])
    clipped = outputs_of(relay.Function([x, i], relay.take(x, i, axis=0)), x=A.m, i=far)
    np.testing.assert_array_equal(clipped[0], A.m[[[3], [0]]])  # not the 0 of the lower half of 1 << 40
    for name, call in written.items():
        params, size = relay.analysis.free_vars(call), 6 if name == "gather" else 4
        given = {"x": A.m, "points": np.array([[size], [0]]), "i": np.array([[0], [size]]), "u": A.m[:2, :1]}
        with pytest.raises(IndexError, match=f"^{name}: .* to {size - 1}, got {size}$"):
            outputs_of(relay.Function(params, call), **{p.name_hint: given[p.name_hint] for p in params})


def test_each_operator_is_tested():
    of_floats = {name for name in OPERATORS if not name.startswith("qnn.")}  # those are in test_classic_qnn.py
    assert {case.partition(":")[0] for cases in FAMILIES.values() for case in cases} == of_floats


# ---------------------------------------------------------------- expressions


def test_arithmetic_on_expressions():
    a, b = (relay.var(n, shape=(4, 6)) for n in "ab")
    i = relay.var("i", shape=(4, 6), dtype="int32")
    x, y, k = A.p.astype("float64"), A.n.astype("float64"), A.i
    written = {
        a + b: x + y, a - 1.5: x - 1.5, 2 - a: 2 - x, a * b * 2: x * y * 2, a / b: x / y, 1.0 / a: 1 / x, -a: -x,
        a**2.0: x**2, i // 3: k // 3, i % 3: k % 3, a < b: x < y, a <= 1.0: x <= 1, a > b: x > y, i >= 2: k >= 2,
        i.astype("float32") + b: k + y,
    }  # fmt: skip
    results = outputs_of(relay.Function([a, b, i], relay.Tuple(list(written))), a=A.p, b=A.n, i=k)
    for result, wanted in zip(results, written.values(), strict=True):
        assert result.dtype == (wanted.dtype if wanted.dtype != "float64" else "float32")
        close(result, wanted, 2)


def test_a_number_takes_the_dtype_of_the_expression_beside_it():
    half = relay.var("half", shape=(2,), dtype="float16")
    assert relay.Function([half], 1.0 - half * 2.0).ret_type == relay.TensorType((2,), "float16")
    assert relay.const(1.0).checked_type.dtype == "float32"
    assert relay.const(1).checked_type.dtype == "int32"
    assert relay.const([1, 1 << 40]).data.numpy().tolist() == [1, 1 << 40]
    assert relay.const(np.float64(1)).checked_type.dtype == "float64"


def small_net():
    """A convolution with batch norm and ReLU, a second one around which a value goes, dropout, pooling and dense."""
    x = relay.var("data", shape=(1, 3, 8, 8))
    y = testing.layers.conv2d(x, channels=4, kernel_size=(3, 3), padding=(1, 1), name="conv")
    y = nn.dropout(nn.relu(testing.layers.batch_norm_infer(y, name="bn")))
    y = y + nn.conv2d(y, relay.var("w2_weight"), channels=4, kernel_size=3, padding=1)
    y = nn.batch_flatten(nn.max_pool2d(y, (2, 2), (2, 2)))
    y = nn.softmax(testing.layers.dense_add_bias(y, units=5, name="fc"))
    return relay.Function(relay.analysis.free_vars(y), y)


@functools.cache
def small_case():
    """The module of `small_net`, its parameters with batch norms that do something, an input, and the same in PyTorch.

    This is a function of the input and the parameters.
    """
    mod, params = testing.create_workload(small_net())
    rng = np.random.default_rng(3)
    for name in params:
        if "_bn_" in f"_{name}" or name.endswith("bias"):
            params[name] = tvm.nd.array(rng.uniform(0.5, 1.5, params[name].shape).astype("float32"))

    def same(x, *values):
        p = dict(zip(params, values, strict=True))
        y = F.conv2d(x, p["conv_weight"], padding=1)
        y = F.relu(F.batch_norm(y, p["bn_moving_mean"], p["bn_moving_var"], p["bn_gamma"], p["bn_beta"]))
        y = y + F.conv2d(y, p["w2_weight"], padding=1)
        return F.softmax(F.linear(F.max_pool2d(y, 2).flatten(1), p["fc_weight"], p["fc_bias"]), 1)

    return mod, params, rng.standard_normal((1, 3, 8, 8)).astype("float32"), same


@functools.cache
def small_result(dtype: str = "float32"):
    """The result of `small_case` in double precision, each step of which rounds to a type."""
    _, params, x, same = small_case()
    return reference(same, *(array.astype(dtype) for array in (x, *(value.numpy() for value in params.values()))))


def test_a_module_prints_as_relay_did():
    assert (
        str(small_case()[0])
        == """\
def @main(%data: Tensor[(1, 3, 8, 8), float32], %conv_weight: Tensor[(4, 3, 3, 3), float32], \
%bn_gamma: Tensor[(4,), float32], %bn_beta: Tensor[(4,), float32], %bn_moving_mean: Tensor[(4,), float32], \
%bn_moving_var: Tensor[(4,), float32], %w2_weight: Tensor[(4, 4, 3, 3), float32], \
%fc_weight: Tensor[(5, 64), float32], %fc_bias: Tensor[(5,), float32]) -> Tensor[(1, 5), float32] {
  %0 = nn.conv2d(%data, %conv_weight, padding=[1, 1, 1, 1], channels=4, kernel_size=[3, 3]) \
/* ty=Tensor[(1, 4, 8, 8), float32] */;
  %1 = nn.batch_norm(%0, %bn_gamma, %bn_beta, %bn_moving_mean, %bn_moving_var) \
/* ty=(Tensor[(1, 4, 8, 8), float32], Tensor[(4,), float32], Tensor[(4,), float32]) */;
  %2 = nn.relu(%1.0) /* ty=Tensor[(1, 4, 8, 8), float32] */;
  %3 = nn.dropout(%2) /* ty=Tensor[(1, 4, 8, 8), float32] */;
  %4 = nn.conv2d(%3, %w2_weight, padding=[1, 1, 1, 1], channels=4, kernel_size=[3, 3]) \
/* ty=Tensor[(1, 4, 8, 8), float32] */;
  %5 = add(%3, %4) /* ty=Tensor[(1, 4, 8, 8), float32] */;
  %6 = nn.max_pool2d(%5, pool_size=[2, 2], strides=[2, 2], padding=[0, 0, 0, 0]) \
/* ty=Tensor[(1, 4, 4, 4), float32] */;
  %7 = nn.batch_flatten(%6) /* ty=Tensor[(1, 64), float32] */;
  %8 = nn.dense(%7, %fc_weight, units=5) /* ty=Tensor[(1, 5), float32] */;
  %9 = nn.bias_add(%8, %fc_bias, axis=-1) /* ty=Tensor[(1, 5), float32] */;
  nn.softmax(%9) /* ty=Tensor[(1, 5), float32] */
}
"""
    )


def test_expressions_print_as_relay_did():
    a, b = relay.var("a", shape=(2, 3)), relay.var("b", shape=(2, 3))
    z = relay.var("z")
    flag = relay.var("flag", shape=(), dtype="bool")
    assert (a + b * relay.const(1e-5)).astext() == (
        "free_var %a: Tensor[(2, 3), float32];\nfree_var %b: Tensor[(2, 3), float32];\n"
        "%0 = multiply(%b, 1e-05f);\nadd(%a, %0)"
    )
    assert str(relay.Function([a, b], relay.Let(z, a + b, nn.relu(z) * z))) == (
        "fn (%a: Tensor[(2, 3), float32], %b: Tensor[(2, 3), float32]) {\n"
        "  let %z = add(%a, %b);\n  %0 = nn.relu(%z);\n  multiply(%0, %z)\n}\n"
    )
    assert str(relay.Function([flag, a], relay.If(flag, a + a, a))) == (
        "fn (%flag: Tensor[(), bool], %a: Tensor[(2, 3), float32]) {\n"
        "  %0 = add(%a, %a);\n  if (%flag) { %0 } else { %a }\n}\n"
    )
    assert str(relay.Tuple([a, relay.split(b, 3, axis=1)[1]])).endswith(
        "%0 = split(%b, indices_or_sections=3, axis=1);\n(%a, %0.1)"
    )


def test_a_program_is_shown_with_or_without_types(capsys):
    a, b = relay.var("a", shape=(2, 3)), relay.var("b", shape=(3,))
    mod = tvm.IRModule.from_expr(nn.relu(a + b))
    tvmclassic.show(mod)
    assert capsys.readouterr().out == str(mod)
    tvmclassic.show(mod, types=False)
    assert capsys.readouterr().out == "def @main(%a, %b) {\n  %0 = add(%a, %b);\n  nn.relu(%0)\n}\n"
    tvmclassic.show(a + b, types=False)
    assert capsys.readouterr().out == "free_var %a;\nfree_var %b;\nadd(%a, %b)\n"
    with pytest.raises(TypeError, match=r"program: expected a module, function or expression of Relay; got str"):
        tvmclassic.show("relu")


def test_a_function_has_params_body_and_types():
    function = small_net()
    assert [p.name_hint for p in function.params][:2] == ["data", "conv_weight"]
    assert (function.body.op.name, function.body.attrs.axis) == ("nn.softmax", -1)
    assert function.body.args[0].op == relay.op.get("nn.bias_add")
    with pytest.raises(ValueError, match="not been inferred.*InferType"):
        _ = function.body.checked_type
    assert function.ret_type == relay.TensorType((1, 5), "float32")
    assert function.body.checked_type.concrete_shape == (1, 5)
    assert function.checked_type.arg_types[0] == relay.TensorType((1, 3, 8, 8))
    assert function.params[1].checked_type.shape == (4, 3, 3, 3)
    assert function.body.attrs.get_int("axis") == -1
    with pytest.raises(AttributeError):
        _ = function.body.attrs.axes


def test_let_tuples_and_calls_of_functions():
    a, b = relay.var("a", shape=(4, 6)), relay.var("b", shape=(4, 6))
    z = relay.var("z")
    square = relay.Function([z], z * z)
    let = relay.Let(relay.var("unused"), a * b, relay.Let(z, a + b, nn.relu(z) * z))
    nested = relay.Tuple([relay.Tuple([a, b]), square(a) + square(b)])
    body = relay.Tuple([let, relay.TupleGetItem(relay.TupleGetItem(nested, 0), 1), nested[1], relay.split(a, 2)[1]])
    results = outputs_of(relay.Function([a, b], body), a=A.m, b=A.n)
    m, n = A.m.astype("float64"), A.n.astype("float64")
    close(results, [np.maximum(m + n, 0) * (m + n), n, m**2 + n**2, m[2:]], 3)


def test_a_scope_builder_writes_lets_and_branches():
    builder, x = relay.ScopeBuilder(), relay.var("x", shape=(4, 6))
    total = builder.let("total", x + x)
    positive = builder.let(("positive", relay.TensorType((4, 6))), nn.relu(total))
    builder.ret(positive - x)
    m = A.m.astype("float64")
    close(outputs_of(relay.Function([x], builder.get()), x=A.m), np.maximum(2 * m, 0) - m)
    builder, flag = relay.ScopeBuilder(), relay.var("flag", shape=(), dtype="bool")
    with pytest.raises(RuntimeError, match="else_scope follows"), builder.else_scope():
        pass
    with builder.if_scope(flag):
        builder.ret(builder.let("y", relay.exp(x)))
    with builder.else_scope():
        builder.ret(x)
    branch = builder.get()
    assert isinstance(branch.true_branch, relay.Let)
    assert branch.false_branch is x


def test_functions_of_a_module_call_each_other():
    x = relay.var("x", shape=(4, 6))
    mod = relay.Module({"double": relay.Function([x], x + x)})
    y = relay.var("y", shape=(4, 6))
    mod["main"] = relay.Function([y], mod.get_global_var("double")(y) * y)
    assert "@double(%y)" in str(mod)
    close(outputs_of(mod, y=A.m), 2 * A.m.astype("float64") ** 2)
    assert "double" in mod and mod["double"].ret_type == relay.TensorType((4, 6))


def test_a_sparse_matrix_may_be_an_input_and_its_indices_are_checked():
    parts = {"data": CSR.data, "indices": CSR.indices.astype("int64"), "indptr": CSR.indptr.astype("int64")}
    matrix = [relay.var(name, shape=array.shape, dtype=str(array.dtype)) for name, array in parts.items()]
    m = relay.var("m", shape=(4, 6))
    program = relay.Function([m, *matrix], nn.sparse_dense(m, matrix))
    for level in (0, 3):
        close(outputs_of(program, level, m=A.m, **parts), A.m.astype("float64") @ CSR.toarray().T, 6)
    for name, index in (("indices", 6), ("indices", -1), ("indptr", len(CSR.data) + 1)):
        wrong = {**parts, name: parts[name].copy()}
        wrong[name][-1] = index
        with pytest.raises(IndexError, match="sparse_dense"):
            outputs_of(program, m=A.m, **wrong)
    with pytest.raises(ValueError, match=r"data of 1 axis \(CSR\) or 3 \(BSR\)"):
        relay.build(nn.sparse_dense(m, (relay.const(A.m), *matrix[1:])), "llvm")


@pytest.mark.parametrize(
    ("write", "shape"),
    [
        (lambda w: nn.conv2d(_image(), w, channels=8, kernel_size=(3, 5)), (8, 6, 3, 5)),
        (lambda w: nn.conv2d(_image(), w, channels=8, kernel_size=3, groups=2), (8, 3, 3, 3)),
        (
            lambda w: nn.conv2d(_image(), w, channels=4, kernel_size=1, data_layout="NHWC", kernel_layout="HWIO"),
            (1, 1, 10, 4),
        ),
        (lambda w: nn.conv2d_transpose(_image(), w, channels=4, kernel_size=(2, 2), groups=2), (6, 2, 2, 2)),
        (lambda w: nn.dense(relay.var("x", shape=(2, 7)), w, units=3), (3, 7)),
        (lambda w: nn.bias_add(_image(), w), (6,)),
        (lambda w: nn.bias_add(_image(), w, axis=-1), (10,)),
        (lambda w: nn.prelu(_image(), w), (6,)),
        (lambda w: nn.batch_norm(_image(), *[relay.var(n) for n in "abc"], w, axis=3)[0], (10,)),
        (lambda w: nn.layer_norm(_image(), relay.var("gamma"), w), (10,)),
    ],
)
def test_the_shape_of_a_weight_without_type_follows_from_its_operator(write, shape):
    w = relay.var("w")
    main = transform.InferType()(tvm.IRModule.from_expr(write(w)))["main"]
    assert w in main.params
    assert w.checked_type == relay.TensorType(shape)


def _image():
    return relay.var("x", shape=(2, 6, 8, 10))


# ---------------------------------------------------------------- passes


def names(mod) -> list[str]:
    """The operators that main calls, functions within it included, in order."""
    found = []

    class Names(relay.ExprVisitor):
        def visit_call(self, call):
            super().visit_call(call)
            found.extend([call.op.name] if hasattr(call.op, "name") else ())

    Names().visit(mod["main"])
    return found


PASSES = {
    "InferType": lambda: transform.InferType(),
    "SimplifyInference": lambda: transform.SimplifyInference(),
    "FoldConstant": lambda: transform.FoldConstant(),
    "FoldScaleAxis": lambda: tvm.transform.Sequential([transform.SimplifyInference(), transform.FoldScaleAxis()]),
    "FuseOps": lambda: tvm.transform.Sequential([transform.SimplifyInference(), transform.FuseOps(fuse_opt_level=2)]),
    "ConvertLayout": lambda: transform.ConvertLayout({"nn.conv2d": ["NHWC", "default"]}),
    "ConvertLayout: both": lambda: transform.ConvertLayout({"nn.conv2d": ["NHWC", "OHWI"]}),
    "EliminateCommonSubexpr": lambda: transform.EliminateCommonSubexpr(),
    "DeadCodeElimination": lambda: transform.DeadCodeElimination(),
    "ToMixedPrecision": lambda: transform.ToMixedPrecision("float16"),
}


@pytest.mark.parametrize("name", [*PASSES, "all but ToMixedPrecision"])
def test_a_pass_keeps_the_result(name):
    mod, params, x, _ = small_case()
    several = tvm.transform.Sequential([make() for known, make in PASSES.items() if not name.endswith(known)])
    with tvm.transform.PassContext(opt_level=3):
        passed = PASSES.get(name, lambda: several)()(mod)
    wanted = small_result("float16" if name == "ToMixedPrecision" else "float32")
    close(outputs_of(passed, 0, params, data=x), wanted)


@pytest.mark.parametrize("opt_level", sampled([0, 1, 2, 3], [0, 3]))
def test_each_opt_level_gives_the_result(opt_level):
    mod, params, x, _ = small_case()
    close(outputs_of(mod, opt_level, params, data=x), small_result())


def test_bound_weights_are_constants():
    mod, params, x, _ = small_case()
    bound = relay.build_module.bind_params_by_name(mod["main"], params)
    assert [p.name_hint for p in bound.params] == ["data"]
    close(outputs_of(bound, 2, data=x), small_result())


def test_simplify_inference_takes_batch_norm_and_dropout_apart():
    found = names(transform.SimplifyInference()(small_case()[0]))
    assert not {"nn.batch_norm", "nn.dropout"} & set(found)
    assert {"rsqrt", "multiply", "nn.conv2d"} <= set(found)


def test_fold_constant_computes_what_does_not_depend_on_inputs():
    a = relay.var("a", shape=(2, 3))
    mod = tvm.IRModule.from_expr(a + relay.const(np.full((2, 3), 2, "float32")) * relay.const(3.0))
    folded = transform.FoldConstant()(mod)["main"].body
    assert folded.op.name == "add"
    np.testing.assert_array_equal(folded.args[1].data.numpy(), np.full((2, 3), 6))


def test_fold_scale_axis_moves_a_factor_into_the_weight():
    x, w = relay.var("x", shape=(1, 3, 8, 8)), relay.var("w", shape=(4, 3, 3, 3))
    s = relay.var("s", shape=(4, 1, 1))
    scaled = tvm.IRModule.from_expr(relay.Function([x, w, s], nn.conv2d(x, w) * s))
    assert names(scaled) == ["nn.conv2d", "multiply"]
    folded = transform.FoldScaleAxis()(scaled)
    assert names(folded) == ["reshape", "multiply", "nn.conv2d"]
    twice = nn.conv2d(x, w)
    kept = tvm.IRModule.from_expr(relay.Function([x, w, s], twice * s + twice))
    assert names(transform.FoldScaleAxis()(kept)) == names(kept)


def test_fuse_ops_makes_a_function_of_each_kernel():
    mod = transform.SimplifyInference()(small_case()[0])
    fused = transform.FuseOps()(mod)
    groups = []
    relay.analysis.post_order_visit(
        fused["main"], lambda e: groups.append(e) if isinstance(getattr(e, "op", None), relay.Function) else None
    )
    assert all(g.op.attrs["Primitive"] == 1 for g in groups)
    inside = [names({"main": g.op}) for g in groups]
    assert sorted(n for group in inside for n in group) == sorted(names(mod))
    assert ["nn.conv2d", "add"] in inside  # the sum goes with one of the convolutions, not with both
    assert ["nn.dense", "nn.bias_add"] in inside
    assert max(sum(n in ("nn.conv2d", "nn.dense", "nn.max_pool2d") for n in group) for group in inside) == 1


def test_two_convolutions_do_not_share_a_kernel():
    x, w, v = (relay.var(n, shape=s) for n, s in (("x", (1, 3, 8, 8)), ("w", (4, 3, 3, 3)), ("v", (4, 3, 3, 3))))
    fused = transform.FuseOps()(tvm.IRModule.from_expr(nn.relu(nn.conv2d(x, w)) + nn.conv2d(x, v)))
    assert str(fused).count("Primitive=1") == 2


def test_convert_layout_changes_the_convolutions():
    converted = transform.ConvertLayout({"nn.conv2d": ["NHWC", "default"]})(small_case()[0])
    layouts = []
    relay.analysis.post_order_visit(
        converted["main"],
        lambda e: (
            layouts.append((e.attrs.data_layout, e.attrs.kernel_layout, list(e.checked_type.shape)))
            if getattr(getattr(e, "op", None), "name", "") == "nn.conv2d"
            else None
        ),
    )
    assert layouts == [("NHWC", "HWIO", [1, 8, 8, 4])] * 2
    with pytest.raises(NotImplementedError, match="nn.dense"):
        transform.ConvertLayout({"nn.dense": ["NC"]})(small_case()[0])


def test_mixed_precision_runs_convolutions_and_products_in_half():
    mixed = transform.ToMixedPrecision("float16")(small_case()[0])
    text = str(mixed)
    assert text.count("ty=Tensor[(1, 4, 8, 8), float16]") >= 2
    assert mixed["main"].ret_type == relay.TensorType((1, 5), "float32")
    with pytest.raises(NotImplementedError, match="bfloat16"):
        transform.ToMixedPrecision("bfloat16")(small_case()[0])


def test_equal_and_dead_expressions_go():
    a, b = relay.var("a", shape=(2, 3)), relay.var("b", shape=(2, 3))
    equal = tvm.IRModule.from_expr((a + b) * (a + b))
    assert names(equal).count("add") == 2
    assert names(transform.EliminateCommonSubexpr()(equal)) == ["add", "multiply"]
    dead = tvm.IRModule.from_expr(relay.Function([a, b], relay.Let(relay.var("z"), relay.exp(a), a + b)))
    assert names(dead) == ["exp", "add"]
    assert names(transform.DeadCodeElimination()(dead)) == ["add"]


def test_equal_expressions_stay_where_a_script_says_so():
    a = relay.var("a", shape=(2, 3))
    mod = tvm.IRModule.from_expr((relay.exp(a) + relay.sin(a)) * (relay.exp(a) + relay.sin(a)))
    skipped = transform.EliminateCommonSubexpr(lambda call: call.op.name == "sin")(mod)
    assert sorted(names(skipped)) == ["add", "add", "exp", "multiply", "sin", "sin"]


def test_the_module_is_printed_between_passes_and_other_passes_of_today_are_refused(capsys):
    mod = tvm.IRModule.from_expr(relay.exp(relay.var("a", shape=(2, 3))))
    tvm.transform.Sequential([transform.InferType(), tvm.transform.PrintIR()])(mod)
    assert capsys.readouterr().err == str(mod) + "\n"
    with pytest.raises(TypeError, match="LegalizeOps is a pass of today"):
        tvm.transform.Sequential([transform.InferType(), tvm.relax.transform.LegalizeOps()])(mod)


def test_a_constant_stays_one_through_relax_and_back():
    a, c = relay.var("a", shape=(2, 3)), relay.const(np.ones((2, 3), "float32"))
    mod = transform.CanonicalizeOps()(tvm.IRModule.from_expr((a + c) * (a - c)))
    assert str(mod).count("meta[relay.Constant][0]") == 2


def test_unused_functions_go():
    x = relay.var("x", shape=(2,))
    mod = relay.Module({n: relay.Function([x], relay.exp(x)) for n in ("used", "unused", "inner")})
    mod["used"] = relay.Function([x], mod.get_global_var("inner")(x))
    mod["main"] = relay.Function([x], mod.get_global_var("used")(x))
    kept = transform.RemoveUnusedFunctions()(mod)
    assert [v.name_hint for v in kept.get_global_vars()] == ["inner", "main", "used"]


def test_at_level_0_nothing_is_fused():
    mod = transform.SimplifyInference()(small_case()[0])
    alone = transform.FuseOps(fuse_opt_level=0)(mod)
    assert str(alone).count("Primitive=1") == len(names(mod))
    with tvm.transform.PassContext(opt_level=0):
        assert str(transform.FuseOps()(mod)) == str(alone)


def test_a_script_writes_its_own_passes():
    class Scale(relay.ExprMutator):
        def __init__(self, factor):
            super().__init__()
            self.factor = factor

        def visit_constant(self, const):
            return const * self.factor

    @transform.function_pass(opt_level=1)
    class ScaleConstants:
        def __init__(self, factor):
            self.factor = factor

        def transform_function(self, func, mod, ctx):
            assert "main" in mod
            return Scale(self.factor).visit(func)

    @transform.module_pass(opt_level=3, name="twice")
    def twice(mod, ctx):
        return ScaleConstants(relay.const(2.0))(mod)

    mod = tvm.IRModule.from_expr(relay.var("a", shape=(4, 6)) + relay.const(1.5))
    tripled = ScaleConstants(relay.const(3.0))
    assert (tripled.name, tripled.opt_level, twice.info.name) == ("ScaleConstants", 1, "twice")
    changed = tvm.transform.Sequential([tripled, twice])(mod)  # twice is of level 3, and the level is 2
    close(outputs_of(changed, a=A.m), A.m.astype("float64") + 4.5)
    close(outputs_of(twice(mod), a=A.m), A.m.astype("float64") + 3)


def test_sequential_goes_by_the_pass_context():
    a = relay.var("a", shape=(2, 3))
    mod = tvm.IRModule.from_expr(a + relay.const(2.0) * relay.const(3.0))
    both = tvm.transform.Sequential([transform.InferType(), transform.FoldConstant()])
    counts = {}
    for level, options in {
        0: {},
        1: {},
        2: {},
        3: {"disabled_pass": ["FoldConstant"]},
        -1: {"required_pass": ["FoldConstant"]},
    }.items():
        with tvm.transform.PassContext(opt_level=max(level, 0), **options):
            counts[level] = len(names(both(mod)))
    assert counts == {0: 2, 1: 2, 2: 1, 3: 2, -1: 1}
    assert len(names(both(mod))) == 1  # outside of a context the level is 2


# ---------------------------------------------------------------- Relax and back


TORCH = {
    "conv": lambda x: F.relu(F.conv2d(x, T("w"), T("v").repeat(2)[:8], padding=1)),
    "transposed conv": lambda x: F.conv_transpose2d(x, T("wt"), stride=2, padding=1),
    "pad": lambda x: F.pad(x, (1, 2, 0, 1), value=2.0),
    **{
        f"pad {mode}": lambda x, mode=mode: F.pad(x, (1, 2, 0, 1), mode)
        for mode in ("reflect", "replicate", "circular")
    },
    "norms": lambda x: F.layer_norm(F.group_norm(x, 2, T("scale"), T("bias")), (10,)) + F.instance_norm(x),
    "layer norm of two axes": lambda x: F.layer_norm(x, (8, 10)),
    "sorted": lambda x: torch.topk(x, 3, dim=1, largest=False).values + x.sort(dim=1, descending=True).values[:, :3],
    "arguments": lambda x: (x.argmax(1), x.argmin(3, keepdim=True), x.argsort(1)),
    "linear": lambda x: F.linear(x.flatten(2), T("x").reshape(2, -1)[0, :160].reshape(2, 80), T("v")[:2]),
    "matmul": lambda x: x @ x.transpose(2, 3),
    "shapes": lambda x: x.permute(0, 2, 3, 1).reshape(2, -1, 6)[:, 1:40:2].unsqueeze(1).squeeze(1),
    "parts": lambda x: torch.cat([p * n for n, p in enumerate(x.chunk(3, dim=1))], 1) + torch.stack([x, x]).sum(0),
    "scalars": lambda x: x.clamp(-0.5, 1.0).pow(2).sum((2, 3), keepdim=True) + x.mean(1, keepdim=True),
    "variance": lambda x: x.var((1, 2), keepdim=True) + x.std(3, keepdim=True),
    "chosen": lambda x: torch.where(x > 0, x, x.exp()).cumsum(2),
    "indices": lambda x: x[:, [0, 2, 5]] + x.gather(1, torch.ones(2, 3, 8, 10, dtype=torch.int64)),
    "pools": lambda x: F.max_pool2d(x, 3, 2, 1) + F.avg_pool2d(x, 3, 2, 1) + F.adaptive_avg_pool2d(x, (4, 5)),
    "scaled up": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
    "activations": lambda x: F.gelu(x) + F.silu(x) + F.leaky_relu(x, 0.3) + F.softmax(x, 1) + F.hardswish(x),
    "dtypes": lambda x: (x > 0).to(torch.int32) + x.to(torch.int32),
    "halves to even numbers": lambda x: torch.where(x > 0, 2.5, -0.5).round(),
    "parts of two sizes": lambda x: x.chunk(4, 3),
}


@functools.cache
def imported() -> dict[str, tuple[list[np.ndarray], list[np.ndarray]]]:
    """By function of TORCH, what it gives as a Relay program and in PyTorch; all are one import, one build."""
    from testing import Function

    def each(x):
        outputs = {name: function(x) for name, function in TORCH.items()}
        return {name: y if isinstance(y, tuple) else (y,) for name, y in outputs.items()}

    net = Function(lambda x: tuple(output for several in each(x).values() for output in several)).eval()
    mod, params = relay.frontend.from_pytorch(net, [("x", A.x.shape)])
    results = iter(outputs_of(mod, 1, params, x=A.x))
    return {name: ([next(results) for _ in several], arrays(several)) for name, several in each(T("x")).items()}


@pytest.mark.parametrize("case", TORCH)
def test_an_imported_network_as_relay_gives_what_pytorch_gives(case):
    results, eager = imported()[case]
    assert [result.dtype for result in results] == [array.dtype for array in eager]
    x = A.x
    with double_precision():
        close(results, reference(TORCH[case], x))


def test_an_imported_network_reads_as_relay_wrote_it():
    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.MaxPool2d(2), torch.nn.Flatten(), torch.nn.Linear(36, 5)
    ).eval()
    mod, params = relay.frontend.from_pytorch(net, [("x", (1, 3, 8, 8))])
    assert names(mod) == ["nn.conv2d", "nn.bias_add", "nn.relu", "nn.max_pool2d", "reshape", "nn.dense", "nn.bias_add"]
    assert set(params) == {p.name_hint for p in mod["main"].params} - {"x"}
    assert list(mod["main"].body.args[0].attrs.keys()) == ["units", "out_dtype"]


@pytest.mark.parametrize("axes", [None, [1, 0], [-1, 0], [0, 1]])
def test_a_product_with_a_transpose_reads_the_weight_as_it_is_moved(axes):
    x, w = (tvm.relax.Var(name, tvm.relax.TensorType((6, 6), "float32")) for name in "xw")
    builder, right = tvm.relax.BlockBuilder(), A.right.reshape(-1)[:36].reshape(6, 6)
    with builder.function("main", [x, w]):
        with builder.dataflow():
            turned = builder.emit(tvm.relax.op.permute_dims(w, axes))
            result = builder.emit_output(tvm.relax.op.matmul(x, turned))
        builder.emit_func_output(result)
    mod = importlib.import_module("tvmclassic.relay.lift").from_relax(builder.get())
    close(outputs_of(mod, x=A.x[0, 0, :6, :6], w=right), A.x[0, 0, :6, :6] @ right.astype("float64").transpose(axes), 6)


# ---------------------------------------------------------------- relay.testing


def test_a_multilayer_perceptron_and_a_chain_of_lstm_cells_give_what_pytorch_gives():
    rng = np.random.default_rng(5)
    mod, params = testing.mlp.get_workload(batch_size=2)
    x = rng.standard_normal((2, 1, 28, 28)).astype("float32")

    def perceptron(x, *values):
        p = dict(zip(params, values, strict=True))
        y = x.flatten(1)
        for n in (1, 2):
            y = F.relu(F.linear(y, p[f"fc{n}_weight"], p[f"fc{n}_bias"]))
        return F.softmax(F.linear(y, p["fc3_weight"], p["fc3_bias"]), 1)

    wanted = reference(perceptron, x, *(value.numpy() for value in params.values()))
    close(outputs_of(mod, 3, params, data=x), wanted)

    mod, params = testing.lstm.get_workload(iterations=3, num_hidden=8, batch_size=2)
    inputs = {name: rng.standard_normal((2, 8)).astype("float32") for name in ("data", "data_1", "data_2")}
    state = torch.zeros(2, 8).double(), torch.zeros(2, 8).double()
    for n, step in enumerate(inputs.values()):
        cell = torch.nn.LSTMCell(8, 8)
        for theirs, ours in (("ih", "i2h"), ("hh", "h2h")):
            for kind in ("weight", "bias"):
                value = torch.from_numpy(params[f"{ours}_{n}_{kind}"].numpy())
                setattr(cell, f"{kind}_{theirs}", torch.nn.Parameter(value))
        with torch.no_grad():
            state = cell.double()(torch.from_numpy(step).double(), state)
    close(outputs_of(mod, 3, params, **inputs)[0], state[0], 3 * (8 + 8))  # in each step of two vectors


@pytest.mark.parametrize(
    ("name", "options", "shape"),
    [
        ("resnet", {"num_layers": 8, "image_shape": (3, 16, 16), "num_classes": 10}, (1, 10)),
        pytest.param(
            *("resnet", {"num_layers": 8, "image_shape": (16, 16, 3), "layout": "NHWC", "num_classes": 7}, (1, 7)),
            marks=pytest.mark.full,
        ),
        pytest.param(
            *("squeezenet", {"version": "1.1", "image_shape": (3, 32, 32), "num_classes": 10}, (1, 10)),
            marks=pytest.mark.full,
        ),
        ("dcgan", {"batch_size": 1, "ngf": 4, "layout": "NHWC"}, (1, 64, 64, 3)),
    ],
)
def test_a_network_gives_the_same_at_every_opt_level(name, options, shape):
    mod, params = getattr(testing, name).get_workload(**options)
    rng = np.random.default_rng(6)
    params |= {
        k: tvm.nd.array(v.numpy() + rng.uniform(0, 0.3, v.shape).astype("float32"))
        for k, v in params.items()
        if not k.endswith("weight")
    }
    (data,) = (p for p in mod["main"].params if p.name_hint not in params)
    x = rng.standard_normal(data.checked_type.shape).astype("float32")
    lowest, highest = (outputs_of(mod, level, params, data=x)[0] for level in (0, 3))
    assert lowest.shape == shape
    assert lowest.std() > 1e-3
    close(highest, lowest, terms_of(params), rounded=True)


# Parameters that are learned, of the same networks in torchvision and Keras (mobilenet), which count them as papers do.
@pytest.mark.parametrize(
    ("name", "options", "like"),
    [
        ("squeezenet", {"version": "1.0"}, "squeezenet1_0"),
        ("squeezenet", {"version": "1.1"}, "squeezenet1_1"),
        ("vgg", {"batch_size": 1, "num_layers": 11}, "vgg11"),
        ("vgg", {"batch_size": 1, "num_layers": 16, "batch_norm": True}, "vgg16_bn"),
        ("densenet", {"batch_size": 1}, "densenet121"),
        ("densenet", {"batch_size": 1, "densenet_size": 161}, "densenet161"),
        ("inception_v3", {}, "inception_v3"),
        ("mobilenet", {}, 4231976),
    ],
)
def test_a_network_has_as_many_parameters_as_its_paper_says(name, options, like):
    import torchvision

    module = getattr(testing, name)
    with pytest.MonkeyPatch.context() as patch:  # no need to draw the weights
        patch.setattr(networks, "create_workload", lambda net: net)
        net = module.get_workload(**options)
    net = transform.InferType()(tvm.IRModule.from_expr(net))["main"]
    learned = [p for p in net.params if not p.name_hint.endswith(("data", "mean", "var"))]
    count = sum(int(np.prod(p.checked_type.shape)) for p in learned)
    if isinstance(like, str):
        extra = {"aux_logits": False, "init_weights": False} if like == "inception_v3" else {}
        with torch.device("meta"):
            like = sum(p.numel() for p in torchvision.models.get_model(like, **extra).parameters())
    assert count == like
    assert net.ret_type.shape[1] == 1000


def test_resnets_have_the_units_of_their_number_of_layers():
    for layers, size in ((18, 224), (50, 224), (20, 28), (164, 28)):
        net = testing.resnet.get_net(1, 10, num_layers=layers, image_shape=(3, size, size))
        found = testing.count_ops(net)
        shortcuts = sum("_sc_weight" in p.name_hint for p in net.params)
        assert found["nn.conv2d"] + found["nn.dense"] - shortcuts == layers
    with pytest.raises(ValueError, match="no network of 19 layers"):
        testing.resnet.get_net(1, 10, num_layers=19)


def test_workloads_are_filled_as_tvm_filled_them():
    mod, params = testing.resnet.get_workload(num_layers=8, image_shape=(3, 16, 16), num_classes=10)
    again = testing.resnet.get_workload(num_layers=8, image_shape=(3, 16, 16), num_classes=10)[1]
    assert list(params) == [p.name_hint for p in mod["main"].params if p.name_hint != "data"]
    for name, array in params.items():
        np.testing.assert_array_equal(array.numpy(), again[name].numpy())
    bound = np.sqrt(3 / (9 * (16 + 3) / 2))
    weight = params["conv0_weight"].numpy()
    assert 0.9 * bound < np.abs(weight).max() <= bound
    assert (params["bn1_gamma"].numpy() == 1).all()
    assert (params["fc1_bias"].numpy() == 0).all()
    ones = testing.create_workload(mod["main"], testing.init.Constant())[1]
    weight = ones["fc1_weight"].numpy()
    close(weight.sum(), np.array(1.0), weight.size)


def test_helpers_of_relay_testing():
    a = relay.var("a", shape=(2, 3))
    assert testing.run_infer_type(a + a).checked_type == relay.TensorType((2, 3))
    folded = testing.run_opt_pass(a * (relay.const(2.0) + relay.const(1.0)), transform.FoldConstant())
    assert folded.args[1].data.numpy() == 3
    assert testing.count_ops(small_net())["nn.conv2d"] == 2
    assert testing.rand("float32", 2, 3).shape == (2, 3)
    assert testing.ctx_list()[0][0] == "llvm"
    with pytest.raises(ValueError, match="3d_thing: expected a name"):
        testing.init.Xavier()("3d_thing", np.zeros((2, 2)))


# ---------------------------------------------------------------- visitors


def test_a_visitor_meets_each_part_once_and_a_mutator_rebuilds():
    seen = []

    class Visitor(relay.expr_functor.ExprVisitor):
        def visit_call(self, call):
            super().visit_call(call)
            seen.append(call.op.name)

        def visit_var(self, var):
            seen.append(var.name_hint)

    class Swap(relay.ExprMutator):
        def visit_call(self, call):
            call = super().visit_call(call)
            return nn.leaky_relu(call.args[0], alpha=0.5) if call.op == relay.op.get("nn.relu") else call

    a, b = relay.var("a", shape=(4, 6)), relay.var("b", shape=(4, 6))
    shared = nn.relu(a - b)
    function = relay.Function([a, b], relay.Tuple([shared + shared, relay.split(shared, 2)[0]]))
    Visitor().visit(function)
    assert seen == ["a", "b", "subtract", "nn.relu", "add", "split"]
    changed = Swap().visit(function)
    x = A.m.astype("float64") - A.n
    x = np.where(x > 0, x, x / 2)
    close(outputs_of(changed, a=A.m, b=A.n), [2 * x, x[:2]])
    assert relay.ExprMutator().visit(function) is function


def test_visitors_go_into_let_if_and_deep_networks():
    a, z = relay.var("a", shape=(2,)), relay.var("z")
    body = relay.Let(z, relay.exp(a), relay.If(relay.const(True), relay.sin(z), z))
    assert names({"main": relay.Function([a], body)}) == ["exp", "sin"]
    mutated = relay.ExprMutator().visit(body)
    assert mutated is body
    for _ in range(1500):
        a = relay.exp(a)
    assert testing.count_ops(a)["exp"] == 1500


def test_a_functor_says_which_method_it_lacks():
    class Count(relay.ExprFunctor):
        def visit_call(self, call):
            return 1 + sum(self.visit(arg) for arg in call.args)

    with pytest.raises(NotImplementedError, match="Count meets a var and has no visit_var"):
        Count().visit(relay.exp(relay.var("x")))
    with pytest.raises(TypeError, match="expected a Relay expression, got str"):
        relay.ExprVisitor().visit("x")


# ---------------------------------------------------------------- bad calls


@pytest.mark.parametrize(
    ("write", "error", "message"),
    [
        (lambda x: nn.conv2d(x), TypeError, r"nn.conv2d\(data, weight, .*missing a required argument: 'weight'"),
        (lambda x: nn.relu(x, alpha=1), TypeError, "nn.relu.*alpha"),
        (lambda x: nn.relu("x"), TypeError, "expected a Relay expression, a number or an array; got str"),
        (lambda x: x + relay.var("y", shape=(7,)), ValueError, r"relay.add\(Tensor\[\(2, 6, 8, 10\), float32\], .*7"),
        (lambda x: nn.dense(x, relay.var("w")), ValueError, "%w has no type"),
        (lambda x: relay.reshape(x, (7, -1)), ValueError, "relay.reshape"),
        (lambda x: relay.take(x, relay.const([0]), axis=0, batch_dims=1), NotImplementedError, "batch_dims"),
        (lambda x: relay.layout_transform(x, "NCHW", "NCHW4c"), ValueError, "no multiple of its block"),
        (lambda x: relay.argmax(x, axis=(0, 1)), ValueError, "one axis"),
        (
            lambda x: nn.sparse_dense(relay.cast(relay.reshape(x, (160, 6)), "int32"), CSR),
            ValueError,
            "of one dtype, got int32 and float32",
        ),
        (lambda x: relay.variance(relay.cast(x, "int32")), ValueError, "expected floats, got int32"),
        (lambda x: relay.split(x, 4, axis=1)[0], ValueError, "sections of one size, got 4 of 6"),
        (lambda x: nn.adaptive_max_pool2d(x, (3, 3)), NotImplementedError, "only whole windows"),
        (lambda x: nn.depth_to_space(x, 2, layout="NHWC"), NotImplementedError, "expected the layout NCHW"),
        (lambda x: relay.var("y", relay.TensorType((1,)), shape=(1,)), ValueError, "expected type_annotation or shape"),
        (
            lambda x: relay.build(nn.relu(relay.var("y", shape=(relay.Any(), 3))), "llvm"),
            NotImplementedError,
            r"relay.build is for static shapes; .*relay.vm.compile",
        ),
        (lambda x: relay.op.get("nn.convolution"), AttributeError, "no operator 'nn.convolution'; near names: nn.conv"),
        (lambda x: nn.conv2d(x, relay.var("w"), padding="SAME"), ValueError, "expected numbers as padding, got 'SAME'"),
        (lambda x: relay.reshape(x, (0, 0, -4, 2)), ValueError, "two numbers after -4"),
        (lambda x: relay.reshape(x, (0, 0, 0, 0, 0)), ValueError, "relay.reshape.*index out of range"),
        (lambda x: relay.TupleGetItem(x, 0), ValueError, r"expected a tuple to take value 0 of, got Tensor\[\(2, 6"),
        (lambda x: relay.Function([x], x)(x, x), ValueError, "of 1 parameters is called with 2 arguments"),
        (lambda x: relay.split(x, 2)[2], IndexError, "expected an index below 2, got 2"),
        (lambda x: relay.Call(relay.op.Op("nn.unheard"), [x]), NotImplementedError, "nn.unheard has no counterpart"),
    ],
)
def test_a_bad_call_says_what_is_wrong(write, error, message):
    with pytest.raises(error, match=message):
        written = write(_image())
        _ = relay.Function(relay.analysis.free_vars(written), written).ret_type


def test_modules_and_passes_take_what_is_of_relay():
    a = relay.var("a", shape=(2,))
    with pytest.raises(ValueError, match=r"%a is used and not bound"):
        relay.build(relay.Function([], a + a), "llvm")
    with pytest.raises(TypeError, match="InferType: expected a Relay module"):
        transform.InferType()(tvm.IRModule())
    with pytest.raises(ValueError, match="has no function 'other'; it has main"):
        _ = tvm.IRModule.from_expr(a + a)["other"]
    with pytest.warns(UserWarning, match="Legalize leaves the module as it is"):
        transform.Legalize()(tvm.IRModule.from_expr(a + a))


def test_the_heads_of_the_graph_are_the_outputs():
    x = relay.var("x", shape=(2, 4))
    first, second = (relay.split(nn.relu(x), 2, axis=1)[i] for i in range(2))
    outputs = [nn.softmax(first), x, second]
    library = relay.build(relay.Function([x], relay.Tuple(outputs)), "llvm")
    graph = json.loads(library.get_graph_json())
    heads = [graph["attrs"]["shape"][1][graph["node_row_ptr"][node] + output] for node, output, _ in graph["heads"]]
    assert heads == [[2, 2], [2, 4], [2, 2]]
    module = importlib.import_module("tvm.contrib.graph_executor").GraphModule(library["default"](tvm.cpu()))
    values = np.random.default_rng().standard_normal((2, 4), dtype="float32")
    module.run(x=values)
    np.testing.assert_array_equal(module.get_output(1).numpy(), values)
    np.testing.assert_array_equal(module.get_output(2).numpy(), np.maximum(values, 0)[:, 2:])
