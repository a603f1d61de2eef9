"""`insert`: quantize and dequantize around the operands of layers, and int8 weights as parameters."""

import itertools
from collections.abc import Collection, Mapping
from typing import NamedTuple

import numpy as np
import tvm
from tvm import relax
from tvm.relax import op
from tvm.relax import transform as t

from ..core.compat import pass_lock
from ..core.relax import array_key, constant_array, op_name
from .calibrate import along, quantized_weight, scale_of
from .layers import Graph, Layer


class Scale(NamedTuple):
    """How a tensor becomes uint8: round(x / scale) + zero_point, from 0 to 255."""

    low: float
    high: float
    scale: np.float32
    zero_point: int

    @classmethod
    def of(cls, low: float, high: float) -> "Scale":
        """Return that of a range."""
        return cls(low, high, *scale_of(low, high))

    def rounded(self, x: np.ndarray) -> np.ndarray:
        """Return what is left of a tensor, in float32."""
        q = np.clip(np.rint(x / self.scale) + np.float32(self.zero_point), 0, 255)
        return (q - np.float32(self.zero_point)) * self.scale


def insert(
    graph: Graph, active: Collection[Layer], scales: Mapping[relax.Var, Scale]
) -> tuple[tvm.IRModule, dict[str, tvm.runtime.Tensor]]:
    """Return the network in which some layers compute in int8, and its parameters.

    What a layer reads is quantized once, where it is made, and dequantized; so is what an operator reads that
    only moves numbers, if all its readers are such layers. Weights are dequantized from int8.
    """
    layers = {layer.binding.var: layer for layer in active}
    names = _Names(graph)
    biases = _biases(graph, active)
    biased = {layer for layer, _ in biases.values()}
    reads: dict[relax.Var, relax.Var] = {}  # by tensor, what reads it as uint8 reads instead

    def quantized(var: relax.Var) -> list[relax.VarBinding]:
        """Return the bindings that quantize a tensor, if anything reads it as uint8."""
        if var not in graph.of_tensor or not any(
            graph.reads_uint8(binding, var, active) for binding in graph.readers[var]
        ):
            return []
        scale = scales[graph.of_tensor[var]]
        parts = relax.const(scale.scale), relax.const(np.uint8(scale.zero_point), "uint8")
        stored = relax.Var(f"{var.name}_uint8", relax.TensorType(var.ty.shape, "uint8"))
        reads[var] = relax.Var(f"{var.name}_float", var.ty)
        return [
            relax.VarBinding(stored, op.quantize(var, *parts, out_dtype="uint8")),
            relax.VarBinding(reads[var], op.dequantize(stored, *parts)),
        ]

    def changed(binding: relax.Binding) -> list[relax.Binding]:
        layer = layers.get(binding.var)
        used = {
            var: reads[var]
            for var in relax.analysis.free_vars(binding.value)
            if var in reads and graph.reads_uint8(binding, var, active)
        }
        before, value = [], binding.value
        if layer is not None:
            args = [used.get(arg, arg) if n in layer.operands else arg for n, arg in enumerate(value.args)]
            if layer.weight is not None:
                weight = relax.Var(f"{binding.var.name}_weight", value.args[1].ty)
                before, args[1] = [relax.VarBinding(weight, names.weight(layer))], weight
            value = relax.Call(value.op, args, value.attrs, value.ty_args)
            if layer.correction is not None and layer not in biased:
                product = relax.Var(f"{binding.var.name}_product", binding.var.ty)
                before.append(relax.VarBinding(product, value))
                value = op.add(product, relax.const(correcting(layer)))
        elif used:
            value = _replaced(value, used)
        if binding.var in biases:
            bias = names.bias(*biases[binding.var])
            args = [bias if isinstance(arg, tvm.ir.GenericConst) else arg for arg in value.args]
            value = relax.Call(value.op, args, value.attrs, value.ty_args)
        if value is not binding.value:
            binding = relax.VarBinding(binding.var, value)
        return [*before, binding, *quantized(binding.var)]

    blocks = []
    inputs = [each for param in graph.main.params for each in quantized(param)]
    for block in graph.main.body.blocks:
        bindings = [each for binding in block.bindings for each in changed(binding)]
        blocks.append(relax.BindingBlock([*inputs, *bindings]))
        inputs = []
    main = graph.main
    body = relax.SeqExpr(blocks, main.body.body)
    mod = graph.mod.clone()
    mod["main"] = relax.Function(main.params, body, main.ret_ty, main.is_pure, main.attrs)
    with pass_lock:
        mod = tvm.transform.Sequential([t.Normalize(), t.ConvertToDataflow(), t.CanonicalizeBindings()])(mod)
    return names.lifted(mod)


