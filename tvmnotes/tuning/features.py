"""What a cost model sees of a config: values that mean the same for all workloads, so it can transfer."""

import math

from ..compiler.schedules import FAMILIES, Simd, Workload
from ..compiler.schedules.vector import step_cycles


def features(workload: Workload, config: dict, simd: Simd, threads: int) -> list[float]:
    """Compute the features of a config: the workload's sizes, the register tile, and what follows from it.

    The list has the same length for all workloads. Sizes and counts are base-2 logarithms, which trees split
    evenly.
    """
    loops, family = workload.loops(config, simd.lanes), workload.family(config)
    rows, blocks, depth, chunks = loops.rows, loops.blocks, loops.depth, loops.chunks
    tiles = loops.lines * math.ceil(loops.line / rows) * math.ceil(loops.outs / blocks)
    accumulators = rows * blocks
    data, weight = math.prod(workload.data), math.prod(workload.weight)
    weight_bytes, data_bytes = depth * blocks * simd.lanes * 4, depth * rows * 4  # that a register tile reads
    shape = (depth, loops.line, loops.outs, loops.lines, data, weight)
    tiling = (rows, blocks, accumulators, tiles, chunks, weight_bytes, data_bytes)
    sizes = (*shape, *tiling, loops.run, loops.columns, loops.chunk)
    return [
        *(float(family is other) for other in FAMILIES.values() if other.loops),
        *(math.log2(size) for size in sizes),
        (rows + blocks) / accumulators,  # loads per multiply-add
        (accumulators + blocks + 1) / simd.registers,  # share of the registers in use
        loops.points * loops.outs / (tiles * accumulators),  # share of the accumulators that is not padding
        chunks / (math.ceil(chunks / threads) * threads),  # share of the threads that is busy
        math.log2(step_cycles(rows, blocks) * tiles * depth),  # cycles by `step_cycles`
        float(config.get("outer") == "rows"),
        float("chunk" in config),
        float("prefetch" in config),
        float(config.get("tile", 0)),
        float(config.get("group", 0)),
        float(loops.stride),
    ]
