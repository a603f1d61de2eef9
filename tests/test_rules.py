"""Every family of schedules, on its own examples: what it says of its configs is true, and its kernels are right."""

import random
from dataclasses import astuple

import numpy as np
import pytest
import tvm
from fake_runner import TARGET

from tvmnotes import env, records
from tvmnotes.compiler import codegen
from tvmnotes.compiler.schedules import FAMILIES, Simd, annotations
from tvmnotes.compiler.schedules.family import Family
from tvmnotes.compiler.schedules.vector import simd_of
from tvmnotes.tuning import Candidate, trial
from tvmnotes.tuning.features import features

HERE = simd_of(env.host_target())
OF_EACH = pytest.mark.parametrize(
    ("family", "workload"),
    [
        pytest.param(family, workload, id=f"{family.name}: {workload.label}")
        for family in FAMILIES.values()
        for workload in family.examples
    ],
)


def test_every_tunable_family_has_examples():
    tunable = {name for name, family in FAMILIES.items() if family.loops}
    assert tunable == {name for name, family in FAMILIES.items() if 2 <= len(family.examples) <= 4}


def configs(family, workload, simd) -> tuple[list[dict], list[dict]]:
    """A family's default config of a workload, if there is one, and the others to search."""
    default = family.default(workload, simd)
    others = [config for config in family.space(workload, simd) if config != default]
    return ([] if default is None else [default]), others


@OF_EACH
@pytest.mark.parametrize("simd", [Simd(16, 32), Simd(8, 16), Simd(4, 32)], ids=str)
def test_a_family_describes_its_configs(family, workload, simd):
    assert family.serves(workload, simd)
    default, others = configs(family, workload, simd)
    assert {workload.family(config).name for config in [*default, *others]} == {family.name}
    listed = workload.configs(simd)
    assert len({records.key(config) for config in listed}) == len(listed)
    for config in [*default, *random.sample(others, min(len(others), 20))]:
        packed = workload.pack(np.zeros(workload.weight, "float32"), config, simd.lanes)
        assert packed.shape == workload.packed_shape(config, simd.lanes), config
        sizes = astuple(workload.loops(config, simd.lanes))
        assert all(isinstance(size, int) and size > 0 for size in sizes), config
        assert np.isfinite(features(workload, config, simd, 2)).all(), config


@OF_EACH
def test_the_kernels_of_a_family_compute_what_numpy_does(family, workload, quick):
    """With the default config, and for each set of knobs some of the others."""
    default, others = configs(family, workload, HERE)
    count = 1 if quick else 2
    by_knobs: dict = {}
    for config in others:
        by_knobs.setdefault((config.get("outer"), *sorted(config)), []).append(config)
    chosen = [config for found in by_knobs.values() for config in random.sample(found, min(len(found), count))]
    for config in [*default, *chosen]:
        candidate = Candidate(workload, config, TARGET)
        scheduled = trial.kernel(candidate)
        # Where a schedule does not fit, the default one takes its place.
        assert annotations.of_function(scheduled["main"])["schedule"]["family"] == family.name, config
        library = codegen.compile_kernels(dict(scheduled.functions_items()), env.host_target(), runs_here=False)
        ((data, weight, output),) = trial.arguments(candidate, tvm.cpu())
        library["main"](data, weight, output)
        wanted = trial._inputs(workload)[2]
        made = workload.unpack_output(output.numpy(), candidate.lanes)
        np.testing.assert_allclose(made, wanted, rtol=0, atol=1e-4 * np.abs(wanted).max(), err_msg=str(config))
    record = records.new_record(workload, TARGET, others[-1], (1e-3,))
    assert records.parse(str(record)) == record


def test_the_priority_decides_which_family_gives_the_default_config(monkeypatch):
    workload = FAMILIES["winograd"].examples[0]
    today, planted = workload.default_config(HERE), {"family": "planted"}
    winograd = FAMILIES["winograd"].priority
    assert today["family"] == "winograd"
    for priority, wanted in ((winograd - 1, today), (winograd + 1, planted)):
        offer = {"serves": lambda *_: True, "default": lambda *_: planted}
        monkeypatch.setitem(FAMILIES, "planted", Family("planted", priority=priority, schedule=None, **offer))
        assert workload.default_config(HERE) == wanted
