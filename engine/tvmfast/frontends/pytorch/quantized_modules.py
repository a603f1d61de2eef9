"""Quantized modules of PyTorch's eager mode, and what torch.jit.trace and torch.jit.script make of them.

Their operators, such as quantized::conv2d, take tensors that carry a scale, and weights that are packed for
PyTorch's own kernels; torch.export takes neither. `without_packing` returns a module that runs the same
TorchScript, an operator at a time, with each quantized tensor as the numbers it stands for: the operator of
float32, and after it `quantize` and `dequantize` of torch.ops.quantized_decomposed, as in programs of pt2e.
Weights stay int8.
"""

import operator
import re
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.ao.quantization.fx._decomposed  # registers the operators
import torch.nn.functional as F
from torch.ao.quantization.observer import ObserverBase

from ...core import errors
from ...core.dims import dims_of
from ...core.specs import TensorSpec
from .dynamic import OF_PROGRAM, SCRIPTED, zeros

aten, decomposed = torch.ops.aten, torch.ops.quantized_decomposed
_RANGES = {torch.uint8: (0, 255), torch.int8: (-128, 127)}
_DTYPES = {**dict.fromkeys((13, torch.quint8), torch.uint8), **dict.fromkeys((12, torch.qint8), torch.int8)}


def without_packing(model: Any, specs: list[TensorSpec]) -> Any:
    """Return a module of plain operators that computes what a quantized one does; any other model as it is.

    Raises:
        ValueError: The module does not take these inputs, or returns a quantized tensor.
        NotImplementedError: An operator on quantized tensors is not served; or dims are dynamic, and the
            module is not traced.
    """
    if not is_quantized(model):
        return model
    script = model
    if not isinstance(model, SCRIPTED):
        if dims := dims_of(spec.shape for spec in specs):
            raise NotImplementedError(
                f"a quantized module with the dynamic dims {', '.join(dims)}: import what torch.jit.trace "
                "makes of it, if its Python code does the same for all"
            )
        script = _traced(model, specs)
    plain = _Plain(script)
    if not dims_of(spec.shape for spec in specs):
        with torch.no_grad():
            plain(*zeros(specs))  # for the errors of operators
    return plain


def is_quantized(model: Any) -> bool:
    """Tell whether a module, or its TorchScript, computes with quantized tensors or packed weights."""
    if isinstance(model, SCRIPTED):
        kinds = {node.kind() for node in _nodes(model.inlined_graph)}
        return any(re.match("quantized::|aten::quantize", kind) for kind in kinds)
    if not isinstance(model, torch.nn.Module):
        return False
    floats = ("FloatFunctional", "FXFloatFunctional")
    kinds = {type(each).__module__ for each in model.modules() if type(each).__name__ not in floats}
    return any(
        re.match(r"torch\.ao\.nn\.(intrinsic\.)?quantized\.(dynamic\.)?modules", kind) for kind in kinds
    )


def check_converted(model: torch.nn.Module) -> None:
    """Raise ValueError for a module with observers, which are there until it is converted."""
    names = [name for name, each in model.named_modules() if isinstance(each, ObserverBase)]
    if names:
        raise ValueError(
            f"model: it has observers, such as {names[0]!r}, and is not quantized yet: call "
            "torch.ao.quantization.convert or, for float32, import the network as it was before prepare"
        )


def _traced(model: torch.nn.Module, specs: list[TensorSpec]) -> torch.jit.ScriptModule:
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of scales, which become constants, but not of branches
        warnings.filterwarnings("default", "Converting a tensor to a Python boolean", torch.jit.TracerWarning)
        try:
            return torch.jit.trace(model, zeros(specs), check_trace=False)
        except Exception as error:
            listed = "; ".join(map(str, specs))
            raise ValueError(
                f"the network does not take {listed}; PyTorch says: {errors.lines(error)[-1]}"
            ) from error


