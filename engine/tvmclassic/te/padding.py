"""Sums without a rest, for `rfactor`: TVM 0.27's `compute_at` forgets the condition of a factored block.

Where the loops that `rfactor` splits off leave a rest, TensorIR keeps the last steps out by a condition, and
`compute_at` of the factored block drops it, without a word. So the sum gets as many steps as the splits want
before it becomes a function of TensorIR: those beyond the end add the identity of the reduction.
"""

import tvm
import tvm_ffi
from tvm import te
from tvm.tirx import IterVar

from .ops import constant, key, ordered, reduced_of
from .steps import CacheWrite, Fuse, RFactor, Split


def pad(schedule, args: list) -> tuple[list, dict[int, int]]:
    """Return arguments whose factored sums have no rest, and the old operation's key by that of the new."""
    sources = {id(c.stage): c.result.origin_op for c in schedule.changes if isinstance(c, CacheWrite)}
    sums: dict[int, dict[int, int | None]] = {}
    for change in schedule.changes:
        if isinstance(change, RFactor) and change.stage.attach_type == "scope":
            op = sources.get(id(change.result), change.result.origin_op)
            own = [root for root in change.roots if any(key(root) == key(axis) for axis in reduced_of(op))]
            multiples = {key(root): _multiple(root, change.steps) for root in own}
            if any(_leaves_rest(root, multiples[key(root)]) for root in own):
                sums.setdefault(key(op), {}).update(multiples)
    if not sums:
        return args, {}
    made: dict[int, te.ComputeOp] = {}

    def new(tensor):
        return made[key(tensor.op)].output(tensor.value_index) if key(tensor.op) in made else tensor

    for op in ordered([arg.op for arg in args if isinstance(arg, te.Tensor)]):
        if not isinstance(op, te.ComputeOp):
            continue
        body = list(op.body)
        if any(key(tensor.op) in made for tensor in op.input_tensors):
            body = [tvm_ffi.structural_map(value, [(te.Tensor, new)]) for value in body]
            made[key(op)] = te._ffi_api.ComputeOp(op.name, op.tag, op.attrs, op.axis, body)
        if key(op) in sums and len(body) == 1:
            body = [_padded(body[0], sums[key(op)])]
            made[key(op)] = te._ffi_api.ComputeOp(op.name, op.tag, op.attrs, op.axis, body)
    old = {key(op): of for of, op in made.items()}
    return [new(arg) if isinstance(arg, te.Tensor) else arg for arg in args], old


def _multiple(axis: IterVar, steps: list) -> int | None:
    """Return what the length of an axis has to be a multiple of; None where that is not known."""
    for step in steps:
        if not any(key(each) == key(axis) for each in step.of):
            continue
        if isinstance(step, Fuse):
            return None
        if isinstance(step, Split):
            parts = [_multiple(part, steps) for part in step.parts]
            fixed, other = parts[step.sized], parts[1 - step.sized]
            extent = constant(axis.dom.extent)
            size = step.size if extent is None else min(step.size, extent)
            return size * other if fixed and other and size % fixed == 0 else None
    return 1


def _leaves_rest(axis: IterVar, multiple: int | None) -> bool:
    extent = constant(axis.dom.extent)
    return bool(multiple) and multiple > 1 and (extent is None or extent % multiple != 0)


def _padded(value, multiples: dict[int, int | None]):
    """Return a sum over axes of these multiples."""
    axes, inside = [], []
    for axis in value.axis:
        first, extent, multiple = axis.dom.min, axis.dom.extent, multiples.get(key(axis))
        if _leaves_rest(axis, multiple):
            inside.append(axis.var < first + extent)
            whole = tvm.ir.Range.from_min_extent(first, (extent + (multiple - 1)) // multiple * multiple)
            axis = IterVar(whole, axis.var, axis.iter_type)
        axes.append(axis)
    source = tvm.tirx.if_then_else(tvm.tirx.all(*inside), value.source[0], value.combiner.identity_element[0])
    return tvm.tirx.Reduce(value.combiner, [source], axes, value.condition, 0, value.init)
