"""Targets and schedules for NVIDIA's GPUs, target "cuda".

TVM's dlight schedules the kernels, without a search: matrix products and convolutions by tiles in shared
memory (a convolution is one more product, of windows that are gathered while they are loaded), with tensor
cores if the operands are float16; reductions by a block of threads per result; the others by a thread per
element. Layouts stay NCHW. A database of MetaSchedule, if one is active (`with database:`), takes precedence.

The tile that records have for a product (`tile_configs.py`) comes first. Two rules of tvmfast follow, where a
table of measurements says that they are faster (`tiles.py`), or where a build asks for what is experimental:
products and convolutions of float16, and convolutions of float32 if TF32 is allowed, on tensor cores
(`tensor_cores.py`), and products of up to eight rows, which read their weights once (`skinny.py`).
"""

import logging
import math
import re

import tvm
import tvm_ffi
from tvm import tirx
from tvm.relax import transform as t
from tvm.s_tir import SBlock, SBlockRealize, Schedule, dlight

from ...core import errors, machine
from ...core.compat import lazy_tensor_intrinsics
from ...core.protocols import Lookup
from ...runtime import on_gpu
from . import products, tensor_cores, tile_configs, tiles
from .skinny import Skinny
from .workspaces import workspaces_to_results

TUNED = "tuned"  # the rule for products that a lookup has a config for
_LOG = logging.getLogger(__name__)
_OLDEST = 75  # the oldest architecture that CUDA 13 compiles for
_MANY = 256  # blocks of a launch that keep a GPU busy: two for each multiprocessor of a large one
_THREADS = 1024  # of a block, at most
_FEW = 32  # elements up to which a reduction is the work of a thread, not of a block


class _Tiled(dlight.gpu.Matmul):
    """Dlight's rule for matrix products, with a tile; a step has 32 summands if it does not say."""

    def __init__(self, **tile: int):
        options = {"micro_size_k": 32, "vector_size": tile_configs.VECTOR, "storage_align": True}
        self._config = dlight.gpu.Matmul.Config(**options | tile)

    def get_configs(self, _target):
        return self._config


class _Matmul:
    """Dlight's rule for matrix products with tiles of 32x32 elements, or of 8x32 where these are few.

    Measured on an H100 with the convolutions of ResNet-18 and ResNet-50: its own tiles, 32x64 with steps of
    16 summands, take up to 2.7 times as long if a launch has fewer of them than the chip can hold, and about
    as long if it has many. A step of 32 summands halves the number of barriers.
    """

    _LARGE = _Tiled(block_size_x=16, block_size_y=16, micro_size_x=2, micro_size_y=2)
    _SMALL = _Tiled(block_size_x=8, block_size_y=16, micro_size_x=1, micro_size_y=2)

    def apply(self, func, target, _):
        large = self._LARGE.apply(func, target, _)
        if large is None or _blocks(large.mod["main"]) >= _MANY:
            return large
        return self._SMALL.apply(func, target, _)


class _Tuned:
    """The rule for products of which a lookup has a config that is in their `tile_configs.space`."""

    def __init__(self, lookup: Lookup):
        self.lookup = lookup

    def apply(self, func, target, _):
        product, store = products.match(func) or (None, None)
        config = product and self.lookup(product)
        if not config or config not in tile_configs.space(product.key, str(target.attrs["arch"])):
            return None
        tile = tile_configs.tile_of(config)
        if isinstance(tile, tiles.Tile):
            return tensor_cores.scheduled(func, product, store, tile)
        return _Tiled(**tile).apply(func, target, _)


_RULES = {
    "matmul": _Matmul(),
    "gemv": dlight.gpu.GEMV(),
    "reduction": dlight.gpu.Reduction(),
    "general_reduction": dlight.gpu.GeneralReduction(),
    "fallback": dlight.gpu.Fallback(),
}

# ---------------------------------------------------------------- targets and devices


def with_arch(target):
    """Return `target`, with the architecture of this machine's GPU if it is of kind "cuda" and has none."""
    options = {"kind": target} if isinstance(target, str) else target
    if not isinstance(options, dict) or options.get("kind") != "cuda" or options.get("arch"):
        return target
    return {**options, "arch": on_gpu.arch_of(tvm.cuda())}


