"""A hook of MkDocs: formulas become MathML, which browsers draw by themselves, without a script.

pymdownx.arithmatex has put each formula of a page between the marks of TeX, in an element of its own class.
"""

import html
import re

from latex2mathml import converter

_FORMULA = re.compile(
    r'<(span|div) class="arithmatex">(?:\\\(|\\\[)(.*?)(?:\\\)|\\\])</\1>', re.S
)  # \(…\) in a line, \[…\] by itself


def on_page_content(content: str, **_) -> str:
    """Replace the formulas of a page's HTML."""
    return _FORMULA.sub(_mathml, content)


def _mathml(found: re.Match) -> str:
    display = "inline" if found[1] == "span" else "block"
    return converter.convert(html.unescape(found[2]), display=display)
