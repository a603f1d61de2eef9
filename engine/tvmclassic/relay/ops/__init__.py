"""Relay's operators: their signatures, and their lowering to Relax.

operator    the class `Operator`, the registry, and helpers of the other files
arithmetic  elementwise operators and reductions; Python's operators on expressions
image       pooling, padding, resizing, depth to space and back
nn          convolutions, matrix products, normalizations, activations, cross entropy
qnn         quantized tensors
shapes      shapes, slices, indices, order
sparse      products with sparse matrices
"""

from . import arithmetic, image, nn, qnn, shapes, sparse
from .operator import OPERATORS, Operator, module

__all__ = ["OPERATORS", "Operator", "arithmetic", "image", "module", "nn", "qnn", "shapes", "sparse"]
