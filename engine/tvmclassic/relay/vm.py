"""`relay.vm`, `tvm.runtime.vm`, `create_executor`: programs with branches, recursion, dims of any length.

    exe = relay.vm.compile(mod, target="llvm", params=params)
    result = tvm.runtime.vm.VirtualMachine(exe, tvm.cpu()).invoke("main", x)

A program without branches, and with a number for each axis, is compiled at once, and saved as machine code.
Others run in parts (see `machine`), and are saved as programs.
"""

import contextlib
import contextvars
import json
import sys
from pathlib import Path

import numpy as np
import tvm
from tvm.runtime import vm as today

from tvmfast.core import machine as this_machine
from tvmfast.core.data import atomic_path
from tvmfast.core.specs import dtype_of, require_dense
from tvmfast.runtime import saved
from tvmfast.runtime.tensors import contiguous

from ..context import opt_level
from ..graph_executor import GraphModule, GraphModuleDebug, Report, params_of, timed
from ..targets import for_build, runs_on
from . import ir, programs
from .build import ExecutorFactoryModule, build, builder, unpack
from .build import load_module as load_network
from .lower import UnknownType, Unservable, is_static, to_relax
from .machine import Closure, Machine
from .ops import qnn
from .ty import TensorType, TupleType

_TODAY = today.VirtualMachine
_FORMAT = "tvmclassic vm 1"  # of the code that `Executable.save` returns


# ---------------------------------------------------------------- compiled programs


class Executable:
    """The result of `relay.vm.compile`: a program, and its library if it could be compiled at once."""

    def __init__(self, functions: dict, compiled=None, weights=None, library=None, settings=None):
        self._functions, self._library = functions, library
        self._settings = settings or {}  # of the build, to be saved
        self._machine = Machine(functions, compiled, weights or {})

    @staticmethod
    def load_exec(bytecode, lib) -> "Executable":
        """Return what `save` has written. Raises ValueError for other code, TypeError for another library."""
        if not isinstance(lib, ExecutorFactoryModule | ProgramLibrary):
            raise TypeError(f"load_exec: expected a library of exe.save(), got {type(lib).__name__}")
        try:
            is_ours = json.loads(bytes(bytecode))["format"] == _FORMAT
        except (ValueError, KeyError, TypeError):
            is_ours = False
        if not is_ours:
            raise ValueError(
                "load_exec: expected the code that exe.save() returned; compile the program again"
            )
        return _executable(lib)

    def save(self) -> tuple[bytearray, "ExecutorFactoryModule | ProgramLibrary"]:
        """Return `(code, lib)`: bytes, and a library to write by `lib.export_library`."""
        return bytearray(json.dumps({"format": _FORMAT}).encode()), self.lib

    @property
    def lib(self) -> "ExecutorFactoryModule | ProgramLibrary":
        """The library: machine code, or of a program that is compiled in parts the program."""
        return ProgramLibrary(self) if self._library is None else self._library

    mod = module = lib

    @property
    def globals(self) -> list[str]:
        """The names of the functions."""
        return sorted(self._functions) or ["main"]

    @property
    def primitive_ops(self) -> list[str]:
        """The kernels compiled so far, by name."""
        networks = [network.compiled for network in self._machine.networks.values()]
        compiled = networks if self._library is None else [self._library.compiled]
        return sorted({name for each in compiled for name in each.graph["kernels"]})

    def get_function_params(self, func_name: str = "main") -> list[str]:
        """Return the names of a function's parameters. Raises ValueError if there is no such function."""
        return [param.name_hint for param in self._params(func_name)]

    def _params(self, name: str) -> list[ir.Var]:
        if not self._functions and name == "main":  # loaded
            specs = self.lib.compiled.inputs
            return [ir.Var(spec.name, TensorType(spec.shape, spec.dtype)) for spec in specs]
        if name not in self._functions:
            raise ValueError(f"the program has no function {name!r}; it has {', '.join(self.globals)}")
        return self._functions[name].params

    def _run(self, name: str, values: list):
        """Return the result of a function; `values` are tensors in its order."""
        if self._library is None or name != "main":
            try:
                return self._machine.call(self._functions[name], values)
            except RecursionError:
                raise RecursionError(
                    f"@{name}: its calls are deeper than Python's limit of {sys.getrecursionlimit()}: let a "
                    "function call itself in its last step, as a loop does, or raise the limit by "
                    "sys.setrecursionlimit"
                ) from None
        outputs = tuple(self._library.compiled.run(values))
        return outputs if self._library.compiled.graph["tuple"] else outputs[0]


