"""Note C, the tutorial on TVM's Python interface, in the words of TVM 0.7: import, run, statistics, softmax, top-5."""

import sys
import timeit

import numpy as np
import onnx
import tvm
from tvm import relay
from tvm.contrib import graph_runtime
from tvm.contrib.download import download_testdata

model_path = download_testdata("https://example.org/digits.onnx", "digits.onnx", module="onnx")
onnx_model = onnx.load(model_path)
img_data = np.load(download_testdata("https://example.org/picture.npy", "picture.npy", module="data"))

target = "llvm"
input_name = "image"
shape_dict = {input_name: img_data.shape}
mod, params = relay.frontend.from_onnx(onnx_model, shape_dict)
with tvm.transform.PassContext(opt_level=3):
    lib = relay.build(mod, target=target, params=params)

ctx = tvm.context(str(target), 0)
module = graph_runtime.GraphModule(lib["default"](ctx))
module.set_input(input_name, img_data)
module.run()
output_shape = (1, 10)
tvm_output = module.get_output(0, tvm.nd.empty(output_shape)).asnumpy()

unoptimized = np.array(timeit.Timer(lambda: module.run()).repeat(repeat=3, number=2)) * 1000 / 2
unoptimized = {"mean": np.mean(unoptimized), "median": np.median(unoptimized), "std": np.std(unoptimized)}
print(unoptimized)

scores = np.exp(tvm_output - tvm_output.max())
scores = np.squeeze(scores / scores.sum())
ranks = np.argsort(scores)[::-1]
for rank in ranks[0:5]:
    print("class='%s' with probability=%f" % (rank, scores[rank]))
np.savez(sys.argv[1], tvm=tvm_output)
