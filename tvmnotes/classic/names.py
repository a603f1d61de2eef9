"""Old name, new name: what became of each name that `tvmnotes.classic` serves, and of those that it refuses.

Notebook 11 shows these tables. What the code knows comes from the code: the Relax calls in an operator's body, the
passes that a build runs for one of Relay's, the reason that an error gives. The rest stands here, a line for each name.
`relax` is short for `tvm.relax`, `tn` for `tvmnotes`, and `lib` is what `relay.build`, or today `tn.build`, gives.
"""

import ast
import inspect
import re

import tvm
import tvm.rpc

from ..compiler import pipeline
from . import context, graph_executor, modules
from .relay import build, frontend, ops, transform

KINDS = ("calls", "methods", "autotvm", "passes", "operators", "gone")

# By old name: the name of today, and a note.
_CALLS = {
    # building and running
    "relay.build": ("tn.build", "gives a library that is called; in TVM itself: tvm.compile, relax.VirtualMachine"),
    "relay.build_config": ("tvm.transform.PassContext", "the opt level is an argument of tn.build"),
    "tvm.build_config": ("tvm.transform.PassContext", "the opt level is an argument of tn.build"),
    "tvm.transform.PassContext": ("tvm.transform.PassContext", "the opt level is an argument of tn.build"),
    "tvm.transform.PassContext.override_instruments": ("tvm.transform.PassContext", "takes a list, not None"),
    "relay.create_executor": ("tn.build", "lib is the function: lib(x)"),
    "relay.GraphExecutor": ("tn.build", "lib(x) runs it"),
    "relay.backend.Executor": ("", "there is one way to run, so nothing to choose: leave it out"),
    "relay.backend.Runtime": ("", "there is one way to run, so nothing to choose: leave it out"),
    "relay.optimize": ("relax.get_pipeline", "a build's passes as one; tn.build runs its own"),
    "relay.bind": ("relax.transform.BindParams", "a pass, from module to module"),
    "relay.build_module.bind_params_by_name": ("relax.transform.BindParams", "a pass, from module to module"),
    "graph_executor.GraphModule": ("tn.build", "lib itself runs: lib(x)"),
    "graph_executor.create": ("tn.build", "lib itself runs: lib(x)"),
    "debug_executor.GraphModuleDebug": ("relax.VirtualMachine.set_instrument", "called before and after each kernel"),
    "debug_executor.create": ("relax.VirtualMachine.set_instrument", "called before and after each kernel"),
    "tvm.module.load": ("tn.load", "for one kernel tvm.runtime.load_module"),
    "tvm.module.enabled": ("tvm.runtime.enabled", ""),
    "tvm.runtime.load_module": ("tn.load", "for one kernel tvm.runtime.load_module"),
    "tvm.rpc.LocalSession.load_module": ("tvm.rpc.LocalSession.load_module", "of a library of tvm.compile"),
    "tvm.rpc.RPCSession.upload": ("tvm.rpc.RPCSession.upload", "of a library of tvm.compile"),
    "relay.save_param_dict": ("tvm.runtime.save_param_dict", "lib.save writes the parameters too"),
    "relay.load_param_dict": ("tvm.runtime.load_param_dict", "tn.load reads the parameters too"),
    # importing
    "relay.frontend.from_pytorch": ("tn.from_pytorch", "in TVM itself relax.frontend.torch.from_exported_program"),
    "relay.frontend.from_onnx": ("tn.from_onnx", "in TVM itself relax.frontend.onnx.from_onnx"),
    "relay.frontend.from_mxnet": ("tn.from_mxnet", "files are read without MXNet"),
    "download.download": ("tvm.contrib.download.download", ""),
    "download.download_testdata": ("tn.data.path", "a download has a checksum"),
    # devices and targets
    "tvm.device": ("tvm.device", "by the device's kind, such as \"cpu\"; no longer by a target's string"),
    "tvm.context": ("tvm.device", ""),
    "tvm.gpu": ("tvm.cuda", ""),
    "tvm.target.Target": ("tvm.target.Target", "options in a dictionary: {\"kind\": \"llvm\", \"mcpu\": …}"),
    "tvm.target.create": ("tvm.target.Target", "options in a dictionary"),
    "tvm.target.cuda": ("tvm.target.Target", "of {\"kind\": \"cuda\", \"arch\": …}"),
    "tvm.target.arm_cpu": ("tvm.target.Target", "of {\"kind\": \"llvm\", \"mtriple\": …}"),
    # arrays and files
    "tvm.nd.array": ("tvm.runtime.tensor", "tn.build's libraries take NumPy arrays as they are"),
    "tvm.nd.empty": ("tvm.runtime.empty", ""),
    "tvm.nd.NDArray": ("tvm.runtime.Tensor", ""),
    "tvm.nd.from_dlpack": ("tvm.runtime.from_dlpack", ""),
    "tvm.nd.cpu": ("tvm.cpu", ""),
    "tvm.nd.gpu": ("tvm.cuda", ""),
    "tvm.nd.device": ("tvm.device", ""),
    "tvm.nd.context": ("tvm.device", ""),
    "tvm.runtime.ndarray": ("tvm.runtime", "array, empty and NDArray are tensor, empty and Tensor"),
    "utils.tempdir": ("tvm.support.utils.tempdir", ""),
    "util.tempdir": ("tvm.support.utils.tempdir", ""),
    # programs
    "relay.var": ("relax.Var", "relax.Var(name, relax.TensorType(shape, dtype))"),
    "relay.const": ("relax.const", ""),
    "relay.Module": ("tvm.IRModule", ""),
    "tvm.IRModule": ("tvm.IRModule", "of functions of Relax"),
    "tvm.IRModule.from_expr": ("tvm.IRModule.from_expr", "of a Relax function"),
    "relay.Expr": ("relax.Expr", ""),
    "relay.RelayExpr": ("relax.Expr", ""),
    "relay.Var": ("relax.Var", ""),
    "relay.GlobalVar": ("relax.GlobalVar", ""),
    "relay.Constant": ("relax.const", "makes one"),
    "relay.Call": ("relax.Call", "relax.BlockBuilder.emit gives each call a variable"),
    "relay.Tuple": ("relax.Tuple", ""),
    "relay.TupleGetItem": ("relax.TupleGetItem", "or an index: pair[0]"),
    "relay.TupleWrapper": ("relax.Tuple", "a call with several results can be indexed itself"),
    "relay.Let": ("relax.VarBinding", "each value has a variable in Relax"),
    "relay.If": ("relax.If", "tn.build compiles no control flow"),
    "relay.Function": ("relax.Function", "made by relax.BlockBuilder, or written in TVMScript"),
    "relay.ScopeBuilder": ("relax.BlockBuilder", ""),
    "relay.TensorType": ("relax.TensorType", ""),
    "relay.TupleType": ("relax.TupleType", ""),
    "relay.FuncType": ("relax.FuncType", ""),
    "relay.scalar_type": ("relax.TensorType", "of shape ()"),
    "relay.Any": ("tvm.tirx.Var", "a symbol for an axis; tn.build wants numbers"),
    "relay.ShapeVar": ("tvm.tirx.Var", "a symbol for an axis; tn.build wants numbers"),
    "relay.TypeVar": ("", "types follow from fixed shapes: leave it out"),
    "relay.op.get": ("tvm.ir.Op.get", "by today's name: tvm.ir.Op.get(\"relax.nn.conv2d\")"),
    "relay.op.Op": ("tvm.ir.Op", ""),
    "relay.ir_pass.infer_type": ("relax.BlockBuilder.normalize", "types are known as soon as a call is emitted"),
    "relay.analysis.free_vars": ("relax.analysis.free_vars", ""),
    "relay.analysis.all_vars": ("relax.analysis.all_vars", ""),
    "relay.analysis.bound_vars": ("relax.analysis.bound_vars", ""),
    "relay.analysis.post_order_visit": ("relax.analysis.post_order_visit", ""),
    "relay.ExprFunctor": ("relax.ExprFunctor", ""),
    "relay.ExprVisitor": ("relax.PyExprVisitor", ""),
    "relay.ExprMutator": ("relax.PyExprMutator", ""),
}  # fmt: skip

