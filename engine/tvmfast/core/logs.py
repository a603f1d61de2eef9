"""What the variable TVMFAST_LOG shows of the standard library's loggers, "tvmfast" and those below it.

Without it nothing is set up: a program that uses tvmfast configures logging itself. Each module has the
logger of its name, `logging.getLogger(__name__)`.
"""

import logging
import os
import warnings
from pathlib import Path

VARIABLE = "TVMFAST_LOG"
_LEVELS = {name: getattr(logging, name.upper()) for name in ("debug", "info", "warning", "error")}
_PACKAGE = Path(__file__).resolve().parents[1]


def set_up() -> None:
    """Send what TVMFAST_LOG asks for to stderr; warn, and set up nothing, if it is not understood."""
    logger = logging.getLogger(_PACKAGE.name)
    logger.addHandler(logging.NullHandler())  # as libraries do: else Python prints warnings by itself
    try:
        levels = _parse(os.environ.get(VARIABLE, ""))
    except ValueError as error:
        warnings.warn(f"{error}; nothing is logged", stacklevel=3)
        return
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)
    if levels:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
        logger.addHandler(handler)


def _parse(setting: str) -> dict[str, int]:
    """Return the level of each logger that a setting names, "info" or "tvmfast.compiler=debug,…"."""
    levels = {}
    for part in filter(None, map(str.strip, setting.split(","))):
        name, _, level = part.rpartition("=")
        name = name or _PACKAGE.name
        path = _PACKAGE.parent.joinpath(*name.split("."))
        known = name.split(".")[0] == _PACKAGE.name and (path.is_dir() or path.with_suffix(".py").is_file())
        level = level.lower()
        if level not in _LEVELS or not known:
            raise ValueError(
                f"{VARIABLE}: expected {', '.join(_LEVELS)}, or modules with one of these, such as "
                f"tvmfast.compiler=debug,tvmfast.frontends=info; got {part!r}"
            )
        levels[name] = _LEVELS[level]
    return levels
