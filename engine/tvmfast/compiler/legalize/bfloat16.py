"""Compute bfloat16 as PyTorch does: each operation in float32, and its result rounded once, to even.

TVM 0.27 computes it in float32 as well (BF16ComputeLegalize), but rounds only what a kernel stores: a cast to
bfloat16 and back is none, and in `a * b + c` the product is not rounded. It rounds some NaNs to zeros,
repeats the expression that it rounds, and passes over what a `Let` binds. So before that a kernel becomes
one of float32, in which bfloat16 is the upper half of a number's bits, and only in the kernel's parameters:

    y[i] = a[i] * b[i] + c[i]        y[i] = upper_half(rounded(rounded(f32(a[i]) * f32(b[i])) + f32(c[i])))
"""

import ml_dtypes
import numpy as np
import tvm
import tvm_ffi
from tvm import tirx
from tvm.s_tir import SBlock

_ADDRESS, _REINTERPRET = tvm.ir.Op.get("tirx.address_of"), tvm.ir.Op.get("tirx.reinterpret")
_LOAD = tvm.ir.TensorLoad
_ARITHMETIC = tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.Mod, tirx.FloorDiv, tirx.FloorMod
_EXTREMES = tirx.Max, tirx.Min
# Calls whose results are numbers of bfloat16 if their arguments are.
_EXACT = ("if_then_else", "fabs", "floor", "ceil", "trunc", "round", "nearbyint")


def round_bfloat16() -> tvm.transform.Pass:
    """Make the pass, for kernels of a CPU as they are scheduled; BF16ComputeLegalize finds them legal."""

    @tirx.transform.prim_func_pass(opt_level=0, name="RoundBfloat16")
    def run(func, _mod, _context):
        if func.attrs["target"].kind.name != "llvm" or not _has_bfloat16(func.body):
            return func
        return func.with_body(_in_float32(func.body))

    return run


def _has_bfloat16(body) -> bool:
    found: list[bool] = []
    computed = (tirx.Cast, tirx.FloatImm, _LOAD), lambda node: found.append(_is_bfloat16(node))
    stored = tirx.BufferStore, lambda store: found.append(str(store.buffer.dtype) == "bfloat16")
    tvm_ffi.structural_walk(body, [computed, stored])
    return any(found)


def _is_bfloat16(node) -> bool:
    return isinstance(node.ty, tvm.ir.PrimType) and str(node.ty.dtype).startswith("bfloat16")


def _in_float32(body):
    """Map each expression; one that had bfloat16 still says so when its operands are of float32 already."""
    wide: dict[tirx.Var, tirx.Var] = {}  # what a Let binds, and the kernel's own buffers

    def allocate(node):
        for buffer in node.alloc_buffers if isinstance(node, SBlock) else [node.buffer]:
            if str(buffer.dtype) == "bfloat16":
                wide[buffer] = tirx.decl_buffer(buffer.shape, "float32", buffer.name, scope=buffer.scope())

    def bind(let):
        if _is_bfloat16(let.var):
            wide[let.var] = tirx.Var(let.var.name, _widened(let.var))

    allocations = (SBlock, tirx.AllocBuffer), allocate
    tvm_ffi.structural_walk(body, [allocations, ((tirx.Let, tirx.Bind), bind)])

    def of_bfloat16(function):
        return lambda node: function(node) if _is_bfloat16(node) else node

    def store(node):
        if str(node.buffer.dtype) != "bfloat16":
            return node
        return tirx.BufferStore(node.buffer, _narrow(node.value), node.indices)

    return tvm_ffi.structural_map(
        body,
        [
            (tirx.FloatImm, of_bfloat16(_constant)),
            (_LOAD, of_bfloat16(_load)),
            (tirx.Var, lambda var: wide.get(var, var)),
            (tirx.Cast, _cast),
            (_ARITHMETIC, of_bfloat16(lambda node: _rounded(type(node)(node.a, node.b)))),
            (_EXTREMES, of_bfloat16(lambda node: type(node)(node.a, node.b))),
            (
                tirx.Select,
                of_bfloat16(lambda node: tirx.Select(node.condition, node.true_value, node.false_value)),
            ),
            (tirx.Broadcast, of_bfloat16(lambda node: tirx.Broadcast(node.value, node.lanes))),
            (tirx.Let, of_bfloat16(lambda node: tirx.Let(node.var, node.value, node.body))),
            (tvm.ir.Call, _call),
            (tirx.BufferStore, store),
        ],
    )


def _widened(node) -> str:
    return str(node.ty.dtype).replace("bfloat16", "float32")


def _load(node):
    load = tirx.BufferLoad(node.source, node.indices)
    return _of_upper_half(tirx.reinterpret(_uint(load, 16), load)) if _is_bfloat16(load) else load


def _constant(node):
    return tirx.FloatImm("float32", float(np.array(node.value).astype(ml_dtypes.bfloat16)))


def _cast(node):
    value = node.value
    if _is_bfloat16(node):
        return _rounded(value if str(value.ty.dtype) == _widened(node) else tirx.Cast(_widened(node), value))
    return value if str(value.ty.dtype) == str(node.ty.dtype) else node


def _call(node):
    if node.op.same_as(_ADDRESS) and not isinstance(node.args[0], _LOAD):
        loads = []
        tvm_ffi.structural_walk(node.args[0], (_LOAD, loads.append))
        return tirx.address_of(loads[-1])  # behind those of its indices
    if node.op.same_as(_REINTERPRET):
        return _reinterpreted(node)
    if not _is_bfloat16(node):
        return node
    result = tvm.ir.Call(node.op, node.args, node.attrs, ret_ty=_widened(node))
    return result if node.op.name.rpartition(".")[2] in _EXACT else _rounded(result)


def _reinterpreted(node):
    """Return a call that reads the bits of a bfloat16, or makes one of bits; or another, as it is."""
    (value,), dtype = node.args, str(node.ty.dtype)
    if _is_bfloat16(node):
        return _of_upper_half(tirx.reinterpret(_uint(value, 16), value))
    was_bfloat16 = "float32" in str(value.ty.dtype) and tvm.DataType(dtype).bits == 16
    return tirx.reinterpret(dtype, _upper_half(value)) if was_bfloat16 else node


def _uint(x, bits: int) -> str:
    lanes = str(x.ty.dtype).partition("x")[2]
    return f"uint{bits}x{lanes}" if lanes else f"uint{bits}"


def _of_bits(bits):
    return tirx.reinterpret(str(bits.ty.dtype).replace("uint", "float"), bits)


def _of_upper_half(bits):
    return _of_bits(bits.astype(_uint(bits, 32)) << 16)


def _upper_half(x):
    return (tirx.reinterpret(_uint(x, 32), x) >> 16).astype(_uint(x, 16))


def _narrow(x):
    """Return a float32 that a bfloat16 holds as one, without rounding it again."""
    return tirx.reinterpret(str(x.ty.dtype).replace("float32", "bfloat16"), _upper_half(x))


def _rounded(x):
    """Return a float32 rounded to 8 digits, to even; a NaN, whose digits could overflow, a quiet one."""
    bits = tirx.Var("bits", _uint(x, 32))
    is_nan = (bits & 0x7FFFFFFF) > 0x7F800000
    even = bits + 0x7FFF + (bits >> 16 & 1)
    upper = tirx.Select(is_nan, bits | 0x400000, even) >> 16
    return tirx.Let(bits, tirx.reinterpret(str(bits.ty.dtype), x), _of_bits(upper << 16))
