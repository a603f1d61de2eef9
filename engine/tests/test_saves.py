"""Saves and builds that are killed: whoever loads finds the old network or the new one, and nothing stays behind."""

import contextlib
import os
import pickle
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from copy import deepcopy
from pathlib import Path

import forked
import numpy as np
import onnx
import pytest
import torch
from agreement import close
from testing import SEED, STORM

import tvmfast
from tvmfast.core import folders, renamed
from tvmfast.runtime import saved

HERE = Path(__file__).parent  # where a process of its own finds `testing`
KILLS = 20 * STORM
V = np.arange(3, dtype="float32")


@pytest.fixture(scope="module")
def homes(compile_function, tmp_path_factory):
    """Two saved networks that differ in what they compute, x + 1 and x * 10. Not to be changed."""
    home = tmp_path_factory.mktemp("two")
    functions = {"plus": lambda x: x + 1, "times": lambda x: x * 10}
    return [compile_function(function, {"x": (3,)}).save(home / name) for name, function in functions.items()]


@pytest.fixture
def two(homes):
    return [tvmfast.load(home) for home in homes]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)


def code_of(work) -> int:
    """How a child of this process ends that does `work`."""
    child = os.fork()
    if not child:
        with contextlib.suppress(BaseException):
            work()
        os._exit(3)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def killed_after(owner, name: str, work) -> None:
    """A child of this process does `work`, and is killed after its first call of a function."""
    function = getattr(owner, name)

    def killing():
        setattr(owner, name, lambda *args: die(function(*args)))
        work()

    assert code_of(killing) == -signal.SIGKILL


# ---------------------------------------------------------------- kills


@pytest.mark.alone
@pytest.mark.parametrize("name", ["net", "net.zip"])
def test_a_save_that_is_killed_leaves_one_of_both_networks_and_its_litter_goes_with_the_next(two, tmp_path, name):
    (plus, times), path = two, tmp_path / name
    for owner, step, wanted in (
        (times, "_fill", V + 1),
        (folders, "sync", V + 1),
        (folders, "_exchange" if name == "net" else "put", V * 10),
        (folders, "put", V * 10),
    ):
        plus.save(path)
        assert names(tmp_path) == [name]
        killed_after(owner, step, lambda: times.save(path))
        assert len(names(tmp_path)) == 2
        np.testing.assert_array_equal(tvmfast.load(path)(V), wanted)


