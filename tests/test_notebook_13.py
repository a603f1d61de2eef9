"""What lesson 13 claims, asserted on the names that its cells define. No time is asserted."""

from collections import Counter
from pathlib import Path

import nbformat
import pytest
import torch
import tvm
import tvm_ffi
from agreement import close, reference
from tvm import relax
from tvm.relax.dpl import is_op, rewrite_call, wildcard
from tvm.script import relax as R

NOTEBOOK = Path(__file__).parents[1] / "notebooks" / "13_libraries.ipynb"
NOT_RUN = ("versus", "large", "rewrite-times", "back-end-times", "travel", "threads", "your-answers")  # times; nbval


@pytest.fixture(scope="module")
def lesson():
    """The names that the lesson's cells define, without those that measure or start processes."""
    names: dict = {}
    for cell in nbformat.read(NOTEBOOK, as_version=4).cells:
        if cell.cell_type == "code" and cell.id not in NOT_RUN:
            exec(cell.source, names)
    names["exact"] = reference(names["net"], names["image"])
    return names


def digit(lesson, mod):
    return lesson["runner"](mod, tvm.runtime.tensor(lesson["image"]))().numpy()


def module(shapes, body):
    """A module whose main computes `body(bb, *arguments)`, a tuple."""
    bb = relax.BlockBuilder()
    variables = [relax.Var(f"x{i}", R.Tensor(shape, "float32")) for i, shape in enumerate(shapes)]
    with bb.function("main", variables):
        with bb.dataflow():
            result = bb.emit_output(relax.Tuple(body(bb, *variables)))
        bb.emit_func_output(result)
    return bb.get()


@pytest.mark.parametrize("function", ["lesson.matmul", "lesson.numpy_matmul"])
def test_a_library_writes_into_tvms_memory(lesson, function):
    a, b = lesson["matrices"](8)
    product = lesson["runner"](lesson["network"](8, function), a, b)()
    close(product.numpy(), a.numpy().astype("float64") @ b.numpy(), 8)
    if function == "lesson.matmul":
        assert lesson["seen"] == lesson["addresses"](a, b, product)


def test_the_rewrite_takes_each_convolution_and_computes_the_same(lesson):
    before, after = (lesson["operators"](lesson[name]["main"]) for name in ("digits", "rewritten"))
    assert before["nn.conv2d"] == after["call_dps_packed"] == 21 and "nn.conv2d" not in after
    for name in ("digits", "rewritten"):
        close(digit(lesson, lesson[name]), lesson["exact"])


@pytest.mark.parametrize("how", [{"groups": 2}, {"dilation": 2}, {"padding": (1, 0, 0, 1)}], ids=str)
def test_the_rewrite_leaves_convolutions_that_the_function_does_not_know(lesson, how):
    channels = 4 // how.get("groups", 1)
    mod = module([(1, 4, 8, 8), (4, channels, 3, 3)], lambda bb, x, w: [bb.emit(relax.op.nn.conv2d(x, w, **how))])
    left = rewrite_call(lesson["conv"], lesson["to_library"], mod["main"])
    assert lesson["operators"](left)["nn.conv2d"] == 1


def test_the_checks_decline_what_the_lesson_says(lesson):
    assert lesson["calls"](lesson["composites"], "Composite") == {
        "torch.conv2d_relu": 9,
        "torch.conv2d": 9,
        "c.add_relu": 9,
    }
    unchecked = [entry[:2] for entry in lesson["patterns"]]
    taken = relax.transform.FuseOpsByPattern(unchecked, bind_constants=False)(lesson["digits"])
    assert Counter(lesson["calls"](taken, "Composite")).total() == 21 + 9
    alone = relax.transform.FuseOpsByPattern(unchecked[2:], bind_constants=False)(lesson["digits"])
    assert lesson["calls"](alone, "Composite") == {"c.add_relu": 10 + 9}, "a bias is no equal shape"


def test_a_value_that_is_read_outside_makes_a_tuple_and_the_check_declines(lesson):
    def shared(bb, a, b):
        total = bb.emit(relax.op.add(a, b))
        return [bb.emit(relax.op.nn.relu(total)), bb.emit(relax.op.exp(total))]

    mod = module([(3, 5), (3, 5)], shared)
    name, pattern, named, check = lesson["patterns"][2]
    (composite,) = (
        function
        for function in relax.transform.FuseOpsByPattern([(name, pattern, named)])(mod).functions.values()
        if function.attrs and "Composite" in function.attrs
    )
    assert isinstance(composite.ret_ty, relax.TupleType)
    assert len(relax.transform.FuseOpsByPattern([(name, pattern, named, check)])(mod).functions) == 1


def test_the_longer_pattern_must_come_first(lesson):
    short_first = [lesson["patterns"][1], lesson["patterns"][0]]
    taken = relax.transform.FuseOpsByPattern(short_first, bind_constants=False)(lesson["digits"])
    assert lesson["calls"](taken, "Composite") == {"torch.conv2d": 18}


def test_both_back_ends_compute_the_network(lesson):
    assert lesson["calls"](lesson["regions"], "Codegen") == {"torch": 9, "c": 9}
    assert lesson["operators"](lesson["compiled"]["main"])["call_dps_packed"] == 18
    close(digit(lesson, lesson["compiled"]), lesson["exact"])


def test_the_wheel_has_no_back_end_but_that_of_core_ml_in_python(lesson):
    mine = {"relax.ext.torch", "relax.ext.c"}
    assert set(lesson["back_ends"]()) - mine == {"relax.ext.coreml"}
    assert lesson["calls"](lesson["for_cublas"], "Codegen") == {"cublas": 1}


def test_a_region_may_have_several_outputs(lesson, rng):
    def twice(bb, x, w, b):
        inner = bb.emit(relax.op.add(bb.emit(relax.op.nn.conv2d(x, w, padding=1)), b))
        outer = bb.emit(relax.op.add(bb.emit(relax.op.nn.conv2d(inner, w, padding=1)), b))
        return [bb.emit(relax.op.exp(inner)), bb.emit(relax.op.exp(outer))]

    def exact(x, w, b):
        inner = torch.conv2d(x, w, padding=1) + b
        return inner.exp(), (torch.conv2d(inner, w, padding=1) + b).exp()

    conv = is_op("relax.nn.conv2d")(wildcard(), wildcard())
    entries = [("torch.conv2d", is_op("relax.add")(conv, wildcard()))]
    steps = [relax.transform.FuseOpsByPattern(entries, bind_constants=False)]
    steps += [relax.transform.MergeCompositeFunctions(), relax.transform.RunCodegen()]
    shapes = [(1, 4, 6, 6), (4, 4, 3, 3), (1, 4, 1, 1)]
    cut = tvm.transform.Sequential(steps)(module(shapes, twice))
    assert lesson["operators"](cut["main"]) == {"call_dps_packed": 1, "exp": 2}
    arrays = [rng.uniform(-0.2, 0.2, shape).astype("float32") for shape in shapes]
    results = lesson["runner"](cut, *map(tvm.runtime.tensor, arrays))()
    close([result.numpy() for result in results], reference(exact, *arrays))


def test_a_function_that_is_missing_is_named_when_the_network_is_loaded(lesson):
    executable = tvm.compile(lesson["network"](4, "lesson.nobody"), target="llvm")
    with pytest.raises(tvm.error.InternalError, match=r"Cannot find ffi::Function lesson\.nobody"):
        relax.VirtualMachine(executable, tvm.cpu())
    assert tvm_ffi.get_global_func("lesson.nobody", allow_missing=True) is None
