"""Stages: the loops of an operation, and what a script asks of them.

Nothing here touches TensorIR: a stage records its steps in the order in which they are asked for, and
`replay` takes them when the schedule is lowered. The rules, such as which axes may be fused, are those of
TVM 0.8's `src/te/schedule/schedule_lang.cc`; so are the names of axes.
"""

from tvm.tirx import IterVar

from .ops import axes_of, constant, key, name_of, new_axis, reduced_of
from .steps import Fuse, Reorder, Split


class ScheduleError(RuntimeError):
    """A primitive of a TE schedule that is wrong, or that today's TVM refuses; says which, where and why."""


class Unsupported(ScheduleError, NotImplementedError):
    """A primitive that TensorIR has no counterpart of."""


def _refused(primitive: str, why: str):
    """Return a method that raises `Unsupported`."""

    def refuse(self, *_args, **_kwargs):
        raise Unsupported(f"{self.at(primitive)}: {why}")

    return refuse


class Stage:
    """What a schedule does with one operation: TVM 0.8's `te.schedule.Stage`.

    `leaf_iter_vars` are its loops from the outermost in, `steps` the splits, fusions, reorderings.
    """

    def __init__(self, op):
        self.origin_op = op
        self.scope, self.is_output = "", False
        self.attach_type, self.attach_stage, self.attach_ivar = "root", None, None
        self.kinds: dict[int, str] = {}  # "parallel", "vectorize", "unroll", by axis
        self.threads: dict[int, IterVar] = {}
        self.pragmas: list[tuple[IterVar, str, object]] = []
        self.tensorized: list[tuple[IterVar, str]] = []
        self.aligned: list[tuple[int, int, int]] = []
        self.double_buffered = False
        self.store_predicate = None
        self.becomes(op)

    def becomes(self, op) -> None:
        """Take another operation, whose loops are whole; hints stay on the axes that it had before."""
        self.op = op
        self.all_iter_vars = [*axes_of(op), *reduced_of(op)]
        self.leaf_iter_vars = list(self.all_iter_vars)
        self.steps: list[Split | Fuse | Reorder] = []

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
        place, at = self.place_of("split", parent), self.at("split", parent)
        if (factor is None) == (nparts is None):
            raise ScheduleError(f"{at}: expected either factor or nparts; got {factor}, {nparts}")
        sized, given = (0, nparts) if factor is None else (1, factor)
        size, extent = constant(given), parent.dom.extent
        if size is None or size < 1:
            raise ScheduleError(f"{at}: expected a positive int, as TensorIR splits by these; got {given}")
        known = constant(extent)
        other = -(-known // size) if known is not None else (extent + (size - 1)) // size
        parts = tuple(
            new_axis(size if number == sized else other, f"{name_of(parent)}.{part}", parent.iter_type)
            for number, part in enumerate(("outer", "inner"))
        )
        self._take(Split((parent,), parts, sized, size), place)
        return parts

    def tile(self, x_parent, y_parent, x_factor, y_factor):
        """Split two axes, move the inner loops inside both outer ones, and return all from outside in."""
        x_outer, x_inner = self.split(x_parent, x_factor)
        y_outer, y_inner = self.split(y_parent, y_factor)
        self.reorder(x_outer, y_outer, x_inner, y_inner)
        return x_outer, y_outer, x_inner, y_inner

    def fuse(self, *args):
        """Fuse neighbouring loops into one, which is returned."""
        if not args:
            raise Unsupported(f"{self.at('fuse')} without axes is not supported; leave it out")
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
                f"the loops are {self.loops()}"
            )
        name = f"{name_of(outer)}.{name_of(inner)}.fused"
        fused = new_axis(outer.dom.extent * inner.dom.extent, name, max(outer.iter_type, inner.iter_type))
        self._take(Fuse((outer, inner), (fused,)), at)
        return fused

    def reorder(self, *args) -> None:
        """Give these loops, in this order, the places that they have together."""
        places = [self.place_of("reorder", axis) for axis in args]
        if len(set(places)) < len(places):
            raise ScheduleError(f"{self.at('reorder')}: expected each axis once")
        for place, axis in zip(sorted(places), args, strict=True):
            self.leaf_iter_vars[place] = axis
        self.steps.append(Reorder(args))

    def _take(self, step: Split | Fuse, place: int) -> None:
        """Put the loops that a step makes in the place of those that it starts from."""
        self.steps.append(step)
        self.leaf_iter_vars[place : place + len(step.of)] = step.parts
        self.all_iter_vars += step.parts

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

    def _annotate(self, kind: str, axis) -> None:
        self.place_of(kind, axis)
        self.kinds[key(axis)] = kind

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

    # ------------------------------------------------------------ where it is computed and stored

    def compute_at(self, parent: "Stage", scope) -> None:
        """Compute within a loop of `parent` what an iteration needs."""
        if not isinstance(parent, Stage):
            raise ScheduleError(f"{self.at('compute_at')}: expected a stage, such as s[C]; got {parent!r}")
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

    def loops(self) -> str:
        """Return the names of the loops, for errors."""
        return ", ".join(map(name_of, self.leaf_iter_vars)) or "none"

    def place_of(self, primitive: str, axis) -> int:
        """Return the place of an axis among the loops, or raise `ScheduleError`."""
        place = next((i for i, leaf in enumerate(self.leaf_iter_vars) if key(leaf) == key(axis)), None)
        if place is not None:
            return place
        known = any(key(each) == key(axis) for each in self.all_iter_vars)
        why = "it was split or fused before" if known else "it belongs to another stage or operation"
        raise ScheduleError(f"{self.at(primitive, axis)}: {why}; the loops of this stage are {self.loops()}")
