"""`tvm.driver.tvmc`: compile, run and tune a model file in one call each, from Python and from the command line.

    model = tvmc.load("model.onnx", shape_dict={"data": (1, 3, 224, 224)})
    package = tvmc.compile(model, target="llvm", package_path="model.tar")
    result = tvmc.run(package, device="cpu")          # result.outputs, result.times

    python -m tvmnotes classic -m tvm.driver.tvmc compile --target llvm --output model.tar model.onnx
    python -m tvmnotes classic -m tvm.driver.tvmc run --inputs x.npz --outputs y.npz --print-time model.tar

A package is the .tar that it was: the library mod.so, the graph mod.json and the parameters mod.params.
"""

import argparse
import ast
import contextlib
import functools
import json
import re
import sys
import tarfile
import tempfile
from pathlib import Path

import numpy as np
import tvm

from ...runtime import saved
from ..autotvm import record, task
from ..autotvm import tuner as tuners
from ..graph_executor import GraphModule, GraphModuleDebug
from ..relay import build, frontend, functor, ir, transform
from ..relay.lift import from_relax

_FORMATS = {".onnx": "onnx", ".pb": "pb", ".pth": "pytorch", ".pt": "pytorch", ".h5": "keras", ".tflite": "tflite",
            ".pdmodel": "paddle"}  # fmt: skip
_GONE = {"pb": "from_tensorflow", "keras": "from_keras", "tflite": "from_tflite", "paddle": "from_paddle"}
_FILLS = ("random", "zeros", "ones")
_TUNERS = {"ga": functools.partial(tuners.GATuner, pop_size=50), "gridsearch": tuners.GridSearchTuner,
           "random": tuners.RandomTuner, **dict.fromkeys(("xgb", "xgb_knob", "xgb-rank"), tuners.XGBTuner)}  # fmt: skip


class TVMCException(Exception):
    """What cannot be done with what the user gave; the command line prints it and ends with exit code 1."""


# ---------------------------------------------------------------- things


class TVMCModel:
    """A model in Relay: `mod` and `params`. `save` writes both to one file, which TVMCModel(model_path=…) reads."""

    def __init__(self, mod=None, params=None, model_path=None):
        if (mod is None) == (model_path is None):
            raise TVMCException("TVMCModel: expected either mod (with params), or model_path")
        if model_path is not None:
            with tarfile.open(model_path) as archive:
                text, arrays = (archive.extractfile(name).read() for name in ("model.json", "model.params"))
            mod, params = from_relax(tvm.ir.load_json(text.decode())), tvm.runtime.load_param_dict(arrays)
        self.mod, self.params = mod, dict(params or {})

    def save(self, model_path) -> None:
        mod, params = build.relax_of(self.mod, self.params)
        saved.pack(model_path, [("model.json", tvm.ir.save_json(mod).encode()),
                                ("model.params", bytes(tvm.runtime.save_param_dict(params)))], tar=True)  # fmt: skip

    def summary(self, file=None) -> None:
        print(self.mod, file=file)


class TVMCPackage:
    """A compiled model in a .tar: `lib_path` is its library in a folder of its own, `graph` and `params` its parts."""

    def __init__(self, package_path, project_dir=None):
        self.package_path, self.type, self.executor_type = str(package_path), "classic", "graph"
        self._folder = tempfile.TemporaryDirectory(prefix="tvmc_")
        try:
            with tarfile.open(package_path) as archive:
                parts = {
                    name: archive.extractfile(name).read() for name in ("mod.so", "mod.json", "mod.params")
                }
        except (OSError, KeyError, tarfile.TarError) as error:
            raise TVMCException(
                f"{package_path} is no package that tvmc compile wrote here ({error})"
            ) from error
        self.lib_name, self.lib_path = "mod.so", str(Path(self._folder.name) / "mod.so")
        Path(self.lib_path).write_bytes(parts["mod.so"])
        self.graph, self.params = parts["mod.json"].decode(), bytearray(parts["mod.params"])


