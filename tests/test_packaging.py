"""The package as a thing to install: a light import, the public API, and pins that agree wherever they are written."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import newest
import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from test_threads import FIRST_USES

import tvmfast
import tvmnotes

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10, where pytest brings it
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
EXTRAS = PROJECT["optional-dependencies"]
ENGINES = tomllib.loads((ROOT / "engine" / "pyproject.toml").read_text())
ENGINE = ENGINES["project"]
OPTIONAL = ENGINE["optional-dependencies"]


def asked(extras=EXTRAS) -> list[Requirement]:
    """What the two packages ask for; of the helper's extras with these, of the engine's with those that they name."""
    lines = [*PROJECT["dependencies"], *(line for extra in extras for line in EXTRAS[extra])]
    engine = {extra for line in lines if (r := Requirement(line)).name == "tvmfast" for extra in r.extras}
    engine |= {extra for line in OPTIONAL["all"] for extra in Requirement(line).extras}
    lines += [*ENGINE["dependencies"], *(line for extra in sorted(engine) for line in OPTIONAL[extra])]
    return [requirement for requirement in map(Requirement, lines) if requirement.name != "tvmfast"]


REQUIREMENTS = asked()
SUPPORTED = [f"3.{minor}" for minor in range(30) if f"3.{minor}" in SpecifierSet(PROJECT["requires-python"])]
MACHINES = [("linux", "x86_64"), ("linux", "aarch64"), ("darwin", "arm64")]


# ---------------------------------------------------------------- importing


def test_importing_tvmnotes_loads_no_library(python):
    loaded = python("import sys, tvmnotes; print(*sorted({name.partition('.')[0] for name in sys.modules}))").split()
    assert "tvmnotes" in loaded
    heavy = {re.sub("^apache-", "", requirement.name).replace("-", "_") for requirement in REQUIREMENTS}
    assert not (heavy | {"tvm", "tvm_ffi", "torch", "numpy", "PIL"}) & set(loaded)


def test_the_runtime_does_without_frameworks_compiler_and_figures(python):
    frameworks = "torch", "onnx", "mxnet", "matplotlib"  # tvm imports torch where it can be imported
    loaded = python(
        f"import sys; sys.modules.update(dict.fromkeys({frameworks})); import tvmnotes; tvmnotes.load; "
        "print(*sys.modules)"
    ).split()
    assert "tvmfast.runtime" in loaded
    assert not {"tvmfast.compiler", "tvmfast.frontends", "tvmnotes.models", "tvmnotes.plots"} & set(loaded)


ALONE = """
import importlib, pkgutil, sys

class Refuse:
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in ("tvmnotes", "tools"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Refuse)
import numpy as np, torch, tvmclassic, tvmfast

for package in (tvmfast, tvmclassic):
    for _, name, _ in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if not name.endswith("__main__"):
            importlib.import_module(name)
lib = tvmfast.build(*tvmfast.from_pytorch(torch.nn.ReLU().eval(), {"x": (4,)}))
profile = tvmfast.profile(lib, np.ones(4, "float32"), calls=1)
print(len(profile.frame()), tvmfast.commands.find_networks().__name__)
try:
    profile.plot()
except ImportError as error:
    print(error)
