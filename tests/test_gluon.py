"""MXNet and GluonCV beside torch, as scripts of old import them."""

import importlib.util
import subprocess
import sys

import pytest

from tvmnotes.env import without_torch

SCRIPT = """
import mxnet as mx
from gluoncv import model_zoo
import torch

net = model_zoo.get_model("cifar_resnet20_v1", pretrained=False)
net.initialize()
print(net(mx.nd.ones((2, 3, 32, 32))).shape, torch.ones(2).sum().item())
"""


@pytest.mark.skipif(importlib.util.find_spec("mxnet") is None, reason="the mxnet extra is not installed")
@pytest.mark.parametrize("first", ["", "import torch\n", "import tvm\nfrom tvm import relay\n"])
def test_a_classic_script_imports_gluoncv_beside_torch(first, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(first + SCRIPT)
    done = subprocess.run([sys.executable, "-m", "tvmnotes", "classic", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "(2, 10) 2.0"


def test_torch_is_hidden_for_a_while_only():
    import torch

    with without_torch(), pytest.raises(ImportError):
        import torch as hidden  # noqa: F401
    import torch as again

    assert again is torch
