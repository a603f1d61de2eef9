"""Kernels treat NaN, infinities, signed zeros and denormals as IEEE 754 and PyTorch do.

TVM 0.27 treats floats as real numbers: its maximum of NaN and 0 is 0, its simplifier turns `x == x` into True and
`x - x` into 0, its expressions drop a factor of 0, and its maximum starts from the least finite number. LOWERING
corrects kernels after they are scheduled, so that no workload changes; `legalizations` and `sort_by_keys` correct what
would be lost before that.
"""

import platform

import numpy as np
import tvm
import tvm_ffi
from tvm import relax, te, tirx, topi
from tvm.ir import PointerType, PrimType
from tvm.tirx import compilation_pipeline

from ..base.relax import constant_array, fixed_shape, on_each_function

# ---------------------------------------------------------------- kernels, when they are lowered


def _lowering() -> tuple:
    """Return TVM's pass that lowers kernels, between two of ours, and its passes that finalize host and device code.

    The first of ours hides floats from the simplifier. The second makes `!=` true for NaN, where TVM's LLVM code says
    false, and makes maxima and minima keep a NaN. That is free where one operand is a constant, as in a ReLU, since
    x86's maximum returns its second operand if either is NaN. Otherwise it adds a comparison and a blend.
    """
    lower, *finalize = compilation_pipeline.get_tir_pipeline("s_tir")
    opaque = [(tirx.Sub, _difference), ((tirx.EQ, tirx.NE, tirx.LT, tirx.LE, tirx.GT, tirx.GE), _comparison),
              (tirx.Not, _not), (tirx.BufferStore, _sum_of_some)]  # fmt: skip
    ieee = [(tirx.Max, lambda node: _extreme(node, tirx.GT)), (tirx.Min, lambda node: _extreme(node, tirx.LT)),
            (tirx.NE, lambda node: tirx.Not(tirx.EQ(node.a, node.b)) if _is_float(node.a) else node)]  # fmt: skip
    denormals = [(tirx.AttrStmt, _kernel_with_denormals), (tirx.For, _threads_with_denormals)]
    remainders = [(tirx.FloorMod, _remainder), (tirx.Mod, _remainder)]
    around = [_on_each_kernel("OpaqueFloats", opaque), lower]
    around.append(_on_each_kernel("IEEEFloats", ieee, on_llvm=remainders, on_x86=denormals))
    return tvm.transform.Sequential(around), *finalize


LOWERING = "tvmnotes"  # TVM looks its pipelines up by name
compilation_pipeline.register_tir_pipeline(LOWERING, _lowering)


def _on_each_kernel(name: str, changes: list, on_llvm: list = (), on_x86: list = ()) -> tvm.transform.Pass:
    @tirx.transform.prim_func_pass(opt_level=0, name=name)
    def run(func, _mod, _context):
        target = func.attrs["target"]
        here = [
            *changes,
            *(on_llvm if target.kind.name == "llvm" else ()),
            *(on_x86 if _is_x86(target) else ()),
        ]
        return func.with_body(tvm_ffi.structural_map(func.body, here))

    return run


# ---- x86's control register

_FLUSH = 0x8040  # the bits that make denormals read and written as 0


def _is_x86(target) -> bool:
    processor = str(target.attrs.get("mtriple") or platform.machine())
    return target.kind.name == "llvm" and processor.startswith(("x86", "AMD64"))


def _kernel_with_denormals(node):
    """Make a kernel compute with denormals whatever its thread has set, and restore that setting at the end."""
    if node.attr_key != "compute_scope":
        return node
    before, clear, restore = _control()
    return tirx.AttrStmt(
        node.node, node.attr_key, node.value, tirx.SeqStmt([*before, clear, node.body, restore])
    )


def _threads_with_denormals(loop):
    """TVM's threads inherit the setting of the thread that started them; each clears it before its share of a loop."""
    if loop.kind != tirx.ForKind.PARALLEL:
        return loop
    before, clear, _ = _control()
    share = tirx.SeqStmt([*before, clear, loop])
    return tirx.AttrStmt(loop.loop_var, "pragma_parallel_launch_point", tirx.const(1, "int32"), share)


