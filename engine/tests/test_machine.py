"""machine: cores, threads, instruction sets, target, report and problems, on made-up machines and on this one."""

import inspect
import json
import os
import re
from types import SimpleNamespace

import forked
import numpy as np
import pytest
import torch
import tvm
from testing import inner_loops, sampled
from torch.nn import functional as F
from typer.testing import CliRunner

from tvmfast import build
from tvmfast.commands import app
from tvmfast.compiler import records, selftest
from tvmfast.compiler.build import resolve_target
from tvmfast.core import compat, errors, kernel_cache, machine
from tvmfast.tuning import tasks

ALONE = {cpu: str(cpu) for cpu in range(4)}  # four cores without hyper-threads
PAIRS = {cpu: f"{cpu % 4},{cpu % 4 + 4}" for cpu in range(8)}  # four cores of two hyper-threads


@pytest.fixture
def made_up(tmp_path, monkeypatch):
    """Make trees of /proc and /sys: hyper-threads by CPU, the CPUs of the affinity mask, and other files."""

    def make(siblings, files=None, cpus=None, name="core_cpus_list"):
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(cpus or siblings), raising=False)
        (tmp_path / "sys/devices/system/cpu").mkdir(parents=True)
        topology = {f"sys/devices/system/cpu/cpu{cpu}/topology/{name}": text for cpu, text in siblings.items()}
        for path, text in {**topology, **(files or {})}.items():
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_text(text + "\n")
        return tmp_path

    return make


@pytest.fixture
def forget():
    """Have `machine` look at the machine anew, in the test and after it."""
    known = [machine.cpu_name, machine.instruction_sets, machine.host_target, machine._system_cpu]
    for function in known:
        function.cache_clear()
    yield
    for function in known:
        function.cache_clear()


# ---------------------------------------------------------------- cores


@pytest.mark.parametrize("name", ["core_cpus_list", "thread_siblings_list"])
def test_hyper_threads_of_a_core_count_once(made_up, name):
    assert machine.usable_cores(made_up(PAIRS, name=name)) == 4


@pytest.mark.parametrize(("cpus", "cores"), [([0, 4], 1), ([0, 1], 2), ([1, 2, 5, 6, 7], 3)])
def test_only_cpus_of_the_affinity_mask_count(made_up, cpus, cores):
    assert machine.usable_cores(made_up(PAIRS, cpus=cpus)) == cores


def test_to_stay_on_cpus_of_which_some_are_not_there_is_an_error(monkeypatch):
    """Linux takes those that are there, without a word."""
    now = {0, 1, 2}

    def set_to(process, cpus):
        now.clear()
        now.update({0, 1, 2} & set(cpus))

    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(now), raising=False)
    monkeypatch.setattr(os, "sched_setaffinity", set_to, raising=False)
    monkeypatch.setenv("TVM_BIND_THREADS", "1")
    with pytest.raises(ValueError, match=r"cannot stay on \[1, 7\] \(no CPU 7\); those that .* may use: 0, 1, 2"):
        machine.stay_on([1, 7])
    assert now == {0, 1, 2} and os.environ["TVM_BIND_THREADS"] == "1"
    machine.stay_on([1])
    assert now == {1} and os.environ["TVM_BIND_THREADS"] == "0"


def test_without_topology_each_cpu_counts(made_up):
    assert machine.usable_cores(made_up({}, cpus=[0, 1, 2])) == 3


