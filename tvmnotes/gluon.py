"""GluonCV beside torch: it refuses to be imported where it can import a torch of version 2 or later."""

import importlib.abc
import importlib.machinery

from .env import without_torch


class Finder(importlib.abc.MetaPathFinder):
    """On `sys.meta_path`, has `import gluoncv` run `without_torch`."""

    def find_spec(self, name, path=None, target=None):
        spec = importlib.machinery.PathFinder.find_spec(name, path, target) if name == "gluoncv" else None
        if spec is not None:
            spec.loader = _Loader(spec.loader)
        return spec


class _Loader(importlib.abc.Loader):
    def __init__(self, loader):
        self._loader = loader

    def create_module(self, spec):
        return self._loader.create_module(spec)

    def exec_module(self, module) -> None:
        with without_torch():
            self._loader.exec_module(module)
