"""ONNX models.

importer      `from_onnx`
checks        what is refused: models that never end, invalid dtypes or sizes
constants     inputs whose values TVM must know
control_flow  If, Loop and Scan
dynamic       comparisons of open sizes
graph         the steps on the graph before TVM's frontend
ops           converters of operators
"""
