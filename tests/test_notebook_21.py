"""What notebook 21 claims, asserted; see test_notebook_00.py. Most of it needs no MXNet."""

import ast
import json
from pathlib import Path

import numpy as np
import pytest
import torch
import tvm
from agreement import close, reference, terms_of
from testing import sampled
from tvm import relax

import tvmnotes as tn
from tvmfast.frontends.mxnet.files import read_params
from tvmnotes import digits

with_mxnet = pytest.mark.skipif(not tn.gluon.installed(), reason="the mxnet extra is not installed")
PICTURE = (1, 1, 96, 96)


def files(name):
    return tn.data.path(f"mxnet/{name}-symbol.json"), tn.data.path(f"mxnet/{name}-0000.params")


@pytest.fixture(scope="module")
def ssd():
    return tn.build(*tn.from_mxnet(*files("digits_ssd"), {"data": PICTURE}))


def ssd_params():
    return tn.from_mxnet(*files("digits_ssd"), {"data": PICTURE})[1]


@pytest.fixture(scope="module")
def scenes():
    """Pictures as the detector takes them, and their boxes: 100, the lesson's own."""
    rng, held_out = np.random.default_rng(1), digits.load_test_set()
    scenes = [digits.scene(*held_out, rng) for _ in range(100)]
    return [(image[None, None].astype("float32"), boxes) for image, boxes in scenes]


