"""The package's own exceptions, and exceptions as short messages, including those without a text."""


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
    """Join the text of an error into one line, with single spaces."""
    return " ".join(" ".join(lines(error)).split())
