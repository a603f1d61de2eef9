"""`as_model`: the last step of every frontend, which makes the result meet their contract."""

from collections.abc import Iterable, Mapping

import tvm
from tvm import relax

from ..core import bounds_check
from ..core.compat import import_tvm_ffi

import_tvm_ffi()  # so that Ctrl-C ends an import, too


def as_model(
    mod: tvm.IRModule, inputs: Iterable[str], weights: Mapping[str, tvm.runtime.Tensor]
) -> tuple[tvm.IRModule, dict[str, tvm.runtime.Tensor]]:
    """Build a model `(mod, params)` that meets the contract in frontends/__init__.py, from `mod`, in place.

    `main` has one parameter for each of `inputs` and then one for each of `weights`, which get these names
    (TVMScript may print them otherwise). A weight that no output needs is left out.

    Raises:
        ValueError: An input has the name of a weight.
        NotImplementedError: An output is not a tensor.
        IndexError: A weight holds an index out of range.
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
        if (check := bounds_check.arguments(value)) and check[0] in arrays:
            bounds_check.within(arrays[check[0]].numpy(), *check[1:])
    needed = set(relax.analysis.free_vars(main.body))
    params = {name: array for name, array in weights.items() if old[name] in needed}
    new = {name: relax.Var(name, old[name].ty) for name in (*inputs, *params)}
    body = main.bind_params({old[name]: var for name, var in new.items()}).body
    main = relax.Function(list(new.values()), body, main.ret_ty, main.is_pure, main.attrs)
    mod["main"] = main.without_attr("params").with_attr("num_input", len(inputs))
    return mod, params
