"""Operators that several frontends share.

common      operators that Relax lacks, for MXNet and Relay
fourier     the Fourier transform, a product with a matrix that is computed at import
resampling  linear and cubic resampling along an axis
"""
