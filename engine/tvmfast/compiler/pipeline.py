"""The passes of a build, by opt level, and what separates the resulting parameters from the code.

`build` runs `passes`, then `lift_constants`, `describe` and `bundle`, and hands `lowering()` to TVM.
"""

import itertools
from collections.abc import Mapping

import tvm
from tvm import relax
from tvm.relax import transform as t

from ..core import annotations
from ..core.compat import TIR_PREFIX
from ..core.dims import Dim
from ..core.relax import array_key, op_name, shape_text
from .context import BuildContext
from .costs import cost
from .cuda.gpu import has_threads
from .cuda.nms import parallelize_detection
from .cuda.operands import operands_for_gpus
from .cuda.unroll_recurrent import unroll_recurrent
from .graph.blocked_layout import block_layouts
from .graph.conv_transpose import conv_transpose_to_conv
from .graph.decompose import decompose_functions
from .graph.fold_constants import fold_affine, fold_batch_norm, fold_kernels, fold_the_rest, fold_with_numpy
from .graph.fuse_attention import fuse_attention
from .graph.half_precision import round_weights, store_in_half
from .graph.norms import fuse_norms
from .graph.pack_recurrent import pack_recurrent
from .graph.packed_weights import packed_weights_to_kernels
from .graph.partial_update import partial_updates_to_kernels, partial_updates_to_scatter
from .graph.quantized import sums_of_integers
from .graph.skinny_gemm import lower_skinny_gemms
from .legalize import ieee754
from .legalize.accumulate import sums_in_float32
from .legalize.bools import bools_as_bytes
from .legalize.bounds_check import checks_outside_cuda_graphs, checks_to_kernels, shapes_to_checks
from .legalize.lower import legalizations
from .legalize.scan import scans_to_kernels
from .memory.dynamic_plan import plan_dynamic_memory
from .memory.lowered import eliminate_common_shapes, remove_dead_kills
from .memory.output_alias import alias_output
from .memory.state import update_in_place
from .memory.usage import memory
from .memory.views import reshapes_to_views
from .schedule.apply import begin_reductions, schedule_kernels

OPT_LEVELS = (0, 1, 2, 3)
_OPERATORS = "tvmfast.operators"  # attribute of a module: what each kernel fuses
_IN_FLOAT32 = "tvmfast.in_float32"  # attribute of a module: why kernels of a quantized network are so


def passes(context: BuildContext) -> list[tvm.transform.Pass]:
    """List the graph passes of a build, in order, from an imported module to one kernel per fused group."""
    simd = context.simd
    lookup = context.lookup if simd else None  # GPU: `gpu.scheduled` asks
    recurrent = (3, pack_recurrent(simd)) if simd else (0, unroll_recurrent())
    how = context.dtype, context.in_pairs, context.in_float32
    # NCHW to NCHW[x]c, weights packed
    blocked = [(3, block_layouts(simd, lookup, *how))] if simd else []
    attention = [
        (3, fuse_attention(simd, context.dims, context.in_float32)),
        (3, lower_skinny_gemms(simd)),
        (3, fuse_norms(simd)),
    ]
    of_gpu = context.target, context.allow_tf32, context.experimental
    checks = checks_to_kernels() if simd else parallelize_detection()  # GPU: the loops after a detector
    updates = partial_updates_to_kernels() if simd else partial_updates_to_scatter()
    dtype = context.dtype
    round_to_half, in_half = [[(0, each(dtype))] if dtype else [] for each in (round_weights, store_in_half)]
    scheduled = [(3, schedule_kernels(simd, lookup))] if simd else []  # GPU: `gpu.scheduled` does it
    from_level = [
        # the graph
        (0, shapes_to_checks()),
        (3, fold_batch_norm()),
        (0, sums_in_float32(products=simd is not None)),
        (0, t.DecomposeOpsForInference()),
        (0, t.ConvertToDataflow()),
        (0, decompose_functions()),
        (0, bools_as_bytes()),
        recurrent,
        (0, t.CanonicalizeBindings()),
        (2, fold_with_numpy()),
        (2, t.CanonicalizeBindings()),
        *([(3, sums_of_integers(context.in_float32))] if simd else []),
        (3, fold_the_rest()),
        (3, conv_transpose_to_conv()),
        (3, t.EliminateCommonSubexpr()),
        (3, fold_affine()),  # batch norms that no convolution precedes
        *round_to_half,
        *(attention if simd else [(3, operands_for_gpus(*of_gpu))]),
        (3, t.DeadCodeElimination()),
        *blocked,
        (3, t.CanonicalizeBindings()),
        # from operators to kernels
        (0, checks),
        (0, updates),
        (0, packed_weights_to_kernels(simd if context.opt_level >= 3 else None)),
        (0, ieee754.sort_by_keys()),
        *([(0, scans_to_kernels())] if simd else []),
        (0, relax.backend.DispatchSortScan()),  # sort and topk, which LegalizeOps does not know
        (0, t.LegalizeOps(legalizations(simd, lookup, context.opt_level, context.in_pairs))),
        (0, t.AnnotateTIROpPattern()),
        (2, fold_kernels()),
        (1, t.FuseOps()),
        (1, _note_operators(context.in_float32)),
        (1, t.FuseTIR()),
        *scheduled,
        *in_half,
        (0, t.DeadCodeElimination()),
        *([(0, update_in_place(context.state))] if context.state else []),
        *([(0, begin_reductions())] if context.dims else []),
    ]
    return [each for level, each in from_level if context.opt_level >= level]


