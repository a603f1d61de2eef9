"""Libraries of `relay.build` on other machines, by TVM's RPC: upload, load, and run in a graph executor.

    remote = autotvm.measure.request_remote("pi", "127.0.0.1", 9190)    # or rpc.connect(host, port)
    remote.upload("net.tar")
    module = graph_executor.GraphModule(remote.load_module("net.tar")["default"](remote.cpu()))

The server needs TVM alone. The machine code is uploaded; the graph stays here, and the parameters are copied
to the server when the library is loaded there.
"""

import json
import os
import weakref

import tvm
import tvm.rpc
from tvm.runtime.module import BenchmarkResult

from tvmfast.core.compat import start_machine
from tvmfast.runtime import saved
from tvmfast.runtime.compiled import Compiled
from tvmfast.tuning import server

from .relay import build

_uploaded: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()  # by session: parts of libraries by name


class _Remote(Compiled):
    """A network whose virtual machine, inputs and outputs are on another machine."""

    def __init__(self, session, module, parts: dict[str, bytes]):
        manifest, graph = json.loads(parts["manifest.json"]), json.loads(parts["graph.json"])
        self.opt_level, self._build_info = manifest["opt_level"], saved.build_info_in(manifest)
        self.device, self.variants, self._library = session.cpu(), [], b""
        self._describe(graph, dict(tvm.runtime.load_param_dict(parts["params.bin"]).items()))
        self._machine = start_machine(module, tvm.cpu().dlpack_device_type())
        self._main = self._machine["main"]
        self._list, self._item = map(session.get_function, ("ffi.Array", "ffi.ArrayGetItem"))
        self.params = {name: array.copyto(self.device) for name, array in self.params.items()}

    def run(self, values, params=None, held=None):
        """Run the network on tensors of the other machine; return its outputs, which stay there."""
        result = self._main(*values, self._list(*{**self.params, **(params or {})}.values()))
        if not self.graph["tuple"]:
            return [result]
        return [self._item(result, n) for n in range(len(self.outputs))]

    def timed(self, values, params, number: int, repeat: int, min_repeat_ms: float) -> BenchmarkResult:
        """Time runs on the other machine, without the way to it."""
        weights = self._list(*{**self.params, **params}.values())
        self._machine["save_function"]("main", "timed", 0, *values, weights)
        options = {"number": number, "repeat": repeat, "min_repeat_ms": int(min_repeat_ms)}
        return self._machine.time_evaluator("timed", self.device, **options)()

    def instrumented(self, _instrument):
        """Refuse to time kernels, which is done in the process that runs them."""
        raise NotImplementedError(
            "the debug executor on a remote device: time the network there, by time_evaluator('run', …), or "
            "run the script with the debug executor on that machine"
        )


def patches() -> list[tuple[object, str, object]]:
    """List the patches of TVM's sessions as (object, attribute name, new value)."""
    session, local = tvm.rpc.RPCSession, tvm.rpc.LocalSession
    load, upload = session.load_module, session.upload

    def load_here(self, path):
        """Load a library of relay.build or of current TVM in a session that runs in this process."""
        return build.load_module(self._temp.relpath(path), original=lambda _: load(self, path))

    def load_there(self, path):
        """Load a library of relay.build or of current TVM on the session's machine."""
        parts = _uploaded.get(self, {}).get(path)
        if parts is None:
            return load(self, path)
        return build.ExecutorFactoryModule(_Remote(self, load(self, _code(path)), parts))

    def upload_code(self, data, target=None):
        """Upload a file, or of a library of relay.build its machine code."""
        parts = build.parts_of(data) if isinstance(data, str | os.PathLike) else {}
        if isinstance(self, local) or not parts:
            return upload(self, data, target)
        if json.loads(parts["manifest.json"])["target"]["kind"] == "cuda":
            raise NotImplementedError(
                "remote.upload: a library for a GPU runs in the process that loads it; copy the file to the "
                "other machine and run the script there"
            )
        name = target or os.path.basename(data)
        _uploaded.setdefault(self, {})[name] = parts
        return upload(self, bytearray(parts["lib.so"]), _code(name))

    return [
        (session, "upload", upload_code),
        (session, "load_module", load_there),
        (local, "load_module", load_here),
    ]


def _code(name: str) -> str:
    """Return the name of a library's machine code on a server, which would take a .tar for object files."""
    return name if name.endswith(".so") else f"{name}.so"


# ---------------------------------------------------------------- autotvm.measure


def request_remote(device_key: str, host=None, port=None, priority: int = 1, timeout: int = 60):
    """`autotvm.measure.request_remote`: waits for a free server of a key, and returns a session with it.

    Args:
        device_key: Key of the servers.
        host: Host of their tracker; by default TVM_TRACKER_HOST of the environment.
        port: Port of the tracker; by default TVM_TRACKER_PORT.
        priority: Has no effect.
        timeout: Seconds after which the server ends the session.

    Raises:
        ConnectionError: No tracker answers.
        KeyError: Neither an argument nor the environment has the host, or the port.
    """
    return tvm.rpc.connect(*server.free_server(_tracker(host, port), device_key), session_timeout=timeout)


def check_remote(
    target, device_key: str, host=None, port=None, priority: int = 100, timeout: int = 10
) -> bool:
    """`autotvm.measure.check_remote`: returns whether a tracker knows servers of a key."""
    return bool(server.servers(_tracker(host, port), device_key))


def _tracker(host, port) -> str:
    return f"{host or os.environ['TVM_TRACKER_HOST']}:{port or os.environ['TVM_TRACKER_PORT']}"


NAMES = {"request_remote": request_remote, "check_remote": check_remote}
