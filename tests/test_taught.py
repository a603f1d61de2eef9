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
}
NO_BUILD = {"05_write_relax": [], "08_fast_in_plain_tvm": ["all"]}  # the cells that call tn.build, to compare with it


def code(name):
    cells = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4).cells
    return {cell.id: cell.source for cell in cells if cell.cell_type == "code" and cell.id != "your-answers"}


@pytest.mark.parametrize("name", TAUGHT)
def test_a_lesson_has_what_it_teaches_in_its_cells(name):
    cells = code(name).values()
    counts = {words: sum(words in source for source in cells) for words in TAUGHT[name]}
    assert {words: counts[words] for words, least in TAUGHT[name].items() if counts[words] < least} == {}


@pytest.mark.parametrize("name", NO_BUILD)
def test_a_lesson_on_tvms_own_api_calls_our_build_to_compare_alone(name):
    assert [cell for cell, source in code(name).items() if "tn.build" in source] == NO_BUILD[name]
