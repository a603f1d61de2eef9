"""The Fourier transform for the frontends: a product with a matrix that is computed at import."""

import numpy as np
from tvm import relax
from tvm.relax import op as R

from ...core.relax import static_shape

_LARGEST = 1 << 24  # elements of a matrix: 128 MiB


def transformed(x: relax.Expr, length: int, inverse: bool = False, onesided: bool = False) -> relax.Expr:
    """Transform float64 signals (…, n, 1), or complex ones (…, n, 2), cut or padded with zeros to `length`.

    The result is (…, length, 2). With `onesided` the forward transform returns only the first length // 2 + 1
    of these, and the inverse one takes them and returns (…, length, 1). Raises NotImplementedError if the
    matrix would take more than 128 MiB (a `length` in the thousands).
    """
    *outer, count, parts = static_shape(x.ty)
    if count * parts * length * 2 > _LARGEST:
        raise NotImplementedError(
            f"a Fourier transform of length {length} takes a matrix of more than 128 MiB"
        )
    basis = np.eye(count * parts).reshape(-1, count, parts)
    signal = basis[..., 0] + (1j * basis[..., 1] if parts == 2 else 0)
    if inverse and onesided:
        result = np.fft.irfft(signal, length)[..., None]
    else:
        result = np.fft.ifft(signal, length) if inverse else np.fft.fft(signal, length)
        result = np.stack([result.real, result.imag], -1)[:, : length // 2 + 1 if onesided else length]
    matrix = relax.const(result.reshape(count * parts, -1), "float64")
    return R.reshape(R.matmul(R.reshape(x, (*outer, count * parts)), matrix), (*outer, *result.shape[1:]))
