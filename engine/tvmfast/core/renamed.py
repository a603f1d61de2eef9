"""What bears the engine's name, which was tvmnotes until 0.1, and is found by either.

    environment variables    TVMFAST_CACHE, else TVMNOTES_CACHE, and so on: `variable`
    the cache folder         `data.cache`
    saved networks           the functions of runtime/pool.cc in lib.so, and what killed saves have left:
                             runtime/pool.py, runtime/saved.py
    TVM's modules as JSON    their attributes and calls: `in_json`

Records need nothing: none of their fields bears it.
"""

import os

NAMES = ("tvmfast", "tvmnotes")  # the first is written, all are read


def spelled(variable: str) -> str:
    """Return the name by which a variable is set, such as TVMFAST_CACHE of "CACHE"; if none is, the first."""
    names = [f"{name.upper()}_{variable}" for name in NAMES]
    return next(filter(os.environ.get, names), names[0])


def variable(name: str, default: str = "") -> str:
    """Return the value of a variable such as "CACHE"; `default` if it is unset or empty."""
    return os.environ.get(spelled(name)) or default


def in_json(text: str) -> str:
    """Return the JSON of a module of TVM with the names of today."""
    name, *former = NAMES
    for each in former:
        text = text.replace(f'"{each}.', f'"{name}.')
    return text
