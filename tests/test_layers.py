"""The folders: imports point down, none is hidden, none runs in a circle, and each folder keeps to its size.

The folders, their order and their sizes are those of the table in CONTRIBUTING.md. A folder that has no row belongs to
the one that it is in; where some folders of a folder have rows, all have.
"""

import ast
import graphlib
import re
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
TABLE = (ROOT / "CONTRIBUTING.md").read_text().partition("## Sizes")[2].partition("\n## ")[0]
ROWS = re.findall(r"^\| `([\w/]+)/` \|.*\| ([\d,]+) \|$", TABLE, re.M)
SIZES = {folder: int(lines.replace(",", "")) for folder, lines in ROWS}  # from the top down
FOLDERS = list(SIZES)
PACKAGES = [*sorted(file.parent for file in (ROOT / "engine").glob("*/__init__.py")), ROOT / "tvmnotes", ROOT / "tools"]
FILES = {
    ".".join(file.relative_to(package.parent).with_suffix("").parts).removesuffix(".__init__"): file
    for package in PACKAGES
    for file in sorted(package.rglob("*.py"))
}
LONGEST = 800  # lines of a file
HELPER = 3000  # lines of the helper, exercises apart: one reads it in an evening


class Import(NamedTuple):
    """An import of one of our modules by another, as a line of its source."""

    importer: str
    imported: str
    line: int
    hidden: bool  # inside a function
    excused: bool  # by a comment that says it is for speed

    def __str__(self):
        return f"{self.importer}:{self.line} imports {self.imported}"


def imports_of(module: str, file: Path, text: str | None = None) -> list[Import]:
    text = file.read_text() if text is None else text
    lines, tree = text.splitlines(), ast.parse(text)
    package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    inside = {
        id(node)
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(function)
    }
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) + 1 - node.level] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            targets = [f"{base}.{name.name}" if f"{base}.{name.name}" in FILES else base for name in node.names]
        elif isinstance(node, ast.Import):
            targets = [name.name for name in node.names]
        else:
            continue
        for_speed = "# for speed" in "\n".join(lines[node.lineno - 1 : node.end_lineno])
        for target in dict.fromkeys(targets):
            if target in FILES and target != module:
                found.append(Import(module, target, node.lineno, id(node) in inside, for_speed))
    return found


IMPORTS = [each for module, file in FILES.items() for each in imports_of(module, file)]


def folder_of(module: str) -> str:
    """The row that a module belongs to: the nearest folder that has one; "" if there is none."""
    above = FILES[module].relative_to(ROOT).parents
    return next((str(folder) for folder in above if str(folder) in SIZES), "")


def package_of(module: str) -> str:
    return module.partition(".")[0]


def test_every_folder_is_in_the_table_and_every_row_is_a_folder():
    expected = {str(package.relative_to(ROOT)) for package in PACKAGES}
    for above in {folder.rpartition("/")[0] for folder in FOLDERS} - {"", "engine"}:
        expected |= {above, *(str(file.parent.relative_to(ROOT)) for file in (ROOT / above).glob("*/*.py"))}
    assert expected == set(FOLDERS) and len(ROWS) == len(FOLDERS)


def test_imports_point_down():
    up = [a for a in IMPORTS if FOLDERS.index(folder_of(a.importer)) > FOLDERS.index(folder_of(a.imported))]
    assert not [str(each) for each in up]


def test_packages_import_each_other_as_the_picture_shows():
    # The engine imports nothing of the course; the old API is imported by nothing but its own command.
    arrows = {(package_of(each.importer), package_of(each.imported)) for each in IMPORTS}
    drawn = {("tools", "tvmnotes"), ("tools", "tvmfast"), ("tvmnotes", "tvmfast"), ("tvmclassic", "tvmfast")}
    assert {(a, b) for a, b in arrows if a != b} <= drawn


def test_the_engines_tests_import_nothing_of_the_course():
    # Also what they have other processes run, which stands in texts.
    course = re.compile(r"\b(?:import|from) (?:[^\n;]*[ ,])?(?:tvmnotes|tools)\b|\"-m\", \"(?:tvmnotes|tools)")
    found = {file.name: course.findall(file.read_text()) for file in sorted((ROOT / "engine" / "tests").glob("*.py"))}
    assert len(found) > 50 and not {name: lines for name, lines in found.items() if lines}


def test_a_test_file_has_a_name_of_its_own():
    names = [file.name for folder in ("tests", "engine/tests") for file in (ROOT / folder).glob("test_*.py")]
    assert len(names) == len(set(names)), "pytest imports them by that"


def test_no_import_is_hidden_but_for_speed():
    assert not [str(each) for each in IMPORTS if each.hidden and not each.excused]


def test_modules_are_loaded_by_name_by_the_public_apis_and_the_folder_of_rules_alone():
    loads = re.compile(r'import_module\((?!"(?!tvmfast|tvmclassic|tvmnotes|tools)\w+"\))|__import__\(')
    by_name = {module for module, file in FILES.items() if loads.search(file.read_text())}
    of_tvm = {"tvmclassic", "tvmclassic.modules"}  # these load modules of TVM; the rules, all files of their folder
    assert by_name == of_tvm | {"tvmnotes", "tvmfast", "tvmfast.compiler.schedule.rules"}


@pytest.mark.parametrize("of", [str, folder_of], ids=["modules", "folders"])
def test_there_is_no_circle(of):
    graph: dict[str, set[str]] = {of(module): set() for module in FILES}
    for each in IMPORTS:
        graph[of(each.importer)] |= {of(each.imported)} - {of(each.importer)}
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def lines_of(modules) -> int:
    return sum(len(FILES[module].read_text().splitlines()) for module in modules)


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_folder_is_at_most_a_third_larger_than_it_was(folder):
    lines = lines_of(module for module in FILES if folder_of(module) == folder)
    assert lines <= SIZES[folder] * 4 / 3, "larger: decide that, and say so in CONTRIBUTING.md"


def test_the_helper_is_small():
    assert lines_of(module for module, file in FILES.items() if file.parent == ROOT / "tvmnotes") <= HELPER


def test_a_file_is_read_in_a_sitting():
    lengths = {module: lines_of([module]) for module in FILES}
    assert not {module: lines for module, lines in lengths.items() if lines > LONGEST}


def test_the_reader_of_imports_sees_hidden_ones():
    text = "def f():\n    from ..core import machine\n    from tvmfast.core import data  # for speed: it is slow\n"
    module = "tvmfast.profiling.peak"
    assert [(a.imported, a.hidden, a.excused) for a in imports_of(module, FILES[module], text)] == [
        ("tvmfast.core.machine", True, False),
        ("tvmfast.core.data", True, True),
    ]
