"""from_mxnet: every operator against MXNet on random inputs, what it refuses, and symbols of older versions."""

import ctypes
import functools
import json

import numpy as np
import pytest
from agreement import close, terms_of
from testing import SEED, sampled

import tvmfast
from tvmfast.core.relax import ceildiv
from tvmfast.frontends.mxnet import gluon
from tvmfast.frontends.mxnet.ops.call import CONVERTERS

if not gluon.installed():
    pytest.skip("the mxnet extra is not installed", allow_module_level=True)

import mxnet as mx
from mxnet.base import _LIB, check_call

RNG = np.random.default_rng(SEED)


@pytest.fixture(autouse=True)
def seeded(monkeypatch):
    """A test's random numbers do not depend on the tests before it."""
    monkeypatch.setitem(globals(), "RNG", np.random.default_rng(SEED))


def both(symbol, inputs: dict, params: dict, exact: bool = False):
    """MXNet's outputs and ours, held against each other; gives ours."""
    ours = ours_of(symbol, inputs, params)
    hold(ours, mxnets(symbol, inputs, params), 0 if exact else summed(inputs, params))
    return ours


def mxnets(symbol, inputs: dict, params: dict) -> list[np.ndarray]:
    """MXNet's outputs."""
    arrays = {name: mx.nd.array(array, dtype=array.dtype) for name, array in {**inputs, **params}.items()}
    auxiliary = {name: arrays.pop(name) for name in symbol.list_auxiliary_states()}
    for name in symbol.list_arguments():
        if name not in arrays:  # a label, which MXNet wants and inference does not read
            known = {n: a.shape for n, a in arrays.items()}
            arrays[name] = mx.nd.zeros(symbol.infer_shape(**known)[0][symbol.list_arguments().index(name)])
    return [each.asnumpy() for each in symbol.bind(mx.cpu(), arrays, aux_states=auxiliary).forward(is_train=False)]


def ours_of(symbol, inputs: dict, params: dict) -> list[np.ndarray]:
    """What the imported symbol, built, gives."""
    mod, given = tvmfast.from_mxnet(symbol, params, {name: (a.shape, str(a.dtype)) for name, a in inputs.items()})
    outputs = tvmfast.build(mod, given)(*inputs.values())
    return list(outputs) if isinstance(outputs, tuple | list) else [outputs]


def summed(inputs: dict, params: dict) -> int:
    """Of how many terms a result is the sum at most: of a whole input, or what its weights read."""
    return max(each.size for each in inputs.values()) + terms_of(params)


def hold(outputs: list, wanted: list, terms: int) -> None:
    """With 0 terms the results are the same numbers."""
    assert [str(np.asarray(ours).dtype) for ours in outputs] == [str(theirs.dtype) for theirs in wanted]
    if terms:
        close(outputs, wanted, terms, rounded=True)
    else:
        for ours, theirs in zip(outputs, wanted, strict=True):
            np.testing.assert_array_equal(ours, theirs)


class Batch:
    """Symbols that are imported and built as one network, which takes a fifth of the time; each by its place.

    Where the network cannot be imported, built or run, each symbol is by itself, and so the culprit has a name.
    """

    def __init__(self, symbols: list, inputs: list[dict]):
        self.symbols, self.inputs = symbols, inputs
        self.params = [params_of(symbol, **given) for symbol, given in zip(symbols, inputs, strict=True)]

    @functools.cached_property
    def outputs(self) -> list[list]:
        """Of each symbol, or of none."""
        group = mx.sym.Group([prefixed(symbol, f"case{n}_") for n, symbol in enumerate(self.symbols)])
        inputs, params = (
            {f"case{n}_{name}": array for n, given in enumerate(arrays) for name, array in given.items()}
            for arrays in (self.inputs, self.params)
        )
        try:
            outputs = iter(ours_of(group, inputs, params))
        except Exception:
            return []
        return [[next(outputs) for _ in symbol.list_outputs()] for symbol in self.symbols]

    def check(self, index: int) -> None:
        symbol, inputs = self.symbols[index], self.inputs[index]
        params = self.params[index]
        outputs = self.outputs[index] if self.outputs else ours_of(symbol, inputs, params)
        hold(outputs, mxnets(symbol, inputs, params), summed(inputs, params))


def prefixed(symbol, prefix: str):
    """The symbol with other names for its variables and operators."""
    graph = json.loads(symbol.tojson())
    for node in graph["nodes"]:
        node["name"] = prefix + node["name"]
    return mx.sym.load_json(json.dumps(graph))


def uniform(*shape, low=-1.0, high=1.0):
    return RNG.uniform(low, high, shape).astype("float32")


X = mx.sym.var("x")
S = mx.sym


def params_of(symbol, **inputs) -> dict:
    """Random arrays for all that is not an input: positive where they are variances."""
    names = [*symbol.list_arguments(), *symbol.list_auxiliary_states()]
    arguments, _, states = symbol.infer_shape(**{name: a.shape for name, a in inputs.items()})
    arrays = {}
    for name, shape in zip(names, [*arguments, *states], strict=True):
        if name not in inputs and not name.endswith("_label"):
            positive = name.endswith("var")
            arrays[name] = uniform(*shape, low=0.5 if positive else -1.0, high=1.5 if positive else 1.0)
    return arrays


