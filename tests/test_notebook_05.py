"""What lesson 05 claims, asserted on the names that its cells define. No time is asserted."""

import importlib.util
import re
import sys
from pathlib import Path

import nbformat
import numpy as np
import pytest
import torch
import tvm
import tvm_ffi
from agreement import close
from tvm import relax, tirx
from tvm.ir import Call
from tvm.relax.dpl import is_op, rewrite_call, wildcard
from tvm.relax.expr_functor import PyExprMutator
from tvm.relax.transform import DeadCodeElimination, EliminateCommonSubexpr, FuseTIR, LegalizeOps
from tvm.script import ir as I
from tvm.script import relax as R

NOTEBOOK = Path(__file__).parents[1] / "notebooks" / "05_write_relax.ipynb"


@pytest.fixture(scope="module")
def lesson(tmp_path_factory):
    """The lesson's cells but the one that measures, as a module: TVMScript reads the source of what it decorates."""
    cells = [cell for cell in nbformat.read(NOTEBOOK, as_version=4).cells if cell.cell_type == "code"]
    file = tmp_path_factory.mktemp("lesson") / "lesson_05.py"
    file.write_text("\n\n\n".join(cell.source for cell in cells if cell.id != "times"))
    spec = importlib.util.spec_from_file_location("lesson_05", file)
    sys.modules["lesson_05"] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules["lesson_05"]


def lines(mod):
    return [binding for block in mod["main"].body.blocks for binding in block.bindings]


def operators(mod):
    return [line.value.op.name for line in lines(mod) if isinstance(line.value, Call)]


def kernels(mod):
    return {name.name_hint: f for name, f in mod.functions_items() if isinstance(f, tirx.PrimFunc)}


def nests(kernel):
    found = []
    tvm_ffi.structural_walk(kernel.body, (tvm.s_tir.SBlock, found.append))
    return {block.name_hint for block in found} - {"root"}


# ---------------------------------------------------------------- sections 1 to 3: written


def test_equal_layers_share_a_kernel_and_compute_gated_products(lesson):
    assert list(kernels(lesson.layers)) == ["gate"]
    rng = np.random.default_rng(0)
    x, *weights = (rng.standard_normal(shape, dtype="float32") for shape in [(4, 8), *[(8, 8)] * 4])
    h = x.astype("float64")
    for left, right in (weights[:2], weights[2:]):
        h = h @ left / (1 + np.exp(-(h @ right)))
    close(lesson.run(lesson.layers, x, *weights), h, 2 * 8 * 8)
    other = lesson.gated_layers(3, 5, depth=3)
    assert len(lines(other)) == 3 * 3 + 1 and operators(other).count("relax.matmul") == 6


def test_a_named_function_takes_any_number_of_rows(lesson):
    for rows in (1, 6):
        x = np.random.default_rng(rows).standard_normal((rows, 8), dtype="float32")
        wanted = torch.lgamma(torch.from_numpy(np.abs(x) + 1))  # exact: the same function of PyTorch computes both
        np.testing.assert_array_equal(lesson.run(lesson.WithMine, x), wanted)


def test_pytorch_sees_tvms_memory_without_a_copy():
    tensor = tvm.runtime.tensor(np.zeros(3, "float32"))
    torch.from_dlpack(tensor)[1] = 7
    assert tensor.numpy().tolist() == [0, 7, 0]


# ---------------------------------------------------------------- sections 4 to 6: passes


def test_tvm_drops_a_multiplication_by_1_and_keeps_the_kernel(lesson):
    products = []
    kernel = kernels(LegalizeOps()(lesson.Ones))["multiply"]
    tvm_ffi.structural_walk(kernel.body, (tirx.Mul, products.append))
    assert not products and len(nests(kernel)) == 1


@pytest.mark.parametrize(("fusing", "wanted"), [(False, ["add", "relu"]), (True, ["fused_multiply_add_relu"])])
def test_the_copy_that_is_left_is_a_reshape_by_itself_and_stays_in_a_fused_kernel(lesson, fusing, wanted):
    pipeline = relax.get_default_pipeline(lesson.target) if fusing else "default"
    vm = relax.VirtualMachine(tvm.compile(lesson.Tail, target=lesson.target, relax_pipeline=pipeline), tvm.cpu())
    called = []
    vm.set_instrument(lambda _, name, before, *__: called.append(name) if before else None)
    vm["main"](*(tvm.runtime.tensor(np.ones(shape, "float32")) for shape in ((2048, 1024), (1024,))))
    assert [name for name in called if not name.startswith("vm.builtin")] == wanted
    assert ("vm.builtin.reshape" in called) is not fusing


