"""Tuning records: a line each, files that survive what happens to them, and what a build makes of them."""

import json
import os
import random
import warnings
from dataclasses import replace
from pathlib import Path

import forked
import pytest
import tvm
from agreement import close
from fake_runner import TARGET, WORKLOADS, task
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from testing import sampled, unlimited

import tvmfast
from tvmfast.compiler import records
from tvmfast.compiler.build import resolve_target
from tvmfast.compiler.records import Record
from tvmfast.compiler.schedule.workloads.batch_matmul import BatchMatmul
from tvmfast.compiler.schedule.workloads.kernel import Kernel
from tvmfast.core import errors, machine
from tvmfast.tuning import tasks
from tvmfast.tuning.session import Log

# Another target with this machine's vector registers.
OTHER = str(tvm.target.Target({**json.loads(TARGET), "num-cores": machine.usable_cores() + 7}))
HERE = Path(__file__).parent  # where a process of its own finds `fake_runner`


def record(name="conv", config=0, seconds=(2e-3, 1e-3), target=TARGET, **more) -> Record:
    """One of a workload by name, its config by its number in the space."""
    return records.new_record(WORKLOADS[name], target, task(name).space[config], seconds, **more)


def write(path, *lines):
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def configs_of(found) -> list[dict]:
    return [each.config for each in found]


# ---------------------------------------------------------------- a record and its line


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_record_is_a_line_and_back(name):
    written = record(name, 1)
    assert "\n" not in str(written)
    assert records.parse(str(written)) == written
    failed = record(name, 0, (), error='its process ended, with "quotes"\nand lines')
    assert "\n" not in str(failed)
    assert records.parse(str(failed)) == failed
    final = record(name, 0, final="2026-11-21T20:00:00.000000+00:00")
    assert records.parse(str(final)) == final


def test_a_record_of_a_kernel_without_a_schedule_of_ours():
    config = {"family": "metaschedule", "trace": [[], []]}
    written = records.new_record(Kernel("0123456789abcdef", "sort"), TARGET, config, (1,))
    assert records.parse(str(written)) == written


def test_a_line_names_all_that_was_asked_for():
    line = json.loads(str(record()))
    assert line["format"] == 2
    assert line["workload"]["op"] == "conv2d" and line["workload"]["weight"] == [64, 32, 3, 3]
    assert line["target"]["mcpu"] == machine.host_target().attrs["mcpu"]
    assert line["config"] == task("conv").default
    assert line["seconds"] == [2e-3, 1e-3]
    assert line["machine"] == {"cpu": machine.cpu_name(), "threads": machine.threads()}
    assert set(line["versions"]) == {"apache-tvm", "tvmfast"}
    assert line["time"].endswith("+00:00")


def test_the_least_repeat_counts_in_a_trial_and_the_median_in_finals():
    spread = (5.0, 1.0, 3.0)
    assert record(seconds=spread).call_seconds == 1.0
    assert record(seconds=spread, final="today").call_seconds == 3.0
    assert record(seconds=(), error="it failed").call_seconds == float("inf")


def changed(**entries) -> str:
    return json.dumps(json.loads(str(record())) | entries)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (str(record())[:100], "torn"),
        ("", "torn"),
        ("# a comment", "torn"),
        (b"\xff\xfe\x00", "torn"),
        ("[" * 100_000, "torn"),
        ("[1, 2]", "of another format"),
        ("null", "of another format"),
        ('{"input": ["llvm", "conv2d_NCHWc.x86"], "config": {"index": 3}, "version": 0.2}', "of another format"),
        (changed(format=3), "of another format"),
        (changed(format=None), "of another format"),
        (changed(workload={"op": "conv3d"}), "of another format"),
        (changed(workload={"op": "dense", "rows": 1}), "of another format"),
        (changed(workload={"op": "dense", "rows": "1", "depth": 2, "columns": 3}), "of another format"),
        (changed(workload=None), "of another format"),
        (changed(target={"kind": "llvm", "mcpu": 3}), "of another format"),
        (changed(target={"kind": "llvm", "mcpu": "no-such-cpu"}), "of CPUs that LLVM does not know here"),
        (changed(seconds=["fast"]), "of another format"),
        (changed(seconds=[float("nan")]), "of another format"),
        (changed(seconds=[0.0]), "of another format"),
        (changed(seconds=None), "of another format"),
        (changed(seconds=[]), "of another format"),  # and no error
        (changed(final=None), "of another format"),
        (changed(error=3), "of another format"),
        (changed(config=[1]), "of configs that no longer exist"),
        (
            changed(config={"family": "conv2d", "tile_ow": 1000, "tile_oc": 1, "loop_order": "rows"}),
            "of configs that no longer exist",
        ),
        (changed(config=task("dense").default), "of configs that no longer exist"),
        (changed(workload={"op": "kernel", "hash": "0", "name": "sort"}), "of configs that no longer exist"),
    ],
)
def test_lines_that_hold_no_record_say_why(line, reason):
    assert records.parse(line) == reason


