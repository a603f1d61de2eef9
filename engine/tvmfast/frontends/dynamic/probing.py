"""Import a network with dynamic dims by probing: imports with static dims at a few probes are merged.

Frontends and their converters see static shapes only. Where the imported graphs differ in a dim, its values
give it as an expression of the dynamic dims: 2 and 213 at batches 2 and 213 are "batch", 1024 and 109056 are
"512*batch". Dims that Relax infers, such as those of a strided convolution, are known expressions too, from
which later ones may be built. Relax infers the types of the merged graph again, which have to agree with
those of every import. Where graphs differ otherwise, the network is refused.
"""

import logging
from collections.abc import Callable
from dataclasses import replace

import tvm

from ...core.bounds_check import OutOfRange
from ...core.dims import Dim, dims_of
from ...core.specs import TensorSpec
from .merge import GraphMerge, UnsupportedDynamism, bindings_of, same_array, zip_equal
from .windows import check_windows, least_dims

Model = tuple[tvm.IRModule, dict[str, tvm.runtime.Tensor]]
_log = logging.getLogger(__name__)
_BASELINE = 2  # the baseline of a first axis: many operators special-case 1
_INNER = 67  # that of other axes: strides that halve it five times leave more than 1
_FAR = 211  # distance of a second value: a prime, so that a floor division gives no integer factor
_NEAR = 5  # of another one, for dims that are not affine
_BEYOND = 4099  # of a third one, for frontends without a signature: a file may compare a dim with a number
_MOST_SEPARATING = 8  # probes that separate floor divisions
_MORE = (29, 60)  # of others, for graphs with floor divisions: 96 and 127, with both extreme remainders of 32
_MORE_OF_FILES = (*_MORE, 30)  # 97 too, which is padded most: no signature has the resulting dim


