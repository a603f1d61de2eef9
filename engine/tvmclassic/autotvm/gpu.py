"""Tasks for target "cuda": convolutions and dense layers, whose configs are tiles of matrix products."""

import dataclasses
import functools
import json
import math

import numpy as np
import tvm
from tvm import relax

from tvmfast import tuning
from tvmfast.compiler import build as compiler
from tvmfast.compiler import pipeline
from tvmfast.compiler.cuda import gpu, tile_configs
from tvmfast.compiler.cuda.products import DTYPES, Product
from tvmfast.compiler.records import Record, best
from tvmfast.compiler.schedule.workloads.conv2d import Convolution
from tvmfast.compiler.schedule.workloads.dense import Dense
from tvmfast.core import errors
from tvmfast.core.compat import pass_lock

from ..graph_executor import timed

_CONV, _SMALL, _LARGE = "conv2d_nchw.cuda", "dense_small_batch.gpu", "dense_large_batch.gpu"
NAMES = {_CONV: "conv2d_NCHW.x86", _SMALL: "dense_pack.x86", _LARGE: "dense_pack.x86"}  # alike on CPUs
_MANY = 32  # rows of a large batch, at least, as in TVM 0.8
_TOLERANCE = 2e-3  # of the largest magnitude


class TileTask:
    """A convolution of one group, or a dense layer, on a GPU; used as a `tuning.Task` is.

    Attributes:
        workload: Its shapes, and its dtype, float32 or float16.
        key: `Product.key`, by which a build looks its tile up.
        target: The kind and the architecture, as JSON: a log is of a GPU, on whatever host.
        space: The configs, see `tile_configs.space`.
        operations: Multiplications and additions of a call.

    Raises:
        ValueError: The shapes do not fit each other, or the dtype is another.
    """

    def __init__(self, workload: Convolution | Dense, arch: str):
        shapes = workload.data, workload.weight
        fits = workload.dtype in DTYPES and min(*shapes[0], *shapes[1]) > 0
        if isinstance(workload, Convolution):
            fits = fits and shapes[0][1] == shapes[1][1] and min(workload.out_size) > 0
        if not fits:
            raise ValueError(f"expected shapes that fit, of {' or '.join(DTYPES)}; got {workload}")
        self.workload, self.key, self.target = workload, _key(workload), _target(arch)
        self.space = tile_configs.space(self.key, arch)
        self.operations = 2 * workload.macs

    def features(self, config: dict) -> list[float]:
        """Return what a cost model sees of a config."""
        return tile_configs.features(self.key, config)

    def candidate(self, config: dict) -> tuning.Candidate:
        """Return a config as a candidate, for runners of one's own."""
        return tuning.Candidate(self.workload, config, self.target)

    def measure(self, opened: tuning.LocalRunner, configs: list[dict]) -> list[tuning.Trial]:
        """Time configs on this machine's GPU, in this process; each result is compared with NumPy's before.

        A config that fails has the error of what failed: without a GPU, what TVM says.

        Raises:
            NotImplementedError: The runner measures on other machines.
        """
        if isinstance(opened, tuning.RpcRunner):
            raise NotImplementedError(
                "autotvm.RPCRunner for target 'cuda': servers measure for CPUs; tune on the machine that has "
                "the GPU, with autotvm.LocalRunner"
            )
        trials = []
        for config in configs:
            try:
                trials.append(tuning.Trial(self._seconds(config, opened.evaluator)))
            except Exception as error:  # TVM's, CUDA's or the device's, of this config
                trials.append(tuning.Trial((), errors.one_line(error)[:500]))
        return trials

    def _seconds(self, config: dict, evaluator) -> tuple[float, ...]:
        device = tvm.cuda(0)
        data = tvm.runtime.tensor(self._arrays[0], device)
        lib = self.build(config)
        away = np.abs(lib(data) - self._expected).max() / np.abs(self._expected).max()
        if not away <= _TOLERANCE:
            raise ValueError(f"its result differs by {away:.1e} of the largest magnitude")
        often = evaluator.number, evaluator.repeat, evaluator.min_repeat_ms
        return tuple(timed(lambda: lib.run([data]), device, *often)().results)

    def build(self, config: dict):
        """Build the layer alone with a config.

        Raises:
            ValueError: No kernel takes its tile.
        """
        lookup = tile_configs.TileLookup({self.key: config}, "autotvm")
        weight = {"weight": self._arrays[1]}
        lib = compiler.build(self.module(), weight, json.loads(self.target), records=lookup)
        if config != tile_configs.DEFAULT and gpu.TUNED not in set(lib.kernels["family"]):
            raise ValueError(f"no kernel of {self.workload.label} takes the tile {config}")
        return lib

    def module(self) -> tvm.IRModule:
        """Return the layer as a Relax module, of `data` and the parameter `weight`."""
        of = self.workload
        shapes = {"data": of.data, "weight": of.weight}
        data, weight = (relax.Var(name, relax.TensorType(each, of.dtype)) for name, each in shapes.items())
        builder = relax.BlockBuilder()
        with builder.function("main", [data, weight]):
            with builder.dataflow():
                if isinstance(of, Dense):
                    result = relax.op.matmul(data, weight)
                else:
                    window = map(list, (of.strides, of.padding, of.dilation))
                    result = relax.op.nn.conv2d(data, weight, *window)
                result = builder.emit_output(result)
            builder.emit_func_output(result)
        return builder.get()

    @functools.cached_property
    def _arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """The data and the weight of all trials, random."""
        rng = np.random.default_rng(0)
        data, weight = (rng.standard_normal(shape) for shape in (self.workload.data, self.workload.weight))
        return data.astype(self.workload.dtype), (weight * self.key[4] ** -0.5).astype(self.workload.dtype)

    @functools.cached_property
    def _expected(self) -> np.ndarray:
        """What NumPy computes for `_arrays`, in float64."""
        return self.workload.reference(*(array.astype("float64") for array in self._arrays))


