"""Exercises of lesson 18: the temperature, two texts at the same time, a longer context, a layer in nn."""

import itertools

import numpy as np
import torch
import tvm
from tvm import relax
from tvm.relax.frontend import nn

from tvmfast.core import machine

from .. import models
from .exercise import agree, exercise, require

_VOCABULARY = 11


@exercise(
    "18.1",
    "Divide the logits by the temperature, then take the softmax. Temperature 0 is a case of its own.",
    "Subtract the largest logit before np.exp, which overflows else. At 0, put 1 where logits.argmax() is.",
    minutes=15,
    difficulty=1,
)
def probabilities_at_a_temperature(answer):
    """Probabilities at a temperature."""
    logits = np.array([1.0, 3.0, -2.0, 2.5, 0.0])
    for temperature in (1, 0.5, 2):
        weights = np.exp(logits / temperature)
        what = f"the probabilities at temperature {temperature}"
        agree(
            answer(logits, temperature),
            weights / weights.sum(),
            what,
            "They are softmax(logits / temperature).",
        )
    do = "At temperature 0 the most probable token is always drawn."
    agree(answer(logits, 0), np.eye(5)[1], "the probabilities at temperature 0", do)
    with np.errstate(over="ignore", invalid="ignore"):
        large = np.asarray(answer(1e4 * logits, 1))
    do = "Subtract the largest logit first: the softmax stays the same, and nothing overflows."
    require(np.isfinite(large).all(), "the probabilities of logits of 10,000", "numbers", large.tolist(), do)


class _Session:
    """A made-up language model: its next token is a number computed from all tokens that it has read."""

    def __init__(self, log: list):
        self.log = log
        self.read: list[int] = []

    def __call__(self, token, position) -> np.ndarray:
        do = "A session reads the tokens of one text, one after the other, each with its position."
        require(int(position[0]) == len(self.read), "a position", len(self.read), int(position[0]), do)
        self.read.append(int(token[0, 0]))
        self.log.append(self)
        logits = np.zeros((1, 1, _VOCABULARY), "float32")
        logits[0, 0, following(self.read)] = 1
        return logits


class _Network(_Session):
    """The same with sessions; called itself, it has one state for all."""

    def session(self) -> _Session:
        return _Session(self.log)


def following(read: list[int]) -> int:
    """Return the token after those that were read."""
    return (3 * sum(read) + len(read)) % _VOCABULARY


@exercise(
    "18.2",
    "Make a session for each prompt with lib.session(). Read both prompts before you write.",
    "Keep the last logits of each session. In a loop, append the most probable token to a text and read it.",
    minutes=20,
    difficulty=2,
)
def two_texts_at_the_same_time(answer):
    """Two texts written at the same time."""
    log: list[_Session] = []
    prompts, count = [[1, 4, 2], [7, 3]], 8
    got = answer(_Network(log), prompts, count)
    for name, prompt, text in zip(("first", "second"), prompts, got, strict=True):
        wanted = list(prompt)
        while len(wanted) < len(prompt) + count:
            wanted.append(following(wanted))
        wanted = wanted[len(prompt) :]
        do = "Each text has a session of its own, and each token is the one with the largest logit."
        require(list(map(int, text)) == wanted, f"the tokens of the {name} text", wanted, list(text), do)
    switches = sum(a is not b for a, b in itertools.pairwise(log))
    do = "Write one token of the first text, then one of the second, and so on."
    require(switches >= count, "changes from one session to the other", f"{count} or more", switches, do)


@exercise(
    "18.3",
    "tn.language.Decoder(length=512) has the same weights: load_state_dict takes those of net.state_dict().",
    "Call eval() on it, make a tn.language.Step of it, import that, and build it with the state of the step.",
    minutes=15,
    difficulty=2,
)
def longer_context(answer):
    """A longer context."""
    positions = [spec.shape[-2] for spec in answer.state]
    do = "Make the decoder with length=512, then a step of it."
    require(positions == [512, 512], "the positions of the two caches", [512, 512], positions, do)
    net = models.load("tiny_lm")
    tokens = np.array([net.tokenizer.encode("def add(a, b):\n    return")])
    with torch.inference_mode():
        reference = net(torch.from_numpy(tokens)).numpy()
    session = answer.session()
    rows = [session(tokens[:, n : n + 1], np.array([n])) for n in range(tokens.shape[1])]
    do = "Load the weights of net before you build."
    agree(np.concatenate(rows, axis=1), reference, "the logits of the first tokens", do)


@exercise(
    "18.4",
    "nn.Parameter((outputs, inputs)) is a parameter. nn.op.matmul needs each matrix as permute_dims(1, 0).",
    "Multiply x by down first, which leaves rank numbers for each row, then the result by up.",
    minutes=20,
    difficulty=2,
)
def layer_of_low_rank(answer):
    """A layer in nn."""
    inputs, outputs, rank = 40, 24, 3
    layer = answer(inputs, outputs, rank)
    do = "Write a subclass of nn.Module with a forward."
    require(isinstance(layer, nn.Module), "the class of the answer", "an nn.Module", type(layer).__name__, do)
    shapes = {"weight": (outputs, inputs), "down": (rank, inputs), "up": (outputs, rank)}
    got = {name: tuple(map(int, parameter.shape)) for name, parameter in layer.named_parameters()}
    do = "Each is an nn.Parameter of that shape, kept as an attribute of that name."
    require(got == shapes, "the parameters' shapes", shapes, got, do)

    mod, named = layer.export_tvm({"forward": {"x": nn.spec.Tensor(["count", inputs], "float32")}})
    products = []

    def visit(expr):
        if isinstance(expr, tvm.ir.Call) and getattr(expr.op, "name", None) == "relax.matmul":
            products.append({int(size) for size in expr.ty.shape if isinstance(size, tvm.tirx.IntImm)})

    relax.analysis.post_order_visit(mod["forward"], visit)
    made = {outputs, inputs} in products
    do = "Multiply x by down, and the result by up: A x first, then B."
    require(not made, "the products", "none as large as W", f"one of {outputs} by {inputs}", do)

    rng = np.random.default_rng(0)
    arrays = {name: rng.standard_normal(shape).astype("float32") for name, shape in shapes.items()}
    weights = [tvm.runtime.tensor(arrays[name]) for name, _ in named]
    run = relax.VirtualMachine(tvm.compile(mod, target=machine.host_target()), tvm.cpu())["forward"]
    for count in (5, 1):
        x = rng.standard_normal((count, inputs)).astype("float32")
        exact = x.astype("float64") @ (arrays["weight"] + arrays["up"].astype("float64") @ arrays["down"]).T
        do = "The result is W x + B (A x) for each row of x."
        agree(run(tvm.runtime.tensor(x), *weights), exact, f"the result for {count} rows", do)
