"""Make kernels treat NaN, infinities, signed zeros and denormals as IEEE 754 and PyTorch do.

TVM 0.27 treats floats as real numbers: its maximum of NaN and 0 is 0, its simplifier turns `x == x` into True
and `x - x` into 0, its expressions drop a factor of 0, and its maximum starts from the lowest finite number.
LOWERING corrects kernels after they are scheduled, so that no workload changes; `legalizations` and
`sort_by_keys` correct what would be lost before that.
"""

import contextlib
import platform
import threading
from collections.abc import Callable, Iterator

import ml_dtypes
import numpy as np
import tvm
import tvm_ffi
from tvm import relax, te, tirx, topi
from tvm.ir import PointerType, PrimType
from tvm.tirx import compilation_pipeline

from ...core.compat import pass_lock
from ...core.relax import constant_array, integers_between, known_shape, on_each_function, static_shape
from ..schedule.amx import configure_tiles, use_tiles
from ..schedule.direct_tiles import restored
from ..schedule.pairs import call_instructions
from ..schedule.parallel import share_loops
from . import long_sums, wrap_around
from .bfloat16 import round_bfloat16
from .lets import on_stack

# ---------------------------------------------------------------- kernels, when they are lowered


_OF_TVM = "s_tir"  # the name of TVM's lowering


def _lowering(of_tvm: Callable | None = None) -> tuple:
    """Return TVM's lowering of kernels between two passes of ours, and its finalizing passes.

    The first of ours adds direct sums for tiles of Winograd's method, and hides from the simplifier floats,
    and integers that may overflow. The second cuts parallel loops into chunks, and puts what a `Let` binds on
    a CPU's stack. It makes `!=` true for NaN, for which TVM's LLVM code is false, and makes maxima and minima
    keep a NaN. That is free if one operand is a constant, as in a ReLU, because x86's maximum returns its
    second operand if either is NaN. Otherwise it adds a comparison and a blend.
    """
    lower, *finalize = (of_tvm or compilation_pipeline.PIPELINE_MAP[_OF_TVM])()
    comparisons = (tirx.EQ, tirx.NE, tirx.LT, tirx.LE, tirx.GT, tirx.GE)
    opaque = [
        (tirx.Sub, _difference),
        (comparisons, _comparison),
        (tirx.Not, _not),
        (tirx.BufferStore, lambda store: _sum_of_some(wrap_around.hide(store))),
        (tirx.For, _bools_one_by_one),
        ((tirx.FloorDiv, tirx.Div, tirx.FloorMod, tirx.Mod), _quotient),
    ]
    extremes = tirx.Max, tirx.Min
    ieee = [(tirx.NE, lambda node: tirx.Not(tirx.EQ(node.a, node.b)) if _is_float(node.a) else node)]
    denormals = [(tirx.AttrStmt, _kernel_with_denormals), (tirx.For, _threads_with_denormals)]
    remainders = [((tirx.FloorMod, tirx.Mod), _remainder)]
    before = _on_each_kernel("OpaqueNumbers", opaque, restored)
    after = _on_each_kernel(
        "IEEEFloats",
        ieee,
        share_loops,
        on_llvm=[(extremes, _extreme_on_llvm), *remainders, (tirx.BufferStore, on_stack)],
        on_x86=denormals,
        on_gpu=[(extremes, _extreme)],
    )
    return tvm.transform.Sequential(
        [
            *(use_tiles(), round_bfloat16(), before, long_sums.add_in_blocks()),
            *(lower, after, configure_tiles(), call_instructions()),
        ]
    ), *finalize


LOWERING = "tvmfast"  # TVM looks its pipelines up by name
compilation_pipeline.register_tir_pipeline(LOWERING, _lowering)


@contextlib.contextmanager
def in_place_of_tvms() -> Iterator[None]:
    """Let what compiles kernels by TVM's lowering in this thread, as FoldConstant does, take LOWERING."""
    thread, pipelines = threading.get_ident(), compilation_pipeline.PIPELINE_MAP
    with pass_lock:
        theirs = pipelines[_OF_TVM]

        def lowering():
            return _lowering(theirs) if threading.get_ident() == thread else theirs()

        pipelines[_OF_TVM] = lowering
        try:
            yield
        finally:
            pipelines[_OF_TVM] = theirs


