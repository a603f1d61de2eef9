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

from .ops import REDUCE, axes_of, constant, key, name_of, ordered, outputs_of, reduced_of
from .padding import pad
from .recorder import Recorder
from .stage import ScheduleError, Unsupported
from .steps import CacheRead, CacheWrite, Reorder, Split

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
    inputs = [stage.op for stage in schedule.stages if isinstance(stage.op, te.PlaceholderOp)]
    if args is None:
        args = [tensor for op in [*inputs, *schedule.outputs] for tensor in outputs_of(op)]
    for arg in args:
        if not isinstance(arg, te.Tensor) and (not isinstance(arg, tvm.tirx.Var) or is_buffer_var(arg)):
            raise ScheduleError(
                "te: arguments of a function: expected tensors of te.placeholder and te.compute, and te.var; "
                f"got {type(arg).__name__} {arg}"
            )
    given = {key(arg.op) for arg in args if isinstance(arg, te.Tensor)}
    for op in [*schedule.outputs, *inputs]:
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
                block = self._block(stage, "compute_inline")
                self._rec.call(stage.at("compute_inline"), "compute_inline", block)
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
        lines = self.func.script().splitlines()
        text = "\n".join(line for line in lines if not line.startswith(("#", "from "))).strip()
        return "\n".join(
            [
                *(["from __future__ import annotations", ""] if _VARIABLE.search(text) else []),
                "import tvm",
                "from tvm.script import tirx as T",
                "",
                text,
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
            count = 1 if together else len(outputs_of(op))
            self._names[self._old.get(key(op), key(op))], blocks = blocks[:count], blocks[count:]

    def _block(self, stage, primitive: str):
        """Return the block of a stage.

        Raises:
            ScheduleError: It has none, or several.
        """
        if id(stage) not in self._blocks:
            names, where = self._names.get(key(stage.origin_op), []), stage.at(primitive)
            if not names:
                raise ScheduleError(f"{where}: it is an input, which has no loops")
            if len(names) > 1:
                raise Unsupported(
                    f"{where}: it has {len(names)} results and no reduction, each of which has loops of its "
                    "own in TensorIR; write a te.compute for each"
                )
            self._blocks[id(stage)] = self._rec.call(where, "get_sblock", names[0], names=names)
        return self._blocks[id(stage)]

    def _change(self, change) -> None:
        """Take a step that makes a new stage."""
        new = change.stage
        if isinstance(change, CacheRead):
            at, places = change.source.at("cache_read"), []
            readers = [self._block(reader, "cache_read") for reader in change.readers]
            buffer = self._written(change.source)
            for reader, block in zip(change.readers, readers, strict=True):
                reads = [region.source for region in self._rec.sch.get(block).reads]
                same = [each.same_as(buffer) for each in reads]
                if not any(same):
                    raise ScheduleError(
                        f"{at}: {reader.name} does not read it, but "
                        f"{', '.join(each.name for each in reads) or 'nothing'}; "
                        "call cache_read before cache_write, or name the cache as the reader"
                    )
                places.append(same.index(True))
            args, options = (readers[0], places[0], new.scope), {"consumer_blocks": readers}
            self._blocks[id(new)] = self._rec.call(at, "cache_read", *args, names=[new.name], **options)
        elif isinstance(change, CacheWrite):
            at, block = change.result.at("cache_write"), self._block(change.result, "cache_write")
            names = [f"{change.result.name}_copy"]
            copy = self._rec.call(at, "cache_write", block, 0, new.scope, names=names)
            self._blocks[id(new)], self._blocks[id(change.result)] = block, copy
            if orders := self._orders.pop(id(change.result), None):
                moved = dict(zip(map(key, change.result.origin_op.axis), new.origin_op.axis, strict=True))
                self._orders[id(new)] = tuple([moved.get(key(a), a) for a in order] for order in orders)
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
        axes = [*axes_of(stage.op), *change.roots]
        order = self._orders.pop(id(stage), (axes,))[0]
        live = self._named_loops(at, block, order)
        if order is not axes:  # its own loops are those of a factored sum
            self._rec.call(at, "reorder", *(live[key(each)] for each in axes))
        self._take(stage, live, change.steps)
        self._blocks[id(first)] = self._rec.call(
            at, "rfactor", live[key(change.axis)], change.factor_axis, names=[first.name]
        )
        made, spatial = first.origin_op, list(first.origin_op.axis)
        factored = spatial.pop(range(len(spatial))[change.factor_axis])
        new = {key(old): axis for old, axis in zip(change.others, made.reduce_axis, strict=True)}
        by_loop = [*spatial, *(new.get(key(old), factored) for old in change.reduced)]
        self._orders[id(first)] = by_loop, [factored, *spatial, *made.reduce_axis]

    # ------------------------------------------------------------ loops

    def _matters(self, stage) -> bool:
        """Return whether a stage has loops that something is done with."""
        if stage.attach_type == "inline" or isinstance(stage.op, te.PlaceholderOp):
            return False
        hints = stage.kinds, stage.threads, stage.pragmas, stage.tensorized, stage.aligned
        return (
            any((stage.steps, *hints, stage.double_buffered, stage.scope, reduced_of(stage.op)))
            or stage.attach_type == "scope"
            or any(other.attach_stage is stage for other in self._schedule.stages)
        )

    def _schedule_loops(self, stage) -> None:
        """Put a stage where it is computed, and take the steps on its loops."""
        block = self._block(stage, "schedule")
        axes = [*axes_of(stage.op), *reduced_of(stage.op)]
        by_loop, by_block = self._orders.get(id(stage), (axes, axes))
        self._set_scope(stage, block)
        if stage.attach_type == "scope":
            parent, place = stage.attach_stage, stage.attach_ivar
            at = f"{stage.at('compute_at')} at {parent.name}, axis {name_of(place)}"
            outer = self._loops.get(id(parent), {}).get(key(place))
            if outer is None:
                raise ScheduleError(
                    f"{at}: the axis is no loop of {parent.name} any more, or that is computed before it"
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
        for op in (other.origin_op for other in self._schedule.stages):
            if isinstance(op, te.ExternOp) and any(
                key(each) == key(stage.origin_op) for each in (op, *(t.op for t in op.input_tensors))
            ):
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
            if isinstance(step, Reorder):
                if len(step.of) > 1:
                    self._rec.call(stage.at("reorder"), "reorder", *(live[key(axis)] for axis in step.of))
                continue
            loops, names = [live.pop(key(axis)) for axis in step.of], [name_of(axis) for axis in step.parts]
            if isinstance(step, Split):
                extent, size = constant(self._rec.sch.get(loops[0]).extent), step.size
                if extent is not None and size > extent and not _on_thread(stage, step.parts[step.sized]):
                    size = max(extent, 1)  # as TVM did: no loop gets longer than it was
                factors = [None, size] if step.sized else [size, None]
                made = self._rec.call(stage.at("split", step.of[0]), "split", *loops, factors, names=names)
            else:
                made = [self._rec.call(stage.at("fuse", step.of[0]), "fuse", *loops, names=names)]
            live.update(zip(map(key, step.parts), made, strict=True))

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
        scope, where = stage.scope, "set_scope"
        if not scope:
            tags = [
                parent.threads[key(axis)].thread_tag
                for parent, axis in _around(stage)
                if key(axis) in parent.threads
            ]
            by_thread = any(tag.startswith(("threadIdx", "vthread")) for tag in tags)
            scope, where = "local" if by_thread else "shared" if tags else "", "compute_at"
        elif any(c.stage is stage for c in self._schedule.changes if isinstance(c, CacheRead | CacheWrite)):
            return
        if scope:
            for number in range(len(outputs_of(stage.op))):
                self._rec.call(stage.at(where), "set_scope", block, number, scope)

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
        if not reduced:
            return
        block, loop = self._block(stage, "reduction"), self._loops[id(stage)][key(reduced[0])]
        if shared:
            self._refuse_condition(stage.at("bind"), block)
            return
        try:
            names = [f"{stage.name}_init"]
            self._rec.call(stage.at("reduction"), "decompose_reduction", block, loop, names=names)
        except ScheduleError:  # windows of neighbouring iterations overlap
            self._rec.note(f"{stage.name} starts in the first step of its loops")


def _around(stage):
    """Yield the loops that a stage is computed within, innermost stage first, as (stage, axis)."""
    while stage.attach_type == "scope":
        parent, place = stage.attach_stage, stage.attach_ivar
        for axis in parent.leaf_iter_vars:
            yield parent, axis
            if key(axis) == key(place):
                break
        stage = parent


def _refuse_vectors(at: str, stage) -> None:
    """Raise `Unsupported` for a stage within a vectorized loop, of which TVM 0.27 computes wrong numbers."""
    for parent, axis in _around(stage):
        if parent.kinds.get(key(axis)) == "vectorize":
            raise Unsupported(
                f"{at}: {name_of(axis)} of {parent.name} is vectorized, and TVM 0.27 computes stages within "
                "vectors wrongly; attach it outside"
            )


def _on_thread(stage, axis) -> bool:
    """Return whether an axis, or one that was split off it, is bound to a thread."""
    splits = (step for step in stage.steps if isinstance(step, Split) and key(step.of[0]) == key(axis))
    return key(axis) in stage.threads or any(_on_thread(stage, part) for s in splits for part in s.parts)
