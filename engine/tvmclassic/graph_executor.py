"""The graph executor and its debugger: `graph_executor`, `graph_runtime`, `debug_executor`, `debug_runtime`.

A `GraphModule` stores inputs by name and runs a `Compiled` on demand; the JSON graph has the old format.
"""

import json
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd
import tvm
from tvm.runtime.module import BenchmarkResult

from tvmfast.core.specs import dtype_of, require_dense
from tvmfast.profiling import profiler
from tvmfast.runtime.compiled import Compiled, CompiledForGPU
from tvmfast.runtime.tensors import contiguous

from .targets import name_of, runs_on


class GraphModule:
    """A compiled network and its inputs: `GraphModule(lib["default"](dev))`, or `create(…)`."""

    def __init__(self, module):
        if isinstance(module, GraphModule):
            self.__dict__.update(module.__dict__)
            return
        if not isinstance(module, Compiled):
            raise TypeError(f"GraphModule: expected lib['default'](dev), got {type(module).__name__}")
        self.module = self
        self._compiled = module
        self._device = getattr(module, "device", None) or tvm.cpu()
        self._values, self._params = {}, {}  # tensors by name: inputs, replaced parameters
        self._outputs = None

    # ------------------------------------------------------------ inputs and outputs

    def set_input(self, key=None, value=None, **params) -> None:
        """Set one input by name or index, or several by name. Inputs that are never set are zeros.

        Args:
            key: Name or index of an input or parameter.
            value: Array of its shape; a NumPy array is converted to its dtype.
            **params: Further arrays by name; unknown names, such as folded parameters, are ignored.

        Raises:
            ValueError: `key` names no input, or an array has the wrong shape or dtype.
        """
        if key is not None:
            name = self._name(key)
            if name is None:
                raise ValueError(f"no input is named {key!r}; the inputs are {', '.join(self._specs())}")
            self._set(name, value)
        for name, array in params.items():
            if self._name(name) is not None:  # the old API ignores folded parameters too
                self._set(name, array)

    def _specs(self) -> dict:
        return {spec.name: spec for spec in self._compiled.inputs}

    def _names(self) -> list[str]:
        return [*self._specs(), *self._compiled.params]

    def _name(self, key) -> str | None:
        names = self._names()
        if isinstance(key, int):
            return names[key] if key < len(names) else None
        return key if key in names else None

    def _set(self, name, value) -> None:
        require_dense(value, f"input {name!r}")
        value = value if isinstance(value, tvm.runtime.Tensor | np.ndarray) else np.asarray(value)
        expected = self._specs().get(name) or self._compiled.params[name]
        shape, dtype = tuple(expected.shape), str(expected.dtype)
        if isinstance(value, np.ndarray) and value.shape == shape and str(value.dtype) != dtype:
            value = value.astype(dtype)  # as the old set_input did
        if tuple(value.shape) != shape:
            raise ValueError(f"input {name!r}: expected the shape {shape}, got {tuple(value.shape)}")
        if dtype_of(value) != dtype:
            raise ValueError(f"input {name!r}: expected the dtype {dtype}, got {dtype_of(value)}")
        copy = tvm.runtime.tensor(value if isinstance(value, np.ndarray) else value.numpy(), self._device)
        (self._values if name in self._specs() else self._params)[name] = copy

    def set_input_zero_copy(self, key, value: tvm.runtime.Tensor) -> None:
        """Make every later run read this input from the memory of `value`.

        Raises:
            ValueError: `value` is not a contiguous, aligned tensor of the input's shape and dtype where the
                network runs.
        """
        self.set_input(key, value)
        is_there = isinstance(value, tvm.runtime.Tensor) and value.device == self._device
        if not is_there or (
            contiguous(value) is not value if self._device == tvm.cpu() else not value.is_contiguous()
        ):
            where = "" if self._device == tvm.cpu() else f" on {name_of(self._device)}"
            raise ValueError(
                f"input {key!r}: expected a tensor of tvm.nd{where}, contiguous and aligned, to read in place"
            )
        name = self._name(key)
        (self._values if name in self._specs() else self._params)[name] = value

    def get_input(self, index, out=None):
        """Return an input or parameter, by name or index, as a TVM tensor; copied into `out` if given."""
        name = self._name(index)
        if name is None:
            raise ValueError(f"no input {index!r}; the inputs are {', '.join(self._specs())}")
        if name in self._specs():
            return _into(out, self._value(name))
        return _into(out, self._params.get(name, self._compiled.params[name]))

    def _value(self, name):
        if name not in self._values:
            spec = self._specs()[name]
            self._values[name] = tvm.runtime.tensor(np.zeros(spec.shape, spec.dtype), self._device)
        return self._values[name]

    def get_output(self, index: int, out=None):
        """Return output `index` of the last run as a TVM tensor; copied into `out` if given."""
        if self._outputs is None:
            self.run()
        return _into(out, self._outputs[index])

    def get_num_inputs(self) -> int:
        """Return the number of inputs and parameters."""
        return len(self._names())

    def get_num_outputs(self) -> int:
        """Return the number of outputs."""
        return len(self._compiled.outputs)

    def get_input_index(self, name: str) -> int:
        """Return the index of an input or parameter, or -1."""
        return self._names().index(name) if name in self._names() else -1

    def get_input_info(self) -> tuple[dict, dict]:
        """Return the inputs' shapes and their dtypes, each by name."""
        specs = self._specs().values()
        return {s.name: s.shape for s in specs}, {s.name: s.dtype for s in specs}

    def load_params(self, params_bytes) -> None:
        """Set the parameters serialized by relay.save_param_dict."""
        self.set_input(**tvm.runtime.load_param_dict(params_bytes))

    # ------------------------------------------------------------ running

    def run(self, **inputs) -> None:
        """Run the network once, on the inputs set before or passed here."""
        self.set_input(**inputs)
        self._outputs = self._compiled.run([self._value(name) for name in self._specs()], self._params)

    def __getitem__(self, name: str):
        return getattr(self, name)

    def time_evaluator(self, func_name, dev=None, number=10, repeat=1, min_repeat_ms=0, **_options):
        """Return a function that times the method `func_name`.

        Called with that method's arguments, it returns a BenchmarkResult of `repeat` means, each of at least
        `number` calls and `min_repeat_ms` milliseconds, in seconds per call. On a GPU, the time ends when it
        has finished the last call.
        """
        remotely = getattr(self._compiled, "time_remotely", None)
        if func_name == "run" and remotely:
            values = [self._value(name) for name in self._specs()]
            return lambda: remotely(values, self._params, number, repeat, min_repeat_ms)
        return timed(self[func_name], self._device, number, repeat, min_repeat_ms)

    def benchmark(
        self, device=None, func_name="run", repeat=5, number=5, min_repeat_ms=None, end_to_end=False, **inputs
    ):
        """Time runs; return a BenchmarkResult, in seconds per run.

        With `end_to_end`, the time includes setting the inputs and fetching the outputs.
        """
        self.set_input(**inputs)
        if not end_to_end:
            return self.time_evaluator(func_name, device, number, repeat, min_repeat_ms or 0)()
        inputs = {name: self._value(name).numpy() for name in self._specs()}

        def whole():
            self.set_input(**inputs)
            self.run()
            return [self.get_output(i).numpy() for i in range(self.get_num_outputs())]

        self.whole = whole
        return self.time_evaluator("whole", device, number, repeat, min_repeat_ms or 0)()

    def __repr__(self) -> str:
        return f"GraphModule({self._compiled!r})"


