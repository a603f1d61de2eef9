"""UPSTREAM.md: its form, its places, how its programs are judged; in `make test-full` also what each of them prints."""

import platform
import re
import sys

import pytest
import tvm_upgrade
from tvm_upgrade import ENGINE, PAGE, Fault, printed, state

FAULTS = tvm_upgrade.faults()
FAULT = Fault("A fault", "", ("[0.…]", "SIGFPE"), ("[1]", "0"), "")


def test_the_page_is_whole():
    assert [fault.title.partition(".")[0] for fault in FAULTS] == [str(n + 1) for n in range(len(FAULTS))]
    assert len(FAULTS) > 15 and len(PAGE.read_text().splitlines()) <= 470


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.title)
def test_an_entry_has_a_program_and_names_places_that_exist(fault):
    compile(fault.program, fault.title, "exec")
    assert fault.faulty and not any(map(str.__eq__, fault.faulty, fault.right))
    names = re.findall("`([^`]+)`", fault.way_round)
    texts = [(ENGINE / "tvmfast" / name).read_text() for name in names if "/" in name]
    assert texts or fault.way_round == "none."
    functions = {name for name in names if "/" not in name}
    assert functions <= set(re.findall(r"\w+", " ".join(texts)))


@pytest.mark.parametrize(
    ("program", "found"),
    [
        ("print('[0.5]')\nimport os, signal\nos.kill(os.getpid(), signal.SIGFPE)", "still there"),
        ("print('[1]\\n\\n0')", "mended"),
        ("print('[1]\\nSIGFPE')", "mended in lines 1"),
        ("print('[0.5]\\n1')", "cannot tell: 1"),
        ("print('[0.5]')", "cannot tell: 1 lines where 2 were expected"),
        ("import sys\nprint('[1]')\nsys.exit('needs a GPU')", "cannot tell: needs a GPU"),
        ("import nothing_of_this_name", "cannot tell: ModuleNotFoundError: No module named 'nothing_of_this_name'"),
    ],
)
def test_what_is_said_of_a_program(program, found):
    assert state(FAULT, printed(program)) == found


def test_a_program_that_hangs_is_ended(monkeypatch):
    monkeypatch.setattr(tvm_upgrade, "SECONDS", 1)
    assert printed("import time\ntime.sleep(600)") == ["SIGKILL"]


@pytest.mark.full
@pytest.mark.skipif(sys.platform != "linux" or platform.machine() != "x86_64", reason="faults of Linux on x86-64")
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.title)
def test_a_fault_is_still_there(fault):
    found = state(fault, printed(fault.program))
    if re.match("cannot tell: (needs|ModuleNotFoundError)", found):
        pytest.skip(found)
    assert found == "still there"
