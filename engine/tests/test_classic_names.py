"""The table of old and new names: nothing that is served lacks a row, and nothing that a row names is missing."""

import importlib
import re

import pytest
import tvm

import tvmfast
from tvmclassic import names, removed
from tvmclassic.relay import ir, lower, ops, transform
from tvmclassic.relay.ops.arithmetic import BINARY, UNARY


def test_every_served_name_has_a_row():
    without = [name for name, known in names._known().items() if known is None]
    assert not without, f"give them rows in names.csv: {', '.join(without)}"


def test_no_row_is_for_what_is_not_served():
    stale = [
        old
        for old in {**removed.ROWS["calls"], **removed.ROWS["methods"], **removed.ROWS["autotvm"]}
        if old not in names.served()
    ]
    stale += [old for old in removed.ROWS["passes"] if old.removeprefix("relay.transform.") not in transform.NAMES]
    assert not stale


def test_a_table_has_each_name_once_and_all_kinds():
    table = names.table()
    assert list(table.columns) == ["old", "new", "note"]
    assert table.old.is_unique
    assert len(table) == sum(len(names.table(kind)) for kind in names.KINDS)
    assert not table[(table.new == "") & (table.note == "")].size, "a row says something"
    with pytest.raises(ValueError, match=r"expected one of calls, .*; got 'call'"):
        names.table("call")


ROOTS = {"tvm": tvm, "tvmfast": tvmfast, "relax": tvm.relax}


def resolve(path, lib):
    """The object that a dotted name means, as the tables write it."""
    first, *rest = path.split(".")
    found = {**ROOTS, "lib": lib}[first]
    for part in rest:
        if not hasattr(found, part):
            importlib.import_module(f"{found.__name__}.{part}")
        found = getattr(found, part)
    return found


@pytest.mark.parametrize("kind", names.KINDS)
def test_every_name_of_today_exists(kind, lib):
    roots = [*ROOTS, "lib"] if kind != "gone" else list(ROOTS)  # there, lib is what tvm.compile gives
    missing = {}
    for row in names.table(kind).itertuples():
        for path in re.findall(rf'(?<![\w."])(?:{"|".join(roots)})(?:\.\w+)+', f"{row.new} {row.note}"):
            try:
                resolve(path, lib)
            except (AttributeError, ImportError):
                if path != row.old:  # "tvm.lower was dropped"
                    missing[path] = row.old
    assert not missing


def test_operators_and_passes_have_one_row_each():
    assert names.table("operators").old.tolist() == [f"relay.{name}" for name in sorted(ops.OPERATORS)]
    assert names.table("passes").old.tolist() == [f"relay.transform.{name}" for name in transform.NAMES]


def test_what_is_gone_says_why():
    notes = names.table("gone").set_index("old").note
    assert len(notes) == len(removed.ROWS["gone"])
    for old in ("tvm.micro", "relay.frontend.from_keras"):
        assert notes[old] == removed.ROWS["gone"][old][1] != ""


def row(old):
    return names.table().set_index("old").loc[old]


def test_rows_that_a_reader_looks_for():
    assert row("relay.nn.conv2d").new == "relax.op.nn.conv2d"
    assert row("relay.nn.dense").new == "relax.op.matmul, relax.op.permute_dims"
    assert row("relay.image.resize2d").new == "relax.op.image.resize2d"
    assert row("relay.nn.dropout").note == "the value itself"
    assert row("relay.transform.FuseOps").new == "relax.transform.FuseOps, relax.transform.FuseTIR"
    assert (
        row("relay.transform.FoldConstant").new.split(", ")[0]
        == "tvmfast.compiler.graph.fold_constants.fold_with_numpy"
    )
    assert "tn.build chooses layouts" in row("relay.transform.AlterOpLayout").note
    assert row("relay.build").new == "tn.build"
    assert tuple(row("autotvm.tuner.XGBTuner")) == (
        "tn.tune",
        'tuner="xgb", which learns from earlier records by itself',
    )
    assert row("autotvm.RPCRunner").new == "tn.tuning.RpcRunner"
    assert row("autotvm.apply_history_best").note == "records=FILE"
    assert row("auto_scheduler.ApplyHistoryBest").note == "records=FILE"


def relax_operators(operator, dtype, count):
    """The Relax operators that a Relay operator becomes in a program."""
    inputs = [ir.var(f"x{i}", shape=(2, 3), dtype=dtype) for i in range(count)]
    mod, _ = lower.to_relax(ir.Function(inputs, operator(*inputs)))
    found = set()
    visit = lambda e: found.add(e.op.name) if isinstance(e, tvm.ir.Call) else None  # noqa: E731
    tvm.relax.analysis.post_order_visit(mod["main"], visit)
    return {name.replace("relax.", "relax.op.", 1) for name in found}


@pytest.mark.parametrize("name", [
    *UNARY, *BINARY, "log2", "sum", "logsumexp", "transpose", "sort", "nn.dense", "nn.softmax", "nn.cross_entropy",
    "nn.dropout", "copy",
])  # fmt: skip
def test_an_operators_row_names_what_it_becomes(name):
    operator = ops.OPERATORS[name]
    dtype = "bool" if "logical" in name else "int32" if re.search("bitwise|shift", name) else "float32"
    became = relax_operators(operator, dtype, len(operator.tensors))
    assert became == set(filter(None, row(f"relay.{name}").new.split(", ")))


def test_operators_without_a_name_of_today_give_what_they_take():
    without = [old.removeprefix("relay.") for old in names.table("operators").query("new == ''").old]
    assert {"copy", "nn.dropout"} <= set(without)
    for name in without:
        value = object()
        assert ops.OPERATORS[name].lower([value], None) is value


# ---------------------------------------------------------------- the names in a script


def used(source):
    return names.used_in(source).old.tolist()


def test_a_scripts_names_are_found_however_it_imports_them():
    assert used("import tvm.relay as r\nr.build(r.nn.relu(x))") == ["relay.build", "relay.nn.relu"]
    assert used("import tvm\ntvm.relay.op.nn.dense(x, w)") == ["relay.op.nn.dense"]
    assert used("from tvm.relay import build as b\nb(mod)") == ["relay.build"]
    assert used("from tvm.contrib import graph_runtime as g\ng.create(a, b, c)") == ["graph_runtime.create"]
    assert used("from tvm.contrib.debugger import debug_runtime\ndebug_runtime.create(a, b, c)") == [
        "debug_runtime.create"
    ]


def test_methods_are_found_on_values_and_not_on_imported_modules():
    assert used("m.set_input(x)\ny = m.get_output(0).asnumpy()") == [
        "GraphModule.set_input",
        "GraphModule.get_output",
        "NDArray.asnumpy",
    ]
    assert used("import subprocess\nsubprocess.run(['ls'])") == []


def test_each_name_is_listed_once_in_the_order_of_the_text():
    table = names.used_in("from tvm import relay\nrelay.var('x')\nrelay.const(1)\nrelay.var('y')")
    assert table.old.tolist() == ["relay.var", "relay.const"]
    assert table.new.tolist() == ["relax.Var", "relax.const"]


def test_what_is_gone_is_found_too():
    assert used("from tvm import relay\nrelay.frontend.from_keras(model)") == ["relay.frontend.from_keras"]
    assert used("import tvm\nimport numpy as np\ntvm.micro.Session()\nnp.zeros(3)") == ["tvm.micro"]


def test_names_of_today_and_other_libraries_are_left_out():
    assert used("import numpy as np\nimport tvm\nnp.array(1)\ntvm.cpu(0)") == []
