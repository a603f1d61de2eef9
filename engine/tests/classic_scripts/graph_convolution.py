"""A graph convolutional network, as scripts of 2020 wrote it (TVM 0.8): python graph_convolution.py OUT"""

import sys
from collections import namedtuple

import numpy as np
import tvm
from tvm import relay
from tvm.contrib import graph_executor

Adjacency = namedtuple("Adjacency", ["data", "indices", "indptr"])
NODES, FEATURES = 20, (6, 8, 3)

# A graph in which each node is its own neighbour, and what each layer multiplies by before and after.
rng = np.random.default_rng(0)
edges = rng.random((NODES, NODES)) < 0.2
edges = edges | edges.T | np.eye(NODES, dtype=bool)
arrays = {
    "data": np.ones(edges.sum(), "float32"),
    "indices": np.nonzero(edges)[1].astype("int32"),
    "indptr": np.concatenate([[0], edges.sum(1).cumsum()]).astype("int32"),
}
adjacency = Adjacency(*(relay.Constant(tvm.nd.array(arrays[name])) for name in Adjacency._fields))
scale = (edges.sum(1, keepdims=True) ** -0.5).astype("float32")
norm = relay.Constant(tvm.nd.array(scale))


def convolution(name, sizes, x, activation=None):
    """activation(scale * A @ (scale * x @ weight) + bias), with the adjacency matrix A on the right."""
    weight = relay.var(f"{name}.weight", shape=sizes)
    bias = relay.var(f"{name}.bias", shape=(sizes[1], 1))  # its shape is that of the array bound to it
    turned = relay.nn.dense(relay.transpose(weight), relay.multiply(x, norm))
    summed = relay.transpose(relay.nn.sparse_dense(turned, adjacency))
    out = relay.nn.bias_add(relay.multiply(summed, norm), bias, axis=-1)
    return activation(out) if activation else out


features = relay.var("features", shape=(NODES, FEATURES[0]))
hidden = convolution("layers.0", FEATURES[:2], features, relay.nn.relu)
output = convolution("layers.1", FEATURES[1:], hidden)
params = {"features": rng.standard_normal((NODES, FEATURES[0])).astype("float32")}
for n, sizes in enumerate((FEATURES[:2], FEATURES[1:])):
    params[f"layers.{n}.weight"] = rng.standard_normal(sizes).astype("float32")
    params[f"layers.{n}.bias"] = rng.standard_normal(sizes[1]).astype("float32")

func = relay.Function(relay.analysis.free_vars(output), output)
mod = tvm.IRModule()
mod["main"] = relay.build_module.bind_params_by_name(func, params)
with tvm.transform.PassContext(opt_level=0):
    lib = relay.build(mod, "llvm", params=params)
m = graph_executor.GraphModule(lib["default"](tvm.device("llvm", 0)))
m.run()
logits = m.get_output(0).numpy()
print("inputs left:", len(mod["main"].params), "logits", logits.shape)
np.savez(sys.argv[1], edges=edges, scale=scale, logits=logits, **params)