class ProgramLibrary:
    """The library of a program that is compiled in parts: the program itself and its weights, for a file.

    There is no machine code in it. What lies between branches is compiled where it was loaded, when it runs.
    """

    def __init__(self, exe: Executable):
        self.exe = exe

    def export_library(self, file_name, *_args, **_options) -> None:
        """Write the program to a file, of any ending; `tvm.runtime.load_module` reads it."""
        data, arrays = programs.dump(self.exe._functions, self.exe._machine.weights)
        text = json.dumps({"format": _FORMAT, **self.exe._settings, **data})
        parts = zip(_PARTS, (text.encode(), bytes(tvm.runtime.save_param_dict(arrays))), strict=True)
        with atomic_path(file_name) as part:
            saved.pack(part, parts, Path(file_name).suffix == ".tar")

    save = export_library

    @staticmethod
    def load(path) -> "ProgramLibrary | None":
        """Return the program in a file of `export_library`, None for another file; ValueError if damaged."""
        parts = unpack(Path(path), _PARTS) if Path(path).is_file() else {}
        if not all(name in parts for name in _PARTS):
            return None
        data = json.loads(parts[_PARTS[0]])
        if data.get("format") != _FORMAT:
            raise ValueError(f"{path}: a program of another version; compile it again, and save it")
        functions, weights = programs.load(data, dict(tvm.runtime.load_param_dict(parts[_PARTS[1]]).items()))
        settings = {name: data[name] for name in ("target", "opt_level", "requantize")}
        target = settings["target"] and tvm.target.Target(settings["target"])
        with (
            qnn.requantize_config(*settings["requantize"]),
            tvm.transform.PassContext(opt_level=settings["opt_level"]),
        ):
            return ProgramLibrary(Executable(functions, builder(target), weights, settings=settings))


_PARTS = ("program.json", "arrays.bin")  # of a file of `ProgramLibrary`


def load_module(path, fmt: str = "", original=None):
    """`build.load_module`, which also reads a program that `ProgramLibrary` wrote."""
    return ProgramLibrary.load(path) or load_network(path, fmt, original)


def _executable(library: ExecutorFactoryModule | ProgramLibrary) -> Executable:
    return library.exe if isinstance(library, ProgramLibrary) else Executable({}, library=library)


def _settings(target) -> dict:
    """Return what of the current contexts, beside a target, changes the code of a program."""
    described = target and json.loads(this_machine.target_json(target))  # None: where it is loaded
    return {"target": described, "opt_level": opt_level(), "requantize": qnn.requantize_configured()}


def compile(mod, target=None, target_host=None, params=None) -> Executable:
    """`relay.vm.compile`: compile a program for the virtual machine, at the opt level of the `PassContext`.

    Args:
        mod: Relay module, function or expression.
        target: As of `relay.build`.
        target_host: Likewise.
        params: Weights by name, which `main` then takes no more.

    Raises:
        TypeError: `mod` is no Relay program.
        ValueError: A type or an operator's arguments are wrong, as far as they are known.
    """
    if not isinstance(mod, ir.IRModule | ir.Expr):
        raise TypeError(f"relay.vm.compile: expected a Relay module or function, got {type(mod).__name__}")
    program = mod if isinstance(mod, ir.IRModule) else ir.IRModule.from_expr(mod)
    functions = dict(program.by_name())
    whole = functions["main"]
    names = {param.name_hint for param in whole.params}
    arrays = {name: array for name, array in params_of(params or {}).items() if name in names}
    weights = {
        param: ir.Constant(arrays[param.name_hint]) for param in whole.params if param.name_hint in arrays
    }
    functions["main"] = ir.Function([param for param in whole.params if param not in weights], whole.body)
    target = for_build(target, target_host)
    compiled, settings = builder(target), _settings(target)
    exe = Executable(functions, compiled, weights, settings=settings)
    typed = [param.type_annotation for param in functions["main"].params]
    if None not in typed:
        with contextlib.suppress(UnknownType):
            to_relax(whole, arrays, functions, runs=False)
        is_network = all(isinstance(ty, TensorType) and is_static(ty) for ty in typed)
        if is_network and exe._machine.straight(whole.body):
            result = whole.known_ret_type
            if all(isinstance(kind, TensorType) for kind in getattr(result, "fields", [result])):
                network = compiled(*to_relax(whole, arrays, functions))
                exe._library = ExecutorFactoryModule(network, ir_mod=program)
    return exe


