"""Command line: `python -m tvmclassic [-m] SCRIPT [ARGS]...` runs a script with the old API enabled."""

import sys

from .runner import run


def main(args: list[str]) -> None:
    """Run the script or module that the arguments name, as `python` would."""
    as_module = args[:1] == ["-m"]
    name, *rest = args[as_module:] or [""]
    if not name or name in ("-h", "--help"):
        sys.exit("usage: python -m tvmclassic [-m] SCRIPT [ARGS]...\n\n" + __doc__)
    try:
        run(name, rest, as_module=as_module)
    except FileNotFoundError as error:
        print(error, file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main(sys.argv[1:])
