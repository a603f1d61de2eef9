"""Exercises of lesson 13: a check that declines, a back end, a pattern that misses."""

from collections.abc import Callable

import numpy as np
import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.relax.dpl import is_op, wildcard
from tvm.script import relax as R

from .exercise import agree, exercise, require


def _module(shapes: list[tuple], body: Callable, dataflow: bool = True) -> tvm.IRModule:
    """Make a module whose main computes `body(bb, *arguments)`, or several results as a list."""
    bb = relax.BlockBuilder()
    variables = [relax.Var(f"x{i}", R.Tensor(shape, "float32")) for i, shape in enumerate(shapes)]
    with bb.function("main", variables):
        if dataflow:
            with bb.dataflow():
                results = body(bb, *variables)
                result = bb.emit_output(relax.Tuple(results) if isinstance(results, list) else results)
        else:
            result = bb.emit(body(bb, *variables))
        bb.emit_func_output(result)
    return bb.get()


def _composites(mod: tvm.IRModule) -> list[tuple[str, relax.Function]]:
    """Return the composites that main calls, in order, with the names of their patterns."""
    found = []
    for block in mod["main"].body.blocks:
        for binding in block.bindings:
            callee = getattr(binding.value, "op", None)
            if isinstance(callee, tvm.ir.GlobalVar):
                attrs = mod[callee].attrs
                if attrs and "Composite" in attrs:
                    found.append((str(attrs["Composite"]), mod[callee]))
    return found


def _operators(function: relax.Function) -> list[str]:
    """Return the names of the operators that a function calls, in order, `relax.` left out."""
    callees = [
        getattr(binding.value, "op", None) for block in function.body.blocks for binding in block.bindings
    ]
    return [callee.name.removeprefix("relax.") for callee in callees if isinstance(callee, tvm.ir.Op)]


@exercise(
    "13.1",
    "The length of the sums is the last dimension of the first operand. Name both operands in the entry.",
    "A check gets context; context.annotated_expr[name].ty has ndim and shape. A dimension that is known is "
    "an IntImm of tvm.tirx, one that is not is a variable.",
    minutes=20,
    difficulty=2,
)
def long_sums(answer):
    """Only products with long sums."""
    n = tirx.Var("n", "int64")
    cases = [
        ("of (8, 64) and (64, 4), least 64", [(8, 64), (64, 4)], 64, 1),
        ("of (8, 63) and (63, 256), least 64", [(8, 63), (63, 256)], 64, 0),
        ("of (256, 5) and (5, 256), least 6", [(256, 5), (5, 256)], 6, 0),
        ("of (3, 7) and (7, 2), least 1", [(3, 7), (7, 2)], 1, 1),
        ("of (2, 8, 64) and (2, 64, 4), least 64", [(2, 8, 64), (2, 64, 4)], 64, 0),
        ("of (8, 64) and (2, 64, 4), least 64", [(8, 64), (2, 64, 4)], 64, 0),
        ("of (n, 64) and (64, 4), least 64", [(n, 64), (64, 4)], 64, 1),
        ("of (8, n) and (n, 4), least 64", [(8, n), (n, 4)], 64, 0),
    ]
    do = {
        0: "The check should decline it: read the number of terms, and the dimensions of both operands.",
        1: "The check should accept it: `least` terms are enough, and the number of rows need not be known.",
    }
    for what, shapes, least, wanted in cases:
        mod = _module(shapes, lambda bb, a, b: relax.op.matmul(a, b))
        found = _composites(relax.transform.FuseOpsByPattern(answer(least))(mod))
        require(
            all(name == "blas.matmul" for name, _ in found),
            "the names of the composites",
            "blas.matmul",
            [name for name, _ in found],
            "The first item of an entry is the name.",
        )
        require(len(found) == wanted, f"composites for the product {what}", wanted, len(found), do[wanted])
    mod = _module(
        [(4, 128), (128, 16), (16, 128)],
        lambda bb, a, b, c: relax.op.nn.relu(bb.emit(relax.op.matmul(bb.emit(relax.op.matmul(a, b)), c))),
    )
    found = _composites(relax.transform.FuseOpsByPattern(answer(100))(mod))
    require(
        [_operators(function) for _, function in found] == [["matmul"]],
        "the composites for two products, of 128 and of 16 terms, and a ReLU, with least 100",
        "one, of a matmul alone",
        [_operators(function) for _, function in found],
        "The pattern is one matmul, and the check is made for each match.",
    )


def _gates(mod: tvm.IRModule) -> tvm.IRModule:
    """Cut a module into regions of `gates.silu` and `gates.multiply`, and have the back end compile them."""
    entries = [
        ("gates.silu", is_op("relax.nn.silu")(wildcard())),
        ("gates.multiply", is_op("relax.multiply")(wildcard(), wildcard())),
    ]
    steps = [relax.transform.FuseOpsByPattern(entries, bind_constants=False)]
    regions = tvm.transform.Sequential([*steps, relax.transform.MergeCompositeFunctions()])(mod)
    for name in regions.get_global_vars():
        if tvm_ffi.get_global_func(name.name_hint, allow_missing=True):
            tvm_ffi.remove_global_func(name.name_hint)  # an earlier answer's
    return relax.transform.RunCodegen()(regions)