def lowering(dims: Mapping[str, Dim] | None = None, plan: dict | None = None) -> tvm.transform.Pass:
    """Make the pass that replaces `tvm.compile`'s default, which would fuse and fold at every opt level.

    Args:
        dims: The dynamic dims.
        plan: If there are any, a dictionary that gets what `usage.memory` returns: after the lowering
            they are computed in code.
    """

    @tvm.transform.module_pass(opt_level=0, name="NoteMemory")
    def note(mod, _context):
        plan.update(memory(mod))
        return mod

    recorded = tvm.transform.PassContext.current().config.get("relax.backend.use_cuda_graph")
    return tvm.transform.Sequential(
        [
            alias_output(),
            *([checks_outside_cuda_graphs()] if recorded else []),
            reshapes_to_views(),
            t.ToNonDataflow(),
            t.RemovePurityChecking(),
            t.CallTIRRewrite(),  # kernels write into buffers that the caller allocates
            plan_dynamic_memory(dims) if dims else t.StaticPlanBlockMemory(),  # shared buffers
            t.RewriteCUDAGraph(),  # for a GPU, if the pass context asks for it
            t.LowerAllocTensor(),
            t.KillAfterLastUse(),
            t.LowerRuntimeBuiltin(),
            remove_dead_kills(),
            *([note] if dims else []),
            t.ComputePrimValue(),
            t.VMShapeLower(),
            *([eliminate_common_shapes()] if dims else []),
            t.AttachGlobalSymbol(),
        ],
        name="lowering",
    )


@relax.expr_functor.mutator
class _LiftConstants(relax.PyExprMutator):
    def __init__(self, names: Mapping[int, str], taken: set[str]):
        super().__init__()
        self.names = names
        self.vars = {}  # by array key
        self.arrays = {}  # by name
        numbered = (f"const{n}" for n in itertools.count())
        self.free = (name for name in numbered if name not in taken)

    def visit_generic_const_(self, constant):
        if 0 in constant.value.shape:
            return self.builder_.emit(
                relax.op.builtin.alloc_tensor(constant.ty.shape, str(constant.ty.dtype), 0)
            )
        key = array_key(constant.value)
        if key not in self.vars:
            name = self.names.get(key) or next(self.free)
            self.vars[key], self.arrays[name] = relax.Var(name, constant.ty), constant.value
        return self.vars[key]


def lift_constants(
    mod: tvm.IRModule, names: Mapping[int, str]
) -> tuple[tvm.IRModule, dict[str, tvm.runtime.Tensor]]:
    """Turn constants of `main` into parameters after the inputs; return the module and the arrays by name.

    So the library holds only code, and the parameters get a file of their own, folded or not. `names` are
    parameter names by `array_key`: an array that no pass has changed keeps its name. One without elements is
    allocated in `main` instead, as TVM's files of parameters cannot hold it.
    """
    main = mod["main"]
    lift = _LiftConstants(names, taken={*names.values(), *(p.name for p in main.params)})
    main = lift.visit_expr(main)
    params = [*main.params, *lift.vars.values()]
    lifted = relax.Function(params, main.body, main.ret_ty, main.is_pure, main.attrs)
    lifted = lifted.with_attr("num_input", len(main.params))  # read by `bundle`
    mod = mod.clone()
    mod.update_func(mod.get_global_var("main"), lifted)
    return mod, lift.arrays