# Each: a name, a symbol of x, and x's shape.
OF_X = [
    ("convolution", S.Convolution(X, kernel=(3, 3), num_filter=6, pad=(1, 1)), (2, 4, 9, 8)),
    (
        "convolution, stride, dilation, groups",
        S.Convolution(X, kernel=(3, 2), stride=(2, 1), dilate=(1, 2), num_filter=6, num_group=2, no_bias=True),
        (1, 4, 11, 10),
    ),
    ("convolution, depthwise", S.Convolution(X, kernel=(3, 3), num_filter=8, num_group=8, pad=(1, 1)), (1, 8, 7, 7)),
    ("convolution of one axis", S.Convolution(X, kernel=(3,), num_filter=4, stride=(2,), pad=(1,)), (2, 3, 16)),
    ("convolution of three axes", S.Convolution(X, kernel=(2, 3, 3), num_filter=4, pad=(0, 1, 1)), (1, 3, 4, 6, 6)),
    ("deconvolution", S.Deconvolution(X, kernel=(4, 4), stride=(2, 2), pad=(1, 1), num_filter=6), (1, 4, 5, 6)),
    (
        "deconvolution, adj, bias",
        S.Deconvolution(X, kernel=(3, 3), stride=(2, 2), pad=(1, 1), adj=(1, 1), num_filter=6, no_bias=False),
        (1, 4, 5, 6),
    ),
    (
        "deconvolution in groups",
        S.Deconvolution(X, kernel=(4, 4), stride=(2, 2), pad=(1, 1), num_filter=8, num_group=4),
        (1, 8, 5, 5),
    ),
    ("fully connected", S.FullyConnected(X, num_hidden=7), (3, 4, 5)),
    ("fully connected, rows", S.FullyConnected(X, num_hidden=7, flatten=False, no_bias=True), (3, 4, 5)),
    ("batch norm", S.BatchNorm(X), (2, 5, 4, 4)),
    ("batch norm, gamma", S.BatchNorm(X, fix_gamma=False, eps=1e-5, use_global_stats=True), (2, 5, 4, 4)),
    ("batch norm along the last", S.BatchNorm(X, fix_gamma=False, axis=-1), (2, 5, 6)),
    (
        "batch norm of a convolution",
        S.BatchNorm(S.Convolution(X, kernel=(3, 3), num_filter=6, no_bias=True), fix_gamma=False),
        (1, 4, 8, 8),
    ),
    ("sync batch norm", S.contrib.SyncBatchNorm(X, fix_gamma=False, key="k"), (2, 5, 4, 4)),
    ("batch norm and relu", S.contrib.BatchNormWithReLU(X, fix_gamma=False), (2, 5, 4, 4)),
    ("instance norm", S.InstanceNorm(X), (2, 5, 4, 4)),
    ("layer norm", S.LayerNorm(X, axis=-1), (2, 5, 6)),
    ("group norm", S.GroupNorm(X, num_groups=3), (2, 6, 4, 4)),
    *(
        (f"l2 normalization, {mode}", S.L2Normalization(X, mode=mode), (2, 5, 4, 4))
        for mode in ("instance", "channel", "spatial")
    ),
    ("lrn", S.LRN(X, nsize=5, alpha=0.1, beta=0.6, knorm=1.5), (2, 7, 4, 4)),
    *(
        (
            f"pooling, {kind}, {convention}, {pad}, {include}",
            S.Pooling(
                X,
                kernel=(3, 3),
                stride=(2, 2),
                pad=(pad, pad),
                pool_type=kind,
                pooling_convention=convention,
                count_include_pad=include,
            ),
            (1, 3, 12, 11),
        )
        for kind in ("max", "avg", "sum")
        for convention in ("valid", "full")
        for pad in (0, 1)
        for include in ((True, False) if kind == "avg" else (True,))
    ),
    *(
        (f"global pooling, {kind}", S.Pooling(X, global_pool=True, kernel=(1, 1), pool_type=kind), (2, 3, 5, 6))
        for kind in ("max", "avg", "sum")
    ),
    (
        "pooling of one axis",
        S.Pooling(X, kernel=(3,), stride=(2,), pool_type="avg", pooling_convention="full"),
        (1, 3, 12),
    ),
    ("adaptive pooling", S.contrib.AdaptiveAvgPooling2D(X, output_size=(3, 4)), (1, 3, 8, 10)),
    ("adaptive pooling to one", S.contrib.AdaptiveAvgPooling2D(X), (1, 3, 8, 10)),
    ("adaptive pooling to a square", S.contrib.AdaptiveAvgPooling2D(X, output_size=(3,)), (1, 3, 8, 10)),
    ("upsampling", S.UpSampling(X, scale=2, sample_type="nearest"), (1, 3, 4, 5)),
    (
        "bilinear upsampling",
        S.UpSampling(X, S.var("weight"), scale=2, sample_type="bilinear", num_filter=3),
        (1, 3, 4, 5),
    ),
    ("bilinear resize to a row", S.contrib.BilinearResize2D(X, height=1, width=7), (1, 3, 4, 5)),
    ("bilinear resize", S.contrib.BilinearResize2D(X, height=9, width=7), (1, 3, 4, 5)),
    (
        "bilinear resize, half pixels",
        S.contrib.BilinearResize2D(X, height=9, width=7, align_corners=False),
        (1, 3, 4, 5),
    ),
    (
        "bilinear resize by scale",
        S.contrib.BilinearResize2D(X, scale_height=2, scale_width=1.5, mode="size"),
        (1, 3, 4, 6),
    ),
    *(
        (f"bilinear resize {mode}", S.contrib.BilinearResize2D(X, mode=mode), (1, 3, 4, 7))
        for mode in ("to_even_down", "to_even_up", "to_odd_down", "to_odd_up")
    ),
    (
        "bilinear resize of odd sizes",
        S.contrib.BilinearResize2D(X, mode="odd_scale", scale_height=1.5, scale_width=0.5),
        (1, 3, 4, 7),
    ),
    ("windows", S.im2col(X, kernel=(3, 2), stride=(2, 1), dilate=(1, 2), pad=(1, 2)), (2, 3, 6, 7)),
    ("crop", S.Crop(X, h_w=(3, 4), offset=(1, 2)), (1, 3, 6, 7)),
    ("crop, centre", S.Crop(X, h_w=(3, 4), center_crop=True), (1, 3, 6, 7)),
    *(
        (f"pad, {mode}", S.Pad(X, mode=mode, pad_width=(0, 0, 0, 0, 2, 1, 1, 3), constant_value=0.5), (1, 3, 5, 6))
        for mode in ("constant", "edge", "reflect")
    ),
    *(
        (f"activation, {kind}", S.Activation(X, act_type=kind), (3, 40))
        for kind in ("relu", "sigmoid", "tanh", "softrelu", "softsign")
    ),
    *(
        (f"leaky relu, {kind}", S.LeakyReLU(X, act_type=kind, slope=0.3), (3, 40))
        for kind in ("leaky", "elu", "selu", "gelu")
    ),
    ("prelu", S.LeakyReLU(X, S.var("gamma"), act_type="prelu"), (2, 5, 4, 4)),
    ("hard sigmoid", S.hard_sigmoid(X, alpha=0.3, beta=0.4), (3, 40)),
    ("softmax", S.softmax(X, axis=1, temperature=2.0), (3, 5, 6)),
    ("log softmax", S.log_softmax(X), (3, 5, 6)),
    ("softmin", S.softmin(X), (3, 5)),
    ("softmax activation", S.SoftmaxActivation(X), (3, 5, 2)),
    ("softmax activation of channels", S.SoftmaxActivation(X, mode="channel"), (3, 5, 2, 2)),
    ("softmax output", S.SoftmaxOutput(X, name="softmax"), (3, 5)),
    ("softmax output of many", S.SoftmaxOutput(X, multi_output=True, name="softmax"), (3, 5, 4)),
    ("softmax output of rows", S.SoftmaxOutput(X, preserve_shape=True, name="softmax"), (3, 5, 4)),
    ("logistic output", S.LogisticRegressionOutput(X, name="logistic"), (3, 5)),
    ("linear output", S.LinearRegressionOutput(X, name="linear"), (3, 5)),
    ("what does nothing", S.BlockGrad(S.Dropout(S.identity(X) + 0)), (3, 5)),
    ("flatten", S.Flatten(X), (3, 5, 4)),
    *(
        (f"reshape {shape}", S.reshape(X, shape=shape), (2, 3, 4))
        for shape in (
            (4, 0, 2),
            (-1,),
            (0, -1),
            (2, -2),
            (-3, 4),
            (-3, 0),
            (-4, 1, 2, -2),
            (0, -4, -1, 3, 4),
            (6, 1, -1),
        )
    ),
    *(
        (f"reshape {shape} from the right", S.reshape(X, shape=shape, reverse=True), (10, 5, 4))
        for shape in ((-1, 0), (0, -1, 0))
    ),
    ("transpose", S.transpose(X, axes=(2, 0, 1)), (2, 3, 4)),
    ("transpose all", S.transpose(X), (2, 3, 4)),
    ("swap axes", S.swapaxes(X, dim1=0, dim2=2), (2, 3, 4)),
    ("expand", S.expand_dims(X, axis=1), (2, 3)),
    ("expand at the end", S.expand_dims(X, axis=-1), (2, 3)),
    ("squeeze", S.squeeze(X), (2, 1, 3, 1)),
    ("squeeze one", S.squeeze(X, axis=1), (2, 1, 3, 1)),
    ("stack", S.stack(X, X * 2, axis=1), (2, 3)),
    ("concat", S.concat(X, X * 2, dim=-1), (2, 3)),
    ("split", S.Group(list(S.split(X, num_outputs=3, axis=1))), (2, 6, 4)),
    ("split, squeezed", S.Group(list(S.split(X, num_outputs=3, axis=1, squeeze_axis=True))), (2, 3, 4)),
    ("slice", S.slice(X, begin=(0, 1), end=(2, None)), (3, 5, 4)),
    ("slice by steps", S.slice(X, begin=(None, 4), end=(None, None), step=(2, -2)), (3, 5, 4)),
    ("slice axis", S.slice_axis(X, axis=-1, begin=1, end=-1), (3, 5)),
    (
        "a number in a slice",
        S._internal._slice_assign_scalar(X, scalar=3, begin=(None, 4), end=(None, 0), step=(2, -2)),
        (3, 6),
    ),
    (
        "an array in a slice",
        S._internal._slice_assign(X, S.ones((2, 3)), begin=(0, 1), end=(2, None), step=(1, 2)),
        (3, 6),
    ),
    ("scattered", S.scatter_nd(X, S.reshape(S.arange(0, 6), shape=(2, 3)) % 4, shape=(4, 5)), (3,)),
    ("scattered rows", S.scatter_nd(X, S.reshape(S.arange(2, 4), shape=(1, 2)), shape=(4, 5)), (2, 5)),
    ("copied rows", S.contrib.index_copy(S.zeros((4, 5)), S.cast(S.arange(1, 3), dtype="int32"), X), (2, 5)),
    ("rows of products", S.khatri_rao(X, S.slice_axis(X, axis=0, begin=1, end=3), X * 2), (3, 4)),
    ("slice like", S.slice_like(X, S.zeros((2, 3)), axes=(0,)), (3, 5)),
    ("tile", S.tile(X, reps=(2, 1, 3)), (3, 5)),
    ("repeat", S.repeat(X, repeats=2, axis=1), (3, 5)),
    ("repeat all", S.repeat(X, repeats=2), (3, 5)),
    ("flip", S.flip(X, axis=1), (3, 5)),
    ("broadcast to", S.broadcast_to(X, shape=(3, 0, 4)), (1, 5, 1)),
    ("broadcast axis", S.broadcast_axis(X, axis=(0, 2), size=(3, 4)), (1, 5, 1)),
    ("broadcast like", S.broadcast_like(X, S.zeros((3, 5, 4))), (1, 5, 1)),
    ("shape", S.shape_array(X), (3, 5)),
    ("zeros and ones", S.zeros_like(X) + 2 * S.ones_like(X), (3, 5)),
    ("arange", S.broadcast_add(S.arange(0, 5), X), (3, 5)),
    ("arange like", S.contrib.arange_like(X, axis=1), (3, 5)),
    ("cast", S.cast(S.cast(X * 10, dtype="int32"), dtype="float32"), (3, 5)),
    ("take", S.take(X, S.arange(-1, 8), axis=1), (3, 5)),
    ("take, wrapped", S.take(X, S.arange(-6, 8), axis=1, mode="wrap"), (3, 5)),
    ("embedding", S.Embedding(S.argmax(X, axis=1), input_dim=5, output_dim=3), (4, 5)),
    ("pick", S.pick(X, S.argmax(X, axis=1), axis=1), (4, 5)),
    ("pick of a vector", S.pick(X, S.argmax(X)), (5,)),
    ("gather", S.gather_nd(X, S.cast(S.reshape(S.arange(0, 4), shape=(2, 2)), dtype="int32")), (4, 5)),
    ("where", S.where(X > 0, X, X * 2), (4, 5)),
    ("where by rows", S.where(S.slice_axis(X, axis=1, begin=0, end=1).reshape((-1,)) > 0, X, X * 2), (4, 5)),
    ("one hot", S.one_hot(S.argmax(X, axis=1), depth=4, on_value=2, off_value=-1), (4, 5)),
    ("topk", S.topk(X, k=3, axis=1), (4, 9)),
    ("topk, both", S.Group(list(S.topk(X, k=3, axis=0, ret_typ="both", is_ascend=True))), (4, 9)),
    ("topk, values", S.topk(X, k=2, ret_typ="value"), (4, 9)),
    ("sort", S.sort(X, axis=0), (4, 9)),
    ("argsort", S.argsort(X, is_ascend=False), (4, 9)),
    ("argmax", S.argmax(X, axis=1, keepdims=True), (4, 9)),
    ("argmin of all", S.argmin(X), (4, 9)),
    ("argmax of channels", S.argmax_channel(X), (4, 9)),
    *((f"{name}", getattr(S, name)(X, axis=(0, 2)), (3, 4, 5)) for name in ("sum", "mean", "max", "min", "prod")),
    ("sum of all", S.sum(X), (3, 4, 5)),
    ("mean of the others", S.mean(X, axis=1, exclude=True, keepdims=True), (3, 4, 5)),
    ("norm", S.norm(X, axis=1), (3, 4, 5)),
    ("norm of all", S.norm(X, ord=1), (3, 4, 5)),
    ("sum of several", S.add_n(X, X * 2, X * 3), (3, 4)),
    *(
        (name, getattr(S, name)(X), (4, 30))
        for name in (
            "abs",
            "ceil",
            "floor",
            "exp",
            "sin",
            "cos",
            "tan",
            "sinh",
            "cosh",
            "tanh",
            "sigmoid",
            "sign",
            "negative",
            "erf",
            "square",
            "trunc",
            "fix",
            "rint",
            "arcsin",
            "arccos",
            "arctan",
            "arcsinh",
            "arctanh",
            "relu",
            "softsign",
            "expm1",
            "degrees",
            "radians",
            "cbrt",
            "logical_not",
            "erfinv",
        )
    ),
    *(
        (name, getattr(S, name)(X * X + 1), (4, 30))
        for name in (
            "log",
            "log2",
            "log10",
            "log1p",
            "sqrt",
            "rsqrt",
            "arccosh",
            "reciprocal",
            "rcbrt",
            "gamma",
            "gammaln",
        )
    ),
    ("round", S.round(X * 4), (4, 30)),
    ("round halves", S.round(S.rint(X * 8) / 2), (4, 30)),
    ("clip", S.clip(X, -0.2, 0.4), (4, 30)),
    ("smooth l1", S.smooth_l1(X * 4, scalar=1.5), (4, 30)),
    *(
        (f"{name} with a number", function(X), (4, 30))
        for name, function in {
            "+": lambda x: x + 2,
            "-": lambda x: x - 2,
            "r-": lambda x: 2 - x,
            "*": lambda x: x * 2,
            "/": lambda x: x / 2,
            "r/": lambda x: 2 / (x + 3),
            "%": lambda x: (x * 5) % 2,
            "r%": lambda x: 2 % (x + 3),
            "**": lambda x: (x + 2) ** 2,
            "r**": lambda x: 2**x,
            "==": lambda x: S.sign(x) == 1,
            "!=": lambda x: S.sign(x) != 1,
            ">": lambda x: x > 0.1,
            ">=": lambda x: x >= 0.1,
            "<": lambda x: x < 0.1,
            "<=": lambda x: x <= 0.1,
            "maximum": lambda x: S.maximum(x, 0.1),
            "minimum": lambda x: S.minimum(x, 0.1),
            "hypot": lambda x: S.hypot(x, 0.1),
        }.items()
    ),
    ("div sqrt dim", S.contrib.div_sqrt_dim(X), (4, 30)),
    ("syrk", S.linalg.syrk(X, alpha=0.5), (2, 3, 4)),
    ("syrk, transposed", S.linalg.syrk(X, transpose=True), (3, 4)),
    *(
        (f"{name}, offset {offset}", getattr(S.linalg, name)(X, offset=offset), (2, 6) if "make" in name else (2, 4, 4))
        for name in ("extractdiag", "makediag", "extracttrian", "maketrian")
        for offset in (-2, 0, 1)
    ),
    ("upper triangle", S.linalg.extracttrian(X, lower=False), (2, 4, 4)),
    ("of an upper triangle", S.linalg.maketrian(X, lower=False), (2, 6)),
    ("affine grid", S.GridGenerator(X, transform_type="affine", target_shape=(3, 5)), (2, 6)),
    ("warped grid", S.GridGenerator(X, transform_type="warp"), (2, 2, 3, 5)),
    *(
        (f"diagonal {offset}", S.diag(X, k=offset, axis1=axis, axis2=-1), (3, 4, 5))
        for offset, axis in ((0, 0), (2, 1), (-2, 0))
    ),
    *((f"of diagonal {offset}", S.diag(X, k=offset), (4,)) for offset in (0, 2, -1)),
    ("depth to space", S.depth_to_space(X, block_size=2), (2, 12, 3, 4)),
    ("space to depth", S.space_to_depth(X, block_size=2), (2, 3, 4, 6)),
    ("batch take", S.batch_take(X, S.cast(S.argmax(X, axis=1) + 3, dtype="int32")), (4, 6)),
    ("positions", S.unravel_index(S.cast(X * 40, dtype="int32"), shape=(3, 4, 2)), (30,)),
    ("positions of floats", S.ravel_multi_index(S.floor(X * 4), shape=(-1, 4, 5)), (3, 9)),
    ("indices", S.contrib.index_array(X, axes=(1, 0)), (2, 3)),
    ("identity matrix", S.broadcast_add(X, S.eye(3, 4, 1)), (3, 1)),
    ("steps", S.broadcast_add(X, S.linspace(0, 3, 7, endpoint=False)), (3, 1)),
    ("running sums", S.cumsum(X, axis=1), (3, 5)),
    *(
        (f"moments, {keep}", S.Group(list(S.moments(X, axes=(0, 2), keepdims=keep))), (3, 4, 5))
        for keep in (True, False)
    ),
    ("moments of all", S.Group(list(S.moments(X, axes=(0, 1)))), (3, 4)),
    ("quadratic", S.contrib.quadratic(X, a=0.5, b=-2, c=3), (3, 4)),
    ("straight through", S.contrib.round_ste(X * 4) + S.contrib.sign_ste(S.contrib.gradientmultiplier(X)), (3, 40)),
    ("normalized image", S.image.normalize(X, mean=(0.1, 0.2, 0.3), std=(0.5, 0.6, 0.7)), (2, 3, 4, 5)),
    ("image to a tensor", S.image.to_tensor(X), (2, 4, 5, 3)),
    ("cropped image", S.image.crop(X, x=1, y=0, width=3, height=2), (4, 5, 3)),
    ("flipped image", S.image.flip_left_right(S.image.flip_top_bottom(X)), (4, 5, 3)),
    ("interleaved queries and keys", S.contrib.interleaved_matmul_selfatt_qk(X, heads=2), (5, 3, 24)),
]


