"""`te.create_schedule`, and what changes the stages of a program: cache stages, factored reductions."""

import sys

import tvm
from tvm import te

from . import replay
from .ops import REDUCE, StageOp, StageTensor, key, name_of, new_axis, ordered, outputs_of, reduced_of
from .stage import ScheduleError, Stage, Unsupported
from .steps import CacheRead, CacheWrite, RFactor

_TENSOR, _OPERATION = te.Tensor | StageTensor, te.tensor.Operation | StageOp


class Schedule:
    """TVM 0.8's `te.schedule.Schedule`: what `te.create_schedule` returns.

    `schedule[tensor]` is a `Stage`; `stages` has all of them, producers before consumers, placeholders too.
    """

    def __init__(self, outputs: list):
        self.outputs = outputs
        self.stages: list[Stage] = []
        self.changes: list[CacheRead | CacheWrite | RFactor] = []
        self._of: dict[int, tuple[object, Stage]] = {}  # operation and stage, by the operation's key
        for op in ordered(outputs):
            self._insert(op, len(self.stages))
        for output in outputs:
            self[output].is_output = True

    def __getitem__(self, of) -> Stage:
        """Return the stage of a tensor or operation.

        Raises:
            ScheduleError: This schedule has none.
        """
        op = of.op if isinstance(of, _TENSOR) else of
        if not isinstance(op, _OPERATION) or key(op) not in self._of:
            raise ScheduleError(
                f"te: the schedule has no stage of {getattr(op, 'name', op)!r}; it has "
                f"{', '.join(stage.name for stage in self.stages)}"
            )
        return self._of[key(op)][1]

    def normalize(self) -> "Schedule":
        """Return the schedule: a replay needs no normalized form."""
        return self

    def create_group(self, outputs, inputs, include_inputs=False):
        """Raise `Unsupported`."""
        raise Unsupported(
            "te: create_group: TensorIR has no groups of stages; call compute_at for each of them"
        )

    # ------------------------------------------------------------ new stages

    def cache_read(self, tensor, scope: str, readers) -> StageTensor:
        """Have `readers` (tensors or operations, or one) read a copy of `tensor` in the memory `scope`.

        Returns:
            The copy, a tensor whose stage can be scheduled.
        """
        source = self[tensor]
        at, result = _only_result("cache_read", source)
        if isinstance(source.op, te.ExternOp):
            raise Unsupported(
                f"{at}: TVM 0.27 does not see what a function of te.extern makes; read it as it is"
            )
        readers = [readers] if isinstance(readers, _TENSOR | _OPERATION) else list(readers)
        if not readers:
            raise ScheduleError(f"{at}: expected at least one reader")
        readers = [self[each] for each in readers]
        axes = [new_axis(extent, f"ax{i}") for i, extent in enumerate(result.shape)]
        op = StageOp(f"{source.name}.{scope}", axes, [], (str(result.dtype),), [result])
        stage = self._insert(op, self.stages.index(source) + 1)
        stage.scope = scope
        self.changes.append(CacheRead(source, stage, readers))
        return op.output(0)

    def cache_write(self, tensor, scope: str):
        """Compute `tensor` in the memory `scope`, and copy it from there.

        Returns:
            What computes, a tensor whose stage has the reduction; the stage of `tensor` has the copy.

        Raises:
            ScheduleError: The stage has split loops already: TVM gave the cache another layout then, which
                today is a step of its own, `tvm.s_tir.Schedule.transform_layout`.
        """
        tensors = list(tensor) if isinstance(tensor, list | tuple) else [tensor]
        stage = self[tensors[0]]
        at, result = _only_result("cache_write", stage, len(tensors))
        old = stage.op
        if not isinstance(old, te.ComputeOp | StageOp):
            raise ScheduleError(f"{at}: expected a result of te.compute")
        if stage.steps:
            raise ScheduleError(
                f"{at}: call it before split, fuse and reorder; a cache of another layout is a step of its "
                "own today, tvm.s_tir.Schedule.transform_layout"
            )
        dtypes = (str(result.dtype),)
        axes = [new_axis(axis.dom.extent, f"{name_of(axis)}.c") for axis in old.axis]
        op = StageOp(f"{old.name}.{scope}", axes, reduced_of(old), dtypes, list(old.input_tensors))
        cache = self._insert(op, self.stages.index(stage))
        self._becomes(stage, StageOp(old.name, list(old.axis), [], dtypes, [op.output(0)]))
        cache.scope = scope
        self.changes.append(CacheWrite(stage, cache))
        return op.output(0) if tensor is tensors[0] else [op.output(0)]

    def rfactor(self, tensor, axis, factor_axis: int = 0):
        """Sum along `axis`, a loop of the reduction, last: one sum for each of its steps comes first.

        Returns:
            The sums of each step, a tensor with one more axis, at `factor_axis`; a list of them for a
            reduction with several results. The stage of `tensor` adds them up.
        """
        stage = self[tensor]
        at = stage.at("rfactor", axis)
        stage.place_of("rfactor", axis)
        if axis.iter_type != REDUCE:
            raise ScheduleError(f"{at}: expected a loop of the reduction")
        if any(each.iter_type != REDUCE for step in stage.steps for each in step.of):
            raise Unsupported(
                f"{at}: split, fuse and reorder the loops of the result after rfactor, not before"
            )
        old, roots = stage.op, reduced_of(stage.op)
        origin = {key(root): {key(root)} for root in roots}  # of each axis the roots that it came from
        order = list(roots)  # as TensorIR has the axes of what it factors: the parts of each where it was
        for step in stage.steps:
            of = set().union(*(origin[key(each)] for each in step.of))
            origin |= {key(part): of for part in step.parts}
            if step.parts:
                gone = [key(each) for each in step.of]
                place = next(i for i, each in enumerate(order) if key(each) in gone)
                order = [each for each in order if key(each) not in gone]
                order[place:place] = step.parts
        reduced = [leaf for leaf in stage.leaf_iter_vars if leaf.iter_type == REDUCE]
        others = [each for each in order if key(each) != key(axis)]
        split = [each for each in others if key(each) not in origin[key(each)]]
        if any(not origin[key(each)] & origin[key(axis)] for each in split):
            raise Unsupported(f"{at}: split the other axes of the reduction after rfactor, not before")
        axes = [new_axis(each.dom.extent, name_of(each)) for each in old.axis]
        if not -len(axes) - 1 <= factor_axis <= len(axes):
            raise ScheduleError(
                f"{at}: expected a factor_axis from {-len(axes) - 1} to {len(axes)}; got {factor_axis}"
            )
        axes.insert(factor_axis % (len(axes) + 1), new_axis(axis.dom.extent, name_of(axis)))
        summed = [new_axis(each.dom.extent, name_of(each), REDUCE) for each in others]
        dtypes = tuple(str(result.dtype) for result in outputs_of(old))
        op = StageOp(f"{old.name}.rf", axes, summed, dtypes, list(old.input_tensors))
        first = self._insert(op, self.stages.index(stage))
        self.changes.append(RFactor(stage, first, axis, factor_axis, stage.steps, roots, reduced, others))
        last = [new_axis(axis.dom.extent, f"{name_of(axis)}.v", REDUCE)]
        sums = StageOp(old.name, list(old.axis), last, dtypes, outputs_of(op))
        if isinstance(old, te.ComputeOp) and len(dtypes) == 1:  # for scripts that print it
            parts = te.placeholder([each.dom.extent for each in axes], dtypes[0], op.name)
            at = [each.var for each in old.axis]
            at.insert(factor_axis % len(axes), last[0].var)
            true = tvm.tirx.const(True, "bool")
            sums.body = [te.Reduce(old.body[0].combiner, [parts(*at)], last, true, 0)]
        self._becomes(stage, sums)
        return op.output(0) if len(dtypes) == 1 else outputs_of(op)

    def _insert(self, op, place: int) -> Stage:
        stage = Stage(op)
        self.stages.insert(place, stage)
        self._of[key(op)] = op, stage
        return stage

    def _becomes(self, stage: Stage, op: StageOp) -> None:
        """Give a stage another operation, with its loops anew; the keys that found it still do."""
        stage.becomes(op)
        self._of[key(op)] = op, stage

    # ------------------------------------------------------------ today

    def today(self, args=None, name: str = "main", file=None) -> None:
        """Print this schedule as a script for today's TVM: the function in TVMScript, and the steps on it.

        Args:
            args: The arguments of the function, as of `tvm.lower`; by default all placeholders and outputs.
            name: The function's name.
            file: Where to print; by default to stdout.

        Raises:
            ScheduleError: A primitive that today's TVM does not take.
        """
        print(replay.replay(self, args, name).script(), file=file or sys.stdout)