class VMCompiler:
    """`relay.vm.VMCompiler`: the steps of `compile`, one by one."""

    def __init__(self):
        self._params, self._executable = {}, None

    def set_params(self, params: dict) -> None:
        """Set the weights by name."""
        self._params = params

    def lower(self, mod, target=None, target_host=None) -> None:
        """Compile the program."""
        self._executable = compile(mod, target, target_host, self._params)

    def codegen(self) -> None:
        """Do nothing: `lower` has compiled the program."""

    def get_exec(self) -> Executable:
        """Return the program. Raises ValueError before `lower`."""
        if self._executable is None:
            raise ValueError("VMCompiler.get_exec: call lower(mod, target) first")
        return self._executable


# ---------------------------------------------------------------- machines as scripts have them


class VirtualMachine:
    """`tvm.runtime.vm.VirtualMachine` of a program of `relay.vm.compile`; of other modules TVM's own.

    `exe` may also be the library that `exe.save()` returned, or a file of it that was loaded.
    """

    NAIVE_ALLOCATOR, POOLED_ALLOCATOR = 1, 2

    def __new__(cls, exe, *args, **kwargs):
        """Create a machine of this class for Relay's programs, else TVM's."""
        if isinstance(exe, Executable | ExecutorFactoryModule | ProgramLibrary):
            return super().__new__(cls)
        return _TODAY(exe, *args, **kwargs)

    def __init__(self, exe, device=None, memory_cfg=None):
        self._exec = exe if isinstance(exe, Executable) else _executable(exe)
        self._device = (device[0] if isinstance(device, list | tuple) else device) or tvm.cpu()
        if self._exec._library is not None:
            runs_on(self._exec._library.compiled, self._device)
        self._inputs: dict = {}  # by function
        self._result = None

    @property
    def module(self) -> "VirtualMachine":
        """The machine itself."""
        return self

    def set_input(self, func_name: str, *args, **kwargs) -> None:
        """Set all inputs of a function, by position or name.

        Raises:
            ValueError: There is no such function, or an array has the wrong shape or dtype.
            TypeError: An input is missing, or there is none of that name.
        """
        self._inputs[func_name] = self._bound(func_name, args, kwargs)

    def set_one_input(self, func_name: str, *args, **kwargs) -> None:
        """Set one input, as `(func_name, input, array)` or `(func_name, input=array)`."""
        if len(args) + 2 * len(kwargs) != 2:
            raise TypeError("set_one_input: expected (func_name, input, array) or (func_name, input=array)")
        ((key, value),) = kwargs.items() or [args]
        params = self._exec._params(func_name)
        index = key if isinstance(key, int) else self.get_input_index(key, func_name)
        if not 0 <= index < len(params):
            raise ValueError(f"@{func_name} has no input {key!r}; it has {self._listed(func_name)}")
        self._inputs.setdefault(func_name, [None] * len(params))[index] = _argument(params[index], value)

    def invoke(self, func_name: str, *args, **kwargs):
        """Run a function on these inputs or, without any, on those that `set_input` has set.

        Returns:
            A TVM tensor, or a list of results.
        """
        self._result = _listed(self._exec._run(func_name, self._given(func_name, args, kwargs)))
        return self._result

    def run(self, *args, **kwargs):
        """Run `main`."""
        return self.invoke("main", *args, **kwargs)

    def invoke_stateful(self, func_name: str, *args, **kwargs) -> None:
        """Run a function; `get_outputs` returns the results."""
        self.invoke(func_name, *args, **kwargs)

    def get_outputs(self) -> list:
        """Return the results of the last run as a list."""
        return self._result if isinstance(self._result, list) else [self._result]

    def get_input_index(self, input_name: str, func_name: str = "main") -> int:
        """Return the index of an input, or -1."""
        names = self._exec.get_function_params(func_name)
        return names.index(input_name) if input_name in names else -1

    def time_evaluator(self, func_name, dev=None, number=10, repeat=1, min_repeat_ms=0, **_options):
        """Return a function that times the method `func_name`, such as "invoke"; see `GraphModule`."""
        return timed(getattr(self, func_name), self._device, number, repeat, min_repeat_ms)

    def benchmark(
        self,
        device,
        *args,
        func_name="main",
        repeat=5,
        number=5,
        min_repeat_ms=None,
        end_to_end=False,
        **kwargs,
    ):
        """Time runs of a function on inputs as of `invoke`; return a BenchmarkResult, in seconds per run.

        With `end_to_end`, the time includes the copies of inputs and outputs.
        """
        values = self._given(func_name, args, kwargs)
        values = _arrays(values) if end_to_end else values

        def run():
            result = self.invoke(func_name, *values)
            return _arrays(result) if end_to_end else result

        return timed(run, self._device, number, repeat, min_repeat_ms or 0)()

    def _given(self, func_name: str, args, kwargs) -> list:
        """Return the arguments, or without any those that are set; TypeError if one is not."""
        if args or kwargs or func_name not in self._inputs:
            return self._bound(func_name, args, kwargs)
        values = self._inputs[func_name]
        names = self._exec.get_function_params(func_name)
        if missing := [name for name, value in zip(names, values, strict=True) if value is None]:
            raise TypeError(f"@{func_name}: no value is set for {', '.join(missing)}")
        return values

    def _bound(self, func_name: str, args, kwargs) -> list:
        """Return the arguments in the function's order, as tensors."""
        params = self._exec._params(func_name)
        names = [param.name_hint for param in params]
        values = dict(zip(names, args, strict=False))
        if len(args) > len(names) or set(kwargs) & set(values) or set(values) | set(kwargs) != set(names):
            given = ", ".join([f"{len(args)} by position", *kwargs])
            raise TypeError(f"@{func_name} takes {self._listed(func_name)}; got {given}")
        values |= kwargs
        return [_argument(param, values[param.name_hint]) for param in params]

    def _listed(self, func_name: str) -> str:
        names = self._exec.get_function_params(func_name)
        return f"{len(names)} inputs ({', '.join(names)})" if names else "no input"


