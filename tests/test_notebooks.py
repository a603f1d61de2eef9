"""The notebooks as documents: stored executed and clean, in the course's form, with answers. nbval runs them."""

import json
import pydoc
import re
from pathlib import Path

import nbformat
import pytest

import tvmfast
import tvmnotes
from tools import clock
from tvmnotes import lessons

ROOT = Path(__file__).parents[1]
LESSONS = sorted((ROOT / "notebooks").glob("*.ipynb"), key=lambda path: path.stem.partition("_"))
SOLUTIONS = sorted((ROOT / "notebooks" / "solutions").glob("*.ipynb"))
PAGES = sorted((ROOT / "notebooks" / "pages").glob("*.md"))
TEACHING = (ROOT / "TEACHING.md").read_text(encoding="utf-8")
TAGS = {"nbval-ignore-output"}


def read(path):
    return nbformat.read(path, as_version=4)


def markdown(path):
    """The text of a page, or of a notebook's Markdown cells."""
    if path.suffix == ".md":
        return path.read_text(encoding="utf-8")
    return "\n\n".join(cell.source for cell in read(path).cells if cell.cell_type == "markdown")


def anchors(path):
    """The fragments by which GitHub knows the headings and anchors of a page or notebook."""
    text = re.sub(r"^```.*?^```", "", markdown(path), flags=re.M | re.S)
    headings = re.findall(r"^#+ +(.+?) *$", text, re.M)
    fragments = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    return fragments | set(re.findall(r'<a id="([^"]+)"></a>', text))


def dead_links(path):
    """The relative links of a page or notebook that lead to no file, or to no heading of the file."""
    text = re.sub(r"^```.*?^```|`[^`\n]+`", "code", markdown(path), flags=re.M | re.S)  # lib["default"](dev) is no link
    dead = []
    for link in re.findall(r"\]\((?!https?://)([^)\s]+)\)", text):
        name, _, fragment = link.partition("#")
        target = path.parent / name if name else path
        if not target.exists() or (fragment and fragment not in anchors(target)):
            dead.append(link)
    return dead


def outputs(notebook):
    return [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]


@pytest.mark.parametrize("path", LESSONS + SOLUTIONS, ids=lambda p: f"{p.parent.name}-{p.stem}")
class TestEvery:
    def test_is_stored_executed_in_order(self, path):
        counts = [cell.execution_count for cell in read(path).cells if cell.cell_type == "code"]
        assert counts == list(range(1, len(counts) + 1))

    def test_has_no_error_no_warning_and_no_lost_widget(self, path):
        notebook = read(path)
        assert "widgets" not in notebook.metadata
        for output in outputs(notebook):
            assert output.output_type != "error"
            assert output.get("name") != "stderr"
            assert "application/vnd.jupyter.widget-view+json" not in output.get("data", {})

    def test_names_no_path_of_the_machine_that_ran_it(self, path):
        stored = path.read_text()
        assert not re.search(r"/(root|home|work|tmp|Users)/", stored)

    def test_has_only_known_tags_and_the_environments_kernel(self, path):
        notebook = read(path)
        assert {tag for cell in notebook.cells for tag in cell.metadata.get("tags", [])} <= TAGS
        assert notebook.metadata.kernelspec.name == "python3"

    def test_links_lead_somewhere(self, path):
        assert dead_links(path) == []


@pytest.mark.parametrize("path", LESSONS, ids=lambda p: p.stem)
class TestLesson:
    def test_opens_and_closes_in_the_course_form(self, path):
        first, *_, end, answers, last = (cell.source for cell in read(path).cells)
        for words in ("**What you will learn:**", "**It takes**", "**It needs**"):
            assert words in first
        assert re.search(r"## Recap\n.*\n## Quick questions\n.*\n## Exercises\n\n1\. .*\n2\. ", end, re.S)
        assert "# tn.check(" in answers
        assert last.startswith("## Further reading\n")
        assert len(read(path).cells) <= 45

    def test_has_answers_for_every_exercise(self, path):
        answers = ROOT / "notebooks" / "solutions" / path.name
        asked = re.findall(r"^(\d)\. ", read(path).cells[-3].source.partition("## Exercises\n")[2], re.M)
        headings = "\n".join(cell.source for cell in read(answers).cells if cell.cell_type == "markdown")
        assert re.findall(r"^## (\d)\. ", headings, re.M) == asked

    def test_says_the_minutes_of_the_map(self, path):
        (minutes,) = re.findall(r"\*\*It takes\*\* about (\d+) minutes to read", read(path).cells[0].source)
        assert int(minutes) == lessons.BY_NUMBER[path.stem.partition("_")[0]].minutes


