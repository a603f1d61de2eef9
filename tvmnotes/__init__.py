"""Helper package of a course on compiling neural networks with Apache TVM.

    import tvmnotes as tn

    net         = tn.models.load("resnet18")
    mod, params = tn.from_pytorch(net, {"input0": (1, 3, 224, 224)})
    lib         = tn.build(mod, params)
    y           = lib(x)

Every name of the public API is imported on first use, so that `import tvmnotes` costs nothing and loads
neither torch nor tvm. It does one thing at once: set TVM's thread count, which TVM reads only once, before
its first kernel (see `base/workarounds.py`).
"""

from importlib import import_module
from threading import RLock

from .base import env, table, workarounds

__version__ = "0.1.0"

PUBLIC = {
    "from_pytorch": "importers.pytorch",
    "from_onnx": "importers.onnx",
    "from_mxnet": "importers.mxnet.importer",
    "Size": "base.sizes",
    "build": "importers.build",
    "load": "runtime.compiled",
    "show": "course.show",
    "generate": "course.generate",
    "compare": "measuring.measure",
    "profile": "measuring.profiling",
    "trace_build": "measuring.tracing",
    "tune": "tuning",
}
# The modules that notebooks use by name, such as `tn.plots`, and the layers that they belong to.
MODULES = {
    **dict.fromkeys(("data", "spec"), "base"),
    **dict.fromkeys(
        ("asm", "digits", "language", "models", "plots", "sliders", "threads", "vision"), "course"
    ),
    **dict.fromkeys(("benchmark", "flowchart", "measure", "peak", "profiling", "tracing"), "measuring"),
    "gluon": "importers.mxnet",
    "records": "compiler",
}
_LAYERS = ("base", "classic", "compiler", "course", "importers", "measuring", "runtime", "tuning")

# torch and TVM have circular imports: of two threads that import them at once, one would get half a module.
_importing = RLock()

__all__ = ["env", *PUBLIC, *MODULES, *_LAYERS]


def __getattr__(name: str):
    with _importing:
        if name in PUBLIC:
            value = getattr(import_module(f"{__name__}.{PUBLIC[name]}"), name)
        elif name in MODULES:
            value = import_module(f"{__name__}.{MODULES[name]}.{name}")
        elif name in _LAYERS:
            value = import_module(f"{__name__}.{name}")
        else:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__():
    return sorted(set(globals()) | set(__all__))


table.finders.append(lambda: __getattr__("plots"))  # `.plot()` of a result draws with them
workarounds.set_tvm_threads(env.usable_cores())
