"""Scheduling that the rules share: fusing a kernel's elementwise epilogue, vector and parallel loops."""

from tvm import te, tirx
from tvm.s_tir import Schedule, ScheduleError

from ...core.relax import dim_to_str

_MOST_UNROLLED = 32  # iterations; longer loops are not unrolled


def crop(tensor, shape):
    """Return the part of `shape` of a tensor that was computed up to whole tiles."""
    full, wanted = ([dim_to_str(dim) for dim in dims] for dims in (tensor.shape, shape))
    if full == wanted and None not in full:
        return tensor
    return te.compute(shape, lambda *at: tensor[at], name="crop")


def block_names(sch: Schedule) -> list[str]:
    """Return the names of the kernel's blocks, in execution order."""
    return [sch.get(block).name_hint for block in sch.get_child_blocks(sch.get_sblock("root"))]


def fuse_epilogue(sch: Schedule, name: str, loop, stages: tuple[str, ...] = (), line: bool = False):
    """Accumulate the block `name` in registers; fuse the epilogue at the end of each iteration of `loop`.

    The epilogue (bias, residual, activation) becomes one block; without one, the result is just stored.

    Args:
        sch: the schedule of the kernel.
        name: the block of the reduction.
        loop: the loop of that block inside which the epilogue is computed.
        stages: the blocks that run before `name`.
        line: whether the block's images are lines, (N, blocks, H * W, x), to which the epilogue is then
            reshaped.

    Returns:
        The block of the epilogue.
    """
    epilogue = [other for other in block_names(sch) if other != name and other not in stages]
    for other in epilogue[:-1]:
        sch.compute_inline(other)
    if epilogue:
        last = sch.get_sblock(epilogue[-1])
        sch.set_scope(name, 0, "local")
    else:
        last = sch.cache_write(name, 0, "local")
    if line:
        width = sch.get(sch.get_loops(last)[-2]).extent
        if not isinstance(width, tirx.IntImm):
            raise ScheduleError("the lines of an epilogue have a dynamic dim")
        width = int(width)
        sch.transform_block_layout(last, lambda n, o, h, w, c: (n, o, h * width + w, c))
    depth = depth_of(sch, name, loop)
    sch.reverse_compute_at(last, loop)
    vectorize(sch, sch.get_loops(last)[depth:])
    return last


def vectorize(sch: Schedule, loops: list) -> None:
    """Vectorize the last of `loops` and unroll those around it while the code stays small."""
    if not loops:
        return
    sch.vectorize(loops[-1])
    iterations = 1
    for loop in reversed(loops[:-1]):
        extent = sch.get(loop).extent
        if not isinstance(extent, tirx.IntImm):  # a dynamic dim that only the epilogue has
            return
        iterations *= int(extent)
        if iterations > _MOST_UNROLLED:
            return
        sch.unroll(loop)


def parallel(sch: Schedule, loops: list):
    """Fuse `loops` and parallelize the result, which is returned."""
    loop = sch.fuse(*loops)
    sch.parallel(loop)
    return loop


def depth_of(sch: Schedule, name: str, loop) -> int:
    """Return how many loops of the block `name` enclose the body of `loop`, itself included."""
    target = sch.get_sref(loop)
    srefs = [sch.get_sref(other) for other in sch.get_loops(name)]
    return next(i for i, sref in enumerate(srefs) if sref.same_as(target)) + 1
