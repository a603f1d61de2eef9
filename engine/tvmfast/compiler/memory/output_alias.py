"""The pass that aliases the output to the result of the last kernel, if only a reshape follows."""

import tvm
from tvm import relax

from ...core.compat import FUSED_PREFIX
from ...core.relax import on_each_function, op_name
from .state import may_alias


def alias_output() -> tvm.transform.Pass:
    """Make the pass, to run before RewriteDataflowReshape, which leaves a dataflow block's results alone."""
    return on_each_function("AliasOutput", _Alias)


@relax.expr_functor.mutator
class _Alias(relax.PyExprMutator):
    """Bind the reshape to a variable inside the dataflow block, and the output to that variable."""

    def visit_function_(self, func):
        self.result = func.body.body if _can_alias(func) else None
        return super().visit_function_(func)

    def visit_var_binding_(self, binding):
        if self.result is None or not binding.var.same_as(self.result):
            super().visit_var_binding_(binding)
            return
        inner = self.builder_.emit(self.visit_expr(binding.value))
        self.set_var_remap(binding.var, self.builder_.emit_output(inner, binding.var.name))


def _can_alias(func) -> bool:
    """Return whether a function's only output is a reshape of a value that aliases no input."""
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
        shared = [each for each in binding.value.args[1].fields if may_alias(binding, each)]
        remaining += [each for each in shared if each not in seen]
    return True
