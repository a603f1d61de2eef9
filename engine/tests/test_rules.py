"""Every schedule rule, on its own examples: what it says of its configs is true, and its kernels are right."""

import importlib
import random
import re
import sys
from dataclasses import astuple

import numpy as np
import pytest
import torch
import tvm
import tvm_ffi
from agreement import close, reference
from fake_runner import AVX512, TARGET
from torch import nn
from tvm import relax, tirx

import tvmfast
from tvmfast.compiler import codegen, records
from tvmfast.compiler.costs import count
from tvmfast.compiler.schedule.apply import schedule_kernels
from tvmfast.compiler.schedule.rules import RULES, ScheduleRule, winograd
from tvmfast.compiler.schedule.workloads.conv2d import Convolution
from tvmfast.compiler.schedule.workloads.dense import Dense
from tvmfast.compiler.schedule.workloads.workload import Workload
from tvmfast.core import annotations, machine
from tvmfast.core.simd import NEON, Simd, simd_of
from tvmfast.tuning import Candidate, tasks, trial
from tvmfast.tuning.features import features

HERE = simd_of(machine.host_target())
OF_EACH = pytest.mark.parametrize(
    ("rule", "workload"),
    [pytest.param(r, w, id=f"{r.name}: {w.label}") for r in RULES.values() for w in r.EXAMPLES],
)


def test_every_rule_of_a_workload_that_is_tuned_has_examples():
    tuned = {name for name, rule in RULES.items() if type(rule).loops is not ScheduleRule.loops}
    assert tuned == {name for name, rule in RULES.items() if 2 <= len(rule.EXAMPLES) <= 4}


def configs(rule, workload, simd) -> tuple[list[dict], list[dict]]:
    """A rule's default config of a workload, if there is one, and the others to search."""
    default = rule.default(workload, simd)
    others = [rule.as_dict(config) for config in rule.space(workload, simd) if config != default]
    return ([] if default is None else [rule.as_dict(default)]), others


@OF_EACH
@pytest.mark.parametrize("simd", [Simd(16, 32), Simd(8, 16), NEON], ids=str)
def test_a_rule_describes_its_configs(rule, workload, simd):
    assert rule in workload.rules(simd)
    default, others = configs(rule, workload, simd)
    assert {config["family"] for config in [*default, *others]} == {rule.name}
    listed = workload.configs(simd)
    assert len({records.key(config) for config in listed}) == len(listed)
    for config in [*default, *random.sample(others, min(len(others), 20))]:
        assert rule.as_dict(rule.config(config)) == config and workload.is_config(config, simd)
        packed = workload.pack(np.zeros(workload.weight, "float32"), config, simd.lanes)
        assert packed.shape == workload.packed_shape(config, simd.lanes), config
        sizes = astuple(workload.loops(config, simd.lanes))
        assert all(isinstance(size, int) and size > 0 for size in sizes), config
        assert np.isfinite(features(workload, config, simd, 2)).all(), config


def run(workload, config) -> np.ndarray:
    """The result of a kernel on the inputs of a trial."""
    candidate = Candidate(workload, config, TARGET)
    scheduled = trial.kernel(candidate)
    # Where a schedule does not fit, the default one replaces it.
    assert annotations.of_function(scheduled["main"])["schedule"] == config
    library = codegen.compile_kernels(dict(scheduled.functions_items()), machine.host_target(), runs_here=False)
    (tensors,) = trial.arguments(candidate, tvm.cpu())
    library["main"](*tensors)
    return workload.unpack_output(tensors[-1].numpy(), candidate.lanes)


