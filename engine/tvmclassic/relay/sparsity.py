"""`relay.data_dep_optimization`: passes on dense layers that read the weights, and change them.

    func, params = data_dep_optimization.simplify_fc_transpose.convert(mod["main"], params)
    func, params = data_dep_optimization.bsr_dense.convert(func, params, (16, 1), sparsity_threshold=0.8)

Weights that are mostly 0 become sparse matrices, weights that are transposed first are stored transposed.
"""

import numpy as np
import tvm

from . import functor, ir
from .ops.operator import OPERATORS
from .ops.sparse import sparse_dense
from .ty import TensorType


def simplify_fc_transpose(func: ir.Function, params: dict) -> tuple[ir.Function, dict]:
    """`simplify_fc_transpose.convert`: store the weights of dense layers as these read them.

    Args:
        func: A function, in which a dense layer may read the transpose of a weight.
        params: The weights by name.

    Returns:
        The function with `name.T` in place of each transpose of the weight `name`, and its weights.
    """
    arrays = {name: array for name, array in _arrays(params).items() if array.ndim == 2}

    def layer(data, weight, attrs):
        is_transpose = isinstance(weight, ir.Call) and _name(weight.op) == "transpose"
        if not (is_transpose and isinstance(weight.args[0], ir.Var) and weight.args[0].name_hint in arrays):
            return None
        if tuple(weight.attrs.get("axes") or (1, 0)) not in ((1, 0), (-1, 0), (1, -2), (-1, -2)):
            return None
        name = weight.args[0].name_hint
        (stored,) = _stored({f"{name}.T": np.ascontiguousarray(arrays[name].T)})
        return OPERATORS["nn.dense"](data, stored, **attrs)

    return _rewritten(func, params, layer)


def bsr_dense(
    func: ir.Function, params: dict, blocksize: tuple[int, int], sparsity_threshold: float, filter_func=None
) -> tuple[ir.Function, dict]:
    """`bsr_dense.convert`: multiply by sparse matrices in place of weights that are mostly 0.

    Args:
        func: A function, whose dense layers read matrices.
        params: The weights by name, of shape (N, K).
        blocksize: The height and width of the blocks of which a sparse matrix holds those that are not all 0.
            A weight of another shape than a number of such blocks stays as it is.
        sparsity_threshold: The least share of zeros of a weight that becomes sparse.
        filter_func: Not supported; None.

    Returns:
        The function with `name.data`, `name.indices` and `name.indptr`, in compressed rows of blocks, in
        place of each such weight `name`, and its weights.
    """
    if filter_func is not None:
        raise NotImplementedError("bsr_dense.convert: filter_func: leave weights that stay out of params")
    func.infer()
    arrays = {name: array for name, array in _arrays(params).items() if _fits(array, blocksize)}
    zeros = {name: 1 - np.count_nonzero(array) / array.size for name, array in arrays.items()}

    def layer(data, weight, attrs):
        name = getattr(weight, "name_hint", None)
        if zeros.get(name, -1) < sparsity_threshold or str(attrs.get("out_dtype") or "float32") != "float32":
            return None
        return sparse_dense(data, _stored(_blocks(name, arrays[name], *blocksize)))

    return _rewritten(func, params, layer)


def _fits(array: np.ndarray, blocksize) -> bool:
    if array.ndim != 2 or str(array.dtype) != "float32" or not array.size:
        return False
    return not any(size % block for size, block in zip(array.shape, blocksize, strict=True))


def _blocks(name: str, matrix: np.ndarray, high: int, wide: int) -> dict[str, np.ndarray]:
    """Return the parts of a matrix in compressed rows of blocks, by name."""
    shape = matrix.shape[0] // high, high, matrix.shape[1] // wide, wide
    blocks = matrix.reshape(shape).transpose(0, 2, 1, 3)
    kept = (blocks != 0).any(axis=(2, 3))
    parts = blocks[kept], np.nonzero(kept)[1], np.concatenate([[0], kept.sum(1).cumsum()])
    data, indices, indptr = (
        part.astype(dtype) for part, dtype in zip(parts, ("float32", "int32", "int32"), strict=True)
    )
    return {f"{name}.data": data, f"{name}.indices": indices, f"{name}.indptr": indptr}


# ---------------------------------------------------------------- dense layers of a function


def dense_weights(func: ir.Function) -> list[str]:
    """`_search_dense_op_weight`: the names of the variables that dense layers multiply by, each once."""
    calls = [node for node in ir.post_order(func.body) if isinstance(node, ir.Call)]
    weights = [call.args[1] for call in calls if _name(call.op) == "nn.dense"]
    return list(dict.fromkeys(weight.name_hint for weight in weights if isinstance(weight, ir.Var)))


class _Stored(ir.Var):
    """A variable for a new weight."""

    def __init__(self, name: str, array: np.ndarray):
        super().__init__(name, TensorType(array.shape, str(array.dtype)))
        self.array = array


def _stored(arrays: dict[str, np.ndarray]) -> list[_Stored]:
    return [_Stored(name, array) for name, array in arrays.items()]


def _rewritten(func: ir.Function, params: dict, layer) -> tuple[ir.Function, dict]:
    """Replace the dense layers for which `layer(data, weight, attributes)` returns something."""

    class Rewrite(functor.ExprMutator):
        def visit_call(self, call):
            new = super().visit_call(call)
            if _name(call.op) != "nn.dense" or len(getattr(call.args[0].known_type, "shape", (1, 1))) != 2:
                return new
            made = layer(*new.args, dict(new.attrs.items()))
            return new if made is None else made

    body = Rewrite().visit(func.body)
    read = functor.all_vars(body)
    stored = [var for var in read if isinstance(var, _Stored)]
    by_name: dict = {}  # of a weight that several layers read
    table = {var: by_name.setdefault(var.name_hint, var) for var in stored}
    dropped = {v.name_hint for v in functor.all_vars(func.body)} - {v.name_hint for v in read}
    kept = [param for param in func.params if param.name_hint not in dropped]
    arrays = {name: array for name, array in params.items() if name not in dropped}
    arrays |= {name: tvm.runtime.tensor(var.array) for name, var in by_name.items()}
    return ir.Function([*kept, *by_name.values()], ir.substitute(body, table), attrs=func.attrs), arrays


def _name(op) -> str:
    return op.name if isinstance(op, ir.Op) else ""


def _arrays(params: dict) -> dict[str, np.ndarray]:
    return {name: p.numpy() if hasattr(p, "numpy") else np.asarray(p) for name, p in params.items()}


NAMESPACES: dict = {
    "tvm.relay.data_dep_optimization": {},
    "tvm.relay.data_dep_optimization.bsr_dense": {"convert": bsr_dense},
    "tvm.relay.data_dep_optimization.simplify_fc_transpose": {"convert": simplify_fc_transpose},
    "tvm.relay.analysis.sparse_dense": {"_search_dense_op_weight": dense_weights},
}