# ---------------------------------------------------------------- prose and outputs, over all of them

NEVER = re.compile(r"\b(shall|reckon\w*|mend(s|ed|ing)?|in turns)\b|\bholds? (\S+ ){1,3}against\b", re.I)
MACHINE = re.compile(r"^.+, \d+ cores?, target \S+, TVM \S+$", re.M)


def printed(path):
    return "".join(output.get("text", "") for output in outputs(read(path)))


def test_the_prose_keeps_to_plain_words():
    texts = [
        (path.stem, c.source) for path in LESSONS + SOLUTIONS for c in read(path).cells if c.cell_type == "markdown"
    ]
    assert not [(name, found[0]) for name, text in texts for found in NEVER.finditer(text)]
    assert sum(len(re.findall(r"\bLook\b", text)) for _, text in texts) <= 30


def test_a_folded_question_has_tags_where_markdown_is_not_read():
    assert not [path.stem for path in LESSONS + SOLUTIONS if re.search(r"<summary>[^<]*`", markdown(path))]


def test_outputs_show_numbers_and_no_bare_true():
    assert not [path.stem for path in LESSONS + SOLUTIONS if re.search(r"\bTrue$", printed(path), re.M)]


def test_every_lesson_prints_its_machine_and_all_but_a_few_name_the_same():
    """Lesson 14 is about an instruction, and stored on a CPU that has it; 17 may be stored on one with a GPU.

    04 and 22 were stored after the others, on that CPU too: the list of passes of 04 and a section of 22 are younger.
    """
    machines = {path.stem: {each.removeprefix("- ") for each in MACHINE.findall(printed(path))} for path in LESSONS}
    assert not [name for name, found in machines.items() if len(found) != 1]
    (elsewhere,) = machines.pop("14_fewer_bits")
    assert {*machines.pop("04_relay_builds"), *machines.pop("22_running_old_scripts")} == {elsewhere}
    (lesson_14,) = (path for path in LESSONS if path.stem == "14_fewer_bits")
    assert "the next cells use: vpdpbusd" in printed(lesson_14)
    (lesson_17,) = (path for path in LESSONS if path.stem == "17_gpu")
    has_gpu = "GPU: NVIDIA" in printed(lesson_17)
    if has_gpu:
        del machines["17_gpu"]
    assert len(set().union(*machines.values())) == 1
    said = "were made on a machine without a GPU" in read(lesson_17).cells[0].source
    assert said != has_gpu


# ---------------------------------------------------------------- the map of lessons


def test_the_map_has_every_lesson():
    assert [lesson.name for lesson in lessons.LESSONS] == [path.stem for path in LESSONS]


def test_the_side_bar_shows_whole_names():
    """At its width at the start JupyterLab cuts the longest ones; no setting widens it. tests/ui measures it."""
    assert [path.name for path in LESSONS if len(path.name) > 28] == []


def test_the_readme_shows_the_map_and_the_scoreboard():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    run = json.loads(lessons.SCOREBOARD.read_text(encoding="utf-8"))
    assert lessons.readme(text, run) == text
    assert lessons.readme(text.replace("| advanced |", "| easy |").replace(" ms\n", " s\n"), run) == text
    with pytest.raises(ValueError, match="expected the lines <!-- routes --> and <!-- /routes --> once, found them 0"):
        lessons.readme("", run)


def test_00_shows_the_map():
    (plan,) = (cell for cell in read(LESSONS[0]).cells if cell.id == "map")
    assert lessons.map_cell(plan.source) == plan.source


@pytest.mark.parametrize("number", lessons.BY_NUMBER)
def test_a_lesson_ends_with_the_next_of_each_route(number):
    last = read(ROOT / "notebooks" / f"{lessons.BY_NUMBER[number].name}.ipynb").cells[-1]
    assert last.source == lessons.last_cell(last.source, number) and last.source.count("\n\nNext: ") == 1


@pytest.mark.parametrize("route", lessons.ROUTES)
def test_a_route_begins_at_00_and_names_sections_that_exist(route):
    steps = lessons.ROUTES[route]
    assert steps[0] == "00"
    for step in steps:
        number, named = lessons.split(step)
        path = ROOT / "notebooks" / f"{lessons.BY_NUMBER[number].name}.ipynb"
        sections = {n for cell in read(path).cells for n in re.findall(r"^## (\d+)\. ", cell.source, re.M)}
        assert set(re.findall(r"\d+", named)) <= sections


