"""`show` prints the first lines of a TVM program as its own method does; `show.loops` plays its loops."""

import re
from typing import Any

from .loops import loops

_SHOWN = 3  # parameters of a shortened signature
_HEADER = "# from tvm."  # TVMScript begins with how it would be imported


def show(program: Any, lines: int | None = None) -> None:
    """Print a TVM program as TVMScript, without the comments on how TVMScript is imported.

    With `lines`, a signature of many parameters, such as a network's with its weights, is shortened.

    Args:
        program: An IRModule, a function or a PrimFunc.
        lines: Number of lines; None means all. A last comment counts those not shown.

    Raises:
        TypeError: The program has no script.
        ValueError: `lines` is below 1.
    """
    from tvm.script.highlight import cprint  # for speed: the course's other modules need no TVM

    if not callable(getattr(program, "script", None)):
        raise TypeError(
            f"program: expected an IRModule, a function or a PrimFunc; got {type(program).__name__}"
        )
    if lines is not None and lines < 1:
        raise ValueError(f"lines: expected 1 or more, or None for all; got {lines}")
    script = program.script().splitlines()
    while script and (script[0].startswith(_HEADER) or not script[0].strip()):
        script.pop(0)
    shown = script if lines is None else [_shortened(line) for line in script[:lines]]
    if left := len(script) - len(shown):
        shown.append(f"# ... {left} more lines")
    cprint("\n".join(shown))


show.loops = loops


def _shortened(line: str) -> str:
    """Leave out all but the first parameters of a long signature."""
    parameters = re.split(r", (?=\w+: )", line)
    left = len(parameters) - _SHOWN
    if not re.match(r" *def ", line) or left <= _SHOWN:
        return line
    return ", ".join([*parameters[:_SHOWN], f"... {left} more" + line[line.rindex(") -> ") :]])
