"""Damaged copies of a saved network, as accidents produce them, for lesson 15: `tn.load` rejects each."""

import json
import shutil
from pathlib import Path


def damaged_copies(saved: Path) -> list[Path]:
    """Copy the folder of a saved network five times, next to it, each damaged in another way."""
    names = ("bit-lost", "file-forgotten", "file-renamed", "other-tvm", "other-cpu")
    copies = [saved.with_name(name) for name in names]
    for copy in copies:
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(saved, copy)
    bit_lost, forgotten, renamed, other_tvm, other_cpu = copies

    content = bytearray((bit_lost / "lib.so").read_bytes())
    content[len(content) // 2] ^= 1
    (bit_lost / "lib.so").write_bytes(content)
    (forgotten / "params.bin").unlink()
    (renamed / "lib.so").rename(renamed / "library.so")
    _change(other_tvm, "versions", {"apache-tvm": "0.26.0", "apache-tvm-ffi": "0.1.12"})
    _change(other_cpu, "instruction_sets", ["avx10.2"])
    return copies


def _change(folder: Path, entry: str, value) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(manifest | {entry: value}))
