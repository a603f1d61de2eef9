"""Compatibility with TVM: private names stay where compat.py lists them, workarounds name tests that exist, costs know
every class.
"""

import ast
import re
from pathlib import Path

import pytest
import tvm
from tvm import tirx
from tvm.ir.prim import expr as expressions
from tvm.s_tir import stmt as blocks
from tvm.script import tirx as T
from tvm.tirx import stmt as statements

from tvmfast.compiler import costs
from tvmfast.core import compat

ENGINE = Path(__file__).parents[1]
ROOT = ENGINE.parent  # of a checkout, where the helper and the tools keep to the same list
# By their paths as compat.py gives them: those of tvmfast are relative to it.
FILES = {
    str(file.relative_to(base)): file
    for base, package in ((ENGINE / "tvmfast", "."), (ENGINE, "tvmclassic"), (ROOT, "tvmnotes"), (ROOT, "tools"))
    for file in (base / package).rglob("*.py")
}
TREES = {name: ast.parse(file.read_text()) for name, file in FILES.items()}
INTERNALS = compat.__doc__.partition("**Workarounds.**")[0]
LISTED = {
    file: set(re.findall(r"\b_[A-Za-z]\w*", what))
    for file, what in re.findall(r"^    (\w[\w/]*\.py) +(.+(?:\n {20,}.+)*)", INTERNALS, re.M)
}
PYTHONS = {"_asdict", "_exit", "_getframe", "_replace"}  # of NamedTuple, os and the C library, and sys


def defined(tree) -> set[str]:
    """The names of functions, and of variables and attributes that are set."""
    found = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    found |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    return found | {
        node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
    }


def privates(tree) -> set[str]:
    """The private names that are read or set in other objects than self, or imported from TVM or from us."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) not in ("self", "cls", "aten"):
            found.add(node.attr)  # the private ones of `aten` are PyTorch's operators
        elif isinstance(node, ast.ImportFrom) and (node.level or node.module.startswith(("tvm", "tools"))):
            found |= {*(node.module or "").split("."), *(each.name for each in node.names)}
    return {name for name in found if re.match("_[^_]", name)}


def test_private_names_stay_in_their_file_and_those_of_tvm_and_torch_in_the_listed_ones():
    strays = {file: privates(tree) - defined(tree) - PYTHONS - LISTED.get(file, set()) for file, tree in TREES.items()}
    assert not {file: names for file, names in strays.items() if names}


def test_what_compat_lists_is_there():
    assert LISTED["compiler/codegen.py"] and len(LISTED) > 10
    gone = {file: {name for name in names if name not in FILES[file].read_text()} for file, names in LISTED.items()}
    assert not {file: names for file, names in gone.items() if names}


def test_the_allocator_is_tvms():
    assert compat.POOLED_ALLOCATOR == tvm.runtime.vm.VirtualMachine.POOLED_ALLOCATOR


def test_operators_that_are_named_exist():
    named = {
        node.value
        for tree in TREES.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and re.fullmatch(r"(te|prim|tirx?|relax)\.[\w.]*\w", str(node.value))
    }
    others = ["relax.const", "relax.nn.conv", "relax.ext.gates"]
    others += [f"tirx.{name}" for name in ("noalias", "is_scheduled", "dyn_smem_bytes", "add_lower_pass")]
    known = {*tvm.ir.Op.list_op_names(), *tvm.transform.PassContext.list_configs()}
    assert len(named & known) > 50 and named - known <= {*others}


@pytest.mark.parametrize("name", compat.REGISTERED)
def test_a_workaround_names_tests_that_exist_or_says_why_not(name):
    tests, reason = compat.REGISTERED[name].tests, compat.REGISTERED[name].reason
    assert tests or reason
    for test in tests:
        file, _, function = test.partition("[")[0].partition("::")
        assert function in defined(ast.parse((ENGINE / file).read_text())), test


# ---------------------------------------------------------------- costs


def test_costs_know_every_statement_and_expression_of_a_kernel():
    of_tvm = {
        each
        for module in (expressions, statements, blocks)
        for each in vars(module).values()
        if isinstance(each, type)
        and issubclass(each, tirx.Stmt | tvm.ir.Expr)
        and each.__module__ == module.__name__
        and not each.__subclasses__()
    }
    unknown = {each for each in of_tvm - costs._FIELDS.keys() if not hasattr(costs._Counter, f"_{each.__name__}")}
    assert len(of_tvm) >= 40 and not unknown


def test_costs_refuse_a_class_that_they_do_not_know(monkeypatch):
    @T.prim_func(s_tir=True)
    def kernel(a: T.Buffer((8,), "float32"), n: T.Buffer((1,), "int32")):
        for i in range(n[0]):
            a[i] = a[i] * T.float32(2)

    costs.count(kernel)
    for each in (tirx.Mul, tvm.ir.TensorLoad, tirx.FloatImm):
        with monkeypatch.context() as patch, pytest.raises(NotImplementedError, match=each.__name__):
            patch.delitem(costs._FIELDS, each)
            costs.count(kernel)
