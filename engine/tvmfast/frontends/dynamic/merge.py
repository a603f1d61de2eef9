"""Graph merging (anti-unification): modules imported at a few probes become one with dynamic dims."""

import itertools
import logging
import math
import re
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.relax import op as R

from ...core import bounds_check
from ...core.dims import Dim, evaluate
from ...core.errors import one_line
from ...core.relax import constant_array, dim_to_str, op_name, shape_text, unwrap_ints
from ...core.specs import TensorSpec
from ...kernels.recurrent.cell import Cell
from ...kernels.recurrent.emit import call as recurrent_call

_log = logging.getLogger(__name__)
_EXACT = 1 << 24  # float32 represents all integers up to it
_UNBOUNDED = (1 << 31) - 1  # the upper bound of a dim without one; files have it as the end of slices
_PAST = 1 << 62  # a bound beyond this is past each end of an axis
_FLOOR_DIV = re.compile(r"// \((\d+)\)")
_OTHERS = ("//", "%", "max(", "min(")
_PERIOD = 1 << 16  # the longest period of a dim's floor divisions
_PERIODS = 6  # compared: products of few dims would differ between them
_DIVISORS = range(2, 9)  # of a known dim
_EXTREME = re.compile(r"(max|min)\(")
_SEARCHED = 1 << 14  # values of a dynamic dim, at most, at which two expressions are compared
_NEAR = 512  # values of a dynamic dim, at most, at which two floor divisions are compared
_MOST_FACTORS = 3  # of a product of known dims
_POOLS = ("nn.max_pool", "nn.avg_pool")  # beginnings of operators' names
_WINDOWS = re.compile(r"nn\.(conv|max_pool|avg_pool)[123]d")


class UnsupportedDynamism(Exception):
    """The imported graphs differ in more than dims, or a dim has no known expression."""


def zip_equal(several: Iterable) -> list[tuple]:
    """Return the first elements of all, then the second ones; raise if the lengths differ."""
    lists = [list(each) for each in several]
    if len({len(each) for each in lists}) > 1:
        raise UnsupportedDynamism("the graph depends on it")
    return list(zip(*lists, strict=True))


def same_array(a: np.ndarray, b: np.ndarray) -> bool:
    """Return whether arrays are equal bit by bit."""
    alike = a.shape == b.shape and a.dtype == b.dtype
    return alike and np.array_equal(a.reshape(-1).view(np.uint8), b.reshape(-1).view(np.uint8))


def _agree(ty, static, values) -> bool:
    """Return whether a dynamic type is the static one for these dims."""
    if isinstance(ty, tvm.ir.TupleType):
        pairs = zip(ty.fields, static.fields, strict=True)
        return all(_agree(each, other, values) for each, other in pairs)
    if not isinstance(ty, relax.TensorType):
        return tvm_ffi.structural_equal(ty, static)
    dims, numbers = shape_text(ty), shape_text(static)
    if dims is None or numbers is None or len(dims) != len(numbers) or str(ty.dtype) != str(static.dtype):
        return False
    return all(evaluate(dim, values) == number for dim, number in zip(dims, numbers, strict=True))


