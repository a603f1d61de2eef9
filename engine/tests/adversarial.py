"""A net for what suites do not hold: operators on values, dtypes and sizes that break kernels, drawn with a seed.

A draw takes a case of a suite, which is an operator with inputs: PyTorch's samples (`torch_suite.py`), ONNX's node
tests (`onnx_suite.py`), and the symbols of `test_import_mxnet.py`. It changes the inputs by a situation: their values,
their dtype, a size that they share, which may also be a dynamic dim, or how they lie in memory. The framework decides
whether that is valid still. Its results, or those of its float64, are the right ones.

    python engine/tests/adversarial.py FRONTEND LEVEL FIRST COUNT   # torch, onnx or mxnet; draws FIRST to FIRST + COUNT
    python engine/tests/adversarial.py FRONTEND LEVEL               # the table of operators and situations so far

A draw depends on its number alone. It runs in a process that it may end; its outcome is a line of a file in .cache,
and is not made twice. An outcome is "equal", "refused" (in words that name what), "unclear" (in others), "wrong",
"crash", "hang", or "none" where the framework refuses the inputs, too.
"""

import json
import math
import os
import resource
import sys
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import forked
import ml_dtypes
import numpy as np
from agreement import Reference, close

import tvmfast
from tvmfast.frontends.onnx.checks import deciding_inputs

SEED = 20261127
SECONDS = 120  # for one draw
RUNS = 3  # of the framework in float64, with inputs that are rounded differently
LARGEST, MEMORY = 1 << 21, 12 << 30  # elements of an input, and bytes of a process that draws, at most
FILES = Path(__file__).parents[2] / ".cache" / "adversarial"
CLEAR = (NotImplementedError, ValueError, IndexError, TypeError)
KINDS = ("equal", "refused", "unclear", "none", "wrong", "crash", "hang")


class Case(NamedTuple):
    """An operator with inputs, and what runs it: each takes arrays and returns a list of arrays."""

    inputs: list[np.ndarray]
    framework: Callable[..., list[np.ndarray]]
    ours: Callable[[list[np.ndarray], list[tuple], int], list[np.ndarray]]  # of inputs, their shapes, and a level
    second: Callable[..., list[np.ndarray]] | None = None  # another opinion on what the framework leaves open


# ---------------------------------------------------------------- situations


def _normal(rng, shape, dtype):
    return rng.standard_normal(shape)


def _extreme(sign: int) -> Callable:
    """The dtype's greatest number, or its least, among ordinary ones."""

    def values(rng, shape, dtype):
        largest = sign * float(ml_dtypes.finfo(dtype).max)
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
        raise MemoryError
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


def outcome(case: Case, how: Situation, level: int, rng) -> str:
    """Run a case in a situation and say what becomes of it."""
    try:
        inputs = [laid_out(changed(x, how, rng), how.layout) for x in case.inputs]
        eager = case.framework(*inputs)
        right, beyond = _reference(case.framework, inputs, eager, rng)
    except Exception as error:
        return f"none: {type(error).__name__}"
    shapes = [tuple("n" if how.dynamic and n == how.size[1] else n for n in x.shape) for x in inputs]
    try:
        got = case.ours(inputs, shapes, level)
        judge(got, eager, right, beyond)
    except AssertionError as error:
        try:
            judge(got, case.second(*inputs), right, beyond)
        except Exception:
            return f"wrong: {' '.join(str(error).split())[:300]}"
    except Exception as error:
        chain = (error, error.__cause__ or error)
        is_clear = all(isinstance(each, CLEAR) for each in chain) and "ir.Op" not in str(error)
        words = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        return f"{'refused' if is_clear else 'unclear'}: {words}"
    return "equal"