def _run(mod: tvm.IRModule, arrays: list[np.ndarray]) -> list[np.ndarray]:
    machine = relax.VirtualMachine(tvm.compile(mod, target="llvm"), tvm.cpu())
    results = machine["main"](*map(tvm.runtime.tensor, arrays))
    return [result.numpy() for result in ([results] if hasattr(results, "numpy") else results)]


def _chain(bb, a, b, c):
    """Four composites, and a result that is read both inside the region and outside of it."""
    gate = bb.emit(relax.op.nn.silu(a))
    gated = bb.emit(relax.op.multiply(gate, b))
    again = bb.emit(relax.op.multiply(gated, bb.emit(relax.op.nn.silu(c))))
    return [relax.op.add(gate, c), relax.op.subtract(again, a)]


@exercise(
    "13.2",
    "The lesson's class Region does what is needed: give it other kernels.",
    "kernels maps the name of a composite to a function that makes its kernel, such as torch.mul. Register "
    "Region(function, kernels) as function.attrs['global_symbol'], and return [].",
    minutes=30,
    difficulty=3,
)
def gates(answer):
    """A back end for gates."""

    def silu(bb, a):
        return relax.op.nn.silu(a)

    def gate(bb, a, b):
        return relax.op.multiply(bb.emit(relax.op.nn.silu(a)), b)

    cases = [
        ("one SiLU of (3, 5)", [(3, 5)], silu),
        ("one gate of (2, 3, 7)", [(2, 3, 7)] * 2, gate),
        ("one gate of (33,)", [(33,)] * 2, gate),
        ("a chain of four, with an inner result that is read outside", [(4, 6)] * 3, _chain),
    ]
    do = (
        "Take the operands of each composite from the variables that it is called with, and write every "
        "output of the region into its buffer: the last arguments, in order."
    )
    rng = np.random.default_rng(0)
    raised: list[Exception] = []

    def back_end(*arguments):
        try:
            return answer(*arguments)
        except Exception as error:  # TVM would hand on another one
            raised.append(error)
            raise

    tvm_ffi.register_global_func("relax.ext.gates", back_end, override=True)
    try:
        for what, shapes, body in cases:
            mod = _module(shapes, body)
            arrays = [rng.standard_normal(shape, dtype="float32") for shape in shapes]
            for got, wanted in zip(_run(_gates(mod), arrays), _run(mod, arrays), strict=True):
                agree(got, wanted, f"the result of {what}", do)
    except Exception as error:
        raise raised[0] if raised else error from None
    finally:
        tvm_ffi.remove_global_func("relax.ext.gates")


def _linear(relu: bool, constant: bool) -> Callable:
    """A product with bias, in either order, and a ReLU; the bias a constant or the last argument."""

    def body(bb, a, b, *bias):
        product = bb.emit(relax.op.matmul(a, b))
        term = relax.const(np.ones(int(b.ty.shape[1]), "float32")) if constant else bias[0]
        total = relax.op.add(term, product) if constant else relax.op.add(product, term)
        return relax.op.nn.relu(bb.emit(total)) if relu else total

    return body


@exercise(
    "13.3",
    "The first entry that matches wins. A bias need not be a constant. The pass reads dataflow blocks only. "
    "And a check can ask who else reads a value.",
    "Put the longer entry first, write wildcard() for the bias, apply relax.transform.ConvertToDataflow() "
    "before the pass, and decline by has_leaking_intermediate_variables.",
    minutes=25,
    difficulty=2,
)
def misses(answer):
    """A pattern that misses."""
    relu = ("exercise.linear_relu", ["matmul", "add", "nn.relu"])
    plain = ("exercise.linear", ["matmul", "add"])
    cases = [
        ("with a constant bias and a ReLU", [(3, 8), (8, 5)], _linear(True, True), True, relu),
        ("with a constant bias alone", [(3, 8), (8, 5)], _linear(False, True), True, plain),
        ("whose bias is a parameter", [(2, 6), (6, 4), (4,)], _linear(False, False), True, plain),
        ("whose bias is a parameter, with a ReLU", [(2, 6), (6, 4), (4,)], _linear(True, False), True, relu),
        ("without a dataflow block", [(2, 6), (6, 4), (4,)], _linear(True, False), False, relu),
    ]
    advice = (
        "Which entry comes first? What may the bias be? Where does the pass look? Change one thing at a time."
    )
    for what, shapes, body, dataflow, wanted in cases:
        found = _composites(answer(_module(shapes, body, dataflow)))
        got = [(name, _operators(function)) for name, function in found]
        require(got == [wanted], f"the composites of a module {what}", [wanted], got, advice)

    def shared(bb, a, b, bias):
        product = bb.emit(relax.op.matmul(a, b))
        return [relax.op.add(product, bias), relax.op.exp(product)]

    found = _composites(answer(_module([(2, 6), (6, 4), (4,)], shared)))
    require(
        not found,
        "the composites where another operator reads the product, too",
        "none",
        [(name, _operators(function)) for name, function in found],
        "Such a composite returns two values, and its kernel only one. Decline it in a check.",
    )
