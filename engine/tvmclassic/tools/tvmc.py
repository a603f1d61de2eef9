"""`tvm.driver.tvmc`: compiles, runs or tunes a model file in one call, from Python or the command line.

    model = tvmc.load("model.onnx", shape_dict={"data": (1, 3, 224, 224)})
    package = tvmc.compile(model, target="llvm", package_path="model.tar")
    result = tvmc.run(package, device="cpu")          # result.outputs, result.times

    python -m tvmclassic -m tvm.driver.tvmc compile --target llvm --output model.tar model.onnx
    python -m tvmclassic -m tvm.driver.tvmc run --inputs x.npz --outputs y.npz --print-time model.tar

As before, a package is a .tar of the library mod.so, the graph mod.json and the parameters mod.params.
"""

import contextlib
import functools
import sys
import tarfile
import tempfile
from pathlib import Path

import numpy as np
import tvm

from tvmfast.core import renamed
from tvmfast.runtime import saved

from ..autotvm import record, task
from ..autotvm import tuner as tuners
from ..graph_executor import GraphModule, GraphModuleDebug
from ..relay import build, frontend, functor, ir, transform
from ..relay.lift import from_relax

_FORMATS = {
    ".onnx": "onnx",
    ".pb": "pb",
    ".pth": "pytorch",
    ".pt": "pytorch",
    ".h5": "keras",
    ".tflite": "tflite",
    ".pdmodel": "paddle",
}
REMOVED_FORMATS = {
    "pb": "from_tensorflow",
    "keras": "from_keras",
    "tflite": "from_tflite",
    "paddle": "from_paddle",
}
FILL_MODES = ("random", "zeros", "ones")
TUNERS = {
    "ga": functools.partial(tuners.GATuner, pop_size=50),
    "gridsearch": tuners.GridSearchTuner,
    "random": tuners.RandomTuner,
    **dict.fromkeys(("xgb", "xgb_knob", "xgb-rank"), tuners.XGBTuner),
}


class TVMCException(Exception):
    """Raised for wrong or unsupported arguments; the command line prints it and exits with code 1."""


# ---------------------------------------------------------------- models, packages, results


class TVMCModel:
    """A Relay model: `mod` and `params`, given as such or in a file of `save`."""

    def __init__(self, mod=None, params=None, model_path=None):
        if (mod is None) == (model_path is None):
            raise TVMCException("TVMCModel: expected either mod (with params), or model_path")
        if model_path is not None:
            with tarfile.open(model_path) as archive:
                text, arrays = (archive.extractfile(name).read() for name in ("model.json", "model.params"))
            mod = from_relax(tvm.ir.load_json(renamed.in_json(text.decode())))
            params = tvm.runtime.load_param_dict(arrays)
        self.mod, self.params = mod, dict(params or {})

    def save(self, model_path) -> None:
        """Write `mod` and `params` to one file, which TVMCModel(model_path=…) reads."""
        mod, params = build.relax_of(self.mod, self.params)
        model_json = tvm.ir.save_json(mod).encode()
        model_params = bytes(tvm.runtime.save_param_dict(params))
        saved.pack(model_path, [("model.json", model_json), ("model.params", model_params)], tar=True)

    def summary(self, file=None) -> None:
        """Print the module."""
        print(self.mod, file=file)


class TVMCPackage:
    """A compiled model in a .tar: `lib_path` is its library, unpacked to a temporary folder.

    `graph` and `params` are its other files, as str and bytes. Raises TVMCException for other files.
    """

    def __init__(self, package_path, project_dir=None):
        self.package_path, self.type = str(package_path), "classic"
        self.executor_type = "graph"
        self._folder = tempfile.TemporaryDirectory(prefix="tvmc_")
        try:
            with tarfile.open(package_path) as archive:
                names = ("mod.so", "mod.json", "mod.params")
                parts = {name: archive.extractfile(name).read() for name in names}
        except (OSError, KeyError, tarfile.TarError) as error:
            raise TVMCException(
                f"{package_path} is no package that tvmc compile wrote here ({error})"
            ) from error
        self.lib_name, self.lib_path = "mod.so", str(Path(self._folder.name) / "mod.so")
        Path(self.lib_path).write_bytes(parts["mod.so"])
        self.graph, self.params = parts["mod.json"].decode(), bytearray(parts["mod.params"])