def _nodes(graph: Any) -> list:
    """List the nodes of a TorchScript graph or block, each before those of its blocks."""
    found = []
    for node in graph.nodes():
        found.append(node)
        for block in node.blocks():
            found += _nodes(block)
    return found


# ---------------------------------------------------------------- values


class _Quantized(NamedTuple):
    """A quantized tensor: `x` are its numbers, (q - zero) * scale."""

    x: torch.Tensor
    scale: float
    zero: int
    dtype: torch.dtype


class _Packed(NamedTuple):
    """Unpacked weights: their name, and the packed object, which knows strides and padding."""

    name: str
    axis: int | None
    has_bias: bool
    params: Any


def _quantized(x: torch.Tensor, scale: float, zero: int, dtype: Any) -> _Quantized:
    """Quantize, and return the numbers that are left."""
    if _DTYPES.get(dtype, dtype) not in _RANGES:
        raise NotImplementedError(f"a quantized tensor of {dtype}; expected quint8 or qint8")
    dtype = _DTYPES.get(dtype, dtype)
    q = decomposed.quantize_per_tensor(x, scale, zero, *_RANGES[dtype], dtype)
    x = decomposed.dequantize_per_tensor(q, scale, zero, *_RANGES[dtype], dtype)
    return _Quantized(x, scale, zero, dtype)


def _floats(value: Any) -> Any:
    """Return a value with plain tensors in place of quantized ones, also in a list."""
    if isinstance(value, _Quantized):
        return value.x
    return [_floats(each) for each in value] if type(value) is list else value


def _first(args: Sequence) -> _Quantized | None:
    """Return the first quantized tensor among arguments."""
    flat = [part for arg in args for part in (arg if type(arg) is list else [arg])]
    return next((part for part in flat if isinstance(part, _Quantized)), None)


# ---------------------------------------------------------------- operators


def _of_floats(function: Callable) -> Callable:
    """Return an operator whose last two arguments are the scale and the zero point of its result."""

    def run(module, *args):
        *args, scale, zero = args
        own = _first(args)
        scale, zero = (own.scale, own.zero) if scale is None else (scale, zero)
        return _quantized(function(*map(_floats, args)), scale, zero, own.dtype)

    return run


def _product(relu: bool) -> Callable:
    """Return a convolution or linear layer of packed weights."""

    def run(module, x, packed, *args):
        result = module.product(x.x, packed)
        return _quantized(F.relu(result) if relu else result, *args[-2:], x.dtype)

    return run


def _dynamic(relu: bool) -> Callable:
    """Return a linear layer whose input is quantized to uint8 in each run, by its extremes."""

    def run(module, x, packed, reduce_range=False):
        steps = 127 if reduce_range else 255
        low, high = x.amin().clamp(max=0), x.amax().clamp(min=0)
        scale = (high - low) / steps
        scale = torch.where(scale == 0, torch.full_like(scale, 0.1), scale)
        zero = torch.round(-low / scale).clamp(0, steps).to(torch.int64)
        q = decomposed.quantize_per_tensor.tensor(x, scale, zero, 0, 255, torch.uint8)
        x = decomposed.dequantize_per_tensor.tensor(q, scale, zero, 0, 255, torch.uint8)
        result = module.product(x, packed)
        return F.relu(result) if relu else result

    return run


def _times(module, x: _Quantized, number: float) -> _Quantized:
    """Multiply by a number: the integers stay, or are mirrored, and the scale is another."""
    if number == 0:
        return _quantized(x.x * 0, 1.0, 0, x.dtype)
    zero = x.zero if number > 0 else sum(_RANGES[x.dtype]) - x.zero
    return _quantized(x.x * number, abs(number) * x.scale, zero, x.dtype)


def _batch_norm(x, weight, bias, mean, var, eps):
    return F.batch_norm(x, mean, var, weight, bias, eps=eps)


