"""`relay.build` and its library, which also unpacks into graph, lib and params."""

import json
import shutil
import tarfile
import tempfile
import zipfile
from pathlib import Path

import tvm

from tvmfast.compiler import build as compiler
from tvmfast.core.data import atomic_path
from tvmfast.runtime import compiled as runtime
from tvmfast.runtime import saved

from ..context import apply_best, lower_passes, opt_level, timing_instruments, without_instruments
from ..graph_executor import GraphModule, GraphModuleDebug, graph_json, params_of
from ..targets import for_build, runs_on
from . import ir
from .lower import to_relax


def build(
    ir_mod,
    target=None,
    target_host=None,
    executor=None,
    runtime=None,
    workspace_memory_pools=None,
    constant_memory_pools=None,
    params=None,
    mod_name="default",
    **_others,
) -> "ExecutorFactoryModule":
    """Compile a Relay program for a CPU or a GPU, at the opt level of the current `PassContext` (default 3).

    Only `ir_mod`, `target`, `params` (weights by name) and `mod_name` have an effect. Returns a library as in
    TVM 0.7 and later, which also unpacks into `graph, lib, params` as before.
    """
    if isinstance(executor, dict):  # the position of params until TVM 0.8
        params = executor
    mod, weights = relax_of(ir_mod, params)
    return ExecutorFactoryModule(builder(target, target_host)(mod, weights), mod_name, ir_mod)


def builder(target=None, host=None):
    """Return a function that compiles `(IRModule, params)` as the current contexts say, also later.

    Raises:
        NotImplementedError: They have passes for the loops of kernels, or what `for_build` raises.
    """
    if lower_passes():
        raise NotImplementedError(
            "relay.build with the option 'tir.add_lower_pass': networks go through tn.build's passes alone; "
            "leave it out, and give such passes to tvm.lower or tvm.build of a kernel"
        )
    target = compiler.resolve_target(for_build(target, host), kinds=("llvm", "cuda"))
    records = apply_best.get().lookup(target) if apply_best.get() else None
    level = opt_level()

    def compiled(mod, weights):
        with without_instruments(but=timing_instruments()):
            return compiler.build(mod, weights, target, level, records)

    return compiled


def relax_of(program, params=None) -> tuple[tvm.IRModule, dict]:
    """Lower a Relay program to `(IRModule, params)` for `tn.build`; return a Relax module as it is."""
    params = params_of(params or {})
    if isinstance(program, tvm.IRModule) and not isinstance(program, ir.IRModule):
        return program, params
    if not isinstance(program, ir.IRModule):
        program = ir.IRModule.from_expr(program)
    return to_relax(program["main"], params, program.by_name())


def _backend(kind: str, served: str):
    """Return `relay.backend.Executor` or `Runtime`, which accept only the name `served`."""

    def make(name: str = served, options: dict | None = None) -> str:
        if name != served:
            raise NotImplementedError(
                f"relay.backend.{kind}({name!r}): only {served!r} is served; to run without Python, save "
                "with lib.save and use the C++ runtime"
            )
        return name

    return make


BACKEND = {"Executor": _backend("Executor", "graph"), "Runtime": _backend("Runtime", "cpp")}


class ExecutorFactoryModule:
    """The result of `relay.build`: `lib["default"](dev)` makes a GraphModule; `graph, lib, params = lib`."""

    def __init__(self, compiled: runtime.Compiled, name: str = "default", ir_mod=None):
        self.compiled, self.libmod_name = compiled, name
        self.ir_mod = ir_mod

    def __getitem__(self, name: str):
        if name in (self.libmod_name, "default"):
            return lambda *devices: GraphModule(self._for(devices))
        if name == "debug_create":
            return lambda _name, *devices: GraphModuleDebug(self._for(devices))
        raise AttributeError(
            f"the library has no function {name!r}; it has {self.libmod_name!r} and 'debug_create'"
        )

    get_function = __getitem__

    def _for(self, devices) -> runtime.Compiled:
        runs_on(self.compiled, devices or None)
        return self.compiled

    def __iter__(self):
        return iter((self.graph_json, self.lib, self.params))

    def get_lib(self) -> "ExecutorFactoryModule":
        """Return the library, which is this object."""
        return self

    def get_graph_json(self) -> str:
        """Return the graph in the graph executor's JSON format."""
        return graph_json(self.compiled)

    def get_params(self) -> dict:
        """Return the parameters by name, as the build folded and packed them."""
        return dict(self.compiled.params)

    get_executor_config = get_graph_json
    lib = module = property(get_lib)
    graph_json, params = property(get_graph_json), property(get_params)

    def get_source(self, fmt: str = "ll") -> str:
        """Return the kernels' LLVM IR ("ll") or assembly ("s", "asm"); of a library for a GPU, CUDA source.

        Raises:
            ValueError: The library was loaded from a file.
        """
        if isinstance(self.compiled, runtime.CompiledForGPU):
            return self.compiled.source()
        return self.compiled.source(fmt=fmt or "ll")

    imported_modules = property(lambda self: [])

    def export_library(self, file_name, fcompile=None, addons=None, workspace_dir=None, **_options) -> None:
        """Write library, graph and parameters to a `.so`, also usable as a shared library, or a `.tar`."""
        file = Path(file_name)
        tar, names = file.suffix == ".tar", [*_PARTS]
        with tempfile.TemporaryDirectory() as folder, atomic_path(file) as part:
            network = self.compiled.save(Path(folder) / "lib")
            if not tar:  # a zip archive of the other parts follows it: its directory is read from the end
                shutil.copyfile(network / names.pop(0), part)
            saved.pack(part, ((name, (network / name).read_bytes()) for name in names), tar)

    save = export_library

    def __repr__(self) -> str:
        return f"ExecutorFactoryModule({self.compiled!r})"


def load_module(path, fmt: str = "", original=None):
    """`tvm.runtime.load_module` for files of `export_library`; others are passed to `original`.

    Raises:
        ValueError: There is no such file, or it is another one and `original` is None.
    """
    file = Path(path)
    if not file.is_file():
        raise ValueError(f"File {path} does not exist; expected a library that export_library wrote")
    with tempfile.TemporaryDirectory() as folder:
        parts = unpack(file)
        if "manifest.json" not in parts:
            if original is None:
                raise ValueError(f"{path} is not a library that export_library wrote here")
            return original(str(path))
        for name, content in parts.items():
            (Path(folder) / name).write_bytes(content)
        return ExecutorFactoryModule(runtime.load(folder))


def parts_of(path) -> dict[str, bytes]:
    """Return the files in a library of `export_library`, by name; {} for any other file."""
    parts = unpack(Path(path)) if Path(path).is_file() else {}
    return parts if "manifest.json" in parts else {}


_PARTS = (*saved.FILES, "manifest.json")  # library first


def unpack(file: Path, names=_PARTS) -> dict[str, bytes]:
    """Return the parts of an archive that have these names, as of `export_library`; {} if it is none."""
    if tarfile.is_tarfile(file):
        with tarfile.open(file) as archive:
            return {name: archive.extractfile(name).read() for name in names if name in archive.getnames()}
    if not zipfile.is_zipfile(file):
        return {}
    with zipfile.ZipFile(file) as archive:
        parts = {name: archive.read(name) for name in names if name in archive.namelist()}
    if "manifest.json" in parts:
        parts["lib.so"] = file.read_bytes()[: json.loads(parts["manifest.json"])["files"]["lib.so"]["size"]]
    return parts


def optimize(mod, target=None, params=None):
    """`relay.optimize`: returns module and parameters unchanged; the passes run in `relay.build`."""
    return mod, params or {}
