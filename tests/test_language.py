"""The language model: its tokens, its two forms, its training, and the text that it writes once compiled."""

import io
import json
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from agreement import close, reference
from hypothesis import given, strategies
from testing import imported
from torch.nn import functional as F
from typer.testing import CliRunner

import tvmnotes as tn
from tvmfast.core.specs import TensorSpec
from tvmnotes import language, models, tokens
from tvmnotes.__main__ import app
from tvmnotes.tokens import BytePairs

FOLDER = Path(__file__).parents[1] / "data" / "lm"
LENGTH = 12
TEXT = 'def add(a, b):\n    """Return the sum."""\n    return a + b\n\n\ndef sub(a, b):\n    return a - b\n' * 8


@pytest.fixture(scope="module")
def script() -> ModuleType:
    """data/lm/train.py as a module; importing it trains nothing."""
    return imported(FOLDER / "train.py")


@pytest.fixture(scope="module")
def tokenizer() -> BytePairs:
    return BytePairs.learn(TEXT, 280)


def small(seed: int = 0) -> language.Decoder:
    """A network of few weights, so large that each token matters."""
    torch.manual_seed(seed)
    net = language.Decoder(vocabulary=280, width=16, layers=2, heads=4, kv_heads=2, hidden=24, length=LENGTH).eval()
    with torch.no_grad():
        for weight in net.parameters():
            if weight.ndim == 2:
                weight.normal_(std=0.5)
    return net


@pytest.fixture(scope="module")
def net() -> language.Decoder:
    return small()


@pytest.fixture(scope="module")
def lib(net):
    step = language.Step(net)
    return tn.build(*tn.from_pytorch(step, step.inputs), state=step.state)


# ---------------------------------------------------------------- tokens


@given(strategies.text())
def test_any_text_comes_back(text):
    for pairs in (tokens.bundled(), BytePairs([])):
        assert pairs.decode(pairs.encode(text)) == text


def test_the_most_frequent_pair_is_joined_first():
    pairs = BytePairs.learn("abab abab ab cd", 258)
    assert pairs.tokens[256:] == [b"ab", b"ab "]
    assert pairs.encode("abab ab") == [256, 257, 256]
    assert BytePairs.learn("aaaa", 999).tokens[256:] == [b"aa", b"aaaa"]  # there are no more pairs


def test_learned_tokens_shorten_a_text(tokenizer):
    assert len(tokenizer.tokens) == 280 and len(tokenizer.encode(TEXT)) < len(TEXT) / 2
    assert len(tokens.bundled().encode(TEXT)) < len(TEXT) / 2


def test_tokens_stay_within_words_signs_and_indentations():
    for token in tokens.bundled().tokens[256:]:
        text = token.decode()
        assert len(tokens._PIECES.findall("\n" + text if text[0] == " " else text)) == 1  # or the end of an indentation


def test_a_character_of_several_tokens_is_shown_once_it_is_complete():
    assert list(BytePairs([]).stream("é!".encode())) == ["", "é", "!", ""]
    assert BytePairs([]).decode("é".encode()[:1]) == "\ufffd"


@pytest.mark.parametrize("merge", [(1, 256), (1,), (-1, 2), (1.5, 2)])
def test_merges_that_are_no_pairs_of_earlier_tokens_are_refused(merge):
    with pytest.raises(ValueError, match="merges: expected two numbers from 0 to 255 for token 256, got"):
        BytePairs([merge])


# ---------------------------------------------------------------- the two forms of the network


def sequence(rng, length=LENGTH) -> torch.Tensor:
    return torch.from_numpy(rng.integers(0, 280, (1, length)))


def test_steps_give_the_logits_of_the_whole_sequence(net, rng):
    sent = sequence(rng)
    # Rows that no step may read before it has written them.
    keys, values = (torch.full(net.cache_shape, 1e3) for _ in range(2))
    rows = []
    with torch.no_grad():
        for i in range(LENGTH):
            logits, keys, values = net.step(sent[:, i : i + 1], torch.tensor([i]), keys, values)
            rows.append(logits)
            assert (keys[..., i + 1 :, :] == 1e3).all()
    wanted = reference(net, sent)
    assert np.abs(wanted.values[0]).max() > 1
    close(torch.cat(rows, 1), wanted)


