"""TensorIR in TVMScript, its schedule, and Relax around it, as of 2024 (TVM 0.19): python tensorir_script.py OUT"""

import sys

import numpy as np
import tvm
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tir as T

ROWS, COLUMNS = 12, 20


@I.ir_module
class Energies:
    @T.prim_func
    def main(x: T.Buffer((ROWS, COLUMNS), "float32"), y: T.Buffer((ROWS,), "float32")):
        T.func_attr({"tir.noalias": T.bool(True)})
        total = T.alloc_buffer((ROWS,), "float32")
        for i, k in T.grid(ROWS, COLUMNS):
            with T.block("total"):
                vi, vk = T.axis.remap("SR", [i, k])
                with T.init():
                    total[vi] = T.float32(0)
                total[vi] = total[vi] + x[vi, vk] * x[vi, vk]
        for i in range(ROWS):
            with T.block("half"):
                vi = T.axis.spatial(ROWS, i)
                y[vi] = total[vi] * T.float32(0.5)


@I.ir_module
class Doubled:
    @T.prim_func(private=True)
    def double(a: T.handle, b: T.handle):
        n = T.int64()
        A = T.match_buffer(a, (n,), "float32")
        B = T.match_buffer(b, (n,), "float32")
        for i in range(n):
            with T.block("double"):
                vi = T.axis.spatial(n, i)
                B[vi] = A[vi] * T.float32(2)

    @R.function
    def main(x: R.Tensor(("n",), "float32")) -> R.Tensor(("n",), "float32"):
        n = T.int64()
        cls = Doubled
        with R.dataflow():
            y = R.call_tir(cls.double, (x,), R.Tensor((n,), "float32"))
            z = R.add(y, x)
            R.output(z)
        return z


sch = tvm.tir.Schedule(Energies)
total = sch.get_block("total")
i, k = sch.get_loops(total)
outer, inner = sch.split(k, factors=[None, 4])
sch.reverse_compute_at(sch.get_block("half"), i)
sch.decompose_reduction(total, outer)
print("loops:", *(int(sch.get(loop).extent) for loop in sch.get_loops(total)))

x = np.random.default_rng(0).standard_normal((ROWS, COLUMNS)).astype("float32")
results = {"x": x}
for name, mod in (("written", Energies), ("scheduled", sch.mod)):
    lib = tvm.build(mod, target="llvm")
    y = tvm.nd.array(np.zeros(ROWS, "float32"))
    lib(tvm.nd.array(x), y)
    results[name] = y.numpy()
vm = relax.VirtualMachine(relax.build(Doubled, target="llvm"), tvm.cpu())
results["thrice"] = vm["main"](tvm.nd.array(x[0])).numpy()
np.savez(sys.argv[1], **results)
