"""A runner that measures nothing and answers at once, for the tests of what is around it; and tasks to ask it about.

Its machine is not this one, so that a tuning's finals ask it too, and nothing is compiled.
"""

import contextlib
import sys

import cloudpickle

from tvmfast.compiler.build import resolve_target
from tvmfast.compiler.schedule.workloads.conv2d import Convolution
from tvmfast.compiler.schedule.workloads.dense import Dense
from tvmfast.core import machine
from tvmfast.tuning import Task, Trial

TARGET = str(machine.host_target())
AVX512 = str(resolve_target({"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "skylake-avx512"}))

WORKLOADS = {
    "stem": Convolution((1, 3, 32, 32), (16, 3, 3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 1, False),
    "conv": Convolution((1, 32, 28, 28), (64, 32, 3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 1, True),
    "strided": Convolution((1, 32, 28, 28), (64, 32, 3, 3), (2, 2), (1, 1, 1, 1), (1, 1), 1, True),
    "pointwise": Convolution((1, 64, 14, 14), (128, 64, 1, 1), (1, 1), (0, 0, 0, 0), (1, 1), 1, True),
    "depthwise": Convolution((1, 64, 14, 14), (64, 1, 3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 64, True),
    "dense": Dense(1, 128, 100),
}


def task(name: str, count: int = 1, target: str = TARGET) -> Task:
    return Task(WORKLOADS[name], count, target)


def tasks(target: str = TARGET) -> list[Task]:
    return [task(name, target=target) for name in WORKLOADS]


def seconds_of(config: dict) -> float:
    """What a call takes with a config: the same each time, the less the nearer its values are to some."""
    ideal = {"tile_ow": 7, "tile_oc": 2, "tile_m": 7, "tile_n": 2, "block_m": 4, "tile_oh": 2, "m": 4, "block_oh": 2}
    away = sum(abs(config.get(name, 0) - value) for name, value in ideal.items())
    return 1e-4 * (1 + away / 20 + 0.1 * (config.get("loop_order") == "channels"))


class AsItIs:
    """What a planted workload has in common with others: its kernel reads and makes its arrays as they are."""

    dtype, dtypes = "float32", ("float32",) * 3

    def packed_dtype(self, config):
        return "float32"

    def packed_input_shape(self, lanes):
        return self.data

    def packed_shape(self, config, lanes):
        return self.weight

    def output_shape(self, config, lanes):
        return self.data

    def pack_input(self, data, lanes):
        return data

    def pack(self, weight, config, lanes):
        return weight

    def unpack_output(self, output, lanes):
        return output


@contextlib.contextmanager
def known_to_workers(name: str):
    """Within it, worker processes are sent the classes of a test file, which they cannot import, and of this one."""
    modules = [sys.modules[name], sys.modules[__name__]]
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    yield
    for module in modules:
        cloudpickle.unregister_pickle_by_value(module)


class FakeRunner:
    """Answers with `seconds(config)`; where that is a sentence, the candidate has failed with it."""

    machine = {"rpc": "fake"}  # noqa: RUF012

    def __init__(self, seconds=seconds_of):
        self.seconds, self.asked = seconds, []

    def measure(self, candidates):
        self.asked.append(candidates)
        answers = [self.seconds(candidate.config) for candidate in candidates]
        return [Trial((), answer) if isinstance(answer, str) else Trial((answer,) * 3) for answer in answers]
