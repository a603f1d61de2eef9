"""MXNet's operators.

attention    the products of interleaved heads
call         the table of converters, and the `Call` that each takes
detection    boxes and anchors
elementwise  arithmetic and comparisons
image        what prepares images
layout       diagonals, blocks, rolled and turned axes, positions
linalg       products, triangles, factorizations
mx_np        `mx.np`
nn           layers
spatial      grids, and what is sampled at them
tensor       shapes, slices, reductions, order
"""
