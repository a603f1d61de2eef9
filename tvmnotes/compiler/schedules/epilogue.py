"""What the families of schedules share: the elementwise epilogue of a kernel, and loops that are walked in vectors."""

from tvm import te
from tvm.s_tir import Schedule

_MOST_UNROLLED = 32  # iterations; above that a loop stays a loop


def crop(tensor, shape):
    """The part of `shape` of a tensor that was computed up to whole tiles."""
    if tuple(int(s) for s in tensor.shape) == tuple(shape):
        return tensor
    return te.compute(shape, lambda *at: tensor[at], name="crop")


def block_names(sch: Schedule) -> list[str]:
    """The names of the kernel's blocks, in the order in which they run."""
    return [sch.get(block).name_hint for block in sch.get_child_blocks(sch.get_sblock("root"))]


def fuse_epilogue(sch: Schedule, name: str, loop, stages: tuple[str, ...] = (), line: bool = False):
    """Have the block `name` sum in registers, and what follows it read them, at the end of each run of `loop`.

    What follows (bias, residual, activation) becomes one block; without any, the result is just stored. `stages` are
    the blocks that come before `name`. `line`: its pictures, so also the epilogue's, are lines, (n, blocks, H * W, x).
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
        width = int(sch.get(sch.get_loops(last)[-2]).extent)
        sch.transform_block_layout(last, lambda n, o, h, w, c: (n, o, h * width + w, c))
    depth = _depth(sch, name, loop)
    sch.reverse_compute_at(last, loop)
    vectorize(sch, sch.get_loops(last)[depth:])
    return last


def vectorize(sch: Schedule, loops: list) -> None:
    """Vectorize the last of `loops` and unroll those around it while that is little code."""
    if not loops:
        return
    sch.vectorize(loops[-1])
    iterations = 1
    for loop in reversed(loops[:-1]):
        iterations *= int(sch.get(loop).extent)
        if iterations > _MOST_UNROLLED:
            return
        sch.unroll(loop)


def parallel(sch: Schedule, loops: list):
    """Fuse `loops` and share their iterations out to the threads; returns the fused loop."""
    loop = sch.fuse(*loops)
    sch.parallel(loop)
    return loop


def _depth(sch: Schedule, name: str, loop) -> int:
    """How many loops stand around the inside of `loop` in the block `name`."""
    target = sch.get_sref(loop)
    srefs = [sch.get_sref(other) for other in sch.get_loops(name)]
    return next(i for i, sref in enumerate(srefs) if sref.same_as(target)) + 1
