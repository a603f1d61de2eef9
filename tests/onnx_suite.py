"""The node tests that the onnx package carries, case by case: what becomes of each through the project's backend.

`outcome` runs one case here. `outcomes` runs many in a process of their own, which a crash ends for one case alone;
`python tests/onnx_suite.py [onnxruntime]` prints a table of all, of ONNX Runtime's with that word.
"""

import json
import os
import select
import subprocess
import sys
from collections import Counter

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test.loader import load_node_model_tests
from onnx.backend.test.runner import Runner

SECONDS = 120  # for one case
_OTHERS = {"RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Multinomial", "Bernoulli"}
_CLEAR = (NotImplementedError, ValueError, IndexError, AssertionError, onnx.checker.ValidationError)


def cases() -> dict:
    """The cases in scope by name: no sequences, optionals, strings, training, random numbers or expanded functions."""
    return {case.name: case for case in load_node_model_tests() if "_expanded" not in case.name and _in_scope(case)}


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
            arrays = [numpy_helper.to_array(x) if isinstance(x, onnx.TensorProto) else np.asarray(x) for x in inputs]
            expected = [numpy_helper.to_array(x) if isinstance(x, onnx.TensorProto) else x for x in expected]
            got = prepared.run(arrays)
            assert len(got) == len(expected), f"{len(got)} outputs for {len(expected)}"
            Runner.assert_similar_outputs(expected, list(got), case.rtol, max(case.atol, 1e-6 * _largest(expected)))
    except AssertionError as error:
        return f"wrong: {' '.join(str(error).split())[:200]}"
    except Exception as error:
        names = any(node.op_type in str(error) for node in case.model.graph.node)
        says = all(isinstance(each, _CLEAR) for each in (error, error.__cause__ or error))
        text = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        return f"{'refused' if names and says else 'unclear'}: {text}"
    return "equal"


def _largest(arrays) -> float:
    """The largest finite number: what is 0 beside it, a sum in another order may have as 1e-7 of it."""
    floats = [np.abs(x[np.isfinite(x)], dtype="float64") for x in arrays if np.asarray(x).dtype.kind == "f"]
    return max((float(x.max()) for x in floats if x.size), default=0.0)


def outcomes(names: list[str], options: dict, backend: str = "") -> dict[str, str]:
    """What becomes of each of these cases; a case that ends its process, or does not end, is a "crash" or a "hang"."""
    left, found = list(names), {}
    while left:
        command = [sys.executable, __file__, "serve", json.dumps(options), backend]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        ) as child:
            child.stdin.write(json.dumps(left).encode())
            child.stdin.close()
            while left:
                ready, _, _ = select.select([child.stdout], [], [], SECONDS)
                if line := child.stdout.readline() if ready else b"":
                    found[left.pop(0)] = json.loads(line)
                    continue
                child.kill()
                found[left.pop(0)] = f"crash: ended with {child.wait()}" if ready else f"hang: {SECONDS} s"
                break
    return found


def _serve(options: dict, name: str) -> None:
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a case prints is no reply
    every = cases()
    if name:
        import onnxruntime.backend as backend
    else:
        from tvmnotes.importers import onnx_backend as backend
    for each in json.load(sys.stdin):
        print(json.dumps(outcome(every[each], backend, **options)), file=replies, flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        _serve(json.loads(sys.argv[2]), sys.argv[3])
    else:
        table = outcomes(list(cases()), {}, *sys.argv[1:])
        for name, text in table.items():
            if text != "equal":
                print(f"{name}: {text}")
        print(dict(Counter(text.partition(":")[0] for text in table.values())))
