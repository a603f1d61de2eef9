"""A pruned network made sparse by TVM's passes, as scripts of 2020 did (TVM 0.8): python weights_made_sparse.py OUT"""

import sys

import numpy as np
import tvm
from tvm import relay
from tvm.contrib import graph_executor
from tvm.relay import data_dep_optimization as ddo

# Three layers: of the first a tenth is left, in blocks; it is stored transposed. The last is dense.
rng = np.random.default_rng(0)
kept = np.kron(rng.random((8, 32)) < 0.1, np.ones((4, 1)))
params = {
    "first": (rng.standard_normal((32, 32)) * kept).astype("float32").T.copy(),
    "middle": (rng.standard_normal((16, 32)) * (rng.random((16, 32)) < 0.02)).astype("float32"),
    "last": rng.standard_normal((10, 16)).astype("float32"),
}
weights = {name: relay.var(name, shape=array.shape) for name, array in params.items()}
data = relay.var("data", shape=(5, 32))
hidden = relay.nn.relu(relay.nn.dense(data, relay.transpose(weights["first"])))
hidden = relay.nn.relu(relay.nn.dense(hidden, weights["middle"]))
output = relay.nn.dense(hidden, weights["last"])
mod = tvm.IRModule.from_expr(relay.Function([data, *weights.values()], output))
found = relay.analysis.sparse_dense._search_dense_op_weight(mod["main"])
print("weights of dense layers:", *map(str, found))

func, made = ddo.simplify_fc_transpose.convert(mod["main"], params)
print("stored as read:", *made)
func, made = ddo.bsr_dense.convert(func, made, (4, 1), sparsity_threshold=0.8)
print("made sparse:", *made)
print("blocks:", made["first.T.data"].shape[1:], "in the result:", func.astext().count("nn.sparse_dense"))

x = rng.standard_normal((5, 32)).astype("float32")
results = {}
for name, program, weights in (("dense", mod, params), ("sparse", func, made)):
    with relay.build_config(opt_level=3):
        lib = relay.build(program, target="llvm", params=weights)
    m = graph_executor.GraphModule(lib["default"](tvm.cpu()))
    m.set_input(0, x)
    m.run()
    results[name] = m.get_output(0).numpy()
np.savez(sys.argv[1], x=x, **results, **params)
