"""Networks compiled for 64-bit ARM on this machine, and run under QEMU: python tests/smoke_arm.py, or `make smoke-arm`.

A C++ program loads each saved network with TVM's runtime for ARM, from TVM's wheels for that processor, which pip
downloads into .cache/arm, 98 MB. The outputs are compared with PyTorch in float64. On Debian it needs qemu-user and
g++-aarch64-linux-gnu; where one of them is missing, a sentence says so and nothing is run.
"""

import shutil
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import numpy as np
import torch
import tvm_ffi
from torch import nn

import tvmnotes as tn
from tvmnotes import digits

ROOT = Path(__file__).parents[1]
TARGET = {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "neoverse-n1", "num-cores": 2}
TOOLS = {"qemu-aarch64": "qemu-user", "aarch64-linux-gnu-g++": "g++-aarch64-linux-gnu"}
SYSROOT = "/usr/aarch64-linux-gnu"
PROGRAM = r"""
// run FOLDER: reads the input, raw float32, from FOLDER/input, and writes each output to FOLDER/output0, output1, …
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/map.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/json.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/function.h>
#include <cstdio>
#include <fstream>
#include <iterator>
using namespace tvm::ffi;
std::string Read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}
int main(int argc, char** argv) try {
  std::string folder = argv[1];
  Module library = Module::LoadFromFile(folder + "/lib.so");
  Module machine = library->GetFunction("vm_load_executable").value()().cast<Module>();
  machine->GetFunction("vm_initialization").value()(static_cast<int>(kDLCPU), 0, 2);
  auto graph = json::Parse(Read(folder + "/graph.json")).cast<json::Object>();
  auto load = Function::GetGlobalRequired("runtime.LoadParamsFromFile");
  auto arrays = load(folder + "/params.bin").cast<Map<String, Tensor>>();
  Array<Tensor> params;
  for (Any name : graph["params"].cast<json::Array>()) params.push_back(arrays[name.cast<String>()]);
  std::vector<int64_t> shape;
  auto input = graph["inputs"].cast<json::Array>()[0].cast<json::Object>();
  for (Any n : input["shape"].cast<json::Array>()) shape.push_back(n.cast<int64_t>());
  auto empty = Function::GetGlobalRequired("runtime.TVMTensorAllocWithScope");
  auto x = empty(Shape(shape), DLDataType{kDLFloat, 32, 1}, DLDevice{kDLCPU, 0}, nullptr).cast<Tensor>();
  std::string bytes = Read(folder + "/input");
  if (bytes.size() != x.numel() * sizeof(float)) return 2;
  std::copy(bytes.begin(), bytes.end(), static_cast<char*>(x.data_ptr()));
  Any result = machine->GetFunction("main").value()(x, params);
  Array<Tensor> outputs;
  if (auto one = result.as<Tensor>()) outputs.push_back(*one);
  else outputs = result.cast<Array<Tensor>>();
  for (size_t i = 0; i < outputs.size(); ++i) {
    std::ofstream file(folder + "/output" + std::to_string(i), std::ios::binary);
    file.write(static_cast<const char*>(outputs[i].data_ptr()), outputs[i].numel() * sizeof(float));
  }
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
"""


class Lstm(nn.Module):
    """Both outputs of an LSTM of 64 units: all steps, and the last state."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(32, 64, batch_first=True)

    def forward(self, x):
        steps, (last, _) = self.lstm(x)
        return steps, last


def networks() -> dict:
    """By name: a network in eval mode, and its input."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    picture = torch.from_numpy(digits.preprocess(digits.load_test_set()[0][138:139]))
    return {
        "digits": (tn.models.load("digits"), picture),
        "lstm": (Lstm().eval(), torch.randn(1, 20, 32)),
        "transformer": (nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval(), torch.randn(1, 24, 64)),
        "mobilenet_v2": (tn.models.load("mobilenet_v2"), torch.randn(1, 3, 64, 64)),
    }


def runtime(folder: Path) -> Path:
    """Download TVM's two wheels for ARM, the versions of those here; return a folder with their libraries."""
    pins = [f"{name}=={metadata.version(name)}" for name in ("apache-tvm", "apache-tvm-ffi")]
    libraries = folder / "-".join(pins)
    if not (libraries / "libtvm_ffi.so").exists():
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        wheels = ["--only-binary", ":all:", "--platform", "manylinux_2_28_aarch64", "--dest", str(folder)]
        subprocess.run([*pip, *wheels, *pins], check=True)
        libraries.mkdir(exist_ok=True)
        for package, name in (("tvm", "libtvm_runtime.so"), ("tvm_ffi", "libtvm_ffi.so")):
            (file,) = folder.glob(f"apache_{package}-*.whl")
            with zipfile.ZipFile(file) as opened:
                (libraries / name).write_bytes(opened.read(f"{package}/lib/{name}"))
            file.unlink()
    return libraries


def exact(net: nn.Module, x: torch.Tensor) -> list[np.ndarray]:
    """The outputs of the network in float64, which becomes that of `net`."""
    with torch.no_grad():
        outputs = net.double()(x.double())
    return [each.numpy() for each in (outputs if isinstance(outputs, tuple) else (outputs,))]


def main() -> None:
    missing = [f"{tool} ({package})" for tool, package in TOOLS.items() if not shutil.which(tool)]
    if missing:
        print(f"Skipped: to run networks for ARM, install {' and '.join(missing)}; Debian's packages are in brackets.")
        return
    folder = ROOT / ".cache" / "arm"
    folder.mkdir(parents=True, exist_ok=True)
    libraries = runtime(folder)
    (folder / "run.cpp").write_text(PROGRAM)
    flags = [f"-I{Path(tvm_ffi.__file__).parent}/include", f"-L{libraries}", f"-Wl,-rpath,{libraries}"]
    links = ["-Wl,--no-as-needed", "-ltvm_runtime", "-ltvm_ffi"]
    compiler = ["aarch64-linux-gnu-g++", "-std=c++17", "-O1", str(folder / "run.cpp"), "-o", str(folder / "run")]
    subprocess.run([*compiler, *flags, *links], check=True)
    worst = 0.0
    for name, (net, x) in networks().items():
        lib = tn.build(*tn.from_pytorch(net, {"x": tuple(x.shape)}), target=TARGET)
        saved = lib.save(folder / name)
        x.numpy().tofile(saved / "input")
        subprocess.run(["qemu-aarch64", "-L", SYSROOT, str(folder / "run"), str(saved)], check=True)
        differences = []
        for number, wanted in enumerate(exact(net, x)):
            found = np.fromfile(saved / f"output{number}", "float32").reshape(wanted.shape)
            differences.append(np.abs(found - wanted).max() / np.abs(wanted).max())
        shutil.rmtree(saved)
        worst = max(worst, *differences)
        print(f"{name:14} difference to float64 {max(differences):.0e}", flush=True)
    # `rounding.share` of 176,000 terms, one after another: MobileNet v2, the longest, sums some 10,000.
    if not worst <= 1e-4:
        sys.exit("more than rounding explains, 1e-04")


if __name__ == "__main__":
    main()
