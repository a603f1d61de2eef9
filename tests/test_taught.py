"""Which lesson teaches what of TVM's API: its cells have it, and those of the answers do not count."""

from pathlib import Path

import nbformat
import pytest

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"
TAUGHT = {  # by lesson: what its code cells have, and in how many of them at least
    "05_write_relax": {
        "@I.ir_module": 5,  # TVMScript
        "@T.prim_func": 2,
        "@R.function": 5,
        "R.call_tir(": 1,
        "R.call_dps_packed(": 1,
        "relax.BlockBuilder(": 3,
        "bb.emit_te(": 1,
        "(PyExprMutator)": 2,
        "rewrite_call(": 1,  # dpl
        "@tvm.transform.module_pass(": 2,
        "tvm.transform.Sequential(": 2,
        "@tvm.instrument.pass_instrument": 1,
    },
    "06_conv2d_by_hand": {
        "te.compute(": 2,
        "te.create_prim_func(": 2,
        "sch.parallel(": 1,
        ".split(": 3,
        ".reorder(": 3,
        ".vectorize(": 2,
        ".decompose_reduction(": 2,
        ".cache_write(": 1,
        ".reverse_compute_at(": 2,
        ".set_scope(": 2,
    },
    "07_tensor_expressions": {
        "te.compute(": 6,
        "te.reduce_axis(": 3,
        "te.if_then_else(": 1,
        ".compute_inline(": 3,
        ".compute_at(": 1,
        ".reverse_compute_at(": 2,
        ".cache_write(": 1,
        ".rfactor(": 2,
    },
    "08_fast_in_plain_tvm": {
        "LegalizeOps(": 2,
        "FuseOps(": 1,
        "FuseTIR(": 1,
        "ConvertLayout(": 1,
        "dl.cpu.Reduction(": 1,
        "dl.ScheduleRule": 1,
        "ApplyDefaultSchedule(": 1,
        "@tvm.transform.module_pass(": 1,
        "sch.decompose_reduction(": 2,
        "tvm.transform.Sequential(": 2,
    },
    "10_tuning": {
        "sample_perfect_tile(": 1,
        "sample_categorical(": 1,
        "sch.trace": 3,
        "trace.apply_to_schedule(": 1,
        "ms.tune_tir(": 1,
        "extract_tasks(": 1,
        "tune_relax(": 2,
        "MetaScheduleApplyDatabase(": 1,
        "compile_relax(": 2,
        "ms.builder.PyBuilder": 1,
    },
    "11_search": {"PerStoreFeature(": 1, "XGBModel(": 1, "MeasureCandidate(": 1},
    "12_distributed_tuning": {
        '"tvm.exec.rpc_tracker"': 1,
        '"tvm.exec.rpc_server"': 1,
        "rpc.connect_tracker(": 1,
        "rpc.Server(": 1,
        "session.upload(": 2,
        "session.load_module(": 2,
        "time_evaluator(": 1,
        "ms.runner.RPCConfig(": 2,
        "ms.runner.RPCRunner(": 2,
        "ms.tune_tir(": 2,
    },
    "13_libraries": {
        "FuseOpsByPattern(": 2,
        "MergeCompositeFunctions(": 2,
        "RunCodegen(": 3,
        "has_leaking_intermediate_variables(": 1,
        '@tvm_ffi.register_global_func("relax.ext.': 2,
        "CSourceModuleCreate(": 1,
        "relax.call_dps_packed(": 2,
        "rewrite_call(": 1,
        "torch.from_dlpack": 3,
    },
    "14_fewer_bits": {
        "T.call_llvm_pure_intrin(": 2,
        "TensorIntrin.register(": 1,
        "sch.tensorize(": 1,
        "te.compute(": 1,
        "from_onnx(": 1,
        "relax.op.dequantize(": 1,
        "(PyExprMutator)": 1,
    },
    "17_gpu": {
        ".bind(": 4,
        "cache_read(": 2,
        "compute_at(": 3,
        "reverse_compute_at(": 3,
        "cache_write(": 3,
        "blockize(": 1,
        "tensorize(": 1,
        "dl.gpu.Matmul(": 1,
        "legalize_passes(": 1,
        "dl.ScheduleRule": 1,
    },
    "18_language_model": {
        "(nn.Module)": 3,
        ".export_tvm(": 2,
        "nn.KVCache(": 1,
        "TIRPagedKVCache(": 1,
        "fork(": 1,
    },
    "20_your_own_model": {
        "torch.export.export(": 5,
        "torch.cond(": 1,
        "custom_convert_map=": 3,
        "tn.diverge(": 1,
    },
}
# Lessons on TVM's own API, and the cells that call tn.build: each compares with it.
COMPARED = {
    "03_measuring": ["compare"],
    "05_write_relax": [],
    "06_conv2d_by_hand": [],
    "07_tensor_expressions": [],
    "08_fast_in_plain_tvm": ["all"],
}
# The cells that call tn.tune, of 10's section on it; no other lesson below 14 has one.
SEARCHED = {"10_tuning": ["rule"]}
BELOW_14 = sorted(path.stem for path in NOTEBOOKS.glob("*.ipynb") if path.stem[:2] < "14")


def code(name):
    cells = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4).cells
    return {cell.id: cell.source for cell in cells if cell.cell_type == "code" and cell.id != "your-answers"}


@pytest.mark.parametrize("name", TAUGHT)
def test_a_lesson_has_what_it_teaches_in_its_cells(name):
    cells = code(name).values()
    counts = {words: sum(words in source for source in cells) for words in TAUGHT[name]}
    assert {words: counts[words] for words, least in TAUGHT[name].items() if counts[words] < least} == {}


@pytest.mark.parametrize("name", COMPARED)
def test_a_lesson_on_tvms_own_api_calls_our_build_to_compare_alone(name):
    assert [cell for cell, source in code(name).items() if "tn.build" in source] == COMPARED[name]


@pytest.mark.parametrize("name", BELOW_14)
def test_a_lesson_below_14_tunes_with_tvms_own_api(name):
    assert [cell for cell, source in code(name).items() if "tn.tune(" in source] == SEARCHED.get(name, [])
