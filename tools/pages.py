"""The course as Markdown pages, from which MkDocs makes a static site. Outputs are the stored ones.

`python -m tools.pages` writes the pages into .cache/site/pages and the settings of MkDocs
beside them. `make site` then runs MkDocs. Only the standard library is needed here.
"""

import base64
import html
import json
import re
import shutil
from pathlib import Path

import tvmfast
import tvmnotes
from tvmnotes import lessons

ROOT = lessons.ROOT
NOTEBOOKS = ROOT / "notebooks"
FOLDER = ROOT / ".cache" / "site"
SETTINGS = Path(__file__).with_name("mkdocs.yml")
_ABOUT_API = """# The package

`import tvmnotes as tn` gives these names. The [cheat sheet](cheat_sheet.md) sets them beside TVM's own calls.
"""


def page(notebook: dict, name: str) -> tuple[str, dict[str, bytes]]:
    """Write a notebook as a page.

    Args:
        notebook: The notebook, as read from its JSON.
        name: The page's name, with which its figures' names begin.

    Returns:
        The page's Markdown, and the content of each figure by the name of its file.
    """
    parts = []
    figures: dict[str, bytes] = {}
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(prose(source))
            continue
        parts.append(fenced(source, "python"))
        for number, output in enumerate(_joined(cell["outputs"])):
            parts.append(_output(output, f"{name}-{cell['id']}-{number}", figures))
    return "\n\n".join(parts) + "\n", figures


def prose(text: str) -> str:
    """Make links to files links to their pages, and let MkDocs read the Markdown in a folded answer."""
    text = text.replace("](README.md", "](index.md").replace("](TEACHING.md", "](teaching.md")
    text = re.sub(r"(\]\([^):\s]+)\.ipynb(?=[)#])", r"\1.md", text)
    return text.replace("<details>", '<details markdown="1">')


def fenced(text: str, kind: str) -> str:
    """Put text into a block of code; `kind` is its language, with further classes as in "text .output"."""
    longest = max(map(len, re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence} {{ .{kind} }}\n{text.rstrip()}\n{fence}"


def _joined(outputs: list[dict]) -> list[dict]:
    """Join what was printed in several pieces."""
    joined: list[dict] = []
    for output in outputs:
        if output["output_type"] == "stream" and joined and joined[-1]["output_type"] == "stream":
            joined[-1] = {**joined[-1], "text": [*joined[-1]["text"], *output["text"]]}
        else:
            joined.append(output)
    return joined


def _output(output: dict, stem: str, figures: dict[str, bytes]) -> str:
    """Write a cell's output as Markdown, its figure into `figures`."""
    if output["output_type"] == "stream":
        return fenced(_without_colours("".join(output["text"])), "text .output")
    if output["output_type"] == "error":
        return fenced(_without_colours("\n".join(output["traceback"])), "text .output")
    data = output["data"]
    drawing = figure_of(data)
    if drawing:
        ending, content = drawing
        figures[stem + ending] = content
        return f"![The output of the cell above]({stem}{ending}){{ .output }}"
    shown = "".join(data.get("text/html", ""))
    if "<table" in shown:
        return f'<div class="output">{table_of(shown)}</div>'
    if "<pre" in shown:  # a program that was highlighted, here in the colours of the page
        return fenced(html.unescape(re.sub("<[^>]*>", "", shown)), "python .output")
    return fenced(_without_colours("".join(data["text/plain"])), "text .output")


def figure_of(data: dict) -> tuple[str, bytes] | None:
    """Return the ending and content of the image file that an output's data hold, or None."""
    if "image/svg+xml" in data:
        return ".svg", "".join(data["image/svg+xml"]).encode()
    if "image/png" in data:
        return ".png", base64.b64decode("".join(data["image/png"]))
    return None


def table_of(shown: str) -> str:
    """Return an HTML table in one line, without the style that pandas gives to every table."""
    shown = re.sub(r"<style scoped>.*?</style>", "", shown, flags=re.S)
    return re.sub(r"\s*\n\s*", " ", re.sub(r">\s+<", "><", shown)).strip()


def _without_colours(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def api() -> str:
    """Write the page of the API. mkdocstrings puts docstrings in place of the lines that begin with `:::`."""
    parts = [_ABOUT_API, "## Functions"]
    parts += [f"::: tvmfast.{module}.{name}" for name, module in tvmfast.PUBLIC.items()]
    parts += [f"::: {module}.{name}" for name, module in tvmnotes.PUBLIC.items()]
    parts += ["## What they return", "::: tvmfast.runtime.compiled.Compiled"]
    parts += ["## Modules", *(f"::: {module}" for module in tvmnotes.MODULES.values())]
    return "\n\n".join(parts) + "\n"


def title(notebook: dict) -> str:
    """Return the heading of a notebook."""
    return "".join(notebook["cells"][0]["source"]).partition("\n")[0].removeprefix("# ")


def write(folder: Path = FOLDER) -> None:
    """Write all pages into folder/pages, and the settings of MkDocs into folder/mkdocs.yml."""
    pages = folder / "pages"
    shutil.rmtree(pages, ignore_errors=True)
    (pages / "solutions").mkdir(parents=True)
    menus: dict[str, list[dict[str, str]]] = {"Lessons": [], "Answers": []}
    for menu, inside in (("Lessons", ""), ("Answers", "solutions/")):
        for lesson in lessons.LESSONS:
            notebook = json.loads((NOTEBOOKS / f"{inside}{lesson.name}.ipynb").read_text(encoding="utf-8"))
            text, figures = page(notebook, lesson.name)
            (pages / f"{inside}{lesson.name}.md").write_text(text, encoding="utf-8")
            for name, content in figures.items():
                (pages / inside / name).write_bytes(content)
            menus[menu].append({f"{lesson.number} {title(notebook)}": f"{inside}{lesson.name}.md"})
    beside = sorted(NOTEBOOKS.glob("*.md"))
    for path in beside:
        (pages / path.name).write_text(prose(path.read_text(encoding="utf-8")), encoding="utf-8")
    for name, source in (("index", "README"), ("teaching", "TEACHING")):
        text = (ROOT / f"{source}.md").read_text(encoding="utf-8").replace("](notebooks/", "](")
        text = re.sub(r"^\[!\[.*\n", "", text, flags=re.M)  # badges, which are of GitHub
        (pages / f"{name}.md").write_text(prose(text), encoding="utf-8")
    (pages / "api.md").write_text(api(), encoding="utf-8")
    for drawing in NOTEBOOKS.glob("*.svg"):
        shutil.copy(drawing, pages)
    shutil.copy(SETTINGS.with_name("site.css"), pages)
    settings = {
        "INHERIT": str(SETTINGS),
        "docs_dir": str(pages),
        "site_dir": str(ROOT / "site"),
        "nav": [
            {"Start": "index.md"},
            *({menu: entries} for menu, entries in menus.items()),
            {"Reference": [*(path.name for path in beside), "api.md"]},
            {"For teachers": "teaching.md"},
        ],
    }
    (folder / "mkdocs.yml").write_text(json.dumps(settings, indent=1), encoding="utf-8")  # JSON is YAML


if __name__ == "__main__":
    write()
