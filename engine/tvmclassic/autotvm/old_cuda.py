"""What configs of TVM's templates for CUDA, in logs and scripts of 2018 to 2021, are today.

Those templates cut a convolution by `tile_f` (output channels), `tile_y` and `tile_x` (pixels), each into
blocks, virtual threads, threads, and elements of a thread; and its sum by `tile_rc`, `tile_ry` and `tile_rx`,
whose parts but the first are in shared memory at once. Today's tiles have no virtual threads. So a config is
read, and the nearest tile named, but no build takes it: its time is that of another kernel.
"""

import ast
import json
import math

from tvmfast.compiler.cuda import tile_configs

_SUMS = ("tile_rc", "tile_ry", "tile_rx")
# The sides of a block along x and y, what they are, and the sum
_CONV = ("tile_y", "tile_x"), "pixels", ("tile_f",), "output channels", _SUMS
_DENSE = ("tile_x",), "rows", ("tile_y",), "columns", ("tile_k",)
_LARGE = tile_configs.space(("float32", 1, 512, 3136, 4608, 3, 3, 1), "sm_80")[1:]  # each of dlight's tiles


def today(line: str) -> str | None:
    """Return a sentence on what a line's config is today; None if it is of no template of TVM's for CUDA.

    Args:
        line: Of a log, in the format of 2018 ("i", "r", "v") or of 2020 ("input", "config", "result"); or
            what the tuners printed, which ends in a config: `[('tile_f', [-1, 2, 8, 8]), …],None,8921`.
    """
    knobs = _knobs(line)
    if not knobs:
        return None
    if "tile_b" in knobs:
        return "Winograd's method (tile_b), of which there is no kernel for GPUs today"
    for x, of_x, y, of_y, sums in (_CONV, _DENSE):
        if {*knobs} == {*x, *y, *sums}:
            (across, own_x), (down, own_y) = _cut(knobs, x), _cut(knobs, y)
            step = math.prod(math.prod(knobs[name][1:]) for name in sums)
            block = f"{down * own_y} {of_y} ({', '.join(y)}) by {across * own_x} {of_x} ({', '.join(x)})"
            nearest = _nearest(across, down, own_x, own_y, step)
            return (
                f"{block} a block, in steps of {step} summands ({', '.join(sums)}), by {across * down} "
                f"threads; of today's tiles for float32, which have to be measured, {nearest} is the nearest"
            )
    return f"no tile of today cuts by {', '.join(knobs)}: such kernels are scheduled by rule"


def _cut(knobs: dict, names) -> tuple[int, int]:
    """Return the threads along a side of a block, and the elements of each, of its virtual threads too."""
    splits = [knobs[name] for name in names]
    threads = math.prod(n for split in splits for n in split[1:][-2:-1])
    return threads, math.prod(math.prod(split[1:]) for split in splits) // threads


def _nearest(*wanted: int) -> str:
    """Return today's tile whose fields differ from those wanted by the smallest factors."""

    def away(tile) -> float:
        pairs = zip(tile_configs.FIELDS, wanted, strict=True)
        return sum(abs(math.log2(tile[name] / value)) for name, value in pairs)

    nearest = min(_LARGE, key=away)
    return ", ".join(f"{name} {nearest[name]}" for name in tile_configs.FIELDS)


def _knobs(line: str) -> dict[str, list[int]] | None:
    """Return the splits of a line's config by the names of their knobs; None for any other line."""
    try:
        if "[('" in line:
            entity = ast.literal_eval(line[line.index("[('") : line.rindex("]") + 1])
            of_cuda = any(name in ("tile_f", "tile_b") for name, _ in entity)
        else:
            given = json.loads(line)
            is_new = "input" in given
            target, *_, last = given["input" if is_new else "i"]
            of_cuda = target.split()[0] == "cuda"
            entity = [
                (name, value) for name, _, value in (given["config"]["entity"] if is_new else last["e"])
            ]
        knobs = {name: [abs(int(n)) for n in value] for name, value in entity if name.startswith("tile_")}
    except Exception:  # a foreign line may hold anything
        return None
    return knobs if of_cuda and all(len(split) > 1 and min(split) > 0 for split in knobs.values()) else None
