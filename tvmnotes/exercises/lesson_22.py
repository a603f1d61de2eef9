"""Exercises of lesson 22: an operator of Relay in Relax, scripts in Relay and for TVM alone, a schedule."""

import sys

import numpy as np
import torch
import tvm
from tvm import relax, te, tirx
from tvm.s_tir import Schedule

from tvmfast.core import machine

from .. import digits, models
from .exercise import agree, exercise, require


@exercise(
    "22.1",
    'names.table("operators") has a column new; more than one call is written with commas.',
    "relax.op.matmul multiplies matrices. Relay's weight has a row for each output, so turn it round first: "
    "relax.op.permute_dims.",
    minutes=15,
    difficulty=2,
)
def dense_in_relax(answer):
    """Relay's dense, with its units and its types, in Relax."""
    rng = np.random.default_rng(0)
    cases = (
        ("as many outputs as inputs", (4, 8), 8, None),
        ("3 outputs of 8 inputs", (4, 8), 3, None),
        ("a batch of sequences", (2, 5, 8), 3, None),
        ("out_dtype float64", (4, 8), 3, "float64"),
    )
    for what, shape, units, dtype in cases:
        x = rng.standard_normal(shape, dtype="float32")
        w = rng.standard_normal((units, shape[-1]), dtype="float32")
        data, weight = (
            relax.Var(name, relax.TensorType(each.shape, "float32"))
            for name, each in (("data", x), ("weight", w))
        )
        builder = relax.BlockBuilder()
        with builder.function("main", [data, weight]):
            with builder.dataflow():
                output = builder.emit_output(answer(data, weight, dtype))
            builder.emit_func_output(output)
        mod = builder.get()
        kind, got = dtype or "float32", mod["main"].ret_ty.dtype
        do = "In Relay out_dtype is the type of the sums. relax.op.matmul has an argument of this name."
        require(str(got) == kind, f"the type of the result of {what}", kind, got, do)
        vm = relax.VirtualMachine(tvm.compile(mod, target="llvm"), tvm.cpu())
        result = vm["main"](*map(tvm.runtime.tensor, (x, w))).numpy()
        wanted = x @ w.T
        do = "Relay's weight has a row for each output; matmul wants a column for each."
        agree(result, wanted, f"the result of {what}", do)


@exercise(
    "22.2",
    'relay.var("data", shape=(rows, inputs)) is an argument; the weight has the shape (units, inputs).',
    "relay.nn.relu(relay.nn.bias_add(relay.nn.dense(data, weight), bias)) is the body of "
    "relay.Function([data, weight, bias], body).",
    minutes=25,
    difficulty=2,
)
def relay_layer(answer):
    """A layer in Relay: dense, bias and ReLU."""
    relay = sys.modules.get("tvm.relay")
    require(
        relay is not None, "tvm.relay", "a module", "none", "Run the cell that calls tvmclassic.enable()."
    )
    for rows, inputs, units in ((4, 8, 8), (3, 16, 5)):
        what = f"{rows} rows, {inputs} inputs and {units} units"
        rng = np.random.default_rng(rows)
        x, w, b = (
            rng.standard_normal(shape, dtype="float32") for shape in ((rows, inputs), (units, inputs), units)
        )
        function = answer(relay, rows, inputs, units)
        kind = type(function).__name__
        do = "Return a relay.Function of data, weight and bias."
        require(isinstance(function, relay.Function), f"the answer for {what}", "a Function", kind, do)
        mod = tvm.IRModule.from_expr(function)
        run = relay.create_executor("graph", mod=mod, device=tvm.cpu(), target="llvm").evaluate()
        got = run(x, w, b).numpy()
        sums = x @ w.T
        do = "Compute relu(dense(data, weight) + bias)."
        for missing, mistake in {
            "The bias is missing: relay.nn.bias_add.": np.maximum(sums, 0),
            "The ReLU is missing.": sums + b,
            "Add the bias before the ReLU: it decides which sums are negative.": np.maximum(sums, 0) + b,
        }.items():
            if got.shape == sums.shape and np.allclose(got, mistake, atol=1e-4):
                do = missing
        agree(got, np.maximum(sums + b, 0), f"the result for {what}", do)