BATCH = 40  # symbols


@functools.cache
def batch_of_x(number: int) -> Batch:
    cases = OF_X[number * BATCH : (number + 1) * BATCH]
    return Batch([symbol for _, symbol, _ in cases], [{"x": uniform(*shape)} for _, _, shape in cases])


@pytest.mark.parametrize("number", range(len(OF_X)), ids=[case[0] for case in OF_X])
def test_an_operator_equals_mxnets(number):
    batch_of_x(number // BATCH).check(number % BATCH)


def test_a_batch_is_imported_and_built_as_one():
    assert all(batch_of_x(number).outputs for number in range(ceildiv(len(OF_X), BATCH))) and batch_of_two().outputs


def test_a_deconvolution_to_a_target_shape_pads_for_it():
    """MXNet with MKLDNN cannot run it; its rule is in its documentation."""
    x, outputs = uniform(1, 4, 5, 6), []
    for options in ({"target_shape": (10, 11)}, {"pad": (1, 2), "adj": (0, 1)}):
        symbol = S.Deconvolution(X, kernel=(4, 4), stride=(2, 2), num_filter=3, name="deconv", **options)
        weight = np.ones((4, 3, 4, 4), "float32")
        outputs.append(tvmfast.build(*tvmfast.from_mxnet(symbol, {"deconv_weight": weight}, {"x": x.shape}))(x))
    assert outputs[0].shape == (1, 3, 10, 11)
    np.testing.assert_array_equal(*outputs)


Y = S.var("y")
OF_TWO = [
    *(
        (name, getattr(S, name)(X, Y), (3, 4, 5), (1, 4, 1))
        for name in (
            "broadcast_add",
            "broadcast_sub",
            "broadcast_mul",
            "broadcast_div",
            "broadcast_mod",
            "broadcast_maximum",
            "broadcast_minimum",
            "broadcast_hypot",
            "broadcast_equal",
            "broadcast_not_equal",
            "broadcast_greater",
            "broadcast_greater_equal",
            "broadcast_lesser",
            "broadcast_lesser_equal",
            "broadcast_logical_and",
            "broadcast_logical_or",
            "broadcast_logical_xor",
        )
    ),
    *(
        (name, getattr(S, name)(X, Y), (3, 4), (3, 4))
        for name in ("elemwise_add", "elemwise_sub", "elemwise_mul", "elemwise_div", "maximum", "minimum")
    ),
    ("power", S.broadcast_power(X + 2, Y), (3, 4), (3, 4)),
    ("dot", S.dot(X, Y), (3, 4), (4, 5)),
    ("dot, transposed", S.dot(X, Y, transpose_a=True, transpose_b=True), (4, 3), (5, 4)),
    ("dot of many axes", S.dot(X, Y), (2, 3, 4), (4, 5)),
    ("batch dot", S.batch_dot(X, Y, transpose_b=True), (2, 3, 4), (2, 5, 4)),
    ("gemm2", S.linalg.gemm2(X, Y, alpha=0.5), (2, 3, 4), (2, 4, 5)),
    ("gemm2, axis 0", S.linalg.gemm2(X, Y, axis=0), (3, 2, 4), (4, 2, 5)),
    ("trmm", S.linalg.trmm(X, Y, transpose=True), (2, 4, 4), (2, 4, 3)),
    (
        "interleaved weights and values",
        S.contrib.interleaved_matmul_selfatt_valatt(X, Y, heads=2),
        (5, 3, 24),
        (6, 5, 5),
    ),
    ("queries and interleaved keys", S.contrib.interleaved_matmul_encdec_qk(X, Y, heads=2), (4, 3, 8), (5, 3, 16)),
    ("bilinear sampler", S.BilinearSampler(X, Y), (2, 3, 5, 6), (2, 2, 3, 4)),
    (
        "spatial transformer",
        S.SpatialTransformer(X, Y, target_shape=(3, 4), transform_type="affine", sampler_type="bilinear"),
        (2, 3, 5, 6),
        (2, 6),
    ),
    ("upsampling of two", S.UpSampling(X, Y, scale=2, sample_type="nearest", num_args=2), (1, 3, 4, 4), (1, 2, 8, 8)),
    ("crop like", S.Crop(X, Y, num_args=2), (1, 3, 6, 7), (1, 2, 4, 5)),
    ("resize like", S.contrib.BilinearResize2D(X, Y, mode="like"), (1, 3, 4, 5), (1, 2, 9, 8)),
    ("reshape like", S.reshape_like(X, Y), (3, 4), (2, 6)),
    ("reshape like its end", S.reshape_like(X, Y, lhs_begin=1, rhs_begin=2), (3, 20), (1, 2, 4, 5)),
    (
        "reshape like its middle",
        S.reshape_like(X, Y, lhs_begin=0, lhs_end=-1, rhs_begin=-3, rhs_end=3),
        (6, 5),
        (7, 2, 3, 5),
    ),
]


@functools.cache
def batch_of_two() -> Batch:
    return Batch([case[1] for case in OF_TWO], [{"x": uniform(*a), "y": uniform(*b)} for *_, a, b in OF_TWO])


@pytest.mark.parametrize("number", range(len(OF_TWO)), ids=[case[0] for case in OF_TWO])
def test_an_operator_of_two_equals_mxnets(number):
    batch_of_two().check(number)


def test_the_second_of_two_images_may_have_a_dynamic_size():
    symbol = S.UpSampling(X, Y, scale=2, sample_type="nearest", num_args=2)
    lib = tvmfast.build(*tvmfast.from_mxnet(symbol, {}, {"x": (1, 3, 4, 6), "y": (1, 2, "n", "m")}))
    for size in ((8, 12), (4, 6), (2, 3)):
        inputs = {"x": uniform(1, 3, 4, 6), "y": uniform(1, 2, *size)}
        np.testing.assert_array_equal(lib(*inputs.values()), mxnets(symbol, inputs, {})[0])


def test_roots_of_numbers_of_all_sizes():
    for dtype, largest in (("float16", 4), ("float32", 38), ("float64", 300)):
        x = np.array([0, 1, -8, np.inf, -np.inf, np.nan, *(10.0 ** np.linspace(-largest, largest, 50))], dtype)
        close(ours_of(S.cbrt(X), {"x": x}, {}), np.cbrt(x.astype("float64")), terms=4, scale=np.abs(np.cbrt(x)))


@pytest.mark.parametrize("name", ["nansum", "nanprod"])
def test_sums_and_products_without_nan(name):
    x = np.float32([[np.nan, 1, 2], [np.nan] * 3, [2, np.nan, 3], [0.0, -3, 4]])
    for axis in (0, 1, None):
        both(getattr(S, name)(X, axis=axis), {"x": x}, {}, exact=True)
    if name == "nanprod":  # in sums MXNet makes NaN of an infinity to which it adds
        both(S.nanprod(X), {"x": np.float32([np.inf, np.nan, -2])}, {}, exact=True)
    both(getattr(S, name)(X, axis=0), {"x": np.array([[3, 4], [5, 6]], "int32")}, {}, exact=True)


def test_indices_outside_are_clipped_wrapped_or_refused_as_by_mxnet():
    index, at = S.var("i"), S.var("at")
    clipped = [
        S.take(X, index, axis=1),
        S.take(X, S.cast(index, dtype="float32"), axis=1, mode="wrap"),
        S.pick(X, S.slice_axis(index, axis=0, begin=0, end=3)),
        S.Embedding(index, X, input_dim=3, output_dim=5),
    ]
    checked = [S.take(X, index, axis=0, mode="raise"), S.gather_nd(X, at)]
    inputs = {"x": uniform(3, 5), "i": np.array([-9, 4, 7, 0], "int64")}
    both(S.Group(clipped), inputs, {}, exact=True)
    far = inputs | {"i": np.array([1 << 40, 0, 0, 0])}
    assert np.array_equal(ours_of(clipped[0], far, {})[0], far["x"][:, [4, 0, 0, 0]])  # not the 0 of its lower half
    for symbol, name, operator, good, wrong in (
        (checked[0], "i", "take", [0, 2, 1, 0], [0, 3, 1, 0]),
        (checked[1], "at", "gather_nd", [[0, 2, -1], [4, -5, 0]], [[0, 2, 3], [4, 4, 4]]),
    ):
        both(symbol, {"x": inputs["x"], name: np.array(good)}, {}, exact=True)
        with pytest.raises((IndexError, mx.base.MXNetError)):
            mxnets(symbol, {"x": inputs["x"], name: np.array(wrong)}, {})
        with pytest.raises(IndexError, match=f"^{operator}: expected an index from -?[03] to 2, got 3$"):
            ours_of(symbol, {"x": inputs["x"], name: np.array(wrong)}, {})
    with pytest.raises(IndexError, match="^gather_nd: expected an index from -3 to 2, got 3$"):
        tvmfast.build(*tvmfast.from_mxnet(S.gather_nd(X, at), {"at": np.array([[3], [0]])}, {"x": (3, 5)}))


# ---------------------------------------------------------------- detection


def boxes(rows, batch=2, classes=3):
    """Random rows of class, score, and corners."""
    low = RNG.uniform(0, 0.7, (batch, rows, 2))
    columns = [
        RNG.integers(-1, classes, (batch, rows, 1)),
        RNG.uniform(-0.1, 1, (batch, rows, 1)),
        low,
        low + RNG.uniform(0, 0.4, (batch, rows, 2)),
    ]
    return np.concatenate(columns, 2).astype("float32")


SUPPRESSED = [
    {"id_index": 0},
    {"id_index": 0, "topk": 7},
    {"id_index": 0, "force_suppress": True},
    {"id_index": 0, "background_id": 0},
    {"id_index": 0, "background_id": 1, "topk": 5},
    {"id_index": -1, "overlap_thresh": 0.2},
    {"id_index": 0, "valid_thresh": 0.5},
    {"id_index": 0, "topk": 1000, "overlap_thresh": 0.1},
    {"id_index": 0, "in_format": "center", "out_format": "center"},
]


@pytest.mark.parametrize("rows", sampled([1, 40, 300], [40]))
@pytest.mark.parametrize("options", SUPPRESSED, ids=str)
def test_non_maximum_suppression_equals_mxnets(options, rows):
    both(S.contrib.box_nms(X, coord_start=2, score_index=1, **options), {"x": boxes(rows)}, {}, exact=True)


def test_one_box_and_many_are_suppressed_as_by_mxnet():
    for rows in (1, 300):
        both(S.contrib.box_nms(X, **SUPPRESSED[0]), {"x": boxes(rows)}, {}, exact=True)


def test_equal_scores_keep_their_order():
    data = boxes(60)
    data[..., 1] = np.round(data[..., 1], 1)
    for topk in (-1, 9):
        both(S.contrib.box_nms(X, id_index=0, topk=topk, overlap_thresh=0.3), {"x": data}, {}, exact=True)


DECODED = [(format, clip) for format in ("corner", "center") for clip in (-1, 0.5)]


@pytest.mark.parametrize("how", sampled(DECODED, [DECODED[0], DECODED[3]]), ids=str)
def test_boxes_are_decoded_as_mxnet_does(how):
    format, clip = how
    symbol = S.contrib.box_decode(X, Y, std0=0.1, std1=0.1, std2=0.2, std3=0.2, clip=clip, format=format)
    both(symbol, {"x": uniform(2, 9, 4) * 5, "y": uniform(1, 9, 4, low=0.2)}, {})


def test_overlaps_equal_mxnets():
    both(S.contrib.box_iou(X, Y), {"x": boxes(7)[0, :, 2:], "y": boxes(5)[0, :, 2:]}, {})


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"sizes": (0.2, 0.4), "ratios": (1, 2, 0.5)},
        {"sizes": (0.2,), "ratios": (2, 0.5), "clip": True},
        {"sizes": (0.3,), "steps": (0.1, 0.2), "offsets": (0.3, 0.6)},
    ],
    ids=str,
)
def test_anchors_equal_mxnets(options):
    both(S.contrib.MultiBoxPrior(X, **options), {"x": uniform(1, 3, 5, 7)}, {})


