"""Note B, as it was in 2020 (TVM 0.6): import, build, time, save in three files, load them back."""
# ruff: noqa: SIM115

import sys

import numpy as np
import onnx
import tvm
from tvm import relay
from tvm.contrib import graph_runtime, util
from tvm.contrib.download import download_testdata

out = sys.argv[1]
onnx_model = onnx.load(download_testdata("https://example.org/digits.onnx", "digits.onnx", module="onnx"))
x = np.load(download_testdata("https://example.org/picture.npy", "picture.npy", module="data"))

mod, params = relay.frontend.from_onnx(onnx_model, {"image": x.shape})
func = mod["main"]
func = relay.Function(func.params, relay.nn.softmax(func.body), None, func.type_params, func.attrs)
mod = relay.Module.from_expr(func)

target, ctx = "llvm", tvm.cpu(0)
with relay.build_config(opt_level=3):
    graph, lib, params = relay.build_module.build(mod, target=target, params=params)

temp = util.tempdir()
path_lib = temp.relpath("deploy_lib.tar")
lib.export_library(path_lib)
with open(temp.relpath("deploy_graph.json"), "w") as fo:
    fo.write(graph)
with open(temp.relpath("deploy_param.params"), "wb") as fo:
    fo.write(relay.save_param_dict(params))
print(sorted(temp.listdir()))

loaded_json = open(temp.relpath("deploy_graph.json")).read()
loaded_lib = tvm.module.load(path_lib)
loaded_params = bytearray(open(temp.relpath("deploy_param.params"), "rb").read())

module = graph_runtime.create(loaded_json, loaded_lib, ctx)
module.load_params(loaded_params)
module.set_input("image", tvm.nd.array(x, ctx))
module.run()
result = module.get_output(0, tvm.nd.empty((1, 10), "float32", ctx)).asnumpy()

ftimer = module.module.time_evaluator("run", ctx, number=2, repeat=3)
prof_res = np.array(ftimer().results) * 1000
print("Mean inference time (std dev): %.2f ms (%.2f ms)" % (np.mean(prof_res), np.std(prof_res)))
np.savez(out, tvm=result)
