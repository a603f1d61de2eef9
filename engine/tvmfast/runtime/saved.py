"""Saved networks: a folder of four files, or one archive of them; used by `Compiled.save` and `load`.

    lib.so          the kernels and the virtual machine's program: machine code for one target
    graph.json      inputs, outputs, the kernel calls between them, the kernels' schedules
    params.bin      the parameters, folded and packed, in TVM's format for named arrays; see also narrow.py
    manifest.json   versions, target, instruction sets, and size and SHA-256 of the three others

A network is saved to an uncompressed archive if its name ends in .zip. Until the library is opened, reading
needs neither TVM nor trust: JSON is parsed, checksums are compared, nothing is unpickled, and no name from a
file is used as a path.
"""

import contextlib
import errno
import glob
import io
import itertools
import json
import logging
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core import folders, machine, renamed
from ..core.data import checksum

if TYPE_CHECKING:
    import tvm

FILES = ("lib.so", "graph.json", "params.bin")
_log = logging.getLogger(__name__)
_ALL = ("manifest.json", *FILES)
_FORMAT = 7
# In 6 no parameter is narrow. In 5 a kernel's schedule is text: the family, a space, the config as JSON.
_READ = (5, 6, _FORMAT)
_LARGEST_MANIFEST = _PIECE = 1 << 20  # bytes
_MOST_TIMES = 100  # largest ratio of an archive's content to its size; a user may have compressed it
_BUILD_INFO = {"target": dict, "architecture": str, "instruction_sets": list}
_MANIFEST = {"versions": dict, **_BUILD_INFO, "opt_level": int, "files": dict}


def write(destination: Path, fill: Callable[[Path], None], build_info: dict, opt_level: int) -> None:
    """Save to a folder or an archive atomically; `fill` writes `FILES` into the empty folder that it gets.

    An existing saved network is replaced in one step, once the new one is on the disk: a reader finds the old
    one or the new one, however this process ends. Leftovers of killed saves are removed. Raises
    FileExistsError if anything else is there.
    """
    path = destination.resolve()
    if not _replaceable(path):
        raise FileExistsError(
            f"{destination} exists and is not a saved network, or holds other files too: give a new name, "
            "or remove it first"
        )
    path.parent.mkdir(parents=True, exist_ok=True)

    def rescue(left: Path) -> None:
        if not path.exists() and (left / "old").exists():
            (left / "old").rename(path)

    with folders.temporary(*_work(path), parent=path.parent, rescue=rescue) as folder:
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
    _log.debug("%s written", destination)


def _work(path: Path) -> list[str]:
    """Return the prefixes of temporary folders next to a path, for saves to it; the first is written."""
    return [f".{path.name}-{name}-" for name in renamed.NAMES]


def _replaceable(path: Path) -> bool:
    """Tell whether `write` may write there: nothing, an empty folder, or nothing but a saved network."""
    if not path.exists():
        return True
    names = [entry.name for entry in path.iterdir()] if path.is_dir() else _members(path)
    return (path.is_dir() and not names) or ("manifest.json" in names and set(names) <= set(_ALL))


def build_info(target: "tvm.target.Target") -> dict:
    """Return a manifest's description of the target that a network is built for."""
    triple = str(target.attrs.get("mtriple") or "")
    return {
        "target": json.loads(machine.target_json(target)),
        "architecture": machine.architecture(triple),
        "instruction_sets": list(machine.target_instruction_sets(target)),
        "system": machine.system(triple),
    }


def linker(build_info: dict) -> dict:
    """Return the options of `export_library` for a target. Raises RuntimeError if nothing here can link."""
    architecture, triple = build_info["architecture"], build_info["target"].get("mtriple")
    if not _elsewhere(build_info):
        if not machine.cpp_compiler():
            raise RuntimeError("saving links a library and needs a C++ compiler: install g++ or clang++")
        return {}
    if build_info["system"] != "Linux":
        raise RuntimeError(
            f"saving links a library, and that of a network for {build_info['system']} is linked there: "
            "build it on a machine of that kind"
        )
    names = [f"{architecture}-linux-gnu-g++", f"{triple}-g++"]
    compiler = next(filter(shutil.which, names), None)
    if compiler is None:
        raise RuntimeError(
            f"saving links a library, and for {architecture} that takes a cross compiler, "
            f"{' or '.join(set(names))}: install one (Debian, Ubuntu: apt install "
            f"g++-{architecture.replace('_', '-')}-linux-gnu), or build on a machine of that kind"
        )
    return {"cc": compiler}


def read(path: Path, make: Callable[[Path, dict], Any]) -> Any:
    """Return `make(folder, manifest)` of a saved network, once its files are checked.

    If another process replaces the network in between, the files may belong to two networks: then all of it
    is repeated with the new one. Raises what `compiled.load` documents.
    """
    while True:
        location = _locate(path)
        before = _identity(location)
        try:
            result = _read(location, path, make)
        except Exception:
            if before == _identity(_locate(path)):
                raise
        else:
            if before == _identity(_locate(path)):
                return result


