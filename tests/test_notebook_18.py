"""What notebook 18 claims, asserted; see test_notebook_00.py. Its own cells run here, on a smaller network.

Only counts and numbers are asserted, no times.
"""

import inspect
import runpy
from pathlib import Path

import nbformat
import numpy as np
import pandas as pd
import pytest
import torch
import tvm
from agreement import close, reference

import tvmnotes as tn
from tvmfast.core.dims import evaluate
from tvmnotes import peak, tokens

NOTEBOOK = Path(__file__).parents[1] / "notebooks" / "18_language_model.ipynb"
CELLS = {cell.id: cell.source for cell in nbformat.read(NOTEBOOK, as_version=4).cells}
LENGTH = 64
IMPORTS = CELLS["setup"].partition("\n\nprint")[0] + "\n"
PACKAGES = {"inspect": inspect, "np": np, "pd": pd, "torch": torch, "tn": tn}


def run(names, *cells):
    """Run cells of the notebook one after another, with and in the names that earlier ones have left."""
    for cell in cells:
        exec(compile(CELLS[cell], cell, "exec"), names)
    return names


@pytest.fixture(scope="module")
def names():
    """What the lesson's cells define up to the step, for a small network with random weights."""
    torch.manual_seed(0)
    net = tn.language.Decoder(width=32, layers=2, heads=4, kv_heads=2, hidden=48, length=LENGTH).eval()
    with torch.no_grad():
        for weight in net.parameters():
            if weight.ndim == 2:
                weight.normal_(std=0.3)
    net.tokenizer = tokens.bundled()
    parameters = sum(weight.numel() for weight in net.parameters())
    names = PACKAGES | {"net": net, "tokenizer": net.tokenizer, "parameters": parameters}
    run(names, "encode", "embedding", "rotary", "head", "own", "whole", "prompt", "step-build", "steps")
    names["exact"] = reference(net, names["sequence"])
    return names


@pytest.fixture(scope="module")
def in_nn(names):
    """What the cells of `relax.frontend.nn` define, for the same network."""
    names = dict(names)
    exec(IMPORTS, names)
    return run(names, "loop", "nn-model", "nn-attention", "nn-write", "paged", "batch")


def part(exact, rows):
    """Some rows of the logits in double precision."""
    return exact._replace(values=[exact.values[0][:, rows]])


def flops(lib, **sizes):
    costs = lib.graph["costs"]
    return sum(
        evaluate(costs[node["kernel"]]["flops"], sizes) for node in lib.graph["nodes"] if node["kernel"] in costs
    )


def test_the_pieces_are_the_text(names):
    assert "".join(names["pieces"]) == names["code"] and len(names["tokens"]) < len(names["code"])


def test_a_score_depends_on_the_distance_alone(names, rng):
    query, key = rng.standard_normal((2, 1, 32))
    scores = []
    for i, j in ((2, 0), (12, 10), (202, 200), (202, 0)):
        scores.append((names["turn"](query, [i]) @ names["turn"](key, [j]).T).item())
    close(np.array(scores[1:3]), np.full(2, scores[0]), 32, scale=np.abs(query).max() * np.abs(key).max() * 202)
    assert abs(scores[3] - scores[0]) > 0.1


def test_the_head_in_numpy_is_the_networks_own(names):
    weights = names["weights"]
    terms = 32 + names["dim"] + len(weights)  # the projections, the scores, the weighted values
    close(names["own"], names["head"].astype("float64"), terms)
    close(weights.sum(1), np.ones(len(weights)), len(weights))
    assert weights[0, 0] == 1 and not weights[np.triu_indices_from(weights, 1)].any()


def test_the_network_and_its_steps_give_pytorchs_logits(names):
    assert names["sequence"].shape == (1, LENGTH)
    for result in ("logits", "stepped"):
        close(names[result], names["exact"])


def test_a_row_does_not_depend_on_what_follows(names):
    assert names["first_ten"].shape[1] == 10
    close(names["first_ten"], part(names["exact"], slice(10)))
    close(names["probabilities"].sum(), np.array(1.0), names["probabilities"].size)


def test_the_state_is_neither_an_input_nor_an_output(names):
    lib = names["lib"]
    assert [spec.name for spec in lib.inputs] == ["token", "position"]
    assert [spec.name for spec in lib.state] == ["keys", "values"] and len(lib.outputs) == 1


