"""What a cost model sees of a config: numbers that mean the same for all workloads, so that one learns from another."""

import math

from ..compiler.schedules.matmul import Dense
from ..compiler.schedules.vector import Vectors, step_cycles

_FAMILIES = ("conv2d", "pointwise", "winograd", "depthwise", "matmul")


def features(workload, config: dict, vectors: Vectors, threads: int) -> list[float]:
    """Of the workload its sizes; of the config its register tile, and what follows from that; see the code for each.

    Sizes and counts are logarithms to the base 2, which trees split evenly.
    """
    family = config.get("family", "matmul")
    shape = _shape(workload, config, family, vectors.lanes)
    rows, blocks = shape["tile"]
    pixels, outs = shape["line"], shape["outs"]  # what the tiles cover, in pixels and in blocks of channels
    tiles = shape["lines"] * math.ceil(pixels / rows) * math.ceil(outs / blocks)
    useful = shape["points"] * outs / (tiles * rows * blocks)
    chunks = shape["chunks"]
    depth = shape["depth"]
    numbers = [
        depth, pixels, outs, shape["lines"], shape["data"], shape["weights"], rows, blocks, rows * blocks, tiles,
        chunks, depth * blocks * vectors.lanes * 4, depth * rows * 4, shape["run"], shape["columns"],
        shape.get("chunk", 1),
    ]  # fmt: skip
    return [
        *(float(family == name) for name in _FAMILIES),
        *(math.log2(n) for n in numbers),
        (rows + blocks) / (rows * blocks),  # loads for a multiply-add
        (rows * blocks + blocks + 1) / vectors.registers,
        useful,
        chunks / (math.ceil(chunks / threads) * threads),  # the share of the threads that has work
        math.log2(step_cycles(rows, blocks) * tiles * depth),  # the rule's cycles
        float(config.get("outer") == "rows"),
        float("chunk" in config),
        float("prefetch" in config),
        float(config.get("tile", 0)),
        float(config.get("group", 0)),
        float(shape["stride"]),
    ]


def _shape(workload, config, family, lanes) -> dict:
    """The sizes of a workload as its family's loops see them."""
    if isinstance(workload, Dense):
        panels = math.ceil(workload.columns / lanes)
        tiles = math.ceil(workload.rows / config["rows"]), math.ceil(panels / config["blocks"])
        return {
            "tile": (config["rows"], config["blocks"]), "line": workload.rows, "outs": panels, "lines": 1,
            "points": workload.rows, "depth": workload.depth,
            "data": math.prod(workload.data), "weights": math.prod(workload.weight),
            "chunks": tiles[config["outer"] != "rows"], "run": 1, "columns": 1, "stride": 1,
        }  # fmt: skip
    n, height, width = workload.data[0], *workload.window(lanes).out_size(*workload.data[2:], *workload.weight[2:])
    outs = math.ceil(workload.weight[0] / lanes)
    sizes = {"data": math.prod(workload.data), "weights": math.prod(workload.weight), "stride": workload.strides[0],
             "run": 1, "columns": 1}  # fmt: skip
    depth = workload.window(lanes).ins * math.prod(workload.weight[2:])
    if family == "depthwise":
        lines = math.ceil(height / config["rows"])
        return sizes | {"tile": (config["pixels"], 1), "line": width, "outs": outs, "lines": n * height, "depth": depth,
                        "points": n * height * width, "chunks": n * outs * lines, "run": config["rows"]}  # fmt: skip
    if family == "winograd":
        down, across = (math.ceil(size / config["tile"]) for size in (height, width))
        rows, columns = config["rows"], config["columns"]
        lines = n * math.ceil(down / rows)
        chunks = math.ceil(lines / config["group"]) if config["group"] else math.ceil(outs / config["blocks"])
        return sizes | {
            "tile": (rows * columns, config["blocks"]), "line": math.ceil(across / columns) * columns * rows,
            "points": n * down * across * (config["tile"] + 2) ** 2,
            "outs": outs, "lines": lines * (config["tile"] + 2) ** 2, "depth": workload.data[1], "chunks": chunks,
            "run": rows, "columns": columns,
        }  # fmt: skip
    tiles, down = math.ceil(outs / config["blocks"]), config.get("lines", 1)
    line, lines = (height * width, n) if family == "pointwise" else (width * down, n * math.ceil(height / down))
    runs = lines * math.ceil(line / (config["pixels"] * config["run"])) if family == "pointwise" else lines
    ins = math.ceil(workload.window(lanes).ins / lanes) if workload.blocked else 1
    return sizes | {
        "chunk": config.get("chunk", ins),
        "tile": (down * config["pixels"], config["blocks"]), "line": line, "outs": outs, "lines": lines, "depth": depth,
        "points": n * height * width, "chunks": runs * tiles, "run": config.get("run", down),
        "columns": runs if config["outer"] == "rows" else tiles,
    }  # fmt: skip