class TVMCResult:
    """What a run gave: `outputs` by name, "output_0" first, and `times`, a BenchmarkResult."""

    def __init__(self, outputs: dict, times):
        self.outputs, self.times = outputs, times

    def format_times(self) -> str:
        return str(self.times)

    def get_output(self, name: str) -> np.ndarray:
        return self.outputs[name]

    def save(self, output_path) -> None:
        np.savez(output_path, **self.outputs)

    def __str__(self) -> str:
        return f"{self.format_times()}\nOutput Names:\n {list(self.outputs)}"


# ---------------------------------------------------------------- the verbs


def load(path, model_format=None, shape_dict=None, **_options) -> TVMCModel:
    """The model in an ONNX file, or in a file of torch.jit.save (which needs `shape_dict`)."""
    file = Path(path)
    kind = model_format or _FORMATS.get(file.suffix)
    if kind in _GONE:
        frontend.NAMES[_GONE[kind]]()
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
    import torch  # for speed: packages run without it

    module = torch.jit.load(str(file), map_location="cpu").eval()
    return TVMCModel(*frontend.from_pytorch(module, list(shape_dict.items())))


def compile_model(tvmc_model: TVMCModel, target="llvm", opt_level=3, executor=None, runtime=None, tuning_records=None,
                  package_path=None, cross=None, cross_options=None, output_format="so", dump_code=None,
                  target_host=None, desired_layout=None, disabled_pass=None, pass_context_configs=None,
                  **_options) -> TVMCPackage:  # fmt: skip
    """Compile for a CPU, with the best of `tuning_records` where given, into the package at `package_path`.

    `dump_code` names kinds of source ("ll", "asm", "relay") that are written beside the package.
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
        with tvm.transform.PassContext(opt_level=3):
            mod = transform.NAMES["ConvertLayout"]({"nn.conv2d": [desired_layout, "default"]})(mod)
    if tuning_records and not Path(tuning_records).is_file():
        raise TVMCException(f"tvmc: no tuning records at {tuning_records}")
    history = record.ApplyHistoryBest(str(tuning_records)) if tuning_records else contextlib.nullcontext()
    with (
        history,
        tvm.transform.PassContext(int(opt_level), disabled_pass=disabled_pass, config=pass_context_configs),
    ):
        lib = build.build(mod, target, target_host, params=params)
    package_path = Path(package_path or Path(tempfile.mkdtemp(prefix="tvmc_")) / "model_package.tar")
    with tempfile.TemporaryDirectory() as folder:
        lib.export_library(Path(folder) / "mod.so")
        library = (Path(folder) / "mod.so").read_bytes()
    saved.pack(package_path, [("mod.so", library), ("mod.json", lib.graph_json.encode()),
                              ("mod.params", bytes(tvm.runtime.save_param_dict(lib.params)))], tar=True)  # fmt: skip
    for kind in [dump_code] if isinstance(dump_code, str) else dump_code or ():
        source = mod.astext() if kind == "relay" else lib.get_source(kind)
        Path(f"{package_path}.{kind}").write_text(source)
    return TVMCPackage(package_path)


def run_module(tvmc_package: TVMCPackage, device="cpu", hostname=None, port=9090, rpc_key=None, inputs=None,
               fill_mode="random", repeat=10, number=10, profile=False, end_to_end=False,
               **_options) -> TVMCResult:  # fmt: skip
    """Run a package on this machine; `inputs` is a dictionary of arrays, what it lacks is filled by `fill_mode`."""
    if hostname is not None:
        raise TVMCException(
            "tvmc run: packages run on this machine; copy the package to the other one and run it there"
        )
    if device != "cpu":
        raise TVMCException(
            f"tvmc run: expected the device cpu, got {device!r}: packages are built for CPUs here"
        )
    if fill_mode not in _FILLS:
        raise TVMCException(f"tvmc run: expected a fill mode of {', '.join(_FILLS)}; got {fill_mode!r}")
    compiled = build.load_module(tvmc_package.lib_path).compiled
    unknown = set(inputs or {}) - {spec.name for spec in compiled.inputs}
    if unknown:
        expected = "; ".join(map(str, compiled.inputs))
        raise TVMCException(
            f"tvmc run: the model has no input {', '.join(sorted(unknown))}; its inputs: {expected}"
        )
    values = {
        s.name: (inputs or {}).get(s.name, _filled(s.shape, s.dtype, fill_mode)) for s in compiled.inputs
    }
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


def tune_model(tvmc_model: TVMCModel, target="llvm", tuning_records=None, prior_records=None,
               enable_autoscheduler=False, rpc_key=None, hostname=None, port=9090, trials=10000, target_host=None,
               tuner="xgb", min_repeat_ms=None, early_stopping=None, timeout=10, repeat=1, number=10, parallel=4,
               **_options) -> str:  # fmt: skip
    """Tune the model's tasks one after another with AutoTVM; returns the path of the log file."""
    if enable_autoscheduler:
        raise TVMCException(
            "tvmc tune: Ansor (--enable-autoscheduler) was dropped in TVM 0.20; tune without it, or "
            "with tn.tune(…, tuner='metaschedule')"
        )
    if tuner not in _TUNERS:
        raise TVMCException(f"tvmc tune: expected a tuner of {', '.join(_TUNERS)}; got {tuner!r}")
    records = str(tuning_records or Path(tempfile.mkdtemp(prefix="tvmc_")) / "tuning_records.json")
    tasks = task.extract_from_program(tvmc_model.mod["main"], params=tvmc_model.params, target=target)
    limits = {"timeout": timeout, "number": number, "repeat": repeat, "min_repeat_ms": min_repeat_ms or 0}
    if bool(hostname) != bool(rpc_key):
        raise TVMCException(
            "tvmc tune: measuring over RPC needs both --rpc-tracker HOST:PORT and --rpc-key KEY"
        )
    runner = tuners.RPCRunner(rpc_key, hostname, port, **limits) if hostname else tuners.LocalRunner(**limits)
    option = tuners.measure_option(builder=tuners.LocalBuilder(n_parallel=parallel), runner=runner)
    for n, each in enumerate(tasks):
        prefix = f"[Task {n + 1:2d}/{len(tasks):2d}] "
        search = _TUNERS[tuner](each)
        if prior_records:
            search.load_history(list(record.load_from_file(str(prior_records))))
        count = min(int(trials), len(each.config_space))
        callbacks = [tuners.progress_bar(count, prefix=prefix), record.log_to_file(records)]
        search.tune(count, option, early_stopping or count, callbacks)
    return records


