"""Checkpoints from outside GluonCV: the files that MXNet writes of such networks import, and TVM's result is MXNet's.

The networks are built as their authors published them: insightface's ArcFace ResNet and MobileFaceNet, and
Inception-BN, SqueezeNet 1.1 and VGG-16 of MXNet's first model zoo. `python engine/tests/test_mxnet_checkpoints.py`
loads ArcFace's ResNet-100, a file of 250 MB, and tells how long that took, and how much memory.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from agreement import close, terms_of
from testing import sampled

import tvmfast
from tvmfast.frontends.mxnet import gluon

if not gluon.installed():
    pytest.skip("the mxnet extra is not installed", allow_module_level=True)

import mxnet as mx

# ---------------------------------------------------------------- insightface


def conv(x, name, filters, kernel=(3, 3), stride=(1, 1), pad=(1, 1), groups=1):
    return mx.sym.Convolution(
        x,
        num_filter=filters,
        kernel=kernel,
        stride=stride,
        pad=pad,
        num_group=groups,
        no_bias=True,
        workspace=256,
        name=name,
    )


def norm(x, name, fix_gamma=False):
    return mx.sym.BatchNorm(x, fix_gamma=fix_gamma, eps=2e-5, momentum=0.9, name=name)


def prelu(x, name):
    return mx.sym.LeakyReLU(x, act_type="prelu", name=name)


def arcface(units: list[int], filters: list[int], embedding: int = 512, excite: bool = False):
    """The ArcFace ResNet: pixels of 0 to 255 (N, 3, 112, 112) in, an embedding out ("IR" units, output type "E")."""
    x = (mx.sym.Variable("data") - 127.5) * 0.0078125
    x = prelu(norm(conv(x, "conv0", filters[0]), "bn0"), "relu0")
    for stage, (count, width) in enumerate(zip(units, filters[1:], strict=True), 1):
        for unit in range(1, count + 1):
            name, stride = f"stage{stage}_unit{unit}", (2, 2) if unit == 1 else (1, 1)
            body = conv(norm(x, f"{name}_bn1"), f"{name}_conv1", width)
            body = prelu(norm(body, f"{name}_bn2"), f"{name}_relu1")
            body = norm(conv(body, f"{name}_conv2", width, stride=stride), f"{name}_bn3")
            if excite:
                weigh = mx.sym.Pooling(body, global_pool=True, kernel=(7, 7), pool_type="avg", name=f"{name}_se_pool1")
                weigh = conv(weigh, f"{name}_se_conv1", width // 16, (1, 1), pad=(0, 0))
                weigh = conv(prelu(weigh, f"{name}_se_relu1"), f"{name}_se_conv2", width, (1, 1), pad=(0, 0))
                body = mx.sym.broadcast_mul(body, mx.sym.Activation(weigh, act_type="sigmoid"))
            if unit == 1:
                x = norm(conv(x, f"{name}_conv1sc", width, (1, 1), stride, (0, 0)), f"{name}_sc")
            x = body + x
    x = mx.sym.Dropout(norm(x, "bn1"), p=0.4)
    return norm(mx.sym.FullyConnected(x, num_hidden=embedding, name="pre_fc1"), "fc1", fix_gamma=True)


def mobilefacenet(width: float = 1.0, embedding: int = 128):
    """MobileFaceNet: depthwise convolutions, and a last one as wide as its map ("GDC")."""

    def block(x, name, filters, kernel=(1, 1), stride=(1, 1), pad=(0, 0), groups=1, active=True):
        x = norm(conv(x, f"{name}_conv2d", filters, kernel, stride, pad, groups), f"{name}_batchnorm")
        return prelu(x, f"{name}_relu") if active else x

    def separable(x, name, out, inner, stride):
        x = block(x, f"{name}_conv_sep", inner)
        x = block(x, f"{name}_conv_dw", inner, (3, 3), stride, (1, 1), groups=inner)
        return block(x, f"{name}_conv_proj", out, active=False)

    thin, wide = int(64 * width), int(128 * width)
    x = (mx.sym.Variable("data") - 127.5) * 0.0078125
    x = block(x, "conv_1", thin, (3, 3), (2, 2), (1, 1))
    x = block(x, "conv_2_dw", thin, (3, 3), (1, 1), (1, 1), groups=thin)
    for stage, (out, inner, repeats) in enumerate([(thin, wide, 4), (wide, 2 * wide, 6), (wide, 2 * wide, 2)]):
        x = separable(x, f"dconv_{stage}", out, inner if stage == 0 else 2 * inner, (2, 2))
        for repeat in range(repeats):
            x = x + separable(x, f"res_{stage}_{repeat}", out, inner, (1, 1))
    x = block(x, "conv_6sep", 4 * wide)
    x = block(x, "conv_6dw7_7", 4 * wide, (7, 7), groups=4 * wide, active=False)
    return norm(mx.sym.FullyConnected(x, num_hidden=embedding, name="pre_fc1"), "fc1", fix_gamma=True)


# ---------------------------------------------------------------- MXNet's first model zoo


def inception_bn(width: float = 1.0):
    """Inception-BN of three modules: the stem, one with an average pool, one that halves the map with a max pool."""

    def unit(x, name, filters, kernel=(1, 1), stride=(1, 1), pad=(0, 0)):
        x = mx.sym.Convolution(
            x, num_filter=max(4, int(filters * width)), kernel=kernel, stride=stride, pad=pad, name=f"conv_{name}"
        )
        x = mx.sym.BatchNorm(x, fix_gamma=False, eps=1e-5 + 1e-10, momentum=0.9, name=f"bn_{name}")
        return mx.sym.Activation(x, act_type="relu", name=f"relu_{name}")

    def inception(x, name, one, three_of, three, double_of, double, kind, projected):
        pool = mx.sym.Pooling(x, kernel=(3, 3), stride=(1, 1), pad=(1, 1), pool_type=kind, name=f"{kind}_pool_{name}")
        return mx.sym.Concat(
            unit(x, f"{name}_1x1", one),
            unit(unit(x, f"{name}_3x3_reduce", three_of), f"{name}_3x3", three, (3, 3), pad=(1, 1)),
            unit(
                unit(unit(x, f"{name}_d_reduce", double_of), f"{name}_d_0", double, (3, 3), pad=(1, 1)),
                f"{name}_d_1",
                double,
                (3, 3),
                pad=(1, 1),
            ),
            unit(pool, f"{name}_proj", projected),
            name=f"ch_concat_{name}_chconcat",
        )

    def halving(x, name, three_of, three, double_of, double):
        return mx.sym.Concat(
            unit(unit(x, f"{name}_3x3_reduce", three_of), f"{name}_3x3", three, (3, 3), (2, 2), (1, 1)),
            unit(
                unit(unit(x, f"{name}_d_reduce", double_of), f"{name}_d_0", double, (3, 3), pad=(1, 1)),
                f"{name}_d_1",
                double,
                (3, 3),
                (2, 2),
                (1, 1),
            ),
            mx.sym.Pooling(x, kernel=(3, 3), stride=(2, 2), pad=(1, 1), pool_type="max", name=f"max_pool_{name}"),
            name=f"ch_concat_{name}_chconcat",
        )

    x = unit(mx.sym.Variable("data"), "1", 64, (7, 7), (2, 2), (3, 3))
    x = mx.sym.Pooling(x, kernel=(3, 3), stride=(2, 2), pool_type="max", name="pool_1")
    x = inception(x, "3a", 64, 64, 64, 64, 96, "avg", 32)
    x = halving(x, "3c", 128, 160, 64, 96)
    x = inception(x, "5b", 352, 192, 320, 192, 224, "max", 128)
    x = mx.sym.Pooling(x, kernel=(7, 7), global_pool=True, pool_type="avg", name="global_pool")
    x = mx.sym.FullyConnected(mx.sym.Flatten(x, name="flatten"), num_hidden=1000, name="fc1")
    return mx.sym.SoftmaxOutput(x, name="softmax")


def squeezenet():
    """SqueezeNet 1.1."""

    def fire(x, name, squeeze, expand):
        x = relu(mx.sym.Convolution(x, num_filter=squeeze, kernel=(1, 1), name=f"{name}_squeeze1x1"))
        one = relu(mx.sym.Convolution(x, num_filter=expand, kernel=(1, 1), name=f"{name}_expand1x1"))
        three = relu(mx.sym.Convolution(x, num_filter=expand, kernel=(3, 3), pad=(1, 1), name=f"{name}_expand3x3"))
        return mx.sym.Concat(one, three, name=f"{name}_concat")

    x = relu(mx.sym.Convolution(mx.sym.Variable("data"), num_filter=64, kernel=(3, 3), stride=(2, 2), name="conv1"))
    for number, (squeeze, expand) in enumerate([(16, 64), (16, 64), (32, 128), (32, 128), (48, 192), (64, 256)], 2):
        if number in (2, 4, 6):
            x = mx.sym.Pooling(x, kernel=(3, 3), stride=(2, 2), pool_type="max", pooling_convention="full")
        x = fire(x, f"fire{number}", squeeze, expand)
    x = relu(mx.sym.Convolution(mx.sym.Dropout(x, p=0.5), num_filter=1000, kernel=(1, 1), name="conv10"))
    x = mx.sym.Flatten(mx.sym.Pooling(x, kernel=(13, 13), global_pool=True, pool_type="avg", name="pool10"))
    return mx.sym.SoftmaxOutput(x, name="prob")


def relu(x):
    return mx.sym.Activation(x, act_type="relu")


def vgg16(hidden: int = 4096):
    """VGG-16; at most its first layers' widths are less where `hidden` is."""
    x = mx.sym.Variable("data")
    for block, (filters, count) in enumerate([(64, 2), (128, 2), (256, 3), (512, 3), (512, 3)], 1):
        for number in range(1, count + 1):
            name = f"conv{block}_{number}"
            x = relu(mx.sym.Convolution(x, kernel=(3, 3), pad=(1, 1), num_filter=filters * hidden // 4096, name=name))
        x = mx.sym.Pooling(x, pool_type="max", kernel=(2, 2), stride=(2, 2), name=f"pool{block}")
    x = mx.sym.Flatten(x, name="flatten_0")
    for name in ("fc6", "fc7"):
        x = mx.sym.Dropout(relu(mx.sym.FullyConnected(x, num_hidden=hidden, name=name)), p=0.5)
    return mx.sym.SoftmaxOutput(mx.sym.FullyConnected(x, num_hidden=1000, name="fc8"), name="prob")


# ---------------------------------------------------------------- the checkpoints


NETWORKS = {
    "arcface": (lambda: arcface([1, 2, 2, 1], [16, 16, 32, 64, 128]), 112),
    "arcface_se": (lambda: arcface([1, 1, 1, 1], [16, 16, 32, 64, 128], excite=True), 112),
    "mobilefacenet": (lambda: mobilefacenet(0.25), 112),
    "inception_bn": (lambda: inception_bn(0.25), 96),
    "squeezenet": (squeezenet, 96),
    "vgg16": (lambda: vgg16(1024), 64),
}


def checkpoint(symbol, shape, prefix) -> tuple[str, str]:
    """Write what MXNet writes after epoch 12, with seeded weights."""
    rng = np.random.default_rng(0)
    states = dict(zip(symbol.list_auxiliary_states(), symbol.infer_shape(data=shape)[2], strict=True))
    learned = dict(zip(symbol.list_arguments(), symbol.infer_shape(data=shape)[0], strict=True))
    params = {name: mx.nd.array(seeded(rng, name, size)) for name, size in (learned | states).items()}
    parts = [{name: params[name] for name in names} for names in (learned, states)]
    for label in ("data", "softmax_label", "prob_label"):
        parts[0].pop(label, None)
    mx.model.save_checkpoint(str(prefix), 12, symbol, *parts)
    return f"{prefix}-symbol.json", f"{prefix}-0012.params"


def seeded(rng, name: str, shape) -> np.ndarray:
    if len(shape) > 1:
        return rng.standard_normal(shape, "float32") * np.float32(np.sqrt(2 / np.prod(shape[1:])))
    if name.endswith(("moving_var", "bn_gamma")):
        return rng.uniform(0.8, 1.2, shape)
    return rng.normal(1.0 if name.endswith("_gamma") else 0.1, 0.1, shape)


def by_mxnet(symbol_file: str, x: np.ndarray) -> np.ndarray:
    symbol, learned, states = mx.model.load_checkpoint(symbol_file.removesuffix("-symbol.json"), 12)
    labels = [name for name in symbol.list_arguments() if name.endswith("_label")]
    module = mx.mod.Module(symbol, label_names=labels or None)
    module.bind([("data", x.shape)], for_training=False)
    module.set_params(learned, states)
    module.forward(mx.io.DataBatch([mx.nd.array(x)]), is_train=False)
    return module.get_outputs()[0].asnumpy()


@pytest.mark.parametrize("name", sampled(NETWORKS, ["arcface_se", "mobilefacenet", "inception_bn"]))
def test_a_checkpoint_gives_mxnets_results(name, tmp_path, rng):
    make, size = NETWORKS[name]
    shape = (2, 3, size, size)
    files = checkpoint(make(), shape, tmp_path / name)
    mod, params = tvmfast.from_mxnet(*files, {"data": shape})
    x = rng.uniform(0, 255 if "face" in name else 1, shape).astype("float32")
    wanted, output = by_mxnet(files[0], x), tvmfast.build(mod, params)(x)
    assert wanted.std() > 0
    close(output, wanted, terms_of(params), rounded=True)


# ---------------------------------------------------------------- a large one


LOAD = """
import resource, sys, time
import numpy, tvm, tvmfast
tvmfast.from_mxnet
used = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
before, start = used(), time.perf_counter()
mod, params = tvmfast.from_mxnet(sys.argv[1], sys.argv[2], {"data": (1, 3, 112, 112)})
seconds = time.perf_counter() - start
print(f"imported in {seconds:.2f} s, with {used() - before:.0f} MB more memory at most; {len(params)} parameters")
"""


def main() -> None:
    """Seconds and memory of a checkpoint of 250 MB, in a process without MXNet."""
    with tempfile.TemporaryDirectory() as folder:
        symbol = arcface([3, 13, 30, 3], [64, 64, 128, 256, 512])
        files = checkpoint(symbol, (1, 3, 112, 112), Path(folder, "r100"))
        print(f"{Path(files[1]).stat().st_size / 1e6:.0f} MB", flush=True)
        subprocess.run([sys.executable, "-W", "ignore", "-c", LOAD, *files], check=True)


if __name__ == "__main__":
    main()
