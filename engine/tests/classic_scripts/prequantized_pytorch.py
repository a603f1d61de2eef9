"""A network that PyTorch has quantized, as scripts of 2020 deployed it (TVM 0.8): python prequantized_pytorch.py OUT"""

import sys

import numpy as np
import torch
import tvm
from torch import nn, quantization
from tvm import relay
from tvm.contrib import graph_executor


class Block(nn.Module):
    """A residual block with two branches that are added in int8."""

    def __init__(self, channels):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn1, self.relu = nn.BatchNorm2d(channels), nn.ReLU()
        self.conv2, self.bn2 = nn.Conv2d(channels, channels, 1), nn.BatchNorm2d(channels)
        self.sum = nn.quantized.FloatFunctional()

    def forward(self, x):
        y = self.relu(self.bn1(self.conv1(x)))
        return self.sum.add_relu(self.bn2(self.conv2(y)), x)


class Network(nn.Module):
    """The same block twice, and a classifier."""

    def __init__(self):
        super().__init__()
        self.quant, self.dequant = quantization.QuantStub(), quantization.DeQuantStub()
        self.stem, self.block, self.fc = nn.Conv2d(3, 16, 3, stride=2), Block(16), nn.Linear(16, 10)

    def forward(self, x):
        x = self.block(self.block(self.stem(self.quant(x))))
        return self.dequant(self.fc(nn.functional.adaptive_avg_pool2d(x, 1).reshape(x.shape[0], 16)))

    def fuse_model(self):
        quantization.fuse_modules(self.block, [["conv1", "bn1", "relu"], ["conv2", "bn2"]], inplace=True)


def quantize_model(model, samples):
    model.fuse_model()
    model.qconfig = quantization.get_default_qconfig(torch.backends.quantized.engine)
    quantization.prepare(model, inplace=True)
    for sample in samples:
        model(sample)
    quantization.convert(model, inplace=True)


def run_tvm_model(mod, params, input_name, inp):
    with tvm.transform.PassContext(opt_level=3):
        lib = relay.build(mod, target="llvm", params=params)
    runtime = graph_executor.GraphModule(lib["default"](tvm.cpu(0)))
    runtime.set_input(input_name, inp)
    runtime.run()
    return runtime.get_output(0).numpy(), runtime


torch.manual_seed(0)
inp = torch.randn(4, 3, 17, 17)
qmodel = Network().eval()
with torch.no_grad():
    quantize_model(qmodel, [inp, torch.randn(4, 3, 17, 17)])
    script_module = torch.jit.trace(qmodel, inp).eval()
    pt_result = script_module(inp).numpy()

mod, params = relay.frontend.from_pytorch(script_module, [("input", tuple(inp.shape))])
tvm_result, runtime = run_tvm_model(mod, params, "input", inp.numpy())

same = np.isclose(tvm_result, pt_result, rtol=0, atol=qmodel.fc.scale / 100)
print("weights of int8:", sum(str(array.dtype) == "int8" for array in params.values()))
print("%d in %d raw floats correct." % (same.sum(), same.size))  # noqa: UP031
print("labels:", *tvm_result.argmax(1), "of PyTorch:", *pt_result.argmax(1))
np.savez(sys.argv[1], tvm=tvm_result, pytorch=pt_result, scale=qmodel.fc.scale)
