"""`relay.testing`: the networks that tutorials build, with TVM's names and initial values for their weights.

A network's module has `get_net`, its function in `networks`, and `get_workload`, which makes `(mod, params)`.
"""

import collections
import inspect
import re

import numpy as np
import tvm

from . import ir, networks, transform
from .ops.operator import NEEDED, parameters

# ---------------------------------------------------------------- parameters: relay.testing.init


class Initializer:
    """Initializer that fills an array in place by its name's ending.

    bias, beta and mean are 0; gamma and var 1; a subclass fills weights.
    """

    def __init__(self, **kwargs):
        self._kwargs = kwargs

    def __call__(self, desc: str, arr: np.ndarray) -> None:
        """Fill the array `arr` of the parameter `desc`. Raises ValueError for another ending."""
        if desc.endswith("weight"):
            self._init_weight(desc, arr)
        elif desc.endswith(("bias", "beta", "mean")):
            arr[:] = 0
        elif desc.endswith(("gamma", "var")):
            arr[:] = 1
        else:
            raise ValueError(f"{desc}: expected a name that ends with weight, bias, gamma, beta, mean or var")

    def _init_weight(self, name, arr) -> None:
        raise NotImplementedError(f"{type(self).__name__} defines no _init_weight: use Xavier, or define it")


class Xavier(Initializer):
    """Initializer uniform in ±sqrt(magnitude / fan): fan-in ("in"), fan-out ("out") or their mean ("avg").

    Source: Xavier Glorot, Yoshua Bengio, "Understanding the difficulty of training deep feedforward neural
    networks".
    """

    def __init__(self, rnd_type="uniform", factor_type="avg", magnitude=3):
        super().__init__(rnd_type=rnd_type, factor_type=factor_type, magnitude=magnitude)
        if rnd_type != "uniform" or factor_type not in ("avg", "in", "out"):
            raise ValueError(
                f"Xavier: expected rnd_type uniform and factor_type avg, in or out; got {rnd_type!r}, "
                f"{factor_type!r}"
            )
        self.rnd_type, self.factor_type = rnd_type, factor_type
        self.magnitude = float(magnitude)

    def _init_weight(self, name, arr) -> None:
        if arr.ndim < 2:
            raise ValueError(f"Xavier: {name} is of shape {arr.shape}; expected two axes at least")
        window = np.prod(arr.shape[2:])
        outs, ins = arr.shape[0] * window, arr.shape[1] * window
        fan = {"in": ins, "out": outs, "avg": (ins + outs) / 2}[self.factor_type]
        scale = np.sqrt(self.magnitude / (window if "depthwise" in name else fan))
        arr[:] = np.random.uniform(-scale, scale, size=arr.shape)  # noqa: NPY002 - seeded by create_workload


class Constant(Initializer):
    """Initializer that makes all elements of a weight equal, with sum 1."""

    def _init_weight(self, name, arr) -> None:
        arr[:] = 1 / arr.size


def create_workload(net, initializer=None, seed=0) -> tuple[ir.IRModule, dict]:
    """Return `(mod, params)` for a function, with an array for each parameter not named data, data_1, ….

    `initializer` (default `Xavier()`) is called with each name and an array of zeros. As in TVM, `seed` seeds
    NumPy's global generator, so that a script's own random inputs are reproducible.
    """
    mod = ir.IRModule.from_expr(net)
    mod["main"].infer()
    np.random.seed(seed)  # noqa: NPY002
    fill = initializer or Xavier()
    params = {}
    for param in mod["main"].params:
        if not re.fullmatch(r"data(_\d+)?", param.name_hint):
            array = np.zeros(param.checked_type.shape, param.checked_type.dtype)
            fill(param.name_hint, array)
            params[param.name_hint] = tvm.runtime.tensor(array)
    return mod, params


# ---------------------------------------------------------------- modules


def _network(net, **defaults) -> dict:
    """Return a network's module contents; `defaults` are the parameters and defaults of `get_workload`."""
    signature = inspect.Signature(parameters(defaults))

    def get_workload(*args, **kwargs):
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return create_workload(net(**bound.arguments))

    get_workload.__signature__, get_workload.__doc__ = signature, net.__doc__
    return {"get_net": net, "get_workload": get_workload}


def run_opt_pass(expr, opt_pass, import_prelude=False):
    """Run a pass on an expression; the result is a function only if `expr` is one."""
    main = opt_pass(ir.IRModule.from_expr(expr))["main"]
    return main if isinstance(expr, ir.Function) else main.body


def run_infer_type(expr):
    """Run the pass InferType on an expression."""
    return run_opt_pass(expr, transform.NAMES["InferType"]())


def count_ops(expr) -> collections.Counter:
    """Count the calls of each operator in `expr`, by name."""
    calls = (node for node in ir.post_order(expr, ir.all_parts) if isinstance(node, ir.Call))
    return collections.Counter(call.op.name for call in calls if isinstance(call.op, ir.Op))


def rand(dtype, *shape):
    """Return a TVM tensor with elements uniform in [0, 1)."""
    return tvm.runtime.tensor(np.random.rand(*shape).astype(dtype))  # noqa: NPY002 - seeded by the script


def enabled_targets() -> list:
    """List (target, device): the CPU."""
    return [("llvm", tvm.cpu(0))]


_IMAGE = {"image_shape": (3, 224, 224), "dtype": "float32"}

# By the name's suffix after tvm.relay.testing.
MODULES = {
    "": {"create_workload": create_workload, "run_opt_pass": run_opt_pass, "run_infer_type": run_infer_type,
         "count_ops": count_ops, "rand": rand, "enabled_targets": enabled_targets,
         "ctx_list": enabled_targets},
    ".init": {"create_workload": create_workload, "Initializer": Initializer, "Xavier": Xavier,
              "Constant": Constant},
    ".layers": {layer.__name__: layer for layer in (
        networks.conv2d, networks.conv3d, networks.conv2d_transpose, networks.dense_add_bias,
        networks.batch_norm_infer, networks.conv_kernel_layout)},
    ".config": {"ctx_list": enabled_targets},
    ".resnet": _network(networks.resnet, batch_size=1, num_classes=1000, num_layers=18,
                        image_shape=(3, 224, 224), layout="NCHW", dtype="float32"),
    ".mobilenet": {**_network(networks.mobilenet, batch_size=1, num_classes=1000, **_IMAGE, layout="NCHW"),
                   "mobile_net": networks.mobile_net},
    ".vgg": _network(networks.vgg, batch_size=NEEDED, num_classes=1000, **_IMAGE, num_layers=11,
                     batch_norm=False),
    ".mlp": _network(networks.mlp, batch_size=NEEDED, num_classes=10, image_shape=(1, 28, 28),
                     dtype="float32"),
    ".squeezenet": _network(networks.squeezenet, batch_size=1, num_classes=1000, version="1.0", **_IMAGE),
    ".inception_v3": _network(networks.inception_v3, batch_size=1, num_classes=1000,
                              image_shape=(3, 299, 299), dtype="float32"),
    ".densenet": _network(networks.densenet, densenet_size=121, classes=1000, batch_size=4, **_IMAGE),
    ".dcgan": _network(networks.dcgan, batch_size=NEEDED, oshape=(3, 64, 64), ngf=128, random_len=100,
                       layout="NCHW", dtype="float32"),
    ".lstm": {**_network(networks.lstm, iterations=NEEDED, num_hidden=NEEDED, batch_size=1,
                         dtype="float32"),
              "lstm_cell": networks.lstm_cell},
}  # fmt: skip
