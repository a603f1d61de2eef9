"""Lines of AutoTVM's logs for CUDA from 2018 to 2021, and what their knobs are today.

TVM's templates for CUDA cut a convolution by `tile_f` (output channels), `tile_y` and `tile_x` (pixels),
each into blocks, virtual threads, threads and elements of a thread, and its sum by `tile_rc`, `tile_ry` and
`tile_rx`, of which all but the first are summands that are in shared memory at once. tvmfast's tiles are of
one product, without virtual threads: a line is read, and the tile that is nearest to it is named, but no
build takes it, as its time is that of another kernel.
"""

import ast
import json
import math

from tvmfast.compiler.cuda.tiles import DLIGHT

from . import gpu

_DIRECT = ("tile_f", "tile_y", "tile_x", "tile_rc", "tile_ry", "tile_rx")
_DENSE = ("tile_x", "tile_y", "tile_k")
_SIDES = ("block_size_x", "block_size_y", "micro_size_x", "micro_size_y", "micro_size_k")
_NO_WINOGRAD = "it is of Winograd's method (tile_b), of which there is no kernel for GPUs"
_NO_TILES = "its kernel is scheduled by rule, and has no tiles"
_LARGE = ("TENSOR", (1, 512, 56, 56), "float32"), ("TENSOR", (512, 512, 3, 3), "float32"), 1, 1, 1


def today(line: str) -> str | None:
    """Return a sentence on what a line's config is today; None if it is of no template of TVM's for CUDA.

    Args:
        line: Of a log, in the format of 2018 ("i", "r", "v") or of 2020 ("input", "config", "result"); or
            what the tuners printed, which ends in a config: `[('tile_f', [-1, 2, 8, 8]), …],None,8921`.
    """
    found = _read(line)
    if found is None:
        return None
    task, knobs = found
    whose = f"{task[0]}: " if task else ""
    if "tile_b" in knobs:
        return f"{whose}{_NO_WINOGRAD}."
    if all(name in knobs for name in _DIRECT):
        channels, rows, columns = (_parts(knobs[name]) for name in _DIRECT[:3])
        step = math.prod(math.prod(knobs[name][1:]) for name in _DIRECT[3:])
        wanted = {
            "block_size_x": rows[0] * columns[0],
            "block_size_y": channels[0],
            "micro_size_x": rows[1] * columns[1],
            "micro_size_y": channels[1],
            "micro_size_k": step,
        }
        m = f"{math.prod(channels)} output channels (tile_f)"
        n = f"{math.prod(rows) * math.prod(columns)} pixels (tile_y and tile_x)"
        return whose + _sentence(m, n, "tile_rc, tile_ry and tile_rx", wanted, _space(task))
    if all(name in knobs for name in _DENSE) and "tile_f" not in knobs:
        rows, columns = (_parts(knobs[name]) for name in _DENSE[:2])
        step = math.prod(knobs["tile_k"][1:])
        wanted = dict(zip(_SIDES, (rows[0], columns[0], rows[1], columns[1], step), strict=True))
        m, n = f"{math.prod(rows)} rows (tile_x)", f"{math.prod(columns)} columns (tile_y)"
        return whose + _sentence(m, n, "tile_k", wanted, _space(task))
    return f"{whose}there is no counterpart of {', '.join(knobs)}: {_NO_TILES}."


def _parts(split) -> tuple[int, int]:
    """Return the threads of a split, and the elements of each, those of its virtual threads among them.

    A split is into blocks, virtual threads, threads and elements; one into three has no virtual threads.
    """
    inner = [1, *split[1:]] if len(split) == 3 else list(split[1:])
    if len(inner) != 3:
        return math.prod(inner), 1
    virtual, threads, elements = inner
    return threads, virtual * elements


def _sentence(m: str, n: str, of_step: str, wanted: dict, space: list[dict]) -> str:
    """Say what a tile was, by which knobs, and which of `space` is the nearest to the one `wanted`."""
    threads, step = wanted["block_size_x"] * wanted["block_size_y"], wanted["micro_size_k"]
    warps = -(-threads // 32)
    said = (
        f"m = {m} by n = {n} a block, in steps of k = {step} summands ({of_step}), by {threads} threads, "
        f"which are {warps} warps, in one stage"
    )
    if not space:
        return f"{said}; today's rules have no tile for this layer."
    nearest = min(space, key=lambda config: sum(abs(math.log2(config[n] / wanted[n])) for n in _SIDES))
    listed = ", ".join(f"{name} {nearest[name]}" for name in _SIDES)
    return f"{said}; the nearest tile of today is {listed}, which has to be measured."


def _space(task) -> list[dict]:
    """Return dlight's tiles for a task; those for a large convolution, if the line does not say which."""
    try:
        name, args = task or (gpu.NAMES[0], _LARGE)
        if name == "tutorial/conv2d_no_batching":
            n, height, width, outputs, channels, *window, stride, padding = args
            shapes = (n, channels, height, width), (outputs, channels, *window)
            args = *(("TENSOR", shape, "float32") for shape in shapes), stride, padding, 1
        is_conv = len(args[0][1]) == 4
        if is_conv and any(isinstance(each, str) and each not in ("NCHW", "float32") for each in args):
            return []
        configs = gpu.configs_of(gpu.NAMES[0 if is_conv else 1], args, "sm_80")
    except (ValueError, TypeError, IndexError, KeyError):
        return []
    return [config for config in configs if config["family"] == DLIGHT]


def _read(line: str) -> tuple[tuple | None, dict] | None:
    """Return a line's task, (name, arguments) or None, and the values of its knobs by name."""
    try:
        if "[('" in line:
            printed = ast.literal_eval(line[line.index("[('") : line.rindex("]") + 1])
            knobs = {str(name): value for name, value in printed}
            if not {"tile_f", "tile_b"} & {*knobs} and not {*_DENSE} <= {*knobs}:
                return None
            task = None
        else:
            given = json.loads(line)
            target, name, args, *_ = given["input"] if "input" in given else given["i"]
            entity = given["config"]["entity"] if "config" in given else _last(given["i"])["e"]
            if str(target).split()[0] != "cuda":
                return None
            task, knobs = (str(name), args), {str(knob): value for knob, _, value in entity}
        tiles = {name: value for name, value in knobs.items() if name.startswith("tile_")}
        splits = {name: [abs(int(n)) for n in value] for name, value in tiles.items()}
        sound = splits and all(len(value) > 1 and min(value) > 0 for value in splits.values())
    except (ValueError, TypeError, KeyError, IndexError, SyntaxError, StopIteration, RecursionError):
        return None
    return (task, splits) if sound else None


def _last(entries: list) -> dict:
    """Return the config among the entries of a line of 2018."""
    return next(each for each in reversed(entries) if isinstance(each, dict) and "e" in each)