def test_without_a_cache_the_work_grows_with_the_tokens(names):
    work = [flops(names["whole"], length=n) for n in (LENGTH // 4, LENGTH)]
    assert 3.5 < work[1] / work[0] < 8
    assert flops(names["lib"]) < work[0] / 8


def test_each_cache_is_written_in_place_a_row_for_each_block(names, monkeypatch):
    monkeypatch.setattr(peak, "flops", lambda: 100e9)
    monkeypatch.setattr(peak, "bandwidth", lambda: 10e9)
    run(names, "writes")
    blocks, *_, dim = names["net"].cache_shape
    writes = names["in_place"]
    assert writes["calls"].sum() > 0
    rows = 4 * 2 * blocks * names["kv_heads"] * dim  # bytes
    assert rows <= writes["MB"].sum() * 1e6 < 3 * rows < names["cache_bytes"] / 10


def test_a_step_reads_each_weight_once(names):
    graph = names["lib"].graph
    calls = [node["kernel"] for node in graph["nodes"] if node["kernel"] in graph["costs"]]
    costs = [graph["costs"][name] for name in calls]
    read = sum(cost["reads"] for cost in costs if {"dense", "matmul"} & set(cost["operators"]))
    used = 4 * names["parameters"]
    assert 0.95 * used < read < 1.2 * used


def test_a_call_in_place_changes_its_argument(tmp_path):
    file = tmp_path / "in_place.py"  # TVM's parser reads the source
    file.write_text(IMPORTS + CELLS["inplace"])
    names = runpy.run_path(str(file))
    np.testing.assert_array_equal(names["cache"].numpy(), [[0, 0, 0], [0, 0, 0], [1, 2, 3], [0, 0, 0]])


def test_the_loop_writes_what_generate_writes(names, capsys):
    run(names, "loop")
    capsys.readouterr()
    given = len(names["tokenizer"].encode("def read("))
    count = len(names["written"]) - given
    text = tn.generate(names["lib"], "def read(", tokens=count, temperature=0, tokenizer=names["tokenizer"])
    assert count > 40 and text == names["tokenizer"].decode(names["written"])


def test_the_model_in_nn_has_the_logits_and_writes_the_tokens_of_the_step(in_nn):
    half = in_nn["half"]
    assert in_nn["result"].shape == (1, 1, 1024) and in_nn["again"] == in_nn["written"]
    result, caches = in_nn["read"]("prefill", in_nn["sequence"][:, :half], half, in_nn["one"]["_initialize_effect"]())
    close(result, part(in_nn["exact"], slice(half)))
    for place in (half, half + 1):
        result, caches = in_nn["read"]("decode", in_nn["sequence"][:, place : place + 1], place + 1, caches)
        close(result, part(in_nn["exact"], slice(place, place + 1)))


def test_texts_in_a_batch_are_read_as_each_alone(in_nn):
    sequence, forward = in_nn["sequence"], in_nn["forward"]
    in_nn["pages"] = in_nn["paged"]["create"](*(tvm.runtime.ShapeTuple([size]) for size in (4, 256, 128, 16)))
    lengths = {0: 21, 1: 5}
    for number in lengths:
        in_nn["add"](in_nn["pages"], number)
    read = forward("prefill", [np.concatenate([sequence[0, :n] for n in lengths.values()])], lengths)
    for rows, n in zip(np.split(read[0], [21]), lengths.values(), strict=True):
        close(rows[None], part(in_nn["exact"], slice(n)))
    steps = forward("decode", [sequence[0, n : n + 1] for n in lengths.values()], dict.fromkeys(lengths, 1))
    for row, n in zip(steps, lengths.values(), strict=True):
        close(row[None], part(in_nn["exact"], slice(n, n + 1)))


def test_a_fork_shares_full_pages_and_copies_the_last(in_nn, capsys):
    run(in_nn, "fork")
    free = in_nn["free"]
    assert [free[0] - free[1], free[0] - free[2]] == [3, 4]
    assert capsys.readouterr().out.count("11 of the 11 tokens") == 2


def test_tokens_are_taken_back(in_nn):
    pages, sequence = in_nn["pages"], in_nn["sequence"]
    in_nn["add"](pages, 9)
    in_nn["forward"]("prefill", [np.append(sequence[0, :18], [1, 2, 3])], {9: 21})
    tvm.get_global_func("vm.builtin.kv_state_popn")(pages, 9, 3)
    step = in_nn["forward"]("decode", sequence[:, 18:19], {9: 1})
    close(step, part(in_nn["exact"], slice(18, 19)))


def test_a_cache_of_one_text_grows_when_it_is_full():
    of = {name: tvm.get_global_func(f"vm.builtin.attention_kv_cache_{name}") for name in ("create", "append", "view")}
    cache = of["create"](tvm.runtime.tensor(np.zeros((2, 3), "float32")), tvm.runtime.ShapeTuple([2, 3]), 0)
    for row in range(5):
        of["append"](cache, tvm.runtime.tensor(np.full((1, 3), row, "float32")))
    assert of["view"](cache, tvm.runtime.ShapeTuple([5, 3])).numpy()[:, 0].tolist() == [0, 1, 2, 3, 4]


def test_candidates_get_their_own_caches_back(names):
    run(names, "candidates")
    for place in range(4):
        token = names["sequence"][:, place : place + 1]
        results = [call(token, np.array([place])) for call in names["candidates"].values()]
    assert len(results) == 2
    for result in results:
        close(result, part(names["exact"], slice(3, 4)))