V2 = "sys/fs/cgroup/"
V1 = "sys/fs/cgroup/cpu/"
QUOTAS = {
    "v2": (2, "0::/", {V2 + "cpu.max": "200000 100000"}),
    "v2, none": (4, "0::/", {V2 + "cpu.max": "max 100000"}),
    "v2, half a CPU": (1, "0::/", {V2 + "cpu.max": "50000 100000"}),
    "v2, one and a half": (1, "0::/", {V2 + "cpu.max": "150000 100000"}),
    "v2, two and three quarters": (2, "0::/", {V2 + "cpu.max": "275000 100000"}),
    "v2, more than there are": (4, "0::/", {V2 + "cpu.max": "6400000 100000"}),
    "v2, below": (3, "0::/a/b", {V2 + "a/b/cpu.max": "300000 100000", V2 + "a/cpu.max": "max 100000"}),
    "v2, an ancestor's": (1, "0::/a/b", {V2 + "a/b/cpu.max": "max 100000", V2 + "a/cpu.max": "100000 100000"}),
    "v2, the root's": (2, "0::/a/b", {V2 + "cpu.max": "20000 10000", V2 + "a/b/cpu.max": "300000 100000"}),
    "v2, another's": (4, "0::/a", {V2 + "b/cpu.max": "100000 100000"}),
    "v1": (3, "4:cpu,cpuacct:/", {V1 + "cpu.cfs_quota_us": "300000", V1 + "cpu.cfs_period_us": "100000"}),
    "v1, none": (4, "4:cpu:/", {V1 + "cpu.cfs_quota_us": "-1", V1 + "cpu.cfs_period_us": "100000"}),
    "v1, half a CPU": (1, "4:cpu:/", {V1 + "cpu.cfs_quota_us": "50000", V1 + "cpu.cfs_period_us": "100000"}),
    "v1, below": (2, "4:cpu:/a", {V1 + "a/cpu.cfs_quota_us": "20000", V1 + "a/cpu.cfs_period_us": "10000"}),
    "v1, an ancestor's": (1, "4:cpu:/a/b", {V1 + "a/cpu.cfs_quota_us": "9000", V1 + "a/cpu.cfs_period_us": "9000"}),
    "v1, the container's": (2, "4:cpu:/docker/1", {V1 + "cpu.cfs_quota_us": "2000", V1 + "cpu.cfs_period_us": "1000"}),
    "v1, other controllers": (
        4,
        "4:memory:/\n5:cpuset:/",
        {V1 + "cpu.cfs_quota_us": "1", V1 + "cpu.cfs_period_us": "1"},
    ),
    "both": (
        1,
        "4:cpu:/\n0::/",
        {V2 + "cpu.max": "300000 100000", V1 + "cpu.cfs_quota_us": "1000", V1 + "cpu.cfs_period_us": "1000"},
    ),
    "no cgroups": (4, None, {}),
}


@pytest.mark.parametrize("quota", QUOTAS)
def test_cpu_quotas_bound_the_cores(made_up, quota):
    cores, cgroup, files = QUOTAS[quota]
    if cgroup is not None:
        files = {"proc/self/cgroup": cgroup, **files}
    assert machine.usable_cores(made_up(ALONE, files)) == cores


@pytest.mark.parametrize(("failed", "cores"), [(0, 6), (-1, 10)])
def test_of_an_apple_chip_the_performance_cores_count(tmp_path, monkeypatch, failed, cores):
    def sysctlbyname(name, value, size, *_):
        assert (name, size._obj.value) == (b"hw.perflevel0.physicalcpu", 4)
        value._obj.value = 6
        return failed

    monkeypatch.setattr(machine.ctypes, "CDLL", lambda name: SimpleNamespace(sysctlbyname=sysctlbyname))
    monkeypatch.setattr("psutil.cpu_count", lambda logical: 10)
    assert machine.usable_cores(tmp_path) == cores


@pytest.mark.parametrize(("physical", "cores"), [(3, 3), (None, 2)])
def test_without_sys_psutil_counts(tmp_path, monkeypatch, physical, cores):
    monkeypatch.setattr(machine, "_performance_cores", lambda: None)
    monkeypatch.setattr("psutil.cpu_count", lambda logical: physical)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1}, raising=False)
    assert machine.usable_cores(tmp_path) == cores


def test_this_machine_has_usable_cores():
    assert 1 <= machine.usable_cores() <= os.cpu_count()


# ---------------------------------------------------------------- threads

