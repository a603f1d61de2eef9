"""What only a GPU can show, in one run of 12 minutes: correctness, the table of note E, speed, lesson 17, tiles.

    python tests/gpu_check.py --out results                     # on a machine with a GPU
    python tests/gpu_check.py --out results --parts speed,table --names resnet18,ssd_512
    python tests/gpu_check.py --out results --parts store       # execute lesson 17 and write it with its outputs
    python tests/gpu_check.py --out results --dry               # as without a GPU: build for sm_90, compile the code
    python tests/gpu_check.py --export                          # with MXNet: write the files of tests/zoo again

Each network is built in a process of its own, all at once, while test_on_gpu.py runs; then one after another is timed,
beside PyTorch in the same process, so that nothing else runs meanwhile. Tables are printed as they come, and
`results/gpu.json` is written again after each, so that a run that is cut off keeps what it has. Lesson 17 runs under
nbval, and the slowest cells are listed; the tiles are those of `tools/gpu_tiles.py`. Without a GPU nothing runs there:
all networks are built and compiled for sm_90, and the tests are those that emulate kernels on the CPU. Rows with TF32
or float16 are of the rules that a build uses where `tools/gpu_tiles.py` has measured them, or with `experimental=True`;
those "by dlight" are what it uses otherwise.

The networks of GluonCV come from the files of tests/zoo, which `--export` wrote: the symbol, the vectors and the shapes
of the matrices, which are drawn again from a seed, and what MXNet computes for one picture.
"""

import argparse
import contextlib
import json
import math
import os
import queue
import struct
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve()
ROOT = HERE.parents[1]
SEED = 233
ARCH = {"kind": "cuda", "arch": "sm_90"}  # of a dry run
ZOO = ("resnet18_v1", "ssd_512_resnet50_v1_voc")
STARTED = time.perf_counter()
_BROKEN = []


def say(*texts) -> None:
    print(f"[{time.perf_counter() - STARTED:5.0f} s]", *texts, flush=True)


# ---------------------------------------------------------------- GluonCV's networks without MXNet


def drawn(shapes: dict) -> dict[str, np.ndarray]:
    """Matrices from their shapes and scales, the same everywhere: NumPy keeps this generator's numbers."""
    rng = np.random.RandomState(SEED)
    matrices = {}
    for name, (shape, scale) in shapes.items():
        deviation = math.sqrt(2 / math.prod(shape[1:])) * scale
        matrices[name] = (rng.standard_normal(shape) * deviation).astype("float32")
    return matrices


def zoo_params(folder: Path, name: str) -> dict[str, np.ndarray]:
    with np.load(folder / f"{name}-vectors.npz") as vectors:
        return drawn(json.loads((folder / f"{name}-shapes.json").read_text())) | dict(vectors)


def write_params(file: Path, params: dict[str, np.ndarray]) -> None:
    """Write float32 arrays as MXNet 1.9 does."""
    with file.open("wb") as out:
        out.write(struct.pack("<QQQ", 0x112, 0, len(params)))
        for array in params.values():
            out.write(struct.pack("<Iii", 0xF993FAC9, 0, array.ndim) + struct.pack(f"<{array.ndim}q", *array.shape))
            out.write(struct.pack("<iii", 1, 0, 0) + np.ascontiguousarray(array, "<f4").tobytes())
        out.write(struct.pack("<Q", len(params)))
        for name in params:
            out.write(struct.pack("<Q", len(name)) + name.encode())


def export(folder: Path) -> None:
    """Write the files of ZOO that `zoo_params` reads, and MXNet's results."""
    import mxnet as mx

    import tvmnotes as tn
    from tvmfast.core.compat import pass_lock
    from tvmfast.frontends.mxnet import gluon

    folder.mkdir(parents=True, exist_ok=True)
    for name in ZOO:
        tn.gluon.network("cifar_resnet20_v1")  # imports the zoo, next to a torch that it refuses
        from gluoncv.model_zoo import get_model

        options = {"pretrained_base": False} if name.startswith("ssd") else {}
        net, shape = get_model(name, pretrained=False, **options), tn.gluon.shape_of(name)
        with pass_lock, gluon.quiet_unfused():
            net.initialize(mx.init.Uniform())
            net(mx.nd.zeros(shape))
            symbol, params = gluon.as_symbol(net)
            shapes = {n: (list(p.shape), 1.0) for n, p in params.items() if len(p.shape) > 1}
            first = drawn(shapes)
            for each, array in params.items():
                array[:] = mx.nd.array(first[each]) if each in first else float(each.endswith(("gamma", "var")))
            mx.random.seed(SEED)
            gluon._calibrate(net, mx.nd.random.normal(shape=shape))
        for each, array in first.items():
            shapes[each] = shapes[each][0], float(np.abs(params[each].asnumpy()).max() / np.abs(array).max())
        symbol.save(str(folder / f"{name}-symbol.json"))
        (folder / f"{name}-shapes.json").write_text(json.dumps(shapes))
        vectors = {each: array.asnumpy() for each, array in params.items() if each not in shapes}
        np.savez_compressed(folder / f"{name}-vectors.npz", **vectors)
        for each, array in zoo_params(folder, name).items():
            params[each][:] = mx.nd.array(array)
        outputs = net(mx.nd.array(picture(shape)))
        outputs = outputs if isinstance(outputs, tuple | list) else [outputs]
        np.savez_compressed(folder / f"{name}-mxnet.npz", *[each.asnumpy() for each in outputs])
        say(name, [each.shape for each in outputs], outputs[-2 if len(outputs) > 1 else 0].asnumpy().ravel()[:5])