@pytest.mark.parametrize(
    "options",
    [
        *({}, {"nms_threshold": 0.3, "force_suppress": True, "nms_topk": 6, "clip": False, "threshold": 0.4}),
        pytest.param({"nms_threshold": 0.3, "force_suppress": True}, marks=pytest.mark.full),
        *(pytest.param(each, marks=pytest.mark.full) for each in ({"nms_topk": 6}, {"clip": False, "threshold": 0.4})),
    ],
    ids=str,
)
def test_multibox_detection_equals_mxnets(options):
    anchors = boxes(50)[:1, :, 2:]
    scores = RNG.dirichlet([0.5] * 4, (2, 50)).transpose(0, 2, 1).astype("float32")
    symbol = S.contrib.MultiBoxDetection(X, Y, S.var("anchors"), **options)
    inputs = {"x": scores, "y": uniform(2, 200), "anchors": anchors}
    wanted = symbol.bind(mx.cpu(), {name: mx.nd.array(array) for name, array in inputs.items()}).forward()[0].asnumpy()
    detections = tvmfast.build(*tvmfast.from_mxnet(symbol, {}, inputs))(*inputs.values())
    np.testing.assert_array_equal(detections[..., 0], wanted[..., 0])
    found = wanted[..., 0] >= 0  # what the others hold is left over from MXNet's sorting
    assert found.any()
    close(detections[found], wanted[found], 4, rounded=True)  # a corner has as many steps


