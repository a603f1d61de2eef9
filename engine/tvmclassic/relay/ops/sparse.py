"""Products with sparse matrices, in compressed rows (CSR) or rows of blocks (BSR), by plain loops."""

from tvm import relax, te, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from tvmfast.core.bounds_check import checked
from tvmfast.core.compat import OPAQUE

from ..ir import Call
from .operator import OPERATORS, dtype_of, known_shape, operator


@operator("nn.sparse_dense", relax="call_tir permute_dims")
def _sparse_dense(dense_mat, data, indices, indptr, /, sparse_lhs=False):
    builder = relax.BlockBuilder.current()
    blocks, shape = known_shape(data), known_shape(dense_mat)
    if len(blocks) not in (1, 3):
        raise ValueError(f"expected data of 1 axis (CSR) or 3 (BSR), got the shape {blocks}")
    wide = blocks[2] if len(blocks) == 3 else 1
    if (ours := dtype_of(data)) != (theirs := dtype_of(dense_mat)):
        raise ValueError(f"expected matrices of one dtype, got {theirs} and {ours}")
    if len(shape) != 2 or shape[1] % wide:
        raise ValueError(f"expected a dense matrix of columns for blocks of {wide}, got the shape {shape}")
    columns = shape[1] // wide
    indices = checked(indices, [columns], "sparse_dense", negative=False, bb=builder)
    indptr = checked(
        indptr, [blocks[0] + 1], "sparse_dense", negative=False, bb=builder, expected="an indptr"
    )
    args, attrs = (dense_mat, data, indices, indptr), {"op_pattern": OPAQUE}
    product = builder.call_te(_product, *args, primfunc_name_hint="sparse_dense", primfunc_attrs=attrs)
    return relax.op.permute_dims(builder.emit(product)) if sparse_lhs else product


def _product(dense, data, indices, indptr):
    """Compute dense · sparseᵀ: each row of the sparse matrix, or of blocks, makes columns of the result."""
    count = dense.shape[0]
    high, wide = data.shape[1:] if len(data.shape) == 3 else (1, 1)
    shape = [count, (indptr.shape[0] - 1) * high]

    def write(inputs, outputs):
        (dense, data, indices, indptr), (out,) = inputs, outputs
        with IRBuilder() as builder, T.parallel(0, indptr.shape[0] - 1) as row:
            with T.serial(0, count) as i, T.serial(0, high) as r:
                T.buffer_store(out, tirx.const(0, out.dtype), [i, row * high + r])
            begin, end = (indptr[at].astype("int64") for at in (row, row + 1))
            with T.serial(begin, end) as block:
                left = indices[block].astype("int64") * wide
                with T.serial(0, count) as i, T.serial(0, high) as r, T.serial(0, wide) as c:
                    element = data[block, r, c] if len(data.shape) == 3 else data[block]
                    at = i, row * high + r
                    T.buffer_store(out, out[at] + dense[i, left + c] * element, list(at))
        return builder.get()

    out = tirx.decl_buffer(shape, dense.dtype, "out", layout=None)
    return te.extern([shape], [dense, data, indices, indptr], write, "sparse_dense", out_buffers=[out])


def sparse_dense(dense_mat, sparse_mat, sparse_lhs: bool = False) -> Call:
    """`relay.nn.sparse_dense`: dense · sparseᵀ or, with `sparse_lhs`, sparse · denseᵀ.

    Args:
        dense_mat: Matrix, (M, K).
        sparse_mat: `(data, indices, indptr)`, or a matrix of SciPy that has these, of N rows. CSR: data
            (nnz,), indices (nnz,), indptr (N + 1,). BSR: data (blocks, height, width), indices (blocks,),
            indptr (N / height + 1,).
        sparse_lhs: Whether the sparse matrix is on the left.

    Returns:
        The product, (M, N) or (N, M). A run raises IndexError for an index out of range.
    """
    parts = sparse_mat
    if hasattr(sparse_mat, "indptr"):
        parts = sparse_mat.data, sparse_mat.indices, sparse_mat.indptr
    return OPERATORS["nn.sparse_dense"](dense_mat, *parts, sparse_lhs=sparse_lhs)