class VirtualMachineProfiler(VirtualMachine):
    """`tvm.runtime.profiler_vm.VirtualMachineProfiler`: also returns the time of each kernel."""

    def profile(self, *args, func_name="main", collectors=None, number=3, **kwargs) -> Report:
        """Profile `number` runs of a program that was compiled at once."""
        library = self._exec.lib
        if isinstance(library, ProgramLibrary):
            raise Unservable(
                "profile: a program with branches, recursion or relay.Any() is compiled in parts, in a run: "
                "time it as a whole, by benchmark"
            )
        module = GraphModuleDebug(library.compiled)
        names = self._exec.get_function_params(func_name)
        return module.profile(
            number=number, **dict(zip(names, self._bound(func_name, args, kwargs), strict=True))
        )


def _argument(param: ir.Var, value):
    """Return an argument as a tensor or a tuple of them, checked by the type that its parameter declares."""
    return _converted(value, param.type_annotation, f"input {param.name_hint!r}")


def _converted(value, ty, name: str):
    if isinstance(value, list | tuple) and not isinstance(ty, TensorType):
        fields = ty.fields if isinstance(ty, TupleType) else [None] * len(value)
        if len(fields) != len(value):
            raise ValueError(f"{name}: expected a tuple of {len(fields)}, got {len(value)} values")
        return tuple(
            _converted(part, field, f"{name}, value {n}")
            for n, (part, field) in enumerate(zip(value, fields, strict=True))
        )
    require_dense(value, name)
    if not isinstance(value, tvm.runtime.Tensor):
        array = np.asarray(value)
        value = array.astype(ty.dtype) if isinstance(ty, TensorType) else array
        if value.dtype != array.dtype and "float" not in ty.dtype and not np.array_equal(value, array):
            raise ValueError(f"{name}: expected {ty}, got {array.dtype} with numbers that {ty.dtype} lacks")
        value = tvm.runtime.tensor(value)
    given = TensorType(value.shape, dtype_of(value))
    if isinstance(ty, TensorType) and not ty.accepts(given):
        raise ValueError(f"{name}: expected {ty}, got {given}")
    return contiguous(value)


