"""MXNet and GluonCV beside torch, as scripts of old import them."""

import re
import subprocess
import sys

import pytest
from agreement import close, terms_of
from testing import sampled

import tvmfast
from tvmfast.core.compat import without_torch
from tvmfast.frontends.mxnet import gluon

RELAY = "import tvm\nfrom tvm import relay\n"
SCRIPT = """
import mxnet as mx
from gluoncv import model_zoo
import torch

net = model_zoo.get_model("cifar_resnet20_v1", pretrained=False)
net.initialize()
print(net(mx.nd.ones((2, 3, 32, 32))).shape, torch.ones(2).sum().item())
"""


@pytest.mark.skipif(not gluon.installed(), reason="the mxnet extra is not installed")
@pytest.mark.parametrize("first", sampled(["", "import torch\n", RELAY], [RELAY]))
def test_a_classic_script_imports_gluoncv_beside_torch(first, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(first + SCRIPT)
    command = [sys.executable, "-m", "tvmclassic", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "(2, 10) 2.0"


def test_torch_is_hidden_for_a_while_only():
    import torch

    with without_torch(), pytest.raises(ImportError):
        import torch as hidden  # noqa: F401
    import torch as again

    assert again is torch


def test_mxnet_is_installed_if_it_can_be_imported_and_else_it_is_said_why(tmp_path, monkeypatch):
    for package in ("mxnet", "gluoncv"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(gluon, "why_not", gluon.why_not.__wrapped__)  # which remembers no answer
    monkeypatch.setitem(sys.modules, "mxnet", None)  # what was imported is put back in the end
    assert not gluon.installed()
    assert gluon.why_not().startswith("MXNet and GluonCV are not installed: pip install 'tvmfast[mxnet]', on Python")

    del sys.modules["mxnet"]
    assert gluon.installed() and gluon.why_not() is None

    del sys.modules["mxnet"]
    (tmp_path / "mxnet" / "__init__.py").write_text("import numpy\nnumpy.no_such_name\n")  # as of a NumPy that is newer
    assert not gluon.installed() and "mxnet" not in sys.modules
    reason = r"cannot be imported \(AttributeError: module 'numpy' has no attribute 'no_such_name'\): pip uninstall"
    assert re.search(reason, gluon.why_not())
    with pytest.raises(ModuleNotFoundError, match=reason):
        gluon.network("cifar_resnet20_v1")


@pytest.mark.skipif(not gluon.installed(), reason="the mxnet extra is not installed")
def test_a_network_is_exported_once_whole_or_not_at_all(tmp_path, monkeypatch, rng):
    monkeypatch.setenv("TVMNOTES_CACHE", str(tmp_path))
    name = "cifar_resnet20_v1"
    shape = gluon.shape_of(name)
    with pytest.raises(OSError, match="no space"), monkeypatch.context() as full:
        full.setattr(gluon.Path, "replace", lambda *_: (_ for _ in ()).throw(OSError("no space")))
        gluon.exported(name)
    assert not any(file.is_file() for file in tmp_path.rglob("*"))

    symbol_file, params_file, kind = gluon.exported(name)
    assert sorted(file.name for file in tmp_path.rglob("*") if file.is_file()) == [params_file.name, symbol_file.name]
    x = rng.standard_normal(shape, dtype="float32")
    mod, params = tvmfast.from_mxnet(symbol_file, params_file, {"data": shape})
    output = tvmfast.build(mod, params, opt_level=0)(x)
    net = gluon.network(name)
    import mxnet as mx

    close(output, net(mx.nd.array(x)).asnumpy(), terms_of(params), rounded=True)
    assert kind == net.weights_kind

    monkeypatch.setattr(gluon, "network", None)
    assert gluon.exported(name) == (symbol_file, params_file, kind)
