"""Tasks for target "cuda": convolutions and dense layers, whose configs are tiles of the rules for GPUs.

A config is built by `tvmfast.build` and compiled by CUDA's compiler, with a GPU or without. It is timed on
this machine's GPU, after its result was compared with NumPy's; without one, each trial fails with what TVM
says.
"""

import functools
import json
import math

import numpy as np
import tvm
from tvm import relax

from tvmfast import tuning
from tvmfast.compiler import build as compiler
from tvmfast.compiler import pipeline
from tvmfast.compiler.context import BuildContext
from tvmfast.compiler.cuda import codegen, operands, tile_configs
from tvmfast.compiler.schedule.workloads.conv2d import Convolution
from tvmfast.core import errors
from tvmfast.core.compat import pass_lock
from tvmfast.core.relax import op_name, static_shape

from ..graph_executor import timed
from .configs import ConfigEntity, ConfigSpace

_CONV = "conv2d_nchw.cuda"
_DENSE = ("dense_small_batch.gpu", "dense_large_batch.gpu")  # below _LARGE rows, and from there on
NAMES = (_CONV, *_DENSE)  # of the tasks, as of TVM 0.8
_LARGE = 32
_DTYPES = ("float32", "float16")
_TOLERANCE = {"float32": 1e-3, "float16": 2e-3}  # of the largest magnitude


class GPUTask:
    """A convolution of one group, or a dense layer of at least two rows, on a GPU.

    Attributes:
        name: One of NAMES.
        args: ("TENSOR", shape, dtype) of data and weight; of a convolution its strides, padding (top, left,
            bottom, right), dilation and dtype, of a dense layer None for the bias and its dtype.
        config_space: The configs, see `tile_configs.space`; the first leaves the choice to the build.
        flop: The operations of a call.
        key: `products.Product.key`, by which a build finds the tile.
    """

    def __init__(self, name: str, args, target: tvm.target.Target):
        self.name, self.args = name, _checked(name, args)
        self.kwargs, self.target_host = {}, None
        self.arch = str(target.attrs["arch"])
        options = {"kind": "cuda", "arch": self.arch}  # a log is of a GPU, on whatever host
        self.target, self.target_key = tvm.target.Target(options), json.dumps(options)
        self.key = _key(name, self.args)
        _, batch, rows, columns, length = self.key[:5]
        self.flop = 2 * batch * rows * columns * length
        self.config_space = ConfigSpace(tile_configs.space(self.key, self.arch))
        self.numbers = range(len(self.config_space))

    @property
    def workload(self) -> tuple:
        """The name, followed by the arguments."""
        return (self.name, *self.args)

    @property
    def dtype(self) -> str:
        """The dtype of data and weight."""
        return self.args[0][2]

    def instantiate(self, config):
        """Raise NotImplementedError: there is no TE schedule to instantiate."""
        raise NotImplementedError(
            "task.instantiate: TE schedules are gone; relay.build makes the kernel, under "
            "autotvm.apply_history_best"
        )

    def features(self, values: dict) -> list[float]:
        """Return what a cost model sees of a config's values."""
        return tile_configs.features(self.key, values)

    # ------------------------------------------------------------ measuring

    def measure(self, opened, configs: list[ConfigEntity]) -> list[tuning.Trial]:
        """Build and time configs on this machine's GPU; one that fails has the error of what failed.

        A runner that is none of `tvmfast.tuning`'s measures them itself: it gets them as candidates.

        Raises:
            NotImplementedError: The runner measures on other machines.
        """
        if isinstance(opened, tuning.RpcRunner):
            raise NotImplementedError(
                "autotvm.RPCRunner for target 'cuda': servers measure for CPUs here; tune on the machine "
                "that has the GPU, with autotvm.LocalRunner"
            )
        if not isinstance(opened, tuning.LocalRunner):
            return opened.measure([tuning.Candidate(self, c.values, self.target_key) for c in configs])
        return [self._trial(config.values, opened.evaluator) for config in configs]

    def _trial(self, values: dict, evaluator) -> tuning.Trial:
        try:
            lib = self.build(values)
            return tuning.Trial(tuple(self._times(lib, evaluator)))
        except Exception as error:  # TVM's, CUDA's or the device's, of this config
            return tuning.Trial((), errors.one_line(error)[:500])

    def build(self, values: dict):
        """Build the layer alone with a config, and have CUDA's compiler translate it.

        Raises:
            ValueError: The rule does not take the tile for it.
            RuntimeError: CUDA's compiler refuses the code, or its headers are not found.
        """
        lookup = tile_configs.TileLookup({self.key: values}, "autotvm")
        lib = compiler.build(self.module(), {"weight": self._arrays[1]}, self.target, records=lookup)
        if lookup(self.key) is not None and self.key not in lookup.taken:
            raise ValueError(f"the rule {values['family']} does not take this tile for {self.workload}")
        if not tvm.cuda(0).exist:  # else the build has done it
            codegen.machine_code(lib.source(), self.arch)
        return lib

    def module(self) -> tvm.IRModule:
        """Return the layer as a Relax module, of `data` and the parameter `weight`."""
        data, weight = (
            relax.Var(name, relax.TensorType(tensor[1], self.dtype))
            for name, tensor in zip(("data", "weight"), self.args, strict=False)
        )
        builder = relax.BlockBuilder()
        with builder.function("main", [data, weight]):
            with builder.dataflow():
                if self.name == _CONV:
                    strides, padding, dilation = map(list, self.args[2:5])
                    result = relax.op.nn.conv2d(data, weight, strides, padding, dilation)
                else:
                    result = relax.op.matmul(data, builder.emit(relax.op.permute_dims(weight)))
                result = builder.emit_output(result)
            builder.emit_func_output(result)
        return builder.get()

    @functools.cached_property
    def _arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """The data and the weight of all trials, random."""
        rng = np.random.default_rng(0)
        data, weight = (rng.standard_normal(tensor[1]) for tensor in self.args[:2])
        return data.astype(self.dtype), (weight * self.key[4] ** -0.5).astype(self.dtype)

    @functools.cached_property
    def _expected(self) -> np.ndarray:
        """What NumPy computes for `_arrays`, in float64."""
        data, weight = (array.astype("float64") for array in self._arrays)
        if self.name == _CONV:
            return _convolution(self.args).reference(data, weight)
        return data @ weight.T

    def _times(self, lib, evaluator) -> list[float]:
        """Compare the result with NumPy's, and return the seconds of a call, one per repeat."""
        device = tvm.cuda(0)
        data = tvm.runtime.tensor(self._arrays[0], device)  # without a GPU, TVM says so here
        expected = self._expected
        difference = np.abs(lib(data) - expected).max() / np.abs(expected).max()
        if not difference <= _TOLERANCE[self.dtype]:
            raise ValueError(f"its result differs by {difference:.1e} of the largest magnitude")
        often = evaluator.number, evaluator.repeat, evaluator.min_repeat_ms
        return list(timed(lambda: lib.run([data]), device, *often)().results)

    def __repr__(self) -> str:
        return f"Task(func_name={self.name}, args={self.args}, kwargs={{}}, workload={self.workload})"


