"""Kernels of the bounds checks that core/bounds_check.py describes; checks of shapes; calls on a GPU.

Such a kernel raises by itself wherever the network runs: in another process, without Python, over RPC.
"""

import math

import tvm
from tvm import relax, tirx
from tvm.relax import op as R
from tvm.script import tirx as T

from ...core import bounds_check
from ...core.compat import OPAQUE, fast_tvmscript_parser
from ...core.relax import INT32_MAX, dynamic_dims, known_shape, of_one_type, on_each_function, op_name

_DIGITS = 20  # of the longest int64, -9223372036854775808, and its sign


def checks_to_kernels() -> tvm.transform.Pass:
    """Make the pass that turns bounds checks into calls of kernels for a CPU."""
    return on_each_function("ChecksToKernels", _ToKernels, adds_kernels=True)


@relax.expr_functor.mutator
class _ToKernels(relax.PyExprMutator):
    def visit_call_(self, call):
        call = self.visit_expr_post_order(call)
        check = bounds_check.arguments(call)
        if check is None:
            return call
        array, text, size, *limits = check
        shape = known_shape(call.ty)
        if shape is None:
            raise ValueError(
                f"indices of a {call.ty}, whose shape is not known: import the network with static dims"
            )
        own = {n: tirx.Var(n.name, "int64") for n in shape if isinstance(n, tirx.Var)}
        dims = [own.get(n, n) if isinstance(n, int | tirx.Var) else tirx.Var("n", "int64") for n in shape]
        kernel, args = _kernel(tuple(dims), str(call.ty.dtype), text, *limits), [array, size]
        if isinstance(size, int):
            kernel, args = kernel.specialize({kernel.params[1]: tirx.IntImm("int64", size)}), [array]
        return relax.call_tir(self.builder_.add_func(kernel, "checked_indices"), args, call.ty)


def shapes_to_checks() -> tvm.transform.Pass:
    """Make the pass that checks, where dims are dynamic, that an index or k fits its data; see `fitting`."""
    return on_each_function("ShapesToChecks", _OfShapes)


@relax.expr_functor.mutator
class _OfShapes(relax.PyExprMutator):
    def visit_function_(self, func):
        self.analyzer, dims = tvm.sym.Analyzer(), dynamic_dims(func)
        for dim in {dim for param in func.params for dim in getattr(param.ty, "shape", None) or ()}:
            if isinstance(dim, tirx.Var):
                lower, upper = dims[dim.name].lower, dims[dim.name].upper or INT32_MAX
                self.analyzer.update(dim, tvm.sym.ConstIntBound(lower, upper))
        return super().visit_function_(func)

    def visit_call_(self, call):
        call = self.visit_expr_post_order(call)
        bounds_check.require_fitting(call)
        args, at = list(call.args), 0 if op_name(call) == "topk" else 1
        for text, *pair in bounds_check.fitting(call):
            size, most = of_one_type(*pair)
            if isinstance(size, int) or self.analyzer.can_prove(most >= size):
                continue
            given = self.builder_.emit(R.arange(size, size + 1, 1, "int64"))
            given = bounds_check.checked(given, [most + 1], text, False, self.builder_)
            fits = self.builder_.emit(R.greater_equal(given, relax.const(0, "int64")))  # or it has raised
            args[at] = self.builder_.emit(R.where(fits, args[at], relax.const(0, args[at].ty.dtype)))
        return relax.Call(call.op, args, call.attrs, call.ty_args)


def checks_outside_cuda_graphs() -> tvm.transform.Pass:
    """Make the pass that keeps bounds checks out of CUDA graphs, which record only what a GPU does.

    TVM records calls whose arguments lie at the same address in each run. So a check gets one more argument,
    which it does not read: an input of the network.
    """
    return on_each_function("ChecksOutsideCUDAGraphs", _WithAnInput)


@relax.expr_functor.mutator
class _WithAnInput(relax.PyExprMutator):
    def visit_function_(self, func):
        self.inputs = list(func.params)[:1]
        return super().visit_function_(func)

    def visit_call_(self, call):
        call = self.visit_expr_post_order(call)
        if bounds_check.arguments(call) is None:
            return call
        return relax.Call(call.op, [*call.args, *self.inputs], call.attrs, call.ty_args)


@fast_tvmscript_parser()
def _kernel(shape: tuple, dtype: str, text: str, negative: int, column: int, columns: int):
    """Make a kernel of `bounds_check.within`; it searches for the wrong index only after reading all.

    An error's text ends with the index, whose digits are stored last to first, and then the text before
    them. A dynamic dim in `shape` is a variable of the kernel's own.
    """
    rows = math.prod(shape) // columns
    length = len(text.encode())

    @T.prim_func(private=True, s_tir=True)
    def checked_indices(a: T.handle, size: T.int64, b: T.handle):
        T.func_attr({"tirx.noalias": True, "op_pattern": OPAQUE})
        given = T.match_buffer(a, shape, dtype)
        checked = T.match_buffer(b, shape, dtype)
        with T.sblock("root"):
            T.reads()
            T.writes()
            x = T.decl_buffer((rows, columns), dtype, data=given.data)
            y = T.decl_buffer((rows, columns), dtype, data=checked.data)
            outside = T.alloc_buffer((1,), "int32", scope="local")
            left = T.alloc_buffer((1,), "int64", scope="local")
            first = T.alloc_buffer((1,), "int32", scope="local")
            message = T.alloc_buffer((length + _DIGITS + 1,), "uint8", scope="local")
            least: T.int64 = size * T.int64(-negative)
            outside[0] = 0
            for i in range(rows):
                for j in T.unroll(columns):
                    if j == column:
                        index: T.int64 = T.Cast("int64", x[i, j])
                        outside[0] = outside[0] | T.Cast("int32", T.Or(index < least, index >= size))
                        y[i, j] = T.Cast(dtype, T.Select(index < 0, index + size, index))
                    else:
                        y[i, j] = x[i, j]
            if outside[0] != 0:
                for i in range(rows):
                    left[0] = T.Cast("int64", x[i, column])
                    if T.Or(left[0] < least, left[0] >= size):
                        message[length + _DIGITS] = T.uint8(0)
                        for power in range(_DIGITS):
                            if T.Or(power == 0, left[0] != T.int64(0)):
                                first[0] = length + _DIGITS - 1 - power
                                digit: T.int64 = T.truncmod(left[0], T.int64(10))
                                message[first[0]] = T.Cast("uint8", 48 + T.Select(digit < 0, -digit, digit))
                            left[0] = T.truncdiv(left[0], T.int64(10))
                        if T.Cast("int64", x[i, column]) < 0:
                            first[0] = first[0] - 1
                            message[first[0]] = T.uint8(45)
                        first[0] = first[0] - length
                        start = T.address_of(message[first[0]])
                        T.evaluate(T.call_extern("int32", "memcpy", start, text, T.int64(length)))
                        T.evaluate(
                            T.call_extern("int32", "TVMFFIErrorSetRaisedFromCStr", "IndexError", start)
                        )
                        T.evaluate(T.tvm_throw_last_error())

    return checked_indices