def test_a_converter_by_hand_is_pytorchs_convolution_and_the_importers():
    symbol_file, params_file = files("digits_resnet20")
    node = json.loads(symbol_file.read_text())["nodes"][2]
    stride, pad = (ast.literal_eval(node["attrs"][name]) for name in ("stride", "pad"))
    data = relax.Var("data", relax.TensorType((1, 1, 32, 32), "float32"))
    weight = relax.Var("weight", relax.TensorType((16, 1, 3, 3), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [data, weight]):
        with builder.dataflow():
            output = builder.emit_output(relax.op.nn.conv2d(data, weight, strides=stride, padding=pad))
        builder.emit_func_output(output)
    by_hand = builder.get()
    vm = relax.VirtualMachine(tvm.compile(by_hand, target=tn.env.host_target()), tvm.cpu())
    x = digits.preprocess(digits.load_test_set()[0][:1])
    w = np.array(read_params(params_file)["stem_conv_weight"])
    wanted = reference(lambda x, w: torch.conv2d(x, w, padding=1), x, w)
    close(vm["main"](tvm.runtime.tensor(x), tvm.runtime.tensor(w)).numpy(), wanted)
    mod, _ = tn.from_mxnet(symbol_file, params_file, {"data": (1, 1, 32, 32)})
    assert "R.nn.conv2d(data, stem_conv_weight, strides=[1, 1], padding=[1, 1, 1, 1]" in mod.script()


def test_plain_loops_read_the_digits_as_the_schedules_do():
    x = digits.preprocess(digits.load_test_set()[0][:8])
    model = tn.from_mxnet(*files("digits_resnet20"), {"data": x.shape})
    close(tn.build(*model, opt_level=0)(x), tn.build(*model)(x), terms_of(model[1]), rounded=True)


@pytest.mark.parametrize(("attributes", "wanted"), [({}, 2.0), ({"fix_gamma": "False"}, 10.0)])
def test_a_batch_norm_ignores_its_scale_unless_told_otherwise(attributes, wanted):
    names = ("data", "gamma", "beta", "mean", "var")
    nodes = [{"op": "null", "name": name, "inputs": []} for name in names]
    nodes.append({"op": "BatchNorm", "name": "n", "attrs": attributes, "inputs": [[n, 0] for n in range(5)]})
    values = {"gamma": 5.0, "beta": 0.0, "mean": 0.0, "var": 1.0}
    params = {name: np.array([value], "float32") for name, value in values.items()}
    lib = tn.build(*tn.from_mxnet(json.dumps({"nodes": nodes, "heads": [[5, 0]]}), params, {"data": (1, 1)}))
    close(lib(np.full((1, 1), 2.0, "float32")), np.array([[wanted]]) / np.sqrt(1 + 1e-3), 4)  # MXNet's own epsilon


def test_the_shipped_detector_finds_nearly_all_digits_and_little_else(ssd, scenes):
    detections = [ssd(pixels)[0] for pixels, _ in scenes]
    total = sum(len(boxes) for _, boxes in scenes)
    drawn = sum(int(((rows[:, 0] >= 0) & (rows[:, 1] >= 0.5)).sum()) for rows in detections)
    assert sum(digits.found(rows, boxes) for rows, (_, boxes) in zip(detections, scenes, strict=True)) > 0.9 * total
    assert drawn < 1.05 * total


@with_mxnet
def test_mxnet_draws_the_same_boxes(ssd, scenes):
    theirs, terms = tn.gluon.runner(*files("digits_ssd")), terms_of(ssd_params())
    for pixels, boxes in scenes[:20]:
        ours, wanted = ssd(pixels)[0], theirs(pixels)[0]
        close(ours[:, 1], wanted[:, 1], terms, rounded=True)  # rows of nearly equal scores may change places
        assert digits.found(ours, boxes) == digits.found(wanted, boxes)


@with_mxnet
@pytest.mark.parametrize("name", sampled(["cifar_resnet20_v1", "resnet18_v1", "resnet101_v1d"], ["cifar_resnet20_v1"]))
def test_both_candidates_of_the_table_give_mxnets_results(name):
    exported, shape = tn.gluon.exported(name)[:2], tn.gluon.shape_of(name)
    x = tn.vision.preprocess(tn.vision.open_picture(), shape[-1], shape[-1])
    wanted = tn.gluon.runner(*exported)(x)
    model = tn.from_mxnet(*exported, {"data": shape})
    for records in (False, None):
        close(tn.build(*model, records=records)(x), wanted, terms_of(model[1]), rounded=True)


@with_mxnet
@pytest.mark.full
def test_mxnet_and_tvm_draw_the_same_boxes_of_the_large_detector():
    name = "ssd_512_resnet50_v1_voc"
    exported, shape = tn.gluon.exported(name)[:2], tn.gluon.shape_of(name)
    x = tn.vision.preprocess(tn.vision.open_picture(), shape[-1], shape[-1])
    mod, params = tn.from_mxnet(*exported, {"data": shape})
    classes, scores, corners = tn.build(mod, params)(x)
    wanted = tn.gluon.runner(*exported)(x)
    np.testing.assert_array_equal(classes, wanted[0])
    close([scores, corners], list(wanted[1:]), terms_of(params), rounded=True)


# ---------------------------------------------------------------- scenes


def test_a_scene_has_disjoint_digits_within_it(rng):
    held_out = digits.load_test_set()
    for _ in range(20):
        image, boxes = digits.scene(*held_out, rng)
        assert image.shape == (96, 96) and image.dtype == "uint8"
        covered = np.zeros((96, 96), int)
        for _, left, top, right, bottom in boxes.astype(int):
            covered[top:bottom, left:right] += 1
        assert covered.max() == 1 and not image[covered == 0].any()


def test_found_wants_the_class_the_box_and_the_score():
    boxes = np.array([[3, 0, 0, 32, 32], [4, 48, 48, 80, 80]], "float32")
    exact = np.array([[kind, 0.9, *(corner / 96 for corner in box)] for kind, *box in boxes])
    assert digits.found(exact, boxes) == 2
    for column, value in ((0, 5), (0, -1), (1, 0.4), (2, 0.3)):
        worse = exact.copy()
        worse[0, column] = value
        assert digits.found(worse, boxes) == 1


BROKEN = """
import sys
sys.path.insert(0, {folder!r})
import tvmnotes as tn
print(tn.gluon.why_not())
if tn.gluon.installed() or "mxnet" in sys.modules:
    raise AssertionError
try:
    tn.gluon.network("cifar_resnet20_v1")
except ModuleNotFoundError as error:
    print(error)
{lesson}
"""


def test_mxnet_that_is_installed_and_cannot_be_imported_says_why_and_lesson_21_starts_without(tmp_path, python):
    """As its wheel for ARM Linux."""
    library = "libarmpl_lp64_mp.so: cannot open shared object file: No such file or directory"
    for package, code in (("mxnet", f"raise OSError({library!r})"), ("gluoncv", "")):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text(code)
    cells = json.loads((Path(__file__).parents[1] / "notebooks" / "21_mxnet_gluoncv.ipynb").read_text())["cells"]
    lesson = next("".join(cell["source"]) for cell in cells if "tn.gluon" in "".join(cell["source"]))
    told = (
        f"MXNet is installed, but cannot be imported (OSError: {library}): pip uninstall mxnet gluoncv, "
        "and do without it"
    )
    printed = python(BROKEN.format(folder=str(tmp_path), lesson=lesson)).splitlines()
    assert printed[:3] == [told] * 3 and "uses the files that the course ships" in printed[3]
