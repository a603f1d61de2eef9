"""show: as many lines of a module as were asked for, its long signatures cut short."""

import re
import sys

import pytest
from torch import nn

import tvmnotes as tn


def test_show_prints_the_first_lines(capsys, monkeypatch):
    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)  # in a notebook it is HTML
    mod, _ = tn.from_pytorch(nn.Linear(3, 5).eval(), {"x": (2, 3)})
    tn.show(mod, lines=3)
    printed = re.sub(r"\x1b\[[\d;]*m", "", capsys.readouterr().out)  # without its colours
    assert "class Module" in printed and "def main" not in printed and "more lines" in printed
    tn.show(mod["main"])
    printed = re.sub(r"\x1b\[[\d;]*m", "", capsys.readouterr().out)
    assert "matmul" in printed and "more lines" not in printed and "from tvm" not in printed
    tn.show(tn.from_pytorch(nn.Sequential(*(nn.Linear(3, 3) for _ in range(4))).eval(), {"x": (1, 3)})[0], lines=6)
    (signature,) = [
        line for line in re.sub(r"\x1b\[[\d;]*m", "", capsys.readouterr().out).splitlines() if "def main" in line
    ]
    assert re.findall(r"(\w+): R\.Tensor", signature) == ["x", "0_weight", "0_bias"]
    assert signature.endswith(', ... 6 more) -> R.Tensor((1, 3), dtype="float32"):')
    with pytest.raises(TypeError, match="program: expected an IRModule, a function or a PrimFunc; got dict"):
        tn.show({})
    with pytest.raises(ValueError, match="lines: expected 1 or more, or None for all; got 0"):
        tn.show(mod, lines=0)
