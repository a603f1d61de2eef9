"""Pruned layers as sparse matrices, as scripts of 2020 had them (TVM 0.8): python sparse_layers.py OUT"""

import sys

import numpy as np
import tvm
from tvm import relay
from tvm.contrib import graph_executor

rng = np.random.default_rng(0)


def pruned(rows, columns, block):
    """A matrix of which a third of the blocks is not 0, and its parts in compressed rows of blocks."""
    high, wide = block
    blocks = rng.standard_normal((rows // high, columns // wide, high, wide)).astype("float32")
    kept = rng.random(blocks.shape[:2]) < 1 / 3
    matrix = (blocks * kept[..., None, None]).transpose(0, 2, 1, 3).reshape(rows, columns)
    indptr = np.concatenate([[0], kept.sum(1).cumsum()])
    return matrix, blocks[kept], np.nonzero(kept)[1].astype("int32"), indptr.astype("int32")


arrays, params = {}, {}
layer = data = relay.var("data", shape=(5, 32))
for n, (rows, columns, block) in enumerate([(24, 32, (4, 1)), (16, 24, (8, 2)), (10, 16, (1, 1))]):
    arrays[f"matrix{n}"], values, indices, indptr = pruned(rows, columns, block)
    values = values.reshape(-1) if block == (1, 1) else values  # CSR, as SciPy has it
    parts = dict(zip((f"values{n}", f"indices{n}", f"indptr{n}"), (values, indices, indptr), strict=True))
    variables = [relay.var(name, shape=array.shape, dtype=str(array.dtype)) for name, array in parts.items()]
    layer = relay.nn.sparse_dense(layer, variables)
    layer = relay.nn.relu(layer) if n < 2 else layer
    params.update(parts)
    print(f"layer {n}: {values.size} of {rows * columns} weights, blocks of {block}")

mod = tvm.IRModule.from_expr(relay.Function(relay.analysis.free_vars(layer), layer))
with tvm.transform.PassContext(opt_level=3):
    lib = relay.build(mod, target="llvm", params=params)
m = graph_executor.GraphModule(lib["default"](tvm.cpu()))
x = rng.standard_normal((5, 32)).astype("float32")
m.run(data=x)
y = m.get_output(0).numpy()
print("result", y.shape)
np.savez(sys.argv[1], x=x, y=y, **arrays)