# AutoTVM's.
_AUTOTVM = {
    "autotvm.task.extract_from_program": ("tn.tuning.tasks", "tn.tune finds them by itself"),
    "autotvm.task.extract_from_multiple_program": ("tn.tuning.tasks", "of one; all may share a file of records"),
    "autotvm.task.create": ("tn.tuning.Task", "of a workload, such as tvmnotes.compiler.schedules.matmul.Dense"),
    "autotvm.task.Task": ("tn.tuning.Task", "workload, count, target and space"),
    "autotvm.task.ConfigSpace": ("tn.tuning.Task.space", "a list"),
    "autotvm.task.ConfigEntity": ("tn.tuning.Task.space", "each config in it is a dictionary"),
    "autotvm.measure_option": ("tn.tune", "its argument runner"),
    "autotvm.LocalBuilder": ("tn.tuning.Local", "builds and measures"),
    "autotvm.LocalRunner": ("tn.tuning.Local", "what tn.tune takes when no runner is given"),
    "autotvm.RPCRunner": ("tn.tuning.rpc", "from a shell: python -m tvmnotes serve, and tune --tracker"),
    "autotvm.MeasureInput": ("tn.tuning.Candidate", ""),
    "autotvm.MeasureResult": ("tn.tuning.Trial", "seconds, or an error"),
    "autotvm.MeasureErrorNo": ("tn.tuning.Trial.error", "None, or a sentence"),
    "autotvm.tuner.Tuner": ("tn.tune", "its argument tuner"),
    "autotvm.tuner.XGBTuner": ("tn.tune", "tuner=\"xgb\", which learns from earlier records by itself"),
    "autotvm.tuner.GATuner": ("tn.tune", "tuner=\"ga\""),
    "autotvm.tuner.RandomTuner": ("tn.tune", "tuner=\"random\""),
    "autotvm.tuner.GridSearchTuner": ("tn.tune", "tuner=\"grid\""),
    "autotvm.callback.progress_bar": ("tn.tune", "shows a bar for each task by itself"),
    "autotvm.callback.log_to_file": ("tn.tune", "records=FILE, to which each batch is appended at once"),
    "autotvm.record.load_from_file": ("tn.records.read", "of one file or several"),
    "autotvm.record.pick_best": ("tn.records.pick_best", "of one file or several"),
    "autotvm.record.encode": ("tn.records.Record", "str of it is its line"),
    "autotvm.record.decode": ("tn.records.parse", ""),
    "autotvm.apply_history_best": ("tn.build", "records=FILE"),
    "autotvm.template": ("", "templates were TE schedules: write the kernel in TensorIR and tune it with "
                             "tvm.s_tir.meta_schedule"),
    "autotvm.graph_tuner.DPTuner": ("", "a build's layouts are uniform already"),
    "autotvm.tophub.context": ("tn.build", "records=None takes those that tvmnotes ships; nothing is fetched"),
}  # fmt: skip

