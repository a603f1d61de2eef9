"""The course as Markdown pages, which hooks.py hands to MkDocs. Outputs are the stored ones.

nbconvert writes a notebook's cells as page.md.j2 says; pages and pictures in notebooks/ stay as they are.
"""

import html
import re
from pathlib import Path

import nbformat
from nbconvert import MarkdownExporter
from nbconvert.preprocessors import CoalesceStreamsPreprocessor

import tvmfast
import tvmnotes
from tvmnotes import lessons

ROOT = lessons.ROOT
NOTEBOOKS = ROOT / "notebooks"
HERE = Path(__file__).parent
# Pages that are a file elsewhere.
_OTHERS = {
    "index.md": "README.md",
    "teaching.md": "TEACHING.md",
    "engine.md": "engine/README.md",
    "upstream.md": "engine/UPSTREAM.md",
}
_ABOUT_API = """# The package

`import tvmnotes as tn` gives these names. The [cheat sheet](pages/cheat_sheet.md) has TVM's own beside them.
"""


def program(shown: str) -> str:
    """Return the text of a program that was highlighted, for the colours of the page."""
    return html.unescape(re.sub("<[^>]*>", "", shown))


EXPORTER = MarkdownExporter(
    template_file=str(HERE / "page.md.j2"),
    filters={"program": program},
    preprocessors=[CoalesceStreamsPreprocessor],
)


def page(notebook: nbformat.NotebookNode, name: str) -> tuple[str, dict[str, bytes]]:
    """Write a notebook as a page.

    Args:
        notebook: The notebook.
        name: The page's name, with which its figures' names begin.

    Returns:
        The page's Markdown, and the content of each figure by the name of its file.
    """
    text, resources = EXPORTER.from_notebook_node(notebook, {"unique_key": name})
    return text, resources["outputs"]


def prose(text: str) -> str:
    """Make links to files links to their pages, and let MkDocs read the Markdown in a folded answer."""
    for name, file in _OTHERS.items():
        # The checkout's root is a folder above the site's.
        text = re.sub(rf"\]\((?:((?:\.\./)*)\.\./)?{file}(?=[)#])", rf"](\1{name}", text)
    text = text.replace("](UPSTREAM.md", "](upstream.md")  # beside the engine's README
    text = re.sub(r"(\]\([^):\s]+)\.ipynb(?=[)#])", r"\1.md", text)
    text = re.sub(r"\]\((?:\.\./)?notebooks/", "](", text)
    text = re.sub(r"^\[!\[.*\n", "", text, flags=re.M)  # badges, which are of GitHub
    return text.replace("<details>", '<details markdown="1">')


def api() -> str:
    """Write the page of the API. mkdocstrings puts docstrings in place of the lines that begin with `:::`."""
    parts = [_ABOUT_API, "## Functions"]
    parts += [f"::: tvmfast.{module}.{name}" for name, module in tvmfast.PUBLIC.items()]
    parts += [f"::: {module}.{name}" for name, module in tvmnotes.PUBLIC.items()]
    parts += ["## What they return", "::: tvmfast.runtime.compiled.Compiled"]
    parts += ["## Modules", *(f"::: {module}" for module in tvmnotes.MODULES.values())]
    return "\n\n".join(parts) + "\n"


def files() -> dict[str, str | bytes]:
    """Make the files of the site that notebooks/ does not have as they are, by their path in the site."""
    made: dict[str, str | bytes] = {
        "api.md": api(),
        "site.css": (HERE / "site.css").read_text(encoding="utf-8"),
    }
    made |= {name: (ROOT / file).read_text(encoding="utf-8") for name, file in _OTHERS.items()}
    for folder in ("", "solutions/"):
        for lesson in lessons.LESSONS:
            notebook = nbformat.read(NOTEBOOKS / f"{folder}{lesson.name}.ipynb", as_version=4)
            made[f"{folder}{lesson.name}.md"], figures = page(notebook, lesson.name)
            made |= {folder + name: content for name, content in figures.items()}
    return made


def title(text: str) -> str:
    """Return the heading with which a text begins."""
    return text.partition("\n")[0].removeprefix("# ")


def menu(made: dict[str, str | bytes]) -> list[dict]:
    """Make the menu of the site, which has these files beside those in notebooks/."""
    lists = [
        [
            {f"{each.number} {title(made[path])}": path}
            for each in lessons.LESSONS
            for path in [f"{folder}{each.name}.md"]
        ]
        for folder in ("", "solutions/")
    ]
    beside = sorted(path.relative_to(NOTEBOOKS).as_posix() for path in NOTEBOOKS.rglob("*.md"))
    return [
        {"Start": "index.md"},
        {"Lessons": lists[0]},
        {"Answers": lists[1]},
        {"Reference": [*beside, "api.md", "engine.md", "upstream.md"]},
        {"For teachers": "teaching.md"},
    ]
