"""Batches of any size in the virtual machine, as scripts of 2021 had it (TVM 0.8): python vm_dynamic_batch.py OUT"""

import sys

import numpy as np
import tvm
from tvm import relay
from tvm.runtime.vm import VirtualMachine

rng = np.random.default_rng(0)
shapes = {"hidden": (16, 16), "out": (4, 16)}
params = {name: rng.standard_normal(shape).astype("float32") / 4 for name, shape in shapes.items()}


def weight(name):
    return relay.var(name, shape=shapes[name])


# A function for a batch of any size.
mod = tvm.IRModule()
classify = relay.GlobalVar("classify")
x, out = relay.var("x", shape=(relay.Any(), 16)), weight("out")
mod[classify] = relay.Function([x, out], relay.nn.softmax(relay.nn.dense(x, out)))

# One hidden layer, as often as the caller wants.
steps, i = (relay.var(name, shape=(), dtype="int32") for name in ("steps", "i"))
data, state = (relay.var(name, shape=(relay.Any(), 16)) for name in ("data", "state"))
hidden, out = weight("hidden"), weight("out")
loop = relay.loops.while_loop(
    lambda i, state: relay.less(i, steps),
    [i, state],
    lambda i, state: [i + relay.const(1), relay.tanh(relay.nn.dense(state, hidden))],
)
last = relay.TupleGetItem(loop(relay.const(0), data), 1)

# The scores of the last state if there was a step, else those of the input, halved.
scores = relay.If(relay.greater(steps, relay.const(0)), classify(last, out), classify(data * relay.const(0.5), out))
mod["main"] = relay.Function([data, steps, hidden, out], scores)
print(mod.astext().splitlines()[0])

with tvm.transform.PassContext(opt_level=3):
    exe = relay.vm.compile(mod, target="llvm", params=params)
vm = VirtualMachine(exe, tvm.cpu())
results = dict(params)
for batch, count in ((1, 0), (3, 2), (1, 3), (3, 0)):
    x = rng.standard_normal((batch, 16)).astype("float32")
    y = vm.invoke("main", tvm.nd.array(x), np.array(count, "int32"))
    results[f"x_{batch}_{count}"], results[f"y_{batch}_{count}"] = x, y.asnumpy()
    print("batch", batch, "steps", count, "scores", y.shape)
try:
    vm.invoke("main", np.zeros((2, 8), "float32"), np.array(1, "int32"))
except ValueError as error:
    print("refused:", error)
np.savez(sys.argv[1], **results)
