"""measure: who is called, how often and with what; the arithmetic of medians, spread and ratios. Nothing is timed."""

import gc
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tvmfast.profiling import measure
from tvmfast.profiling.measure import Comparison, Timing


def recorder(names="ab"):
    """Functions by name that write their name to one list, and the list."""
    calls = []
    return {name: lambda *inputs, name=name: calls.append(name) for name in names}, calls


class Clock:
    """It goes on by `tick` seconds with each look at it, and by what a test adds to `now`."""

    now, tick = 0, 1e-3

    def perf_counter(self):
        self.now += self.tick
        return self.now


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(measure, "clock", clock)
    return clock


# ---------------------------------------------------------------- who is called


def test_candidates_take_turns():
    functions, calls = recorder("abc")
    table = measure.compare(functions, calls=3)
    assert calls == ["a"] * 4 + ["b"] * 4 + ["c"] * 4
    assert [len(t.seconds) for t in table.values()] == [3, 3, 3]


def test_by_time_each_has_its_turns_with_a_warm_up_in_each(monkeypatch):
    monkeypatch.setattr(measure, "_TURN_SECONDS", 0)
    functions, calls = recorder()
    table = measure.compare(functions, seconds=1e-9)
    timed = measure._TURN_CALLS
    assert calls == (["a"] * (1 + timed) + ["b"] * (1 + timed)) * measure._TURNS
    assert [len(t.seconds) for t in table.values()] == [timed * measure._TURNS] * 2


@pytest.fixture
def turns(clock, monkeypatch):
    """Take turns of a function whose calls each last a second by the clock; gives its calls and the times."""
    clock.tick, times = 1, []
    calls = []

    def turns(count, seconds, limit):
        monkeypatch.setattr(measure, "_TURN_SECONDS", seconds)
        monkeypatch.setattr(measure, "_TURN_LIMIT", limit)
        for _ in range(count):
            measure.timed_round(lambda: calls.append(1), times, None)
        return len(calls), times

    return turns


def test_a_turn_lasts_while_its_time_does(turns):
    # The clock is read as a turn begins, then before and after each call: five calls take 10 seconds.
    assert turns(1, seconds=9, limit=100) == (6, [1] * 5)


def test_slow_calls_have_short_turns_and_one_warm_up(turns):
    assert turns(3, seconds=1, limit=2) == (4, [1] * 3)


@pytest.mark.parametrize("calls", [1, 2, 3, 10, 4321])
def test_an_exact_number_of_calls(calls):
    functions, _ = recorder()
    assert [len(t.seconds) for t in measure.compare(functions, calls=calls).values()] == [calls, calls]


def test_time_is_compare_for_one():
    seen = []
    timing = measure.time(lambda *inputs: seen.append(inputs), 1, "two", name="it", calls=5)
    assert (timing.name, len(timing.seconds)) == ("it", 5)
    assert len(seen) > 5 and set(seen) == {(1, "two")}
    assert all(s >= 0 for s in timing.seconds)


def test_garbage_is_not_collected_meanwhile():
    states = []
    measure.time(lambda: states.append(gc.isenabled()), calls=1)
    assert not any(states) and gc.isenabled()

    def fail():
        raise KeyError("in the candidate")

    with pytest.raises(KeyError, match="in the candidate"):
        measure.time(fail)
    assert gc.isenabled()
    gc.disable()
    measure.time(int, calls=1)
    assert not gc.isenabled()
    gc.enable()


# ---------------------------------------------------------------- with what


class Net(torch.nn.Module):
    def forward(self, *inputs):
        self.seen = [(type(x), x.dtype, tuple(x.shape), torch.is_inference_mode_enabled()) for x in inputs]
        return inputs[0]


