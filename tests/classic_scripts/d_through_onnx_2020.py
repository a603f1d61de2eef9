"""Note D, PyTorch through ONNX, in the words of TVM 0.6: build_config, create_executor, evaluate."""

import sys

import numpy as np
import onnx
import torch
import tvm
from tvm import relay

from tvmnotes import data, digits

model = digits.ResNet20().eval()
model.load_state_dict(torch.load(data.path("digits/digits_resnet20.pt"), weights_only=True))
x = np.random.RandomState(0).randn(1, 1, 32, 32).astype("float32")
onnx_path = sys.argv[1] + ".onnx"
torch.onnx.export(model, torch.from_numpy(x), onnx_path, input_names=["input0"], dynamo=False)

onnx_model = onnx.load(onnx_path)
mod, params = relay.frontend.from_onnx(onnx_model, {"input0": x.shape})
with relay.build_config(opt_level=1):
    intrp = relay.build_module.create_executor("graph", mod, tvm.cpu(0), "llvm")
    tvm_output = intrp.evaluate()(tvm.nd.array(x), **params).asnumpy()
np.savez(sys.argv[1], x=x, tvm=tvm_output)
