"""Note E, as in 2019 (TVM 0.6): a network of GluonCV in MXNet and in TVM, a detector, and one convolution tuned."""

import os
import sys

os.environ["TVM_NUM_THREADS"] = "1"
os.environ["TVM_BIND_THREADS"] = "0"

import mxnet as mx
import numpy as np
import torch
import tvm
from gluoncv import model_zoo
from networks import detector, picture
from tvm import autotvm, relay
from tvm.contrib import graph_runtime

out_file, log_file = sys.argv[1:]
ctx_list = [tvm.cpu(0)] + ([tvm.gpu(0)] if tvm.gpu(0).exist else [])
dshape = (1, 3, 32, 32)
block = model_zoo.get_model("cifar_resnet20_v1", pretrained=False)
block.initialize(mx.init.Xavier())
x = picture()
expected = block(mx.nd.array(x)).asnumpy()

net, params = relay.frontend.from_mxnet(block, {"data": dshape})
func = net["main"]
func = relay.Function(func.params, relay.nn.softmax(func.body), None, func.type_params, func.attrs)
net = tvm.IRModule({relay.GlobalVar("main"): func})


def build(net, params):
    with relay.build_config(opt_level=3):
        graph, lib, params = relay.build(net, "llvm", params=params)
    return graph, lib, params


def run(graph, lib, params, ctx):
    m = graph_runtime.create(graph, lib, ctx)
    m.set_input("data", tvm.nd.array(x.astype("float32"), ctx=ctx))
    m.set_input(**params)
    m.run()
    ftimer = m.module.time_evaluator("run", ctx, number=2, repeat=3)
    print("TVM on device %d: %.2f ms" % (ctx.device_type, np.mean(ftimer().results) * 1000))
    return m


for ctx in ctx_list[:1]:
    m = run(*build(net, params), ctx)

# The detector is slow because nothing of it was ever tuned. Is it?
detector_net, detector_params = relay.frontend.from_pytorch(
    torch.jit.trace(detector(), torch.from_numpy(x)), [("data", x.shape)]
)
for ctx in ctx_list[:1]:
    d = run(*build(detector_net, detector_params), ctx)
    class_IDs, scores, bounding_boxs = d.get_output(0), d.get_output(1), d.get_output(2)

# One convolution, tuned by itself, and a build that knows the result beside the shared records.
found = autotvm.task.extract_from_program(net["main"], params, "llvm", ops=(relay.op.get("nn.conv2d"),))[0]
task = autotvm.task.create(found.name, args=found.args, target="llvm")
print(task.config_space)
measure_option = autotvm.measure_option(
    builder=autotvm.LocalBuilder(), runner=autotvm.LocalRunner(repeat=1, min_repeat_ms=0, timeout=20)
)
tuner = autotvm.tuner.XGBTuner(task)
tuner.tune(n_trial=2, measure_option=measure_option, callbacks=[autotvm.callback.log_to_file(log_file)])
with autotvm.tophub.context("llvm", extra_files=[log_file]):
    tuned = run(*build(net, params), ctx_list[0])
np.savez(
    out_file,
    mxnet=expected,
    tvm=m.get_output(0).asnumpy(),
    tuned=tuned.get_output(0).asnumpy(),
    ids=class_IDs.asnumpy(),
    scores=scores.asnumpy(),
    boxes=bounding_boxs.asnumpy(),
)
