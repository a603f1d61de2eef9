"""A net for what suites do not hold: operators on values, dtypes and sizes that break kernels, drawn with a seed.

A draw takes a case of a suite, which is an operator with inputs: PyTorch's samples (`torch_suite.py`), ONNX's node
tests (`onnx_suite.py`), and the symbols of `test_import_mxnet.py`. It changes the inputs by a situation: their values,
their dtype, a size that they share, which may also be a dynamic dim, or how they lie in memory. The framework decides
whether that is valid still. Its results, or those of its float64, are the right ones.

    python engine/tests/adversarial.py FRONTEND LEVELS FIRST COUNT  # torch, onnx or mxnet; 0,3; draws from FIRST on
    python engine/tests/adversarial.py FRONTEND LEVELS              # the table of operators and situations so far

Each draw is imported by itself, once for all levels. Then many are one network, which is built and run in a tenth of
the time; where that fails, its halves are, down to the draw that fails alone. Kernels of level 0 are spared LLVM's
optimizer. A draw depends on its number alone, and on how many operators there are. It runs in a process that it may
end; its outcome is a line of a file in .cache for each level, and is not made twice. An outcome is "equal", "refused"
(in words that name what), "unclear" (in others), "wrong", "crash", "hang", or "none" where the framework refuses the
inputs, too.
"""

import functools
import itertools
import json
import math
import os
import resource
import sys
import types
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import forked
import ml_dtypes
import numpy as np
import torch
import tvm
from agreement import Reference, close
from onnx.shape_inference import InferenceError
from torch.utils import _pytree as pytree
from tvm import relax, tirx

import tvmfast
from tvmfast.compiler import codegen
from tvmfast.compiler.legalize import ieee754
from tvmfast.core import machine
from tvmfast.frontends.mxnet import gluon
from tvmfast.frontends.onnx.checks import deciding_inputs

SEED = 20261127
SECONDS = 120  # for the draws of one network
TOGETHER, TOGETHER_DYNAMIC = 48, 6  # draws of one network, at most
AGAIN = 40  # networks of one process
LLVM = {0: {"opt-level": 0}}  # its options by level, beside those of a build
RUNS = 3  # of the framework in float64, with inputs that are rounded differently
LARGEST, MEMORY = 1 << 18, 12 << 30  # elements of an input, and bytes of a process that draws, at most
LARGEST_RESULT = 1 << 20  # elements
MOST_PRODUCTS = 1 << 18  # of a transposed convolution, which ONNX's reference adds one by one
PROBED, LARGEST_PROBED = 278, 1 << 26  # values of a dynamic dim that an import of PyTorch tries, and elements there
MARGIN = 1 << 10  # between a result and the greatest number of its dtype, which sums on the way to it may pass
FILES = Path(__file__).parents[2] / ".cache" / "adversarial"
NOT_FINITE = ("special", "one NaN", "one infinity", "all -infinity")
# Of MXNet: its maxima lose NaN and start from the least finite number, and norms are scaled by their largest element.
# Of ONNX Runtime: whether its maxima lose NaN depends on where in the window it lies. Whether a coordinate, a cosine
# or a sine that an infinity is multiplied by is 0, and the product NaN, depends on how it is rounded.
# Likewise the least and greatest that DynamicQuantizeLinear takes a scale from.
# Of PyTorch: whether NaN in a real part reaches imaginary ones depends on how MKL factors the size, and in which row it
# finds a pivot; bounds that are NaN have no order; i0 and i1 of an infinity are NaN there on some CPUs, and polygamma.
LOSES_NAN = {
    "torch": (
        *("fft.", "stft", "bucketize", "searchsorted", "linalg.lu", "lu"),
        *("linalg.qr", "qr", "ormqr", "geqrf", "linalg.householder_product"),
        *("i0", "special.i0", "special.i1", "polygamma", "special.polygamma"),
        "nn.functional.scaled_dot_product_attention",
    ),
    "mxnet": ("pooling, max", "global pooling, max", "norm", "moments", "softmax output"),
    "onnx": (
        *("test_maxpool", "test_globalmaxpool", "test_MaxPool", "test_AdaptiveMaxPool"),
        *("test_affine_grid", "test_dft", "test_stft", "test_dynamicquantizelinear"),
        *("test_scatter_elements_with_reduction_m", "test_scatternd_m"),
    ),
}
CLEAR = (NotImplementedError, ValueError, IndexError, TypeError, InferenceError)
KINDS = ("equal", "refused", "unclear", "none", "wrong", "crash", "hang")


class Case(NamedTuple):
    """An operator with inputs, and what runs and imports it. What runs it takes arrays, and returns a list of them."""

    inputs: list[np.ndarray]
    framework: Callable[..., list[np.ndarray]]
    model: Callable[[list[np.ndarray], list[tuple]], tuple]  # (IRModule, params), of inputs and their shapes
    second: Callable[..., list[np.ndarray]] | None = None  # another opinion on what the framework leaves open
    of_sizes: Callable[..., list[np.ndarray]] | None = None  # the framework with parameters without their signs


# ---------------------------------------------------------------- situations


def _normal(rng, shape, dtype):
    return rng.standard_normal(shape)


def _extreme(sign: int) -> Callable:
    """The dtype's greatest number, or its least, among ordinary ones."""

    def values(rng, shape, dtype):
        largest = sign * min(float(ml_dtypes.finfo(dtype).max), 1e150)  # frameworks' float64 squares them, too
        return np.where(rng.random(shape) < 0.3, largest, rng.standard_normal(shape))

    return values


def _special(rng, shape, dtype):
    info = ml_dtypes.finfo(dtype)
    some = [math.nan, math.inf, -math.inf, 0.0, -0.0, float(info.smallest_subnormal), float(info.tiny), 1.0]
    return np.where(rng.random(shape) < 0.2, rng.choice(some, shape), rng.standard_normal(shape))


