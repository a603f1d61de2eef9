"""The API that TVM had up to 0.19 (Relay, AutoTVM, the graph executor), on today's TVM.

    import tvmnotes.classic as classic
    classic.enable()         # from here on, `from tvm import relay` works; classic.disable() takes it back

or, from a shell, `python -m tvmnotes classic SCRIPT [ARGS…]`. Scripts build and run through the importers and the
pipeline of tvmnotes: `relay.build` at opt level 3 is `tn.build`.

    relay              expressions, operators, text, passes, builds, networks: `tvm.relay`
    autotvm            `tvm.autotvm`
    tools              `tvm.driver.tvmc` and `tvm.contrib.relay_viz`
    graph_executor     the executor and its debugger
    targets, context   targets and devices, and pass contexts, as scripts write them
    modules, patches   what is put in place: modules, and attributes of today's TVM
    gone, names        what is not served and why; the table of old and new names, from names.csv
    runner             runs a script
"""

import importlib
import importlib.util
import sys

from ..importers.mxnet import gluon
from .removed import StubModule, missing

_undo: list = []


class _Missing:
    """The last finder of modules: says of what is missing in TVM what became of it, or a near name."""

    def find_spec(self, name: str, path=None, target=None):
        parent, _, short = name.rpartition(".")
        if name.startswith("tvm.") and parent in sys.modules:
            raise ImportError(missing(parent, short, vars(sys.modules[parent])), name=name)


def enable() -> None:
    """Put the old API in place, in this process. Again is harmless; a TVM that has Relay itself is left alone."""
    if _undo:
        return
    import tvm  # for speed: to import tvmnotes.classic imports no TVM

    if importlib.util.find_spec("tvm.relay") is not None:
        print(f"TVM {tvm.__version__} has Relay itself: tvmnotes.classic leaves it alone", file=sys.stderr)
        return
    from . import modules, patches  # for speed: they import TVM and all that serves it

    for owner, name, value in patches.patches():
        _set(owner, name, value)
    sys.meta_path[:] = [gluon.Finder(), *sys.meta_path, _Missing()]
    for name, module in modules.modules().items():
        _undo.append((sys.modules, name, sys.modules.get(name), name in sys.modules))
        sys.modules[name] = module
        parent, _, short = name.rpartition(".")
        if not isinstance(sys.modules.get(parent), StubModule):
            _set(importlib.import_module(parent), short, module)


def disable() -> None:
    """Take the old API back out. What scripts have imported meanwhile stays with them."""
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, gluon.Finder | _Missing)]
    while _undo:
        owner, name, value, was_there = _undo.pop()
        if isinstance(owner, dict):
            if was_there:
                owner[name] = value
            else:
                owner.pop(name, None)
        elif was_there:
            setattr(owner, name, value)
        else:
            delattr(owner, name)


def show(program, types: bool = True) -> None:
    """Print a module, function or expression of Relay as text; without `types`, no type of a value is written.

    Raises TypeError for a program that is none of Relay's.
    """
    from .relay import ir, text  # for speed: they import TVM

    if not isinstance(program, ir.IRModule | ir.Expr):
        raise TypeError(
            f"program: expected a module, function or expression of Relay; got {type(program).__name__}"
        )
    print(text.astext(program, types=types).rstrip())


def _set(owner, name, value) -> None:
    _undo.append((owner, name, vars(owner).get(name), name in vars(owner)))
    setattr(owner, name, value)