def picture(shape) -> np.ndarray:
    """The bundled photograph, as many times as there are pictures."""
    import tvmnotes as tn

    one = tn.vision.preprocess(tn.vision.open_picture(), shape[-1], shape[-1])
    return np.ascontiguousarray(np.broadcast_to(one, shape))


# ---------------------------------------------------------------- a network beside its peers


class Case:
    """What a process measures: functions by name, and what is said about them."""

    def __init__(self, options):
        self.options, self.candidates, self.notes, self.bound = options, {}, {}, {}
        self.libs, self.wanted, self.inputs = {}, None, []

    def build(self, name, mod, params, ways=(False, True), **more):
        """Build for the GPU, and as a CUDA graph; `ways` may ask for one of the two."""
        import tvm

        import tvmnotes as tn

        target = ARCH if self.options.dry else "cuda"
        for graph in ways:
            way = f"{name}, CUDA graph" if graph else name
            config = {"relax.backend.use_cuda_graph": True} if graph else {}
            started = time.perf_counter()
            try:
                with tvm.transform.PassContext(config=config):
                    lib = tn.build(mod, params, target, **more)
            except Exception as error:
                self.fail(way, error)
                continue
            self.notes.setdefault("build (s)", {})[way] = round(time.perf_counter() - started, 1)
            self.notes.setdefault("kernels", {})[way] = {
                str(k): int(n) for k, n in lib.kernels.groupby("family").size().items()
            }
            self.libs[way] = lib
            if self.options.dry and not config:
                started = time.perf_counter()
                compiled(lib)
                self.notes.setdefault("NVRTC (s)", {})[way] = round(time.perf_counter() - started, 1)

    def fail(self, what, error) -> None:
        text = " ".join(f"{type(error).__name__}: {error}".split())
        self.notes.setdefault("failed", {})[what] = text[:600]
        print(f"{what}: {traceback.format_exc()}", file=sys.stderr, flush=True)

    def check(self, tolerance) -> None:
        """Compare each library's outputs with `wanted`, relative to the largest magnitude; drop what does not fit.

        The tolerance of a library with TF32 is 1e-2.
        """
        import torch

        found = self.notes.setdefault("difference", {})
        for way, lib in list(self.libs.items()):
            try:
                got = lib(*self.inputs)
                got = [np.asarray(each) for each in (got if isinstance(got, tuple) else [got])]
                wanted = [each.float().cpu().numpy() for each in self.wanted]
                errors = [
                    float(np.abs(a.astype("float32") - b).max() / np.abs(b).max())
                    for a, b in zip(got, wanted, strict=True)
                ]
                found[way] = max(errors)
                if not max(errors) <= (1e-2 if "TF32" in way else tolerance):
                    self.notes.setdefault("failed", {})[way] = f"differs by {max(errors):.1e}"
            except Exception as error:
                self.fail(way, error)
                del self.libs[way]
        torch.cuda.synchronize()

    def torch(self, name, net, inputs, tf32=True, eager=True, graph=True) -> None:
        """Add a network of PyTorch's, eager and as a CUDA graph."""
        import torch

        def allow():
            torch.backends.cudnn.allow_tf32 = tf32
            torch.backends.cuda.matmul.allow_tf32 = tf32

        def call(*_):
            allow()
            with torch.inference_mode():
                net(*inputs)
            torch.cuda.synchronize()

        try:
            for _ in range(3):
                call()
            if eager:
                self.candidates[name] = call
            if graph:
                allow()
                stream, recorded = torch.cuda.Stream(), torch.cuda.CUDAGraph()
                with torch.inference_mode(), torch.cuda.stream(stream):
                    for _ in range(3):
                        net(*inputs)
                    torch.cuda.synchronize()
                    with torch.cuda.graph(recorded, stream=stream):
                        self.kept = net(*inputs)

                def replay(*_):
                    recorded.replay()
                    torch.cuda.synchronize()

                self.candidates[f"{name}, CUDA graph"] = replay
        except Exception as error:
            self.fail(name, error)

    def measure(self) -> dict:
        """Time all candidates alternately, and list the kernels that take most of the first library's time."""
        import torch

        import tvmnotes as tn

        candidates = self.libs | self.candidates
        for name in list(candidates):
            try:
                tn.measure._runner(candidates[name], tuple(self.inputs))()
            except Exception as error:
                self.fail(name, error)
                del candidates[name]
        times = tn.compare(candidates, *self.inputs, seconds=self.options.seconds)
        rows = {
            name: {"median (ms)": t.median * 1e3, "iqr (ms)": t.iqr * 1e3, "minimum (ms)": t.minimum * 1e3,
                   "calls": len(t.seconds)}
            for name, t in times.items()
        }  # fmt: skip
        profiles = {}
        for name in [*list(self.libs)[:1], *[each for each in self.candidates if "CUDA graph" not in each][:1]]:
            try:
                profiles[name] = device_kernels(tn.measure._runner(candidates[name], tuple(self.inputs)))
            except Exception as error:
                self.fail(f"profile of {name}", error)
        return {"times": rows, "kernels of": profiles, "memory (MB)": torch.cuda.max_memory_reserved() / 1e6}


