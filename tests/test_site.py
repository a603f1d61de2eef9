"""What is made for readers and classes: pages and links of the site, slides, handout, plans; and who calls make."""

import base64
import json
import math
import posixpath
import re
import zipfile
from pathlib import Path

import nbformat
import pytest
import yaml

import tvmfast
import tvmnotes
from tools import clock, handout, links, pages, slides
from tvmnotes import lessons

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10, where pytest brings it
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
MAKEFILE = (ROOT / "Makefile").read_text()
PIXEL = base64.b64encode(b"a picture").decode()


def notebook(*cells):
    """A notebook of Markdown, each a text, and code, each a pair of source and outputs."""
    written = []
    for number, cell in enumerate(cells):
        if isinstance(cell, str):
            written.append({"cell_type": "markdown", "id": f"cell-{number}", "metadata": {}, "source": cell})
        else:
            source, *outputs = cell
            written.append({"cell_type": "code", "id": f"cell-{number}", "metadata": {}, "source": source,
                            "execution_count": number, "outputs": outputs})  # fmt: skip
    return {"cells": written, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}


def shown(**data):
    return {
        "output_type": "display_data",
        "metadata": {},
        "data": {kind.replace("_", "/"): text for kind, text in data.items()},
    }


def lesson(name):
    return json.loads((pages.NOTEBOOKS / f"{name}.ipynb").read_text(encoding="utf-8"))


LESSONS = {entry.name: lesson(entry.name) for entry in lessons.LESSONS}
TABLE = "<style scoped>.dataframe</style>\n<table>\n<tr>\n<td>1</td>\n</tr>\n</table>"


# ---------------------------------------------------------------- pages


RESULT = {"output_type": "execute_result", "execution_count": 1}


def page(*cells):
    return pages.page(nbformat.reads(json.dumps(notebook(*cells)), as_version=4), "name")


def test_a_page_has_the_text_the_code_and_every_output_of_its_notebook():
    text, figures = page(
        "# Title\nText.",
        (
            "print('```')",
            {"output_type": "stream", "name": "stdout", "text": ["\x1b[31mred\x1b[0m\n"]},
            {"output_type": "stream", "name": "stdout", "text": "and more\n"},
            shown(text_html=TABLE, text_plain="1"),
            shown(text_html="<pre><b>x</b> &lt; 1</pre>", text_plain="object"),
            shown(image_png=PIXEL, text_plain="figure"),
            {**shown(**{"image_svg+xml": "<svg/>", "text_html": "<img/>"}), **RESULT},
            shown(text_html="<script>play()</script>", text_plain="player"),
            shown(text_plain="42"),
        ),
    )
    lines = re.sub(r"\n\n+", "\n", text)
    assert lines.startswith("# Title\nText.\n`````` { .python }\nprint('```')\n``````")
    assert "`````` { .text .output }\nred\nand more\n``````" in lines
    assert f'<div class="output">{TABLE}</div>' in lines
    assert "`````` { .python .output }\nx < 1\n``````" in lines
    assert '<div class="output"><script>play()</script></div>' in lines
    assert "`````` { .text .output }\n42\n``````" in lines
    assert sorted(figures.values()) == [b"<svg/>", b"a picture"]
    assert all(f"]({name})" in text for name in figures)


def test_an_error_is_shown():
    output = {"output_type": "error", "ename": "E", "evalue": "", "traceback": ["\x1b[1mTraceback", "E: it"]}
    text, _ = page(("1 / 0", output))
    assert "Traceback\nE: it" in text


def test_links_lead_to_pages_and_folded_answers_are_read():
    assert (
        pages.prose("[00](00_start_here.ipynb) [a](b.ipynb#c) [d](e.md)")
        == "[00](00_start_here.md) [a](b.md#c) [d](e.md)"
    )
    assert pages.prose("[a](README.md#b) [c](../README.md) [d](engine/README.md)") == (
        "[a](index.md#b) [c](index.md) [d](engine.md)"
    )
    assert pages.prose("[a](../../README.md#b) [d](../../engine/README.md)") == "[a](../index.md#b) [d](../engine.md)"
    assert pages.prose("[a](notebooks/solutions/b.ipynb)\n[![ci](badge)](c)\n") == "[a](solutions/b.md)\n"
    assert pages.prose("<details><summary>Answer</summary>").startswith('<details markdown="1">')


@pytest.fixture(scope="module")
def made():
    """The files that MkDocs gets, by their path: those that are made, and those in notebooks/."""
    texts = {path.relative_to(pages.NOTEBOOKS).as_posix(): path.read_text() for path in pages.NOTEBOOKS.rglob("*.md")}
    return pages.files() | texts