class DimInference:
    """Infers dims of a graph as expressions of its dynamic dims, from their values at the probes.

    Attributes:
        dims: The dynamic dims, by name.
        probes: Their values, by name, in each import.
        known: Expressions by their values at the probes; those found earlier help to find others.
        texts: The same as text.
        ambiguous: By values at the probes, the texts of several candidates that have them.
        floor_divs: The values of inferred floor divisions.
    """

    def __init__(self, dims: dict[str, Dim], probes: list[dict[str, int]]):
        self.dims, self.probes = dims, probes
        self.vars = {name: tirx.Var(name, "int64") for name in dims}
        self.known = {tuple(each[name] for each in probes): var for name, var in self.vars.items()}
        self.texts = {key: dim_to_str(var) for key, var in self.known.items()}
        self.ambiguous = {}
        self.floor_divs = set()

    def separating_probe(self) -> dict[str, int] | None:
        """Return dims that separate floor-division candidates which the current probes cannot."""
        return next(filter(None, map(self._separate, self.ambiguous.values())), None)

    def _separate(self, texts: list[str]) -> dict[str, int] | None:
        """Return dims at which candidates differ: those of the baseline probe, with another value of one."""
        first = self.probes[0]
        for name, dim in self.dims.items() if texts else ():
            end = dim.lower + _NEAR if dim.upper is None else min(dim.upper, dim.lower + _NEAR)
            tried = np.arange(dim.lower, end + 1)
            values = [evaluate(text, {**first, name: tried}) + 0 * tried for text in texts]
            differ = (np.stack(values) != values[0]).any(0)
            if differ.any():
                return {**first, name: int(tried[differ.argmax()])}
        return None

    def _record(self, numbers: tuple, dim) -> None:
        self.known[numbers] = dim
        self.texts[numbers] = dim_to_str(dim)

    def _dim(self, dims: Iterable):
        """Return an integer if a dim is the same at all probes, else an expression of the dynamic dims."""
        numbers = tuple(int(dim) for dim in dims)
        if len(set(numbers)) == 1:
            return numbers[0]
        if numbers not in self.known:
            found = next((dim for dim in self._candidates(numbers) if dim is not None), None)
            if found is None:
                where = ", ".join("x".join(map(str, probe.values())) for probe in self.probes)
                raise UnsupportedDynamism(
                    f"a dim is {', '.join(map(str, numbers))} where it is {where}, and no sum or product of "
                    "these and of known dims"
                )
            _log.debug("a dim that is %s at the probes is %s", numbers, found)
            self._record(numbers, found)
        return self.known[numbers]

    def _candidates(self, numbers: tuple):
        """Yield expressions that have these values at the probes, or None, the simplest ones first."""
        yield self._linear(numbers)
        yield self._product(numbers, list(self.vars.values()), 2 * len(self.vars))
        yield self._affine(numbers)
        yield self._floor_div(numbers)
        yield self._product(numbers, list(self.known.values()), _MOST_FACTORS)
        yield self._subtraction(numbers)

    def _linear(self, numbers: tuple):
        """Return the linear combination of dynamic dims that has these values at the probes, or None.

        The first probe is the baseline, the next ones differ from it in one dim each, and others check.
        """
        baseline, total = self.probes[0], tirx.IntImm("int64", 0)
        constant, factors = numbers[0], {}
        for name, probe, number in zip(baseline, self.probes[1:], numbers[1:], strict=False):
            factors[name], rest = divmod(number - numbers[0], probe[name] - baseline[name])
            constant -= factors[name] * baseline[name]
            if rest:
                return None
        for probe, number in zip(self.probes, numbers, strict=True):
            if constant + sum(factor * probe[name] for name, factor in factors.items()) != number:
                return None
        for name, factor in factors.items():
            total = total + self.vars[name] * factor
        return total + constant

    def _affine(self, numbers: tuple):
        """Return a multiple of a known dim, plus a constant, that has these values, or None."""
        for values, dim in self.known.items():
            other = next(i for i, value in enumerate(values) if value != values[0])
            factor, rest = divmod(numbers[other] - numbers[0], values[other] - values[0])
            constant = numbers[0] - factor * values[0]
            if not rest and all(factor * v + constant == n for v, n in zip(values, numbers, strict=True)):
                return dim * factor + constant
        return None

    def _floor_div(self, numbers: tuple):
        """Return the floor division of a known dim plus a constant by a small number, or None.

        It may be multiplied again, as a dim that is padded to a multiple.
        """
        found, dims = [], self._without_extremes()
        for divisor in _DIVISORS:
            factors = (1, divisor) if len({n % divisor for n in numbers}) == 1 else (1,)
            for (values, dim), factor in itertools.product(dims.items(), factors):
                rest = numbers[0] % factor
                least = [n // factor * divisor - value for n, value in zip(numbers, values, strict=True)]
                constants = range(max(least), min(least) + divisor)
                if factor > 1:  # most often rounded up
                    constants = reversed(constants)
                found += [(dim + constant) // divisor * factor + rest for constant in constants]
        if found:
            self.floor_divs.add(numbers)
        return self._first(numbers, found)

    def _subtraction(self, numbers: tuple):
        """Return the difference of two known dims that has these values, or None."""
        found = [
            dim - part
            for (values, dim), (parts, part) in itertools.permutations(self._without_extremes().items(), 2)
            if all(value - other == n for value, other, n in zip(values, parts, numbers, strict=True))
        ]
        return self._first(numbers, found)

    def _without_extremes(self) -> dict[tuple, Any]:
        texts = {key: text for key, text in self.texts.items() if text is not None}
        return {key: self.known[key] for key, text in texts.items() if not _EXTREME.search(str(text))}

    def _first(self, numbers: tuple, found: list):
        """Return the first of the candidates, or None, and note the others as ambiguous."""
        if len(found) > 1:
            self.ambiguous[numbers] = [dim_to_str(each) for each in found]
        return found[0] if found else None

    def _product(self, numbers: tuple, dims: list, most: int):
        """Return the multiple of a product of 2 to `most` of some dims that has these values, or None."""
        values = {dim_to_str(dim): values for values, dim in self.known.items()}
        for count in range(2, most + 1):
            for several in itertools.combinations_with_replacement(dims, count):
                columns = [values[dim_to_str(each)] for each in several]
                products = list(map(math.prod, zip(*columns, strict=True)))
                factor = numbers[0] // (products[0] or 1)
                if factor and all(factor * p == n for p, n in zip(products, numbers, strict=True)):
                    return math.prod(several, start=tirx.IntImm("int64", factor))
        return None


class GraphMerge(DimInference):
    """Merges modules that were imported at `probes`; `mod` is the merged one."""

    def __init__(self, specs: list[TensorSpec], dims: dict[str, Dim], probes: list[dict], mods: list):
        super().__init__(dims, probes)
        self.specs, self.mods = specs, mods
        self.mains = [mod["main"] for mod in mods]
        self.pads = {}  # by values at the probes: the texts of all widths of pads with these
        self.unbounded, self.analyzer = tvm.sym.Analyzer(), tvm.sym.Analyzer()  # the latter knows bounds
        for name, dim in dims.items():
            bounds = (dim.lower, (dim.upper or _UNBOUNDED) + 1)
            self.analyzer.bind(self.vars[name], tvm.ir.Range(*(tirx.IntImm("int64", n) for n in bounds)))
        self.var_numbers = [{} for _ in mods]  # by variable of a module: its number, the same in all
        self.merged_vars = []  # by these numbers
        self.mod = self._module()

    @property
    def has_floor_div(self) -> bool:
        """Whether a dim is a floor division, which takes more probes to tell from others."""
        return any("//" in text for text in (*self.texts.values(), *itertools.chain(*self.pads.values())))

    def text(self, numbers: tuple[int, ...]) -> int | str | None:
        """Return the dim with these values at the probes, as text."""
        text = dim_to_str(self._dim(numbers))
        if self._separate(self.ambiguous.get(numbers, [])):
            raise UnsupportedDynamism(f"a dim is {text}, or another floor division")
        return text

    def agrees(self, numbers: tuple[int, ...], values: dict[str, int], number: int) -> bool:
        """Return whether the dim with these probe values is `number` for other dims."""
        texts = self.pads.get(numbers) or [self.text(numbers)]
        return any(evaluate(text, values) == number for text in texts)

    def allows(self, numbers: tuple, values: dict[str, int], number: float | None) -> bool:
        """Return whether an expression with these probe values can equal `number` for other dims.

        It cannot if it is a constant or a dim of the merged graph, with another value there.
        """
        if len(set(numbers)) == 1:
            return number == numbers[0]
        texts = self.pads.get(numbers) or [self.texts.get(numbers)]
        return None in texts or any(evaluate(text, values) == number for text in texts)

    def _module(self) -> tvm.IRModule:
        for mod in self.mods[1:]:
            self._same_functions(mod)
        params = [self._param(several) for several in zip_equal(main.params for main in self.mains)]
        attrs = dict(self.mains[0].attrs)
        attrs["tvmfast.sizes"] = {
            name: [dim.lower, -1 if dim.upper is None else dim.upper] for name, dim in self.dims.items()
        }
        if upper := {name: dim.upper for name, dim in self.dims.items() if dim.upper is not None}:
            attrs["tir_var_upper_bound"] = upper
        builder, refusal = relax.BlockBuilder(), None
        self.builder = builder
        with builder.function("main", params, attrs):
            with builder.dataflow():
                try:
                    for bindings in zip_equal(map(bindings_of, self.mains)):
                        self._bind(builder, bindings)
                    result = self._expr([main.body.body for main in self.mains])
                except (
                    UnsupportedDynamism
                ) as reason:  # raised later, as TVM complains about an unfinished function
                    refusal, result = reason, params[0]
                result = builder.emit_output(result)
            builder.emit_func_output(result)
        if refusal is not None:
            raise refusal
        mod, made = self.mods[0].clone(), builder.get()
        for var in [var for var, func in mod.functions_items() if Cell.of(func)]:
            del mod[var]
        for var, func in made.functions_items():
            if var.name_hint != "main":
                mod[var] = func
        mod["main"] = made["main"]
        return mod

    def _same_functions(self, mod) -> None:
        first = self.mods[0]
        names = [  # kernels of recurrent layers are emitted again
            sorted(var.name_hint for var, func in each.functions_items() if not Cell.of(func))
            for each in (first, mod)
        ]
        if names[0] != names[1]:
            raise UnsupportedDynamism("its kernels depend on it")
        for name in names[0]:
            if name != "main" and not tvm_ffi.structural_equal(first[name], mod[name]):
                raise UnsupportedDynamism(
                    f"the kernel {name!r}, which its frontend emits, is for static dims"
                )

    def _param(self, several):
        shape, first = None, several[0]
        for spec in self.specs:
            if spec.name == first.name:
                shape = [self.vars[n.name] if isinstance(n, Dim) else n for n in spec.shape]
        ty = first.ty if shape is None else relax.TensorType(shape, first.ty.dtype)
        var = relax.Var(first.name, ty)
        self._add_var(several, var)
        return var

    def _add_var(self, several, var) -> None:
        for numbers, own in zip(self.var_numbers, several, strict=True):
            numbers[own] = len(self.merged_vars)
        self.merged_vars.append(var)

    def _bind(self, builder, bindings) -> None:
        values = [binding.value for binding in bindings]
        if not all(isinstance(binding, relax.VarBinding) for binding in bindings):
            raise UnsupportedDynamism("its frontend does not know a shape")
        value = self._expr(values)
        try:
            var = builder.emit(value, bindings[0].var.name)
        except Exception as error:  # TVM's own are of many kinds
            raise UnsupportedDynamism(
                f"{_name(values[0])} does not take a dynamic dim ({one_line(error)})"
            ) from None
        var = self._cast(builder, var, [binding.var.ty for binding in bindings])
        for binding, probe in zip(bindings, self.probes, strict=True):
            if not _agree(var.ty, binding.var.ty, probe):
                raise UnsupportedDynamism(
                    f"{_name(values[0])} makes a {binding.var.ty} of it, and Relax infers {var.ty}"
                )
        self._add_var([binding.var for binding in bindings], var)

    def _cast(self, builder, var, types: list):
        """Return a variable, of the types `types` at the probes, with its shape in terms of known dims.

        Where Relax infers no dim, or one that it cannot prove equal, a match_cast checks it in each run.
        """
        if not all(isinstance(ty, relax.TensorType) for ty in (var.ty, *types)):
            return var
        if any(ty.shape is None or len(ty.shape) != len(types[0].shape) for ty in types):
            return var
        dims, differ = [], var.ty.shape is None
        inferred = [None] * len(types[0].shape) if differ else list(var.ty.shape)
        if len(inferred) != len(types[0].shape):
            return var
        for dim, several in zip(inferred, zip_equal(ty.shape for ty in types), strict=True):
            numbers = tuple(map(int, several))
            text = None if dim is None else dim_to_str(dim)
            fits = text is not None and all(
                evaluate(text, probe) == n for probe, n in zip(self.probes, numbers, strict=True)
            )
            if fits and len(set(numbers)) > 1 and numbers not in self.known:
                self._record(numbers, dim)
            if text is not None and (not fits or len(set(numbers)) == 1):
                dims.append(dim)
                continue
            same = self._dim(several)
            is_other = dim is not None and not self._is_equal(dim, same)
            if is_other and any(var.same_as(same) for var in tirx.analysis.undefined_vars(dim)):
                # TVM would replace the variable by the expression that has it, without end
                raise UnsupportedDynamism(f"a dim is {dim}, and {same} at the probes{self._bound(dim, same)}")
            differ |= text is None or is_other
            dims.append(same)
        return builder.match_cast(var, relax.TensorType(dims, types[0].dtype)) if differ else var

    def _bound(self, *exprs) -> str:
        """Advise the upper bound of a dynamic dim up to which expressions of it alone are equal, if any."""
        texts = [dim_to_str(expr) for expr in exprs]
        names = {var.name for expr in exprs for var in tirx.analysis.undefined_vars(expr)}
        if None in texts or len(names) != 1:
            return ""
        dim = self.dims[names.pop()]
        tried = range(dim.lower, dim.lower + _SEARCHED)
        differ = (n for n in tried if len({evaluate(text, {dim.name: n}) for text in texts}) > 1)
        most = next(differ, dim.lower) - 1
        return f"; use Dim({dim.name!r}, {dim.lower}, {most})" if most >= dim.lower else ""

    def _is_equal(self, a, b) -> bool:
        if isinstance(a, int) or isinstance(b, int):
            return dim_to_str(a) == dim_to_str(b)
        return bool(self.unbounded.can_prove_equal(a, b))

    def _expr(self, exprs: list):
        first = exprs[0]
        if any(type(expr) is not type(first) for expr in exprs):
            raise UnsupportedDynamism("the graph depends on it")
        if isinstance(first, relax.Var):
            numbers = {known.get(expr) for known, expr in zip(self.var_numbers, exprs, strict=True)}
            if len(numbers) > 1 or None in numbers:
                raise UnsupportedDynamism("the graph depends on it")
            return self.merged_vars[numbers.pop()]
        if isinstance(first, tvm.ir.GlobalVar) and len({expr.name_hint for expr in exprs}) == 1:
            return first  # of the same kernel, by `_same_functions`
        if isinstance(first, tvm.ir.Call):
            return self._call(exprs)
        if isinstance(first, relax.Tuple):
            return relax.Tuple([self._expr(fields) for fields in zip_equal(each.fields for each in exprs)])
        if isinstance(first, relax.TupleGetItem):
            if len({int(each.index) for each in exprs}) > 1:
                raise UnsupportedDynamism("the graph depends on it")
            return relax.TupleGetItem(self._expr([each.tuple_value for each in exprs]), int(first.index))
        if isinstance(first, relax.ShapeExpr):
            return relax.ShapeExpr([self._dim(dims) for dims in zip_equal(each.values for each in exprs)])
        if isinstance(first, tirx.IntImm):
            dim = self._dim(exprs)
            return first if isinstance(dim, int) else dim
        arrays = [constant_array(expr) for expr in exprs]
        if arrays[0] is not None:
            if not all(same_array(array, arrays[0]) for array in arrays[1:]):
                return self._constant(arrays)
        elif not all(tvm_ffi.structural_equal(first, expr) for expr in exprs[1:]):
            raise UnsupportedDynamism(f"{type(first).__name__} depends on it")
        return first

    def _constant(self, arrays: list):
        """Merge constants that are a dim, or a range up to one along an axis, which the network computes."""
        listed = all(array is not None and array.dtype.kind in "iu" for array in arrays)
        listed = listed and all(array.size == max(array.shape, default=0) for array in arrays)
        if listed and 0 < min(array.size for array in arrays) < max(array.size for array in arrays):
            numbers = self._range([array.reshape(-1) for array in arrays])
            if arrays[0].ndim == 1:
                return numbers
            shape = [self._dim(several) for several in zip_equal(array.shape for array in arrays)]
            return R.reshape(self.builder.emit(numbers), shape)
        scalar = all(array is not None and array.size == 1 and array.dtype.kind in "iuf" for array in arrays)
        if not scalar or any(array != np.floor(array) or abs(array) > _EXACT for array in arrays):
            raise UnsupportedDynamism("a constant depends on it")
        dim = self._dim(array.item() for array in arrays)
        number = R.reshape(R.arange(dim, dim + 1, 1, "int64"), arrays[0].shape)
        return R.astype(number, str(arrays[0].dtype))

    def _range(self, arrays: list):
        """Merge ranges of different lengths into an arange."""
        longest = max(arrays, key=len)
        step = int(longest[1]) - int(longest[0])
        if any(not np.array_equal(array, array[0] + step * np.arange(len(array))) for array in arrays):
            raise UnsupportedDynamism("a constant depends on it")
        first = self._dim(array[0] for array in arrays)
        end = self._dim(int(array[0]) + step * len(array) for array in arrays)
        return R.arange(first, end, step, str(longest.dtype))

    def _call(self, calls: list):
        first, *others = calls
        checks = [bounds_check.arguments(call) for call in calls]
        if all(checks):
            return self._check(calls, checks)
        layers = [Cell.of_call(mod, call) for mod, call in zip(self.mods, calls, strict=True)]
        if all(layers):
            return self._layer(layers)
        if _pads_differ(calls):
            return self._pad(calls)
        if _paddings_differ(calls):
            return self._padded_windows(calls)
        if all(_name(call) == "split" for call in calls) and _has_dynamic_axis(calls):
            return self._split(calls)
        for other in others:
            same = _name(first) == _name(other) and len(first.args) == len(other.args)
            if not same or not tvm_ffi.structural_equal(first.attrs, other.attrs):
                raise UnsupportedDynamism(
                    f"{_name(first)} depends on it in another way than by the shape that it reads"
                )
        if _name(first).startswith(_POOLS) and first.attrs.ceil_mode and _differ_in_shape(calls):
            return self._pool(calls)
        args = [self._expr(several) for several in zip_equal(call.args for call in calls)]
        types = [self._type(several) for several in zip_equal(call.ty_args for call in calls)]
        if _name(first) == "squeeze":
            return self._squeeze(args[0], first.attrs.axis)
        grouped = _name(first) in ("nn.group_norm", "nn.instance_norm")
        if grouped and not isinstance(args[0].ty.shape[1], tirx.IntImm):
            raise UnsupportedDynamism(f"{_name(first)} with dynamic channels")
        result = self._slice(*args) if _name(first) == "strided_slice" else None
        return tvm.ir.Call(first.op, args, first.attrs, types) if result is None else result

    def _squeeze(self, x, axes):
        """Squeeze the axes of one element alone: Relax would drop dynamic ones, too."""
        dims = unwrap_ints(x.ty.shape)
        chosen = range(len(dims)) if axes is None else [int(axis) % len(dims) for axis in axes]
        alone = [axis for axis in chosen if isinstance(dims[axis], int) and dims[axis] == 1]
        for axis in chosen:
            if not isinstance(dims[axis], int) and not self._is_natural(dims[axis] - 2):
                named = alone[0] if len(alone) == 1 else tuple(alone)
                raise UnsupportedDynamism(
                    f"squeeze() drops axis {axis}, too, where {dim_to_str(dims[axis])} is 1: write "
                    f"{f'squeeze({named})' if alone else 'none'}, or give a lower bound of 2"
                )
        return R.squeeze(x, alone) if alone else x

    def _pool(self, calls: list):
        """Merge pools in ceil_mode: Relax infers dims with an if, which other passes do not know.

        The padding behind an axis becomes longer, and a window that begins in it is sliced off.
        """
        name, attrs = _name(calls[0]), calls[0].attrs
        x, rank = self._expr([call.args[0] for call in calls]), len(attrs.strides)
        pads = [int(width) for width in attrs.padding]
        if name.startswith("nn.avg") and attrs.count_include_pad and any(pads):
            widths = itertools.chain(*zip(pads[:rank], pads[rank:], strict=True))
            x, pads = self.builder.emit(R.nn.pad(x, [0, 0, 0, 0, *widths])), [0] * 2 * rank
        strides = [int(step) for step in attrs.strides]
        pads[rank:] = [width + step - 1 for width, step in zip(pads[rank:], strides, strict=True)]
        how = {"padding": pads, "dilation": attrs.dilation, "layout": attrs.layout}
        if name.startswith("nn.avg"):
            how["count_include_pad"] = False  # TVM 0.27's default is that of 2 axes alone
        pooled = self.builder.emit(getattr(R.nn, name[3:])(x, attrs.pool_size, strides, **how))
        ends = [self._dim(several) for several in zip_equal(call.ty.shape for call in calls)][2:]
        bounds = [
            relax.Tuple([relax.prim_value(n) for n in each])
            for each in (range(2, 2 + rank), [0] * rank, ends)
        ]
        result = self._slice(pooled, *bounds)
        return R.strided_slice(pooled, *bounds) if result is None else result

    def _check(self, calls: list, checks: list):
        """Merge bounds checks, whose message has the dim in it."""
        message = None
        texts = [text for _, text, *_ in checks]
        if len(set(texts)) > 1:
            message = tvm.ir.StringImm(self._limits(texts[0], checks))
        args = [
            message
            if message is not None and isinstance(several[0], tvm.ir.StringImm)
            else self._expr(several)
            for several in zip_equal(call.args for call in calls)
        ]
        types = [self._type(several) for several in zip_equal(call.ty_args for call in calls)]
        return tvm.ir.Call(calls[0].op, args, calls[0].attrs, types)

    def _limits(self, text: str, checks: list) -> str:
        """Return the message of bounds checks, of which `text` is the first one's, with the dim in it."""
        _, _, count, negative, *_ = checks[0]
        expected = text.removesuffix(bounds_check.limits(-count if negative else 0, count - 1))
        if expected == text:
            raise UnsupportedDynamism("a check of indices depends on it")
        dim = self._dim(check[2] for check in checks)
        name, last = str(dim_to_str(dim)), str(dim_to_str(dim - 1))
        name = name if name.isidentifier() else f"({name})"
        last = last if last.isidentifier() else f"{name} - 1"
        return expected + bounds_check.limits(f"-{name}" if negative else 0, last)

    def _layer(self, layers: list):
        """Merge layers of a recurrent network, as `Cell.of_call` lists them."""
        cell, given = layers[0]
        if any(other != cell or list(values) != list(given) for other, values in layers[1:]):
            raise UnsupportedDynamism("a recurrent layer depends on it")
        values = {name: self._expr([each[name] for _, each in layers]) for name in given}
        return recurrent_call(self.builder, cell, values)

    def _pad(self, calls: list):
        fill, x = _fill(calls), self._expr([call.args[0] for call in calls])
        pads = zip_equal(map(int, call.attrs.pad_width) for call in calls)
        made = []
        for axis, several in enumerate(zip_equal(call.ty.shape for call in calls)):
            total = self._dim(several) - x.ty.shape[axis]
            made.append(split_pad(*pads[2 * axis : 2 * axis + 2], total, self._is_natural))
        for numbers, width in zip(pads, itertools.chain(*made), strict=True):
            if not isinstance(width, int):
                self.pads.setdefault(numbers, []).append(dim_to_str(width))
        return _padded(self.builder, x, made, fill)

    def _padded_windows(self, calls: list):
        """Merge convolutions and pools whose padding differs, as of auto_pad: a pad, and the rest."""
        name, attrs = _name(calls[0]), calls[0].attrs
        xs, filler = [call.args[0] for call in calls], 0.0
        if name.startswith("nn.max"):
            dtype = xs[0].ty.dtype
            filler = -math.inf if "float" in str(dtype) else float(tirx.min_value(dtype).value)

        def merged(xs, filler):
            pads = [_padding_of(call, x, filler) for call, x in zip(calls, xs, strict=True)]
            padded = [relax.Var("padded", pad.ty) for pad in pads]
            self._add_var(padded, self.builder.emit(self._pad(pads)))
            return self._call([_unpadded(call, x) for call, x in zip(calls, padded, strict=True)])

        result = merged(xs, filler)
        if not name.startswith("nn.avg") or attrs.count_include_pad:
            return result
        ones = [relax.Var("ones", x.ty) for x in xs]
        self._add_var(ones, self.builder.emit(R.ones_like(self._expr(xs))))
        return R.divide(self.builder.emit(result), self.builder.emit(merged(ones, 0.0)))

    def _is_natural(self, number) -> bool:
        return is_natural(number, self.dims, self.analyzer)

    def _split(self, calls: list):
        """Merge splits of a dynamic axis, as slices."""
        x, axis = self._expr([call.args[0] for call in calls]), int(calls[0].attrs.axis)
        counts = list(dict.fromkeys(len(call.ty.fields) for call in calls))
        if len(counts) > 1:
            raise UnsupportedDynamism(f"it is split into {' or '.join(map(str, counts))} parts")
        parts, ends = [], [0] * len(calls)
        for several in zip_equal(call.ty.fields for call in calls):
            begins, ends = ends, [n + int(ty.shape[axis]) for n, ty in zip(ends, several, strict=True)]
            begin, end = (self._dim(each) for each in (begins, ends))
            dims = tuple(n - m for n, m in zip(ends, begins, strict=True))
            if len(set(dims)) > 1 and dims not in self.known:
                self._record(dims, end - begin)
            bounds = [relax.Tuple([relax.prim_value(n)]) for n in (axis, begin, end)]
            part = self._slice(x, *bounds)
            parts.append(self.builder.emit(R.strided_slice(x, *bounds) if part is None else part))
        return relax.Tuple(parts)

    def _slice(self, x, axes, begins, ends, *strides):
        """Return a slice whose bounds are proven to be within its tensor for all dims, or None.

        Relax clips other bounds in each run, and does not infer the dim then.
        """
        fields = [getattr(each, "fields", None) for each in (axes, begins, ends)]
        if any(field is None for field in fields) or getattr(x.ty, "shape", None) is None:
            return None
        first, last, shape = [], [], list(x.ty.shape)
        axes = [int(axis) % len(shape) for axis in axes.fields]  # TVM's kernel knows no negative ones
        for axis, begin, end in zip(axes, *fields[1:], strict=True):
            extent = shape[axis]
            end = extent if isinstance(end, tirx.IntImm) and end.value > _PAST else end
            if any(isinstance(n, tirx.IntImm) and abs(n.value) > _PAST for n in (begin, end)):
                return None  # its sum with a dim may be beyond int64
            begin, end = (
                n + extent if isinstance(n, tirx.IntImm) and n.value < 0 else n for n in (begin, end)
            )
            end = extent if self.analyzer.can_prove(end >= extent) else end
            if not all(map(self._is_natural, (begin, end - begin, extent - end))):
                return None
            first.append(begin)
            last.append(end)
        return R.strided_slice(x, axes, relax.Tuple(first), relax.Tuple(last), *strides, assume_inbound=True)

    def _type(self, several: list):
        first = several[0]
        if isinstance(first, tvm.ir.TupleType):
            return tvm.ir.TupleType([self._type(fields) for fields in zip_equal(ty.fields for ty in several)])
        if isinstance(first, relax.TensorType) and all(ty.shape is not None for ty in several):
            dims = zip_equal(ty.shape.values for ty in several)
            return relax.TensorType([self._dim(each) for each in dims], first.dtype)
        if not all(tvm_ffi.structural_equal(first, ty) for ty in several[1:]):
            raise UnsupportedDynamism("the graph depends on it")
        return first


def bindings_of(main) -> list:
    """List a function's bindings."""
    return [binding for block in main.body.blocks for binding in block.bindings]


def _has_dynamic_axis(splits: list) -> bool:
    return len({int(call.args[0].ty.shape[int(call.attrs.axis)]) for call in splits}) > 1


def _differ_in_shape(pools: list) -> bool:
    """Return whether the shapes of what pools read differ."""
    return len({tuple(map(int, call.args[0].ty.shape)) for call in pools}) > 1


def _name(call) -> str:
    op = getattr(call, "op", None)
    name = getattr(op, "name", getattr(op, "name_hint", type(call).__name__))
    return str(name).removeprefix("relax.")


# ---------------------------------------------------------------- pads with dynamic widths
# As in a U-Net, which pads feature maps to the shapes of others.


def _pads_differ(calls: list) -> bool:
    """Return whether calls are pads with different widths."""
    if any(op_name(call) != "nn.pad" for call in calls):
        return False
    return len({tuple(map(int, call.attrs.pad_width)) for call in calls}) > 1


def _paddings_differ(calls: list) -> bool:
    """Return whether calls are convolutions or pools on windows that differ in their padding alone."""
    names = {_name(call) for call in calls}
    if len(names) > 1 or not _WINDOWS.fullmatch(names.pop()):
        return False
    attributes = [_attributes(call) for call in calls]
    paddings = {tuple(map(int, each.pop("padding"))) for each in attributes}
    return len(paddings) > 1 and all(map(tvm_ffi.structural_equal, attributes, attributes[1:]))


def _attributes(call) -> dict:
    return {field.name: getattr(call.attrs, field.name) for field in call.attrs.__tvm_ffi_type_info__.fields}


def _padding_of(call, x, filler: float):
    """Return the padding of a convolution or pool as a pad of its input."""
    widths = [int(width) for width in call.attrs.padding]
    pairs = zip(widths[: len(widths) // 2], widths[len(widths) // 2 :], strict=True)
    pad = R.nn.pad(x, [0, 0, 0, 0, *itertools.chain(*pairs)], "constant", filler)
    return relax.BlockBuilder().normalize(pad)


def _unpadded(call, x):
    """Return a convolution or pool of an input that is padded already."""
    attributes = _attributes(call) | {"padding": 0}
    if _name(call).startswith(_POOLS):
        attributes["count_include_pad"] = True
    return getattr(R.nn, _name(call)[3:])(x, *call.args[1:], **attributes)


def _fill(calls: list) -> float:
    """Return the value of constant pads; raise for other modes."""
    first, *others = ((str(call.attrs.pad_mode), str(call.attrs.pad_value)) for call in calls)
    if first[0] != "constant":
        raise UnsupportedDynamism(f"the widths of a pad of mode {first[0]!r} depend on it")
    if any(other != first for other in others):
        raise UnsupportedDynamism("the number that a pad fills in depends on it")
    return float(calls[0].attrs.pad_value)


def split_pad(before: tuple, after: tuple, total, is_natural: Callable) -> tuple:
    """Return the widths of a pad of an axis, before and after it, as expressions; `total` is their sum.

    A width that is the same at all probes is taken to be static, else each is a half of their sum. Where the
    probes allow both, both have to be the same for all dims. `is_natural` returns whether an expression is
    known to be 0 or more for all dims.
    """
    if len(set(before)) == len(set(after)) == 1:
        return before[0], after[0]
    halves = tuple((a + b) // 2 for a, b in zip(before, after, strict=True))
    found = [(before[0], total - before[0])] if len(set(before)) == 1 else []
    found += [(total - after[0], after[0])] if len(set(after)) == 1 else []
    natural = list(itertools.chain(*found)) or [total]  # which makes its halves natural, too
    found += [(total // 2, total - total // 2)] if before == halves else []
    found += [(total - total // 2, total // 2)] if after == halves else []
    same = [is_natural(a - b) and is_natural(b - a) for (a, _), (b, _) in itertools.pairwise(found)]
    if not found or not all(same):
        raise UnsupportedDynamism(
            f"a pad of {dim_to_str(total)} elements is split between both ends in an unknown way"
        )
    for each in natural:
        if not is_natural(each):
            raise UnsupportedDynamism(f"a pad is {dim_to_str(each)}, which may be below 0 as far as is known")
    return found[0]


def is_natural(width, dims: dict[str, Dim], analyzer: tvm.sym.Analyzer) -> bool:
    """Return whether a width is known to be 0 or more for all dims.

    A sum of multiples of a dynamic dim, and of floor divisions of it, is periodic up to a slope: from one
    period to the next it grows by the same number. `analyzer` knows the bounds of the dims.
    """
    if isinstance(width, int):
        return width >= 0
    if analyzer.can_prove(width >= 0):
        return True
    text, variables = dim_to_str(width), tirx.analysis.undefined_vars(width)
    if isinstance(text, int):
        return text >= 0
    if text is None or len(variables) != 1 or any(other in _FLOOR_DIV.sub("", text) for other in _OTHERS):
        return False
    period = math.prod(map(int, _FLOOR_DIV.findall(text)))
    if period > _PERIOD:
        return False
    dim = dims[variables[0].name]
    values = evaluate(text, {dim.name: dim.lower + np.arange(_PERIODS * period)}).reshape(_PERIODS, period)
    grown = np.diff(values, axis=0)
    return bool(np.all(values[0] >= 0) and np.all(grown == grown[0, 0]) and grown[0, 0] >= 0)


def _padded(builder: relax.BlockBuilder, x: relax.Expr, widths: list[tuple], value: float) -> relax.Expr:
    """Return a tensor padded by a value, with `widths` before and after each axis."""
    filler = relax.const(value, str(x.ty.dtype))
    for axis, pair in enumerate(widths):
        shape = list(x.ty.shape)
        before, after = ([] if isinstance(width, int) and width == 0 else [width] for width in pair)
        first, last = (
            [builder.emit(R.full([*shape[:axis], width, *shape[axis + 1 :]], filler)) for width in ends]
            for ends in (before, after)
        )
        x = builder.emit(R.concat([*first, x, *last], axis)) if first or last else x
    return x
