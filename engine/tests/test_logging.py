"""TVMFAST_LOG: nothing is shown without it, what it names with it, and one warning if it is not understood."""

import json
import re

import pytest
from fake_runner import AVX512, FakeRunner, task

import tvmfast

TALK = """
import sys
sys.stderr = sys.stdout
import logging, tvmfast
for name in ("compiler.build", "frontends.onnx", "core.machine"):
    log = logging.getLogger(f"tvmfast.{name}")
    for level in ("debug", "info", "warning"):
        getattr(log, level)("said")
"""
ALL = [f"{level} {name}" for name in ("compiler.build", "frontends.onnx", "core.machine") for level in ("D", "I", "W")]


@pytest.mark.parametrize(
    ("setting", "shown"),
    [
        (None, []),
        ("", []),
        ("debug", ALL),
        ("Warning", [each for each in ALL if each[0] == "W"]),
        ("tvmfast.compiler=debug, tvmfast.frontends.onnx=info", [*ALL[:3], *ALL[4:6], ALL[8]]),
        ("error,tvmfast.compiler.build=info", ALL[1:3]),
    ],
)
def test_what_the_variable_names_is_shown(python, setting, shown):
    lines = [line.split() for line in python(TALK, TVMFAST_LOG=setting).splitlines()]
    said = [f"{level[0]} {name[8:-1]}" for level, name, *words in lines if words == ["said"]]
    assert said == shown
    threads = [line for line in lines if line[1] == "tvmfast.core.compat:" and line[2].startswith("TVM_NUM_THREADS=")]
    assert len(lines) == len(said) + len(threads) and len(threads) == (setting == "debug")


@pytest.mark.parametrize(
    "setting",
    ["loud", "5", "tvmfast", "tvmfast.core", "tvmfast.core=", "tvmfast.none=debug", "tvm=debug", "info,tvm.core=debug"],
)
def test_a_value_that_is_not_understood_is_one_warning(python, setting):
    warned, *others = python(TALK, TVMFAST_LOG=setting).splitlines()
    assert not others
    assert "TVMFAST_LOG: expected debug, info, warning, error, or modules with one of these, such as" in warned
    assert f"got {setting.split(',')[-1]!r}; nothing is logged" in warned


BUILD = """
import sys
sys.stderr = sys.stdout
import torch, tvmfast
tvmfast.build(*tvmfast.from_pytorch(torch.nn.Linear(4, 4).eval(), {"x": (1, 4)})).save("net")
tvmfast.load("net")
"""


def test_a_build_and_a_load_say_what_they_use(python, tmp_path):
    said = python(BUILD, cwd=tmp_path, TVMFAST_LOG="debug")
    for line in (
        "core.machine: the target of this machine: .*llvm",
        "runtime.saved: net written",
        "runtime.saved: net read: .*opt level 3",
        r"runtime.pool: \d+ threads? for \d+ usable cores?",
        "runtime.pool: .*lib.so opened: its loops run on tvmfast's threads",
    ):
        assert re.search(f"^DEBUG tvmfast.{line}", said, re.M), line


def test_a_tuning_says_what_it_decides(tmp_path, caplog):
    target, tasks = json.loads(AVX512), [task("conv", target=AVX512)]
    with caplog.at_level("DEBUG", "tvmfast.tuning"):
        tvmfast.tune(None, {}, target, "random", 20, records=tmp_path / "a", runner=FakeRunner(), tasks=tasks)
    said = "\n".join(caplog.messages)
    for line in (
        "a: 0 records of this target",
        "random: 1 tasks, the model knows 0 others",
        "conv2d 3x3.*, {'family': 'winograd', 'm': 4.*}: ",
        "next: conv2d 3x3.* which may save .* ms a run",
        "conv2d 3x3.*: measured again are ",
    ):
        assert re.search(line, said), line
