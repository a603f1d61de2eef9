"""Configs of products on a GPU: the tiles that a tuner tries, and that records have for a build.

A config is a dictionary of the rule that it is for, its "family", and of a tile's fields: those of
`dlight.gpu.Matmul.Config` for DLIGHT, which serves float32, and those of `tiles.Tile` for TENSOR_CORES, which
serves float16. DEFAULT leaves the choice to the build. No config rounds to a narrower dtype.
"""

import itertools
import math

from ...core.relax import ceildiv
from ...runtime.on_gpu import version
from .operands import CORES
from .products import Product
from .tiles import DLIGHT, TENSOR_CORES, Tile, candidates

DEFAULT = {"family": "default"}
FIELDS = ("block_size_x", "block_size_y", "micro_size_x", "micro_size_y", "micro_size_k")  # of DLIGHT's
VECTOR = 2  # elements that a thread copies at once to shared memory
_THREADS = (8, 16)  # along each side of a block
_ROWS, _COLUMNS = (1, 2, 4, 8), (2, 4, 8)  # elements of a thread
_STEPS = (8, 16, 32)  # summands that are in shared memory at once


class TileLookup:
    """A `Lookup` of configs by `Product.key`; its text, for `Compiled.tuned`, counts the products found."""

    def __init__(self, configs: dict[tuple, dict], source: str):
        self._configs, self._source = configs, source
        self._found: set[tuple] = set()

    def __call__(self, product: Product) -> dict | None:
        """Return the config of a product; None where the build is to choose."""
        config = self._configs.get(product.key, DEFAULT)
        if config == DEFAULT:
            return None
        self._found.add(product.key)
        return config

    def __str__(self) -> str:
        found = f"{len(self._found)} of this target" if self._found else "none for this network and target"
        return f"{self._source}: {found}"


def space(key: tuple, arch: str) -> list[dict]:
    """List the configs of a product, DEFAULT first.

    Args:
        key: See `Product.key`.
        arch: A GPU's architecture, such as "sm_90".
    """
    if min(key[2:5]) < 2:  # a product with a vector, which has no tiles
        return [DEFAULT]
    if key[0] == "float32":
        return [DEFAULT, *_of_threads(*_sides(key))]
    own = candidates(key) if version(arch) >= CORES else []
    return [DEFAULT, *({"family": TENSOR_CORES, **tile._asdict()} for tile in own)]


def _of_threads(rows: int, columns: int) -> list[dict]:
    """List dlight's tiles: those that are not much larger than the product, and copied in whole vectors."""
    found = []
    for x, y, own_x, own_y, step in itertools.product(_THREADS, _THREADS, _ROWS, _COLUMNS, _STEPS):
        fits = x * own_x <= max(16, 2 * rows) and y * own_y <= max(16, 2 * columns)
        if fits and not own_x * step % (VECTOR * y) and not own_y * step % (VECTOR * x):
            found.append({"family": DLIGHT, **dict(zip(FIELDS, (x, y, own_x, own_y, step), strict=True))})
    return found


def _sides(key: tuple) -> tuple[int, int]:
    """Return the lengths along dlight's x and y: pixels and output channels, or rows and columns."""
    return (key[3], key[2]) if len(key) > 5 else (key[2], key[3])


def tile_of(config: dict) -> Tile | dict:
    """Return the tile of a config: of TENSOR_CORES a `Tile`, else the fields."""
    tile = {name: value for name, value in config.items() if name != "family"}
    return Tile(**tile) if config["family"] == TENSOR_CORES else tile


def features(key: tuple, config: dict) -> list[float]:
    """Compute what a cost model sees of a config: the product's sizes, the tile, and what follows from it.

    Args:
        key: See `Product.key`.
        config: One of `space`.
    """
    _, batch, _, _, length = key[:5]
    x, y = _sides(key)
    tile, stages, split = tile_of(config), 1, 1
    if isinstance(tile, Tile):
        (tile_y, tile_x), across = tile[:2] if len(key) > 5 else tile[1::-1], tile.m // tile.warp_m
        step, threads, stages, split = tile.elements(key[0]), tile.threads, tile.stages, tile.split
    elif config == DEFAULT:
        tile_x = tile_y = step = threads = across = 1
    else:
        across, down, own_x, own_y, step = (tile[name] for name in FIELDS)
        tile_x, tile_y, threads = across * own_x, down * own_y, across * down
    tiles = batch * ceildiv(x, tile_x) * ceildiv(y, tile_y)
    sizes = batch, x, y, length, tile_x, tile_y, step, threads, across, stages, split, tiles * split
    return [
        float(config == DEFAULT),
        *map(math.log2, sizes),
        tile_x * tile_y / threads,  # elements of a thread
        (tile_x + tile_y) / (tile_x * tile_y),  # elements that a block reads for each of its products
        batch * x * y / (tiles * tile_x * tile_y),  # share of the tiles that is not padding
    ]