# Modules whose names have become one thing, with a row for all of them.
_GROUPS = {
    "relay.testing.*": ("tn.models.load", "networks by name, with weights"),
    "relay_viz.*": ("tvm.IRModule.script", "a module's text; mod.show() prints it in colours"),
    "tvm.driver.tvmc.*": ("tn.build", "from a shell: python -m tvmnotes tune, and bench"),
    **{f"{old}.*": (f"tvm.support.{new}", "") for old, new in modules._SUPPORT.items()},
}

# The same for what scripts call on objects: an array, a library, an executor.
_METHODS = {
    "NDArray.asnumpy": ("tvm.runtime.Tensor.numpy", "lib(x) gives NumPy arrays already"),
    "NDArray.ctx": ("tvm.runtime.Tensor.device", ""),
    "NDArray.context": ("tvm.runtime.Tensor.device", ""),
    "GraphModule.set_input": ("lib(x)", "inputs are arguments, by position or by name: lib(data=x)"),
    "GraphModule.set_input_zero_copy": ("lib(x)", "reads aligned, contiguous arrays in place"),
    "GraphModule.get_input": ("", "inputs are arguments, and not kept"),
    "GraphModule.get_output": ("lib(x)", "outputs are what the call gives"),
    "GraphModule.run": ("lib(x)", ""),
    "GraphModule.get_num_inputs": ("lib.inputs", "len(lib.inputs)"),
    "GraphModule.get_num_outputs": ("lib.outputs", "len(lib.outputs)"),
    "GraphModule.get_input_index": ("lib.inputs", "in the order of the arguments"),
    "GraphModule.get_input_info": ("lib.inputs", "name, shape and dtype of each"),
    "GraphModule.load_params": ("tn.load", "with the library"),
    "GraphModule.time_evaluator": ("tn.measure.time", "median and spread; tn.compare for several"),
    "GraphModule.benchmark": ("tn.measure.time", "median and spread; tn.compare for several"),
    "GraphModuleDebug.run": ("relax.VirtualMachine.set_instrument", ""),
    "GraphModuleDebug.run_individual": ("relax.VirtualMachine.set_instrument", ""),
    "GraphModuleDebug.profile": ("relax.VirtualMachine.set_instrument", ""),
    "GraphModuleDebug.get_debug_result": ("relax.VirtualMachine.set_instrument", ""),
    "GraphModuleDebug.debug_get_output": ("relax.VirtualMachine.set_instrument", ""),
    "lib.get_function": ("", "lib itself is called"),
    "lib.lib": ("tn.build", "its result is the library"),
    "lib.module": ("tn.build", "its result is the library"),
    "lib.get_lib": ("tn.build", "its result is the library"),
    "lib.graph_json": ("lib.graph", "as a dictionary"),
    "lib.get_graph_json": ("lib.graph", "as a dictionary"),
    "lib.get_executor_config": ("lib.graph", "as a dictionary"),
    "lib.params": ("lib.params", ""),
    "lib.get_params": ("lib.params", ""),
    "lib.get_source": ("tvm.runtime.Module.inspect_source", "of what tvm.compile gives; lib.kernels lists kernels"),
    "lib.imported_modules": ("tvm.runtime.Module.imports", ""),
    "lib.export_library": ("lib.save", "a folder: library, graph, parameters, manifest"),
    "lib.save": ("lib.save", "a folder: library, graph, parameters, manifest"),
    "GraphExecutor.evaluate": ("tn.build", "lib is the function: lib(x)"),
}  # fmt: skip

