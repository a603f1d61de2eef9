"""Python processes that need not import TVM and torch, which takes 4 seconds: forks of one that has.

The run's first pytest process starts the server, `python forked.py serve SOCKET`, which ends with it. `run` is then a
`subprocess.run` of Python; `python forked.py ARGS…` is `python ARGS…`, as Jupyter starts a kernel. The server runs no
kernel and starts no thread, so what it forks is as good as new, but for modules that it would not have imported yet:
where that matters, and in `make test-full`, processes start from nothing.
"""

import contextlib
import fcntl
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

SOCKET = "TESTS_FORK_SERVER"  # the environment variable that names the server's socket
_LIMIT = 1200  # seconds
IMPORTED = [  # by the server; a conftest may add more
    "torch", "torchvision", "pandas", "onnx", "tvm", "tvm.exec.popen_worker",
    "tvmfast.frontends.pytorch.importer", "tvmfast.frontends.onnx.importer", "tvmfast.compiler.build",
    "tvmfast.profiling.networks", "tvmfast.profiling.profiler", "tvmfast.tuning", "tvmclassic.modules",
]  # fmt: skip


def replies(command: list[str], names: list[str], seconds: float) -> Iterator[tuple[str, object]]:
    """Each name and the line of JSON with which a process, which gets the names as JSON, replies to it.

    It is "crash: …" or "hang: …" where the process ends, or is silent for `seconds`; another takes the names left.
    """
    left = list(names)
    while left:
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        ) as child:
            child.stdin.write(json.dumps(left).encode())
            child.stdin.close()
            while left:
                ready, _, _ = select.select([child.stdout], [], [], seconds)
                if line := child.stdout.readline() if ready else b"":
                    yield left.pop(0), json.loads(line)
                    continue
                child.kill()
                yield left.pop(0), f"crash: ended with {child.wait()}" if ready else f"hang: {seconds} s"
                break


def start(path: str) -> subprocess.Popen:
    """The server, for this process and those that it starts from now on. It ends when its stdin is closed."""
    ready, theirs = os.pipe()
    server = subprocess.Popen(
        [sys.executable, __file__, "serve", path, str(theirs), *IMPORTED], stdin=subprocess.PIPE, pass_fds=[theirs]
    )
    os.close(theirs)
    if not select.select([ready], [], [], _LIMIT)[0] or not os.read(ready, 1):
        server.kill()
        raise RuntimeError("the fork server does not start")
    os.close(ready)
    os.environ[SOCKET] = path
    return server


def run(*args, cwd=None, env=None) -> subprocess.CompletedProcess:
    """`python ARGS…` with its output, as text; a fork where there is a server."""
    command = [sys.executable, *([__file__] if SOCKET in os.environ else []), *map(str, args)]
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=_LIMIT)


def fork_workers() -> None:
    """Have a tuning of this process fork its workers, where there is a server."""
    workers = importlib.import_module("tvmfast.tuning.workers")
    python, *args = workers.COMMAND
    workers.COMMAND = (python, __file__, *args)


def seconds(owner: str) -> float:
    """The processor seconds so far of the forks that a tester asked for: one of pytest-xdist's, or ""."""
    if SOCKET not in os.environ:
        return 0.0
    with _ask({"seconds": owner}, limit=_LIMIT) as reply:
        return json.loads(reply.readline())


def _ask(request: dict, *descriptors, limit: float | None = None):
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(limit)
        connection.connect(os.environ[SOCKET])
        message = json.dumps(request).encode() + b"\n"
        sent = socket.send_fds(connection, [message], descriptors) if descriptors else 0
        connection.sendall(message[sent:])
        return connection.makefile("r")


def _is_open(descriptor: int) -> bool:
    try:
        fcntl.fcntl(descriptor, fcntl.F_GETFD)
    except OSError:  # it was that of the folder which was listed
        return False
    return True


def _stand_for_a_fork(args) -> int:
    """Have the server run Python; pass on the signals that would end or interrupt it. Gives the exit code."""
    listed = [number for number in sorted(map(int, os.listdir("/proc/self/fd"))) if _is_open(number)]
    request = {"args": args, "cwd": os.getcwd(), "env": dict(os.environ), "descriptors": listed}
    with _ask(request, *listed) as reply:
        for descriptor in listed[3:]:
            os.close(descriptor)
        group = json.loads(reply.readline())

        def pass_on(number, _frame):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, number)

        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, pass_on)
        code = json.loads(reply.readline() or "1")
    if code < 0:  # a signal has ended it
        if -code != signal.SIGKILL:  # it cannot be handled
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


# ---------------------------------------------------------------- in the server