IN_FORMAT_1 = {  # workload, and a config as format 1 names its fields
    "conv2d": ("conv", {"lines": 2, "pixels": 4, "blocks": 1, "outer": "channels", "chunk": 1}),
    "winograd": ("conv", {"tile": 4, "rows": 1, "columns": 6, "blocks": 2, "group": 1}),
    "winograd with prefetch": ("conv", {"tile": 2, "rows": 1, "columns": 6, "blocks": 2, "group": 0, "prefetch": True}),
    "pointwise": ("pointwise", {"pixels": 7, "blocks": 1, "run": 4, "outer": "rows"}),
    "depthwise": ("depthwise", {"rows": 7, "pixels": 2}),
    "matmul": ("dense", {"rows": 1, "blocks": 2, "outer": "columns"}),  # without a family
    "batch_matmul": (BatchMatmul((2, 5, 8), (2, 8, 40)), {"lanes": 8, "rows": 5, "blocks": 1, "outer": "rows"}),
}


@pytest.mark.parametrize("kind", IN_FORMAT_1)
def test_a_line_of_format_1_is_read_as_the_same_record(kind, tmp_path):
    """Of a CPU with AVX2; two of them and one of format 2 are merged and sorted by their times alone."""
    workload, config = IN_FORMAT_1[kind]
    workload = task(workload).workload if isinstance(workload, str) else workload
    family = kind.partition(" ")[0]
    config = config if family == "matmul" else {"family": family, **config}
    target = str(resolve_target({"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "core-avx2"}))
    slow, fast = (records.new_record(workload, target, config, (seconds,)) for seconds in (2e-3, 1e-3))
    old = [json.dumps(json.loads(str(each)) | {"format": 1}) for each in (slow, fast)]
    read = records.parse(old[0])
    assert isinstance(read, Record), read
    assert read == replace(slow, config=read.config) and read.config["family"] == family
    assert [*read.config.values()][1:] == [value for key, value in config.items() if key != "family"]
    assert records.parse(str(read)) == read, "as format 2"
    assert records.parse(json.dumps(json.loads(str(read)) | {"format": 3})) == "of another format"
    assert records.parse(json.dumps(json.loads(old[0]) | {"format": 2})) == "of configs that no longer exist"
    path = write(tmp_path / "mixed.jsonl", *old, read)
    assert records.best(records.read(path)) == {(workload, target): records.parse(old[1])}


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 200) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
LINE = json.loads(str(record()))
FIELDS = [(key,) for key in LINE] + [(key, inner) for key in ("workload", "config", "target") for inner in LINE[key]]


@settings(max_examples=150, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(FIELDS), json_values)
def test_any_line_is_a_record_or_says_why_not(keys, value):
    line = json.loads(json.dumps(LINE))
    where = line
    for key in keys[:-1]:
        where = where[key]
    where[keys[-1]] = value
    found = records.parse(json.dumps(line))
    if isinstance(found, Record):
        again = records.parse(str(found))
        assert again == found and records.best([found, again])
    else:
        assert found in (
            "of another format", "of configs that no longer exist", "of CPUs that LLVM does not know here"
        )  # fmt: skip


# ---------------------------------------------------------------- files


def test_what_is_appended_is_read(tmp_path):
    log = Log(tmp_path / "new" / "folder" / "tuning.jsonl")
    log.append([record(config=0), record(config=1)])
    assert configs_of(log.read_new()) == task("conv").space[:2]
    assert log.read_new() == []
    log.append([record(config=2)])
    log.append([])
    assert configs_of(log.read_new()) == task("conv").space[2:3]
    assert configs_of(records.read(log.path)) == task("conv").space[:3]
    log.close()


def test_a_torn_line_is_left_out_with_a_note_and_the_next_one_is_whole(tmp_path):
    path = write(tmp_path / "torn.jsonl", record(config=0), record(config=1))
    torn = path.read_bytes()[:-40]
    path.write_bytes(torn)
    with pytest.warns(UserWarning, match=r"torn\.jsonl: left out 1 line \(1 torn\)"):
        assert configs_of(records.read(path)) == task("conv").space[:1]
    assert path.read_bytes() == torn, "reading changed the file"

    log = Log(path)
    with pytest.warns(UserWarning, match="left out 1 line"):
        assert len(log.read_new()) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # it was told of once
        log.append([record(config=2)])
        assert configs_of(log.read_new()) == task("conv").space[2:3]
    log.close()
    assert path.read_bytes().startswith(torn + b"\n")
    with pytest.warns(UserWarning, match=r"left out 1 line \(1 torn\)"):
        assert configs_of(records.read(path)) == [task("conv").space[n] for n in (0, 2)]


def test_a_last_line_that_lacks_only_its_end_is_a_record_and_read_once(tmp_path):
    path = tmp_path / "unended.jsonl"
    path.write_text(str(record(config=0)))
    log = Log(path)
    assert configs_of(log.read_new()) == task("conv").space[:1]
    log.append([record(config=1)])
    assert configs_of(log.read_new()) == task("conv").space[1:2]
    assert configs_of(records.read(path)) == task("conv").space[:2]
    log.close()


def test_foreign_lines_are_left_out_with_one_note(tmp_path):
    foreign = "[]", "", '{"format": 3}', "not JSON"
    path = tmp_path / "mixed.jsonl"
    write(path, record(config=0), *foreign, record(config=1), changed(config={"family": "gone"}))
    with pytest.warns(UserWarning) as noted:
        assert configs_of(records.read(path)) == task("conv").space[:2]
    (note,) = noted
    assert str(note.message) == (
        f"{path}: left out 4 lines (2 of another format, 1 torn, 1 of configs that no longer exist)"
    )


@pytest.mark.parametrize(
    ("make", "error", "reason"),
    [
        (lambda path: None, FileNotFoundError, "No such file or directory"),
        (lambda path: path.mkdir(), IsADirectoryError, "Is a directory"),
    ],
)
def test_a_file_that_cannot_be_read(tmp_path, small, make, error, reason):
    path = tmp_path / "records.jsonl"
    make(path)
    with pytest.raises(error, match=rf"cannot read the records \({reason}\): '{path}'"):
        tvmfast.build(small.mod, small.params, records=path)
    with pytest.raises(error, match=rf"cannot read the records \({reason}\): '{path}'"):
        records.pick_best([path], tmp_path / "best.jsonl")
    assert not (tmp_path / "best.jsonl").exists()


def run(code: str, folder=HERE, **changes) -> list[str]:
    """The lines that code prints in another process, in a folder and with changes to the environment."""
    done = forked.run("-c", code, cwd=folder, env={**os.environ, **changes})
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


FULL = """
import os, resource, warnings
from fake_runner import *
from tvmfast.compiler import records
from tvmfast.tuning.session import Log
warnings.simplefilter("error", UserWarning)
log = Log(os.environ["RECORDS"])
written = [records.new_record(WORKLOADS["conv"], TARGET, config, (1e-3,)) for config in task("conv").space[:40]]
log.append(written[:10])
size = log.path.stat().st_size
resource.setrlimit(resource.RLIMIT_FSIZE, (size + size // 4, -1))
try:
    log.append(written[10:20])
except OSError as error:
    print(error)
assert log.path.stat().st_size == size, "half of a batch is there"
log.append(written[20:21])
print(len(log.read_new()), len(records.read(log.path)))
"""


def test_a_batch_that_does_not_fit_on_the_disk_leaves_nothing_behind(tmp_path):
    path = tmp_path / "records.jsonl"
    told, counts = run(FULL, RECORDS=str(path))
    assert told.endswith(f"cannot write the records (File too large); those of before are all there: '{path}'")
    assert counts == "11 11"


READ_ONLY = """
import os
from fake_runner import *
from tvmfast import build, tune
from tvmfast.compiler import records
tune(None, {}, records="others.jsonl", tasks=tasks(), runner=FakeRunner(), trials=1)  # everything is imported
os.chmod("records.jsonl", 0o444)
if os.geteuid() == 0:  # who may write to any file
    os.chmod(".", 0o755)
    os.seteuid(65534)
try:
    tune(None, {}, records="records.jsonl", tasks=tasks(), runner=FakeRunner())
except PermissionError as error:
    print(error)
print(len(records.read("records.jsonl")))
"""


def test_a_file_that_is_read_only_is_read_and_refused_for_tuning(tmp_path):
    text = write(tmp_path / "records.jsonl", record(config=0), record(config=1)).read_text()
    told, count = run(READ_ONLY, tmp_path, PYTHONPATH=str(HERE))
    assert told.endswith("cannot write the records (Permission denied): 'records.jsonl'")
    assert count == "2"
    assert (tmp_path / "records.jsonl").read_text() == text


APPEND = """
import os
from fake_runner import *
from tvmfast.compiler import records
from tvmfast.tuning.session import Log
configs = task("conv").space[:40]
for name in "ab":
    if not os.fork():
        log = Log(os.environ["RECORDS"])
        for config in configs:
            one = records.new_record(WORKLOADS["conv"], TARGET, config, (1e-3,), machine={"rpc": name * 3000})
            log.append([one, one])
        os._exit(0)
print(os.wait()[1], os.wait()[1])
"""


@unlimited
def test_processes_that_append_at_once_lose_and_tear_nothing(tmp_path):
    path = tmp_path / "records.jsonl"
    assert run(APPEND, RECORDS=str(path)) == ["0 0"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = records.read(path)
    for name in "ab":
        theirs = [each for each in found if each.machine["rpc"][0] == name]
        assert configs_of(theirs[::2]) == configs_of(theirs[1::2]) == task("conv").space[:40]


def test_the_shipped_records_are_of_todays_configs():
    """They are not checked when they are used: a build would wait for it."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert records.shipped() == records.read(*records.FOLDER.glob("*.jsonl")) != []


def refuse(names):
    """`env.checked_target` of a machine whose LLVM knows no CPU of these names for its own architecture."""
    checked = machine.checked_target

    def as_there(described):
        if described.get("mcpu") in names and "mtriple" not in described:
            raise errors.UnknownCpu(f"LLVM knows no CPU {described['mcpu']!r}; near names: a64fx, ampere1")
        return checked(described)

    return as_there


@pytest.fixture
def other_machine(monkeypatch):
    """As on ARM: LLVM knows the CPUs of the shipped records, and of this machine, by their triple alone."""
    caches = records.shipped, records._canonical
    for cache in caches:
        cache.cache_clear()
    mcpus = {json.loads(line)["target"]["mcpu"] for line in all_shipped()} | {machine.host_target().attrs["mcpu"]}
    monkeypatch.setattr(machine, "checked_target", refuse(mcpus))
    yield
    for cache in caches:
        cache.cache_clear()


def all_shipped() -> list[str]:
    return [line for file in sorted(records.FOLDER.glob("*.jsonl")) for line in file.read_text().splitlines()]


def test_shipped_records_are_read_on_another_architecture_as_their_targets_have_a_triple(other_machine):
    assert len(records.shipped()) == len(all_shipped())


def test_a_build_leaves_out_shipped_records_of_cpus_that_llvm_does_not_know(
    small, other_machine, monkeypatch, tmp_path
):
    lines = [json.loads(line) for line in all_shipped()[:3]]
    for line in lines:
        del line["target"]["mtriple"]
    write(tmp_path / "theirs.jsonl", *map(json.dumps, lines))
    monkeypatch.setattr(records, "FOLDER", tmp_path)
    assert records.shipped() == []
    lib = tvmfast.build(small.mod, small.params)
    assert lib.tuned == "shipped records: none for this network and target"
    close(lib(small.x), small.exact)


def test_records_of_a_cpu_that_llvm_does_not_know_are_left_out_with_the_reason(other_machine, tmp_path):
    path = write(tmp_path / "theirs.jsonl", record(), record("dense"))
    with pytest.warns(UserWarning, match=r"left out 2 lines \(2 of CPUs that LLVM does not know here\)"):
        assert records.read(path) == []


# ---------------------------------------------------------------- the best


def test_the_best_is_the_fastest_that_did_not_fail():
    slow, fast = record(config=1, seconds=(3.0,)), record(config=2, seconds=(9.0, 1.0))
    failed, other = record(config=3, seconds=(), error="it crashed"), record("dense", seconds=(7.0,))
    found = records.best([slow, failed, fast, other])
    assert found == {(WORKLOADS["conv"], TARGET): fast, (WORKLOADS["dense"], TARGET): other}
    assert records.best([failed]) == {}


def test_the_last_finals_decide():
    lucky = record(config=1, seconds=(1.0,))
    earlier = record(config=2, seconds=(2.0,), final="2026-01-01")
    later = [record(config=3, seconds=(5.0,), final="2026-02-01"), record(config=4, seconds=(4.0,), final="2026-02-01")]
    for listed in ([lucky, earlier, *later], [*reversed(later), earlier, lucky]):
        (found,) = records.best(listed).values()
        assert found == later[1]


def test_several_files_merge_into_one_of_the_best(tmp_path):
    here, there = record(config=1, seconds=(2.0,)), record(config=2, seconds=(1.0,))
    elsewhere = record(config=3, seconds=(9.0,), target=OTHER)
    one = write(tmp_path / "one.jsonl", here, record("dense"), record("stem", 0, (), error="it crashed"))
    two = write(tmp_path / "two.jsonl", there, elsewhere, "[]")
    out = tmp_path / "best.jsonl"
    with pytest.warns(UserWarning, match=r"two\.jsonl: left out 1 line"):
        picked = records.pick_best([one, two], out)
    assert records.read(out) == picked
    assert {str(each) for each in picked} == set(out.read_text().splitlines())
    assert sorted(each.call_seconds for each in picked) == [1e-3, 1.0, 9.0]
    assert records.pick_best(one, out) == records.read(out)
    assert records.pick_best(out, out) == records.read(out), "a file may be reduced to its own best"


# ---------------------------------------------------------------- what a build makes of them


@pytest.fixture(scope="module")
def small_tasks(small):
    return tasks(small.mod, small.params)


def chosen(small_tasks, target=TARGET, number=-1) -> list[Record]:
    """A record of each task, of a config by its number in the space."""
    return [records.new_record(t.workload, target, t.space[number], (1e-3,)) for t in small_tasks]


def assert_built_with(lib, found, small):
    """The library's kernels have the configs of the records, and its results are PyTorch's."""
    for each in found:
        config = {key: value for key, value in each.config.items() if key != "family"}
        schedule = each.config["family"], config
        assert schedule in [*zip(lib.kernels.family, lib.kernels.config, strict=True)], (schedule, lib.kernels)
    close(lib(small.x), small.exact)


def test_a_build_takes_a_file_several_or_a_list(small, small_tasks, tmp_path):
    found = chosen(small_tasks)
    without = tvmfast.build(small.mod, small.params, records=False)
    assert without.tuned == "" and repr(without).endswith(f"{machine.host_target().attrs['mcpu']})")
    one, two = write(tmp_path / "one.jsonl", *found[:1]), write(tmp_path / "two.jsonl", *found[1:])
    count = len(found)
    for source, told in [
        (found, f"records: {count} of this target"),
        ([one, str(two)], f"{one}, {two}: {count} of this target"),
        ([one, *found[1:]], f"{one}: {count} of this target"),
    ]:
        lib = tvmfast.build(small.mod, small.params, records=source)
        assert lib.tuned == told
        assert repr(lib).endswith(f"; {told})")
        assert_built_with(lib, found, small)
    for source in (one, str(one)):
        lib = tvmfast.build(small.mod, small.params, records=source)
        assert lib.tuned == f"{one}: 1 of this target, {count - 1} workloads with none"
        assert_built_with(lib, found[:1], small)


def test_a_saved_network_tells_of_its_records(small, small_tasks, tmp_path):
    found = chosen(small_tasks)
    tvmfast.build(small.mod, small.params, records=found).save(tmp_path / "saved")
    lib = tvmfast.load(tmp_path / "saved")
    assert lib.tuned == f"records: {len(found)} of this target"
    assert_built_with(lib, found, small)


def test_records_of_the_same_vector_registers_are_near(small, small_tasks):
    found = chosen(small_tasks, OTHER)
    lib = tvmfast.build(small.mod, small.params, records=found)
    assert lib.tuned == f"records: {len(found)} near (another CPU with the same vector registers)"
    assert_built_with(lib, found, small)

    mixed = [*chosen(small_tasks[:1], number=1), *found]
    lib = tvmfast.build(small.mod, small.params, records=mixed)
    assert lib.tuned == f"records: 1 of this target, {len(found) - 1} near (another CPU with the same vector registers)"
    assert_built_with(lib, [mixed[0], *found[1:]], small)


def test_records_of_other_vector_registers_are_not_used(small, small_tasks, tmp_path):
    other = str(tvm.target.Target({"kind": "llvm", "mtriple": "aarch64-linux-gnu"}))
    if records.simd_of_key(other) == records.simd_of_key(TARGET):
        pytest.skip("this machine has the vector registers of every ARM")
    wide = [records.new_record(t.workload, other, {**t.default}, (1e-3,)) for t in small_tasks]
    lib = tvmfast.build(small.mod, small.params, records=wide)
    assert lib.tuned == "records: none for this network and target"
    assert lib.kernels.equals(tvmfast.build(small.mod, small.params, records=False).kernels)


def test_records_that_failed_or_are_of_another_network_are_not_used(small, small_tasks):
    failed = [records.new_record(t.workload, TARGET, t.space[-1], (), "it crashed") for t in small_tasks]
    lib = tvmfast.build(small.mod, small.params, records=[*failed, record("conv")])
    assert lib.tuned == "records: none for this network and target"


def test_by_default_a_build_takes_the_records_that_come_with_the_package(small, small_tasks, monkeypatch):
    monkeypatch.setattr(records, "shipped", lambda: chosen(small_tasks))
    lib = tvmfast.build(small.mod, small.params)
    assert lib.tuned == f"shipped records: {len(small_tasks)} of this target"
    assert_built_with(lib, chosen(small_tasks), small)
    assert tvmfast.build(small.mod, small.params, records=False).tuned == ""


@pytest.mark.parametrize("level", sampled([0, 1, 2], [2]))
def test_below_level_3_nothing_is_tuned(small, small_tasks, level):
    lib = tvmfast.build(small.mod, small.params, opt_level=level, records=chosen(small_tasks))
    assert "of this target" not in lib.tuned
    assert set(lib.kernels.family) == {"none"}


@pytest.mark.parametrize("source", [[1], [None], b"path"])
def test_what_are_no_records_is_refused(small, source):
    with pytest.raises(TypeError, match="records: expected None, False, a file, or a list of files or of tvmfast"):
        tvmfast.build(small.mod, small.params, records=source)


def test_a_config_that_no_longer_exists_is_left_out_of_a_build(small, small_tasks, tmp_path):
    lines = [json.loads(str(each)) for each in chosen(small_tasks)]
    lines[0]["config"] = {"family": "conv2d", "tile_ow": 99, "tile_oc": 1, "loop_order": "rows"}
    path = write(tmp_path / "old.jsonl", *map(json.dumps, lines))
    with pytest.warns(UserWarning, match=r"old\.jsonl: left out 1 line \(1 of configs that no longer exist\)"):
        lib = tvmfast.build(small.mod, small.params, records=path)
    assert lib.tuned == f"{path}: {len(lines) - 1} of this target, 1 workloads with none"
    assert_built_with(lib, chosen(small_tasks)[1:], small)


@pytest.mark.parametrize("seed", sampled(range(4), [0]))
def test_whatever_the_configs_the_results_are_pytorchs(small, small_tasks, seed):
    choose = random.Random(seed)
    found = [records.new_record(t.workload, TARGET, choose.choice(t.space), (1e-3,)) for t in small_tasks]
    assert_built_with(tvmfast.build(small.mod, small.params, records=found), found, small)