def device_kernels(run, calls=10) -> dict:
    """What one call takes in the GPU's kernels, by kernel, as CUPTI sees it: ms in all, and the largest."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    run()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
        for _ in range(calls):
            run()
    found = {}
    for event in seen.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            entry = found.setdefault(event.name, [0.0, 0])
            entry[0] += event.time_range.elapsed_us() / calls / 1e3
            entry[1] += 1 / calls
    order = sorted(found.items(), key=lambda item: -item[1][0])
    return {
        "all (ms)": sum(ms for ms, _ in found.values()),
        "launches": sum(n for _, n in found.values()),
        "largest": [[name[:90], round(ms, 4), round(n, 1)] for name, (ms, n) in order[:25]],
    }


def compiled(lib) -> None:
    """Compile a library's source with NVRTC, as a build on a machine with a GPU does."""
    from tvmfast.compiler.cuda.codegen import machine_code

    machine_code(lib.source(), ARCH["arch"])


# ---------------------------------------------------------------- the networks


def of_pictures(name, batch):
    def make(case):
        import torch

        import tvmnotes as tn

        net = tn.models.load(name, pretrained=False)
        x = torch.from_numpy(picture((batch, 3, 224, 224)))
        case.inputs = [x.numpy()]
        mod, params = tn.from_pytorch(net, {"x": tuple(x.shape)})
        case.build("tvmnotes", mod, params)
        case.build("tvmnotes, TF32", mod, params, allow_tf32=True, experimental=True)
        if case.options.dry:
            return
        net, x = net.cuda(), x.cuda()
        with torch.inference_mode():
            case.wanted = [net(x)]
        case.check(1e-4)
        case.torch("PyTorch, TF32", net, [x])
        case.torch("PyTorch, no TF32", net, [x], tf32=False)

    return make


def in_halves(make_net, make_input, tolerance):
    def make(case):
        import torch
        from tvm import relax

        import tvmnotes as tn

        net = make_net()
        x = make_input(net)
        dtype = str(x.dtype).removeprefix("torch.")
        mod, params = tn.from_pytorch(net, {"x": (tuple(x.shape), dtype)})
        case.inputs = [x.numpy()]
        mixed = relax.transform.ToMixedPrecision()(mod)
        case.build("tvmnotes, float16", mixed, params, experimental=True)
        case.build("tvmnotes, float16 by dlight", mixed, params, (False,))
        case.build("tvmnotes, float32", mod, params, (False,))
        if case.options.dry:
            return
        net, x = net.cuda(), x.cuda()
        with torch.inference_mode():
            case.wanted = [net(x)]
        case.check(tolerance)
        half, y = net.half(), x.half() if x.is_floating_point() else x
        case.torch("PyTorch, float16", half, [y])
        for mode in ("default", "reduce-overhead"):
            fast = torch.compile(half, mode=mode, dynamic=False)
            case.torch(f"torch.compile, {mode}, float16", fast, [y], graph=False)

    return make


def vit():
    import tvmnotes as tn

    return tn.models.load("vit_b_16", pretrained=False)


def bert():
    from tvmfast.profiling import networks

    return networks.load("bert_base")


def a_picture(_net):
    import torch

    return torch.from_numpy(picture((1, 3, 224, 224)))


def tokens(net):
    import torch

    return torch.randint(net.vocabulary, (1, 128), generator=torch.Generator().manual_seed(0))


