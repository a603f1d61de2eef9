"""What `enable` puts in place: the modules of old by name, and the attributes that today's TVM has lost or changed."""

import difflib
import importlib
import os
import types
from pathlib import Path

import numpy as np
import tvm
import tvm.rpc
from tvm.contrib.download import download

from ..base import data
from . import autotvm, context, graph_executor, targets
from .relay import build, frontend, functor, ir, ops, scope_builder, testing, transform, ty
from .tools import relay_viz, tvmc

# What scripts ask for and nothing here serves: why, and the way today.
_GONE = {
    "micro": "microTVM was dropped in TVM 0.19; export with lib.save and run on the C++ runtime",
    "auto_scheduler": "Ansor was dropped in TVM 0.20; tn.tune(…, tuner='metaschedule') searches as it did",
    "tir": "tvm.tir became tvm.tirx",
    "hybrid": "hybrid script was dropped; write TensorIR with tvm.script",
    "ir_builder": "the IR builder was dropped; write TensorIR with tvm.script",
    "vta": "VTA was dropped in TVM 0.19",
    "create_schedule": "TE schedules were dropped in TVM 0.20; make a tvm.s_tir.Schedule of te.create_prim_func",
    "lower": "tvm.lower was dropped; tvm.compile lowers, and .mod.inspect_source of its result shows what came out",
    "quantize": "relay.quantize was dropped in TVM 0.20; quantize in PyTorch or ONNX and import the result",
    "qnn": "relay.qnn was dropped in TVM 0.20; import the float network, or one whose scales are plain multiplications",
    "vm": "relay.vm was dropped in TVM 0.20; relay.create_executor('vm', …) serves, or tvm.relax.VirtualMachine",
    "parse": "Relay's parser was dropped in TVM 0.20; write it with relay.var and relay.nn, or in TVMScript",
    "fromtext": "Relay's parser was dropped in TVM 0.20; write it with relay.var and relay.nn, or in TVMScript",
    "dataflow_pattern": "relay.dataflow_pattern became tvm.relax.dpl",
    "sparse_dense": "TVM has no sparse kernels left since 0.20; multiply with the dense matrix",
    "data_dep_optimization": "TVM has no sparse kernels left since 0.20; build the dense network",
    "TensorCoreTarget": "tensor cores are scheduled by tvm.s_tir.dlight",
    "adt": "algebraic data types were dropped with Relay in TVM 0.20; write that part in Python",
    "Match": "algebraic data types were dropped with Relay in TVM 0.20; write that part in Python",
    "RefCreate": "references were dropped with Relay in TVM 0.20; write that part in Python",
}


class Old(types.ModuleType):
    """A module of old. An unknown attribute is an error that names a near one, or says what became of it."""

    def __getattr__(self, name: str):
        if name.startswith("__"):
            raise AttributeError(name)
        raise AttributeError(missing(self.__name__, name, self.__dict__))


def missing(module: str, name: str, known) -> str:
    gone = next((part for part in (name, module.rpartition(".")[2]) if part in _GONE), None)
    if gone:
        return f"{module}.{name}: {_GONE[gone]}"
    near = difflib.get_close_matches(name, [n for n in known if n[0] != "_"], n=3, cutoff=0.5)
    hint = f"; near names: {', '.join(near)}" if near else ""
    return f"tvmnotes.classic serves no {module}.{name}{hint}"


def modules() -> dict[str, Old]:
    """The modules of old, by the name under which a script imports them."""
    spaces = _spaces()
    made = {}
    for name, space in spaces.items():
        made[name] = Old(name, f"{name}, as tvmnotes.classic serves it.")
        made[name].__dict__.update(space)
        made[name].__path__ = []  # it may have submodules
    for name, module in made.items():
        parent, _, short = name.rpartition(".")
        if parent in made:
            setattr(made[parent], short, module)
    return made


_EXPRESSIONS = {
    name: getattr(ir, name)
    for name in ("Expr", "RelayExpr", "Var", "Constant", "Call", "Tuple", "TupleGetItem", "TupleWrapper", "Let", "If",
                 "Function", "var", "const")
}  # fmt: skip
_TYPES = {name: getattr(ty, name) for name in ("TensorType", "TupleType", "FuncType", "Any")}
_PARAMS = {"save_param_dict": tvm.runtime.save_param_dict, "load_param_dict": tvm.runtime.load_param_dict}


