"""Expected ranges: what the measured cells of the lessons gave on known machines, to compare one's own with.

`ranges.json` holds, for each time, speed, ratio and share that a measured cell of a lesson prints, the least
and the largest value on each machine. A figure is found by its lesson, its cell and the words around it. The
file is written by `python -m tools.ranges --add FOLDER --name NAME` from executed copies of the lessons.
"""

import json
import re
from pathlib import Path
from typing import Annotated, NamedTuple

import typer
from bs4 import BeautifulSoup

from tvmfast.core import data
from tvmfast.core.table import Table
from tvmnotes import lessons

FILE = Path(__file__).with_name("ranges.json")
PAGE = lessons.ROOT / "TEACHING.md"  # shows `table`, in a checkout
TAG = "nbval-ignore-output"  # the tag of cells whose output depends on the machine
SLACK = 1.25  # a value is within a range if it is at most by this factor below or above it
VERDICTS = ("within", "above", "below", "not measured here")
MACHINE = re.compile(r"^(?:- )?(\w.*, \d+ cores?, target \S+), TVM \S+$", re.M)
_ON_GPU = "17"
_UNITS = r"ms|µs|s|GFLOP/s|GB/s|%|times|tokens per second"
_NUMBER = re.compile(rf"(?<![\w.,/])(\d[\d,]*(?:\.\d+)?) ?({_UNITS})(?![\w/])")
_HEAD = re.compile(r"\((?:ms|µs|s|GFLOP/s|GB/s)\)|^(?:ms|GFLOP/s|GB/s|share)$|^ratio\b")
_OTHER = re.compile(r"^(?:iqr|minimum)\b|\b20\d\d\b")  # spreads, and what others measured


class Figure(NamedTuple):
    """Where a figure stands: the lesson's number, the cell's id, and the words around the number."""

    lesson: str
    cell: str
    words: str


def printed(text: str) -> dict[str, float]:
    """Find the numbers with units in printed text, by their line with * in place of the number."""
    found = {}
    for line in text.splitlines():
        line = re.sub(r"\b\d[\d,]* runs\b", "# runs", line.partition("{")[0])
        for number in _NUMBER.finditer(line):
            before = _NUMBER.sub(r"# \2", line[: number.start()])
            after = _NUMBER.sub(r"# \2", line[number.end() :])
            words = " ".join(f"{before}* {number[2]}{after}".split()).rstrip(": ")
            if not re.search(r"\d\.\d", words):  # another number that changes is no word to know a line by
                found[words] = float(number[1].replace(",", ""))
    return found


def tabled(shown: str) -> dict[str, float]:
    """Find the numbers in the columns of times, speeds, shares and ratios of an HTML table.

    Tables of kernels are left out: which kernels a network has depends on the machine.
    """
    found = {}
    heads: list[str] = []
    for row in BeautifulSoup(shown, "html.parser").find_all("tr"):
        values, names = ([it.get_text(strip=True) for it in row.find_all(tag)] for tag in ("td", "th"))
        if not values:
            if names[:1] == ["kernel"]:
                return {}
            in_ms = any("times in ms" in name for name in names)
            heads = [f"{head} (ms)" for head in heads] if in_ms else heads or names
            continue
        label = " ".join(names) or values[0]
        for head, value in zip(heads[-len(values) :], values, strict=False):
            number = re.fullmatch(r"\d[\d,]*(?:\.\d+)?", value)
            measured = _HEAD.search(head) and not _OTHER.search(head) and head != f"ratio to {label}"
            if number and measured:
                found[f"{label}: {head}"] = float(value.replace(",", ""))
    return found


