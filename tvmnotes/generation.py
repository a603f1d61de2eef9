"""`generate`: text from a compiled language model, shown token by token."""

import functools
import itertools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tvmfast.core.dims import Dim

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
            token, int64 (1, 1), and its position, int64 (1,). Or several tokens, (1, new), and theirs,
            (new,), where `new` is a dynamic dim of 1 or more. Its own state is left alone.
        prompt: The text to continue. The model reads it in as few calls as its inputs allow.
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
    length, most = _lengths(lib, len(tokenizer.tokens))
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
    written = _continued(lib.session(), given, most, count, pick)
    for part in itertools.chain([prompt], tokenizer.stream(written)):
        parts.append(part)
        print(part, end="", file=shown, flush=flush)
    print(file=shown)
    return "".join(parts)


def _lengths(lib: Any, vocabulary: int) -> tuple[int, int]:
    """Return the number of positions in the cache of a language model, and of tokens that a call may read.

    Raises TypeError for anything else.
    """
    inputs = [(spec.shape, spec.dtype) for spec in getattr(lib, "inputs", ())]
    caches = [spec.shape for spec in getattr(lib, "state", ())]
    outputs = [spec.shape[-1:] for spec in getattr(lib, "outputs", ())]
    new = inputs[-1][0][-1] if inputs and inputs[-1][0] else None
    is_dynamic = isinstance(new, Dim) and new.lower == 1
    reads_tokens = inputs == [((1, new), "int64"), ((new,), "int64")] and (new == 1 or is_dynamic)
    length = caches[0][-2] if caches and len(caches[0]) > 1 else None
    has_cache = isinstance(length, int) and hasattr(lib, "session")
    if not (reads_tokens and has_cache and outputs == [(vocabulary,)]):
        raise TypeError(
            "lib: expected a compiled language model: inputs token int64[1, 1] and position int64[1], or "
            "int64[1, new] and int64[new] with a dynamic dim of 1 or more, caches as state, and one output, "
            f"the logits of {vocabulary} tokens. language.Step is one: "
            f"tn.build(*tn.from_pytorch(step, step.inputs), state=step.state). Got {lib!r:.300}"
        )
    return length, (new.upper or length) if is_dynamic else 1


def _continued(step: Callable, given: list[int], most: int, count: int, pick: Callable) -> Iterator[int]:
    """Read the given tokens, at most `most` in a call, then yield `count` more, each from all before it."""
    for position in range(0, len(given), most):
        logits = _logits(step, given[position : position + most], position)
    for position in range(len(given), len(given) + count):
        token = pick(logits)
        yield token
        if position + 1 < len(given) + count:
            logits = _logits(step, [token], position)


def _logits(step: Callable, tokens: list[int], position: int) -> np.ndarray:
    """Read tokens from a position on, and return the last one's logits; caches hold what came before."""
    logits = step(np.array([tokens], "int64"), np.arange(position, position + len(tokens), dtype="int64"))
    return logits.reshape(-1, logits.shape[-1])[-1]


def _pick(logits: np.ndarray, temperature: float, rng: np.random.Generator) -> int:
    """Draw a token with the probabilities softmax(logits / temperature)."""
    if temperature == 0:
        return int(logits.argmax())
    with np.errstate(over="ignore"):  # of a very small temperature
        weights = np.exp((logits.astype("float64") - logits.max()) / temperature)
    return int(rng.choice(len(weights), p=weights / weights.sum()))