def _read(location: Path, name: Path, make: Callable[[Path, dict], Any]) -> Any:
    with contextlib.ExitStack() as stack:
        folder = location
        if location.is_file():
            folder = stack.enter_context(folders.temporary("tvmfast-load-"))
            _unpack(location, folder)
        manifest = _read_manifest(folder, name)
        _check(folder, name, manifest)
        _log.debug("%s read: %s, opt level %d", name, manifest["target"], manifest["opt_level"])
        return make(folder, manifest)


def _locate(path: Path) -> Path:
    """Return where a network is: at its path, unless a save has moved it aside; see `folders.put`."""
    if path.exists():
        return path
    path = path.resolve()
    left = (path.parent.glob(f"{glob.escape(prefix)}????????/old") for prefix in _work(path))
    return next(itertools.chain(*left), path)


def _identity(path: Path) -> tuple | None:
    """Return what tells a file or folder from one that replaces it; None if there is none."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_dev, stat.st_ino, stat.st_mtime_ns


def _check(folder: Path, name: Path, manifest: dict) -> None:
    if manifest["versions"] != versions():
        built = ", ".join(f"{name} {version}" for name, version in manifest["versions"].items())
        here = ", ".join(f"{name} {version}" for name, version in versions().items())
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
                f"{name}/{file} is not the file that was saved (checksum differs): "
                "copy it again, or build it again"
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
            f"{name}/manifest.json is not of format {_FORMAT} of tvmfast: build the network again"
        )
    if set(manifest["files"]) != set(FILES):
        raise ValueError(
            f"{name}/manifest.json: expected the files {', '.join(FILES)}; got {', '.join(manifest['files'])}"
        )
    if manifest["target"].get("kind") not in ("llvm", "cuda"):
        raise ValueError(f"{name}/manifest.json: its target {manifest['target']} is not of kind llvm or cuda")
    return manifest


def build_info_in(manifest: dict) -> dict:
    """Return the `build_info` in a manifest."""
    return {key: manifest[key] for key in (*_BUILD_INFO, "system") if key in manifest}


def mismatch(build_info: dict) -> str | None:
    """Say why this machine cannot run what was built for a target; None if it can."""
    if elsewhere := _elsewhere(build_info):
        return elsewhere
    missing = [str(isa) for isa in build_info["instruction_sets"] if isa not in machine.instruction_sets()]
    return f"it uses {', '.join(missing)}, which this CPU ({machine.cpu_name()}) lacks" if missing else None


def _elsewhere(build_info: dict) -> str | None:
    """Say that a target is of another kind of processor or system; None if it is of this machine's.

    A network that was saved before manifests named its system has that of its triple.
    """
    system = build_info.get("system") or machine.system(str(build_info["target"].get("mtriple") or ""))
    for built_for, here in ((build_info["architecture"], machine.architecture()), (system, machine.system())):
        if built_for != here:
            return f"it is built for {built_for}, this machine is {here}"
    return None


def versions() -> dict[str, str]:
    """Return the installed versions of TVM's packages by name."""
    return {name: metadata.version(name) for name in ("apache-tvm", "apache-tvm-ffi")}


def pack(file: Path, parts: Iterable[tuple[str, bytes]], tar: bool = False) -> Path:
    """Write named parts to a tar, or append them uncompressed to a zip."""
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
    """Return the names in a zip; none if the file is no zip."""
    try:
        with zipfile.ZipFile(file) as archive:
            return archive.namelist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError):
        return []


def _unpack(file: Path, folder: Path) -> None:
    """Write the parts of an archive to a folder, under known names only.

    Raises ValueError if it contains anything else, or is damaged. A part longer than its manifest says is
    cut.
    """
    names = _members(file)
    if "manifest.json" not in names:
        raise ValueError(
            f"{file} is not a saved network: expected a folder or an archive that Compiled.save wrote"
        )
    if strange := [name for name in names if name not in _ALL or names.count(name) > 1]:
        raise ValueError(
            f"{file} holds {strange[0]!r}; expected {', '.join(_ALL)}, once each, and nothing else: "
            "do not trust it"
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
                            f"{file} would unpack to {sum(sizes.values()) / 2**30:,.1f} GiB, more than "
                            f"{_MOST_TIMES} times its size, as no network does: do not trust it"
                        )
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, OSError) as error:
        if isinstance(error, OSError) and error.errno != errno.EINVAL:  # that of a seek to before the file
            raise
        raise ValueError(f"{file} is damaged ({error}): copy it again, or build it again") from error


def _size(facts: Any) -> int:
    """Return a file's size according to a manifest; 0 if that is meaningless."""
    size = facts.get("size") if isinstance(facts, dict) else None
    return max(0, size) if isinstance(size, int) else 0
