"""Compiled networks: they map arrays to NumPy arrays, and can be saved and loaded.

`tn.build` returns a `Compiled`, `tn.load` loads one in another process; `saved.py` documents the files.
Loading and running need TVM's runtime library, not its compiler: `import tvm`, which takes several times as
long, is left to code that compiles.
"""

import contextlib
import functools
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..core import folders, machine
from ..core.compat import import_tvm_ffi, start_machine
from ..core.dims import Dim, check_shape, evaluate
from ..core.specs import TensorSpec, shorten
from . import fork, narrow, pool, saved
from .tensors import copied, function, input_tensor, outputs_in, to_numpy, zeros

if TYPE_CHECKING:
    import pandas as pd
    import tvm
    import tvm_ffi
else:
    tvm_ffi = import_tvm_ffi()

# Given this as its instrument, the virtual machine has none from then on.
tvm_ffi.register_global_func("tvmfast.no_instrument", lambda: None, override=True)


class Compiled:
    """A network compiled for a target: a function from its inputs, by position or by name, to NumPy arrays.

    Any thread may call it, and a child of a fork: one call runs at a time, on all of TVM's threads.

    Attributes:
        inputs: A `TensorSpec` for each input of a call; a dynamic dim is a `Dim` in its shape.
        outputs: A `TensorSpec` for each output of a call.
        state: A `TensorSpec` for each input that the network holds itself, an output of the call before.
        variants: Shape variants: for each of the `sizes` that `tn.build` was given, the network specialized
            for these dims, a `Compiled` in the same library. A call runs the first that its inputs fit.
        graph: The content of graph.json.
        params: TVM tensors by the names of the folded parameters.
        opt_level: The build's opt level.
    """

    def __init__(self, library: Any, graph: dict, params: dict, target: Any, opt_level: int):
        """Start the virtual machine if the library, a `codegen.Executable` or a path, can run here.

        `graph` is the content of graph.json, `params` has TVM tensors by name, those of its shape variants
        included, and `target` is the build's, or the manifest's description of it.
        """
        self.opt_level = opt_level
        self._build_info = target if isinstance(target, dict) else saved.build_info(target)
        # As bytes, since the file may be replaced while the library is in use.
        self._library = library.read_bytes() if isinstance(library, Path) else library
        self._lock = fork.lock()
        self._held: list[tvm_ffi.Tensor] = []
        # Inputs of the last run. TVM frees its results, and what they are views of, in the next run, without
        # Python's lock, which NumPy 1 needs to free an array.
        self._given: list[tvm_ffi.Tensor] = []
        self._describe(graph, params)
        self._main: Any = None if saved.mismatch(self._build_info) else self._start(library)
        self.variants = [self._variant(each, params) for each in graph.get("variants", ())]

    def _describe(self, graph: dict, params: dict) -> None:
        """Set what depends on the content of graph.json, and choose its parameters from all."""
        self.graph = graph
        self.params = {name: params[name] for name in graph["params"]}
        self._params = tvm_ffi.convert(list(self.params.values()))
        dims = {name: Dim(name, *bounds) for name, bounds in graph.get("sizes", {}).items()}

        def spec(name: str, tensor: dict) -> TensorSpec:
            return TensorSpec(name, tuple(dims.get(n, n) for n in tensor["shape"]), tensor["dtype"])

        inputs = [spec(tensor["name"], tensor) for tensor in graph["inputs"]]
        outputs = [spec(f"output{n}", tensor) for n, tensor in enumerate(graph["outputs"])]
        state = graph.get("state", {})  # the number of an output, by the name of the input that it becomes
        self.inputs = [each for each in inputs if each.name not in state]
        self.outputs = [each for n, each in enumerate(outputs) if n not in state.values()]
        self.state = [each for each in inputs if each.name in state]
        self._is_state = [each.name in state for each in inputs]
        self._fed = [state[each.name] for each in self.state]
        self._absent = [  # the positions of None among what a call returns, which has no state
            n - sum(fed < n - before for fed in state.values())
            for before, n in enumerate(graph.get("absent", ()))
        ]
        self._several = len(self.outputs) != 1 or (graph["tuple"] and not state) or bool(self._absent)

    def _variant(self, graph: dict, params: dict) -> "Compiled":
        """Return a shape variant, which shares all but what `_describe` sets, and its function."""
        made = object.__new__(type(self))
        made.__dict__.update(self.__dict__, variants=[])
        made._describe(graph, params)
        made._main = self._main and self._function(graph["function"])
        return made

    def _start(self, library: Any) -> Callable | None:
        opened: tuple = pool.open_library(library) if isinstance(library, Path) else library.open()
        module, self._on_pool = opened
        machine = start_machine(module, tvm_ffi.DLDeviceType.kDLCPU)
        self._vm = SimpleNamespace(set_instrument=machine["set_instrument"], function=machine.__getitem__)
        return self._function(self.graph.get("function", "main"))

    def _function(self, name: str) -> Callable:
        """Return a function of the virtual machine, which may run in a child of a fork."""
        function = self._vm.function(name)
        return function if self._on_pool else partial(fork.run, function)

    @functools.cached_property
    def target(self) -> "tvm.target.Target":
        """The build target as a `tvm.target.Target`.

        Raises:
            ValueError: `machine.checked_target` rejects the target in the manifest.
        """
        return machine.checked_target(self._build_info["target"])

    def __call__(self, *args: Any, **kwargs: Any) -> np.ndarray | tuple[np.ndarray, ...]:
        """Run the network once, from the state that the call before has left.

        Args:
            *args: NumPy arrays, torch tensors or TVM tensors of exactly the shapes and dtypes of `inputs`; a
                `Dim` there may have any value within its bounds, which is the same everywhere in a call.
            **kwargs: The same, by the names of the inputs.

        Returns:
            A NumPy array, or a tuple of them if the model has several outputs, with None where a network of
            PyTorch returns it; `outputs` lists the arrays alone. Where integers are divided by 0, the
            quotient and the remainder are 0, as NumPy's are; PyTorch raises an error.

        Raises:
            TypeError: The number, the name or the type of an argument is wrong.
            ValueError: A shape or dtype is wrong (checked before anything runs).
            RuntimeError: The library is for another kind of machine.
            IndexError: An index in the inputs, or computed from them, is out of range.
        """
        return self.arrays(self.run(self.bind(args, kwargs)))

    def arrays(self, result: list[tvm_ffi.Tensor]) -> np.ndarray | tuple[np.ndarray, ...]:
        """Return what `run` returns as a call does."""
        if not self._several:
            return to_numpy(result[0])
        arrays = list(map(to_numpy, result))
        for position in self._absent:
            arrays.insert(position, None)
        return tuple(arrays)

    def session(self) -> "Session":
        """Make a `Session`: the same network, with a state of its own that starts from zeros."""
        return Session(self)

    def reset(self) -> None:
        """Set the state to zeros, as it is before the first call."""
        with self._lock:
            self._held.clear()

    def run(
        self, values: list, params: dict | None = None, held: list[tvm_ffi.Tensor] | None = None
    ) -> list[tvm_ffi.Tensor]:
        """Run the network as a call does, without converting the outputs.

        Args:
            values: One value per input, in the order of `inputs`.
            params: Replacements for the parameters of the same names.
            held: The tensors of the state, which become those after the call; empty: zeros. None: the
                network's own.

        Returns:
            The outputs as TVM tensors.
        """
        tensors = self.input_tensors(values)
        if self._main is None:
            reason = saved.mismatch(self._build_info)
            raise RuntimeError(f"this library cannot run here: {reason}. Save it, and load it where it can.")
        chosen = self.serving(tensors) if self.variants and not params else self
        weights = tvm_ffi.convert(list({**self.params, **params}.values())) if params else chosen._params
        return self._advance(chosen._main, tensors, weights, held)

    def _advance(
        self, main: Callable, tensors: list, weights: Any, held: list | None
    ) -> list[tvm_ffi.Tensor]:
        """Call `main` with the state, replace that by the state after the call; return the other outputs.

        State that is an input of the call is copied, as is an output that is state: the memory of inputs and
        outputs is the caller's.
        """
        if not self._fed:  # for speed: a call without state does none of the below
            with self._lock:
                result = main(*tensors, weights)
                self._given = tensors
            return outputs_in(result, self.graph)
        held = self._held if held is None else held
        taken = {tensor.data_ptr() for tensor in tensors}
        with self._lock:
            shapes = self._shapes_of_state(tensors, held)
            begins = zip(shapes, self.state, strict=True)
            state = iter(held or [self._on_device(zeros(shape, spec.dtype)) for shape, spec in begins])
            given = iter(tensors)
            result = main(*(next(state if is_state else given) for is_state in self._is_state), weights)
            outputs = outputs_in(result, self.graph)
            fed = [outputs[n] for n in self._fed]
            held[:] = [self._copied(tensor, taken) for tensor in fed]
            self._given = tensors
            own = {tensor.data_ptr() for tensor in held}
        return [self._copied(output, own) for n, output in enumerate(outputs) if n not in self._fed]

    def _shapes_of_state(self, tensors: list, held: list) -> list[tuple]:
        """Return the shapes of the state in a call with these inputs.

        Raises ValueError if the state before it, `held`, is of another shape; it is empty in the first call.
        """
        if not self.graph.get("sizes"):
            return [spec.shape for spec in self.state]
        values = self.dim_values(tensors)
        shapes = [tuple(evaluate(dim, values) for dim in spec.shape) for spec in self.state]
        for tensor, spec, shape in zip(held, self.state, shapes, strict=False):
            if tuple(tensor.shape) != shape:
                raise ValueError(
                    f"state {spec.name!r}: it is of shape {tuple(tensor.shape)} since the first call, and "
                    f"the inputs of this one need {shape}; reset() it, or use another session()"
                )
        return shapes

    def _copied(self, tensor: tvm_ffi.Tensor, taken: set[int]) -> tvm_ffi.Tensor:
        """Return a tensor, or a copy of it if its address is among those taken."""
        return self._on_device(copied(to_numpy(tensor))) if tensor.data_ptr() in taken else tensor

    def _on_device(self, tensor: tvm_ffi.Tensor) -> tvm_ffi.Tensor:
        """Return a tensor in the memory where the network runs."""
        return tensor

    def input_tensors(self, values: list) -> list[tvm_ffi.Tensor]:
        """Check a list of inputs, and make each a tensor that kernels can read."""
        known: dict[str, tuple[int, str]] = {}
        return [input_tensor(value, spec, known) for value, spec in zip(values, self.inputs, strict=True)]

    def serving(self, values: list) -> "Compiled":
        """Return what a call with these inputs, which fit, runs: a shape variant, or the network itself."""

        def fits(variant: Compiled) -> bool:
            return all(
                isinstance(dim, Dim) or n == dim
                for value, spec in zip(values, variant.inputs, strict=True)
                for n, dim in zip(value.shape, spec.shape, strict=True)
            )

        return next(filter(fits, self.variants), self)

    @property
    def arrays_of_all(self) -> dict:
        """The parameters of the network and of its shape variants, by name."""
        return {name: array for each in (self, *self.variants) for name, array in each.params.items()}

    def dim_values(self, values: list) -> dict[str, int]:
        """Return the value of each dynamic dim, by name, in a call with these inputs, which fit."""
        known: dict[str, tuple[int, str]] = {}
        for value, spec in zip(values, self.inputs, strict=True):
            check_shape(spec.name, tuple(value.shape), spec.shape, known)
        return {name: value for name, (value, _) in known.items()}

    def bind(self, args: tuple, kwargs: dict) -> list:
        """Return the arguments of a call in the order of `inputs`; raises TypeError if they do not fit."""
        if not kwargs and len(args) == len(self.inputs):  # for speed
            return list(args)
        names = [spec.name for spec in self.inputs]
        unknown = [name for name in kwargs if name not in names]
        twice = [name for name in names[: len(args)] if name in kwargs]
        missing = [name for name in names[len(args) :] if name not in kwargs]
        if unknown or twice or missing or len(args) > len(names):
            came = f"{len(args)} by position" + (f" and {', '.join(kwargs)} by name" if kwargs else "")
            faults = [("no such input", unknown), ("given twice", twice), ("missing", missing)]
            details = "".join(f"; {what}: {', '.join(which)}" for what, which in faults if which)
            noun = "input" if len(names) == 1 else "inputs"
            wanted = "; ".join(map(str, self.inputs))
            raise TypeError(f"expected {len(names)} {noun} ({wanted}), got {came}{details}")
        return [*args, *(kwargs[name] for name in names[len(args) :])]

    @property
    def kernels(self) -> "pd.DataFrame":
        """A pandas DataFrame with a row for each kernel, by name: family, config, calls.

        `family` is the kind of schedule; "none" means TVM's own loops, as at opt levels below 3. `config` is
        a dictionary of the choices that the schedule leaves open. `calls` is the number of the kernel's calls
        in a run. `in_float32`, if any kernel of a quantized network has it, says which operators compute
        there in float32, and why. On a GPU, `launches` lists the "grid" and "block" of each CUDA kernel that
        a call launches.
        """
        import pandas as pd  # for speed: only where a table is shown

        schedules = self.graph["kernels"]
        calls = Counter(node["kernel"] for node in self.graph["nodes"])
        columns = {
            "family": [schedule["family"] for schedule in schedules.values()],
            "config": [_config(schedule) for schedule in schedules.values()],
            "calls": [calls[name] for name in schedules],
        }
        if reasons := self.graph.get("in_float32"):
            columns["in_float32"] = [reasons.get(name, "") for name in schedules]
        if any("launches" in schedule for schedule in schedules.values()):
            columns["launches"] = [schedule["launches"] for schedule in schedules.values()]
        return pd.DataFrame(columns, index=pd.Index(schedules, name="kernel", dtype="object"))

    @property
    def functions(self) -> dict:
        """The kernels as functions in TensorIR, by name; empty if the network was loaded."""
        kernels = {} if isinstance(self._library, bytes) else self._library.kernels
        return {var.name_hint: func for var, func in kernels.items()}

    @property
    def tuned(self) -> str:
        """Which tuning records the build used, for how many workloads; empty if it was to use none."""
        return self.graph["tuned"]

    def source(self, kernel: str | None = None, fmt: str = "ll") -> str:
        """Return LLVM's code for a kernel, or for all.

        Args:
            kernel: A name in `kernels`, or None for all.
            fmt: "ll" for LLVM IR, "asm" for assembly.

        Raises:
            ValueError: The kernel is unknown, or the network was loaded: a file contains machine code only.
        """
        if isinstance(self._library, bytes):
            raise ValueError(
                "a network that was loaded has no source any more: build it, and ask what tn.build gives"
            )
        self._known(kernel)
        return self._library.source(kernel, fmt)

    def _known(self, kernel: str | None) -> None:
        if kernel is not None and kernel not in self.graph["kernels"]:
            raise ValueError(f"unknown kernel {kernel!r}; there are: {shorten(self.graph['kernels'])}")

    @contextlib.contextmanager
    def instrumented(self, instrument: Any) -> Iterator[None]:
        """Call `instrument` around each call of a run; see `tvm.relax.VirtualMachine.set_instrument`."""
        self._vm.set_instrument(instrument)
        try:
            yield
        finally:
            self._vm.set_instrument("tvmfast.no_instrument")

    def timed(self, *inputs: Any) -> list[tuple[str, float]]:
        """Return each kernel call of a run with its time in seconds, in order.

        The network runs twice, in a session of its own, and the second run is timed. `tn.profile` measures
        more runs and reports more.
        """
        from .stopwatch import Stopwatch, of_kernels  # for speed: it imports TVM

        values = self.input_tensors(self.bind(inputs, {}))
        serving = self.serving(values)
        watch = Stopwatch(serving, partial(serving.session().run, values))
        watch()
        return [(call.name, call.end - call.begin) for call in of_kernels(watch.take()[0], serving)]

    def __repr__(self) -> str:
        inputs, outputs = (", ".join(map(str, specs)) for specs in (self.inputs, self.outputs))
        cpu = self._build_info["target"].get("mcpu", "generic CPU")
        tuned = f"; {self.tuned}" if self.tuned else ""
        kernels = f"{len(self.graph['kernels'])} kernels, opt level {self.opt_level}, {cpu}"
        state = f"; state {', '.join(map(str, self.state))}" if self.state else ""
        given = [", ".join(f"{n} {value}" for n, value in each.graph["at"].items()) for each in self.variants]
        variants = f"; also for {'; '.join(given)}" if given else ""
        return f"Compiled({inputs} -> {outputs}{state}; {kernels}{tuned}{variants})"

    def save(self, path: str | os.PathLike) -> Path:
        """Write the network to a folder, or to one file if `path` ends in .zip, atomically; see `saved`.

        A saved network at `path` is replaced in one step: a concurrent reader gets the old one or the new
        one. State is not saved: a loaded network starts from zeros. A program that calls `main` of lib.so
        itself passes all inputs of graph.json and gets all outputs: it holds the state, zeros at first, and
        passes as each input under "state" the output of the call before that has the number there. `main` may
        write to the memory of these inputs. `main` takes the arrays of params.bin that graph.json lists under
        "params"; a shape variant's function, its name, its dims and its arrays are under "variants".

        params.bin has the parameters as kernels read them, folded and packed for the target. Only the weights
        of an int8 network are saved in int8, a quarter of the bytes of float32, whatever its kernels read:
        int16 where an instruction multiplies pairs (AVX2, SSE2), int16 transformed by Winograd's method, or
        float32 of depthwise convolutions. If graph.json has "prepare", the name of a function, that function
        takes the arrays in the order of "params", once, and what it returns is what `main` takes:

            params = vm["prepare"](params)

        Whoever leaves that out gets an error, as `main` checks its parameters. Scales, biases and sums of
        weights take 4 bytes by channel; weights of groups are padded with zeros to whole blocks of channels.

        Returns:
            `path`.

        Raises:
            FileExistsError: `path` contains any other file.
            RuntimeError: No C++ compiler is found that links for the target.
        """
        saved.write(Path(path), self._fill, self._build_info, self.opt_level)
        return Path(path)

    def __reduce__(self) -> tuple:
        """Pickle and copy the saved form. Unpickle only what you would run as a program."""
        with folders.temporary("tvmfast-pickle-") as folder:
            return _from_archive, (self.save(folder / "net.zip").read_bytes(),)

    def _fill(self, folder: Path) -> None:
        lib, graph, params = (folder / name for name in saved.FILES)
        if isinstance(self._library, bytes):
            lib.write_bytes(self._library)
        else:
            self._library.export_library(
                str(lib), workspace_dir=str(folder.parent), **saved.linker(self._build_info)
            )
        graph.write_text(json.dumps(self.graph, indent=1))
        function("SaveParamsToFile")(narrow.for_file(self.arrays_of_all, self.graph), str(params))


