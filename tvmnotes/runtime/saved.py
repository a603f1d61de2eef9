"""A saved network is a folder of four files, or one archive of them; `Compiled.save` and `load` work on it.

    lib.so          the kernels and the virtual machine's program: machine code for one target
    graph.json      inputs, outputs, the kernel calls between them, the kernels' schedules
    params.bin      the parameters, folded and packed, in TVM's format for named arrays
    manifest.json   versions, target, instruction sets, and size and SHA-256 of the three others

Where the name that a network is saved to ends in .zip, it is an archive, not compressed. Reading one needs neither TVM
nor trust, up to the library: JSON is parsed, checksums are compared, nothing is unpickled, and no name that stands in
a file is taken for a path.
"""

import contextlib
import glob
import io
import json
import platform
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..base import env, folders
from ..base.data import checksum

if TYPE_CHECKING:
    import tvm

FILES = ("lib.so", "graph.json", "params.bin")
_ALL = ("manifest.json", *FILES)
_FORMAT = 6
_READ = (5, _FORMAT)  # in 5 a kernel's schedule is text, as `Compiled.kernels` shows it
_LARGEST_MANIFEST = _PIECE = 1 << 20  # bytes
_MOST_TIMES = 100  # its own size, an archive that somebody has compressed may unpack to
_BUILD_INFO = {"target": dict, "architecture": str, "instruction_sets": list}
_MANIFEST = {"versions": dict, **_BUILD_INFO, "opt_level": int, "files": dict}


def write(destination: Path, fill, build_info: dict, opt_level: int) -> None:
    """Save to a folder or an archive, all of it or nothing; `fill` gets an empty folder to write `FILES` into.

    What holds a saved network and nothing else is replaced in one step, once the new one is on the disk: whoever reads
    finds the old one or the new one, however this process ends. What killed saves have left is removed. Raises
    FileExistsError where anything else is there.
    """
    path = destination.resolve()
    if not _replaceable(path):
        raise FileExistsError(
            f"{destination} exists and is not a saved network, or holds other files too: give a new name, or remove "
            "it first"
        )
    path.parent.mkdir(parents=True, exist_ok=True)

    def rescue(left: Path) -> None:
        if not path.exists() and (left / "old").exists():
            (left / "old").rename(path)

    with folders.temporary(_work(path), path.parent, rescue) as folder:
        new = folder / "new"
        new.mkdir()
        fill(new)
        files = {
            name: {"size": (new / name).stat().st_size, "sha256": checksum(new / name)} for name in FILES
        }
        manifest = {
            "format": _FORMAT,
            "versions": versions(),
            **build_info,
            "opt_level": opt_level,
            "files": files,
        }
        (new / "manifest.json").write_text(json.dumps(manifest, indent=1))
        if path.suffix == ".zip":
            new = pack(folder / "zip", ((name, (new / name).read_bytes()) for name in _ALL))
        folders.sync(*(new.iterdir() if new.is_dir() else ()), new)
        folders.put(new, path)


def _work(path: Path) -> str:
    """Return the beginning of the names of the folders, beside a path, in which saves to it do their work."""
    return f".{path.name}-tvmnotes-"


def _replaceable(path: Path) -> bool:
    """Whether `write` may write there: nothing, an empty folder, or a saved network and nothing else."""
    if not path.exists():
        return True
    names = [entry.name for entry in path.iterdir()] if path.is_dir() else _members(path)
    return (path.is_dir() and not names) or ("manifest.json" in names and set(names) <= set(_ALL))


def build_info(target: "tvm.target.Target") -> dict:
    """Return what a manifest says of the target that a network is built for."""
    return {
        "target": json.loads(env.target_json(target)),
        "architecture": _machine(str(target.attrs.get("mtriple") or platform.machine()).split("-")[0]),
        "instruction_sets": list(env.target_instruction_sets(target)),
    }


