"""The layers: imports point down, none is hidden, none runs in a circle, and each layer keeps to its size.

The layers, their order and their sizes are those of the table in CONTRIBUTING.md.
"""

import ast
import graphlib
import re
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "tvmnotes"
PUBLIC = ("__init__", "__main__", "commands")  # they stand above the layers
FILES = {
    ".".join(f.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): f
    for f in sorted(PACKAGE.rglob("*.py"))
}
ROW = re.compile(r"^\| `(?:tvmnotes/)?([\w/]+?)/?` \|.*\| ([\d,]+) \|$", re.M)
TABLE = (ROOT / "CONTRIBUTING.md").read_text().partition("## Sizes")[2].partition("\n## ")[0]
SIZES = {layer: int(lines.replace(",", "")) for layer, lines in ROW.findall(TABLE)}  # from the top layer down
LAYERS = list(SIZES)
LONGEST = 400  # lines of a file, about: a tenth more passes


class Import(NamedTuple):
    """An import of one module of the package by another, as a line of its source."""

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


def height(module: str) -> int:
    """How high a module stands: the number of layers below its own."""
    layer = [*module.split("."), "__init__"][1]
    return len(LAYERS) if layer in PUBLIC else len(LAYERS) - 1 - LAYERS.index(layer)


def lines_of(folder: Path) -> int:
    return sum(len(file.read_text().splitlines()) for file in folder.rglob("*.py"))


def test_every_layer_is_in_the_table_and_every_row_is_a_layer():
    layers = {folder.name for folder in PACKAGE.iterdir() if list(folder.glob("*.py"))}
    assert layers == set(LAYERS)
    assert {f"{file.stem}" for file in PACKAGE.glob("*.py")} == set(PUBLIC)


def test_imports_point_down():
    # `tvmnotes` itself is above all layers and may name what it re-exports; nothing below may import it.
    up = [str(each) for each in IMPORTS if height(each.importer) < height(each.imported)]
    assert not up


def test_only_the_course_and_its_command_import_the_course():
    # The course is the top layer; the engine's commands stand above the layers, and are the engine's.
    imports = {each.importer for each in IMPORTS if each.imported.startswith("tvmnotes.course")}
    assert {each for each in imports if not each.startswith("tvmnotes.course")} == {"tvmnotes.__main__"}
    assert LAYERS[0] == "course"


def test_only_its_command_imports_the_old_api():
    imports = {each.importer for each in IMPORTS if each.imported.startswith("tvmclassic")}
    assert {each for each in imports if not each.startswith("tvmclassic")} == {"tvmnotes.__main__"}


def test_no_import_is_hidden_but_for_speed():
    hidden = [str(a) for a in IMPORTS if a.hidden and not a.excused and not a.importer.startswith("tvmnotes.__main__")]
    assert not hidden


def test_modules_are_loaded_by_name_by_the_public_api_and_the_folder_of_rules_alone():
    loads = re.compile(r"import_module\(f?[\"'](?:\.|tvmnotes|\{__name__\})|__import__\(")
    by_name = [module for module, file in FILES.items() if loads.search(file.read_text())]
    assert by_name == ["tvmnotes", "tvmfast.compiler.schedule.rules"]  # the latter imports all files of its folder


def test_there_is_no_circle():
    graph: dict[str, set[str]] = {module: set() for module in FILES}
    for each in IMPORTS:
        graph[each.importer].add(each.imported)
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_is_at_most_a_third_larger_than_it_was(layer):
    assert lines_of(PACKAGE / layer) <= SIZES[layer] * 4 / 3, "larger: decide that, and say so in CONTRIBUTING.md"


def test_a_file_is_read_in_a_sitting():
    lengths = {module: len(file.read_text().splitlines()) for module, file in FILES.items()}
    assert not {module: lines for module, lines in lengths.items() if lines > LONGEST * 1.1}


def test_the_reader_of_imports_sees_hidden_ones():
    text = "def f():\n    from ..base import env\n    from ..base import data  # for speed: it is slow\n"
    found = imports_of("tvmnotes.plots", PACKAGE / "tvmnotes/plots.py", text)
    assert [(a.imported, a.hidden, a.excused) for a in found] == [
        ("tvmfast.core.machine", True, False),
        ("tvmfast.core.data", True, True),
    ]
