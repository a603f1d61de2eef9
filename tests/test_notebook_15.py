"""What lessons 15 and 16 claim: programs print what Python does, skip what is missing, refuse what was planted."""

import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import numpy as np
import pytest
import tvm
import tvm_ffi
from agreement import close, reference
from testing import without

import tvmnotes as tn
from tvmnotes import damage, digits, env

FOLDER = Path(__file__).parents[1] / "notebooks"
NOTEBOOKS = [FOLDER / "15_deploy.ipynb", FOLDER / "16_deploy_elsewhere.ipynb"]
CELLS = [cell for path in NOTEBOOKS for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
SOURCES = [cell.source for cell in CELLS]
PICTURE = digits.preprocess(digits.load_test_set()[0][138:139])
NEEDS_GCC = pytest.mark.skipif(not shutil.which("g++"), reason="no C++ compiler")


def cell(start):
    """The source of the cell that contains a text."""
    (source,) = (source for source in SOURCES if start in source)
    return source


def written(name):
    """A file that the notebook writes."""
    return cell(f"{name}\n").partition("\n")[2]


def stored(start):
    """The text that a cell printed when it was stored."""
    (found,) = (each for each in CELLS if start in each.source)
    return "".join(output.get("text", "") for output in found.outputs)


@pytest.fixture(scope="module")
def lib():
    return tn.build(*tn.from_pytorch(tn.models.load("digits"), {"image": (1, 1, 32, 32)}))


@pytest.fixture(scope="module")
def folder(lib, tmp_path_factory):
    """As the notebook's folder: the network, the picture in both forms, the programs."""
    folder = tmp_path_factory.mktemp("lesson")
    lib.save(folder / "net")
    np.save(folder / "picture.npy", PICTURE)
    PICTURE.tofile(folder / "picture.f32")
    for name in ("15/answer.py", "15/plain.py", "16/classify.cpp", "16/tiny.h"):
        (folder / name.partition("/")[2]).write_text(written(f"%%writefile out/{name}"))
    return folder


def run(folder, *command, **changes):
    return subprocess.run(
        [str(part) for part in command],
        cwd=folder,
        env=os.environ | changes,
        capture_output=True,
        text=True,
        timeout=1200,
    )


def top5(text):
    return [(int(digit), float(p)) for digit, p in re.findall(r"^(\d) (\d\.\d{6})$", text, re.M)]


@pytest.fixture(scope="module")
def classify(folder):
    """The lesson's C++ program, compiled by the lesson's own cell."""
    exec(cell("compiler = tn.env.cpp_compiler()\ncommand"), names_for(folder))
    return "./classify"


def names_for(folder):
    """What the lesson's cells have imported."""
    names = {"folder": folder, "tn": tn, "np": np, "Path": Path, "tvm": tvm, "tvm_ffi": tvm_ffi}
    return names | {"platform": env.platform, "shutil": shutil, "subprocess": subprocess}


@pytest.mark.alone
@NEEDS_GCC
def test_the_cpp_program_prints_pythons_top_5(classify, folder, lib):
    done = run(folder, classify, "net", "picture.f32")
    assert done.returncode == 0, done.stderr
    table = tn.vision.top_k(lib(PICTURE))
    assert [digit for digit, _ in top5(done.stdout)] == list(table["class"]) and table["class"].iloc[0] == 9
    assert np.allclose([p for _, p in top5(done.stdout)], table["probability"], atol=6e-7)  # as printed


@pytest.mark.alone
@NEEDS_GCC
def test_the_cpp_program_runs_a_library_of_several_functions(classify, folder):
    """It calls `main`, which takes pictures in any number, with the parameters of `main`."""
    mod, params = tn.from_pytorch(tn.models.load("digits"), {"image": ("batch", 1, 32, 32)})
    several = tn.build(mod, params, sizes=[{"batch": 4}, {"batch": 1}])
    several.save(folder / "several")
    assert len(several.params) < len(several.arrays_of_all)
    done = run(folder, classify, "several", "picture.f32")
    assert done.returncode == 0, done.stderr
    table = tn.vision.top_k(several(PICTURE))
    assert [digit for digit, _ in top5(done.stdout)] == list(table["class"])
    assert np.allclose([p for _, p in top5(done.stdout)], table["probability"], atol=6e-7)  # as printed


@pytest.mark.alone
@NEEDS_GCC
def test_the_programs_run_a_network_in_int8(classify, folder, tmp_path):
    """Weights are saved in int8; on a CPU without VNNI, the kernels read others."""
    mod, params = tn.from_pytorch(tn.models.load("digits"), {"image": (1, 1, 32, 32)})
    quantized = tn.quantize(mod, params, [PICTURE])
    small = tn.build(*quantized, target=without("avx512vnni", "avxvnni", "amx-int8", "i8mm"))
    small.save(tmp_path / "net")
    if platform.machine() == "x86_64":
        assert "prepare" in small.graph
    table = tn.vision.top_k(small(PICTURE))
    done = run(folder, classify, tmp_path / "net", "picture.f32")
    assert [digit for digit, _ in top5(done.stdout)] == list(table["class"]), done.stderr
    assert np.allclose([p for _, p in top5(done.stdout)], table["probability"], atol=6e-7)  # as printed
    np.save(tmp_path / "picture.npy", PICTURE)
    program = (folder / "plain.py").read_text()
    (tmp_path / "plain.py").write_text(f'{program}\nnp.save("scores.npy", scores.numpy())\n')
    done = run(tmp_path, sys.executable, "plain.py", "without-torch")
    assert done.returncode == 0, done.stderr
    np.testing.assert_array_equal(np.load(tmp_path / "scores.npy"), small(PICTURE))


@pytest.mark.alone
@NEEDS_GCC
def test_the_cpp_program_says_what_is_wrong(classify, folder):
    for command, message in (
        ((), "usage: classify FOLDER PICTURE"),
        (("nothing", "picture.f32"), "nothing/lib.so"),
        (("net", "nothing"), "cannot read nothing"),
        (("net", "picture.npy"), "picture.npy is of another size"),
    ):
        done = run(folder, classify, *command)
        assert done.returncode == 1 and message in done.stderr and not done.stdout


def test_the_cpp_program_is_of_the_size_that_the_recap_says():
    assert 50 <= len([line for line in written("%%writefile out/16/classify.cpp").splitlines() if line]) <= 65


def test_without_a_compiler_the_cpp_part_is_skipped_with_a_sentence(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    exec(cell("compiler = tn.env.cpp_compiler()\ncommand"), names_for(tmp_path))
    assert capsys.readouterr().out == "No C++ compiler was found (g++ or clang++), so this part is skipped.\n"


def test_without_qemu_or_a_cross_compiler_the_arm_run_is_skipped_with_a_sentence(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    exec(cell("missing = []"), names_for(tmp_path))
    said = capsys.readouterr().out
    assert said == "not found: aarch64-linux-gnu-g++, aarch64-linux-gnu-gcc, qemu-aarch64; this part is skipped.\n"


def test_a_fresh_process_gives_the_same_bits_without_tvms_compiler(folder, lib):
    done = run(folder, sys.executable, "answer.py", "net")
    assert done.stdout == "scores: 10 - tvm imported: False\n", done.stderr
    assert np.load(folder / "scores.npy").tobytes() == lib(PICTURE).tobytes()


@pytest.mark.parametrize("changes", [{}, {"TVM_USE_RUNTIME_LIB": "1"}], ids=["all", "runtime"])
def test_tvms_own_words_run_with_the_runtime_library_too(folder, changes):
    done = run(folder, sys.executable, "plain.py", "without-torch", **changes)
    assert done.stdout == "scores: 10\n", done.stderr


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs /proc")
@pytest.mark.parametrize(
    ("changes", "start", "names"),
    [
        ({}, "import tvm", {"compiler", "runtime", "runtime_extra", "ffi", "ffi_testing"}),
        ({"TVM_USE_RUNTIME_LIB": "1"}, "import tvm", {"runtime", "ffi", "ffi_testing"}),
        ({}, "import tvmnotes; tvmnotes.load('net')", {"runtime", "ffi", "ffi_testing"}),
    ],
    ids=["all", "runtime", "ours"],
)
def test_the_libraries_in_the_table_are_those_that_are_opened(folder, changes, start, names):
    code = f"import sys; sys.modules['torch'] = None; {start}; print(open('/proc/self/maps').read())"
    done = run(folder, sys.executable, "-c", code, **changes)
    assert set(re.findall(r"/libtvm_(\w+)\.so", done.stdout)) == names
    listed = cell("ways = [")
    assert all(f'"libtvm_{name}"' in listed for name in names)


def test_damaged_copies_leave_the_network_alone(folder):
    before = {file.name: file.read_bytes() for file in (folder / "net").iterdir()}
    copies = damage.damaged_copies(folder / "net")
    assert len({copy.name for copy in copies}) == 5
    assert {file.name: file.read_bytes() for file in (folder / "net").iterdir()} == before
    for copy in copies:
        with pytest.raises((OSError, ValueError, RuntimeError)):
            tn.load(copy)


def as_c(lib):
    names = {"np": np}
    exec(cell("def as_c").partition("\n\n\nprogram")[0], names)
    return names["as_c"](lib.graph, lib.params)


def compiled_c(folder, lib, saved, compiler):
    """The notebook's C program of a graph, linked with its saved library."""
    (folder / "net.c").write_text(as_c(lib))
    headers = [f"-I{Path(package.__file__).parent}/include" for package in (tvm, tvm_ffi)]
    links = [f"{saved}/lib.so", "-rdynamic", f"-Wl,-rpath,{saved}"]
    done = run(folder, compiler, "-O2", *headers, "net.c", "-o", f"{saved}-program", *links)
    assert done.returncode == 0, done.stderr
    return f"./{saved}-program"


def fed(folder, lib, *command):
    data = PICTURE.tobytes() + b"".join(np.from_dlpack(array).tobytes() for array in lib.params.values())
    done = subprocess.run(command, cwd=folder, input=data, capture_output=True, timeout=1200)
    assert done.returncode == 0, done.stderr
    return np.frombuffer(done.stdout, "float32")


@pytest.mark.alone
@pytest.mark.skipif(not shutil.which("gcc"), reason="no C compiler")
def test_the_tiny_runtime_gives_the_same_bits_here(folder, lib):
    output = fed(folder, lib, compiled_c(folder, lib, "net", "gcc"))
    assert output.tobytes() == lib(PICTURE).tobytes()


@pytest.mark.alone
@pytest.mark.skipif(
    not (shutil.which("qemu-aarch64") and shutil.which("aarch64-linux-gnu-g++")) or env.platform.machine() == "aarch64",
    reason="no QEMU or no cross compiler",
)
def test_the_arm_library_runs_under_qemu(folder, lib):
    names = {}
    exec(cell("def machine_of").partition("\n\n\n")[0], names)
    arm = tn.build(*tn.from_pytorch(tn.models.load("digits"), {"image": (1, 1, 32, 32)}), target=names["ARM"])
    arm.save(folder / "net-arm")
    program = compiled_c(folder, arm, "net-arm", "aarch64-linux-gnu-gcc")
    output = fed(folder, arm, "qemu-aarch64", "-L", "/usr/aarch64-linux-gnu", program)
    close(output[None], reference(tn.models.load("digits"), PICTURE))


def test_the_stored_outputs_say_what_the_text_does():
    said = stored('archive.writestr("../planted.txt"')
    assert "planted.zip holds '../planted.txt'" in said and said.endswith("files that were written: 0\n")
    refused = stored("in damaged_copies(saved)").splitlines()
    assert [line.partition(":")[0] for line in refused if line] == [
        "ValueError",
        "FileNotFoundError",
        "FileNotFoundError",
        "RuntimeError",
        "RuntimeError",
    ]
    both = stored('print("C++:")')
    lines = both.split("C++:\n")
    assert top5(lines[0]) == top5(lines[1]) and len(top5(both)) == 10
    assert stored("picture_there = ") == "0 scores differ\n"
