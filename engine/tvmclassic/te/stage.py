"""Stages: the loops of an operation, and what a script asks of them.

Nothing here touches TensorIR: a stage records its steps in the order in which they are asked for, and
`replay` takes them when the schedule is lowered. The rules, such as which axes may be fused, are those of
TVM 0.8's `src/te/schedule/schedule_lang.cc`; so are the names of axes.
"""

import dataclasses
import operator

import tvm
from tvm import te
from tvm.tirx import IterVar

from .steps import Fuse, Reorder, Split

SPATIAL, REDUCE = IterVar.DataPar, IterVar.CommReduce


class ScheduleError(RuntimeError):
    """A primitive of a TE schedule that is wrong, or that today's TVM refuses; says which, where and why."""


class Unsupported(ScheduleError, NotImplementedError):
    """A primitive that TensorIR has no counterpart of."""


def key(node) -> int:
    """Return what tells an operation or axis from others: TVM makes a new Python object at each access."""
    return node.__chandle__() if isinstance(node, tvm.runtime.Object) else id(node)


def name_of(axis: IterVar) -> str:
    """Return an axis's name."""
    return axis.var.name


def new_axis(extent, name: str, kind: int = SPATIAL) -> IterVar:
    """Return an axis from 0 to `extent`, an int or an expression."""
    extent = constant(extent) if constant(extent) is not None else extent
    dtype = "int32" if isinstance(extent, int) else str(extent.ty)
    last = tvm.tirx.const(extent, dtype) if isinstance(extent, int) else extent
    domain = tvm.ir.Range.from_min_extent(tvm.tirx.const(0, dtype), last)
    return IterVar(domain, tvm.tirx.Var(name, dtype), kind)


def constant(value) -> int | None:
    """Return the value of an int or of a constant of TVM's; None for what depends on variables."""
    if isinstance(value, tvm.tirx.IntImm):
        return int(value.value)
    try:
        return operator.index(value)
    except TypeError:
        return None


@dataclasses.dataclass(eq=False)
class StageOp:
    """The operation of a stage that the schedule made or changed, with what scripts read of a `ComputeOp`."""

    name: str
    axis: list
    reduce_axis: list
    shape: tuple
    dtypes: tuple
    tag: str = ""
    attrs: dict = dataclasses.field(default_factory=dict)
    input_tensors: list = dataclasses.field(default_factory=list)

    @property
    def num_outputs(self) -> int:
        """Return how many results there are."""
        return len(self.dtypes)

    def output(self, index: int) -> "StageTensor":
        """Return a result, with which `Schedule` finds the stage."""
        return StageTensor(self, index, self.dtypes[index])


@dataclasses.dataclass(frozen=True)
class StageTensor:
    """A result of a `StageOp`: a key of a schedule, with name, shape and dtype."""

    op: StageOp
    value_index: int
    dtype: str

    @property
    def shape(self) -> tuple:
        """Return the lengths of the axes."""
        return self.op.shape

    @property
    def ndim(self) -> int:
        """Return the number of axes."""
        return len(self.op.shape)

    @property
    def name(self) -> str:
        """Return the operation's name."""
        return self.op.name


def _refused(primitive: str, why: str):
    """Return a method that raises `Unsupported`."""

    def refuse(self, *_args, **_kwargs):
        raise Unsupported(f"te: {primitive} of stage {self.name}: {why}")

    return refuse


