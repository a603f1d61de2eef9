"""`as_model`: the last step of every frontend, which makes the result meet their contract; `recorded`."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import tvm
from tvm import relax

from ..core import bounds_check
from ..core.compat import import_tvm_ffi

import_tvm_ffi()  # so that Ctrl-C ends an import, too


@dataclass
class Recording:
    """Where an import has put the values of the framework's graph.

    Attributes:
        values: The name of a value in the framework (of a torch.fx node, an ONNX tensor, an MXNet node), by
            the name of the variable of `main` that holds it.
        source: The graph that TVM's importer was given, if the frontend rewrites it: an ExportedProgram.
    """

    values: dict[str, str] = field(default_factory=dict)
    source: Any = None


_recording: ContextVar[Recording | None] = ContextVar("recording", default=None)


@contextmanager
def recorded() -> Iterator[Recording]:
    """Record the import in this context; see `Recording`."""
    token = _recording.set(Recording())
    try:
        yield _recording.get()
    finally:
        _recording.reset(token)


def is_recorded() -> bool:
    """Whether the import is recorded, so that each value needs a variable."""
    return _recording.get() is not None


def as_model(
    mod: tvm.IRModule,
    inputs: Iterable[str],
    weights: Mapping[str, tvm.runtime.Tensor],
    values: Mapping[str, Any] | None = None,
    source: Any = None,
) -> tuple[tvm.IRModule, dict[str, tvm.runtime.Tensor]]:
    """Build a model `(mod, params)` that meets the contract in frontends/__init__.py, from `mod`, in place.

    `main` has one parameter for each of `inputs` and then one for each of `weights`, which get these names
    (TVMScript may print them otherwise). A weight that no output needs is left out. `values`, expressions by
    the framework's names, and `source` are for a `Recording`.

    Raises:
        ValueError: An input has the name of a weight.
        NotImplementedError: An output is not a tensor.
        IndexError: A weight holds an index out of range.
    """
    if recording := _recording.get():
        found = {value: str(name) for name, value in (values or {}).items() if isinstance(value, relax.Var)}
        recording.values = {value.name: name for value, name in found.items()}
        recording.source = source
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