def _target(arch: str) -> str:
    return json.dumps({"kind": "cuda", "arch": arch})


def _key(workload: Convolution | Dense) -> tuple:
    """Return the `Product.key` of a workload."""
    if isinstance(workload, Dense):
        return workload.dtype, 1, workload.rows, workload.columns, workload.depth
    (images, *_), (outputs, *each), (height, width) = workload.data, workload.weight, workload.out_size
    size = 1, outputs, images * height * width, math.prod(each)
    return workload.dtype, *size, *workload.weight[2:], workload.strides[1]


def described(workload: Convolution | Dense) -> tuple[str, tuple]:
    """Return the name and arguments of a workload in TVM's templates for CUDA."""
    is_dense = isinstance(workload, Dense)
    shapes = workload.data, workload.weight[:: -1 if is_dense else 1]
    tensors = (("TENSOR", shape, workload.dtype) for shape in shapes)
    if is_dense:
        return _LARGE if workload.rows >= _MANY else _SMALL, (*tensors, None, workload.dtype)
    window = workload.strides, workload.padding, workload.dilation
    return _CONV, (*tensors, *window, workload.dtype)


def extract(mod: tvm.IRModule, params: dict, target: tvm.target.Target) -> list[TileTask]:
    """Return a task for each distinct product of a build, of one matrix of weights, that has tiles."""
    asked: list[Product] = []
    mod, context = compiler.resolved(mod, params, target)
    with pass_lock, context.target:
        mod = tvm.transform.Sequential(pipeline.passes(context))(mod)
        gpu.scheduled(mod, context.target, lookup=asked.append)
    layers = [each for each in asked if each.window or len(each.b.shape) == 2]
    tasks = [TileTask(_workload(each), str(target.attrs["arch"])) for each in layers]
    return list({task.workload: task for task in tasks if len(task.space) > 1}.values())


def _workload(product: Product) -> Convolution | Dense:
    """Return a product as a workload; a convolution has as much padding behind as before if that fits."""
    _, rows, columns, depth = product.size
    if product.window is None:
        return Dense(rows, depth, columns, product.dtype)
    channels, *image, height, width, r, s, sy, sx, top, left, dy, dx, _ = product.window
    data = columns // (height * width), channels, *image
    padding = top, left, top, left
    conv = Convolution(data, (rows, channels, r, s), (sy, sx), padding, (dy, dx), 1, False, product.dtype)
    if conv.out_size == (height, width):
        return conv
    reach = (height - 1) * sy + conv.reach[0] - top, (width - 1) * sx + conv.reach[1] - left
    behind = (max(0, end - size) for end, size in zip(reach, image, strict=True))
    return dataclasses.replace(conv, padding=(top, left, *behind))


def tiles(records: list[Record], arch: str) -> dict[tuple, dict]:
    """Return the fastest config by `Product.key` that records have for GPUs of an architecture."""
    ran = [record for (_, of), record in best(records).items() if of == _target(arch)]
    ran.sort(key=lambda record: -record.call_seconds)  # of workloads that are one product, the last one stays
    return {_key(record.workload): record.config for record in ran}
