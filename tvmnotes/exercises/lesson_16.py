"""Exercises of lesson 16: unpacking safely, and the same library on a server."""

import io
import tarfile
import tempfile
from pathlib import Path

import numpy as np

from .. import digits
from .exercise import array, exercise, require


def _pack(archive: Path, names: list[str]) -> None:
    with tarfile.open(archive, "w") as out:
        for name in names:
            entry = tarfile.TarInfo(name)
            entry.size = 4
            out.addfile(entry, io.BytesIO(b"code"))


@exercise(
    "16.1",
    "tarfile.open(archive) has a method extractall, whose argument filter refuses dangerous entries.",
    'with tarfile.open(archive) as opened: opened.extractall(folder, filter="data")',
    minutes=15,
    difficulty=2,
)
def unpack(answer):
    """Unpacking an archive that one does not trust."""
    with tempfile.TemporaryDirectory() as name:
        outer = Path(name)
        _pack(outer / "net.tar", ["devc.o", "lib0.o"])
        _pack(outer / "evil.tar", ["lib0.o", "../outside.o"])
        inside = outer / "objects"
        answer(outer / "net.tar", inside)
        got = sorted(path.name for path in inside.rglob("*.o"))
        do = "Extract all files of the archive into the folder."
        require(got == ["devc.o", "lib0.o"], "the files of net.tar", ["devc.o", "lib0.o"], got, do)
        try:
            answer(outer / "evil.tar", outer / "evil")
            refused = False
        except (tarfile.TarError, OSError, ValueError):
            refused = True
        left = [path.name for path in (outer, outer.parent) if (path / "outside.o").exists()]
        do = "Let tarfile refuse paths that lead outside of the folder."
        require(not left, "the files outside of the folder", "none", "outside.o", do)
        require(refused, "an archive with the path ../outside.o", "an error", "none", do)


@exercise(
    "16.2",
    "Upload lib.so and params.bin, call remote.load_module, and pass the parameters in order.",
    "The answer is a tuple: the scores from the server, and those of the same build here.",
    minutes=20,
    difficulty=2,
)
def same_bits(answer):
    """The scores of a build on the server, and here."""
    require(len(answer) == 2, "the number of results", 2, len(answer), "Pass (there, here).")
    there, here = (array(scores) for scores in answer)
    require(
        there.shape == here.shape == (1, 10),
        "the shapes",
        (1, 10),
        (there.shape, here.shape),
        "Use one picture.",
    )
    label = int(digits.load_test_set()[1][138])
    do = "Use the picture of the lesson, number 138, preprocessed."
    require(int(there.argmax()) == label, "the digit that the server reads", label, int(there.argmax()), do)
    differ = int((there != here).sum())
    do = "Run one build on both: another target may round differently."
    require(differ == 0, "the scores that differ", 0, differ, do)
    require(bool(np.isfinite(here).all()), "the scores", "finite numbers", here, do)
