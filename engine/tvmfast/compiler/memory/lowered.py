"""The passes that drop instructions of a lowered network: dead kills, and shapes that exist already."""

import tvm
import tvm_ffi
from tvm import relax

from ...core.relax import op_name

_MAKE = "vm.builtin.make_shape"


def remove_dead_kills() -> tvm.transform.Pass:
    """Make the pass that removes VM instructions that end a value's life without freeing memory.

    KillAfterLastUse ends the life of each value after its last use. That frees no memory if something else
    holds the value, as the caller does inputs and parameters, and the result its fields; and if no allocation
    follows, the end of the run, which frees all, is early enough. CallTIRRewrite leaves tuples that nothing
    reads.
    """

    @tvm.transform.module_pass(opt_level=0, name="RemoveDeadKills")
    def run(mod, _context):
        if "main" not in mod:  # but a function that runs once
            return mod
        main = mod["main"]
        bindings = _bindings(main)
        owners = _owners(main, bindings)
        killed, allocations, read = {}, [0], {*relax.analysis.free_vars(main.body.body)}
        for n, binding in enumerate(bindings):
            name = op_name(binding.value)
            if name == "vm.kill_object":
                (var,) = binding.value.args
                killed[n] = owners.get(var, var)
                continue
            if name == "vm.alloc_storage":
                allocations.append(n)
            read.update(relax.analysis.free_vars(binding.value))
        held = {owners.get(var, var) for var in [*main.params, *_results(main, bindings)]}
        late = {owner for n, owner in killed.items() if n > allocations[-1]}

        def is_needed(n, binding):
            if isinstance(binding.value, relax.Tuple):
                return binding.var in read or binding.var in killed.values()
            return n not in killed or killed[n] not in held | late

        return _with_bindings(mod, [binding for n, binding in enumerate(bindings) if is_needed(n, binding)])

    return run


def eliminate_common_shapes() -> tvm.transform.Pass:
    """Make the pass that makes each dynamic shape once in a run.

    It runs after VMShapeLower, in whose functions no number on the heap changes.
    """

    @tvm.transform.module_pass(opt_level=0, name="EliminateCommonShapes")
    def run(mod, _context):
        made, same = {}, {}  # a shape's variable by its numbers, and by other variables for it
        bindings = []
        for binding in _bindings(mod["main"]):
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
        return _with_bindings(mod, bindings)

    return run


def _owners(main: relax.Function, bindings: list) -> dict:
    """Return, by variable, what holds its memory: an input, the parameters, a buffer, or another value."""
    owners = {param: param for param in main.params}
    for binding in bindings:
        value = binding.value
        name = op_name(value) or str(getattr(getattr(value, "op", None), "global_symbol", ""))
        if name == "vm.alloc_storage":
            owners[binding.var] = binding.var
        elif name in ("vm.alloc_tensor", "vm.builtin.reshape"):
            owners[binding.var] = owners.get(value.args[0], value.args[0])
        elif isinstance(value, relax.TupleGetItem):
            owners[binding.var] = owners.get(value.tuple_value, value.tuple_value)
        elif isinstance(value, relax.Var):
            owners[binding.var] = owners.get(value, value)
    return owners


def _results(main: relax.Function, bindings: list) -> list:
    bound = {binding.var: binding.value for binding in bindings}
    value = bound.get(main.body.body, main.body.body)
    return list(value.fields) if isinstance(value, relax.Tuple) else [main.body.body]


def _bindings(main: relax.Function) -> list:
    return [binding for block in main.body.blocks for binding in block.bindings]


def _with_bindings(mod: tvm.IRModule, bindings: list) -> tvm.IRModule:
    """Replace the bindings of `main`, which become one block."""
    mod, main = mod.clone(), mod["main"]
    body = relax.SeqExpr([relax.BindingBlock(bindings)], main.body.body)
    mod["main"] = relax.Function(main.params, body, main.ret_ty, main.is_pure, main.attrs)
    return mod
