"""The rows of `names.csv`, and error messages that say what replaced an unsupported name.

A row holds the kind of an old name, the name, its current name and a note; for a removed name the note is the
reason. `names` turns them into tables.
"""

import csv
import difflib
import re
import types
from pathlib import Path

ROWS: dict[str, dict[str, tuple[str, str]]] = {}  # by kind and old name: current name, note
with open(Path(__file__).with_name("names.csv"), newline="", encoding="utf-8") as _file:
    for _kind, _old, *_row in list(csv.reader(_file))[1:]:
        ROWS.setdefault(_kind, {})[_old] = tuple(_row)
_GONE = {old.removeprefix("tvm."): note for old, (_, note) in ROWS["gone"].items()}
# What old scripts also import from elsewhere: a name that says by itself what it is.
_BY_NAME = {
    old.rpartition(".")[2]: note for old, note in _GONE.items() if not re.search("contrib|topi|_ffi_api", old)
}


class StubModule(types.ModuleType):
    """An old module. Its AttributeErrors suggest similar names or say what replaced a name."""

    def __getattr__(self, name: str):
        if name.startswith("__"):
            raise AttributeError(name)
        raise AttributeError(missing(self.__name__, name, self.__dict__))


def named(owner, names: str) -> dict:
    """Return attributes of a module or class, by name."""
    return {name: getattr(owner, name) for name in names.split()}


def missing(module: str, name: str, others) -> str:
    """Return the error message for `module.name`; `others` are the names that the module has."""
    path = f"{module}.{name}".removeprefix("tvm.").split(".")
    around = (_GONE.get(".".join(path[:end])) for end in range(len(path), 0, -1))
    reasons = (*around, *(_BY_NAME.get(part) for part in reversed(path[-2:])))
    if gone := next(filter(None, reasons), None):
        return f"{module}.{name}: {gone}"
    near = difflib.get_close_matches(name, [other for other in others if other[0] != "_"], n=3, cutoff=0.5)
    hint = f"; near names: {', '.join(near)}" if near else ""
    return f"tvmclassic serves no {module}.{name}{hint}"