COUNT = """
import os, psutil, tvmfast
threads = psutil.Process().num_threads
tvmfast.core.machine.host_target()
before = threads()
tvmfast.core.machine._compile_and_run()
started = 1 + threads() - before
print(os.environ.get("TVM_NUM_THREADS", started), started, tvmfast.core.machine.threads())
"""


def test_tvm_runs_on_as_many_threads_as_there_are_cores(python):
    assert python(COUNT, TVM_NUM_THREADS=None).split() == [str(machine.usable_cores())] * 3


def test_tvm_runs_on_as_many_threads_as_set():
    done = forked.run("-c", COUNT, env={**os.environ, "TVM_NUM_THREADS": "3"})
    assert done.stdout.split() == ["3"] * 3, done.stderr


@pytest.mark.parametrize(("setting", "threads"), [("7", 7), ("", 2), ("0", 2), ("many", 2)])
def test_threads(monkeypatch, setting, threads):
    monkeypatch.setattr(machine, "usable_cores", lambda: 2)
    monkeypatch.setattr(os, "environ", {"TVM_NUM_THREADS": setting})
    compat.set_tvm_threads(machine.usable_cores())
    assert (machine.threads(), os.environ["TVM_NUM_THREADS"]) == (threads, setting)
    del os.environ["TVM_NUM_THREADS"]
    compat.set_tvm_threads(machine.usable_cores())
    assert os.environ["TVM_NUM_THREADS"] == "2"


@pytest.mark.parametrize(("before", "spins"), [({}, "0"), ({"TVM_THREAD_POOL_SPIN_COUNT": "7"}, "7")])
def test_tvms_threads_sleep_at_once_where_nothing_else_is_set(monkeypatch, before, spins):
    monkeypatch.setattr(os, "environ", dict(before))
    compat.set_tvm_threads(2)
    assert os.environ["TVM_THREAD_POOL_SPIN_COUNT"] == spins


# ---------------------------------------------------------------- CPU and target

X86 = "model name\t: Fine CPU\nflags\t\t: fpu sse4_2 avx fma avx2 bmi1 avx512_vnni avx_vnni\n"
ARM = "processor\t: 0\nFeatures\t: fp asimd asimdhp asimddp i8mm\n"


@pytest.mark.parametrize(
    ("cpuinfo", "sets"),
    [
        (X86, ("sse4.2", "avx", "fma", "avx2", "bmi", "avxvnni", "avx512vnni")),
        (ARM, ("neon", "fullfp16", "dotprod", "i8mm")),
    ],
)
def test_the_kernels_flags_become_llvms_names(forget, monkeypatch, cpuinfo, sets):
    monkeypatch.setattr(machine, "_read", lambda path: cpuinfo)
    assert machine.instruction_sets() == sets
    monkeypatch.setattr("tvm.target.codegen.llvm_get_system_cpu", lambda: "neoverse-n1")
    assert machine.cpu_name() == ("Fine CPU" if "model name" in cpuinfo else "neoverse-n1")


def test_without_the_kernels_list_llvm_says_what_the_cpu_has(forget, monkeypatch):
    monkeypatch.setattr(machine, "_read", lambda path: "")
    monkeypatch.setattr(machine, "_llvm_cpu", lambda: "haswell")
    assert machine.instruction_sets() == ("sse4.2", "avx", "f16c", "fma", "avx2", "bmi", "bmi2")


def test_the_host_target_names_the_cpu_and_its_cores():
    target = machine.host_target()
    assert target.kind.name == "llvm"
    hidden = machine._llvm_cpu() in ("znver4", "znver5") and "avx512f" not in machine.instruction_sets()
    assert target.attrs["mcpu"] == ("znver2" if hidden else machine._llvm_cpu())
    assert target.attrs["num-cores"] == machine.usable_cores()
    assert set(machine.target_instruction_sets(target)) <= set(machine.instruction_sets())


