"""`build`: compile `(IRModule, params)` from a frontend into a `Compiled` that runs on a target."""

import logging
from collections.abc import Sequence

import tvm
from tvm import relax, tirx

from ..core import errors, machine
from ..core.compat import keep_interrupt, pass_lock
from ..core.relax import dynamic_dims, static_shape, unwrap_ints
from ..core.specs import require_dense, shorten
from ..runtime.compiled import Compiled, CompiledForGPU, cannot_run
from ..runtime.tensors import contiguous
from . import codegen, pipeline, prepare, shape_variants
from .context import BuildContext
from .cuda import codegen as cuda_codegen
from .cuda import gpu
from .graph.half_precision import DTYPES
from .memory.state import resolve_state
from .memory.usage import memory
from .records import resolve_records

_LOG = logging.getLogger(__name__)


@keep_interrupt()
def build(
    mod: tvm.IRModule,
    params: dict,
    target=None,
    opt_level: int = 3,
    records=None,
    state=None,
    sizes=None,
    dtype=None,
    allow_tf32: bool = False,
    experimental: bool = False,
) -> Compiled:
    """Compile a network for a CPU or an NVIDIA GPU.

    The parameters are bound at compile time, so levels 2 and 3 evaluate whatever depends on them alone. The
    machine code of each kernel is cached for later builds (see codegen.py).

    Args:
        mod: A module whose `main` takes the network's inputs and then one parameter per entry of `params`, as
            every frontend of tvmfast returns it.
        params: Arrays by parameter name.
        target: None for this machine, a `tvm.target.Target`, or what makes one: a kind ("llvm") or a
            dictionary (`{"kind": "llvm", "mcpu": "core-avx2"}`). Kind "cuda" is for GPUs, with an "arch" such
            as "sm_80" unless it is this machine's GPU; cuda/gpu.py says what differs.
        opt_level: As in Relay: 0 only lowers, each kernel as TVM's loop nest on one core; 1 adds operator
            fusion; 2 constant folding; 3 folding of batch norm, common subexpression elimination, blocked
            layouts (NCHW[x]c) and a schedule for each kernel (see `pipeline.passes`).
        records: Records of `tn.tune` for level 3: a file, a list of files or of `records.Record`, or a
            `records.ConfigLookup` for the target. A kernel measured for this target, or else for another CPU
            with the same vector registers, gets its best config; `tuned` of the result counts them. None uses
            the records that tvmfast ships, False none. For kind "cuda" a `cuda.tile_configs.TileLookup`.
        state: Inputs that are fed from an output of the call before, by the names that `inputs` and `outputs`
            of the result have without it: `{"h": "output1", "c": "output2"}`. They are neither passed nor
            returned, but stay inside, zeros at first; see `Compiled.reset` and `Compiled.session`. A dim of
            such an input may be dynamic if an input that is passed has it too; the first call fixes it, until
            a reset. On a CPU, a partial update of such an input (`cache[:, :, position] = k`, index_copy, a
            slice) in a network of PyTorch that does not read the old elements afterwards happens in place.
        sizes: Values of dynamic dims that matter most, a list such as `[{"height": 480, "width": 640}]`: the
            network is compiled for each of them too, with the kernels of a static build. A call with
            these dims runs them, the first entry that fits if one leaves dims out; any other call runs the
            kernels for dynamic dims. It is one library. Arrays that several of the specializations read are
            stored once; a weight that they pack differently is stored for each, so that memory may grow by
            the network's weights for each entry. Ignored by a program that calls `main` of a saved library.
        dtype: The precision of the weights on a CPU: "bfloat16" or "float16" halves the bytes of those of
            matrix products, convolutions, recurrent layers and embeddings, in memory and in a saved file.
            Kernels convert them in registers and compute in float32; with bfloat16, on a CPU that has
            AVX512_BF16, those of several rows or pixels round what they multiply to it, too, and sum in
            float32. An array with an element too large for a float16 stays as it is. None keeps the
            network's precision. Inputs, outputs, norms and biases keep theirs.
        allow_tf32: For kind "cuda": convolutions of float32 may run on tensor cores, which round their
            operands to TF32, 10 bits of mantissa, and sum in float32; as PyTorch's do unless
            `torch.backends.cudnn.allow_tf32` is False. They do where tvmfast has measured it on this
            architecture of GPU (`cuda/tiles.py`), or with `experimental`.
        experimental: For kind "cuda": use tvmfast's kernels for products and convolutions of float16, for
            products of up to eight rows, and with `allow_tf32` for convolutions of float32, on architectures
            where they were never measured, too; there dlight's kernels are the default. No GPU has run them
            yet: compare the results. `make gpu-tiles` in a checkout measures them on your GPU.

    Returns:
        A `Compiled`; for kind "cuda" a `CompiledForGPU`.

    Raises:
        ValueError: An unknown opt level or target, parameters that do not fit the module, an input or
            intermediate value whose shape is not known, or depends on more than the dynamic dims, state that
            is not an input and an output of the same shape and dtype, `sizes` that are not a list, name no
            dynamic dim or are out of its bounds, or a `dtype` that is unknown, for a GPU, or other than that
            of a network in halves.
        TypeError: `mod` is not an IRModule, or `params` not a dictionary of dense arrays.
        IndexError: An index that is evaluated at compile time is out of range.
    """
    arguments = mod, params, target, opt_level, records, state, sizes, dtype, allow_tf32, experimental
    return compiled(*resolved(*arguments))


