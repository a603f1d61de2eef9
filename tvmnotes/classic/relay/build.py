"""`relay.build` and what it gives: a library that is also the three parts of old, and executors that run at once."""

import json
import shutil
import tarfile
import tempfile
import zipfile
from pathlib import Path

import numpy as np
import tvm

from ...base.data import atomic_path
from ...compiler import build as compiler
from ...runtime import compiled as runtime
from ...runtime import saved
from ..context import apply_best, opt_level
from ..graph_executor import GraphModule, GraphModuleDebug, graph_json, params_of
from ..targets import for_build
from . import ir
from .lower import to_relax
from .ty import TensorType


def build(ir_mod, target=None, target_host=None, executor=None, runtime=None, workspace_memory_pools=None,
          constant_memory_pools=None, params=None, mod_name="default", **_others) -> "ExecutorFactoryModule":  # fmt: skip
    """Compile a Relay module or function for a CPU, at the opt level of the `PassContext` around it (3 without one).

    Gives a library as of TVM 0.7 and later, which also unpacks into `graph, lib, params` as before.
    """
    if isinstance(executor, dict):  # where TVM had params until 0.8
        params = executor
    mod, weights = relax_of(ir_mod, params)
    target = compiler.resolve_target(for_build(target, target_host))
    records = apply_best.get().lookup(target) if apply_best.get() else None
    return ExecutorFactoryModule(compiler.build(mod, weights, target, opt_level(), records), mod_name, ir_mod)


def relax_of(program, params=None) -> tuple[tvm.IRModule, dict]:
    """`(IRModule, params)` for `tn.build`, of a Relay module, function or expression; a Relax module stays as it is."""
    params = params_of(params or {})
    if isinstance(program, tvm.IRModule) and not isinstance(program, ir.IRModule):
        return program, params
    if not isinstance(program, ir.IRModule):
        program = ir.IRModule.from_expr(program)
    return to_relax(program["main"], params, program.by_name())


def _backend(what: str, served: str):
    """`relay.backend.Executor("graph")` and `Runtime("cpp")`, which `relay.build` takes."""

    def make(name: str = served, options: dict | None = None) -> str:
        if name != served:
            raise NotImplementedError(
                f"relay.backend.{what}({name!r}): only {served!r} is served; to run without Python, save with lib.save "
                "and use the C++ runtime"
            )
        return name

    return make


BACKEND = {"Executor": _backend("Executor", "graph"), "Runtime": _backend("Runtime", "cpp")}


class ExecutorFactoryModule:
    """What `relay.build` returns. `lib["default"](dev)` is for GraphModule; `graph, lib, params = …` unpacks it."""

    def __init__(self, compiled: runtime.Compiled, name: str = "default", ir_mod=None):
        self.compiled, self.libmod_name, self.ir_mod = compiled, name, ir_mod

    def __getitem__(self, name: str):
        if name in (self.libmod_name, "default"):
            return lambda *_devices: GraphModule(self.compiled)
        if name == "debug_create":
            return lambda _name, *_devices: GraphModuleDebug(self.compiled)
        raise AttributeError(
            f"the library has no function {name!r}; it has {self.libmod_name!r} and 'debug_create'"
        )

    get_function = __getitem__

    def __iter__(self):
        return iter((self.graph_json, self.lib, self.params))

    def get_lib(self) -> "ExecutorFactoryModule":
        return self

    def get_graph_json(self) -> str:
        return graph_json(self.compiled)

    def get_params(self) -> dict:
        """The parameters as the build has folded and packed them, by name."""
        return dict(self.compiled.params)

    get_executor_config = get_graph_json
    lib = module = property(get_lib)
    graph_json, params = property(get_graph_json), property(get_params)

    def get_source(self, fmt: str = "ll") -> str:
        """LLVM's text ("ll") or assembly ("s", "asm") of the kernels. Raises ValueError for a library from a file."""
        return self.compiled.source(fmt=fmt or "ll")

    imported_modules = property(lambda self: [])

    def export_library(self, file_name, fcompile=None, addons=None, workspace_dir=None, **_options) -> None:
        """Write library, graph and parameters to one file: `.so` is a shared library too, `.tar` an archive."""
        file = Path(file_name)
        tar, names = file.suffix == ".tar", [*_PARTS]
        with tempfile.TemporaryDirectory() as folder, atomic_path(file) as part:
            network = self.compiled.save(Path(folder) / "lib")
            if not tar:  # the others stand behind it, where readers of archives look
                shutil.copyfile(network / names.pop(0), part)
            saved.pack(part, ((name, (network / name).read_bytes()) for name in names), tar)

    save = export_library

    def __repr__(self) -> str:
        return f"ExecutorFactoryModule({self.compiled!r})"


