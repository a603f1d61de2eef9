"""Half precision: weights in bfloat16 or float16, which kernels convert in registers to float32.

Three steps, for a build with a `dtype`. `round_weights` rounds the weights of products, convolutions,
recurrent layers and embeddings, after batch norms are folded into them. `rounded` rounds once more what is no
weight itself, as Winograd's transformed ones are. At the end, `store_in_half` has kernels read in half each
large array that loses nothing by it. Sums, activations, norms and biases stay in float32; a CPU with
AVX512_BF16 rounds what it multiplies, see paired.py of the schedule rules.
"""

import itertools

import ml_dtypes
import numpy as np
import tvm
import tvm_ffi
from tvm import relax, tirx

from ...core.relax import array_key, constant_array, on_each_function, op_name

DTYPES = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16}
_PRODUCTS = {"matmul", *(f"nn.conv{n}d{kind}" for n in (1, 2, 3) for kind in ("", "_transpose"))}
_MOVES = {
    "astype",
    "broadcast_to",
    "concat",
    "expand_dims",
    "permute_dims",
    "reshape",
    "squeeze",
    "strided_slice",
}
_OF_RECURRENT = {"weight", "recurrent", "projection"}  # inputs of recurrent kernels
_KERNELS = ("call_tir", "call_tir_inplace")
_ADDRESS = tvm.ir.Op.get("tirx.address_of")
_FEW = 1024  # elements of an array, for which a half is not worth it


def rounded(array: np.ndarray, dtype: str | None) -> np.ndarray:
    """Return a float32 array with each element rounded to a half, to even; itself if dtype is None.

    An array of pairs, or one of which an element would overflow, is returned as it is.
    """
    if dtype is None or array.dtype != np.float32:
        return array
    half = _cast(array, dtype).astype("float32")
    return half if np.array_equal(np.isfinite(half), np.isfinite(array)) else array


def _cast(array: np.ndarray, dtype: str) -> np.ndarray:
    with np.errstate(over="ignore"):
        return array.astype(DTYPES[dtype])


# ---------------------------------------------------------------- weights are rounded


def round_weights(dtype: str) -> tvm.transform.Pass:
    """Make the pass that rounds the weights of each function; they stay arrays of float32."""
    return on_each_function("RoundWeights", lambda mod: _Rounder(mod, dtype), adds_kernels=True)


@relax.expr_functor.mutator
class _Rounder(relax.PyExprMutator):
    def __init__(self, mod, dtype):
        super().__init__(mod)
        self.mod, self.dtype = mod, dtype
        self.rounded = {}  # by array key, of weights

    def visit_function_(self, func):
        self.bound = relax.analysis.get_var2val(func)
        self.weights = {
            key for value in self.bound.values() for arg in self._weights(value) for key in self._arrays(arg)
        }
        return super().visit_function_(func)

    def visit_generic_const_(self, constant):
        array = constant_array(constant)
        if array is None or array.dtype != np.float32 or array_key(constant.value) not in self.weights:
            return constant
        key = array_key(constant.value)
        if key not in self.rounded:
            self.rounded[key] = relax.const(rounded(array, self.dtype))
        return self.rounded[key]

    def _weights(self, value) -> list:
        """List what a call multiplies, or, of a recurrent kernel or an embedding, its weights."""
        name = op_name(value)
        if name in _PRODUCTS:
            return list(value.args[:2])
        if name == "take":
            return [value.args[0]]
        if name != "call_tir":
            return []
        args = zip(self.mod[value.args[0]].params, value.args[1].fields, strict=False)
        return [arg for param, arg in args if param.name in _OF_RECURRENT]

    def _arrays(self, expr) -> set[int]:
        """Return the keys of the constants that an expression consists of, moved but not changed."""
        if isinstance(expr, tvm.ir.GenericConst):
            return {array_key(expr.value)} if isinstance(expr.value, tvm.runtime.Tensor) else set()
        if isinstance(expr, relax.Tuple):
            return set().union(*map(self._arrays, expr.fields))
        value = self.bound.get(expr) if isinstance(expr, relax.Var) else expr
        if isinstance(value, relax.Var | relax.Tuple | tvm.ir.GenericConst):
            return self._arrays(value)
        return self._arrays(value.args[0]) if op_name(value) in _MOVES else set()


# ---------------------------------------------------------------- and stored in half


