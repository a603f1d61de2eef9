"""tools/record_networks.py: what makes the shipped records, and builds of the digits' network with records."""

import random
from types import SimpleNamespace

import pytest
import tvm
from agreement import close, reference
from fake_runner import TARGET

import tvmnotes as tn
from tools import record_networks as script
from tvmfast.compiler.records import new_record
from tvmfast.tuning import tasks
from tvmnotes import data, digits, env, records

NEON = {"kind": "llvm", "mtriple": "aarch64-linux-gnu"}


def test_records_of_an_arm_cpu_are_made_and_found_like_those_of_x86(small, monkeypatch, tmp_path):
    """The path of tools/record_networks.py on such a machine, but for the measuring."""
    n1 = {"mcpu": "neoverse-n1", "num-cores": 4}
    monkeypatch.setattr(records, "FOLDER", tmp_path)
    monkeypatch.setattr(script, "load", lambda network: (small.mod, small.params))
    with monkeypatch.context() as on_arm:
        on_arm.setattr(env.platform, "machine", lambda: "aarch64")
        on_arm.setattr(env, "host_target", lambda: tvm.target.Target({**NEON, **n1}))
        measured = []

        def tune(mod, params, target, trials, records):
            found = tasks(mod, params, target)
            assert trials == script.TRIALS * len(found)
            measured.extend(new_record(t.workload, t.target, t.space[-1], (1e-3,)) for t in found)
            records.write_text("".join(f"{line}\n" for line in measured))
            return SimpleNamespace(interrupted=False)

        on_arm.setattr(tn, "tune", tune)
        on_arm.setattr(data, "writable_cache", lambda: tmp_path)
        (tmp_path / "records").mkdir()
        script.main("neon", "digits")
        with pytest.raises(SystemExit, match="is not one for avx512.jsonl"):
            script.main("avx512", "digits")

    records.shipped.cache_clear()
    try:
        count = len(measured)
        for cpu, told in [
            (n1, f"{count} of this target"),
            ({"mcpu": "cortex-a72"}, f"{count} near (another CPU with the same vector registers)"),
            ({"mcpu": "apple-m1"}, f"{count} near (another CPU with the same vector registers)"),
        ]:
            lib = tn.build(small.mod, small.params, {**NEON, **cpu})
            assert lib.tuned == f"shipped records: {told}"
    finally:
        records.shipped.cache_clear()


@pytest.mark.full
@pytest.mark.parametrize("seed", range(2))
def test_whatever_the_configs_the_digits_are_read(seed):
    net = tn.models.load("digits")
    mod, params = tn.from_pytorch(net, {"image": (1, 1, 32, 32)})
    choose = random.Random(seed)
    found = [new_record(t.workload, TARGET, choose.choice(t.space), (1e-3,)) for t in tasks(mod, params)]
    lib = tn.build(mod, params, records=found)
    images, _ = digits.load_test_set()
    for x in digits.preprocess(images[:20]):
        close(lib(x[None]), reference(net, x[None]))