def gpt2(half, ways=(False,)):
    """One token of GPT-2 after 255 others, its caches kept inside."""

    def make(case):
        import torch
        from torch import nn
        from torch.nn import functional as F

        import tvmnotes as tn

        layers, heads, width, length, vocabulary = 12, 12, 768, 256, 50257
        dim = width // heads

        class Token(nn.Module):
            def __init__(self):
                super().__init__()
                self.words, self.places = nn.Embedding(vocabulary, width), nn.Embedding(1024, width)
                self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * layers + 1))
                wide = [(width, 3 * width), (width, width), (width, 4 * width), (4 * width, width)]
                self.linears = nn.ModuleList(nn.Linear(*each) for each in wide * layers)
                self.register_buffer("positions", torch.arange(length), persistent=False)
                for weight in self.parameters():
                    nn.init.normal_(weight, std=0.02)

            def forward(self, token, position, keys, values):
                x, past = self.words(token) + self.places(position), self.positions < position
                rows = []
                for layer in range(layers):
                    inner, outer, up, down = self.linears[4 * layer : 4 * layer + 4]
                    q, k, v = inner(self.norms[2 * layer](x)).reshape(3, heads, 1, dim).unbind(0)
                    scores = (q @ keys[layer].transpose(-2, -1)).masked_fill(~past, -math.inf)
                    scores = torch.cat([scores, q @ k.transpose(-2, -1)], -1) / math.sqrt(dim)
                    shares = scores.softmax(-1)
                    y = shares[..., :-1] @ values[layer] + shares[..., -1:] * v
                    x = x + outer(y.reshape(1, width))
                    x = x + down(F.gelu(up(self.norms[2 * layer + 1](x)), approximate="tanh"))
                    rows.append((k, v))
                ks, vs = (torch.stack(each) for each in zip(*rows, strict=True))
                logits = F.linear(self.norms[-1](x), self.words.weight)
                return logits, self.put(keys, position, ks), self.put(values, position, vs)

            put = staticmethod(lambda cache, position, rows: cache.index_copy(2, position, rows))

        torch.manual_seed(SEED)
        dtype = "float16" if half else "float32"
        net = Token().to(getattr(torch, dtype)).eval()
        cache = (layers, heads, length, dim)
        shapes = {
            "token": ((1,), "int64"),
            "position": ((1,), "int64"),
            "keys": (cache, dtype),
            "values": (cache, dtype),
        }
        mod, params = tn.from_pytorch(net, shapes)
        token, position = torch.tensor([42]), torch.tensor([length - 1])
        case.inputs = [token.numpy(), position.numpy()]
        state = {"keys": "output1", "values": "output2"}
        case.build(f"tvmnotes, {dtype}", mod, params, ways, state=state, experimental=half)
        if half and not any(ways):
            case.build(f"tvmnotes, {dtype} by dlight", mod, params, ways, state=state)
        if case.options.dry:
            return
        net, caches = net.cuda(), [torch.zeros(cache, dtype=getattr(torch, dtype)).cuda() for _ in range(2)]
        inputs = [token.cuda(), position.cuda(), *caches]
        with torch.inference_mode():
            case.wanted = [net(*inputs)[0]]
        case.check(1e-2 if half else 1e-4)
        if any(ways):
            return
        copy, product = ceilings()
        weights = sum(p.numel() for p in net.parameters()) - 1024 * width
        size = 2 if half else 4
        case.notes["bytes (MB)"] = (weights + 2 * math.prod(cache)) * size / 1e6
        case.notes["bandwidth of a copy (GB/s)"], case.notes["float16 product (TFLOP/s)"] = copy / 1e9, product / 1e12
        case.bound = {"bandwidth bound": case.notes["bytes (MB)"] * 1e6 / copy * 1e3}
        Token.put = staticmethod(lambda cache, position, rows: cache.index_copy_(2, position, rows))
        case.torch(f"PyTorch, {dtype}", net, inputs)
        fast = torch.compile(net, mode="default", dynamic=False)
        case.torch(f"torch.compile, {dtype}", fast, inputs)

    return make


def ceilings() -> tuple[float, float]:
    """Bytes per second of a copy within the GPU's memory, read and written; FLOP/s of a product in float16."""
    import torch
    from torch.cuda import Event

    a = torch.randn(1 << 29, device="cuda")
    b, m = torch.empty_like(a), torch.randn(8192, 8192, device="cuda", dtype=torch.float16)
    found = []
    for call, work in ((lambda: b.copy_(a), 2 * a.nbytes), (lambda: m @ m, 2 * 8192**3)):
        seconds = []
        for _ in range(12):
            start, end = Event(enable_timing=True), Event(enable_timing=True)
            start.record()
            call()
            end.record()
            torch.cuda.synchronize()
            seconds.append(start.elapsed_time(end) / 1e3)
        found.append(work / float(np.median(seconds[2:])))
    return tuple(found)