def timed(function, device, number=10, repeat=1, min_repeat_ms=0):
    """Return a function that times calls of `function`, as `GraphModule.time_evaluator` does."""

    def evaluate(*args):
        function(*args)
        device.sync()
        results = []
        for _ in range(repeat):
            calls, spent = 0, 0.0  # spent: seconds
            while calls < number or 1e3 * spent < min_repeat_ms:
                start = time.perf_counter()
                for _ in range(number):
                    function(*args)
                device.sync()
                spent, calls = spent + time.perf_counter() - start, calls + number
            results.append(spent / calls)
        return BenchmarkResult(results)

    return evaluate


class GraphModuleDebug(GraphModule):
    """A graph module whose `run` prints the time of each kernel, and whose `profile` returns it.

    With `dump_root`, `run` also writes the JSON graph and each kernel's output (output_tensors.params, for
    relay.load_param_dict) to that folder.
    """

    def __init__(self, module, device=None, graph_json_str=None, dump_root=None):
        super().__init__(module)
        self._dump_path = Path(dump_root) if dump_root else None

    def __getitem__(self, name: str):
        if name == "run":
            return super().run  # so that timing it prints no table
        return super().__getitem__(name)

    def run(self, number=3, repeat=1, min_repeat_ms=0, **inputs) -> None:
        """Profile `number * repeat` runs, print the table, and write the dump if there is a `dump_root`."""
        self.set_input(**inputs)
        print(self.profile(number=number * repeat))
        if self._dump_path:
            self._dump_path.mkdir(parents=True, exist_ok=True)
            (self._dump_path / "_tvmdbg_graph_dump.json").write_text(graph_json(self._compiled))
            tensors = tvm.runtime.save_param_dict(self._kernel_outputs())
            (self._dump_path / "output_tensors.params").write_bytes(tensors)

    def run_individual(self, number, repeat=1, min_repeat_ms=0) -> list[float]:
        """Return the milliseconds of each kernel call, in graph order."""
        return list(self.profile(number=number * repeat).table["Time(us)"] / 1e3)

    def profile(self, collectors=None, number=3, **inputs) -> "Report":
        """Profile `number` runs, at least one."""
        self.set_input(**inputs)
        return Report(profiler.of_run(self._compiled, super().run, calls=max(1, number)))

    def get_debug_result(self, sort_by_time=True) -> pd.DataFrame:
        """Profile, and return the table of `Report`, in graph order unless `sort_by_time`."""
        table = self.profile().table
        return table.sort_values("Time(us)", ascending=False) if sort_by_time else table

    def debug_get_output(self, node, out=None):
        """Run once and return the first output of a kernel node, by its name or its index among the calls."""
        tensors = self._kernel_outputs()
        names = list(tensors)
        name = names[node] if isinstance(node, int) and node < len(names) else node
        if name not in tensors:
            raise ValueError(f"no node {node!r}; the nodes that kernels make are {', '.join(names)}")
        return _into(out, tensors[name])

    def _kernel_outputs(self) -> dict[str, tvm.runtime.Tensor]:
        """Run once and copy the first output of each kernel, by node name."""
        tensors = {}
        nodes = iter(self._compiled.graph["nodes"])

        def instrument(_function, symbol, before, _result, *args):
            if str(symbol) in self._compiled.graph["kernels"] and not before:
                node = next(node for node in nodes if node["kernel"] == str(symbol))
                tensors[node["name"]] = tvm.runtime.tensor(args[-len(node["makes"])].numpy())

        with self._compiled.instrumented(instrument):
            super().run()
        return tensors