def test_a_module_gets_tensors_in_inference_mode():
    net = Net()
    inputs = np.zeros((2, 3), "float32"), torch.zeros(4), np.arange(12).reshape(3, 4).T
    measure.compare({"net": net}, *inputs, calls=1)
    assert net.seen == [
        (torch.Tensor, torch.float32, (2, 3), True),
        (torch.Tensor, torch.float32, (4,), True),
        (torch.Tensor, torch.int64, (4, 3), True),
    ]
    assert not torch.is_inference_mode_enabled()


@pytest.mark.filterwarnings("ignore:`torch.jit")
def test_a_traced_module_is_a_module():
    traced = torch.jit.trace(torch.nn.Linear(3, 2), torch.zeros(1, 3))
    assert len(measure.time(traced, np.zeros((1, 3), "float32"), calls=2).seconds) == 2


def test_a_network_on_a_gpu_finds_its_inputs_there_and_is_waited_for():
    said = []

    class OnGPU:
        device = SimpleNamespace(sync=lambda: said.append("wait"))

        def to_device(self, inputs):
            said.append("place")
            return [f"{x} there" for x in inputs]

        def run(self, values):
            said.append(values)

        __call__ = run

    measure.compare({"gpu": OnGPU()}, "x", calls=2)
    assert said == ["place"] + [["x there"], "wait"] * 3  # one call warms up


def test_a_function_gets_the_inputs_as_they_are():
    x, seen = np.zeros(3), []
    measure.compare({"function": seen.append}, x, calls=1)
    assert all(y is x for y in seen)


# ---------------------------------------------------------------- what comes out

TABLE = Comparison(
    slow=Timing("slow", [0.004, 0.002, 0.003, 0.001, 0.010]), fast=Timing("fast", [0.001, 0.0015, 0.002])
)


def test_timing_knows_its_spread():
    timing = TABLE["slow"]
    assert timing.median == 0.003
    assert timing.mean == pytest.approx(0.004)
    assert timing.minimum == 0.001
    assert timing.iqr == pytest.approx(0.002)
    assert timing.std == pytest.approx(np.std(timing.seconds))
    assert (
        str(timing) == repr(timing) == ("slow: median 3.00 ms, interquartile range 2.00 ms, minimum 1.00 ms, 5 calls")
    )


def test_a_comparison_is_a_table_of_ratios_to_the_first():
    frame = TABLE.frame()
    assert list(frame.index) == ["slow", "fast"]
    assert frame.loc["slow"].to_dict() == pytest.approx(
        {"median (ms)": 3, "iqr (ms)": 2, "minimum (ms)": 1, "ratio to slow": 1, "calls": 5}
    )
    assert frame.loc["fast"].to_dict() == pytest.approx(
        {"median (ms)": 1.5, "iqr (ms)": 0.5, "minimum (ms)": 1, "ratio to slow": 0.5, "calls": 3}
    )


def test_a_comparison_shows_itself():
    lines = str(TABLE).splitlines()
    assert repr(TABLE) == str(TABLE)
    assert lines[1].split() == ["slow", "3.00", "2.00", "1.00", "1.00", "5"]
    assert lines[2].split() == ["fast", "1.50", "0.50", "1.00", "0.50", "3"]
    html = TABLE._repr_html_()
    assert "</table>" in html and "ratio to slow" in html and ">1.50<" in html


# ---------------------------------------------------------------- at the door


def test_errors():
    with pytest.raises(ValueError, match="at least one name with its function, got none"):
        measure.compare({})
    with pytest.raises(TypeError, match="candidate 'x': expected a function.*got int"):
        measure.compare({"x": 3})
    functions, calls = recorder()
    for wrong in ({"calls": 0}, {"calls": -1}, {"seconds": 0}, {"seconds": -1.0}):
        with pytest.raises(ValueError, match="expected seconds above 0, and calls of 1 or more"):
            measure.compare(functions, **wrong)
    assert calls == []


def test_calls_are_as_many_for_the_slow_as_for_the_fast(clock):
    def slow():
        clock.now += 0.3

    table = measure.compare({"fast": lambda: None, "slow": slow}, calls=4)
    assert [len(t.seconds) for t in table.values()] == [4, 4]
