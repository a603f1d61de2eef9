"""What notebook 17 claims, asserted; see test_notebook_00.py."""

import math
from pathlib import Path

import nbformat
import pytest
import torch
from agreement import close
from emulated_gpu import TARGET
from torch import nn
from tvm import relax

import tvmnotes as tn
from tvmfast.compiler import combine_parallel
from tvmfast.compiler.build import bind
from tvmnotes import tracing

NOTEBOOK = Path(__file__).parents[1] / "notebooks" / "17_gpu.ipynb"


@pytest.fixture(scope="module")
def resnet():
    net = tn.models.load("resnet18", pretrained=False)
    return tn.build(*tn.from_pytorch(net, {"input0": (1, 3, 224, 224)}), TARGET)


@pytest.fixture(scope="module")
def block():
    """The lesson's block, made by its own code: folded, and merged."""
    (source,) = (
        cell.source
        for cell in nbformat.read(NOTEBOOK, as_version=4).cells
        if cell.cell_type == "code" and cell.source.startswith("def branch")
    )
    names = {"nn": nn, "torch": torch, "tn": tn, "tracing": tracing, "combine_parallel": combine_parallel}
    exec(source, names)
    bound, _ = bind(names["block_mod"], names["block_params"])
    return bound, names["folded"], combine_parallel.combine_parallel_ops()(names["folded"])


def test_the_grids_shrink_with_the_images(resnet):
    blocks, kernels = {}, resnet.kernels
    for node in resnet.graph["nodes"]:
        if node["kernel"] in kernels.index and kernels.family[node["kernel"]] == "matmul":
            (launch,) = kernels.launches[node["kernel"]]
            blocks[node["makes"][0]["shape"][2]] = math.prod(launch["grid"])
    assert blocks == {112: 784, 56: 784, 28: 392, 14: 200, 7: 112}


def test_all_convolutions_are_products_and_the_pooling_a_thread_for_each_number(resnet):
    for kernel, family in resnet.kernels.family.items():
        assert ("conv2d" in kernel) == (family == "matmul")
    assert resnet.kernels.family["max_pool2d"] == "fallback"
    pooling = resnet.kernels.launches["max_pool2d"]
    assert pooling == [{"grid": [196, 1, 1], "block": [1024, 1, 1]}] and 196 * 1024 == 64 * 56 * 56
    assert "blockIdx.x) * 1024) + ((int)threadIdx.x)" in resnet.source("max_pool2d")


def test_float16_gets_to_the_tensor_cores_if_the_product_is_large_enough():
    for channels, cores in ((128, True), (64, False)):
        layer = nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1), nn.ReLU()).eval()
        mod, params = tn.from_pytorch(layer, {"x": (1, channels, 28, 28)})
        half = tn.build(relax.transform.ToMixedPrecision()(mod), params, TARGET)
        assert ("mma_sync" in half.source()) == cores


def test_the_block_has_what_its_pictures_show(block):
    bound, folded, merged = ([operation.name for operation in tracing.graph(module).operations] for module in block)
    assert bound.count("nn.batch_norm") == bound.count("nn.conv2d") == 5 and "nn.dropout" not in bound
    assert "nn.batch_norm" not in folded and folded.count("add") == 5
    assert [merged.count(name) for name in ("nn.conv2d", "add", "nn.relu", "split")] == [3, 3, 3, 1]
    (split,) = (o for o in tracing.graph(block[2]).operations if o.name == "split")
    assert all(f"{channels}" in split.makes for channels in (32, 48, 16))
    for module in block:
        picture = tracing.graph(module).mermaid()
        assert picture.startswith("flowchart TD") and picture.svg.startswith("<svg ")


def test_the_merge_saves_two_convolutions_and_costs_a_copy(block):
    _, folded, merged = block
    before, after = ([n["kernel"] for n in tn.build(each, {}, TARGET).graph["nodes"]] for each in (folded, merged))
    assert len(before) == 6 and len(after) == 5 and "split" in after


def test_folded_and_merged_agree_with_pytorch(block, rng):
    """The lesson prints the differences: rounding of float32."""
    x = rng.standard_normal((1, 64, 28, 28), dtype="float32")
    bound, *others = (tn.build(module, {}, opt_level=level)(x) for module, level in zip(block, (0, 3, 3), strict=True))
    for other in others:
        close(other, bound, 64 + 48 * 3 * 3, rounded=True)  # the terms of the longest branch


def test_dlight_gives_a_relu_256_blocks_of_1024_threads():
    lib = tn.build(nn.ReLU().eval(), {"x": (64, 4096)}, TARGET)
    (launches,) = lib.kernels.launches
    assert launches == [{"grid": [256, 1, 1], "block": [1024, 1, 1]}] and 256 * 1024 == 64 * 4096