class CompiledForGPU(Compiled):
    """A network compiled for an NVIDIA GPU: a `Compiled` whose parameters and temporaries are in its memory.

    Attributes:
        device: TVM's device, where this machine can run the network; else None.
    """

    device: Any = None

    def __init__(self, library: Any, graph: dict, params: dict, target: Any, opt_level: int):
        """As of `Compiled`."""
        if not isinstance(target, dict):
            described = json.loads(machine.target_json(target))
            host = {"architecture": machine.architecture(), "system": machine.system()}
            target = {"target": described, "instruction_sets": [], **host}
        super().__init__(library, graph, params, target, opt_level)

    def _start(self, library: Any) -> Callable | None:
        import tvm  # for speed: a CPU's network does without
        from tvm import relax  # for speed: a CPU's network does without

        from . import on_gpu  # for speed: it imports TVM

        self._cannot = on_gpu.cannot_run(self.target)
        if self._cannot:
            return None
        self.device = tvm.cuda()
        if isinstance(library, Path):
            library = pool.open_library(library)[0]
        module = getattr(library, "mod", library)
        with self._memory_errors():
            self._params = tvm_ffi.convert([self._on_device(array) for array in self.params.values()])
        vm: Any = relax.VirtualMachine(module, self.device)
        self._vm = vm
        return vm["main"]

    def run(
        self, values: list, params: dict | None = None, held: list[tvm_ffi.Tensor] | None = None
    ) -> list[tvm_ffi.Tensor]:
        """Run the network on a list of inputs, as a call does.

        Args:
            values: The inputs; those in the CPU's memory are copied to the GPU's, others are read in place.
            params: Arrays that replace the parameters of these names; likewise.
            held: See `Compiled.run`.

        Returns:
            TVM tensors in the GPU's memory, possibly not yet computed: `self.device.sync()` waits for them.

        Raises:
            RuntimeError: This machine cannot run the library, or the GPU is out of memory.
            ValueError: Parameters are passed to a network that is a CUDA graph.
        """
        with self._memory_errors():
            return self._run(values, params, held)

    def _run(self, values: list, params: dict | None, held: list | None) -> list[tvm_ffi.Tensor]:
        tensors = self.to_device(values)
        if self._main is None:
            raise RuntimeError(f"this library cannot run here: {self._cannot}. Build it where it can.")
        weights = self._params
        if params:
            if self.graph["is_cuda_graph"]:
                raise ValueError(
                    "params: a CUDA graph keeps the parameters that it was recorded with; build the network "
                    'without "relax.backend.use_cuda_graph" to pass others'
                )
            arrays = dict(zip(self.params, self._params, strict=True))
            arrays |= {name: self._on_device(array) for name, array in params.items()}
            weights = tvm_ffi.convert(list(arrays.values()))
        return self._advance(self._main, tensors, weights, held)

    def _memory_errors(self) -> contextlib.AbstractContextManager:
        from . import on_gpu  # for speed: it imports TVM

        def needed() -> tuple[int, int]:
            sizes = (array.numel() * array.dtype.itemsize for array in self.params.values())
            return sum(sizes), self.graph["memory"]["peak"]

        return on_gpu.memory_errors(self.device, needed)

    def _on_device(self, tensor: Any) -> tvm_ffi.Tensor:
        from . import on_gpu  # for speed: it imports TVM

        return tensor if tensor.device == self.device else on_gpu.copied(tensor, self.device)

    def to_device(self, values: list) -> list[tvm_ffi.Tensor]:
        """Return the inputs, checked, in the GPU's memory; those already there are not copied."""
        from . import on_gpu  # for speed: it imports TVM

        if len(values) != len(self.inputs):
            raise TypeError(f"expected {len(self.inputs)} inputs, got {len(values)}")
        both = zip(values, self.inputs, strict=True)
        return [on_gpu.on_device(value, spec, self.device) for value, spec in both]

    @contextlib.contextmanager
    def instrumented(self, instrument: Any) -> Iterator[None]:
        """Call `instrument` around each call of a run, when the GPU has finished what came before.

        Raises:
            ValueError: The network is a CUDA graph, which the virtual machine launches as a whole.
        """
        if self.graph["is_cuda_graph"]:
            raise ValueError(
                "a CUDA graph is launched as a whole: to see its kernels, build the network without "
                '"relax.backend.use_cuda_graph"'
            )

        def waiting(*args: Any) -> Any:
            self.device.sync()
            return instrument(*args)

        with super().instrumented(waiting):
            yield

    def source(self, kernel: str | None = None, fmt: str = "cuda") -> str:
        """Return the CUDA source of the functions that one of `kernels` launches, or of all.

        Raises:
            ValueError: The kernel is unknown, another `fmt` is wanted, or the network was loaded.
        """
        if fmt != "cuda":
            raise ValueError(f"fmt: a network for a GPU has source in 'cuda'; got {fmt!r}")
        if isinstance(self._library, bytes):
            return super().source(kernel)
        self._known(kernel)
        return self._library.source(kernel)

    def __repr__(self) -> str:
        return super().__repr__().replace("generic CPU", f"CUDA {self.target.attrs['arch']}")