def linker(build_info: dict) -> dict:
    """Return the options with which `export_library` links for a target. Raises RuntimeError where nothing here can."""
    architecture, triple = build_info["architecture"], build_info["target"].get("mtriple")
    if architecture == _machine(platform.machine()):
        if not env.cpp_compiler():
            raise RuntimeError("saving links a library and needs a C++ compiler: install g++ or clang++")
        return {}
    names = [f"{architecture}-linux-gnu-g++", f"{triple}-g++"]
    compiler = next(filter(shutil.which, names), None)
    if compiler is None:
        raise RuntimeError(
            f"saving links a library, and for {architecture} that takes a cross compiler, {' or '.join(set(names))}: "
            f"install one (Debian, Ubuntu: apt install g++-{architecture.replace('_', '-')}-linux-gnu), or build on a "
            "machine of that kind"
        )
    return {"cc": compiler}


def read(path: Path, make: Callable[[Path, dict], Any]) -> Any:
    """Return what `make` makes of a saved network's folder and its manifest, which are checked.

    Where another process replaces the network meanwhile, the files may be of two networks: then all of it is done
    again, with the new one. Raises what `runtime.load` says.
    """
    while True:
        place = _place(path)
        before = _identity(place)
        try:
            made = _read(place, path, make)
        except Exception:
            if before == _identity(_place(path)):
                raise
        else:
            if before == _identity(_place(path)):
                return made


def _read(place: Path, name: Path, make: Callable[[Path, dict], Any]) -> Any:
    with contextlib.ExitStack() as stack:
        folder = place
        if place.is_file():
            folder = stack.enter_context(folders.temporary("tvmnotes-load-"))
            _unpack(place, folder)
        manifest = _read_manifest(folder, name)
        _check(folder, name, manifest)
        return make(folder, manifest)


def _place(path: Path) -> Path:
    """Return where a network lies: at its path, unless a save has put it aside; see `folders.put`."""
    if path.exists():
        return path
    path = path.resolve()
    return next(path.parent.glob(f"{glob.escape(_work(path))}????????/old"), path)