def of_the_zoo(name, ways=(False,)):
    def make(case):
        import torch

        import tvmnotes as tn

        folder, shape = Path(case.options.zoo), tn.gluon.shape_of(name)
        params, text = zoo_params(folder, name), (folder / f"{name}-symbol.json").read_text()
        case.inputs = [picture(shape)]
        case.build("tvmnotes", *tn.from_mxnet(text, params, {"data": shape}), ways)
        if name.startswith("ssd") and not any(ways):
            before = before_detection(text)
            used = {node["name"] for node in json.loads(before)["nodes"]}
            cut = {each: array for each, array in params.items() if each in used}
            case.build("tvmnotes, without box_nms", *tn.from_mxnet(before, cut, {"data": shape}), ways)
        if case.options.dry:
            return
        with np.load(folder / f"{name}-mxnet.npz") as stored:
            wanted = list(stored.values())
        for way, lib in [each for each in case.libs.items() if "without" not in each[0]]:
            try:
                got = lib(*case.inputs)
                got = list(got) if isinstance(got, tuple) else [got]
                if len(got) == 3:
                    case.notes.setdefault("detections as MXNet's", {})[way] = detections(got, wanted)
                else:
                    error = float(np.abs(got[0] - wanted[0]).max() / np.abs(wanted[0]).max())
                    case.notes.setdefault("difference", {})[way] = error
            except Exception as error:
                case.fail(way, error)
        case.notes["difference is to"] = "MXNet on a CPU"
        if any(ways):
            return
        if name == "resnet18_v1":
            net, x = tn.models.load("resnet18", pretrained=False).cuda(), torch.from_numpy(case.inputs[0]).cuda()
            case.torch("torchvision resnet18, TF32", net, [x])
            case.torch("torchvision resnet18, no TF32", net, [x], tf32=False)
            return
        from torchvision.models.detection import ssd300_vgg16

        image = torch.from_numpy(picture((1, 3, 300, 300))[0]).cuda()
        # Random weights give each of 91 classes a score near 0.01.
        for what, least in (("all boxes are suppressed or kept", 0.001), ("no box has a score", 0.5)):
            detector = ssd300_vgg16(weights=None, weights_backbone=None, score_thresh=least).eval().cuda()
            case.torch(f"torchvision ssd300, TF32, {what}", detector, [[image]], graph=False)

    return make


def before_detection(text: str) -> str:
    """The symbol's JSON with what goes into box_nms as its output."""
    symbol = json.loads(text)
    nodes = symbol["nodes"]
    (last,) = (n for n, node in enumerate(nodes) if node["op"] == "_contrib_box_nms")
    symbol["heads"] = nodes[last]["inputs"]
    return json.dumps(symbol)


def detections(got, wanted) -> dict:
    """How many rows agree with MXNet's: the class, the score within 1e-3, the corners within half a pixel."""
    classes, scores, corners = (np.asarray(each)[0] for each in got)
    theirs = [each[0] for each in wanted]
    there = theirs[0][:, 0] >= 0
    same = (classes[:, 0] == theirs[0][:, 0]) & (np.abs(scores - theirs[1])[:, 0] < 1e-3)
    same &= np.abs(corners - theirs[2]).max(1) < 0.5
    return {"rows": int(there.sum()), "agree": int(same[there].sum()), "ours": int((classes[:, 0] >= 0).sum())}


ZOO_SSD, ZOO_RESNET = reversed(ZOO)
GRAPH = (True,)
CASES = {  # part and what it makes, the most valuable first; untried CUDA graphs have processes of their own
    "ssd_512": ("table", of_the_zoo(ZOO_SSD)),
    "resnet18_v1": ("table", of_the_zoo(ZOO_RESNET)),
    "resnet18": ("speed", of_pictures("resnet18", 1)),
    "resnet50": ("speed", of_pictures("resnet50", 1)),
    "resnet50_16": ("speed", of_pictures("resnet50", 16)),
    "resnet18_16": ("speed", of_pictures("resnet18", 16)),
    "gpt2_float32": ("speed", gpt2(False)),
    "vit_b_16": ("speed", in_halves(vit, a_picture, 3e-2)),
    "bert_base": ("speed", in_halves(bert, tokens, 3e-2)),
    "gpt2_float16": ("speed", gpt2(True)),
    "ssd_512_graph": ("table", of_the_zoo(ZOO_SSD, GRAPH)),
    "resnet18_v1_graph": ("table", of_the_zoo(ZOO_RESNET, GRAPH)),
    "gpt2_graph": ("speed", gpt2(False, GRAPH)),
    "gpt2_float16_graph": ("speed", gpt2(True, GRAPH)),
}


def work(name: str, options) -> None:
    """Build a case, say READY, wait for a line, measure, and say RESULT."""
    import torch

    torch.set_num_threads(4)
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    case = Case(options)
    try:
        CASES[name][1](case)
    except Exception as error:
        case.fail(name, error)
    print("READY", flush=True)
    found = {"part": CASES[name][0], "notes": case.notes, "bound (ms)": case.bound}
    if not options.dry and sys.stdin.readline().strip() == "go":
        try:
            found |= case.measure()
        except Exception as error:
            case.fail("measuring", error)
    print("RESULT " + json.dumps(found), flush=True)


# ---------------------------------------------------------------- the run


