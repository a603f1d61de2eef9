"""Compiled networks: arrays in, NumPy arrays out; saved to a folder and loaded back.

`tn.build` gives a `Compiled`, `tn.load` brings one back in another process. A saved network is a folder of four files:

    lib.so          the kernels and the virtual machine's program: machine code for one target
    graph.json      inputs, outputs, the kernel calls between them, the kernels' schedules
    params.bin      the parameters, folded and packed, in TVM's format for named arrays
    manifest.json   versions, target, instruction sets, and size and SHA-256 of the three others
"""

import contextlib
import json
import os
import shutil
import sys
import tempfile
import threading
import time as clock
from importlib import metadata
from pathlib import Path

import numpy as np
import tvm
import tvm_ffi

from . import env
from .data import checksum
from .spec import TensorSpec, dtype_of

_FILES = ("lib.so", "graph.json", "params.bin")
_ALIGNMENT = 64  # bytes: what compiled kernels expect of a buffer's address
_FORMAT = 4
_MANIFEST = {
    "versions": dict,
    "target": dict,
    "architecture": str,
    "instruction_sets": list,
    "opt_level": int,
    "files": dict,
}


class Compiled:
    """A network compiled for a target. Call it with the inputs, by position or by name; get NumPy arrays.

    `inputs` and `outputs` are lists of `TensorSpec`; `graph` is the content of graph.json; `params` maps the names of
    the folded parameters to TVM tensors; `target` and `opt_level` are those of the build. Any thread may call it: one
    call runs at a time, on all of TVM's threads.
    """

    def __init__(self, library, graph: dict, params: dict, target: tvm.target.Target, opt_level: int):
        """`library` is what `tvm.compile` gives, or the path of a lib.so."""
        self.graph, self.params, self.target, self.opt_level = graph, params, target, opt_level
        self.inputs = [TensorSpec(i["name"], tuple(i["shape"]), i["dtype"]) for i in graph["inputs"]]
        self.outputs = [TensorSpec(f"output{n}", tuple(o["shape"]), o["dtype"]) for n, o in enumerate(graph["outputs"])]
        # Kept as bytes, since the file may be replaced while the library is in use.
        self._library = library.read_bytes() if isinstance(library, Path) else library
        self._params = tvm_ffi.convert(list(params.values()))
        self._lock = threading.Lock()
        self._main = None if cannot_run(target) else self._start(library)

    def _start(self, library):
        module = _open_library(library) if isinstance(library, Path) else library
        self._vm = tvm.relax.VirtualMachine(module, tvm.cpu())
        return self._vm["main"]

    def __call__(self, *args, **kwargs):
        """Run the network once.

        Arguments are NumPy arrays, torch tensors or TVM tensors of exactly the shapes and dtypes of `inputs`. Returns
        a NumPy array, or a tuple of them where the model has several outputs.

        Raises TypeError for a wrong number, name or kind of argument, ValueError for a wrong shape or dtype (before
        anything runs), RuntimeError where the library is for another kind of machine.
        """
        result = self.run(self._bind(args, kwargs))
        return tuple(field.numpy() for field in result) if self.graph["tuple"] else result[0].numpy()

    def run(self, values: list, params: dict | None = None) -> list[tvm.runtime.Tensor]:
        """As a call, with a list of inputs and TVM tensors as outputs; `params` stand in for those of a name."""
        tensors = [_tensor(value, spec) for value, spec in zip(values, self.inputs, strict=True)]
        if self._main is None:
            reason = cannot_run(self.target)
            raise RuntimeError(f"this library cannot run here: {reason}. Save it, and load it where it can.")
        weights = tvm_ffi.convert(list({**self.params, **params}.values())) if params else self._params
        with self._lock:
            result = self._main(*tensors, weights)
        return list(result) if self.graph["tuple"] else [result]

    def _bind(self, args: tuple, kwargs: dict) -> list:
        """The arguments in the order of `inputs`."""
        names = [spec.name for spec in self.inputs]
        unknown = [name for name in kwargs if name not in names]
        twice = [name for name in names[: len(args)] if name in kwargs]
        missing = [name for name in names[len(args) :] if name not in kwargs]
        if unknown or twice or missing or len(args) > len(names):
            came = f"{len(args)} by position" + (f" and {', '.join(kwargs)} by name" if kwargs else "")
            faults = [("no such input", unknown), ("given twice", twice), ("missing", missing)]
            raise TypeError(
                f"expected {len(names)} input{'s' * (len(names) != 1)} ({'; '.join(map(str, self.inputs))}), got {came}"
                + "".join(f"; {what}: {', '.join(which)}" for what, which in faults if which)
            )
        return [*args, *(kwargs[name] for name in names[len(args) :])]

    @property
    def kernels(self) -> dict[str, str]:
        """By kernel, the schedule that it got and its config; "none" below opt level 3: TVM's loops as they come."""
        return dict(self.graph["kernels"])

    @property
    def tuned(self) -> str:
        """Which tuning records the build used, and for how many workloads; empty where it was to use none."""
        return self.graph["tuned"]

    @contextlib.contextmanager
    def instrumented(self, instrument):
        """Within it, runs call `instrument` around each call; see `tvm.relax.VirtualMachine.set_instrument`."""
        self._vm.set_instrument(instrument)
        try:
            yield
        finally:
            self._vm.set_instrument(lambda *_: 0)

    @contextlib.contextmanager
    def timing(self):
        """Within it, runs add each kernel with the seconds that its call took to the list that this gives, in order."""
        kernels, spent, begin = self.graph["kernels"], [], 0.0

        def instrument(_function, symbol, before, _result, *_args):
            nonlocal begin
            if before:
                begin = clock.perf_counter()
            elif symbol in kernels:
                spent.append((str(symbol), clock.perf_counter() - begin))
            return 0

        with self.instrumented(instrument):
            yield spent

    def timed(self, *inputs) -> list[tuple[str, float]]:
        """Run the network once and give each kernel with the seconds that its call took, in the order of the calls."""
        values = self._bind(inputs, {})
        with self.timing() as spent:
            self.run(values)
        return spent

    def __repr__(self) -> str:
        inputs, outputs = (", ".join(map(str, specs)) for specs in (self.inputs, self.outputs))
        cpu = self.target.attrs.get("mcpu", "generic CPU")
        tuned = f"; {self.tuned}" if self.tuned else ""
        kernels = f"{len(self.kernels)} kernels, opt level {self.opt_level}, {cpu}"
        return f"Compiled({inputs} -> {outputs}; {kernels}{tuned})"

    def save(self, folder: str | os.PathLike) -> Path:
        """Write the network to `folder` (see this module's docstring), all of it or nothing; returns the folder.

        A folder that holds a saved network and nothing else is replaced. Raises FileExistsError where `folder` is
        anything else that holds files, RuntimeError where linking finds no C++ compiler.
        """
        given, folder = Path(folder), Path(folder).resolve()
        if folder.is_file() or (folder.is_dir() and not _replaceable(folder)):
            raise FileExistsError(
                f"{given} exists and is not a saved network, or holds other files too: name a new folder, or remove it "
                "first"
            )
        folder.parent.mkdir(parents=True, exist_ok=True)
        new = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
        try:
            self._write(new)
            if folder.exists():
                old = new.with_name(new.name + "-old")
                folder.rename(old)
                try:
                    new.rename(folder)
                except BaseException:
                    old.rename(folder)
                    raise
                shutil.rmtree(old)
            else:
                new.rename(folder)
        finally:
            shutil.rmtree(new, ignore_errors=True)
        return given

    def _write(self, folder: Path) -> None:
        lib, graph, params = (folder / name for name in _FILES)
        if isinstance(self._library, bytes):
            lib.write_bytes(self._library)
        elif not (shutil.which("g++") or shutil.which("clang++")):
            raise RuntimeError("saving links a library and needs a C++ compiler: install g++ or clang++")
        else:
            self._library.export_library(str(lib))
        graph.write_text(json.dumps(self.graph, indent=1))
        tvm.runtime.save_param_dict_to_file(self.params, str(params))
        manifest = {
            "format": _FORMAT,
            "versions": _versions(),
            "target": json.loads(str(self.target)),
            "architecture": _architecture(self.target),
            "instruction_sets": env.target_instruction_sets(self.target),
            "opt_level": self.opt_level,
            "files": {
                file.name: {"size": file.stat().st_size, "sha256": checksum(file)} for file in (lib, graph, params)
            },
        }
        (folder / "manifest.json").write_text(json.dumps(manifest, indent=1))
        folder.chmod(0o755)


