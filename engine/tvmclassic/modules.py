"""The old modules by name, with their contents, which `enable` installs."""

import difflib
import importlib
import os
from pathlib import Path

import numpy as np
import tvm
from tvm.contrib.download import download

from tvmfast.core import data

from . import auto_scheduler, autotvm, graph_executor, remote, script, targets, tir, topi_schedules
from .relay import build, frontend, functor, ir, ops, quantize, rewrites, sparsity, testing, transform, ty, vm
from .removed import StubModule, named
from .te import names as te_names
from .tools import relay_viz, tedd, tvmc, tvmc_command

try:
    import tvm.testing.utils
except ImportError:  # it imports pytest, which may not be installed
    TESTING = ()
else:
    TESTING = (tvm.testing, tvm.testing.utils)

# Former modules of tvm.contrib, and their names in tvm.support now.
SUPPORT = {
    **{n: n for n in ("cc", "clang", "emcc", "ndk", "nvcc", "popen_pool", "tar", "utils", "xcode")},
    "util": "utils",
}


def modules() -> dict[str, StubModule]:
    """Return the old modules, keyed by the name that scripts import."""
    by_name = {}
    for name, space in spaces().items():
        by_name[name] = StubModule(name, f"{name}, as tvmclassic serves it.")
        by_name[name].__dict__.update(space)
        by_name[name].__path__ = []  # makes it a package, so that submodules import
    for name, module in by_name.items():
        parent, _, short = name.rpartition(".")
        if parent in by_name:
            setattr(by_name[parent], short, module)
    return by_name


def spaces() -> dict[str, dict]:
    """Return the contents of each old module: {module name: {attribute name: value}}."""
    nn = {**ops.module("nn."), "sparse_dense": ops.sparse.sparse_dense}
    image, qnn = ops.module("image."), ops.module("qnn.")
    exprs = named(
        ir, "Expr RelayExpr Var Constant Call Tuple TupleGetItem TupleWrapper Let If Function var const"
    )
    types = named(ty, "TensorType TupleType FuncType Any")
    params = named(tvm.runtime, "save_param_dict load_param_dict")
    building = {
        **named(build, "build optimize"),
        "create_executor": vm.create_executor,
        "GraphExecutor": vm.Executor,
        "build_config": tvm.transform.PassContext,
    }
    registering = named(rewrites, "register_alter_op_layout")
    analysis = {
        "free_vars": ir.free_vars,
        "post_order_visit": functor.post_order_visit,
        "all_vars": functor.all_vars,
        "bound_vars": lambda e: [v for v in functor.all_vars(e) if v not in ir.free_vars(e)],
    }
    relay = {
        **ops.module(""),
        **exprs,
        **types,
        **params,
        **building,
        **functor.NAMES,
        "bind": functor.bind,
        "ScopeBuilder": functor.ScopeBuilder,
        "Module": ir.IRModule,
        "GlobalVar": tvm.ir.GlobalVar,
        "scalar_type": lambda dtype: ty.TensorType((), dtype),
        "ShapeVar": ty.Any,
        "TypeVar": _type_var,
    }
    arrays = {
        "array": _array,
        "empty": _empty,
        "NDArray": tvm.runtime.Tensor,
        "cpu": tvm.cpu,
        "gpu": tvm.cuda,
        "device": targets.device,
        "context": targets.device,
        "from_dlpack": tvm.runtime.from_dlpack,
    }
    executor = named(graph_executor, "GraphModule create")
    debugger = {
        "GraphModuleDebug": graph_executor.GraphModuleDebug,
        "create": graph_executor.create_debug,
        "GraphModule": graph_executor.GraphModuleDebug,
    }
    return {
        "tvm.relay": relay,
        "tvm.relay.nn": nn,
        "tvm.relay.image": image,
        "tvm.relay.annotation": ops.module("annotation."),
        "tvm.relay.qnn": qnn,
        "tvm.relay.qnn.op": {**qnn, "requantize_config": ops.qnn.requantize_config},
        "tvm.relay.qnn.transform": transform.QNN,
        "tvm.relay.quantize": quantize.NAMES,
        "tvm.relay.op": {"get": _operator, "Op": ir.Op, **registering, **ops.module("")},
        "tvm.relay.op.op": {"get": _operator, "Op": ir.Op, **registering},
        "tvm.relay.op.nn": nn,
        "tvm.relay.op.image": image,
        "tvm.relay.expr": exprs,
        "tvm.relay.function": {"Function": ir.Function},
        "tvm.relay.expr_functor": functor.NAMES,
        "tvm.relay.scope_builder": {"ScopeBuilder": functor.ScopeBuilder},
        **{f"tvm.relay.testing{name}": space for name, space in testing.MODULES.items()},
        "tvm.relay.ty": types,
        "tvm.relay.ir_pass": {"infer_type": _infer_type, "free_vars": ir.free_vars},
        "tvm.relay.analysis": analysis,
        "tvm.relay.transform": transform.NAMES,
        "tvm.relay.frontend": frontend.NAMES,
        "tvm.relay.build_module": {**building, "bind_params_by_name": functor.bind},
        "tvm.relay.param_dict": params,
        "tvm.relay.backend": build.BACKEND,
        "tvm.relay.loops": {"while_loop": functor.while_loop},
        **vm.NAMESPACES,
        **sparsity.NAMESPACES,
        "tvm.contrib.graph_executor": executor,
        "tvm.contrib.graph_runtime": executor,
        "tvm.contrib.debugger": {},
        "tvm.contrib.debugger.debug_executor": debugger,
        "tvm.contrib.debugger.debug_runtime": debugger,
        "tvm.contrib.download": {"download": download, "download_testdata": download_testdata},
        **relay_viz.NAMESPACES,
        **tedd.NAMESPACES,
        **{f"tvm.contrib.{old}": _public(f"tvm.support.{new}") for old, new in SUPPORT.items()},
        **dict.fromkeys(("tvm.nd", "tvm.ndarray", "tvm.runtime.ndarray"), arrays),
        "tvm.module": {"load": load_module, "enabled": tvm.runtime.enabled},
        **te_names.spaces(),
        "topi": _public("tvm.topi"),
        **topi_schedules.NAMESPACES,
        **script.spaces(),
        **tir.spaces(),
        **autotvm.NAMESPACES,
        **auto_scheduler.NAMESPACES,
        "tvm.autotvm.measure": {**autotvm.NAMESPACES["tvm.autotvm.measure"], **remote.NAMES},
        "tvm.autotvm.measure.measure_methods": remote.NAMES,
        "tvm.auto_scheduler.utils": remote.NAMES,
        **tvmc.NAMESPACES,
        **tvmc_command.NAMESPACES,
        **({} if TESTING else dict.fromkeys(("tvm.testing", "tvm.testing.utils"), _TESTING)),
    }