@pytest.mark.parametrize(
    "options",
    [
        *({}, {"sample_ratio": 2, "aligned": True}),
        *(pytest.param(each, marks=pytest.mark.full) for each in ({"sample_ratio": 2}, {"aligned": True})),
    ],
    ids=str,
)
def test_regions_are_pooled_as_mxnet_does(options):
    symbol = S.contrib.ROIAlign(X, Y, pooled_size=(3, 4), spatial_scale=0.5, **options)
    x, rois = uniform(2, 5, 12, 14), regions(0, 1, 1, 0)
    lib = tvmfast.build(*tvmfast.from_mxnet(symbol, {}, {"x": x.shape, "y": rois.shape}))
    whole = lib(x, rois)
    hold([whole], mxnets(symbol, {"x": x, "y": rois}, {}), x[0, 0].size)
    rois[2, 0] = -1  # of no image: zeros, as MXNet gives on GPUs; on CPUs it leaves what is in memory
    whole[2] = 0
    np.testing.assert_array_equal(lib(x, rois), whole)


def test_the_largest_of_regions():
    symbol = S.ROIPooling(X, Y, pooled_size=(3, 4), spatial_scale=0.5)
    both(symbol, {"x": uniform(2, 5, 12, 14), "y": regions(0, 1, 1, 0)}, {})