VALUES: dict[str, Callable] = {
    "as they are": None,
    "ordinary": _normal,
    "far from 0": lambda rng, shape, dtype: 1000 + rng.standard_normal(shape),
    "of one value": lambda rng, shape, dtype: np.full(shape, rng.choice([0.0, 1.0, -3.0, 0.1])),
    "ties": lambda rng, shape, dtype: rng.integers(-2, 3, shape),
    "greatest": _extreme(1),
    "least": _extreme(-1),
    "special": _special,
    "one infinity": lambda rng, shape, dtype: _one(rng, shape, math.inf),
    "all -infinity": lambda rng, shape, dtype: np.full(shape, -math.inf),
    "one NaN": lambda rng, shape, dtype: _one(rng, shape, math.nan),
    "tiny": lambda rng, shape, dtype: rng.standard_normal(shape) * 16 * float(ml_dtypes.finfo(dtype).tiny),
    "halfway": lambda rng, shape, dtype: rng.integers(-9, 10, shape) / 2,
    "of all sizes": lambda rng, shape, dtype: rng.standard_normal(shape) * 2.0 ** rng.integers(-12, 13, shape),
}
INTEGERS = ("as they are", "near the greatest", "near the least", "negative", "repeated", "least and -1")
SIZES = (1, *range(2, 34), 63, 64, 65, 127, 128, 129, 255, 257, 1023, 4097, (1 << 16) + 1)
LAYOUTS = ("whole", "every other", "transposed", "broadcast", "backwards")
DTYPES = ("as it is", "float16", "bfloat16", "float64")


def _one(rng, shape, value):
    x = rng.standard_normal(shape)
    if x.size:
        x.reshape(-1)[rng.integers(x.size)] = value
    return x


class Situation(NamedTuple):
    values: str
    integers: str
    dtype: str
    size: tuple[int, int] | None  # what each axis of the first size has instead
    dynamic: bool  # whether those axes share a dynamic dim
    layout: str

    def __str__(self) -> str:
        """What differs from the suite's inputs."""
        parts = [self.values] if self.values != "as they are" else []
        parts += [f"integers {self.integers}"] if self.integers != "as they are" else []
        parts += [self.dtype] if self.dtype != "as it is" else []
        parts += [f"{self.size[0]} to {self.size[1]}"] if self.size else []
        parts += ["dynamic"] if self.dynamic else []
        return ", ".join([*parts, *([self.layout] if self.layout != "whole" else [])]) or "as they are"

    def kinds(self) -> list[str]:
        """The columns of the table that it counts in."""
        found = [self.values, f"integers {self.integers}" if self.integers != "as they are" else "", self.dtype]
        found += ["another size" if self.size else "", "dynamic" if self.dynamic else "", self.layout]
        return [each for each in found if each not in ("", "as it is", "whole", "as they are")] or ["as they are"]


def situation(rng, shapes: list[tuple], frontend: str) -> Situation:
    """Draw what is changed: mostly one or two of six things."""
    sizes = sorted({size for shape in shapes for size in shape})

    def drawn(among, often: float):
        return among[rng.integers(len(among))] if rng.random() < often else among[0]

    size = None
    if sizes and rng.random() < 0.5:
        own = sizes[rng.integers(len(sizes))]
        size = own, int(SIZES[rng.integers(len(SIZES))])
    dtypes = [each for each in DTYPES if frontend == "torch" or each != "bfloat16"]
    return Situation(
        drawn(list(VALUES), 0.7), drawn(INTEGERS, 0.3), drawn(dtypes, 0.3), size,
        bool(size and rng.random() < 0.4), drawn(LAYOUTS, 0.2),
    )  # fmt: skip


def changed(x: np.ndarray, how: Situation, rng) -> np.ndarray:
    """An input in this situation."""
    own, other = how.size or (0, 0)
    shape = tuple(other if how.size and n == own else n for n in x.shape)
    if math.prod(shape) > LARGEST:
        raise MemoryError(f"an input of {shape}")
    kind = "f" if x.dtype == ml_dtypes.bfloat16 else x.dtype.kind
    if kind == "f":
        dtype = x.dtype if how.dtype == "as it is" else np.dtype(how.dtype)
        make = VALUES[how.values]
        values = np.resize(x, shape) if make is None else make(rng, shape, dtype)
        with np.errstate(over="ignore"):
            values = np.asarray(values).astype(dtype)
    else:
        values = np.resize(x, shape)
        if kind in "iu" and values.size:
            values = _integers(values, how.integers, rng)
    return np.ascontiguousarray(values)


def _integers(x, how: str, rng):
    info = np.iinfo(x.dtype)
    near = rng.integers(0, 3, x.shape).astype(x.dtype)
    if how == "near the greatest":
        return info.max - near
    if how == "near the least":
        return info.min + near
    if how == "negative":
        return (-x.astype("int64")).clip(info.min, info.max).astype(x.dtype)
    if how == "repeated":
        return np.full_like(x, x.flat[rng.integers(x.size)])
    if how == "least and -1" and info.min < 0:
        return np.where(near > 0, info.min, -1).astype(x.dtype)
    return x


def laid_out(x: np.ndarray, layout: str) -> np.ndarray:
    """The same numbers, elsewhere in memory; of a broadcast one, the first row for all."""
    if not x.ndim or not x.size:
        return x
    if layout == "every other":
        spread = np.zeros((*x.shape[:-1], 2 * x.shape[-1]), x.dtype)
        spread[..., ::2] = x
        return spread[..., ::2]
    if layout == "transposed":
        return np.ascontiguousarray(x.T).T
    if layout == "backwards":
        return np.ascontiguousarray(x[..., ::-1])[..., ::-1]
    return np.broadcast_to(x[:1], x.shape) if layout == "broadcast" else x


# ---------------------------------------------------------------- what becomes of a draw