class _PostOrder:
    """`relay.analysis.post_order_visit` calls a function with each expression, parts before wholes."""

    def __call__(self, expr, fvisit) -> None:
        body = expr.body if isinstance(expr, ir.Function) else expr
        for node in [*(expr.params if isinstance(expr, ir.Function) else ()), *ir.post_order(body)]:
            fvisit(node)


def _all_vars(expr):
    body = expr.body if isinstance(expr, ir.Function) else expr
    own = expr.params if isinstance(expr, ir.Function) else []
    return list(dict.fromkeys([*own, *(n for n in ir.post_order(body) if isinstance(n, ir.Var))]))


def _bind(expr, binds: dict):
    """`expr` with variables, or names of them, replaced by values."""
    known = {v.name_hint: v for v in _all_vars(expr)}
    table = {known.get(k, k) if isinstance(k, str) else k: ir.as_expr(v) for k, v in binds.items()}
    if not isinstance(expr, ir.Function):
        return ir.substitute(expr, table)
    params = [p for p in expr.params if p not in table]
    return ir.Function(params, ir.substitute(expr.body, table), attrs=expr.attrs)


def _graph_executor(**more) -> dict:
    return {"GraphModule": graph_executor.GraphModule, "create": graph_executor.create, **more}


def _debugger() -> dict:
    return {"GraphModuleDebug": graph_executor.GraphModuleDebug, "create": graph_executor.create_debug,
            "GraphModule": graph_executor.GraphModuleDebug}  # fmt: skip


def _spaces() -> dict[str, dict]:
    nn = ops.module("nn.")
    building = {"build": build.build, "create_executor": build.create_executor, "optimize": build.optimize,
                "GraphExecutor": build.Executor, "build_config": tvm.transform.PassContext}  # fmt: skip
    analysis = {"free_vars": ir.free_vars, "post_order_visit": _PostOrder(), "all_vars": _all_vars,
                "bound_vars": lambda e: [v for v in _all_vars(e) if v not in ir.free_vars(e)]}  # fmt: skip
    relay = {
        **ops.module(""),
        **_EXPRESSIONS,
        **_TYPES,
        **_PARAMS,
        **building,
        **functor.NAMES,
        "ScopeBuilder": scope_builder.ScopeBuilder,
        "bind": _bind,
        "Module": ir.IRModule,
        "GlobalVar": tvm.ir.GlobalVar,
        "TensorType": ty.TensorType,
        "scalar_type": lambda dtype: ty.TensorType((), dtype),
        "ShapeVar": ty.Any,
        "TypeVar": _refuse("relay.TypeVar", "types are inferred for fixed shapes now; leave it out"),
    }
    op = {"get": _operator, "Op": ir.Op, "nn": None, **ops.module("")}
    return {
        "tvm.relay": relay,
        "tvm.relay.nn": nn,
        "tvm.relay.image": ops.module("image."),
        "tvm.relay.annotation": ops.module("annotation."),
        "tvm.relay.op": op,
        "tvm.relay.op.nn": nn,
        "tvm.relay.op.image": ops.module("image."),
        "tvm.relay.expr": _EXPRESSIONS,
        "tvm.relay.function": {"Function": ir.Function},
        "tvm.relay.expr_functor": functor.NAMES,
        "tvm.relay.scope_builder": {"ScopeBuilder": scope_builder.ScopeBuilder},
        **{f"tvm.relay.testing{name}": space for name, space in testing.MODULES.items()},
        "tvm.relay.ty": _TYPES,
        "tvm.relay.ir_pass": {"infer_type": _infer_type, "free_vars": ir.free_vars},
        "tvm.relay.analysis": analysis,
        "tvm.relay.transform": transform.NAMES,
        "tvm.relay.frontend": frontend.NAMES,
        "tvm.relay.build_module": {**building, "bind_params_by_name": _bind},
        "tvm.relay.param_dict": _PARAMS,
        "tvm.relay.backend": build.BACKEND,
        "tvm.contrib.graph_executor": _graph_executor(),
        "tvm.contrib.graph_runtime": _graph_executor(),
        "tvm.contrib.debugger": {},
        "tvm.contrib.debugger.debug_executor": _debugger(),
        "tvm.contrib.debugger.debug_runtime": _debugger(),
        "tvm.contrib.download": {"download": download, "download_testdata": download_testdata},
        **relay_viz.SPACES,
        **{f"tvm.contrib.{old}": _public(f"tvm.support.{new}") for old, new in _SUPPORT.items()},
        "tvm.nd": _arrays(),
        "tvm.module": {"load": _load_module, "enabled": tvm.runtime.enabled},
        **autotvm.SPACES,
        **tvmc.SPACES,
        "tvm.auto_scheduler": {},  # a tutorial on AutoTVM imports it and does without
    }