def _identity(path: Path) -> tuple | None:
    """Return what tells a folder or file from another that takes its place; None where there is none."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_dev, stat.st_ino, stat.st_mtime_ns


def _check(folder: Path, name: Path, manifest: dict) -> None:
    if manifest["versions"] != versions():
        built, here = (
            ", ".join(f"{k} {v}" for k, v in vs.items()) for vs in (manifest["versions"], versions())
        )
        raise RuntimeError(
            f"{name} was built with {built}; here is {here}: build it again here, or install those"
        )
    if reason := mismatch(manifest):
        raise RuntimeError(f"{name} cannot run here: {reason}. Build it again for this machine.")
    for file, facts in manifest["files"].items():
        if not (folder / file).is_file():
            raise FileNotFoundError(f"{name} lacks {file}: copy it again as a whole, or build it again")
        if facts != {"size": (folder / file).stat().st_size, "sha256": checksum(folder / file)}:
            raise ValueError(
                f"{name}/{file} is not the file that was saved (checksum differs): copy it again, or build it again"
            )


def _read_manifest(folder: Path, name: Path) -> dict:
    try:
        manifest = json.loads((folder / "manifest.json").read_text())
    except FileNotFoundError:
        what = "is not a saved network (it lacks manifest.json)" if folder.is_dir() else "does not exist"
        raise FileNotFoundError(
            f"{name} {what}; expected a folder or an archive that Compiled.save wrote"
        ) from None
    except (ValueError, RecursionError, OSError) as error:
        raise ValueError(
            f"{name}/manifest.json cannot be read ({error}): copy it again, or build it again"
        ) from error
    sound = isinstance(manifest, dict) and all(
        isinstance(manifest.get(k), kind) for k, kind in _MANIFEST.items()
    )
    if not sound or manifest.get("format") not in _READ:
        raise ValueError(
            f"{name}/manifest.json is not of format {_FORMAT} of tvmnotes: build the network again"
        )
    if set(manifest["files"]) != set(FILES):
        raise ValueError(
            f"{name}/manifest.json: expected the files {', '.join(FILES)}; got {', '.join(manifest['files'])}"
        )
    if manifest["target"].get("kind") != "llvm":
        raise ValueError(f"{name}/manifest.json: its target {manifest['target']} is not of kind llvm")
    return manifest


def build_info_in(manifest: dict) -> dict:
    """Return what `build_info` said of the target when the network was saved."""
    return {key: manifest[key] for key in _BUILD_INFO}


def mismatch(build_info: dict) -> str | None:
    """Say why this machine cannot run what was built for a target; None where it can."""
    here = _machine(platform.machine())
    if build_info["architecture"] != here:
        return f"it is built for {build_info['architecture']}, this machine is {here}"
    missing = [str(isa) for isa in build_info["instruction_sets"] if isa not in env.instruction_sets()]
    return f"it uses {', '.join(missing)}, which this CPU ({env.cpu_name()}) lacks" if missing else None


def _machine(name: str) -> str:
    return {"arm64": "aarch64", "amd64": "x86_64"}.get(name.lower(), name.lower())


def versions() -> dict[str, str]:
    return {name: metadata.version(name) for name in ("apache-tvm", "apache-tvm-ffi")}


def pack(file: Path, parts: Iterable[tuple[str, bytes]], tar: bool = False) -> Path:
    """Write named parts to an archive: a tar, or a zip, not compressed, behind what `file` holds already."""
    if tar:
        with tarfile.open(file, "w") as archive:
            for name, content in parts:
                entry = tarfile.TarInfo(name)
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content))
    else:
        with zipfile.ZipFile(file, "a") as archive:
            for name, content in parts:
                archive.writestr(zipfile.ZipInfo(name), content)
    return file


def _members(file: Path) -> list[str]:
    """The names in an archive; none where the file is no archive."""
    try:
        with zipfile.ZipFile(file) as archive:
            return archive.namelist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError):
        return []


def _unpack(file: Path, folder: Path) -> None:
    """Write the parts of an archive to a folder, under the names that are known here, whatever it says.

    Raises ValueError where it holds anything else, or is damaged. A part that is longer than its manifest says is cut.
    """
    names = _members(file)
    if "manifest.json" not in names:
        raise ValueError(
            f"{file} is not a saved network: expected a folder or an archive that Compiled.save wrote"
        )
    if strange := [name for name in names if name not in _ALL or names.count(name) > 1]:
        raise ValueError(
            f"{file} holds {strange[0]!r}; expected {', '.join(_ALL)}, once each, and nothing else: do not trust it"
        )
    try:
        with zipfile.ZipFile(file) as archive:
            sizes = {"manifest.json": _LARGEST_MANIFEST}
            for name in filter(names.__contains__, _ALL):
                with archive.open(name) as part, open(folder / name, "wb") as copy:
                    left = sizes[name] + 1
                    while left and (piece := part.read(min(left, _PIECE))):
                        left -= copy.write(piece)
                if name == "manifest.json":
                    sizes |= {
                        name: _size(facts) for name, facts in _read_manifest(folder, file)["files"].items()
                    }
                    if sum(sizes.values()) > _MOST_TIMES * file.stat().st_size + _LARGEST_MANIFEST:
                        raise ValueError(
                            f"{file} would unpack to {sum(sizes.values()) / 2**30:,.1f} GiB, more than {_MOST_TIMES} "
                            "times its size, as no network does: do not trust it"
                        )
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise ValueError(f"{file} is damaged ({error}): copy it again, or build it again") from error


def _size(facts) -> int:
    """Return what a manifest says of a file's size; 0 where that is nothing."""
    size = facts.get("size") if isinstance(facts, dict) else None
    return max(0, size) if isinstance(size, int) else 0