def regions(*images: int) -> np.ndarray:
    corners = np.sort(uniform(len(images), 2, 2, low=0, high=20), 1).reshape(-1, 4)
    return np.concatenate([np.array(images)[:, None], corners], 1).astype("float32")


@pytest.mark.parametrize("groups", [1, 2])
def test_deformable_convolutions_equal_mxnets(groups):
    options = {"kernel": (3, 3), "pad": (1, 1), "num_filter": 6, "num_deformable_group": groups}
    inputs = {"x": uniform(1, 4, 7, 8), "y": uniform(1, 18 * groups, 7, 8) * 3}
    symbol = S.contrib.ModulatedDeformableConvolution(X, Y, S.var("mask"), **options)
    inputs["mask"] = uniform(1, 9 * groups, 7, 8, low=0)
    both(symbol, inputs, params_of(symbol, **inputs))


def test_the_best_indices_are_found_among_all_kinds_of_values(rng):
    import tvm

    from tvmfast.kernels.detection.nms import best_indices

    for shape, count in (((2, 1000), 1), ((2, 1000), 7), ((1, 9), 9)):
        kernel = tvm.compile(best_indices(*shape, count), "llvm")["main"]
        for scores in (
            rng.standard_normal(shape),
            np.zeros(shape),
            rng.integers(-3, 3, shape),
            -rng.exponential(1, shape),
            rng.standard_normal(shape) * 10.0 ** rng.integers(-30, 30, shape),
            np.full(shape, -np.inf),
        ):
            scores = scores.astype("float32")
            shape_of_best = len(scores), count
            indices = tvm.runtime.tensor(np.zeros(shape_of_best, "int32"))
            best = tvm.runtime.tensor(np.zeros(shape_of_best, "float32"))
            kernel(tvm.runtime.tensor(scores), indices, best)
            for row, found, values in zip(scores, indices.numpy(), best.numpy(), strict=True):
                wanted = np.sort(np.argsort(-row, kind="stable")[:count])
                np.testing.assert_array_equal(found, wanted)
                np.testing.assert_array_equal(values, row[wanted])


