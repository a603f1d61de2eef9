"""Runs a script, or a module, with the old API in place, as `python SCRIPT` or `python -m MODULE` would."""

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
    """Run `name` with `args` as its `sys.argv[1:]`.

    What it raises ends the process with exit code 1 and a traceback that begins in the script; its SystemExit passes.
    Raises FileNotFoundError where there is no such script or module.
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
    """Whether Python finds a module; to look for it imports the packages around it."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError as error:
        return not f"{module}.".startswith(f"{error.name}.")
    except Exception:  # a package's own, which it raises again when it runs
        return True


def _run_module(name: str) -> None:
    """A module of old has no file to run: its `main` is called."""
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