def read(folder: Path, lesson: str | None = None) -> tuple[dict[Figure, float], set[str]]:
    """Read the figures and the machines that the executed lessons in a folder print.

    Args:
        folder: A folder with copies of lessons; other notebooks in it are not read.
        lesson: The number of the only lesson to read; None: all but 17, which is stored with a GPU's outputs.

    Raises:
        FileNotFoundError: It has no lesson, or not that one.
        ValueError: There is no such lesson.
    """
    if lesson is not None and lesson not in lessons.BY_NUMBER:
        raise ValueError(f"lesson: expected one of {', '.join(lessons.BY_NUMBER)}; got {lesson}")
    numbers = [lesson] if lesson else [each for each in lessons.BY_NUMBER if each != _ON_GPU]
    read = [lessons.BY_NUMBER[number] for number in numbers]
    figures = {}
    machines = set()
    paths = [folder / f"{each.name}.ipynb" for each in read]
    if not any(path.is_file() for path in paths):
        raise FileNotFoundError(f"{folder}: expected lessons such as {paths[0].name}, found none")
    for each, path in zip(read, paths, strict=True):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"] if path.is_file() else []
        for cell in cells:
            for output in cell.get("outputs", []):
                text = "".join(output.get("text", ""))
                shown = "".join(output.get("data", {}).get("text/html", ""))
                machines |= set(MACHINE.findall(text))
                if TAG in cell["metadata"].get("tags", []):
                    for words, value in {**printed(text), **tabled(shown)}.items():
                        figures[Figure(each.number, cell["id"], words)] = value
    return figures, machines


class Ranges(Table):
    """What is known of each figure, beside the value of one's own machine where there is one."""

    text_columns = ("lesson", "cell", "figure", "known", "verdict")

    def __init__(self, rows: list[dict]):
        self.rows = rows
        counts = {verdict: sum(row["verdict"] == verdict for row in rows) for verdict in VERDICTS}
        said = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
        self.summary = f"{len(rows)} figures: {said} (within: at most {SLACK} times outside the known range)."

    def frame(self):
        """Return a row for each figure."""
        import pandas as pd  # for speed

        return pd.DataFrame(self.rows, columns=["lesson", "cell", "figure", "known", "here", "verdict"])

    def __str__(self) -> str:
        lines = [
            f"{row['lesson']:3}  {row['cell']:20} {row['known']:>17}  {row['here']:>9}  {row['verdict']:7} "
            f"{row['figure']}"
            for row in self.rows
        ]
        head = f"{'':3}  {'cell':20} {'known':>17}  {'here':>9}  {'':7} figure"
        return "\n".join([head, *lines, self.summary])


def verdict(value: float | None, low: float, high: float) -> str:
    """Say where a value lies: within a range and its slack, above or below; None is not measured."""
    if value is None:
        return "not measured here"
    if value > high * SLACK:
        return "above"
    return "below" if value < low / SLACK else "within"


def compare(folder: Path, lesson: str | None = None) -> Ranges:
    """Compare the figures of executed lessons with the known ranges.

    Args:
        folder: The folder of the lessons that this machine has executed.
        lesson: The number of the only lesson to compare; None: all.

    Raises:
        FileNotFoundError: The folder has no lesson.
        ValueError: There is no such lesson.
    """
    if lesson is not None and lesson not in lessons.BY_NUMBER:
        raise ValueError(f"lesson: expected one of {', '.join(lessons.BY_NUMBER)}; got {lesson}")
    here, _ = read(folder)
    rows = []
    for figure, known in _figures(load()).items():
        if lesson in (None, figure.lesson):
            low = min(low for low, _ in known.values())
            high = max(high for _, high in known.values())
            value = here.get(figure)
            rows.append(
                {
                    "lesson": figure.lesson,
                    "cell": figure.cell,
                    "figure": figure.words,
                    "known": _span(low, high),
                    "here": "" if value is None else f"{value:g}",
                    "verdict": verdict(value, low, high),
                }
            )
    return Ranges(rows)


def load() -> dict:
    """Read ranges.json: the machines by name, the figures that a teacher is asked about, all figures."""
    return json.loads(FILE.read_text(encoding="utf-8"))


def _figures(known: dict) -> dict[Figure, dict[str, list[float]]]:
    """Return what is known of each figure: the least and the largest value by the machine's name."""
    return {
        Figure(lesson, cell, words): values
        for lesson, cells in known["figures"].items()
        for cell, figures in cells.items()
        for words, values in figures.items()
    }


