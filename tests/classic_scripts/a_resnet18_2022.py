"""Note A, as in 2022 (TVM 0.8 to 0.12): a traced ResNet-18 against PyTorch, targets, profiling, AutoTVM."""
# ruff: noqa: UP032

import sys
import time

import numpy as np
import torch
import torchvision
import tvm
from PIL import Image
from torchvision import transforms
from tvm import autotvm, relay
from tvm.autotvm.tuner import XGBTuner
from tvm.contrib import graph_executor
from tvm.contrib.debugger import debug_executor
from tvm.contrib.download import download_testdata

out_file, log_file = sys.argv[1:]

model = torchvision.models.resnet18(pretrained=True).eval()
input_shape = [1, 3, 224, 224]
scripted_model = torch.jit.trace(model, torch.randn(input_shape)).eval()

img_path = download_testdata("https://github.com/dmlc/mxnet.js/blob/main/data/cat.png?raw=true", "cat.png", "data")
preprocess = transforms.Compose(
    [
        transforms.Resize(256),
        transforms.CenterCrop(224),
        transforms.ToTensor(),
        transforms.Normalize(mean=[0.485, 0.456, 0.406], std=[0.229, 0.224, 0.225]),
    ]
)
img = np.expand_dims(preprocess(Image.open(img_path).resize((224, 224))), 0)

input_name = "input0"
mod, params = relay.frontend.from_pytorch(scripted_model, [(input_name, img.shape)])
print(mod)

target = tvm.target.Target("llvm -num-cores 2", host="llvm")
ctx = tvm.cpu(0)
with tvm.transform.PassContext(opt_level=3):
    lib = relay.build(mod, target=target, params=params)

m = graph_executor.GraphModule(lib["default"](ctx))
m.set_input(input_name, tvm.nd.array(img.astype("float32"), device=ctx))
m.run()
tvm_output = m.get_output(0)

synset_path = download_testdata("https://example.org/imagenet_synsets.txt", "imagenet_synsets.txt", module="data")
with open(synset_path) as f:
    synsets = [line.strip() for line in f.readlines()]
top1_tvm = np.argmax(tvm_output.numpy()[0])
with torch.no_grad():
    output = model(torch.from_numpy(img)).numpy()
print("Relay top-1 id: {}, class name: {}".format(top1_tvm, synsets[top1_tvm]))
print("Torch top-1 id: {}, class name: {}".format(np.argmax(output), synsets[np.argmax(output)]))


def seconds_of(run, n=1):
    start = time.time()
    for _ in range(n):
        run()
    return (time.time() - start) / n


print("Relay time: {:.4f}".format(seconds_of(m.run)))
print("Torch time: {:.4f}".format(seconds_of(lambda: model(torch.from_numpy(img)))))
print(m.benchmark(ctx, repeat=3, number=1))

# Where does the time go?
m_debug = debug_executor.create(lib["default"], ctx)
m_debug.set_input(input_name, img)
m_debug.run()
print(m_debug.profile(**{input_name: tvm.nd.array(img)}))
np.testing.assert_array_equal(m_debug.get_output(0).numpy(), m.get_output(0).numpy())
m_debug = debug_executor.create(lib.get_graph_json(), lib.get_lib(), ctx)
m_debug.set_input(**lib.get_params())

# Tuning.
tasks = autotvm.task.extract_from_program(mod["main"], target=target, params=params)
measure_option = autotvm.measure_option(
    builder=autotvm.LocalBuilder(), runner=autotvm.LocalRunner(number=1, repeat=1, timeout=20, min_repeat_ms=0)
)
for i, task in enumerate(tasks[:1]):
    print("task %d: %s, %d configs" % (i, task.name, len(task.config_space)))
    tuner = XGBTuner(task, loss_type="rank")
    tuner.tune(
        n_trial=2,
        measure_option=measure_option,
        callbacks=[autotvm.callback.progress_bar(2, prefix="[Task]"), autotvm.callback.log_to_file(log_file)],
    )

with autotvm.apply_history_best(log_file):  # noqa: SIM117
    with tvm.transform.PassContext(opt_level=3, config={"relay.FuseOps.max_depth": 30}):
        lib = relay.build(mod, target=target, params=params)
m = graph_executor.GraphModule(lib["default"](tvm.device(str(target.kind), 0)))
m.set_input(input_name, tvm.nd.array(img.astype("float32")))
m.run()
np.savez(out_file, img=img, tvm=tvm_output.numpy(), tuned=m.get_output(0).numpy())