# Relay's passes that no pass of today stands for by name.
_PASSES = {
    "RemoveUnusedFunctions": ("relax.transform.DeadCodeElimination", ""),
    "InferType": ("relax.transform.Normalize", "types are known as soon as a call is emitted"),
    "ForwardFoldScaleAxis": ("tvmnotes.compiler.fold.fold_batch_norm", ""),
}

# Classes, as the table writes them.
_OURS = {graph_executor.GraphModule: "GraphModule", graph_executor.GraphModuleDebug: "GraphModuleDebug",
         build.Factory: "lib", build.Executor: "GraphExecutor"}  # fmt: skip
_TVMS = {tvm.target.Target: "tvm.target.Target", tvm.transform.PassContext: "tvm.transform.PassContext",
         tvm.IRModule: "tvm.IRModule", tvm.runtime.Tensor: "NDArray",
         tvm.rpc.LocalSession: "tvm.rpc.LocalSession", tvm.rpc.RPCSession: "tvm.rpc.RPCSession"}  # fmt: skip
_IN_RELAY = ("quantize", "qnn", "vm", "parse", "fromtext", "adt", "Match", "RefCreate")


def table(kind: str | None = None):
    """A pandas DataFrame with a row for each name: old, new, note.

    `kind` is one of KINDS; None is all of them, one after another. Raises ValueError for another.
    """
    import pandas as pd

    if kind is not None and kind not in KINDS:
        raise ValueError(f"names.table: expected one of {', '.join(KINDS)}, or None for all; got {kind!r}")
    listed = [(old, *row) for wanted in KINDS if kind in (wanted, None) for old, row in _rows()[wanted].items()]
    return pd.DataFrame(listed, columns=["old", "new", "note"])


def used_in(source: str):
    """The rows for what the source text of a script uses, each once, in the order of the text.

    Methods are found where they are called, by their name alone, except on a module that the script imports.
    """
    import pandas as pd

    tree, imported, found = ast.parse(source), {}, []
    for node in ast.walk(tree):
        for alias in getattr(node, "names", []) if isinstance(node, ast.Import | ast.ImportFrom) else []:
            first = alias.name if alias.asname else alias.name.partition(".")[0]
            full = f"{node.module}.{alias.name}" if isinstance(node, ast.ImportFrom) else first
            imported[alias.asname or (alias.name if isinstance(node, ast.ImportFrom) else first)] = full
    known, rows = _known(), {old: row for kind in KINDS for old, row in _rows()[kind].items()}
    methods = {old.rpartition(".")[2]: old for old in reversed(_METHODS)}
    called = {node.func for node in ast.walk(tree) if isinstance(node, ast.Call)}
    for node in ast.walk(tree):
        root, *rest = _dotted(node)
        name = ""
        if root in imported:
            name = _short(".".join([imported[root], *rest]))
        elif rest and node in called:
            name = methods.get(rest[-1], "")
        if row := rows.get(known.get(name, name)):
            found.append(((node.end_lineno, node.end_col_offset), name, *row))
    listed = dict.fromkeys(row[1:] for row in sorted(found))
    return pd.DataFrame(list(listed), columns=["old", "new", "note"])


def served() -> dict[str, object]:
    """What scripts find in place, by the name that they write; see `modules` for what each is."""
    found = {f"{space}.{name}": value for space, names in modules._spaces().items() for name, value in names.items()}
    for owner, name, value in modules.patches():
        written = _TVMS.get(owner, getattr(owner, "__name__", ""))
        found[written if name.startswith("__") and owner in _TVMS else f"{written}.{name}"] = value
    for made, written in _OURS.items():
        found.update({f"{written}.{name}": value for name, value in vars(made).items()})
    return {_short(name): value for name, value in found.items()
            if value is not None and not name.rpartition(".")[2].startswith("_")}  # fmt: skip


