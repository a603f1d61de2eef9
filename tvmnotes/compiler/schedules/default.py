"""Every kernel that no family covers: inlined where that costs nothing, parallel outside, vectors inside."""

from tvm.s_tir import Schedule

_SMALL = 1 << 13  # iterations of a loop nest that are not worth waking other threads for


def schedule(sch: Schedule, config: dict) -> None:
    """Inline elementwise stages, then schedule each loop nest that is left. `config` has "lanes" of a register."""
    root = sch.get_sblock("root")
    for block in sch.get_child_blocks(root)[:-1]:
        if not _reduces(sch, block):
            try:
                sch.compute_inline(block)
            except Exception:
                continue
    for block in sch.get_child_blocks(root):
        _nest(sch, block, config["lanes"])


def _reduces(sch, block) -> bool:
    return any(int(var.iter_type) != 0 for var in sch.get(block).iter_vars)


def _nest(sch, block, lanes):
    loops = sch.get_loops(block)
    kinds = [int(var.iter_type) for var in sch.get(block).iter_vars]
    if not loops:
        return
    extents = [int(sch.get(loop).extent) for loop in loops]
    total = 1
    for extent in extents:
        total *= extent
    spatial = [loop for loop, kind in zip(loops, kinds, strict=True) if kind == 0]
    reduced = [loop for loop, kind in zip(loops, kinds, strict=True) if kind != 0]
    if not spatial:
        return
    inner = int(sch.get(spatial[-1]).extent)
    if inner % lanes == 0 and (not reduced or loops[-len(reduced) :] == reduced):
        last, vector = sch.split(spatial[-1], [None, lanes])
        outer = [*spatial[:-1], last]
        if reduced:
            sch.reorder(*outer, *reduced, vector)
        sch.vectorize(vector)
    else:
        outer = spatial[:-1] if len(spatial) > 1 and not reduced else spatial
    if total >= _SMALL and outer:
        sch.parallel(sch.fuse(*outer))
    if reduced:
        sch.decompose_reduction(block, reduced[0])
