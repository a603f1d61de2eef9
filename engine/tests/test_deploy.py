"""Saved networks that leave home: archives, planted and damaged ones; other processors; TVM's runtime alone."""

import json
import os
import shutil
import stat
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
import tvm
from agreement import close
from testing import sampled

import tvmfast
from tvmfast import load
from tvmfast.core import machine
from tvmfast.runtime import saved

PARTS = ["manifest.json", "lib.so", "graph.json", "params.bin"]
ARM = {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a72"}


@pytest.fixture(scope="module")
def folder(lib, tmp_path_factory):
    return lib.save(tmp_path_factory.mktemp("saved") / "net")


@pytest.fixture(scope="module")
def archive(lib, tmp_path_factory):
    """`lib` as an archive. Not to be changed."""
    return lib.save(tmp_path_factory.mktemp("saved") / "net.zip")


def rewritten(archive, file, change):
    """A copy of an archive, its (name, content) pairs changed; names are `ZipInfo`s, or strings."""
    with zipfile.ZipFile(archive) as source:
        parts = [(name, source.read(name)) for name in source.namelist()]
    with zipfile.ZipFile(file, "w") as target:
        for name, content in change(parts):
            target.writestr(name, content)
    return file


# ---------------------------------------------------------------- archives


def test_an_archive_comes_back(lib, small, folder, archive, tmp_path):
    with zipfile.ZipFile(archive) as opened:
        assert opened.namelist() == PARTS
        assert all(opened.read(name) == (folder / name).read_bytes() for name in PARTS[1:])
    again = load(archive)
    np.testing.assert_array_equal(again(small.x), lib(small.x))
    assert archive.read_bytes() == again.save(tmp_path / "again.zip").read_bytes()
    archive_elsewhere = shutil.copy(archive, tmp_path / "renamed")
    np.testing.assert_array_equal(load(archive_elsewhere)(small.x), lib(small.x))


def test_an_archive_is_replaced_by_a_network_only(lib, small, tmp_path):
    (tmp_path / "mine.zip").write_bytes(b"mine")
    with zipfile.ZipFile(tmp_path / "photos.zip", "w") as photos:
        photos.writestr("manifest.json", "{}")
        photos.writestr("photo.jpg", "")
    for name in ("mine.zip", "photos.zip"):
        before = (tmp_path / name).read_bytes()
        with pytest.raises(FileExistsError, match=f"{name} exists and is not a saved network"):
            lib.save(tmp_path / name)
        assert (tmp_path / name).read_bytes() == before
    for _ in range(2):
        lib.save(tmp_path / "net.zip")
    lib.save(tmp_path / "was-a-folder")
    (tmp_path / "was-a-folder").rename(tmp_path / "folder.zip")
    assert lib.save(tmp_path / "folder.zip").is_file()
    np.testing.assert_array_equal(load(tmp_path / "folder.zip")(small.x), lib(small.x))
    assert sorted(os.listdir(tmp_path)) == ["folder.zip", "mine.zip", "net.zip", "photos.zip"]


def link(name, target):
    info = zipfile.ZipInfo(name)
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    return info, target


@pytest.mark.parametrize(
    "planted",
    [("../planted", "x"), ("/planted", "x"), ("lib.so/../../planted", "x"), ("..\\planted", "x"), ("sub/", ""),
     link("planted", "/etc"), ("params.bin", "x"), ("manifest.json", "{}")],
    ids=["up", "root", "through", "backslash", "folder", "link", "twice", "manifest-twice"],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_an_archive_with_anything_else_is_refused_and_nothing_written(archive, tmp_path, monkeypatch, planted):
    home = tmp_path / "a" / "b"
    home.mkdir(parents=True)
    monkeypatch.setattr("tempfile.tempdir", str(home))
    bad = rewritten(archive, home / "net.zip", lambda parts: [*parts, planted])
    with pytest.raises(ValueError, match="expected manifest.json, lib.so, graph.json, params.bin, once each"):
        load(bad)
    assert sorted(tmp_path.rglob("*")) == [tmp_path / "a", home, bad]


def test_a_link_in_place_of_a_part_is_not_followed(archive, folder, tmp_path):
    def as_link(parts):
        return [link(name, str(folder / name)) if name == "params.bin" else (name, content) for name, content in parts]

    with pytest.raises(ValueError, match="params.bin is not the file that was saved"):
        load(rewritten(archive, tmp_path / "net.zip", as_link))


@pytest.mark.parametrize("name", PARTS)
def test_an_archive_that_lacks_a_part(archive, tmp_path, name):
    bad = rewritten(archive, tmp_path / "net.zip", lambda parts: [part for part in parts if part[0] != name])
    with pytest.raises(
        (FileNotFoundError, ValueError), match="is not a saved network" if name == PARTS[0] else f"lacks {name}"
    ):
        load(bad)


SPOILT = {
    "flipped": lambda c: c[:-1] + bytes([c[-1] ^ 1]),
    "cut": lambda c: c[:-1],
    "longer": lambda c: c + b"\0" * 4096,
}


@pytest.mark.parametrize("name", PARTS[1:])
@pytest.mark.parametrize("spoil", SPOILT.values(), ids=SPOILT)
def test_an_archive_whose_part_was_changed(archive, tmp_path, name, spoil):
    def changed(parts):
        return [(each, spoil(content) if each == name else content) for each, content in parts]

    with pytest.raises(ValueError, match=f"{name} is not the file that was saved"):
        load(rewritten(archive, tmp_path / "net.zip", changed))


def test_a_part_is_read_no_further_than_its_manifest_says(archive, tmp_path, monkeypatch):
    """As where an archive of some KB holds many GB of zeros."""
    bad = tmp_path / "net.zip"
    with zipfile.ZipFile(archive) as source, zipfile.ZipFile(bad, "w", zipfile.ZIP_DEFLATED) as target:
        for name in PARTS:
            target.writestr(name, source.read(name) if name != "graph.json" else b"\0" * (64 << 20))
    sizes, check = {}, saved._check

    def noted(folder, *args):
        sizes.update({file.name: file.stat().st_size for file in folder.iterdir()})
        check(folder, *args)

    monkeypatch.setattr(saved, "_check", noted)
    with pytest.raises(ValueError, match="graph.json is not the file that was saved"):
        load(bad)
    wanted = {name: zipfile.ZipFile(archive).getinfo(name).file_size for name in PARTS}
    assert sizes == wanted | {"graph.json": wanted["graph.json"] + 1}


def test_an_archive_that_would_unpack_to_more_than_a_network_takes(archive, tmp_path):
    def resized(parts):
        manifest = json.loads(parts[0][1])
        manifest["files"]["params.bin"]["size"] = 12 << 30
        return [("manifest.json", json.dumps(manifest)), *parts[1:]]

    with pytest.raises(ValueError, match="would unpack to 12.0 GiB, more than 100 times its size"):
        load(rewritten(archive, tmp_path / "net.zip", resized))


def test_an_archive_cut_anywhere_or_with_other_bytes_is_refused(archive, tmp_path, quick):
    whole, bad = archive.read_bytes(), tmp_path / "net.zip"
    for size in (0, 1, 30, 1000, len(whole) // 2, len(whole) - 30, len(whole) - 1):
        bad.write_bytes(whole[:size])
        with pytest.raises(ValueError, match=r"net.zip.* (Compiled\.save wrote|copy it again)"):
            load(bad)
    farther = (int.from_bytes(whole[-6:-2], "little") + 1000).to_bytes(4, "little")  # where the list of parts begins
    bad.write_bytes(whole[:-6] + farther + whole[-2:])
    with pytest.raises(ValueError, match=r"net.zip.* (Compiled\.save wrote|copy it again)"):
        load(bad)
    refused, damages = 0, 40 if quick else 150
    for at in range(0, len(whole), len(whole) // damages):
        bad.write_bytes(whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :])
        try:
            load(bad)
        except (ValueError, RuntimeError, FileNotFoundError) as error:
            assert "net.zip" in str(error)
            refused += 1
    assert refused >= damages - 1  # not where it is a date or another field that says nothing


@pytest.mark.parametrize("size", [-1, 10**30, True, "1", None, 1.5])
def test_sizes_that_are_none(archive, tmp_path, size):
    def resized(parts):
        manifest = json.loads(parts[0][1])
        manifest["files"]["lib.so"]["size"] = size
        return [("manifest.json", json.dumps(manifest)), *parts[1:]]

    with pytest.raises(ValueError, match="net.zip"):
        load(rewritten(archive, tmp_path / "net.zip", resized))


def test_classic_files_are_not_taken_for_ours(tmp_path):
    (tmp_path / "net.pkl").write_bytes(b"cos\nsystem\n(S'touch planted'\ntR.")
    with pytest.raises(ValueError, match="is not a saved network"):
        load(tmp_path / "net.pkl")


# ---------------------------------------------------------------- folders that were moved


def test_a_folder_may_be_moved_and_be_a_link(lib, small, folder, tmp_path, monkeypatch):
    moved = Path(shutil.copytree(folder, tmp_path / "moved to a place with spaces, é"))
    (tmp_path / "link").symlink_to(moved)
    monkeypatch.chdir(tmp_path)
    for name in (moved, "link", moved.name):
        np.testing.assert_array_equal(load(name)(small.x), lib(small.x))


def test_a_part_that_is_a_link_elsewhere_must_be_what_was_saved(folder, lib, small, tmp_path):
    copy = Path(shutil.copytree(folder, tmp_path / "net"))
    (copy / "lib.so").unlink()
    (copy / "lib.so").symlink_to(folder / "lib.so")
    np.testing.assert_array_equal(load(copy)(small.x), lib(small.x))
    (copy / "lib.so").unlink()
    (copy / "lib.so").symlink_to("/etc/passwd")
    with pytest.raises(ValueError, match="lib.so is not the file that was saved"):
        load(copy)


def test_a_library_that_is_none_but_has_its_checksum(folder, tmp_path):
    copy = Path(shutil.copytree(folder, tmp_path / "net"))
    (copy / "lib.so").write_bytes(b"\x7fELF")
    manifest = json.loads((copy / "manifest.json").read_text())
    manifest["files"]["lib.so"] = {"size": 4, "sha256": saved.checksum(copy / "lib.so")}
    (copy / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(RuntimeError, match=r"net/lib.so does not open \(.*\): build it again"):
        load(copy)


# ---------------------------------------------------------------- other processors


@pytest.fixture(scope="module")
def arm(small):
    return tvmfast.build(small.mod, small.params, target=ARM)


def test_without_a_cross_compiler_one_error_says_what_to_install(arm, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(RuntimeError) as caught:
        arm.save(tmp_path / "net")
    assert str(caught.value) == (
        "saving links a library, and for aarch64 that takes a cross compiler, aarch64-linux-gnu-g++: install one "
        "(Debian, Ubuntu: apt install g++-aarch64-linux-gnu), or build on a machine of that kind"
    )
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("triple", "architecture", "system"),
    [
        ("arm64-apple-darwin", "aarch64", "macOS"),
        ("arm64-apple-macosx14.0", "aarch64", "macOS"),
        ("x86_64-pc-windows-msvc", "x86_64", "Windows"),
        ("aarch64-linux-gnu", "aarch64", "Linux"),
        ("aarch64", "aarch64", "Linux"),  # LLVM writes ELF
    ],
)
def test_a_triple_names_a_processor_and_a_system(triple, architecture, system):
    assert (machine.architecture(triple), machine.system(triple)) == (architecture, system)


@pytest.mark.parametrize("triple", ["arm64-apple-darwin", "x86_64-pc-windows-msvc"])
def test_a_library_for_another_system_is_not_linked_here(small, tmp_path, triple):
    lib = tvmfast.build(small.mod, small.params, target={"kind": "llvm", "mtriple": triple})
    system = machine.system(triple)
    with pytest.raises(RuntimeError, match=f"that of a network for {system} is linked there: build it on a machine"):
        lib.save(tmp_path / "net")
    with pytest.raises(RuntimeError, match="this library cannot run here: it is built for"):
        lib(small.x)


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ({"mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a72"}, "it is built for Linux, this machine is macOS"),
        ({"mtriple": "x86_64-linux-gnu"}, "it is built for x86_64, this machine is aarch64"),
        ({"mtriple": "arm64-apple-darwin"}, None),
    ],
)
def test_a_mac_knows_what_is_for_arm_linux_from_its_own(monkeypatch, target, reason):
    monkeypatch.setattr(machine.platform, "system", lambda: "Darwin")
    monkeypatch.setattr(machine.platform, "machine", lambda: "arm64")
    monkeypatch.setattr(machine, "instruction_sets", lambda: ("neon", "fullfp16", "dotprod"))
    info = saved.build_info(tvm.target.Target({"kind": "llvm", **target}))
    assert saved.mismatch(info) == reason
    if reason is None:
        assert saved.linker(info) == {}
    else:
        monkeypatch.setenv("PATH", "")
        with pytest.raises(RuntimeError, match="takes a cross compiler"):
            saved.linker(info)


def test_a_network_that_was_saved_before_manifests_named_its_system_still_loads(lib, small, folder, tmp_path):
    copy = Path(shutil.copytree(folder, tmp_path / "net"))
    manifest = json.loads((copy / "manifest.json").read_text())
    assert manifest.pop("system") == machine.system()
    (copy / "manifest.json").write_text(json.dumps(manifest))
    again = load(copy)
    np.testing.assert_array_equal(again(small.x), lib(small.x))
    assert again.save(tmp_path / "again").is_dir()


@pytest.mark.skipif(machine.platform.machine() == "aarch64", reason="it is this machine's")
@pytest.mark.skipif(not shutil.which("aarch64-linux-gnu-g++"), reason="no cross compiler")
def test_a_library_for_arm_is_one_and_is_not_loaded_here(arm, small, tmp_path):
    folder = arm.save(tmp_path / "net")
    assert struct.unpack_from("<H", (folder / "lib.so").read_bytes(), 18) == (183,)
    manifest = json.loads((folder / "manifest.json").read_text())
    assert (manifest["architecture"], manifest["instruction_sets"]) == ("aarch64", ["neon"])
    with pytest.raises(RuntimeError, match="cannot run here: it is built for aarch64, this machine is"):
        load(folder)
    with pytest.raises(RuntimeError, match="this library cannot run here: it is built for aarch64"):
        arm(small.x)


@pytest.mark.skipif("avx2" not in machine.instruction_sets(), reason="this CPU has no AVX2")
def test_a_library_for_avx2_runs_here(small, tmp_path):
    lib = tvmfast.build(small.mod, small.params, target={"kind": "llvm", "mcpu": "core-avx2"})
    again = load(lib.save(tmp_path / "net"))
    assert not any("512" in isa for isa in json.loads((tmp_path / "net/manifest.json").read_text())["instruction_sets"])
    close(again(small.x), small.exact)


# ---------------------------------------------------------------- the runtime alone


def test_a_process_that_loads_needs_neither_tvms_compiler_nor_torch_and_may_have_them_later(
    lib, small, folder, tmp_path, python
):
    np.save(tmp_path / "x.npy", small.x)
    printed = python(f"""
import sys
from pathlib import Path
import numpy as np, tvmfast
x = np.load({str(tmp_path / "x.npy")!r})
lib = tvmfast.load({str(folder)!r})
y = lib(x)
np.save({str(tmp_path / "y.npy")!r}, y)
print(*sorted({{"tvm", "torch", "onnx", "cuda.bindings"}} & sys.modules.keys()), repr(lib))
maps = Path("/proc/self/maps")
assert "libtvm_compiler" not in (maps.read_text() if maps.exists() else "")
lib.save({str(tmp_path / "again")!r})
import torch, tvm
assert str(lib.target) == str(tvm.target.Target(lib.target))
assert np.array_equal(lib(torch.from_numpy(x)), y) and np.array_equal(lib(tvm.runtime.tensor(x)), y)
""")
    assert printed == repr(lib)
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), lib(small.x))
    np.testing.assert_array_equal(load(tmp_path / "again")(small.x), lib(small.x))


