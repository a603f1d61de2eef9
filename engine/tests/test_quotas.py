"""CPU quotas: the files that set them, and that no group is left behind, whatever ends."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tvmfast.profiling import quotas

ONE = {"1:cpuacct,cpu:/mine": "sys/fs/cgroup/cpu/mine", "9:memory:/other": ""}  # of version 1
TWO = {"0::/all/mine": "sys/fs/cgroup/all/mine"}
OWN = "cgroup.procs"


@pytest.fixture(autouse=True)
def with_files(monkeypatch):
    """The kernel removes a group with its files; here they have to be removed."""
    monkeypatch.setattr(quotas, "_REMOVE", quotas._REMOVE.replace("rmdir", "rm -r"))


def system(root, lines, shared=""):
    """A folder with /proc and /sys: this process is in the groups of `lines`, and `shared` hands on a controller."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text("".join(f"{line}\n" for line in lines))
    for folder in filter(None, lines.values()):
        (root / folder).mkdir(parents=True)
    for parent in (root / "sys/fs/cgroup", root / "sys/fs/cgroup/all"):
        if shared and parent.is_dir():
            listed = "cpu memory" if parent == root / shared else "memory"
            (parent / "cgroup.subtree_control").write_text(f"{listed}\n")
    return root


def groups(root):
    return [*root.rglob("tvmfast-*")]


def test_version_1(tmp_path):
    root, own = system(tmp_path, ONE), tmp_path / "sys/fs/cgroup/cpu/mine"
    with quotas.limited(0.5, root) as group:
        assert group.parent == own and groups(root) == [group]
        assert (group / "cpu.cfs_quota_us").read_text() == "50000"
        assert (group / "cpu.cfs_period_us").read_text() == "100000"
        assert (group / OWN).read_text() == str(os.getpid()) and not (own / OWN).exists()
    assert not groups(root) and (own / OWN).read_text() == str(os.getpid())


def test_version_1_in_a_container_that_sees_its_own_part_only(tmp_path):
    root = system(tmp_path, {"1:cpu:/docker/0123": "", "0::/": "sys/fs/cgroup/cpu"})
    with quotas.limited(1.25, root) as group:
        assert group.parent == root / "sys/fs/cgroup/cpu"
        assert (group / "cpu.cfs_quota_us").read_text() == "125000"
    assert not groups(root)


@pytest.mark.parametrize("shared", ["sys/fs/cgroup", "sys/fs/cgroup/all"])
def test_version_2_below_a_group_that_hands_on_its_controller(tmp_path, shared):
    root = system(tmp_path, TWO, shared)
    with quotas.limited(0.5, root) as group:
        assert group.parent == root / shared
        assert (group / "cpu.max").read_text() == "50000 100000"
        assert (group / OWN).read_text() == str(os.getpid())
    assert not groups(root) and (root / TWO["0::/all/mine"] / OWN).read_text() == str(os.getpid())


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
def test_the_group_is_removed_after_an_error(tmp_path, error):
    root = system(tmp_path, ONE)
    with pytest.raises(error), quotas.limited(0.5, root):
        assert groups(root)
        raise error
    assert not groups(root)


def test_the_group_is_removed_where_its_quota_is_not_taken(tmp_path, monkeypatch):
    root, write = system(tmp_path, ONE), Path.write_text

    def refuse(path, text):
        if path.name == "cpu.cfs_quota_us":
            raise PermissionError(13, "Permission denied")
        return write(path, text)

    monkeypatch.setattr(Path, "write_text", refuse)
    with pytest.raises(ValueError, match=r"no CPU quota can be set here \(.*mine: Permission denied\): run as root"):
        quotas.limited(0.5, root).__enter__()
    assert not groups(root)


@pytest.mark.parametrize("lines", [{}, {"0::/": "sys/fs/cgroup"}, {"3:memory:/": "sys/fs/cgroup/memory"}])
def test_where_there_is_no_group_with_a_quota_a_sentence_says_so(tmp_path, lines):
    root = system(tmp_path, lines)
    if not lines:
        (root / "proc/self/cgroup").unlink()  # as on macOS
    with pytest.raises(ValueError, match="no CPU quota can be set here .there is no cgroup with a CPU quota.: run as"):
        quotas.limited(0.5, root).__enter__()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_the_group_is_removed_after_a_kill(tmp_path, number):
    root = system(tmp_path, ONE)
    code = (
        "import sys; from tvmfast.profiling import quotas\n"
        "quotas._REMOVE = sys.argv[2]\n"
        "with quotas.limited(0.5, sys.argv[1]) as group:\n    print(group, flush=True); input()"
    )
    command = [sys.executable, "-c", code, str(root), quotas._REMOVE]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        made = Path(process.stdout.readline().strip())
        assert groups(root) == [made]
        process.send_signal(number)
        assert process.wait() == -number
    limit = time.monotonic() + 120
    while groups(root) and time.monotonic() < limit:
        time.sleep(0.01)
    assert not groups(root)


def test_a_process_that_was_forked_in_the_group_does_not_hold_up_its_end(tmp_path):
    root = system(tmp_path, ONE)
    code = (
        "import os, signal, sys; from tvmfast.profiling import quotas\n"
        "quotas._REMOVE = sys.argv[2]\n"
        "with quotas.limited(0.5, sys.argv[1]):\n    child = os.fork() or signal.pause()\n"
        "os.kill(child, signal.SIGKILL)"
    )
    command = [sys.executable, "-c", code, str(root), quotas._REMOVE]
    assert subprocess.run(command, timeout=120).returncode == 0 and not groups(root)


def test_the_kernel_counts_what_is_in_the_group():
    """Where a process may make one: it is another, whose threads alone are limited."""
    code = (
        "import os; from pathlib import Path; from tvmfast.profiling import quotas\n"
        "own = Path('/proc/self/cgroup').read_text()\n"
        "try:\n    limited = quotas.limited(0.5); group = limited.__enter__()\n"
        "except ValueError as error:\n    print(error); raise SystemExit\n"
        "inside = str(os.getpid()) in (group / 'cgroup.procs').read_text().split()\n"
        "there = group.name in Path('/proc/self/cgroup').read_text()\n"
        "limited.__exit__(None, None, None)\n"
        "print(inside, there, group.exists(), Path('/proc/self/cgroup').read_text() == own)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600)
    if done.stdout.startswith("no CPU quota"):
        pytest.skip(done.stdout.strip())
    assert done.stdout == "True True False True\n", done.stderr
