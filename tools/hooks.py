"""What MkDocs calls: pages that are made, links to notebooks, and formulas as MathML, which needs no script.

pymdownx.arithmatex has put each formula of a page between the marks of TeX, in an element of its own class.
"""

import html
import re

from latex2mathml import converter
from mkdocs.structure.files import File

from tools import pages

_FORMULA = re.compile(
    r'<(span|div) class="arithmatex">(?:\\\(|\\\[)(.*?)(?:\\\)|\\\])</\1>', re.S
)  # \(…\) in a line, \[…\] by itself

_NAME = re.compile(r"(?<=\.html\">)(?:\d\d|capstone)_\w+(?=</a>)")


def on_files(files, config):
    """Add the pages that are made of other files, and the menu."""
    made = pages.files()
    for name, content in made.items():
        files.append(File.generated(config, name, content=content))
    config.nav = pages.menu(made)
    return files


def on_page_markdown(markdown: str, **_) -> str:
    """Lead links to pages."""
    return pages.prose(markdown)


def on_page_content(content: str, **_) -> str:
    """Replace the formulas of a page's HTML, and let the names of lessons break where their words end."""
    content = _NAME.sub(lambda found: found[0].replace("_", "_<wbr>"), content)
    return _FORMULA.sub(_mathml, content)


def _mathml(found: re.Match) -> str:
    display = "inline" if found[1] == "span" else "block"
    return converter.convert(html.unescape(found[2]), display=display)