def load(folder: str | os.PathLike) -> Compiled:
    """Load a network that `Compiled.save` wrote.

    A library is machine code: load only what you trust. Raises FileNotFoundError where the folder or one of its files
    is missing, ValueError where a file is not the one that was saved or the manifest cannot be read, RuntimeError
    where the library was built by other versions of TVM or tvmnotes's format, or for a CPU that this one is not.
    """
    folder = Path(folder)
    manifest = _read_manifest(folder)
    if manifest["versions"] != _versions():
        built, here = (", ".join(f"{k} {v}" for k, v in vs.items()) for vs in (manifest["versions"], _versions()))
        raise RuntimeError(f"{folder} was built with {built}; here is {here}: build it again here, or install those")
    target = _read_target(folder, manifest)
    mismatch = _mismatch(manifest["architecture"], manifest["instruction_sets"])
    if mismatch:
        raise RuntimeError(f"{folder} cannot run here: {mismatch}. Build it again for this machine.")
    for name, known in manifest["files"].items():
        file = folder / name
        if not file.is_file():
            raise FileNotFoundError(f"{folder} lacks {name}: copy the folder again as a whole, or build it again")
        if known != {"size": file.stat().st_size, "sha256": checksum(file)}:
            raise ValueError(
                f"{file} is not the file that was saved (checksum differs): copy it again, or build it again"
            )
    graph = json.loads((folder / "graph.json").read_text())
    arrays = tvm.runtime.load_param_dict_from_file(str(folder / "params.bin"))
    params = {name: arrays[name] for name in graph["params"]}
    library = (folder / "lib.so").resolve()
    return Compiled(library, graph, params, target, manifest["opt_level"])