class Worker:
    """The process of a case."""

    def __init__(self, name: str, options, folder: Path):
        self.name, self.lines, self.ready = name, queue.Queue(), False
        self.log = folder / f"{name}.log"
        command = [sys.executable, str(HERE), "--case", name, "--zoo", options.zoo, "--seconds", str(options.seconds)]
        self.process = subprocess.Popen(
            command + ["--dry"] * options.dry, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=self.log.open("w"), text=True, cwd=ROOT,
        )  # fmt: skip
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self.process.stdout:
            self.lines.put(line.strip())
        self.lines.put(None)

    def wait(self, word: str, seconds: float) -> str | None:
        """Wait for a line that begins with `word`; None if it does not come."""
        end = time.perf_counter() + seconds
        with contextlib.suppress(queue.Empty):
            while (line := self.lines.get(timeout=max(0.1, end - time.perf_counter()))) is not None:
                if line.startswith(word):
                    return line.removeprefix(word).strip()
            self.lines.put(None)  # the process has ended
        return None

    def go(self, seconds: float) -> dict:
        with contextlib.suppress(OSError):
            self.process.stdin.write("go\n")
            self.process.stdin.flush()
        line = self.wait("RESULT", seconds)
        self.end()
        if line is None:
            return {"part": CASES[self.name][0], "failed": self.log.read_text()[-1500:] or "no result in time"}
        return json.loads(line)

    def end(self):
        self.process.kill()
        self.process.wait()


def correctness(options, folder: Path, alone: bool = False) -> subprocess.Popen:
    """Start the tests, what has not been seen on a GPU first; their outcomes go to a file, line by line.

    Those that need the GPU for themselves are the ones marked `alone`.
    """
    log = folder / "outcomes.jsonl"
    log.touch()
    environment = os.environ | {
        "TESTS_SEED": "0", "GPU_CHECK_LOG": str(log), "OMP_NUM_THREADS": "1", "PYTHONPATH": python_path(HERE.parent),
    }  # fmt: skip
    environment.pop("TVMNOTES_QUICK", None)
    which = ["alone"] if alone else ["not alone", "-n", str(options.jobs), "--dist", "load", "--maxschedchunk", "1"]
    emulated = [f"engine/tests/test_{name}.py" for name in ("gpu", "gpu_rules", "cuda_nms")]
    files = emulated if options.dry else ["engine/tests/test_on_gpu.py", "tests/test_course_on_gpu.py"]
    command = [sys.executable, "-m", "pytest", "-p", "gpu_check", "-q", *files, "-m", *which]
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=(folder / "pytest.log").open("a"), stderr=subprocess.STDOUT,
        start_new_session=True,
    )  # fmt: skip


def outcomes(folder: Path) -> dict:
    lines = [json.loads(line) for line in (folder / "outcomes.jsonl").read_text().splitlines() if line.endswith("}")]
    counts = {}
    for line in lines:
        counts[line["outcome"]] = counts.get(line["outcome"], 0) + 1
    return {
        "counts": counts,
        "failed": {line["test"]: line["text"] for line in lines if line["outcome"] == "failed"},
        "seen first": [line["test"] for line in lines if _FIRST(line["test"]) and line["outcome"] == "passed"],
        "seconds": {line["test"]: line["seconds"] for line in sorted(lines, key=lambda each: -each["seconds"])[:25]},
    }


def _FIRST(test: str) -> bool:
    """Whether a test's subject has not been seen on a GPU."""
    return any(each in test for each in ("saved", "profile", "old_api", "mxnet", "memory"))


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: (not _FIRST(item.nodeid), "networks" not in item.nodeid))  # those take longest


def pytest_runtest_setup(item):
    if _BROKEN:
        os._exit(1)  # xdist starts another process, and says that this test crashed


def pytest_runtest_logreport(report):
    if "PYTEST_XDIST_WORKER" in os.environ:
        if report.outcome == "failed" and (torch := sys.modules.get("torch")):
            try:
                torch.cuda.synchronize()
            except RuntimeError as error:  # after an access outside its memory a process cannot use the GPU any more
                _BROKEN.append(str(error))
        return
    if not (report.when == "call" or report.outcome != "passed"):
        return
    text = str(report.longrepr or "")[-1500:] if report.outcome == "failed" else ""
    line = {"test": report.nodeid, "outcome": report.outcome, "seconds": round(report.duration, 1), "text": text}
    with Path(os.environ["GPU_CHECK_LOG"]).open("a") as out:
        out.write(json.dumps(line) + "\n")