def test_the_host_target_switches_off_what_the_machine_lacks(forget, monkeypatch):
    had = machine.target_instruction_sets(machine.host_target())
    lost = {isa for isa in had if isa in ("avx2", "avxvnni", "neon") or isa.startswith("avx512")} or set(had[:1])
    assert lost, f"LLVM knows none of these of {machine._llvm_cpu()}"
    forgotten = tuple(isa for isa in machine.instruction_sets() if isa not in lost)
    machine.host_target.cache_clear()
    monkeypatch.setattr(machine, "instruction_sets", lambda: forgotten)
    target = machine.host_target()
    implied = lost & set(machine.target_instruction_sets({"kind": "llvm", "mcpu": str(target.attrs["mcpu"])}))
    assert implied  # not always all: without AVX-512 a Zen 4 is compiled for as a CPU that never had it
    assert {f"-{isa}" for isa in implied} <= set(target.attrs["mattr"])
    assert not lost & set(machine.target_instruction_sets(target))


AVX2 = ("sse4.2", "avx", "f16c", "fma", "avx2", "bmi", "bmi2", "avxvnni")
CPUS = ["haswell", "alderlake", "znver2", "znver3", "skylake-avx512", "znver4"]
WITHOUT_AVX512 = ["skylake-avx512", "sapphirerapids", "znver4", "znver5"]
CASES = [*CPUS, *(f"{cpu} without AVX-512" for cpu in WITHOUT_AVX512)]


@pytest.mark.parametrize("case", sampled(CASES, ["znver3", "skylake-avx512", "znver4 without AVX-512"]))
def test_no_cpu_keeps_a_tile_of_sums_in_memory(forget, monkeypatch, compile_function, case):
    """Nor where a hypervisor hides AVX-512."""
    cpu, hidden, _ = case.partition(" without ")
    monkeypatch.setattr("tvm.target.codegen.llvm_get_system_cpu", lambda: cpu)
    named = {"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": machine._llvm_cpu()}
    has = AVX2 if hidden else machine.target_instruction_sets(named)
    monkeypatch.setattr(machine, "instruction_sets", lambda: has)
    target = {"mtriple": "x86_64-linux-gnu", **json.loads(machine.target_json(machine.host_target())), "num-cores": 2}
    assert set(machine.target_instruction_sets(target)) == set(has)
    weight = torch.ones(256, 128, 3, 3)
    lib = compile_function(
        lambda x: F.conv2d(x, weight, None, 2, 1), {"x": (1, 128, 28, 28)}, target=target, records=False
    )
    (kernel,) = lib.kernels.index[lib.kernels.family == "conv2d"]
    inner = min(inner_loops(lib.source(kernel, "asm"), "vfmadd"), key=len)
    assert sum("vfmadd" in line for line in inner) >= 12, "a tile"
    assert not [line for line in inner if "(%rsp)" in line]


@pytest.mark.parametrize(("cpu", "listed"), [("apple-m1", "a14"), ("apple-m2", "a15"), ("apple-m3", "a16")])
def test_a_cpu_that_llvm_does_not_list_is_the_one_that_it_is_another_name_of(forget, monkeypatch, small, cpu, listed):
    listed = f"apple-{listed}"
    monkeypatch.setattr("tvm.target.codegen.llvm_get_system_cpu", lambda: cpu)
    assert machine._llvm_cpu() == listed
    target = {"kind": "llvm", "mtriple": "arm64-apple-darwin", "mcpu": cpu, "num-cores": 4}
    lib = build(small.mod, small.params, target, opt_level=1)
    assert (lib.target.attrs["mcpu"], lib.target.attrs["num-cores"]) == (listed, 4)
    assert machine.target_instruction_sets(lib.target) == machine.target_instruction_sets({**target, "mcpu": listed})
    found = tasks(small.mod, small.params, target)
    assert {json.loads(task.target)["mcpu"] for task in found} == {listed}
    for task in found:
        record = records.new_record(task.workload, json.dumps(target), task.default, (1e-3,))
        assert records.parse(str(record)).target == task.target