_OPERATORS: dict[str, Callable] = {
    "aten::quantize_per_tensor": lambda module, x, scale, zero, dtype: _quantized(
        x, float(scale), int(zero), dtype
    ),
    "aten::dequantize": lambda module, x: _floats(x),
    "aten::q_scale": lambda module, x: x.scale,
    "aten::q_zero_point": lambda module, x: x.zero,
    **{
        f"quantized::{name}{'_relu' * relu}": _product(relu)
        for name in ("conv1d", "conv2d", "conv3d", "linear", "conv_transpose1d", "conv_transpose2d")
        for relu in (False, True)
    },
    "quantized::linear_dynamic": _dynamic(relu=False),
    "quantized::linear_relu_dynamic": _dynamic(relu=True),
    "quantized::mul_scalar": _times,
    **{
        f"quantized::{name}": _of_floats(function)
        for name, function in {
            "add": torch.add,
            "add_relu": lambda x, y: F.relu(x + y),
            "mul": torch.mul,
            "mul_relu": lambda x, y: F.relu(x * y),
            "cat": torch.cat,
            "matmul": torch.matmul,
            "hardswish": F.hardswish,
            "leaky_relu": lambda x, slope, inplace: F.leaky_relu(x, slope),
            "sigmoid": torch.sigmoid,
            "softmax": torch.softmax,
            "layer_norm": F.layer_norm,
            "group_norm": lambda x, groups, weight, bias, eps: F.group_norm(x, groups, weight, bias, eps),
            "instance_norm": lambda x, weight, bias, eps: F.instance_norm(
                x, None, None, weight, bias, eps=eps
            ),
            "batch_norm2d": _batch_norm,
            "batch_norm2d_relu": lambda *args: F.relu(_batch_norm(*args)),
        }.items()
    },
    # Steps of TorchScript, and arithmetic on sizes, which a trace has as tensors.
    **dict.fromkeys(
        ("prim::NumToTensor", "prim::unchecked_cast", "prim::data", "aten::contiguous", "aten::detach"),
        lambda module, x, *_: x,
    ),
    **dict.fromkeys(("aten::Int", "aten::IntImplicit"), lambda module, x: x if _is_number(x) else int(x)),
    **dict.fromkeys(("aten::Float", "aten::FloatImplicit"), lambda module, x: float(x)),
    "aten::item": lambda module, x: x if _is_number(x) else x.item(),
    "aten::size": lambda module, x, *axis: _floats(x).shape[axis[0]] if axis else list(_floats(x).shape),
    "quantized::relu6": lambda module, x, inplace: _quantized(F.relu6(x.x), *x[1:]),
}
_OF_NUMBERS = ("aten::Float", "aten::Int", "aten::item")
_OF_PYTHON: dict[str, Callable] = {  # where no argument is a tensor
    "aten::append": lambda items, item: items.append(item) or items,
    "aten::extend": list.extend,
    "aten::len": len,
    "aten::__getitem__": operator.getitem,
    "aten::__is__": operator.is_,
    "aten::__isnot__": operator.is_not,
    "aten::__not__": operator.not_,
    **{f"aten::{name}": getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")},
    "aten::add": lambda a, b, alpha=1: a + b * alpha,
    "aten::sub": lambda a, b, alpha=1: a - b * alpha,
    "aten::mul": operator.mul,
    "aten::floor_divide": operator.floordiv,
    "aten::floordiv": operator.floordiv,
    "aten::remainder": operator.mod,
}
# Operators that are refused if they are none of the above; those of lists write into them.
_UNSERVED = (
    r"quantized::|aten::quantize|prim::(SetAttr|CallMethod|CallFunction)|"
    r"aten::(insert|pop|_set_item|Delete|clear)$"
)
# Operators of PyTorch whose result has the scale and zero point of what they read, and those with others.
_KEEP = {
    *("relu", "hardtanh", "clamp", "leaky_relu", "threshold", "max_pool1d", "max_pool2d", "max_pool3d",
      "adaptive_max_pool2d", "avg_pool1d", "avg_pool2d", "avg_pool3d", "adaptive_avg_pool1d",
      "adaptive_avg_pool2d", "adaptive_avg_pool3d", "mean", "cat", "stack", "flatten", "view", "reshape",
      "permute", "transpose", "t", "clone", "alias", "squeeze", "unsqueeze", "slice", "select", "narrow",
      "chunk", "split", "split_with_sizes", "unbind", "expand", "repeat", "flip", "dropout",
      "feature_dropout", "pad", "constant_pad_nd", "reflection_pad1d", "reflection_pad2d",
      "replication_pad2d", "upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d",
      "upsample_bilinear2d", "channel_shuffle", "pixel_shuffle", "pixel_unshuffle", "index_select"),
}  # fmt: skip
# Operators whose result is memory of what they read.
_VIEWS = re.compile(
    r"aten::(view|reshape|flatten|permute|transpose|t|alias|detach|squeeze|unsqueeze|slice|select|narrow|chunk|"
    r"split|split_with_sizes|unbind|expand|contiguous|dropout|feature_dropout|__getitem__)$|prim::ListUnpack"
)
_OTHER_SCALES = {"sigmoid": (1 / 256, 0), "hardsigmoid": (1 / 256, 0), "tanh": (1 / 128, 128)}  # as uint8


def _reads_number(use: Any) -> bool:
    """Tell whether an operator reads a tensor of one element as a number, such as a scale."""
    kind = use.user.kind()
    return kind in _OF_NUMBERS or (kind == "aten::quantize_per_tensor" and use.offset > 0)


def _is_number(x: Any) -> bool:
    return isinstance(x, int | float | bool | torch.SymInt | torch.SymFloat | torch.SymBool)


# ---------------------------------------------------------------- the module


class _Plain(torch.nn.Module):
    """A module that runs a TorchScript graph, an operator at a time."""

    def __init__(self, script: torch.jit.ScriptModule | torch.jit.ScriptFunction):
        super().__init__()
        self.graph = script.inlined_graph
        self.add_module(OF_PROGRAM[:-1], torch.nn.Module())
        self.defaults = [each.default_value for each in _arguments(script)]
        kinds = {node.kind() for node in _nodes(self.graph)} - _OPERATORS.keys()
        if unknown := sorted(kind for kind in kinds if re.match(_UNSERVED, kind)):
            raise NotImplementedError(
                f"quantized modules: {', '.join(unknown)} has no counterpart here; keep that part in "
                "float32, or quantize the network by pt2e and export it"
            )
        self.values: dict[str, Any] = {}  # of constants and attributes, by the name of TorchScript's value
        paths = {}
        if isinstance(script, torch.jit.ScriptModule):
            paths[next(self.graph.inputs()).debugName()] = ""
        for node in _nodes(self.graph):
            if node.kind() not in ("prim::GetAttr", "prim::Constant"):
                continue
            output = node.output()
            name = output.debugName()
            if node.kind() == "prim::GetAttr":
                owner = paths[node.input().debugName()]
                path = f"{owner}.{node.s('name')}".strip(".")
                value = operator.attrgetter(path)(script)
                paths[name] = path
            else:
                path, value = f"constants.{len(self.values)}", output.toIValue()
            self.values[name] = self._held(path, value, [*output.uses()])

    def _held(self, path: str, value: Any, readers: list) -> Any:
        """Return a constant of the graph; tensors become buffers, for which the name of one stands."""
        if isinstance(value, torch.ScriptObject):
            return self._unpacked(re.sub(r"\.?_packed_params", "", path), value)
        if not isinstance(value, torch.Tensor):
            return value
        if value.numel() == 1 and all(map(_reads_number, readers)):
            return value.item()
        if value.is_quantized:
            raise NotImplementedError(
                f"quantized modules: {path!r} is a quantized tensor that is no packed weight"
            )
        return self._buffer(path, value)

    def _buffer(self, path: str, tensor: torch.Tensor) -> "_Buffer":
        owner = self.get_submodule(OF_PROGRAM[:-1])
        *parts, last = path.split(".")
        for part in parts:
            if part not in dict(owner.named_children()):
                owner.add_module(part, torch.nn.Module())
            owner = owner.get_submodule(part)
        if not hasattr(owner, last):
            owner.register_buffer(last, tensor.detach())
        return _Buffer(OF_PROGRAM + path)

    def _unpacked(self, path: str, params: Any) -> _Packed:
        weight, bias = params.unpack()
        if not isinstance(weight, torch.Tensor) or weight.dtype != torch.qint8:
            raise NotImplementedError(f"quantized modules: the weights of {path!r} are not of qint8")
        prefix = f"{path}." if path else ""
        self._buffer(f"{prefix}weight", weight.int_repr())
        if per_channel := weight.qscheme() in (
            torch.per_channel_affine,
            torch.per_channel_affine_float_qparams,
        ):
            scale, zero = weight.q_per_channel_scales(), weight.q_per_channel_zero_points()
        else:
            scale, zero = torch.tensor(weight.q_scale()), torch.tensor(weight.q_zero_point())
        self._buffer(f"{prefix}weight_scale", scale.float())
        self._buffer(f"{prefix}weight_zero_point", zero.to(torch.int64))
        if bias is not None:
            self._buffer(f"{prefix}bias", bias)
        axis = weight.q_per_channel_axis() if per_channel else None
        return _Packed(OF_PROGRAM + prefix, axis, bias is not None, params)

    def product(self, x: torch.Tensor, packed: _Packed) -> torch.Tensor:
        """Return the layer of such weights, in float32."""
        q, scale, zero = (
            self.get_buffer(f"{packed.name}{part}")
            for part in ("weight", "weight_scale", "weight_zero_point")
        )
        bias = self.get_buffer(f"{packed.name}bias") if packed.has_bias else None
        if packed.axis is None:
            weight = decomposed.dequantize_per_tensor.tensor(q, scale, zero, -128, 127, torch.int8)
        else:
            weight = decomposed.dequantize_per_channel(q, scale, zero, packed.axis, -128, 127, torch.int8)
        params = packed.params
        if not hasattr(params, "stride"):
            return F.linear(x, weight, bias)
        is_line = weight.dim() == x.dim() + 1  # packed as an image of height 1
        x = x.unsqueeze(2) if is_line else x
        if params.transpose():
            convolve = F.conv_transpose3d if weight.dim() == 5 else F.conv_transpose2d
            window = (
                params.stride(),
                params.padding(),
                params.output_padding(),
                params.groups(),
                params.dilation(),
            )
        else:
            convolve = F.conv3d if weight.dim() == 5 else F.conv2d
            window = params.stride(), params.padding(), params.dilation(), params.groups()
        result = convolve(x, weight, bias, *window)
        return result.squeeze(2) if is_line else result

    def forward(self, *inputs: torch.Tensor) -> Any:
        """Run the graph."""
        names = [value.debugName() for value in self.graph.inputs()]
        names = names[len(names) - len(self.defaults) :]
        values = dict(self.values) | dict(zip(names, [*inputs, *self.defaults[len(inputs) :]], strict=True))
        results = self._run(self.graph, values)
        if _first([list(each) if type(each) is tuple else each for each in results]):
            raise ValueError("model: it returns a quantized tensor; end it with a DeQuantStub, in float32")
        return results[0] if len(results) == 1 else tuple(results)

    def _run(self, block: Any, values: dict[str, Any]) -> list:
        """Run the nodes of a graph or block, which add their results to `values`; return its own."""
        for node in block.nodes():
            kind = node.kind()
            if kind in ("prim::Constant", "prim::GetAttr"):
                continue
            args = [self._tensor(values[each.debugName()]) for each in node.inputs()]
            match kind:
                case "prim::ListConstruct":
                    results = [args]
                case "prim::TupleConstruct":
                    results = [tuple(args)]
                case "prim::TupleUnpack" | "prim::ListUnpack":
                    results = args[0]
                case "prim::If":
                    then, other = node.blocks()
                    results = self._run(then if args[0] else other, values)
                case "prim::Loop":
                    most, goes_on, *results = args
                    (body,) = node.blocks()
                    names = [each.debugName() for each in body.inputs()]
                    for step in range(most):
                        if not goes_on:
                            break
                        values.update(zip(names, [step, *results], strict=True))
                        goes_on, *results = self._run(body, values)
                case "prim::RaiseException":
                    raise ValueError(args[0])
                case _:
                    result = self._called(node, args)
                    results = [result] if node.outputsSize() == 1 else result
            names = [each.debugName() for each in node.outputs()]
            values.update(zip(names, results, strict=True))
            if re.search("[^_]_$", kind) and isinstance(results[0], _Quantized):  # it writes into its operand
                values[self._written(node, values)] = results[0]
        return [self._tensor(values[each.debugName()]) for each in block.outputs()]

    def _written(self, node: Any, values: dict[str, Any]) -> str:
        """Return the name of the value that an operator writes into; its memory has no other name."""
        value = written = next(node.inputs())
        views = [next(use.user.outputs()) for use in written.uses() if _VIEWS.match(use.user.kind())]
        is_shared = any(view.debugName() in values for view in views)
        while _VIEWS.match(value.node().kind()):
            value = next(value.node().inputs())
            is_shared = is_shared or len(value.uses()) > 1
        if is_shared:
            raise NotImplementedError(
                f"quantized modules: {node.kind()} writes into a tensor that has views, or is one; call the "
                "operator that returns a new tensor"
            )
        return written.debugName()

    def _tensor(self, value: Any) -> Any:
        return self.get_buffer(value.name) if isinstance(value, _Buffer) else value

    def _called(self, node: Any, args: list) -> Any:
        """Return the result of an operator."""
        kind = node.kind()
        if kind in _OF_PYTHON and not any(isinstance(each, torch.Tensor | _Quantized) for each in args):
            return _OF_PYTHON[kind](*args)
        if kind in _OPERATORS:
            return _OPERATORS[kind](self, *args)
        own = _first(args)
        if own is None:
            return _operator(node.schema(), args)
        name = kind.removeprefix("aten::").rstrip("_")
        schema = node.schema().replace(f"{name}_", name, 1) if kind.endswith("_") else node.schema()
        result = _operator(schema, [*map(_floats, args)])
        if not isinstance(result, torch.Tensor | list | tuple):
            return result
        parameters = own[1:]
        if name in _OTHER_SCALES:
            scale, zero = _OTHER_SCALES[name]
            parameters = scale, zero + _RANGES[own.dtype][0], own.dtype
        elif name not in _KEEP:
            raise NotImplementedError(
                f"quantized modules: {kind} of a quantized tensor has no counterpart here; dequantize first"
            )
        if isinstance(result, torch.Tensor):
            return _quantized(result, *parameters)
        return [_quantized(each, *parameters) for each in result]


class _Buffer(NamedTuple):
    """The name of a buffer, which torch.export replaces while it runs the module."""

    name: str


def _arguments(script: Any) -> list:
    is_function = isinstance(script, torch.jit.ScriptFunction)
    return script.schema.arguments if is_function else script.forward.schema.arguments[1:]


def _operator(schema: str, args: list) -> Any:
    """Call an operator of PyTorch, which a schema of TorchScript names."""
    parsed = torch._C.parse_schema(schema)
    namespace, name = parsed.name.split("::")
    function = getattr(getattr(getattr(torch.ops, namespace), name), parsed.overload_name or "default")
    positional = [
        each for each, argument in zip(args, parsed.arguments, strict=True) if not argument.kwarg_only
    ]
    named = {
        argument.name: each
        for each, argument in zip(args, parsed.arguments, strict=True)
        if argument.kwarg_only
    }
    return function(*positional, **named)