class TVMCResult:
    """The result of a run: `outputs`, arrays by name, "output_0" first; `times`, a BenchmarkResult."""

    def __init__(self, outputs: dict, times):
        self.outputs, self.times = outputs, times

    def format_times(self) -> str:
        """Return the times as text."""
        return str(self.times)

    def get_output(self, name: str) -> np.ndarray:
        """Return an output by name."""
        return self.outputs[name]

    def save(self, output_path) -> None:
        """Write the outputs to a .npz file."""
        np.savez(output_path, **self.outputs)

    def __str__(self) -> str:
        return f"{self.format_times()}\nOutput Names:\n {list(self.outputs)}"


# ---------------------------------------------------------------- load, compile, run, tune


def load(path, model_format=None, shape_dict=None, **_options) -> TVMCModel:
    """Load an ONNX file, or a file of torch.jit.save.

    Args:
        path: Path of the model.
        model_format: "onnx" or "pytorch"; by default that of the file's suffix.
        shape_dict: Shapes by input name; required for PyTorch.

    Raises:
        TVMCException: Unknown format, no such file, or no shapes.
        NotImplementedError: A format whose frontend TVM has dropped.
    """
    file = Path(path)
    kind = model_format or _FORMATS.get(file.suffix)
    if kind in REMOVED_FORMATS:
        frontend.NAMES[REMOVED_FORMATS[kind]]()
    if kind not in ("onnx", "pytorch"):
        raise TVMCException(
            f"tvmc.load: expected a model_format of onnx or pytorch for {file.name}, got {kind!r}"
        )
    if not file.is_file():
        raise TVMCException(f"tvmc.load: no file {file}")
    if kind == "onnx":
        return TVMCModel(*frontend.from_onnx(str(file), shape_dict))
    if not shape_dict:
        raise TVMCException(
            "tvmc.load: a PyTorch file does not say its inputs: give shape_dict (--input-shapes)"
        )
    import torch  # for speed: running a package does not need it

    module = torch.jit.load(str(file), map_location="cpu").eval()
    return TVMCModel(*frontend.from_pytorch(module, list(shape_dict.items())))


def compile_model(
    tvmc_model: TVMCModel,
    target="llvm",
    opt_level=3,
    executor=None,
    runtime=None,
    tuning_records=None,
    package_path=None,
    cross=None,
    cross_options=None,
    output_format="so",
    dump_code=None,
    target_host=None,
    desired_layout=None,
    disabled_pass=None,
    pass_context_configs=None,
    **_options,
) -> TVMCPackage:
    """Compile a model for a CPU, with the best configs of the log `tuning_records`, into a package.

    `package_path` is by default in a new temporary folder. `dump_code` names a kind of source, or several, to
    write next to it: "ll", "asm", "relay". Convolutions are first converted to `desired_layout`.

    Raises:
        TVMCException: Another output format than "so", a cross compiler, or no such log.
    """
    if output_format != "so":
        raise TVMCException(
            f"tvmc compile: expected the output format so, got {output_format!r}: tn.build has no other"
        )
    if cross:
        raise TVMCException(
            "tvmc compile: cross compilers are not called here: compile on the machine that is to run"
        )
    mod, params = tvmc_model.mod, tvmc_model.params
    if desired_layout:
        mod, params = ir.IRModule({"main": functor.bind(mod["main"], params)}), {}
        convert = transform.NAMES["ConvertLayout"]({"nn.conv2d": [desired_layout, "default"]})
        with tvm.transform.PassContext(opt_level=3):
            mod = convert(mod)
    if tuning_records and not Path(tuning_records).is_file():
        raise TVMCException(f"tvmc: no tuning records at {tuning_records}")
    apply_best = record.ApplyHistoryBest(str(tuning_records)) if tuning_records else contextlib.nullcontext()
    with (
        apply_best,
        tvm.transform.PassContext(int(opt_level), disabled_pass=disabled_pass, config=pass_context_configs),
    ):
        lib = build.build(mod, target, target_host, params=params)
    package_path = Path(package_path or Path(tempfile.mkdtemp(prefix="tvmc_")) / "model_package.tar")
    with tempfile.TemporaryDirectory() as folder:
        lib.export_library(Path(folder) / "mod.so")
        library = (Path(folder) / "mod.so").read_bytes()
    graph, params = lib.graph_json.encode(), bytes(tvm.runtime.save_param_dict(lib.params))
    saved.pack(package_path, [("mod.so", library), ("mod.json", graph), ("mod.params", params)], tar=True)
    for kind in [dump_code] if isinstance(dump_code, str) else dump_code or ():
        source = mod.astext() if kind == "relay" else lib.get_source(kind)
        Path(f"{package_path}.{kind}").write_text(source)
    return TVMCPackage(package_path)


