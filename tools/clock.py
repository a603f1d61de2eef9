"""The parts of TEACHING.md with a clock: what each takes in a room.

`python -m tools.clock FOLDER` reads lessons that `make clock` has executed, and writes into
TEACHING.md how long the cells of each part run, what else there is to do in it, and so the minutes of parts
and plans. How long cells run is measured; the rest is counted and multiplied.
"""

import json
import math
import re
import sys
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from tvmnotes import lessons

from . import handout, ranges

PAGE = lessons.ROOT / "TEACHING.md"
# Seconds that a teacher spends, beside waiting for cells, on each of these.
WORD = 60 / 130  # of text, read aloud
CELL = 15  # of code, read
LINE = 15  # of a code cell that is typed, and explained
QUESTION = 180  # "Predict before you run.": an answer written down, then reasons
ROOM = 1.25  # times the sum: for people's questions and mistakes


class Part(NamedTuple):
    """A part of the course: a lesson, or those of its numbered sections, from `first` to `last`."""

    lesson: str
    first: int
    last: int


class Times(NamedTuple):
    """What a part takes: counts, and seconds that its cells run."""

    words: int
    cells: int  # read
    lines: int  # typed
    questions: int
    seconds: float
    before: float  # what the cells above it run

    @property
    def minutes(self) -> int:
        """The minutes of the part in a room, a multiple of 5."""
        counted = self.words * WORD + self.cells * CELL + self.lines * LINE + self.questions * QUESTION
        return 5 * math.ceil((counted + self.seconds) * ROOM / 60 / 5)


def rows(text: str, mark: str) -> list[list[str]]:
    """Return the rows of a table between two marks of a page, without the heads of its columns."""
    (table,) = re.findall(rf"<!-- {mark} -->\n\n(.*?)\n\n<!-- /{mark} -->", text, re.S)
    lines = [line for line in table.splitlines() if line.startswith("|")]
    return [[field.strip() for field in line.strip("|").split("|")] for line in lines[2:]]


def parts(text: str) -> dict[str, Part]:
    """Read the table of parts by their numbers; a part without sections is the whole lesson."""
    found = {}
    for number, where, *_ in rows(text, "parts"):
        lesson = re.findall(r"\[(\w+)\]", where)[0]
        first, last = (re.findall(r"\d+", where.partition("sections")[2]) or ["0", "999"])[:2]
        found[number] = Part(lesson, int(first), int(last))
    return found


def pieces(notebook: dict) -> list[tuple[int, dict]]:
    """Pair each code cell, and each piece of text under one heading, with the number of its section.

    What comes before the first section has 0, and what comes after the last, the recap and exercises, -1.
    """
    found = []
    here = 0
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            found.append((here, cell))
            continue
        for piece in re.split(r"^(?=## )", "".join(cell["source"]), flags=re.M):
            if heading := re.match(r"## (?:(\d+)\. )?", piece):
                here = int(heading[1] or -1)
            found.append((here, {**cell, "source": piece}))
    return found


def words(text: str) -> int:
    """Count the words of Markdown that are read aloud: no folded answers, tables, drawings or formulas."""
    text = re.sub(r"<details>.*?</details>|!\[[^\]]*\]\([^)]*\)|```.*?```", "", text, flags=re.S)
    text = re.sub(r"\]\([^)]*\)|<[^>]*>|\$[^$]*\$|^\|.*$", " ", text, flags=re.M)
    return len(re.findall(r"\w[\w'’.-]*", text))


def seconds(cell: dict) -> float:
    """Return how long a code cell ran, by the times that its execution has left in it."""
    stamps = cell["metadata"]["execution"]
    start, end = (
        datetime.fromisoformat(stamps[key].replace("Z", "+00:00"))
        for key in ("iopub.execute_input", "shell.execute_reply")
    )
    return (end - start).total_seconds()


def times(part: Part, notebook: dict) -> Times:
    """Add up a part of an executed lesson. The lesson's opening belongs to its first part."""
    typed = handout.blanks(notebook)
    counts = dict.fromkeys(("words", "cells", "lines", "questions"), 0)
    ran = {True: 0.0, False: 0.0}
    for section, piece in pieces(notebook):
        inside = part.first <= section <= part.last or (section == 0 and part.first <= 1)
        source = "".join(piece["source"])
        if piece["cell_type"] == "code" and 0 <= section <= part.last:
            ran[inside] += seconds(piece)
        if not inside:
            continue
        if piece["cell_type"] == "markdown":
            counts["words"] += words(source)
            counts["questions"] += source.count("**Predict before you run.**")
        elif piece["id"] in typed:
            counts["lines"] += len(source.splitlines())
        else:
            counts["cells"] += 1
    return Times(**counts, seconds=ran[True], before=ran[False])


def table(measured: dict[str, Times]) -> str:
    """Format what parts take as a Markdown table."""
    heads = ["part", "words", "cells read", "lines typed", "questions", "cells run, s", "those above, s"]
    lines = [heads, ["---"] * len(heads)]
    for number, it in measured.items():
        lines.append([number, *map(str, it)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def planned(text: str, minutes: dict[str, int]) -> str:
    """Return TEACHING.md with these minutes in the tables of parts and plans.

    Args:
        text: The page. Its plans say which parts they have, and how many exercise blocks of 25 minutes.
        minutes: The minutes of each part, by its number.
    """
    for mark in ("parts", "plans"):
        heads = re.findall(rf"<!-- {mark} -->\n\n(.*?\n.*?)\n", text)[0]
        lines = []
        for row in rows(text, mark):
            if mark == "parts":
                row[2] = str(minutes[row[0]])
            else:
                row[3] = str(sum(minutes[part] for part in row[1].split(", ")) + 25 * int(row[2]))
            lines.append(f"| {' | '.join(row)} |".replace("  |", " |"))
        text = lessons.marked(text, mark, "\n".join([heads, *lines]))
    return text


def main() -> None:
    """Time the parts, from the folder of executed lessons that the command line names."""
    folder = Path(sys.argv[1])
    text = PAGE.read_text(encoding="utf-8")
    measured = {}
    for number, part in parts(text).items():
        path = folder / f"{lessons.BY_NUMBER[part.lesson].name}.ipynb"
        found = times(part, json.loads(path.read_text(encoding="utf-8")))
        measured[number] = Times(*map(round, found))
    _, machines = ranges.read(folder)
    text = lessons.marked(text, "clock", f"{table(measured)}\n\nRun on {', '.join(sorted(machines))}.")
    text = planned(text, {number: it.minutes for number, it in measured.items()})
    PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
