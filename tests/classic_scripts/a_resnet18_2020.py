"""Note A, as scripts of 2020 wrote it (TVM 0.6 and 0.7): ResNet-18, traced, against PyTorch."""
# ruff: noqa: UP032

import sys
import time

import numpy as np
import torch
import torchvision
import tvm
from PIL import Image
from torchvision import transforms
from tvm import relay
from tvm.contrib import graph_runtime
from tvm.contrib.download import download_testdata

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

target, target_host = "llvm", "llvm"
ctx = tvm.context(target, 0)
with relay.build_config(opt_level=3):
    graph, lib, params = relay.build(mod, target=target, target_host=target_host, params=params)

m = graph_runtime.create(graph, lib, ctx)
m.set_input(input_name, tvm.nd.array(img.astype("float32")))
m.set_input(**params)
m.run()
tvm_output = m.get_output(0)

synset_path = download_testdata("https://example.org/imagenet_synsets.txt", "imagenet_synsets.txt", module="data")
with open(synset_path) as f:
    synsets = [line.strip() for line in f.readlines()]
top1_tvm = np.argmax(tvm_output.asnumpy()[0])
with torch.no_grad():
    output = model(torch.from_numpy(img)).numpy()
print("Relay top-1 id: {}, class name: {}".format(top1_tvm, synsets[top1_tvm]))
print("Torch top-1 id: {}, class name: {}".format(np.argmax(output), synsets[np.argmax(output)]))

start = time.time()
for _ in range(3):
    m.run()
print("Relay time:", (time.time() - start) / 3)
np.savez(sys.argv[1], img=img, tvm=tvm_output.asnumpy())
