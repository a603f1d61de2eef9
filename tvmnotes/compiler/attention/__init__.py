"""Attention: softmax(q kᵀ + mask) v is one kernel, whose scores stay in the cache.

loops  the kernel, with a running maximum and sum for each query
fuse   the pass that finds attention in the graph
"""