class Report:
    """Per-kernel times of a profiled run: prints as text; `table` is the DataFrame, in graph order."""

    def __init__(self, profile: profiler.Profile):
        calls = profile.calls()
        nodes = [profile.compiled.graph["nodes"][number] for number in calls["node"]]
        times = calls["ms"] * 1e3
        columns = {
            "Node Name": [node["kernel"] for node in nodes],
            "Time(us)": times,
            "Time(%)": 100 * times / times.sum(),
            "Shape": [str(tuple(node["makes"][0]["shape"])) for node in nodes],
            "Inputs": [len(node["reads"]) for node in nodes],
            "Outputs": [len(node["makes"]) for node in nodes],
        }
        self.table = pd.DataFrame(columns)

    def __str__(self) -> str:
        table = self.table.sort_values("Time(us)", ascending=False)
        total = f"Total: {self.table['Time(us)'].sum():.1f} us in {len(table)} calls"
        return table.to_string(index=False, float_format="{:.2f}".format) + "\n" + total

    __repr__ = __str__

    def csv(self) -> str:
        """Return the table as CSV."""
        return self.table.to_csv(index=False)

    def json(self) -> str:
        """Return the table as a JSON list of rows."""
        return self.table.to_json(orient="records")


def create(graph_json_str, libmod, device=None, dump_root=None) -> GraphModule:
    """`graph_executor.create(graph, lib, dev)`, or `create(lib["default"], dev)`."""
    return GraphModule(_runnable(graph_json_str, libmod, device))