"""


def test_the_engine_does_without_the_course(python):
    found, said = python(ALONE).splitlines()
    assert found == "1 tvmfast.profiling.networks"
    assert said == (
        "cannot draw shares: figures come from the package tvmnotes. "
        "Install it (pip install tvmnotes) and import it, or take the numbers from frame()"
    )


@pytest.mark.parametrize(
    ("verb", "package", "extra"),
    [("from_pytorch", "torch", "torch"), ("from_onnx", "onnx", "onnx"), ("compare", "pandas", None)],
)
def test_a_verb_whose_extra_is_missing_says_which(python, verb, package, extra):
    code = (
        f"import sys; sys.modules[{package!r}] = None\nimport tvmfast\n"
        f"try: print(tvmfast.{verb}.__name__)\nexcept ModuleNotFoundError as error: print(error)"
    )
    needs = f"tvmfast.{verb} needs the package {package}: pip install 'tvmfast[{extra}]'"
    assert python(code).splitlines()[-1] == (needs if extra else verb)


@pytest.mark.full
def test_threads_may_be_the_first_to_use_the_helper(python):
    assert python(FIRST_USES.replace("tvmfast", "tvmnotes")).startswith("True")


def test_what_has_moved_says_where():
    with pytest.raises(ImportError, match="tvmnotes.importers is no longer there: use tvmfast.frontends"):
        from tvmnotes import importers  # noqa: F401


def test_an_engine_of_another_version_is_refused(python):
    code = (
        "import tvmfast; tvmfast.__version__ = '0.0.9'\ntry: import tvmnotes\nexcept ImportError as error: print(error)"
    )
    said = python(code)
    assert said.startswith(f"tvmnotes {tvmnotes.__version__} needs tvmfast {tvmnotes.__version__}, and finds 0.0.9 in ")
    assert said.strip().endswith("pip install -e ./engine -e .")


def test_the_public_api():
    for name in tvmnotes.__all__:
        assert getattr(tvmnotes, name) is not None
        assert name in dir(tvmnotes)
    assert tvmnotes.build.__module__ == "tvmfast.api"
    assert tvmnotes.load.__module__ == "tvmfast.runtime.compiled"
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = tvmnotes.nonsense


# ---------------------------------------------------------------- pins


def exact(name: str) -> set[str]:
    """The versions to which pyproject.toml pins a package exactly."""
    specifiers = [s for r in REQUIREMENTS if r.name == name for s in r.specifier]
    return {s.version for s in specifiers if s.operator == "==" and "*" not in s.version}


@pytest.mark.parametrize("pair", [("apache-tvm", "apache-tvm-ffi"), ("torch", "torchvision")])
def test_packages_that_are_built_for_each_other_are_pinned_exactly(pair):
    assert all(len(exact(name)) == 1 for name in pair)


def test_all_versions_agree():
    assert {tvmnotes.__version__, tvmfast.__version__, ENGINE["version"]} == {PROJECT["version"]}
    own = [Requirement(line) for lines in (PROJECT["dependencies"], *EXTRAS.values()) for line in lines]
    assert {str(r.specifier) for r in own if r.name == "tvmfast"} == {f"=={PROJECT['version']}"}
    assert ENGINE["requires-python"] == PROJECT["requires-python"]


def test_the_engines_tests_take_what_all_tests_take():
    assert set(ENGINES["dependency-groups"]["test"]) < set(EXTRAS["dev"])


def conda():
    """What environment.yml asks for: conda's requirements and pip's lines."""
    entries = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    (pip,) = [entry["pip"] for entry in entries if isinstance(entry, dict)]
    return [entry for entry in entries if isinstance(entry, str)], pip


def test_conda_and_make_lab_install_the_same_lock_and_make_test_adds_what_tests_need():
    installs = re.findall(r"call install,(.*),(.*)\)$", (ROOT / "Makefile").read_text().replace("$(comma)", "+"), re.M)
    assert installs == [("$(LOCK)", "mxnet"), ("$(LOCK) $(TESTS_LOCK)", "dev+mxnet")]
    assert conda()[1] == ["-r lock.txt"]
    assert {"dev", "mxnet"} == EXTRAS.keys()


def test_the_python_of_conda_is_one_that_the_project_supports():
    (python,) = [entry for entry in conda()[0] if entry.startswith("python")]
    version = re.fullmatch(r"python=(\d+\.\d+)", python).group(1)
    assert version in SpecifierSet(PROJECT["requires-python"])
    mxnet = next(r for r in REQUIREMENTS if r.name == "mxnet")
    assert mxnet.marker.evaluate({"python_version": version}), "notebook 21 runs in the conda environment too"


def test_the_python_that_the_project_supports_is_the_same_everywhere():
    low, high = SUPPORTED[0], SUPPORTED[-1]
    makefile = (ROOT / "Makefile").read_text()
    bounds = re.search(r"\((3, \d+)\) <= sys.version_info\[:2\] <= \((3, \d+)\)", makefile).groups()
    assert [bound.replace(", ", ".") for bound in bounds] == [low, high]
    assert set(re.findall(r"(?<=Python )3\.\d+ to 3\.\d+", makefile)) == {f"{low} to {high}"}
    assert f"Python {low} to {high}" in (ROOT / "README.md").read_text()
    assert set(re.findall(r"python(3\.\d+)", re.search(r"^PYTHONS := .*\n.*", makefile, re.M)[0])) == set(SUPPORTED)
    assert f"for version in {high} " in (ROOT / ".ci" / "run").read_text()


def test_make_runs_the_notebooks_that_need_the_machine_for_themselves():
    needs = re.search(r"^_ALONE = .*", (ROOT / "tests" / "conftest.py").read_text(), re.M)[0]
    runs = re.search(r"^ALONE = .*", (ROOT / "Makefile").read_text(), re.M)[0]
    assert set(re.findall(r"\d\d_\w+", needs)) == set(re.findall(r"\d\d_\w+", runs)) != set()


def test_the_workflow_runs_the_pythons_and_machines_that_the_project_supports():
    """It never runs here: this says that it is whole, not that it passes."""
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())["jobs"]
    for name, job in jobs.items():
        rows = job.get("strategy", {}).get("matrix", {}).get("include", [{}])
        for row in rows:
            assert row.keys() == set(re.findall(r"\$\{\{ matrix\.(\w+) \}\}", str(job))), name
        (python,) = [step["with"]["python-version"] for step in job["steps"] if "setup-python" in step.get("uses", "")]
        pythons = {row.get("python", python) for row in rows}
        assert pythons <= set(SUPPORTED), name
        if name == "smoke":
            assert {SUPPORTED[0], SUPPORTED[-1]} < pythons
            assert {re.sub(r"-(latest|[\d.]+)", "", row["machine"]) for row in rows} == {
                "ubuntu",
                "ubuntu-arm",
                "macos",
            }
        assert jobs["newest"]["if"] == "github.event_name == 'schedule'"


# ---------------------------------------------------------------- the lock


def locked(name: str) -> list[Requirement]:
    """The releases of a lock, each of which has its hashes."""
    text = (ROOT / name).read_text()
    blocks = re.findall(r"^(\S.*?) \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", text, re.M)
    assert len(blocks) > 20
    rest = text
    for line, hashes in blocks:
        rest = rest.replace(f"{line} \\\n{hashes}", "", 1)
    assert re.fullmatch("(#.*\n)*", rest), "only releases, hashes and comments: no index, no folder, no option"
    return [Requirement(line) for line, _ in blocks]


@pytest.mark.parametrize(("system", "processor"), MACHINES, ids="-".join)
@pytest.mark.parametrize("version", SUPPORTED)
def test_the_lock_has_one_release_of_all_that_is_asked_for(version, system, processor):
    here = {"python_version": version, "python_full_version": version + ".5", "sys_platform": system, "extra": ""}
    here |= {"platform_machine": processor, "os_name": "posix", "platform_system": system.capitalize()}

    def applying(requirements):
        return [r for r in requirements if not r.marker or r.marker.evaluate(here)]

    readers, more = applying(locked("lock.txt")), applying(locked("lock-tests.txt"))
    for releases, extras in ((readers, {"mxnet"}), (readers + more, EXTRAS.keys())):
        by_name = {}
        for release in releases:
            by_name.setdefault(release.name, set()).add(next(iter(release.specifier)).version)
        assert all(len(versions) == 1 for versions in by_name.values())
        building = map(Requirement, PYPROJECT["dependency-groups"]["build"])
        for requirement in applying([*asked(extras), *building]):
            (release,) = by_name[requirement.name]
            assert release in requirement.specifier, f"{requirement}: make lock"
    assert "pytest" not in {release.name for release in readers}


def test_what_builds_the_package_is_in_the_lock():
    assert {Requirement(line).name for line in PYPROJECT["build-system"]["requires"]} <= {
        Requirement(line).name for line in PYPROJECT["dependency-groups"]["build"]
    }


def test_newest_lists_what_is_newer_than_the_lock(monkeypatch, capsys):
    monkeypatch.setattr(newest, "locked", lambda: {"packaging": "1.0", "pytest": "99999"})
    newest.main()
    rows = {row.split()[0]: row.split()[1:] for row in capsys.readouterr().out.splitlines()}
    assert rows["packaging"][0] == "1.0"
    assert rows["numpy"][0] == "-" and not {"pytest", "pip", "tvmnotes", "tvmfast"} & rows.keys()


# ---------------------------------------------------------------- finding a Python


@pytest.fixture
def programs(tmp_path):
    """A folder that is all of PATH, with what make calls of a system; a function that adds a program to it."""
    folder = tmp_path / "programs"
    folder.mkdir()
    for name in ("grep", "sh"):
        (folder / name).symlink_to(shutil.which(name))

    def add(name: str, script: str) -> None:
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)

    add("rm", "echo rm $*")
    return add


def make(folder: Path, *arguments: str) -> subprocess.CompletedProcess:
    """Have make make an environment in a folder, with a PATH of the folder's programs alone."""
    call = [shutil.which("make"), "--no-print-directory", f"VENV={folder}/env", *arguments, f"{folder}/env/reader"]
    return subprocess.run(call, cwd=ROOT, env={"PATH": f"{folder}/programs"}, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("machine", "there", "taken"),
    [
        ("Linux x86_64", ["3.10", "3.11", "3.14"], "3.11"),
        ("Linux x86_64", ["3.10", "3.12", "3.13"], "3.13"),
        ("Linux aarch64", ["3.11", "3.14"], "3.14"),
        ("Darwin arm64", ["3.9", "3.10"], "3.10"),
    ],
)
def test_make_takes_the_first_python_that_works(programs, tmp_path, machine, there, taken):
    programs("uname", f"echo {machine}")
    for version in SUPPORTED:
        programs(f"python{version}", "exit 127")  # as pyenv's are for versions that are not chosen
    for version in there:
        programs(f"python{version}", f'[ "$1" = -c ] || {{ echo "{version}: $*"; exit 1; }}')
    programs("uv", "echo uv")
    assert make(tmp_path).stdout.splitlines()[-1] == f"{taken}: -m venv --clear {tmp_path}/env"