def _public(module: str) -> dict:
    return {k: v for k, v in vars(importlib.import_module(module)).items() if k[0] != "_"}


# ---------------------------------------------------------------- expressions


def _operator(name: str) -> ir.Op:
    """`relay.op.get`."""
    if name not in ops.OPERATORS:
        near = difflib.get_close_matches(name, ops.OPERATORS, n=3)
        raise AttributeError(f"relay.op.get: no operator {name!r}; near names: {', '.join(near) or 'none'}")
    return ir.Op(name)


def _infer_type(expr, mod=None):
    """`relay.ir_pass.infer_type`: infers the type in place and returns `expr`."""
    if isinstance(expr, ir.Function):
        return expr.infer()
    ir.Function(ir.free_vars(expr), expr).infer()
    return expr


def _type_var(*_args, **_kwargs):
    raise NotImplementedError("relay.TypeVar: types are inferred for static shapes now; leave it out")


# ---------------------------------------------------------------- arrays, files, tests


def _array(values, ctx=None, device=None, mem_scope=None):
    """`tvm.nd.array`: copies `values`."""
    values = values.numpy() if hasattr(values, "numpy") else np.asarray(values)
    return tvm.runtime.tensor(values, device or ctx or tvm.cpu())


def _empty(shape, dtype="float32", ctx=None, device=None, mem_scope=None):
    return tvm.runtime.empty(
        (shape,) if isinstance(shape, int) else tuple(shape), dtype, device or ctx or tvm.cpu()
    )


_LOAD_TODAY = tvm.runtime.load_module


def load_module(path, fmt=""):
    """`tvm.module.load`, `tvm.runtime.load_module`: load a library of Relay's builds or of current TVM."""
    return vm.load_module(path, fmt, _LOAD_TODAY)


def download_testdata(url: str, relpath: str, module=None, overwrite: bool = False) -> str:
    """Return the path of a file in TVM's old cache folder, the bundled data or tvmfast's cache.

    Nothing is downloaded, because scripts give no checksum.

    Raises:
        FileNotFoundError: The file is not on this machine; the message says where to put it.
    """
    name = f"{module}/{relpath}" if module else str(relpath)
    old = Path(os.environ.get("TVM_DATA_ROOT_PATH", "~/.tvm_test_data")).expanduser() / name
    if old.is_file():
        return str(old)
    try:
        return str(data.path(name))
    except FileNotFoundError:
        raise FileNotFoundError(
            f"download_testdata: {name} is not here, and is not downloaded without a checksum. Fetch it "
            f"from {url}, and put it at {data.cache() / name} or {old}."
        ) from None


def install_request_hook(*_args, **_kwargs) -> None:
    """`tvm.testing.utils.install_request_hook`, which serves only TVM's own CI: does nothing."""


def _assert_allclose(actual, desired, rtol=1e-7, atol=1e-7, verbose=True) -> None:
    np.testing.assert_allclose(actual, desired, rtol, atol, verbose=verbose)


_TESTING = {"assert_allclose": _assert_allclose, "install_request_hook": install_request_hook}
