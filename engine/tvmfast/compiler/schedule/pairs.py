"""Products of pairs of bfloat16 by `vdpbf16ps` (AVX512_BF16), which adds two products to each sum of float32.

`pair` rounds two numbers to bfloat16 in one int32, and `dot` multiplies pairs. TVM's code for LLVM has no
bfloat16, so `call_instructions` makes both calls of functions in LLVM's own language, which LLVM inlines; on
a register of 16 lanes they are the instructions.
"""

import functools

import ml_dtypes
import numpy as np
import tvm
import tvm_ffi
from tvm import tirx

from ...core.relax import round_up
from ...core.simd import pad_to
from .dot import definition

_PAIR, _DOT = "llvm.x86.avx512bf16.cvtne2ps2bf16.512", "llvm.x86.avx512bf16.dpbf16ps.512"
_CALL = tvm.ir.Op.get("tirx.call_llvm_pure_intrin")
LANES = 16  # of a register


def pair(low, high):
    """Round two float32 expressions to bfloat16, to even, and return both as one int32."""
    return tirx.call_llvm_pure_intrin("int32", _PAIR, high, low)


def dot(a, b):
    """Return the sum of the products of two pairs, in float32."""
    return tirx.call_llvm_pure_intrin("float32", _DOT, tirx.const(0, "float32"), a, b)


def paired(element, index, count: int):
    """Return `element(2 * index)` and the one behind it as a pair; beyond `count` elements are zeros."""
    second = element(2 * index + 1)
    if count % 2:
        second = tirx.if_then_else(2 * index + 1 < count, second, tirx.const(0, "float32"))
    return pair(element(2 * index), second)


def pack(array: np.ndarray, axis: int, block: int) -> np.ndarray:
    """Return an array of float32 with neighbouring blocks of an axis, zero-padded, as pairs: int32."""
    shape = list(array.shape)
    shape[axis] = round_up(shape[axis], 2 * block)
    array = pad_to(array, shape).astype(ml_dtypes.bfloat16).view(np.uint16).astype(np.uint32)
    array = array.reshape(*shape[:axis], shape[axis] // block // 2, 2, block, *shape[axis + 1 :])
    low, high = np.moveaxis(array, axis + 1, 0)
    shape[axis] //= 2
    return (low | high << np.uint32(16)).reshape(shape).view(np.int32)


def _name_of(call) -> str:
    """Return which of the two functions a call is of; "" for another call."""
    if not call.op.same_as(_CALL):
        return ""
    return next((name for name, number in _numbers() if int(call.args[0]) == number), "")


def flops(call) -> int:
    """Return the floating-point operations of a lane of a call: 4 of a dot product, 1 of another."""
    return 4 if _name_of(call) == _DOT else 1


@functools.cache
def _numbers() -> list[tuple[str, int]]:
    zero = tirx.const(0, "int32")
    return [(name, int(tirx.call_llvm_pure_intrin("int32", name, zero).args[0])) for name in (_PAIR, _DOT)]


def accumulate(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return a scheduled kernel whose dot products are added to the sum by the instruction itself."""

    def added(store):
        total = store.value
        if (
            not isinstance(total, tirx.Add)
            or not isinstance(total.b, tvm.ir.Call)
            or _name_of(total.b) != _DOT
        ):
            return store
        value = tirx.call_llvm_pure_intrin("float32", _DOT, total.a, *total.b.args[2:])
        return tirx.BufferStore(store.buffer, value, store.indices)

    return func.with_body(tvm_ffi.structural_map(func.body, (tirx.BufferStore, added)))


# ---------------------------------------------------------------- when a kernel is lowered


def call_instructions() -> tvm.transform.Pass:
    """Make the pass, for kernels whose loops are vectorized."""

    @tirx.transform.prim_func_pass(opt_level=0, name="CallInstructions")
    def run(func, _mod, _context):
        needed = {}

        def call(node):
            name = _name_of(node)
            if not name:
                needed.update(definition(node, func.attrs["target"]))
                return node
            dtype = str(node.ty.dtype)
            lanes = int(dtype.partition("x")[2] or 1)
            function = f"tvmfast_{'dot' if name == _DOT else 'pair'}_x{lanes}"
            needed[function] = (_dot_in_llvm if name == _DOT else _pair_in_llvm)(function, lanes)
            return tirx.call_pure_extern(dtype, function, *node.args[1:])

        def imported(node):
            if node.attr_key != "compute_scope":
                return node
            text = tvm.ir.StringImm("".join(needed[name] for name in sorted(needed)))
            body = tirx.AttrStmt(tirx.const(0, "int32"), "pragma_import_llvm", text, node.body)
            return tirx.AttrStmt(node.node, node.attr_key, node.value, body)

        body = tvm_ffi.structural_map(func.body, (tvm.ir.Call, call))
        if not needed:
            return func
        return func.with_body(tvm_ffi.structural_map(body, (tirx.AttrStmt, imported)))

    return run


def _types(lanes: int):
    return (lambda kind: kind) if lanes == 1 else (lambda kind: f"<{lanes} x {kind}>")


def _constant(lanes: int, value: int) -> str:
    return str(value) if lanes == 1 else f"<{', '.join([f'i32 {value}'] * lanes)}>"


def _pair_in_llvm(function: str, lanes: int) -> str:
    of, shift = _types(lanes), _constant(lanes, 16)
    halves = "".join(
        f"  %{x}h = fptrunc {of('float')} %{x} to {of('bfloat')}\n"
        f"  %{x}s = bitcast {of('bfloat')} %{x}h to {of('i16')}\n"
        f"  %{x}i = zext {of('i16')} %{x}s to {of('i32')}\n"
        for x in ("high", "low")
    )
    return (
        f"define {of('i32')} @{function}({of('float')} %high, {of('float')} %low) alwaysinline {{\n{halves}"
        f"  %shifted = shl {of('i32')} %highi, {shift}\n"
        f"  %both = or {of('i32')} %shifted, %lowi\n"
        f"  ret {of('i32')} %both\n}}\n"
    )


def _dot_in_llvm(function: str, lanes: int) -> str:
    of = _types(lanes)
    params = f"{of('float')} %sum, {of('i32')} %a, {of('i32')} %b"
    head = f"define {of('float')} @{function}({params}) alwaysinline {{\n"
    if lanes == LANES:
        pairs, sums = "<32 x bfloat>", of("float")
        body = "".join(f"  %{x}h = bitcast {of('i32')} %{x} to {pairs}\n" for x in ("a", "b"))
        body += f"  %all = call {sums} @{_DOT}({sums} %sum, {pairs} %ah, {pairs} %bh)\n"
        end = f"declare {sums} @{_DOT}({sums}, {pairs}, {pairs})\n"
    else:
        body = "".join(
            f"  %{x}l = shl {of('i32')} %{x}, {_constant(lanes, 16)}\n"
            f"  %{x}u = and {of('i32')} %{x}, {_constant(lanes, -65536)}\n"
            + "".join(f"  %{x}{y}f = bitcast {of('i32')} %{x}{y} to {of('float')}\n" for y in "lu")
            for x in ("a", "b")
        )
        f = of("float")
        body += f"  %lower = fmul {f} %alf, %blf\n  %upper = fmul {f} %auf, %buf\n"
        body += f"  %both = fadd {f} %lower, %upper\n  %all = fadd {f} %sum, %both\n"
        end = ""
    return f"{head}{body}  ret {of('float')} %all\n}}\n{end}"
