"""Import a network whose inputs leave sizes open, by importing it at a few fixed sizes.

Importers and their converters see whole numbers only. Where the imported graphs differ, in a size, the
difference gives the size as an expression of the open ones: 2 and 213 at batches 2 and 213 are "batch", 1024
and 109056 are "512*batch". Sizes that Relax infers, such as those of a strided convolution, are expressions
too, in which later ones may be written. Relax infers the types of the resulting graph again, which have to
agree with those of every import. Where graphs differ otherwise, the network is refused.
"""

from collections.abc import Callable

import tvm

from ...core.bounds_check import OutOfRange
from ...core.dims import Dim, merged
from ...core.specs import TensorSpec
from .graphs import Refused, together
from .merge import Union, same_array

Model = tuple[tvm.IRModule, dict[str, tvm.runtime.Tensor]]
_USUAL = 2  # the size of the first import: many operators treat 1 in another way
_INNER = 67  # that of an axis other than the first: strides that halve it five times leave more than 1
_FAR = 211  # from there to the other one: a prime, so that a rounded quotient gives no whole factor
_NEAR = 5  # to another one, for sizes that are no multiple of it and a constant
_BEYOND = 4099  # to a third one, for importers that see no program: a file may compare a size with a number
_DECIDED = 8  # the most samples that tell quotients apart
_MORE = (29, 60)  # to others, for graphs that divide sizes: 96 and 127, with both extreme remainders of 32
_MORE_OF_FILES = (*_MORE, 30)  # 97 too, with the one that is padded most: no program has the result's size


def with_open_sizes(
    import_at: Callable[[list[TensorSpec]], Model],
    specs: list[TensorSpec],
    steps_at: Callable[[list[TensorSpec]], list] | None = None,
    compared: Callable[[Union], list[dict[str, int]]] | None = None,
) -> Model:
    """Import a model for inputs that may have open sizes.

    Args:
        import_at: Imports the model for inputs of fixed sizes.
        specs: The inputs.
        steps_at: Lists what the model's framework computes for inputs of fixed sizes, before the importer
            rewrites it: integers, and texts that do not depend on sizes. None if that is not known.
        compared: Lists values of one or several open sizes, by name, for which the network may compute in
            another way than in the imports of a union. It may also refuse the network.

    Returns:
        The model. `main` has the open sizes as variables of its shapes, and their bounds in the attribute
        `tvmnotes.sizes`, by name.

    Raises:
        NotImplementedError: The network does not depend on an open size in a way that can be served.
        Exception: What `import_at` raises.
    """
    sizes = merged(spec.shape for spec in specs)
    if not sizes:
        return import_at(specs)
    first = usual(specs, sizes)
    far = [{**first, name: _far(first[name], size)} for name, size in sizes.items()]
    if steps_at is None:
        far += [{**first, name: _far(first[name], size, _BEYOND)} for name, size in sizes.items()]
    chosen = [first, *far]
    more = _MORE if steps_at else _MORE_OF_FILES
    for distance in (_NEAR, *more):
        taken = {name: {sample[name] for sample in chosen} for name in sizes}
        chosen.append(
            {name: _another(first[name], size, distance, taken[name]) for name, size in sizes.items()}
        )
    lowest = {name: size.lower for name, size in sizes.items()}
    shared = max(lowest.values())
    equal = {name: shared if size.takes(shared) else first[name] for name, size in sizes.items()}
    models = {}  # by the values of the sizes

    def union(samples):
        distinct = list({tuple(sample.values()): sample for sample in samples}.values())
        for sample in distinct:
            if (key := tuple(sample.values())) not in models:
                models[key] = _shared(_tried(import_at, specs, sample), models)
        several = [models[tuple(sample.values())] for sample in distinct]
        _compare_params([params for _, params in several])
        return Union(specs, sizes, distinct, [mod for mod, _ in several])

    names = ", ".join(map(repr, sizes))
    try:
        made = union(chosen[: -len(more)])
        if made.divides:
            made = union(chosen)
        for _ in range(_DECIDED):
            if (another := made.undecided()) is None:
                break
            made = union([*made.samples, another])
        else:
            raise Refused("its sizes are rounded in too many ways")
    except Refused as reason:
        raise NotImplementedError(
            f"this network cannot leave {names} open: {reason}; give whole numbers there"
        ) from None
    special = [lowest, equal, *({**first, **values} for values in (compared(made) if compared else ()))]
    for values in special:
        if values in made.samples:
            continue
        try:
            if steps_at is None:
                made = union([*made.samples, values])
            else:
                several = [_tried(steps_at, specs, each) for each in (*made.samples, values)]
                _compare_programs(made, several, values)
        except Refused as reason:
            numbers = ", ".join(map(str, values.values()))
            small = {name: max(size.lower, _USUAL) for name, size in sizes.items()}
            served = ", ".join(f"Dim({name!r}, {number})" for name, number in small.items())
            way_out = f"leave open {served}, or give" if values == lowest != small else "give"
            raise NotImplementedError(
                f"this network computes in another way where {names} is {numbers} ({reason}); {way_out} "
                "whole numbers"
            ) from None
    return made.mod, models[tuple(first.values())][1]