# ---------------------------------------------------------------- report and problems


def test_the_machine_in_a_line():
    cores, mcpu = machine.usable_cores(), machine.host_target().attrs["mcpu"]
    line = f"{machine.cpu_name()}, {cores} cores, target {mcpu}, TVM {tvm.__version__}"
    assert machine.machine() == line


def test_the_report_has_a_row_for_each_fact():
    report = machine.report()
    versions = {"Python", "TVM", "torch", "torchvision", "onnx", "onnxruntime", "numpy", "mxnet"}
    facts = {"CPU", "instruction sets", "cores", "threads", "target", "C++ compiler", "GPU", "network", "cache"}
    assert report.keys() == versions | facts
    assert report["CPU"] == machine.cpu_name()
    assert report["network"] == "off (TVMNOTES_OFFLINE)"
    assert report["target"] == str(machine.host_target())
    lines, html = str(report).splitlines(), report._repr_html_()
    assert len(lines) == len(report) and repr(report) == str(report)
    assert html.lstrip().startswith(("<style", "<table")) and "</table>" in html
    for line, (name, value) in zip(lines, report.items(), strict=True):
        assert line.startswith(name) and line.endswith(value)
        assert name in html


@pytest.mark.parametrize(
    ("compiler", "header", "lacks"),
    [
        ("/usr/bin/g++", True, None),
        (
            "/usr/bin/g++",
            False,
            r"no Python\.h: install python3\.\d+-dev \(Debian, Ubuntu\) or python3-devel \(Fedora\)",
        ),
        (None, True, r"needs g\+\+ or clang\+\+, and there is neither"),
    ],
)
def test_what_torch_compile_lacks_is_a_sentence_and_in_the_report(tmp_path, monkeypatch, compiler, header, lacks):
    if header:
        (tmp_path / "Python.h").touch()
    monkeypatch.setattr(machine, "cpp_compiler", lambda: compiler)
    monkeypatch.setattr(machine.sysconfig, "get_path", lambda name: str(tmp_path))
    said, row = machine.torch_compile_lacks(), machine.report()["C++ compiler"]
    assert said is None if lacks is None else re.search(lacks, said)
    assert row.startswith("found" if compiler else "none: Compiled.save") and (header or row.endswith(f"; but {said}"))


def test_pins_are_the_exact_ones_that_apply_here(monkeypatch):
    lines = ["a==1.0", "b>=2", "c==3; extra == 'mxnet'", "d==4; python_version < '3'", "e==5.*", "f>=1,<2", "g"]
    lines += ["numpy==0.1; extra == 'torch'", "no-such-package==2; extra == 'onnx'"]
    monkeypatch.setattr(machine.metadata, "requires", lambda package: lines)
    assert machine._pins() == {"a": "1.0", "numpy": "0.1"}


def test_no_problems_where_the_pins_are_met(monkeypatch):
    installed = machine.metadata.version("apache-tvm")
    monkeypatch.setattr(machine, "_pins", lambda: {"apache-tvm": installed})
    assert machine.problems() == []


def test_a_local_version_meets_its_pin(monkeypatch):
    monkeypatch.setattr(machine, "_pins", lambda: {"torch": "2.12.0"})
    monkeypatch.setattr(machine, "_version", lambda package: "2.12.0+cpu")
    assert machine.problems() == []


def test_another_version_gives_the_line_for_pip(monkeypatch):
    monkeypatch.setattr(machine, "_pins", lambda: {"numpy": "0.1", "no-such-package": "2"})
    first, second = machine.problems()
    assert first.endswith("tested is 0.1: pip install numpy==0.1")
    assert second == "no-such-package is not installed: pip install no-such-package==2"


def test_a_tvm_that_does_not_compile_is_a_problem(monkeypatch):
    def fail():
        raise RuntimeError("traceback\nno LLVM here")

    monkeypatch.setattr(machine, "_pins", lambda: {"apache-tvm": machine.metadata.version("apache-tvm")})
    monkeypatch.setattr(machine, "_compile_and_run", fail)
    (problem,) = machine.problems()
    assert "(RuntimeError: no LLVM here)" in problem
    assert "pip install --force-reinstall apache-tvm==" in problem