def test_a_token_sees_no_later_ones(net, rng):
    sent = sequence(rng)
    changed = sent.clone()
    changed[0, 7:] = (sent[0, 7:] + 1) % 280
    with torch.no_grad():
        one, other = net(sent), net(changed)
    wanted = reference(net, sent)
    close(other[:, :7], wanted._replace(values=[wanted.values[0][:, :7]]))
    assert (one[:, 7:] - other[:, 7:]).abs().max() > 0.1


def test_both_forms_compiled_agree_with_pytorch(net, lib, rng):
    sent = sequence(rng)
    wanted = reference(net, sent)
    whole = tn.build(net, {"tokens": ((1, LENGTH), "int64")}, opt_level=0)
    close(whole(sent), wanted)
    lib.reset()
    rows = [lib(sent[:, i : i + 1], torch.tensor([i])) for i in range(LENGTH)]
    close(np.concatenate(rows, axis=1), wanted)
    with pytest.raises(IndexError):
        lib(sent[:, :1], torch.tensor([LENGTH]))


# ---------------------------------------------------------------- writing


def greedy(net, tokenizer, prompt: str, count: int) -> str:
    """What PyTorch writes, with the whole sequence at each token."""
    sent = tokenizer.encode(prompt)
    for _ in range(count):
        with torch.no_grad():
            sent.append(int(net(torch.tensor([sent]))[0, -1].argmax()))
    return tokenizer.decode(sent)


def test_the_text_is_that_of_pytorch_and_is_shown(net, lib, tokenizer, capsys):
    text = tn.generate(lib, "def add(", tokens=4, temperature=0, tokenizer=tokenizer)
    assert text == greedy(net, tokenizer, "def add(", 4)
    assert capsys.readouterr().out == text + "\n"


def test_a_text_ends_where_the_cache_is_full(net, lib, tokenizer):
    given = len(tokenizer.encode("def"))
    text = tn.generate(lib, "def", 999, 0, tokenizer=tokenizer, stream=io.StringIO())
    assert text == greedy(net, tokenizer, "def", LENGTH + 1 - given)


class Several(language.Step):
    """A step of any number of tokens, which are written into the caches before they attend to these."""

    def forward(self, token, position, keys, values):
        net, keys, values = self.decoder, keys.clone(), values.clone()
        x, angles = net.embed(token), (net.cos[position], net.sin[position])
        seen = net.positions <= position[:, None]
        for layer, block in enumerate(net.blocks):
            attention = block.attention
            q, k, v = attention.project(block.norm1(x), *angles)
            keys[layer] = keys[layer].index_copy(2, position, k)
            values[layer] = values[layer].index_copy(2, position, v)
            several = attention.heads // attention.kv_heads
            k, v = (each[layer].repeat_interleave(several, dim=1) for each in (keys, values))
            x = x + attention.out(F.scaled_dot_product_attention(q, k, v, seen).transpose(1, 2).flatten(2))
            x = x + block.hidden(block.norm2(x))
        return F.linear(net.norm(x), net.embed.weight), keys, values


@pytest.fixture(scope="module")
def several(net):
    new, step = tn.Dim("new", 1, LENGTH), Several(net)
    inputs = step.inputs | {"token": ((1, new), "int64"), "position": ((new,), "int64")}
    return tn.build(*tn.from_pytorch(step, inputs), state=step.state, records=False)


def reader(lib, size: int | tn.Dim, counts: list[int]) -> SimpleNamespace:
    """A language model that takes `size` tokens, and notes how many it gets."""
    session = lib.session()

    def run(token, position):
        counts.append(token.shape[1])
        return session(token, position)

    inputs = [TensorSpec("token", (1, size), "int64"), TensorSpec("position", (size,), "int64")]
    return SimpleNamespace(inputs=inputs, outputs=lib.outputs, state=lib.state, session=lambda: run)


