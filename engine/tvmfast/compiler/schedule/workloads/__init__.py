"""Workloads: what a kernel has to compute, as JSON data that records hold and schedule rules apply to.

workload      the abstract workload: its configs, and what its kernel reads and makes
conv2d        a convolution, grouped ones included
dense         a matrix product with a weight known at compile time
batch_matmul  matrix products of two activations
kernel        any other kernel, identified by TVM's structural hash
"""

from .. import rules as rules  # which apply to workloads: they register themselves
