"""Exercises of lesson 15: the files that have changed since the save, and why a machine cannot run it."""

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
            files[file] = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
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
    "Three of the keys must be equal. The machine may have instruction sets that the library does not use.",
    'set(manifest["instruction_sets"]) <= set(machine["instruction_sets"]) compares these; for versions, '
    "look at the packages that the manifest names.",
    minutes=15,
    difficulty=2,
)
def cannot_run(answer):
    """Why a machine cannot run a saved network."""
    manifest = {
        "format": 6,
        "versions": {"apache-tvm": "0.27.0", "apache-tvm-ffi": "0.1.14"},
        "target": {"kind": "llvm", "mcpu": "znver2"},
        "architecture": "x86_64",
        "instruction_sets": ["sse4.2", "avx", "avx2", "fma"],
        "system": "Linux",
        "opt_level": 3,
    }
    here = {
        "versions": {"apache-tvm": "0.27.0", "apache-tvm-ffi": "0.1.14"},
        "architecture": "x86_64",
        "instruction_sets": ["avx2", "avx", "fma", "sse4.2"],
        "system": "Linux",
    }
    larger = [*here["instruction_sets"], "avx512f"]
    others = {**here["versions"], "numpy": "2.3.1"}
    older = {**here["versions"], "apache-tvm-ffi": "0.1.12"}
    cases = (
        ("the machine that saved it", {}, set(), "The order of instruction sets says nothing."),
        (
            "a newer processor",
            {"instruction_sets": larger},
            set(),
            "A processor may have more instruction sets than the library uses. Does it have all of those?",
        ),
        (
            "an older processor",
            {"instruction_sets": ["sse4.2", "avx"]},
            {"instruction_sets"},
            "avx2 and fma are missing: the process would end with an illegal instruction.",
        ),
        (
            "one with other instruction sets",
            {"instruction_sets": ["sse4.2", "avx", "avx512f", "bmi2"]},
            {"instruction_sets"},
            "As many are not the same ones.",
        ),
        (
            "a machine with more packages",
            {"versions": others},
            set(),
            "Packages that the manifest does not name do not matter.",
        ),
        ("another TVM", {"versions": older}, {"versions"}, "Compare each version that the manifest names."),
        (
            "a machine without apache-tvm-ffi",
            {"versions": {"apache-tvm": "0.27.0"}},
            {"versions"},
            "A package that is missing is not the right version either.",
        ),
        (
            "a Mac",
            {"system": "Darwin", "architecture": "arm64", "instruction_sets": ["neon"]},
            {"system", "architecture", "instruction_sets"},
            "Collect all reasons; the reader of the error wants the whole list.",
        ),
    )
    for what, changes, wanted, do in cases:
        got = answer(dict(manifest), here | changes)
        kind = type(got).__name__
        require(isinstance(got, set), "the answer", "a set of keys", kind, "Return a set, empty if all fits.")
        require(got == wanted, f"the reasons on {what}", sorted(wanted) or "none", sorted(got) or "none", do)
