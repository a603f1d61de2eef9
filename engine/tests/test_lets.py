"""What kernels bind is on the stack: chains of functions compile in linear time, and compute what they did."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import tvm
import tvm_ffi
from agreement import close, reference
from tvm import te, tirx

from tvmfast.compiler.codegen import compile_kernels
from tvmfast.compiler.legalize import ieee754, lets
from tvmfast.core import machine

SPECIAL = torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0, 1e-40, -1e-40, 3e38])


def chain(x, count: int):
    for n in range(count):
        x = x.sigmoid() if n % 2 else x.tanh()
    return x


CHAINS = {
    "whole vectors": (lambda x: chain(x, 8), (4, 64)),
    "padded": (lambda x: F.pad(chain(x, 8), (1, 2)), (3, 37)),
    "side by side": (lambda x, y: torch.cat([chain(x, 7), y, chain(y, 8)]), (5, 9), (2, 9)),
    "long": (lambda x: chain(x, 40), (11,)),
}


@pytest.mark.parametrize("case", CHAINS)
def test_a_long_chain_compiles_and_computes(case, compile_function):
    function, *shapes = CHAINS[case]
    xs = [torch.randn(shape) for shape in shapes]
    xs[0].flatten()[:7] = SPECIAL
    close(compile_function(function, {f"x{n}": x for n, x in enumerate(xs)})(*xs), reference(function, *xs))


def lowered(kernel):
    """A kernel of a function of expressions, lowered for this machine, and compiled."""
    target = machine.host_target()
    mod = tirx.transform.BindTarget(target.with_host(target))(tvm.IRModule({"main": kernel}))
    lower, *_ = tirx.get_tir_pipeline(ieee754.LOWERING)
    return lower(mod), compile_kernels({tvm.ir.GlobalVar("main"): kernel}, target, runs_here=True)


def nested(x, inside):
    """Lets in the value and the body of a Let, of floats, integers and bools, and in the sides of a choice."""

    def let(value, use):
        name = tirx.Var("v", str(value.ty.dtype))
        return tirx.Let(name, value, use(name))

    def of(x):
        whole = let(te.floor(x).astype("int32"), lambda n: let(n * n, lambda m: (m + n).astype("float32")))
        return let(whole > 3, lambda large: let(whole, lambda w: tirx.Select(large, w * x, w - x)))

    side = te.if_then_else(x[inside] > 1, of(x[inside]), let(x[inside] * 2, lambda y: y * y))
    return let(side, lambda y: te.if_then_else(inside < 13, y + let(y * 3, lambda z: z * y), -x[inside]))


def test_no_let_is_left_and_the_numbers_are_the_same(monkeypatch):
    x = te.placeholder((16,), name="x")
    kernel = te.create_prim_func([x, te.compute((16,), lambda i: nested(x, i), name="y")]).with_attr(
        "global_symbol", "main"
    )
    given, results = np.linspace(-4, 4, 16, dtype="float32"), []
    for on_stack in (lets.on_stack, lambda store: store):
        monkeypatch.setattr(ieee754, "on_stack", on_stack)
        mod, library = lowered(kernel)
        found, result = [], tvm.runtime.tensor(np.zeros(16, "float32"))
        tvm_ffi.structural_walk(next(func for _, func in mod.functions_items()).body, (tirx.Let, found.append))
        assert bool(found) == (on_stack is not lets.on_stack)
        library["main"](tvm.runtime.tensor(given), result)
        results.append(result.numpy())
    np.testing.assert_array_equal(*results)
    assert np.isfinite(results[0]).all() and len(set(results[0])) > 12
