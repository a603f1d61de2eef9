"""Every importer ends with `as_model`, which makes the model that it returns and holds it to their contract."""

from collections.abc import Iterable, Mapping

import tvm
from tvm import relax

from ..base import indices
from ..base.workarounds import import_tvm_ffi

import_tvm_ffi()  # it has a Ctrl-C end an import, too


def as_model(
    mod: tvm.IRModule, inputs: Iterable[str], weights: Mapping[str, tvm.runtime.Tensor]
) -> tuple[tvm.IRModule, dict[str, tvm.runtime.Tensor]]:
    """Make a model `(mod, params)` as importers/__init__.py describes it.

    `main` of `mod`, which is changed, has one parameter for each of `inputs` and then one for each of `weights`, and
    these get their names, which TVMScript may print otherwise. A weight that no output needs is left out.

    Raises ValueError where an input has the name of a weight, NotImplementedError for an output that is no tensor, and
    IndexError where a weight holds an index that is out of range.
    """
    main, inputs = mod["main"], list(inputs)
    if taken := [name for name in inputs if name in weights]:
        raise ValueError(f"input {taken[0]!r}: the network has a weight of this name; give the input another")
    outputs = main.ret_ty.fields if isinstance(main.ret_ty, tvm.ir.TupleType) else [main.ret_ty]
    if others := [ty for ty in outputs if not isinstance(ty, relax.TensorType)]:
        raise NotImplementedError(f"the network returns {others[0]} where a tensor belongs")
    old = dict(zip([*inputs, *weights], main.params, strict=True))
    arrays = {old[name]: array for name, array in weights.items()}
    for value in relax.analysis.get_var2val(main).values():
        if (check := indices.arguments(value)) and check[0] in arrays:
            indices.within(arrays[check[0]].numpy(), *check[1:])
    needed = set(relax.analysis.free_vars(main.body))
    params = {name: array for name, array in weights.items() if old[name] in needed}
    new = {name: relax.Var(name, old[name].ty) for name in (*inputs, *params)}
    body = main.bind_params({old[name]: var for name, var in new.items()}).body
    main = relax.Function(list(new.values()), body, main.ret_ty, main.is_pure, main.attrs)
    mod["main"] = main.without_attr("params").with_attr("num_input", len(inputs))
    return mod, params