def _tried(function: Callable, specs: list[TensorSpec], sample: dict[str, int]):
    """Call a function of the inputs at fixed sizes; an error says which, and how to exclude them."""
    try:
        return function([spec.at(sample) for spec in specs])
    except (ValueError, IndexError, NotImplementedError) as error:
        if type(error) not in (ValueError, OutOfRange, NotImplementedError):
            raise
        sizes = " and ".join(f"{name} {value}" for name, value in sample.items())
        bounds = ", ".join(f"Dim({name!r}, lower, upper)" for name in sample)
        raise type(error)(
            f"{error} (open sizes were tried with {sizes}: if that is the cause, give bounds, {bounds}, or "
            "whole numbers)"
        ) from error


def _compare_programs(made: "Union", several: list[list], values: dict[str, int]) -> None:
    """Refuse programs, listed by `steps_at` for the samples and `values`, that differ in more than sizes."""
    for steps in together(several):
        known = [step for step in steps if step is not None]
        if all(type(step) is int for step in known):
            if len(known) == len(steps) and not made.agrees(steps[:-1], values, steps[-1]):
                raise Refused("its program depends on it")
        elif len(set(known)) > 1:
            raise Refused("its program depends on it")


def usual(specs: list[TensorSpec], sizes: dict[str, Dim]) -> dict[str, int]:
    """Return a value for each size, within its bounds: 2 or more, if possible, and another one for each."""
    inner = {size.name for spec in specs for size in spec.shape[1:] if isinstance(size, Dim)}
    values = {}
    for number, (name, size) in enumerate(sizes.items()):
        value = max(size.lower, (_INNER if name in inner else _USUAL) + number)
        if size.upper is not None and value >= size.upper:
            value = min(size.upper, max(size.lower, _USUAL, (size.lower + size.upper) // 2 + number))
        values[name] = value
    return values


def _far(value: int, size: Dim, distance: int = _FAR) -> int:
    """Return a value of a size that is this far from its usual one, or as far as its bounds allow.

    The upper bound itself is left out if possible: a slice up to it is none.
    """
    if size.upper is None or value + distance < size.upper:
        return value + distance
    return next((n for n in (size.upper - 1, size.upper, size.lower) if n != value and size.takes(n)), value)


def _another(value: int, size: Dim, distance: int, taken: set[int]) -> int:
    """Return a value of a size that is this far from its usual one, or that is not taken, if there is one."""
    if size.upper is None:
        return value + distance
    inner = range(size.upper - 1, _USUAL - 1, -1)[: len(taken) + 1]
    several = [n for n in (value + distance, *inner) if n < size.upper]
    return next((n for n in (*several, size.upper, size.lower) if n not in taken and size.takes(n)), value)


def _shared(model: Model, others: dict[tuple, Model]) -> Model:
    """Return a model with the weights of another one, if they are the same: each has its own copies."""
    mod, params = model
    for _, known in others.values():
        if list(params) == list(known) and all(
            same_array(params[n].numpy(), known[n].numpy()) for n in known
        ):
            return mod, known
    return model


def _compare_params(several: list[dict]) -> None:
    first, *others = several
    for params in others:
        if params is first:
            continue
        if list(params) != list(first):
            raise Refused("its weights depend on it")
        for name, array in params.items():
            if not same_array(array.numpy(), first[name].numpy()):
                raise Refused(f"the constant {name!r} depends on it")
