"""The course's tests: what all tests share, of the engine's tests/testing.py, and what is for notebooks alone."""

import json
import os
import sys
import tempfile
from pathlib import Path

import forked
import nbval.kernel
import pytest
import traitlets

ROOT = Path(__file__).parents[1]
NOTEBOOKS = ROOT / "notebooks"
# What takes longest, and starts before the engine's tests.
_LONGEST = (
    "notebooks/10_tuning.ipynb", "notebooks/21_mxnet_gluoncv.ipynb",
    "notebooks/12_distributed_tuning.ipynb", "notebooks/solutions/12_distributed_tuning.ipynb",
    "tests/test_classic_notes.py",
)  # fmt: skip
# As in `testing`: what is computed is tested, not machine code.
_UNOPTIMIZED = {
    ROOT / "tests" / f"test_{name}.py" for name in ("language", "notebook_01", "notebook_04", "notebook_21")
}
# They start servers, or tune until a step has had so many trials.
_ALONE = {NOTEBOOKS / "12_distributed_tuning.ipynb", NOTEBOOKS / "solutions" / "12_distributed_tuning.ipynb"}
# Answers that tune, profile, start processes and build whole networks; the other, short ones run in `make test` too.
_FULL = {NOTEBOOKS / "solutions" / f"{name}.ipynb"
         for name in ("00_start_here", "02_onnx_import", "09_profiling", "15_deploy",
                      "12_distributed_tuning", "17_gpu", "22_running_old_scripts")}  # fmt: skip


def pytest_addoption(pluginmanager):
    pluginmanager.import_plugin("testing")
    testing = pluginmanager.get_plugin("testing")
    testing.LONGEST[:0] = [ROOT / name for name in _LONGEST]
    testing.UNOPTIMIZED |= _UNOPTIMIZED
    forked.IMPORTED += ["ipykernel.kernelapp", "tvmnotes.models"]


class KernelOnFiles(nbval.kernel.KernelManager):
    """A kernel that talks through sockets in the file system.

    Jupyter looks for free ports and gives them up again; another process may have one by the time the kernel wants it.
    """

    @traitlets.default("transport")
    def _transport(self):
        return "ipc"

    @traitlets.default("ip")
    def _path(self):
        return tempfile.mktemp(prefix="tvmnotes-kernel-")


@pytest.hookimpl(trylast=True)
def pytest_sessionstart(session):
    """The notebooks' kernels are forks, where there is a fork server by now."""
    nbval.kernel.KernelManager = KernelOnFiles
    if forked.SOCKET not in os.environ:
        return
    session.config.option.nbval_current_env = False  # else nbval takes no kernel of JUPYTER_PATH
    if "PYTEST_XDIST_WORKER" not in os.environ:
        folder = Path(os.environ[forked.SOCKET]).parent
        kernel = folder / "kernels" / "python3" / "kernel.json"
        kernel.parent.mkdir(parents=True)
        command = [sys.executable, forked.__file__, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        kernel.write_text(json.dumps({"argv": command, "display_name": "Python 3", "language": "python"}))
        os.environ["JUPYTER_PATH"] = str(folder)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Leave out the answers that are for `make test-full` alone."""
    testing = config.pluginmanager.get_plugin("testing")
    if testing.QUICK:
        testing.leave_out(config, items, [item for item in items if item.path in _FULL])
    for item in items:
        if item.path in _ALONE:
            item.add_marker("alone")
        if hasattr(item, "output_timeout"):  # nbval's seconds from a cell's end to its last output
            item.output_timeout = 120