def create_schedule(ops) -> Schedule:
    """`te.create_schedule`: a schedule of operations, and of all that they read.

    Args:
        ops: An operation, such as `C.op`, a tensor, or a list of these.

    Raises:
        TypeError: Something else.
    """
    ops = list(ops) if isinstance(ops, list | tuple | tvm.ir.Array) else [ops]
    ops = [each.op if isinstance(each, te.Tensor) else each for each in ops]
    if not ops or not all(isinstance(op, te.tensor.Operation) for op in ops):
        raise TypeError(f"te.create_schedule: expected operations, such as C.op; got {ops!r}")
    return Schedule(ops)


def inline_all(schedule: Schedule) -> None:
    """`te.schedule.AutoInlineInjective`: compute where it is read what is no reduction and no result.

    A stage that is attached, or whose loops are split, fused or reordered, stays.
    """
    read = {key(t.op) for s in schedule.stages if isinstance(s.op, te.ExternOp) for t in s.op.input_tensors}
    for stage in schedule.stages:
        alone = isinstance(stage.op, te.ComputeOp) and not stage.op.reduce_axis and key(stage.op) not in read
        scheduled = bool(stage.steps) or stage.attach_type != "root"
        if alone and not (stage.is_output or scheduled) and len(outputs_of(stage.op)) == 1:
            stage.compute_inline()


def _only_result(primitive: str, stage: Stage, count: int = 1) -> tuple:
    """Return what an error begins with, and the result of a stage, of which it must have one."""
    at, results = f"te: {primitive} of {stage.name}", outputs_of(stage.op)
    if len(results) > 1 or count > 1:
        raise Unsupported(f"{at}: it is one of several results of an operation, which are copied together")
    return at, results[0]