def _control() -> tuple:
    """Return statements that read the register, one that clears the bits if any is set, and one that restores it."""
    pointers = [tirx.Var(name, PointerType(PrimType("uint32"))) for name in ("control", "cleared")]
    held, cleared = (tirx.decl_buffer((1,), "uint32", pointer.name, data=pointer) for pointer in pointers)

    def do(name, pointer):
        return tirx.Evaluate(tirx.call_llvm_intrin("void", f"llvm.x86.sse.{name}", pointer))

    # The intrinsics want pointers into the stack, where TVM by itself places no buffer this small.
    before = [
        tirx.Bind(pointer, tirx.call_intrin(pointer.ty, "tirx.tvm_stack_alloca", "shape", 1))
        for pointer in pointers
    ]
    before += [
        tirx.DeclBuffer(held, data=pointers[0]),
        tirx.DeclBuffer(cleared, data=pointers[1]),
        do("stmxcsr", pointers[0]),
    ]
    flushes = tirx.NE(held[0] & tirx.const(_FLUSH, "uint32"), tirx.const(0, "uint32"))
    without = tirx.BufferStore(cleared, held[0] & tirx.const(0xFFFFFFFF - _FLUSH, "uint32"), [0])
    clear = tirx.IfThenElse(flushes, tirx.SeqStmt([without, do("ldmxcsr", pointers[1])]), None)
    return before, clear, tirx.IfThenElse(flushes, do("ldmxcsr", pointers[0]), None)


# ---- remainders


def _remainder(node):
    """Hide x from LLVM in x % 2^n.

    LLVM 22's loop vectorizer takes the last n bits of a loop counter for an n-bit counter that never wraps, so that a
    kernel that repeats an array reads past its end. `umul_fix` by 1.0, here with one binary place, is x for every x and
    costs one multiplication. It can go when `test_rows_that_repeat` holds without it.
    """
    dtype, divisor = str(node.ty.dtype), node.b
    if (
        not dtype.endswith(("32", "64"))
        or not isinstance(divisor, tirx.IntImm)
        or divisor.value & (divisor.value - 1)
    ):
        return node
    one, places = tirx.const(2, dtype), tirx.const(1, "int32")
    return type(node)(tirx.call_llvm_pure_intrin(dtype, "llvm.umul.fix", node.a, one, places), divisor)


# ---- maxima, comparisons, differences


def _extreme(node, better):
    """Choose `a` where it is better than `b` or NaN, else `b`; a constant comes first, what may be NaN second."""
    if not _is_float(node):
        return node
    a, b = (node.b, node.a) if _number(node.a) is None else (node.a, node.b)
    if _number(a) is not None:
        return a if np.isnan(_number(a)) else _named(b, lambda b: tirx.Select(better(a, b), a, b))
    # In a reduction a is the next element and b the best so far; isnan(a) does not wait for b.
    return _named(
        a, lambda a: _named(b, lambda b: tirx.Select(tirx.isnan(a), a, tirx.Select(better(a, b), a, b)))
    )


def _number(x) -> float | None:
    """Return the value of a constant, or of a vector that repeats one."""
    x = x.value if isinstance(x, tirx.Broadcast) else x
    return x.value if isinstance(x, tirx.FloatImm) else None


def _sum_of_some(store):
    """Turn `sum + (term if condition else 0)` into a conditional sum: one masked instruction on AVX-512."""
    total, term = store.value, getattr(store.value, "b", None)
    if not isinstance(total, tirx.Add) or not isinstance(term, tirx.Select) or _number(term.false_value) != 0:
        return store
    some = tirx.Select(term.condition, total.a + term.true_value, total.a)
    return tirx.BufferStore(store.buffer, some, store.indices)


def _not(node):
    """TVM rewrites `not x < y` as `y <= x`, which differs for NaN."""
    compared = []
    tvm_ffi.structural_walk(
        node.a, ((tirx.LT, tirx.LE, tirx.GT, tirx.GE), lambda c: compared.append(_is_float(c.a)))
    )
    return tirx.EQ(tirx.Cast("int32", node.a), tirx.const(0, "int32")) if any(compared) else node


def _difference(node):
    """TVM rewrites `x + y - y` as x, whatever y is."""
    if not _is_float(node):
        return node
    if isinstance(node.b, tirx.FloatImm):
        return tirx.Add(node.a, tirx.FloatImm(str(node.ty.dtype), -node.b.value))
    return tirx.Sub(node.a, _opaque(node.b))


