"""Note E, as it was in 2019 (TVM 0.5 and 0.6): a network of GluonCV in MXNet and, through from_mxnet, in TVM."""

import sys

import mxnet as mx
import numpy as np
import tvm
from gluoncv import model_zoo
from tvm import relay
from tvm.contrib import graph_runtime

dshape = (1, 3, 32, 32)
block = model_zoo.get_model("cifar_resnet20_v1", pretrained=False)
block.initialize(mx.init.Xavier())
x = np.random.uniform(size=dshape).astype("float32")
expected = block(mx.nd.array(x)).asnumpy()

net, params = relay.frontend.from_mxnet(block, {"data": dshape})
func = net["main"]
net = relay.Function(func.params, relay.nn.softmax(func.body), None, func.type_params, func.attrs)
with relay.build_config(opt_level=3):
    graph, lib, params = relay.build(net, "llvm", params=params)

ctx = tvm.cpu()
m = graph_runtime.create(graph, lib, ctx)
m.set_input("data", tvm.nd.array(x, ctx=ctx))
m.set_input(**params)
m.run()
ftimer = m.module.time_evaluator("run", ctx, number=2, repeat=3)
print("TVM: %.2f ms" % (np.mean(ftimer().results) * 1000))
np.savez(sys.argv[1], mxnet=expected, tvm=m.get_output(0).asnumpy())