def prepare_lesson(options) -> None:
    """Set the environment of lesson 17: a cache with the files of the networks of ZOO, and no internet."""
    cache = Path(tempfile.mkdtemp()) / "cache"
    (cache / "mxnet").mkdir(parents=True)
    for name in ZOO:
        source = Path(options.zoo) / f"{name}-symbol.json"
        if source.is_file():
            (cache / "mxnet" / f"{name}-seeded-symbol.json").write_bytes(source.read_bytes())
            write_params(cache / "mxnet" / f"{name}-seeded-0000.params", zoo_params(Path(options.zoo), name))
    os.environ |= {"TVMNOTES_CACHE": str(cache), "TVMNOTES_OFFLINE": "1", "TQDM_DISABLE": "1"}
    os.environ["PYTHONPATH"] = python_path()


def lesson(options, seconds: float) -> dict:
    """Run lesson 17 under nbval; return its seconds, and pytest's last lines, which have the slowest cells."""
    prepare_lesson(options)
    command = [sys.executable, "-m", "pytest", "-q", "--nbval", "--nbval-current-env", "--durations=12",
               "notebooks/17_gpu.ipynb"]  # fmt: skip
    started, found = time.perf_counter(), {}
    try:
        ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=max(30.0, seconds))
        found |= {"passed": ran.returncode == 0, "last lines": ran.stdout[-4000:].splitlines()}
    except subprocess.TimeoutExpired as error:
        found |= {"failed": "not done in time", "last lines": str(error.stdout or "")[-1500:].splitlines()}
    return found | {"seconds": round(time.perf_counter() - started, 1)}


def store(options, out: Path, seconds: float) -> dict:
    """Execute lesson 17, and write it with its outputs; return its seconds, and those of the slowest cells."""
    import nbformat
    from nbclient import NotebookClient

    prepare_lesson(options)
    file = ROOT / "notebooks/17_gpu.ipynb"
    notebook, began, took = nbformat.read(file, 4), {}, {}
    client = NotebookClient(
        notebook, timeout=max(30, int(seconds)), kernel_name="python3", record_timing=False,
        resources={"metadata": {"path": str(file.parent)}},
        on_cell_execute=lambda cell, cell_index: began.update({cell.id: time.perf_counter()}),
        on_cell_executed=lambda cell, cell_index, execute_reply: took.update(
            {cell.id: round(time.perf_counter() - began[cell.id], 1)}
        ),
    )  # fmt: skip
    found, started = {}, time.perf_counter()
    try:
        client.execute()
    except Exception as error:
        found["failed"] = str(error)[-1500:]
    found["seconds"] = round(time.perf_counter() - started, 1)
    found["cells"] = dict(sorted(took.items(), key=lambda item: -item[1])[:12])
    nbformat.write(notebook, out / "17_gpu.ipynb")
    return found