def _on_each_kernel(
    name: str,
    changes: list,
    first=lambda func: func,
    on_llvm: list = (),
    on_x86: list = (),
    on_gpu: list = (),
) -> tvm.transform.Pass:
    """Make the pass of changes to all kernels; those of a CPU go through `first` before."""

    @tirx.transform.prim_func_pass(opt_level=0, name=name)
    def run(func, _mod, _context):
        target = func.attrs["target"]
        applied = list(changes)
        if target.kind.name == "llvm":
            applied += on_llvm
            func = first(func)
        else:
            applied += on_gpu
        if _is_x86(target):
            applied += on_x86
        return func.with_body(tvm_ffi.structural_map(func.body, applied))

    return run


# ---- x86's control register

_FLUSH = 0x8040  # flush-to-zero and denormals-are-zero: denormals are stored and loaded as 0


def _is_x86(target) -> bool:
    processor = str(target.attrs.get("mtriple") or platform.machine())
    return target.kind.name == "llvm" and processor.startswith(("x86", "AMD64"))


def _kernel_with_denormals(node):
    """Make a kernel compute with denormals whatever its thread has set, and restore that setting."""
    if node.attr_key != "compute_scope":
        return node
    before, clear, restore = _control()
    body = tirx.SeqStmt([*before, clear, node.body, restore])
    return tirx.AttrStmt(node.node, node.attr_key, node.value, body)


def _threads_with_denormals(loop):
    """Clear the setting in each thread of a parallel loop: TVM's threads inherit that of their creator."""
    if loop.kind != tirx.ForKind.PARALLEL:
        return loop
    before, clear, _ = _control()
    share = tirx.SeqStmt([*before, clear, loop])
    return tirx.AttrStmt(loop.loop_var, "pragma_parallel_launch_point", tirx.const(1, "int32"), share)


def _control() -> tuple:
    """Return statements that read the register, clear the bits if any is set, and restore the register."""
    pointers = [tirx.Var(name, PointerType(PrimType("uint32"))) for name in ("control", "cleared")]
    held, cleared = (tirx.decl_buffer((1,), "uint32", pointer.name, data=pointer) for pointer in pointers)

    def do(name, pointer):
        return tirx.Evaluate(tirx.call_llvm_intrin("void", f"llvm.x86.sse.{name}", pointer))

    def allocate(pointer):
        return tirx.Bind(pointer, tirx.call_intrin(pointer.ty, "tirx.tvm_stack_alloca", "shape", 1))

    # The intrinsics need pointers into the stack, where TVM by itself allocates no buffer this small.
    before = [
        *(allocate(pointer) for pointer in pointers),
        tirx.DeclBuffer(held, data=pointers[0]),
        tirx.DeclBuffer(cleared, data=pointers[1]),
        do("stmxcsr", pointers[0]),
    ]
    flushes = tirx.NE(held[0] & tirx.const(_FLUSH, "uint32"), tirx.const(0, "uint32"))
    without = tirx.BufferStore(cleared, held[0] & tirx.const(0xFFFFFFFF - _FLUSH, "uint32"), [0])
    clear = tirx.IfThenElse(flushes, tirx.SeqStmt([without, do("ldmxcsr", pointers[1])]), None)
    return before, clear, tirx.IfThenElse(flushes, do("ldmxcsr", pointers[0]), None)


# ---- maxima, comparisons, differences


def _extreme_on_llvm(node):
    """Choose `a` if it is better than `b` or NaN, else `b`; a constant comes first, a possible NaN second.

    TVM's LLVM code of an extreme is that choice, but for a NaN in `a`, and evaluates each side once. A `Let`
    around each, as `_extreme` has it, would take exponential time where extremes are nested, as in a chain of
    quantized operators: TVM 0.27's code generator simplifies what a `Let` binds, with the values of those
    inside put in for their names.
    """
    if not _is_float(node):
        return node
    a, b = _sides(node)
    if _number(a) is not None:
        return a if np.isnan(_number(a)) else type(node)(a, b)
    # In a reduction a is the next element and b the best so far; isnan(a) does not wait for b.
    return _named(a, lambda a: tirx.Select(tirx.isnan(a), a, type(node)(a, b)))