def test_what_is_built_after_a_load_is_what_is_built_before(folder, tmp_path, python):
    python(f"""
import numpy as np, tvmfast
tvmfast.load({str(folder)!r})
import torch
class Plus(torch.nn.Module):
    def forward(self, x):
        return (x + 1).to(torch.bfloat16), x > 0
built = tvmfast.build(*tvmfast.from_pytorch(Plus().eval(), {{"x": (3,)}}))
built.save({str(tmp_path / "plus")!r})
for lib in (built, tvmfast.load({str(tmp_path / "plus")!r})):
    plus, more = lib(np.float32([1, -2, 3]))
    assert plus.astype("float32").tolist() == [2, -1, 4] and more.tolist() == [True, False, True]
    assert str(plus.dtype) == "bfloat16"
""")


DTYPES = ["bool", "int8", "uint8", "float16", "int64", "float64"]


@pytest.mark.parametrize("dtype", sampled(DTYPES, ["bool", "float16", "int64"]))
def test_arrays_of_every_dtype_go_in_and_out_bit_by_bit(dtype, compile_function, tmp_path):
    x = np.arange(6).reshape(2, 3).astype(dtype)
    lib = load(compile_function(lambda x: x.reshape(3, 2), {"x": torch.from_numpy(x)}).save(tmp_path / "net"))
    for given in (x, np.asfortranarray(x), x[::-1][::-1]):
        y = lib(given)
        assert (y.dtype, y.tobytes()) == (x.dtype, x.tobytes())
