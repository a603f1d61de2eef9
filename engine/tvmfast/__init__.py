"""Networks from PyTorch, ONNX and MXNet, compiled with Apache TVM to code that is fast from the first call.

    import tvmfast

    mod, params = tvmfast.from_pytorch(net, {"x": (1, 3, 224, 224)})
    lib         = tvmfast.build(mod, params)
    y           = lib(x)

Every name of the public API is imported on first use, so that `import tvmfast` costs nothing and loads
neither torch nor tvm. It does two things at once: set up what the variable TVMFAST_LOG has shown (see
`core/logs.py`), and set TVM's thread count, which TVM reads only once, before its first kernel (see
`core/compat.py`).
"""

from importlib import import_module
from threading import RLock

from .core import compat, logs, machine

__version__ = "0.1.0"

PUBLIC = {
    "from_pytorch": "frontends.pytorch.importer",
    "from_onnx": "frontends.onnx.importer",
    "from_mxnet": "frontends.mxnet.importer",
    "Dim": "core.dims",
    "build": "api",
    "quantize": "api",
    "load": "runtime.compiled",
    "compare": "profiling.measure",
    "profile": "profiling.profiler",
    "diverge": "profiling.diverge",
    "trace_build": "profiling.trace",
    "tune": "tuning",
}
# The extras that bring packages which may be missing.
_EXTRAS = {
    **dict.fromkeys(("torch", "torchvision"), "torch"),
    **dict.fromkeys(("onnx", "onnxruntime"), "onnx"),
    **dict.fromkeys(("mxnet", "gluoncv"), "mxnet"),
    **dict.fromkeys(("pandas", "jinja2"), "profile"),
    **{"xgboost": "tune", "tornado": "rpc", "typer": "cli"},
}

# torch and TVM have circular imports: of two threads that import them at once, one would get half a module.
_importing = RLock()

__all__ = list(PUBLIC)


def __getattr__(name: str):
    if name not in PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with _importing:
        try:
            value = getattr(import_module(f"{__name__}.{PUBLIC[name]}"), name)
        except ModuleNotFoundError as error:
            missing = (error.name or "").partition(".")[0]
            if missing not in _EXTRAS:
                raise
            raise ModuleNotFoundError(
                f"tvmfast.{name} needs the package {missing}: pip install 'tvmfast[{_EXTRAS[missing]}]'",
                name=missing,
            ) from error
    globals()[name] = value
    return value


def __dir__():
    return sorted(set(globals()) | set(__all__))


logs.set_up()
compat.set_tvm_threads(machine.usable_cores())
