"""Note E, a classifier and a detector with three outputs, in the words of 2019 (TVM 0.5 and 0.6)."""

import os
import sys

os.environ["TVM_NUM_THREADS"] = "1"
os.environ["TVM_BIND_THREADS"] = "0"

import numpy as np
import torch
import tvm
from networks import detector, picture
from tvm import relay
from tvm.contrib import graph_runtime

ctx_list = [tvm.cpu(0)] + ([tvm.gpu(0)] if tvm.gpu(0).exist else [])
x = picture()
net, params = relay.frontend.from_pytorch(torch.jit.trace(detector(), torch.from_numpy(x)), [("data", x.shape)])

with relay.build_config(opt_level=3):
    graph, lib, params = relay.build(net, "llvm", params=params)

for ctx in ctx_list[:1]:
    m = graph_runtime.create(graph, lib, ctx)
    m.set_input("data", tvm.nd.array(x.astype("float32"), ctx=ctx))
    m.set_input(**params)
    m.run()
    class_IDs, scores, bounding_boxs = m.get_output(0), m.get_output(1), m.get_output(2)
    ftimer = m.module.time_evaluator("run", ctx, number=2)
    print("TVM: %.2f ms" % (ftimer().mean * 1000))
np.savez(sys.argv[1], ids=class_IDs.asnumpy(), scores=scores.asnumpy(), boxes=bounding_boxs.asnumpy())
