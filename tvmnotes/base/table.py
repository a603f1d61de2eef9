"""Base class of comparisons, profiles, traces and tunings: how they print and show in a notebook."""

from typing import ClassVar


class Table:
    """A result that prints as text and shows in a notebook: its `frame`, then its `summary`.

    A subclass defines `frame` and its format: `decimals` of a number; `formatters`, functions from a number
    to its text, by column, for columns that differ; `text_columns`, columns of text, which a notebook aligns
    to the left, without the row index.
    """

    summary = ""
    decimals = 2
    formatters: ClassVar[dict] = {}
    text_columns = ()

    def frame(self):
        """Return the result as a pandas DataFrame."""
        raise NotImplementedError

    def __str__(self) -> str:
        text = self.frame().to_string(
            float_format=f"{{:.{self.decimals}f}}".format, formatters=self.formatters
        )
        return f"{text}\n{self.summary}" if self.summary else text

    def __repr__(self) -> str:
        return str(self)

    def _styled(self):
        """Return the frame as a pandas Styler for a notebook."""
        style = (self.frame().reset_index(drop=True) if self.text_columns else self.frame()).style
        style = style.format(self.formatters, precision=self.decimals)
        if self.text_columns:
            style = style.hide(axis="index").set_properties(list(self.text_columns), **{"text-align": "left"})
        return style

    def _repr_html_(self) -> str:
        return self._styled().to_html() + (f"<p>{self.summary}</p>" if self.summary else "")
