"""Dot products of 8-bit integers as tensor intrinsics: what an instruction multiplies, and how rules use it.

An instruction adds, to each of the int32 lanes of a register, the products of `terms` neighbouring channels
of one pixel or row, the same in all lanes, by as many weights of the lane's own output channel. Sums are
exact: `vpmaddubsw`, which saturates, is not among them.

TVM's own VNNI_DOT_16x4_INTRIN passes <16 x i32>, where the intrinsic of LLVM 22 takes <64 x i8>.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from tvm.s_tir import Schedule, TensorIntrin
from tvm.script import tirx as T

from ...core.simd import PLAIN


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
    """

    name: str
    data: str
    weight: str
    terms: int
    apply: Callable | None = None
    sums: str = "int32"

    def pack(self, weight: np.ndarray, lanes: int) -> np.ndarray:
        """Pack weights (…, I, O), of which I is the multiple of `terms`, into (…, I / terms, O, terms)."""
        *outer, ins, outs = weight.shape
        quads = weight.reshape(*outer, ins // self.terms, self.terms, outs)
        return np.ascontiguousarray(np.swapaxes(quads, -1, -2)).astype(self.weight)


def _vpdpbusd(bits: int) -> Callable:
    lanes = bits // 32

    def apply(sums, data, weights):
        name = f"llvm.x86.avx512.vpdpbusd.{bits}"  # also of AVX-VNNI
        return T.call_llvm_pure_intrin(f"int32x{lanes}", name, sums, data, weights)

    return apply


def _vpmaddwd(bits: int, name: str) -> Callable:
    def apply(sums, data, weights):
        return sums + T.call_llvm_pure_intrin(f"int32x{bits // 32}", f"llvm.x86.{name}", data, weights)

    return apply


def _usdot(sums, data, weights):
    name = "llvm.aarch64.neon.usdot.v4i32.v16i8"
    return T.call_llvm_pure_intrin("int32x4", name, sums, data, weights)


DOTS = {
    dot.name: dot
    for dot in (
        Dot("vpdpbusd 512", "uint8", "int8", 4, _vpdpbusd(512)),
        Dot("vpdpbusd 256", "uint8", "int8", 4, _vpdpbusd(256)),
        Dot("vpmaddwd 512", "int16", "int16", 2, _vpmaddwd(512, "avx512.pmaddw.d.512")),
        Dot("vpmaddwd 256", "int16", "int16", 2, _vpmaddwd(256, "avx2.pmadd.wd")),
        Dot("pmaddwd 128", "int16", "int16", 2, _vpmaddwd(128, "sse2.pmadd.wd")),
        Dot("usdot 128", "uint8", "int8", 4, _usdot),
        Dot(PLAIN, "uint8", "int8", 1),
    )
}


_SUMS = {  # by LLVM's function: the products and sums of a lane of int32
    **dict.fromkeys(("llvm.x86.avx512.vpdpbusd.512", "llvm.x86.avx512.vpdpbusd.256"), 8),
    "llvm.aarch64.neon.usdot.v4i32.v16i8": 8,
    **dict.fromkeys(
        ("llvm.x86.avx512.pmaddw.d.512", "llvm.x86.avx2.pmadd.wd", "llvm.x86.sse2.pmadd.wd"), 3
    ),  # without the addition to the sums
}


def operations(call) -> int:
    """Return the products and sums of a lane of a call of an instruction; 0 of any other call."""
    if getattr(call.op, "name", "") != "tirx.call_llvm_pure_intrin":
        return 0
    return _by_number().get(int(call.args[0]), 0)


@functools.cache
def _by_number() -> dict[int, int]:
    return {int(T.call_llvm_pure_intrin("int32", name).args[0]): n for name, n in _SUMS.items()}


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