def _extreme(node):
    """Choose as `_extreme_on_llvm` does: TVM's CUDA code of an extreme loses a NaN on either side."""
    if not _is_float(node):
        return node
    better = tirx.GT if isinstance(node, tirx.Max) else tirx.LT
    a, b = _sides(node)
    if _number(a) is not None:
        return a if np.isnan(_number(a)) else _named(b, lambda b: tirx.Select(better(a, b), a, b))

    def choose(a, b):
        return tirx.Select(tirx.isnan(a), a, tirx.Select(better(a, b), a, b))

    return _named(a, lambda a: _named(b, lambda b: choose(a, b)))


def _sides(node) -> tuple:
    return (node.b, node.a) if _number(node.a) is None else (node.a, node.b)


def _number(x) -> float | None:
    """Return the value of a constant or of a vector that repeats one, else None."""
    x = x.value if isinstance(x, tirx.Broadcast) else x
    return x.value if isinstance(x, tirx.FloatImm) else None


def _sum_of_some(store):
    """Turn `sum + (term if condition else 0)` into a conditional sum: one masked instruction on AVX-512."""
    total, term = store.value, getattr(store.value, "b", None)
    if not isinstance(total, tirx.Add) or not isinstance(term, tirx.Select) or _number(term.false_value) != 0:
        return store
    some = tirx.Select(term.condition, total.a + term.true_value, total.a)
    return tirx.BufferStore(store.buffer, some, store.indices)


def _bools_one_by_one(loop):
    """Store bools in a scalar loop, which LLVM vectorizes; TVM lowers no vectors of them beside bfloat16."""
    store = getattr(getattr(loop.body, "block", None), "body", None)
    if loop.kind != tirx.ForKind.VECTORIZED or not isinstance(store, tirx.BufferStore):
        return loop
    if str(store.buffer.dtype) != "bool":
        return loop
    return tirx.For(loop.loop_var, loop.min, loop.extent, tirx.ForKind.SERIAL, loop.body)


def _not(node):
    """Replace `not x < y`, which TVM rewrites as `y <= x`: that differs for NaN."""
    compared, orders = [], (tirx.LT, tirx.LE, tirx.GT, tirx.GE)
    tvm_ffi.structural_walk(node.a, (orders, lambda order: compared.append(_is_float(order.a))))
    return tirx.EQ(tirx.Cast("int32", node.a), tirx.const(0, "int32")) if any(compared) else node


def _difference(node):
    """Replace `x - y`, because TVM rewrites `x + y - y` as x, whatever y is."""
    if not _is_float(node):
        return node
    if isinstance(node.b, tirx.FloatImm):
        return tirx.Add(node.a, tirx.FloatImm(str(node.ty.dtype), -node.b.value))
    return tirx.Sub(node.a, _opaque(node.b))


def _comparison(node):
    """Hide one operand, chosen by direction: TVM rewrites `x == x` and `x > y or x <= y` as true."""
    if not _is_float(node.a):
        return node
    a, b = (node.b, node.a) if isinstance(node, tirx.GT | tirx.GE) else (node.a, node.b)
    a, b = (_opaque(_opaque(a)), b) if isinstance(b, tirx.FloatImm) else (a, _opaque(b))
    return type(node)(b, a) if isinstance(node, tirx.GT | tirx.GE) else type(node)(a, b)


def _opaque(x):
    """Return `x` in a form that is opaque to TVM's simplifier, but not to LLVM and NVRTC."""
    dtype = str(x.ty.dtype)
    if isinstance(x, tirx.FloatImm) or not dtype.startswith("float"):
        return x
    return tirx.reinterpret(dtype, tirx.reinterpret(f"int{_bits(x)}", x))


def _is_float(x) -> bool:
    return str(x.ty.dtype).startswith(("float", "bfloat"))


def _bits(x) -> int:
    return tvm.DataType(str(x.ty.dtype)).bits


def _named(value, use):
    """Return `use(value)`, with `value` computed once."""
    if isinstance(value, tirx.Var | tirx.FloatImm):
        return use(value)
    name = tirx.Var("value", str(value.ty.dtype))
    return tirx.Let(name, value, use(name))


# ---------------------------------------------------------------- quotients and remainders of integers


