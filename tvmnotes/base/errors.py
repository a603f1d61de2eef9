"""This module has the one kind of error that is the package's own, and reads the texts of errors for sentences.

An error without a text is no trouble.
"""


class Forbidden(ValueError):
    """A file holds something that would do more than such a file is for."""


def lines(error: Exception | str) -> list[str]:
    """Split an error's text, or a worker's message, into lines, without blank ones and the spaces around them.

    There is at least one: what says nothing is called by the name of its type, and an empty message "no word".
    """
    name = "no word" if isinstance(error, str) else type(error).__name__
    return [line.strip() for line in str(error).splitlines() if line.strip()] or [name]


def one_line(error: Exception | str) -> str:
    """Join all that an error says into one line, with single spaces."""
    return " ".join(" ".join(lines(error)).split())