def _open_library(file: Path):
    """The module in a shared library.

    It is opened under a name of its own: where a library is open already, the system's loader gives that one for its
    name again, even if the file has been replaced since.
    """
    with tempfile.TemporaryDirectory() as folder:
        link = Path(folder) / file.name
        link.symlink_to(file)
        return tvm_ffi.load_module(str(link))  # tvm.runtime.load_module would follow the link first


def _replaceable(folder: Path) -> bool:
    """Whether `save` may replace the folder: it is empty, or holds a saved network and nothing else."""
    names = {entry.name for entry in folder.iterdir()}
    return not names or ("manifest.json" in names and names <= {*_FILES, "manifest.json"})


def _read_manifest(folder: Path) -> dict:
    try:
        manifest = json.loads((folder / "manifest.json").read_text())
    except FileNotFoundError:
        what = "is not a saved network (it lacks manifest.json)" if folder.is_dir() else "does not exist"
        raise FileNotFoundError(f"{folder} {what}; expected a folder that Compiled.save wrote") from None
    except (ValueError, RecursionError, OSError) as error:
        raise ValueError(
            f"{folder}/manifest.json cannot be read ({error}): copy the folder again, or build it again"
        ) from error
    sound = isinstance(manifest, dict) and all(isinstance(manifest.get(k), kind) for k, kind in _MANIFEST.items())
    if not sound or manifest.get("format") != _FORMAT:
        raise ValueError(f"{folder}/manifest.json is not of format {_FORMAT} of tvmnotes: build the network again")
    if set(manifest["files"]) != set(_FILES):
        raise ValueError(
            f"{folder}/manifest.json: expected the files {', '.join(_FILES)}; got {', '.join(manifest['files'])}"
        )
    return manifest


