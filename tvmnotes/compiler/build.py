"""`build`, the compiler, turns `(IRModule, params)` from an importer into a `Compiled` that runs on a target."""

import tvm

from ..base import env, errors
from ..base.relax import array_key, fixed_shape
from ..base.spec import require_dense, shorten
from ..base.workarounds import pass_lock
from ..runtime.compiled import Compiled, cannot_run, plain
from . import codegen, cuda, pipeline
from .costs import memory
from .records import resolve_records


def build(mod: tvm.IRModule, params: dict, target=None, opt_level: int = 3, records=None) -> Compiled:
    """Compile a network for a CPU or an NVIDIA GPU.

    `mod["main"]` takes the network's inputs and then one parameter per entry of `params` (name to array), as every
    importer of tvmnotes gives them. `target` is None for this machine, or a `tvm.target.Target`, or what makes one: a
    kind ("llvm") or a dictionary (`{"kind": "llvm", "mcpu": "core-avx2"}`). Kind "cuda" is for GPUs, with an "arch"
    such as "sm_80" unless this machine's GPU is meant; cuda.py says what differs, and the result is a
    `cuda.CompiledForGPU`.

    `opt_level` means what it meant in Relay: 0 nothing but lowering, 1 operator fusion, 2 constant folding, 3 folding
    of batch norm, merging of equal expressions, blocked layouts (NCHW[x]c) and a schedule for each kernel (see
    `pipeline.passes`). The parameters are bound while compiling, so that levels 2 and 3 compute at compile time what
    depends on them alone. Below level 3 each kernel is the plainest loop, on one core.

    `records` are those of `tn.tune`, used at level 3: a file, several, or a list of `records.Record`. Kernels that they
    have measured for this target, or else for another CPU with the same vector registers, get the best config that was
    found; the result's `tuned` tells of how many. None takes the records that tvmnotes ships, False takes none. What
    `records.ConfigLookup` has made of some for the target will do, too.

    The machine code of each kernel is kept in the cache, for the next build that wants the same (see codegen.py).

    Raises ValueError for an unknown opt level or target, for parameters that do not fit the module, and for an input
    whose shape is not fixed, or a value inside; TypeError where `mod` is not an IRModule, or `params` not a
    dictionary of dense arrays; IndexError for an index out of range that is computed here.
    """
    if opt_level not in pipeline.OPT_LEVELS:
        raise ValueError(
            f"opt_level: expected one of {', '.join(map(str, pipeline.OPT_LEVELS))}; got {opt_level!r}"
        )
    target = resolve_target(target, kinds=("llvm", "cuda"))
    for_gpu = target.kind.name == "cuda"
    mod, arrays = bind(mod, params)
    lookup = resolve_records(records, target)
    with pass_lock, target:
        mod = tvm.transform.Sequential(pipeline.passes(opt_level, target, lookup))(mod)
        mod, constants = pipeline.lift_constants(
            mod, names={array_key(array): name for name, array in arrays.items()}
        )
        graph = pipeline.describe(mod, list(constants)) | {"tuned": str(lookup or "")}
        if for_gpu:
            mod, graph["kernels"] = cuda.scheduled(mod, target)
        mod = pipeline.lowering()(pipeline.bundle(mod))
        graph["memory"] = memory(mod["main"])
    if for_gpu:
        return cuda.CompiledForGPU(cuda.executable(mod, target), graph, constants, target, opt_level)
    executable = codegen.executable(mod, target, runs_here=cannot_run(target) is None)
    return Compiled(executable, graph, constants, target, opt_level)


def bind(mod: tvm.IRModule, params: dict) -> tuple[tvm.IRModule, dict[str, tvm.runtime.Tensor]]:
    """Return the module with its parameters as constants, and their arrays; raises what `build` says of both."""
    weights = _check(mod, params)
    for name, array in params.items():
        require_dense(array, f"params: {name!r}")
    arrays = {name: plain(array) if isinstance(array, tvm.runtime.Tensor) else tvm.runtime.tensor(array)
              for name, array in params.items()}  # fmt: skip
    for var in weights:
        shape, dtype = tuple(arrays[var.name].shape), arrays[var.name].dtype
        wanted = fixed_shape(var.ty), str(var.ty.dtype)
        if wanted != (shape, dtype):
            raise ValueError(
                f"params: {var.name!r} must be of shape {wanted[0]} and {wanted[1]}; got {shape}, {dtype}"
            )
    return tvm.relax.transform.BindParams("main", arrays)(mod), arrays


def resolve_target(target=None, kinds=("llvm",)) -> tvm.target.Target:
    """Return the TVM target that `target` names; see `build`.

    Raises ValueError for one that TVM or tvmnotes cannot serve, and for one of a kind that is none of `kinds`.
    """
    if target is None:
        return env.host_target()
    if isinstance(target, str) and " -" in target:
        raise ValueError(
            f"target {target!r}: TVM no longer reads options in a string; "
            "give a dictionary such as {'kind': 'llvm', 'mcpu': 'core-avx2', 'num-cores': 4}"
        )
    try:
        resolved = env.checked_target(cuda.with_arch(target))
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"unknown target {target!r} ({errors.lines(error)[0]}); expected None for this machine, 'llvm', or a "
            "dictionary such as {'kind': 'llvm', 'mcpu': 'core-avx2'}"
        ) from error
    if resolved.kind.name not in kinds:
        what = {"llvm": "'llvm' (CPUs)", "cuda": "'cuda' (GPUs)"}
        raise ValueError(
            f"target {target!r} is of kind {resolved.kind.name!r}; expected kind {' or '.join(what[k] for k in kinds)}"
        )
    if resolved.kind.name == "cuda":
        return cuda.resolved(resolved)
    return resolved


def _check(mod, params) -> list[tvm.relax.Var]:
    """Raise what can be said of `mod` and `params` before any work; return the variables of `main` that are weights."""
    if not isinstance(mod, tvm.IRModule):
        raise TypeError(
            f"mod: expected a tvm.IRModule, as tn.from_pytorch and tn.from_onnx return with its params; "
            f"got {type(mod).__name__}"
        )
    if not isinstance(params, dict):
        raise TypeError(f"params: expected a dictionary from name to array, got {type(params).__name__}")
    if "main" not in mod or not isinstance(mod["main"], tvm.relax.Function):
        listed = ", ".join(v.name_hint for v in mod.get_global_vars()) or "none"
        raise ValueError(f"mod: expected a Relax function named 'main'; its functions: {listed}")
    main = mod["main"]
    inputs = int((main.attrs or {}).get("num_input", len(main.params) - len(params)))
    weights = [p.name for p in main.params[inputs:]]
    missing, superfluous = set(weights) - set(params), set(params) - set(weights)
    if missing or superfluous:
        raise ValueError(
            "params: expected one array for each weight of the module; "
            f"missing: {shorten(missing)}; not in the module: {shorten(superfluous)}"
        )
    for var in main.params[:inputs]:
        if fixed_shape(var.ty) is None:
            raise ValueError(
                f"input {var.name!r} is {var.ty}, whose shape is not fixed: "
                "import the model with whole numbers for every axis"
            )
    outputs = main.ret_ty.fields if isinstance(main.ret_ty, tvm.ir.TupleType) else [main.ret_ty]
    if not all(isinstance(output, tvm.relax.TensorType) for output in outputs):
        raise ValueError(
            f"mod: expected main to return a tensor or a tuple of tensors, it returns {main.ret_ty}"
        )
    return list(main.params[inputs:])
