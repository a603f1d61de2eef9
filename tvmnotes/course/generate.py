"""`generate`: text from a compiled language model, shown token by token."""

import functools
import itertools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from .tokens import BytePairs, bundled


def generate(
    lib: Any,
    prompt: str,
    tokens: int = 100,
    temperature: float = 0.8,
    seed: int | None = None,
    tokenizer: BytePairs | None = None,
    stream: Any = None,
) -> str:
    """Continue a text with a compiled language model, and show each token as it comes.

    Args:
        lib: What `tn.build` makes of `language.Step` with its `state`, or a network with the same inputs: a
            token, int64 (1, 1), and its position, int64 (1,). Its own state is left alone.
        prompt: The text to continue. The model reads it token by token.
        tokens: How many tokens to write, at most: the text also ends where the cache is full.
        temperature: 0 takes the most probable token each time; 1 draws with the model's probabilities; in
            between, probable tokens are drawn more often.
        seed: For the draws. None: another text each time.
        tokenizer: The model's tokenizer; None: that of `models.load("tiny_lm")`.
        stream: The file to show the text on, the prompt included; None: `sys.stdout`.

    Returns:
        The prompt and its continuation.

    Raises:
        TypeError: `lib` is not such a language model.
        ValueError: The prompt is empty, or does not fit into the cache; or `tokens` or `temperature` is
            below 0.
    """
    tokenizer = tokenizer or bundled()
    length = _cache_length(lib, len(tokenizer.tokens))
    if not prompt:
        raise ValueError("prompt: expected some text to continue, such as 'def '; got none")
    if tokens < 0:
        raise ValueError(f"tokens: expected 0 or more, got {tokens}")
    if not 0 <= temperature < np.inf:
        raise ValueError(f"temperature: expected a number from 0 on, such as 0.8; got {temperature}")
    given = tokenizer.encode(prompt)
    if len(given) > length:
        raise ValueError(
            f"prompt: expected at most {length} tokens, the positions of the cache; got {len(given)}. "
            f"Give its end: tokenizer.decode(tokenizer.encode(prompt)[-{length // 2}:])"
        )
    pick = functools.partial(_pick, temperature=temperature, rng=np.random.default_rng(seed))
    # The last token needs no position, since nothing is computed from it.
    count = min(tokens, length - len(given) + 1)
    parts = []
    shown = stream or sys.stdout
    flush = shown.isatty()  # a notebook shows what there is several times a second, and stores each flush
    for part in itertools.chain([prompt], tokenizer.stream(_continued(lib.session(), given, count, pick))):
        parts.append(part)
        print(part, end="", file=shown, flush=flush)
    print(file=shown)
    return "".join(parts)


def _cache_length(lib: Any, vocabulary: int) -> int:
    """Return the number of positions in the cache of a language model; raise TypeError for anything else."""
    inputs = [(spec.shape, spec.dtype) for spec in getattr(lib, "inputs", ())]
    state = list(getattr(lib, "state", ()))
    outputs = [spec.shape[-1:] for spec in getattr(lib, "outputs", ())]
    one_token = inputs == [((1, 1), "int64"), ((1,), "int64")] and outputs == [(vocabulary,)]
    if not (one_token and state and hasattr(lib, "session")):
        raise TypeError(
            "lib: expected a compiled language model: inputs token int64[1, 1] and position int64[1], caches "
            f"as state, and one output, the logits of {vocabulary} tokens. language.Step is one: "
            f"tn.build(*tn.from_pytorch(step, step.inputs), state=step.state). Got {lib!r:.300}"
        )
    return state[0].shape[-2]


def _continued(step: Callable, given: list[int], count: int, pick: Callable) -> Iterator[int]:
    """Read the given tokens, one call each, then yield `count` more, each computed from all before it."""
    for position, token in enumerate(given):
        logits = _logits(step, token, position)
    for position in range(len(given), len(given) + count):
        token = pick(logits)
        yield token
        if position + 1 < len(given) + count:
            logits = _logits(step, token, position)


def _logits(step: Callable, token: int, position: int) -> np.ndarray:
    """Run one step; the lib's own caches hold what came before."""
    return step(np.array([[token]], "int64"), np.array([position], "int64")).reshape(-1)


def _pick(logits: np.ndarray, temperature: float, rng: np.random.Generator) -> int:
    """Draw a token with the probabilities softmax(logits / temperature)."""
    if temperature == 0:
        return int(logits.argmax())
    with np.errstate(over="ignore"):  # of a very small temperature
        weights = np.exp((logits.astype("float64") - logits.max()) / temperature)
    return int(rng.choice(len(weights), p=weights / weights.sum()))