class Stage:
    """What a schedule does with one operation: TVM 0.8's `te.schedule.Stage`.

    `leaf_iter_vars` are its loops from the outermost in, `steps` the splits, fusions, reorderings.
    """

    def __init__(self, schedule, op):
        self._schedule, self.op, self.origin_op = schedule, op, op
        self.scope, self.is_output = "", False
        self.attach_type, self.attach_stage, self.attach_ivar = "root", None, None
        self.aligned: list[tuple[int, int, int]] = []
        self.double_buffered = False
        self.store_predicate = None
        self.reset()

    def reset(self) -> None:
        """Forget all loops but those of the operation."""
        self.all_iter_vars = [*axes_of(self.op), *reduced_of(self.op)]
        self.leaf_iter_vars = list(self.all_iter_vars)
        self.steps: list[Split | Fuse | Reorder] = []
        self.kinds: dict[int, str] = {}  # "parallel", "vectorize", "unroll", by axis
        self.threads: dict[int, IterVar] = {}
        self.pragmas: list[tuple[IterVar, str, object]] = []
        self.tensorized: list[tuple[IterVar, str]] = []

    @property
    def name(self) -> str:
        """Return the operation's name."""
        return self.op.name

    def __repr__(self):
        return f"stage({self.name}, {', '.join(map(name_of, self.leaf_iter_vars))})"

    # ------------------------------------------------------------ loops

    def split(self, parent, factor=None, nparts=None):
        """Split an axis by the extent of the inner loop (`factor`) or of the outer one (`nparts`).

        Returns:
            The outer and the inner axis. Where the division leaves a rest, the last steps are skipped.

        Raises:
            ScheduleError: Not an axis of this stage's loops, or not exactly one positive, constant size.
        """
        place = self.place_of("split", parent)
        if (factor is None) == (nparts is None):
            raise ScheduleError(
                f"{self.at('split', parent)}: expected either factor or nparts; got {factor}, {nparts}"
            )
        size = constant(factor if nparts is None else nparts)
        if size is None or size < 1:
            given = factor if nparts is None else nparts
            raise ScheduleError(
                f"{self.at('split', parent)}: expected a positive int, as TensorIR splits by these; "
                f"got {given}"
            )
        known = constant(parent.dom.extent)
        other = -(-known // size) if known is not None else (parent.dom.extent + (size - 1)) // size
        sizes = (other, size) if nparts is None else (size, other)
        outer, inner = (
            new_axis(extent, f"{name_of(parent)}.{part}", parent.iter_type)
            for extent, part in zip(sizes, ("outer", "inner"), strict=True)
        )
        factor, nparts = (size, None) if nparts is None else (None, size)
        self.steps.append(Split(parent, outer, inner, factor, nparts))
        self._replace(place, place + 1, [outer, inner])
        return outer, inner

    def tile(self, x_parent, y_parent, x_factor, y_factor):
        """Split two axes, move the inner loops inside both outer ones, and return all from outside in."""
        x_outer, x_inner = self.split(x_parent, x_factor)
        y_outer, y_inner = self.split(y_parent, y_factor)
        self.reorder(x_outer, y_outer, x_inner, y_inner)
        return x_outer, y_outer, x_inner, y_inner

    def fuse(self, *args):
        """Fuse neighbouring loops into one, which is returned."""
        if not args:
            raise Unsupported(f"te: fuse of stage {self.name} without axes is not supported; leave it out")
        fused = args[0]
        for inner in args[1:]:
            fused = self._fuse(fused, inner)
        return fused

    def _fuse(self, outer, inner):
        at, below = self.place_of("fuse", outer), self.place_of("fuse", inner)
        if below + 1 == at:  # TVM took them in either order
            outer, inner, at, below = inner, outer, below, at
        if at + 1 != below:
            raise ScheduleError(
                f"{self.at('fuse', outer)}: {name_of(inner)} has to be the next loop; reorder first: "
                f"the loops are {', '.join(map(name_of, self.leaf_iter_vars))}"
            )
        kind = max(outer.iter_type, inner.iter_type)
        fused = new_axis(
            outer.dom.extent * inner.dom.extent, f"{name_of(outer)}.{name_of(inner)}.fused", kind
        )
        self.steps.append(Fuse(outer, inner, fused))
        self._replace(at, below + 1, [fused])
        return fused

    def reorder(self, *args) -> None:
        """Give these loops, in this order, the places that they have together."""
        places = [self.place_of("reorder", axis) for axis in args]
        if len(set(places)) < len(places):
            raise ScheduleError(f"te: reorder of stage {self.name}: expected each axis once")
        for place, axis in zip(sorted(places), args, strict=True):
            self.leaf_iter_vars[place] = axis
        self.steps.append(Reorder(args))

    # ------------------------------------------------------------ kinds of loops

    def parallel(self, var) -> None:
        """Share a loop out to the CPU's threads."""
        self._annotate("parallel", var)

    def vectorize(self, var) -> None:
        """Make a loop one vector operation."""
        self._annotate("vectorize", var)

    def unroll(self, var) -> None:
        """Write a loop out."""
        self._annotate("unroll", var)

    def bind(self, ivar, thread_ivar) -> None:
        """Run a loop on an axis of `te.thread_axis`."""
        self.place_of("bind", ivar)
        if not getattr(thread_ivar, "thread_tag", ""):
            raise ScheduleError(
                f"{self.at('bind', ivar)}: expected an axis of te.thread_axis; got {thread_ivar!r}"
            )
        self.threads[key(ivar)] = thread_ivar

    def pragma(self, var, pragma_type: str, pragma_value=None) -> None:
        """Attach a hint to a loop, such as "auto_unroll_max_step"."""
        self.place_of("pragma", var)
        self.pragmas.append((var, pragma_type, pragma_value))

    def tensorize(self, var, tensor_intrin: str) -> None:
        """Replace a loop and those inside it by an intrinsic of `tvm.s_tir.TensorIntrin.register`."""
        self.place_of("tensorize", var)
        if not isinstance(tensor_intrin, str):
            raise Unsupported(
                f"{self.at('tensorize', var)}: expected the name of an intrinsic that "
                "tvm.s_tir.TensorIntrin.register made, of a description and an implementation in TVMScript; "
                f"got {type(tensor_intrin).__name__}"
            )
        self.tensorized.append((var, tensor_intrin))

    def _annotate(self, kind: str, axis) -> None:
        self.place_of(kind, axis)
        self.kinds[key(axis)] = kind

    # ------------------------------------------------------------ where it is computed and stored

    def compute_at(self, parent: "Stage", scope) -> None:
        """Compute within a loop of `parent` what an iteration needs."""
        parent.place_of("compute_at", scope)
        above = parent
        while above is not None and above is not self:
            above = above.attach_stage
        if above is self:
            raise ScheduleError(
                f"{self.at('compute_at')}: {parent.name} is computed within it, or is the same"
            )
        self.attach_type, self.attach_stage, self.attach_ivar = "scope", parent, scope

    def compute_inline(self) -> None:
        """Compute each element where it is read."""
        self.attach_type, self.attach_stage, self.attach_ivar = "inline", None, None

    def compute_root(self) -> None:
        """Compute the whole before what reads it, which is the default."""
        self.attach_type, self.attach_stage, self.attach_ivar = "root", None, None

    def set_scope(self, scope: str) -> None:
        """Set the kind of memory of the result: "global", "shared", "local"."""
        self.scope = scope

    def storage_align(self, axis, factor: int, offset: int) -> None:
        """Have the stride of an axis be a multiple of `factor`, plus `offset`."""
        at = next((i for i, each in enumerate(axes_of(self.op)) if key(each) == key(axis)), None)
        if at is None:
            raise ScheduleError(f"{self.at('storage_align', axis)}: expected one of the operation's own axes")
        self.aligned.append((at, int(factor), int(offset)))

    def double_buffer(self) -> None:
        """Ask for a second buffer, so that loading and computing overlap; a hint."""
        self.double_buffered = True

    def set_store_predicate(self, predicate) -> None:
        """Say which thread stores the result of a reduction across threads, which TVM finds itself today."""
        self.store_predicate = predicate

    prefetch = _refused("prefetch", "TensorIR has none; leave the line out, which changes no result")
    env_threads = _refused("env_threads", "TensorIR has none; bind loops to threads with bind")
    rolling_buffer = _refused("rolling_buffer", "call that of tvm.s_tir.Schedule, on the code of s.today()")

    # ------------------------------------------------------------ helpers

    def at(self, primitive: str, axis=None) -> str:
        """Return what an error begins with."""
        given = name_of(axis) if isinstance(axis, IterVar) else repr(axis)
        return f"te: {primitive} of stage {self.name}" + (f", axis {given}" if axis is not None else "")

    def place_of(self, primitive: str, axis) -> int:
        """Return the place of an axis among the loops, or raise `ScheduleError`."""
        place = next((i for i, leaf in enumerate(self.leaf_iter_vars) if key(leaf) == key(axis)), None)
        if place is not None:
            return place
        known = any(key(each) == key(axis) for each in self.all_iter_vars)
        raise ScheduleError(
            f"{self.at(primitive, axis)}: "
            + ("it was split or fused before" if known else "it belongs to another stage or operation")
            + f"; the loops of this stage are {', '.join(map(name_of, self.leaf_iter_vars)) or 'none'}"
        )

    def _replace(self, start: int, stop: int, axes: list) -> None:
        self.leaf_iter_vars[start:stop] = axes
        self.all_iter_vars += axes


def axes_of(op) -> list:
    """Return the data-parallel axes of an operation; none of a placeholder or an extern operation."""
    return list(op.axis) if isinstance(op, te.ComputeOp | StageOp) else []


def reduced_of(op) -> list:
    """Return the reduction axes of an operation."""
    return list(op.reduce_axis) if isinstance(op, te.ComputeOp | StageOp) else []


def outputs_of(op) -> int:
    """Return how many tensors an operation gives."""
    return int(op.num_outputs)


def ordered(ops) -> list:
    """Return operations and all that they read, in the order of the blocks of `te.create_prim_func`."""
    found, seen = [], set()

    def visit(op):
        if key(op) not in seen:
            seen.add(key(op))
            for tensor in op.input_tensors:
                visit(tensor.op)
            found.append(op)

    for op in ops:
        visit(op)
    return found
