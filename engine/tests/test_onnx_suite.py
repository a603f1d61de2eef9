"""ONNX's own node tests on the project's backend: each is equal, or refused by its operator's name and listed with why.

`make test` builds a sample, many cases in one model; `make suites` runs all, behind a process that may crash.
"""

import json
import sys
from collections import Counter
from itertools import groupby
from pathlib import Path

import numpy as np
import onnx
import onnx_suite
import pytest
import torch
from agreement import close
from onnx.helper import make_node
from testing import sampled
from torch.nn.functional import grid_sample
from torchvision.ops import roi_align

from tvmfast.backends import onnx_backend

# "refused" and "wrong" have the cases by reason, "mended" one of each kind that was wrong, unclear or missing once.
LISTED = json.loads((Path(__file__).parent / "onnx_suite.json").read_text())
KNOWN = {name: kind for kind in ("refused", "wrong") for names in LISTED[kind].values() for name in names}


@pytest.fixture(scope="module")
def cases():
    return onnx_suite.cases(quick=True)


def surprises(found: dict[str, str]) -> dict[str, str]:
    """What is neither equal, nor refused by name or wrong, and listed as such."""
    return {name: text for name, text in found.items() if text.partition(":")[0] != KNOWN.get(name, "equal")}


@pytest.mark.parametrize("step", sampled([30, 12], [30]))
def test_a_sample_of_onnxs_node_tests(cases, step):
    """All that is mended, and every `step`th case."""
    names = set(LISTED["mended"]) | {name for name in list(cases)[::step] if name not in KNOWN}

    def opset(case):
        return case.model.opset_import[0].version, case.model.ir_version

    failed = {}
    for _, batch in groupby(sorted((cases[name] for name in names), key=opset), key=opset):
        batch = list(batch)
        model, inputs, wanted = onnx_suite.together(batch)
        try:
            results = iter(onnx_backend.run_model(model, inputs, opt_level=0))
            for case, expected in zip(batch, wanted, strict=True):
                onnx_suite.require_equal(case, [next(results) for _ in expected], expected)
        except Exception:  # which one is it?
            failed |= {case.name: onnx_suite.outcome(case, onnx_backend, opt_level=0) for case in batch}
    assert set(failed.values()) <= {"equal"}, {name: text for name, text in failed.items() if text != "equal"}


@pytest.mark.parametrize(
    "name",
    ["top_k_uint64", "cast_FLOAT_to_FLOAT8E4M3FN", "castlike_FLOAT_to_UINT4", "nonzero_example"],
)
def test_cases_that_are_refused_by_name(cases, name):
    assert onnx_suite.outcome(cases[f"test_{name}"], onnx_backend, opt_level=0).startswith("refused: ")


def _regions(aligned: bool):
    return lambda x, rois, images: roi_align(x, torch.cat([images[:, None], rois], 1), 5, 1.0, 2, aligned)


@pytest.mark.parametrize(
    ("name", "reference"),
    [
        ("roialign_aligned_false", _regions(False)),
        ("roialign_aligned_true", _regions(True)),
        ("gridsample_bicubic", lambda x, grid: grid_sample(x, grid, mode="bicubic", align_corners=False)),
    ],
)
def test_results_of_which_onnx_wrote_four_digits(cases, name, reference):
    case = cases[f"test_{name}"]
    inputs = case.data_sets[0][0]
    (got,) = onnx_backend.run_model(case.model, inputs, opt_level=0)
    close(got, reference(*(torch.from_numpy(x).double() for x in inputs)), 16)


def test_what_is_listed_is_a_case(cases):
    quick = {name for name in (*KNOWN, *LISTED["mended"]) if name.split("_")[1] not in onnx_suite.SLOW}
    assert quick <= set(cases)
    assert all(LISTED["refused"]) and all(LISTED["wrong"])


def test_a_wrong_result_is_wrong(cases):
    class Zeros:
        @staticmethod
        def prepare(model, device):
            return Zeros

        @staticmethod
        def run(inputs):
            return (np.zeros_like(inputs[0]),)

    assert onnx_suite.outcome(cases["test_abs"], Zeros).startswith("wrong: ")


def test_the_backend_runs_nodes_and_models_and_only_on_the_cpu(cases):
    a, b = np.arange(6, dtype="float32").reshape(2, 3), np.ones(3, "float32")
    for info in (None, [(np.dtype("float32"), (2, 3))]):
        (got,) = onnx_backend.run_node(make_node("Sub", ["a", "b"], ["c"]), [a, b], outputs_info=info, opt_level=0)
        np.testing.assert_array_equal(got, a - b)
    model = onnx.ModelProto()
    model.CopyFrom(cases["test_abs"].model)
    for dim in model.graph.input[0].type.tensor_type.shape.dim:
        dim.dim_param = "n"
    prepared = onnx_backend.prepare(model, opt_level=0)
    for shape in ((2, 2, 2), (3, 3, 3)):
        (got,) = prepared.run({model.graph.input[0].name: np.full(shape, -1, "float32")})
        np.testing.assert_array_equal(got, np.ones(shape, "float32"))
    with pytest.raises(ValueError, match="the model takes 1 inputs"):
        prepared.run([a, b])
    assert onnx_backend.supports_device("CPU") and not onnx_backend.supports_device("CUDA:1")
    with pytest.raises(ValueError, match="expected 'CPU', got 'CUDA'"):
        onnx_backend.prepare(model, "CUDA")


def main(words: list[str]) -> None:
    """Print what becomes of all cases, or of every OFth from FIRST on, here or in ONNX Runtime.

    Words: [FIRST OF] [onnxruntime].
    """
    slice_of = [int(word) for word in words if word.isdecimal()]
    names = list(onnx_suite.cases())[slice(slice_of[0], None, slice_of[1]) if slice_of else slice(None)]
    own = "onnxruntime" not in words
    found = onnx_suite.outcomes(names, {}, "" if own else "onnxruntime")
    for name, text in (surprises(found) if own else found).items():
        if text != "equal":
            print(f"{name}: {text}")
    print(dict(Counter(text.partition(":")[0] for text in found.values())), "of", len(found))
    raise SystemExit(bool(own and surprises(found)))


if __name__ == "__main__":
    main(sys.argv[1:])
