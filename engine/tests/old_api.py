"""The old API for the length of a test file, which imports `enabled`, and its modules as names of the file."""

import importlib

import pytest

import tvmclassic


@pytest.fixture(scope="module", autouse=True)
def enabled():
    """The old API, in the files that import this, only."""
    tvmclassic.enable()
    yield
    tvmclassic.disable()


class Module:
    """`tvm.relay`, or another module by its name, which is there only while the old API is enabled."""

    def __init__(self, name: str = "tvm.relay"):
        self._name = name

    def __getattr__(self, name):
        return getattr(importlib.import_module(self._name), name)
