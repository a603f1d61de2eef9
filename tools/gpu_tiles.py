"""Measure the tiles of products on this machine's GPU, and print the lines for `tiles.MEASURED` of tvmfast.

    python -m tools.gpu_tiles                      # three minutes; `make gpu-tiles` calls it
    python -m tools.gpu_tiles --only conv:16 --networks "" --out tiles.json

Shapes are those of the convolutions of ResNet-18 and ResNet-50, for 1 and 16 pictures, with TF32, of the
products of ViT-B/16 and BERT-base, for one picture and one text, in float16, and of the products of GPT-2 for
a few tokens, in both dtypes: there `skinny` is the rule of that name. Processes compile all that may be good
for a shape, and one at a time measures: the time that CUPTI sees in the GPU's kernels, the caches warm, so a
token's weights may come from the second-level cache. Each is compared with PyTorch. At the end networks are
timed with the best tiles. Without a GPU, `--dry` builds all, and compiles one kernel of each shape.

A line names what was fastest. Once they are in the table, under the architecture that is printed, builds for
it use these rules, for products like those that they won, too; without lines, dlight's kernels.
"""

import argparse
import json
import math
import multiprocessing
import os
import sys
import time
from pathlib import Path
from unittest import mock

import numpy as np
import torch
import torchvision
import tvm
from torch.profiler import ProfilerActivity, profile
from tvm import relax

import tvmfast
from tvmfast.compiler.cuda import codegen, gpu, tiles
from tvmfast.compiler.cuda.tiles import DLIGHT, SKINNY
from tvmfast.runtime import on_gpu

DRY = {"kind": "cuda", "arch": "sm_90"}  # the target without a GPU
CALLS = 12
BETWEEN = 1e-3  # ms from one launch to the next of a product in two launches, about
_LOCK = None


def shapes() -> list[tuple]:
    """List what is measured, the largest first.

    Returns:
        ("conv", N, C, H, W, O, kernel, stride, padding), ("matmul", M, N, K) in float16, and ("token", dtype,
        M, N, K).
    """
    found = {}
    for name in ("resnet18", "resnet50"):
        with torch.device("meta"):
            net = getattr(torchvision.models, name)().eval()

            def note(layer, args, _result):
                (x,) = args
                window = layer.out_channels, layer.kernel_size[0], layer.stride[0], layer.padding[0]
                for batch in (1, 16):
                    found[("conv", batch, *x.shape[1:], *window)] = None

            for layer in net.modules():
                if isinstance(layer, torch.nn.Conv2d):
                    layer.register_forward_hook(note)
            net(torch.empty(1, 3, 224, 224))
    for rows in (197, 128):
        for columns, length in ((768, 768), (2304, 768), (3072, 768), (768, 3072)):
            found["matmul", rows, columns, length] = None
    for rows in (1, 4, 8):
        for columns, length in ((2304, 768), (768, 768), (3072, 768), (768, 3072), (50257, 768)):
            for dtype in ("float16", "float32"):
                found["token", dtype, rows, columns, length] = None
    return sorted(found, key=lambda shape: -_macs(shape))


