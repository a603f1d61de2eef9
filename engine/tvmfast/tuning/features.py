"""What a cost model sees of a config: values that mean the same for all workloads, so it can transfer."""

import math

import numpy as np

from ..compiler.schedule.rules import RULES
from ..compiler.schedule.workloads.workload import Workload
from ..core.relax import ceildiv, round_up
from ..core.simd import Simd, step_cycles


def features(workload: Workload, config: dict, simd: Simd, threads: int) -> list[float]:
    """Compute the features of a config: the workload's sizes, the register tile, and what follows from it.

    The list has the same length for all workloads. Sizes and counts are base-2 logarithms, which trees split
    evenly.
    """
    loops = workload.loops(config, simd.lanes)
    tile_m, tile_n = loops.tile_m, loops.tile_n
    k, n_tasks = loops.k, loops.n_tasks
    tiles = loops.products * ceildiv(loops.m, tile_m) * ceildiv(loops.n, tile_n)
    accumulators = tile_m * tile_n
    data, weight = math.prod(workload.data), math.prod(workload.weight)
    weight_bytes, data_bytes = k * tile_n * simd.lanes * 4, k * tile_m * 4  # that a register tile reads
    shape = (k, loops.m, loops.n, loops.products, data, weight)
    tiling = (tile_m, tile_n, accumulators, tiles, n_tasks, weight_bytes, data_bytes)
    sizes = (*shape, *tiling, loops.block_m, loops.n_outer, loops.k_block)
    return [
        *(float(config["family"] == name) for name, rule in RULES.items() if rule.EXAMPLES),
        *(math.log2(size) for size in sizes),
        (tile_m + tile_n) / accumulators,  # loads per multiply-add
        (accumulators + tile_n + 1) / simd.registers,  # share of the registers in use
        loops.rows * loops.n / (tiles * accumulators),  # share of the accumulators that is not padding
        n_tasks / round_up(n_tasks, threads),  # share of the threads that is busy
        math.log2(step_cycles(tile_m, tile_n) * tiles * k),  # cycles by `step_cycles`
        float(config.get("loop_order") == "rows"),
        float("tile_ic" in config),
        float("prefetch" in config),
        float(config.get("m", 0)),
        float(config.get("block_oh", 0)),
        float(loops.stride),
        float(np.dtype(workload.dtype).itemsize),
    ]
