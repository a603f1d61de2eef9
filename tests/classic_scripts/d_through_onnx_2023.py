"""Note D, PyTorch through ONNX, in the words of TVM 0.9 to 0.15, with the stages of the build looked at."""

import json
import sys

import numpy as np
import onnx
import torch
import tvm
from tvm import relay
from tvm.contrib import graph_executor

from tvmnotes import data, digits

model = digits.ResNet20().eval()
model.load_state_dict(torch.load(data.path("digits/digits_resnet20.pt"), weights_only=True))
x = np.random.RandomState(0).randn(1, 1, 32, 32).astype("float32")
onnx_path = sys.argv[1] + ".onnx"
torch.onnx.export(model, torch.from_numpy(x), onnx_path, input_names=["input0"], dynamo=False)

mod, params = relay.frontend.from_onnx(onnx.load(onnx_path), {"input0": x.shape})
with tvm.transform.PassContext(opt_level=1):
    executor = relay.build_module.create_executor("graph", mod, tvm.cpu(0), "llvm", params).evaluate()
    tvm_output = executor(tvm.nd.array(x)).numpy()

# The stages that the note follows with a debugger: optimize, the graph, the operators, the runtime.
with tvm.transform.PassContext(opt_level=1):
    seq = tvm.transform.Sequential(
        [relay.transform.InferType(), relay.transform.SimplifyInference(), relay.transform.FuseOps(1)]
    )
    fused = seq(mod)
    lib = relay.build(mod, tvm.target.Target("llvm"), params=params)
print("functions after FuseOps:", fused.astext(show_meta_data=False).count("Primitive=1"))
graph = json.loads(lib.get_graph_json())
ops = [n["attrs"]["func_name"] for n in graph["nodes"] if n["op"] == "tvm_op"]
print("operators in the graph:", len(ops))
m = graph_executor.create(lib.get_graph_json(), lib.get_lib(), tvm.cpu(0))
m.set_input("input0", x, **lib.get_params())
m.run()
np.savez(sys.argv[1], x=x, tvm=tvm_output, graph=m.get_output(0).numpy())
