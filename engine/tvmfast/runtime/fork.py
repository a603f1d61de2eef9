"""Runs of networks in children of a fork, even after runs in the parent.

In TVM 0.27 each thread that runs kernels has a thread pool. After a fork, the pool of the forking thread has
no threads in the child: a run there would wait for them forever, and so would the exit of the process. No TVM
call repairs or removes such a pool. So another thread of the child, which gets a pool of its own, runs the
networks, and the child exits before TVM would destroy the broken pool.

Remove when `test_a_child_of_a_fork_runs_what_the_parent_has_run` passes without it.
"""

import atexit
import ctypes
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any, NoReturn
from weakref import WeakSet

from ..core.compat import pass_lock

_pooled: set[int] = set()  # the threads that may have a pool
_stranded: int | None = None  # in a child: the thread whose pool has lost its threads
_runner: ThreadPoolExecutor | None = None  # the thread that runs networks instead
_exit_code = 0  # requested by the child
_error = None  # the last uncaught error before the fork
_locks: WeakSet = WeakSet()
_changing = threading.Lock()  # `_locks`
_held: list = []


def run(function: Callable, *args: Any) -> Any:
    """Call a function that runs kernels, in a thread whose pool works; return its result."""
    thread = threading.get_ident()
    if thread != _stranded or _runner is None:
        _pooled.add(thread)
        return function(*args)
    running = _runner.submit(function, *args)
    try:
        return running.result()
    except BaseException:  # after a Ctrl-C it still runs, and no other run may begin until it ends
        wait([running])
        raise


def lock() -> Any:
    """Make the lock of a network's runs. A fork waits for it: the child could not finish another's run."""
    new = threading.RLock()
    with _changing:
        _locks.add(new)
    return new


def _before_fork() -> None:
    for first in (pass_lock, _changing):
        first.acquire()
        _held.append(first)
    for each in list(_locks):
        each.acquire()
        _held.append(each)


def _after_fork() -> None:
    global _held
    held, _held = _held, []  # before another thread can fork
    for each in reversed(held):
        each.release()


def _after_fork_in_child() -> None:
    global _stranded, _runner, _error
    _after_fork()
    thread = threading.get_ident()
    if thread in _pooled or thread == _stranded:
        _stranded, _runner = thread, ThreadPoolExecutor(1, "tvmfast-run")
        _error = getattr(sys, "last_value", None)
        sys.exit = _exit
    _pooled.clear()


def _exit(status: Any = None) -> NoReturn:
    """Replace `sys.exit` in such a child: Python tells nobody else the exit code."""
    global _exit_code
    _exit_code = status if isinstance(status, int) else int(status is not None)
    raise SystemExit(status)


@atexit.register
def _end() -> None:
    """Exit such a child before the C library destroys its thread's pool, but after all of Python's exit."""
    if threading.get_ident() != _stranded:
        return
    code = _exit_code & 0xFF if getattr(sys, "last_value", None) is _error else 1
    library = ctypes.CDLL(None)
    try:
        call_at_the_end = library.__cxa_thread_atexit_impl  # what was registered last is called first
    except AttributeError:  # another C library than glibc
        sys.stdout.flush()
        os._exit(code)
    end = ctypes.cast(library._exit, ctypes.c_void_p)
    call_at_the_end(end, ctypes.c_void_p(code), end)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child)
