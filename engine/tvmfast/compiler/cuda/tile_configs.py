"""Configs of products on a GPU: the tiles that a tuner tries, and those that a build has from records.

A config is a dictionary of a rule, its "family", and of the fields of a tile: `dlight.gpu.Matmul.Config`'s
for DLIGHT, which serves float32, and `tiles.Tile`'s for TENSOR_CORES, which serves float16. DEFAULT has no
fields: it is what a build chooses by itself. No config changes what is rounded: float32 stays float32.
"""

import itertools
import math
from collections.abc import Mapping

from ...core.relax import ceildiv
from ...runtime.on_gpu import version
from .operands import CORES
from .tiles import DLIGHT, TENSOR_CORES, Tile, candidates, fields

DEFAULT = "default"
_THREADS = (8, 16)  # along each side of a block
_ROWS, _COLUMNS = (1, 2, 4, 8), (2, 4, 8)  # elements of a thread
_STEPS = (8, 16, 32)  # summands that are in shared memory at once
_VECTOR = 2  # elements that a thread copies at once


class TileLookup:
    """The configs of records for a build, by `products.Product.key`; a `Lookup`.

    Attributes:
        taken: The products whose kernels have the tile of their records.
    """

    def __init__(self, configs: Mapping[tuple, dict], source: str):
        self._configs, self._source = dict(configs), source
        self.taken: set[tuple] = set()

    def __call__(self, key: tuple) -> dict | None:
        """Return the config for a product; None where the build chooses."""
        config = self._configs.get(key)
        return None if config is None or config["family"] == DEFAULT else config

    def take(self, key: tuple) -> None:
        """Note that a kernel has the tile of its product's record."""
        self.taken.add(key)

    def __str__(self) -> str:
        if not self.taken:
            return f"{self._source}: none for this network and target"
        return f"{self._source}: {len(self.taken)} of this target"


def space(key: tuple, arch: str) -> list[dict]:
    """List the configs of a product, DEFAULT first.

    Args:
        key: See `products.Product.key`.
        arch: A GPU's architecture, such as "sm_90".
    """
    found = [{"family": DEFAULT}]
    if min(key[2:5]) < 2:  # a product with a vector, which has no tiles
        return found
    if key[0] == "float32":
        return found + _of_threads(key)
    if version(arch) < CORES:
        return found
    return found + [{"family": TENSOR_CORES, **tile._asdict()} for tile in candidates(key)]


def _of_threads(key) -> list[dict]:
    """List dlight's tiles: those that are not much larger than the product, and copied in whole vectors."""
    rows, columns = _sides(key)
    found = []
    for x, y, own_x, own_y, step in itertools.product(_THREADS, _THREADS, _ROWS, _COLUMNS, _STEPS):
        if x * own_x > max(16, 2 * rows) or y * own_y > max(16, 2 * columns):
            continue
        if any(side * step % (_VECTOR * x * y) for side in (x * own_x, y * own_y)):
            continue
        threads = {"block_size_x": x, "block_size_y": y}
        elements = {"micro_size_x": own_x, "micro_size_y": own_y, "micro_size_k": step}
        found.append({"family": DLIGHT, **threads, **elements})
    return found


def _sides(key) -> tuple[int, int]:
    """Return the lengths along dlight's x and y: pixels and output channels, or rows and columns."""
    return (key[3], key[2]) if len(key) > 5 else (key[2], key[3])


def features(key: tuple, config: dict) -> list[float]:
    """Compute what a cost model sees of a config: the product's sizes, the tile, and what follows from it.

    Args:
        key: See `products.Product.key`.
        config: One of `space`.
    """
    _, batch, _, _, length = key[:5]
    x, y = _sides(key)
    tile = fields(config)
    tile_x = tile_y = step = threads = across = stages = split = 1
    if config["family"] == TENSOR_CORES:
        own = Tile(**tile)
        tile_x, tile_y = (own.n, own.m) if len(key) > 5 else (own.m, own.n)
        step, threads, across = own.elements(key[0]), own.threads, own.m // own.warp_m
        stages, split = own.stages, own.split
    elif config["family"] == DLIGHT:
        across = tile["block_size_x"]
        threads = across * tile["block_size_y"]
        tile_x = across * tile["micro_size_x"]
        tile_y = tile["block_size_y"] * tile["micro_size_y"]
        step = tile["micro_size_k"]
    blocks = batch * ceildiv(x, tile_x) * ceildiv(y, tile_y) * split
    covered = batch * ceildiv(x, tile_x) * tile_x * ceildiv(y, tile_y) * tile_y
    sizes = batch, x, y, length, tile_x, tile_y, step, threads, across, stages, split, blocks
    return [
        float(config["family"] == DEFAULT),
        *(math.log2(size) for size in sizes),
        tile_x * tile_y / threads,  # elements of a thread
        (tile_x + tile_y) / (tile_x * tile_y),  # elements that a block reads for each of its products
        batch * x * y / covered,  # share of the tiles that is not padding
    ]
