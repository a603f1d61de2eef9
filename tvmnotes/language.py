"""A small language model, `Decoder`, in the form that large ones have, and `Step`, one token at a time.

`data/lm/train.py` trains it on Python's standard library, and `models.py` loads it. `Decoder` reads a whole
sequence, as training does. To write text, each new token needs one more row of logits, so `Step` computes
that row alone: the keys and values of the earlier tokens come from a cache. Both give the same logits.

Sources: Vaswani and others, "Attention is all you need", 2017; Zhang and Sennrich, "Root mean square layer
normalization", 2019; Su and others, "RoFormer", 2021, for rotary positions; Shazeer, "GLU variants improve
transformer", 2020; Ainslie and others, "GQA", 2023, for heads that share keys and values.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class RMSNorm(nn.Module):
    """Scale of each token's vector: divided by its root mean square, times a weight per channel."""

    def __init__(self, width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """Normalize the last axis."""
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * self.weight


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn each pair (x[i], x[i + dim / 2]) of the last axis by its angle at the token's position.

    The product of a rotated query and a rotated key depends on the distance of their positions alone.
    """
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


class Attention(nn.Module):
    """Causal attention: each token takes a weighted mean of the values of itself and of earlier tokens."""

    def __init__(self, width: int, heads: int, kv_heads: int):
        super().__init__()
        self.heads = heads
        self.kv_heads = kv_heads
        self.dim = width // heads
        self.qkv = nn.Linear(width, (heads + 2 * kv_heads) * self.dim, bias=False)
        self.out = nn.Linear(heads * self.dim, width, bias=False)

    def project(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Compute queries (N, heads, L, dim), and keys and values (N, kv_heads, L, dim)."""
        sizes = [self.heads, self.kv_heads, self.kv_heads]
        q, k, v = self.qkv(x).unflatten(-1, (-1, self.dim)).transpose(1, 2).split(sizes, dim=1)
        return rotate(q, cos, sin), rotate(k, cos, sin), v

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Attend within a whole sequence, (N, L, width)."""
        q, k, v = self.project(x, cos, sin)
        k, v = (each.repeat_interleave(self.heads // self.kv_heads, dim=1) for each in (k, v))
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))

    def step(
        self, x: Tensor, cos: Tensor, sin: Tensor, past: Tensor, keys: Tensor, values: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Attend from one token, (1, 1, width), to the rows of the cache that are `past`, and to itself.

        Returns:
            The result, and the token's own key and value, (1, kv_heads, 1, dim).
        """
        q, k, v = self.project(x, cos, sin)
        q = q.reshape(1, self.kv_heads, -1, self.dim)  # heads that share keys are the rows of one matrix
        scores = (q @ keys.transpose(-2, -1)).masked_fill(~past, -math.inf)
        weights = (torch.cat([scores, q @ k.transpose(-2, -1)], dim=-1) / math.sqrt(self.dim)).softmax(-1)
        y = weights[..., :-1] @ values + weights[..., -1:] * v
        return self.out(y.reshape(1, 1, -1)), k, v


class SwiGLU(nn.Module):
    """A hidden layer in which one half of the channels, through SiLU, scales the other half."""

    def __init__(self, width: int, hidden: int):
        super().__init__()
        self.up = nn.Linear(width, 2 * hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Compute the layer for each token by itself."""
        gate, value = self.up(x).chunk(2, dim=-1)
        return self.down(F.silu(gate) * value)


class Block(nn.Module):
    """Attention and a hidden layer, each of which adds to what comes in."""

    def __init__(self, width: int, heads: int, kv_heads: int, hidden: int):
        super().__init__()
        self.norm1, self.attention = RMSNorm(width), Attention(width, heads, kv_heads)
        self.norm2, self.hidden = RMSNorm(width), SwiGLU(width, hidden)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Compute the block for a whole sequence."""
        x = x + self.attention(self.norm1(x), cos, sin)
        return x + self.hidden(self.norm2(x))

    def step(self, x: Tensor, *where: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Compute the block for one token; see `Attention.step`."""
        y, key, value = self.attention.step(self.norm1(x), *where)
        x = x + y
        return x + self.hidden(self.norm2(x)), key, value


class Decoder(nn.Module):
    """The language model: tokens int64 (N, L), at most `length`, to the next tokens' logits, (N, L, V)."""

    def __init__(
        self, vocabulary=1024, width=192, layers=4, heads=6, kv_heads=2, hidden=512, length=256
    ):  # fmt: skip
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)  # its rows are also the weights of the logits
        nn.init.normal_(self.embed.weight, std=0.02)
        self.blocks = nn.ModuleList(Block(width, heads, kv_heads, hidden) for _ in range(layers))
        self.norm = RMSNorm(width)
        dim = width // heads
        self.cache_shape = (layers, 1, kv_heads, length, dim)
        angles = torch.outer(torch.arange(length), 10_000 ** -(torch.arange(0, dim, 2) / dim))
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)
        self.register_buffer("positions", torch.arange(length), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Compute the logits for a whole sequence."""
        x = self.embed(tokens)
        cos, sin = (table[: tokens.shape[1]] for table in (self.cos, self.sin))
        for block in self.blocks:
            x = block(x, cos, sin)
        return F.linear(self.norm(x), self.embed.weight)

    def step(
        self, token: Tensor, position: Tensor, keys: Tensor, values: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Compute the logits for one token, and write its keys and values into the cache.

        Args:
            token: int64 (1, 1).
            position: int64 (1,), from 0. Rows of the cache from there on are not read.
            keys: The cache, `cache_shape`: a row for each position.
            values: The same for the values.

        Returns:
            Logits (1, 1, V), and both caches with the row of this position written.
        """
        x, past = self.embed(token), self.positions < position
        cos, sin = self.cos[position], self.sin[position]
        rows = []
        for block, own_keys, own_values in zip(self.blocks, keys, values, strict=True):
            x, *row = block.step(x, cos, sin, past, own_keys, own_values)
            rows.append(row)
        new_keys, new_values = (torch.stack(each) for each in zip(*rows, strict=True))
        logits = F.linear(self.norm(x), self.embed.weight)
        return logits, keys.index_copy(3, position, new_keys), values.index_copy(3, position, new_values)


class Step(nn.Module):
    """`Decoder.step` as a module.

    Attributes:
        inputs: For `tn.from_pytorch`: the inputs' shapes and dtypes, by name.
        state: For `tn.build`: the inputs that come from an output of the call before.
    """

    def __init__(self, decoder: Decoder):
        super().__init__()
        self.decoder = decoder
        self.train(decoder.training)
        indices = {"token": ((1, 1), "int64"), "position": ((1,), "int64")}
        self.inputs = indices | dict.fromkeys(("keys", "values"), decoder.cache_shape)
        self.state = {"keys": "output1", "values": "output2"}

    def forward(self, token: Tensor, position: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, ...]:
        """Compute the logits and the caches."""
        return self.decoder.step(token, position, keys, values)