def resolved(target: tvm.target.Target) -> tvm.target.Target:
    """Set this machine as the host of a target of kind "cuda".

    Raises:
        ValueError: CUDA 13 does not compile for its architecture.
    """
    arch = str(target.attrs["arch"])
    if not re.fullmatch(r"sm_\d{2,3}[af]?", arch) or on_gpu.version(arch) < _OLDEST:
        raise ValueError(
            f"target of kind 'cuda': expected an arch from sm_{_OLDEST} on, such as 'sm_80'; got {arch!r}"
        )
    return target if target.host else target.with_host(machine.host_target())


# ---------------------------------------------------------------- kernels


def scheduled(
    mod: tvm.IRModule,
    target: tvm.target.Target,
    allow_tf32: bool = False,
    experimental: bool = False,
    lookup: Lookup | None = None,
) -> tuple[tvm.IRModule, dict[str, dict]]:
    """Schedule each kernel, at every opt level: a kernel without threads cannot run on a GPU.

    Args:
        mod: The kernels.
        target: The target.
        allow_tf32: Whether convolutions of float32 may round their operands to TF32.
        experimental: Whether tvmfast's rules serve products that `tiles.MEASURED` does not have, too.
        lookup: Gives the config of a `products.Product`; see `tile_configs.py`.

    Returns:
        The module, and by kernel name its rule ("family") and the grids and blocks that it launches.
    """
    mod, schedules = mod.clone(), {}
    rules = _RULES
    if experimental or str(target.attrs["arch"]) in tiles.MEASURED:
        on_cores = tensor_cores.TensorCores(allow_tf32, experimental)
        rules = {tiles.SKINNY: Skinny(experimental), tiles.TENSOR_CORES: on_cores} | rules
    if lookup is not None:
        rules = {TUNED: _Tuned(lookup)} | rules
    kernels = {var: func for var, func in mod.functions_items() if isinstance(func, tirx.PrimFunc)}
    by_hand = {var for var, func in kernels.items() if has_threads(func)}
    for var in by_hand:
        mod.update_func(var, _all_with_threads(kernels[var]))
    if tvm.s_tir.meta_schedule.database.Database.current():
        mod = t.MetaScheduleApplyDatabase(enable_warning=False)(mod)
    with lazy_tensor_intrinsics():
        for var, func in mod.functions_items():
            if isinstance(func, tirx.PrimFunc):
                rule, kernel = ("by_hand", func) if var in by_hand else _schedule(func, target, rules)
                _LOG.debug("%s: rule %s takes it", var.name_hint, rule)
                mod.update_func(var, kernel)
                schedules[var.name_hint] = {"family": rule, "launches": launches(kernel)}
    return workspaces_to_results(mod), dict(sorted(schedules.items()))


def _schedule(func, target, rules) -> tuple[str, tirx.PrimFunc]:
    """Return the name of the rule that serves a kernel, and the kernel with its schedule."""
    if "tirx.is_scheduled" in (func.attrs or {}):
        return "metaschedule", func
    blocks = isinstance(func.body, SBlockRealize)
    for name, rule in rules.items() if blocks else ():
        if name.endswith("reduction") and _sums_few(func):
            continue
        schedule = _applied(name, rule, func, target)
        if schedule is not None:
            return name, func.with_body(schedule.mod["main"].body).with_attr("tirx.is_scheduled", True)
    return "one_thread", one_thread(func).with_attr("tirx.is_scheduled", True)


def _applied(name, rule, func, target):
    """Return a kernel's schedule by a rule; None if it does not fit, or fails when it finds that out."""
    try:
        return rule.apply(func.with_attr("global_symbol", "main"), target, False)
    except (AssertionError, RuntimeError, ValueError) as error:
        if _LOG.isEnabledFor(logging.DEBUG):
            _LOG.debug("rule %s declines: %s", name, errors.one_line(error))
        return None