def _comparison(node):
    """TVM rewrites `x == x` and `x > y or x <= y` as true: hide one operand, a different one in each direction."""
    if not _is_float(node.a):
        return node
    a, b = (node.b, node.a) if isinstance(node, tirx.GT | tirx.GE) else (node.a, node.b)
    a, b = (_opaque(_opaque(a)), b) if isinstance(b, tirx.FloatImm) else (a, _opaque(b))
    return type(node)(b, a) if isinstance(node, tirx.GT | tirx.GE) else type(node)(a, b)


def _opaque(x):
    """Return `x` in a form that TVM's simplifier does not look into, while LLVM and NVRTC do."""
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


# ---------------------------------------------------------------- operators, as they become kernels


def legalizations() -> dict:
    """Return, by operator, what `relax.transform.LegalizeOps` takes instead of TVM's functions that lose a value."""
    return {
        **dict.fromkeys(("relax.max", "relax.min", *_MAX_POOLS), _from_infinity),
        "relax.argmax": _index_of_extreme,
        "relax.argmin": _index_of_extreme,
        "relax.full": _filled,
    }


_MAX_POOLS = ("relax.nn.max_pool1d", "relax.nn.max_pool2d", "relax.nn.max_pool3d")


def default(bb, call):
    """Legalize as TVM does."""
    return call.op.get_attr("FLegalize")(bb, call)


def _with_zero(bb, call):
    """TVM drops a factor of 0 and the sign of a sum with 0, and fails on a division by a constant 0."""
    if not any(_is_zero(arg) for arg in call.args):
        return _ARITHMETIC[call.op.name](bb, call)
    function = getattr(topi, call.op.name.rpartition(".")[2])
    left, right = call.args
    if _is_zero(right):
        zero = _zero(right)
        return bb.call_te(lambda x: function(x, zero), left, primfunc_name_hint=function.__name__)
    zero = _zero(left)
    return bb.call_te(lambda x: function(zero, x), right, primfunc_name_hint=function.__name__)


# It stands in TVM's own table, since FoldConstant looks there and would fail as well.
_ARITHMETIC = {name: tvm.ir.Op.get(name).get_attr("FLegalize")
               for name in ("relax.add", "relax.subtract", "relax.multiply", "relax.divide")}  # fmt: skip
for _name in _ARITHMETIC:
    tvm.ir.register_op_attr(_name, "FLegalize", _with_zero, level=11)


def _zero(constant):
    """Return 0 or -0 as its own square root, which TVM does not take for a constant."""
    return tirx.sqrt(tirx.FloatImm(str(constant.ty.dtype), float(constant_array(constant))))


def _is_zero(arg) -> bool:
    array = (
        constant_array(arg) if isinstance(arg.ty, relax.TensorType) and fixed_shape(arg.ty) == () else None
    )
    return array is not None and array.dtype.kind == "f" and array == 0


def _from_infinity(bb, call):
    """TVM starts from, and pads with, the extreme finite number, which then beats an infinity: take the infinity."""
    made = default(bb, call)
    dtype = str(call.ty.dtype)
    if dtype.startswith("float"):
        kernel, most = made.args[0], float(np.finfo(dtype).max)
        func = bb.get()[kernel]

        def infinite(number):
            return (
                tirx.FloatImm(dtype, np.copysign(np.inf, number.value))
                if abs(number.value) == most
                else number
            )

        bb.update_func(kernel, func.with_body(tvm_ffi.structural_map(func.body, (tirx.FloatImm, infinite))))
    return made


def _filled(bb, call):
    """TVM 0.27 fails on an infinity or NaN, because it takes a dtype for a string."""
    array = constant_array(call.args[1])
    if array is None or np.isfinite(array) or not isinstance(call.args[0], relax.ShapeExpr):
        return default(bb, call)
    number = tirx.FloatImm(str(call.ty.dtype), float(array))
    return bb.call_te(
        lambda: te.compute([*call.args[0].values], lambda *_: number, "full"), primfunc_name_hint="full"
    )