# ---------------------------------------------------------------- at the door


def test_all_unknown_operators_are_named_at_once():
    symbol = S.Group([S.contrib.fft(X), S.col2im(X, output_size=(1, 1), kernel=(1, 1)), X + 1])
    with pytest.raises(NotImplementedError, match=r"MXNet operators without a converter: _contrib_fft, col2im"):
        tvmfast.from_mxnet(symbol, {}, {"x": (2, 2)})


def test_shapes_that_do_not_broadcast_are_named():
    message = r"broadcast_maximum 'best': In relax.maximum, .*not broadcastable.*; it reads x: \(2, 3\), y: \(4, 3\)"
    with pytest.raises(ValueError, match=message):
        tvmfast.from_mxnet(S.broadcast_maximum(X, Y, name="best"), {}, {"x": (2, 3), "y": (4, 3)})


@pytest.fixture
def network():
    """A symbol with a convolution and a classifier, its input's shapes, and its parameters."""
    symbol = S.FullyConnected(
        S.Convolution(S.var("data"), kernel=(3, 3), num_filter=4, name="conv"), num_hidden=5, name="fc"
    )
    symbol = S.SoftmaxOutput(symbol, name="softmax")
    return symbol, {"data": (1, 3, 6, 6)}, params_of(symbol, data=uniform(1, 3, 6, 6))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p: p.pop("conv_weight"), r"params: missing conv_weight; the file, or the dictionary, must have all"),
        (lambda p: p.update(other_weight=p["fc_bias"]), r"params: not in the symbol: other_weight\. Is it the file of"),
        (
            lambda p: p.update(conv_weight=uniform(4, 4, 3, 3)),
            r"Convolution 'conv': 'conv_weight' must be of shape \(4, 3, 3, 3\); got \(4, 4, 3, 3\)",
        ),
        (lambda p: p.update(fc_bias=uniform(6)), r"FullyConnected 'fc': 'fc_bias' must be of shape \(5,\); got \(6,\)"),
    ],
)
def test_parameters_that_do_not_fit_are_named(network, change, message):
    symbol, shapes, params = network
    params = dict(params)
    change(params)
    with pytest.raises(ValueError, match=message):
        tvmfast.from_mxnet(symbol, params, shapes)


def test_inputs_that_do_not_fit_are_named(network):
    symbol, _, params = network
    with pytest.raises(ValueError, match=r"inputs: missing for the input data; give inputs=\{'data': "):
        tvmfast.from_mxnet(symbol, params)
    with pytest.raises(ValueError, match=r"inputs: the symbol has no input 'picture'; its inputs: data"):
        tvmfast.from_mxnet(symbol, params, {"picture": (1, 3, 6, 6)})
    with pytest.raises(TypeError, match=r"symbol: expected the path .* got list"):
        tvmfast.from_mxnet([], params, {"data": (1, 3, 6, 6)})
    with pytest.raises(TypeError, match=r"params: expected the path .* got int"):
        tvmfast.from_mxnet(symbol, 3, {"data": (1, 3, 6, 6)})


def test_functions_far_below_0_and_near_it():
    """Each number has a tolerance of its own: none is lost in a sum with 1."""
    x = np.array([-95, -20, -3, -1e-3, -1e-9, 1e-9, 1e-3, 0.1, 3, 20, 80], "float32")
    wide, small = x.astype("float64"), np.abs(x[3:7]).astype("float64") * np.sign(x[3:7])
    below, (scale, alpha) = np.expm1(np.minimum(wide, 0)), (1.0507009873554805, 1.6732632423543772)
    cases = [
        (S.Activation(X, act_type="softrelu"), x, np.logaddexp(wide, 0)),
        (S.expm1(X), x, np.expm1(wide)),
        (S.log1p(X), x[3:], np.log1p(wide[3:])),
        (S.LeakyReLU(X, act_type="elu", slope=0.3), x, np.where(wide > 0, wide, 0.3 * below)),
        (S.LeakyReLU(X, act_type="selu"), x, scale * np.where(wide > 0, wide, alpha * below)),
        (S.tanh(X), x[3:7], np.tanh(small)),
    ]
    for symbol, given, wanted in cases:
        close(ours_of(symbol, {"x": given}, {})[0], wanted, terms=16, scale=np.maximum(np.abs(wanted), 1e-38))