def test_the_menu_has_every_page_and_no_page_links_a_notebook(made):
    named = re.findall(r'"([\w/]+\.md)"', json.dumps(pages.menu(made)))
    assert sorted(named) == sorted(name for name in made if name.endswith(".md"))
    for name in named:
        assert ".ipynb)" not in pages.prose(made[name]), name


def test_each_figure_that_a_page_shows_is_there(made):
    for name, text in made.items():
        if name.endswith(".md"):
            for figure in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", pages.prose(text)):
                path = (Path(name).parent / figure).as_posix()
                assert made.get(path) or (pages.NOTEBOOKS / path).stat().st_size, f"{name}: {figure}"


def test_each_link_to_a_page_leads_to_one(made):
    for name, text in made.items():
        if name.endswith(".md"):
            for link in re.findall(r"\]\(([^)#:\s]+\.md)(?=[)#])", pages.prose(text)):
                assert posixpath.normpath((Path(name).parent / link).as_posix()) in made, f"{name}: {link}"


def test_the_api_page_names_all_that_the_package_gives():
    named = re.findall(r"^::: (.*)", pages.api(), re.M)
    assert {name.rpartition(".")[2] for name in named} >= {*tvmfast.PUBLIC, *tvmnotes.PUBLIC}
    assert {*named} >= {*tvmnotes.MODULES.values()}


def test_the_settings_load_nothing_from_elsewhere():
    text = (pages.HERE / "mkdocs.yml").read_text()
    settings = yaml.safe_load(text)
    assert "//" not in text and "//" not in (pages.HERE / "site.css").read_text()
    assert settings["theme"]["font"] is False and settings["strict"]


# ---------------------------------------------------------------- links


def site(folder, **texts):
    for name, text in texts.items():
        path = folder / name.replace("_", ".")
        path.write_text(text)
    return folder


def test_dead_links_and_what_comes_from_elsewhere_are_found(tmp_path):
    site(
        tmp_path,
        index_html='<a href="b.html">1</a> <a href="b.html#here">2</a> <a href="#top">3</a> <a href="/b.html">4</a> '
        '<a href="https://tvm.apache.org/x#y">5</a> <a href="mailto:a@b">6</a> <img src="data:image/png;base64,AA">'
        '<link rel="stylesheet" href="style.css"><link rel="canonical" href="https://a.b/index.html">',
        b_html='<h2 id="here">H</h2> <a href="lost.html">1</a> <a href="index.html#lost">2</a>'
        '<script src="https://cdn.org/x.js"></script> <img src="//cdn.org/x.png"> <img src="lost.png">'
        '<style>@import "https://cdn.org/a.css";</style> <p style="background: url(http://cdn.org/b.png)">',
        style_css="@font-face { src: url('https://cdn.org/font.woff2') } p { background: url(x.png) }",
    )
    assert [problem.replace("https:", "").replace("http:", "") for problem in links.problems(tmp_path)] == [
        "b.html: loads //cdn.org/x.js from another host",
        "b.html: loads //cdn.org/x.png from another host",
        "b.html: loads //cdn.org/a.css from another host",
        "b.html: loads //cdn.org/b.png from another host",
        "b.html: lost.html leads to no file",
        "b.html: index.html#lost leads to no heading",
        "b.html: lost.png leads to no file",
        "style.css: loads //cdn.org/font.woff2 from another host",
    ]


def test_a_folder_without_pages_is_no_site(tmp_path):
    with pytest.raises(FileNotFoundError, match="expected the pages of a site, found none; run `make site`"):
        links.problems(tmp_path)


# ---------------------------------------------------------------- slides


@pytest.mark.parametrize("name", LESSONS)
def test_slides_open_with_the_title_close_with_the_recap_and_load_nothing(name):
    found = slides.slides(LESSONS[name])
    assert found[0].startswith("<h1>") and "What you will learn" in found[0]
    assert "<h2>Recap</h2>" in found[-1] and "<li>" in found[-1] and "Exercises" not in found[-1]
    page = links.Page(slides.document(LESSONS[name], "00"))
    assert not page.leads and all(address.startswith("data:image/") for address in page.loads)