def _macs(shape) -> int:
    if shape[0] != "conv":
        return shape[-3] * shape[-2] * shape[-1]
    _, n, c, h, w, o, k, s, p = shape
    return n * o * ((h + 2 * p - k) // s + 1) * ((w + 2 * p - k) // s + 1) * c * k * k


def module(shape):
    """Return a module of one kernel (a product, a bias, ReLU), its parameters, and its input's shape."""
    rng = np.random.default_rng(0)
    builder = relax.BlockBuilder()
    if shape[0] != "conv":
        m, n, k = shape[-3:]
        x, dtype = (m, k), _dtype(shape)
        params = {"weight": (rng.standard_normal((k, n)) * k**-0.5).astype(dtype)}
        params["bias"] = rng.standard_normal((n,)).astype(dtype)
    else:
        _, n, c, h, w, o, k, s, p = shape
        x, dtype = (n, c, h, w), "float32"
        weight = rng.standard_normal((o, c, k, k)) / np.sqrt(c * k * k)
        params = {"weight": weight.astype(dtype)}
        params["bias"] = rng.standard_normal((1, o, 1, 1)).astype(dtype)
    inputs = [relax.Var(name, relax.TensorType(each.shape, dtype)) for name, each in params.items()]
    data = relax.Var("x", relax.TensorType(x, dtype))
    with builder.function("main", [data, *inputs]):
        with builder.dataflow():
            if shape[0] != "conv":
                y = builder.emit(relax.op.matmul(data, inputs[0], out_dtype="float32"))
                y = builder.emit(relax.op.astype(y, dtype))
            else:
                y = builder.emit(relax.op.nn.conv2d(data, inputs[0], strides=s, padding=p))
            y = builder.emit(relax.op.nn.relu(builder.emit(relax.op.add(y, inputs[1]))))
            y = builder.emit_output(y)
        builder.emit_func_output(y)
    return builder.get(), params, x


def _dtype(shape) -> str:
    return {"conv": "float32", "matmul": "float16"}.get(shape[0], shape[1])


def build(shape, by, target="cuda"):
    """Build a shape for a tile of tensor cores, or for the rule SKINNY or DLIGHT of `tiles`."""
    mod, params, _ = module(shape)
    table = {key_of(shape): by}
    with mock.patch.dict(tiles.MEASURED, {gpu.with_arch(target)["arch"]: table}):
        return tvmfast.build(mod, params, target, allow_tf32=shape[0] == "conv")


def candidates(shape) -> list:
    """List what may be good for a shape: DLIGHT, which comes first, tiles, and for tokens SKINNY."""
    if shape[0] != "token":
        return [DLIGHT, *tiles.candidates(key_of(shape))]
    on_cores = _dtype(shape) == "float16" and shape[2] > 1
    return [DLIGHT, SKINNY, *(tiles.candidates(key_of(shape)) if on_cores else [])]


def key_of(shape) -> tuple:
    """Return what `tiles.tile_for` is asked with for a shape."""
    if shape[0] != "conv":
        return (_dtype(shape), 1, *shape[-3:])
    _, n, c, h, w, o, k, s, p = shape
    pixels = ((h + 2 * p - k) // s + 1) * ((w + 2 * p - k) // s + 1)
    return ("float32", 1, o, n * pixels, c * k * k, k, k, s)


def measure(shape, dry=False) -> dict:
    """Build a shape with each tile that may be good, and time them; a process of the pool runs this."""
    row = {"shape": shape, "key": key_of(shape), "gflop": 2e-9 * _macs(shape), "tiles": [], "errors": []}
    libs = []
    for tile in candidates(shape):
        try:
            libs.append((tile, build(shape, tile, DRY if dry else "cuda")))
        except Exception as error:
            row["errors"].append(f"{tile}: {type(error).__name__}: {' '.join(str(error).split())[:300]}")
    if dry:
        row["built"], (_, lib) = len(libs), libs[1]
        row["bytes"] = len(codegen.machine_code(lib.source(), DRY["arch"]))
        return row
    with _LOCK:
        return row | _times(shape, libs, row["errors"])


def _times(shape, libs, errors) -> dict:
    _, params, size = module(shape)
    dtype = getattr(torch, _dtype(shape))
    x = torch.randn(size, generator=torch.Generator().manual_seed(0)).to("cuda", dtype)
    weight, bias = (torch.from_numpy(each).cuda() for each in params.values())

    def peer(data=x, w=weight, b=bias):
        if shape[0] != "conv":
            return torch.relu(data @ w + b)
        return torch.relu(torch.nn.functional.conv2d(data, w, b.flatten(), shape[7], shape[8]))

    with torch.inference_mode():
        wanted, good = peer(*(each.double() for each in (x, weight, bias))), []
        for tile, lib in libs:
            try:
                (got,) = lib.run([x])
                difference = (torch.from_dlpack(got).double() - wanted).abs().max() / wanted.abs().max()
                if not difference < 2e-3:
                    errors.append(f"{tile}: differs by {difference:.1e}")
                else:
                    good.append((tile, lib, sum(map(len, lib.kernels.launches))))
            except Exception as error:
                errors.append(f"{tile}: {type(error).__name__}: {' '.join(str(error).split())[:300]}")
        torch.backends.cudnn.allow_tf32 = True
        calls = [(lambda lib=lib: lib.run([x])) for _, lib, _ in good]
        for call in [*calls, peer]:
            for _ in range(2):
                call()
        torch.cuda.synchronize()
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
            for call in [*calls, peer]:
                for _ in range(CALLS):
                    call()
                torch.cuda.synchronize()
    events = [each for each in seen.events() if each.device_type == torch.autograd.DeviceType.CUDA]
    events.sort(key=lambda each: each.time_range.start)
    took = {True: [], False: []}
    for each in events:
        took[each.name.startswith("fused_")].append(each.time_range.elapsed_us() * 1e-3)
    own, at = took[True], 0
    found = {"tiles": [], "errors": errors, "torch": sum(took[False]) / CALLS}
    if len(own) != CALLS * sum(launches for *_, launches in good):
        errors.append(f"{len(own)} launches were seen")
        return found
    for tile, _, launches in good:
        runs = np.reshape(own[at : at + launches * CALLS], (CALLS, launches)).sum(1)
        at += launches * CALLS
        ms = float(np.median(runs)) + (launches - 1) * BETWEEN
        if tile == DLIGHT:
            found["dlight"] = ms
        else:
            found["tiles"].append((ms, tile if tile == SKINNY else tuple(tile)))
    found["tiles"].sort(key=lambda each: each[0])
    return found


def network(name, batch, measured) -> dict:
    """Time a network by the table, by the tiles that are chosen without one, and in PyTorch, in ms."""
    torch.manual_seed(0)
    net = getattr(torchvision.models, name)().eval()
    x = torch.randn(batch, 3, 224, 224)
    mod, params = tvmfast.from_pytorch(net, {"x": tuple(x.shape)})
    libs = {}
    for kind, table in {"unmeasured": {}, "measured": measured}.items():
        tiles.MEASURED[gpu.with_arch("cuda")["arch"]] = table
        for graph in (False, True) if table else (False,):
            with tvm.transform.PassContext(config={"relax.backend.use_cuda_graph": True} if graph else {}):
                libs[f"{kind}{', graph' * graph}"] = tvmfast.build(
                    mod, params, "cuda", allow_tf32=True, experimental=not table
                )
    found = {"name": f"{name}, {batch}"}
    with _LOCK, torch.inference_mode():
        torch.backends.cudnn.allow_tf32 = False
        net, x = net.cuda(), x.cuda()
        wanted = net.double()(x.double())
        net = net.float()
        torch.backends.cudnn.allow_tf32 = True
        calls = {"PyTorch": lambda: net(x)} | {
            kind: (lambda lib=lib: lib.run([x])) for kind, lib in libs.items()
        }
        for kind, lib in libs.items():
            difference = (
                torch.from_dlpack(lib.run([x])[0]).double() - wanted
            ).abs().max() / wanted.abs().max()
            found[f"difference, {kind}"] = float(difference)
        stream, recorded = torch.cuda.Stream(), torch.cuda.CUDAGraph()
        with torch.cuda.stream(stream):
            for _ in range(3):
                net(x)
            torch.cuda.synchronize()
            with torch.cuda.graph(recorded, stream=stream):
                kept = net(x)
        calls["PyTorch, graph"] = recorded.replay
        times = {kind: [] for kind in calls}
        for _ in range(40):
            for kind, call in calls.items():
                torch.cuda.synchronize()
                start = time.perf_counter()
                call()
                torch.cuda.synchronize()
                tvm.cuda().sync()
                times[kind].append(time.perf_counter() - start)
        del kept
    return found | {kind: 1e3 * float(np.median(each[5:])) for kind, each in times.items()}


def _start(lock):
    global _LOCK
    _LOCK = lock
    os.environ.setdefault("OMP_NUM_THREADS", "1")


def best(row):
    """Return what was fastest for a shape, as `tiles.MEASURED` has it; None if nothing was right."""
    if not row["tiles"]:
        return DLIGHT if "dlight" in row else None
    ms, by = row["tiles"][0]
    if row.get("dlight", math.inf) <= ms:
        return DLIGHT
    return by if by == SKINNY else tiles.Tile(*by)


def _line(row) -> str:
    """Return a line of the table, which is one of `MEASURED`."""
    if "built" in row:
        return f"# {row['key']}: {row['built']} built, {row['bytes']} bytes of machine code, none run"
    by = best(row)
    if by is None:
        return f"# {row['key']}: none; {row['errors'][:1]}"
    entry = repr(by) if isinstance(by, str) else f"Tile{tuple(by)}"
    times = {name: row[name] for name in ("dlight", "torch") if name in row}
    for ms, first in row["tiles"][:1]:
        times = {SKINNY if first == SKINNY else "tile": ms} | times
    text = ", ".join(f"{name} {ms * 1e3:.1f}" for name, ms in times.items())
    return f"    {row['key']}: {entry},  # us: {text}".replace("'", '"')


def main() -> None:
    """Measure, print, and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="a JSON file for all times")
    parser.add_argument("--only", default="", help="what shapes start with, such as conv:16 or matmul")
    parser.add_argument("--networks", default="resnet18,resnet50", help="networks of torchvision")
    parser.add_argument("--seconds", type=float, default=150, help="stop measuring shapes after 0.7 of these")
    parser.add_argument("--processes", type=int, default=min(14, os.cpu_count() or 1))
    parser.add_argument(
        "--dry", action="store_true", help="build all, and compile one kernel of each shape; nothing runs"
    )
    options = parser.parse_args()
    if not options.dry and not tvm.cuda().exist:
        parser.error(
            f"it takes an NVIDIA GPU{on_gpu.old_driver() or ', and TVM finds none'}; --dry builds without one"
        )
    started, rows, found = time.perf_counter(), [], []
    context = multiprocessing.get_context("spawn")
    wanted = [shape for shape in shapes() if ":".join(map(str, shape)).startswith(options.only)]

    def write():
        if options.out:
            options.out.write_text(json.dumps({"shapes": rows, "networks": found}, default=str))

    arch = (DRY if options.dry else gpu.with_arch("cuda"))["arch"]
    print(f"# {arch}", flush=True)
    with context.Pool(options.processes, _start, (context.Lock(),)) as pool:
        waiting = [(shape, pool.apply_async(measure, (shape, options.dry))) for shape in wanted]
        for shape, result in waiting:
            left = max(0.01, 0.7 * options.seconds - (time.perf_counter() - started))
            try:
                rows.append(result.get(left))
                print(_line(rows[-1]), *rows[-1]["errors"], sep="\n    # ", flush=True)
            except multiprocessing.TimeoutError:
                print(f"# {shape}: not measured, no time is left", flush=True)
            except Exception as error:
                print(f"# {shape}: {type(error).__name__}: {error}", flush=True)
            write()
        print(f"# shapes: {time.perf_counter() - started:.0f} s", flush=True)
        table = {row["key"]: by for row in rows if (by := best(row))}
        names = [] if options.dry else filter(None, options.networks.split(","))
        waiting = [pool.apply_async(network, (name, n, table)) for name in names for n in (1, 16)]
        for result in waiting:
            try:
                found.append(result.get(max(1, options.seconds - (time.perf_counter() - started))))
                print(found[-1], flush=True)
            except Exception as error:
                print(f"# {type(error).__name__}: {error}", file=sys.stderr, flush=True)
            write()
        pool.terminate()
    print(f"# {time.perf_counter() - started:.0f} s", flush=True)


if __name__ == "__main__":
    main()
