"""What `te` makes beside computations: `extern`, `scan`, and intrinsics for `tensorize`."""

import itertools
from typing import NamedTuple

import tvm
import tvm_ffi
from tvm import te
from tvm.s_tir import SBlock, SBlockRealize, TensorIntrin
from tvm.s_tir.analysis import get_sblock_access_region
from tvm.tirx import BufferLoad, BufferStore, For, ForKind, IterVar, SeqStmt, Var, decl_buffer

from .te.ops import constant, key, name_of, new_axis, ordered, outputs_of, reduced_of

_EXTERN, _SCAN = te.extern, te.scan
_numbers = itertools.count()


def patches() -> list[tuple[object, str, object]]:
    """List the attributes to set, as (object, attribute name, value)."""
    functions = {"extern": extern, "scan": scan, "decl_tensor_intrin": decl_tensor_intrin}
    return [(owner, name, value) for owner in (te, tvm) for name, value in functions.items()]


def extern(
    shape, inputs, fcompute, name="extern", dtype=None, in_buffers=None, out_buffers=None, tag="", attrs=None
):
    """`te.extern`: tensors that a function computes, of which `fcompute(ins, outs)` is the call.

    TVM 0.27 gives the buffers an offset that no function then sets, `elem_offset`; here they begin at 0.

    Raises:
        ValueError: No `dtype`, and inputs of none or of several; or not one for each result.
    """
    inputs = _listed(inputs)
    if in_buffers is None:
        in_buffers = [decl_buffer(tensor.shape, tensor.dtype, tensor.op.name) for tensor in inputs]
    if out_buffers is None:
        shape = (shape,) if _is_length(shape) else shape
        shapes = [shape] if not len(shape) or _is_length(shape[0]) else list(shape)
        dtypes = sorted({str(each.dtype) for each in inputs}) if dtype is None else dtype
        dtypes = [dtypes] if isinstance(dtypes, str) else list(dtypes)
        if len(dtypes) != 1 and (dtype is None or len(dtypes) != len(shapes)):
            raise ValueError(
                f"te.extern {name}: give the dtype of the results, one or {len(shapes)}; got {dtypes}"
            )
        dtypes = dtypes * len(shapes) if len(dtypes) == 1 else dtypes
        out_buffers = [decl_buffer(each, of, name) for each, of in zip(shapes, dtypes, strict=True)]
    return _EXTERN(shape, inputs, fcompute, name, dtype, in_buffers, out_buffers, tag, attrs)


def _is_length(value) -> bool:
    return constant(value) is not None or tvm.ir.is_prim_expr(value)


def _listed(tensors) -> list:
    return [tensors] if isinstance(tensors, te.Tensor) else list(tensors or [])


# ---------------------------------------------------------------- scans


def scan(init, update, state_placeholder, inputs=None, name="scan", tag="", attrs=None):
    """`te.scan`: states whose first axis is time, each step of which is computed from those before it.

    It becomes the function of an `extern`, whose loops follow the steps and have no schedule. What a step
    reads and does not depend on a state, `init` too, is computed before it, and has stages of its own.

    Args:
        init: The first steps: a tensor (steps given, …), or a list of one for each state.
        update: All steps, (steps, …), of which that at `t` reads the states before `t`.
        state_placeholder: The states, (steps, …), as `update` reads them.
        inputs: Not needed: what `update` reads says it.
        name: The name of the operation.
        tag: Its tag.
        attrs: Its attributes.

    Returns:
        The states, or the only one.

    Raises:
        NotImplementedError: A step that is no `te.compute` of one result, that reads anything but states
            before it and what the same step has computed, or that is computed for several states.
    """
    _SCAN(init, update, state_placeholder, inputs, name)  # raises what TVM finds wrong
    inits, updates, states = _listed(init), _listed(update), _listed(state_placeholder)
    inside, known, last = [], {key(state.op) for state in states}, {key(tensor.op) for tensor in updates}
    if len(known) < len(states) or len(last) < len(updates):
        raise NotImplementedError(f"te.scan {name}: expected a placeholder and a te.compute for each state")
    for op in ordered([tensor.op for tensor in updates]):
        reads = any(key(tensor.op) in known for tensor in op.input_tensors)
        if key(op) in last or (reads and key(op) not in known):
            inside.append(op)
            known.add(key(op))
    given, steps = inits[0].shape[0], updates[0].shape[0]
    for op in inside:
        _check_step(f"te.scan {name}", op, {key(state.op) for state in states}, known, given)
    read = [tensor for op in inside for tensor in op.input_tensors if key(tensor.op) not in known]
    ins = list({_of(tensor): tensor for tensor in (*inits, *read)}.values())
    outs = [*updates, *(op.output(0) for op in inside if key(op) not in last)]

    def loops(in_buffers, out_buffers):
        buffers = dict(zip(map(_of, (*ins, *outs)), (*in_buffers, *out_buffers), strict=True))
        buffers |= dict(zip(map(_of, states), out_buffers, strict=False))
        time = Var(f"{name}.idx", str(steps.ty))
        first = [_copied(buffers[_of(a)], buffers[_of(b)]) for a, b in zip(inits, updates, strict=True)]
        step = [_step(op, buffers, time) for op in inside]
        return SeqStmt([*first, For(time, given, steps - given, ForKind.SERIAL, _joined(step))])

    made = extern(
        [tensor.shape for tensor in outs], ins, loops, name, [str(tensor.dtype) for tensor in outs], tag=tag,
        attrs=attrs,
    )  # fmt: skip
    results = _listed(made)[: len(states)]
    return results[0] if len(results) == 1 else results