def _quotient(node):
    """Define x // 0 = 0 and INT_MIN // -1 = INT_MIN, as NumPy does, for divisors that are data.

    A CPU would raise SIGFPE, and a GPU give any number. Dims, and other divisors that are not data, are not
    0.
    """
    dtype, found = str(node.ty.dtype), []
    if not dtype.startswith(("int", "uint")):
        return node
    tvm_ffi.structural_walk(node.b, (tvm.ir.TensorLoad, found.append))
    if not found:
        return node
    zero, one, last = (tirx.const(n, dtype) for n in (0, 1, -1 if dtype.startswith("int") else 1))
    is_zero, is_last = tirx.EQ(node.b, zero), tirx.EQ(node.b, last)
    result = type(node)(node.a, tirx.Select(tirx.Or(is_zero, is_last), one, node.b))
    if isinstance(node, tirx.FloorMod | tirx.Mod):
        return result  # of 1: 0
    negated = tirx.Sub(zero, result) if dtype.startswith("int") else result
    return tirx.Select(is_zero, zero, tirx.Select(is_last, negated, result))


def _remainder(node):
    """Hide x from LLVM in x % 2^n.

    LLVM 22's loop vectorizer takes the last n bits of a loop counter for an n-bit counter that never wraps,
    so that a kernel that repeats an array reads past its end. `umul_fix_sat` by 1.0, here with one binary
    digit after the point, is the identity of all integers of n bits and costs one multiplication; LLVM folds
    `smul_fix` away, so that the fault came back with AVX-512. Remove it once `test_rows_that_repeat` passes
    without it.
    """
    dtype, divisor = str(node.ty.dtype), node.b
    if not dtype.endswith(("32", "64")) or not isinstance(divisor, tirx.IntImm):
        return node
    if divisor.value & (divisor.value - 1):
        return node
    one, digits = tirx.const(2, dtype), tirx.const(1, "int32")
    return type(node)(tirx.call_llvm_pure_intrin(dtype, "llvm.umul.fix.sat", node.a, one, digits), divisor)


# ---------------------------------------------------------------- operators, as they become kernels


def legalizations() -> dict:
    """Return replacements for those legalizations of TVM that lose a value, by operator name."""
    return dict.fromkeys(("relax.max", "relax.min", *_MAX_POOLS), _from_infinity)


_COMPARISONS = ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")
_MAX_POOLS = ("relax.nn.max_pool1d", "relax.nn.max_pool2d", "relax.nn.max_pool3d")


def default(bb, call):
    """Legalize as TVM does."""
    return call.op.get_attr("FLegalize")(bb, call)


def _with_zero(bb, call):
    """Hide a 0: TVM drops a factor of 0 and the sign of a sum with 0, and fails to divide by a constant 0."""
    if not any(_is_zero(arg) for arg in call.args):
        return default(bb, call)
    function = getattr(topi, call.op.name.rpartition(".")[2])
    left, right = call.args
    if _is_zero(right):
        zero = _zero(right)
        return bb.call_te(lambda x: function(x, zero), left, primfunc_name_hint=function.__name__)
    zero = _zero(left)
    return bb.call_te(lambda x: function(zero, x), right, primfunc_name_hint=function.__name__)


def _zero(constant):
    """Return 0 or -0 as its own square root, which TVM does not treat as a constant."""
    return tirx.sqrt(tirx.FloatImm(str(constant.ty.dtype), float(constant_array(constant))))


def _is_zero(arg) -> bool:
    if not isinstance(arg.ty, relax.TensorType) or static_shape(arg.ty) != ():
        return False
    array = constant_array(arg)
    return array is not None and _is_float(arg) and array == 0


def _with_least(bb, call):
    """Compare int32 with -2**31 in int64: TVM takes `x == -2**31` for false when it makes a kernel."""
    if str(call.args[0].ty.dtype) != "int32" or not any(map(_is_least, call.args)):
        return default(bb, call)
    function = getattr(topi, call.op.name.rpartition(".")[2])
    least, (left, right) = tirx.const(-(2**31), "int64"), call.args

    def compute(x):
        x = topi.cast(x, "int64")
        return function(x, least) if _is_least(right) else function(least, x)

    return bb.call_te(compute, left if _is_least(right) else right, primfunc_name_hint=function.__name__)


def _is_least(arg) -> bool:
    array = constant_array(arg)
    return array is not None and array.ndim == 0 and array == -(2**31)


