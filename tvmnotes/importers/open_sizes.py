"""Import a network whose inputs leave sizes open, by importing it at a few fixed sizes.

Importers and their converters see whole numbers only. Where the imported graphs differ, in a size, the
difference gives the size as an expression of the open ones: 2 and 213 at batches 2 and 213 are "batch", 1024
and 109056 are "512*batch". Relax infers the types of the resulting graph again, which have to agree with
those of every import. Where graphs differ otherwise, the network is refused.
"""

from collections.abc import Callable, Iterable

import numpy as np
import tvm
import tvm_ffi
from tvm import relax, tirx

from ..base.errors import one_line
from ..base.relax import constant_array, shape_text
from ..base.sizes import Size, evaluate, merged
from ..base.spec import TensorSpec

Model = tuple[tvm.IRModule, dict[str, tvm.runtime.Tensor]]
_USUAL = 2  # the size of the first import: many operators treat 1 in another way
_FAR = 211  # from there to the other one: a prime, so that a rounded quotient gives no whole factor
_BEYOND = 4099  # to a third one, for importers that see no program: a file may compare a size with a number


class _Refused(Exception):
    """The imported graphs differ in more than sizes."""


def with_open_sizes(
    import_at: Callable[[list[TensorSpec]], Model],
    specs: list[TensorSpec],
    steps_at: Callable[[list[TensorSpec]], list] | None = None,
) -> Model:
    """Import a model for inputs that may have open sizes.

    Args:
        import_at: Imports the model for inputs of fixed sizes.
        specs: The inputs.
        steps_at: Lists what the model's framework computes for inputs of fixed sizes, before the importer
            rewrites it: integers, and texts that do not depend on sizes. None if that is not known.
            The framework then checks sizes in between, too.

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
    for spec in specs:
        if inner := [size for size in spec.shape[1:] if isinstance(size, Size)]:
            raise NotImplementedError(
                f"input {spec.name!r}: a size may stay open on the first axis only, the batch; give a whole "
                f"number for {inner[0].name!r}"
            )
    first = usual(sizes)
    far = [{**first, name: _far(first[name], size)} for name, size in sizes.items()]
    if steps_at is None:
        far += [{name: _far(first[name], size, _BEYOND) for name, size in sizes.items()}]
    lowest = {name: size.lower for name, size in sizes.items()}
    between = {name: min(first[name] + 5, _far(first[name], size)) for name, size in sizes.items()}
    models = {}  # by the values of the sizes

    def union(samples):
        for sample in samples:
            if (key := tuple(sample.values())) not in models:
                models[key] = import_at([spec.at(sample) for spec in specs])
        several = [models[tuple(sample.values())] for sample in samples]
        _compare_params([params for _, params in several])
        return _Union(specs, sizes, samples, [mod for mod, _ in several]).module()

    names = ", ".join(map(repr, sizes))
    samples = [first, *far, between if lowest == first else lowest]
    try:
        mod = union(samples)
    except _Refused as reason:
        refusal = f"this network cannot leave {names} open: {reason}; give whole numbers there"
        try:
            mod = union([first, *far, between])
            values = ", ".join(map(str, lowest.values()))
            served = ", ".join(f"Size({name!r}, {value})" for name, value in first.items())
            refusal = (
                f"this network computes in another way where {names} is {values} ({reason}); leave open "
                f"{served}, or give whole numbers"
            )
            # Importers rewrite operators in another way where a size is 1, which comes to the same.
            if steps_at is None:
                raise reason
            _compare_programs(samples, [steps_at([spec.at(each) for spec in specs]) for each in samples])
            _compare_results(mod, models[tuple(lowest.values())][0], lowest)
        except _Refused:
            raise NotImplementedError(refusal) from None
    return mod, models[tuple(first.values())][1]


def _compare_programs(samples: list[dict[str, int]], several: list[list]) -> None:
    """Refuse programs, as `steps_at` lists them, that differ in more than sizes."""
    for steps in _together(several):
        if all(type(step) is int for step in steps):
            _line(steps, samples)
        elif len(set(steps)) > 1:
            raise _Refused("its program depends on it")


def _compare_results(mod: tvm.IRModule, fixed: tvm.IRModule, values: dict[str, int]) -> None:
    """Refuse a module if its results are of other types than those of an import at fixed sizes."""
    if not _agree(mod["main"].ret_ty, fixed["main"].ret_ty, values):
        raise _Refused("its results depend on it")


def usual(sizes: dict[str, Size]) -> dict[str, int]:
    """Return a value for each size, within its bounds: 2 or more, if possible, and another one for each."""
    values = {}
    for number, (name, size) in enumerate(sizes.items()):
        value = max(size.lower, _USUAL + number)
        values[name] = value if size.upper is None or value < size.upper else size.lower
    return values


def _far(value: int, size: Size, distance: int = _FAR) -> int:
    """Return a value of a size that is far from its usual one, or as far as its bounds allow."""
    return value + distance if size.upper is None else min(value + distance, size.upper)


def _compare_params(several: list[dict]) -> None:
    first, *others = several
    for params in others:
        if list(params) != list(first):
            raise _Refused("its weights depend on it")
        for name, array in params.items():
            if not _same_array(array.numpy(), first[name].numpy()):
                raise _Refused(f"the constant {name!r} depends on it")


def _same_array(a: np.ndarray, b: np.ndarray) -> bool:
    alike = a.shape == b.shape and a.dtype == b.dtype
    return alike and np.array_equal(a.reshape(-1).view(np.uint8), b.reshape(-1).view(np.uint8))


def _agree(ty, fixed, values) -> bool:
    """Return whether a type with open sizes is the fixed one for these values."""
    if isinstance(ty, tvm.ir.TupleType):
        pairs = zip(ty.fields, fixed.fields, strict=True)
        return all(_agree(each, other, values) for each, other in pairs)
    if not isinstance(ty, relax.TensorType):
        return tvm_ffi.structural_equal(ty, fixed)
    sizes, numbers = shape_text(ty), shape_text(fixed)
    if sizes is None or numbers is None or len(sizes) != len(numbers) or str(ty.dtype) != str(fixed.dtype):
        return False
    return all(evaluate(size, values) == number for size, number in zip(sizes, numbers, strict=True))


class _Union:
    """The union of modules that were imported at the sizes `samples`."""

    def __init__(self, specs: list[TensorSpec], sizes: dict[str, Size], samples: list[dict], mods: list):
        self.specs, self.sizes, self.samples, self.mods = specs, sizes, samples, mods
        self.mains = [mod["main"] for mod in mods]
        self.vars = {name: tirx.Var(name, "int64") for name in sizes}
        self.places = [{} for _ in mods]  # by variable of a module: its number, the same in all
        self.values = []  # the union's variables, by these numbers

    def module(self) -> tvm.IRModule:
        """Return the union."""
        for mod in self.mods[1:]:
            self._same_functions(mod)
        params = [self._param(several) for several in _together(main.params for main in self.mains)]
        attrs = dict(self.mains[0].attrs)
        attrs["tvmnotes.sizes"] = {
            name: [size.lower, -1 if size.upper is None else size.upper] for name, size in self.sizes.items()
        }
        if upper := {name: size.upper for name, size in self.sizes.items() if size.upper is not None}:
            attrs["tir_var_upper_bound"] = upper
        builder, refusal = relax.BlockBuilder(), None
        with builder.function("main", params, attrs):
            with builder.dataflow():
                try:
                    for bindings in _together(map(_bindings, self.mains)):
                        self._bind(builder, bindings)
                    result = self._expr([main.body.body for main in self.mains])
                except _Refused as reason:  # raised later, as TVM complains about an unfinished function
                    refusal, result = reason, params[0]
                result = builder.emit_output(result)
            builder.emit_func_output(result)
        if refusal is not None:
            raise refusal
        mod = self.mods[0].clone()
        mod["main"] = builder.get()["main"]
        return mod

    def _same_functions(self, mod) -> None:
        first = self.mods[0]
        names = [sorted(var.name_hint for var in each.get_global_vars()) for each in (first, mod)]
        if names[0] != names[1]:
            raise _Refused("its kernels depend on it")
        for name in names[0]:
            if name != "main" and not tvm_ffi.structural_equal(first[name], mod[name]):
                raise _Refused(f"the kernel {name!r}, which its importer makes, is for one size only")

    def _param(self, several):
        shape, first = None, several[0]
        for spec in self.specs:
            if spec.name == first.name:
                shape = [self.vars[n.name] if isinstance(n, Size) else n for n in spec.shape]
        ty = first.ty if shape is None else relax.TensorType(shape, first.ty.dtype)
        var = relax.Var(first.name, ty)
        self._known(several, var)
        return var

    def _known(self, several, var) -> None:
        for places, own in zip(self.places, several, strict=True):
            places[own] = len(self.values)
        self.values.append(var)

    def _bind(self, builder, bindings) -> None:
        values = [binding.value for binding in bindings]
        if not all(isinstance(binding, relax.VarBinding) for binding in bindings):
            raise _Refused("its importer does not know a shape")
        value = self._expr(values)
        try:
            var = builder.emit(value, bindings[0].var.name)
        except Exception as error:  # TVM's own are of many kinds
            raise _Refused(f"{_name(values[0])} does not take an open size ({one_line(error)})") from None
        for binding, sample in zip(bindings, self.samples, strict=True):
            if not _agree(var.ty, binding.var.ty, sample):
                raise _Refused(
                    f"{_name(values[0])} makes a {binding.var.ty} of it, and Relax infers {var.ty}"
                )
        self._known([binding.var for binding in bindings], var)

    def _expr(self, exprs: list):
        """Return the union of expressions."""
        first = exprs[0]
        if any(type(expr) is not type(first) for expr in exprs):
            raise _Refused("the graph depends on it")
        if isinstance(first, relax.Var):
            numbers = {places.get(expr) for places, expr in zip(self.places, exprs, strict=True)}
            if len(numbers) > 1 or None in numbers:
                raise _Refused("the graph depends on it")
            return self.values[numbers.pop()]
        if isinstance(first, tvm.ir.Call):
            return self._call(exprs)
        if isinstance(first, relax.Tuple):
            return relax.Tuple([self._expr(fields) for fields in _together(each.fields for each in exprs)])
        if isinstance(first, relax.TupleGetItem):
            if len({int(each.index) for each in exprs}) > 1:
                raise _Refused("the graph depends on it")
            return relax.TupleGetItem(self._expr([each.tuple_value for each in exprs]), int(first.index))
        if isinstance(first, relax.ShapeExpr):
            return relax.ShapeExpr([self._size(sizes) for sizes in _together(each.values for each in exprs)])
        if isinstance(first, tirx.IntImm):
            size = self._size(exprs)
            return first if isinstance(size, int) else size
        arrays = [constant_array(expr) for expr in exprs]
        if arrays[0] is not None:
            if not all(_same_array(array, arrays[0]) for array in arrays[1:]):
                raise _Refused("a constant depends on it")
        elif not all(tvm_ffi.structural_equal(first, expr) for expr in exprs[1:]):
            raise _Refused(f"{type(first).__name__} depends on it")
        return first

    def _call(self, calls: list):
        first, *others = calls
        for other in others:
            same = _name(first) == _name(other) and len(first.args) == len(other.args)
            if not same or not tvm_ffi.structural_equal(first.attrs, other.attrs):
                raise _Refused(f"{_name(first)} depends on it in another way than by the shape that it reads")
        args = [self._expr(several) for several in _together(call.args for call in calls)]
        types = [self._type(several) for several in _together(call.ty_args for call in calls)]
        return tvm.ir.Call(first.op, args, first.attrs, types)

    def _type(self, several: list):
        first = several[0]
        if isinstance(first, tvm.ir.TupleType):
            return tvm.ir.TupleType([self._type(fields) for fields in _together(ty.fields for ty in several)])
        if isinstance(first, relax.TensorType) and all(ty.shape is not None for ty in several):
            sizes = _together(ty.shape.values for ty in several)
            return relax.TensorType([self._size(each) for each in sizes], first.dtype)
        if not all(tvm_ffi.structural_equal(first, ty) for ty in several[1:]):
            raise _Refused("the graph depends on it")
        return first

    def _size(self, sizes: list):
        """Return an integer if the sizes are the same in all samples, else an expression of the open ones."""
        numbers = [int(size) for size in sizes]
        if len(set(numbers)) == 1:
            return numbers[0]
        constant, factors = _line(numbers, self.samples)
        total = None
        for name, factor in factors.items():
            term = self.vars[name] if factor == 1 else self.vars[name] * factor
            if factor:
                total = term if total is None else total + term
        return total if constant == 0 else total + constant


def _line(numbers: list[int], samples: list[dict[str, int]]) -> tuple[int, dict[str, int]]:
    """Return the constant and the factor of each size in the sum that has these values in the samples.

    The first sample is the usual one, the next ones differ from it in one size each, and all others check.
    """
    usual = samples[0]
    constant, factors = numbers[0], {}
    for name, sample, number in zip(usual, samples[1:], numbers[1:], strict=False):
        factor, rest = divmod(number - numbers[0], max(1, sample[name] - usual[name]))
        if rest:
            raise _Refused("a size is no whole multiple of it")
        factors[name] = factor
        constant -= factor * usual[name]
    for sample, number in zip(samples, numbers, strict=True):
        if constant + sum(factor * sample[name] for name, factor in factors.items()) != number:
            raise _Refused("a size does not grow evenly with it")
    return constant, factors


def _together(several: Iterable) -> list[tuple]:
    """Return the first elements of all, then the second ones; refuse lists of several lengths."""
    lists = [list(each) for each in several]
    if len({len(each) for each in lists}) > 1:
        raise _Refused("the graph depends on it")
    return list(zip(*lists, strict=True))


def _bindings(main) -> list:
    return [binding for block in main.body.blocks for binding in block.bindings]


def _name(call) -> str:
    """Return the name of the operator that an expression calls."""
    op = getattr(call, "op", None)
    name = getattr(op, "name", getattr(op, "name_hint", type(call).__name__))
    return str(name).removeprefix("relax.")
