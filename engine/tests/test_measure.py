"""measure: who is called, how often and with what; the arithmetic of medians, ratios, intervals. Nothing is timed."""

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
    assert list(frame) == ["median (ms)", "minimum (ms)", "ratio to slow", "95 % interval", "calls"]
    assert list(frame.loc["slow"]) == pytest.approx([3, 1, 1, "", 5])
    assert list(frame.loc["fast"]) == pytest.approx([1.5, 1, 0.5, "too few rounds", 3])


def test_a_comparison_shows_itself():
    lines = str(TABLE).splitlines()
    assert repr(TABLE) == str(TABLE)
    assert lines[1].split() == ["slow", "3.00", "1.00", "1.00", "5"]
    assert lines[2].split() == ["fast", "1.50", "1.00", "0.50", "too", "few", "rounds", "3"]
    html = TABLE._repr_html_()
    assert "</table>" in html and "ratio to slow" in html and ">1.50<" in html and ">too few rounds<" in html


def of_rounds(**samples):
    """A comparison with one call in each round."""
    return Comparison((name, Timing(name, list(times), [*range(1, len(times) + 1)])) for name, times in samples.items())


def test_the_interval_holds_the_true_ratio():
    """In at least 90 of 100 runs, each of 20 rounds in which the machine's speed drifts."""
    rng = np.random.default_rng(0)
    held = 0
    for _ in range(100):
        speed = rng.lognormal(0, 0.1, 20)
        times, reference = speed * 0.9 * rng.lognormal(0, 0.03, 20), speed * rng.lognormal(0, 0.03, 20)
        low, high = measure.ratio_interval(times, reference)
        held += low <= 0.9 <= high
    assert held >= 90


def test_the_interval_of_paired_rounds_does_not_see_what_slows_both():
    speed = np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0])
    assert measure.ratio_interval(speed * 3, speed * 2) == pytest.approx((1.5, 1.5))


def test_the_same_samples_have_the_same_interval():
    rng = np.random.default_rng(0)
    times, reference = rng.lognormal(0, 0.1, (2, 12))
    assert measure.ratio_interval(times, reference) == measure.ratio_interval(times, reference)
    assert measure.ratio_interval(times, reference) != measure.ratio_interval(times, reference, seed=1)
    assert measure.ratio_interval([*times, 9, 9], reference) == measure.ratio_interval(times, reference)


def test_equal_functions_have_no_difference_and_others_have():
    rng = np.random.default_rng(0)
    noise = rng.lognormal(0, 0.05, (3, 20)) / 1e3
    table = of_rounds(first=noise[0], same=noise[1], twice=2 * noise[2])
    shown = table.frame()["95 % interval"]
    low, high = table.interval("same")
    assert low < 1 < high and shown["same"] == f"{low:.2f} to {high:.2f}: no difference"
    low, high = table.interval("twice")
    assert 1 < low < 2 < high and shown["twice"] == f"{low:.2f} to {high:.2f}"
    assert table.interval("first", to="twice")[1] < 1


def test_fewer_than_five_rounds_have_no_interval():
    assert measure.ratio_interval([1] * 4, [1] * 5) is None
    assert measure.ratio_interval([1] * 5, [2] * 5) == (0.5, 0.5)


def test_a_round_is_one_sample(clock):
    clock.tick = 0.03  # a call: two make the 50 ms of a round, and three are its least
    functions, _ = recorder()
    table = measure.compare(functions, calls=7)
    assert [t.rounds for t in table.values()] == [[3, 6, 7]] * 2
    timing = Timing("", [3, 1, 2, 9, 8], [3, 5])
    assert list(timing.samples) == [2, 8.5]
    assert timing.median == 5.25 and Timing("", [3, 1, 2, 9, 8]).median == 3


# ---------------------------------------------------------------- a busy machine


def proc(folder, ticks, waited):
    """Write what a system with two CPUs says: `ticks` of CPU 0 (user, idle, steal), and a thread's ns of waiting."""
    user, idle, steal = ticks
    (folder / "proc/self/task/7").mkdir(parents=True, exist_ok=True)
    (folder / "proc/self/task/7/schedstat").write_text(f"5 {waited} 1\n")
    (folder / "proc/stat").write_text(
        f"cpu  9 9 9 9 9 9 9 9 0 0\ncpu0 {user} 0 0 {idle} 0 0 0 {steal} 0 0\ncpu1 9999 0 0 0 0 0 0 0 0 0\nintr 5\n"
    )
    return measure._cpu_seconds(folder)


@pytest.fixture
def on_linux(monkeypatch):
    """This process runs on CPU 0, has one thread, and has used no time."""
    monkeypatch.setattr(measure.os, "sched_getaffinity", lambda pid: {0}, raising=False)
    monkeypatch.setattr(measure.os, "sysconf", lambda name: 100)
    monkeypatch.setattr(measure.os, "times", lambda: (0.0, 0.0, 0.0, 0.0, 0.0))
    monkeypatch.setattr(measure.machine, "threads", lambda: 1)


def test_others_took_what_they_ran_and_we_waited_for(on_linux, tmp_path):
    start = proc(tmp_path, (100, 100, 0), 0)
    assert start == (1.0, 0.0)
    assert measure._share_lost(start, proc(tmp_path, (180, 100, 0), 400_000_000), 1.0) == pytest.approx(0.4)
    assert measure._share_lost(start, proc(tmp_path, (100, 100, 30), 0), 1.0) == pytest.approx(0.3)  # stolen
    assert measure._share_lost(start, proc(tmp_path, (180, 100, 0), 0), 1.0) == 0  # they had a CPU that was idle
    assert measure._share_lost(start, proc(tmp_path, (100, 200, 0), 10**9), 1.0) == 0  # threads here in turns


def test_where_the_system_does_not_tell_nothing_is_said(on_linux, tmp_path):
    assert measure._cpu_seconds(tmp_path) is None
    assert proc(tmp_path, (0, 0, 0), 0) is None  # a container that hides its host
    assert measure._share_lost(None, (1.0, 1.0), 1.0) is None


def test_a_table_says_that_the_machine_was_busy(monkeypatch):
    readings = iter([(10.0, 1.0), (14.0, 3.0)])
    monkeypatch.setattr(measure, "_cpu_seconds", lambda: next(readings))
    monkeypatch.setattr(measure, "_share_lost", lambda before, after, elapsed: after[1] - before[1] - 1.75)
    table = measure.compare(recorder()[0], calls=1)
    said = "The machine is busy: for 25% of the time, threads waited for a CPU that other processes had."
    assert str(table).endswith("\n" + said) and said in table._repr_html_()
    for lost in (None, 0.0, 0.04):
        table.lost = lost
        assert "busy" not in str(table) and "<p>" not in table._repr_html_()


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