def load_module(path, fmt: str = "", original=None):
    """`tvm.runtime.load_module`, for what `export_library` wrote here; other files go the way of today."""
    file = Path(path)
    if not file.is_file():
        raise ValueError(f"File {path} does not exist; expected a library that export_library wrote")
    with tempfile.TemporaryDirectory() as folder:
        parts = _unpack(file)
        if "manifest.json" not in parts:
            if original is None:
                raise ValueError(f"{path} is not a library that export_library wrote here")
            return original(str(path))
        for name, content in parts.items():
            (Path(folder) / name).write_bytes(content)
        return ExecutorFactoryModule(runtime.load(folder))


def is_library(path) -> bool:
    """Whether a file is one that `export_library` wrote here."""
    return Path(path).is_file() and "manifest.json" in _unpack(Path(path))


_PARTS = (*saved.FILES, "manifest.json")  # the library first


def _unpack(file: Path) -> dict[str, bytes]:
    """The parts of a saved network in a file of `export_library`, by name."""
    if tarfile.is_tarfile(file):
        with tarfile.open(file) as archive:
            return {name: archive.extractfile(name).read() for name in _PARTS if name in archive.getnames()}
    if not zipfile.is_zipfile(file):
        return {}
    with zipfile.ZipFile(file) as archive:
        parts = {name: archive.read(name) for name in _PARTS if name in archive.namelist()}
    if "manifest.json" in parts:
        parts["lib.so"] = file.read_bytes()[: json.loads(parts["manifest.json"])["files"]["lib.so"]["size"]]
    return parts


# ---------------------------------------------------------------- running an expression at once


class Executor:
    """What `relay.create_executor` gives: `evaluate()` is the program as a Python function."""

    def __init__(self, kind="graph", mod=None, device=None, target=None, params=None):
        if kind not in ("graph", "vm", "debug", "aot"):
            raise ValueError(f"create_executor: expected the kind graph, vm, aot or debug; got {kind!r}")
        self.mod, self.target, self.params = mod, target, params

    def evaluate(self, expr=None, binds=None):
        """The program, or `expr`, as a function of its inputs; an expression without inputs is computed."""
        program = self.mod if expr is None or isinstance(expr, tvm.ir.GlobalVar) else expr
        if isinstance(program, ir.Expr) and not isinstance(program, ir.Function):
            program = ir.Function(ir.free_vars(program), program)
            if not program.params or binds:
                named = {v.name_hint: array for v, array in (binds or {}).items()}
                return self._function(program)(**named)
        return self._function(program)

    def _function(self, program):
        main = program["main"] if isinstance(program, ir.IRModule) else program
        libraries, level = {}, opt_level()

        def run(*args, **kwargs):
            names = [param.name_hint for param in main.params]
            arrays = {**dict(zip(names, args, strict=False)), **(self.params or {}), **kwargs}
            for param in main.params:  # a type that was left open is that of the argument
                if param.type_annotation is None and param.name_hint in arrays:
                    array = arrays[param.name_hint]
                    array = array if hasattr(array, "shape") else np.asarray(array)
                    param.type_annotation = TensorType(array.shape, array.dtype)
            if "lib" not in libraries:
                with tvm.transform.PassContext(opt_level=level):
                    libraries["lib"] = build(program, self.target, params=self.params)
            module = GraphModule(libraries["lib"].compiled)
            module.run(**arrays)
            outputs = [module.get_output(i) for i in range(module.get_num_outputs())]
            return outputs if libraries["lib"].compiled.graph["tuple"] else outputs[0]

        return run


def create_executor(kind="graph", mod=None, device=None, target="llvm", params=None, ctx=None) -> Executor:
    """`relay.create_executor(kind, mod=…, device=…, target=…).evaluate()(x)`."""
    return Executor(kind, mod, device or ctx, target, params)


def optimize(mod, target=None, params=None):
    """`relay.optimize`: the module with its parameters bound; our passes run in `relay.build`."""
    return mod, params or {}