def parts_of(step):
    """The numbers of TEACHING.md's parts that a step of a route reads, whole or in part."""
    number, named = lessons.split(step)
    first, *last = map(int, re.findall(r"\d+", named) or [0, 999])
    parts = clock.parts(TEACHING).items()
    return {
        n for n, part in parts if part.lesson == number and part.first <= max([first, *last]) and first <= part.last
    }


def missing(steps):
    """What the steps of a route need and nothing before them teaches: lessons for a whole one, parts for sections."""
    after = {row[0]: set(re.findall(r"\d+", row[3])) for row in clock.rows(TEACHING, "parts")}
    lacks, read, taught = [], set(), set()
    for step in steps:
        number, named = lessons.split(step)
        if not named:
            needed = set(lessons.BY_NUMBER[number].needs.split(", ")) - {"", "C++"}
            lacks += [(step, f"lesson {lesson}") for lesson in sorted(needed - read)]
        parts = parts_of(step)
        taught |= parts
        lacks += [(step, f"part {part}") for part in sorted(set().union(*(after[n] for n in parts)) - taught, key=int)]
        read.add(number)
    return lacks


@pytest.mark.parametrize("route", lessons.ROUTES)
def test_a_route_teaches_what_a_lesson_needs_before_it(route):
    assert missing(lessons.ROUTES[route]) == []


def part(lesson, section):
    """The part of TEACHING.md that has a section of a lesson, as `missing` names it."""
    parts = clock.parts(TEACHING).items()
    return next(f"part {n}" for n, part in parts if part.lesson == lesson and part.first <= section <= part.last)


def test_a_route_without_what_a_lesson_needs_is_found():
    by_hand, profile, tokens = part("06", 5), part("09", 1), part("18", 1)
    assert missing(["00", "01", "10"]) == [("10", "lesson 06"), ("10", by_hand)]
    assert missing(["00", "01", "20"]) == [("20", "lesson 09"), ("20", profile)]
    assert missing(["00", "01", "09, sections 1 and 2", "18, sections 5 to 9"]) == [("18, sections 5 to 9", tokens)]
    assert missing(["00", "01", "09, sections 3 to 8"]) == [("09, sections 3 to 8", n) for n in (by_hand, profile)]


@pytest.mark.parametrize("route", lessons.ROUTES)
def test_a_route_rises_and_takes_the_minutes_of_its_lessons(route):
    numbers = [lessons.split(step)[0] for step in lessons.ROUTES[route]]
    assert numbers == sorted(set(numbers))
    assert lessons.minutes(route) == sum(lessons.BY_NUMBER[number].minutes for number in numbers)


@pytest.mark.parametrize("path", LESSONS, ids=lambda p: p.stem)
def test_a_lesson_needs_only_lower_numbers_and_names_them(path):
    number = path.stem.partition("_")[0]
    needs = set(lessons.BY_NUMBER[number].needs.split(", ")) - {"", "C++"}
    assert all(needed < number for needed in needs)
    (said,) = re.findall(r"\*\*It needs\*\*.*", read(path).cells[0].source)
    assert set(re.findall(r"\]\((\d\d)_\w+\.ipynb", said)) == needs


# ---------------------------------------------------------------- the cheat sheet


def test_the_cheat_sheet_names_each_call_of_the_package_and_only_what_exists():
    text = (ROOT / "notebooks" / "pages" / "cheat_sheet.md").read_text(encoding="utf-8")
    modules = {"tn": "tvmnotes", "lib": "tvmfast.runtime.compiled.Compiled", "tvm": "tvm", "torch": "torch"}
    named = set(re.findall(r"\b(tn|lib|tvm|torch)\b((?:\.\w+)+)", text))
    assert not [first + rest for first, rest in named if pydoc.locate(modules[first] + rest) is None]
    verbs = {*tvmfast.PUBLIC, *tvmnotes.PUBLIC} - {"check", "hint", "progress", "solution"}  # of exercises
    assert {("tn", f".{verb}") for verb in verbs} <= named


# ---------------------------------------------------------------- the glossary

GLOSSARY = (ROOT / "notebooks" / "pages" / "glossary.md").read_text(encoding="utf-8")
ROW = re.compile(r'^\| <a id="([\w-]+)"></a>(`?)([^|`]+)`? \| [^|]+ \| [^|]+ \| \[(\w+)\]\(\.\./([^)|]+)\) \|$', re.M)
# Everyday words too. A lesson links them where it first means the glossary's term, which no pattern can tell.
EVERYDAY = {"axis", "block", "bound", "cache", "database", "device", "family", "head", "instrument", "key", "limit"}
EVERYDAY |= {"parallel", "pass", "record", "runtime", "server", "space", "state", "symbol", "token", "trace"}
NO_PROSE = r"^```[\s\S]*?^```|^#+ .*$|^<details>.*$|!?\[[^\]]*\]\([^)]*\)|\$[^$\n]+\$|<[^>]*>"
UNCOVERED = {"map", "closing"}  # a generated table, and names of papers


