"""Which workarounds the installed TVM still needs; `make tvm-upgrade` runs this file.

The tests of each workaround of `tvmfast/core/compat.py` run as the engine is, and in another process without it.
If they pass in both, it may go. A race shows only sometimes: repeat before `pass_lock` goes.
"""

import os
import subprocess
import sys
from pathlib import Path

from tvmfast.core.compat import REGISTERED


def outcome(tests: tuple[str, ...], without: str = "") -> str:
    """How tests end where one workaround is left out: "pass", "fail" or "skip"."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]
    env = {**os.environ, "TVMFAST_WITHOUT": without}
    done = subprocess.run(command, cwd=Path(__file__).parents[1], env=env, capture_output=True, text=True)
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


def main(names: list[str]) -> None:
    """Print a row for each workaround, or for each that is named."""
    for name in names or REGISTERED:
        seen_in, _, reason = REGISTERED[name]
        print(f"{name:24} {seen_in:13} {verdict(name)}{reason and f' ({reason})'}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
