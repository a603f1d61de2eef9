"""What all tests share, the course's as well: a pytest plugin, which each conftest.py loads.

No network, caches and a seed of their own, a small network with its results from PyTorch. `pytest --file-times` ends
with a table of what each file took, as `make test` does. Each run names the tests whose errors use more than a third of
their tolerance, `pytest --margins` all of them. TESTS_LIMIT builds for less than this CPU has.
"""

import functools
import gc
import importlib.util
import json
import math
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import agreement
import forked
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings
from torch import nn

QUICK = "TVMNOTES_QUICK" in os.environ  # `make test` runs, not `make test-full`
STORM = int(os.environ.get("TESTS_STORM", 1))  # how many times as often `make storms` kills and damages
# The same numbers each time in `make test`, new ones else; processes that this one starts have the same seed.
SEED = int(os.environ.setdefault("TESTS_SEED", "0" if QUICK else str(random.SystemRandom().randrange(2**31))))
settings.register_profile(
    "tests", derandomize=QUICK, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("tests")


def pytest_configure(config):
    for marker in (
        "alone: needs the machine for itself; runs after the rest, in one process, and once more where it fails",
        "full: not in make test",
        "storm: kills or damages at random, more often in make storms",
    ):
        config.addinivalue_line("markers", marker)


def pytest_report_header():
    return f"random numbers: TESTS_SEED={SEED} repeats them"


def pytest_sessionstart(session):
    """No test fetches anything, or finds what an earlier run or the user left in a cache.

    The processes of one run share what they compile; quick runs share it with later ones, in the folder .cache of the
    checkout, where each kernel's machine code stands under a hash of all that it depends on. Processes that tests start
    get Ctrl-C, also where a shell has started the tests in the background, which leaves them deaf to it.
    """
    run = session.config._tmp_path_factory.getbasetemp()
    torch_home = run / "torch"
    run = run.parent if "PYTEST_XDIST_WORKER" in os.environ else run
    os.environ.update(TVMNOTES_OFFLINE="1", TVMNOTES_CACHE=str(run / "cache"), TORCH_HOME=str(torch_home))
    proxies = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
    colors = ("GITHUB_ACTIONS", "FORCE_COLOR", "CLICOLOR_FORCE", "PY_COLORS", "PYTHON_COLORS")
    set_here = ("TVMFAST_OFFLINE", "TVMFAST_CACHE", "COLUMNS", "TERMINAL_WIDTH")
    for name in (*proxies, *map(str.upper, proxies), *colors, *set_here):
        os.environ.pop(name, None)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a planted crash would write hundreds of megabytes
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if "PYTEST_XDIST_WORKER" not in os.environ and QUICK and _has_pidfds():
        kernels = session.config.rootpath / ".cache" / "kernels"
        kernels.mkdir(parents=True, exist_ok=True)
        (run / "cache").mkdir()
        (run / "cache" / "kernels").symlink_to(kernels)
        _start_fork_server(session)
    if "TESTS_LIMIT" in os.environ:
        _limit_target(os.environ["TESTS_LIMIT"])
    if forked.SOCKET in os.environ:
        forked.fork_workers()


# Instruction sets that TESTS_LIMIT takes from the target of this machine, in the processes that run tests.
_LIMITS = {"avx2": "avx512|avxvnni|amx", "avx512-no-vnni": "avx512vnni|avx512bf16|avx512fp16|avxvnni|amx"}


# Of tests that ask what the CPU has, or have another process build for it.
unlimited = pytest.mark.skipif("TESTS_LIMIT" in os.environ, reason="TESTS_LIMIT holds in the processes of tests alone")


def _limit_target(limit: str) -> None:
    from tvmfast.core import machine

    if limit not in _LIMITS:
        raise pytest.UsageError(f"TESTS_LIMIT: expected one of {', '.join(_LIMITS)}; got {limit!r}")
    sets = tuple(isa for isa in machine.instruction_sets() if not re.match(_LIMITS[limit], isa))
    if sets == machine.instruction_sets():
        pytest.exit(f"TESTS_LIMIT={limit} takes nothing from this CPU", returncode=0)
    machine.instruction_sets = functools.cache(lambda: sets)


def _has_pidfds() -> bool:
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError):  # another system, or a container that forbids them
        return False
    return True


def _start_fork_server(session) -> None:
    """Processes of the tests are forks from here on."""
    folder = Path(tempfile.mkdtemp(prefix="tvmfast-tests-"))  # a short path, as a socket's must be
    server = forked.start(str(folder / "socket"))

    def end():
        server.stdin.close()
        server.wait()
        shutil.rmtree(folder)

    session.config.add_cleanup(end)


