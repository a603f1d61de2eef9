"""A convolution as a workload: which schedules it may have, with which configs, and what its kernel then reads.

A config is a dictionary with the "family" of the schedule (conv2d, pointwise, depthwise or winograd) and what that
family's `default_config` explains.
"""

import itertools
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from tvm import te

from . import conv2d, depthwise, pointwise, winograd
from .annotations import marks
from .vector import Vectors, filled_up

_FAMILIES = {"conv2d": conv2d, "pointwise": pointwise, "depthwise": depthwise, "winograd": winograd}


@dataclass(frozen=True)
class Convolution:
    """A float32 convolution of a network, of data (N, C, H, W) with a weight (O, I, KH, KW) known while compiling."""

    op: ClassVar[str] = "conv2d"

    data: tuple[int, int, int, int]
    weight: tuple[int, int, int, int]
    strides: tuple[int, int]
    padding: tuple[int, int, int, int]  # top, left, bottom, right
    dilation: tuple[int, int]
    groups: int
    blocked: bool  # whether the data are in NCHW[x]c; if not, they are a picture of few channels in NCHW

    # ------------------------------------------------------------ shapes

    @property
    def multiplications(self) -> int:
        height, width = self.window(1).out_size(*self.data[2:], *self.weight[2:])
        return self.data[0] * height * width * int(np.prod(self.weight))

    @property
    def is_depthwise(self) -> bool:
        return self.groups > 1 and self.weight[:2] == (self.groups, 1)

    def kernel_groups(self, lanes: int) -> int:
        """The groups of the kernel: as many of the network's as fill a block together are one."""
        out = self.weight[0] // self.groups
        joined = lanes // out if lanes % out == 0 and not self.is_depthwise else 1
        return self.groups // joined if self.groups % joined == 0 else self.groups

    def window(self, lanes: int) -> conv2d.Window:
        groups = self.kernel_groups(lanes)
        out, ins = self.weight[0] // groups, self.data[1] // groups
        return conv2d.Window(list(self.strides), list(self.padding), list(self.dilation), out, ins)

    def source_shape(self, lanes: int) -> tuple[int, ...]:
        """The shape of the data that the kernel reads.

        It is NCHW for a picture of few channels, NCHW[x]c otherwise, where groups that are no whole blocks are blocks
        of their own: (N, groups, H, W, channels of a group).
        """
        n, channels, h, w = self.data
        groups, ins = self.kernel_groups(lanes), self.window(lanes).ins
        if not self.blocked:
            return self.data
        if groups > 1 and ins % lanes and not self.is_depthwise:
            return n, groups, h, w, ins
        return n, -(-channels // lanes), h, w, lanes

    def packed_shape(self, config: dict, lanes: int) -> tuple[int, ...]:
        """The shape of the weight that the kernel reads, as `pack` makes it."""
        outs, ins = -(-self.weight[0] // lanes), -(-self.data[1] // lanes)
        if config["family"] == "depthwise":
            return outs, 1, *self.weight[2:], lanes
        if config["family"] == "winograd":
            return outs, config["tile"] + 2, config["tile"] + 2, ins, lanes, lanes
        return self._packed_shape(lanes, config["blocks"])

    def _packed_shape(self, lanes: int, tile: int) -> tuple[int, ...]:
        """The shape of a weight packed for the direct way, each group filled up to tiles of `tile` blocks."""
        groups, window, source = self.kernel_groups(lanes), self.window(lanes), self.source_shape(lanes)
        blocks = groups * -(-window.out // (lanes * tile)) * tile
        if not self.blocked:
            return blocks, window.ins, *self.weight[2:], lanes
        return blocks, source[1] // groups, *self.weight[2:], source[-1], lanes

    def made_shape(self, config: dict, lanes: int) -> tuple[int, ...]:
        """The shape of what the kernel makes: NCHW[x]c, with gaps where `has_gaps` says so."""
        blocks = -(-self.weight[0] // lanes)
        if self.has_gaps(config, lanes):
            blocks = self.packed_shape(config, lanes)[0]
        return self.data[0], blocks, *self.window(1).out_size(*self.data[2:], *self.weight[2:]), lanes

    def has_gaps(self, config: dict, lanes: int) -> bool:
        """Whether each group of the result is filled up to whole blocks or tiles, which `ungroup` takes out."""
        groups, out = self.kernel_groups(lanes), self.window(lanes).out
        if groups == 1 or config["family"] == "depthwise":
            return False
        return out % (lanes * config["blocks"]) != 0

    # ------------------------------------------------------------ configs

    def default_config(self, vectors: Vectors) -> dict:
        """The config that runs without tuning."""
        window, source = self.window(vectors.lanes), self.source_shape(vectors.lanes)
        if self.is_depthwise:
            packed = (source[1], 1, *self.weight[2:], vectors.lanes)
            return {"family": "depthwise", **depthwise.default_config(window, source, packed, vectors)}
        packed = self._packed_shape(vectors.lanes, 1)
        tile = winograd.best_tile(window, source, packed) if self.kernel_groups(vectors.lanes) == 1 else None
        if tile:
            packed = (packed[0], tile + 2, tile + 2, packed[1], *packed[-2:])
            return {"family": "winograd", **winograd.default_config(window, source, packed, vectors)}
        family = "pointwise" if self._is_pointwise() else "conv2d"
        return {"family": family, **_FAMILIES[family].default_config(window, source, packed, vectors)}

    def _is_pointwise(self) -> bool:
        plain = self.strides == (1, 1) and not any(self.padding) and self.weight[2:] == (1, 1)
        return plain and self.blocked

    def space(self, vectors: Vectors) -> list[dict]:
        """Configs to search besides the default one, which may be among them."""
        window = self.window(vectors.lanes)
        height, width = window.out_size(*self.data[2:], *self.weight[2:])
        if self.is_depthwise:
            pixels = [p for p in range(1, vectors.registers // 2 + 1) if p <= width]
            return [{"family": "depthwise", "rows": r, "pixels": p} for r in _divisions(height) for p in pixels]
        blocks = -(-window.out // vectors.lanes)
        line = height * width if self._is_pointwise() else width
        tiles = [
            {"pixels": p, "blocks": b}
            for b in range(1, min(blocks, 8) + 1)
            for p in range(1, min(line, vectors.registers) + 1)
            if _uses(p * b, b, vectors)
        ]
        orders = [{"outer": "rows"}, {"outer": "channels"}]
        ins = self._packed_shape(vectors.lanes, 1)[1]
        chunks = [{"chunk": c} for c in (1, 4, 16) if c < ins and ins % c == 0] if self.blocked else []
        by_chunk = [{"outer": "channels", **chunk} for chunk in chunks]
        if self._is_pointwise():
            family, tiles = "pointwise", [{**t, "run": r} for t in tiles for r in _runs(-(-line // t["pixels"]))]
        else:
            family = "conv2d"
            tiles += [
                {"lines": lines, "pixels": p, "blocks": b}
                for lines in (2, 3, 4, 7) if lines <= height
                for b in range(1, min(blocks, 3) + 1)
                for p in range(2, width + 1)
                if _uses(lines * p * b, b, vectors)
            ]  # fmt: skip
        found = [{"family": family, **t, **o} for t, o in itertools.product(tiles, orders + by_chunk)]
        return found + self._winograd_space(vectors)

    def _winograd_space(self, vectors: Vectors) -> list[dict]:
        fits = self.weight[2:] == (3, 3) and self.strides == self.dilation == (1, 1) and self.blocked
        if not fits or self.kernel_groups(vectors.lanes) > 1:
            return []
        height, width = self.window(vectors.lanes).out_size(*self.data[2:], 3, 3)
        outs, found = -(-self.weight[0] // vectors.lanes), []
        for tile in (2, 4):
            down, across = -(-height // tile), -(-width // tile)
            shapes = [
                (rows, columns, blocks)
                for blocks in (1, 2, 3, 4) if outs % blocks == 0
                for rows, columns in itertools.product(range(1, min(down, 8) + 1), range(1, min(across, 16) + 1))
                if vectors.registers / 2 < (rows * columns + 1) * blocks + 1 <= vectors.registers
            ]  # fmt: skip
            for rows, columns, blocks in shapes:
                shape = {"family": "winograd", "tile": tile, "rows": rows, "columns": columns, "blocks": blocks}
                found += [shape | {"group": g} for g in (0, 1, 2, 4) if not g or -(-down // rows) % g == 0]
                found.append(shape | {"group": 0, "prefetch": True})
        return found

    # ------------------------------------------------------------ one call, on NumPy arrays

    def source(self, data: np.ndarray, lanes: int) -> np.ndarray:
        """The data (N, C, H, W) as the kernel reads them, in `source_shape`."""
        if not self.blocked:
            return data
        n, blocks, h, w, each = self.source_shape(lanes)
        filled = filled_up(data, (n, blocks * each, h, w)).reshape(n, blocks, each, h, w)
        return np.ascontiguousarray(filled.transpose(0, 1, 3, 4, 2))

    def result(self, made: np.ndarray, lanes: int) -> np.ndarray:
        """What the kernel made as (N, O, H, W)."""
        n, _, h, w, _ = made.shape
        groups = 1 if self.is_depthwise else self.kernel_groups(lanes)
        by_group = made.transpose(0, 1, 4, 2, 3).reshape(n, groups, -1, h, w)
        return by_group[:, :, : self.weight[0] // groups].reshape(n, -1, h, w)

    def reference(self, data: np.ndarray, weight: np.ndarray) -> np.ndarray:
        """The convolution of data (N, C, H, W) with a weight (O, I, KH, KW), (N, O, H, W), by NumPy alone."""
        (top, left, bottom, right), (sh, sw), (dh, dw) = self.padding, self.strides, self.dilation
        padded = np.pad(data, [(0, 0), (0, 0), (top, bottom), (left, right)])
        reach = self.window(1).reach(*self.weight[2:])
        windows = np.lib.stride_tricks.sliding_window_view(padded, reach, (2, 3))[:, :, ::sh, ::sw, ::dh, ::dw]
        if self.is_depthwise:
            return np.einsum("nchwyx,cyx->nchw", windows, weight[:, 0])
        parts = zip(np.split(windows, self.groups, 1), np.split(weight, self.groups), strict=True)
        made = [np.tensordot(part, w, ([1, 4, 5], [1, 2, 3])) for part, w in parts]
        return np.concatenate(made, -1).transpose(0, 3, 1, 2)

    # ------------------------------------------------------------ the kernel

    def pack(self, weight: np.ndarray, config: dict, lanes: int) -> np.ndarray:
        """The weight (O, I, KH, KW) as the kernel with `config` reads it."""
        groups = self.kernel_groups(lanes)
        if config["family"] == "depthwise":
            return _pack(weight, 1, lanes)[..., 0, :]
        weight = _joined(weight, self.groups, groups)
        if config["family"] == "winograd":
            return winograd.transform_weight(weight, config["tile"], lanes)
        tile = lanes * config["blocks"]
        by_group = weight.reshape(groups, -1, *weight.shape[1:])
        out = by_group.shape[1]
        by_group = filled_up(by_group, (groups, -(-out // tile) * tile, *weight.shape[1:]))
        inner = self.source_shape(lanes)[-1] if self.blocked else 1
        packed = _pack(by_group.reshape(-1, *weight.shape[1:]), inner, lanes)
        return packed if self.blocked else packed[..., 0, :]

    def compute(self, data, kernel, config: dict):
        """The convolution as a tensor expression, of data of `source_shape` and what `pack` gave."""
        family = config["family"]
        config = {key: value for key, value in config.items() if key != "family"}
        window = self.window(int(kernel.shape[-1]))
        return _FAMILIES[family].compute(data, kernel, window, config, marks(family, config, self))


def _runs(tiles: int) -> list[int]:
    """Lengths of runs of tiles, few and many, that leave no more than a tenth of the last run unused."""
    return sorted({r for n in (1, 2, 4, 8, 16, tiles) if -tiles % (r := min(n, tiles)) * 10 <= tiles})


def _uses(sums: int, blocks: int, vectors: Vectors) -> bool:
    """Whether a tile of so many sums fits into the registers and leaves not too many unused."""
    return sums + blocks + 1 <= vectors.registers < 2 * (sums + blocks + 1) + 2 * sums


def _divisions(length: int) -> list[int]:
    """The lengths of the parts, where `length` is shared out evenly to 1, 2, 3, … parts."""
    return sorted({-(-length // parts) for parts in range(1, length + 1)})


def group(data, groups: int, channels: int):
    """(N, blocks, H, W, x) as (N, groups, H, W, channels): the channels of each group side by side."""
    n, _, h, w, lanes = (int(s) for s in data.shape)

    def element(b, g, y, x, c):
        channel = g * channels + c
        return data[b, channel // lanes, y, x, channel % lanes]

    return te.compute((n, groups, h, w, channels), element, name="group")


def ungroup(made, groups: int, channels: int):
    """The result of a grouped convolution, each group filled up, as (N, blocks, H, W, x) without gaps."""
    n, blocks, h, w, lanes = (int(s) for s in made.shape)
    out, each = channels // groups, blocks // groups

    def element(b, k, y, x, c):
        channel = k * lanes + c
        group, within = channel // out, channel % out
        value = made[b, group * each + within // lanes, y, x, within % lanes]
        return value if channels % lanes == 0 else te.if_then_else(channel < channels, value, 0.0)

    return te.compute((n, -(-channels // lanes), h, w, lanes), element, name="ungroup")


def _pack(weight: np.ndarray, inner: int, lanes: int) -> np.ndarray:
    """OIHW to OIHW[inner]i[lanes]o, filled up with zeros."""
    o, i, h, w = weight.shape
    outs, ins = -(-o // lanes), -(-i // inner)
    weight = filled_up(weight, (outs * lanes, ins * inner, h, w))
    return np.ascontiguousarray(weight.reshape(outs, lanes, ins, inner, h, w).transpose(0, 2, 4, 5, 3, 1))


def _joined(weight: np.ndarray, groups: int, kernel_groups: int) -> np.ndarray:
    """The weight of fewer groups; the weights between what were two groups are 0."""
    o, i, *window = weight.shape
    count = groups // kernel_groups
    joined = np.zeros((kernel_groups, count, o // groups, count, i, *window), weight.dtype)
    for each in range(count):
        joined[:, each, :, each] = weight.reshape(kernel_groups, count, o // groups, i, *window)[:, each]
    return joined.reshape(o, count * i, *window)
