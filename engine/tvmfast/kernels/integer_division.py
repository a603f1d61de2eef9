"""Integer division and remainder in kernels; compiler/legalize/ieee754.py applies both functions."""

import tvm
import tvm_ffi
from tvm import tirx


def by_data(node):
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


def remainder(node):
    """Hide x from LLVM in x % 2^n.

    LLVM 22's loop vectorizer takes the last n bits of a loop counter for an n-bit counter that never wraps,
    so that a kernel that repeats an array reads past its end. `umul_fix` by 1.0, here with one binary digit
    after the point, is the identity and costs one multiplication. Remove it once `test_rows_that_repeat`
    passes without it.
    """
    dtype, divisor = str(node.ty.dtype), node.b
    if not dtype.endswith(("32", "64")) or not isinstance(divisor, tirx.IntImm):
        return node
    if divisor.value & (divisor.value - 1):
        return node
    one, digits = tirx.const(2, dtype), tirx.const(1, "int32")
    return type(node)(tirx.call_llvm_pure_intrin(dtype, "llvm.umul.fix", node.a, one, digits), divisor)
