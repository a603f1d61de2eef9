"""Rules for GPUs: what their CUDA code computes on a CPU, which kernels they take, that CUDA compiles it; copies."""

import ctypes
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
import tvm
import tvm_ffi
from emulated_gpu import TARGET, machine_code, run_emulated
from testing import Function
from torch import nn
from torch.nn import functional as F
from tvm import relax, te, tirx
from tvm.script import tirx as T
from tvm.tirx import compilation_pipeline

import tvmfast
from tvmfast.compiler.build import resolve_target
from tvmfast.compiler.cuda import products, tensor_cores, tiles
from tvmfast.compiler.cuda.tiles import TILES, Tile

HEADER = Path(__file__).with_name("cuda_on_cpu.h")
COMPILER = shutil.which("g++")
OLDER = {"kind": "cuda", "arch": "sm_75"}
SMALL = Tile(32, 32, 128, 16, 16, 3)
TF32 = 2.0**-11  # the largest relative error of rounding to it


def built(function, shapes, params, tile=None, target=TARGET, **options):
    """The library of one kernel: `function(builder, x, *params)`, whose results follow from it."""
    builder = relax.BlockBuilder()
    inputs = [relax.Var(name, relax.TensorType(*each)) for name, each in shapes.items()]
    inputs += [relax.Var(name, relax.TensorType(each.shape, str(each.dtype))) for name, each in params.items()]
    with builder.function("main", inputs):
        with builder.dataflow():
            result = builder.emit_output(function(builder, *inputs))
        builder.emit_func_output(result)
    with pytest.MonkeyPatch.context() as patch:
        if tile:
            patch.setattr(tensor_cores, "tile_for", lambda *_: tile)
        return tvmfast.build(builder.get(), params, target, **{"allow_tf32": True, "experimental": True, **options})


def on_cpu(lib, inputs, folder):
    """What a library of one kernel computes, its CUDA code compiled for this machine, with `cuda_on_cpu.h`."""
    if COMPILER is None:
        pytest.skip("no g++ here")
    (node,), (kernel,) = lib.graph["nodes"], lib.kernels.index
    function = next(f for var, f in lib._library.kernels.items() if var.name_hint == kernel)
    values = {**inputs, **{name: each.numpy() for name, each in lib.params.items()}}
    arrays = {p.name: values[name] for p, name in zip(function.params, node["reads"], strict=False)}
    result = np.full(node["makes"][0]["shape"], np.nan, node["makes"][0]["dtype"])
    own = function.params[len(node["reads"]) :]
    arrays |= {p.name: np.full([int(n) for n in p.shape], np.nan, str(p.dtype)) for p in own[1:]}
    arrays[own[0].name] = result
    source, text, called = lib.source(), lib.source(kernel), []
    code = source[source.index("#if !defined(TVMFAST_INSTRUCTIONS)") : source.index('extern "C" __global__')]
    pattern = r'^extern "C" __global__ .*?(\w+_kernel(?:_\d+)?)\((.*)\) \{$'
    for n, (name, arguments) in enumerate(re.findall(pattern, text, re.M)):
        typed = re.findall(r"(\w+)\* __restrict__ (\w+)_ptr", arguments)
        passed = ", ".join(f"({kind}*)p[{i}]" for i, (kind, _) in enumerate(typed))
        own_arrays = f"for (int i = 0; i < {len(typed)}; ++i) arrays.push_back({{(const char*)p[i], bytes[i]}});"
        text += f'extern "C" void launch_{n}(void** p, long long* bytes, int x, int y, int z, int count) {{\n'
        text += f"arrays.clear(); {own_arrays} kernel = [=] {{ {name}({passed}); }}; launch(x, y, z, count);\n}}\n"
        called.append([each for _, each in typed])
    (folder / "kernel.cc").write_text(f'#include "{HEADER}"\n{code}{text}')
    command = [COMPILER, "-std=c++17", "-O1", "-w", "-shared", "-fPIC", "-o", "kernel.so", "kernel.cc"]
    subprocess.run(command, cwd=folder, check=True)
    library = ctypes.CDLL(str(folder / "kernel.so"))
    for n, (names, launch) in enumerate(zip(called, lib.kernels.launches[kernel], strict=True)):
        pointers = (ctypes.c_void_p * len(names))(*(arrays[name].ctypes.data for name in names))
        sizes = (ctypes.c_longlong * len(names))(*(arrays[name].nbytes for name in names))
        getattr(library, f"launch_{n}")(pointers, sizes, *launch["grid"], launch["block"][0])
    return result


