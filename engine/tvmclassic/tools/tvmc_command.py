"""The command line of `tvmc`: its arguments, and the commands compile, run and tune."""

import argparse
import ast
import json
import re
import sys

import numpy as np
import tvm

from . import tvmc


def parse_shapes(text: str | None) -> dict[str, list[int]] | None:
    """Parse `"data:[1,3,224,224] mask:[1,8]"`. Raises TVMCException for other texts."""
    if text is None:
        return None
    found = re.findall(r"(\S+?):\s*\[([^\]]*)\]", text)
    if not found or re.sub(r"(\S+?):\s*\[([^\]]*)\]", "", text).strip(" ,"):
        raise tvmc.TVMCException(f'--input-shapes: expected "name:[1,3,224,224] name2:[1,8]", got {text!r}')
    try:
        return {name.strip('"'): [int(n) for n in shape.split(",") if n.strip()] for name, shape in found}
    except ValueError:
        raise tvmc.TVMCException(
            f"--input-shapes: expected whole numbers in the brackets, got {text!r}"
        ) from None


def _configs(items: list[str] | None) -> dict:
    """Parse the values of `--pass-config name=value`."""
    configs = {}
    for item in items or ():
        name, sign, value = item.partition("=")
        if not sign:
            raise tvmc.TVMCException(f"--pass-config: expected name=value, got {item!r}")
        try:
            configs[name] = ast.literal_eval({"true": "True", "false": "False"}.get(value, value))
        except (ValueError, SyntaxError):
            configs[name] = value
    return configs


def _target(args) -> str:
    """Return the target string with the options of --target-llvm-…."""
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
            add(
                "--model-format",
                choices=["onnx", "pytorch", *tvmc.REMOVED_FORMATS],
                help="where the name does not tell",
            )
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
    add(
        "--fill-mode", choices=tvmc.FILL_MODES, default="random", help="of inputs that are not given (random)"
    )
    add("-i", "--inputs", metavar="NPZ", help="a .npz with the inputs by name")
    add("-o", "--outputs", metavar="NPZ", help="a .npz for output_0, output_1, …")
    add("--print-time", action="store_true", help="print the times")
    add("--print-top", type=int, metavar="N", help="print the N largest values of each output")
    add("--profile", action="store_true", help="print the time of each kernel")
    add("--end-to-end", action="store_true", help="time the copies of inputs and outputs too")
    add("--repeat", type=int, default=1, metavar="N", help="means to take (1)")
    add("--number", type=int, default=1, metavar="N", help="runs in a mean (1)")
    add("--rpc-key", help="the key of the device at a tracker")
    add("--rpc-tracker", metavar="HOST:PORT", help="the tracker's address; without a key that of a server")

    add = command("tune", "Tune a model's convolutions and dense layers with AutoTVM.")
    add("-o", "--output", required=True, help="the log file")
    add("--trials", type=int, default=1000, metavar="N", help="of each task, at most (1000)")
    add("--tuner", choices=tvmc.TUNERS, default="xgb", help="xgb")
    add("--enable-autoscheduler", action="store_true", help="tune all tasks together by auto_scheduler")
    add("--early-stopping", type=int, metavar="N", help="stop a task after N trials without a better one")
    add("--min-repeat-ms", type=int, metavar="MS", help="the least time of one repeat")
    add("--number", type=int, default=10, metavar="N", help="runs in a mean (10)")
    add("--repeat", type=int, default=1, metavar="N", help="means to take (1)")
    add("--parallel", type=int, default=4, metavar="N", help="processes that build (4)")
    add("--timeout", type=int, default=10, metavar="S", help="seconds for one trial (10)")
    add("--rpc-key", help="the key of the devices at a tracker")
    add("--rpc-tracker", metavar="HOST:PORT", help="the tracker's address")
    return parser


def _tracker(args) -> dict:
    host, _, port = (args.rpc_tracker or "").partition(":")
    if (args.rpc_tracker and not host) or (port and not port.isdecimal()):
        raise tvmc.TVMCException(f"--rpc-tracker: expected HOST:PORT, got {args.rpc_tracker!r}")
    return {"hostname": host or None, "port": int(port or 9090)}


def _split(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _model(args) -> tvmc.TVMCModel:
    return tvmc.load(args.FILE, args.model_format, parse_shapes(args.input_shapes))


# The functions of `tvmc` take the options of their names, and ignore others.
def _compile(args) -> None:
    options = {
        "target": _target(args),
        "package_path": args.output,
        "cross": args.cross_compiler,
        "dump_code": _split(args.dump_code),
        "disabled_pass": _split(args.disabled_pass),
        "pass_context_configs": _configs(args.pass_config),
    }
    tvmc.compile_model(_model(args), **vars(args) | options)


def _run(args) -> None:
    inputs = None
    if args.inputs:
        try:
            with np.load(args.inputs) as arrays:
                inputs = dict(arrays.items())
        except (OSError, ValueError) as error:
            raise tvmc.TVMCException(
                f"--inputs: expected a .npz file with arrays by name; {args.inputs}: {error}"
            ) from None
    options = vars(args) | {"inputs": inputs} | _tracker(args)
    result = tvmc.run_module(tvmc.TVMCPackage(args.FILE), **options)
    if args.print_time:
        print(result.format_times())
    if args.print_top:
        for name, output in result.outputs.items():
            order = np.argsort(-output.reshape(-1), kind="stable")[: args.print_top]
            print(name, np.array([order, output.reshape(-1)[order]]), sep="\n")
    if args.outputs:
        result.save(args.outputs)


def _tune(args) -> None:
    options = {
        "target": _target(args),
        "tuning_records": args.output,
        "prior_records": args.tuning_records,
        **_tracker(args),
    }
    tvmc.tune_model(_model(args), **vars(args) | options)


def main(argv: list[str] | None = None) -> int:
    """Run the command line; return the exit code: 0, or 1 with a message on stderr."""
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
    except (tvmc.TVMCException, NotImplementedError, ValueError, OSError, json.JSONDecodeError) as error:
        if args.verbose:
            raise
        print(f"Error: {error}", file=sys.stderr)
        return 1
    return 0


NAMESPACES = {"tvm.driver.tvmc.main": {"main": main}}