@pytest.mark.alone
def test_where_folders_cannot_be_exchanged_a_save_that_is_killed_loses_nothing_either(two, tmp_path, monkeypatch):
    (plus, times), path = two, tmp_path / "net"
    monkeypatch.setattr(folders, "_renameat2", None)
    for each, wanted in ((plus, V + 1), (times, V * 10)):
        each.save(path)
        np.testing.assert_array_equal(tvmfast.load(path)(V), wanted)
    killed_after(Path, "rename", lambda: plus.save(path))
    assert not path.exists()
    np.testing.assert_array_equal(tvmfast.load(path)(V), V * 10)
    monkeypatch.setattr(plus, "_fill", lambda folder: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        plus.save(path)
    assert names(tmp_path) == ["net"]
    np.testing.assert_array_equal(tvmfast.load(path)(V), V * 10)


@pytest.mark.alone
@pytest.mark.full
@pytest.mark.storm
@pytest.mark.parametrize("name", ["net", "net.zip"])
def test_saves_killed_at_random_while_another_process_loads(two, tmp_path, name):
    moments, found = random.Random(SEED), []
    path = two[0].save(tmp_path / name)

    def save():
        while True:
            for each in two:
                each.save(path)

    for _ in range(KILLS):
        child = os.fork()
        if not child:
            with contextlib.suppress(BaseException):
                save()
            os._exit(3)
        end = time.monotonic() + moments.uniform(0, 0.1)
        while True:
            over = time.monotonic() > end
            if over:
                os.kill(child, signal.SIGKILL)
                assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
            found.append([[1, 2, 3], [0, 10, 20]].index(tvmfast.load(path)(V).tolist()))
            if over:
                break
    two[0].save(path)
    assert names(tmp_path) == [name]
    print(f"{KILLS} kills, {len(found)} loads, of which {sum(found)} found the second network")


# ---------------------------------------------------------------- who saves and loads meanwhile


def test_a_save_leaves_others_that_run_alone(two, tmp_path):
    (plus, times), fill = two, two[1]._fill

    def fill_while_another_saves(folder):
        fill(folder)
        for each in renamed.NAMES:
            (tmp_path / f".net-{each}-abcd1234" / "new").mkdir(parents=True)  # what killed ones have left
        plus.save(tmp_path / "net")
        assert names(tmp_path) == [folder.parent.name, "net"]
        np.testing.assert_array_equal(tvmfast.load(tmp_path / "net")(V), V + 1)

    times._fill = fill_while_another_saves
    times.save(tmp_path / "net")
    np.testing.assert_array_equal(tvmfast.load(tmp_path / "net")(V), V * 10)
    assert names(tmp_path) == ["net"]


def test_what_a_killed_save_of_an_older_version_has_moved_aside_is_found(homes, tmp_path):
    shutil.copytree(homes[0], tmp_path / ".net-tvmnotes-abcd1234" / "old")
    np.testing.assert_array_equal(tvmfast.load(tmp_path / "net")(V), V + 1)


@pytest.mark.parametrize("name", ["net", "net.zip"])
@pytest.mark.parametrize("step", ["_read_manifest", "_check"])
def test_who_loads_while_another_saves_gets_the_new_network(two, tmp_path, monkeypatch, name, step):
    (plus, times), path = two, tmp_path / name
    function = getattr(saved, step)
    plus.save(path)
    saves = iter([times.save])

    def replaced_meanwhile(*args):
        found = function(*args)
        for save in saves:
            save(path)
        return found

    monkeypatch.setattr(saved, step, replaced_meanwhile)
    np.testing.assert_array_equal(tvmfast.load(path)(V), V * 10)


@pytest.mark.parametrize("name", ["net", "net.zip"])
def test_what_is_saved_is_on_the_disk_before_it_has_its_name(two, tmp_path, monkeypatch, name):
    synced, sync = set(), os.fsync
    put, named = folders.put, []

    def syncing(descriptor):
        synced.add(os.fstat(descriptor).st_ino)
        sync(descriptor)

    def putting(new, path):
        assert {part.stat().st_ino for part in (new, *new.glob("*"))} <= synced
        named.append(path)
        put(new, path)

    monkeypatch.setattr(os, "fsync", syncing)
    monkeypatch.setattr(folders, "put", putting)
    two[0].save(tmp_path / name)
    assert named == [tmp_path / name] and tmp_path.stat().st_ino in synced


class OfNothing(torch.nn.Module):
    """Weights without elements: two rows and three columns, of which there are none."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(0, 3))
        self.register_buffer("rows", torch.zeros(2, 0, dtype=torch.int64))
        self.linear = torch.nn.Linear(3, 3)

    def forward(self, x):
        return torch.cat([self.linear(x), self.weight]), self.rows, x @ self.weight.T


def graph_of_nothing() -> onnx.ModelProto:
    model = """<ir_version: 8, opset_import: ["" : 17]> net (float[2, 3] x) => (float[2, 3] y, float[0, 3] z)
        <float[3] one = {1, 1, 1}, float[0, 3] w = {}> {
        joined = Concat<axis = 0>(x, w)
        y = Add(joined, one)
        z = Identity(w) }"""
    return onnx.parser.parse_model(model)


@pytest.mark.parametrize("level", [0, 3])
@pytest.mark.parametrize("kind", ["torch", "onnx"])
def test_weights_without_elements_are_saved(tmp_path, kind, level):
    net, x = OfNothing().eval(), np.float32([[1, 2, 3], [4, 5, 6]])
    model = tvmfast.from_onnx(graph_of_nothing()) if kind == "onnx" else tvmfast.from_pytorch(net, {"x": x})
    lib = tvmfast.build(*model, opt_level=level)
    before, after = lib(x), tvmfast.load(lib.save(tmp_path / "net"))(x)
    if kind == "onnx":
        wanted = [x + 1, np.zeros((0, 3), "float32")]
    else:
        with torch.no_grad():
            wanted = [each.numpy() for each in net(torch.tensor(x))]
    for got, again, each in zip(before, after, wanted, strict=True):
        assert got.dtype == again.dtype == each.dtype and got.shape == again.shape
        np.testing.assert_array_equal(got, again)
        np.testing.assert_allclose(got, each, rtol=1e-6)


def test_copies_and_pickles_are_networks_of_their_own(two, lib, small):
    for copied in (deepcopy(lib), pickle.loads(pickle.dumps(deepcopy(lib)))):
        np.testing.assert_array_equal(copied(small.x), lib(small.x))
        assert copied.inputs == lib.inputs and copied.kernels.equals(lib.kernels)


# ---------------------------------------------------------------- builds

BUILD = """
import os, signal, sys, tempfile
import testing
import tvmfast
from tvmfast.compiler import codegen
from tvmfast.profiling import networks
tempfile.tempdir = sys.argv[1]
mod, params = tvmfast.from_pytorch(networks.seeded(testing.SmallNet, 8), {"image": (1, 3, 8, 8)})
export = codegen.Executable.export_library
def killed(*args, **options):
    export(*args, **options)
    os.kill(os.getpid(), signal.SIGKILL)
codegen.Executable.export_library = killed
tvmfast.build(mod, params)
"""


@pytest.mark.alone
def test_what_a_killed_build_has_left_goes_with_the_next(small, tmp_path, monkeypatch):
    monkeypatch.setenv("TVMNOTES_CACHE", str(tmp_path / "cache"))
    (tmp_path / "temporary").mkdir()
    done = forked.run("-c", BUILD, tmp_path / "temporary", cwd=HERE)
    assert done.returncode == -signal.SIGKILL, done.stderr
    (left,) = (tmp_path / "temporary").iterdir()
    assert (left / "lib.so").exists()
    (tmp_path / "cache" / "kernels" / "abc-999999999-1.part").touch()  # as a kill while an object is written leaves it
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    lib = tvmfast.build(small.mod, small.params)
    close(lib(small.x), small.exact)
    assert names(tmp_path / "temporary") == []
    assert all(name.endswith(".o") for name in names(tmp_path / "cache" / "kernels"))


KILLED_BUILDS = """
import os, random, signal, sys, time
import testing, psutil
import numpy as np, torch
from agreement import close, reference
import tvmfast
from tvmfast.profiling import networks
net = networks.seeded(testing.SmallNet, 8)
mod, params = tvmfast.from_pytorch(net, {"image": (1, 3, 8, 8)})
tvmfast.build(mod, params, opt_level=0)  # everything is imported
home, kills, moments = sys.argv[1], int(sys.argv[2]), random.Random(int(sys.argv[3]))

def others():
    found = []
    for process in psutil.process_iter():
        try:
            found += [process] if process.pid != os.getpid() and process.environ().get("TMPDIR") == home else []
        except psutil.Error:
            pass
    return found

for _ in range(kills):
    child = os.fork()
    if not child:
        while True:
            tvmfast.build(mod, params).save(home + "/net")
    time.sleep(moments.uniform(0, 1))
    os.kill(child, signal.SIGKILL)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), *psutil.wait_procs(others(), 120)[1])
lib = tvmfast.build(mod, params)
lib.save(home + "/net")
x = torch.randn(1, 3, 8, 8)
for each in (lib, tvmfast.load(home + "/net")):
    close(each(x), reference(net, x))
"""


@pytest.mark.alone
@pytest.mark.full
@pytest.mark.storm
def test_builds_killed_at_random_leave_nothing(tmp_path):
    env = {**os.environ, "TMPDIR": str(tmp_path), "TVMNOTES_CACHE": str(tmp_path / "cache")}
    command = [sys.executable, "-c", KILLED_BUILDS, str(tmp_path), str(KILLS), str(SEED)]
    done = subprocess.run(command, cwd=HERE, env=env, capture_output=True, text=True, timeout=1200 + 60 * KILLS)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [str(-signal.SIGKILL)] * KILLS, "a linker lived on"
    assert names(tmp_path) == ["cache", "net"]
    assert [name for name in names(tmp_path / "cache" / "kernels") if not name.endswith(".o")] == []
