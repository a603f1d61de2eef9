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
