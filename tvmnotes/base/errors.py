"""What an error says, for a sentence about it."""


def lines(error: Exception | str) -> list[str]:
    """The lines of an error's text, or of a worker's message, without blank ones and the spaces around them.

    There is at least one: what says nothing is called by the name of its type, and an empty message "no word".
    """
    name = "no word" if isinstance(error, str) else type(error).__name__
    return [line.strip() for line in str(error).splitlines() if line.strip()] or [name]


def one_line(error: Exception | str) -> str:
    """All that an error says, in one line, with single spaces."""
    return " ".join(" ".join(lines(error)).split())
