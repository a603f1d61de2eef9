"""Merge convolutions, or matrix products, that read the same value (horizontal fusion).

TensorRT does this to Inception's blocks. The weights are concatenated, and the result of the one operator is
split again. Relax has a pass for matrix products, `relax.transform.CombineParallelMatmul`, but for weights
that are parameters, not constants, and none for convolutions. `tn.build` does not merge by itself: it pays
off only if a single kernel cannot fill the device.
"""

from dataclasses import dataclass

import numpy as np
import tvm
import tvm_ffi
from tvm import relax
from tvm.relax import transform as t

from ..core.relax import constant_array, on_each_function, op_name, static_shape
from .build import bind
from .graph.conv_call import match
from .graph.fold_constants import fold_batch_norm, fold_with_numpy

_PER_CHANNEL = {"add", "subtract", "multiply", "divide"}  # with a constant
_UNARY = {"clip", "sigmoid", "tanh", "nn.gelu", "nn.leakyrelu", "nn.relu", "nn.relu6", "nn.silu"}


def combine_parallel_ops() -> tvm.transform.Pass:
    """Make the pass, for constant weights and folded batch norms, as `prepared` gives them.

    Convolutions in NCHW are merged if they read the same value with windows of one size, have equal strides,
    padding, dilation and dtype, and a single group; products of one left side with matrices are too. Biases
    and activations after them are merged as far as all branches have them.
    """
    return on_each_function("MergeParallel", _Merge)


def prepared(mod: tvm.IRModule, params: dict) -> tuple[tvm.IRModule, dict]:
    """Prepare a network for passes on its graph: parameters become constants, batch norms are folded.

    Returns:
        The module and {}, as `tn.build` takes them.

    Raises:
        TypeError, ValueError: As `tn.build` does for `mod` and `params`.
    """
    mod, _ = bind(mod, params)
    passes = [
        fold_batch_norm(),
        t.DecomposeOpsForInference(),
        t.ConvertToDataflow(),
        t.CanonicalizeBindings(),
        fold_with_numpy(),
        t.CanonicalizeBindings(),
        t.EliminateCommonSubexpr(),
        t.DeadCodeElimination(),
    ]
    return tvm.transform.Sequential(passes)(mod), {}


@dataclass
class _Branch:
    """A convolution or product and the bias and activations that follow it, each read only by the next."""

    channels: int
    rank: int
    chain: list[relax.VarBinding]

    def takes(self, call) -> bool:
        """Tell whether a call may be merged as the next operator of the branch."""
        name = op_name(call)
        if name not in _PER_CHANNEL:
            return name in _UNARY
        bias = _operand(call)
        shape = (1, self.channels, 1, 1) if self.rank == 4 else (self.channels,)
        return bias is not None and bias.shape == shape

    def like(self, other: "_Branch", n: int) -> bool:
        """Tell whether the n-th operators of both are equal, except for the constants for their channels."""
        mine, its = self.chain[n].value, other.chain[n].value
        same = [(mine.attrs, its.attrs)]
        if op_name(mine) not in _PER_CHANNEL:
            same.append((mine.args[1:], its.args[1:]))
        return mine.op == its.op and all(tvm_ffi.structural_equal(*pair) for pair in same)


def _groups(func) -> list[list[_Branch]]:
    """List the groups of branches of a function that can be merged; those of a group read the same value."""
    blocks = [block for block in func.body.blocks if isinstance(block, relax.DataflowBlock)]
    bindings = [binding for block in blocks for binding in block.bindings]
    inside = {b.var: b for b in bindings if isinstance(b.var, relax.DataflowVar)}
    readers, groups = {}, {}
    for binding in bindings:
        for read in relax.analysis.free_vars(binding.value):
            readers.setdefault(read, []).append(binding.var)
    for binding in inside.values():
        call = binding.value
        key = _key(call)
        if key is None:
            continue
        channel_axis, rank = (0, 4) if op_name(call) == "nn.conv2d" else (1, 1)
        branch = _Branch(static_shape(call.args[1].ty)[channel_axis], rank, [binding])
        while len(following := readers.get(branch.chain[-1].var, [])) == 1:
            if following[0] not in inside or not branch.takes(inside[following[0]].value):
                break
            branch.chain.append(inside[following[0]])
        groups.setdefault(key, []).append(branch)
    return [branches for branches in groups.values() if len(branches) > 1]


def _key(call):
    """Return a key that is equal for calls that can be merged; None for a call that cannot."""
    name = op_name(call)
    if name == "matmul":
        weight = constant_array(call.args[1])
        if weight is None or weight.ndim != 2:
            return None
        same = weight.shape[:1]
    else:
        conv = match(call)
        if conv is None or conv.is_line or conv.groups != 1:
            return None
        weight, same = conv.weight, (conv.weight.shape[1:], *conv.window)
    if not isinstance(call.args[0], relax.Var):
        return None
    return name, call.args[0], str(weight.dtype), str(call.ty.dtype), *same


def _operand(call) -> np.ndarray | None:
    """Return the constant operand of an operator; None if it has none."""
    right = constant_array(call.args[1])
    commutes = op_name(call) in ("add", "multiply")
    return constant_array(call.args[0]) if right is None and commutes else right


@relax.expr_functor.mutator
class _Merge(relax.PyExprMutator):
    def __init__(self):
        super().__init__()
        self.first = {}  # by the variable of a group's first branch: the branches
        self.parts = {}  # by the last merged variable of a branch: its part of the split
        self.gone = set()  # variables whose bindings are dropped

    def visit_function_(self, func):
        self.first.update((branches[0].chain[0].var, branches) for branches in _groups(func))
        return super().visit_function_(func)

    def visit_var_binding_(self, binding):
        if binding.var in self.first:
            self._merge(self.first[binding.var])
        if binding.var in self.parts:
            self.set_var_remap(binding.var, self.parts[binding.var])
        elif binding.var not in self.gone:
            super().visit_var_binding_(binding)

    def _merge(self, branches):
        """Emit the merged operators and a split; note the variables of its parts and those that go."""
        lead, *others = branches
        merged = 1
        while all(merged < len(b.chain) for b in branches) and all(b.like(lead, merged) for b in others):
            merged += 1
        weight_axis, channel_axis = (0, 1) if lead.rank == 4 else (1, -1)
        value = self.visit_expr(lead.chain[0].value.args[0])
        for n in range(merged):
            call = lead.chain[n].value
            operands = call.args[1:]
            if n == 0 or op_name(call) in _PER_CHANNEL:
                arrays = [_operand(b.chain[n].value) for b in branches]
                axis = weight_axis if n == 0 else min(1, arrays[0].ndim - 1)
                operands = [relax.const(np.concatenate(arrays, axis))]
            value = self.builder_.emit(tvm.ir.Call(call.op, [value, *operands], call.attrs, call.ty_args))
        ends = [int(n) for n in np.cumsum([b.channels for b in branches])[:-1]]
        parts = self.builder_.emit(relax.op.split(value, ends, axis=channel_axis % len(value.ty.shape)))
        for number, branch in enumerate(branches):
            self.gone.update(each.var for each in branch.chain[: merged - 1])
            self.parts[branch.chain[merged - 1].var] = self.builder_.emit(relax.TupleGetItem(parts, number))
