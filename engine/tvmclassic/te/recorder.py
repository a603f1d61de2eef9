"""A `tvm.s_tir.Schedule` that writes down each call as a line of Python: what ran is what the script says."""

import keyword
import re

import tvm

from .stage import ScheduleError

_TAKEN = {"tvm", "T", "I", "sch", "mod"}
_REFUSALS = (tvm.s_tir.ScheduleError, RuntimeError, ValueError, TypeError, IndexError, AssertionError)


class Recorder:
    """Calls methods of `sch`, a schedule of `func`, and keeps the calls for `lines`."""

    def __init__(self, func: tvm.tirx.PrimFunc):
        self.sch = tvm.s_tir.Schedule(func)
        # Of each call the names of its results, its text, and whether it has more results.
        self._calls: list[tuple[list[str], str, bool]] = []
        self._names: dict[int, str] = {}
        self._kept: list = []  # what `_names` has the ids of
        self._used = set(_TAKEN) | {str(func.attrs["global_symbol"])}

    def call(self, where: str, method: str, *args, names=(), **options):
        """Call a method of the schedule.

        Args:
            where: What the script asked for, for errors: "te: split of stage C, axis i".
            method: The method's name.
            *args: Its arguments, of which those that earlier calls returned go by their names.
            names: Wanted names of the results in the script: for `get_loops`, of the innermost ones, which
                alone are returned.
            **options: Its arguments by keyword.

        Raises:
            ScheduleError: TVM refuses; with its reason.
        """
        try:
            result = getattr(self.sch, method)(*args, **options)
        except _REFUSALS as error:
            raise ScheduleError(f"{where}: today's TVM refuses {method}: {_reason(error)}") from error
        results = list(result) if isinstance(result, list | tuple) else [result]
        more = len(results) > len(names) > 0
        if more:
            results = results[len(results) - len(names) :]
        given = [self._text(arg) for arg in args]
        given += [f"{name}={self._text(value)}" for name, value in options.items()]
        fresh = [self._name(each, name) for each, name in zip(results, names, strict=False)]
        self._calls.append((fresh, f"sch.{method}({', '.join(given)})", more))
        return results if isinstance(result, list | tuple) else result

    def note(self, text: str) -> None:
        """Add a comment to the script."""
        self._calls.append(([], f"# {text}", False))

    def lines(self) -> list[str]:
        """Return the calls as lines. Results that no later line uses get no name."""
        lines, later = [], ""
        for names, call, more in reversed(self._calls):
            names = [name if re.search(rf"\b{name}\b", later) else "_" for name in names]
            line = call
            if set(names) - {"_"}:
                while more and names[0] == "_":
                    names = names[1:]
                targets = ["*_", *names] if more else names
                line = f"{', '.join(targets)}{',' * (len(targets) == 1 and 'get_loops' in call)} = {call}"
            elif call.startswith(("sch.get_loops", "sch.get_sblock")):
                continue
            later += call
            lines.append(line)
        return lines[::-1]

    def _name(self, result, wanted: str) -> str:
        name = stem = re.sub(r"\W", "_", wanted).lstrip("_0123456789") or "x"
        number = 0
        while name in self._used or keyword.iskeyword(name):
            number += 1
            name = f"{stem}_{number}"
        self._used.add(name)
        self._names[id(result)] = name
        self._kept.append(result)
        return name

    def _text(self, value) -> str:
        if isinstance(value, list | tuple):
            return f"[{', '.join(map(self._text, value))}]"
        return self._names.get(id(value)) or repr(value)


def _reason(error: BaseException) -> str:
    """Return what an error of TVM's says, without its rendering of the program."""
    text = str(error)
    _, found, message = text.rpartition("Error message:")
    lines = [line.strip() for line in (message if found else text).strip().splitlines()]
    return " ".join(filter(None, lines[:4]))
