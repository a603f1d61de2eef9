"""Interfaces that other projects define.

torch_compile  `torch.compile(net, backend="tvmfast")`
onnx_backend   the interface of ONNX's own test suites
"""
