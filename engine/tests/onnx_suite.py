"""The node tests that the onnx package carries, case by case: what becomes of each through the project's backend.

`outcome` runs one case here. `outcomes` runs many in a process of their own, which a crash ends for one case alone.
"""

import importlib
import json
import os
import pkgutil
import sys

import forked
import numpy as np
import onnx
from agreement import close
from onnx import compose, numpy_helper
from onnx.backend.test.case import node as node_cases

SECONDS = 120  # for one case
SLOW = {"averagepool", "lppool", "maxpool"}  # to make these cases takes nine seconds, all others two
_OTHERS = {"RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Multinomial", "Bernoulli"}
_CLEAR = (NotImplementedError, ValueError, IndexError, AssertionError, onnx.checker.ValidationError)


def cases(quick: bool = False) -> dict:
    """The cases in scope by name: no sequences, optionals, strings, training, random numbers or expanded functions.

    With `quick`, those that take seconds to make may be left out.
    """
    with np.errstate(all="ignore"):  # what makes the cases divides by zero
        for module in pkgutil.iter_modules(node_cases.__path__):
            if not (quick and module.name in SLOW):
                importlib.import_module(f"{node_cases.__name__}.{module.name}")
    return {case.name: case for case in node_cases._NodeTestCases if "_expanded" not in case.name and _in_scope(case)}


def _in_scope(case) -> bool:
    graph = case.model.graph
    kinds = [value.type for value in (*graph.input, *graph.output)]
    tensors = all(
        kind.WhichOneof("value") == "tensor_type" and kind.tensor_type.elem_type != onnx.TensorProto.STRING
        for kind in kinds
    )
    plain = all(node.domain in ("", "ai.onnx") and node.op_type not in _OTHERS for node in graph.node)
    return tensors and plain and not case.name.startswith(("test_training", "test_sequence", "test_optional"))


def outcome(case, backend, **options) -> str:
    """What becomes of a case: "equal", or "refused", "unclear" or "wrong", with a colon and the words that say so."""
    try:
        prepared = backend.prepare(case.model, "CPU", **options)
        for inputs, expected in case.data_sets:
            require_equal(case, prepared.run(list(map(_array, inputs))), expected)
    except AssertionError as error:
        return f"wrong: {' '.join(str(error).split())[:200]}"
    except Exception as error:
        names = any(node.op_type in str(error) for node in case.model.graph.node)
        says = all(isinstance(each, _CLEAR) for each in (error, error.__cause__ or error))
        text = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        return f"{'refused' if names and says else 'unclear'}: {text}"
    return "equal"


def require_equal(case, got, expected) -> None:
    """Raise AssertionError where the results of a case are not those that ONNX expects, but for rounding."""
    expected = list(map(_array, expected))
    assert len(got) == len(expected), f"{len(got)} outputs for {len(expected)}"
    terms = max((_array(x).size for x in case.data_sets[0][0]), default=1)  # a sum of a whole input at most
    for ours, theirs in zip(got, expected, strict=True):
        assert ours.dtype == theirs.dtype, f"expected {theirs.dtype}, got {ours.dtype}"
        if theirs.dtype.kind in "fc" or theirs.dtype == "bfloat16":
            close(ours, theirs, terms, rounded=True)
        else:
            assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
            np.testing.assert_array_equal(ours, theirs)


def _array(x) -> np.ndarray:
    return numpy_helper.to_array(x) if isinstance(x, onnx.TensorProto) else np.asarray(x)


def together(batch: list) -> tuple[onnx.ModelProto, list, list[list]]:
    """One model of many cases of one opset, its inputs, and, case by case, what is expected of its outputs."""
    models = [compose.add_prefix(case.model, f"{number}_") for number, case in enumerate(batch)]
    whole = onnx.ModelProto()
    whole.CopyFrom(models[0])
    for model in models[1:]:
        for field in ("node", "input", "output", "initializer", "value_info"):
            getattr(whole.graph, field).extend(getattr(model.graph, field))
    sets = [case.data_sets[0] for case in batch]
    return whole, [_array(x) for inputs, _ in sets for x in inputs], [expected for _, expected in sets]


def outcomes(names: list[str], options: dict, backend: str = "") -> dict[str, str]:
    """What becomes of each of these cases; a case that ends its process, or does not end, is a "crash" or a "hang"."""
    command = [sys.executable, __file__, json.dumps(options), backend]
    return dict(forked.replies(command, names, SECONDS))


def _serve(options: dict, name: str) -> None:
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a case prints is no reply
    every = cases()
    if name:
        import onnxruntime.backend as backend
    else:
        from tvmfast.backends import onnx_backend as backend
    for each in json.load(sys.stdin):
        print(json.dumps(outcome(every[each], backend, **options)), file=replies, flush=True)


if __name__ == "__main__":
    _serve(json.loads(sys.argv[1]), sys.argv[2])