@OF_EACH
def test_the_kernels_of_a_rule_compute_what_numpy_does(rule, workload, quick):
    """With the default config, and for each set of fields some of the others."""
    default, others = configs(rule, workload, HERE)
    count = 1 if quick else 2
    data, weight, _ = trial._inputs(workload)
    wanted = workload.reference(data.astype("float64"), weight.astype("float64"))
    by_fields: dict = {}
    for config in others:
        by_fields.setdefault((config.get("loop_order"), *sorted(config)), []).append(config)
    chosen = [config for found in by_fields.values() for config in random.sample(found, min(len(found), count))]
    for config in [*default, *chosen]:
        terms = workload.macs // wanted.size
        if workload.dtype == "float32":
            close(run(workload, config), wanted, terms * (4 if rule.name == "winograd" else 1))  # its transforms sum
        else:
            np.testing.assert_array_equal(run(workload, config), wanted)
    record = records.new_record(workload, TARGET, others[-1], (1e-3,))
    assert records.parse(str(record)) == record


def of_size(channels, size) -> Convolution:
    """A 3x3 convolution with as many input as output channels."""
    window = (channels, channels, 3, 3)
    return Convolution((1, channels, size, size), window, (1, 1), (1, 1, 1, 1), (1, 1), 1, True)


@pytest.mark.parametrize(("channels", "size"), [(16, 28), (128, 28), (64, 7), (128, 7)])
def test_the_default_of_direct_convolutions_serves_small_and_large_layers(channels, size):
    workload, rule = of_size(channels, size), RULES["conv2d"]
    data, weight, _ = trial._inputs(workload)
    wanted = workload.reference(data.astype("float64"), weight.astype("float64"))
    close(run(workload, rule.as_dict(rule.default(workload, HERE))), wanted, 9 * channels)


def test_only_winograds_large_tile_rounds_more_than_the_direct_way():
    workload, direct, of_tiles = of_size(64, 28), RULES["conv2d"], RULES["winograd"]
    configs = [of_tiles.as_dict(winograd.default_of_tile(workload, m, HERE)) for m in (2, 4)]
    configs.append(direct.as_dict(direct.default(workload, HERE)))
    data, weight, _ = trial._inputs(workload)
    exact = workload.reference(data.astype("float64"), weight.astype("float64"))
    results = [run(workload, config) for config in configs]
    small, large, plain = (np.abs(each - exact).max() for each in results)
    assert small < 4 * plain < 4 * large < 80 * plain
    close(results[1], exact, 4 * 9 * 64)  # it may double the error


def test_a_depthwise_convolution_copies_no_rows():
    """Its padding is not in memory, and it computes nothing for rows outside of the image."""
    workload = RULES["depthwise"].EXAMPLES[0]
    kernel = trial.kernel(Candidate(workload, workload.default_config(HERE), TARGET))["main"]
    (buffer,) = kernel.body.block.alloc_buffers
    assert buffer.scope() == "local"
    _, blocks, height, width, lanes = workload.packed_input_shape(HERE.lanes)
    products = (3 * height - 2) * 3 * width  # of the rows inside the image
    assert count(kernel)["flops"] <= 2 * blocks * lanes * products


def test_a_depthwise_convolution_reads_nothing_outside_of_the_image():
    """Also where TVM knows the test that decides whether a product counts."""
    workload = Convolution((1, 16, 5, 9), (16, 1, 7, 2), (1, 1), (3, 3, 1, 2), (1, 1), 16, True)
    kernel = trial.kernel(Candidate(workload, {"family": "depthwise", "tile_oh": 3, "tile_ow": 7}, TARGET))
    assert re.search(r"data\[.*T\.max\(T\.min\(.*, 8\), 0\)", tvm.tirx.transform.StmtSimplify()(kernel).script())