class Draw:
    """A draw: its operator, its situation, what the framework says, and what we import.

    Attributes:
        outcome: what becomes of it, where that is known before it is built.
        model: `(IRModule, params)` else.
    """

    def __init__(self, frontend: Any, kind: str, number: int, imports: bool = True):
        self.kind, self.number, self.situation, self.model, self.outcome = kind, number, None, None, ""
        self.name = frontend.names[number % len(frontend.names)]  # each operator comes in turn
        rng = np.random.default_rng([SEED, number])
        self.case = frontend.case(self.name, rng)
        if self.case is None:
            self.outcome = "none: no sample"
            return
        self.situation = situation(rng, [x.shape for x in self.case.inputs], kind)
        if self.situation.values in NOT_FINITE and self.name.startswith(LOSES_NAN[kind]):
            self.outcome = "none: what the framework makes of NaN and infinities there"
            return
        try:
            self.inputs = [laid_out(changed(x, self.situation, rng), self.situation.layout) for x in self.case.inputs]
            self._require_small_probes()
            self.eager = self.case.framework(*self.inputs)
            if sum(x.size for x in self.eager) > LARGEST_RESULT:
                raise MemoryError("results of so many elements")
        except Exception as error:
            self.outcome = f"none: {type(error).__name__}"
            return
        try:
            self.model = self.case.model(self.inputs, self._shapes()) if imports else None
        except Exception as error:
            self.outcome = _error(error)

    def _shapes(self) -> list[tuple]:
        """Those of the inputs, with a name of this draw's own for a dynamic dim."""
        how, dim = self.situation, f"n{self.number}"
        return [tuple(dim if how.dynamic and n == how.size[1] else n for n in x.shape) for x in self.inputs]

    def _require_small_probes(self):
        """An import makes examples of its probes, which several axes with one dynamic dim make huge."""
        for shape in self._shapes() if self.kind == "torch" else ():
            if math.prod(PROBED if isinstance(n, str) else n for n in shape) > LARGEST_PROBED:
                raise MemoryError(f"examples of {shape}")

    @property
    def is_dynamic(self) -> bool:
        return bool(self.situation and self.situation.dynamic)

    @functools.cached_property
    def reference(self) -> tuple[Reference, list | None]:
        return self._reference_of(self.case.framework, self.eager)

    def _reference_of(self, framework: Callable, eager: list) -> tuple[Reference, list | None]:
        of_sizes, rng = self.case.of_sizes or framework, np.random.default_rng([SEED, self.number, 1])
        right, beyond = _reference(framework, self.inputs, eager, rng, of_sizes)
        # The errors of equal terms have one sign, and add up where those of others cancel.
        alike = 4 if self.situation.layout == "broadcast" or self.situation.values == "of one value" else 1
        moved = [alike * a + self._hidden(x) for a, x in zip(right.moved, eager, strict=True)]
        return Reference(right.values, moved), beyond

    def _hidden(self, result: np.ndarray) -> float:
        """How far rounding moves a result that neither its size nor other inputs show."""
        single = float(np.finfo("float32").eps)
        if self.name.startswith(("test_resize", "nn.functional.interpolate")):  # positions are of float32
            return single * max(4, *self.inputs[0].shape) * _largest(self.inputs[0])
        if self.name in ("cov", "corrcoef") and self.situation.layout == "broadcast":  # squares of 0, but for rounding
            return (16 * float(ml_dtypes.finfo(result.dtype).eps) * _largest(self.inputs[0])) ** 2
        if self.name == "nn.functional.tanhshrink":  # x - tanh(x)
            return float(ml_dtypes.finfo(result.dtype).eps) * _largest(self.inputs[0])
        # Attributes are of float32 there, whatever the inputs are.
        return 4 * single * _largest(result) if self.kind != "torch" and result.dtype == "float64" else 0.0

    def judged(self, got: "list | Exception") -> str:
        """What becomes of the draw, given its results or the error that it has raised."""
        if isinstance(got, Exception):
            return _error(got)
        try:
            if len(got) != len(self.eager) or not all(map(_same, got, self.eager)):
                judge(got, self.eager, *self.reference)
        except AssertionError as error:
            try:
                eager = self.case.second(*self.inputs)
                judge(got, eager, *self._reference_of(self.case.second, eager))
            except Exception:
                return f"wrong: {' '.join(str(error).split())[:300]}"
        return "equal"

    def line(self, outcome: str) -> dict:
        """The draw and its outcome, as JSON data."""
        kinds = self.situation.kinds() if self.situation else []
        known = {"number": self.number, "name": self.name, "situation": str(self.situation)}
        return known | {"outcome": outcome, "kinds": kinds}


def _error(error: Exception) -> str:
    chain = (error, error.__cause__ or error)
    is_clear = all(isinstance(each, CLEAR) for each in chain) and "ir.Op" not in str(error)
    words = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    return f"{'refused' if is_clear else 'unclear'}: {words}"


