"""Exercises of lesson 15: the files that have changed since the save, and where the start spends its time."""

import hashlib
import json
import tempfile
from pathlib import Path

from .exercise import exercise, require


@exercise(
    "15.1",
    'json.loads((folder / "manifest.json").read_text())["files"] has a checksum for each name.',
    "hashlib.sha256((folder / name).read_bytes()).hexdigest() is a file's. A missing file has changed too.",
    minutes=20,
    difficulty=2,
)
def changed_files(answer):
    """The files of a saved network that have changed since the save."""
    contents = {"lib.so": b"library", "params.bin": b"parameters", "graph.json": b"{}"}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = {}
        for file, content in contents.items():
            (folder / file).write_bytes(content)
            files[file] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        (folder / "manifest.json").write_text(json.dumps({"files": files}))
        got = set(answer(folder))
        do = "Compare each file's SHA-256 with that of the manifest."
        require(got == set(), "the changed files of a fresh save", "none", sorted(got), do)
        (folder / "params.bin").write_bytes(b"parametert")
        got = set(answer(folder))
        do = "Compare checksums; a length or a date may stay the same when the content changes."
        require(
            got == {"params.bin"},
            "the changed files after a byte of params.bin",
            "params.bin",
            sorted(got),
            do,
        )
        (folder / "lib.so").unlink()
        got = set(answer(folder))
        do = "A file of the manifest that is not in the folder has changed too."
        require(got == {"params.bin", "lib.so"}, "the changed files without lib.so", "both", sorted(got), do)


@exercise(
    "15.2",
    "Let a program note time.time() after each step, and run it for the digits network and for ResNet-18.",
    "Imports do not depend on the network. Which of the other steps reads the parameters twice?",
    minutes=20,
    difficulty=2,
)
def step_that_differs(answer):
    """The step of the start that differs most between a small and a large network."""
    steps = ("interpreter", "import numpy", "import TVM's runtime", "load", "first run")
    require(answer in steps, "the step", f"one of {', '.join(steps)}", repr(answer), "Return its name.")
    do = "What comes before the network is opened cannot depend on it."
    require(answer in steps[3:], "the step", "one that depends on the network", repr(answer), do)
    do = "Compare the milliseconds of both networks, or count how often a step reads the parameters."
    require(
        answer == "load", "the step", "the one with the larger difference in milliseconds", repr(answer), do
    )