def test_a_grouped_convolution_pads_in_the_loop_over_its_tiles():
    """No two of them read the same input, and narrow groups of small images fill the registers with rows."""
    workload = Convolution((1, 128, 7, 7), (128, 16, 3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 8, True)
    config = RULES["conv2d"].default(workload, Simd(16, 32))
    assert (config.tile_oh, config.tile_ow, config.tile_oc) == (4, 7, 1)
    kernel = trial.kernel(Candidate(workload, workload.default_config(Simd(16, 32)), AVX512))["main"]
    assert kernel.script().count("T.parallel") == 1


def test_a_small_panel_of_weights_leaves_no_register_of_a_tile_unused():
    for window, wanted in (((72, 24, 1, 1), 5), ((72, 512, 1, 1), 2)):
        workload = Convolution((1, window[1], 56, 56), window, (1, 1), (0, 0, 0, 0), (1, 1), 1, True)
        assert RULES["pointwise"].default(workload, Simd(16, 32)).tile_oc == wanted


@pytest.mark.parametrize("change", [{"pixels": 7}, {"tile_m": None}], ids=["unknown", "missing"])
def test_a_config_with_an_unknown_or_a_missing_field_is_refused(change):
    workload, rule = Dense(2, 64, 70), RULES["matmul"]
    config = {key: value for key, value in {**workload.default_config(HERE), **change}.items() if value is not None}
    with pytest.raises(ValueError, match=r"config of matmul: expected the fields tile_m, tile_n, loop_order; got {"):
        rule.config(config)
    assert not workload.is_config(config, HERE)


def test_the_priority_decides_which_rule_gives_the_default_config():
    workload = RULES["winograd"].EXAMPLES[0]
    unchanged = workload.default_config(HERE)
    assert unchanged["family"] == "winograd"
    for above, wanted in ((-1, unchanged), (1, {"family": "planted"})):

        class Planted(ScheduleRule):
            name = "planted"
            priority = RULES["winograd"].priority + above

            def applies(self, workload, simd):
                return True

            def default(self, workload, simd):
                return self.Config()

            def schedule(self, sch, config):
                raise AssertionError

        try:
            assert workload.default_config(HERE) == wanted
            assert workload.is_config(wanted, HERE)
        finally:
            del RULES["planted"]
        assert not workload.is_config({"family": "planted"}, HERE)


def test_a_rule_without_a_schedule_is_refused():
    with pytest.raises(TypeError, match="Unfinished: expected a method `schedule`"):

        class Unfinished(ScheduleRule):
            name = "unfinished"

    assert "unfinished" not in RULES
    with pytest.raises(TypeError, match="abstract"):
        Workload()


OUTSIDE = '''
from dataclasses import dataclass

from tvm import te

from tvmfast.compiler.schedule.rules import ScheduleRule
from tvmfast.compiler.schedule.rule import Loops
from tvmfast.compiler.schedule.workloads.dense import Dense


class RowByRow(ScheduleRule):
    """A product of a transposed weight, in parallel over its columns."""

    name = "row_by_row"
    priority = 1

    @dataclass(frozen=True)
    class Config:
        unroll: int

    EXAMPLES = Dense(1, 8, 12), Dense(3, 5, 7)

    def applies(self, workload, simd):
        return isinstance(workload, Dense)

    def default(self, workload, simd):
        return self.Config(1)

    def space(self, workload, simd):
        return [self.Config(unroll) for unroll in (1, 2, 4)]

    def packed_shape(self, workload, config, lanes):
        return workload.columns, workload.depth

    def pack(self, workload, weight, config, lanes):
        return weight.T.copy()

    def compute(self, data, weight, workload, config):
        *batch, depth = (int(size) for size in data.shape)
        k = te.reduce_axis((0, depth), "k")
        return te.compute(
            (*batch, workload.columns),
            lambda *at: te.sum(data[(*at[:-1], k)] * weight[at[-1], k], axis=[k]),
            name="row_by_row", attrs=self.annotation(workload, config),
        )

    def schedule(self, sch, config):
        *outer, column, k = sch.get_loops("row_by_row")
        inner = sch.split(k, [None, config.unroll])[-1]
        sch.unroll(inner)
        sch.parallel(column)

    def loops(self, workload, config, lanes):
        return Loops(1, 1, workload.rows, workload.columns, 1, workload.rows, workload.depth, workload.columns)
'''


@pytest.fixture
def outside(tmp_path, monkeypatch):
    """A rule in a module outside of the package, registered while a test runs."""
    (tmp_path / "rule_from_outside.py").write_text(OUTSIDE)
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("rule_from_outside")
    yield RULES[module.RowByRow.name]
    del RULES[module.RowByRow.name]
    monkeypatch.delitem(sys.modules, "rule_from_outside")


def test_a_rule_outside_of_the_package_serves_builds_tuning_and_records(outside, tmp_path):
    for workload in outside.EXAMPLES:
        test_a_rule_describes_its_configs(outside, workload, HERE)
        test_the_kernels_of_a_rule_compute_what_numpy_does(outside, workload, quick=False)
    net = nn.Sequential(nn.Linear(13, 9), nn.ReLU(), nn.Linear(9, 5)).eval()
    mod, params = tvmfast.from_pytorch(net, {"x": (4, 13)})
    x = np.random.default_rng(0).standard_normal((4, 13), dtype="float32")
    first, _ = tasks(mod, params)
    best = outside.as_dict(outside.Config(4))
    assert best in first.space
    path = tmp_path / "records.jsonl"
    path.write_text(f"{records.new_record(first.workload, TARGET, best, (1e-6,))}\n")
    lib = tvmfast.build(mod, params, records=path)
    close(lib(x), reference(net, x))
    assert list(lib.kernels.family) == ["row_by_row"] * 2
    assert sorted(config["unroll"] for config in lib.kernels.config) == [1, 4]


# ---------------------------------------------------------------- spaces, and what a trial compares with

CONVOLUTIONS = [workload for rule in RULES.values() for workload in rule.EXAMPLES if isinstance(workload, Convolution)]


@pytest.mark.parametrize("w", CONVOLUTIONS, ids=lambda w: w.label)
def test_the_reference_is_torchs(w):
    data, weight, output = trial._inputs(w)
    padded = torch.nn.functional.pad(torch.from_numpy(data), (w.padding[1], w.padding[3], w.padding[0], w.padding[2]))
    padded, weight = padded.double(), torch.from_numpy(weight).double()
    wanted = torch.nn.functional.conv2d(padded, weight, None, w.strides, 0, w.dilation, w.groups)
    close(output, wanted, terms=weight[0].numel())


def test_a_space_has_every_knob_and_begins_with_the_default_config():
    workload = Convolution((1, 32, 14, 14), (48, 32, 3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 1, True)
    space = workload.configs(Simd(16, 32))
    assert {config["family"] for config in space} == {"conv2d", "winograd"}
    assert {"tile_oh", "tile_ic", "prefetch", "loop_order", "block_oh"} <= {knob for config in space for knob in config}
    assert space[0] == workload.default_config(Simd(16, 32))


# ---------------------------------------------------------------- kernels without a workload

PADDED = {
    "conv3d": nn.Conv3d(3, 5, 3, padding=1),
    "max pool": nn.MaxPool3d(3, 2, 1),
    "average pool": nn.AvgPool3d((2, 3, 3), 1, (0, 1, 1)),
}


@pytest.mark.parametrize("case", PADDED)
def test_sums_read_padding_from_memory_and_keep_what_they_add_in_registers(case):
    mod, _ = tvmfast.from_pytorch(PADDED[case].eval(), {"x": (1, 3, 4, 6, 9)})
    mod = tvm.transform.Sequential([relax.transform.LegalizeOps(), schedule_kernels(HERE)])(mod)
    blocks, loops = [], []
    for _, func in mod.functions_items():
        if isinstance(func, tirx.PrimFunc):
            tvm_ffi.structural_walk(func.body, [(tvm.s_tir.SBlock, blocks.append), (tirx.For, loops.append)])
    sums = [
        block for block in blocks if any(int(axis.iter_type) == tirx.IterVar.CommReduce for axis in block.iter_vars)
    ]
    assert len(sums) == 1 and "if_then_else" not in str(sums[0].body)
    assert any(loop.kind == tirx.ForKind.UNROLLED for loop in loops) == (
        case != "max pool"
    )  # of strided elements, which no vector reads
