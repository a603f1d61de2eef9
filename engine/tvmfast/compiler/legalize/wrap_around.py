"""Make sums, differences and products of integers wrap around, as in the frameworks.

TVM 0.27 takes such a result for one that never leaves its dtype: its simplifier turns `x + 1 > x` into true
and `x * 7 % 7` into 0, and fails on a difference of unsigned integers below 0. Its LLVM code says the same of
32 and 64 bits, after which LLVM takes `0 - x` for 0. So what may leave its dtype is a call of an operator of
ours while TVM's passes run, which take its result for any number of the dtype. The last, LowerIntrin, puts
the sum back, in twice the bits and then narrowed:

    y[i] = 0 - x[i]        y[i] = tvmfast.Sub(0, x[i])        y[i] = uint32(0 - int64(x[i]))

LLVM turns that into the same instruction as before, less the claim; C's unsigned integers do without. Casts
to fewer bits and shifts are hidden likewise. Indices, conditions on loop variables, and what can't overflow
(products of 8 bits in 32, say) are left as they are.
"""

import tvm
import tvm_ffi
from tvm import tirx

_SUMS = (tirx.Add, tirx.Sub, tirx.Mul)
_COMPARISONS = (tirx.EQ, tirx.NE, tirx.LT, tirx.LE, tirx.GT, tirx.GE)
_UNKNOWN = 2**63 - 1  # TVM's bound of what has none


def hide(store):
    """Return a store to a buffer whose value wraps around."""
    value, loads, data, analyzer = store.value, {}, set(), tvm.sym.Analyzer()
    if isinstance(value, tirx.Add) and _reads(value.a, store.buffer):  # a reduction's sum, read by nothing
        rest = hide(tirx.BufferStore(store.buffer, value.b, store.indices)).value
        return tirx.BufferStore(store.buffer, value.a + rest, store.indices)

    def placeholder(load):  # its indices are not visited
        var = tirx.Var("load", str(load.ty.dtype))
        loads[var] = load
        return var

    def hidden(node):
        args = [node.value] if isinstance(node, tirx.Cast) else [node.a, node.b]
        dtype = str(args[0].ty.dtype)
        if not dtype.startswith(("int", "uint")) or not _is_data(node, data):
            return node
        if isinstance(node, _COMPARISONS):
            is_signed = dtype.startswith("int")  # whose sums TVM moves to the other side
            is_right = all(arg in loads or (is_signed and not _is_data(arg, data)) for arg in args)
        else:
            is_right = not _may_overflow(node, analyzer)
        return node if is_right else tirx.call_intrin(str(node.ty.dtype), _NAMES[type(node)], *args)

    value = tvm_ffi.structural_map(value, (tvm.ir.TensorLoad, placeholder), order="pre")
    tvm_ffi.structural_walk(value, (tirx.Let, lambda let: data.add(let.var)))
    data.update(loads)
    value = tvm_ffi.structural_map(value, (tuple(_NAMES), hidden))
    value = tvm_ffi.structural_map(value, (tirx.Var, lambda var: loads.get(var, var)))
    return tirx.BufferStore(store.buffer, value, store.indices)


def _reads(expr, buffer) -> bool:
    return isinstance(expr, tvm.ir.TensorLoad) and expr.source.same_as(buffer)


def _is_data(expr, data: set) -> bool:
    """Tell whether an integer depends on more than loop variables and dims."""
    if isinstance(expr, tirx.Var):
        return expr in data
    if isinstance(expr, tirx.Cast):
        return _is_data(expr.value, data)
    if isinstance(expr, tirx.Select):
        return _is_data(expr.true_value, data) or _is_data(expr.false_value, data)
    if isinstance(expr, tvm.ir.Call):
        return any(_is_data(arg, data) for arg in expr.args)
    if isinstance(expr, tirx.Let):
        return True
    return any(_is_data(getattr(expr, side), data) for side in "ab" if hasattr(expr, side))


def _may_overflow(node, analyzer) -> bool:
    """Tell whether the result of a sum, a cast or a shift of integers may not fit its dtype."""
    dtype = str(node.ty.dtype)
    if not dtype.startswith(("int", "uint")):
        return False
    bound = analyzer.const_int_bound(node.value if isinstance(node, tirx.Cast) else node)
    if max(-bound.min_value, bound.max_value) >= _UNKNOWN:
        return True
    number = dtype.partition("x")[0]  # of a vector's lanes
    least, greatest = (int(limit(number).value) for limit in (tirx.min_value, tirx.max_value))
    return bound.min_value < least or bound.max_value > greatest


# ---------------------------------------------------------------- the operators


def _on_llvm(kind, args, dtype):
    """Return the sum of integers of 32 or 64 bits as unsigned ones."""
    wide = _with(dtype, "int", 2 * dtype.bits)
    return tirx.Cast(_with(dtype, "uint", dtype.bits), kind(*(_wide(arg, wide) for arg in args)))


def _on_gpu(kind, args, dtype):
    """Return the same in C, whose unsigned integers wrap around."""
    return kind(*(tirx.Cast(_with(dtype, "uint", dtype.bits), arg) for arg in args))


def _lowered(kind, of_target):
    def lowered(call):
        dtype = tvm.DataType(str(call.ty.dtype))
        if kind in _SUMS and dtype.bits in (32, 64):  # a cast would tell TVM more than is true
            return tirx.reinterpret(str(dtype), of_target(kind, call.args, dtype))
        return tirx.Cast(str(dtype), *call.args) if kind is tirx.Cast else kind(*_of_one_dtype(call.args))

    return lowered


def _of_one_dtype(args) -> list:
    """Cast to the widest: TVM may have narrowed a loop variable among them."""
    widest = max((str(arg.ty.dtype) for arg in args), key=lambda dtype: tvm.DataType(dtype).bits)
    return [arg if str(arg.ty.dtype) == widest else tirx.Cast(widest, arg) for arg in args]


def _with(dtype, kind: str, bits: int) -> str:
    return f"{kind}{bits}" + (f"x{dtype.lanes}" if dtype.lanes > 1 else "")


def _wide(expr, dtype: str):
    if isinstance(expr, tirx.IntImm):  # TVM has none of uint64 in more bits
        return tirx.const(expr.value - (1 << 64) * (expr.value > _UNKNOWN), dtype)
    return tirx.Cast(dtype, expr)


def _registered(kind) -> str:
    """Register the operator for expressions of a kind, and return its name."""
    name = f"tvmfast.{kind.__name__}"
    tvm.ir.register_op_attr(name, "TCallEffectKind", tirx.expr.CallEffectKind.Pure.value)
    tvm.ir.register_op_attr(name, "TVectorizable", True)
    tvm.ir.register_op_attr(name, "TScriptPrinterName", name)
    for target, rule in (("llvm", _on_llvm), ("default", _on_gpu)):
        tvm.ir.register_op_attr(name, f"{target}.FLowerIntrinsic", _lowered(kind, rule))
    return name


_NAMES = {kind: _registered(kind) for kind in (*_SUMS, *_COMPARISONS, tirx.LShift, tirx.Cast)}