def test_norms_of_numbers_far_from_0():
    x, axes = uniform(2, 4, 30, 40, low=100, high=102), {"gamma": np.ones(4, "float32"), "beta": np.zeros(4, "float32")}
    symbols = [(S.InstanceNorm(X, S.var("gamma"), S.var("beta")), (2, 3)),
               (S.LayerNorm(X, S.var("gamma"), S.var("beta"), axis=1), (1,))]  # fmt: skip
    for symbol, over in symbols:
        wide, epsilon = x.astype("float64"), 1e-3 if over == (2, 3) else 1e-5
        spread = np.sqrt(wide.var(over, keepdims=True) + epsilon)
        wanted = (wide - wide.mean(over, keepdims=True)) / spread
        close(ours_of(symbol, {"x": x}, axes)[0], wanted, terms=30 * 40, scale=102 / spread.min())


def test_every_way_to_name_a_network_gives_the_same(network, tmp_path):
    symbol, shapes, params = network
    arrays = {name: mx.nd.array(array) for name, array in params.items()}
    mx.nd.save(str(tmp_path / "net-0000.params"), {f"arg:{name}": array for name, array in arrays.items()})
    symbol.save(str(tmp_path / "net-symbol.json"))
    x = uniform(1, 3, 6, 6)
    (wanted,) = both(symbol, {"data": x}, params)
    for given in [
        (tmp_path / "net-symbol.json", tmp_path / "net-0000.params"),
        (str(tmp_path / "net-symbol.json"), params),
        (symbol.tojson(), (arrays, {})),
        (symbol, arrays),
    ]:
        np.testing.assert_array_equal(tvmfast.build(*tvmfast.from_mxnet(*given, shapes))(x), wanted)


def test_symbols_of_old_versions_mean_the_same(network):
    symbol, shapes, params = network
    x = uniform(1, 3, 6, 6)
    (wanted,) = both(symbol, {"data": x}, params)
    new = json.loads(symbol.tojson())
    for key, version in (("attr", 905), ("param", 800)):
        old = {"nodes": [], "arg_nodes": new["arg_nodes"], "heads": [head[:2] for head in new["heads"]]}
        if key == "attr":
            old["attrs"] = {"mxnet_version": ["int", version]}
        for node in new["nodes"]:
            entry = {
                "op": node["op"],
                "name": node["name"],
                "inputs": [each[:2] for each in node["inputs"]],
                "backward_source_id": -1,
            }
            if "attrs" in node:
                entry[key] = {
                    name: value.replace(",", "L,").replace(")", "L)") if value[0] == "(" else value
                    for name, value in node["attrs"].items()
                }
            old["nodes"].append(entry)
        output = tvmfast.build(*tvmfast.from_mxnet(json.dumps(old), params, shapes))(x)
        np.testing.assert_array_equal(output, wanted)


# Registered by builds of before 1.9 alone: of a GPU's, and of the SSD example's own operators.
OF_OLD = {"CuDNNBatchNorm", "MultiBoxDetection", "MultiBoxPrior"}


def test_every_converter_is_of_an_operator_that_mxnet_has_or_had():
    assert tvmfast.from_mxnet  # whose import fills the table
    size, names = ctypes.c_uint(), ctypes.POINTER(ctypes.c_char_p)()
    check_call(_LIB.MXListAllOpNames(ctypes.byref(size), ctypes.byref(names)))
    assert CONVERTERS.keys() - {names[n].decode() for n in range(size.value)} == OF_OLD
    assert len(CONVERTERS) > 250


def test_functions_of_integers_are_cut_to_integers():
    """By a number too, unless one of MXNet 1.9 says that it is a float."""
    for dtype in ("uint8", "int32", "int64"):
        x = np.array([[1, 8, 3], [64, 27, 5]], dtype)
        numbers = [X + 1.5, X * 2.5, X / 2, 200 / X, X % 2.5, X**2, X**0.5, X == 1.5, S.hypot(X, 4)]
        names = ("exp", "log2", "sqrt", "cbrt", "tanh", "degrees", "reciprocal", "log1p", "gamma")
        small = [getattr(S, name)(S.broadcast_mod(X, S.ones_like(X) * 4)) for name in names[:1] + names[8:]]
        both(S.Group(numbers + [getattr(S, name)(X) for name in names[1:8]] + small), {"x": x}, {}, exact=True)


def test_integers_divided_by_0_do_not_end_the_process():
    for dtype in ("uint8", "int32"):
        x = {"x": np.array([0, 3, 0, 2], dtype)}
        both(S.Group([7 / X, 7 % X, X % 0.5]), x, {}, exact=True)
        least = np.iinfo(dtype).min  # MXNet divides, and so ends
        np.testing.assert_array_equal(ours_of(S.broadcast_div(X, X), x, {})[0], [least, 1, least, 1])


def test_places_of_what_is_written_are_checked():
    at, x = S.var("at"), uniform(2, 3)
    for symbol, where in (
        (S.scatter_nd(X, at, shape=(4, 3)), np.array([[1, 4]])),
        (S.contrib.index_copy(S.zeros((4, 3)), at, X), np.array([1, 4])),
    ):
        with pytest.raises(IndexError, match="expected an index from -?[04] to 3, got 4$"):
            given = {"x": x, "at": where}
            ours_of(symbol, {name: given[name] for name in symbol.list_arguments()}, {})


def test_division_by_0_sides_whose_squares_overflow_and_the_dtype_of_places():
    y = S.var("y")
    divided = {"x": np.float32([3, -3, 0, 2, -2]), "y": np.float32([0, 0, 0, 1.5, 1.5])}
    both(S.broadcast_mod(X, y), divided, {}, exact=True)
    for size in (1e-30, 1e30):
        both(S.broadcast_hypot(X, y), {"x": np.float32([3 * size]), "y": np.float32([-4 * size])}, {})
    both(S.broadcast_hypot(X, y), {"x": np.float32([0, 0, -np.inf]), "y": np.float32([0, 2, 1])}, {}, exact=True)
    for dtype in ("float16", "float64"):
        both(S.argmax(X, axis=1), {"x": uniform(4, 9).astype(dtype)}, {}, exact=True)