def test_the_mutator_folds_ones_of_the_right_shape_and_spares_its_input(lesson):
    before = tvm_ffi.structural_hash(lesson.Ones)
    assert operators(lesson.folded) == ["relax.multiply", "relax.add"]
    folded = lesson.fold_ones(lesson.Ones)
    assert len(lines(folded)) == len(lines(lesson.Ones)) == 4 and operators(folded) == operators(lesson.folded)
    assert tvm_ffi.structural_hash(lesson.Ones) == before


def test_without_its_decorator_a_mutator_fails(lesson):
    class Bare(PyExprMutator):
        pass

    with pytest.raises(AttributeError):
        Bare(lesson.Ones).visit_expr(lesson.Ones["main"])


def test_a_sum_with_0_is_not_exact():
    assert np.signbit(np.float32(-0.0) * np.float32(1)) and not np.signbit(np.float32(-0.0) + np.float32(0))


def test_the_pattern_leaves_a_sum_of_matrices(lesson):
    assert list(kernels(lesson.fused)) == ["bias_relu"]
    assert [getattr(line.value.op, "name", "") for line in lines(lesson.fused)] == [
        "relax.call_tir", "relax.call_tir", "relax.add", "relax.nn.relu"
    ]  # fmt: skip


def test_a_pattern_that_says_more_of_one_term_matches_in_both_orders():
    @I.ir_module
    class Sums:
        @R.function
        def main(x: R.Tensor((2,), "float32")):
            with R.dataflow():
                a = R.add(R.exp(x), x)
                b = R.add(a, R.exp(a))
                R.output(b)
            return b

    found = []
    pattern = is_op("relax.add")(wildcard(), is_op("relax.exp")(wildcard()))
    rewrite_call(pattern, lambda call, _: found.append(call) or call, Sums["main"])
    assert len(set(found)) == 2


def test_tvms_list_makes_one_kernel_of_three_nests_and_ours_one_of_one(lesson):
    ours = kernels(lesson.short)
    assert [len(nests(kernel)) for kernel in ours.values()] == [1]
    passes = relax.backend.cpu_generic.legalize_passes(lesson.target)
    assert isinstance(passes[-1], type(FuseTIR()))
    with lesson.target:
        theirs = kernels(DeadCodeElimination()(tvm.transform.Sequential(passes)(lesson.Tail)))
    assert [len(nests(kernel)) for kernel in theirs.values()] == [3]
    assert not [text for kernel in theirs.values() if "T.parallel" in (text := kernel.script())]


# ---------------------------------------------------------------- section 7: rules


def test_a_pure_call_that_nobody_reads_is_deleted_and_an_honest_one_is_kept(lesson):
    @I.ir_module
    class Calls:
        @R.function
        def pure(x: R.Tensor((1,), "float32")):
            with R.dataflow():
                unread = R.call_pure_packed("lesson.counter", x, ty_args=(R.Tensor((1,), "float32"),))  # noqa: F841
                y = R.negative(x)
                R.output(y)
            return y

        @R.function(pure=False)
        def main(x: R.Tensor((1,), "float32")):
            first = R.call_packed("lesson.counter", x, ty_args=(R.Tensor((1,), "float32"),))
            second = R.call_packed("lesson.counter", x, ty_args=(R.Tensor((1,), "float32"),))
            y = R.subtract(second, first)
            return y

    cleaned = DeadCodeElimination(["main", "pure"])(EliminateCommonSubexpr()(Calls))
    assert "lesson.counter" not in cleaned["pure"].script()
    assert cleaned["main"].script().count("lesson.counter") == 2
    assert lesson.run(cleaned, np.zeros(1, "float32"))[0] == 1


def test_tvms_own_pass_writes_in_place_only_where_nobody_reads(lesson):
    @I.ir_module
    class Both:
        @R.function
        def main(x: R.Tensor((300,), "float32")):
            with R.dataflow():
                t = R.negative(x)
                positive = R.nn.relu(t)
                y = R.subtract(positive, t)
                R.output(y)
            return y

    mod = relax.transform.DataflowUseInplaceCalls()(Both)
    assert re.findall(r"(\w+): .*= R\.call_tir_inplace", mod["main"].script()) == ["y"]
    x = np.random.default_rng(0).standard_normal(300, dtype="float32")
    np.testing.assert_array_equal(lesson.run(mod, x), np.maximum(-x, 0) + x)
