"""Machine code is made once for each kernel, cached, and never the wrong one."""

import os
import shutil
import subprocess
import sys
import threading
from types import SimpleNamespace

import forked
import numpy as np
import pytest
import torch
import torch.nn.functional as F
import tvm
from agreement import close, reference
from testing import SEED, Case, unlimited
from torch import nn

import tvmfast
from tvmfast.compiler import codegen
from tvmfast.core import kernel_cache, machine
from tvmfast.profiling import networks


class FourKernels(nn.Module):
    """A network of kernels that LLVM compiles quickly: float32 (1, 3, 8, 8) to (1, 5)."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(48, 5)

    def forward(self, x):
        return self.linear(F.max_pool2d(x, 2).flatten(1)).softmax(1).cumsum(1)


@pytest.fixture(scope="module")
def small():
    """`FourKernels`, imported, with an input and PyTorch's result for it in double precision."""
    net, x = networks.seeded(FourKernels, 8), torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    return Case(*tvmfast.from_pytorch(net, {"image": x}), x.numpy(), exact=reference(net, x))


@pytest.fixture(scope="module")
def threads(tmp_path_factory):
    """The object of pool.cc, which takes g++ a second: compiled once."""
    return codegen._threads(machine.cpp_compiler(), tmp_path_factory.mktemp("threads"))


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch, threads):
    """A cache of its own; what compiles pool.cc copies the object."""

    def run(command, **_options):
        shutil.copy(threads, command[-1])
        return SimpleNamespace(returncode=0)

    monkeypatch.setenv("TVMNOTES_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(codegen, "subprocess", SimpleNamespace(run=run))
    return tmp_path / "cache" / "kernels"


@pytest.fixture
def compiled(monkeypatch):
    """The names of the kernels that LLVM has compiled, but for the one of each build that is left to TVM."""
    names, compile_kernels = [], codegen.compile_kernels

    def noted(kernels, *args, **kwargs):
        names.extend(var.name_hint for var in kernels)
        return compile_kernels(kernels, *args, **kwargs)

    monkeypatch.setattr(codegen, "compile_kernels", noted)
    return names


def check(lib, small):
    x = np.random.default_rng(SEED).standard_normal(small.x.shape).astype("float32")
    close(lib(small.x), small.exact)
    return x


def test_a_kernel_is_compiled_once(small, compiled, cache):
    first = tvmfast.build(small.mod, small.params)
    assert sorted(compiled) == sorted(set(compiled)) and len(compiled) == len(first.kernels) - 1 > 2
    assert len(list(cache.iterdir())) == len(compiled) + 1  # and the threads
    compiled.clear()
    second = tvmfast.build(small.mod, small.params)
    assert compiled == []
    x = check(second, small)
    np.testing.assert_array_equal(first(x), second(x))


@unlimited
def test_another_process_finds_the_code(small, cache, tmp_path):
    tvmfast.build(small.mod, small.params)
    before = sorted(cache.iterdir())
    (tmp_path / "module.json").write_text(tvm.ir.save_json(small.mod))
    np.savez(tmp_path / "params.npz", **{name: array.numpy() for name, array in small.params.items()})
    code = (
        "import numpy, tvm, tvmfast; from tvmfast.compiler import codegen; codegen.compile_kernels = None\n"
        "mod = tvm.ir.load_json(open('module.json').read())\n"
        "print(len(tvmfast.build(mod, dict(numpy.load('params.npz'))).kernels))"
    )
    done = forked.run("-c", code, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == len(before)  # one of them has the threads, and TVM compiles one kernel
    assert sorted(cache.iterdir()) == before


def test_code_is_for_one_target_and_one_context(small, compiled):
    tvmfast.build(small.mod, small.params)
    count = len(compiled)
    tvmfast.build(small.mod, small.params, {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a72"})
    assert len(compiled) > count
    compiled.clear()
    with tvm.transform.PassContext(config={"tirx.disable_vectorize": True}):
        lib = tvmfast.build(small.mod, small.params)
    assert len(compiled) == count
    check(lib, small)


@pytest.mark.parametrize("damage", [b"", b"garbage", None])
def test_damaged_code_is_made_again(small, compiled, cache, damage):
    tvmfast.build(small.mod, small.params)
    count = len(compiled)
    for file in cache.iterdir():
        file.write_bytes(file.read_bytes()[:200] if damage is None else damage)
    check(tvmfast.build(small.mod, small.params), small)
    assert len(compiled) == 2 * count
    check(tvmfast.build(small.mod, small.params), small)
    assert len(compiled) == 2 * count


@pytest.mark.parametrize("lacks", ["compiler", "cache"])
def test_without_a_compiler_or_a_cache_code_stays_in_memory(small, compiled, cache, monkeypatch, lacks):
    if lacks == "compiler":
        monkeypatch.setenv("PATH", "")
    else:
        monkeypatch.setenv("TVMNOTES_CACHE", f"{__file__}/none")
    check(tvmfast.build(small.mod, small.params), small)
    assert compiled and (not cache.exists() or not list(cache.iterdir()))


def full(*_args, **_options):
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("fails", ["mkdir", "write_bytes", "replace"])
def test_a_full_disk_is_warned_of_once(small, compiled, cache, monkeypatch, fails):
    monkeypatch.setattr(codegen.Path, fails, full)
    with pytest.warns(UserWarning, match="the kernel cache is not used, as its disk is full: .*No space left") as said:
        lib = tvmfast.build(small.mod, small.params)
    monkeypatch.undo()
    assert len(said) == 1 and compiled and (not cache.exists() or not list(cache.glob("*.o")))
    check(lib, small)


FULL = """
import os, pathlib, warnings
import torch, tvmfast
cache = pathlib.Path(os.environ["TVMNOTES_CACHE"])
(cache / "kernels").mkdir(mode=0o700)
try:
    with open(cache / "filled", "wb", 0) as file:
        while file.write(bytes(64)):
            pass
except OSError:
    pass
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    lib = tvmfast.build(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Softmax(1)).eval(), {"x": (2, 8)})
lib.save(pathlib.Path("net"))
print(lib(torch.ones(2, 8)).sum().round(), len([each for each in said if "its disk is full" in str(each.message)]))
"""


@pytest.mark.skipif(not shutil.which("unshare"), reason="no namespaces here")
def test_llvm_does_not_write_to_a_full_disk(tmp_path):
    """It would end the process."""
    disk = tmp_path / "disk"
    disk.mkdir()
    own = ["unshare", "--map-root-user", "--mount"]
    mounted = ["sh", "-c", 'mount -t tmpfs -o size=40k,mode=700 none "$0" && exec "$@"', str(disk)]
    if subprocess.run([*own, *mounted, "true"], capture_output=True).returncode:
        pytest.skip("no disk may be mounted here")
    code = [sys.executable, "-W", "ignore", "-c", FULL]
    env = {**os.environ, "TVMNOTES_CACHE": str(disk)}
    done = subprocess.run([*own, *mounted, *code], env=env, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["2.0", "1"]


def test_a_library_is_not_linked_on_a_full_disk(small, tmp_path, monkeypatch):
    lib = tvmfast.build(small.mod, small.params)
    monkeypatch.setattr(codegen.shutil, "disk_usage", lambda _: SimpleNamespace(free=1 << 20))
    with pytest.raises(OSError, match="No space left on device, to link a library"):
        lib.save(tmp_path / "net")
    assert not (tmp_path / "net").exists()


def test_the_cache_keeps_what_was_used_last(small, cache, monkeypatch):
    tvmfast.build(small.mod, small.params)
    used = {file: file.stat().st_size for file in cache.iterdir()}
    tvmfast.build(small.mod, small.params, opt_level=0)
    level_0 = set(cache.iterdir()) - set(used)
    for file in cache.iterdir():
        os.utime(file, (0, 0))  # none was used lately
    monkeypatch.setenv("TVMNOTES_KERNELS_MB", str((sum(used.values()) + 1) / 1e6))
    assert kernel_cache.status().startswith(f"{len(used) + len(level_0)} kernels, ")
    tvmfast.build(small.mod, small.params)  # uses the older ones again, and makes room
    assert level_0 and not any(file.exists() for file in level_0)
    assert all(file.exists() for file in used)
    assert kernel_cache.status().startswith(f"{len(used)} kernels")


def test_a_cache_of_no_size_keeps_nothing(small, cache, monkeypatch):
    monkeypatch.setenv("TVMNOTES_KERNELS_MB", "0")
    check(tvmfast.build(small.mod, small.params), small)
    assert not list(cache.iterdir())
    monkeypatch.setenv("TVMNOTES_KERNELS_MB", "some")
    assert kernel_cache.status().startswith("not used: TVMNOTES_KERNELS_MB")
    with pytest.raises(ValueError, match="TVMNOTES_KERNELS_MB: expected megabytes, such as 256, .*; got 'some'"):
        tvmfast.build(small.mod, small.params)


def test_several_processes_make_room_at_once(tmp_path, monkeypatch):
    """Each file that one is about to look at, another has removed."""
    monkeypatch.setenv("TVMNOTES_KERNELS_MB", "0")
    for number in range(3):
        (tmp_path / f"{number}.o").write_bytes(b"code")
    scandir = os.scandir

    def removed_meanwhile(folder):
        found = list(scandir(folder))
        for entry in found:
            os.remove(entry)
        return found

    monkeypatch.setattr(kernel_cache.os, "scandir", removed_meanwhile)
    kernel_cache.make_room(tmp_path)
    assert not os.listdir(tmp_path) and kernel_cache.used(tmp_path) == (0, 0)


# ---------------------------------------------------------------- who may write to the cache

SOMEBODY = 12345  # the number of a user, and of a group
as_root = pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root gives folders away")


def owned(folder, mode=0o755, user=-1, group=-1):
    """Give a folder another mode, and perhaps another owner."""
    os.chown(folder, user, group)
    folder.chmod(mode)


def test_a_cache_that_others_can_write_is_not_used(small, compiled, cache):
    tvmfast.build(small.mod, small.params)
    count = len(compiled)
    cache.chmod(0o777)
    with pytest.warns(UserWarning, match="cache is not used, as others could put code into it: .*chmod go-w"):
        lib = tvmfast.build(small.mod, small.params)
    assert len(compiled) == 2 * count
    check(lib, small)


@pytest.mark.parametrize(
    "way",
    ["mode", "mode above", *(pytest.param(way, marks=as_root) for way in ("group", "owner", "owner above"))],
)
def test_ways_in_which_others_could_write(cache, way):
    assert kernel_cache.status().startswith("0 kernels")
    folder = cache.parent if "above" in way else cache
    if "owner" in way:
        owned(folder, user=SOMEBODY, group=SOMEBODY)
    elif way == "group":
        owned(folder, 0o770, group=SOMEBODY)
    else:
        folder.chmod(0o777)
    wanted = f"belongs to another user (number {SOMEBODY})" if "owner" in way else "can be written by other users"
    assert kernel_cache.status() == f"not used: {folder} {wanted}"


def test_what_may_be_open_above_a_cache(tmp_path, monkeypatch, cache):
    folder = kernel_cache.folder()
    assert folder == cache and folder.stat().st_mode & 0o777 == 0o700
    assert kernel_cache.distrust(folder) is None
    tmp_path.chmod(0o1777)  # as /tmp
    assert kernel_cache.distrust(folder) is None
    tmp_path.chmod(0o777)
    assert kernel_cache.distrust(folder) == f"{tmp_path} can be written by other users"
    (tmp_path / "package").mkdir()  # a checkout beside the cache: whoever can move one can change the other
    monkeypatch.setattr(kernel_cache, "_PACKAGE", tmp_path / "package")
    assert kernel_cache.distrust(folder) is None


@as_root
def test_who_owns_the_package_may_write_to_the_cache(tmp_path, monkeypatch, cache):
    folder, package = kernel_cache.folder(), tmp_path / "package"
    package.mkdir()
    monkeypatch.setattr(kernel_cache, "_PACKAGE", package)
    for each in (cache, cache.parent, package):
        owned(each, user=SOMEBODY, group=SOMEBODY)
    assert kernel_cache.distrust(folder) is None
    owned(cache, 0o775)
    assert kernel_cache.distrust(folder) == f"{cache} can be written by other users"
    owned(package, 0o775)
    assert kernel_cache.distrust(folder) is None


def test_a_file_that_others_could_write_is_made_again(small, compiled, cache):
    tvmfast.build(small.mod, small.params)
    count = len(compiled)
    for file in cache.iterdir():
        file.chmod(0o666)
    check(tvmfast.build(small.mod, small.params), small)
    assert len(compiled) == 2 * count


# ---------------------------------------------------------------- threads, traces, source


def test_several_threads_build_one_network(small, cache):
    libs = []
    threads = [threading.Thread(target=lambda: libs.append(tvmfast.build(small.mod, small.params))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(1200)
    assert len(libs) == 4
    for lib in libs:
        check(lib, small)
    assert not [file for file in cache.iterdir() if file.suffix != ".o"]


def test_a_traced_build_compiles_every_kernel(small, compiled):
    tvmfast.build(small.mod, small.params)
    count = len(compiled)
    tvmfast.trace_build(small.mod, small.params)
    assert len(compiled) == 2 * count


def test_the_source_of_a_kernel(small, tmp_path):
    lib = tvmfast.build(small.mod, small.params)
    for kernel in lib.kernels.index:
        assert f"@{kernel}_compute_" in lib.source() or f"@__tvm_ffi_{kernel}(" in lib.source()
        assert f"@__tvm_ffi_{kernel}(" in lib.source(kernel)
    first, second, *_ = lib.kernels.index
    assert f"@__tvm_ffi_{second}(" not in lib.source(first)
    assert f"__tvm_ffi_{first}:" in lib.source(first, "asm")
    with pytest.raises(ValueError, match="unknown kernel 'none'; there are: "):
        lib.source("none")
    with pytest.raises(ValueError, match="has no source any more"):
        tvmfast.load(lib.save(tmp_path / "lib")).source()
