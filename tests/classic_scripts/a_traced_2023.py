"""Note A, as scripts of 2023 wrote it (TVM 0.10 to 0.15): a traced network, targets with options, profiling."""

import sys

import numpy as np
import torch
import tvm
from networks import classifier, picture
from tvm import relay
from tvm.contrib import graph_executor
from tvm.contrib.debugger import debug_executor

model = classifier()
img = picture()
scripted_model = torch.jit.trace(model, torch.from_numpy(img)).eval()

mod, params = relay.frontend.from_pytorch(scripted_model, [("input0", img.shape)])
print(mod)

target = tvm.target.Target("llvm -mcpu=x86-64-v2 -num-cores 2", host="llvm")
dev = tvm.device(str(target.kind), 0)
with tvm.transform.PassContext(opt_level=3, config={"relay.FuseOps.max_depth": 30}):
    lib = relay.build(mod, target=target, params=params)

m = graph_executor.GraphModule(lib["default"](dev))
m.set_input("input0", tvm.nd.array(img, device=dev))
m.run()
tvm_output = m.get_output(0)
print("top-1:", np.argmax(tvm_output.numpy()[0]))
timing = m.benchmark(dev, repeat=3, number=2)
print(timing)
assert timing.mean > 0 and len(timing.results) == 3

m_debug = debug_executor.create(lib.get_graph_json(), lib.get_lib(), dev)
m_debug.set_input("input0", img)
m_debug.set_input(**lib.get_params())
m_debug.run()
report = m_debug.profile(input0=tvm.nd.array(img))
print(report)
np.savez(sys.argv[1], tvm=tvm_output.numpy(), debug=m_debug.get_output(0).numpy())
