"""The package as a thing to install: a light import, the public API, and pins that agree wherever they are written."""

import re
import shutil
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

import tvmnotes

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10, where pytest brings it
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
EXTRAS = PROJECT["optional-dependencies"]
REQUIREMENTS = [Requirement(line) for lines in (PROJECT["dependencies"], *EXTRAS.values()) for line in lines]


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
    assert "tvmnotes.runtime" in loaded
    assert not {"tvmnotes.compiler", "tvmnotes.importers", "tvmnotes.course.models", "tvmnotes.course.plots"} & set(
        loaded
    )


def test_the_public_api():
    for name in tvmnotes.__all__:
        assert getattr(tvmnotes, name) is not None
        assert name in dir(tvmnotes)
    assert tvmnotes.build.__module__ == "tvmnotes.importers.build"
    assert tvmnotes.load.__module__ == "tvmnotes.runtime.compiled"
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


def test_the_version_is_written_twice_and_agrees():
    assert tvmnotes.__version__ == PROJECT["version"]


def conda():
    """What environment.yml asks for: conda's requirements and pip's lines."""
    entries = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    (pip,) = [entry["pip"] for entry in entries if isinstance(entry, dict)]
    return [entry for entry in entries if isinstance(entry, str)], pip


def extras(text: str) -> list[set[str]]:
    return [set(listed.split(",")) for listed in re.findall(r"(?:-e|--editable) '?\.\[([\w,]+)\]", text)]


def test_conda_and_make_lab_install_the_same_extras_and_make_test_adds_dev():
    readers, developers = extras((ROOT / "Makefile").read_text())
    assert extras("\n".join(conda()[1])) == [readers]
    assert developers == readers | {"dev"} <= EXTRAS.keys()


def test_the_python_of_conda_is_one_that_the_project_supports():
    (python,) = [entry for entry in conda()[0] if entry.startswith("python")]
    version = re.fullmatch(r"python=(\d+\.\d+)", python).group(1)
    assert version in SpecifierSet(PROJECT["requires-python"])
    mxnet = next(r for r in REQUIREMENTS if r.name == "mxnet")
    assert mxnet.marker.evaluate({"python_version": version}), "notebook 07 runs in the conda environment too"


def test_the_makefile_asks_for_the_python_that_the_project_supports():
    low, high = re.search(
        r"\((3, \d+)\) <= sys.version_info\[:2\] <= \((3, \d+)\)", (ROOT / "Makefile").read_text()
    ).groups()
    supported = [f"3.{minor}" for minor in range(30) if f"3.{minor}" in SpecifierSet(PROJECT["requires-python"])]
    assert (low.replace(", ", "."), high.replace(", ", ".")) == (supported[0], supported[-1])


def test_environment_yml_pins_nothing_that_pyproject_does_not():
    entries, pip = conda()
    for entry in [*entries, *(line for line in pip if not line.startswith("-e"))]:
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
    found = python(code, cwd=tmp_path, PYTHONPATH=str(tmp_path))
    assert Path(found) == tmp_path / moves["data"] / "digits/test.npz"


def test_the_readme_names_every_notebook():
    readme = (ROOT / "README.md").read_text()
    notebooks = sorted(path.name for path in (ROOT / "notebooks").glob("*.ipynb"))
    assert notebooks and [name for name in notebooks if name not in readme] == []