def _convolution(args: tuple) -> Convolution:
    (_, data, _), (_, weight, _) = args[:2]
    return Convolution(data, weight, *args[2:5], 1, False)


def _key(name: str, args: tuple) -> tuple:
    """Return `products.Product.key` of a task."""
    (_, data, dtype), (_, weight, _) = args[:2]
    if name != _CONV:
        return dtype, 1, data[0], weight[0], data[1]
    height, width = _convolution(args).out_size
    size = 1, weight[0], data[0] * height * width, math.prod(weight[1:])
    return dtype, *size, *weight[2:], args[2][1]


def configs_of(name: str, args, arch: str) -> list[dict]:
    """Return the configs of a task; raises what a `GPUTask` does for others."""
    return tile_configs.space(_key(name, _checked(name, args)), arch)


def _checked(name: str, args) -> tuple:
    """Return the arguments of a task, as tuples. Raises ValueError for others."""
    data, weight = (("TENSOR", tuple(map(int, tensor[1])), str(tensor[2])) for tensor in args[:2])
    dtype = data[2]
    if name not in NAMES or dtype not in _DTYPES or weight[2] != dtype:
        raise ValueError(
            f"expected one of {', '.join(NAMES)}, of {' or '.join(_DTYPES)}; got {name}, {dtype}"
        )
    size = 4 if name == _CONV else 2
    shapes = data[1], weight[1]
    if any(len(shape) != size or min(shape) < 1 for shape in shapes) or shapes[0][1] != shapes[1][1]:
        raise ValueError(
            f"{name}: expected data and weight of {size} axes that fit, in one group; got {shapes}"
        )
    if name != _CONV:
        return data, weight, None, dtype
    strides, padding, dilation = (_tuple(each) for each in args[2:5])
    padding = padding * 2 if len(padding) == 2 else padding
    sizes = len(strides), len(padding), len(dilation)
    if sizes != (2, 4, 2) or min(*strides, *dilation) < 1 or min(padding) < 0:
        raise ValueError(f"{name}: expected strides, padding and dilation; got {args[2:5]}")
    checked = data, weight, strides, padding, dilation, dtype
    if min(_convolution(checked).out_size) < 1:
        raise ValueError(f"{name}: the window is larger than the padded image; got {args[:5]}")
    return checked


def _tuple(value) -> tuple[int, ...]:
    return (int(value),) * 2 if isinstance(value, int) else tuple(map(int, value))


def extract(mod: tvm.IRModule, params: dict, target: tvm.target.Target) -> list[GPUTask]:
    """Return a task for each distinct convolution and dense layer of a Relax module that has tiles."""
    mod, _ = compiler.bind(mod, params)
    with pass_lock, target:
        passes = pipeline.passes(BuildContext(target))
        names = [str(each.info.name) for each in passes]
        mod = tvm.transform.Sequential(passes[: names.index("OperandsForGPUs")])(mod)
    found: dict[tuple, GPUTask] = {}
    for key, call in operands.products_of(mod):
        described = _described(call)
        if described is not None and key[0] in _DTYPES and min(key[2:5]) > 1:
            task = GPUTask(*described, target)
            found.setdefault(task.workload, task)
    return list(found.values())


def _described(call) -> tuple[str, tuple] | None:
    """Return the name and the arguments of a call's task; None for a product of matrices of its own each."""
    data, weight = (static_shape(arg.ty) for arg in call.args)
    dtypes = [str(arg.ty.dtype) for arg in call.args]
    if op_name(call) == "nn.conv2d":
        tensors = [("TENSOR", *each) for each in zip((data, weight), dtypes, strict=True)]
        return _CONV, (*tensors, call.attrs.strides, call.attrs.padding, call.attrs.dilation, dtypes[0])
    if len(weight) != 2 or dtypes[0] != dtypes[1]:
        return None
    depth, columns = weight
    rows = int(np.prod(data[:-1]))
    tensors = ("TENSOR", (rows, depth), dtypes[0]), ("TENSOR", (columns, depth), dtypes[0])
    return _DENSE[rows >= _LARGE], (*tensors, None, dtypes[0])