def _reference(framework: Callable, inputs: list, eager: list, rng) -> tuple[Reference | None, list | None]:
    """What the framework computes in float64, and how far the rounding of inputs moves that; None if it cannot.

    Where finite inputs may overflow on the way, whatever the order of a sum, is the second result.
    """
    floats = [x.dtype.kind == "f" or x.dtype == ml_dtypes.bfloat16 for x in inputs]

    def doubled(change: Callable) -> list[np.ndarray]:
        wide = (change(x.astype("float64"), x.dtype) if own else x for x, own in zip(inputs, floats, strict=True))
        return [np.asarray(each) for each in framework(*wide)]

    def rounded(x, dtype):
        return x * (1 + float(ml_dtypes.finfo(dtype).eps) * rng.uniform(-1, 1, x.shape))

    try:
        with np.errstate(all="ignore"):
            runs = [doubled(change) for change in (lambda x, _: x, *[rounded] * RUNS)]
            sizes = doubled(lambda x, _: np.abs(x))
    except Exception:
        return None, None
    if [each.shape for each in runs[0]] != [each.shape for each in eager]:
        return None, None
    moved, beyond = [], []
    for each, size, own in zip(zip(*runs, strict=True), sizes, eager, strict=True):
        with np.errstate(all="ignore"):
            distances = np.abs(np.stack(each[1:]).astype("float64") - np.asarray(each[0], "float64"))
        moved.append(8 * float(distances[np.isfinite(distances)].max(initial=0)))
        is_float = own.dtype.kind == "f" or own.dtype == ml_dtypes.bfloat16
        largest = float(ml_dtypes.finfo(own.dtype).max) if is_float else math.inf
        beyond.append(~(np.abs(size.astype("float64")) <= largest))
    finite = all(np.isfinite(x.astype("float64")).all() for x, own in zip(inputs, floats, strict=True) if own)
    return Reference(runs[0], moved), beyond if finite else None


def judge(got: list, eager: list, right: Reference | None, beyond: list | None = None) -> None:
    """Raise AssertionError where an element is neither the framework's, nor that of its float64 but for rounding.

    Those that are not finite are right where `beyond` says that partial sums may overflow.
    """
    assert len(got) == len(eager), f"{len(got)} results for {len(eager)}"
    for place, (ours, theirs) in enumerate(zip(map(np.asarray, got), eager, strict=True)):
        same = f"{theirs.dtype}{theirs.shape}"
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape), f"{ours.dtype}{ours.shape} for {same}"
        with np.errstate(invalid="ignore"):
            equal = (ours == theirs) | ((ours != ours) & (theirs != theirs))
        if equal.all():
            continue
        is_float = theirs.dtype.kind == "f" or theirs.dtype == ml_dtypes.bfloat16
        if is_float and beyond:
            equal |= beyond[place] & ~np.isfinite(ours.astype("float64"))
        if not is_float:
            exact = theirs if right is None else right.values[place].astype(theirs.dtype)
            np.testing.assert_array_equal(np.where(equal, exact, ours), exact)
            continue
        # In the framework's own precision its rounding counts, too.
        wanted, moved = (theirs, 0.0) if right is None else (right.values[place], right.moved[place])
        wanted = np.where(equal, ours.astype("float64"), wanted.astype("float64"))
        moved += 0.0 if right else 64 * float(ml_dtypes.finfo(theirs.dtype).eps) * _largest(theirs)
        close([ours], Reference([wanted], [moved]))


def _largest(x) -> float:
    x = np.abs(x.astype("float64"))
    return float(x[np.isfinite(x)].max(initial=0))


# ---------------------------------------------------------------- frontends


class _Torch:
    """PyTorch's samples; bfloat16 goes in and out as ml_dtypes's."""

    def __init__(self):
        import torch_suite

        self.suite, self.operators = torch_suite, torch_suite.operators()
        self.names = [name for name in self.operators if name not in torch_suite.REFUSED]

    def case(self, name: str, rng) -> Case | None:
        import torch
        from torch.utils import _pytree as pytree

        found = self.suite.samples(self.operators[name])
        if not found:
            return None
        network = self.suite.Samples([(self.operators[name], found[rng.integers(len(found))])]).eval()

        def tensor(x):
            if x.dtype == ml_dtypes.bfloat16:
                return torch.from_numpy(np.array(x).view("int16")).view(torch.bfloat16)
            return torch.from_numpy(np.array(x))

        def framework(*arrays):
            with torch.no_grad():
                results = pytree.tree_leaves(network(*map(tensor, arrays)))
            return [self._array(each) for each in results]

        def ours(arrays, shapes, level):
            specs = [(f"in{i}", (shape, x.dtype.name)) for i, (x, shape) in enumerate(zip(arrays, shapes, strict=True))]
            lib = tvmfast.build(*tvmfast.from_pytorch(network, specs), opt_level=level)
            return _list(lib(*arrays))

        return Case([self._array(x) for x in network.tensors], framework, ours)

    @staticmethod
    def _array(x) -> np.ndarray:
        import torch

        x = x.detach().contiguous()
        if x.dtype == torch.bfloat16:
            return x.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
        return x.numpy()