_SUPPORT = {name: name for name in ("cc", "emcc", "ndk", "nvcc", "popen_pool", "tar", "utils", "xcode")} | {
    "util": "utils"
}


def _public(module: str) -> dict:
    return {k: v for k, v in vars(importlib.import_module(module)).items() if k[0] != "_"}


def _operator(name: str) -> ir.Op:
    """`relay.op.get`."""
    if name not in ops.OPERATORS:
        near = difflib.get_close_matches(name, ops.OPERATORS, n=3)
        raise AttributeError(f"relay.op.get: no operator {name!r}; near names: {', '.join(near) or 'none'}")
    return ir.Op(name)


def _infer_type(expr, mod=None):
    """`relay.ir_pass.infer_type`: the same expression, with its type."""
    if isinstance(expr, ir.Function):
        return expr.infer()
    ir.Function(ir.free_vars(expr), expr).infer()
    return expr


def _refuse(what: str, way: str):
    def refused(*_args, **_kwargs):
        raise NotImplementedError(f"{what}: {way}")

    return refused


# ---------------------------------------------------------------- arrays, devices, files


def _array(values, ctx=None, device=None, mem_scope=None):
    """`tvm.nd.array`: a copy of `values`."""
    return tvm.runtime.tensor(
        values.numpy() if hasattr(values, "numpy") else np.asarray(values), device or ctx or tvm.cpu()
    )


def _empty(shape, dtype="float32", ctx=None, device=None, mem_scope=None):
    return tvm.runtime.empty((shape,) if isinstance(shape, int) else tuple(shape), dtype, device or ctx or tvm.cpu())


def _device(device_type, device_id=0):
    """`tvm.device` and `tvm.context` take a target's string as well."""
    if isinstance(device_type, str):
        device_type = device_type.split()[0]
        device_type = {"llvm": "cpu", "stackvm": "cpu", "c": "cpu", "gpu": "cuda", "nvptx": "cuda"}.get(
            device_type, device_type
        )
    return _ORIGINAL_DEVICE(device_type, device_id)


_ORIGINAL_DEVICE, _ORIGINAL_LOAD = tvm.device, tvm.runtime.load_module


def _load_module(path, fmt=""):
    return build.load_module(path, fmt, _ORIGINAL_LOAD)


def _arrays() -> dict:
    return {"array": _array, "empty": _empty, "NDArray": tvm.runtime.Tensor, "cpu": tvm.cpu, "gpu": tvm.cuda,
            "device": _device, "context": _device, "from_dlpack": tvm.runtime.from_dlpack}  # fmt: skip


def download_testdata(url: str, relpath: str, module=None, overwrite: bool = False) -> str:
    """The path of a file that is here: in the folder of TVM's old cache, bundled, or in the cache of tvmnotes.

    Nothing is downloaded, as scripts name no checksum: the error says where to put the file.
    """
    name = f"{module}/{relpath}" if module else str(relpath)
    old = Path(os.environ.get("TVM_DATA_ROOT_PATH", "~/.tvm_test_data")).expanduser() / name
    if old.is_file():
        return str(old)
    try:
        return str(data.path(name))
    except FileNotFoundError:
        raise FileNotFoundError(
            f"download_testdata: {name} is not here, and is not downloaded without a checksum. Fetch it from {url}, "
            f"and put it at {data.cache() / name} or {old}."
        ) from None


