"""What of the installed TVM the engine still goes round; `make tvm-upgrade` runs this file.

The tests of each workaround of `tvmfast/core/compat.py` run as the engine is, and in another process without it.
If they pass in both, it may go. A race shows only sometimes: repeat before `pass_lock` goes.

The programs of `UPSTREAM.md` run in plain TVM, each in a process of its own. What one prints is compared, line by line,
with what the page says that TVM 0.27 prints, and with what is right.
"""

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from tvmfast.core.compat import REGISTERED

ENGINE = Path(__file__).parents[1]
PAGE = ENGINE / "UPSTREAM.md"
SECONDS = 300  # for a program, most of which take three
ANY = "…"  # in an expected line: whatever stands there


def outcome(tests: tuple[str, ...], without: str = "") -> str:
    """How tests end where one workaround is left out: "pass", "fail" or "skip"."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]
    env = {**os.environ, "TVMFAST_WITHOUT": without}
    done = subprocess.run(command, cwd=ENGINE, env=env, capture_output=True, text=True)
    if done.returncode:
        return "fail"
    return "skip" if " skipped" in done.stdout.splitlines()[-1] else "pass"


def verdict(name: str) -> str:
    """Whether a workaround is needed, by its tests."""
    tests = REGISTERED[name].tests
    if not tests:
        return "no test"
    if (baseline := outcome(tests)) != "pass":
        return f"unknown: its tests {baseline} with it, too"
    return "may go" if outcome(tests, without=name) == "pass" else "needed"


# ---------------------------------------------------------------- UPSTREAM.md


class Fault(NamedTuple):
    """An entry of the page; `faulty` and `right` have a line for each that the program prints, or ends with."""

    title: str
    program: str
    faulty: tuple[str, ...]
    right: tuple[str, ...]
    way_round: str


def faults() -> list[Fault]:
    preamble, *entries = re.split(r"^### ", PAGE.read_text(), flags=re.M)
    begin = re.search(r"```python\n(.*?)```", preamble, re.S)[1]
    found = []
    for entry in entries:
        code = "".join(re.findall(r"```python\n(.*?)```", entry, re.S))
        faulty, right = zip(*re.findall(r"# 0\.27: (.+) \| right: (.+)$", code, re.M), strict=True)
        way = " ".join(entry.partition("Way round: ")[2].partition("\n\n")[0].split())
        found.append(Fault(entry.partition("\n")[0], begin + code, faulty, right, way))
    return found


def printed(program: str) -> list[str]:
    """What a program prints; if it fails, also the signal that ends it, or the last line of its error."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("TVM_")}
    with tempfile.TemporaryDirectory() as folder:
        file, out, err = (Path(folder, name) for name in ("program.py", "out", "err"))
        file.write_text(program)
        command = [sys.executable, "-u", "-W", "ignore", str(file)]
        with out.open("w") as stdout, err.open("w") as stderr:  # no pipes, which servers of its would keep open
            running = subprocess.Popen(
                command, cwd=folder, env=env, stdout=stdout, stderr=stderr, start_new_session=True
            )
            try:
                code = running.wait(SECONDS)
            except subprocess.TimeoutExpired:
                code = -signal.SIGKILL
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(running.pid, signal.SIGKILL)
                running.wait()
        lines, errors = (each.read_text(errors="replace").split("\n") for each in (out, err))
    end = [signal.Signals(-code).name] if code < 0 else [line for line in errors if line.strip()][-1:] if code else []
    return [line.rstrip() for line in lines if line.strip()] + end


def state(fault: Fault, lines: list[str]) -> str:
    """ "still there", "mended", which lines are, or what the program did that is neither."""

    def fits(expected: str, line: str) -> bool:
        return re.fullmatch(".*".join(map(re.escape, expected.split(ANY))), line) is not None

    mended = []
    for number, (line, faulty, right) in enumerate(zip(lines, fault.faulty, fault.right, strict=False), 1):
        if fits(right, line):
            mended.append(number)
        elif not fits(faulty, line):
            return f"cannot tell: {line}"
    if len(lines) != len(fault.right):
        return f"cannot tell: {len(lines)} lines where {len(fault.right)} were expected"
    if not mended:
        return "still there"
    return "mended" if len(mended) == len(lines) else f"mended in lines {', '.join(map(str, mended))}"


def main(names: list[str]) -> None:
    """Print a row for each workaround and each program, or for those that are named, by name or number."""
    for name in [name for name in names if not name.isdigit()] if names else REGISTERED:
        seen_in, _, reason = REGISTERED[name]
        print(f"{name:24} {seen_in:13} {verdict(name)}{reason and f' ({reason})'}", flush=True)
    for fault in faults():
        if not names or fault.title.partition(".")[0] in names:
            print(f"{fault.title}\n    {state(fault, printed(fault.program))}; {fault.way_round}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