def _serve(path: str, ready: int):
    """Fork for each request. Returns in the forks only, with what they have to run."""
    import selectors

    selector, used = selectors.DefaultSelector(), {}
    running = {}  # by process: who asked for it
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(64)
    selector.register(listener, selectors.EVENT_READ, "new")
    selector.register(0, selectors.EVENT_READ, "end")
    os.write(ready, b"1")
    os.close(ready)

    def forget(file):
        with contextlib.suppress(KeyError):
            selector.unregister(file)

    def kill(process):
        if process in running:  # else its number may be another's by now
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process, signal.SIGKILL)

    while True:
        for key, _ in selector.select():
            match key.data:
                case "end":
                    for process in running:
                        kill(process)
                    os._exit(0)
                case "new":
                    connection, _ = listener.accept()
                    message, descriptors, _, _ = socket.recv_fds(connection, 1 << 16, 250)
                    while not message.endswith(b"\n") and (more := connection.recv(1 << 16)):
                        message += more
                    if not message.endswith(b"\n"):  # who asked was killed meanwhile
                        connection.close()
                        continue
                    request = json.loads(message)
                    if "seconds" in request:
                        of = request["seconds"]
                        taken = used.get(of, 0.0) + sum(_taken(p) for p, owner in running.items() if owner == of)
                        connection.sendall(f"{taken}\n".encode())
                        connection.close()
                        continue
                    has_group, theirs = os.pipe()
                    process = os.fork()
                    if not process:
                        os.setsid()
                        os.write(theirs, b"1")
                        inherited = [connection, *(other.fileobj for other in selector.get_map().values())]
                        selector.close()  # not later, when its number may be another file's
                        _take(request["descriptors"], descriptors, listener.fileno())
                        for ours in inherited:
                            if isinstance(ours, socket.socket):
                                ours.detach()
                        return request
                    running[process] = request["env"].get("PYTEST_XDIST_WORKER", "")
                    os.close(theirs)
                    os.read(has_group, 1)  # from here on, signals for its group reach it
                    for descriptor in (has_group, *descriptors):
                        os.close(descriptor)
                    with contextlib.suppress(OSError):
                        connection.sendall(f"{process}\n".encode())
                    selector.register(connection, selectors.EVENT_READ, ("gone", process))
                    ended = os.pidfd_open(process)
                    selector.register(ended, selectors.EVENT_READ, ("over", process, connection))
                case ("gone", process) if process in running:  # else both were told of at once, and this is closed
                    forget(key.fileobj)
                    kill(process)
                case ("over", process, connection):
                    forget(key.fileobj)
                    forget(connection)
                    os.close(key.fd)
                    owner = running.pop(process)
                    _, status, usage = os.wait4(process, 0)
                    used[owner] = used.get(owner, 0.0) + usage.ru_utime + usage.ru_stime
                    with contextlib.suppress(OSError):
                        connection.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
                    connection.close()


def _taken(process: int) -> float:
    """The processor seconds of a process that has not been waited for, and of what it has waited for."""
    with open(f"/proc/{process}/stat") as file:
        fields = file.read().rpartition(")")[2].split()  # from the third on
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def _take(targets: list[int], descriptors: list[int], first: int) -> None:
    """Give files the descriptors they had in the other process; close all others from descriptor `first` on."""
    copies = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, 500) for descriptor in descriptors]
    os.closerange(first, 500)
    for number, copy in zip(targets, copies, strict=True):
        os.dup2(copy, number)
        os.close(copy)


def _become(request: dict) -> None:
    """Be `python ARGS…` in the folder and the environment of who asked."""
    import runpy
    import types
    import warnings

    known = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    rest = [entry for entry in sys.path[1:] if entry not in known]
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    os.environ.setdefault("TVM_NUM_THREADS", str(importlib.import_module("tvmfast.core.machine").usable_cores()))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    args = request["args"]
    while args[0] == "-W":
        sys.warnoptions.append(args[1])
        warnings.simplefilter(args[1])
        args = args[2:]
    paths = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    kind, target = (args[0], args[1]) if args[0] in ("-c", "-m") else ("", args[0])
    sys.argv = ["-c" if kind == "-c" else target, *args[2 if kind else 1 :]]
    first = "" if kind == "-c" else request["cwd"] if kind == "-m" else os.path.dirname(os.path.abspath(target))
    sys.path[:] = [first, *paths, *rest]
    if kind == "-m":
        runpy.run_module(target, run_name="__main__", alter_sys=True)
        return
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    if kind == "-c":
        exec(compile(target, "<string>", "exec"), main.__dict__)
    else:
        main.__file__ = target
        with open(target, "rb") as file:
            exec(compile(file.read(), target, "exec"), main.__dict__)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        for module in sys.argv[4:]:
            importlib.import_module(module)
        fork_workers()
        gc.freeze()
        _become(_serve(sys.argv[2], int(sys.argv[3])))
    else:
        sys.exit(_stand_for_a_fork(sys.argv[1:]))
