"""MXNet's operators.

call         the table of converters, and the `Call` that each takes
detection    boxes and anchors
elementwise  arithmetic and comparisons
mx_np        `mx.np`
nn           layers
tensor       shapes, slices, reductions, order
"""