def _read_target(folder: Path, manifest: dict) -> tvm.target.Target:
    try:
        target = tvm.target.Target(manifest["target"])
    except (ValueError, TypeError, RuntimeError) as error:
        raise ValueError(f"{folder}/manifest.json: TVM does not read its target ({error})") from error
    if target.kind.name != "llvm" or _architecture(target) != manifest["architecture"]:
        raise ValueError(f"{folder}/manifest.json: its target {target} is not of kind llvm for its architecture")
    return target


def cannot_run(target: tvm.target.Target) -> str | None:
    """Why this machine cannot run what is compiled for `target`; None where it can."""
    return _mismatch(_architecture(target), env.target_instruction_sets(target))


def _mismatch(architecture: str, instruction_sets) -> str | None:
    here = _architecture(env.host_target())
    if architecture != here:
        return f"it is built for {architecture}, this machine is {here}"
    missing = [str(isa) for isa in instruction_sets if isa not in env.instruction_sets()]
    return f"it uses {', '.join(missing)}, which this CPU ({env.cpu_name()}) lacks" if missing else None


def _architecture(target: tvm.target.Target) -> str:
    triple = target.attrs.get("mtriple") or tvm.target.codegen.llvm_get_system_triple()
    machine = str(triple).split("-")[0]
    return {"arm64": "aarch64", "amd64": "x86_64"}.get(machine, machine)


def _versions() -> dict[str, str]:
    return {name: metadata.version(name) for name in ("apache-tvm", "apache-tvm-ffi")}


def _tensor(value, spec: TensorSpec) -> tvm.runtime.Tensor:
    """`value` as a TVM tensor on the CPU, without a copy where its memory is contiguous and aligned."""
    torch = sys.modules.get("torch")
    if not isinstance(value, np.ndarray | tvm.runtime.Tensor) and not (torch and isinstance(value, torch.Tensor)):
        raise TypeError(
            f"input {spec.name!r}: expected a NumPy array, torch tensor or TVM tensor; got {type(value).__name__}"
        )
    shape, dtype = tuple(value.shape), dtype_of(value)
    if shape != spec.shape:
        raise ValueError(f"input {spec.name!r}: expected the shape {spec.shape}, got {shape}")
    if dtype != spec.dtype:
        raise ValueError(f"input {spec.name!r}: expected the dtype {spec.dtype}, got {dtype}; convert it first")
    if isinstance(value, tvm.runtime.Tensor):
        return plain(value)
    if isinstance(value, np.ndarray):
        as_it_is = value.flags.c_contiguous and value.flags.writeable and value.ctypes.data % _ALIGNMENT == 0
        as_it_is &= value.dtype.kind in "iuf"  # DLPack knows no bfloat16 of NumPy's, and NumPy 1's knows no bool
        return tvm.runtime.from_dlpack(value) if as_it_is else tvm.runtime.tensor(value)
    value = value.detach().cpu().contiguous()  # a torch tensor
    return tvm.runtime.from_dlpack(value if value.data_ptr() % _ALIGNMENT == 0 else value.clone())


def plain(tensor: tvm.runtime.Tensor) -> tvm.runtime.Tensor:
    """`tensor` as compiled kernels read it, contiguous and aligned in the CPU's memory: itself, or a copy."""
    on_cpu = tensor.device == tvm.cpu(tensor.device.index)
    if on_cpu and tensor.is_contiguous() and tensor.data_ptr() % _ALIGNMENT == 0:
        return tensor
    return tvm.runtime.tensor(np.ascontiguousarray(np.from_dlpack(tensor) if on_cpu else tensor.numpy()))
