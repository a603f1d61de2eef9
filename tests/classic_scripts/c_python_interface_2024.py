"""Note C, the tutorial on TVM's Python interface, in the words of TVM 0.15 to 0.19."""

import sys
import timeit

import numpy as np
import onnx
import tvm
import tvm.relay as relay
from tvm.contrib import graph_executor
from tvm.contrib.download import download_testdata

model_path = download_testdata("https://example.org/digits.onnx", "digits.onnx", module="onnx")
onnx_model = onnx.load(model_path)
np.random.seed(0)
img_data = np.load(download_testdata("https://example.org/picture.npy", "picture.npy", module="data"))

target = "llvm"
input_name = "image"
mod, params = relay.frontend.from_onnx(onnx_model, shape={input_name: img_data.shape}, dtype="float32")
with tvm.transform.PassContext(opt_level=3, disabled_pass=["FoldScaleAxis"], required_pass=["FastMath"]):
    lib = relay.build(mod, target=target, params=params)

dev = tvm.device(str(target), 0)
module = graph_executor.GraphModule(lib["default"](dev))
dtype = "float32"
module.set_input(input_name, img_data)
module.run()
output_shape = (1, 10)
tvm_output = module.get_output(0, tvm.nd.empty(output_shape, dtype, dev)).numpy()

timing_number, timing_repeat = 2, 3
unoptimized = (
    np.array(timeit.Timer(lambda: module.run()).repeat(repeat=timing_repeat, number=timing_number))
    * 1000
    / timing_number
)
print({"mean": np.mean(unoptimized), "median": np.median(unoptimized), "std": np.std(unoptimized)})

# The softmax by relay.nn, as a program of its own.
logits = relay.var("logits", shape=output_shape, dtype=dtype)
softmax = tvm.IRModule.from_expr(relay.nn.softmax(logits))
executor = relay.create_executor("graph", mod=softmax, device=dev, target=target)
scores = np.squeeze(executor.evaluate()(tvm_output).numpy())
for rank in np.argsort(scores)[::-1][0:5]:
    print("class='%s' with probability=%f" % (rank, scores[rank]))
np.savez(sys.argv[1], tvm=tvm_output, scores=scores)
