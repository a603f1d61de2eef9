"""Common subexpression elimination for dynamic shapes: each is made once in a run."""

import tvm
import tvm_ffi
from tvm import relax

_MAKE = "vm.builtin.make_shape"


def eliminate_common_shapes() -> tvm.transform.Pass:
    """Make the pass, to run after VMShapeLower, in whose functions no number on the heap changes."""

    @tvm.transform.module_pass(opt_level=0, name="EliminateCommonShapes")
    def run(mod, _context):
        main = mod["main"]
        made, same = {}, {}  # a shape's variable by its numbers, and by other variables for it
        bindings = []
        for binding in (binding for block in main.body.blocks for binding in block.bindings):
            value = binding.value
            if str(getattr(getattr(value, "op", None), "global_symbol", "")) == _MAKE:
                # After the heap: the kind of each dim, and its index on the heap or value.
                numbers = tuple(int(each.value) for each in value.args[1:])
                first = made.setdefault(numbers, binding.var)
                if not first.same_as(binding.var):
                    same[binding.var] = first
                    continue
            elif any(var in same for var in relax.analysis.free_vars(value)):
                value = tvm_ffi.structural_map(value, (relax.Var, lambda var: same.get(var, var)))
                binding = relax.VarBinding(binding.var, value)
            bindings.append(binding)
        body = relax.SeqExpr([relax.BindingBlock(bindings)], main.body.body)
        mod = mod.clone()
        mod["main"] = relax.Function(main.params, body, main.ret_ty, main.is_pure, main.attrs)
        return mod

    return run