def test_make_takes_the_python_that_is_named_even_if_another_works(programs, tmp_path):
    programs("uname", "echo Linux x86_64")
    programs("python3.11", "exit 0")
    programs("mine", 'echo "mine: $*"; exit 1')
    assert f"mine: -m venv --clear {tmp_path}/env" in make(tmp_path, "PYTHON=mine").stdout


def test_without_a_python_that_works_make_asks_uv_and_else_says_what_to_install(programs, tmp_path):
    programs("uname", "echo Darwin arm64")
    programs("python3.12", "exit 1")  # Debian's without python3-venv
    done = make(tmp_path)
    assert done.returncode == 2
    for system in ("Debian, Ubuntu", "Fedora", "macOS", "Windows"):
        assert re.search(f"^  {system}: ", done.stderr, re.M)
    programs("uv", '[ "$1" = --version ] || { echo "uv: $*"; exit 1; }')
    assert make(tmp_path).stdout.splitlines()[-1] == f"uv: venv --quiet --seed --python 3.11 {tmp_path}/env"


def test_environment_yml_pins_nothing_that_pyproject_does_not():
    entries, pip = conda()
    for entry in [*entries, *(line for line in pip if not line.startswith("-r"))]:
        name, pin = re.fullmatch(r"([\w.-]+)\s*(.*)", entry).groups()
        if name != "python" and pin:
            assert pin.startswith("=") and pin.lstrip("=") in exact(name), f"{entry}: pyproject.toml pins {exact(name)}"


# ---------------------------------------------------------------- files


def test_an_installed_package_finds_its_data(python, tmp_path):
    """As a wheel lays it out: the package, with the data folder where pyproject.toml puts it."""
    (package,) = PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    moves = PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "data", tmp_path / moves["data"])
    code = "import tvmnotes; print(tvmnotes.data.path('digits/test.npz'))"
    found = python(code, cwd=tmp_path, PYTHONPATH=f"{tmp_path}{os.pathsep}{ROOT / 'engine'}")
    assert Path(found) == tmp_path / moves["data"] / "digits/test.npz"


def test_the_readme_is_short_and_names_every_notebook():
    readme = (ROOT / "README.md").read_text()
    assert len(readme.splitlines()) <= 140
    notebooks = sorted(path.name for path in (ROOT / "notebooks").glob("*.ipynb"))
    assert notebooks and [name for name in notebooks if name not in readme] == []
