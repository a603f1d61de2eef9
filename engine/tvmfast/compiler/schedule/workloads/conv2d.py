"""A convolution as a workload: its shapes, how its groups map to the kernel's, and one call on arrays."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
from tvm import te, tirx, topi

from ....core.relax import ceildiv, dim_hint, of_one_type, round_up, simplified, unwrap_ints
from ....core.simd import Simd, pad_to
from ..rule import RULES
from .workload import Workload

_DYNAMIC_SIDE = 224  # assumed for a dynamic height or width of a network's pictures
_DYNAMIC_ROWS = 4  # output rows of a depthwise convolution per buffer, at most, if the height is dynamic


@dataclass(frozen=True)
class Convolution(Workload):
    """A convolution of data (N, C, H, W) with a weight (O, I, KH, KW) known at compile time."""

    op: ClassVar[str] = "conv2d"

    data: tuple[int, int, int, int]
    weight: tuple[int, int, int, int]
    strides: tuple[int, int]
    padding: tuple[int, int, int, int]  # top, left, bottom, right
    dilation: tuple[int, int]
    groups: int
    blocked: bool  # whether the data are in NCHW[x]c; if not, they are an image of few channels in NCHW
    dtype: str = "float32"
    zero: int = field(default=0, compare=False, repr=False)  # the value of the padding, of uint8

    @property
    def label(self) -> str:
        """The convolution in a few words: kind, window, channels, image size, batch."""
        kind = "conv2d" if self.groups == 1 else f"conv2d of {self.groups} groups"
        if self.is_depthwise:
            kind = "depthwise"
        stride = f"/{max(self.strides)}" if max(self.strides) > 1 else ""
        window = "x".join(map(str, self.weight[2:])) + stride
        n, ins, height, width = self.data
        channels = str(ins) if self.is_depthwise else f"{ins} to {self.weight[0]}"
        dtype = "" if self.dtype == "float32" else f", {self.dtype}"
        return f"{kind} {window}, {channels}, {height}x{width}{dtype}" + (f", batch {n}" if n > 1 else "")

    @property
    def kind(self) -> tuple:
        """The operator, the window, whether it is depthwise, and the dtype."""
        return self.op, self.weight[2:], self.is_depthwise, self.dtype

    @property
    def is_depthwise(self) -> bool:
        """Whether each group has one input channel, and one output channel."""
        return self.groups > 1 and self.weight[:2] == (self.groups, 1)

    @property
    def is_pointwise(self) -> bool:
        """Whether it is a 1x1 convolution of stride 1 without padding, of blocked data."""
        fits = self.strides == (1, 1) and not any(self.padding) and self.weight[2:] == (1, 1)
        return fits and self.blocked and not self.is_depthwise

    def config_for_dynamic_dims(self, simd: Simd) -> dict:
        """Return the config for a dynamic height or width, of the rules whose kernels support that."""
        if self.is_depthwise:
            config = RULES["depthwise"].default(self, simd)
            return RULES["depthwise"].as_dict(replace(config, tile_oh=min(config.tile_oh, _DYNAMIC_ROWS)))
        if self.dtype == "uint8":
            return RULES["dot_conv"].as_dict(RULES["dot_conv"].default(self, simd))
        winograd = RULES["winograd"]
        config = winograd.default(self, simd) if winograd.applies(self, simd) else None
        rule = RULES["conv2d"] if config is None else winograd
        return rule.as_dict(config or rule.default(self, simd))

    def depthwise_of_bytes(
        self, weight: np.ndarray, zero: int, simd: Simd, static: bool
    ) -> tuple[np.ndarray, Callable]:
        """Return the packed weight and the kernel, of both, of a depthwise convolution of uint8 data.

        `Depthwise.of_bytes` describes it; the weight (C, 1, KH, KW) is of whole numbers in float32, and
        `static` tells whether height and width are.
        """
        rule = RULES["depthwise"]
        if static:
            config = rule.default(replace(self, dtype="uint8"), simd)
        else:
            config = rule.config(self.config_for_dynamic_dims(simd))
        packed, few = rule.pack(self, weight, config, simd.lanes), simd.registers < 32
        return packed, lambda data, kernel: rule.of_bytes(data, kernel, self, config, zero, stored=few)

    # ------------------------------------------------------------ shapes

    @property
    def reach(self) -> tuple[int, int]:
        """Height and width of what one output pixel reads."""
        (kernel_h, kernel_w), (dh, dw) = self.weight[2:], self.dilation
        return (kernel_h - 1) * dh + 1, (kernel_w - 1) * dw + 1

    @property
    def out_size(self) -> tuple[int, int]:
        """Height and width of the output."""
        return self.out_size_of(*self.data[2:])

    def out_size_of(self, h, w) -> tuple:
        """Return height and width of the output for those of an input, which may be dynamic."""
        (top, left, bottom, right), (reach_h, reach_w) = self.padding, self.reach
        padded = (h + top + bottom - reach_h, w + left + right - reach_w)
        return tuple(
            simplified(size // stride + 1) for size, stride in zip(padded, self.strides, strict=True)
        )

    @property
    def macs(self) -> int:
        height, width = self.out_size
        return self.data[0] * height * width * int(np.prod(self.weight))

    def kernel_groups(self, lanes: int) -> int:
        """Return the number of the kernel's groups; network groups that fill a block together are one.

        Bytes have one: `dot_conv` reads, for each tile of output channels, the blocks of its groups.
        """
        if self.dtype == "uint8":
            return 1
        return self.groups // self.joined_groups(lanes)

    def joined_groups(self, lanes: int) -> int:
        """Return how many groups of the network are merged into one of the kernel's."""
        out = self.weight[0] // self.groups
        joined = lanes // out if lanes % out == 0 and not self.is_depthwise else 1
        return joined if self.groups > 1 and self.groups % joined == 0 else 1

    def group_channels(self, lanes: int) -> tuple[int, int]:
        """Return the input and output channels of one of the kernel's groups."""
        groups = self.kernel_groups(lanes)
        return self.data[1] // groups, self.weight[0] // groups

    def packed_input_shape(self, lanes: int) -> tuple[int, ...]:
        """Return the shape of the data that the kernel reads.

        NCHW for an image of few channels, else NCHW[x]c. Groups that are not whole blocks become blocks of
        their own: (N, groups, H, W, channels of a group). So does an image of few channels of bytes, with no
        more of them than instructions for dot products read.
        """
        n, channels, h, w = self.data
        groups, (ins, _) = self.kernel_groups(lanes), self.group_channels(lanes)
        if not self.blocked:
            return self.data if self.dtype == "float32" else (n, 1, h, w, round_up(channels, 4))
        if groups > 1 and ins % lanes and not self.is_depthwise:
            return n, groups, h, w, ins
        return n, ceildiv(channels, lanes), h, w, lanes

    def output_shape(self, config: dict, lanes: int) -> tuple[int, ...]:
        """Return the shape of the kernel's output: NCHW[x]c, with gaps if `has_gaps`."""
        gaps = self.has_gaps(config, lanes)
        blocks = self.packed_shape(config, lanes)[0] if gaps else ceildiv(self.weight[0], lanes)
        return self.data[0], blocks, *self.out_size, lanes

    def has_gaps(self, config: dict, lanes: int) -> bool:
        """Return whether each group of the output is padded to whole blocks or tiles; see `ungroup`."""
        if self.kernel_groups(lanes) == 1 or self.is_depthwise:
            return False
        return self.packed_shape(config, lanes)[0] * lanes != self.weight[0]

    # ------------------------------------------------------------ one call, on NumPy arrays

    def pack_input(self, data: np.ndarray, lanes: int) -> np.ndarray:
        """Pack data (N, C, H, W) into `packed_input_shape`, as the kernel reads them."""
        if len(self.packed_input_shape(lanes)) == 4:
            return data
        n, blocks, h, w, each = self.packed_input_shape(lanes)
        padded = pad_to(data, (n, blocks * each, h, w)).reshape(n, blocks, each, h, w)
        return np.ascontiguousarray(padded.transpose(0, 1, 3, 4, 2))

    def unpack_output(self, output: np.ndarray, lanes: int) -> np.ndarray:
        """Unpack the kernel's output into (N, O, H, W)."""
        n, _, h, w, _ = output.shape
        groups = 1 if self.is_depthwise else self.kernel_groups(lanes)
        by_group = output.transpose(0, 1, 4, 2, 3).reshape(n, groups, -1, h, w)
        return by_group[:, :, : self.weight[0] // groups].reshape(n, -1, h, w)

    def reference(self, data: np.ndarray, weight: np.ndarray) -> np.ndarray:
        """Convolve data (N, C, H, W) with a weight (O, I, KH, KW) into (N, O, H, W), with NumPy alone."""
        (top, left, bottom, right), (sh, sw) = self.padding, self.strides
        dh, dw = self.dilation
        padded = np.pad(data, [(0, 0), (0, 0), (top, bottom), (left, right)])
        windows = np.lib.stride_tricks.sliding_window_view(padded, self.reach, (2, 3))
        windows = windows[:, :, ::sh, ::sw, ::dh, ::dw]
        if self.is_depthwise:
            return np.einsum("nchwyx,cyx->nchw", windows, weight[:, 0])
        parts = zip(np.split(windows, self.groups, 1), np.split(weight, self.groups), strict=True)
        outputs = [np.tensordot(part, w, ([1, 4, 5], [1, 2, 3])) for part, w in parts]
        return np.concatenate(outputs, -1).transpose(0, 3, 1, 2)

    # ------------------------------------------------------------ the kernel

    def joined(self, weight: np.ndarray, lanes: int) -> np.ndarray:
        """Merge the weight (O, I, KH, KW) into `kernel_groups`, with zeros between the network's groups."""
        o, i, *window = weight.shape
        kernel_groups, out = self.kernel_groups(lanes), o // self.groups
        count = self.groups // kernel_groups
        joined = np.zeros((kernel_groups, count, out, count, i, *window), weight.dtype)
        for each in range(count):
            joined[:, each, :, each] = weight.reshape(kernel_groups, count, out, i, *window)[:, each]
        return joined.reshape(o, count * i, *window)

    def pad(self, data, rows: int, columns: int):
        """Zero-pad data (N, blocks, H, W, …), a tensor, to what `rows` x `columns` of the output read."""
        (h, w), (top, left, _, _) = unwrap_ints(data.shape)[2:4], self.padding
        (sh, sw), (reach_h, reach_w) = self.strides, self.reach
        if not (isinstance(h, int) and isinstance(w, int)):
            height, width = simplified((rows - 1) * sh + reach_h), simplified((columns - 1) * sw + reach_w)
            return _padded(data, top, left, height, width)
        bottom = max(0, (rows - 1) * sh + reach_h - h - top)
        right = max(0, (columns - 1) * sw + reach_w - w - left)
        if not any((top, left, bottom, right)):
            return data
        inner = [0] * (len(data.shape) - 4)
        return topi.nn.pad(data, [0, 0, top, left, *inner], [0, 0, bottom, right, *inner], name="pad")

    def within_group(self, product, channel, c, lanes: int):
        """Return `product` if input `channel` and output channel `c` are in one group of the network, else 0.

        Channels are numbered within a group of the kernel. Between the network's groups that it joins, the
        weight is 0 as well, but 0 * infinity is NaN.
        """
        if self.joined_groups(lanes) == 1:
            return product
        same = tirx.EQ(c // (self.weight[0] // self.groups), channel // self.weight[1])
        return tirx.Select(same, product, tirx.const(0, "float32"))


def one_image(shape: tuple) -> tuple[int, int, int, int]:
    """Return the static shape (N, C, H, W) of a workload; a dynamic N is taken to be 1.

    A dynamic height or width is taken to be that of a layer in a network for pictures of 224 x 224.
    """
    return dim_hint(shape[0]), *(dim_hint(dim, _DYNAMIC_SIDE) for dim in shape[1:])


def _padded(data, top: int, left: int, height, width):
    """Return data (N, blocks, H, W, …) of dynamic shape, zero-padded or cropped to this height and width."""
    n, blocks, h, w, *inner = unwrap_ints(data.shape)

    def element(b, k, y, x, *c):
        inside = tirx.all(y >= top, y < h + top, x >= left, x < w + left)
        return te.if_then_else(inside, data[(b, k, y - top, x - left, *c)], 0.0)

    return te.compute((n, *of_one_type(blocks, height, width, *inner)), element, name="pad")


def group(data, groups: int, channels: int):
    """Return (N, blocks, H, W, x) as (N, groups, H, W, channels): each group's channels contiguous."""
    n, _, h, w, lanes = unwrap_ints(data.shape)

    def element(b, g, y, x, c):
        channel = g * channels + c
        return data[b, channel // lanes, y, x, channel % lanes]

    return te.compute((n, groups, h, w, channels), element, name="group")


def ungroup(blocked, groups: int, channels: int):
    """Return the output of a grouped convolution, each group padded, as (N, blocks, H, W, x) without gaps."""
    n, blocks, h, w, lanes = unwrap_ints(blocked.shape)
    out, each = channels // groups, blocks // groups

    def element(b, k, y, x, c):
        channel = k * lanes + c
        group, within = channel // out, channel % out
        value = blocked[b, group * each + within // lanes, y, x, within % lanes]
        return value if channels % lanes == 0 else te.if_then_else(channel < channels, value, 0.0)

    return te.compute((n, ceildiv(channels, lanes), h, w, lanes), element, name="ungroup")


def pack(weight: np.ndarray, inner: int, lanes: int) -> np.ndarray:
    """Pack OIHW into OIHW[inner]i[lanes]o, zero-padded."""
    o, i, h, w = weight.shape
    outs, ins = ceildiv(o, lanes), ceildiv(i, inner)
    weight = pad_to(weight, (outs * lanes, ins * inner, h, w))
    return np.ascontiguousarray(weight.reshape(outs, lanes, ins, inner, h, w).transpose(0, 2, 4, 5, 3, 1))