def _index_of_extreme(bb, call):
    """Return the index of the first NaN, if any, else of the first extreme; TVM skips NaNs and infinities."""
    if not _is_float(call.args[0]):
        return default(bb, call)
    function = getattr(topi, call.op.name.rpartition(".")[2])
    axis = None if call.attrs.axis is None else int(call.attrs.axis)

    def compute(x):
        return function(_keys(x, nan_is_largest=function is topi.argmax), axis, bool(call.attrs.keepdims))

    return bb.call_te(compute, call.args[0], primfunc_name_hint=function.__name__)


# ---------------------------------------------------------------- orders


def sort_by_keys() -> tvm.transform.Pass:
    """Make the pass that sorts floats by integer keys in PyTorch's order: NaN is the largest, and both zeros are equal.

    TVM sorts by `<`, which leaves the numbers around a NaN in no order.
    """
    return on_each_function("SortByKeys", _SortByKeys, adds_kernels=True)


@relax.expr_functor.mutator
class _SortByKeys(relax.PyExprMutator):
    def visit_call_(self, call):
        call = self.visit_expr_post_order(call)
        name = getattr(call.op, "name", "")
        if name not in ("relax.sort", "relax.argsort", "relax.topk", "relax.median") or not _is_float(
            call.args[0]
        ):
            return call
        x, attrs = call.args[0], call.attrs
        if name == "relax.median":
            return self._median(x, [int(axis) for axis in attrs.axis or ()], attrs.keepdims, call.ty)
        keys = self.builder_.emit_te(_keys, x, primfunc_name_hint="sort_keys")
        if name == "relax.argsort":
            return relax.op.argsort(keys, attrs.axis, attrs.descending, attrs.dtype)
        if name == "relax.sort":
            places = self.builder_.emit(relax.op.argsort(keys, attrs.axis, attrs.descending, "int32"))
            return relax.op.gather_elements(x, places, attrs.axis)
        dtype = attrs.dtype
        places = self.builder_.emit(relax.op.topk(keys, attrs.k, attrs.axis, "indices", attrs.largest, dtype))
        if attrs.ret_type == "indices":
            return places
        values = self.builder_.emit(relax.op.gather_elements(x, places, attrs.axis))
        return relax.Tuple([values, places]) if attrs.ret_type == "both" else values

    def _median(self, x, axes, keepdims, ty):
        """Return the lower of the two middle values and its index, or NaN and its index if there is one."""
        if not axes:
            x = self.builder_.emit(relax.op.reshape(x, [-1]))
        axis = axes[0] if axes else 0
        size = fixed_shape(x.ty)[axis]
        keys = self.builder_.emit_te(_keys, x, primfunc_name_hint="sort_keys")
        places = self.builder_.emit(relax.op.argsort(keys, axis, False, "int64"))
        middle, last = (self.builder_.emit(relax.op.strided_slice(places, [axis], [at], [at + 1]))
                        for at in ((size - 1) // 2, size - 1))  # fmt: skip
        values = [self.builder_.emit(relax.op.gather_elements(x, place, axis)) for place in (middle, last)]
        lost = self.builder_.emit(relax.op.isnan(values[1]))
        found = [self.builder_.emit(relax.op.where(lost, *pair)) for pair in (values[::-1], (last, middle))]
        if not axes:
            return relax.op.reshape(found[0], ty.shape)
        return relax.Tuple(
            [relax.op.reshape(each, field.shape) for each, field in zip(found, ty.fields, strict=True)]
        )


def _keys(x, nan_is_largest: bool = True):
    """Return integers in the order of the floats, NaN last or first: a negative float's bits count backwards."""
    dtype = "float64" if str(x.dtype) == "float64" else "float32"
    whole = dtype.replace("float", "int")
    most = tirx.const(np.iinfo(whole).max, whole)
    infinity = tirx.const(int(np.array(np.inf, dtype).view(whole)), whole)

    def key(bits):
        size = bits & most
        ordered = bits ^ (tirx.shift_right(bits, tirx.const(_bits(bits) - 1, whole)) & most)
        number = tirx.Select(size == 0, tirx.const(0, whole), ordered)
        return tirx.Select(size > infinity, most if nan_is_largest else -most, number)

    def element(*at):
        return _named(tirx.reinterpret(whole, x[at].astype(dtype)), key)

    return te.compute(x.shape, element, name="keys")
