"""GluonCV's networks with seeded weights: TVM's result is MXNet's. Some here; `make suites` has all.

Detectors must have the same classes in the same order; where two scores are closer to each other than 1e-4, their
detections may stand in either order.
"""

import re
import sys
import time

import numpy as np
import pytest
from agreement import close, terms_of
from testing import sampled

import tvmfast
from tvmfast.core import compat
from tvmfast.frontends.mxnet import gluon

if not gluon.installed():
    pytest.skip("the mxnet extra is not installed", allow_module_level=True)

SCORES = 1e-4  # those closer to each other may stand in either order, and these corners, in pixels, are of one box
CORNERS = 0.5
DETECTORS = r"ssd_|yolo3_|center_net_|faster_rcnn_"
# Of other kinds: videos, key points of persons found before, masks, tracking, depth; networks of integers; and those
# that want to be told their classes. MXNet's ROIAlign on CPUs does not write what is of no image, so where there are
# maps of several sizes ("fpn") its results are what was in memory, and nothing to compare with.
OTHERS = (
    r".*(int8|kinetics|sthsth|ucf101|hmdb51|alpha_pose|mask_rcnn|siamrpn|monodepth|doublehead|custom|posenet|jasper|smot"
    r"|_fpn_|i3d|slowfast|c3d|p3d|r2plus1d)"
)

# Those that are tests, and the size of its image, small since most of the time goes into compiling.
NETWORKS = {
    "resnet18_v1": 64,
    "resnet50_v1d": 64,
    "resnet18_v2": 64,
    "se_resnext50_32x4d": 64,
    "mobilenetv2_0.5": 64,
    "mobilenetv3_small": 64,
    "squeezenet1.1": 224,  # its last pooling has a fixed window
    "cifar_resnet20_v1": 32,
    "cifar_wideresnet16_10": 32,
    "ssd_512_mobilenet1.0_voc": 128,
    "yolo3_mobilenet1.0_voc": 128,
    "center_net_resnet18_v1b_voc": 128,
}
SAMPLE = ("ssd_512_mobilenet1.0_voc", "yolo3_mobilenet1.0_voc")


def compare(name: str, size: int | None = None) -> dict:
    """Import, build, and run a network on random images in both, and hold the results together; what was found."""
    import mxnet as mx

    net, shape = gluon.network(name), gluon.shape_of(name)
    shape = shape if size is None else (1, 3, size, size)
    mod, params = tvmfast.from_mxnet(net, None, {"data": shape})
    started = time.perf_counter()
    lib = tvmfast.build(mod, params)
    seconds = time.perf_counter() - started
    x = np.random.default_rng(0).standard_normal(shape).astype("float32")
    there = mx.nd.array(x)
    wanted, outputs = flat(net(there)), flat(lib(x))
    if re.match(DETECTORS, name):
        outputs, wanted = detections(outputs, wanted)
    close(outputs, wanted, terms_of(params), rounded=True)
    error = max(np.abs(a - b).max() / np.abs(b).max() for a, b in zip(outputs, wanted, strict=True))
    return {"error": float(error), "build": seconds, "mxnet": lambda: flat(net(there)), "tvm": lib, "x": x, "net": net}


def flat(outputs) -> list[np.ndarray]:
    outputs = list(gluon._flat(outputs)) if isinstance(outputs, list | tuple) else [outputs]
    return [each.asnumpy() if hasattr(each, "asnumpy") else np.asarray(each) for each in outputs]


def detections(outputs, wanted) -> tuple[list, list]:
    """The scores and corners of what was found, ours in MXNet's order, where the classes are as they must be."""
    ours, theirs = rows(outputs), rows(wanted)
    found = theirs[0] >= 0
    assert found.any(), "no detections"
    ours = [each[order_of(ours, *theirs)] for each in ours]
    np.testing.assert_array_equal(ours[0], theirs[0])
    return [each[found] for each in ours[1:]], [each[found] for each in theirs[1:]]


def rows(detections) -> list[np.ndarray]:
    """Classes (N,), scores (N,) and corners (N, 4) of one image, with and without an axis for each number."""
    classes, scores, corners = detections
    return [classes.reshape(-1), scores.reshape(-1), corners.reshape(-1, 4)]


def order_of(ours, classes, scores, corners) -> np.ndarray:
    """Our rows in MXNet's order: each in its place, or else where its equal is among the rows of nearly its score."""
    off = (ours[0] != classes) | (np.abs(ours[2] - corners).max(axis=1) > CORNERS)
    order = np.arange(len(off))
    for row in np.flatnonzero(off):
        near = off & (np.abs(ours[1] - scores[row]) < SCORES) & (ours[0] == classes[row])
        same = near & (np.abs(ours[2] - corners[row]).max(axis=1) <= CORNERS)
        order[row] = np.flatnonzero(same)[0] if same.any() else row
    return order if len(set(order)) == len(order) else np.arange(len(off))


@pytest.mark.parametrize("name", sampled(NETWORKS, SAMPLE))
def test_a_network_gives_mxnets_results(name):
    compare(name, NETWORKS[name])


def names() -> list[str]:
    with compat.without_torch():
        from gluoncv.model_zoo import get_model_list
    return sorted(name for name in get_model_list() if not re.match(OTHERS, name))


def main(wanted: list[str]) -> None:
    """A line for each network: whether it imports, the error, the times."""
    failed = 0
    for name in wanted or names():
        try:
            found = compare(name)
            found["net"].hybridize(static_alloc=True, static_shape=True)
            times = tvmfast.compare(
                {"MXNet": lambda _, run=found["mxnet"]: run(), "TVM": found["tvm"]}, found["x"], seconds=1
            )
            ours, theirs = times["TVM"].median * 1e3, times["MXNet"].median * 1e3
            kind = found["net"].weights_kind
            print(
                f"{name:40} {found['error']:.1e}  TVM {ours:8.2f} ms  MXNet {theirs:8.2f} ms  {ours / theirs:.2f}  "
                f"build {found['build']:5.1f} s  {kind}",
                flush=True,
            )
        except Exception as error:
            failed += 1
            print(f"{name:40} {type(error).__name__}: {' '.join(str(error).split())[:300]}", flush=True)
    sys.exit(f"{failed} failed" if failed else 0)


if __name__ == "__main__":
    main(sys.argv[1:])