# ---------------------------------------------------------------- the command line


def parse_shapes(text: str | None) -> dict[str, list[int]] | None:
    """`"data:[1,3,224,224] mask:[1,8]"` as a dictionary."""
    if text is None:
        return None
    found = re.findall(r"(\S+?):\s*\[([^\]]*)\]", text)
    if not found or re.sub(r"(\S+?):\s*\[([^\]]*)\]", "", text).strip(" ,"):
        raise TVMCException(f'--input-shapes: expected "name:[1,3,224,224] name2:[1,8]", got {text!r}')
    try:
        return {name.strip('"'): [int(n) for n in shape.split(",") if n.strip()] for name, shape in found}
    except ValueError:
        raise TVMCException(f"--input-shapes: expected whole numbers in the brackets, got {text!r}") from None


def _configs(items: list[str] | None) -> dict:
    """`--pass-config name=value`, each."""
    configs = {}
    for item in items or ():
        name, sign, value = item.partition("=")
        if not sign:
            raise TVMCException(f"--pass-config: expected name=value, got {item!r}")
        try:
            configs[name] = ast.literal_eval({"true": "True", "false": "False"}.get(value, value))
        except (ValueError, SyntaxError):
            configs[name] = value
    return configs


def _target(args) -> str:
    """The target string, with the options of --target-llvm-…."""
    options = {o: getattr(args, f"target_llvm_{o}") for o in ("mcpu", "mattr", "mtriple")}
    return args.target + "".join(f" -{name}={value}" for name, value in options.items() if value)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tvmc", description="Compile, run and tune models, as TVM's driver did."
    )
    parser.add_argument("--version", action="store_true", help="print the version of TVM")
    parser.add_argument("-v", "--verbose", action="count", default=0, help="full tracebacks of errors")
    commands = parser.add_subparsers(title="commands", dest="command")

    def command(name, about, model=True):
        add = commands.add_parser(name, help=about, description=about).add_argument
        add("FILE", help="the model" if model else "the package that tvmc compile wrote")
        if model:
            add("--model-format", choices=["onnx", "pytorch", *_GONE], help="where the name does not tell")
            add("--input-shapes", help='such as "data:[1,3,224,224]"')
            add("--target", default="llvm", help="such as llvm, or 'llvm -mcpu=core-avx2'")
            for option in ("mcpu", "mattr", "mtriple"):
                add(f"--target-llvm-{option}", help=f"-{option} of the target")
            add("--target-host", help="the target's host")
            add("--tuning-records", metavar="PATH", help="a log file of AutoTVM: its best, or to start from")
        return add

    add = command("compile", "Compile a model into a package.")
    add("-o", "--output", default="module.tar", help="the package (module.tar)")
    add("-O", "--opt-level", type=int, choices=range(4), default=3, help="0 to 3 (3)")
    add("-f", "--output-format", choices=["so", "mlf"], default="so", help="so")
    add("--cross-compiler", default="", help="refused: compile where the package is to run")
    add("--executor", choices=["graph"], default="graph", help="graph")
    add("--desired-layout", choices=["NCHW", "NHWC"], help="convert convolutions to it first")
    add("--dump-code", metavar="KINDS", default="", help="relay, ll, asm, with commas: beside the package")
    add("--disabled-pass", metavar="PASSES", default="", help="names, with commas")
    add("--pass-config", action="append", metavar="NAME=VALUE", help="an option of PassContext")

    add = command("run", "Run a package.", model=False)
    add("--device", choices=["cpu"], default="cpu", help="cpu")
    add("--fill-mode", choices=_FILLS, default="random", help="of inputs that are not given (random)")
    add("-i", "--inputs", metavar="NPZ", help="a .npz with the inputs by name")
    add("-o", "--outputs", metavar="NPZ", help="a .npz for output_0, output_1, …")
    add("--print-time", action="store_true", help="print the times")
    add("--print-top", type=int, metavar="N", help="print the N largest values of each output")
    add("--profile", action="store_true", help="print the time of each kernel")
    add("--end-to-end", action="store_true", help="time the copies of inputs and outputs too")
    add("--repeat", type=int, default=1, metavar="N", help="means to take (1)")
    add("--number", type=int, default=1, metavar="N", help="runs in a mean (1)")

    add = command("tune", "Tune a model's convolutions and dense layers with AutoTVM.")
    add("-o", "--output", required=True, help="the log file")
    add("--trials", type=int, default=1000, metavar="N", help="of each task, at most (1000)")
    add("--tuner", choices=_TUNERS, default="xgb", help="xgb")
    add("--enable-autoscheduler", action="store_true", help="refused: Ansor was dropped in TVM 0.20")
    add("--early-stopping", type=int, metavar="N", help="stop a task after N trials without a better one")
    add("--min-repeat-ms", type=int, metavar="MS", help="the least time of one repeat")
    add("--number", type=int, default=10, metavar="N", help="runs in a mean (10)")
    add("--repeat", type=int, default=1, metavar="N", help="means to take (1)")
    add("--parallel", type=int, default=4, metavar="N", help="processes that build (4)")
    add("--timeout", type=int, default=10, metavar="S", help="seconds for one trial (10)")
    add("--rpc-key", help="the key of the devices at a tracker")
    add("--rpc-tracker", metavar="HOST:PORT", help="the tracker's address")
    return parser


