import numpy as np
import tvm
from tvm import relay

data = relay.var("data", shape=(4, 64), dtype="float32")
weight = relay.var("weight", shape=(10, 64), dtype="float32")
bias = relay.var("bias", shape=(10,), dtype="float32")
body = relay.nn.relu(relay.nn.bias_add(relay.nn.dense(data, weight), bias))
mod = tvm.IRModule.from_expr(relay.Function([data, weight, bias], body))
print(mod)

rng = np.random.default_rng(0)
arrays = [rng.standard_normal([int(n) for n in v.checked_type.shape]).astype("float32") for v in (data, weight, bias)]
run = relay.create_executor("graph", mod=mod, device=tvm.cpu(), target="llvm").evaluate()
np.savez("layer.npz", data=arrays[0], weight=arrays[1], bias=arrays[2], out=run(*arrays).numpy())