def _from_infinity(bb, call):
    """Start from, and pad with, an infinity; TVM's extreme finite number would beat one."""
    result = default(bb, call)
    dtype = str(call.ty.dtype)
    if _is_float(call):
        kernel, largest = result.args[0], float(ml_dtypes.finfo(dtype).max)
        func = bb.get()[kernel]

        def infinite(constant):
            if abs(constant.value) < largest:  # of bfloat16 TVM takes float32's
                return constant
            return tirx.FloatImm(dtype, np.copysign(np.inf, constant.value))

        func = func.with_body(tvm_ffi.structural_map(func.body, (tirx.FloatImm, infinite)))
        # The builder does not know a kernel that was updated, so it makes another one of equal calls.
        name = kernel.name_hint.rstrip("0123456789")
        others = ((var, each) for var, each in bb.get().functions_items() if var.name_hint.startswith(name))
        for var, each in others:
            if tvm_ffi.structural_equal(each, func):
                return relax.call_tir(var, result.args[1], call.ty)
        bb.update_func(kernel, func)
    return result


def _filled(bb, call):
    """Fill with an infinity or NaN, or an integer from 2^63 on; TVM 0.27 fails on these.

    It takes a dtype for a string, and has no such integer in C++.
    """
    array, dtype = constant_array(call.args[1]), str(call.ty.dtype)
    shape = call.args[0].ty.shape if call.op.name == "relax.full_like" else call.args[0]
    if array is None or not isinstance(shape, relax.ShapeExpr):
        return default(bb, call)
    if not np.isfinite(array):
        value = tirx.FloatImm(dtype, float(array))
    elif dtype == "uint64" and array >= 2**63:
        value = tirx.const(int(array), dtype)
    else:
        return default(bb, call)

    def compute(sizes):
        return te.compute(sizes, lambda *_: value, "full")

    return bb.call_te(compute, shape, primfunc_name_hint="full")


def _index_of_extreme(bb, call):
    """Return the index of the first NaN, else of the first extreme; TVM skips NaNs and infinities.

    Of integers that are all the dtype's own extreme, from which it starts, TVM returns its start: -1.
    """
    function = getattr(topi, call.op.name.rpartition(".")[2])
    axis = None if call.attrs.axis is None else int(call.attrs.axis)
    is_float = _is_float(call.args[0])

    def compute(x):
        x = _keys(x, nan_is_largest=function is topi.argmax) if is_float else x
        found = function(x, axis, bool(call.attrs.keepdims))
        if is_float:
            return found
        return te.compute(found.shape, lambda *at: te.max(found[at], tirx.const(0, found.dtype)), "found")

    return bb.call_te(compute, call.args[0], primfunc_name_hint=function.__name__)


def _converted(bb, call):
    """Convert floats to narrow integers as `cast_array` does; LLVM's vectors differ from scalars there."""
    (x,), dtype = call.args, str(call.ty.dtype)
    between = integers_between(str(x.ty.dtype), dtype)
    if between is None:
        return default(bb, call)

    def convert(value):
        number = value.astype(between).astype(dtype)
        if dtype != "uint64":
            return number
        value = value.astype("float64")
        upper = (value - 2.0**63).astype(between).astype(dtype) ^ (tirx.const(1, dtype) << 63)
        return tirx.Select(value >= 2.0**63, upper, number)

    def compute(x):
        return te.compute(x.shape, lambda *at: convert(x[at]), "cast")

    return bb.call_te(compute, x, primfunc_name_hint="cast")


# Those that FoldConstant needs as well: see `fold_constants.fold_constant`.
OF_CONSTANTS = {
    **dict.fromkeys(("relax.add", "relax.subtract", "relax.multiply", "relax.divide"), _with_zero),
    **dict.fromkeys((f"relax.{name}" for name in _COMPARISONS), _with_least),
    **dict.fromkeys(("relax.full", "relax.full_like"), _filled),
    **dict.fromkeys(("relax.argmax", "relax.argmin"), _index_of_extreme),
    "relax.astype": _converted,
}


# ---------------------------------------------------------------- orders


_SORTS = ("relax.sort", "relax.argsort", "relax.topk", "relax.median")
_WIDER = {**dict.fromkeys(("bool", "int8", "uint8", "int16", "uint16"), "int32"), "uint32": "int64"}


def sort_by_keys() -> tvm.transform.Pass:
    """Make the pass that sorts floats by integer keys, in PyTorch's order: NaN is largest, zeros are equal.

    TVM sorts by `<`, which leaves the elements around a NaN unordered, and of integers only int32 and int64.
    """
    return on_each_function("SortByKeys", _SortByKeys, adds_kernels=True)


