"""The steps of a TE schedule, taken on a `tvm.s_tir.Schedule` in the order that it allows.

TE kept steps until it lowered them all together; TensorIR takes each at once, on what the steps before it
left. So `Replay` takes them in this order:

1. `cache_read`, `cache_write` and `rfactor`, as they were called, on functions whose loops are whole;
2. `compute_inline`;
3. stage by stage, what reads before what is read: `compute_at`, after which a stage has loops for what one
   iteration of its reader needs; the stage's own splits, fusions and reorderings on these loops; then the
   kinds of the loops. Threads are bound before producers come into the loops, as shared memory holds what all
   threads of a block need;
4. the start of each reduction, which TE wrote before the outermost loop of the reduction
   (`decompose_reduction`). TVM proves steps sound for whole reductions only, so this comes last but for
5. `tensorize`.
"""

import re

import tvm
import tvm_ffi
from tvm import te
from tvm.s_tir import SBlockRealize
from tvm.tirx.buffer import is_buffer_var

from .padding import pad
from .recorder import Recorder
from .stage import (
    REDUCE,
    ScheduleError,
    Unsupported,
    axes_of,
    constant,
    key,
    name_of,
    ordered,
    outputs_of,
    reduced_of,
)
from .steps import CacheRead, CacheWrite, Fuse, Reorder, Split

_VARIABLE = re.compile(r"T\.Buffer\(\([^)]*[A-Za-z_]")  # a length that Python cannot evaluate by itself
_VIRTUAL = ("vthread.x", "vthread.y", "vthread.z")


def replay(schedule, args=None, name: str = "main") -> "Replay":
    """Return a TE schedule as a TensorIR schedule of the function `name`.

    Args:
        schedule: A `schedule.Schedule`.
        args: The function's arguments, tensors of `te` and variables; by default placeholders and outputs.
        name: The function's name.

    Raises:
        ScheduleError: Arguments of another kind, an input or output that is missing, or a primitive that TVM
            refuses.
    """
    if args is None:
        inputs = [stage.op for stage in schedule.stages if isinstance(stage.op, te.PlaceholderOp)]
        args = [op.output(i) for op in [*inputs, *schedule.outputs] for i in range(outputs_of(op))]
    for arg in args:
        if not isinstance(arg, te.Tensor) and (not isinstance(arg, tvm.tirx.Var) or is_buffer_var(arg)):
            raise ScheduleError(
                "te: arguments of a function: expected tensors of te.placeholder and te.compute, and te.var; "
                f"got {type(arg).__name__} {arg}"
            )
    given = {key(arg.op) for arg in args if isinstance(arg, te.Tensor)}
    for op in [*schedule.outputs, *(s.op for s in schedule.stages if isinstance(s.op, te.PlaceholderOp))]:
        if key(op) not in given:
            raise ScheduleError(f"te: {op.name} is not among the arguments, as inputs and outputs have to be")
    return Replay(schedule, list(args), name)