def with_dynamic_dims(
    import_at: Callable[[list[TensorSpec]], Model],
    specs: list[TensorSpec],
    signature_at: Callable[[list[TensorSpec]], list] | None = None,
    suspects_of: Callable[[GraphMerge], list[dict[str, int]]] | None = None,
    takes: Callable[[list[TensorSpec]], bool] | None = None,
) -> Model:
    """Import a model for inputs that may have dynamic dims.

    Args:
        import_at: Imports the model for inputs with static dims.
        specs: The inputs.
        signature_at: Returns the graph signature that the model's framework has for inputs with static dims,
            before the frontend rewrites it: integers, and texts that do not depend on dims. None if unknown.
        suspects_of: Lists values of one or several dynamic dims, by name, for which the network may compute
            something else than the merged graph. It may also refuse the network.
        takes: Tells whether the framework runs the model on inputs with static dims, for a message.

    Returns:
        The model. `main` has the dynamic dims as variables of its shapes, and their bounds in the attribute
        `tvmfast.sizes`, by name. A lower bound is raised to where each window fits into its input.

    Raises:
        ValueError: A window is larger than its input.
        NotImplementedError: One graph cannot serve all dims.
        Exception: What `import_at` raises.
    """
    dims = dims_of(spec.shape for spec in specs)
    if not dims:
        model = import_at(specs)
        check_windows(model[0]["main"])
        return model
    first = baseline(specs, dims)
    far = [{**first, name: _far(first[name], dim)} for name, dim in dims.items()]
    if signature_at is None:
        far += [
            {**first, name: _far(first[name], dim, _BEYOND)}
            for name, dim in dims.items()
            if not any([getattr(n, "name", n) for n in spec.shape].count(name) > 2 for spec in specs)
        ]  # a volume of so many pixels a side is refused: it would exceed the memory
    chosen = [first, *far]
    more = _MORE if signature_at else _MORE_OF_FILES
    for distance in (_NEAR, *more):
        taken = {name: {probe[name] for probe in chosen} for name in dims}
        chosen.append({name: _another(first[name], dim, distance, taken[name]) for name, dim in dims.items()})
    models = {}  # by the values of the dims

    def merge(probes):
        distinct = list({tuple(probe.values()): probe for probe in probes}.values())
        for probe in distinct:
            if (key := tuple(probe.values())) not in models:
                models[key] = _with_shared_weights(_at_probe(import_at, specs, probe, takes), models)
                # Before the next import: that of an unrolled loop over a large dim may take minutes.
                zip_equal(bindings_of(mod["main"]) for mod, _ in models.values())
        several = [models[tuple(probe.values())] for probe in distinct]
        _log.debug("merging imports at %s", distinct)
        _compare_params([params for _, params in several])
        return GraphMerge(specs, dims, distinct, [mod for mod, _ in several])

    names = ", ".join(map(repr, dims))
    try:
        merged = merge(chosen[: -len(more)])
        if merged.has_floor_div:
            merged = merge(chosen)
        for _ in range(_MOST_SEPARATING):
            if (another := merged.separating_probe()) is None:
                break
            merged = merge([*merged.probes, another])
        else:
            raise UnsupportedDynamism("its floor divisions are ambiguous")
    except UnsupportedDynamism as reason:
        raise NotImplementedError(
            f"this network cannot keep {names} dynamic: {reason}; give static dims there"
        ) from None
    lowest = least_dims(merged.mod["main"], dims)
    if any(dim.lower < lowest[name] for name, dim in dims.items()):
        dims = {name: replace(dim, lower=lowest[name]) for name, dim in dims.items()}
        bound = (tuple(dims.get(getattr(n, "name", n), n) for n in spec.shape) for spec in specs)
        specs = [replace(spec, shape=shape) for spec, shape in zip(specs, bound, strict=True)]
        merged = merge(merged.probes)
    shared = max(lowest.values())
    equal = {name: shared if dim.takes(shared) else first[name] for name, dim in dims.items()}
    suspects = suspects_of(merged) if suspects_of else ()
    special = [lowest, equal, *({**first, **values} for values in suspects)]
    _log.debug("comparing with %s", special)

    def with_also(values):
        """Return the merged graph with `values` as another probe, or raise UnsupportedDynamism."""
        probes = [*merged.probes, values]
        if signature_at is None:
            return merge(probes)
        several = [_at_probe(signature_at, specs, each, takes) for each in probes]
        _compare_signatures(merged, several, values)
        return merged

    def serves(values):
        try:
            return values in merged.probes or bool(with_also(values))
        except Exception:  # UnsupportedDynamism, or what the framework raises
            return False

    for values in special:
        if values in merged.probes:
            continue
        try:
            merged = with_also(values)
        except UnsupportedDynamism as reason:
            numbers = ", ".join(map(str, values.values()))
            bounds = _lower_bounds(lowest, first, serves) if values == lowest else {}
            served = ", ".join(f"Dim({name!r}, {number})" for name, number in bounds.items())
            way_out = f"use {served}, or give" if served else "give"
            raise NotImplementedError(
                f"this network computes something else where {names} is {numbers} ({reason}); {way_out} "
                "static dims"
            ) from None
    return merged.mod, models[tuple(first.values())][1]


def _at_probe(
    function: Callable, specs: list[TensorSpec], probe: dict[str, int], takes: Callable | None = None
):
    """Call a function of the inputs at a probe; an error names it, and how to exclude it."""
    try:
        return function([spec.at(probe) for spec in specs])
    except (ValueError, IndexError, NotImplementedError) as error:
        if type(error) not in (ValueError, OutOfRange, NotImplementedError):
            raise
        dims = " and ".join(f"{name} {value}" for name, value in probe.items())
        bounds = takes and _bounds_that_work(takes, specs, probe)
        bounds = bounds or ", ".join(f"Dim({name!r}, lower, upper)" for name in probe)
        raise type(error)(
            f"{error} (dynamic dims were tried with {dims}: if that is the cause, give bounds, {bounds}, or "
            "static dims)"
        ) from error


