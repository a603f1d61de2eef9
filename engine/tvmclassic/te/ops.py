"""Operations and their axes: of `te`, and of stages that a schedule made or changed."""

import dataclasses
import operator

import tvm
from tvm import te
from tvm.tirx import IterVar

SPATIAL, REDUCE = IterVar.DataPar, IterVar.CommReduce


def key(node) -> int:
    """Return what tells an operation or axis from others: TVM makes a new Python object at each access."""
    return node.__chandle__() if isinstance(node, tvm.runtime.Object) else id(node)


def constant(value) -> int | None:
    """Return the value of an int or of a constant of TVM's; None for what depends on variables."""
    if isinstance(value, tvm.tirx.IntImm):
        return int(value.value)
    try:
        return operator.index(value)
    except TypeError:
        return None


def name_of(axis: IterVar) -> str:
    """Return an axis's name."""
    return axis.var.name


def new_axis(extent, name: str, kind: int = SPATIAL) -> IterVar:
    """Return an axis from 0 to `extent`, an int or an expression."""
    known = constant(extent)
    dtype = "int32" if known is not None else str(extent.ty)
    last = extent if known is None else tvm.tirx.const(known, dtype)
    domain = tvm.ir.Range.from_min_extent(tvm.tirx.const(0, dtype), last)
    return IterVar(domain, tvm.tirx.Var(name, dtype), kind)


@dataclasses.dataclass(eq=False)
class StageOp:
    """The operation of a stage that the schedule made or changed, with what scripts read of a `ComputeOp`."""

    name: str
    axis: list
    reduce_axis: list
    dtypes: tuple
    input_tensors: list
    tag: str = ""
    attrs: dict = dataclasses.field(default_factory=dict)

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
        return tuple(axis.dom.extent for axis in self.op.axis)

    @property
    def ndim(self) -> int:
        """Return the number of axes."""
        return len(self.op.axis)

    @property
    def name(self) -> str:
        """Return the operation's name."""
        return self.op.name


def axes_of(op) -> list:
    """Return the data-parallel axes of an operation; none of a placeholder or an extern operation."""
    return list(op.axis) if isinstance(op, te.ComputeOp | StageOp) else []


def reduced_of(op) -> list:
    """Return the reduction axes of an operation."""
    return list(op.reduce_axis) if isinstance(op, te.ComputeOp | StageOp) else []


def outputs_of(op) -> list:
    """Return the tensors that an operation gives."""
    return [op.output(index) for index in range(int(op.num_outputs))]


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
