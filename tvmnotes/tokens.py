"""Text as tokens: byte pairs, learned from a text, merged within words, runs of signs and indentations.

A token is a string of bytes. The first 256 are the single bytes, so any text has tokens; each further one
joins two earlier ones that often stand side by side.

Source: Sennrich, Haddow, Birch, "Neural machine translation of rare words with subword units", 2016.
"""

import codecs
import functools
import itertools
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence

from tvmfast.core import data

# Pairs are merged within these pieces: line breaks with the indentation behind them; words and runs of signs,
# each with a space behind it; other white space, such as tabs. Every character is in one piece.
_PIECES = re.compile(r"\n+ *|\w+ ?|[^\w\s]+ ?|\s")
_BYTES = 256


class BytePairs:
    """A tokenizer.

    Attributes:
        merges: The pairs of tokens that were joined, in order; number i makes token 256 + i.
        tokens: The bytes of each token.
    """

    def __init__(self, merges: Iterable[Sequence[int]]):
        """Make the tokens.

        Raises:
            ValueError: A merge is not a pair of earlier tokens.
        """
        self.merges = [tuple(pair) for pair in merges]
        self.tokens = [bytes([value]) for value in range(_BYTES)]
        for pair in self.merges:
            if len(pair) != 2 or not all(isinstance(n, int) and 0 <= n < len(self.tokens) for n in pair):
                raise ValueError(
                    f"merges: expected two numbers from 0 to {len(self.tokens) - 1} for token "
                    f"{len(self.tokens)}, got {pair}"
                )
            self.tokens.append(self.tokens[pair[0]] + self.tokens[pair[1]])
        self._made = {pair: _BYTES + i for i, pair in enumerate(self.merges)}

    @classmethod
    def learn(cls, text: str, vocabulary: int) -> "BytePairs":
        """Learn from a text: again and again join the pair that occurs most often, until there are enough.

        Args:
            text: The text.
            vocabulary: Number of tokens, at least 256. There are fewer if the text has no more pairs.
        """
        counts = Counter(_PIECES.findall(text))
        pieces = [list(piece.encode(errors="replace")) for piece in counts]
        times = list(counts.values())
        totals, containing = Counter(), defaultdict(set)
        for i, piece in enumerate(pieces):
            for pair in itertools.pairwise(piece):
                totals[pair] += times[i]
                containing[pair].add(i)
        merges = []
        while len(merges) < vocabulary - _BYTES and any(totals.values()):
            best = max(totals, key=lambda pair: (totals[pair], pair))
            for i in containing.pop(best):
                for pair in itertools.pairwise(pieces[i]):
                    totals[pair] -= times[i]
                pieces[i] = _joined(pieces[i], best, _BYTES + len(merges))
                for pair in itertools.pairwise(pieces[i]):
                    totals[pair] += times[i]
                    containing[pair].add(i)
            del totals[best]
            merges.append(best)
        return cls(merges)

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text."""
        pieces = _PIECES.findall(text)
        tokens = {piece: self._encoded(piece) for piece in set(pieces)}
        return [token for piece in pieces for token in tokens[piece]]

    def decode(self, tokens: Iterable[int]) -> str:
        """Return the text of tokens; bytes that are no UTF-8 become U+FFFD."""
        return "".join(self.stream(tokens))

    def stream(self, tokens: Iterable[int]) -> Iterator[str]:
        """Yield the text of each token as soon as its characters are complete."""
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        for token in tokens:
            yield decoder.decode(self.tokens[token])
        yield decoder.decode(b"", final=True)

    def _encoded(self, piece: str) -> list[int]:
        tokens = list(piece.encode(errors="replace"))
        while True:
            known = [self._made[pair] for pair in itertools.pairwise(tokens) if pair in self._made]
            if not known:
                return tokens
            first = min(known)  # in the order in which they were learned
            tokens = _joined(tokens, self.merges[first - _BYTES], first)


@functools.cache
def bundled() -> BytePairs:
    """Return the tokenizer of the language model that is in the repository."""
    return BytePairs(json.loads(data.path("lm/tiny_lm.json").read_text())["merges"])


def _joined(tokens: list[int], pair: tuple[int, int], made: int) -> list[int]:
    """Replace each occurrence of a pair, from the left, by the token that it makes."""
    result = []
    for token in tokens:
        if result and (result[-1], token) == pair:
            result[-1] = made
        else:
            result.append(token)
    return result
