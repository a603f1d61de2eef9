"""What a cost model sees of a config: numbers that mean the same for all workloads, so that one learns from another."""

import math

from ..compiler.schedules import FAMILIES, Simd, Workload
from ..compiler.schedules.vector import step_cycles


def features(workload: Workload, config: dict, simd: Simd, threads: int) -> list[float]:
    """Of the workload its sizes; of the config its register tile, and what follows from that; see the code for each.

    Sizes and counts are logarithms to the base 2, which trees split evenly.
    """
    loops, family = workload.loops(config, simd.lanes), workload.family(config)
    rows, blocks, depth, chunks = loops.rows, loops.blocks, loops.depth, loops.chunks
    tiles = loops.lines * math.ceil(loops.line / rows) * math.ceil(loops.outs / blocks)
    numbers = [
        depth, loops.line, loops.outs, loops.lines, math.prod(workload.data), math.prod(workload.weight), rows, blocks,
        rows * blocks, tiles, chunks, depth * blocks * simd.lanes * 4, depth * rows * 4, loops.run, loops.columns,
        loops.chunk,
    ]  # fmt: skip
    return [
        *(float(family is other) for other in FAMILIES.values() if other.loops),
        *(math.log2(n) for n in numbers),
        (rows + blocks) / (rows * blocks),  # loads for a multiply-add
        (rows * blocks + blocks + 1) / simd.registers,
        loops.points * loops.outs / (tiles * rows * blocks),  # the share of the sums that somebody reads
        chunks / (math.ceil(chunks / threads) * threads),  # the share of the threads that has work
        math.log2(step_cycles(rows, blocks) * tiles * depth),  # the rule's cycles
        float(config.get("outer") == "rows"),
        float("chunk" in config),
        float("prefetch" in config),
        float(config.get("tile", 0)),
        float(config.get("group", 0)),
        float(loops.stride),
    ]