def store_in_half(dtype: str) -> tvm.transform.Pass:
    """Make the pass, for scheduled kernels: large constants that a half holds exactly become halves.

    The kernels that read them convert each element to float32.
    """

    @tvm.transform.module_pass(opt_level=0, name="StoreInHalf")
    def run(mod, _context):
        graphs = {var: func for var, func in mod.functions_items() if isinstance(func, relax.Function)}
        store = _Store(mod, dtype)
        for func in graphs.values():
            relax.analysis.post_order_visit(func, store.note)
        if not any(map(any, store.reads.values())):
            return mod
        functions = dict(mod.functions_items())
        for kernel, reads in store.reads.items():
            if () not in reads:  # its name goes to one that reads halves
                del functions[kernel]
        functions |= store.kernels(taken={var.name_hint for var in functions})
        functions |= {var: store.visit_expr(func) for var, func in graphs.items()}
        return tvm.IRModule(functions, mod.attrs, mod.global_infos)

    return run


@relax.expr_functor.mutator
class _Store(relax.PyExprMutator):
    def __init__(self, mod, dtype):
        super().__init__()
        self.mod, self.dtype = mod, dtype
        self.halves = {}  # constants by array key; None for an array that loses by it
        self.reads = {}  # by kernel: the positions of the halves that its calls pass, in the order of these
        self.narrowed = {}  # by kernel and positions

    def note(self, expr) -> None:
        """Note what a call may read in half."""
        if op_name(expr) in _KERNELS:
            self.reads.setdefault(expr.args[0], {})[self._positions(expr)] = None

    def kernels(self, taken: set[str]) -> dict:
        """Return the kernels that read halves, by new variables whose names are not taken."""
        functions = {}
        for kernel, reads in self.reads.items():
            for positions in filter(None, reads):
                name = kernel.name_hint
                free = (f"{name}{end}" for end in itertools.chain([""], itertools.count(1)))
                var = tvm.ir.GlobalVar(next(each for each in free if each not in taken))
                taken.add(var.name_hint)
                functions[var] = _reading_halves(self.mod[kernel], positions, self.dtype)
                relax.expr._update_type(var, functions[var].ty)
                self.narrowed[kernel, positions] = var
        return functions

    def visit_call_(self, call):
        positions = self._positions(call) if op_name(call) in _KERNELS else ()
        if not positions:
            return super().visit_call_(call)
        args = list(call.args[1].fields)
        for position in positions:
            args[position] = self._half(args[position])
        args = [self.narrowed[call.args[0], positions], relax.Tuple(args), *call.args[2:]]
        return super().visit_call_(tvm.ir.Call(call.op, args, call.attrs, call.ty_args))

    def _positions(self, call) -> tuple[int, ...]:
        func, args = self.mod[call.args[0]], call.args[1].fields
        found = (n for n, arg in enumerate(args) if self._half(arg) is not None)
        return tuple(n for n in found if _only_reads(func, func.params[n]))

    def _half(self, expr):
        """Return a constant of float32 in half; None for another expression, or if it would change."""
        array = constant_array(expr)
        if array is None or array.dtype != np.float32 or array.size < _FEW:
            return None
        key = array_key(expr.value)
        if key not in self.halves:
            half = _cast(array, self.dtype)
            same = np.array_equal(half.astype("float32"), array, equal_nan=True)
            self.halves[key] = relax.const(tvm.runtime.tensor(half), self.dtype) if same else None
        return self.halves[key]


def _only_reads(func, buffer) -> bool:
    """Return whether a kernel reads a buffer's elements and does nothing else with it."""
    others, loads = [], []

    def note(node):
        (loads if isinstance(node, tvm.ir.TensorLoad | tvm.ir.TensorRegion) else others).append(node)

    tvm_ffi.structural_walk(func.body, (tirx.Var, lambda var: note(var) if var.same_as(buffer) else None))
    kinds = tvm.ir.TensorLoad, tvm.ir.TensorRegion
    tvm_ffi.structural_walk(func.body, (kinds, lambda x: note(x) if x.source.same_as(buffer) else None))
    return len(others) == len(loads)


def _reading_halves(func, positions: tuple[int, ...], dtype: str) -> tirx.PrimFunc:
    """Return a kernel that takes halves at some positions of its parameters."""
    params = list(func.params)
    new = {params[n]: tirx.decl_buffer(params[n].ty.shape, dtype, params[n].name) for n in positions}

    def converted(load):
        is_half = any(load.source.same_as(buffer) for buffer in new.values())
        return tirx.Cast("float32", tirx.BufferLoad(load.source, load.indices)) if is_half else load

    def address(call):
        """Leave the address of an element, which is prefetched, that of a half."""
        if not call.op.same_as(_ADDRESS) or not isinstance(call.args[0], tirx.Cast):
            return call
        return tirx.address_of(call.args[0].value)

    renamed = (tirx.Var, lambda var: new.get(var, var))
    body = tvm_ffi.structural_map(
        func.body, [renamed, (tvm.ir.TensorLoad, converted), (tvm.ir.Call, address)]
    )
    return tirx.PrimFunc([new.get(param, param) for param in params], body, func.ret_type, func.attrs)
