"""Linear and cubic resizes read the pixels that the framework reads, which shows beside NaN and infinities."""

import itertools

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from agreement import close
from testing import Function

import tvmfast
from tvmfast.frontends.mxnet import gluon

SHAPE = (1, 1, 3, 4)
SIZES = ((3, 8), (6, 4), (5, 5), (1, 1), (2, 7))
TERMS = 64  # of four by four neighbours, whose weights are cubic


def images() -> list[np.ndarray]:
    """Of which one pixel is not finite."""
    x = np.random.default_rng(0).standard_normal(SHAPE).astype("float32")
    return [
        np.where(np.arange(x.size).reshape(SHAPE) == place, np.float32(value), x)
        for value, place in itertools.product((np.nan, np.inf), range(x.size))
    ]


def of_pytorch(x):
    for mode, size, corners in itertools.product(("bilinear", "bicubic"), SIZES, (False, True)):
        yield F.interpolate(x, size, mode=mode, align_corners=corners)
    for mode, size in itertools.product(("bilinear", "bicubic"), SIZES[:3]):
        yield F.interpolate(x, size, mode=mode, antialias=True)
    for size, corners in itertools.product((4, 8, 5, 1), (False, True)):
        yield F.interpolate(x[0], size, mode="linear", align_corners=corners)
        yield F.interpolate(x[None], (2, 3, size), mode="trilinear", align_corners=corners)
    yield F.interpolate(x, scale_factor=(0.7, 1.3), mode="bicubic")


@pytest.mark.parametrize("level", [0, 3])
def test_pixels_that_pytorch_reads(level):
    net = Function(lambda x: tuple(of_pytorch(x))).eval()
    lib = tvmfast.build(*tvmfast.from_pytorch(net, [torch.zeros(SHAPE)]), opt_level=level)
    for x in images():
        close(lib(x), net(torch.from_numpy(x)), TERMS, rounded=True)


def test_pixels_of_dynamic_images_that_pytorch_reads():
    """Twice and one and a half times as large, and as high as before: of that, it reads no second row."""
    net = Function(
        lambda x: (
            *(F.interpolate(x, scale_factor=2, mode=mode) for mode in ("bilinear", "bicubic")),
            *(F.interpolate(x, (x.shape[2], 7), mode="bilinear", align_corners=corners) for corners in (True, False)),
        )
    ).eval()
    lib = tvmfast.build(*tvmfast.from_pytorch(net, {"x": (1, 1, "h", "w")}))
    for x in images():
        close(lib(x), net(torch.from_numpy(x)), TERMS, rounded=True)


@pytest.mark.parametrize("level", [0, 3])
def test_pixels_that_onnx_runtime_reads(level):
    onnxruntime, parser = pytest.importorskip("onnxruntime"), pytest.importorskip("onnx.parser")
    weights, nodes, kinds = [], [], ("half_pixel", "align_corners", "asymmetric", "tf_half_pixel_for_nn")
    cases = [(f'mode = "{m}", coordinate_transformation_mode = "{k}"', s)
             for m, k, s in itertools.product(("linear", "cubic"), kinds, SIZES)]  # fmt: skip
    cases += [(f'mode = "{m}", antialias = 1', s) for m, s in itertools.product(("linear", "cubic"), SIZES[:3])]
    cases += [('mode = "cubic", exclude_outside = 1', size) for size in SIZES]
    for number, (how, (height, width)) in enumerate(cases):
        weights.append(f"int64[4] size{number} = {{1, 1, {height}, {width}}}")
        nodes.append(f"y{number} = Resize<{how}>(x, , , size{number})")
    results = ", ".join(f"float[a{n}, b{n}, c{n}, d{n}] y{n}" for n in range(len(nodes)))
    head = '<ir_version: 8, opset_import: ["": 19]> g (float[1, 1, 3, 4] x) => '
    model = parser.parse_model(f"{head} ({results}) <{', '.join(weights)}> {{ {' '.join(nodes)} }}")
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    lib = tvmfast.build(*tvmfast.from_onnx(model), opt_level=level)
    for x in images():
        close(lib(x), session.run(None, {"x": x}), TERMS, rounded=True)


@pytest.mark.parametrize("level", [0, 3])
@pytest.mark.skipif(not gluon.installed(), reason="the mxnet extra is not installed")
def test_pixels_that_mxnet_reads(level):
    import mxnet as mx

    resize, both = mx.sym.contrib.BilinearResize2D, itertools.product(((3, 4), *SIZES), (True, False))
    image = mx.sym.var("x")
    net = mx.sym.Group([resize(image, height=h, width=w, align_corners=on) for (h, w), on in both])
    lib = tvmfast.build(*tvmfast.from_mxnet(net, {}, {"x": SHAPE}), opt_level=level)
    for x in images():
        close(lib(x), [each.asnumpy() for each in net.eval(x=mx.nd.array(x))], TERMS, rounded=True)
