"""Make sums and products of unsigned integers of 32 and 64 bits wrap around, as in the frameworks.

TVM 0.27's LLVM code says of each that it does not overflow, after which LLVM takes `0 - x` for 0; its
simplifier takes `x * 7 % 7` for 0. So these are computed in twice the bits and then narrowed:

    y[i] = 0 - x[i]                    y[i] = uint32(0 - int64(x[i]))

LLVM turns that into the same instruction as before, less the claim. Indices, conditions on loop variables,
and what can't overflow are left as they are. So are signed integers: TVM's passes take minutes for kernels
of images, which are full of sums.
"""

import operator

import tvm
import tvm_ffi
from tvm import tirx

_SUMS = {tirx.Add: operator.add, tirx.Sub: operator.sub, tirx.Mul: operator.mul}
_COMPARISONS = (tirx.EQ, tirx.NE, tirx.LT, tirx.LE, tirx.GT, tirx.GE)
_DTYPES = ("uint32", "uint64")
_WIDE = {32: "int64", 64: "int128"}
_MOST = 32  # sums and comparisons of a store: TVM's simplifier is slow on more
_UNKNOWN = 2**63 - 1  # TVM's bound of what has none


def on_llvm(store):
    """Return a store to a buffer whose value wraps around."""
    return _wrapped(store, _WIDE)


def on_gpu(store):
    """Return the same but for 64 bits, as CUDA's code has no 128."""
    return _wrapped(store, {32: _WIDE[32]})


def _wrapped(store, wide: dict):
    value, loads, data = store.value, {}, set()

    def placeholder(load):  # its indices are not visited
        var = tirx.Var("load", str(load.ty.dtype))
        loads[var] = load
        return var

    def widened(node):
        dtype = tvm.DataType(str(node.a.ty.dtype))
        into = wide.get(dtype.bits) if str(dtype) in _DTYPES else None
        if into is None or not _is_data(node, data):
            return node
        is_sum = type(node) in _SUMS
        if not (_may_overflow(node, dtype) if is_sum else _is_misjudged(node)):
            return node
        sides = [_wide(each, into) for each in (node.a, node.b)]
        result = type(node)(*sides)
        if isinstance(node, tirx.Mul):  # TVM takes what is narrowed from x * 7 for a multiple of 7
            result = tirx.bitwise_xor(result, tirx.const(0, into))
        return tirx.Cast(str(dtype), result) if is_sum else result

    if not _integers(value):
        return store
    if isinstance(value, tirx.Add) and _reads(value.a, store.buffer):  # a reduction's sum, read by nothing
        rest = tirx.BufferStore(store.buffer, value.b, store.indices)
        return tirx.BufferStore(store.buffer, value.a + _wrapped(rest, wide).value, store.indices)
    value = tvm_ffi.structural_map(value, (tvm.ir.TensorLoad, placeholder), order="pre")
    if _integers(value) > _MOST:
        return store
    tvm_ffi.structural_walk(value, (tirx.Let, lambda let: data.add(let.var)))
    data.update(loads)
    value = tvm_ffi.structural_map(value, ((*_SUMS, *_COMPARISONS), widened))
    value = tvm_ffi.structural_map(value, (tirx.Var, lambda var: loads.get(var, var)))
    return tirx.BufferStore(store.buffer, value, store.indices)


def _wide(expr, dtype: str):
    if isinstance(expr, tirx.IntImm):  # TVM has none of uint64 in more bits
        return tirx.const(expr.value - (1 << 64) * (expr.value > _UNKNOWN), dtype)
    return tirx.Cast(dtype, expr)


def _integers(expr) -> int:
    found = []
    visit = ((*_SUMS, *_COMPARISONS), lambda node: found.append(str(node.a.ty.dtype) in _DTYPES))
    tvm_ffi.structural_walk(expr, visit)
    return sum(found)


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
    return hasattr(expr, "a") and (_is_data(expr.a, data) or _is_data(expr.b, data))


def _may_overflow(node, dtype) -> bool:
    bounds = [tvm.sym.Analyzer().const_int_bound(each) for each in (node.a, node.b)]
    ends = [(bound.min_value, bound.max_value) for bound in bounds]
    if any(abs(end) >= _UNKNOWN for pair in ends for end in pair):
        return True
    results = [_SUMS[type(node)](a, b) for a in ends[0] for b in ends[1]]
    least, greatest = (int(limit(str(dtype)).value) for limit in (tirx.min_value, tirx.max_value))
    return min(results) < least or max(results) > greatest


def _is_misjudged(node) -> bool:
    """Tell whether TVM's simplifier would subtract a comparison's sides: it fails below 0.

    Of 64 bits TVM has no constants from 2**63 on in more bits.
    """
    sides = [each.value for each in (node.a, node.b) if isinstance(each, tirx.IntImm)]
    return max(sides, default=0) <= _UNKNOWN
