"""Note B in the words of 2022 (TVM 0.8 to 0.12), in two processes: `save FOLDER`, then `load FOLDER RESULT`."""

import os
import sys

import numpy as np
import onnx
import tvm
from tvm import relay
from tvm.contrib import graph_executor
from tvm.contrib.download import download_testdata

what, folder, *rest = sys.argv[1:]
path = os.path.join(folder, "compiled_lib.so")
dev = tvm.cpu()
x = np.load(download_testdata("https://example.org/picture.npy", "picture.npy", module="data"))

if what == "save":
    onnx_model = onnx.load(download_testdata("https://example.org/digits.onnx", "digits.onnx", module="onnx"))
    mod, params = relay.frontend.from_onnx(onnx_model, {"image": x.shape}, freeze_params=True)
    func = mod["main"]
    mod = tvm.IRModule.from_expr(relay.Function(func.params, relay.nn.softmax(func.body)))
    with tvm.transform.PassContext(opt_level=3):
        lib = relay.build(mod, target="llvm", params=params)
    lib.export_library(path)
    with open(os.path.join(folder, "model.params"), "wb") as f:
        f.write(relay.save_param_dict(lib.get_params()))
    print(lib.libmod_name)
else:
    lib = tvm.runtime.load_module(path)
    gmod = graph_executor.GraphModule(lib["default"](dev))
    with open(os.path.join(folder, "model.params"), "rb") as f:
        gmod.load_params(f.read())
    gmod.set_input("image", x)
    gmod.run()
    out = tvm.nd.empty((1, 10), device=dev)
    gmod.get_output(0, out)
    ftimer = gmod.module.time_evaluator("run", dev, number=2, repeat=3, min_repeat_ms=1)
    print("Mean: %.3f ms" % (ftimer().mean * 1000))
    np.savez(rest[0], tvm=out.numpy())