def test_a_section_gives_a_slide_for_each_figure_table_and_question():
    question = "**Predict before you run.** Which?\n\n<details><summary>Answer</summary>\n\nThis.\n\n</details>"
    found = slides.slides(
        notebook(
            "# Title\n\n**What you will learn:** much.\n\nMore.",
            "## 1. First\n\nText.",
            ("a", shown(image_png=PIXEL, text_plain=""), shown(text_plain="42")),
            "Text.\n\n## 2. Second\n\n" + question,
            ("b", shown(text_html=TABLE)),
            "## 3. Third\n\nNothing to show.",
            "## Recap\n\n- One\n- Two\n\n## Exercises\n\n1. Do it.",
        )
    )
    assert [re.findall(r"<h\d>(.*?)</h\d>", slide) for slide in found] == [
        ["Title"],
        ["1. First"],
        ["2. Second"],
        ["2. Second"],
        ["Recap"],
    ]
    assert "More" not in found[0] and PIXEL in found[1] and "This." in found[2] and "<td>1</td>" in found[3]


def test_a_long_table_ends_with_the_number_of_its_other_rows():
    table = (
        "<table><tr><th>a</th></tr>"
        + "".join(f"<tr><td>{n % slides.ROWS}</td></tr>" for n in range(slides.ROWS + 2))
        + "</table>"
    )
    _, found = slides.slides(notebook("# Title", "## 1. First", ("a", shown(text_html=table))))[:2]
    assert re.findall(r"<td>(\d+)</td>", found) == [str(n) for n in range(slides.ROWS)]
    assert found.count("<th>") == 1 and found.endswith("<p>… and 2 more rows in the lesson</p>")


# ---------------------------------------------------------------- the handout


def test_blanks_are_the_short_cells_that_open_a_section():
    long = "x = 1\n" * (handout.TYPED + 1)
    cells = notebook(
        "# Title", "## 1. First", ("import a",), "## 2. Second", ("b",), ("c",), "## 3. Third", (long,), "## Recap"
    )
    assert handout.blanks(cells) == {"cell-4": "2. Second"}