def _bounds_that_work(takes: Callable, specs: list[TensorSpec], probe: dict[str, int]) -> str | None:
    """Return a dim with the upper bound up to which a model takes its inputs, if one dim is too large."""
    for name, dim in dims_of(spec.shape for spec in specs).items():

        def fits(value, name=name):
            return takes([spec.at({**probe, name: value}) for spec in specs])

        most, fails = dim.lower, probe[name]
        if most < fails and fits(most):
            while fails - most > 1:
                middle = (most + fails) // 2
                most, fails = (middle, fails) if fits(middle) else (most, middle)
            return f"Dim({name!r}, {dim.lower}, {most})"
    return None


def _lower_bounds(values: dict[str, int], first: dict[str, int], serves: Callable) -> dict[str, int]:
    """Return lower bounds of dims above their least `values`, by bisection up to the baseline; {} if none do.

    They are of the dims that make the difference by themselves. One graph `serves` them and the baseline.
    """
    bounds = {}
    for name, fails in values.items():
        most = first[name]
        if fails >= most or serves({**first, name: fails}):
            continue
        middle = fails + 1  # most often 1 alone is another network
        while most - fails > 1:
            fails, most = (fails, middle) if serves({**first, name: middle}) else (middle, most)
            middle = (fails + most) // 2
        bounds[name] = most
    return bounds if bounds and serves({**values, **bounds}) else {}


def _compare_signatures(merged: GraphMerge, several: list[list], values: dict[str, int]) -> None:
    """Raise if graph signatures, those at the probes and last that at `values`, differ in more than dims."""
    for parts in zip_equal(several):
        known = [part for part in parts if part is not None]
        if all(type(part) is int for part in known):
            if len(known) == len(parts) and not merged.agrees(parts[:-1], values, parts[-1]):
                raise UnsupportedDynamism("its program depends on it")
        elif len(set(known)) > 1:
            raise UnsupportedDynamism("its program depends on it")


def baseline(specs: list[TensorSpec], dims: dict[str, Dim]) -> dict[str, int]:
    """Return the baseline probe: a value of each dim, 2 or more if its bounds allow it, all different."""
    inner = {dim.name for spec in specs for dim in spec.shape[1:] if isinstance(dim, Dim)}
    values = {}
    for number, (name, dim) in enumerate(dims.items()):
        value = max(dim.lower, (_INNER if name in inner else _BASELINE) + number)
        if dim.upper is not None and value >= dim.upper:
            value = min(dim.upper, max(dim.lower, _BASELINE, (dim.lower + dim.upper) // 2 + number))
        values[name] = value
    return values


def _far(value: int, dim: Dim, distance: int = _FAR) -> int:
    """Return a value of a dim at a distance from its baseline, or as far as its bounds allow.

    The upper bound itself is avoided if possible: a slice up to it slices nothing.
    """
    if dim.upper is None or value + distance < dim.upper:
        return value + distance
    return next((n for n in (dim.upper - 1, dim.upper, dim.lower) if n != value and dim.takes(n)), value)


def _another(value: int, dim: Dim, distance: int, taken: set[int]) -> int:
    """Return a value of a dim at a distance from its baseline, or another one that is not taken."""
    if dim.upper is None:
        return value + distance
    inner = range(dim.upper - 1, _BASELINE - 1, -1)[: len(taken) + 1]
    several = [n for n in (value + distance, *inner) if n < dim.upper]
    return next((n for n in (*several, dim.upper, dim.lower) if n not in taken and dim.takes(n)), value)


def _with_shared_weights(model: Model, others: dict[tuple, Model]) -> Model:
    """Return a model with the weight arrays of another one if they are equal, so that copies are freed."""
    mod, params = model
    for _, seen in others.values():
        if list(params) == list(seen) and all(same_array(params[n].numpy(), seen[n].numpy()) for n in seen):
            return mod, seen
    return model


def _compare_params(several: list[dict]) -> None:
    first, *others = several
    for params in others:
        if params is first:
            continue
        if list(params) != list(first):
            raise UnsupportedDynamism("its weights depend on it")
        for name, array in params.items():
            if not same_array(array.numpy(), first[name].numpy()):
                raise UnsupportedDynamism(f"the constant {name!r} depends on it")
