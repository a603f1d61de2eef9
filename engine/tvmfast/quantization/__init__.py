"""Fewer bits: networks whose weights, or weights and activations, are integers.

weights_only    weights of 8 or 4 bits, activations float32
"""
