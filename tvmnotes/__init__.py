"""Helper package of a course on compiling neural networks with Apache TVM.

    import tvmnotes as tn

    net         = tn.models.load("resnet18")
    mod, params = tn.from_pytorch(net, {"input0": (1, 3, 224, 224)})
    lib         = tn.build(mod, params)
    y           = lib(x)

It hands on the verbs of the engine, `tvmfast`, so that a lesson needs one name: `tn.build is tvmfast.build`.
Every name is imported on first use, so that `import tvmnotes` costs nothing and loads neither torch nor tvm.
"""

from importlib import import_module
from pathlib import Path
from threading import RLock

import tvmfast
from tvmfast.core import data, table

__version__ = "0.1.0"

if tvmfast.__version__ != __version__:
    raise ImportError(
        f"tvmnotes {__version__} needs tvmfast {__version__}, and finds {tvmfast.__version__} in "
        f"{tvmfast.__path__[0]}: install both from one checkout, pip install -e ./engine -e ."
    )

PUBLIC = {
    **dict.fromkeys(("check", "hint", "progress", "solution"), "tvmnotes.exercises"),
    "generate": "tvmnotes.generation",
    "show": "tvmnotes.tvmscript",
}
# The modules that notebooks use by name, such as `tn.plots`: the helper's own, and the engine's.
MODULES = {
    "asm": "tvmnotes.asm",
    "digits": "tvmnotes.digits",
    "faults": "tvmnotes.faults",
    "language": "tvmnotes.language",
    "models": "tvmnotes.models",
    "plots": "tvmnotes.plots",
    "sliders": "tvmnotes.sliders",
    "threads": "tvmnotes.threads",
    "vision": "tvmnotes.vision",
    "benchmark": "tvmfast.profiling.benchmark",
    "data": "tvmfast.core.data",
    "env": "tvmfast.core.machine",
    "flowchart": "tvmfast.profiling.flowchart",
    "gluon": "tvmfast.frontends.mxnet.gluon",
    "measure": "tvmfast.profiling.measure",
    "peak": "tvmfast.profiling.peak",
    "profiling": "tvmfast.profiling.profiler",
    "records": "tvmfast.compiler.records",
    "spec": "tvmfast.core.specs",
    "tracing": "tvmfast.profiling.trace",
    "tuning": "tvmfast.tuning",
}
# Names that have gone, and what to write instead.
_FORMER = {
    "base": "tvmfast.core",
    "classic": "tvmclassic",
    "compiler": "tvmfast.compiler",
    "course": "tn.check, tn.hint, tn.solution and tn.progress, or tvmnotes itself for its modules",
    "importers": "tvmfast.frontends",
    "measuring": "tvmfast.profiling",
    "runtime": "tvmfast.runtime",
    "Size": "tn.Dim",
}

# torch and TVM have circular imports: of two threads that import them at once, one would get half a module.
_importing = RLock()

__all__ = [*tvmfast.PUBLIC, *PUBLIC, *MODULES]


def __getattr__(name: str):
    with _importing:
        if name in tvmfast.PUBLIC:
            value = getattr(tvmfast, name)
        elif name in PUBLIC:
            value = getattr(import_module(PUBLIC[name]), name)
        elif name in MODULES:
            value = import_module(MODULES[name])
        elif name in _FORMER:
            raise ImportError(
                f"tvmnotes.{name} is no longer there: use {_FORMER[name]}"
            )  # which `from tvmnotes import` shows
        else:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__():
    return sorted(set(globals()) | set(__all__))


_here = Path(__file__).resolve().parent
data.BUNDLED.append(
    _here / "_data" if (_here / "_data").is_dir() else _here.parent / "data"
)  # in a wheel, a checkout
table.finders.append(lambda: __getattr__("plots"))  # `.plot()` of a result draws with them