def outcomes(
    frontend: Any, kind: str, levels: Sequence[int], numbers: Sequence[int], note: Callable = lambda number: None
) -> Iterator[tuple[int, dict]]:
    """Each level, and for each draw a line of what becomes of it there; `note` is told which is run and imported."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        draws = []
        for number in numbers:
            note(number)
            draws.append(Draw(frontend, kind, number))
        note("")
        imported = [draw for draw in draws if draw.model]
        groups = [
            [each for each in imported if each.is_dynamic == dynamic][first : first + most]
            for dynamic, most in ((False, TOGETHER), (True, TOGETHER_DYNAMIC))
            for first in range(0, len(imported), most)
        ]
        for level in levels:
            found = {draw.number: draw.outcome for draw in draws}
            for group in filter(None, groups):
                for draw, got in zip(group, results(group, level), strict=True):
                    found[draw.number] = draw.judged(got)
                    if found[draw.number].startswith("wrong") and len(group) > 1:
                        alone = draw.judged(*results([draw], level))
                        beside = f"wrong beside draws {', '.join(str(each.number) for each in group)}"
                        is_so_alone = alone.startswith("wrong")
                        found[draw.number] = alone if is_so_alone else f"{beside}: {found[draw.number]}"
            yield from ((level, draw.line(found[draw.number])) for draw in draws)


def results(draws: list[Draw], level: int) -> list:
    """The arrays that each draw gives, or the error that it raises."""
    try:
        models = [draw.model for draw in draws]
        mod, params = together(models) if len(draws) > 1 else models[0]
        with mock.patch.object(codegen, "executable", functools.partial(_in_one_piece, llvm=LLVM.get(level, {}))):
            compiled = tvmfast.build(mod, params, opt_level=level)
        arrays = iter(_list(compiled(*(x for draw in draws for x in draw.inputs))))
        return [[next(arrays) for _ in _fields(each["main"])] for each, _ in models]
    except Exception as error:
        if len(draws) == 1:
            return [error]
        half = len(draws) // 2
        return results(draws[:half], level) + results(draws[half:], level)


def together(models: list[tuple]) -> tuple[tvm.IRModule, dict]:
    """One network of many: it takes the inputs of all, one after another, and returns all their results."""
    functions, params, sizes = {}, {}, {}
    inputs, weights, blocks, outputs, types = [], [], [], [], []
    for number, (mod, arrays) in enumerate(models):
        own = {}
        for var in mod.get_global_vars():
            if var.name_hint != "main":
                own[var] = tvm.ir.GlobalVar(f"{var.name_hint}_{number}")
                relax.expr._update_type(own[var], var.ty)
        rename = _Renamed(own)
        for var, func in mod.functions_items():
            if var.name_hint != "main":
                func = rename.visit_expr(func) if isinstance(func, relax.Function) else func
                is_named = "global_symbol" in (func.attrs or {})
                functions[own[var]] = func.with_attr("global_symbol", own[var].name_hint) if is_named else func
        main = relax.utils.copy_with_new_vars(rename.visit_expr(mod["main"]) if own else mod["main"])
        names = {var: relax.Var(f"draw{number}_{var.name}", var.ty) for var in main.params}
        count = int(main.attrs["num_input"])
        inputs += list(names.values())[:count]
        weights += list(names.values())[count:]
        params |= {f"draw{number}_{name}": array for name, array in arrays.items()}
        sizes |= (main.attrs or {}).get("tvmfast.sizes", {})
        body = main.bind_params(names).body
        blocks += body.blocks
        fields = _fields(main)
        types += fields
        if isinstance(body.body, relax.Tuple):
            outputs += body.body.fields
        elif isinstance(main.ret_ty, tvm.ir.TupleType):
            outputs += [relax.TupleGetItem(body.body, index) for index in range(len(fields))]
        else:
            outputs.append(body.body)
    attrs = {"num_input": len(inputs), "global_symbol": "main"} | ({"tvmfast.sizes": sizes} if sizes else {})
    is_pure = all(mod["main"].is_pure for mod, _ in models)
    body = relax.SeqExpr(blocks, relax.Tuple(outputs))
    main = relax.Function([*inputs, *weights], body, tvm.ir.TupleType(types), is_pure).with_attrs(attrs)
    whole = tvm.IRModule(functions | {tvm.ir.GlobalVar("main"): main})
    return relax.transform.Normalize()(whole), params


def _fields(main: relax.Function) -> list:
    """The types of the results."""
    return list(main.ret_ty.fields) if isinstance(main.ret_ty, tvm.ir.TupleType) else [main.ret_ty]


@relax.expr_functor.mutator
class _Renamed(relax.PyExprMutator):
    """Calls of functions that have other names."""

    def __init__(self, names: dict):
        super().__init__()
        self.names = names

    def visit_global_var_(self, var):
        return self.names.get(var, var)


def _in_one_piece(mod, target, runs_here, llvm: dict) -> codegen.Executable:
    """As `codegen.executable`, but all kernels are compiled together, with options of LLVM, and not kept."""
    kernels = {var: func for var, func in mod.functions_items() if isinstance(func, tirx.PrimFunc)}
    target = tvm.target.Target(json.loads(machine.target_json(target)) | llvm)
    separate = dict(itertools.islice(kernels.items(), len(kernels) - 1))  # one kernel is left to TVM, as there
    libraries = [codegen.compile_kernels(separate, target, runs_here)] if separate else []
    rest = {var: func for var, func in mod.functions_items() if var not in separate}
    remaining = tvm.IRModule(rest).with_attr("external_mods", libraries)
    built = tvm.relax.build(remaining, target=target, relax_pipeline=None, tir_pipeline=ieee754.LOWERING)
    return codegen.Executable(built.mod, kernels, target)


def _reference(
    framework: Callable, inputs: list, eager: list, rng, of_sizes: Callable
) -> tuple[Reference, list | None]:
    """What the framework computes in float64, or else in the inputs' dtypes, and how far their rounding moves that.

    Where finite inputs may overflow on the way, whatever the order of a sum, is the second result.
    """
    floats = list(map(_is_float, inputs))

    def doubled(change: Callable, framework: Callable = framework) -> list[np.ndarray]:
        wide = (change(x.astype("float64"), x.dtype) if own else x for x, own in zip(inputs, floats, strict=True))
        return [np.asarray(each) for each in framework(*wide)]

    def rounded(x, dtype):
        info = ml_dtypes.finfo(dtype)
        with np.errstate(invalid="ignore"):  # an infinity stays one; below `tiny` numbers are as far apart as there
            error = np.maximum(float(info.eps) * np.abs(x), float(info.smallest_subnormal))
            return np.where((x != 0) & np.isfinite(x), x + error * rng.uniform(-1, 1, x.shape), x)

    try:
        with np.errstate(all="ignore"):
            runs = [doubled(change) for change in (lambda x, _: x, *[rounded] * RUNS)]
            sizes = doubled(lambda x, _: np.abs(x), of_sizes)
        if list(map(np.shape, runs[0])) != list(map(np.shape, eager)):
            raise ValueError("results of other shapes")
    except Exception:
        return _in_own_precision(framework, inputs, eager, lambda x: rounded(x, x.dtype).astype(x.dtype)), None
    moved, beyond = [], []
    for each, size, own in zip(zip(*runs, strict=True), sizes, eager, strict=True):
        moved.append(_moved(each))
        is_float = _is_float(own)
        info = ml_dtypes.finfo(own.dtype) if is_float else None
        if is_float:  # a sum has the rounding of its terms, which its own size may hide
            moved[-1] += 4 * float(info.eps) * min(_largest(size), 64 * _largest(np.asarray(each[0])))
        sizes_of = (np.abs(np.asarray(x, "float64")) for x in (size, each[0]))
        most = float(info.max) / MARGIN if is_float else math.inf
        beyond.append(functools.reduce(np.logical_or, [~(x <= most) for x in sizes_of]))
    return Reference(runs[0], moved), beyond if _all_finite(inputs) else None


def _in_own_precision(framework: Callable, inputs: list, eager: list, rounded: Callable) -> Reference:
    """As `_reference`, of a framework that has no float64: its own rounding counts, too."""
    try:
        with np.errstate(all="ignore"):
            runs = [framework(*(rounded(x) if _is_float(x) else x for x in inputs)) for _ in range(RUNS)]
            moved = [_moved(each) for each in zip(eager, *runs, strict=True)]
    except Exception:
        moved = [0.0] * len(eager)
    sizes = [float(ml_dtypes.finfo(x.dtype).eps) * _largest(x) if _is_float(x) else 0.0 for x in eager]
    return Reference(eager, [a + 64 * size for a, size in zip(moved, sizes, strict=True)])


def _moved(runs: Sequence) -> float:
    """How far rounding may move a result, which the first of some runs gives, by how far it is from the others."""
    with np.errstate(all="ignore"):
        distances = np.abs(np.stack(runs[1:]).astype("float64") - np.asarray(runs[0], "float64"))
    return 8 * float(distances[np.isfinite(distances)].max(initial=0))


def judge(got: list, eager: list, right: Reference, beyond: list | None = None) -> None:
    """Raise AssertionError where an element is neither the framework's, nor that of its float64 but for rounding.

    Those that are not finite are right where `beyond` says that partial sums may overflow.
    """
    assert len(got) == len(eager), f"{len(got)} results for {len(eager)}"
    for place, (ours, theirs) in enumerate(zip(map(np.asarray, got), eager, strict=True)):
        same = f"{theirs.dtype}{theirs.shape}"
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape), f"{ours.dtype}{ours.shape} for {same}"
        equal = _equal(ours, theirs)
        if equal.all():
            continue
        if not _is_float(theirs):
            exact = right.values[place].astype(theirs.dtype)
            np.testing.assert_array_equal(np.where(equal, exact, ours), exact)
            continue
        if beyond:
            equal |= beyond[place] & ~np.isfinite(ours.astype("float64"))
        wanted = np.where(equal, ours.astype("float64"), right.values[place].astype("float64"))
        close([ours], Reference([wanted], [right.moved[place]]))


def _equal(ours, theirs):
    with np.errstate(invalid="ignore"):
        return (ours == theirs) | ((ours != ours) & (theirs != theirs))


def _is_float(x) -> bool:
    return x.dtype.kind == "f" or x.dtype == ml_dtypes.bfloat16


def _same(ours, theirs) -> bool:
    alike = (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
    return alike and bool(_equal(ours, theirs).all())


def _largest(x) -> float:
    x = np.abs(x.astype("float64"))
    return float(x[np.isfinite(x)].max(initial=0))


# ---------------------------------------------------------------- frontends


def _bucketize(x, bounds, **how):
    return torch.bucketize(x, bounds.sort()[0], **how)


def _searchsorted(bounds, x, *, sorter=None, **how):
    ordered, order = bounds.sort(stable=True)
    given = {} if sorter is None else {"sorter": order}
    return torch.searchsorted(bounds if given else ordered, x, **given, **how)


def _kth(x, k, dim=-1, keepdim=False):
    found = [each.narrow(dim, k - 1, 1) for each in x.sort(dim=dim, stable=True)]
    return found if keepdim else [each.squeeze(dim) for each in found]


def _median(x, dim, keepdim=False):
    return _kth(x, (x.shape[dim] + 1) // 2, dim, keepdim)


def _sort(x, dim=-1, descending=False, stable=True):
    return x.sort(dim=dim, descending=descending, stable=True)


def _argsort(x, *args, **how):
    return _sort(x, *args, **how)[1]


def _mode(x, dim=-1, keepdim=False):
    value = x.mode(dim, True)[0]
    last = x.shape[dim] - 1 - (x == value).flip(dim).to(torch.uint8).argmax(dim, keepdim=True)
    return [each if keepdim else each.squeeze(dim) for each in (value, last)]


def _topk(x, k, dim=-1, largest=True, sorted=True):
    return [each.narrow(dim, 0, k) for each in x.sort(dim=dim, descending=largest, stable=True)]


# PyTorch leaves open what bounds without an order give: these have one.
_IN_ORDER = {"bucketize": _bucketize, "searchsorted": _searchsorted}
# And which of equal elements an index is of: in these they keep their order.
_STABLE = {
    **{"kthvalue": _kth, "median": _median, "nanmedian": _median, "topk": _topk},
    **{"argsort": _argsort, "mode": _mode, "sort": _sort},
}


class _Torch:
    """PyTorch's samples; bfloat16 goes in and out as ml_dtypes's."""

    # Of numbers whose products overflow, what eliminations and transforms return depends on the order of sums; what
    # says so elsewhere, the operator on magnitudes, cannot: all subtract. PyTorch's own differ from its float64.
    HIDE_OVERFLOW = (
        *("fft.", "stft", "linalg.inv", "linalg.det", "linalg.slogdet", "linalg.solve", "linalg.tensorinv"),
        *("linalg.tensorsolve", "linalg.matrix_power", "linalg.cholesky", "cholesky", "logdet", "linalg.lu", "lu"),
        *("cross", "linalg.cross", "linalg.qr", "qr", "ormqr", "geqrf", "linalg.householder_product"),
    )
    SOLVES = ("linalg.inv", "linalg.solve", "linalg.tensorinv", "linalg.tensorsolve", "lu_solve", "linalg.lu_solve")
    # Where squares overflow, PyTorch's kernels differ from each other: NaN, infinities and the bias are all right. Of
    # scores that are NaN some of its attentions make 0.
    NORMS = (
        *("native_layer_norm", *(f"nn.functional.{name}_norm" for name in ("layer", "group", "instance"))),
        "nn.functional.scaled_dot_product_attention",
    )

    def __init__(self):
        import torch_suite

        self.suite, self.operators = torch_suite, torch_suite.operators()
        self.names = [name for name in self.operators if name not in torch_suite.REFUSED]

    @functools.cache  # noqa: B019 (there is one frontend in a process)
    def _samples(self, name: str) -> list:
        return self.suite.samples(self.operators[name])

    def case(self, name: str, rng) -> Case | None:
        found = self._samples(name)
        if not found:
            return None
        sample = found[rng.integers(len(found))]

        def network_of(function):
            return self.suite.Samples([(types.SimpleNamespace(op=function), sample)]).eval()

        network = network_of(_IN_ORDER.get(name, self.operators[name].op))
        stable = network_of(_STABLE[name]) if name in _STABLE else None

        def tensor(x):
            if x.dtype == ml_dtypes.bfloat16:
                return torch.from_numpy(np.array(x).view("int16")).view(torch.bfloat16)
            return torch.from_numpy(np.array(x))

        def run(network, *arrays):
            if name.startswith(self.HIDE_OVERFLOW) and any(map(_overflows, arrays)):
                raise NotImplementedError("its result depends on the order of sums")
            if name.startswith("cholesky_inverse") and any(map(_has_infinities, arrays)):
                raise NotImplementedError("LAPACK skips products with 0")
            if name.startswith(self.NORMS) and any(map(_overflows_in_float32, arrays)):
                raise NotImplementedError("its result depends on how it is computed")
            if "polygamma" in name and any(((x <= 0) & (x == np.floor(x))).any() for x in arrays):
                raise NotImplementedError("it loses the poles of large numbers")
            if "polygamma" in name and any(x.dtype == "float64" for x in arrays):
                raise NotImplementedError("its trigamma is exact to 1e-9 only")
            with torch.no_grad():
                results = pytree.tree_leaves(network(*map(tensor, arrays)))
            results = [self._array(each) for each in results]
            if name.startswith(self.SOLVES) and _all_finite(arrays) and not _all_finite(results):
                raise NotImplementedError("whether a singular matrix has an inverse depends on rounding")
            return results

        def model(arrays, shapes):
            specs = [(f"in{i}", (shape, x.dtype.name)) for i, (x, shape) in enumerate(zip(arrays, shapes, strict=True))]
            return tvmfast.from_pytorch(network, specs)

        framework, second = (each and functools.partial(run, each) for each in (network, stable))
        return Case([self._array(x) for x in network.tensors], framework, model, second)

    @staticmethod
    def _array(x) -> np.ndarray:
        x = x.detach().contiguous()
        if x.dtype == torch.bfloat16:
            return x.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
        return x.numpy()


class _Onnx:
    """ONNX's node tests, held against ONNX Runtime, and in float64 against ONNX's reference."""

    # A sum in these may overflow, and which does depends on its order; what says so elsewhere, the operator on
    # magnitudes, cannot: bounded functions make 1 or -1 of infinities, and cosines and sines have signs. A score that
    # is an infinity is NaN with ONNX's mask of -infinity; ONNX Runtime masks it.
    HIDE_OVERFLOW = ("RNN", "GRU", "LSTM", "DFT", "STFT", "Attention")

    def __init__(self):
        import onnx_suite

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.cases = onnx_suite.cases()
        refused = json.loads(Path(onnx_suite.__file__).with_suffix(".json").read_text())["refused"]
        left_out = {name for names in refused.values() for name in names}
        self.names = [name for name in self.cases if name not in left_out]

    def case(self, name: str, rng) -> Case | None:
        import onnx
        import onnxruntime
        from onnx import numpy_helper
        from onnx.reference import ReferenceEvaluator

        own = onnx.ModelProto()
        own.CopyFrom(self.cases[name].model)
        arrays, _ = self.cases[name].data_sets[0]
        arrays = [numpy_helper.to_array(x) if isinstance(x, onnx.TensorProto) else np.asarray(x) for x in arrays]
        if len(arrays) != len(own.graph.input):
            return None
        given, deciding = list(zip(own.graph.input, arrays, strict=True)), deciding_inputs(own.graph)
        known = [numpy_helper.from_array(x, value.name) for value, x in given if value.name in deciding]
        own.graph.ClearField("input")
        own.graph.input.extend(value for value, _ in given if value.name not in deciding)
        own.graph.initializer.extend(known)

        def proto_of(arrays, shapes):
            proto = onnx.ModelProto()
            proto.CopyFrom(own)
            before = {value.type.tensor_type.elem_type for value in proto.graph.input}
            floats = {onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE, onnx.TensorProto.FLOAT16}
            for value, x, shape in zip(proto.graph.input, arrays, shapes, strict=True):
                kind = onnx.helper.np_dtype_to_tensor_dtype(x.dtype)
                value.CopyFrom(onnx.helper.make_tensor_value_info(value.name, kind, shape))
            for value in proto.graph.output:
                kind = value.type.tensor_type.elem_type
                if kind in floats and kind in before:
                    kinds = [v.type.tensor_type.elem_type for v in proto.graph.input]
                    kind = next((each for each in kinds if each in floats), kind)
                value.type.tensor_type.elem_type = kind
                value.type.tensor_type.ClearField("shape")
            return proto

        sessions = {}  # by shapes and dtypes; None where ONNX Runtime has no kernel

        def session(arrays):
            key = tuple((x.shape, x.dtype) for x in arrays)
            if key not in sessions:
                options = onnxruntime.SessionOptions()
                options.log_severity_level, options.intra_op_num_threads = 4, 1
                proto = proto_of(arrays, [x.shape for x in arrays]).SerializeToString()
                try:
                    sessions[key] = onnxruntime.InferenceSession(proto, options, providers=["CPUExecutionProvider"])
                except Exception as error:
                    if "NOT_IMPLEMENTED" not in str(error):
                        raise
                    sessions[key] = None
            return sessions[key]

        def framework(*arrays):
            if own.graph.node[0].op_type in self.HIDE_OVERFLOW and any(map(_overflows, arrays)):
                raise NotImplementedError("its result depends on the order of sums")
            norm = own.graph.node[0].op_type in ("InstanceNormalization", "LayerNormalization")
            if norm and any(map(_overflows_in_float32, arrays)):
                raise NotImplementedError("its result depends on how it is computed")
            if "convtranspose" in name and math.prod(x.size for x in arrays[:2]) > MOST_PRODUCTS:
                raise NotImplementedError("ONNX's reference takes minutes")
            if "cubic_align_corners" in name and any(map(_overflows, arrays)):
                raise NotImplementedError("which of its sums overflow depends on their order")
            found = session(arrays)
            if found is None:
                if own.graph.node[0].op_type == "Resize":
                    if not _all_finite(arrays):
                        raise NotImplementedError("ONNX's reference multiplies what it does not pick by 0")
                    if "align_corners" in name:  # of a size that is not whole, it aligns the corners of that
                        raise NotImplementedError("ONNX's reference takes other positions")
                return second(*arrays)
            feed = {value.name: np.ascontiguousarray(x) for value, x in zip(own.graph.input, arrays, strict=True)}
            return [np.asarray(each) for each in found.run(None, feed)]

        def model(arrays, shapes):
            return tvmfast.from_onnx(proto_of(arrays, shapes))

        def second(*arrays):
            proto = proto_of(arrays, [x.shape for x in arrays])
            feed = {value.name: x for value, x in zip(proto.graph.input, arrays, strict=True)}
            return [np.asarray(each) for each in ReferenceEvaluator(proto).run(None, feed)]

        return Case([x for value, x in given if value.name not in deciding], framework, model, second)


def _overflows(x) -> bool:
    """Whether products of two of the finite numbers may overflow."""
    return _is_float(x) and _largest(x) > math.sqrt(float(ml_dtypes.finfo(x.dtype).max))


def _overflows_in_float32(x) -> bool:
    """Whether they may where float32 is the widest dtype that is computed in."""
    return _is_float(x) and x.dtype != "float64" and _largest(x) > math.sqrt(np.finfo("float32").max)


def _has_infinities(x) -> bool:
    return _is_float(x) and np.isinf(x.astype("float64")).any()


def _all_finite(arrays) -> bool:
    return all(np.isfinite(x.astype("float64")).all() for x in arrays if _is_float(x))


class _Mxnet:
    """The symbols of `test_import_mxnet.py`, with random parameters."""

    HIDE_OVERFLOW = ("sync batch norm", "batch norm", "interleaved", "queries and interleaved")

    def __init__(self):
        import test_import_mxnet as suite

        self.suite = suite
        self.symbols = {f"{each[0]} {n}": each for n, each in enumerate([*suite.OF_X, *suite.OF_TWO])}
        self.names = list(self.symbols)

    def case(self, name: str, rng) -> Case | None:
        _, symbol, *shapes = self.symbols[name]
        self.suite.RNG = rng  # of the parameters
        inputs = [rng.uniform(-1, 1, shape).astype("float32") for shape in shapes]
        names, drawn = "xy"[: len(inputs)], {}
        order = _order(json.loads(symbol.tojson())) if name.startswith(("topk", "sort", "argsort")) else None

        def params(arrays):
            given = dict(zip(names, arrays, strict=True))
            key = tuple(x.shape for x in arrays)
            if key not in drawn:
                drawn[key] = self.suite.params_of(symbol, **given)
            dtype = arrays[0].dtype
            return given, {name: each.astype(dtype) for name, each in drawn[key].items()}

        def framework(*arrays):
            if order and np.isnan(arrays[0]).any():
                raise NotImplementedError("std::sort, and so MXNet, has no order of NaN")
            if name.startswith("positions of floats") and not np.all(np.abs(arrays[0]) < 1 << 20):
                raise NotImplementedError("it multiplies int32")
            if name.startswith("flipped image") and len(arrays[0]) % 2:
                raise NotImplementedError("it leaves the middle row as the memory was")
            if name.startswith("leaky relu, gelu") and 0 < _largest(arrays[0]) < np.finfo("float32").tiny:
                raise NotImplementedError("its functions are of float32")
            if name.startswith(self.HIDE_OVERFLOW) and any(map(_overflows, arrays)):
                raise NotImplementedError("its result depends on the order of products")
            if name.startswith(("layer norm", "group norm", "instance norm")) and _overflows_in_float32(arrays[0]):
                raise NotImplementedError("its result depends on how it is computed")
            return self.suite.mxnets(symbol, *params([np.ascontiguousarray(x) for x in arrays]))

        def of_sizes(*arrays):
            given, weights = params([np.ascontiguousarray(x) for x in arrays])
            return self.suite.mxnets(symbol, given, {name: np.abs(each) for name, each in weights.items()})

        def model(arrays, shapes):
            given, weights = params(arrays)
            specs = {name: (shape, str(x.dtype)) for (name, x), shape in zip(given.items(), shapes, strict=True)}
            return tvmfast.from_mxnet(symbol, weights, specs)

        return Case(inputs, framework, model, order, of_sizes)


def _order(symbol: dict) -> Callable[..., list[np.ndarray]]:
    """What topk, sort and argsort return where equal elements keep their order; MXNet's depends on the size."""
    node = symbol["nodes"][-1]
    defaults = {"axis": "-1", "k": "1", "is_ascend": str(node["op"] != "topk"), "ret_typ": "indices"}
    given = defaults | node.get("attrs", {})
    axis, kind = int(given["axis"]), "value" if node["op"] == "sort" else given["ret_typ"]

    def ordered(x):
        indices = np.argsort(x if given["is_ascend"] in ("True", "1") else -x, axis, kind="stable")
        if node["op"] == "topk":
            indices = np.take(indices, range(int(given["k"])), axis)
        values, indices = np.take_along_axis(x, indices, axis), indices.astype("float32")
        return {"value": [values], "indices": [indices], "both": [values, indices]}[kind]

    return ordered


