"""The package's own exceptions, and exceptions as short messages, including those without a text."""

import re

# TVM prints an operator with all its fields, of which `name` is the first with this name.
_OPERATOR = re.compile(r'ir\.Op\(span=.*?name="([^"]*)".*?support_level=\d+\)', re.DOTALL)


class Forbidden(ValueError):
    """A file contains something that would do more than such a file is for."""


class UnknownCpu(ValueError):
    """LLVM lists no such CPU, or attribute, for the architecture of a target."""


def lines(error: Exception | str) -> list[str]:
    """Split the text of an error, or a worker's message, into stripped lines without blank ones.

    An error without a text becomes the name of its type, and an empty message "no word".
    """
    name = "no word" if isinstance(error, str) else type(error).__name__
    return [line.strip() for line in str(error).splitlines() if line.strip()] or [name]


def one_line(error: Exception | str) -> str:
    """Join the text of an error into one line, with single spaces; TVM's operators are their names."""
    return _OPERATOR.sub(r"\1", " ".join(" ".join(lines(error)).split()))