def add(folder: Path, name: str | None = None, lesson: str | None = None) -> str:
    """Add figures of executed lessons to ranges.json and TEACHING.md; return what was added, as a sentence.

    The file keeps to the figures that the stored lessons of the checkout print too.

    Args:
        folder: The folder of the executed lessons.
        name: What to call the machine; None: as before if it is known, else as it calls itself.
        lesson: The number of the only lesson whose figures to add; None: all.

    Raises:
        FileNotFoundError: The folder has no lesson, or not that one.
        ValueError: There is no such lesson, the lessons were executed on several machines, or the name is
            another machine's.
    """
    found, machines = read(folder, lesson)
    if len(machines) != 1:
        raise ValueError(
            f"{folder}: expected lessons of one machine, got {sorted(machines)}; run all of them on one"
        )
    (machine,) = machines
    known = load()
    name = name or next((key for key, each in known["machines"].items() if each == machine), machine)
    if known["machines"].setdefault(name, machine) != machine:
        raise ValueError(
            f"name: {name} is {known['machines'][name]}; these lessons ran on {machine}: choose another name"
        )
    stored, _ = read(lessons.ROOT / "notebooks")
    before = _figures(known)
    merged = {figure: before.get(figure, {}) for figure in stored}
    added = {figure: value for figure, value in found.items() if figure in stored}
    for figure, value in added.items():
        low, high = merged[figure].get(name, (value, value))
        merged[figure][name] = [min(low, value), max(high, value)]
    known["figures"] = {}
    for figure, values in merged.items():
        if values:
            cells = known["figures"].setdefault(figure.lesson, {})
            cells.setdefault(figure.cell, {})[figure.words] = values
    data.atomic_write(FILE, _written(known))
    if PAGE.is_file():
        PAGE.write_text(lessons.marked(PAGE.read_text(encoding="utf-8"), "ranges", table()), encoding="utf-8")
    return f"{len(added)} figures of {machine} added as {name}"


def _written(known: dict) -> str:
    """Format ranges.json with a line for each figure."""
    text = json.dumps(known, indent=1, ensure_ascii=False)
    for innermost in (r"\[[^\[\]{}]*\]", r"\{[^{}]*\}"):
        text = re.sub(innermost, lambda found: re.sub(r"\s*\n\s*", " ", found[0]), text)
    return text + "\n"


def _span(low: float, high: float) -> str:
    """Format a range: three digits, more only before the decimal point."""
    shown = [f"{value:,.0f}" if value >= 100 else f"{value:.3g}" for value in (low, high)]
    return " to ".join(dict.fromkeys(shown))


def table() -> str:
    """Format the figures that people ask about as a Markdown table, with a column for each machine."""
    known = load()
    figures = _figures(known)
    names = list(known["machines"])
    lines = [["lesson", "what", *names], ["---"] * (2 + len(names))]
    for lesson, cell, words, what in known["asked"]:
        values = figures.get(Figure(lesson, cell, words), {})
        lines.append([lesson, what, *(_span(*values[name]) if name in values else "" for name in names)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


app = typer.Typer(add_completion=False, pretty_exceptions_show_locals=False)


@app.command()
def main(
    folder: Annotated[
        Path | None,
        typer.Argument(
            exists=True, file_okay=False, help="Executed lessons; none: notebooks/.", show_default=False
        ),
    ] = None,
    lesson: Annotated[
        str | None, typer.Option(help="Only this lesson, such as 06.", show_default=False)
    ] = None,
    adds: Annotated[
        bool, typer.Option("--add", help="Add these lessons' figures to the known ones.")
    ] = False,
    name: Annotated[
        str | None, typer.Option(help="With --add: what to call the machine.", show_default=False)
    ] = None,
):
    """Compare the times and speeds in executed lessons with those of known machines."""
    here = folder or lessons.ROOT / "notebooks"
    try:
        typer.echo(add(here, name, lesson) if adds else compare(here, lesson))
    except (ValueError, OSError) as error:
        raise typer.BadParameter(str(error)) from None


if __name__ == "__main__":
    app()
