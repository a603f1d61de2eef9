"""Attributes of current TVM that `enable` patches: removed ones, and those that now accept less."""

import inspect

import tvm
import tvm.rpc

from . import context, expressions, gradient, remote, runtime, script, struct_info, targets, tir
from .modules import TESTING, install_request_hook, load_module
from .relay import ir, transform, vm
from .removed import missing
from .te import names as te_names

# Modules whose missing attributes raise an error that says what replaced them.
_INCOMPLETE = (tvm, tvm.te, tvm.topi, tvm.target, tvm.transform, tvm.contrib)


def patches() -> list[tuple[object, str, object]]:
    """List the patches as (object, attribute name, new value)."""
    return [
        *_modules(),
        *context.patches(),
        *_targets(),
        *_devices(),
        *te_names.patches(),
        *expressions.patches(),
        (tvm.te, "gradient", gradient.gradient),
        *script.patches(),
        *struct_info.patches(),
        *tir.patches(),
        *remote.patches(),
        *vm.PATCHES,
        *((tvm.runtime.Module, name, value) for name, value in runtime.METHODS.items()),
        (tvm.runtime.Tensor, "asnumpy", tvm.runtime.Tensor.numpy),
        (tvm.runtime.Tensor, "ctx", property(lambda self: self.device)),
        (tvm.runtime.Tensor, "context", property(lambda self: self.device)),
        (tvm.runtime, "load_module", load_module),
        (tvm.runtime, "NDArray", tvm.runtime.Tensor),
        (tvm.transform, "Sequential", transform.Sequential),
        (tvm, "build_config", tvm.transform.PassContext),
        (tvm, "register_func", tvm.register_global_func),
        (tvm, "convert", tvm.runtime.convert),
        (tvm, "TVMError", RuntimeError),
        (tvm.error, "TVMError", RuntimeError),
        *((module, "install_request_hook", install_request_hook) for module in TESTING),
        *((module, "__getattr__", _unknown_in(module)) for module in _INCOMPLETE),
    ]


def _unknown_in(module):
    def unknown(name: str):
        raise AttributeError(missing(module.__name__, name, vars(module)))

    return unknown


# ---------------------------------------------------------------- modules of functions


class _OfEither:
    """Descriptor on `tvm.IRModule`: Relay's attribute for modules of Relay functions, TVM's for others."""

    def __init__(self, name: str, relays):
        self.relays, self.tvms = relays, inspect.getattr_static(tvm.IRModule, name, None)

    def __get__(self, module, owner=None):
        of_relay = module is not None and isinstance(module, ir.IRModule)
        attribute = self.relays if of_relay else self.tvms
        if attribute is None:
            raise AttributeError("a tvm.IRModule has it only with functions of Relay")
        return attribute.__get__(module, owner)


def _modules() -> list:
    """Patch `tvm.IRModule` to become a Relay module as soon as a Relay function is added."""
    init, add = tvm.IRModule.__init__, tvm.IRModule.__setitem__
    update = tvm.IRModule.update
    from_expr, call = tvm.IRModule.from_expr, tvm.ir.GlobalVar.__call__

    def init_of_either(self, functions=None, *args, **kwargs):
        of_relay = isinstance(functions, dict) and any(isinstance(f, ir.Expr) for f in functions.values())
        init(self, None if of_relay else functions, *args, **kwargs)
        for name, function in functions.items() if of_relay else ():
            self[name] = function

    def add_to_either(self, name, function):
        if isinstance(function, ir.Expr) and not isinstance(self, ir.IRModule):
            if len(self.functions):
                raise TypeError(
                    "this tvm.IRModule holds functions of today; put those of Relay into another one"
                )
            self._vars, self._functions = {}, {}  # the fields of ir.IRModule
        (ir.IRModule.__setitem__ if isinstance(self, ir.IRModule) else add)(self, name, function)

    def update_either(self, other):
        (ir.IRModule.update if isinstance(other, ir.IRModule) else update)(self, other)

    def from_expr_of_either(expr, functions=None, type_defs=None):
        of_relay = isinstance(expr, ir.Expr | ir.TupleWrapper)
        return (ir.IRModule.from_expr if of_relay else from_expr)(expr, functions)

    def call_of_either(self, *args):
        return ir.Call(self, args) if any(isinstance(arg, ir.Expr) for arg in args) else call(self, *args)

    special = {
        "__init__": init_of_either,
        "__setitem__": add_to_either,
        "update_func": add_to_either,
        "update": update_either,
        "from_expr": staticmethod(from_expr_of_either),
    }
    shared = {
        name: _OfEither(name, relays)
        for name, relays in vars(ir.IRModule).items()
        if inspect.isfunction(relays) or isinstance(relays, property)
    }
    return [
        (tvm.ir.GlobalVar, "__call__", call_of_either),
        *((tvm.IRModule, name, value) for name, value in {**shared, **special}.items()),
    ]


# ---------------------------------------------------------------- targets, devices


def _targets() -> list:
    init = tvm.target.Target.__init__

    def target_of_string(self, target, host=None, *args):
        init(self, targets.with_arch(target), *([] if host is None else [targets.parse(host)]), *args)

    return [
        (tvm.target.Target, "__init__", target_of_string),
        (tvm.target.Target, "__repr__", targets.text),
        (tvm.target, "create", targets.create),
        (tvm.target, "cuda", targets.cuda),
        (tvm.target, "arm_cpu", targets.arm_cpu),
    ]


def _devices() -> list:
    device = tvm.runtime.Device
    return [
        (device, "device_type", property(lambda self: int(self.dlpack_device_type()))),
        (device, "device_id", property(lambda self: self.index)),
        (device, "__repr__", targets.name_of),
        (device, "__str__", lambda self: repr(self)),
        (tvm, "device", targets.device),
        (tvm, "context", targets.device),
        (tvm, "gpu", tvm.cuda),
        (tvm, "cl", tvm.opencl),
        (tvm, "mtl", tvm.metal),
    ]
