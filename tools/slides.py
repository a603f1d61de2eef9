"""Slides of a lesson, made of what it has already: its headings, figures, drawings, questions and recap.

Each lesson becomes one HTML file that holds its figures and loads nothing, so it works from a stick. Arrow
keys, space and Page Down turn the slides; printed, each slide is a page. Of a long table a slide shows the
first rows, and text is as large as fits, within limits.

`python -m tools.slides FOLDER` writes one file for each lesson.
"""

import base64
import html
import json
import re
import sys
from pathlib import Path

import mistune

from tvmnotes import lessons

from . import pages

ROWS = 10  # of a table, at most
_ENDINGS = {".svg": "svg+xml", ".png": "png"}
_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
html {{ scroll-snap-type: y mandatory; font: 2.4vmin/1.4 sans-serif; }}
body {{ margin: 0; }}
section {{ box-sizing: border-box; height: 100vh; overflow: auto; padding: 5vmin 9vmin;
           scroll-snap-align: start; scroll-snap-stop: always; break-after: page; }}
h1, h2 {{ font-size: 5vmin; margin: 0 0 3vmin; }}
img {{ display: block; width: 100%; height: 68vh; object-fit: contain; }}
table {{ border-collapse: collapse; margin: auto; }}
table + p {{ text-align: center; }}
td, th {{ padding: 0.4vmin 1.6vmin; text-align: right; border-bottom: 1px solid #ccc; }}
li {{ margin-bottom: 1.2vmin; }}
code {{ font-size: 90%; }}
footer {{ color: #666; font-size: 1.8vmin; }}
</style>
{slides}
<script>
const slides = [...document.querySelectorAll("section")];
const fit = () => slides.forEach(slide => {{
  const over = () => slide.scrollHeight > slide.clientHeight || slide.scrollWidth > slide.clientWidth;
  let size = 155;
  do slide.style.fontSize = (size -= 5) + "%"; while (over() && size > 50);
}});
fit();
addEventListener("resize", fit);
addEventListener("toggle", fit, true);
const turns = {{ ArrowRight: 1, ArrowDown: 1, PageDown: 1, " ": 1, ArrowLeft: -1, ArrowUp: -1, PageUp: -1 }};
addEventListener("keydown", event => {{
  if (!(event.key in turns) || event.target.closest("summary")) return;
  event.preventDefault();
  const here = Math.round(scrollY / innerHeight);
  slides[Math.min(slides.length - 1, Math.max(0, here + turns[event.key]))].scrollIntoView();
}});
</script>
</html>
"""


def slides(notebook: dict) -> list[str]:
    """Choose the slides of a lesson, in its order.

    They are its opening; each numbered heading with the tables and figures under it, one slide for each; each
    question with its folded answer; and the recap. A section without any of these is left out.

    Args:
        notebook: The lesson, as read from its JSON.

    Returns:
        The slides' HTML.
    """
    found = [_rendered(_opening("".join(notebook["cells"][0]["source"])))]
    heading = ""
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "code":
            found += [f"{heading}\n{shown}" for shown in filter(None, map(_shown, cell["outputs"]))]
            continue
        for part in re.split(r"^(?=##+ )", source, flags=re.M):
            if titled := re.match(r"## (\d+\. .*)", part):
                heading = _rendered(f"## {titled[1]}")
            if recap := re.match(r"## Recap\n\n(?:- .*\n?)+", part):
                found.append(_rendered(recap[0]))
            found += [f"{heading}\n{_rendered(question)}" for question in _questions(part)]
            found += [f"{heading}\n{_drawing(name, alt)}" for alt, name in _DRAWING.findall(part)]
    return found


_DRAWING = re.compile(r"!\[([^\]]*)\]\(([\w./-]+\.(?:svg|png))\)")


def _opening(text: str) -> str:
    """Return a lesson's heading and what it says one will learn."""
    heading, learn = text.partition("\n")[0], re.search(r"^\*\*What you will learn:\*\*.*", text, re.M)
    return f"{heading}\n\n{learn[0] if learn else ''}"


def _questions(text: str) -> list[str]:
    """List the questions of a text, each with its folded answer."""
    return re.findall(r"^\*\*Predict before you run\.\*\*.*?</details>", text, re.M | re.S)


def _rendered(text: str) -> str:
    """Return Markdown as HTML, links as plain text: a slide leads nowhere."""
    shown = mistune.create_markdown(escape=False, plugins=["table"])(text)
    return re.sub(r"</?a\b[^>]*>", "", shown)


def _shown(output: dict) -> str:
    """Return the HTML of an output that is a figure or a table, else nothing."""
    data = {kind: "".join(content) for kind, content in output.get("data", {}).items()}
    if svg := data.get("image/svg+xml"):
        return _image(".svg", svg.encode(), "the output of a cell")
    if png := data.get("image/png"):
        return _image(".png", base64.b64decode(png), "the output of a cell")
    shown = re.sub(r"<style scoped>.*?</style>", "", data.get("text/html", ""), flags=re.S)
    return _first_rows(shown.strip()) if "<table" in shown else ""


def _first_rows(table: str) -> str:
    """Return an HTML table with its first rows, and the number of those left out."""
    rows = [row for row in re.finditer(r"<tr.*?</tr>", table, re.S) if "<td" in row[0]]
    if len(rows) <= ROWS:
        return table
    table = table[: rows[ROWS].start()] + table[rows[-1].end() :]
    return f"{table}\n<p>… and {len(rows) - ROWS} more rows in the lesson</p>"


def _drawing(name: str, alt: str) -> str:
    return _image(Path(name).suffix, (pages.NOTEBOOKS / name).read_bytes(), alt)


def _image(ending: str, content: bytes, alt: str) -> str:
    encoded = base64.b64encode(content).decode()
    return f'<img src="data:image/{_ENDINGS[ending]};base64,{encoded}" alt="{html.escape(alt)}">'


def document(notebook: dict, number: str) -> str:
    """Return a lesson's slides as one HTML page."""
    found = slides(notebook)
    title = pages.title("".join(notebook["cells"][0]["source"]))
    sections = [
        f"<section>\n{slide}\n<footer>{number} · {page} of {len(found)}</footer>\n</section>"
        for page, slide in enumerate(found, 1)
    ]
    return _PAGE.format(title=html.escape(title), slides="\n".join(sections))


def write(folder: Path) -> None:
    """Write the slides of each lesson into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for lesson in lessons.LESSONS:
        notebook = json.loads((pages.NOTEBOOKS / f"{lesson.name}.ipynb").read_text(encoding="utf-8"))
        (folder / f"{lesson.name}.html").write_text(document(notebook, lesson.number), encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