# What takes longest starts first, lest one process be left with it at the end while the others have no more to do.
LONGEST = [
    Path(__file__).parent / f"test_{name}.py"
    for name in ("networks", "tuning_faults", "gluon_zoo", "classic_scripts", "rpc", "tuning", "import_mxnet",
                 "classic_ops", "metaschedule", "schedules")
]  # fmt: skip


# Of what is imported and computed, not of machine code. `make test` spares their kernels LLVM's optimizer and its slow
# selection of instructions, most of a build's time. `make test-full` does not, nor do runs that show margins.
UNOPTIMIZED = {
    Path(__file__).parent / f"test_{name}.py"
    for name in (
        "attention", "bounds_check", "classic_expressions", "classic_ops", "classic_passes", "classic_qnn",
        "classic_vm", "combine_parallel", "conv_transpose", "cuda_nms", "deploy", "diverge", "dynamic_axes",
        "dynamic_dims", "dynamic_pads", "dynamic_recurrent", "dynamic_reshapes", "dynamic_splits", "fold", "frontends",
        "gluon", "gpu", "import_mxnet", "import_onnx", "import_pytorch", "import_pytorch_quantized", "logging",
        "mxnet_checkpoints", "mxnet_detection", "mxnet_lengths", "mxnet_linalg", "mxnet_numpy", "onnx_control_flow",
        "onnx_fused", "onnx_open_sizes", "onnx_operators", "onnx_quantized", "onnx_suite", "out_of_bounds",
        "pytorch_added_operators", "pytorch_edges", "pytorch_integers", "pytorch_quantized", "pytorch_types",
        "quantization", "records", "recurrent", "resize", "runtime", "shape_variants", "special_numbers",
        "specializations", "state", "torch_compile", "torch_suite", "tracing", "transformers", "windows",
    )
}  # fmt: skip
_llvm = {}  # options that kernels are compiled with: those of the test that runs


def _compile_with_options() -> None:
    """Have `tvmfast` compile kernels with the options in `_llvm`, and keep them in the cache apart from others."""
    import tvm

    from tvmfast.compiler import codegen
    from tvmfast.core import machine

    compile_kernels, key = codegen.compile_kernels, codegen._key

    def with_options(target):
        return tvm.target.Target(json.loads(machine.target_json(target)) | _llvm) if _llvm else target

    def compile_with_options(kernels, target, runs_here):
        return compile_kernels(kernels, with_options(target), runs_here)

    codegen.compile_kernels = compile_with_options
    codegen._key = lambda target, text: key(with_options(target), text)