def compiled(mod: tvm.IRModule, context: BuildContext) -> Compiled:
    """Compile what `resolved` returns, as `build` does."""
    inputs = {param.name for param in mod["main"].params}
    shared = shape_variants.Arrays(inputs) if context.specializations else None
    with pass_lock, context.target:
        mod, graph, arrays = _lowered(mod, context, shared)
        variants = []
        for number, (values, specialized) in enumerate(context.specializations, start=1):
            other, description, _ = _lowered(specialized, context.specialized(values), shared)
            mod, functions = shape_variants.join(mod, other, number)
            _LOG.debug("specialization %s: built, its functions in the library are %s", values, functions)
            variants.append(shape_variants.rename_functions(description, functions) | {"at": values})
    tuned = {"tuned": str(context.lookup or "")}
    graph |= tuned
    if variants:
        graph["variants"] = [each | tuned for each in variants]
        arrays = shared.by_name
    target = context.target
    if context.for_gpu:
        executable = cuda_codegen.executable(mod, target)
        graph["is_cuda_graph"] = "vm.builtin.cuda_graph.run_or_capture" in executable.as_text()
        return CompiledForGPU(executable, graph, arrays, target, context.opt_level)
    executable = codegen.executable(mod, target, runs_here=cannot_run(target) is None)
    return Compiled(executable, graph, arrays, target, context.opt_level)


def resolved(
    mod,
    params,
    target=None,
    opt_level=3,
    records=None,
    state=None,
    sizes=None,
    dtype=None,
    allow_tf32=False,
    experimental=False,
) -> tuple[tvm.IRModule, BuildContext]:
    """Check the arguments of `build`; return the module with its parameters bound, and the context."""
    if opt_level not in pipeline.OPT_LEVELS:
        raise ValueError(
            f"opt_level: expected one of {', '.join(map(str, pipeline.OPT_LEVELS))}; got {opt_level!r}"
        )
    target = resolve_target(target, kinds=("llvm", "cuda"))
    mod, arrays = bind(mod, params)
    if allow_tf32 and target.kind.name != "cuda":
        raise ValueError(
            f"allow_tf32 is for tensor cores: expected a target of kind 'cuda'; got {target.kind.name!r}"
        )
    if experimental and target.kind.name != "cuda":
        raise ValueError(
            f"experimental is for kernels of GPUs: expected a target of kind 'cuda'; got {target.kind.name!r}"
        )
    if dtype is not None:
        _check_dtype(dtype, target, mod, arrays)
    dims = dynamic_dims(mod["main"])
    aliases = resolve_state(mod["main"], state)
    if dims and target.kind.name == "cuda":
        raise ValueError("a build for a GPU needs static dims: import the model with a number for every axis")
    context = BuildContext(
        target,
        opt_level,
        resolve_records(records, target),
        dims,
        aliases,
        arrays,
        dtype,
        allow_tf32=allow_tf32,
        experimental=experimental,
        specializations=tuple(shape_variants.variants_of(mod, sizes, dims)),
    )
    _LOG.debug("build: opt level %s, dims %s, state %s, target %s", opt_level, dims, aliases, target)
    return mod, context


def _lowered(
    mod: tvm.IRModule, context: BuildContext, shared: shape_variants.Arrays | None
) -> tuple[tvm.IRModule, dict, dict[str, tvm.runtime.Tensor]]:
    """Return a network as kernels and calls of them, its description for graph.json, and its parameters."""
    mod = tvm.transform.Sequential(pipeline.passes(context))(mod)
    mod, arrays = pipeline.lift_constants(mod, context.names)
    if shared:
        mod, arrays = shape_variants.rename_params(mod, arrays, shared)
    graph = pipeline.describe(mod, list(arrays), context)
    if context.for_gpu:
        of_gpu = context.target, context.allow_tf32, context.experimental, context.lookup
        mod, graph["kernels"] = gpu.scheduled(mod, *of_gpu)
    plan = {} if context.dims else None
    mod = pipeline.lowering(context.dims, plan)(pipeline.bundle(mod))
    graph["memory"] = plan or memory(mod)
    if narrow := prepare.narrow(graph, arrays):
        prepared = pipeline.lowering()(prepare.prepare(arrays, narrow))
        checked = prepare.checked(mod, arrays, narrow)
        mod, functions = shape_variants.join(checked, prepared, 0)
        graph |= {"narrow": narrow, "prepare": functions[prepare.NAME]}
    return mod, graph, arrays