@relax.expr_functor.mutator
class _SortByKeys(relax.PyExprMutator):
    def visit_call_(self, call):
        call = self.visit_expr_post_order(call)
        name = getattr(call.op, "name", "")
        if name not in _SORTS:
            return call
        x, attrs = call.args[0], call.attrs
        dtype = str(x.ty.dtype)
        wider = _WIDER.get(dtype)
        if not (_is_float(x) or (name != "relax.median" and (wider or dtype == "uint64"))):
            return call
        if name == "relax.median":
            return self._median(x, [int(axis) for axis in attrs.axis or ()], attrs.keepdims, call.ty)
        if wider:
            keys = self.builder_.emit(relax.op.astype(x, wider))
        else:
            keys = self.builder_.emit_te(_keys, x, primfunc_name_hint="sort_keys")
        if name == "relax.argsort":
            return relax.op.argsort(keys, attrs.axis, attrs.descending, attrs.dtype)
        if name == "relax.sort":
            order = self.builder_.emit(relax.op.argsort(keys, attrs.axis, attrs.descending, "int32"))
            return relax.op.gather_elements(x, order, attrs.axis)
        best = relax.op.topk(keys, attrs.k, attrs.axis, "indices", attrs.largest, attrs.dtype)
        indices = self.builder_.emit(best)
        if attrs.ret_type == "indices":
            return indices
        values = self.builder_.emit(relax.op.gather_elements(x, indices, attrs.axis))
        return relax.Tuple([values, indices]) if attrs.ret_type == "both" else values

    def _median(self, x, axes, keepdims, ty):
        """Return the lower of the two middle values and its index, or NaN and its index if there is one."""
        if not axes:
            x = self.builder_.emit(relax.op.reshape(x, [-1]))
        axis = axes[0] if axes else 0
        size = known_shape(x.ty)[axis]
        if not isinstance(size, int):
            raise NotImplementedError(
                f"a median over a dynamic dim, of {x.ty}: import the network with a static dim"
            )
        keys = self.builder_.emit_te(_keys, x, primfunc_name_hint="sort_keys")
        order = self.builder_.emit(relax.op.argsort(keys, axis, False, "int64"))

        def at(rank):
            return self.builder_.emit(relax.op.strided_slice(order, [axis], [rank], [rank + 1]))

        middle, last = at((size - 1) // 2), at(size - 1)
        values = [self.builder_.emit(relax.op.gather_elements(x, index, axis)) for index in (middle, last)]
        has_nan = self.builder_.emit(relax.op.isnan(values[1]))
        value = self.builder_.emit(relax.op.where(has_nan, values[1], values[0]))
        index = self.builder_.emit(relax.op.where(has_nan, last, middle))
        if not axes:
            return relax.op.reshape(value, ty.shape)
        shapes = [field.shape for field in ty.fields]
        return relax.Tuple([relax.op.reshape(value, shapes[0]), relax.op.reshape(index, shapes[1])])


def _keys(x, nan_is_largest: bool = True):
    """Return integers in the order of the floats, NaN last or first; a negative float's bits count down.

    Those of uint64 are its numbers less 2^63, in int64.
    """
    if str(x.dtype) == "uint64":
        least = tirx.const(-(1 << 63), "int64")
        return te.compute(x.shape, lambda *at: tirx.reinterpret("int64", x[at]) ^ least, name="keys")
    dtype = "float64" if str(x.dtype) == "float64" else "float32"
    integer = dtype.replace("float", "int")
    largest = tirx.const(np.iinfo(integer).max, integer)
    infinity = tirx.const(int(np.array(np.inf, dtype).view(integer)), integer)

    def key(bits):
        magnitude = bits & largest
        ordered = bits ^ (tirx.shift_right(bits, tirx.const(_bits(bits) - 1, integer)) & largest)
        ordered = tirx.Select(magnitude == 0, tirx.const(0, integer), ordered)
        return tirx.Select(magnitude > infinity, largest if nan_is_largest else -largest, ordered)

    def element(*at):
        if str(x.dtype) != "bfloat16":
            return _named(tirx.reinterpret(integer, x[at].astype(dtype)), key)
        # TVM drops the second reinterpretation of what it makes float32 by a first, and with it the sign
        return _named(tirx.reinterpret("uint16", x[at]).astype(integer) << 16, key)

    return te.compute(x.shape, element, name="keys")
