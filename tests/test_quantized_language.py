"""The language model that ships, with weights of 8 and 4 bits: how well it predicts, what it writes, its bytes."""

import io

import numpy as np
import pytest
import torch

import tvmnotes as tn
from tvmfast.quantization.weights_only import quantize_weights
from tvmnotes import language, models
from tvmnotes.tokens import bundled

TEXT = '''def count_words(path, encoding="utf-8"):
    """Return a dictionary that maps each word in a file to the number of times it occurs."""
    counts = {}
    with open(path, encoding=encoding) as file:
        for line in file:
            for word in line.split():
                word = word.strip(".,;:!?").lower()
                if not word:
                    continue
                counts[word] = counts.get(word, 0) + 1
    return counts


class Stack:
    """A list of items of which only the last one can be seen or removed."""

    def __init__(self, items=()):
        self._items = list(items)

    def push(self, item):
        self._items.append(item)

    def pop(self):
        if not self._items:
            raise IndexError("pop from an empty stack")
        return self._items.pop()

    def __len__(self):
        return len(self._items)
'''


@pytest.fixture(scope="module")
def net():
    return models.load("tiny_lm")


def bits_per_character(lib, sent: list[int]) -> float:
    """The bits that the network needs for each character of a text, given its tokens."""
    logits = np.asarray(lib(np.array([sent])))[0].astype("float64")
    logits -= logits.max(-1, keepdims=True)
    logs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    return -logs[np.arange(len(sent) - 1), sent[1:]].sum() / np.log(2) / len(bundled().decode(sent[1:]))


def test_fewer_bits_predict_nearly_as_well(net):
    sent = net.tokenizer.encode(TEXT)[: net.input_shape[1]]
    given = tn.from_pytorch(net, {"tokens": ((1, len(sent)), "int64")})
    exact = bits_per_character(tn.build(*given, records=False), sent)
    assert exact < 2  # a text of the kind that it was trained on
    for weights, most in (("int8", 0.05), ("int4", 0.15)):
        lib = tn.build(*quantize_weights(*given, weights), records=False)
        assert "unpacked_matmul" in {*lib.kernels.family} and "matmul" not in {*lib.kernels.family}
        assert bits_per_character(lib, sent) < exact + most


def test_a_step_writes_a_text_from_its_bits(net, tmp_path):
    step = language.Step(net)
    given = tn.from_pytorch(step, step.inputs)
    mod, params = quantize_weights(*given, "int8")
    lib = tn.build(mod, params, state=step.state, records=False)
    assert "matmul" not in {*lib.kernels.family}
    sent = net.tokenizer.encode(TEXT)[:9]
    rows = [np.asarray(lib(np.array([[token]]), np.array([i]))) for i, token in enumerate(sent)]
    with torch.no_grad():
        wanted = net(torch.tensor([sent])).numpy()
    # Not of rounding in float32: of weights of 8 bits.
    assert np.abs(np.concatenate(rows, 1) - wanted).max() < 0.05 * np.abs(wanted).max()
    assert tn.generate(lib, "def add(", 8, temperature=0, stream=io.StringIO()).startswith("def add(")
    stored = lib.save(tmp_path / "net") / "params.bin"
    assert stored.stat().st_size < 0.3 * sum(4 * p.numel() for p in net.parameters()) + 1e5  # tables of angles
