"""Dot products of 8-bit integers as tensor intrinsics: what an instruction multiplies, and how rules use it.

An instruction adds, to each of the int32 lanes of a register, the products of `terms` neighbouring channels
of one pixel or row, the same in all lanes, by as many weights of the lane's own output channel. Sums are
exact: `vpmaddubsw`, which saturates, is not among them.

TVM's own VNNI_DOT_16x4_INTRIN passes <16 x i32>, where the intrinsic of LLVM 22 takes <64 x i8>.

`vpmaddwd` does not add its products to sums. LLVM adds those of several steps to each other first, and for
want of registers keeps sums on the stack. So the instruction and the addition are one function, of assembly
language where it is needed; see `definition`.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import tvm
from tvm.s_tir import Schedule, TensorIntrin
from tvm.script import tirx as T

from ...core.simd import PLAIN, Simd, simd_of


@dataclass(frozen=True)
class Dot:
    """An instruction.

    Attributes:
        name: That of the instruction and the bits of its registers, in a kernel's schedule.
        data: The dtype of the data as it reads them; of "int16", uint8 is widened first.
        weight: The dtype of the packed weights.
        terms: The products that it adds to a lane.
        apply: Makes the new sums of the sums, the data, repeated for each lane, and the weights; None: no
            instruction, a product for each lane.
        sums: The dtype of the sums: "int32", or "uint32" where they are meant modulo 2**32.
        products: Registers that products take before they are added to sums.
    """

    name: str
    data: str
    weight: str
    terms: int
    apply: Callable | None = None
    sums: str = "int32"
    products: int = 0

    def pack(self, weight: np.ndarray, lanes: int) -> np.ndarray:
        """Pack weights (…, I, O), of which I is the multiple of `terms`, into (…, I / terms, O, terms)."""
        *outer, ins, outs = weight.shape
        quads = weight.reshape(*outer, ins // self.terms, self.terms, outs)
        return np.ascontiguousarray(np.swapaxes(quads, -1, -2)).astype(self.weight)


_ADD_PRODUCTS = "tvmfast_add_products_"  # and the bits of a register
_PMADDWD = {128: "sse2.pmadd.wd", 256: "avx2.pmadd.wd", 512: "avx512.pmaddw.d.512"}


def with_products(simd: Simd) -> Simd:
    """Return registers of which a tile leaves those that the products of `simd.dot` take."""
    return replace(simd, inputs=simd.inputs + DOTS[simd.dot].products)


def _vpdpbusd(bits: int) -> Callable:
    lanes = bits // 32

    def apply(sums, data, weights):
        name = f"llvm.x86.avx512.vpdpbusd.{bits}"  # also of AVX-VNNI
        return T.call_llvm_pure_intrin(f"int32x{lanes}", name, sums, data, weights)

    return apply


def _pmaddwd(bits: int) -> Callable:
    def apply(sums, data, weights):
        return T.call_pure_extern(str(sums.ty.dtype), f"{_ADD_PRODUCTS}{bits}", sums, data, weights)

    return apply


def _usdot(sums, data, weights):
    name = "llvm.aarch64.neon.usdot.v4i32.v16i8"
    return T.call_llvm_pure_intrin("int32x4", name, sums, data, weights)


DOTS = {
    dot.name: dot
    for dot in (
        Dot("vpdpbusd 512", "uint8", "int8", 4, _vpdpbusd(512)),
        Dot("vpdpbusd 256", "uint8", "int8", 4, _vpdpbusd(256)),
        Dot("vpmaddwd 512", "int16", "int16", 2, _pmaddwd(512), products=2),
        Dot("vpmaddwd 256", "int16", "int16", 2, _pmaddwd(256), products=2),
        Dot("pmaddwd 128", "int16", "int16", 2, _pmaddwd(128), products=2),
        Dot("usdot 128", "uint8", "int8", 4, _usdot),
        Dot(PLAIN, "uint8", "int8", 1),
    )
}


_SUMS = {
    "llvm.x86.avx512.vpdpbusd.512",
    "llvm.x86.avx512.vpdpbusd.256",
    "llvm.aarch64.neon.usdot.v4i32.v16i8",
}


def operations(call) -> int:
    """Return the products and sums of a lane of a call of an instruction; 0 of any other call."""
    if _bits(call):
        return 4
    of_llvm = getattr(call.op, "name", "") == "tirx.call_llvm_pure_intrin"
    return 8 if of_llvm and int(call.args[0]) in _numbers() else 0


@functools.cache
def _numbers() -> set[int]:
    return {int(T.call_llvm_pure_intrin("int32", name).args[0]) for name in _SUMS}


def _bits(call) -> int:
    """Return the bits of the registers of which a call multiplies pairs; 0 of any other call."""
    name = call.args[0].value if getattr(call.op, "name", "") == "tirx.call_pure_extern" else ""
    return int(name.removeprefix(_ADD_PRODUCTS)) if name.startswith(_ADD_PRODUCTS) else 0


def definition(call, target: tvm.target.Target) -> dict[str, str]:
    """Return the definition in LLVM's language, by name, of the function that a call of an instruction calls.

    With VNNI LLVM makes one instruction, `vpdpwssd`, of the product and the sum. SSE2 overwrites an operand.
    """
    bits = _bits(call)
    if not bits:
        return {}
    sums, pairs, name = f"<{bits // 32} x i32>", f"<{bits // 16} x i16>", f"{_ADD_PRODUCTS}{bits}"
    given = f"({sums} %sums, {pairs} %data, {pairs} %weights)"
    if bits == 128 or "vpdp" in simd_of(target).dot:
        function = f"@llvm.x86.{_PMADDWD[bits]}"
        of_data = f"({pairs} %data, {pairs} %weights)"
        body = f"  %products = call {sums} {function}{of_data}\n  %all = add {sums} %sums, %products\n"
        end = f"declare {sums} {function}({pairs}, {pairs})\n"
    else:
        both, code = f"{{ {sums}, {sums} }}", "vpmaddwd $4, $3, $1\\0Avpaddd $1, $0, $0"
        body = f'  %both = call {both} asm "{code}", "=v,=&v,0,v,v"{given} {_PURE}\n'
        body, end = f"{body}  %all = extractvalue {both} %both, 0\n", ""
    return {name: f"define {sums} @{name}{given} alwaysinline {_PURE} {{\n{body}  ret {sums} %all\n}}\n{end}"}


_PURE = "nounwind willreturn memory(none)"


def tensorize(sch: Schedule, block, dot: Dot, lanes: int) -> None:
    """Have the two innermost loops of a block, over `lanes` and `terms`, computed by the instruction."""
    name = f"tvmfast.dot.{dot.name}.{lanes}"
    if TensorIntrin.get(name, allow_missing=True) is None:
        TensorIntrin.register(name, *_intrinsic(dot, lanes))
    sch.tensorize(sch.get_loops(block)[-2], name)


def _intrinsic(dot: Dot, lanes: int) -> tuple:
    """Return what an instruction computes, and the code for it."""
    terms, data, weight, apply, sums = dot.terms, dot.data, dot.weight, dot.apply, dot.sums

    @T.prim_func(s_tir=True)
    def computes(
        A: T.Buffer((terms,), data, offset_factor=1),
        B: T.Buffer((lanes, terms), weight, offset_factor=1),
        C: T.Buffer((lanes,), sums, offset_factor=1, scope="local"),
    ):
        with T.sblock("root"):
            T.reads(C[0:lanes], A[0:terms], B[0:lanes, 0:terms])
            T.writes(C[0:lanes])
            for i, k in T.grid(lanes, terms):
                with T.sblock("update"):
                    vi, vk = T.axis.remap("SR", [i, k])
                    C[vi] = C[vi] + T.Cast("int32", A[vk]) * T.Cast("int32", B[vi, vk])

    @T.prim_func(s_tir=True)
    def code(
        A: T.Buffer((terms,), data, offset_factor=1),
        B: T.Buffer((lanes, terms), weight, offset_factor=1),
        C: T.Buffer((lanes,), sums, offset_factor=1, scope="local"),
    ):
        with T.sblock("root"):
            T.reads(C[0:lanes], A[0:terms], B[0:lanes, 0:terms])
            T.writes(C[0:lanes])
            C[T.ramp(0, 1, lanes)] = apply(
                C[T.ramp(0, 1, lanes)],
                T.reinterpret(
                    f"{data}x{lanes * terms}",
                    T.broadcast(T.reinterpret("int32", A.vload([0], f"{data}x{terms}")), lanes),
                ),
                B.vload([0, 0], f"{weight}x{lanes * terms}"),
            )

    return computes, code