def run_module(
    tvmc_package: TVMCPackage,
    device="cpu",
    hostname=None,
    port=9090,
    rpc_key=None,
    inputs=None,
    fill_mode="random",
    repeat=10,
    number=10,
    profile=False,
    end_to_end=False,
    **_options,
) -> TVMCResult:
    """Run and time a package on this machine: `repeat` means of `number` runs each.

    Inputs missing in `inputs`, arrays by name, are filled by `fill_mode`. `profile` prints the time of each
    kernel; with `end_to_end`, the times include setting the inputs and fetching the outputs.

    Raises:
        TVMCException: A remote host, another device, or inputs that do not fit the model.
    """
    if hostname is not None:
        raise TVMCException(
            "tvmc run: packages run on this machine; copy the package to the other one and run it there"
        )
    if device != "cpu":
        raise TVMCException(
            f"tvmc run: expected the device cpu, got {device!r}: packages are built for CPUs here"
        )
    if fill_mode not in FILL_MODES:
        raise TVMCException(f"tvmc run: expected a fill mode of {', '.join(FILL_MODES)}; got {fill_mode!r}")
    compiled = build.load_module(tvmc_package.lib_path).compiled
    unknown = set(inputs or {}) - {spec.name for spec in compiled.inputs}
    if unknown:
        expected = "; ".join(map(str, compiled.inputs))
        raise TVMCException(
            f"tvmc run: the model has no input {', '.join(sorted(unknown))}; its inputs: {expected}"
        )
    values = {spec.name: _filled(spec.shape, spec.dtype, fill_mode) for spec in compiled.inputs}
    values.update(inputs or {})
    module = GraphModule(compiled)
    try:
        module.set_input(**values)
    except ValueError as error:
        raise TVMCException(f"tvmc run: {error}") from error
    if profile:
        print(GraphModuleDebug(compiled).profile(**values))
    times = module.benchmark(number=number, repeat=repeat, end_to_end=end_to_end)
    outputs = {f"output_{n}": module.get_output(n).numpy() for n in range(module.get_num_outputs())}
    return TVMCResult(outputs, times)


def _filled(shape, dtype, mode):
    random = np.random.default_rng()
    if mode == "random" and dtype.startswith(("float", "bfloat")):
        return random.random(shape).astype(dtype)
    if mode == "random" and dtype != "bool":
        return random.integers(0, 128, size=shape).astype(dtype)
    return np.full(shape, mode != "zeros", dtype)