def correcting(layer: Layer) -> np.ndarray:
    """Return the correction of a layer in a shape that broadcasts to its result."""
    ndim = len(layer.binding.var.ty.shape)
    return along(layer.correction, ndim - 1 if layer.kind == "matmul" else 1, ndim)


def _biases(graph: Graph, active: Collection[Layer]) -> dict[relax.Var, tuple[Layer, np.ndarray]]:
    """Return the layer and the constant that an addition of a bias adds, by the variable of its result."""
    biases = {}
    for layer in active:
        reader = graph.readers[layer.binding.var][0]
        if len(graph.readers[layer.binding.var]) > 1 or reader is None or op_name(reader.value) != "add":
            continue
        for constant in map(constant_array, reader.value.args):
            if layer.weight is not None and constant is not None:
                channels = layer.weight.shape[layer.axis]
                shape = [*layer.binding.var.ty.shape]
                axis = len(shape) - 1 if layer.kind == "matmul" else 1
                wanted = tuple(channels if n == axis else 1 for n in range(len(shape)))
                if (1,) * (len(shape) - constant.ndim) + constant.shape == wanted:
                    biases[reader.var] = layer, constant
    return biases


def _replaced(value: relax.Call, used: Mapping[relax.Var, relax.Var]) -> relax.Call:
    """Return a call of other tensors, which may be in a tuple."""
    args = [
        relax.Tuple([used.get(field, field) for field in arg.fields])
        if isinstance(arg, relax.Tuple)
        else used.get(arg, arg)
        for arg in value.args
    ]
    return relax.Call(value.op, args, value.attrs, value.ty_args)


class _Names:
    """The names of the parameters: those of the float network, and of int8 weights with their scales."""

    def __init__(self, graph: Graph):
        self.graph = graph
        self.names = {array_key(array): name for name, array in graph.arrays.items()}
        self.taken = {param.name for param in graph.main.params}
        self.made: dict[int, relax.Expr] = {}  # by the array of a weight: two layers may share it

    def weight(self, layer: Layer) -> relax.Expr:
        """Return the weights of a layer, dequantized from int8."""
        key = array_key(layer.binding.value.args[1].value)
        if key not in self.made:
            q, scale = quantized_weight(layer.weight, layer.axis)
            parts = {"weight": relax.const(q, "int8"), "weight_scale": relax.const(scale)}
            for part, constant in parts.items():
                self.names[array_key(constant.value)] = f"{layer.name}.{part}"
            zero = relax.const(np.int8(0), "int8")
            self.made[key] = op.dequantize(*parts.values(), zero, axis=layer.axis)
        return self.made[key]

    def bias(self, layer: Layer, constant: np.ndarray) -> relax.Expr:
        """Return the bias of a layer with its correction."""
        if layer.correction is not None:
            constant = constant + layer.correction.reshape(constant.shape)
        bias = relax.const(constant)
        self.names[array_key(bias.value)] = f"{layer.name}.bias"
        return bias

    def lifted(self, mod: tvm.IRModule) -> tuple[tvm.IRModule, dict[str, tvm.runtime.Tensor]]:
        """Turn the constants of `main`, but for numbers, into parameters after the inputs."""
        lift = _Lift(self.names, self.taken)
        main = lift.visit_expr(mod["main"])
        params = [*main.params, *lift.vars.values()]
        main = relax.Function(params, main.body, main.ret_ty, main.is_pure, main.attrs)
        mod = mod.clone()
        mod.update_func(mod.get_global_var("main"), main.with_attr("num_input", len(self.graph.main.params)))
        return mod, lift.arrays


@relax.expr_functor.mutator
class _Lift(relax.PyExprMutator):
    def __init__(self, names: Mapping[int, str], taken: set[str]):
        super().__init__()
        self.names, self.taken = names, taken
        self.vars: dict[int, relax.Var] = {}
        self.arrays: dict[str, tvm.runtime.Tensor] = {}

    def visit_generic_const_(self, constant: tvm.ir.GenericConst) -> relax.Expr:
        if not isinstance(constant.value, tvm.runtime.Tensor) or not len(constant.value.shape):
            return constant
        key = array_key(constant.value)
        if key not in self.vars:
            wanted = self.names.get(key, "const")
            names = (f"{wanted}{end}" for end in itertools.chain([""], itertools.count(1)))
            name = next(name for name in names if name not in self.taken)
            self.taken.add(name)
            self.vars[key], self.arrays[name] = relax.Var(name, constant.ty), constant.value
        return self.vars[key]