def _check_step(at: str, op, states: set[int], known: set[int], given) -> None:
    """Raise `NotImplementedError` unless an operation can be computed a step after the other."""
    if not isinstance(op, te.ComputeOp) or int(op.num_outputs) != 1:
        raise NotImplementedError(f"{at}: {op.name}: expected a te.compute with one result")
    loads: list = []
    tvm_ffi.structural_walk(list(op.body), [(tvm.ir.Call, lambda call: loads.append(call))])
    for load in filter(is_load, loads):
        source, index = load.args[0].op, load.args[1]
        if key(source) in known:
            ago = constant(tvm.sym.Analyzer().simplify(op.axis[0].var - index))
            first = constant(given)
            if not (_before(ago, first) if key(source) in states else ago == 0):
                raise NotImplementedError(
                    f"{at}: {op.name} reads {source.name} at {index}; expected a state at one of "
                    f"the {given} steps before, or what the same step has computed"
                )


def _before(ago: int | None, given: int | None) -> bool:
    return ago is not None and ago >= 1 and (given is None or ago <= given)


def _copied(source, target):
    axes = [new_axis(extent, f"i{number}") for number, extent in enumerate(source.shape)]
    at = [axis.var for axis in axes]
    return _nest(axes, BufferStore(target, BufferLoad(source, at), at))


def _step(op, buffers: dict, time):
    """Return the statement that computes an operation at `time`."""
    buffer, at = buffers[key(op), 0], [time, *(axis.var for axis in op.axis[1:])]
    shared = reduced_of(op)  # perhaps by several operations, and a variable has one loop
    own = [IterVar(axis.dom, Var(name_of(axis), str(axis.var.ty)), axis.iter_type) for axis in shared]
    replaced = {key(old.var): new.var for old, new in zip(shared, own, strict=True)}
    start, value = _element(op, buffer, at, buffers, {key(op.axis[0].var): time, **replaced})
    body = _nest(own, BufferStore(buffer, value, at))
    before = [] if start is None else [BufferStore(buffer, start, at)]
    return _nest(list(op.axis)[1:], _joined([*before, body]))


# ---------------------------------------------------------------- intrinsics


class Intrinsic(NamedTuple):
    """What `decl_tensor_intrin` returns: a pair of functions that `tvm.s_tir.TensorIntrin` has by `name`.

    `updates` says whether that to go on with, `{name}.update`, is there; a computation without a reduction,
    `sums` False, needs none.
    """

    name: str
    sums: bool
    updates: bool


def decl_tensor_intrin(
    op, fcompute, name="tensor_intrin", binds=None, scalar_params=None, default_buffer_params=None
) -> Intrinsic:
    """`te.decl_tensor_intrin`: what `s[C].tensorize` puts in the place of loops that compute `op`.

    Args:
        op: The operation, of `te.compute`, with inputs that are placeholders.
        fcompute: A function of (ins, outs), lists of buffers: it returns the statement that computes the
            whole result; or this, one that starts a reduction, and one that adds to it, of which the last
            may be missing. Where only a part of the reduction is in the loops, the third is taken, and loops
            start the reduction.
        name: The beginning of its name.
        binds: The buffers by tensor; by default, of the tensors' shapes, with `default_buffer_params`.
        scalar_params: Not supported; None.
        default_buffer_params: Arguments of `tvm.tir.decl_buffer`.

    Raises:
        NotImplementedError: `scalar_params`, or an operation with several results.
    """
    if scalar_params or not isinstance(op, te.ComputeOp) or int(op.num_outputs) != 1:
        raise NotImplementedError(
            f"te.decl_tensor_intrin {name}: expected a te.compute with one result, and no scalar_params"
        )
    tensors = [*op.input_tensors, *outputs_of(op)]
    given, options = {_of(t): b for t, b in (binds or {}).items()}, default_buffer_params or {}
    buffers = [
        given[_of(t)] if _of(t) in given else _buffer(t, **{"offset_factor": 1, **options}) for t in tensors
    ]
    made = fcompute(buffers[:-1], buffers[-1:])
    body, _, update, *_ = (*(made if isinstance(made, list | tuple) else [made]), None, None)
    name, plain = f"{name}.{next(_numbers)}", [_buffer(tensor, offset_factor=1) for tensor in tensors]
    sums, described = _described(op, plain)
    described = _function(plain, sums, described)
    TensorIntrin.register(name, described, _function(buffers, sums, body))
    if update is not None:
        TensorIntrin.register(f"{name}.update", described, _function(buffers, sums, update))
    return Intrinsic(name, sums, update is not None)


