"""Runs a script or module with the old API enabled, as `python SCRIPT` or `python -m MODULE` would."""

import importlib
import importlib.util
import runpy
import sys
import traceback
import types
from pathlib import Path

from . import enable
from .removed import StubModule

_FILES = {__file__, runpy.run_module.__code__.co_filename, importlib.import_module.__code__.co_filename}


def run(name: str, args: list[str], as_module: bool = False) -> None:
    """Run a script or module in this process.

    Args:
        name: Path of the script, or name of the module.
        args: Its `sys.argv[1:]`.
        as_module: Whether `name` is a module.

    Raises:
        FileNotFoundError: There is no such script or module.
        SystemExit: The script's own; with code 1 if it raised an exception, after printing a traceback that
            starts in the script; with code 130 if it was interrupted.
    """
    sys.argv = [name, *args]
    if as_module:
        enable()
        if not isinstance(sys.modules.get(name), StubModule) and not _is_there(name):
            raise FileNotFoundError(f"{name}: no such module")
        _guarded(lambda: _run_module(name))
        return
    path = Path(name)
    if not path.is_file():
        raise FileNotFoundError(f"{name}: no such script")
    sys.path[0] = str(path.resolve().parent)
    main = types.ModuleType("__main__")
    main.__file__, main.__builtins__ = str(path), __builtins__
    sys.modules["__main__"] = main
    enable()
    _guarded(lambda: exec(compile(path.read_bytes(), str(path), "exec"), main.__dict__))


def _is_there(module: str) -> bool:
    """Return whether Python finds a module; the search imports its parent packages."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError as error:
        return not f"{module}.".startswith(f"{error.name}.")
    except Exception:  # raised by a parent package, which raises it again when run
        return True


def _run_module(name: str) -> None:
    """Run a module; an old module has no file, so its `main` is called."""
    served = sys.modules.get(name)
    if not isinstance(served, StubModule):
        runpy.run_module(name, run_name="__main__", alter_sys=True)
        return
    main = vars(served).get("main")
    if main is None:
        raise ImportError(f"{name} is a module to import, there is nothing in it to run")
    sys.exit(main() if callable(main) else main.main())


def _guarded(call) -> None:
    try:
        call()
    except Exception as error:
        frames = error.__traceback__
        while frames is not None and frames.tb_frame.f_code.co_filename in _FILES:
            frames = frames.tb_next
        traceback.print_exception(error.with_traceback(frames))
        raise SystemExit(1) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None