def bundle(mod: tvm.IRModule) -> tvm.IRModule:
    """Make `main` take its parameters as one tuple: one argument to check per call instead of hundreds."""
    return t.BundleModelParams("params")(mod)


def describe(mod: tvm.IRModule, params: list[str], context: BuildContext) -> dict:
    """Describe the graph of `main` as JSON data, for graph.json.

    Args:
        mod: The module after `lift_constants`.
        params: The names of the parameters, in order.
        context: The context of the build.

    Returns:
        "sizes", the lower and the upper bound, or None, of each dynamic dim, by name;
        "inputs", "params" and "outputs", with their shapes and dtypes; "nodes", the kernel calls; "heads",
        the values that are the outputs; "tuple", whether the result is one; by kernel name "kernels" (its
        schedule), "costs" (see `costs.cost`, and the operators that it fuses) and "workloads" (only
        kernels that have one); "in_float32", if there are any, why kernels of a quantized network compute in
        float32; and "state" and "absent" (the positions of None among the results of a call), if there are
        any. A node has the name of its result, its kernel (or the Relax operator that the runtime serves),
        the values it reads, and the shape and dtype of its result; "in_place" is true if that is the first
        value it reads, which it updates in part.

    Raises:
        ValueError: A value has no known shape.
    """
    main, dims = mod["main"], context.dims
    bindings = [binding for block in main.body.blocks for binding in block.bindings]
    casts = {}  # values by variables that are the same with another type
    for binding in bindings:
        if isinstance(binding, relax.MatchCast):
            casts[binding.var] = casts.get(binding.value, binding.value)
    result = main.ret_ty
    several = isinstance(result, tvm.ir.TupleType)
    absent = (main.attrs or {}).get("tvmfast.absent")
    kernels = [(var, func) for var, func in mod.functions_items() if isinstance(func, tvm.tirx.PrimFunc)]
    kernels.sort(key=lambda item: item[0].name_hint)
    notes = {var.name_hint: annotations.of_function(func) for var, func in kernels}
    reasons = {str(k): str(why) for k, why in (mod.attrs or {}).get(_IN_FLOAT32, {}).items() if k in notes}
    return {
        "sizes": {dim.name: [dim.lower, dim.upper] for dim in dims.values()},
        "inputs": [{"name": p.name, **_tensor(p.ty)} for p in main.params if p.name not in params],
        "params": params,
        "nodes": [_node(binding, casts) for binding in bindings if isinstance(binding.value, tvm.ir.Call)],
        "outputs": [_tensor(field) for field in (result.fields if several else [result])],
        "heads": _heads(main.body),
        "tuple": several,
        "kernels": {name: note["schedule"] for name, note in notes.items()},
        "costs": {
            var.name_hint: cost(func, dims) | {"operators": _operators(mod, var.name_hint)}
            for var, func in kernels
            if not has_threads(func)  # written for a GPU by hand
        },
        "workloads": {name: note["workload"] for name, note in notes.items() if note["workload"]},
        **({"in_float32": reasons} if reasons else {}),
        **({"state": context.state} if context.state else {}),
        **({"absent": [int(n) for n in absent]} if absent else {}),
    }


def _heads(body) -> list:
    """Return each output as the name of a node or input, and its index among that node's results."""
    bound = {binding.var: binding.value for block in body.blocks for binding in block.bindings}

    def resolve(expr):
        value = bound.get(expr) if isinstance(expr, relax.Var) else expr
        return resolve(value) if isinstance(value, relax.Var) else (expr, value)

    expr, value = resolve(body.body)
    heads = []
    for field in value.fields if isinstance(value, relax.Tuple) else [expr]:
        expr, value = resolve(field)
        position = 0
        if isinstance(value, relax.TupleGetItem):
            expr, position = resolve(value.tuple_value)[0], int(value.index)
        if isinstance(expr, relax.Var):
            heads.append([expr.name, position])
    return heads


def _is_size(arg) -> bool:
    return not isinstance(arg.ty, relax.TensorType | tvm.ir.TupleType)


