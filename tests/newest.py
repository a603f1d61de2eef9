"""Which releases in this environment are newer than the lock's; `make newest` prints them, then runs the smoke set."""

from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[1]


def locked() -> dict[str, str]:
    """The releases, by package, that the two locks have for this Python and machine."""
    lines = [line for name in ("lock.txt", "lock-tests.txt") for line in (ROOT / name).read_text().splitlines()]
    requirements = [Requirement(line.rstrip("\\ ")) for line in lines if line and line[0] not in "# "]
    return {r.name: next(iter(r.specifier)).version for r in requirements if not r.marker or r.marker.evaluate()}


def main() -> None:
    """Print a row for each package that is newer here, or new."""
    before = locked()
    for package in sorted(metadata.distributions(), key=lambda package: canonicalize_name(package.name)):
        name = canonicalize_name(package.name)
        if name in ("pip", "tvmfast", "tvmnotes"):
            continue
        if name not in before or Version(package.version) > Version(before[name]):
            print(f"{name:32} {before.get(name, '-'):20} {package.version}")


if __name__ == "__main__":
    main()
