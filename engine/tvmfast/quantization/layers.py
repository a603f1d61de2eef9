"""Which operators of a network compute in int8, and which tensors become uint8 for them.

A layer is an operator whose operands are quantized: a convolution or a matrix product with constant weights,
the addition of a residual network, an average pool. A tensor is quantized where it is stored between layers,
after the bias, addition and activation that a compiler fuses with the product before, as in Jacob et al.,
"Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only Inference", CVPR 2018,
section 2.4. Operators that only choose or move numbers (max pools, reshapes, concatenations) then work on
uint8; what they read and make has one scale.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import tvm
from tvm import relax
from tvm.relax import transform as t

from ..compiler.build import bind
from ..compiler.graph.conv_call import match
from ..compiler.graph.fold_constants import fold_batch_norm, fold_with_numpy
from ..core.compat import pass_lock
from ..core.relax import constant_array, op_name, shape_text

# What a compiler fuses with the product before: of one tensor, or of one and constants.
_EPILOGUES = {
    *("add", "subtract", "multiply", "divide", "maximum", "minimum", "clip", "sigmoid", "tanh"),
    *(f"nn.{name}" for name in ("relu", "relu6", "leakyrelu", "prelu", "silu", "gelu", "gelu_tanh")),
}
_POOLS = {"nn.avg_pool1d", "nn.avg_pool2d", "nn.adaptive_avg_pool1d", "nn.adaptive_avg_pool2d", "mean"}
_MOVES = {
    *("reshape", "flatten", "expand_dims", "squeeze", "permute_dims", "concat", "strided_slice"),
    *("nn.max_pool1d", "nn.max_pool2d", "nn.pad"),
}
_PRODUCTS = ("conv", "matmul", "attention", "einsum")  # in the names of operators that int8 would pay for
COMPUTED = "its weights are no constants"


@dataclass(eq=False)
class Layer:
    """An operator that computes in int8, or could.

    Attributes:
        name: That of its weights in the framework; of others their operator, numbered: "add1".
        kind: The operator, "conv2d".
        binding: Its call.
        operands: The positions of the arguments that become uint8.
        weight: The weights, which become int8.
        axis: The axis of the weights that has the output channels.
        reason: Why it stays float32; "" if it does not.
        correction: What is added to each output channel; see `calibrate.correction`.
    """

    name: str
    kind: str
    binding: relax.VarBinding
    operands: tuple[int, ...] = ()
    weight: np.ndarray | None = None
    axis: int = 0
    reason: str = ""
    correction: np.ndarray | None = None

    @property
    def reads(self) -> list[relax.Var]:
        """The tensors that become uint8."""
        return [self.binding.value.args[n] for n in self.operands]


class Graph:
    """A network with its batch norms and constants folded, and its layers.

    Attributes:
        mod: The network, its parameters bound, without dataflow blocks.
        arrays: The parameters by name.
        main: Its `main`.
        layers: The layers in order, with those that cannot be quantized.
        of_tensor: For each tensor that becomes uint8 the one whose scale it has.
    """

    def __init__(self, mod: tvm.IRModule, params: dict):
        """Fold the network and find its layers; raises what `tn.build` does of `mod` and `params`."""
        bound, self.arrays = bind(mod, params)
        names = _names(mod["main"], self.arrays)
        with pass_lock:
            self.mod = tvm.transform.Sequential(
                [
                    fold_batch_norm(),
                    t.ConvertToDataflow(),
                    t.CanonicalizeBindings(),
                    fold_with_numpy(),
                    t.DeadCodeElimination(),
                    t.CanonicalizeBindings(),
                    t.ToNonDataflow(),
                ]
            )(bound)
        self.main = self.mod["main"]
        bindings = [each for block in self.main.body.blocks for each in block.bindings]
        self.bound = {binding.var: binding.value for binding in bindings}
        self.order = {var: n for n, var in enumerate([*self.main.params, *self.bound])}
        # None: `main` returns it.
        self.readers: dict[relax.Var, list[relax.Binding | None]] = defaultdict(list)
        for binding in bindings:
            for var in relax.analysis.free_vars(binding.value):
                self.readers[var].append(binding)
        for var in relax.analysis.free_vars(self.main.body.body):
            self.readers[var].append(None)
        calls = [each for each in bindings if op_name(each.value)]
        self._count: Counter[str] = Counter()  # of layers that are named by their number
        self.layers = [*self._products(calls, names)]
        self.quantized = dict.fromkeys(var for layer in self.layers for var in layer.reads)  # in this order
        self.layers += [*self._sums(calls)]
        self.layers += [*self._pools(calls)]
        self.layers.sort(key=lambda layer: self.order[layer.binding.var])
        self._reading = {layer.binding.var: layer for layer in self.layers}
        self.of_tensor = self._shared_scales()

    def _layer(self, binding: relax.VarBinding, operands: tuple[int, ...] = (), name: str = "") -> Layer:
        """Return a layer, named by its operator and its number among those if it has no name."""
        kind = op_name(binding.value).removeprefix("nn.")
        self._count[kind] += 1
        return Layer(name or f"{kind}{self._count[kind]}", kind, binding, operands)

    def _products(self, calls: list, names: list[str]) -> Iterator[Layer]:
        products = [each for each in calls if any(part in op_name(each.value) for part in _PRODUCTS)]
        names = names if len(names) == len(products) else [""] * len(products)
        for binding, name in zip(products, names, strict=True):
            layer = self._layer(binding, name=name)
            layer.reason = self._quantize(layer, binding.value)
            yield layer

    def _quantize(self, layer: Layer, call: relax.Call) -> str:
        """Set the weights of a layer; return why it stays float32."""
        if layer.kind not in ("conv1d", "conv2d", "matmul"):
            return "an operator that has no int8 form here"
        weight = constant_array(call.args[1])
        if weight is None:
            return "it multiplies two computed tensors" if layer.kind == "matmul" else COMPUTED
        if layer.kind == "matmul" and weight.ndim != 2:
            return f"its weights have {weight.ndim} dims, not 2"
        if layer.kind != "matmul" and match(call) is None:
            return f"its layout is {call.attrs.data_layout}, {call.attrs.kernel_layout}"
        if not _is_float(call.args[0]) or weight.dtype != np.float32 or not _is_float(layer.binding.var):
            return f"it computes in {weight.dtype}"
        if not isinstance(call.args[0], relax.Var):
            return "its input is a constant"
        if not np.isfinite(weight).all():
            return "its weights have NaN or infinities"
        layer.operands, layer.weight, layer.axis = (0,), weight, int(layer.kind == "matmul")
        return ""

    def _sums(self, calls: list) -> Iterator[Layer]:
        """Yield additions of a residual network: one operand comes from a convolution, in registers.

        That operand, of a block with a downsampling convolution its result, is not stored, so to round it
        would cost time and accuracy: the other becomes uint8.
        """
        for binding in calls:
            if operands := self._addends(binding):
                layer = self._layer(binding, operands)
                self.quantized |= dict.fromkeys(layer.reads)
                yield layer

    def _addends(self, binding: relax.Binding) -> tuple[int, ...]:
        """Return which operands of an addition become uint8."""
        args = getattr(binding.value, "args", ())
        if op_name(binding.value) != "add" or not self._is_sum(args):
            return ()
        fused = self._fused(args)
        if fused is None:
            return (0, 1) if all(arg in self.quantized for arg in args) else ()
        other = 1 - fused
        stored = args[other] in self.quantized or self._source(self._moved_from(args[other])) == "conv"
        return (other,) if stored and self._source(args[fused]) == "conv" else ()

    def _pools(self, calls: list) -> Iterator[Layer]:
        """Yield average pools of tensors that are stored as uint8."""
        for binding in calls:
            name = op_name(binding.value)
            x = binding.value.args[0] if name in _POOLS else None
            if not isinstance(x, relax.Var) or not _is_float(x):
                continue
            stored = self._source(self._moved_from(x)) == "conv" and len(self.readers[x]) == 1
            if x in self.quantized or stored:
                self.quantized[x] = None
                yield self._layer(binding, (0,))

    @staticmethod
    def _is_sum(args: Sequence[relax.Expr]) -> bool:
        """Tell whether the arguments are two tensors of float32 and of one shape."""
        if len(args) != 2 or not all(isinstance(arg, relax.Var) and _is_float(arg) for arg in args):
            return False
        return shape_text(args[0].ty) is not None and shape_text(args[0].ty) == shape_text(args[1].ty)

    def _fused(self, args: Sequence[relax.Expr]) -> int | None:
        """Return which of two addends is still in registers: that of the product that comes last."""
        once = [
            n
            for n, arg in enumerate(args)
            if len(self.readers[arg]) == 1 and arg not in self.quantized and self._source(arg)
        ]
        return max(once, key=lambda n: self.order[args[n]], default=None)

    def _source(self, var: relax.Expr) -> str:
        """Return "conv" or "matmul" if such a product, and what is fused with it, makes a tensor; else ""."""
        while True:
            value = self.bound.get(var)
            name = op_name(value)
            if name in ("nn.conv1d", "nn.conv2d", "matmul"):
                return "matmul" if name == "matmul" else "conv"
            if value is None or name not in _EPILOGUES:
                return ""
            tensors = [arg for arg in value.args if isinstance(arg, relax.Var)]
            if len(tensors) == 1:
                var = tensors[0]
            elif name == "add" and self._is_sum(tensors):
                # The last product is in this addition or one before: its name decides, not where it is.
                var = max(tensors, key=lambda each: self.order[each])
            else:
                return ""

    def _moved_from(self, var: relax.Expr) -> relax.Expr:
        """Return the tensor whose numbers a tensor has; of several the first."""
        while op_name(value := self.bound.get(var)) in _MOVES:
            var = _moved(value)[0]
        return var

    # ---------------------------------------------------------------- uint8 through what only moves numbers

    def stays_uint8(self, var: relax.Var, active: Collection[Layer]) -> bool:
        """Tell whether all that reads a tensor reads it as uint8, if these layers compute in int8."""
        return all(self.reads_uint8(binding, var, active) for binding in self.readers[var])

    def reads_uint8(self, binding: relax.Binding | None, var: relax.Var, active: Collection[Layer]) -> bool:
        """Tell whether a binding reads a tensor as uint8, if these layers compute in int8."""
        if binding is None:
            return False
        layer = self._reading.get(binding.var)
        if layer is not None:
            args = binding.value.args
            # A layer of two operands that are one tensor reads both in one way.
            return layer in active and any(args[n].same_as(var) for n in layer.operands)
        return (
            op_name(binding.value) in _MOVES
            and bool(_moved(binding.value))
            and binding.var in self.of_tensor
            and self.stays_uint8(binding.var, active)
        )

    def _shared_scales(self) -> dict[relax.Var, relax.Var]:
        self.of_tensor = {var: var for var in self.quantized}
        active = [layer for layer in self.layers if not layer.reason]
        todo = sorted(self.of_tensor, key=lambda var: self.order[var])
        while todo:
            var = todo.pop()
            value = self.bound.get(var)
            sources = _moved(value) if op_name(value) in _MOVES else []
            if not sources or not self.stays_uint8(var, active):
                continue
            for source in sources:
                if source not in self.of_tensor:
                    self.of_tensor[source] = source
                    todo.append(source)
                old, new = self.of_tensor[source], self.of_tensor[var]
                self.of_tensor = {key: new if each is old else each for key, each in self.of_tensor.items()}
        return self.of_tensor


def _is_float(expr: relax.Expr) -> bool:
    return str(getattr(expr.ty, "dtype", "")) == "float32"


def _moved(call: relax.Call) -> list[relax.Var]:
    """Return the tensors whose numbers an operator moves; none if it may add others than 0."""
    if op_name(call) == "nn.pad" and (str(call.attrs.pad_mode) != "constant" or float(call.attrs.pad_value)):
        return []
    of = call.args[0]
    tensors = [*of.fields] if isinstance(of, relax.Tuple) else [of]
    return tensors if all(isinstance(each, relax.Var) and _is_float(each) for each in tensors) else []


def _names(main: relax.Function, arrays: dict) -> list[str]:
    """Return a name for each product of an imported network: that of its weights, "" if it has none."""
    bound = relax.analysis.get_var2val(main)
    names: list[str] = []
    for block in main.body.blocks:
        for binding in block.bindings:
            if any(part in op_name(binding.value) for part in _PRODUCTS):
                weight = binding.value.args[1] if len(binding.value.args) > 1 else None
                while op_name(bound.get(weight)) in _MOVES:
                    weight = bound[weight].args[0]
                name = getattr(weight, "name", "")
                name = name if name in arrays else ""
                name = next((name.removesuffix(e) for e in (".weight", "_weight") if name.endswith(e)), name)
                again = sum(each.partition(" ")[0] == name for each in names)
                names.append(f"{name} {again + 1}" if name and again else name)
    return names
