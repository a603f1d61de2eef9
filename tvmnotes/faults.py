"""Networks of lesson 19, each with a fault. Reading this file spoils the search."""

from typing import Any, NamedTuple

import numpy as np
import onnx
import torch
import tvm
from onnx import TensorProto, helper, numpy_helper
from torch import nn
from torch.nn import functional
from tvm import relax, te, tirx
from tvm.relax import op
from tvm.relax import transform as t

from tvmfast import from_onnx, from_pytorch

from . import digits as _digits
from . import models


class Patient(NamedTuple):
    """A network that computes something wrong.

    Attributes:
        mod: The module.
        params: Its parameters, by name.
        reference: The network that it came from: a PyTorch module, or a file of ONNX as bytes.
        x: An input.
        passes: What compiles it, up to kernels.
    """

    mod: tvm.IRModule
    params: dict
    reference: Any
    x: np.ndarray
    passes: tuple = ()


def digits() -> Patient:
    """Return the network that reads digits, with a fault."""
    net = models.load("digits")
    mod, params = from_pytorch(net, {"image": (1, 1, 32, 32)})
    shapes: dict[tuple, list[str]] = {}
    for name, array in params.items():
        if len(array.shape) == 4:
            shapes.setdefault(tuple(array.shape), []).append(name)
    first, second = next(names for names in shapes.values() if len(names) > 4)[2:4]
    params = params | {first: params[second], second: params[first]}
    return Patient(mod, params, net, _digits.preprocess(_digits.load_test_set()[0][:1]))


class _Block(nn.Module):
    """Attention with a learned bias for each distance, as in T5, and a sum with the input."""

    def __init__(self, length: int, width: int):
        super().__init__()
        self.norm, self.qkv = nn.LayerNorm(width), nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.bias = nn.Parameter(torch.randn(length, length))
        self.scale = width**-0.5

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Compute the block."""
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        scores = torch.matmul(q, k.transpose(1, 2)) * self.scale + self.bias
        return x + self.out(torch.matmul(functional.softmax(scores, -1), v))


def transformer() -> Patient:
    """Return a block of a transformer and a pipeline that compiles it wrong."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net, x = _Block(16, 32).eval(), torch.randn(1, 16, 32)
    mod, params = from_pytorch(net, {"x": (1, 16, 32)})
    passes = (
        t.CanonicalizeBindings(),
        t.EliminateCommonSubexpr(),
        _pass("CommuteAdds", {"add": lambda call, _: op.add(*reversed(call.args))}),
        t.FoldConstant(),
        _pass("ScaleLast", {"add": _scale_last}),
        t.DeadCodeElimination(),
        _pass(
            "SplitSubtractions", {"subtract": lambda call, _: op.add(call.args[0], op.negative(call.args[1]))}
        ),
        t.LegalizeOps(),
        t.AnnotateTIROpPattern(),
        t.FuseOps(),
        t.FuseTIR(),
    )
    return Patient(mod, params, net, x.numpy(), passes)


def _pass(name: str, edits: dict) -> tvm.transform.Pass:
    """Make a pass that replaces calls by what functions of the call and of the bindings before it return."""

    @relax.expr_functor.mutator
    class Edit(relax.PyExprMutator):
        def visit_call_(self, call: relax.Call) -> relax.Expr:
            call = self.visit_expr_post_order(call)
            edit = edits.get(getattr(call.op, "name", "").removeprefix("relax."))
            return edit(call, self.lookup_binding) if edit else call

    @tvm.transform.module_pass(opt_level=0, name=name)
    def run(mod: tvm.IRModule, _context: Any) -> tvm.IRModule:
        edit = Edit(mod)
        edit.builder_.update_func(mod.get_global_var("main"), edit.visit_expr(mod["main"]))
        return edit.builder_.get()

    return run


def _scale_last(call: relax.Call, value_of: Any) -> relax.Expr:
    for n, arg in enumerate(call.args):
        scaled = value_of(arg) if isinstance(arg, relax.Var) else None
        if scaled is not None and getattr(scaled, "op", None) == tvm.ir.Op.get("relax.multiply"):
            x, factor = scaled.args
            if not isinstance(factor, relax.Var) and not tuple(factor.ty.shape):
                return op.multiply(op.add(x, call.args[1 - n]), factor)
    return call


def onnx_file() -> Patient:
    """Return a small network from an ONNX file, lowered to kernels, of which one was written by hand."""
    rng = np.random.default_rng(0)
    shapes = {"w1": (8, 3, 3, 3), "b1": (8,), "w2": (8, 8, 3, 3), "b2": (8,), "w3": (8, 10)}
    arrays = {name: rng.standard_normal(shape).astype("float32") / 3 for name, shape in shapes.items()}
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["conv1"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["conv1"], ["relu1"]),
        helper.make_node("Conv", ["relu1", "w2", "b2"], ["conv2"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["conv2"], ["relu2"]),
        helper.make_node("GlobalAveragePool", ["relu2"], ["means"]),
        helper.make_node("Flatten", ["means"], ["flat"]),
        helper.make_node("MatMul", ["flat", "w3"], ["scores"]),
    ]
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 30, 30])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, [1, 10])],
        [numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )
    file = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    file = file.SerializeToString()
    mod, params = from_onnx(onnx.load_from_string(file))
    mod = t.LegalizeOps()(mod)
    var = next(var for var, _ in mod.functions_items() if var.name_hint == "relu")
    shape = [int(n) for n in mod[var].params[0].ty.shape]
    x = te.placeholder(shape, "float32", name="x")
    vectors = shape[-1] // 8 * 8
    result = te.compute(
        shape,
        lambda n, c, h, w: te.max(x[n, c, h, tirx.Select(w < vectors, w, w - 8)], 0.0),
        name="relu",
    )
    mod.update_func(var, te.create_prim_func([x, result]).without_attr("global_symbol"))
    return Patient(mod, params, file, rng.standard_normal((1, 3, 30, 30)).astype("float32"))
