"""Note D, PyTorch through ONNX, as in 2020 (TVM 0.6 and 0.7), with the stages of the build looked at."""

import json
import sys

import numpy as np
import onnx
import torch
import tvm
from tvm import relay
from tvm.contrib import graph_runtime

from tvmnotes import data, digits

model = digits.ResNet20().eval()
model.load_state_dict(torch.load(data.path("digits/digits_resnet20.pt"), weights_only=True))
x = np.random.RandomState(0).randn(1, 1, 32, 32).astype("float32")
onnx_path = sys.argv[1] + ".onnx"
torch.onnx.export(model, torch.from_numpy(x), onnx_path, input_names=["input0"], dynamo=False)

onnx_model = onnx.load(onnx_path)
mod, params = relay.frontend.from_onnx(onnx_model, {"input0": x.shape})

use_gpu = tvm.gpu(0).exist and "--gpu" in sys.argv
target = "cuda" if use_gpu else "llvm"
ctx = tvm.gpu(0) if use_gpu else tvm.cpu(0)
print(ctx, ctx.device_type, ctx.device_id, ctx.device_name)
with relay.build_config(opt_level=1):
    intrp = relay.build_module.create_executor("graph", mod, ctx, target)
    tvm_output = intrp.evaluate()(tvm.nd.array(x, ctx), **params).asnumpy()

# The stages that the note follows with a debugger: optimize, the graph, the operators, the runtime.
with tvm.transform.PassContext(opt_level=1):
    seq = tvm.transform.Sequential(
        [relay.transform.InferType(), relay.transform.SimplifyInference(), relay.transform.FuseOps(1)]
    )
    fused = seq(mod)
    graph, lib, params = relay.build(mod, tvm.target.create("llvm"), params=params)
print("functions after FuseOps:", fused.astext(show_meta_data=False).count("Primitive=1"))
ops = [n["attrs"]["func_name"] for n in json.loads(graph)["nodes"] if n["op"] == "tvm_op"]
print("operators in the graph:", len(ops))
m = graph_runtime.create(graph, lib, ctx)
m.set_input("input0", x, **params)
m.run()

# A program of one operator, which is computed at once.
logits = relay.var("logits", shape=tvm_output.shape, dtype="float32")
softmax = relay.Function([logits], relay.nn.softmax(logits))
executor = relay.create_executor("graph", mod=tvm.IRModule.from_expr(softmax), ctx=ctx, target=target)
scores = executor.evaluate()(tvm_output).asnumpy()
np.savez(sys.argv[1], x=x, tvm=tvm_output, graph=m.get_output(0).asnumpy(), scores=scores)