def create_debug(graph_json_str, libmod, device=None, dump_root=None) -> GraphModuleDebug:
    """`debug_executor.create(graph, lib, dev)`, or `create(lib["default"], dev)`."""
    return GraphModuleDebug(_runnable(graph_json_str, libmod, device), device, graph_json_str, dump_root)


def _runnable(graph, lib, device) -> Compiled | GraphModule:
    if callable(graph):
        return graph(lib)
    compiled = getattr(lib, "compiled", lib)
    if not isinstance(compiled, Compiled):
        raise TypeError(f"create: expected the library that relay.build gave, got {type(lib).__name__}")
    if isinstance(graph, str) and json.loads(graph) != json.loads(graph_json(compiled)):
        raise ValueError("create: the graph is not that of the library; take both from one relay.build")
    runs_on(compiled, device)
    return compiled


def _into(out, tensor):
    if out is None:
        return tensor
    if not isinstance(out, tvm.runtime.Tensor):
        raise TypeError(f"out: expected a tensor of tvm.nd, got {type(out).__name__}")
    tensor.copyto(out)
    return out


def graph_json(compiled: Compiled) -> str:
    """Return the graph executor's JSON: nodes, arguments, heads; shapes, dtypes and storage per output."""
    graph = compiled.graph
    nodes, shapes = [], []
    dtypes = []
    entries = {}  # by value name: [node index, output index, version]
    node_row_ptr = [0]  # per node, the number of outputs before it

    def add(node, outputs, names):
        for position, name in enumerate(names):
            entries[name] = [len(nodes), position, 0]
        nodes.append(node)
        shapes.extend(list(output["shape"] or []) for output in outputs)
        dtypes.extend(output["dtype"] for output in outputs)
        node_row_ptr.append(len(shapes))

    params = [{"name": n, "shape": tuple(t.shape), "dtype": str(t.dtype)} for n, t in compiled.params.items()]
    for spec in (*graph["inputs"], *params):
        add({"op": "null", "name": spec["name"], "inputs": []}, [spec], [spec["name"]])
    arguments = list(range(len(nodes)))
    for node in graph["nodes"]:
        reads = [entries[name] for name in node["reads"] if name in entries]
        counts = {"num_inputs": str(len(reads)), "num_outputs": str(len(node["makes"]))}
        attrs = {"func_name": node["kernel"], "flatten_data": "0", **counts}
        call = {"op": "tvm_op", "name": node["name"], "attrs": attrs, "inputs": reads}
        add(call, node["makes"], [node["name"]])
    heads = [[entries[name][0], position, 0] for name, position in graph["heads"] if name in entries]
    attrs = {
        "dltype": ["list_str", dtypes],
        "device_index": ["list_int", [_device_type(compiled)] * len(shapes)],
        "storage_id": ["list_int", list(range(len(shapes)))],
        "shape": ["list_shape", shapes],
    }
    lists = {"nodes": nodes, "arg_nodes": arguments, "heads": heads}
    return json.dumps({**lists, "attrs": attrs, "node_row_ptr": node_row_ptr}, indent=2)


def _device_type(compiled: Compiled) -> int:
    device = tvm.cuda() if isinstance(compiled, CompiledForGPU) else tvm.cpu()
    return int(device.dlpack_device_type())


def params_of(values: Mapping) -> dict:
    """Convert parameters to TVM tensors, by name; contiguous, aligned tensors are not copied."""
    tensor = tvm.runtime.Tensor
    for name, value in values.items():
        require_dense(value, f"params: {name!r}")
    return {
        k: contiguous(v) if isinstance(v, tensor) else tvm.runtime.tensor(np.asarray(v))
        for k, v in values.items()
    }