class Session:
    """A network with a state of its own, called as the network is; `Compiled.session` makes one.

    It shares the weights and kernels, so that it takes the memory of its state only, and that from its first
    call on. Any thread may call any session: one call of a network runs at a time, whatever session it
    belongs to. Calls of one session by several threads advance the same state, in the order in which they
    happen to run; give each thread its own. If a call raises an error, the state may hold a part of what that
    call was to write: `reset` it.

    Attributes:
        compiled: The network, a `Compiled`.
    """

    def __init__(self, compiled: Any):
        self.compiled = compiled
        self._held: list = []

    @property
    def inputs(self) -> list[TensorSpec]:
        """The inputs of a call."""
        return self.compiled.inputs

    @property
    def outputs(self) -> list[TensorSpec]:
        """The outputs of a call."""
        return self.compiled.outputs

    @property
    def state(self) -> list[TensorSpec]:
        """The state: a `TensorSpec` for each input that a call takes from the one before."""
        return self.compiled.state

    def __call__(self, *args: Any, **kwargs: Any) -> np.ndarray | tuple[np.ndarray, ...]:
        """Run the network once, from the state that this session's call before has left."""
        return self.compiled.arrays(self.run(self.compiled.bind(args, kwargs)))

    def session(self) -> "Session":
        """Make another session of the same network."""
        return self.compiled.session()

    def run(self, values: list) -> list:
        """Run as a call does, on one value per input; see `Compiled.run`."""
        return self.compiled.run(values, held=self._held)

    def reset(self) -> None:
        """Set the state to zeros, as it is before the first call."""
        self._held = []

    def __repr__(self) -> str:
        return f"Session of {self.compiled!r}"


