"""The union of modules that were imported at a few sizes: one module, with variables for these sizes."""

import itertools

import numpy as np
import tvm
import tvm_ffi
from tvm import relax, tirx

from ...core import bounds_check
from ...core.dims import Dim, evaluate
from ...core.errors import one_line
from ...core.relax import constant_array, shape_text, written
from ...core.specs import TensorSpec
from ...kernels.recurrent.cell import Cell
from ...kernels.recurrent.emit import call as recurrent_call
from . import padding
from .dim_inference import Guesses
from .graphs import Refused, together

_EXACT = 1 << 24  # the largest of the whole numbers that float32 has
_UNBOUNDED = (1 << 31) - 1  # as the upper bound of a size that has none; files have it as the end of slices
_PAST = 1 << 62  # a bound beyond this is past each end of an axis


def same_array(a: np.ndarray, b: np.ndarray) -> bool:
    """Return whether arrays are equal bit by bit."""
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


class Union(Guesses):
    """The union of modules that were imported at the sizes `samples`."""

    def __init__(self, specs: list[TensorSpec], sizes: dict[str, Dim], samples: list[dict], mods: list):
        super().__init__(sizes, samples)
        self.specs, self.mods = specs, mods
        self.mains = [mod["main"] for mod in mods]
        self.pads = {}  # by values in the samples: all widths of pads with these, as text
        self.plain, self.analyzer = tvm.sym.Analyzer(), tvm.sym.Analyzer()  # without and with bounds
        for name, size in sizes.items():
            bounds = (size.lower, (size.upper or _UNBOUNDED) + 1)
            self.analyzer.bind(self.vars[name], tvm.ir.Range(*(tirx.IntImm("int64", n) for n in bounds)))
        self.places = [{} for _ in mods]  # by variable of a module: its number, the same in all
        self.values = []  # the union's variables, by these numbers
        self.mod = self._module()

    @property
    def divides(self) -> bool:
        """Whether a size is a quotient of open ones, which few samples do not tell from another one."""
        return any("//" in text for text in (*self.texts.values(), *itertools.chain(*self.pads.values())))

    def text(self, numbers: tuple[int, ...]) -> int | str | None:
        """Return the size with these values in the samples, as `written` has it."""
        text = written(self._size(numbers))
        if self._difference(self.doubts.get(numbers, [])):
            raise Refused(f"a size is {text}, or another quotient")
        return text

    def agrees(self, numbers: tuple[int, ...], values: dict[str, int], number: int) -> bool:
        """Return whether a size with these values in the samples is `number` at other open sizes."""
        texts = self.pads.get(numbers) or [self.text(numbers)]
        return any(evaluate(text, values) == number for text in texts)

    def allows(self, numbers: tuple, values: dict[str, int], number: float | None) -> bool:
        """Return whether what has these values in the samples may be `number` at other open sizes.

        It may not if it is a constant or a size of the union, which is another one there.
        """
        if len(set(numbers)) == 1:
            return number == numbers[0]
        texts = self.pads.get(numbers) or [self.texts.get(numbers)]
        return None in texts or any(evaluate(text, values) == number for text in texts)

    def _module(self) -> tvm.IRModule:
        """Return the union."""
        for mod in self.mods[1:]:
            self._same_functions(mod)
        params = [self._param(several) for several in together(main.params for main in self.mains)]
        attrs = dict(self.mains[0].attrs)
        attrs["tvmnotes.sizes"] = {
            name: [size.lower, -1 if size.upper is None else size.upper] for name, size in self.sizes.items()
        }
        if upper := {name: size.upper for name, size in self.sizes.items() if size.upper is not None}:
            attrs["tir_var_upper_bound"] = upper
        builder, refusal = relax.BlockBuilder(), None
        self.builder = builder
        with builder.function("main", params, attrs):
            with builder.dataflow():
                try:
                    for bindings in together(map(_bindings, self.mains)):
                        self._bind(builder, bindings)
                    result = self._expr([main.body.body for main in self.mains])
                except Refused as reason:  # raised later, as TVM complains about an unfinished function
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
        names = [  # kernels of recurrent layers are made anew
            sorted(var.name_hint for var, func in each.functions_items() if not Cell.of(func))
            for each in (first, mod)
        ]
        if names[0] != names[1]:
            raise Refused("its kernels depend on it")
        for name in names[0]:
            if name != "main" and not tvm_ffi.structural_equal(first[name], mod[name]):
                raise Refused(f"the kernel {name!r}, which its importer makes, is for one size only")

    def _param(self, several):
        shape, first = None, several[0]
        for spec in self.specs:
            if spec.name == first.name:
                shape = [self.vars[n.name] if isinstance(n, Dim) else n for n in spec.shape]
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
            raise Refused("its importer does not know a shape")
        value = self._expr(values)
        try:
            var = builder.emit(value, bindings[0].var.name)
        except Exception as error:  # TVM's own are of many kinds
            raise Refused(f"{_name(values[0])} does not take an open size ({one_line(error)})") from None
        var = self._cast(builder, var, [binding.var.ty for binding in bindings])
        for binding, sample in zip(bindings, self.samples, strict=True):
            if not _agree(var.ty, binding.var.ty, sample):
                raise Refused(f"{_name(values[0])} makes a {binding.var.ty} of it, and Relax infers {var.ty}")
        self._known([binding.var for binding in bindings], var)

    def _cast(self, builder, var, types: list):
        """Return a variable, of the types `types` in the samples, whose sizes are written as those before.

        A size that Relax does not know, or writes in another way than one of equal values, is checked by
        each run.
        """
        if not all(isinstance(ty, relax.TensorType) for ty in (var.ty, *types)):
            return var
        if any(ty.shape is None or len(ty.shape) != len(types[0].shape) for ty in types):
            return var
        sizes, differ = [], var.ty.shape is None
        inferred = [None] * len(types[0].shape) if differ else list(var.ty.shape)
        if len(inferred) != len(types[0].shape):
            return var
        for size, several in zip(inferred, together(ty.shape for ty in types), strict=True):
            numbers = tuple(map(int, several))
            text = None if size is None else written(size)
            fits = text is not None and all(
                evaluate(text, sample) == n for sample, n in zip(self.samples, numbers, strict=True)
            )
            if fits and len(set(numbers)) > 1 and numbers not in self.known:
                self._know(numbers, size)
            if text is not None and (not fits or len(set(numbers)) == 1):
                sizes.append(size)
                continue
            same = self._size(several)
            is_other = size is not None and not self._same(size, same)
            if is_other and any(var.same_as(same) for var in tirx.analysis.undefined_vars(size)):
                # TVM would replace the variable by the expression that has it, without end
                raise Refused(f"a size is {size}, and {same} at the sizes that were tried")
            differ |= text is None or is_other
            sizes.append(same)
        return builder.match_cast(var, relax.TensorType(sizes, types[0].dtype)) if differ else var

    def _same(self, a, b) -> bool:
        if isinstance(a, int) or isinstance(b, int):
            return written(a) == written(b)
        return bool(self.plain.can_prove_equal(a, b))

    def _expr(self, exprs: list):
        """Return the union of expressions."""
        first = exprs[0]
        if any(type(expr) is not type(first) for expr in exprs):
            raise Refused("the graph depends on it")
        if isinstance(first, relax.Var):
            numbers = {places.get(expr) for places, expr in zip(self.places, exprs, strict=True)}
            if len(numbers) > 1 or None in numbers:
                raise Refused("the graph depends on it")
            return self.values[numbers.pop()]
        if isinstance(first, tvm.ir.Call):
            return self._call(exprs)
        if isinstance(first, relax.Tuple):
            return relax.Tuple([self._expr(fields) for fields in together(each.fields for each in exprs)])
        if isinstance(first, relax.TupleGetItem):
            if len({int(each.index) for each in exprs}) > 1:
                raise Refused("the graph depends on it")
            return relax.TupleGetItem(self._expr([each.tuple_value for each in exprs]), int(first.index))
        if isinstance(first, relax.ShapeExpr):
            return relax.ShapeExpr([self._size(sizes) for sizes in together(each.values for each in exprs)])
        if isinstance(first, tirx.IntImm):
            size = self._size(exprs)
            return first if isinstance(size, int) else size
        arrays = [constant_array(expr) for expr in exprs]
        if arrays[0] is not None:
            if not all(same_array(array, arrays[0]) for array in arrays[1:]):
                return self._number(arrays)
        elif not all(tvm_ffi.structural_equal(first, expr) for expr in exprs[1:]):
            raise Refused(f"{type(first).__name__} depends on it")
        return first

    def _number(self, arrays: list):
        """Return a constant that is a size, or numbers up to one, which the network then computes."""
        listed = all(array is not None and array.ndim == 1 and array.dtype.kind in "iu" for array in arrays)
        if listed and 0 < min(map(len, arrays)) < max(map(len, arrays)):
            return self._range(arrays)
        whole = all(array is not None and array.size == 1 and array.dtype.kind in "iuf" for array in arrays)
        if not whole or any(array != np.floor(array) or abs(array) > _EXACT for array in arrays):
            raise Refused("a constant depends on it")
        size = self._size(array.item() for array in arrays)
        number = relax.op.reshape(relax.op.arange(size, size + 1, 1, "int64"), arrays[0].shape)
        return relax.op.astype(number, str(arrays[0].dtype))

    def _range(self, arrays: list):
        """Return numbers at equal distances, which differ in their count."""
        longest = max(arrays, key=len)
        step = int(longest[1]) - int(longest[0])
        if any(not np.array_equal(array, array[0] + step * np.arange(len(array))) for array in arrays):
            raise Refused("a constant depends on it")
        first = self._size(array[0] for array in arrays)
        end = self._size(int(array[0]) + step * len(array) for array in arrays)
        return relax.op.arange(first, end, step, str(longest.dtype))

    def _call(self, calls: list):
        first, *others = calls
        checks = [bounds_check.arguments(call) for call in calls]
        if all(checks):
            return self._check(calls, checks)
        layers = [Cell.of_call(mod, call) for mod, call in zip(self.mods, calls, strict=True)]
        if all(layers):
            return self._layer(layers)
        if padding.differ(calls):
            return self._pad(calls)
        if all(_name(call) == "split" for call in calls) and _is_open(calls):
            return self._split(calls)
        for other in others:
            same = _name(first) == _name(other) and len(first.args) == len(other.args)
            if not same or not tvm_ffi.structural_equal(first.attrs, other.attrs):
                raise Refused(f"{_name(first)} depends on it in another way than by the shape that it reads")
        args = [self._expr(several) for several in together(call.args for call in calls)]
        types = [self._type(several) for several in together(call.ty_args for call in calls)]
        grouped = _name(first) in ("nn.group_norm", "nn.instance_norm")
        if grouped and not isinstance(args[0].ty.shape[1], tirx.IntImm):
            raise Refused(f"{_name(first)} of an open number of channels")
        result = self._slice(*args) if _name(first) == "strided_slice" else None
        return tvm.ir.Call(first.op, args, first.attrs, types) if result is None else result

    def _check(self, calls: list, checks: list):
        """Return the union of checks of indices, whose message has the size in it."""
        message = None
        texts = [text for _, text, *_ in checks]
        if len(set(texts)) > 1:
            message = tvm.ir.StringImm(self._limits(texts[0], checks))
        args = [
            message
            if message is not None and isinstance(several[0], tvm.ir.StringImm)
            else self._expr(several)
            for several in together(call.args for call in calls)
        ]
        types = [self._type(several) for several in together(call.ty_args for call in calls)]
        return tvm.ir.Call(calls[0].op, args, calls[0].attrs, types)

    def _limits(self, text: str, checks: list) -> str:
        """Return the message of checks, of which `text` is the first one's, with the size in it."""
        _, _, count, negative, *_ = checks[0]
        expected = text.removesuffix(bounds_check.limits(-count if negative else 0, count - 1))
        if expected == text:
            raise Refused("a check of indices depends on it")
        size = self._size(check[2] for check in checks)
        name, last = str(written(size)), str(written(size - 1))
        name = name if name.isidentifier() else f"({name})"
        last = last if last.isidentifier() else f"{name} - 1"
        return expected + bounds_check.limits(f"-{name}" if negative else 0, last)

    def _layer(self, layers: list):
        """Return the union of layers of a recurrent network, as `Cell.of_call` lists them."""
        cell, given = layers[0]
        if any(other != cell or list(values) != list(given) for other, values in layers[1:]):
            raise Refused("a recurrent layer depends on it")
        values = {name: self._expr([each[name] for _, each in layers]) for name in given}
        return recurrent_call(self.builder, cell, values)

    def _pad(self, calls: list):
        """Return the union of pads whose widths differ."""
        fill, x = padding.fill(calls), self._expr([call.args[0] for call in calls])
        pads = together(map(int, call.attrs.pad_width) for call in calls)
        made = []
        for axis, several in enumerate(together(call.ty.shape for call in calls)):
            total = self._size(several) - x.ty.shape[axis]
            made.append(padding.split(*pads[2 * axis : 2 * axis + 2], total, self._is_natural))
        for numbers, width in zip(pads, itertools.chain(*made), strict=True):
            if not isinstance(width, int):
                self.pads.setdefault(numbers, []).append(written(width))
        return padding.padded(self.builder, x, made, fill)

    def _is_natural(self, number) -> bool:
        return padding.is_natural(number, self.sizes, self.analyzer)

    def _split(self, calls: list):
        """Return the union of splits of an axis that is open, as slices."""
        x, axis = self._expr([call.args[0] for call in calls]), int(calls[0].attrs.axis)
        counts = list(dict.fromkeys(len(call.ty.fields) for call in calls))
        if len(counts) > 1:
            raise Refused(f"it is split into {' or '.join(map(str, counts))} parts")
        parts, ends = [], [0] * len(calls)
        for several in together(call.ty.fields for call in calls):
            begins, ends = ends, [n + int(ty.shape[axis]) for n, ty in zip(ends, several, strict=True)]
            begin, end = (self._size(each) for each in (begins, ends))
            sizes = tuple(n - m for n, m in zip(ends, begins, strict=True))
            if len(set(sizes)) > 1 and sizes not in self.known:
                self._know(sizes, end - begin)
            bounds = [relax.Tuple([relax.prim_value(n)]) for n in (axis, begin, end)]
            part = self._slice(x, *bounds)
            parts.append(self.builder.emit(relax.op.strided_slice(x, *bounds) if part is None else part))
        return relax.Tuple(parts)

    def _slice(self, x, axes, begins, ends, *strides):
        """Return a slice whose bounds are shown to be within its tensor at all sizes, or None.

        Relax clips other bounds in each run, and does not know what the size is then.
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
                return None  # its sum with a size may be beyond int64
            begin, end = (
                n + extent if isinstance(n, tirx.IntImm) and n.value < 0 else n for n in (begin, end)
            )
            end = extent if self.analyzer.can_prove(end >= extent) else end
            if not all(map(self._is_natural, (begin, end - begin, extent - end))):
                return None
            first.append(begin)
            last.append(end)
        return relax.op.strided_slice(
            x, axes, relax.Tuple(first), relax.Tuple(last), *strides, assume_inbound=True
        )

    def _type(self, several: list):
        first = several[0]
        if isinstance(first, tvm.ir.TupleType):
            return tvm.ir.TupleType([self._type(fields) for fields in together(ty.fields for ty in several)])
        if isinstance(first, relax.TensorType) and all(ty.shape is not None for ty in several):
            sizes = together(ty.shape.values for ty in several)
            return relax.TensorType([self._size(each) for each in sizes], first.dtype)
        if not all(tvm_ffi.structural_equal(first, ty) for ty in several[1:]):
            raise Refused("the graph depends on it")
        return first


def _bindings(main) -> list:
    return [binding for block in main.body.blocks for binding in block.bindings]


def _is_open(splits: list) -> bool:
    """Return whether the axis that calls split is of several sizes."""
    return len({int(call.args[0].ty.shape[int(call.attrs.axis)]) for call in splits}) > 1


def _name(call) -> str:
    """Return the name of the operator that an expression calls."""
    op = getattr(call, "op", None)
    name = getattr(op, "name", getattr(op, "name_hint", type(call).__name__))
    return str(name).removeprefix("relax.")