def _buffer(tensor, **options):
    return decl_buffer(tensor.shape, tensor.dtype, tensor.op.name, **{"layout": None, **options})


def _described(op, buffers: list) -> tuple:
    """Return whether an operation is a reduction, and loops that compute it, without its start."""
    tensors, at = [*op.input_tensors, op.output(0)], [axis.var for axis in op.axis]
    start, value = _element(op, buffers[-1], at, dict(zip(map(_of, tensors), buffers, strict=True)), {})
    axes = [*op.axis, *reduced_of(op)]
    loops = [new_axis(axis.dom.extent, name_of(axis)) for axis in axes]
    block = SBlock(axes, [], [], op.name, BufferStore(buffers[-1], value, at))
    reads, writes, _ = get_sblock_access_region(block, {buffer: buffer for buffer in buffers})
    block = SBlock(axes, reads, writes, op.name, block.body)
    return start is not None, _nest(loops, SBlockRealize([axis.var for axis in loops], True, block))


def _function(buffers: list, sums: bool, body) -> tvm.tirx.PrimFunc:
    """Return a function with the block that `tensorize` matches; the last buffer has the result."""
    read = [buffers[-1], *buffers[:-1]] if sums else buffers[:-1]
    regions = [[tvm.tirx.BufferRegion(each, _whole(each)) for each in of] for of in (read, buffers[-1:])]
    body = body if isinstance(body, tvm.tirx.Stmt) else tvm.tirx.Evaluate(body)
    root = SBlockRealize([], True, SBlock([], *regions, "root", body))
    return tvm.tirx.PrimFunc(buffers, root).with_attr("s_tir", True)


def _whole(buffer) -> list:
    return [new_axis(extent, "i").dom for extent in buffer.shape]


# ---------------------------------------------------------------- statements


def _of(tensor) -> tuple[int, int]:
    return key(tensor.op), int(tensor.value_index)


def _element(op, buffer, at: list, buffers: dict, replaced: dict) -> tuple:
    """Return what starts an element of an operation, None but for a reduction; and its value, or next sum."""
    (value,) = op.body
    if not isinstance(value, te.Reduce):
        return None, _on_buffers(value, buffers, replaced)
    of, now = value.combiner, BufferLoad(buffer, at)
    terms = {key(of.lhs[0]): now, key(of.rhs[0]): _on_buffers(value.source[0], buffers, replaced)}
    total = _on_buffers(of.result[0], buffers, terms)
    if constant(value.condition) != 1:
        total = tvm.tirx.if_then_else(_on_buffers(value.condition, buffers, replaced), total, now)
    start = value.init[0] if len(value.init) else of.identity_element[0]
    return _on_buffers(start, buffers, replaced), total


def _on_buffers(value, buffers: dict, replaced: dict):
    """Return an expression that reads `buffers`, by `_of` of the tensors, with variables `replaced`."""

    def load(call):
        return BufferLoad(buffers[_of(call.args[0])], call.args[1:]) if is_load(call) else call

    value = tvm_ffi.structural_map(value, [(tvm.ir.Call, load)], order="pre")
    return tvm_ffi.structural_map(value, [(tvm.ir.Var, lambda var: replaced.get(key(var), var))])


def is_load(call) -> bool:
    """Return whether a call reads an element of a tensor: te.tensor_load(tensor, *indices)."""
    return len(call.args) > 0 and isinstance(call.args[0], te.Tensor)


def _nest(axes: list, body):
    """Return a statement within loops over axes, the first outermost."""
    for axis in reversed(axes):
        body = For(axis.var, axis.dom.min, axis.dom.extent, ForKind.SERIAL, body)
    return body


def _joined(statements: list):
    return statements[0] if len(statements) == 1 else SeqStmt(statements)