def _node(binding, own: dict) -> dict:
    call, result = binding.value, binding.var.ty
    kernel = getattr(call.op, "name", str(call.op))
    in_place = {"in_place": True} if kernel == "relax.call_tir_inplace" else {}
    args = list(call.args)
    if kernel in ("relax.call_tir", "relax.call_tir_inplace"):
        kernel, args = args[0].name_hint, list(args[1].fields)
    elif kernel == "relax.call_pure_packed":
        kernel = str(args[0].global_symbol)
    return {
        "name": binding.var.name,
        "kernel": kernel,
        "reads": [own.get(arg, arg).name for arg in args if isinstance(arg, relax.Var) and not _is_size(arg)],
        "makes": [_tensor(f) for f in (result.fields if isinstance(result, tvm.ir.TupleType) else [result])],
        **in_place,
    }


def _tensor(ty) -> dict:
    shape = shape_text(ty)
    if isinstance(ty, relax.TensorType) and shape is None:
        raise ValueError(
            f"the network makes a {ty}, whose shape is known only when it runs: tn.build needs static shapes"
            "; cut the network before that operator, or write that part with a static shape and a mask"
        )
    return {"shape": None if shape is None else list(shape), "dtype": str(getattr(ty, "dtype", ty))}


# ---------------------------------------------------------------- the operators of a kernel


def _note_operators(in_float32: dict[str, str]) -> tvm.transform.Pass:
    """Make a pass to run right after FuseOps: it notes each group's kernels in an attribute of the module.

    Another attribute gets why groups and single kernels are in float32, from that of their variables.
    """

    @tvm.transform.module_pass(opt_level=0, name="NoteOperators")
    def run(mod, _context):
        functions = {var.name_hint: func for var, func in mod.functions_items()}
        groups = {
            name: [_base_name(var.name_hint, functions) for var in _called(func)]
            for name, func in functions.items()
            if isinstance(func, relax.Function) and name != "main"
        }
        mod = mod.with_attr(_OPERATORS, groups)
        reasons = _reasons(functions, in_float32) if in_float32 else {}
        return mod.with_attr(_IN_FLOAT32, reasons) if reasons else mod

    return run


def _reasons(functions: dict, in_float32: Mapping[str, str]) -> dict[str, str]:
    """Return why kernels are in float32, by the names that they have after FuseTIR.

    In a kernel that sums products of integers, and between integers that it reads and writes, floats are in
    registers alone.
    """
    found: dict[str, dict[str, None]] = {}
    for name, func in functions.items():
        if not isinstance(func, relax.Function):
            continue
        calls = [
            (binding.var.name, binding.value.args[0].name_hint)
            for block in func.body.blocks
            for binding in block.bindings
            if op_name(binding.value) == "call_tir"
        ]
        is_group, parts = name != "main", [_base_name(kernel, functions) for _, kernel in calls]
        if is_group and any(map(_sums_integers, parts)):
            continue
        for at, (var, kernel) in enumerate(calls):
            between = is_group and "dequantize" in parts[: at + 1] and "quantize" in parts[at:]
            if var in in_float32 and not (between or _sums_integers(kernel) or _moves(kernel)):
                found.setdefault(name if is_group else kernel, {})[in_float32[var]] = None
    return {kernel: "; ".join(reasons) for kernel, reasons in found.items()}


def _sums_integers(kernel: str) -> bool:
    return "_of_integers" in kernel


def _moves(kernel: str) -> bool:
    return "reshape" in kernel or "strided_slice" in kernel


def _operators(mod: tvm.IRModule, kernel: str) -> list[str]:
    """List the operators that a kernel of `mod` fuses, in order, by the kernel names of LegalizeOps."""
    noted = (mod.attrs or {}).get(_OPERATORS, {})
    alone = _base_name(kernel, {var.name_hint for var in mod.get_global_vars()})
    return [str(name) for name in noted.get(kernel, [alone])]


def _called(func):
    for block in func.body.blocks:
        for binding in block.bindings:
            if op_name(binding.value) == "call_tir":
                yield binding.value.args[0]


def _base_name(name: str, kernels) -> str:
    """Strip what TVM adds to a kernel's name: a prefix, and a number if kernels would share the name."""
    base = name.rstrip("0123456789")
    return (base if base in kernels else name).removeprefix(TIR_PREFIX)
