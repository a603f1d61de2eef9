"""Which rule computes a product on a GPU, and with which tile: as measured, and a choice for all others.

`make gpu-tiles` measures the products of some networks on this machine's GPU and prints lines for `MEASURED`.
With them, builds for its architecture use `tensor_cores.py` and `skinny.py`; without, only if asked to.
"""

from typing import NamedTuple

from ...core.relax import ceildiv

TENSOR_CORES, SKINNY, DLIGHT = "tensor_cores", "skinny", "dlight"  # the rules
_BLOCKS = 132  # multiprocessors of an H100: fewer blocks leave some idle
_STEPS = 6  # along k that a block has at least, if several share a tile


class Tile(NamedTuple):
    """How a product is cut.

    A block of threads computes (m, n) elements of the result, a warp of it (warp_m, warp_n), in steps of k
    bytes along the sum, of which `stages` are in shared memory at once; `split` blocks share the sum.
    """

    m: int
    n: int
    k: int
    warp_m: int
    warp_n: int
    stages: int
    split: int = 1

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.m // self.warp_m * (self.n // self.warp_n) * 32

    def elements(self, dtype: str) -> int:
        """Elements of a step along k."""
        return self.k // (2 if dtype == "float16" else 4)


TILES = (  # from the largest, which reads least, to the smallest
    Tile(128, 128, 64, 64, 32, 4),
    Tile(64, 128, 128, 32, 64, 3),
    Tile(128, 64, 128, 64, 32, 3),
    Tile(64, 64, 128, 32, 32, 4),
    Tile(64, 32, 128, 32, 16, 4),
    Tile(32, 64, 128, 16, 32, 4),
    Tile(32, 32, 128, 16, 16, 4),
)

# The fastest, a tile for tensor cores, SKINNY or DLIGHT: by architecture, then by `products.Product.key`.
MEASURED: dict[str, dict[tuple, Tile | str]] = {}


def serves(rule: str, key: tuple, arch: str, experimental: bool) -> bool:
    """Tell whether a rule is to compute a product, rather than dlight.

    The table says it of the products that it has. Others follow those of their dtype and kind, a convolution
    or not, on the same architecture: a rule serves them if it was the fastest for one of these.

    Args:
        rule: TENSOR_CORES or SKINNY.
        key: See `products.Product.key`.
        arch: A GPU's architecture, such as "sm_90".
        experimental: Whether a rule serves all products that are not in the table.
    """
    table = MEASURED.get(arch, {})
    if key in table:
        return _rule(table[key]) == rule
    alike = {_rule(fastest) for each, fastest in table.items() if (each[0], len(each)) == (key[0], len(key))}
    return experimental or rule in alike


def _rule(fastest: Tile | str) -> str:
    return TENSOR_CORES if isinstance(fastest, Tile) else fastest


def tile_for(key: tuple, arch: str) -> Tile:
    """Return the tile for a product: the measured one, or else the largest of which there are enough.

    Args:
        key: See `products.Product.key`.
        arch: A GPU's architecture, such as "sm_90".
    """
    measured = MEASURED.get(arch, {}).get(key)
    if isinstance(measured, Tile):
        return measured
    dtype, batch, rows, columns, length = key[:5]
    for tile in TILES:
        if _count(tile, batch, rows, columns) >= _BLOCKS:
            return tile
    tile = next((each for each in TILES[3:] if each.m <= rows and each.n <= columns), TILES[-1])
    steps = ceildiv(length, tile.elements(dtype))
    wanted = ceildiv(_BLOCKS, _count(tile, batch, rows, columns))
    return tile._replace(split=max(1, min(wanted, steps // _STEPS)))


def candidates(key: tuple) -> list[Tile]:
    """List the tiles that are worth measuring for a product."""
    dtype, batch, rows, columns, length = key[:5]
    found = [tile_for(key, "")]
    for tile in TILES:
        steps = ceildiv(length, tile.elements(dtype))
        if tile.m > max(32, 2 * rows) or tile.n > max(32, 2 * columns):
            continue
        blocks = _count(tile, batch, rows, columns)
        for split in (1, 2, 4, 8, 16):
            enough = blocks * split // 2 < _BLOCKS * 2 and steps >= split * 4
            if (split == 1 and blocks * 8 >= _BLOCKS) or (
                split > 1 and enough and blocks * split * 2 >= _BLOCKS
            ):
                found.append(tile._replace(split=split))
    return list(dict.fromkeys(found))


def _count(tile: Tile, batch: int, rows: int, columns: int) -> int:
    return batch * ceildiv(rows, tile.m) * ceildiv(columns, tile.n)