def numbers(*shape, dtype="float32"):
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(dtype)


def assert_close(got, wanted, sizes, length, dtype, others=0.0, exact=False):
    """Compare with sums of `length` products, whose magnitudes add up to `sizes`, to which `others` were added."""
    operands = 0 if exact or dtype == "float16" else 2 * TF32  # products of halves are exact in float32
    bound = (operands + 2 * length * 2.0**-24) * sizes + 4 * np.finfo(dtype).eps * (sizes + others)
    assert got.dtype == dtype
    assert np.isfinite(got).all()
    share = np.max(np.abs(got - wanted) / bound)
    assert share <= 1


# ---------------------------------------------------------------- convolutions

CONVOLUTIONS = {  # shape, output channels, window, stride, padding, dilation, tile, dtype
    "steps of one position": ((2, 32, 9, 11), 40, 3, 2, 1, 1, SMALL, "float32"),
    "few channels": ((1, 3, 14, 18), 40, 7, 2, 3, 1, Tile(64, 32, 128, 32, 16, 4), "float32"),
    "dilation": ((1, 32, 11, 9), 24, 3, 1, 2, 2, Tile(32, 64, 128, 16, 32, 4), "float32"),
    "points": ((3, 40, 6, 6), 72, 1, 1, 0, 1, Tile(64, 64, 128, 32, 32, 3), "float32"),
    "odd points": ((2, 64, 5, 5), 32, 1, 1, 0, 1, SMALL, "float32"),
    "strided points": ((2, 64, 7, 7), 32, 1, 2, 0, 1, SMALL, "float32"),
    "three parts": ((1, 64, 5, 6), 40, 3, 1, 1, 1, SMALL._replace(split=3), "float32"),
    "halves": ((2, 64, 7, 5), 40, 3, 1, 1, 1, SMALL, "float16"),
    "points of halves": ((2, 64, 4, 4), 40, 1, 1, 0, 1, SMALL._replace(split=2), "float16"),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions(name, tmp_path):
    """With what follows in the kernel: a bias, another input, ReLU."""
    shape, channels, window, stride, padding, dilation, tile, dtype = CONVOLUTIONS[name]
    x, bias = numbers(*shape, dtype=dtype), numbers(1, channels, 1, 1, dtype=dtype)
    weight = numbers(channels, shape[1], window, window, dtype=dtype)

    def conv(x, weight):
        tensors = [torch.from_numpy(each.astype("float64")) for each in (x, weight)]
        return F.conv2d(*tensors, None, stride, padding, dilation).numpy()

    products = conv(x, weight)
    y = np.flip(numbers(*products.shape, dtype=dtype)).copy()

    def function(_builder, x, y, weight, bias):
        options = {"strides": stride, "padding": padding, "dilation": dilation, "out_dtype": "float32"}
        result = relax.op.astype(relax.op.nn.conv2d(x, weight, **options), dtype)
        return relax.op.nn.relu(relax.op.add(relax.op.add(result, bias), y))

    inputs = {"x": (shape, dtype), "y": (y.shape, dtype)}
    lib = built(function, inputs, {"weight": weight, "bias": bias}, tile)
    assert list(lib.kernels.family) == ["tensor_cores"]
    assert len(lib.kernels.launches.iloc[0]) == (1 if tile.split == 1 else 2)
    wanted = np.maximum(products + bias.astype("float64") + y, 0)
    others = np.abs(bias).astype("float64") + np.abs(y)
    sizes = conv(np.abs(x), np.abs(weight))
    assert_close(on_cpu(lib, {"x": x, "y": y}, tmp_path), wanted, sizes, weight[0].size, dtype, others)


def test_infinities_and_nan_stay(tmp_path):
    weight, x = np.abs(numbers(32, 32, 3, 3)), np.abs(numbers(1, 32, 6, 6))
    x[0, 3, 1, 1], x[0, 4, 4, 4] = np.inf, np.nan
    function = lambda _, x, w: relax.op.nn.conv2d(x, w, padding=1)  # noqa: E731
    lib = built(function, {"x": (x.shape, "float32")}, {"w": weight}, SMALL)
    got = on_cpu(lib, {"x": x}, tmp_path)
    wanted = F.conv2d(torch.from_numpy(x), torch.from_numpy(weight), padding=1).numpy()
    np.testing.assert_array_equal(np.isnan(got), np.isnan(wanted))
    np.testing.assert_array_equal(np.isinf(got), np.isinf(wanted))


# ---------------------------------------------------------------- products


def product_along_k(a, b, factor="float32"):
    """Of (…, M, K) and (…, N, K), or of (…, M, K) and (N, K)."""
    k = te.reduce_axis((0, a.shape[-1]), "k")

    def element(*at):
        other = (*at[:-2], at[-1], k) if len(b.shape) > 2 else (at[-1], k)
        return te.sum((a[(*at[:-1], k)].astype(factor) * b[other].astype(factor)).astype("float32"), k)

    return te.compute((*a.shape[:-1], b.shape[-2]), element, "product")


PRODUCTS = {  # (…, M, K), the other operand's shape, whether its rows are along k, tile
    "the largest tile": ((150, 72), (72, 136), False, TILES[0]),
    "the widest tile": ((70, 64), (64, 136), False, TILES[1]),
    "the highest tile": ((2, 130, 136), (2, 72, 136), True, TILES[2]),
    "odd rows": ((2, 19, 35), (35, 21), False, SMALL),
    "two parts": ((40, 150), (150, 40), False, SMALL._replace(split=2)),
    "batches": ((3, 40, 24), (3, 24, 40), False, SMALL),
    "batches along k": ((2, 2, 20, 50), (2, 2, 37, 50), True, SMALL._replace(split=2)),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_of_halves(name, tmp_path):
    shape, other, along_k, tile = PRODUCTS[name]
    a, b = numbers(*shape, dtype="float16"), np.flip(numbers(*other, dtype="float16")).copy()

    def function(builder, a, b):
        product = builder.call_te(product_along_k, a, b) if along_k else relax.op.matmul(a, b, out_dtype="float32")
        scaled = relax.op.multiply(product, relax.const(0.125, "float32"))
        return relax.op.nn.relu(relax.op.astype(scaled, "float16"))

    lib = built(function, {"a": (shape, "float16"), "b": (other, "float16")}, {}, tile)
    assert list(lib.kernels.family) == ["tensor_cores"]
    wide = [each.astype("float64") for each in (a, np.swapaxes(b, -1, -2) if along_k else b)]
    wanted, sizes = np.maximum(np.matmul(*wide) / 8, 0), np.matmul(*map(np.abs, wide)) / 8
    assert_close(on_cpu(lib, {"a": a, "b": b}, tmp_path), wanted, sizes, shape[-1], "float16")


def test_operands_that_were_halves_are_halves_again():
    """As PyTorch's frontend casts them: to float32, in which products of halves are exact."""
    layer = nn.Sequential(nn.Linear(64, 48), nn.ReLU()).half().eval()
    for shape in ((40, 64), (2, 40, 64)):
        lib = tvmfast.build(layer, {"x": (shape, "float16")}, TARGET, experimental=True)
        (product,) = (name for name in lib.kernels.index if "matmul" in name)
        assert lib.kernels.family[product] == "tensor_cores"
        assert {str(each.dtype) for each in lib.params.values()} <= {"float16", "float32"}
        assert max(lib.params.values(), key=lambda each: each.numpy().size).dtype == "float16"


# ---------------------------------------------------------------- products of a few rows

FEW_ROWS = {  # (…, M, K), (…, N, K), dtype
    "one row": ((1, 72), (40, 72), "float16"),
    "eight rows": ((8, 136), (21, 136), "float16"),
    "rows of two sequences": ((2, 3, 64), (33, 64), "float16"),
    "batches": ((3, 2, 48), (3, 20, 48), "float16"),
    "odd lengths": ((2, 35), (17, 35), "float16"),
    "one column": ((3, 40), (1, 40), "float16"),
    "a warp for each column": ((1, 40), (2200, 40), "float16"),
    "several vectors ahead": ((2, 2100), (5, 2100), "float32"),
    "pairs": ((5, 102), (30, 102), "float32"),
}


@pytest.mark.parametrize("name", FEW_ROWS)
def test_products_of_few_rows(name, tmp_path):
    """With what follows in the kernel: a factor, a bias, another input, ReLU."""
    shape, other, dtype = FEW_ROWS[name]
    a, b = numbers(*shape, dtype=dtype), np.flip(numbers(*other, dtype=dtype)).copy()
    wide = [each.astype("float64") for each in (a, np.swapaxes(b, -1, -2))]
    products, bias = np.matmul(*wide) / 8, numbers(other[-2])
    y = np.flip(numbers(*products.shape)).copy()

    def function(builder, a, b, y, bias):
        scaled = relax.op.multiply(builder.call_te(product_along_k, a, b), relax.const(0.125, "float32"))
        return relax.op.astype(relax.op.nn.relu(relax.op.add(relax.op.add(scaled, bias), y)), dtype)

    inputs = {"a": (shape, dtype), "b": (other, dtype), "y": (y.shape, "float32"), "bias": (bias.shape, "float32")}
    lib = built(function, inputs, {})
    assert list(lib.kernels.family) == ["skinny"]
    got = on_cpu(lib, {"a": a, "b": b, "y": y, "bias": bias}, tmp_path)
    sizes = np.matmul(*map(np.abs, wide)) / 8
    others = np.abs(bias).astype("float64") + np.abs(y)
    assert_close(got, np.maximum(products + bias + y, 0), sizes, shape[-1] + 2, dtype, others, exact=True)


def test_warps_share_a_column_where_there_are_few():
    launches = {}
    for rows, columns, length in ((1, 40, 1024), (1, 1500, 1024), (1, 40, 40), (8, 5000, 1024)):
        inputs = {"a": ((rows, length), "float16"), "b": ((columns, length), "float16")}
        (launch,) = built(lambda bb, a, b: bb.call_te(product_along_k, a, b), inputs, {}).kernels.launches.iloc[0]
        assert launch["block"] == [128, 1, 1]
        launches[rows, columns, length] = launch["grid"][0]
    assert list(launches.values()) == [20, 750, 10, 1250]


def test_a_row_does_not_depend_on_the_others(tmp_path):
    """Its sums are in one order, and what is not finite stays in its row and column."""
    a, b = numbers(4, 200, dtype="float16"), np.abs(numbers(48, 200, dtype="float16"))
    a[1, 3], a[2, 150], b[7, 8] = np.inf, np.nan, np.inf
    results = []
    for rows in (a, a[:1], a[3:]):
        inputs = {"a": (rows.shape, "float16"), "b": (b.shape, "float16")}
        folder = tmp_path / str(len(results))
        folder.mkdir()
        lib = built(lambda bb, a, b: bb.call_te(product_along_k, a, b), inputs, {})
        results.append(on_cpu(lib, {"a": rows.copy(), "b": b}, folder))
    np.testing.assert_array_equal(results[0][:1], results[1])
    np.testing.assert_array_equal(results[0][3:], results[2])
    with np.errstate(invalid="ignore"):
        wanted = a.astype("float64") @ b.astype("float64").T
    for test in (np.isnan, np.isposinf, np.isneginf):
        np.testing.assert_array_equal(test(results[0]), test(wanted))


def test_weights_of_few_rows_lie_along_the_sum():
    """Those of whole vectors; others keep their order."""
    layer = nn.Sequential(nn.Linear(64, 50), nn.ReLU()).half().eval()
    for shape, family, weight in (((1, 64), "skinny", (50, 64)), ((2, 4, 64), "skinny", (50, 64)),
                                  ((9, 64), "tensor_cores", (64, 50))):  # fmt: skip
        lib = tvmfast.build(layer, {"x": (shape, "float16")}, TARGET, experimental=True)
        (product,) = (name for name in lib.kernels.index if "matmul" in name)
        assert lib.kernels.family[product] == family
        assert weight in [tuple(each.shape) for each in lib.params.values()]
    older = tvmfast.build(layer, {"x": ((9, 64), "float16")}, OLDER, experimental=True)
    assert "tensor_cores" not in {*older.kernels.family}
    assert [tuple(each.shape) for each in older.params.values() if len(each.shape) > 1] == [(64, 50)]
    odd = tvmfast.build(nn.Linear(63, 50).half().eval(), {"x": ((1, 63), "float16")}, TARGET, experimental=True)
    assert "skinny" not in {*odd.kernels.family}
    single = tvmfast.build(nn.Linear(64, 50).eval(), {"x": (1, 64)}, TARGET, experimental=True)
    assert list(single.kernels.family) == ["skinny"]


def test_a_token_of_a_network_in_halves(tmp_path):
    layer = nn.Linear(72, 40).half().eval()
    x = torch.from_numpy(numbers(1, 72, dtype="float16"))
    lib = tvmfast.build(layer, {"x": (tuple(x.shape), "float16")}, TARGET, experimental=True)
    assert list(lib.kernels.family) == ["skinny"]
    weight, bias = (each.detach().double().numpy() for each in (layer.weight, layer.bias))
    wide = x.double().numpy()
    got = on_cpu(lib, {"x": x.numpy()}, tmp_path)
    sizes = np.abs(wide) @ np.abs(weight.T)
    assert_close(got, wide @ weight.T + bias, sizes, 72, "float16", np.abs(wide @ weight.T) + np.abs(bias), exact=True)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_nvrtc_compiles_products_of_few_rows_for_older_gpus(dtype):
    inputs = {"a": ((2, 64), dtype), "b": ((40, 64), dtype)}
    lib = built(lambda bb, a, b: bb.call_te(product_along_k, a, b), inputs, {}, target=OLDER)
    assert list(lib.kernels.family) == ["skinny"]
    assert len(machine_code(lib, arch="sm_75")) > 1000


# ---------------------------------------------------------------- which kernels it takes


class Net(nn.Module):
    """Convolutions, of which one is in groups, and a product."""

    def __init__(self):
        super().__init__()
        self.conv, self.groups, self.dense = nn.Conv2d(3, 32, 3), nn.Conv2d(32, 32, 3, groups=16), nn.Linear(32, 16)

    def forward(self, x):
        return self.dense(self.groups(torch.relu(self.conv(x))).amax((2, 3)))


def families(**options):
    lib = tvmfast.build(Net().eval(), {"x": (2, 3, 9, 9)}, **{"target": TARGET, **options})
    return lib, sorted(family for family in lib.kernels.family if family not in ("reduction", "fallback"))


class Halves(nn.Module):
    """In float16: a convolution that dlight has on tensor cores, too, a product, and one of a few rows."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(128, 128, 3, padding=1)
        self.dense, self.last = nn.Linear(128, 64), nn.Linear(64, 48)

    def forward(self, x):
        rows = self.dense(torch.relu(self.conv(x)).flatten(2).mT)
        return self.last(torch.relu(rows).amax(1))


def rules_of(halves, table=None, **options):
    """The rules of the convolution, the product and the one of a few rows, with a table of measurements for sm_80."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiles, "MEASURED", {"sm_80": table} if table else {})
        lib = tvmfast.build(*halves, **{"target": TARGET, **options})
    kernels = [node["kernel"] for node in lib.graph["nodes"]]
    return lib, [lib.kernels.family[each] for each in kernels if "conv2d" in each or "matmul" in each]


@pytest.fixture(scope="module")
def halves():
    torch.manual_seed(0)
    return tvmfast.from_pytorch(Halves().half().eval(), {"x": ((2, 128, 14, 14), "float16")})


CONV, PRODUCT, FEW = (
    ("float16", 1, 128, 392, 1152, 3, 3, 1), ("float16", 1, 392, 64, 128), ("float16", 1, 2, 48, 64)
)  # fmt: skip


def test_what_was_not_measured_has_to_be_asked_for(halves):
    lib, found = rules_of(halves)
    assert not {"tensor_cores", "skinny"} & {*lib.kernels.family}
    assert "mma.sync" not in lib.source() and "skinny" not in lib.source()
    assert rules_of(halves, allow_tf32=True)[1] == found
    assert rules_of(halves, experimental=True)[1] == ["tensor_cores", "tensor_cores", "skinny"]
    with pytest.raises(
        ValueError, match="experimental is for kernels of GPUs: expected a target of kind 'cuda'; got 'llvm'"
    ):
        tvmfast.build(*halves, experimental=True)


def test_what_was_measured_is_used(halves):
    """By product, and for others of the same dtype and kind, a convolution or not; on this architecture alone."""
    conv, product, few = rules_of(halves)[1]
    for table, wanted in (
        ({CONV: SMALL}, ["tensor_cores", product, few]),
        ({(*CONV[:2], 7, *CONV[3:]): SMALL}, ["tensor_cores", product, few]),
        ({("float32", *CONV[1:]): SMALL}, [conv, product, few]),
        ({FEW: "skinny"}, [conv, product, "skinny"]),
        ({FEW: "dlight", PRODUCT: SMALL, CONV: "dlight"}, [conv, "tensor_cores", few]),
        ({FEW: SMALL}, [conv, "tensor_cores", "tensor_cores"]),
    ):
        assert rules_of(halves, table)[1] == wanted, table
    lib, found = rules_of(halves, {CONV: SMALL, FEW: "dlight"}, experimental=True)
    assert found == ["tensor_cores", "tensor_cores", few]
    ((launch,),) = (lib.kernels.launches[each] for each in lib.kernels.index if "conv2d" in each)
    assert launch["grid"] == [128 // SMALL.m, -(-392 // SMALL.n), 1]
    assert rules_of(halves, {CONV: SMALL}, target={"kind": "cuda", "arch": "sm_90"})[1] == [conv, product, few]


def test_tf32_is_a_choice_and_for_convolutions():
    torch.manual_seed(0)
    assert "mma.sync" not in families()[0].source()
    assert "tensor_cores" not in families(experimental=True)[1]
    lib, found = families(allow_tf32=True, experimental=True)
    assert found.count("tensor_cores") == 1
    assert "m16n8k8.row.col.f32.tf32" in lib.source()
    older = families(target=OLDER, experimental=True)[1]
    assert families(target=OLDER, allow_tf32=True, experimental=True)[1] == older
    with pytest.raises(
        ValueError, match="allow_tf32 is for tensor cores: expected a target of kind 'cuda'; got 'llvm'"
    ):
        families(target=None, allow_tf32=True)


def test_a_launch_asks_for_its_shared_memory():
    """TVM sees the address of one element alone, and shrinks the array to it."""
    lib = built(lambda _, a: relax.op.matmul(a, a, out_dtype="float32"), {"a": ((64, 64), "float16")}, {}, SMALL)
    target, lower = resolve_target(TARGET, ("cuda",)), compilation_pipeline.get_tir_pipeline("tvmfast")[0]
    (func,) = lib._library.kernels.values()
    (size,) = re.findall(r'alloc_buffer\(\((\d+),\), "uint8", scope="shared.dyn"\)', func.script())
    with target:
        mod = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
        lowered = lower(tirx.transform.BindTarget(target)(mod))
    launches = {"tirx.kernel_launch_params" in (f.attrs or {}): f for f in lowered.functions.values()}
    assert list(launches[True].attrs["tirx.kernel_launch_params"])[-1] == "tirx.use_dyn_shared_memory"
    assert re.search(rf"\b{size}\b", launches[False].script())


@T.prim_func(s_tir=True)
def from_one(a: T.Buffer((32, 32), "float16"), b: T.Buffer((32, 32), "float16"), c: T.Buffer((32, 32), "float32")):
    """A product whose sums begin with 1."""
    for i, j, k in T.grid(32, 32, 32):
        with T.sblock("c"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                c[vi, vj] = T.float32(1)
            c[vi, vj] += T.Cast("float32", a[vi, vk]) * T.Cast("float32", b[vj, vk])


def along_k(rows=32, columns=32, length=32, dtype="float16", factor="float32", then=lambda c: c):
    """The kernel of a product, and of what follows it."""
    a, b = te.placeholder((rows, length), dtype, "a"), te.placeholder((columns, length), dtype, "b")
    return te.create_prim_func([a, b, then(product_along_k(a, b, factor))])


def test_a_kernel_that_looks_like_a_product_is_left_alone():
    """What it computes, reads or writes is something else, or too large for the rules."""
    assert products.match(along_k(then=lambda c: te.compute(c.shape, lambda i, j: c[i, j] * 2, "twice"))) is not None
    assert products.match(along_k(32768, 65535, 8)) is not None
    parts = {
        "begins with 1": from_one,
        "rounds first": along_k(dtype="float32", factor="float16"),
        "half of it": along_k(then=lambda c: te.compute((32, 16), lambda i, j: c[i, j] * 2, "left")),
        "shifted": along_k(then=lambda c: te.compute((32, 31), lambda i, j: c[i, j + 1] * 2, "shifted")),
        "two of it": along_k(then=lambda c: te.compute(c.shape, lambda i, j: c[i, j] + c[j, i], "sum")),
        "2^31 elements": along_k(32768, 65536, 8),
        "2^31 elements of an operand": along_k(8, 1 << 16, 1 << 15),
        "no elements": along_k(0),
        "no summands": along_k(length=0),
        "dynamic": along_k(tirx.Var("rows", "int64")),
    }
    assert {name for name, kernel in parts.items() if products.match(kernel) is not None} == set()


def test_nvrtc_compiles_it():
    lib, _ = families(allow_tf32=True, experimental=True)
    assert len(machine_code(lib)) > 1000
    halves = built(lambda _, a: relax.op.matmul(a, a, out_dtype="float32"), {"a": ((64, 64), "float16")}, {})
    assert len(machine_code(halves)) > 1000


def test_a_padding_that_is_not_of_zeros_stays_with_dlight():
    def function(_builder, x, w):
        return relax.op.nn.conv2d(relax.op.nn.pad(x, [0, 0, 0, 0, 1, 1, 1, 1], pad_value=1.0), w)

    lib = built(function, {"x": ((1, 32, 6, 6), "float32")}, {"w": numbers(8, 32, 3, 3)})
    assert len(lib.kernels) > 1 or "tensor_cores" not in set(lib.kernels.family)


def test_a_sum_in_parts_has_its_workspace_in_the_graph():
    """A CUDA graph keeps its address, so that no pool of a thread that has ended may own it."""
    x, weight = numbers(1, 64, 5, 6), numbers(40, 64, 3, 3)
    function = lambda _, x, w: relax.op.nn.conv2d(x, w, padding=1)  # noqa: E731
    memory = {}
    for split in (1, 3):
        lib = built(function, {"x": (x.shape, "float32")}, {"w": weight}, SMALL._replace(split=split))
        assert len(lib.kernels.launches.iloc[0]) == min(split, 2)
        (kernel,) = lib._library.kernels.values()
        assert "global" not in [each.scope() for each in allocated(kernel)]
        assert lib.graph["nodes"][0]["makes"] == [{"shape": [1, 40, 5, 6], "dtype": "float32"}]
        memory[split] = sum(lib.graph["memory"]["buffers"])
    assert memory[3] - memory[1] == 3 * 4 * 40 * 5 * 6


def allocated(func):
    found = []
    tvm_ffi.structural_walk(func.body, (tirx.AllocBuffer, lambda alloc: found.append(alloc.buffer)))
    return found


def test_measured_tiles_come_first_and_small_grids_are_split(monkeypatch):
    key = ("float32", 1, 512, 49, 4608, 3, 3, 1)
    chosen = tiles.tile_for(key, "sm_80")
    blocks = -(-512 // chosen.m) * -(-49 // chosen.n) * chosen.split
    assert chosen.split > 1
    assert blocks >= 100
    assert tiles.tile_for(("float32", 1, 64, 50176, 576, 3, 3, 1), "sm_80").split == 1
    monkeypatch.setitem(tiles.MEASURED, "sm_80", {key: SMALL})
    assert tiles.tile_for(key, "sm_80") == SMALL
    assert tiles.tile_for(key, "sm_86") == chosen


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_tiles_fit_a_block(dtype):
    """In threads, shared memory of the smaller GPUs, and in what each thread copies."""
    measured = (each for table in tiles.MEASURED.values() for each in table.values())
    for tile in {*TILES, *(each for each in measured if isinstance(each, Tile))}:
        size = np.dtype(dtype).itemsize
        step = tile.elements(dtype)
        assert tile.threads <= 1024
        memory = (
            tile.stages * (tile.m * (step + 16 // size) + max(tile.n * (step + 16 // size), step * (tile.n + 8))) * size
        )
        assert memory <= 99 * 1024
        for vector in {1, 2, 4, 16 // size}:
            assert step % (tile.threads // (tile.n // vector)) == 0 or tile.n // vector > tile.threads


# ---------------------------------------------------------------- updates of a part

CACHE = (2, 3, 40, 4)


def rows(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape)))


def sliced(cache, new):
    cache = cache.clone()
    cache[:, 1:2, 2:5] = new
    return cache


UPDATES = {  # a function of the cache and of others
    "one row": (lambda cache, at, new: cache.index_copy(2, at, new), torch.tensor([5]), rows(2, 3, 1, 4)),
    "the last of equal indices": (
        lambda cache, at, new: cache.index_copy(2, at, new), torch.tensor([5, 39, 0, 5]), rows(2, 3, 4, 4),
    ),
    "a box": (sliced, rows(2, 1, 3, 4)),
    "more than a few": (lambda cache, at, new: cache.index_copy(2, at, new), torch.arange(39), rows(2, 3, 39, 4)),
}  # fmt: skip


@pytest.mark.parametrize("name", UPDATES)
def test_partial_updates(name):
    function, *others = UPDATES[name]
    inputs = [rows(*CACHE), *others]
    shapes = {f"x{n}": (tuple(x.shape), str(x.dtype).removeprefix("torch.")) for n, x in enumerate(inputs)}
    mod, params = tvmfast.from_pytorch(Function(function).eval(), shapes)
    lib = tvmfast.build(mod, params, TARGET)
    assert ("scatter_nd" in lib.source()) == (name == "more than a few")
    got = run_emulated(mod, params, *(x.numpy() for x in inputs))
    np.testing.assert_array_equal(got, function(*inputs).numpy())