def body(path):
    """The Markdown of a lesson up to its recap."""
    cells = (cell for cell in read(path).cells if cell.cell_type == "markdown" and cell.id not in UNCOVERED)
    return "\n\n".join(cell.source for cell in cells).partition("## Recap")[0]


def unlinked(text):
    """The links to the glossary that a text lacks at its first use of a term, or has twice."""
    wrong = []
    without_links = re.sub(NO_PROSE, lambda found: " " * len(found[0]), text, flags=re.M)
    without_code = re.sub(r"`[^`\n]+`", lambda found: " " * len(found[0]), without_links)
    for anchor, code, term, *_ in ROW.findall(GLOSSARY):
        link = f"](pages/glossary.md#{anchor})"
        if text.count(link) > 1:
            wrong.append(f"{link} occurs {text.count(link)} times")
        name = re.escape(term)
        if code:
            use = re.search(f"`{name}`", without_links)
        else:
            case = re.I if term.islower() else 0
            use = re.search(rf"(?<![\w.-])(?<!ONNX ){name}s?(?![\w-])", without_code, case)
        if use and term not in EVERYDAY and (link not in text or use.start() < text.index(link)):
            wrong.append(f"{text[max(0, use.start() - 40) : use.start()]}[{use[0]}{link}")
    return wrong


def test_the_glossary_is_in_order_and_each_term_occurs_in_the_lesson_of_its_link():
    rows = ROW.findall(GLOSSARY)
    assert len(rows) == GLOSSARY.count("\n| ") - 1  # without the heads of the columns
    terms = [term.casefold() for _, _, term, _, _ in rows]
    assert terms == sorted(set(terms))
    lesson = {path.name: "\n".join(cell.source for cell in read(path).cells) for path in LESSONS}
    for anchor, _, term, number, name in rows:
        assert anchor == re.sub(r"\W+", "-", term.lower())
        assert name.partition("_")[0] == number, term
        assert re.search(rf"(?<![a-z]){re.escape(term)}s?(?![a-z])", lesson[name], re.I) or term == "axis", term


@pytest.mark.parametrize("path", LESSONS, ids=lambda p: p.stem)
def test_the_first_use_of_a_term_in_a_lesson_links_the_glossary(path):
    assert unlinked(body(path)) == []


def test_a_term_without_a_link_is_found():
    kernel, te = "](pages/glossary.md#kernel)", "](pages/glossary.md#te)"
    assert unlinked(f"A [kernel{kernel} is a kernel.") == []
    assert unlinked("`kernel` and two kernels\n\n## Kernels") == [f"`kernel` and two [kernels{kernel}"]
    assert unlinked(f"Kernels: a [kernel{kernel}") == [f"[Kernels{kernel}"]
    assert unlinked(f"[`te`{te} [te{te}") == [f"{te} occurs 2 times"]


# ---------------------------------------------------------------- the pages beside the lessons


@pytest.mark.parametrize("path", PAGES, ids=lambda p: p.stem)
def test_the_links_of_a_page_lead_somewhere(path):
    assert dead_links(path) == []


def test_a_link_that_leads_nowhere_is_found(tmp_path):
    (tmp_path / "other.md").write_text("# Old names, new names\n\n```\n# no heading\n```\n\n## calls\n")
    page = tmp_path / "page.md"
    page.write_text(
        "## Note A\n[a](other.md) [b](other.md#calls) [c](other.md#old-names-new-names) [d](#note-a) `e[0](f)`\n"
        "[g](https://tvm.apache.org/#nowhere) [h](lost.md) [i](other.md#no-heading) [j](#note-b) ![k](lost.svg)\n"
    )
    assert dead_links(page) == ["lost.md", "other.md#no-heading", "#note-b", "lost.svg"]


def test_the_readme_links_each_page_and_the_lessons_the_notes_that_they_name():
    readme = markdown(ROOT / "README.md")
    assert [path.name for path in PAGES if f"](notebooks/pages/{path.name})" not in readme] == []
    for name in ("11_search", "21_mxnet_gluoncv", "17_gpu"):
        assert "](pages/five_notes.md)" in markdown(ROOT / "notebooks" / f"{name}.ipynb"), name
