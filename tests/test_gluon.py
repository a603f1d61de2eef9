"""MXNet and GluonCV beside torch, as scripts of old import them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from agreement import close, terms_of
from conftest import sampled

import tvmnotes as tn
from tvmfast.core.compat import without_torch

RELAY = "import tvm\nfrom tvm import relay\n"
SCRIPT = """
import mxnet as mx
from gluoncv import model_zoo
import torch

net = model_zoo.get_model("cifar_resnet20_v1", pretrained=False)
net.initialize()
print(net(mx.nd.ones((2, 3, 32, 32))).shape, torch.ones(2).sum().item())
"""


@pytest.mark.skipif(not tn.gluon.installed(), reason="the mxnet extra is not installed")
@pytest.mark.parametrize("first", sampled(["", "import torch\n", RELAY], [RELAY]))
def test_a_classic_script_imports_gluoncv_beside_torch(first, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(first + SCRIPT)
    command = [sys.executable, "-m", "tvmclassic", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "(2, 10) 2.0"


BROKEN = """
import sys
sys.path.insert(0, {folder!r})
import tvmnotes as tn
print(tn.gluon.why_not())
if tn.gluon.installed() or "mxnet" in sys.modules:
    raise AssertionError
try:
    tn.gluon.network("cifar_resnet20_v1")
except ModuleNotFoundError as error:
    print(error)
{lesson}
"""


def test_mxnet_that_is_installed_and_cannot_be_imported_says_why_and_lesson_07_starts_without(tmp_path, python):
    """As its wheel for ARM Linux."""
    library = "libarmpl_lp64_mp.so: cannot open shared object file: No such file or directory"
    for package, code in (("mxnet", f"raise OSError({library!r})"), ("gluoncv", "")):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text(code)
    cells = json.loads((Path(__file__).parents[1] / "notebooks/07_mxnet_gluoncv.ipynb").read_text())["cells"]
    lesson = next("".join(cell["source"]) for cell in cells if "tn.gluon" in "".join(cell["source"]))
    told = (
        f"MXNet is installed, but cannot be imported (OSError: {library}): pip uninstall mxnet gluoncv, "
        "and do without it"
    )
    printed = python(BROKEN.format(folder=str(tmp_path), lesson=lesson)).splitlines()
    assert printed[:3] == [told] * 3 and "uses the files that the course ships" in printed[3]


def test_torch_is_hidden_for_a_while_only():
    import torch

    with without_torch(), pytest.raises(ImportError):
        import torch as hidden  # noqa: F401
    import torch as again

    assert again is torch


@pytest.mark.skipif(not tn.gluon.installed(), reason="the mxnet extra is not installed")
def test_a_network_is_exported_once_whole_or_not_at_all(tmp_path, monkeypatch, rng):
    monkeypatch.setenv("TVMNOTES_CACHE", str(tmp_path))
    name = "cifar_resnet20_v1"
    shape = tn.gluon.shape_of(name)
    with pytest.raises(OSError, match="no space"), monkeypatch.context() as full:
        full.setattr(tn.gluon.Path, "replace", lambda *_: (_ for _ in ()).throw(OSError("no space")))
        tn.gluon.exported(name)
    assert not any(file.is_file() for file in tmp_path.rglob("*"))

    symbol_file, params_file, kind = tn.gluon.exported(name)
    assert sorted(file.name for file in tmp_path.rglob("*") if file.is_file()) == [params_file.name, symbol_file.name]
    x = rng.standard_normal(shape, dtype="float32")
    mod, params = tn.from_mxnet(symbol_file, params_file, {"data": shape})
    output = tn.build(mod, params, opt_level=0)(x)
    net = tn.gluon.network(name)
    import mxnet as mx

    close(output, net(mx.nd.array(x)).asnumpy(), terms_of(params), rounded=True)
    assert kind == net.weights_kind

    monkeypatch.setattr(tn.gluon, "network", None)
    assert tn.gluon.exported(name) == (symbol_file, params_file, kind)
