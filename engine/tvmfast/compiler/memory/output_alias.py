"""The pass that lets a network's result be a view, where a kernel would only copy it to another shape."""

import tvm
from tvm import relax

from ...core.compat import FUSED_PREFIX
from ...core.relax import on_each_function, op_name
from .state import may_share


def result_as_view() -> tvm.transform.Pass:
    """Make the pass, to run before RewriteDataflowReshape, which leaves a dataflow block's results alone."""
    return on_each_function("ResultAsView", _Renamed)


@relax.expr_functor.mutator
class _Renamed(relax.PyExprMutator):
    """Make a result that is reshaped a second name of a variable inside its dataflow block."""

    def visit_function_(self, func):
        self.result = func.body.body if _may_be_view(func) else None
        return super().visit_function_(func)

    def visit_var_binding_(self, binding):
        if self.result is None or not binding.var.same_as(self.result):
            super().visit_var_binding_(binding)
            return
        inner = self.builder_.emit(self.visit_expr(binding.value))
        self.set_var_remap(binding.var, self.builder_.emit_output(inner, binding.var.name))


def _may_be_view(func) -> bool:
    """Return whether a function's only result is a reshape of a value that shares memory with no input."""
    blocks = [block for block in func.body.blocks if isinstance(block, relax.DataflowBlock)]
    bindings = {binding.var: binding for block in blocks for binding in block.bindings}
    result = bindings.get(func.body.body)
    call = getattr(result, "value", None)
    if op_name(call) != "call_tir" or len(call.args[1].fields) != 1:
        return False
    if not call.args[0].name_hint.removeprefix(FUSED_PREFIX).startswith("reshape"):
        return False
    seen, remaining = set(), list(call.args[1].fields)
    while remaining:
        var = remaining.pop()
        binding = bindings.get(var)
        if op_name(getattr(binding, "value", None)) != "call_tir":
            return False
        seen.add(var)
        shared = [each for each in binding.value.args[1].fields if may_share(binding, each)]
        remaining += [each for each in shared if each not in seen]
    return True
