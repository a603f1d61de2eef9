"""A handout for a class: the lessons without answers and outputs, with blanks where the teacher types.

The blank cells are the first code cell of each numbered section, if it is short enough to be typed while
others watch. The lesson's very first code cell, which imports, stays. Above a blank cell is one that catches
up: `%load` puts the code of the lesson in its place.

`python -m tools.handout FILE.zip` writes it.
"""

import json
import re
import sys
import zipfile
from pathlib import Path

from tvmnotes import lessons

from . import pages

TYPED = 12  # lines at most
FOLDER = "catch_up"  # beside the notebooks
_BLANK = "# {title}\n# Type here what your teacher types. Too late? Run the cell above, then run it again.\n"


def blanks(notebook: dict) -> dict[str, str]:
    """Choose the cells of a lesson that a teacher types.

    Args:
        notebook: The lesson, as read from its JSON.

    Returns:
        The heading of the section by the cell's id.
    """
    found = {}
    heading = ""
    first = True
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            titles = re.findall(r"^## (\d+\. .*)", source, re.M)
            heading = titles[-1] if titles else heading
            continue
        if heading and not first and len(source.splitlines()) <= TYPED:
            found[cell["id"]] = heading
        heading = ""
        first = False
    return found


def blanked(notebook: dict, name: str) -> tuple[dict, dict[str, str]]:
    """Make the handout of a lesson.

    Args:
        notebook: The lesson, as read from its JSON.
        name: Its name, which is that of the folder of its code.

    Returns:
        The notebook with blanks, and the code of each blank cell by its path from the notebook.
    """
    headings = blanks(notebook)
    cells = []
    code = {}
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            cells.append({**cell, "source": without_answers(source)})
            continue
        if cell["id"] in headings:
            path = f"{FOLDER}/{name}/{cell['id']}.py"
            code[path] = source + "\n"
            cells.append(_code(cell, f"%load {path}", f"{cell['id']}-load"))
            source = _BLANK.format(title=headings[cell["id"]])
        cells.append(_code(cell, source, cell["id"]))
    return {**notebook, "cells": cells}, code


def without_answers(text: str) -> str:
    """Leave out folded answers, and the link to the answers of the exercises."""
    text = re.sub(r"\n*<details>.*?</details>", "", text, flags=re.S)
    return re.sub(r"\n*^Answers: .*$", "", text, flags=re.M)


def _code(cell: dict, source: str, name: str) -> dict:
    return {**cell, "id": name, "source": source, "outputs": [], "execution_count": None}


def write(file: Path) -> None:
    """Write the handouts of all lessons, their code, and the pages and pictures beside them, into a zip."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for lesson in lessons.LESSONS:
            path = pages.NOTEBOOKS / f"{lesson.name}.ipynb"
            notebook, code = blanked(json.loads(path.read_text(encoding="utf-8")), lesson.name)
            code[path.name] = json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True) + "\n"
            for name, text in code.items():
                archive.writestr(f"handout/{name}", text)
        for path in sorted([*pages.NOTEBOOKS.glob("pages/*.md"), *pages.NOTEBOOKS.glob("pictures/*")]):
            archive.write(path, f"handout/{path.relative_to(pages.NOTEBOOKS).as_posix()}")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