def leave_out(config, items, out) -> None:
    """Deselect some of the items that were collected."""
    out = set(out)
    config.hook.pytest_deselected(items=[item for item in items if item in out])
    items[:] = [item for item in items if item not in out]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Leave out what is for `make test-full` alone, and order the rest: `LONGEST`, notebooks, other tests."""
    if QUICK:
        leave_out(config, items, [item for item in items if item.get_closest_marker("full")])
    for item in items:
        if isinstance(item, pytest.Function) and item.get_closest_marker("alone"):
            item.add_marker(pytest.mark.flaky(reruns=1))
    order = {path: number for number, path in enumerate(LONGEST)}
    items.sort(key=lambda item: order.get(item.path, len(order) + (item.path.suffix == ".py")))


def sampled(cases, sample) -> list:
    """The parameters of a test of which `make test` runs those in `sample`, and `make test-full` all."""
    return [case if case in sample else pytest.param(case, marks=pytest.mark.full) for case in cases]


def by_level(cases, low) -> list:
    """Parameters of a test, (case, opt level): `make test` runs each case at level 3, and those in `low` at level 0."""
    return [
        pytest.param(case, level, marks=() if level or case in low else pytest.mark.full)
        for case in cases
        for level in (0, 3)
    ]


def pytest_collection_finish(session):
    """What is imported by now stays: the garbage collector need not look through all of it again and again."""
    gc.freeze()
    if QUICK:
        _compile_with_options()


# ---------------------------------------------------------------- tests that failed once

_again = []  # of those that are `alone`, which alone have a second try


def pytest_runtest_logreport(report):
    if report.outcome == "rerun":
        _again.append(report.nodeid)


def _show_second_tries(terminalreporter) -> None:
    if _again:
        terminalreporter.section(f"failed at first: {len(_again)}, of which 3 fail the run")
        for name in _again:
            terminalreporter.write_line(name)


# ---------------------------------------------------------------- margins


def _show_margins(terminalreporter, all_of_them: bool) -> None:
    shares = sorted(agreement.shares.items(), key=lambda row: -row[1])
    shares = [(test, share) for test, share in shares if share <= 1]  # others fail, or are about failing
    above = sum(share > 1 / 3 for _, share in shares)
    terminalreporter.section(f"errors as shares of their tolerances: {above} of {len(shares)} tests above a third")
    for test, share in shares if all_of_them else shares[:above]:
        terminalreporter.write_line(f"{share:8.3f} {'!' if share > 1 / 3 else ' '} {test}")


# ---------------------------------------------------------------- seconds by file

_file_times = defaultdict(lambda: np.zeros(2))  # wall and processor seconds, by file


def pytest_addoption(parser):
    parser.addoption("--file-times", action="store_true", help="show the wall and processor seconds of each file")
    parser.addoption("--margins", action="store_true", help="show each test's share of its tolerance")


def _clock() -> np.ndarray:
    """Wall and processor seconds, those of processes that were started and have ended included."""
    times = os.times()
    owner = os.environ.get("PYTEST_XDIST_WORKER", "")
    return np.array([times.elapsed, sum(times[:4]) + forked.seconds(owner)])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    if QUICK:  # it is for notebooks; the packages' tests are of measuring as it is
        if isinstance(item, pytest.Function):
            os.environ.pop("TVMNOTES_QUICK", None)
        else:
            os.environ["TVMNOTES_QUICK"] = "1"
        _llvm.clear()
        if item.path in UNOPTIMIZED and not item.config.getoption("margins"):
            _llvm["opt-level"] = 0
    before = _clock()
    try:
        return (yield)
    finally:
        _file_times[item.location[0]] += _clock() - before


@pytest.hookimpl(wrapper=True)
def pytest_collection(session):
    before = _clock()
    try:
        return (yield)
    finally:
        _file_times["start of pytest, and imports"] += [_clock()[0] - before[0], _clock()[1]]


def pytest_sessionfinish(session):
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["file_times"] = {name: list(map(float, t)) for name, t in _file_times.items()}
        session.config.workeroutput["shares"] = dict(agreement.shares)
    if len(_again) >= 3 and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
    for name, times in getattr(node, "workeroutput", {}).get("file_times", {}).items():
        _file_times[name] += times
    agreement.shares.update(getattr(node, "workeroutput", {}).get("shares", {}))


def pytest_terminal_summary(terminalreporter, config):
    _show_second_tries(terminalreporter)
    if agreement.shares:
        _show_margins(terminalreporter, all_of_them=config.getoption("--margins"))
    if config.getoption("--file-times"):
        terminalreporter.section("seconds by file: wall, processor; ! is over the budget of CONTRIBUTING.md")
        budgets = _budgets(config.rootpath / "CONTRIBUTING.md")
        for name, (wall, processor) in sorted(_file_times.items(), key=lambda row: -row[1][1]):
            over = processor > budgets.get(re.sub("^(engine/)?(tests|notebooks)/", "", name), budgets["any other"])
            terminalreporter.write_line(f"{wall:8.1f} {processor:8.1f} {'!' if over else ' '} {name}")
        wall, processor = sum(_file_times.values())
        terminalreporter.write_line(f"{wall:8.1f} {processor:8.1f}   all")


def _budgets(page: Path) -> dict[str, float]:
    """Processor seconds by file, from the page's table of "file | seconds"."""
    text = page.read_text() if page.exists() else ""
    table = text.partition("| file | seconds |\n")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| `?([^|`]+?)`? \| (\d+) \|$", table, re.M)
    return {"any other": math.inf} | {name: float(seconds) for name, seconds in rows}


# ---------------------------------------------------------------- fixtures


@pytest.fixture(autouse=True)
def _seeded():
    random.seed(SEED)
    np.random.seed(SEED)  # noqa: NPY002 (what MXNet's and old scripts' initializers draw from)
    torch.manual_seed(SEED)


def inner_loops(assembly: str, instruction: str) -> list[list[str]]:
    """The lines from a label to the jump back to it, of those loops that have an instruction."""
    lines, labels, loops = assembly.splitlines(), {}, []
    for number, line in enumerate(lines):
        if label := re.match(r"(\.?\w+):", line):
            labels[label[1]] = number
        elif line.split() and line.split()[-1] in labels:
            loops.append(lines[labels[line.split()[-1]] : number + 1])
    return [loop for loop in loops if any(instruction in line for line in loop)]


def of_integers(lib) -> int:
    """How many kernels of a network are convolutions of 8-bit integers, by either of the rules that have no tiles."""
    return sum(family in ("dot_conv", "winograd_int") for family in lib.kernels.family)


def without(*sets: str) -> dict:
    """This machine's target without instruction sets that the CPU may have."""
    from tvmfast.core import machine

    spec = json.loads(machine.target_json(machine.host_target()))
    lacking = [f"-{each}" for each in sets if each in machine.instruction_sets()]
    return spec | ({"mattr": [*spec.get("mattr", ()), *lacking]} if lacking else {})


def imported(script: Path) -> ModuleType:
    """A script as a module, under a name of its own."""
    spec = importlib.util.spec_from_file_location(f"{script.parent.name}_{script.stem}", script)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def rng() -> np.random.Generator:
    """Random numbers of the run's seed."""
    return np.random.default_rng(SEED)


@pytest.fixture
def quick() -> bool:
    """Whether `make test` runs, whose networks are those of `make test-full` with fewer blocks."""
    return QUICK


@pytest.fixture
def python():
    """Run Python code in a fresh process, with changes to the environment (None removes); returns what it prints."""

    def run(code: str, cwd=None, **changes) -> str:
        env = {name: value for name, value in {**os.environ, **changes}.items() if value is not None}
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=1200)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    return run


@pytest.fixture
def without_torch(tmp_path):
    """A folder for PYTHONPATH that hides torch: TVM imports it where it can, and takes twice as long to start."""
    (tmp_path / "without").mkdir()
    (tmp_path / "without" / "torch.py").write_text("raise ImportError('hidden by a test')\n")
    return tmp_path / "without"


@pytest.fixture
def script(home, tmp_path, without_torch):
    """Run `python -m tvmclassic ARGS` in the folder `home`, a fixture of the test's file; returns the finished process.

    It has torch where a script needs it; in a fork, where what matters is what the script computes, there is for all.
    """

    def run(*args, code=0, torch=False, fork=False):
        paths = [str(tmp_path), "" if torch else str(without_torch), os.environ.get("PYTHONPATH", "")]
        changes = {
            "HOME": str(home),
            "TORCH_HOME": str(home / "torch"),
            "COLUMNS": "200",
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        }
        command, env = ["-W", "ignore", "-m", "tvmclassic", *map(str, args)], {**os.environ, **changes}
        if fork:
            done = forked.run(*command, env=env)
        else:
            done = subprocess.run([sys.executable, *command], env=env, capture_output=True, text=True, timeout=1200)
        assert done.returncode == code, done.stdout + done.stderr
        return done

    return run


class SmallNet(nn.Module):
    """A stem, a residual block, pooling and a linear layer: float32 (N, 3, 8, 8) to (N, 5)."""

    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.conv2, self.bn2 = nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.pool, self.classify = nn.MaxPool2d(2), nn.Linear(8 * 4 * 4, 5)

    def forward(self, x):
        x = torch.relu(self.bn1(self.conv1(x)))
        x = torch.relu(self.bn2(self.conv2(x)) + x)
        return self.classify(self.pool(x).flatten(1))


class Upward(nn.Module):
    """A convolution, and a transposed one of groups, which has no rule: float32 (1, 4, 6, 6) to (1, 8, 12, 12)."""

    def __init__(self):
        super().__init__()
        self.before, self.up = nn.Conv2d(4, 8, 3, padding=1), nn.ConvTranspose2d(8, 8, 2, 2, groups=2)

    def forward(self, x):
        return torch.relu(self.up(torch.relu(self.before(x))))


class Function(nn.Module):
    """A function of tensors as a network."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args):
        return self.function(*args)


class Case(NamedTuple):
    mod: object
    params: dict
    x: np.ndarray
    wanted: np.ndarray | None = None  # PyTorch's own result
    exact: agreement.Reference | None = None


@pytest.fixture(scope="session")
def small() -> Case:
    """`SmallNet`, imported, with an input "image" and PyTorch's result for it, in double precision and its own."""
    from tvmfast import from_pytorch
    from tvmfast.profiling import networks

    net = networks.seeded(SmallNet, 8)
    x = torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        wanted = net(x).numpy()
    return Case(*from_pytorch(net, {"image": (1, 3, 8, 8)}), x.numpy(), wanted, agreement.reference(net, x))


@pytest.fixture(scope="session")
def lib(small):
    """`small`, built for this machine at the highest opt level."""
    from tvmfast import build

    return build(small.mod, small.params)


@pytest.fixture(scope="session")
def compile_function():
    """Build a function of torch tensors for inputs as `from_pytorch` reads them."""
    from tvmfast import build, from_pytorch

    def compile_function(function, inputs, **options):
        return build(*from_pytorch(Function(function).eval(), inputs), **options)

    return compile_function