def _compile(args) -> None:
    model = load(args.FILE, args.model_format, parse_shapes(args.input_shapes))
    words = lambda text: [word.strip() for word in text.split(",") if word.strip()]  # noqa: E731
    compile_model(model, _target(args), args.opt_level, tuning_records=args.tuning_records, package_path=args.output,
                  cross=args.cross_compiler, output_format=args.output_format, dump_code=words(args.dump_code),
                  target_host=args.target_host, desired_layout=args.desired_layout,
                  disabled_pass=words(args.disabled_pass), pass_context_configs=_configs(args.pass_config))  # fmt: skip


def _run(args) -> None:
    inputs = None
    if args.inputs:
        try:
            with np.load(args.inputs) as arrays:
                inputs = dict(arrays.items())
        except (OSError, ValueError) as error:
            raise TVMCException(
                f"--inputs: expected a .npz file with arrays by name; {args.inputs}: {error}"
            ) from None
    result = run_module(TVMCPackage(args.FILE), args.device, inputs=inputs, fill_mode=args.fill_mode,
                        repeat=args.repeat, number=args.number, profile=args.profile,
                        end_to_end=args.end_to_end)  # fmt: skip
    if args.print_time:
        print(result.format_times())
    if args.print_top:
        for name, output in result.outputs.items():
            order = np.argsort(-output.reshape(-1), kind="stable")[: args.print_top]
            print(name, np.array([order, output.reshape(-1)[order]]), sep="\n")
    if args.outputs:
        result.save(args.outputs)


