"""Note E, a classifier and a detector with three outputs, in the words of TVM 0.8 to 0.14."""

import os
import sys

os.environ["TVM_NUM_THREADS"] = "2"

import numpy as np
import torch
import tvm
from networks import detector, picture
from tvm import relay
from tvm.contrib import graph_executor

x = picture()
mod, params = relay.frontend.from_pytorch(
    torch.jit.trace(detector(), torch.from_numpy(x)), [("data", (x.shape, "float32"))]
)
target = "llvm"
with tvm.target.Target(target), tvm.transform.PassContext(opt_level=3):
    lib = relay.build(mod, params=params)

dev = tvm.device(target, 0)
m = graph_executor.GraphModule(lib["default"](dev))
tvm_input = tvm.nd.array(x, device=dev)
m.run(data=tvm_input)
class_IDs, scores, bounding_boxs = (m.get_output(i) for i in range(m.get_num_outputs()))
print(m.benchmark(dev, number=2, repeat=3, end_to_end=True))
print(m.get_input_info())
np.savez(sys.argv[1], ids=class_IDs.numpy(), scores=scores.numpy(), boxes=bounding_boxs.numpy())
