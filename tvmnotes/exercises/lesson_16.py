"""Exercises of lesson 16: unpacking safely, and the same library on a server."""

import io
import tarfile
import tempfile
from pathlib import Path

import tvm

from tvmfast.api import build

from .. import digits, models
from ..processes import Processes, free_port, retried
from .exercise import array, exercise, require


def _pack(archive: Path, names: list[str], link: str | None = None) -> None:
    """Write an archive of files, before them a link to the folder above."""
    with tarfile.open(archive, "w") as out:
        if link is not None:
            entry = tarfile.TarInfo(link)
            entry.type, entry.linkname = tarfile.SYMTYPE, ".."
            out.addfile(entry)
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
        inside = outer / "objects"
        answer(outer / "net.tar", inside)
        got = sorted(path.name for path in inside.rglob("*.o"))
        do = "Extract all files of the archive into the folder."
        require(got == ["devc.o", "lib0.o"], "the files of net.tar", ["devc.o", "lib0.o"], got, do)
        for what, kind, names, link in (
            ("the path ../outside.o", "paths", ["lib0.o", "../outside.o"], None),
            ("a link to the folder above", "links", ["up/outside.o"], "up"),
        ):
            _pack(outer / "evil.tar", names, link)
            try:
                answer(outer / "evil.tar", outer / "evil")
                refused = False
            except Exception:
                refused = True
            left = (outer / "outside.o").exists()
            do = f"Let tarfile refuse {kind} that lead outside of the folder."
            told = f"the files outside of the folder, of an archive with {what}"
            require(not left, told, "none", "outside.o", do)
            require(refused, f"an archive with {what}", "an error", "none", do)


@exercise(
    "16.2",
    "Upload lib.so and params.bin, call remote.load_module, and pass the parameters in the graph's order.",
    "The order is json.loads((saved / 'graph.json').read_text())['params']. The functions that read the file "
    "are on the server: remote.get_function('runtime.LoadParamsFromFile'), as in section 3.",
    minutes=25,
    difficulty=2,
)
def on_the_server(answer):
    """A saved network, run on a server."""
    images, _ = digits.load_test_set()
    pictures = digits.preprocess(images[138:140])
    lib = build(models.load("digits"), {"image": (2, 1, 32, 32)})
    with tempfile.TemporaryDirectory() as name:
        saved = lib.save(Path(name) / "net")
        board = Path(name) / "board"
        board.mkdir()
        processes = Processes()
        port = free_port()
        place = ["--host", "127.0.0.1", "--port", port, "--port-end", port + 1]
        processes.start(
            "server", "tvm.exec.rpc_server", *place, folder=board, environment={"TVM_USE_RUNTIME_LIB": "1"}
        )
        try:
            remote = retried(lambda: tvm.rpc.connect("127.0.0.1", port))
            got = array(answer(remote, saved, pictures))
            there = Path(remote.get_function("tvm.rpc.server.workpath")("lib.so"))
            do = "Upload the library, and load it there: remote.load_module. Here it proves nothing."
            require(there.exists(), "the library on the server", "lib.so", "none", do)
            del remote
        finally:
            processes.end_all()
    here = lib(pictures)
    do = "Return the scores of both pictures, as an array: call numpy() on the result."
    require(got.shape == here.shape, "the shape of the scores", here.shape, got.shape, do)
    differ = int((got != here).sum())
    do = (
        "The same code on the same numbers gives the same bits. Are the parameters in the order of the graph?"
    )
    require(differ == 0, "the scores that differ from those here", 0, differ, do)
