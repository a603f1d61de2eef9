"""Sums without a rest, for `rfactor` and for threads: TVM 0.27 forgets the condition of a block there.

Where the loops that `rfactor` splits off leave a rest, TensorIR keeps the last steps out by a condition, and
`compute_at` of the factored block drops it, without a word; so does the store of a sum that threads share. So
the sum gets as many steps as the splits want before it becomes a function of TensorIR: those beyond the end
add the identity of the reduction. So do those that the `where` of a sum leaves out.
"""

import tvm
import tvm_ffi
from tvm import te
from tvm.tirx import IterVar

from .ops import REDUCE, constant, key, ordered, reduced_of
from .stage import Unsupported
from .steps import CacheWrite, Fuse, RFactor, Split


def pad(schedule, args: list) -> tuple[list, dict[int, int]]:
    """Return arguments whose factored sums have no rest, and the old operation's key by that of the new.

    An operation without a reduction, of whose results only one is read, has only this.
    """
    sources = {id(c.stage): c.result.origin_op for c in schedule.changes if isinstance(c, CacheWrite)}
    sums: dict[int, dict[int, int | None]] = {}
    for change in schedule.changes:
        if isinstance(change, RFactor) and change.stage.attach_type == "scope":
            op = sources.get(id(change.result), change.result.origin_op)
            own = [root for root in change.roots if any(key(root) == key(axis) for axis in reduced_of(op))]
            multiples = {key(root): _multiple(root, change.steps) for root in own}
            if any(_leaves_rest(root, multiples[key(root)]) for root in own):
                sums.setdefault(key(op), {}).update(multiples)
    for stage in schedule.stages:  # sums that threads share, of which each takes as many steps
        if any(axis.iter_type == REDUCE and key(axis) in stage.threads for axis in stage.leaf_iter_vars):
            op = sources.get(id(stage), stage.origin_op)
            multiples = {key(root): _multiple(root, stage.steps, False) for root in reduced_of(stage.op)}
            if any(_leaves_rest(root, multiples.get(key(root))) for root in reduced_of(op)):
                sums.setdefault(key(op), {}).update(multiples)
    outputs = [arg for arg in args if isinstance(arg, te.Tensor)]
    ops, read = ordered([output.op for output in outputs]), {}
    whole = any(isinstance(op, te.ExternOp) for op in ops)  # what its function reads is not rewritten
    for op in ops:
        if reduced_of(op) and constant(op.body[0].condition) != 1:  # which te.create_prim_func leaves out
            if whole:
                raise Unsupported(f"te: {op.name}: no sum has a `where` beside te.extern: use tirx.Select")
            sums.setdefault(key(op), {})
    for tensor in [*outputs, *(tensor for op in ops for tensor in op.input_tensors)]:
        if isinstance(tensor.op, te.ComputeOp) and len(tensor.op.body) > 1 and not reduced_of(tensor.op):
            read.setdefault(key(tensor.op), set()).add(int(tensor.value_index))
    single = {} if whole else {of: min(index) for of, index in read.items() if len(index) == 1}
    if not sums and not single:
        return args, {}
    made: dict[int, te.ComputeOp] = {}

    def new(tensor):
        index = 0 if key(tensor.op) in single else tensor.value_index
        return made[key(tensor.op)].output(index) if key(tensor.op) in made else tensor

    for op in ops:
        if not isinstance(op, te.ComputeOp):
            continue
        body = [op.body[single[key(op)]]] if key(op) in single else list(op.body)
        if key(op) in single:
            made[key(op)] = te._ffi_api.ComputeOp(op.name, op.tag, op.attrs, op.axis, body)
        if any(key(tensor.op) in made for tensor in op.input_tensors):
            body = [tvm_ffi.structural_map(value, [(te.Tensor, new)]) for value in body]
            made[key(op)] = te._ffi_api.ComputeOp(op.name, op.tag, op.attrs, op.axis, body)
        if key(op) in sums:
            body = _padded(body, sums[key(op)])
            made[key(op)] = te._ffi_api.ComputeOp(op.name, op.tag, op.attrs, op.axis, body)
    old = {key(op): of for of, op in made.items()}
    return [new(arg) if isinstance(arg, te.Tensor) else arg for arg in args], old


def _multiple(axis: IterVar, steps: list, capped: bool = True) -> int | None:
    """Return what the length of an axis has to be a multiple of; None where that is not known.

    `capped`: no loop gets longer than it was, as loops of threads may.
    """
    for step in steps:
        if not any(key(each) == key(axis) for each in step.of):
            continue
        if isinstance(step, Fuse):
            return None
        if isinstance(step, Split):
            parts = [_multiple(part, steps, capped) for part in step.parts]
            fixed, other = parts[step.sized], parts[1 - step.sized]
            extent = constant(axis.dom.extent)
            size = min(step.size, extent) if capped and extent is not None else step.size
            return size * other if fixed and other and size % fixed == 0 else None
    return 1


def _leaves_rest(axis: IterVar, multiple: int | None) -> bool:
    extent = constant(axis.dom.extent)
    return bool(multiple) and multiple > 1 and (extent is None or extent % multiple != 0)


def _padded(body: list, multiples: dict[int, int | None]) -> list:
    """Return a sum, or its results, over axes of these multiples, and without a condition."""
    value = body[0]
    axes, inside = [], [value.condition]
    for axis in value.axis:
        first, extent, multiple = axis.dom.min, axis.dom.extent, multiples.get(key(axis))
        if _leaves_rest(axis, multiple):
            inside.append(axis.var < first + extent)
            whole = tvm.ir.Range.from_min_extent(first, (extent + (multiple - 1)) // multiple * multiple)
            axis = IterVar(whole, axis.var, axis.iter_type)
        axes.append(axis)
    inside, pairs = tvm.tirx.all(*inside), zip(value.source, value.combiner.identity_element, strict=True)
    parts = tvm.runtime.convert([tvm.tirx.if_then_else(inside, part, nothing) for part, nothing in pairs])
    axes, true = tvm.runtime.convert(axes), tvm.tirx.const(True, "bool")
    return [tvm.tirx.Reduce(value.combiner, parts, axes, true, n, value.init) for n in range(len(body))]