def _all_with_threads(func) -> tirx.PrimFunc:
    """Give threads to the loops that a kernel of TVM has beside those that are bound, as for a transposition.

    Without them the CPU would run these loops, on the GPU's memory.
    """
    if not isinstance(func.body, SBlockRealize) or func.body.block.name_hint != "root":
        return func
    schedule = Schedule(func.with_attr("global_symbol", "main"))
    for block in schedule.get_child_blocks(schedule.get_sblock("root")):
        loops = schedule.get_loops(block)
        if loops and not _threads(schedule.get(loops[0])):
            axes = schedule.get(block).iter_vars
            is_parallel = all(axis.iter_type == tirx.IterVar.DataPar for axis in axes)
            shared = schedule.fuse(*loops) if is_parallel else schedule.add_unit_loop(loops[0])
            blocks, threads = schedule.split(shared, [None, _THREADS if is_parallel else 1])
            schedule.bind(blocks, "blockIdx.x")
            schedule.bind(threads, "threadIdx.x")
    return func.with_body(schedule.mod["main"].body)


def _sums_few(func) -> bool:
    """Tell whether each reduction of a kernel is over a few elements, as in a depthwise convolution."""
    analyzer, sizes = tvm.sym.Analyzer(), []

    def visit(block):
        axes = [axis for axis in block.iter_vars if axis.iter_type == tirx.IterVar.CommReduce]
        if axes:
            sizes.append(math.prod(analyzer.const_int_bound(axis.dom.extent).max_value for axis in axes))

    tvm_ffi.structural_walk(func.body, (SBlock, visit))
    return bool(sizes) and max(sizes) <= _FEW


def one_thread(func) -> tirx.PrimFunc:
    """Run loops that no rule serves in a single thread, with thread-local buffers: correct, and slow."""
    own = []
    allocations = [
        (tirx.AllocBuffer, lambda alloc: own.append(alloc.buffer)),
        (SBlock, lambda block: own.extend(block.alloc_buffers)),
    ]
    tvm_ffi.structural_walk(func.body, allocations)
    local = {b: tirx.decl_buffer(b.shape, b.dtype, b.name, scope="local") for b in own}
    body = tvm_ffi.structural_map(func.body, (tirx.Var, lambda var: local.get(var, var)))
    blocks = isinstance(body, SBlockRealize)
    inner = body.block.body if blocks else body
    for tag in ("threadIdx.x", "blockIdx.x"):
        var = tirx.Var(tag.replace(".", "_"), "int32")
        axis = tirx.IterVar((0, 1), var, tirx.IterVar.ThreadIndex, tag)
        if blocks:
            inner = tirx.For(var, 0, 1, tirx.ForKind.THREAD_BINDING, inner, axis)
        else:
            inner = tirx.AttrStmt(axis, "thread_extent", 1, inner)
    if blocks:
        root = body.block
        before = root.iter_vars, root.reads, root.writes, root.name_hint
        after = root.init, root.alloc_buffers, root.match_buffers, root.annotations
        inner = SBlockRealize(body.iter_values, body.predicate, SBlock(*before, inner, *after))
    return func.with_body(inner)


def launches(func) -> list[dict]:
    """List the launches of a scheduled kernel, in order: each "grid" in blocks and each "block" in threads.

    The list is empty for TVM's sorts, which launch in loops, each time with another grid.
    """
    body = func.body.block.body if isinstance(func.body, SBlockRealize) else func.body
    launched = []
    for statement in body.seq if isinstance(body, tirx.SeqStmt) else [body]:
        extents = _threads(statement)
        if not all(isinstance(extent, tirx.IntImm) for extent in extents.values()):
            return []
        tags = {"grid": "blockIdx", "block": "threadIdx"}
        if extents:
            launched.append(
                {key: [int(extents.get(f"{tag}.{axis}", 1)) for axis in "xyz"] for key, tag in tags.items()}
            )
    return launched


def _blocks(func) -> int:
    """Return the number of blocks that the last launch of a scheduled kernel has."""
    return math.prod(launches(func)[-1]["grid"])


def has_threads(func) -> bool:
    """Tell whether a kernel has threads before it is scheduled, as TVM's sorts and some of nms.py."""
    return bool(_threads(func.body))


def _threads(statement) -> dict:
    """Return the extents of the threads and blocks that a statement binds, by tag."""
    extents = {}

    def note(loop):
        if loop.kind == tirx.ForKind.THREAD_BINDING:
            extents[loop.thread_binding.thread_tag] = loop.extent

    def note_attr(attr):
        if attr.attr_key == "thread_extent":
            extents[attr.node.thread_tag] = attr.value

    tvm_ffi.structural_walk(statement, [(tirx.For, note), (tirx.AttrStmt, note_attr)])
    return extents