@pytest.mark.parametrize(("most", "calls"), [(None, [7]), (LENGTH, [7]), (3, [3, 3, 1]), (1, [1] * 7)])
def test_a_prompt_is_read_in_as_few_calls_as_the_inputs_allow(lib, several, tokenizer, most, calls):
    counts = []
    for temperature in (0, 1.0):
        model = reader(several, tn.Dim("new", 1, most), counts)
        texts = [tn.generate(each, "3141592", 4, temperature, 1, tokenizer, io.StringIO()) for each in (model, lib)]
        assert texts[0] == texts[1]
    assert counts == 2 * [*calls, 1, 1, 1]


def test_several_tokens_are_written_into_the_caches_in_place(net, several):
    assert sum(bool(node.get("in_place")) for node in several.graph["nodes"]) == 2 * len(net.blocks)


def test_a_seed_repeats_a_text_whatever_the_state(lib, tokenizer):
    def write(seed):
        return tn.generate(lib, "def", 9, 1.0, seed, tokenizer, io.StringIO())

    first = write(1)
    assert write(1) == first and len({write(seed) for seed in (1, 2, 3)}) > 1
    lib(np.array([[3]]), np.array([0]))  # a state of its own, which the text does not depend on
    assert write(1) == first


def test_draws_have_the_probabilities_of_the_model():
    from tvmnotes.generation import _pick

    logits, rng = np.log(np.array([0.7, 0.2, 0.1], "float32")), np.random.default_rng(0)
    for temperature, wanted in ((1.0, [0.7, 0.2, 0.1]), (0.5, [49 / 54, 4 / 54, 1 / 54]), (1e-300, [1, 0, 0])):
        counts = np.bincount([_pick(logits, temperature, rng) for _ in range(4000)], minlength=3)
        np.testing.assert_allclose(counts / 4000, wanted, atol=0.03)  # an estimate: its deviation is 0.008 at most


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prompt": ""}, "prompt: expected some text"),
        ({"prompt": "#" * (LENGTH + 1)}, f"prompt: expected at most {LENGTH} tokens, .*; got {LENGTH + 1}"),
        ({"tokens": -1}, "tokens: expected 0 or more, got -1"),
        ({"temperature": -0.1}, "temperature: expected a number from 0 on"),
        ({"temperature": float("nan")}, "temperature: expected a number from 0 on"),
    ],
)
def test_what_cannot_be_written_is_refused(lib, change, message):
    with pytest.raises(ValueError, match=message):
        tn.generate(lib, **{"prompt": "def", "tokenizer": BytePairs([(100, 101)] * 24), **change})


def test_a_network_that_is_no_language_model_is_refused(lib):
    for other in (lambda x: x, SimpleNamespace(inputs=[], outputs=[], state=[])):
        with pytest.raises(TypeError, match="lib: expected a compiled language model"):
            tn.generate(other, "def")
    with pytest.raises(TypeError, match="the logits of 1024 tokens"):
        tn.generate(lib, "def")
    with pytest.raises(TypeError, match="a dynamic dim of 1 or more"):
        tn.generate(reader(lib, tn.Dim("new", 2), []), "def", tokenizer=BytePairs([(100, 101)] * 24))


# ---------------------------------------------------------------- the command line


def command(*args):
    return CliRunner(env={"COLUMNS": "300"}).invoke(app, list(map(str, args)))


def test_write_continues_a_text(monkeypatch, net, tokenizer):
    monkeypatch.setattr(models, "load", lambda name: {"tiny_lm": net}[name])
    monkeypatch.setattr("tvmnotes.generation.bundled", lambda: tokenizer)
    done = command("write", "def add(", "--tokens", 3, "--temperature", 0)
    assert done.exit_code == 0 and done.stdout == greedy(net, tokenizer, "def add(", 3) + "\n"
    done = command("write", "")
    assert done.exit_code == 2 and "prompt: expected some text to continue" in done.output


@pytest.mark.parametrize("args", [("bench", "tiny_lm"), ("tune", "tiny_lm")])
def test_commands_for_pictures_refuse_a_language_model(args):
    done = command(*args)
    assert done.exit_code == 2 and "tiny_lm reads tokens: expected a network of pictures" in done.output


