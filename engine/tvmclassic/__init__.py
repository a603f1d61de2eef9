"""The API of TVM up to 0.19 (Relay, AutoTVM, the graph executor) on top of current TVM.

    import tvmclassic
    tvmclassic.enable()         # from here on, `from tvm import relay` works; tvmclassic.disable() undoes it

From a shell: `python -m tvmclassic SCRIPT [ARGS…]`. Scripts build and run through tvmfast's frontends
and pipeline: `relay.build` at opt level 3 is `tn.build`. Which of TVM's old tutorials run says TUTORIALS.md.

relay           `tvm.relay`: expressions, operators, text format, passes, builds, networks
autotvm         `tvm.autotvm`
auto_scheduler  `tvm.auto_scheduler`
te              TE schedules, `tvm.lower`, `tvm.build`
tools           `tvm.driver.tvmc`, `tvm.contrib.relay_viz` and `tvm.contrib.tedd`
graph_executor  the graph executor and its debugger
targets         target strings, target helpers, and devices, as scripts write them
context         `PassContext` with Relay's pass names and removed options
script          `tvm.script.tir`, the TVMScript of up to 0.21
blas            `tvm.contrib.cblas` with NumPy's BLAS
expressions     `te.extern`, `te.scan`, `te.decl_tensor_intrin`
gradient        `te.gradient`
runtime         compiled modules with their old methods
tir             functors of TensorIR, the IR builder, rules for intrinsics
topi_schedules  `topi.generic` and `topi.x86`
struct_info     Relax's struct info
remote          sessions with other machines, and graph executors there
modules         the old modules that `enable` installs
patches         the attributes of current TVM that `enable` adds or replaces
removed         names.csv: what became of each name, and the errors for unsupported ones
names           the tables of old and new names
runner          runs a script or module with the old API enabled
"""

import importlib
import importlib.util
import sys

from tvmfast.frontends.mxnet import gluon

from .removed import StubModule, missing

_undo: list = []


class _Missing:
    """Last finder on `sys.meta_path`: raises ImportError saying what replaced a missing tvm module."""

    def find_spec(self, name: str, path=None, target=None):
        parent, _, short = name.rpartition(".")
        if name.startswith("tvm.") and parent in sys.modules:
            raise ImportError(missing(parent, short, vars(sys.modules[parent])), name=name)


def enable() -> None:
    """Install the old API in this process.

    Calling it again has no effect. A TVM that still has Relay is left untouched, with a note on stderr.
    """
    if _undo:
        return
    import tvm  # for speed: importing tvmclassic does not import TVM

    if importlib.util.find_spec("tvm.relay") is not None:
        print(f"TVM {tvm.__version__} has Relay itself: tvmclassic leaves it alone", file=sys.stderr)
        return
    from . import blas, modules, patches  # for speed: they import TVM and the whole old API

    blas.register()
    for owner, name, value in patches.patches():
        _set(owner, name, value)
    sys.meta_path[:] = [gluon.Finder(), *sys.meta_path, _Missing()]
    for name, module in modules.modules().items():
        _undo.append((sys.modules, name, sys.modules.get(name), name in sys.modules))
        sys.modules[name] = module
        parent, _, short = name.rpartition(".")
        if parent and not isinstance(sys.modules.get(parent), StubModule):
            _set(importlib.import_module(parent), short, module)


def disable() -> None:
    """Uninstall the old API. Names that scripts have already imported keep working."""
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, gluon.Finder | _Missing)]
    if _undo:
        from . import blas  # for speed: as in enable

        blas.unregister()
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
    """Print a Relay program as text.

    Args:
        program: A Relay `IRModule`, function or expression.
        types: Whether to print the type of each value.

    Raises:
        TypeError: `program` is not a Relay program.
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
