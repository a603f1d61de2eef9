"""The pass that drops instructions between kernels that change nothing.

KillAfterLastUse ends the life of each value after its last use. That frees no memory if something else holds
the value, as the caller does inputs and parameters, and the result its fields; and if no allocation follows,
the end of the run, which frees all, is early enough. CallTIRRewrite leaves tuples that nothing reads.
"""

import tvm
from tvm import relax

from ..base.relax import op_name


def drop_needless_kills() -> tvm.transform.Pass:
    """Make the pass, for a lowered network."""

    @tvm.transform.module_pass(opt_level=0, name="DropNeedlessKills")
    def run(mod, _context):
        main = mod["main"]
        bindings = [binding for block in main.body.blocks for binding in block.bindings]
        kills = [n for n, binding in enumerate(bindings) if op_name(binding.value) == "vm.kill_object"]
        allocations = [
            n for n, binding in enumerate(bindings) if op_name(binding.value) == "vm.alloc_storage"
        ]
        last = max(allocations, default=0)
        owners = _owners(main, bindings)
        held = {owners.get(var) for var in [*main.params, *_results(main, bindings)]}
        needless = {n for n in kills if n > last or owners.get(bindings[n].value.args[0]) in held - {None}}
        remaining = [(n, binding) for n, binding in enumerate(bindings) if n not in kills]
        read = {var for _, binding in remaining for var in relax.analysis.free_vars(binding.value)}
        read.update(relax.analysis.free_vars(main.body.body))
        needless |= {
            n
            for n, binding in remaining
            if isinstance(binding.value, relax.Tuple) and binding.var not in read
        }
        block = relax.BindingBlock([binding for n, binding in enumerate(bindings) if n not in needless])
        body = relax.SeqExpr([block], main.body.body)
        mod = mod.clone()
        mod["main"] = relax.Function(main.params, body, main.ret_ty, main.is_pure, main.attrs)
        return mod

    return run


def _owners(main: relax.Function, bindings: list) -> dict:
    """Return, by variable, the input, parameter or buffer whose memory it is in, if that is known."""
    owners = {param: param for param in main.params}
    for binding in bindings:
        value = binding.value
        name = op_name(value) or str(getattr(getattr(value, "op", None), "global_symbol", ""))
        if name == "vm.alloc_storage":
            owners[binding.var] = binding.var
        elif name in ("vm.alloc_tensor", "vm.builtin.reshape"):
            owners[binding.var] = owners.get(value.args[0])
        elif isinstance(value, relax.TupleGetItem):
            owners[binding.var] = owners.get(value.tuple_value)
        elif isinstance(value, relax.Var):
            owners[binding.var] = owners.get(value)
    return owners


def _results(main: relax.Function, bindings: list) -> list:
    """Return the variables that the function returns."""
    bound = {binding.var: binding.value for binding in bindings}
    value = bound.get(main.body.body, main.body.body)
    return list(value.fields) if isinstance(value, relax.Tuple) else [main.body.body]