@pytest.mark.parametrize("text", [(), ("",), (" \n",)])
def test_an_error_without_text_is_called_by_its_type(monkeypatch, text):
    error = ValueError(*text)
    assert errors.lines(error) == ["ValueError"] and errors.one_line(error) == "ValueError"
    assert errors.lines("\n") == ["no word"]

    def fail(*_):
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(tvm.target, "Target", fail)
        with pytest.raises(ValueError, match=r"unknown target 'llvm' \(ValueError\)"):
            resolve_target("llvm")
    monkeypatch.setattr(machine, "_pins", dict)
    monkeypatch.setattr(machine, "_compile_and_run", fail)
    assert "(ValueError: ValueError)" in machine.problems()[0]


def test_the_lines_of_an_error_and_all_of_it_in_one():
    error = RuntimeError("  first \n\n last  one\n")
    assert errors.lines(error) == ["first", "last  one"]
    assert errors.one_line(error) == "first last one"


def test_a_folder_that_is_not_installed_says_so(monkeypatch):
    def fail(package):
        raise machine.metadata.PackageNotFoundError(package)

    monkeypatch.setattr(machine.metadata, "requires", fail)
    with pytest.raises(SystemExit, match="pip install -e"):
        machine.problems()


@pytest.mark.parametrize(("pins", "code", "words"), [({}, 0, "All is well"), ({"numpy": "0.1"}, 1, "numpy==0.1")])
def test_doctor(monkeypatch, pins, code, words):
    monkeypatch.setattr(machine, "_pins", lambda: pins)
    monkeypatch.setattr(kernel_cache, "status", lambda: "so many kernels")  # other tests add some meanwhile
    result = CliRunner().invoke(app, ["doctor"])
    assert result.exit_code == code
    assert words in result.output and machine.cpu_name() in result.output
    (line,) = [line for line in result.output.splitlines() if line.startswith("kernel cache")]
    assert line.endswith("  so many kernels")


@pytest.mark.parametrize(
    ("module", "name", "told"),
    [
        (records, "shipped", r"\(AttributeError: 'str' object has no attribute 'error'\)"),
        (selftest, "_reference", r"\(a difference of \de[-+]\d\d\)"),
    ],
    ids=["the build fails", "the result is wrong"],
)
def test_doctor_builds_a_convolution_and_a_product_with_the_default_records(monkeypatch, module, name, told):
    wrong = {"shipped": lambda: ["of another format"], "_reference": lambda x, w, v: np.ones((1, 10))}
    monkeypatch.setattr(module, name, wrong[name])
    monkeypatch.setattr(machine, "_pins", dict)
    result = CliRunner().invoke(app, ["doctor"])
    assert result.exit_code == 1 and "All is well" not in result.output
    assert re.search(f"problem: tn.build does not compile and run a convolution .* {told}", result.output)


def test_quick_script_gives_the_same_function_without_a_look_at_the_callers(monkeypatch):
    from tvm.script import tirx as T

    def make(size):
        @T.prim_func(s_tir=True)
        def main(x: T.Buffer((size,), "float32"), y: T.Buffer((size,), "float32")):
            for i in range(size):
                with T.sblock("y"):
                    at = T.axis.spatial(size, i)
                    y[at] = x[at] + T.float32(size)

        return main

    wanted = make(7)
    monkeypatch.setattr(inspect, "stack", lambda *_: pytest.fail("looked at the callers"))
    with compat.fast_tvmscript_parser():
        tvm.ir.assert_structural_equal(make(7), wanted)
    tvm.ir.assert_structural_equal(compat.fast_tvmscript_parser()(make)(7), wanted)
    with pytest.raises(pytest.fail.Exception):
        make(7)