class _Onnx:
    """ONNX's node tests, held against ONNX Runtime, and in float64 against ONNX's reference."""

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

        def model(arrays, shapes):
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

        def framework(*arrays):
            proto = model(arrays, [x.shape for x in arrays])
            feed = {value.name: np.ascontiguousarray(x) for value, x in zip(proto.graph.input, arrays, strict=True)}
            try:
                options = onnxruntime.SessionOptions()
                options.log_severity_level = 4
                session = onnxruntime.InferenceSession(
                    proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
                )
                return [np.asarray(each) for each in session.run(None, feed)]
            except Exception as error:
                if "NOT_IMPLEMENTED" not in str(error):
                    raise
                return second(*arrays)

        def ours(arrays, shapes, level):
            lib = tvmfast.build(*tvmfast.from_onnx(model(arrays, shapes)), opt_level=level)
            return _list(lib(*arrays))

        def second(*arrays):
            proto = model(arrays, [x.shape for x in arrays])
            feed = {value.name: x for value, x in zip(proto.graph.input, arrays, strict=True)}
            return [np.asarray(each) for each in ReferenceEvaluator(proto).run(None, feed)]

        return Case([x for value, x in given if value.name not in deciding], framework, ours, second)


class _Mxnet:
    """The symbols of `test_import_mxnet.py`, with random parameters."""

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

        def params(arrays):
            given = dict(zip(names, arrays, strict=True))
            key = tuple(x.shape for x in arrays)
            if key not in drawn:
                drawn[key] = self.suite.params_of(symbol, **given)
            dtype = arrays[0].dtype
            return given, {name: each.astype(dtype) for name, each in drawn[key].items()}

        def framework(*arrays):
            return self.suite.mxnets(symbol, *params([np.ascontiguousarray(x) for x in arrays]))

        def ours(arrays, shapes, level):
            given, weights = params(arrays)
            specs = {name: (shape, str(x.dtype)) for (name, x), shape in zip(given.items(), shapes, strict=True)}
            lib = tvmfast.build(*tvmfast.from_mxnet(symbol, weights, specs), opt_level=level)
            return _list(lib(*arrays))

        return Case(inputs, framework, ours)


FRONTENDS = {"torch": _Torch, "onnx": _Onnx, "mxnet": _Mxnet}


def _list(results) -> list[np.ndarray]:
    return list(map(np.asarray, results if isinstance(results, list | tuple) else [results]))


def draw(frontend: Any, kind: str, level: int, number: int) -> tuple[str, Situation | None, str]:
    """The operator of a draw, its situation, and what becomes of it; each operator comes in turn."""
    rng = np.random.default_rng([SEED, number])
    name = frontend.names[number % len(frontend.names)]
    case = frontend.case(name, rng)
    if case is None:
        return name, None, "none: no sample"
    how = situation(rng, [x.shape for x in case.inputs], kind)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return name, how, outcome(case, how, level, rng)


# ---------------------------------------------------------------- the table


def _serve(kind: str, level: int) -> None:
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what an operator prints is no reply
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    frontend = FRONTENDS[kind]()
    for number in json.load(sys.stdin):
        name, how, text = draw(frontend, kind, level, int(number))
        line = {"number": int(number), "name": name, "situation": str(how), "outcome": text}
        line["kinds"] = how.kinds() if how else []
        print(json.dumps(line), file=replies, flush=True)


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


def _main(kind: str, level: int, first: int = 0, count: int = 0) -> None:
    known = _known(kind, level)
    left = [str(number) for number in range(first, first + count) if number not in known]
    FILES.mkdir(parents=True, exist_ok=True)
    with (FILES / f"{kind}-{level}.jsonl").open("a") as file:
        command = [sys.executable, "-W", "ignore", __file__, "serve", kind, str(level)]
        for number, line in forked.replies(command, left, SECONDS):
            if isinstance(line, str):  # a crash or a hang
                line = {"number": int(number), "name": f"draw {number}", "situation": "", "kinds": [], "outcome": line}
            known[int(number)] = line
            print(json.dumps(line), file=file, flush=True)
            if line["outcome"].partition(":")[0] in ("wrong", "unclear", "crash", "hang"):
                print(f"{number} {line['name']} ({line['situation']}): {line['outcome']}", flush=True)
    print(table(list(known.values())))
    bad = [n for n, line in known.items() if line["outcome"].partition(":")[0] in ("wrong", "crash", "hang")]
    if bad:
        sys.exit(f"{len(bad)} draws are wrong, or ended or hung their process: {', '.join(map(str, sorted(bad)))}")


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        _serve(sys.argv[2], int(sys.argv[3]))
    else:
        _main(sys.argv[1], *map(int, sys.argv[2:]))
