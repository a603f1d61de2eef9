"""The plan of the course, lessons.json: what each lesson takes and needs, and the routes.

README.md and notebook 00 show it. `python -m tvmnotes.lessons`, in a checkout, writes it into both,
the scoreboard into the README, and what comes next into each notebook. Tests compare them.
"""

import json
import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
SCOREBOARD = Path(__file__).with_name("scoreboard.json")  # written by tools/scoreboard.py
# The scoreboard's rows in the README.
SHOWN = ("PyTorch eager", "ONNX Runtime", "tvm.compile", "tvm.compile, MetaSchedule", "tvmnotes, untuned")


class Lesson(NamedTuple):
    """A row of the map. `needs` lists the numbers of lessons, and "C++" for a C++ compiler."""

    name: str
    about: str
    minutes: int  # to read, as the lesson's first cell says
    level: str
    needs: str

    @property
    def number(self) -> str:
        """The number, such as "06"."""
        return self.name.partition("_")[0]


_PLAN = json.loads(Path(__file__).with_name("lessons.json").read_text(encoding="utf-8"))
LESSONS = [Lesson(**row) for row in _PLAN["lessons"]]
BY_NUMBER = {lesson.number: lesson for lesson in LESSONS}
# The steps of each route: a lesson's number, and its sections if not all of them are for this reader.
ROUTES = _PLAN["routes"]


def split(step: str) -> tuple[str, str]:
    """Split a step of a route into the lesson's number and the rest, which names sections or is empty."""
    number, comma, sections = step.partition(",")
    return number, comma + sections


def minutes(route: str) -> int:
    """Add up the minutes of the lessons of a route, each in full."""
    return sum(BY_NUMBER[split(step)[0]].minutes for step in ROUTES[route])


def table(folder: str = "", answers: bool = False) -> str:
    """Format the lessons as a Markdown table with links into `folder`; `answers` adds a column for these."""
    columns = ["notebook", "what it walks through", "minutes", "level", "needs"]
    if answers:
        columns.append("answers")
    rows = [columns, ["---"] * len(columns)]
    for lesson in LESSONS:
        link = f"[{lesson.name}]({folder}{lesson.name}.ipynb)"
        row = [link, lesson.about, str(lesson.minutes), lesson.level, lesson.needs]
        if answers:
            row.append(f"[{lesson.number}]({folder}solutions/{lesson.name}.ipynb)")
        rows.append(row)
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def routes(folder: str = "") -> str:
    """Format the routes as a Markdown table with links into `folder`."""
    rows = ["| you say | minutes | lessons |", "|---|---|---|"]
    for route, steps in ROUTES.items():
        links = (_link(step, folder) for step in steps)
        rows.append(f"| **{route}** | {minutes(route)} | {' → '.join(links)} |")
    return "\n".join(rows)


def after(number: str) -> str:
    """Format the next lesson on each route through this one as a line of Markdown."""
    following: dict[str, list[str]] = {}
    for route, steps in ROUTES.items():
        numbers = [split(step)[0] for step in steps]
        for here, step in zip(numbers, steps[1:], strict=False):
            if here == number:
                following.setdefault(step, []).append(route)
    if not following:
        return "Next: any lesson of the map at the end of [00](00_start_here.ipynb)."
    links = (f"{_link(step)} ({', '.join(names)})" for step, names in following.items())
    return f"Next: {' · '.join(links)}"


def _link(step: str, folder: str = "") -> str:
    number, sections = split(step)
    return f"[{number}]({folder}{BY_NUMBER[number].name}.ipynb){sections}"


def bars(times: dict[str, float]) -> str:
    """Draw milliseconds by name as bars of text, the longest of 40 characters, in a block of Markdown."""
    longest = max(times.values())
    lines = []
    for name, time in times.items():
        eighths = max(1, round(time / longest * 320))
        bar = "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()
        lines.append(f"{name:25} {bar} {time:.1f} ms")
    return "\n".join(["```text", *lines, "```"])


def figure(run: dict) -> str:
    """Draw some rows of a run of the scoreboard, and name the machine that measured them."""
    versions = ", ".join(f"{name} {version}" for name, version in run["versions"].items() if name != "tvm")
    caption = (
        f"{run['network']}, one picture, float32; medians of one run of {run['date']} on {run['machine']}, "
        f"{versions}. MetaSchedule is TVM's own search; its records come with lesson 10."
    )
    return f"{bars({row: run['rows'][row]['median'] * 1e3 for row in SHOWN})}\n\n{caption}"


def readme(text: str, run: dict) -> str:
    """Return README.md's text with the plan and the figure of a run of the scoreboard in it."""
    text = marked(text, "routes", routes("notebooks/"))
    text = marked(text, "lessons", table("notebooks/", answers=True))
    return marked(text, "figure", figure(run))


def map_cell(text: str) -> str:
    """Return the text of notebook 00's cell "map" with the plan in it."""
    return marked(marked(text, "routes", routes()), "lessons", table())


def marked(text: str, mark: str, content: str) -> str:
    """Put `content` between the lines <!-- mark --> and <!-- /mark --> of a text."""
    between = re.compile(rf"(?<=<!-- {mark} -->\n).*?(?=<!-- /{mark} -->)", re.S)
    text, found = between.subn(lambda _: f"\n{content}\n\n", text)
    if found != 1:
        raise ValueError(
            f"expected the lines <!-- {mark} --> and <!-- /{mark} --> once, found them {found} times"
        )
    return text


def last_cell(text: str, number: str) -> str:
    """Return the text of a lesson's last cell with a line that names what comes next."""
    return text.partition("\n\nNext: ")[0] + "\n\n" + after(number)


def main() -> None:
    """Update each notebook's last cell, the plan in 00 and README.md, and the scoreboard in the latter."""
    page = ROOT / "README.md"
    run = json.loads(SCOREBOARD.read_text(encoding="utf-8"))
    page.write_text(readme(page.read_text(encoding="utf-8"), run), encoding="utf-8")
    for number, lesson in BY_NUMBER.items():
        path = ROOT / "notebooks" / f"{lesson.name}.ipynb"
        notebook = json.loads(path.read_text(encoding="utf-8"))
        changes = {"map": map_cell} if number == "00" else {}
        changes[notebook["cells"][-1]["id"]] = lambda text, number=number: last_cell(text, number)
        for cell in notebook["cells"]:
            if change := changes.get(cell["id"]):
                cell["source"] = change("".join(cell["source"])).splitlines(keepends=True)
        path.write_text(
            json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True) + "\n", encoding="utf-8"
        )


if __name__ == "__main__":
    main()
