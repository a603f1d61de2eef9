"""Sums without a rest, for `rfactor`: TVM 0.27's `compute_at` forgets the condition of a factored block.

Where the loops that `rfactor` splits off leave a rest, TensorIR keeps the last steps out by a condition, and
`compute_at` of the factored block drops it, without a word. So the sum gets as many steps as the splits want
before it becomes a function of TensorIR: those beyond the end add the identity of the reduction.
"""

import tvm
import tvm_ffi
from tvm import te
from tvm.tirx import IterVar

from .stage import constant, key, ordered, outputs_of
from .steps import CacheWrite, RFactor, Split


def pad(schedule, args: list) -> tuple[list, dict[int, int]]:
    """Return arguments whose factored sums have no rest, and the old operation's key by that of the new."""
    sources = {id(c.stage): c.result.origin_op for c in schedule.changes if isinstance(c, CacheWrite)}
    sums = {}
    for change in schedule.changes:
        if isinstance(change, RFactor) and change.stage.attach_type == "scope":
            op = sources.get(id(change.result), change.result.origin_op)
            multiples = {key(root): _multiple(root, change.steps) for root in change.roots}
            if any(_leaves_rest(root, multiples[key(root)]) for root in change.roots):
                sums[key(op)] = multiples
    if not sums:
        return args, {}
    made: dict[int, object] = {}
    tensors = [arg for arg in args if isinstance(arg, te.Tensor)]
    for op in ordered([tensor.op for tensor in tensors]):
        new = _reading(op, made)
        if key(op) in sums:
            new = _padded(new, sums[key(op)])
        if new is not op:
            made[key(op)] = new
    old = {key(new): of for of, new in made.items()}
    return [
        made[key(arg.op)].output(arg.value_index)
        if isinstance(arg, te.Tensor) and key(arg.op) in made
        else arg
        for arg in args
    ], old


def _multiple(axis: IterVar, steps: list) -> int | None:
    """Return what the length of an axis has to be a multiple of; None where that is not known."""
    for step in steps:
        if not any(key(each) == key(axis) for each in step.of) or not isinstance(step, Split):
            continue
        outer, inner = _multiple(step.outer, steps), _multiple(step.inner, steps)
        fixed, other = (inner, outer) if step.nparts is None else (outer, inner)
        size, extent = step.factor or step.nparts, constant(axis.dom.extent)
        size = size if extent is None else min(size, extent)
        return size * other if fixed and other and size % fixed == 0 else None
    fused = any(key(each) == key(axis) for step in steps for each in step.of if hasattr(step, "fused"))
    return None if fused else 1


def _leaves_rest(axis: IterVar, multiple: int | None) -> bool:
    extent = constant(axis.dom.extent)
    return bool(multiple) and multiple > 1 and (extent is None or extent % multiple != 0)


def _reading(op, made: dict[int, object]):
    """Return an operation that reads what was made instead of the old, or `op` itself."""
    if not isinstance(op, te.ComputeOp) or not any(key(tensor.op) in made for tensor in op.input_tensors):
        return op

    def new(tensor):
        return made[key(tensor.op)].output(tensor.value_index) if key(tensor.op) in made else tensor

    body = [tvm_ffi.structural_map(value, [(te.Tensor, new)]) for value in op.body]
    return te._ffi_api.ComputeOp(op.name, op.tag, op.attrs, op.axis, body)


def _padded(op: te.ComputeOp, multiples: dict[int, int | None]):
    """Return a sum over axes of these multiples."""
    value = op.body[0]
    if outputs_of(op) > 1 or len(value.source) > 1:
        return op
    axes, inside = [], []
    for axis in value.axis:
        extent, multiple = axis.dom.extent, multiples[key(axis)]
        if _leaves_rest(axis, multiple):
            inside.append(axis.var < extent)
            whole = tvm.ir.Range.from_min_extent(
                axis.dom.min, (extent + (multiple - 1)) // multiple * multiple
            )
            axis = IterVar(whole, axis.var, axis.iter_type)
        axes.append(axis)
    source = tvm.tirx.if_then_else(tvm.tirx.all(*inside), value.source[0], value.combiner.identity_element[0])
    total = tvm.tirx.Reduce(value.combiner, [source], axes, value.condition, 0, value.init)
    return te._ffi_api.ComputeOp(op.name, op.tag, op.attrs, op.axis, [total])
