"""What is made and dropped again leaves no memory behind: the allocator's bytes in use, in a process of its own."""

import ctypes
import json
import sys

import forked
import pytest

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux") or not hasattr(ctypes.CDLL(None), "mallinfo2"),
    reason="this system's allocator does not say what is in use",
)

COMMON = """
import ctypes, gc, json, pathlib, sys, tempfile, warnings
import numpy as np, torch
import tvmfast, tvmfast.tuning, tvmnotes as tn

warnings.simplefilter("ignore")

class Counts(ctypes.Structure):
    _fields_ = [(each, ctypes.c_size_t) for each in (
        "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost").split()]

mallinfo = ctypes.CDLL(None).mallinfo2
mallinfo.restype = Counts

def in_use():
    gc.collect()
    counts = mallinfo()
    return counts.uordblks + counts.hblkhd

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096

def left(work, before, times):
    '''Bytes that a call leaves, once caches are filled.'''
    for _ in range(before):
        work()
    start = in_use()
    for _ in range(times):
        work()
    return (in_use() - start) / times

net = tn.models.load("digits").eval()
x = np.zeros((1, 1, 32, 32), "float32")
shapes = {"image": x.shape}
folder = tempfile.TemporaryDirectory()
home = pathlib.Path(folder.name)
"""

LOADED = """
mod, params = tvmfast.from_pytorch(net, shapes)
lib = tvmfast.build(mod, params)
lib.save(home / "digits")
lib.save(home / "digits.zip")

class Sum(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(400, 400))

    def forward(self, x, total):
        return x @ self.weight, x @ self.weight + total

v = np.zeros((1, 400), "float32")
summing = tvmfast.build(Sum().eval(), {"x": v.shape, "total": v.shape}, state={"total": "output1"})
summing.save(home / "sum")

def with_sessions():
    loaded = tvmfast.load(home / "sum")
    loaded(v)
    for session in (loaded.session(), loaded.session()):
        session(v)
        session(v)

tvmfast.load(home / "digits")
tvmfast.load(home / "digits")(x)
start = resident()
found = {
    "load": left(lambda: tvmfast.load(home / "digits"), 2, 100),
    "load and call": left(lambda: tvmfast.load(home / "digits")(x), 2, 98),
}
found["resident"] = (resident() - start) / 200
found |= {
    "archive": left(lambda: tvmfast.load(home / "digits.zip")(x), 2, 10),
    "load with state": left(with_sessions, 2, 30),
    "session": left(lambda: summing.session()(v), 2, 30),
}
print(json.dumps(found))
"""

MADE = """
mod, params = tvmfast.from_pytorch(net, shapes)
lib = tvmfast.build(mod, params)
tasks = tvmfast.tuning.tasks(mod, params)[:1]
files = iter(range(100))

def compiled(backend):
    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(net, backend=backend)(torch.from_numpy(x))

def tuned():
    records = home / f"{next(files)}.jsonl"
    tvmfast.tune(mod, params, tasks=tasks, trials=1, tuner="random", seed=0, records=records)

print(json.dumps({
    "build": left(lambda: tvmfast.build(mod, params)(x), 4, 2),
    "import": left(lambda: tvmfast.from_pytorch(net, shapes), 2, 2),
    "torch.compile": left(lambda: compiled("tvmfast"), 2, 2) - left(lambda: compiled("eager"), 2, 2),
    "profile": left(lambda: tn.profile(lib, x), 1, 2),
    "tune": left(tuned, 1, 1),
}))
"""


def measured(code: str) -> dict[str, float]:
    done = forked.run("-W", "ignore", "-c", COMMON + code)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_loading_and_sessions():
    """The network has 2.4 MB of parameters; 200 loads stay within 5 MB."""
    for what, size in measured(LOADED).items():
        assert size < (25_000 if what == "resident" else 8_000), f"{what} leaves {size:,.0f} bytes"


def test_what_compiles():
    """A copy of the parameters would be 2.4 MB. PyTorch's exporter keeps 0.3 MB of its own, and Dynamo 1 MB."""
    for what, size in measured(MADE).items():
        assert size < 1_200_000, f"{what} leaves {size:,.0f} bytes"
