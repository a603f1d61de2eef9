"""Shape variants: a network specialized for given values of its dynamic dims, in one library.

`build` compiles each variant as a network of its own, `join` adds its functions to the library's module, and
graph.json describes it under "variants", in the order in which a call tries them. A weight that variants
share is stored once.
"""

import hashlib
import logging
from collections.abc import Mapping, Sequence

import tvm
import tvm_ffi
from tvm import relax

from ..core.dims import Dim
from ..core.relax import dynamic_dims

_LOG = logging.getLogger(__name__)


def specialize(
    mod: tvm.IRModule, sizes: Mapping[str, int], dims: Mapping[str, Dim] | None = None
) -> tvm.IRModule:
    """Bind dynamic dims of a network, by name, to values.

    Args:
        mod: The network.
        sizes: The values.
        dims: The network's dynamic dims, if they are known already.

    Raises:
        ValueError: The network has no such dynamic dim, or the value is out of its bounds.
    """
    known = dynamic_dims(mod["main"]) if dims is None else dims
    wanted = ", ".join(f"{name} ({dim.bounds})" for name, dim in known.items()) or "the network has none"
    if not isinstance(sizes, Mapping) or not sizes or not all(_fits(known, *item) for item in sizes.items()):
        raise ValueError(f"sizes: expected values of dynamic dims by name, {wanted}; got {sizes!r}")
    mod = relax.transform.BindSymbolicVars({name: int(n) for name, n in sizes.items()}, "main")(mod)
    return relax.transform.Normalize()(mod)


def _fits(known: Mapping[str, Dim], name: str, value: int) -> bool:
    return name in known and type(value) is int and known[name].takes(value)


def variants_of(
    mod: tvm.IRModule, sizes: Sequence[Mapping[str, int]] | None, dims: Mapping[str, Dim]
) -> list[tuple[dict, tvm.IRModule]]:
    """Return each distinct entry of `sizes`, and the network specialized for it; raises as `specialize`."""
    if sizes is not None and (isinstance(sizes, str | Mapping) or not isinstance(sizes, Sequence)):
        raise ValueError(f'sizes: expected a list, [{{"height": 480, "width": 640}}, …]; got {sizes!r}')
    found = []
    for each in sizes or ():
        bound = specialize(mod, each, dims)
        if each in [taken for taken, _ in found]:
            _LOG.debug("specialization %s: found above", each)
        else:
            found.append((dict(each), bound))
    return found


class Arrays:
    """The parameters of all variants; arrays of equal content share a name.

    Args:
        taken: Names that no array may have: those of the networks' inputs.

    Attributes:
        by_name: The arrays.
    """

    def __init__(self, taken: set[str]):
        self.by_name = {}
        self._taken = taken
        self._names = {}  # by content

    def name(self, array: tvm.runtime.Tensor, name: str) -> str:
        """Return the name of an array: `name`, with a suffix if another array has it."""
        content = array.numpy()
        key = content.shape, str(array.dtype), hashlib.sha256(content.tobytes()).digest()
        if key not in self._names:
            while name in self.by_name or name in self._taken:
                name += "_"
            self._names[key] = name
            self.by_name[name] = array
        return self._names[key]


def rename_params(mod: tvm.IRModule, arrays: dict, shared: Arrays) -> tuple[tvm.IRModule, dict]:
    """Rename the parameters of `main`, after `lift_constants`, as `shared` names them."""
    main = mod["main"]
    inputs = [param for param in main.params if param.name not in arrays]
    new, weights = {}, {}  # by the old parameter, by name
    for param in main.params[len(inputs) :]:
        name = shared.name(arrays[param.name], param.name)
        new[param] = weights.setdefault(name, relax.Var(name, param.ty))
    body = _Substitute(new).visit_expr(main).body
    mod = mod.clone()
    main = relax.Function([*inputs, *weights.values()], body, main.ret_ty, main.is_pure, main.attrs)
    mod.update_func(mod.get_global_var("main"), main)
    return mod, {name: shared.by_name[name] for name in weights}


@relax.expr_functor.mutator
class _Substitute(relax.PyExprMutator):
    def __init__(self, new: dict):
        super().__init__()
        self.new = new

    def visit_var_(self, var):
        return self.new[var] if var in self.new else super().visit_var_(var)

    def visit_global_var_(self, var):
        return self.new.get(var, var)


def join(mod: tvm.IRModule, other: tvm.IRModule, number: int) -> tuple[tvm.IRModule, dict[str, str]]:
    """Add the functions of another lowered module to a module.

    Returns:
        The module, and by name in `other` the new name of each function: with a suffix, the number, if it is
        taken.
    """
    taken = {var.name_hint: func for var, func in mod.functions_items()}
    own = {var.name_hint for var in other.get_global_vars()}
    names, new = {}, {}
    for var, func in other.functions_items():
        name = var.name_hint
        if name in taken and not tvm_ffi.structural_equal(func, taken[name]):
            name = f"{name}_{number}"
            while name in taken or name in own:
                name += "_"
        names[var.name_hint] = name
        new[var] = next((old for old in mod.get_global_vars() if old.name_hint == name), None)
        if new[var] is None:
            new[var] = tvm.ir.GlobalVar(name)
            relax.expr._update_type(new[var], var.ty)
    mod = mod.clone()
    for var, func in other.functions_items():
        if names[var.name_hint] in taken:
            continue
        if isinstance(func, relax.Function):
            func = _Substitute(new).visit_expr(func)
        mod.update_func(new[var], func.with_attr("global_symbol", names[var.name_hint]))
    return mod, names


def rename_functions(graph: dict, names: dict[str, str]) -> dict:
    """Rename the functions in graph.json's description of a network."""
    nodes = [node | {"kernel": names.get(node["kernel"], node["kernel"])} for node in graph["nodes"]]
    tables = {
        table: {names.get(kernel, kernel): each for kernel, each in graph[table].items()}
        for table in ("kernels", "costs", "workloads", "in_float32")
        if table in graph
    }
    return graph | tables | {"nodes": nodes, "function": names["main"]}
