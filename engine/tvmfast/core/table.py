"""Base class of comparisons, profiles, traces and tunings: how they print and show in a notebook; drawers.

A result hands its numbers to a drawer by name: a function that a module above has added to `drawers`.
"""

from collections.abc import Callable
from typing import Any, ClassVar

drawers: dict[str, Callable] = {}  # by name, each makes a figure
finders: list[Callable] = []  # each imports a module that adds to `drawers`


def drawer(function: Callable) -> Callable:
    """Add a function to `drawers`, by its name."""
    drawers[function.__name__] = function
    return function


def draw(name: str, *args: Any) -> Any:
    """Call a drawer; if there is none of this name, the finders are called first.

    Raises ImportError, which says what to install, if that does not bring it.
    """
    reason = None
    if name not in drawers:
        try:
            for find in finders:
                find()
        except ImportError as error:
            reason = error
    if name not in drawers:
        why = f" ({reason})" if reason else ""
        raise ImportError(
            f"cannot draw {name}: figures come from the package tvmnotes{why}. "
            "Install it (pip install tvmnotes) and import it, or take the numbers from frame()"
        ) from reason
    return drawers[name](*args)


class Table:
    """A result that prints as text and shows in a notebook: its `frame`, then its `summary`.

    A subclass defines `frame` and its format: `decimals` of a number; `formatters`, functions from a number
    to its text, by column, for columns that differ; `text_columns`, columns of text, which a notebook aligns
    to the left, without the row index.
    """

    summary = ""
    decimals = 2
    formatters: ClassVar[dict] = {}
    text_columns: tuple[str, ...] = ()

    def frame(self) -> Any:
        """Return the result as a pandas DataFrame."""
        raise NotImplementedError

    def __str__(self) -> str:
        text = self.frame().to_string(
            float_format=f"{{:.{self.decimals}f}}".format, formatters=self.formatters
        )
        return f"{text}\n{self.summary}" if self.summary else text

    def __repr__(self) -> str:
        return str(self)

    def _styled(self) -> Any:
        style = (self.frame().reset_index(drop=True) if self.text_columns else self.frame()).style
        style = style.format(self.formatters, precision=self.decimals)
        if self.text_columns:
            style = style.hide(axis="index").set_properties(list(self.text_columns), **{"text-align": "left"})
        return style

    def _repr_html_(self) -> str:
        return self._styled().to_html() + (f"<p>{self.summary}</p>" if self.summary else "")