def tile_table(options, out: Path, seconds: float) -> dict:
    """Measure tiles of products, and print their table."""
    command = [sys.executable, "-m", "tools.gpu_tiles", "--out", str(out / "tiles.json"), "--seconds", str(seconds)]
    environment = os.environ | {"PYTHONPATH": python_path()}
    try:
        ran = subprocess.run(
            command + ["--dry"] * options.dry, cwd=ROOT, env=environment, text=True, timeout=seconds + 30,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        lines, code = ran.stdout, ran.returncode
    except subprocess.TimeoutExpired as error:
        lines, code = str(error.stdout or ""), None
    print(lines, flush=True)
    return {"returned": code, "lines": lines.splitlines()}


def python_path(*more) -> str:
    folders = map(str, (*more, ROOT / "engine", ROOT))
    return os.pathsep.join(filter(None, [*folders, os.environ.get("PYTHONPATH")]))


def machine() -> dict:
    import torch

    facts = {"torch": torch.__version__, "python": sys.version.split()[0], "cores": os.cpu_count()}
    with contextlib.suppress(OSError):
        query = "name,driver_version,clocks.sm,clocks.mem,power.draw,temperature.gpu"
        seen = subprocess.run(["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"], capture_output=True,
                              text=True, timeout=20)  # fmt: skip
        facts["gpu"] = seen.stdout.strip()
    return facts


def table(name: str, found: dict) -> str:
    """A case's figures, as lines."""
    lines = [f"{name} ({found['part']})"]
    for candidate, row in found.get("times", {}).items():
        difference = found["notes"].get("difference", {}).get(candidate)
        seen = "" if difference is None else f"  difference {difference:.1e}"
        lines.append(
            f"  {candidate:44} {row['median (ms)']:9.3f} ms  iqr {row['iqr (ms)']:7.3f}  {row['calls']:5} calls{seen}"
        )
    lines += [f"  {what:44} {ms:9.3f} ms" for what, ms in found.get("bound (ms)", {}).items()]
    for way, profile in found.get("kernels of", {}).items():
        lines.append(f"  kernels of {way}: {profile['all (ms)']:.3f} ms, {profile['launches']:.0f} launches")
        lines += [f"      {ms:8.4f} ms  {n:5.1f}x  {kernel}" for kernel, ms, n in profile["largest"][:6]]
    lines += [f"  {what}: {value}" for what, value in found.get("notes", {}).items() if what != "difference"]
    if "failed" in found:
        lines.append(f"  FAILED: {found['failed'][-600:]}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", help="a folder for gpu.json and the executed lesson")
    parser.add_argument("--parts", default="correctness,table,speed,lesson,tiles")
    parser.add_argument("--names", help="the networks, of those of the parts")
    parser.add_argument("--zoo", default=str(HERE.parent / "zoo"), help="the folder of --export")
    parser.add_argument("--export", action="store_true", help="write the files of GluonCV's networks, with MXNet")
    parser.add_argument("--dry", action="store_true", help="build for sm_90 and compile the code, as without a GPU")
    parser.add_argument("--seconds", type=float, default=0.8, help="timed seconds of each candidate")
    parser.add_argument("--limit", type=float, default=700, help="seconds of the run")
    parser.add_argument("--tests", type=float, default=200, help="seconds of the tests at most")
    parser.add_argument("--jobs", type=int, default=8, help="processes of the tests, and networks built at once")
    parser.add_argument("--case", help="for the script's own processes")
    options = parser.parse_args()
    if options.case:
        return work(options.case, options)
    if options.export:
        return export(Path(options.zoo))
    import tvm

    if not options.out:
        parser.error("expected --out FOLDER, for gpu.json")
    if not tvm.cuda().exist and not options.dry:
        say("no GPU here: networks are built and compiled for sm_90, and kernels emulated; no time is measured")
        options.dry = True
    parts, out = options.parts.split(","), Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    run(options, parts, out)


def run(options, parts: list[str], out: Path) -> None:
    folder = Path(tempfile.mkdtemp(prefix="gpu_check-"))
    os.environ["PYTHONPATH"] = python_path()
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "2")
    found = {"machine": machine(), "parts": parts, "cases": {}}

    def left() -> float:
        return options.limit - (time.perf_counter() - STARTED)

    def keep() -> None:
        found["seconds"] = time.perf_counter() - STARTED
        (out / "gpu.json").write_text(json.dumps(found, indent=1))

    say(json.dumps(found["machine"]))
    tests = correctness(options, folder) if "correctness" in parts else None
    names = [name for name, (part, _) in CASES.items() if part in parts]
    if options.names:
        names = [name for name in names if name in options.names.split(",")]
    waiting, running = list(names), []
    until = min(options.tests, left())

    def busy() -> bool:
        return bool(waiting) or any(not each.ready for each in running)

    # Builds, beside the tests.
    while (tests and tests.poll() is None) or busy():
        while waiting and sum(not each.ready for each in running) < options.jobs:
            running.append(Worker(waiting.pop(0), options, folder))
        for each in running:
            if not each.ready and (each.process.poll() is not None or each.wait("READY", 0.1) is not None):
                each.ready = True
                say("built", each.name)
        late = time.perf_counter() - STARTED > until
        if late and tests and tests.poll() is None:
            say("the tests are cut off")
            os.killpg(tests.pid, 9)
            tests.wait()
        if time.perf_counter() - STARTED > until + 60 and not options.dry:
            break
        time.sleep(0.2)

    def tell_tests() -> None:
        found["correctness"] = outcomes(folder)
        say("tests:", json.dumps(found["correctness"]["counts"]))
        for test, text in found["correctness"]["failed"].items():
            print(f"FAILED {test}\n{text[-700:]}", flush=True)
        print((folder / "pytest.log").read_text()[-1500:], flush=True)
        keep()

    if tests:
        tell_tests()
    # Those that are not built would disturb the clock.
    for each in running:
        if not each.ready:
            found["cases"][each.name] = {"part": CASES[each.name][0], "failed": "not built in time: "
                                         + each.log.read_text()[-800:]}  # fmt: skip
            say("not built in time:", each.name)
            each.end()
    for name in names:
        for each in (each for each in running if each.ready and each.name == name):
            found["cases"][name] = each.go(min(60.0, max(5.0, left())))
            say(table(name, found["cases"][name]))
            keep()
    if tests and not options.dry:
        last = correctness(options, folder, alone=True)
        with contextlib.suppress(subprocess.TimeoutExpired):
            last.wait(min(60.0, max(5.0, left())))
        with contextlib.suppress(ProcessLookupError):
            os.killpg(last.pid, 9)
        tell_tests()
    steps = {
        "lesson": lambda: lesson(options, min(200.0, left())),
        "store": lambda: store(options, out, left()),
        "tiles": lambda: tile_table(options, out, 600.0 if options.dry else max(30.0, min(150.0, left() - 20))),
    }
    for part, step in steps.items():
        if part in parts and not (options.dry and part == "store"):  # the stored outputs are a GPU's
            say(f"part {part}")
            found[part] = step()
            keep()
            if part != "tiles":
                print(json.dumps(found[part], indent=1)[-4000:], flush=True)
    keep()
    say("done")


if __name__ == "__main__":
    main()
