"""Compiled modules (`tvm.runtime.Module`) with the methods that they had."""

from tvm.runtime import Module

# The last: a library's only function, beside its name.
_ENTRIES = ("main", "default_function", "__tvm_ffi_main")


class WrongKind(RuntimeError, TypeError):
    """Arguments of another kind, as of an error that is TVM's, which all were."""


class WrongValue(RuntimeError, ValueError):
    """Arguments of another shape or dtype, as of an error that is TVM's, which all were."""


def _entry(module: Module) -> str:
    """Return the name of a module's function: as `build` noted it, or, of a loaded library, what it has."""
    if "entry_name" in module.__dict__:
        return module.__dict__["entry_name"]
    return next((name for name in _ENTRIES if module.implements_function(name)), "main")


def _call(module: Module, *args):
    """Call a module's function: that of its name, or its only one."""
    if "entry_call" not in module.__dict__:  # looking it up takes as long as a small kernel
        module.__dict__["entry_call"] = module.get_function(_entry(module))
    try:
        return module.__dict__["entry_call"](*args)
    except (TypeError, ValueError) as error:
        if isinstance(error, RuntimeError):
            raise
        refusal = WrongKind if isinstance(error, TypeError) else WrongValue
        raise refusal(*error.args) from error


def _time_evaluator(original):
    def time_evaluator(self, func_name, dev=None, number=10, repeat=1, *args, ctx=None, **options):
        """`Module.time_evaluator`, with the device also as `ctx`."""
        if self.kind != "rpc" and not self.implements_function(func_name, True):
            raise AttributeError(f"Module has no function {func_name!r}")  # as of module[func_name]
        return original(self, func_name, ctx if dev is None else dev, number, repeat, *args, **options)

    return time_evaluator


def _save(module: Module, file_name, fmt: str = "") -> None:
    """`Module.save`: write an object file, LLVM's or a GPU's code, by the ending of the name."""
    module.write_to_file(str(file_name), fmt or str(file_name).rpartition(".")[2])


METHODS = {
    "__call__": _call,
    "entry_name": property(_entry),
    "entry_func": property(lambda self: self.get_function(_entry(self))),
    "get_source": Module.inspect_source,
    "imported_modules": property(lambda self: list(self.imports)),
    "save": _save,
    "time_evaluator": _time_evaluator(Module.time_evaluator),
    "type_key": property(lambda self: self.kind),
}