def load(path: str | os.PathLike) -> Compiled:
    """Load a network that `Compiled.save` wrote. A library is machine code: load only what you trust.

    Args:
        path: A folder or an archive.

    Returns:
        The network, as `tn.build` returned it, but without its source.

    Raises:
        FileNotFoundError: The folder, or one of its files, is missing.
        ValueError: A file is not the one that was saved, the manifest cannot be read, or an archive contains
            anything else.
        RuntimeError: The library was built by other versions of TVM or of tvmfast's format, or for another
            CPU, or the system does not open it.
    """
    path = Path(path)

    def compiled(folder: Path, manifest: dict) -> Compiled:
        graph = json.loads((folder / "graph.json").read_text())
        for name, text in graph["kernels"].items() if manifest["format"] == 5 else ():
            family, _, config = text.partition(" ")
            graph["kernels"][name] = {"family": family, **json.loads(config or "{}")}
        arrays = function("LoadParamsFromFile")(str(folder / "params.bin"))
        names = [name for each in (graph, *graph.get("variants", ())) for name in each["params"]]
        params = narrow.from_file({name: arrays[name] for name in names}, graph)
        library = (folder / "lib.so").resolve()
        kind = CompiledForGPU if manifest["target"]["kind"] == "cuda" else Compiled
        try:
            made = kind(library, graph, params, saved.build_info_in(manifest), manifest["opt_level"])
        except (RuntimeError, OSError) as error:
            raise RuntimeError(
                f"{path}/lib.so does not open ({error}): build it again for this machine"
            ) from error
        if isinstance(made, CompiledForGPU) and made.device is None:
            raise RuntimeError(f"{path} cannot run here: {made._cannot}. Build it again for this machine.")
        return made

    return saved.read(path, compiled)


def _from_archive(content: bytes) -> Compiled:
    with folders.temporary("tvmfast-pickle-") as folder:
        file = folder / "net.zip"
        file.write_bytes(content)
        return load(file)


def cannot_run(target: "tvm.target.Target") -> str | None:
    """Say why this machine cannot run code compiled for `target`; None if it can."""
    return saved.mismatch(saved.build_info(target))


def _config(schedule: dict) -> dict:
    return {knob: value for knob, value in schedule.items() if knob not in ("family", "launches")}