FRONTENDS = {"torch": _Torch, "onnx": _Onnx, "mxnet": _Mxnet}


def _list(results) -> list[np.ndarray]:
    return list(map(np.asarray, results if isinstance(results, list | tuple) else [results]))


# ---------------------------------------------------------------- many draws, and the table


def _serve(kind: str, levels: list[int]) -> None:
    """Reply to each group of numbers, such as "12 13 14", with a level and a line for each of them, and each level."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what an operator prints is no reply
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    frontend = FRONTENDS[kind]()
    for group in json.load(sys.stdin):
        numbers = list(map(int, group.split()))
        if levels:
            lines = outcomes(frontend, kind, levels, numbers, lambda number: _now(kind).write_text(str(number)))
        else:  # the framework alone
            draws = [Draw(frontend, kind, number, imports=False) for number in numbers]
            lines = [(0, draw.line("")) for draw in draws if draw.outcome or draw.reference]
        print(json.dumps(list(lines)), file=replies, flush=True)


def _now(kind: str) -> Path:
    """The file that says which draw a process is at."""
    return FILES / f"{kind}.now"


def _known(kind: str, level: int) -> dict[int, dict]:
    file = FILES / f"{kind}-{level}.jsonl"
    lines = map(json.loads, file.read_text().splitlines()) if file.exists() else ()
    return {line["number"]: line for line in lines}


def table(lines: list[dict]) -> str:
    """Operators with anything but equal, and situations, each with how many draws were what."""
    by_operator, by_situation = defaultdict(Counter), defaultdict(Counter)
    for line in lines:
        found = line["outcome"].partition(":")[0]
        by_operator[line["name"]][found] += 1
        for each in line["kinds"]:
            by_situation[each][found] += 1

    def rows(counts):
        return [f"{name[:40]:40}" + "".join(f"{found[kind]:9}" for kind in KINDS) for name, found in counts.items()]

    odd = {name: found for name, found in sorted(by_operator.items()) if found.keys() - {"equal", "none"}}
    total = {"all": Counter(line["outcome"].partition(":")[0] for line in lines)}
    head = f"{'':40}" + "".join(f"{kind:>9}" for kind in KINDS)
    return "\n".join([head, *rows(odd), head, *rows(by_situation), *rows(total)])


def _asked(kind: str, levels: list[int], groups: list[str]) -> Iterator[tuple[int, dict]]:
    """A level and a line for each draw; a group that ends its process, or hangs it, is halved down to one draw."""
    while groups:
        command = [sys.executable, "-W", "ignore", __file__, "serve", kind, ",".join(map(str, levels))]
        now, groups = groups[:AGAIN], groups[AGAIN:]
        _now(kind).write_text("")
        for group, lines in forked.replies(command, now, SECONDS):
            if not isinstance(lines, str):
                yield from lines
            elif len(numbers := group.split()) > 1:
                half, at = len(numbers) // 2, _now(kind).read_text()
                alone = [number for number in numbers if number == at]
                parts = [alone, [n for n in numbers if n != at]] if alone else [numbers[:half], numbers[half:]]
                groups += map(" ".join, parts)
            else:
                line = {"number": int(group), "name": f"draw {group}", "situation": "", "kinds": [], "outcome": lines}
                if levels and next(_asked(kind, [], [group]))[1]["outcome"]:
                    line["outcome"] = f"none: {lines} in the framework"
                yield from ((level, line) for level in levels or [0])


def _main(kind: str, levels: list[int], first: int = 0, count: int = 0) -> None:
    if kind == "mxnet" and not gluon.installed():
        print("MXNet is not installed")
        return
    known = {level: _known(kind, level) for level in levels}
    left = [str(number) for number in range(first, first + count) if any(number not in known[n] for n in levels)]
    FILES.mkdir(parents=True, exist_ok=True)
    groups = [" ".join(left[start : start + TOGETHER]) for start in range(0, len(left), TOGETHER)]
    files = {level: (FILES / f"{kind}-{level}.jsonl").open("a") for level in levels}
    for level, line in _asked(kind, levels, groups):
        if line["number"] not in known[level]:
            known[level][line["number"]] = line
            print(json.dumps(line), file=files[level], flush=True)
            if line["outcome"].partition(":")[0] in ("wrong", "unclear", "crash", "hang"):
                print(
                    f"{line['number']} {line['name']} at {level} ({line['situation']}): {line['outcome']}", flush=True
                )
    bad = []
    for level, lines in known.items():
        print(f"level {level}\n{table(list(lines.values()))}")
        faults = (n for n, line in lines.items() if line["outcome"].partition(":")[0] in ("wrong", "crash", "hang"))
        bad += [f"{n} at {level}" for n in sorted(faults)]
    if bad:
        sys.exit(f"{len(bad)} draws are wrong, or ended or hung their process: {', '.join(bad)}")


if __name__ == "__main__":
    serves = sys.argv[1] == "serve"
    frontend_, levels_, *range_ = sys.argv[1 + serves :]
    (_serve if serves else _main)(frontend_, [int(n) for n in levels_.split(",") if n], *map(int, range_))
