"""Horizontal fusion makes one convolution of those that read the same value, and so with matrix products.

TensorRT does this to Inception's blocks. The weights are put one behind another, and what the one operator makes is
split again. Relax has a pass for matrix products, `relax.transform.CombineParallelMatmul`, but for weights that are
parameters, not for constants, and none for convolutions. `tn.build` does not merge by itself: it pays where a single
kernel cannot fill the device.
"""

from dataclasses import dataclass

import numpy as np
import tvm
import tvm_ffi
from tvm import relax
from tvm.relax import transform as t

from ..base.relax import constant_array, fixed_shape, on_each_function
from .build import bind
from .fold import fold_batch_norm, fold_with_numpy

_PER_CHANNEL = {f"relax.{name}" for name in ("add", "subtract", "multiply", "divide")}  # with a constant
_UNARY = {f"relax.{name}" for name in (
    "clip", "sigmoid", "tanh", "nn.gelu", "nn.leakyrelu", "nn.relu", "nn.relu6", "nn.silu",
)}  # fmt: skip


def combine_parallel_ops() -> tvm.transform.Pass:
    """Make the pass; it wants constant weights and folded batch norms, which `prepared` gives.

    Convolutions in NCHW are merged where they read the same value with windows of one size, and equal strides, padding,
    dilation and dtype, and have one group; products of one left side with matrices are too. Biases and activations
    behind them are merged along as far as all have them.
    """
    return on_each_function("MergeParallel", _Merge)


def prepared(mod: tvm.IRModule, params: dict) -> tuple[tvm.IRModule, dict]:
    """Return the network as passes on its graph want it, its parameters in it as constants, and {}, for `tn.build`.

    Batch norms are folded into convolutions. Raises what `tn.build` says of `mod` and `params`.
    """
    mod, _ = bind(mod, params)
    steps = [fold_batch_norm(), t.DecomposeOpsForInference(), t.ConvertToDataflow(), t.CanonicalizeBindings(),
             fold_with_numpy(), t.CanonicalizeBindings(), t.EliminateCommonSubexpr(),
             t.DeadCodeElimination()]  # fmt: skip
    return tvm.transform.Sequential(steps)(mod), {}


@dataclass
class _Branch:
    """A convolution or product with what is behind it and nowhere else: the bias, activations."""

    channels: int
    rank: int
    steps: list[relax.VarBinding]

    def takes(self, call) -> bool:
        name = getattr(getattr(call, "op", None), "name", "")
        if name not in _PER_CHANNEL:
            return name in _UNARY
        bias = _operand(call)
        shape = (1, self.channels, 1, 1) if self.rank == 4 else (self.channels,)
        return bias is not None and bias.shape == shape

    def like(self, other: "_Branch", step: int) -> bool:
        """Whether both do the same in a step; the constants for their channels may differ."""
        mine, its = self.steps[step].value, other.steps[step].value
        same = [(mine.attrs, its.attrs)]
        if mine.op.name not in _PER_CHANNEL:
            same.append((mine.args[1:], its.args[1:]))
        return mine.op == its.op and all(tvm_ffi.structural_equal(*pair) for pair in same)


def _groups(func) -> list[list[_Branch]]:
    """List the groups of branches that can be merged in a function; each group reads one value."""
    bindings = [
        b for block in func.body.blocks if isinstance(block, relax.DataflowBlock) for b in block.bindings
    ]
    inside = {b.var: b for b in bindings if isinstance(b.var, relax.DataflowVar)}
    readers, groups = {}, {}
    for binding in bindings:
        for read in relax.analysis.free_vars(binding.value):
            readers.setdefault(read, []).append(binding.var)
    for binding in inside.values():
        call = binding.value
        if (key := _key(call)) is None:
            continue
        convolution = call.op.name == "relax.nn.conv2d"
        branch = _Branch(
            fixed_shape(call.args[1].ty)[0 if convolution else 1], 4 if convolution else 1, [binding]
        )
        while len(following := readers.get(branch.steps[-1].var, [])) == 1:
            if following[0] not in inside or not branch.takes(inside[following[0]].value):
                break
            branch.steps.append(inside[following[0]])
        groups.setdefault(key, []).append(branch)
    return [branches for branches in groups.values() if len(branches) > 1]


def _key(call):
    """Return a key that is equal for calls that can be merged; None for one that cannot."""
    name = getattr(getattr(call, "op", None), "name", "")
    if name not in ("relax.nn.conv2d", "relax.matmul") or not isinstance(call.args[0], relax.Var):
        return None
    weight, attrs = constant_array(call.args[1]), call.attrs
    if weight is None:
        return None
    common = name, call.args[0], str(weight.dtype), str(call.ty.dtype)
    if name == "relax.matmul":
        return (*common, weight.shape[0]) if weight.ndim == 2 else None
    layouts = attrs.data_layout, attrs.kernel_layout, attrs.out_layout
    if int(attrs.groups) != 1 or layouts != ("NCHW", "OIHW", "NCHW"):
        return None
    numbers = (tuple(int(n) for n in each) for each in (attrs.strides, attrs.padding, attrs.dilation))
    return *common, weight.shape[1:], *numbers


def _operand(call) -> np.ndarray | None:
    """Return the constant that an operator applies to the value that it reads; None where there is none."""
    right = constant_array(call.args[1])
    commutes = call.op.name in ("relax.add", "relax.multiply")
    return constant_array(call.args[0]) if right is None and commutes else right


@relax.expr_functor.mutator
class _Merge(relax.PyExprMutator):
    def __init__(self):
        super().__init__()
        self.first, self.parts, self.gone = {}, {}, set()

    def visit_function_(self, func):
        self.first.update((branches[0].steps[0].var, branches) for branches in _groups(func))
        return super().visit_function_(func)

    def visit_var_binding_(self, binding):
        if binding.var in self.first:
            self._merge(self.first[binding.var])
        if binding.var in self.parts:
            self.set_var_remap(binding.var, self.parts[binding.var])
        elif binding.var not in self.gone:
            super().visit_var_binding_(binding)

    def _merge(self, branches):
        """Emit the one operator and what is behind it; note which variables stand for its parts, which for none."""
        lead, *others = branches
        steps = 1
        while all(steps < len(b.steps) for b in branches) and all(b.like(lead, steps) for b in others):
            steps += 1
        weights, channels = (0, 1) if lead.rank == 4 else (1, -1)  # their axes
        value = self.visit_expr(lead.steps[0].value.args[0])
        for step in range(steps):
            call = lead.steps[step].value
            rest = call.args[1:]
            if step == 0 or call.op.name in _PER_CHANNEL:
                arrays = [_operand(b.steps[step].value) for b in branches]
                rest = [
                    relax.const(np.concatenate(arrays, weights if step == 0 else min(1, arrays[0].ndim - 1)))
                ]
            value = self.builder_.emit(tvm.ir.Call(call.op, [value, *rest], call.attrs, call.ty_args))
        ends = [int(n) for n in np.cumsum([b.channels for b in branches])[:-1]]
        axis = channels % len(value.ty.shape)
        parts = self.builder_.emit(relax.op.split(value, ends, axis=axis))
        for number, branch in enumerate(branches):
            self.gone.update(step.var for step in branch.steps[: steps - 1])
            self.parts[branch.steps[steps - 1].var] = self.builder_.emit(relax.TupleGetItem(parts, number))
