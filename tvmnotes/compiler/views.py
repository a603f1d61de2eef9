"""The pass that lets a network's result be a view, where a kernel would only copy it to another shape."""

import math

import tvm
from tvm import relax

from ..base.relax import known_shape, on_each_function, op_name, written


def result_as_view() -> tvm.transform.Pass:
    """Make the pass, to run before RewriteDataflowReshape, which leaves a dataflow block's results alone."""
    return on_each_function("ResultAsView", _Renamed, needs=_copies_result)


def _copies_result(func) -> bool:
    """Return whether a function's only result is a reshape of a value that no input may share memory with."""
    if not isinstance(func, relax.Function) or not isinstance(func.body.body, relax.Var):
        return False
    bound = relax.analysis.get_var2val(func)
    call = bound.get(func.body.body)
    if op_name(call) != "call_tir" or len(call.args[1].fields) != 1:
        return False
    if not call.args[0].name_hint.removeprefix("fused_").startswith("reshape"):
        return False

    def is_own(var):
        value = bound.get(var)
        if op_name(value) != "call_tir":
            return False
        size = _size(var)
        return size is not None and all(_size(arg) != size or is_own(arg) for arg in value.args[1].fields)

    return is_own(call.args[1].fields[0])


def _size(value) -> int | str | None:
    """Return the number of elements of a tensor as text, which compares."""
    shape = known_shape(value.ty)
    return None if shape is None else written(math.prod(shape))


@relax.expr_functor.mutator
class _Renamed(relax.PyExprMutator):
    """Make the result of a function a second name of a variable inside its dataflow block."""

    def visit_var_binding_(self, binding):
        if isinstance(binding.var, relax.DataflowVar) or op_name(binding.value) != "call_tir":
            super().visit_var_binding_(binding)
            return
        inner = self.builder_.emit(self.visit_expr(binding.value))
        self.set_var_remap(binding.var, self.builder_.emit_output(inner, binding.var.name))
