"""Debug messages of a build, by the standard library's logging."""

import logging

import pytest
from torch import nn
from tvm.s_tir import ScheduleError

import tvmfast
from tvmfast.compiler.schedule.rules import RULES, ScheduleRule


@pytest.fixture
def messages(caplog):
    """What the compiler has said so far."""
    caplog.set_level(logging.DEBUG, logger="tvmfast.compiler")
    return lambda: [record.getMessage() for record in caplog.records if record.name.startswith("tvmfast.compiler")]


def network(dims=1):
    return tvmfast.from_pytorch(nn.Sequential(nn.Linear(12, 20), nn.Softmax(-1)).eval(), {"x": (dims, 12)})


def test_a_build_says_which_rule_takes_a_kernel_and_why_others_do_not(messages):
    lib = tvmfast.build(*network())
    said = "\n".join(messages())
    assert "Dense(rows=1, depth=12, columns=20, dtype='float32'): no config in shipped records" in said
    (chosen,) = (line for line in said.splitlines() if "dense 12 to 20: default config of rule matmul; " in line)
    assert "; batch_matmul is for products of two activations" in chosen
    (name,) = (name for name in lib.kernels.index if "dense" in name)
    assert f"{name}: rule matmul takes it, with Matmul.Config(" in said


def test_a_rule_that_applies_to_workloads_says_to_which():
    for rule in RULES.values():
        assert bool(rule.serves) == (type(rule).applies is not ScheduleRule.applies), rule.name


def test_a_rule_that_does_not_fit_gives_its_reason(messages, monkeypatch):
    def refuse(sch, config):
        raise ScheduleError("the reason\nin two lines")

    monkeypatch.setattr(RULES["matmul"], "schedule", refuse)
    lib = tvmfast.build(*network())
    (name,) = (name for name in lib.kernels.index if "dense" in name)
    said = messages()
    assert any(f"{name}: rule matmul declines: the reason in two lines" == each for each in said)
    assert any(each.startswith(f"{name}: rule default takes it") for each in said)


def test_a_build_says_which_specializations_it_builds(messages):
    tvmfast.build(*network("batch"), sizes=[{"batch": 2}, {"batch": 2}])
    said = messages()
    assert "specialization {'batch': 2}: found above" in said
    assert any(each.startswith("specialization {'batch': 2}: built") for each in said)


def test_a_second_build_says_that_its_kernels_are_from_the_cache(messages):
    for _ in range(2):
        mod, params = network(7)
        before = len(messages())
        tvmfast.build(mod, params)
    last = messages()[before:]
    assert [each for each in last if each.endswith(": from the cache")]
    assert not [each for each in last if each.endswith(": compiled")]