def _known() -> dict[str, str | None]:
    """By name that is served, the name under which the table has it; None where it has none."""
    everything, rows = served(), {old for rows in _rows().values() for old in rows}
    first = {id(value): name for name, value in everything.items() if name in rows}
    group = {name: next((g for g in _GROUPS if name.startswith(g[:-1])), None) for name in everything}
    return {name: name if name in rows else first.get(id(value), group[name]) for name, value in everything.items()}


def _short(name: str) -> str:
    """A full name as scripts write it: tvm.relay.var is relay.var, tvm.contrib.util.tempdir is util.tempdir."""
    return re.sub(r"^tvm\.(?=relay|autotvm)|^tvm\.contrib\.(debugger\.)?(?=\w)", "", name)


def _dotted(node) -> list[str]:
    """The names in `a.b.c`; the first is "" where it does not begin with a name, or is none."""
    names = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return [node.id if isinstance(node, ast.Name) else "", *reversed(names)]


# ---------------------------------------------------------------- rows, by kind


def _rows() -> dict[str, dict[str, tuple[str, str]]]:
    there = served()
    return {
        "calls": {
            **{old: row for old, row in _CALLS.items() if old in there},
            **{old: row for old, row in _GROUPS.items() if any(name.startswith(old[:-1]) for name in there)},
        },
        "methods": {old: row for old, row in _METHODS.items() if old in there},
        "autotvm": {old: row for old, row in _AUTOTVM.items() if old in there},
        "passes": {f"relay.transform.{name}": _pass(name, make) for name, make in transform.NAMES.items()},
        "operators": {f"relay.{name}": _operator(made) for name, made in sorted(ops.OPERATORS.items())},
        "gone": {
            **{f"{'relay' if name in _IN_RELAY else 'tvm'}.{name}": ("", why) for name, why in modules._GONE.items()},
            **{f"relay.frontend.{name}": ("", way) for name, way in frontend._GONE.items()},
        },
    }


def _operator(made: ops.Operator) -> tuple[str, str]:
    today, body = made.relax_names(), inspect.getsource(made.body)
    helpers = [made.body.__globals__.get(name) for name in re.findall(r"return (\w+)\(", body) if not today]
    for helper in filter(None, helpers):
        called = re.findall(r"\bR\.([\w.]+)\(", inspect.getsource(helper))
        today += [f"relax.op.{name}" for name in dict.fromkeys(called)]
    if not today and "relax.const(" in body:
        return "relax.const", "known when the program is compiled"
    return ", ".join(today), "" if today else "the value itself"


def _pass(name: str, make) -> tuple[str, str]:
    if name in _PASSES:
        return _PASSES[name]
    # What the makers in `transform` made it of; a class, or a decorator, has kept its name.
    inside = inspect.getclosurevars(make).nonlocals if inspect.isfunction(make) else {}
    steps = [*context.PASSES.get(name, ()), *(n for step in inside.get("passes", ()) for n in _calls(step))]
    steps = steps if "name" in inside else [name]
    today = [path for path in map(_pass_today, dict.fromkeys(steps)) if path]
    return ", ".join(dict.fromkeys(today)), inside.get("why", "")


def _calls(function) -> list[str]:
    """The name of a function, and those that it uses."""
    return [name for name in (function.__name__, *function.__code__.co_names) if name[0] != "_"]


def _pass_today(name: str) -> str:
    """Where the pass `name` is today: in Relax, in TVM for all its languages, or in the compiler of tvmnotes."""
    if hasattr(tvm.relax.transform, name):
        return f"relax.transform.{name}"
    if hasattr(tvm.transform, name):
        return f"tvm.transform.{name}"
    for ours, made in vars(pipeline).items():
        if ours.replace("_", "") == name.replace("_", "").lower() and callable(made):
            return f"{made.__module__}.{ours}"
    return ""


def show(rows):
    """A table as a notebook shows it: every row of it, left-aligned, with the names in a fixed width."""
    from IPython.display import HTML
    from pandas.io.formats.style import Styler

    cells = [{"selector": "td, th", "props": "text-align: left; vertical-align: top"},
             {"selector": "td:not(:last-child)", "props": "font-family: monospace"},
             {"selector": "td:last-child", "props": "min-width: 14em; overflow-wrap: anywhere"}]  # fmt: skip
    made = Styler(rows, uuid="names", cell_ids=False).hide(axis="index").set_table_styles(cells)
    return HTML(made.to_html())