def patches() -> list[tuple[object, str, object]]:
    """(object, attribute, value) of what is put into today's TVM, and taken out by `disable`."""
    from_expr, target_init, pass_init = (
        tvm.IRModule.__dict__["from_expr"], tvm.target.Target.__init__, tvm.transform.PassContext.__init__)  # fmt: skip
    enter, leave = tvm.transform.PassContext.__enter__, tvm.transform.PassContext.__exit__
    remote_load, upload = tvm.rpc.LocalSession.load_module, tvm.rpc.RPCSession.upload
    override = tvm.transform.PassContext.override_instruments
    add_function, call = tvm.IRModule.__setitem__, tvm.ir.GlobalVar.__call__

    def add_function_of_today(self, name, function):
        if isinstance(function, ir.Expr):
            raise TypeError(
                "a tvm.IRModule holds functions of today; make one of Relay's with tvm.IRModule.from_expr(function), "
                "or begin with an empty relay.Module()"
            )
        add_function(self, name, function)

    def call_of_either(self, *args):
        return ir.Call(self, args) if any(isinstance(arg, ir.Expr) for arg in args) else call(self, *args)

    def from_expr_of_either(expr, functions=None, type_defs=None):
        if isinstance(expr, ir.Expr | ir.TupleWrapper):
            return ir.IRModule.from_expr(expr, functions)
        return from_expr.__func__(expr, functions) if hasattr(from_expr, "__func__") else from_expr(expr, functions)

    def target_of_string(self, target, host=None, *args):
        target = targets.parse(target)
        if host is not None:
            return target_init(self, target, targets.parse(host), *args)
        return target_init(self, target, *args)

    def context_of_old(self, *args, **kwargs):
        given = context.arguments(*args, **kwargs)
        context.remember(self, given["instruments"])
        pass_init(self, **given)

    def context_enter(self):
        context.enter(self)
        return enter(self)

    def context_leave(self, *error):
        context.leave()
        return leave(self, *error)

    def load_uploaded(self, path):
        """The session in this process: a library of relay.build, or of today."""
        return build.load_module(self._temp.relpath(path), original=lambda _: remote_load(self, path))

    def upload_what_runs_there(self, data, target=None):
        if not isinstance(self, tvm.rpc.LocalSession) and isinstance(data, str) and build.is_library(data):
            raise NotImplementedError(
                "remote.upload: a library of relay.build runs in the process that loads it, not over RPC; copy the "
                "file to the other machine and run the script there"
            )
        return upload(self, data, target)

    return [
        (tvm.rpc.RPCSession, "upload", upload_what_runs_there),
        (tvm.rpc.LocalSession, "load_module", load_uploaded),
        (tvm.transform.PassContext, "override_instruments", lambda self, new: override(self, new or [])),
        (tvm.IRModule, "from_expr", staticmethod(from_expr_of_either)),
        (tvm.IRModule, "__setitem__", add_function_of_today),
        (tvm.ir.GlobalVar, "__call__", call_of_either),
        (tvm.target.Target, "__init__", target_of_string),
        (tvm.transform.PassContext, "__init__", context_of_old),
        (tvm.transform.PassContext, "__enter__", context_enter),
        (tvm.transform.PassContext, "__exit__", context_leave),
        (tvm.transform, "Sequential", transform.Sequential),
        (tvm.runtime.Tensor, "asnumpy", tvm.runtime.Tensor.numpy),
        (tvm.runtime.Tensor, "ctx", property(lambda self: self.device)),
        (tvm.runtime.Tensor, "context", property(lambda self: self.device)),
        (tvm.runtime, "load_module", _load_module),
        (tvm.runtime, "ndarray", modules()["tvm.nd"]),
        (tvm.runtime, "NDArray", tvm.runtime.Tensor),
        (tvm, "gpu", tvm.cuda),
        (tvm, "device", _device),
        (tvm, "context", _device),
        (tvm, "build_config", tvm.transform.PassContext),
        (tvm.target, "create", targets.create),
        (tvm.target, "cuda", targets.cuda),
        (tvm.target, "arm_cpu", targets.arm_cpu),
        *((module, "__getattr__", _unknown_in(module)) for module in _KNOWING),
    ]


_KNOWING = (tvm, tvm.te, tvm.target, tvm.transform, tvm.contrib)  # modules of today that have lost something


def _unknown_in(module):
    def unknown(name: str):
        raise AttributeError(missing(module.__name__, name, vars(module)))

    return unknown
