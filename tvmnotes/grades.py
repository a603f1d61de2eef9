"""Who passed which exercise, read from notebooks that students handed in: `python -m tvmnotes check FOLDER`.

A verdict is a line that `tn.check` has printed, `NUMBER: right`, `NUMBER: wrong. …` or
`NUMBER: not answered yet. …`, stored as the output of a cell that calls it. Reading runs nothing of a
notebook. Outputs are text, so whoever edits the file can write "right" there.
"""

import asyncio
import csv
import io
import json
import re
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from tvmfast.core.errors import one_line
from tvmfast.core.table import Table

from . import lessons

_CALL = re.compile(r"""^[^#\n]*\bcheck\(\s*["'](\w+\.\d+)["']""", re.M)
_LINE = re.compile(r"^(\w+\.\d+): (right|wrong|not answered)\b", re.M)
_BEST = ("right", "wrong", "not answered")  # of several verdicts on an exercise, the first of these counts
_SKIPPED = {"solutions", ".ipynb_checkpoints", "__MACOSX"}


class Verdict(NamedTuple):
    """What a student's notebook says of an exercise; with a `problem` it says nothing."""

    student: str
    notebook: str
    exercise: str = ""
    verdict: str = ""
    problem: str = ""


class Grades(Table):
    """The verdicts on what students handed in, a row for each student."""

    text_columns = ("student", "right", "wrong", "not answered", "problems")
    decimals = 0

    def __init__(self, verdicts: list[Verdict]):
        self.verdicts = verdicts
        students = _counted(len({each.student for each in verdicts}), "student")
        self.summary = f"{students}, {_counted(len({each.notebook for each in verdicts}), 'notebook')}."

    def by_student(self) -> dict[str, dict[str, str]]:
        """Return the best verdict on each exercise, by the student's name."""
        found: dict[str, dict[str, str]] = {}
        for each in sorted(self.verdicts):
            exercises = found.setdefault(each.student, {})
            if each.exercise:
                known = exercises.get(each.exercise, each.verdict)
                exercises[each.exercise] = min(known, each.verdict, key=_BEST.index)
        return found

    def frame(self):
        """Return a row for each student: the exercises by verdict, and notebooks that could not be read."""
        import pandas as pd  # for speed

        rows = []
        for student, exercises in self.by_student().items():
            row: dict[str, object] = {"student": student}
            row["solved"] = sum(verdict == "right" for verdict in exercises.values())
            for verdict in _BEST:
                row[verdict] = ", ".join(sorted(key for key, value in exercises.items() if value == verdict))
            problems = [
                f"{v.notebook}: {v.problem}" for v in self.verdicts if v.student == student and v.problem
            ]
            row["problems"] = "; ".join(problems)
            rows.append(row)
        return pd.DataFrame(rows)

    def __str__(self) -> str:
        lines = []
        for row in self.frame().to_dict("records"):
            lines.append(f"{row['student']}: {row['solved']} solved")
            lines += [f"    {column}: {row[column]}" for column in self.text_columns[1:] if row[column]]
        return "\n".join([*lines, self.summary])

    def csv(self) -> str:
        """Return all verdicts as CSV, a line for each student, notebook and exercise."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["student", "notebook", "exercise", "verdict", "problem"])
        writer.writerows([_safe(field) for field in each] for each in sorted(self.verdicts))
        return text.getvalue()


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _safe(field: str) -> str:
    """Keep a spreadsheet from taking a name for a formula."""
    return f"'{field}" if field.startswith(("=", "+", "-", "@")) else field


def read(folder: Path, seconds: float | None = None) -> Grades:
    """Read the verdicts in a folder of students' notebooks.

    A notebook in a subfolder belongs to the student whom the subfolder is named after; the name of one beside
    them, without the lesson's name, is the student's. Folders named `solutions` are not read.

    Args:
        folder: The folder.
        seconds: None: read the stored outputs. Else run each notebook, with this limit, and read what it
            prints. That runs the students' code with all rights of the user.

    Raises:
        FileNotFoundError: The folder has no notebook.
    """
    paths = [
        path
        for path in sorted(folder.rglob("*.ipynb"))
        if path.is_file() and not _SKIPPED & set(path.relative_to(folder).parts)
    ]
    if not paths:
        raise FileNotFoundError(
            f"{folder}: found no notebook; expected a subfolder of notebooks for each student, or notebooks"
        )
    verdicts = []
    for path in paths:
        name = _printable(path.relative_to(folder).as_posix())
        student = _printable(_student(path.relative_to(folder)))
        try:
            notebook = json.loads(path.read_text(encoding="utf-8"))
            problem = _run(notebook, seconds) if seconds is not None else ""
            found = _verdicts(notebook)
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            verdicts.append(Verdict(student, name, problem=f"not readable: {one_line(error)}"))
            continue
        verdicts += [Verdict(student, name, exercise, verdict) for exercise, verdict in found]
        if problem or not found:
            verdicts.append(Verdict(student, name, problem=problem or "no exercise is checked in it"))
    return Grades(verdicts)


def _student(path: Path) -> str:
    """Return the student's name: that of the subfolder, or what the file's name has beside the lesson's."""
    if len(path.parts) > 1:
        return path.parts[0]
    rest = path.stem
    for lesson in lessons.LESSONS:
        rest = rest.replace(lesson.name, "")
    return rest.strip(" -_.()") or path.stem


def _printable(text: str) -> str:
    """Replace what a terminal would take for a command."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def _verdicts(notebook: dict) -> list[tuple[str, str]]:
    """List the verdicts that stand under the cells that check exercises."""
    found = []
    for cell in notebook["cells"]:
        called = set(_CALL.findall("".join(cell["source"]))) if cell["cell_type"] == "code" else set()
        for output in cell["outputs"] if called else []:
            lines = _LINE.findall("".join(output.get("text", "")))
            found += [(exercise, verdict) for exercise, verdict in lines if exercise in called]
    return found


def _run(notebook: dict, seconds: float) -> str:
    """Run a notebook in place, in a kernel of this environment; return what went wrong, or nothing."""
    import nbclient  # for speed: only to run
    import nbformat  # for speed: only to run

    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            cell.update(outputs=[], execution_count=None)
    running = nbformat.from_dict(notebook)
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder) / "solutions"  # so that nothing is noted as solved by whoever runs this
        here.mkdir()
        client = nbclient.NotebookClient(
            running,
            kernel_name="python3",
            allow_errors=True,
            timeout=None,
            shutdown_kernel="immediate",
            resources={"metadata": {"path": str(here)}},
        )
        start = time.monotonic()
        problem = ""
        try:
            asyncio.run(asyncio.wait_for(client.async_execute(), seconds))
        except (asyncio.TimeoutError, nbclient.exceptions.DeadKernelError):
            stopped = time.monotonic() - start >= seconds  # and that kills the kernel
            problem = f"stopped after {seconds:g} s" if stopped else "its kernel died"
    notebook["cells"] = running["cells"]
    return problem
