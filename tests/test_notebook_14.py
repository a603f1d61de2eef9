"""What lesson 14 claims, asserted on the names that its cells define. No time is asserted."""

import linecache
from pathlib import Path

import nbformat
import numpy as np
import pytest
import tvm
from agreement import close
from tvm.target.codegen import target_has_features

NOTEBOOK = Path(__file__).parents[1] / "notebooks" / "14_fewer_bits.ipynb"
# Times, and answers; nbval runs the rest too.
NOT_RUN = {"qdq-times", "dot-times", "weights-time", "your-answers"}


@pytest.fixture(scope="module")
def lesson():
    """The names that the lesson's cells define, without those that measure."""
    names: dict = {}
    for cell in nbformat.read(NOTEBOOK, as_version=4).cells:
        if cell.cell_type == "code" and cell.id not in NOT_RUN:
            file = f"<14:{cell.id}>"  # TVMScript reads the source of a function
            linecache.cache[file] = (len(cell.source), None, cell.source.splitlines(keepends=True), file)
            exec(compile(cell.source, file, "exec"), names)
            if cell.id == "eight":
                names["first_scale"], names["first_zero"] = names["scale"], names["zero"]
            if cell.id == "qdq-right":
                names["of_qdq"] = names["got"]
            if cell.id == "quantize":
                names["of_int8"] = dict(names["found"])
    return names


def test_an_error_is_half_a_scale_at_most_and_zero_has_none(lesson):
    scale, zero = lesson["first_scale"], lesson["first_zero"]
    x = np.append(np.linspace(-1, 3, 4001)[20:-20], 0.0)
    back = lesson["dequantize"](lesson["quantize"](x, scale, zero, 0, 255), scale, zero)
    assert np.abs(back - x).max() <= scale / 2 * (1 + 1e-9) and back[-1] == 0
    clipped = lesson["quantize"](np.array([-9.0, 9.0]), scale, zero, 0, 255)
    assert clipped.tolist() == [0, 255]


def test_a_scale_per_channel_is_better_in_each_layer(lesson):
    table = lesson["table"]
    assert len(table) == 21 and (table.iloc[:, 1] > table.iloc[:, 0]).all()


def test_the_outlier_costs_the_others_28_db_with_one_scale_and_fewer_with_a_scale_per_row(lesson):
    lost = {}
    for axes in ((0, 1), (1,)):
        found = []
        for size in (1.0, 100.0):
            weight = lesson["ordinary"].copy()
            weight[0, 0] = size
            back = lesson["dequantize"](*lesson["symmetric"](weight, axes), 0)
            found.append(lesson["snr"](weight.ravel()[1:], back.ravel()[1:]))
        lost[axes] = found[0] - found[1]
    assert 27 < lost[0, 1] < 29 and lost[1,] < 15


def test_the_quantized_file_is_right_and_computes_in_float32(lesson):
    text = str(lesson["from_file"])
    assert text.count("R.quantize(") == 1 and text.count("R.dequantize(") == 2 and "R.nn.conv2d(lv1, lv2" in text
    close(lesson["of_qdq"], lesson["wanted"], 576)


def test_the_instruction_saturates(lesson):
    if not target_has_features("avx2", lesson["target"]):
        pytest.skip("no vpmaddubsw here")
    a, b = np.full(32, 200, "uint8"), np.full(32, 100, "int8")
    b[:2], a[2:4] = 10, 0
    sums = tvm.runtime.tensor(np.zeros(16, "int16"))
    tvm.compile(lesson["pairs"], target=lesson["target"])(tvm.runtime.tensor(a), tvm.runtime.tensor(b), sums)
    assert sums.numpy()[:3].tolist() == [4000, 0, 32767]


def test_the_convolutions_of_bytes_are_exact(lesson):
    for instruction in [None, "lesson.vpdpbusd"][: 1 + lesson["has_vnni"]]:
        compiled = tvm.compile(lesson["schedule"](lesson["INT8"], instruction).mod, target=lesson["target"])
        np.testing.assert_array_equal(convolve(lesson, compiled, lesson["INT8"]), lesson["in_bytes"])


def convolve(lesson, compiled, kind):
    lanes, blocks, size = lesson["lanes"], lesson["blocks"], lesson["size"]
    scale = lesson["conv_scale"].reshape(blocks, lanes)
    arrays = [lesson["to_blocks"](lesson["image"]), lesson["pack"](lesson["weight"], kind.group), scale]
    arrays.append(np.zeros((blocks, size, size, lanes), kind.data))
    tensors = [tvm.runtime.tensor(np.ascontiguousarray(array)) for array in arrays]
    compiled(*tensors)
    return tensors[-1].numpy().transpose(0, 3, 1, 2).reshape(-1, size, size)


def test_the_instruction_is_in_the_tile(lesson, monkeypatch):
    monkeypatch.setitem(lesson, "lanes", 16)
    monkeypatch.setitem(lesson, "blocks", 4)
    sch = lesson["schedule"](lesson["INT8"], "lesson.vpdpbusd")
    compiled = tvm.compile(sch.mod, target={"kind": "llvm", "mcpu": "cascadelake", "mtriple": "x86_64-linux-gnu"})
    assembly = compiled.mod.inspect_source("asm")
    assert assembly.count("vpdpbusd") >= lesson["pixels"] and "zmm" in assembly


def test_the_digits_keep_their_classes(lesson):
    classes = {name: each.argmax(1) for name, each in lesson["found"].items()}
    assert (classes["int8"] == lesson["labels"]).sum() >= 356
    assert (classes["int8"] == classes["float32"]).sum() >= 356
    assert (classes["bfloat16"] == classes["float32"]).sum() >= 359


def test_the_worst_layer_left_out_makes_the_result_better(lesson):
    float32 = lesson["found"]["float32"]
    assert lesson["snr"](float32, lesson["better"]) > lesson["snr"](float32, lesson["of_int8"]["int8"])


def test_weights_alone_cost_few_bits_and_save_bytes(lesson):
    rows = lesson["rows"]
    bits = {name: row["bits per character"] for name, row in rows.items()}
    size = {name: row["MB of parameters"] for name, row in rows.items()}
    assert bits["int8"] - bits["float32"] <= 0.05 and bits["int4"] - bits["float32"] <= 0.3
    assert size["int4"] < size["int8"] < size["float32"] / 2


def test_tvm_alone_has_bytes_for_weights(lesson):
    assert lesson["kinds"] == [0, 21]
    assert lesson["snr"](lesson["theirs"], lesson["ours"]) > 25


def test_it_names_what_multiplies_bytes_on_each_cpu(lesson):
    def named(mcpu, triple="x86_64-linux-gnu"):
        target = tvm.target.Target({"kind": "llvm", "mtriple": triple, "mcpu": mcpu})
        return [feature for feature in lesson["SETS"] if target_has_features(feature, target)]

    assert named("sapphirerapids") == ["amx-int8", "avx512vnni", "avxvnni", "avx2"]
    assert named("znver4") == ["avx512vnni", "avx2"] and named("alderlake") == ["avxvnni", "avx2"]
    assert named("haswell") == ["avx2"] and named("nehalem") == []
    assert named("neoverse-v1", "aarch64-linux-gnu") == ["dotprod", "i8mm"]
    assert named("cortex-a72", "aarch64-linux-gnu") == []
    assert len(lesson["here"]) == sum(target_has_features(feature, lesson["target"]) for feature in lesson["SETS"])