def _listed(value):
    """Return a result as scripts take it: tuples as lists."""
    if isinstance(value, Closure):
        raise Unservable("a function that returns a function: call it, so that arrays are the result")
    return list(map(_listed, value)) if isinstance(value, tuple) else value


def _arrays(values):
    """Return tensors, in lists or tuples, as NumPy arrays."""
    return list(map(_arrays, values)) if isinstance(values, list | tuple) else values.numpy()


# ---------------------------------------------------------------- create_executor


class Executor:
    """The result of `relay.create_executor`: `evaluate()` returns the program as a Python function."""

    def __init__(self, kind="graph", mod=None, device=None, target=None, params=None):
        if kind not in ("graph", "vm", "debug", "aot"):
            raise ValueError(f"create_executor: expected the kind graph, vm, aot or debug; got {kind!r}")
        self.kind, self.mod = kind, mod
        self.target, self.device = target, device
        self.params = params

    def evaluate(self, expr=None, binds=None):
        """Return the program, or `expr`, as a function of its inputs; without inputs, compute its value."""
        program = self.mod if expr is None else expr
        if isinstance(program, tvm.ir.GlobalVar):
            program = self.mod[program]
        if isinstance(program, ir.Expr) and not isinstance(program, ir.Function):
            program = ir.Function(ir.free_vars(program), program)
            if not program.params or binds:
                named = {v.name_hint: array for v, array in (binds or {}).items()}
                return self._function(program)(**named)
        return self._function(program)

    def _function(self, program):
        if isinstance(program, ir.Function):  # it may call functions of the module
            others = self.mod.by_name() if isinstance(self.mod, ir.IRModule) else {}
            program = ir.IRModule({**others, "main": program})
        level, context = opt_level(), contextvars.copy_context()
        if self.kind in ("vm", "debug") and isinstance(program, ir.IRModule):
            return VirtualMachine(compile(program, self.target, params=self.params), self.device).run
        main, given = program["main"], self.params or {}
        libraries = {}  # "lib"; from the first run on, if types are missing

        def make():
            libraries["lib"] = build(program, self.target, params=self.params)

        if all(param.type_annotation or param.name_hint in given for param in main.params):
            make()

        def run(*args, **kwargs):
            names = [param.name_hint for param in main.params]
            arrays = {**dict(zip(names, args, strict=False)), **given, **kwargs}
            if len(args) > len(names) or set(names) - set(arrays):
                told = ", ".join([f"{len(args)} by position", *given, *kwargs])
                raise TypeError(f"the program takes {', '.join(names) or 'no input'}; got {told}")
            for param in main.params:  # a missing type is taken from the argument
                if param.type_annotation is None and param.name_hint in arrays:
                    array = arrays[param.name_hint]
                    array = array if hasattr(array, "shape") else np.asarray(array)
                    param.type_annotation = TensorType(array.shape, array.dtype)
            if "lib" not in libraries:
                with tvm.transform.PassContext(opt_level=level):
                    context.copy().run(make)
            module = GraphModule(libraries["lib"]["default"](self.device))
            module.run(**arrays)
            outputs = [module.get_output(i) for i in range(module.get_num_outputs())]
            return outputs if libraries["lib"].compiled.graph["tuple"] else outputs[0]

        return run


def create_executor(kind="graph", mod=None, device=None, target="llvm", params=None, ctx=None) -> Executor:
    """`relay.create_executor(kind, mod=…, device=…, target=…).evaluate()(x)`.

    The kinds vm and debug run programs with branches, recursion and `relay.Any()` too.
    """
    return Executor(kind, mod, device or ctx, target, params)


_MACHINES = {"VirtualMachine": VirtualMachine, "Executable": Executable}
_COMPILER = {"compile": compile, "VMCompiler": VMCompiler}
NAMESPACES = {
    "tvm.relay.vm": _COMPILER,
    "tvm.relay.backend.vm": _COMPILER,
    "tvm.runtime.profiler_vm": {"VirtualMachineProfiler": VirtualMachineProfiler},
}
PATCHES = [(today, name, value) for name, value in _MACHINES.items()]
