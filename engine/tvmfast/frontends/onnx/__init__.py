"""ONNX models.

importer      `from_onnx`
checks        what is refused: endless recursion, invalid dtypes or shapes, inputs that must be constants
control_flow  If is inlined, Loop and Scan are unrolled
dynamic       comparisons of dynamic dims
quantized     checks of quantized operators, and float ones between DequantizeLinear and QuantizeLinear
fused         operators of com.microsoft, written as ONNX's own
rewriting     what the rules of these two take
graph         passes on the ONNX graph before TVM's frontend
ops           converters of operators
"""