def tune_model(
    tvmc_model: TVMCModel,
    target="llvm",
    tuning_records=None,
    prior_records=None,
    enable_autoscheduler=False,
    rpc_key=None,
    hostname=None,
    port=9090,
    trials=10000,
    target_host=None,
    tuner="xgb",
    min_repeat_ms=None,
    early_stopping=None,
    timeout=10,
    repeat=1,
    number=10,
    parallel=4,
    **_options,
) -> str:
    """Tune the model's tasks with AutoTVM, or with `auto_scheduler`; return the path of the log.

    AutoTVM gives each task up to `trials` trials, one task after another; `auto_scheduler` shares them among
    all tasks. A trial takes at most `timeout` seconds, here or on the devices that the RPC tracker at
    `hostname`:`port` lists under `rpc_key`. `prior_records` is the path of a log to start from.

    Raises:
        TVMCException: `enable_autoscheduler` where tvmclassic has no such module, an unknown tuner, or only
            one of `hostname` and `rpc_key`.
    """
    if tuner not in TUNERS:
        raise TVMCException(f"tvmc tune: expected a tuner of {', '.join(TUNERS)}; got {tuner!r}")
    records = str(tuning_records or Path(tempfile.mkdtemp(prefix="tvmc_")) / "tuning_records.json")
    limits = {"timeout": timeout, "number": number, "repeat": repeat, "min_repeat_ms": min_repeat_ms or 0}
    if bool(hostname) != bool(rpc_key):
        raise TVMCException(
            "tvmc tune: measuring over RPC needs both --rpc-tracker HOST:PORT and --rpc-key KEY"
        )
    if enable_autoscheduler:
        where = (rpc_key, hostname, port) if hostname else ()
        counts = {"num_measure_trials": int(trials), "early_stopping": early_stopping}
        _auto_schedule(tvmc_model, target, records, prior_records, where, limits, counts)
        return records
    tasks = task.extract_from_program(tvmc_model.mod["main"], params=tvmc_model.params, target=target)
    runner = tuners.RPCRunner(rpc_key, hostname, port, **limits) if hostname else tuners.LocalRunner(**limits)
    option = tuners.measure_option(builder=tuners.LocalBuilder(n_parallel=parallel), runner=runner)
    for n, each in enumerate(tasks):
        prefix = f"[Task {n + 1:2d}/{len(tasks):2d}] "
        search = TUNERS[tuner](each)
        if prior_records:
            search.load_history(list(record.load_from_file(str(prior_records))))
        count = min(int(trials), len(each.config_space))
        callbacks = [tuners.progress_bar(count, prefix=prefix), record.log_to_file(records)]
        search.tune(count, option, early_stopping or count, callbacks)
    return records


def _auto_schedule(model: TVMCModel, target, records, prior_records, where, limits, counts) -> None:
    """Tune all tasks of a model together by the module `tvm.auto_scheduler`."""
    module = sys.modules.get("tvm.auto_scheduler")
    served = vars(module) if module else {}
    if "TaskScheduler" not in served:
        raise TVMCException(
            "tvmc tune: Ansor (--enable-autoscheduler) was dropped in TVM 0.20; tune without it, or "
            "with tn.tune(…, tuner='metaschedule')"
        )
    tasks, weights = served["extract_tasks"](model.mod["main"], model.params, target)
    runner = served["RPCRunner"](*where, **limits) if where else served["LocalRunner"](**limits)
    callbacks = [served["RecordToFile"](records)]
    option = served["TuningOptions"](**counts, runner=runner, measure_callbacks=callbacks)
    prior = {"load_log_file": str(prior_records)} if prior_records else {}
    served["TaskScheduler"](tasks, weights, **prior).tune(option)


_CLASSES = {"TVMCModel": TVMCModel, "TVMCPackage": TVMCPackage, "TVMCResult": TVMCResult}
NAMESPACES = {
    "tvm.driver.tvmc": {
        "load": load,
        "compile": compile_model,
        "run": run_module,
        "tune": tune_model,
        **_CLASSES,
        "TVMCException": TVMCException,
    },
    "tvm.driver.tvmc.model": _CLASSES,
    "tvm.driver.tvmc.frontends": {"load_model": load},
    "tvm.driver.tvmc.compiler": {"compile_model": compile_model},
    "tvm.driver.tvmc.runner": {"run_module": run_module},
    "tvm.driver.tvmc.autotuner": {"tune_model": tune_model},
}
