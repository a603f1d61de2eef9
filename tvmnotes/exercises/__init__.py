"""Exercises that check themselves: `check`, `hint`, `solution` and `progress`, as `tn.check`, ….

A module for each lesson holds its exercises, one function each. `exercise` describes what an exercise is.
"""

import json
import re
from pathlib import Path
from typing import Any

from tvmfast.core import data
from tvmfast.core.errors import one_line
from tvmfast.core.table import Table

from .. import lessons
from . import (  # noqa: F401 (each registers its exercises)
    lesson_00,
    lesson_01,
    lesson_02,
    lesson_03,
    lesson_04,
    lesson_05,
    lesson_06,
    lesson_07,
    lesson_08,
    lesson_09,
    lesson_10,
    lesson_11,
    lesson_12,
    lesson_13,
    lesson_14,
    lesson_15,
    lesson_16,
    lesson_17,
    lesson_18,
    lesson_19,
    lesson_20,
    lesson_21,
    lesson_22,
    lesson_capstone,
)
from .exercise import EXERCISES, Exercise, Wrong

__all__ = ["EXERCISES", "check", "hint", "progress", "solution", "verdict"]

_HEADING = re.compile(r"^(?=## \d+\. )", re.M)


def check(number: str, answer: Any) -> None:
    """Print whether an answer is right, or which property it lacks, and note what is solved.

    Args:
        number: The exercise, such as "06.1".
        answer: What the exercise asks for: a function, a number, a name, ….

    Raises:
        ValueError: There is no such exercise.
    """
    print(f"{number}: {verdict(number, answer)}")


def verdict(number: str, answer: Any) -> str:
    """Return "right", or why an answer is not. Answers beside the solutions are not noted as solved."""
    exercise = _find(number)
    if answer is None:
        return "not answered yet. Replace None by your answer, and check it again."
    try:
        exercise.test(answer)
    except Wrong as error:
        return f"wrong. {error}"
    except NotImplementedError as error:
        if error.args:
            return f"wrong. The answer raised NotImplementedError: {one_line(error)}"
        return "not answered yet. Write the function, and check it again."
    except Exception as error:
        return f"wrong. The answer raised {type(error).__name__}: {one_line(error)}"
    if Path.cwd().name == "solutions":
        return "right"
    try:
        folder = data.writable_cache() / "exercises"
        folder.mkdir(exist_ok=True)
        (folder / number).touch()
    except OSError as error:
        return f"right; this was not noted: {one_line(error)}"
    return "right"


def hint(number: str, which: int = 1) -> None:
    """Print a hint for an exercise. The second says more than the first.

    Raises:
        ValueError: There is no such exercise, or no such hint.
    """
    hints = _find(number).hints
    if which not in range(1, len(hints) + 1):
        raise ValueError(f"which: expected a number from 1 to {len(hints)}; got {which!r}")
    print(f"{number}, hint {which} of {len(hints)}: {hints[which - 1]}")


def solution(number: str) -> None:
    """Show the cells that answer an exercise, from the notebook of solutions beside the lesson.

    Raises:
        ValueError: There is no such exercise.
        FileNotFoundError: The notebook of solutions is not here.
    """
    exercise = _find(number)
    text = "\n\n".join(_answer(_solutions(exercise.lesson), number.partition(".")[2]))
    try:
        from IPython import get_ipython  # for speed: only to show

        shown = get_ipython() is not None
    except ImportError:
        shown = False
    if shown:
        from IPython.display import Markdown, display  # for speed: only to show

        display(Markdown(text))
    else:
        print(text)


def _solutions(lesson: str) -> Path:
    """Find the notebook with the answers of a lesson: in this folder, in `solutions/`, or in the checkout."""
    name = f"{lessons.BY_NUMBER[lesson].name}.ipynb"
    here = Path.cwd()
    folders = [here / "solutions", lessons.ROOT / "notebooks" / "solutions"]
    if here.name == "solutions":
        folders.insert(0, here)
    for folder in folders:
        if (folder / name).is_file():
            return folder / name
    raise FileNotFoundError(
        f"no solutions/{name}: looked in {', '.join(map(str, folders))}. "
        "Run this from the folder notebooks/ of the course."
    )


def _answer(notebook: Path, number: str) -> list[str]:
    """Return the cells of an exercise's answer as Markdown: those from its heading to the next."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    parts: list[str] = []
    inside = False
    for cell in cells:
        source = "".join(cell["source"])
        if cell["cell_type"] == "code":
            if inside:
                parts.append(f"```python\n{source}\n```")
            continue
        for part in _HEADING.split(source):
            if part.startswith("## "):
                inside = part.startswith(f"## {number}. ")
            if inside and part.strip():
                parts.append(part.strip())
    parts.append(f"The first cells of `solutions/{notebook.name}` import what these cells use.")
    return parts


class Progress(Table):
    """The exercises of each lesson, and how many of them are solved."""

    text_columns = ("lesson", "open")
    decimals = 0

    def __init__(self, solved: set[str]):
        self.solved = solved
        self.summary = f"{len(solved)} of {len(EXERCISES)} exercises are solved."

    def frame(self):
        """Return a row for each lesson: how many exercises are solved, and the numbers of the others."""
        import pandas as pd  # for speed

        rows = []
        for lesson in lessons.LESSONS:
            of_lesson = [exercise for exercise in EXERCISES.values() if exercise.lesson == lesson.number]
            left = [exercise for exercise in of_lesson if exercise.number not in self.solved]
            rows.append(
                {
                    "lesson": lesson.name,
                    "solved": len(of_lesson) - len(left),
                    "of": len(of_lesson),
                    "open": ", ".join(f"{exercise.number} {'★' * exercise.difficulty}" for exercise in left),
                    "minutes left": sum(exercise.minutes for exercise in left),
                }
            )
        return pd.DataFrame(rows)


def progress() -> Progress:
    """Return a table of the exercises that `check` has found right on this machine."""
    folder = data.cache() / "exercises"
    return Progress({number for number in EXERCISES if (folder / number).is_file()})


def _find(number: str) -> Exercise:
    if number in EXERCISES:
        return EXERCISES[number]
    lesson = str(number).partition(".")[0]
    nearest = [each for each in EXERCISES if each.startswith(f"{lesson}.")]
    raise ValueError(
        f"no exercise {number!r}; expected a lesson and a number, such as {', '.join(nearest) or '06.1'}"
    )