# ---------------------------------------------------------------- training, and what came of it


@pytest.fixture
def sent(tokenizer) -> torch.Tensor:
    return torch.tensor(tokenizer.encode(TEXT), dtype=torch.int32)


def test_training_lowers_the_loss(script, sent):
    net = small()
    losses = script.train(net, sent, steps=3, batch=8)
    with torch.no_grad():
        after = script.loss_of(net, script.crops(sent, LENGTH, 0, 8)).item()
    assert len(losses) == 3 and after < losses[0] - 0.3 and not net.training


def test_an_interrupted_training_goes_on_as_if_it_had_not_been(script, sent, tmp_path, monkeypatch):
    monkeypatch.setattr(script, "CHECKPOINT_SECONDS", 0)
    whole, parts = small(), small()
    losses = script.train(whole, sent, steps=3, batch=8)

    def interrupt(step, loss):
        if step == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        script.train(parts, sent, 3, 8, tmp_path / "checkpoint.pt", interrupt)
    parts = small(seed=1)
    # Of a fitted network, not of an operator: PyTorch takes the same steps of training twice.
    assert script.train(parts, sent, 3, 8, tmp_path / "checkpoint.pt") == pytest.approx(losses[2:])
    for one, other in zip(whole.parameters(), parts.parameters(), strict=True):
        torch.testing.assert_close(one, other)


def test_what_is_saved_is_what_was_measured(script, sent, tokenizer, tmp_path, monkeypatch):
    net = small()
    with torch.no_grad():
        for weight in net.parameters():
            weight.copy_(weight.half())
    script.save(net, {"merges": tokenizer.merges}, tmp_path)
    monkeypatch.setattr(tn.data, "path", lambda name: tmp_path / Path(name).name)
    other = small(seed=1)
    monkeypatch.setattr(language, "Decoder", lambda: other)
    tokens.bundled.cache_clear()
    try:
        loaded = models.load("tiny_lm")
    finally:
        tokens.bundled.cache_clear()
    assert loaded.tokenizer.tokens == tokenizer.tokens
    assert script.bits_per_character(loaded, sent, tokenizer) == script.bits_per_character(net, sent, tokenizer)


def test_held_out_files_are_not_trained_on(script):
    paths = [f"{i:03}.py" for i in range(45)]
    training, held_out = script.split(paths)
    assert held_out == ["010.py", "030.py"] and sorted(training + held_out) == paths


UNSEEN = '''class Queue:
    """A queue of items, first in, first out."""

    def __init__(self, maxsize=0):
        self.maxsize = maxsize
        self.items = []

    def __len__(self):
        return len(self.items)

    def put(self, item):
        if self.maxsize and len(self.items) >= self.maxsize:
            raise ValueError("the queue is full")
        self.items.append(item)

    def get(self):
        """Remove and return the first item."""
        if not self.items:
            raise IndexError("the queue is empty")
        return self.items.pop(0)
'''


def test_the_model_in_the_repository_knows_python(script):
    net = models.load("tiny_lm")
    facts = json.loads((FOLDER / "tiny_lm.json").read_text())
    assert net.weights_kind == "trained here" and not net.training
    assert sum(p.numel() for p in net.parameters()) == facts["parameters"]
    assert (FOLDER / "tiny_lm.npz").stat().st_size < 4e6
    assert len(net.classes) == len(net.tokenizer.tokens) == net.embed.num_embeddings
    sent = torch.tensor(net.tokenizer.encode(UNSEEN))
    with torch.no_grad():
        bits = script.loss_of(net, sent[None, : net.input_shape[1]]).item() / np.log(2)
    # Of a text of this kind; a model of single characters without context needs more than 4 per character.
    assert bits * len(sent) / len(UNSEEN) < 1.5
    assert facts["held_out_bits_per_character"] < 2


def test_seeded_weights_need_no_training():
    one, other = (models.load("tiny_lm", pretrained=False) for _ in range(2))
    assert one.weights_kind == "seeded" and torch.equal(one.embed.weight, other.embed.weight)
