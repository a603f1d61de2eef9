"""MXNet's symbols and Gluon's networks, with and without MXNet installed.

importer  `from_mxnet`
files     the two files that MXNet writes, read without MXNet
gluon     GluonCV's networks; the only file that imports mxnet
ops       converters of operators
"""