@exercise(
    "22.3",
    "from_exported_program imports what torch.export.export returns; tvm.compile makes an executable.",
    'relax.VirtualMachine(executable, tvm.cpu())["main"] takes TVM tensors and returns a tuple of one.',
    minutes=20,
    difficulty=2,
)
def with_tvm_alone(answer):
    """The digits network with TVM alone."""
    images, _ = digits.load_test_set()
    x = digits.preprocess(images[:36])
    with torch.inference_mode():
        reference = models.load("digits")(torch.from_numpy(x)).numpy()
    agree(
        answer(x),
        reference,
        "the scores of 36 pictures",
        'Export tn.models.load("digits") with the shape of x.',
    )


def _product(rows: int, columns: int, terms: int) -> tirx.PrimFunc:
    A, B = te.placeholder((rows, terms), name="A"), te.placeholder((terms, columns), name="B")
    k = te.reduce_axis((0, terms), name="k")
    C = te.compute((rows, columns), lambda i, j: te.sum(A[i, k] * B[k, j], axis=k), name="C")
    return te.create_prim_func([A, B, C])


def _is_a_sum(block) -> bool:
    return any(axis.iter_type == tirx.IterVar.CommReduce for axis in block.iter_vars)


def _around(sch: Schedule, block) -> list[tuple[str, int]]:
    """Return the kind and the extent of each loop around a block, from the outermost in."""
    loops = (sch.get(loop) for loop in sch.get_loops(block))
    return [(tirx.ForKind(int(loop.kind)).name.lower(), int(loop.extent)) for loop in loops]


@exercise(
    "22.4",
    "nparts says how many steps the outer loop has. Where is the sum set to 0?",
    "split(j, [4, None]), reorder, parallel, vectorize as in the old lines; then decompose_reduction at k.",
    minutes=20,
    difficulty=2,
)
def old_schedule(answer):
    """An old schedule in today's calls."""
    for rows, columns, terms in ((6, 24, 10), (5, 48, 7)):
        what = f"a product of {rows} by {terms} and {terms} by {columns}"
        sch = Schedule(_product(rows, columns, terms))
        answer(sch)

        rng = np.random.default_rng(rows)
        a = rng.standard_normal((rows, terms), dtype="float32")
        b = rng.standard_normal((terms, columns), dtype="float32")
        result = tvm.runtime.tensor(np.full((rows, columns), np.nan, "float32"))
        tvm.compile(sch.mod, target=machine.host_target())(*map(tvm.runtime.tensor, (a, b)), result)
        agree(result.numpy(), a @ b, f"the result of {what}", "A schedule must not change the result.")

        blocks = sch.get_child_blocks(sch.get_sblock("root"))
        sums = next(block for block in blocks if _is_a_sum(sch.get(block)))
        wanted = [("parallel", 4), ("serial", rows), ("serial", terms), ("vectorized", columns // 4)]
        got = _around(sch, sums)
        do = "Take the old lines one by one: split, order, kinds of loops. What does nparts count?"
        require(got == wanted, f"the loops around the sums of {what}", wanted, got, do)
        do = "The old TVM wrote it before the loop over k. Today that is a call, decompose_reduction."
        require(len(blocks) == 2, f"the blocks of {what}", "the sums, and their start", "the sums alone", do)
        (start,) = (block for block in blocks if not block.same_as(sums))
        extents, wanted = [extent for _, extent in _around(sch, start)], [4, rows, columns // 4]
        do = "Start the sums of one iteration of i: call decompose_reduction with the loop over k."
        require(
            extents == wanted, f"the extents of the loops around the start of {what}", wanted, extents, do
        )
