"""Libraries of `relay.build` on other machines, by TVM's RPC: upload, load, and run in a graph executor.

    remote = autotvm.measure.request_remote("pi", "127.0.0.1", 9190)    # or rpc.connect(host, port)
    remote.upload("net.tar")
    module = graph_executor.GraphModule(remote.load_module("net.tar")["default"](remote.cpu()))

The server needs TVM alone. The machine code is uploaded; the graph stays here, and the parameters are copied
to the server when the library is loaded there.
"""

import contextlib
import io
import json
import os
import tempfile
import weakref

import tvm
import tvm.rpc
from tvm.contrib import tvmjs
from tvm.runtime.module import BenchmarkResult

from tvmfast.core.compat import start_machine
from tvmfast.runtime import narrow, saved
from tvmfast.runtime.compiled import Compiled
from tvmfast.tuning import server

from . import targets
from .relay import build, vm

_uploaded: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()  # by session: parts of libraries by name


class _Remote(Compiled):
    """A network whose virtual machine, inputs and outputs are on another machine.

    A tensor arrives there as memory only, which `set_input` of the machine copies. Parameters, which it takes
    as an array of tensors, become one there: they are uploaded as files, and read.
    """

    def __init__(self, session, module, parts: dict[str, bytes]):
        manifest, graph = json.loads(parts["manifest.json"]), json.loads(parts["graph.json"])
        self.opt_level, self._build_info = manifest["opt_level"], saved.build_info_in(manifest)
        self.device, self.variants, self._library = session.cpu(), [], b""
        arrays = dict(tvm.runtime.load_param_dict(parts["params.bin"]).items())
        self._describe(graph, narrow.from_file(arrays, graph))
        self._session = session
        self._machine = start_machine(module, tvm.cpu().dlpack_device_type())
        self._weights = {}, self._array(self.params)  # the replaced parameters, and all of them there

    def _array(self, params: dict):
        """Return the parameters as an array on the other machine."""
        call = self._session.get_function
        if params:
            with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
                arrays = {f"param_{n}": tensor.numpy() for n, tensor in enumerate(params.values())}
                tvmjs.dump_tensor_cache(arrays, folder, encode_format="raw")
                files = os.listdir(folder)
                for name in files:
                    self._session.upload(os.path.join(folder, name))
            call("vm.builtin.tensor_cache.load")(call("tvm.rpc.server.workpath")(""), 1, 0)
            for name in files:
                self._session.remove(name)
        array = call("vm.builtin.param_array_from_cache")("param", len(params))
        call("vm.builtin.tensor_cache.clear")()
        return array

    def _set(self, values: list, params: dict | None) -> None:
        """Copy inputs, and parameters that have changed, to the machine."""
        if self._weights[0] != (params or {}):
            self._weights = dict(params or {}), self._array({**self.params, **(params or {})})
        self._machine["set_input"]("main", *values, self._weights[1])

    def run(self, values, params=None, held=None):
        """Run the network on tensors of the other machine; return its outputs, which stay there."""
        self._set(values, params)
        self._machine["invoke_stateful"]("main")
        places = [(n,) for n in range(len(self.outputs))] if self.graph["tuple"] else [()]
        return [self._machine["get_output"]("main", *place) for place in places]

    def time_remotely(
        self, values, params, number: int, repeat: int, min_repeat_ms: float
    ) -> BenchmarkResult:
        """Time runs on the other machine, without the way to it."""
        self._set(values, params)
        options = {"number": number, "repeat": repeat, "min_repeat_ms": int(min_repeat_ms)}
        return self._machine.time_evaluator("invoke_stateful", self.device, **options)("main")

    def instrumented(self, _instrument):
        """Refuse to time kernels, which is done in the process that runs them."""
        raise NotImplementedError(
            "the debug executor on a remote device: time the network there, by time_evaluator('run', …), or "
            "run the script with the debug executor on that machine"
        )


def patches() -> list[tuple[object, str, object]]:
    """List the patches of TVM's sessions as (object, attribute name, new value)."""
    session, local = tvm.rpc.RPCSession, tvm.rpc.LocalSession
    load, upload, device = session.load_module, session.upload, session.device

    def load_here(self, path):
        """Load a library of relay.build or of current TVM in a session that runs in this process."""
        return vm.load_module(self._temp.relpath(path), original=lambda _: load(self, path))

    def load_there(self, path):
        """Load a library of relay.build or of current TVM on the session's machine."""
        parts = _uploaded.get(self, {}).get(path)
        if parts is None:
            return load(self, path)
        return build.ExecutorFactoryModule(_Remote(self, load(self, _code(path)), parts))

    def upload_code(self, data, target=None):
        """Upload a file, or of a library of relay.build its machine code."""
        if isinstance(self, local) or not isinstance(data, str | os.PathLike):
            return upload(self, data, target)
        if vm.ProgramLibrary.load(data):
            raise NotImplementedError(
                "remote.upload: a program with branches, recursion or relay.Any() is compiled in the process "
                "that runs it; copy the file to the other machine and run the script there"
            )
        parts = build.parts_of(data)
        if not parts:
            return upload(self, data, target)
        if json.loads(parts["manifest.json"])["target"]["kind"] == "cuda":
            raise NotImplementedError(
                "remote.upload: a library for a GPU runs in the process that loads it; copy the file to the "
                "other machine and run the script there"
            )
        name = target or os.path.basename(data)
        _uploaded.setdefault(self, {})[name] = parts
        return upload(self, bytearray(parts["lib.so"]), _code(name))

    def device_there(self, dev_type, dev_id=0):
        """Return a device of the session's machine, also by a target's string."""
        return device(self, targets.device_kind(dev_type), dev_id)

    return [
        (session, "device", device_there),
        (session, "context", device_there),
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
    parts = {"TVM_TRACKER_HOST": host, "TVM_TRACKER_PORT": port}
    for name, given in parts.items():
        if not given and name not in os.environ:
            raise KeyError(f"the tracker: give its host and port, or set {name} in the environment")
    return ":".join(str(given or os.environ[name]) for name, given in parts.items())


NAMES = {"request_remote": request_remote, "check_remote": check_remote}