def _tune(args) -> None:
    host, _, port = (args.rpc_tracker or "").partition(":")
    model = load(args.FILE, args.model_format, parse_shapes(args.input_shapes))
    tune_model(model, _target(args), args.output, args.tuning_records, args.enable_autoscheduler, args.rpc_key,
               host or None, int(port or 9090), args.trials, args.target_host, args.tuner, args.min_repeat_ms,
               args.early_stopping, args.timeout, args.repeat, args.number, args.parallel)  # fmt: skip


def main(argv: list[str] | None = None) -> int:
    """The command line; returns the exit code: 0, or 1 with a sentence on stderr."""
    parser = _parser()
    args = parser.parse_args(sys.argv[1:] if argv is None else argv)
    if args.version:
        print(tvm.__version__)
        return 0
    if args.command is None:
        parser.print_help()
        return 0
    try:
        {"compile": _compile, "run": _run, "tune": _tune}[args.command](args)
    except (TVMCException, NotImplementedError, ValueError, OSError, json.JSONDecodeError) as error:
        if args.verbose:
            raise
        print(f"Error: {error}", file=sys.stderr)
        return 1
    return 0


_THINGS = {"TVMCModel": TVMCModel, "TVMCPackage": TVMCPackage, "TVMCResult": TVMCResult}
NAMESPACES = {
    "tvm.driver.tvmc": {"load": load, "compile": compile_model, "run": run_module, "tune": tune_model, **_THINGS,
                        "TVMCException": TVMCException},
    "tvm.driver.tvmc.model": _THINGS,
    "tvm.driver.tvmc.frontends": {"load_model": load},
    "tvm.driver.tvmc.compiler": {"compile_model": compile_model},
    "tvm.driver.tvmc.runner": {"run_module": run_module},
    "tvm.driver.tvmc.autotuner": {"tune_model": tune_model},
    "tvm.driver.tvmc.main": {"main": main},
}  # fmt: skip