@pytest.mark.parametrize("name", LESSONS)
def test_a_handout_has_no_answer_and_no_output_and_its_code_is_the_lessons(name):
    made, code = handout.blanked(LESSONS[name], name)
    cells = {cell["id"]: cell for cell in made["cells"]}
    assert len(cells) == len(made["cells"]) == len(LESSONS[name]["cells"]) + len(code)
    assert not any("<details>" in cell["source"] or "solutions/" in cell["source"] for cell in made["cells"])
    loaded = {}
    for cell in made["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == [] and cell["execution_count"] is None
            if cell["source"].startswith("%load "):
                loaded[cell["id"].removesuffix("-load")] = code[cell["source"].removeprefix("%load ")]
    assert len(loaded) == len(code) > 0
    for cell in LESSONS[name]["cells"]:
        if cell["cell_type"] == "code":
            source = loaded.get(cell["id"], cells[cell["id"]]["source"])
            assert source.rstrip("\n") == "".join(cell["source"]).rstrip("\n")
    assert all(line.startswith("#") for id in loaded for line in cells[id]["source"].splitlines())


def test_the_zip_holds_lessons_their_code_and_drawings_and_no_answers(tmp_path):
    handout.write(tmp_path / "handout.zip")
    with zipfile.ZipFile(tmp_path / "handout.zip") as archive:
        names = archive.namelist()
        first = json.loads(archive.read("handout/00_start_here.ipynb"))
    (load,) = [cell["source"] for cell in first["cells"] if cell["id"] == "three-calls-load"]
    assert "handout/" + load.removeprefix("%load ") in names
    assert {f"handout/{name}.ipynb" for name in LESSONS} <= set(names)
    assert {"handout/pictures/stack.svg", "handout/pages/glossary.md"} <= set(names)
    assert not [name for name in names if "solutions" in name]


# ---------------------------------------------------------------- TEACHING.md

TEACHING = (ROOT / "TEACHING.md").read_text(encoding="utf-8")


PARTS = {int(row[0]): (row[1], int(row[2]), row[3]) for row in clock.rows(TEACHING, "parts")}


def test_parts_cover_each_lesson_and_come_after_what_they_need():
    assert list(PARTS) == list(range(1, len(PARTS) + 1))
    sections = {number: set() for number in lessons.BY_NUMBER}
    for number, (_, minutes, after) in PARTS.items():
        part = clock.parts(TEACHING)[str(number)]
        assert 10 <= minutes <= 40
        assert all(int(other) < number for other in re.findall(r"\d+", after))
        sections[part.lesson] |= set(range(part.first, part.last + 1))
    for number, covered in sections.items():
        text = "\n".join("".join(cell["source"]) for cell in LESSONS[lessons.BY_NUMBER[number].name]["cells"])
        numbered = {int(n) for n in re.findall(r"^## (\d+)\. ", text, re.M)}
        assert covered == numbered or covered > numbered | {0}, number


def test_a_plan_adds_up_and_each_part_comes_after_what_it_needs():
    three_days = []
    for plan, parts, blocks, minutes in clock.rows(TEACHING, "plans"):
        named = [int(part) for part in parts.split(", ")]
        assert sum(PARTS[part][1] for part in named) + 25 * int(blocks) == int(minutes), plan
        before = three_days if plan.startswith("three days") else []
        for part in named:
            assert {int(other) for other in re.findall(r"\d+", PARTS[part][2])} <= set(before), (plan, part)
            before.append(part)
    assert sorted(three_days) == list(PARTS), "in three days each part is taught once"


def test_each_part_has_something_to_say():
    said = re.findall(r"^\*\*([\d, ]+)\. ", TEACHING, re.M)
    assert [int(part) for entry in said for part in entry.split(", ")] == list(PARTS)


def test_the_minutes_of_parts_are_those_of_the_clock():
    minutes = {}
    for part, *figures in clock.rows(TEACHING, "clock"):
        minutes[part] = clock.Times(*map(int, figures)).minutes
    assert list(minutes) == list(clock.parts(TEACHING)), "`make clock` after parts have changed"
    assert clock.planned(TEACHING, minutes) == TEACHING, "`make clock` after parts or plans have changed"


def ran(source, seconds, id="cell"):
    stamps = {
        "iopub.execute_input": "2026-01-01T00:00:00Z",
        "shell.execute_reply": f"2026-01-01T00:00:{seconds:04.1f}Z",
    }
    return {"cell_type": "code", "id": id, "metadata": {"execution": stamps}, "source": source}


def test_a_part_adds_up_its_words_cells_lines_questions_and_seconds():
    told = [
        "# Title\n\nThree words here.",
        "## 1. One\n\n[two words](and/no/address)\n\n| no | table |\n\n$x$",
        "**Predict before you run.** Which?\n\n<details>not this</details>",
        "## 2. Two\n\nText.",
        "Last.\n\n## Recap\n\nNot counted.",
    ]
    text = [{"cell_type": "markdown", "id": f"text-{n}", "metadata": {}, "source": part} for n, part in enumerate(told)]
    cells = [text[0], ran("import a", 0.5), text[1], ran("a\nb", 1, "typed"), text[2], ran("c", 2)]
    cells += [text[3], ran("d", 4, "typed-too"), text[4], ran("e", 8)]
    whole, first, second = (clock.Part("00", *ends) for ends in ((0, 999), (1, 1), (2, 2)))
    assert clock.times(first, {"cells": cells}) == (4 + 4 + 5, 2, 2, 1, 3.5, 0)
    assert clock.times(second, {"cells": cells}) == (3 + 1, 0, 1, 0, 4, 3.5)
    assert clock.times(whole, {"cells": cells}) == (17, 2, 3, 1, 7.5, 0)
    assert clock.Times(1300, 8, 8, 1, 120, 0).minutes == 5 * math.ceil((10 + 2 + 2 + 3 + 2) * 1.25 / 5)


# ---------------------------------------------------------------- the Makefile and who calls it


def test_the_workflow_and_the_container_only_call_targets_that_exist():
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    assert set(workflow[True]) == {"push", "pull_request", "schedule"}  # YAML takes `on` for true
    steps = []
    for job in workflow["jobs"].values():
        assert job.get("needs", "test") in workflow["jobs"]
        steps += job["steps"]
    assert all(("run" in step) != bool(re.search(r"^actions/[\w-]+@v\d+$", step.get("uses", ""))) for step in steps)
    commands = [step["run"] for step in steps if "run" in step]
    container = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text())
    started = json.loads(re.search(r"^CMD (.*)", (ROOT / ".devcontainer" / "Dockerfile").read_text(), re.M)[1])
    targets = set(re.findall(r"^([a-z-]+):.*## ", MAKEFILE, re.M))
    for command in (*commands, container["postAttachCommand"], " ".join(started)):
        make, *called = (word for word in re.sub(r"\$\{\{.*?\}\}", "", command).split() if "=" not in word)
        assert make == "make" and called and set(called) <= targets


def test_wheels_are_collected_for_what_make_lab_and_make_site_install():
    (recipe,) = re.findall(r"^wheels: .*\n((?:\t.*\n)+)", MAKEFILE, re.M)
    assert "--require-hashes -r $(LOCK)" in recipe and "--group site" in recipe
    assert re.search(r"^\$\(READER\):.*\n.*\n\t\$\(call install,\$\(LOCK\),", MAKEFILE, re.M)
    assert "$(SITE_PIP) --group site" in MAKEFILE


def test_the_environment_of_the_site_holds_no_framework():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert not re.search("torch|tvm|onnx|jupyter", " ".join(project["dependency-groups"]["site"]))