def bind(mod: tvm.IRModule, params: dict) -> tuple[tvm.IRModule, dict[str, tvm.runtime.Tensor]]:
    """Bind the parameters of a module as constants.

    Returns:
        The module, and the parameters' arrays by name.

    Raises:
        TypeError, ValueError: As `build` does for `mod` and `params`.
    """
    weights = _check(mod, params)
    for name, array in params.items():
        require_dense(array, f"params: {name!r}")
    arrays = {
        name: contiguous(array) if isinstance(array, tvm.runtime.Tensor) else tvm.runtime.tensor(array)
        for name, array in params.items()
    }
    for var in weights:
        shape, dtype = tuple(arrays[var.name].shape), arrays[var.name].dtype
        wanted = static_shape(var.ty), str(var.ty.dtype)
        if wanted != (shape, dtype):
            raise ValueError(
                f"params: {var.name!r} must be of shape {wanted[0]} and {wanted[1]}; got {shape}, {dtype}"
            )
    return tvm.relax.transform.BindParams("main", arrays)(mod), arrays


def resolve_target(target=None, kinds=("llvm",)) -> tvm.target.Target:
    """Return the TVM target that `target`, as in `build`, describes.

    Args:
        target: See `build`.
        kinds: Accepted kinds of targets.

    Raises:
        ValueError: TVM or tvmfast cannot serve the target, or its kind is not in `kinds`.
    """
    if target is None:
        return machine.host_target()
    if isinstance(target, str) and " -" in target:
        raise ValueError(
            f"target {target!r}: TVM no longer reads options in a string; "
            "give a dictionary such as {'kind': 'llvm', 'mcpu': 'core-avx2', 'num-cores': 4}"
        )
    try:
        resolved = machine.checked_target(gpu.with_arch(target))
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"unknown target {target!r} ({errors.lines(error)[0]}); expected None for this machine, 'llvm', "
            "or a dictionary such as {'kind': 'llvm', 'mcpu': 'core-avx2'}"
        ) from error
    if resolved.kind.name not in kinds:
        described = {"llvm": "'llvm' (CPUs)", "cuda": "'cuda' (GPUs)"}
        expected = " or ".join(described[kind] for kind in kinds)
        raise ValueError(f"target {target!r} is of kind {resolved.kind.name!r}; expected kind {expected}")
    if resolved.kind.name == "cuda":
        return gpu.resolved(resolved)
    return resolved


def _check(mod, params) -> list[tvm.relax.Var]:
    """Raise what `build` says of `mod` and `params`; return the weights among `main`'s variables."""
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
    missing, unexpected = set(weights) - set(params), set(params) - set(weights)
    if missing or unexpected:
        raise ValueError(
            "params: expected one array for each weight of the module; "
            f"missing: {shorten(missing)}; not in the module: {shorten(unexpected)}"
        )
    _check_inputs(main.params[:inputs])
    outputs = main.ret_ty.fields if isinstance(main.ret_ty, tvm.ir.TupleType) else [main.ret_ty]
    if not all(isinstance(output, tvm.relax.TensorType) for output in outputs):
        raise ValueError(
            f"mod: expected main to return a tensor or a tuple of tensors, it returns {main.ret_ty}"
        )
    return list(main.params[inputs:])


def _check_dtype(dtype, target: tvm.target.Target, mod: tvm.IRModule, arrays: dict) -> None:
    """Raise ValueError for a `dtype` that `build` cannot serve."""
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise ValueError(
            f"dtype: expected {' or '.join(map(repr, DTYPES))}, or None for the network's own; got {dtype!r}"
        )
    if target.kind.name == "cuda":
        raise ValueError(
            f"dtype {dtype!r} is for CPUs: for a GPU convert the model, as by model.half(), and import it"
        )
    tensors = [*arrays.values(), *(var.ty for var in mod["main"].params)]
    found = {str(tensor.dtype) for tensor in tensors} & set(DTYPES)
    if found - {dtype}:
        raise ValueError(
            f"dtype {dtype!r}: the network has tensors of {', '.join(sorted(found))} already; build it "
            "without dtype, or import it in float32"
        )


def _check_inputs(inputs: Sequence[relax.Var]) -> None:
    """Raise ValueError unless each dim of the inputs is static, or a variable with a name of its own."""
    names = {}
    for var in inputs:
        shape = getattr(var.ty, "shape", None)
        if shape is None or not all(isinstance(dim, int | tirx.Var) for dim in unwrap_ints(shape)):
            raise ValueError(
                f"input {var.name!r} is {var.ty}, whose shape is not known: import the model with a number "
                "or a name for every axis"
            )
        for dim in shape:
            if isinstance(dim, tirx.Var) and not names.setdefault(dim.name, dim).same_as(dim):
                raise ValueError(f"two dynamic dims of the model share the name {dim.name!r}: rename one")