class Replay:
    """A TE schedule after its replay: `mod` is the scheduled module, `script()` the code that makes it."""

    def __init__(self, schedule, args: list, name: str):
        args, self._old = pad(schedule, args)
        self.func = te.create_prim_func(args).with_attr("global_symbol", name)
        self._schedule, self._rec = schedule, Recorder(self.func)
        self._names: dict[int, list[str]] = {}  # of the blocks that an operation begins with
        self._blocks: dict[int, object] = {}  # by id of the stage
        self._loops: dict[int, dict[int, object]] = {}  # by id of the stage and axis
        self._virtual: dict[int, str] = {}
        self._orders: dict[int, tuple[list, list]] = {}  # of factored stages: axes by loop, and by block
        keys = [key(arg.op) if isinstance(arg, te.Tensor) else 0 for arg in args]
        self._params = dict(zip(keys, self.func.params, strict=True))
        self._name_blocks(args)
        for change in schedule.changes:
            self._change(change)
        for stage in schedule.stages:
            if stage.attach_type == "inline":
                self._refuse_extern("compute_inline", stage)
                self._rec.call(
                    stage.at("compute_inline"), "compute_inline", self._block(stage, "compute_inline")
                )
        for stage in reversed(schedule.stages):
            if self._matters(stage):
                self._schedule_loops(stage)
        for stage in schedule.stages:
            self._start(stage)
        for stage in schedule.stages:
            for axis, intrinsic in stage.tensorized:
                self._on_leaf(stage, axis, "tensorize", intrinsic)
        self.mod = tvm.IRModule({name: self._rec.sch.mod["main"]})

    def script(self) -> str:
        """Return the function in TVMScript and the steps on it, as a script that ends with `mod`."""
        text = "\n".join(
            line for line in self.func.script().splitlines() if not line.startswith(("#", "from "))
        )
        return "\n".join(
            [
                *(["from __future__ import annotations", ""] if _VARIABLE.search(text) else []),
                "import tvm",
                "from tvm.script import tirx as T",
                "",
                text.strip(),
                "",
                f"sch = tvm.s_tir.Schedule({self.func.attrs['global_symbol']})",
                *self._rec.lines(),
                "mod = sch.mod",
            ]
        )

    # ------------------------------------------------------------ blocks

    def _name_blocks(self, args: list) -> None:
        sch = self._rec.sch
        blocks = [sch.get(block).name_hint for block in sch.get_child_blocks(sch.get_sblock("root"))]
        for op in ordered([arg.op for arg in args if isinstance(arg, te.Tensor)]):
            if isinstance(op, te.PlaceholderOp):
                continue
            together = isinstance(op, te.ExternOp) or bool(reduced_of(op))
            count = 1 if together else outputs_of(op)
            self._names[self._old.get(key(op), key(op))], blocks = blocks[:count], blocks[count:]

    def _block(self, stage, primitive: str):
        """Return the block of a stage.

        Raises:
            ScheduleError: It has none, or several.
        """
        if id(stage) not in self._blocks:
            names = self._names.get(key(stage.origin_op), [])
            if not names:
                raise ScheduleError(f"{stage.at(primitive)}: it is an input, which has no loops")
            if len(names) > 1:
                raise Unsupported(
                    f"{stage.at(primitive)}: it has {len(names)} results and no reduction, each of which "
                    "has loops of its own in TensorIR; write a te.compute for each"
                )
            where = stage.at(primitive)
            self._blocks[id(stage)] = self._rec.call(where, "get_sblock", names[0], names=[names[0]])
        return self._blocks[id(stage)]

    def _change(self, change) -> None:
        """Take a step that makes a new stage."""
        new = change.stage
        if isinstance(change, CacheRead):
            at = change.source.at("cache_read")
            readers = [self._block(reader, "cache_read") for reader in change.readers]
            buffer = self._written(change.source).name
            reads = [[region.source.name for region in self._rec.sch.get(block).reads] for block in readers]
            for reader, names in zip(change.readers, reads, strict=True):
                if buffer not in names:
                    raise ScheduleError(
                        f"{at}: {reader.name} does not read it, but {', '.join(names) or 'nothing'}; "
                        "call cache_read before cache_write, or name the cache as the reader"
                    )
            index = reads[0].index(buffer)
            options = {"consumer_blocks": readers}
            args = (readers[0], index, new.scope)
            self._blocks[id(new)] = self._rec.call(at, "cache_read", *args, names=[new.name], **options)
        elif isinstance(change, CacheWrite):
            at, block = change.result.at("cache_write"), self._block(change.result, "cache_write")
            copy = self._rec.call(
                at, "cache_write", block, 0, new.scope, names=[f"{change.result.name}_copy"]
            )
            self._blocks[id(new)], self._blocks[id(change.result)] = block, copy
        else:
            self._factor(change)

    def _written(self, stage):
        """Return the buffer that has a stage's result."""
        if isinstance(stage.op, te.PlaceholderOp):
            return self._params[key(stage.op)]
        return self._rec.sch.get(self._block(stage, "cache_read")).writes[0].source

    def _factor(self, change) -> None:
        stage, first = change.result, change.stage
        at, block = stage.at("rfactor", change.axis), self._block(stage, "rfactor")
        roots = [*axes_of(stage.op), *change.roots]
        live = self._named_loops(at, block, roots)
        self._take(stage, live, change.steps)
        self._blocks[id(first)] = self._rec.call(
            at, "rfactor", live[key(change.axis)], change.factor_axis, names=[first.name]
        )
        place = range(len(first.op.axis))[change.factor_axis]
        factored = first.op.axis[place]
        spatial = [*first.op.axis[:place], *first.op.axis[place + 1 :]]
        new = {key(old): axis for old, axis in zip(change.others, first.op.reduce_axis, strict=True)}
        by_loop = [*spatial, *(new.get(key(old), factored) for old in change.reduced)]
        self._orders[id(first)] = by_loop, [factored, *spatial, *first.op.reduce_axis]

    # ------------------------------------------------------------ loops

    def _matters(self, stage) -> bool:
        """Return whether a stage has loops that something is done with."""
        if stage.attach_type == "inline" or isinstance(stage.op, te.PlaceholderOp):
            return False
        done = (stage.steps, stage.kinds, stage.threads, stage.pragmas, stage.aligned, stage.tensorized)
        return (
            any(done)
            or stage.double_buffered
            or stage.attach_type == "scope"
            or bool(reduced_of(stage.op))
            or bool(stage.scope and not self._is_cache(stage))
            or any(other.attach_stage is stage for other in self._schedule.stages)
        )

    def _schedule_loops(self, stage) -> None:
        """Put a stage where it is computed, and take the steps on its loops."""
        block = self._block(stage, "schedule")
        axes = [*axes_of(stage.op), *reduced_of(stage.op)]
        by_loop, by_block = self._orders.get(id(stage), (axes, axes))
        self._set_scope(stage, block)
        if stage.attach_type == "scope":
            at = stage.at("compute_at") + f" at {stage.attach_stage.name}, axis {name_of(stage.attach_ivar)}"
            outer = self._loops.get(id(stage.attach_stage), {}).get(key(stage.attach_ivar))
            if outer is None:
                raise ScheduleError(
                    f"{at}: the axis is no loop of {stage.attach_stage.name} any more, or that is computed "
                    "before it"
                )
            self._refuse_extern("compute_at", stage)
            _refuse_vectors(at, stage)
            self._refuse_condition(at, block)
            self._rec.call(at, "compute_at", block, outer, preserve_unit_loops=True)
            by_loop = by_block
        at = stage.at("the loops")
        live = self._named_loops(at, block, by_loop)
        if [key(axis) for axis in by_loop] != [key(axis) for axis in axes]:
            self._rec.call(at, "reorder", *(live[key(axis)] for axis in axes))
        self._take(stage, live, stage.steps)
        self._loops[id(stage)] = live
        self._kinds(stage, live)
        for axis, factor, offset in stage.aligned:
            self._refuse_extern("storage_align", stage)
            self._rec.call(stage.at("storage_align"), "storage_align", block, 0, axis, factor, offset)
        if stage.double_buffered:
            self._rec.call(stage.at("double_buffer"), "annotate", block, "double_buffer_scope", 0)

    def _refuse_extern(self, primitive: str, stage) -> None:
        """Raise `ScheduleError` for what a function of `te.extern` reads or makes, which TVM does not see."""
        for other in self._schedule.stages:
            op = other.origin_op
            reads = isinstance(op, te.ExternOp) and any(
                key(t.op) == key(stage.origin_op) for t in op.input_tensors
            )
            if reads or (other is stage and isinstance(op, te.ExternOp)):
                raise ScheduleError(
                    f"{stage.at(primitive)}: the function {op.name} of te.extern takes it as it is"
                )

    def _refuse_condition(self, at: str, block) -> None:
        """Raise `Unsupported` if a block has a condition.

        TVM 0.27's `compute_at` forgets it, and so does the store of a reduction that threads share.
        """
        wanted, found = self._rec.sch.get(block), []
        tvm_ffi.structural_walk(
            self._rec.sch.mod["main"].body,
            [(SBlockRealize, lambda node: found.append(node) if node.block.same_as(wanted) else None)],
        )
        if any(constant(node.predicate) != 1 for node in found):
            raise Unsupported(
                f"{at}: the loops of its splits leave a rest, which TVM 0.27 forgets here; split by divisors"
            )

    def _named_loops(self, at: str, block, axes: list) -> dict[int, object]:
        """Return the innermost loops of a block by axis, of which it has one for each."""
        if not axes:
            return {}
        loops = self._rec.call(at, "get_loops", block, names=[name_of(axis) for axis in axes])
        if len(loops) != len(axes):
            raise ScheduleError(f"{at}: expected {len(axes)} loops in TensorIR; it has {len(loops)}")
        return {key(axis): loop for axis, loop in zip(axes, loops, strict=True)}

    def _take(self, stage, live: dict[int, object], steps: list) -> None:
        """Take steps on loops; `live` has them by axis, and is changed."""
        for step in steps:
            if isinstance(step, Split):
                at, loop = stage.at("split", step.parent), live.pop(key(step.parent))
                part, size = (step.inner, step.factor) if step.nparts is None else (step.outer, step.nparts)
                extent = constant(self._rec.sch.get(loop).extent)
                if extent is not None and size > extent and not _on_thread(stage, part):
                    size = max(extent, 1)  # as TVM did: no loop gets longer than it was
                factors = [None, size] if step.nparts is None else [size, None]
                names = [name_of(step.outer), name_of(step.inner)]
                outer, inner = self._rec.call(at, "split", loop, factors, names=names)
                live.update({key(step.outer): outer, key(step.inner): inner})
            elif isinstance(step, Fuse):
                loops = [live.pop(key(axis)) for axis in step.of]
                at = stage.at("fuse", step.outer)
                live[key(step.fused)] = self._rec.call(at, "fuse", *loops, names=[name_of(step.fused)])
            elif isinstance(step, Reorder) and len(step.of) > 1:
                self._rec.call(stage.at("reorder"), "reorder", *(live[key(axis)] for axis in step.of))

    def _kinds(self, stage, live: dict[int, object]) -> None:
        for axis in stage.leaf_iter_vars:
            loop, thread = live[key(axis)], stage.threads.get(key(axis))
            if thread is not None:
                at = stage.at("bind", axis)
                extent = constant(self._rec.sch.get(loop).extent)
                wanted = thread.dom and constant(thread.dom.extent)
                if wanted and extent is not None and wanted != extent:
                    raise Unsupported(
                        f"{at}: {thread.thread_tag} has {wanted} steps and the loop {extent}; TensorIR wants "
                        "the same number: split the loop by it"
                    )
                self._rec.call(at, "bind", loop, self._tag(thread, at))
            elif kind := stage.kinds.get(key(axis)):
                self._rec.call(stage.at(kind, axis), kind, loop)
        for axis, pragma, value in stage.pragmas:
            value = 1 if value is None else int(value) if constant(value) is not None else value
            self._on_leaf(stage, axis, "annotate", f"pragma_{pragma}", value)

    def _on_leaf(self, stage, axis, method: str, *args) -> None:
        """Call a method on a loop, unless it was split or fused later, with which TVM forgot the hint too."""
        loop = self._loops.get(id(stage), {}).get(key(axis))
        if loop is not None:
            self._rec.call(stage.at(method, axis), method, loop, *args)

    def _tag(self, thread, at: str) -> str:
        if not thread.thread_tag.startswith("vthread"):
            return thread.thread_tag
        if key(thread) not in self._virtual:
            if len(self._virtual) == len(_VIRTUAL):
                raise Unsupported(
                    f"{at}: TensorIR has three axes of virtual threads, which others have taken"
                )
            self._virtual[key(thread)] = _VIRTUAL[len(self._virtual)]
        return self._virtual[key(thread)]

    def _set_scope(self, stage, block) -> None:
        """Set the memory of a result: what the script says, or as TVM did, by the threads that compute it."""
        if stage.scope or stage.attach_type != "scope":
            if stage.scope and not self._is_cache(stage):
                self._rec.call(stage.at("set_scope"), "set_scope", block, 0, stage.scope)
            return
        tags, inner = [], stage
        while inner.attach_type == "scope":
            parent, at = inner.attach_stage, inner.attach_ivar
            for axis in parent.leaf_iter_vars:
                tags += [parent.threads[key(axis)].thread_tag] if key(axis) in parent.threads else []
                if key(axis) == key(at):
                    break
            inner = parent
        if any(tag.startswith(("threadIdx", "vthread")) for tag in tags):
            self._rec.call(stage.at("compute_at"), "set_scope", block, 0, "local")
        elif tags:
            self._rec.call(stage.at("compute_at"), "set_scope", block, 0, "shared")

    def _is_cache(self, stage) -> bool:
        return any(
            change.stage is stage
            for change in self._schedule.changes
            if isinstance(change, CacheRead | CacheWrite)
        )

    # ------------------------------------------------------------ reductions

    def _start(self, stage) -> None:
        """Have a reduction start before its outermost loop, unless threads share it."""
        reduced = [axis for axis in stage.leaf_iter_vars if axis.iter_type == REDUCE]
        shared = any(key(axis) in stage.threads for axis in reduced)
        if stage.store_predicate is not None and not shared:
            raise Unsupported(
                f"{stage.at('set_store_predicate')}: TensorIR stores by thread 0 where threads share a "
                "reduction, and has no other predicates of stores"
            )
        if shared:
            self._refuse_condition(stage.at("bind"), self._block(stage, "bind"))
        if shared or not reduced or id(stage) not in self._loops:
            return
        block, loop = self._block(stage, "reduction"), self._loops[id(stage)][key(reduced[0])]
        try:
            self._rec.call(
                stage.at("reduction"), "decompose_reduction", block, loop, names=[f"{stage.name}_init"]
            )
        except ScheduleError:  # windows of neighbouring iterations overlap
            self._rec.note(f"{stage.name} starts in the first step of its loops")


def _refuse_vectors(at: str, stage) -> None:
    """Raise `Unsupported` for a stage within a vectorized loop, of which TVM 0.27 computes wrong numbers."""
    while stage.attach_type == "scope":
        parent, place = stage.attach_stage, stage.attach_ivar
        for axis in parent.leaf_iter_vars:
            if parent.kinds.get(key(axis)) == "vectorize":
                raise Unsupported(
                    f"{at}: {name_of(axis)} of {parent.name} is vectorized, and TVM 0.27 computes stages "
                    "within vectors wrongly; attach it outside"
                )
            if key(axis) == key(place):
                break
        stage = parent


def _on_thread(stage, axis) -> bool:
    """Return whether an axis, or one that was split off it, is bound to a thread."""
    parts = [part for step in stage.steps if isinstance(step, Split) for part in (step.outer, step.inner)
             if key(step.parent) == key(axis)]  # fmt: skip
    return key(axis) in stage.threads or any(_on_thread(stage, part) for part in parts)
