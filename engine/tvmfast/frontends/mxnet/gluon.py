"""GluonCV's networks, and an import of GluonCV next to a current torch, which it refuses.

The only file of the frontends that imports mxnet.
"""

import contextlib
import functools
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import re
import sys
import warnings
from pathlib import Path

import numpy as np

from ...core import data, errors
from ...core.compat import pass_lock, without_torch

_SEED = 233
_LEAST_VARIANCE = 0.1
# The layers that predict boxes and their classes, by the names of their outputs.
_HEADS = re.compile(r"(predictor.*|(yolooutput|fasterrcnn|centernet).*(conv|dense)\d+)_fwd_output$")
_SIZES = {
    **{"cifar": 32, "inceptionv3": 299, "fastscnn": 1024},
    **{"ssd_300": 300, "ssd_512": 512, "yolo3": 416, "center_net": 512, "faster_rcnn": 600},
    **dict.fromkeys(("fcn", "psp", "deeplab", "danet", "icnet"), 480),
}


@functools.cache
def why_not() -> str | None:
    """Say why MXNet and GluonCV cannot be used here, and what to do; None if they can.

    They are the extra "mxnet", for Python 3.10 and 3.11 on x86-64.
    """
    if not all(importlib.util.find_spec(name) for name in ("mxnet", "gluoncv")):
        return (
            "MXNet and GluonCV are not installed: pip install 'tvmfast[mxnet]', on Python 3.10 or 3.11 "
            "and x86-64"
        )
    try:
        import mxnet  # noqa: F401  # for speed: it takes seconds, and is an extra
    except Exception as error:  # on ARM Linux, libraries that its wheel lacks; NumPy from 1.24 on
        reason = f"{type(error).__name__}: {errors.lines(error)[-1]}"
        return (
            f"MXNet is installed, but cannot be imported ({reason}): pip uninstall mxnet gluoncv, "
            "and do without it"
        )
    return None


def installed() -> bool:
    """Return whether MXNet and GluonCV can be used here; `why_not` says the rest."""
    return why_not() is None


def shape_of(name: str) -> tuple[int, int, int, int]:
    """Return the input shape, (1, 3, size, size), that a network of GluonCV's zoo was trained for."""
    size = next((size for start, size in _SIZES.items() if name.startswith(start)), 224)
    return (1, 3, size, size)


def network(name: str):
    """Load a network of GluonCV's zoo.

    Args:
        name: The network's name in the zoo.

    Returns:
        A HybridBlock; its `weights_kind` is "pretrained" if the weights are cached or can be fetched, else
        "seeded". Seeded weights are the same each time, and the mean and variance of each batch norm are
        those of a random batch.

    Raises:
        ModuleNotFoundError: MXNet or GluonCV cannot be used here, as `why_not` says.
        ValueError: The zoo has no such network.
    """
    if not installed():
        raise ModuleNotFoundError(why_not())
    with without_torch():
        from gluoncv.model_zoo import get_model, model_store  # for speed: as MXNet, which it imports
    root = Path(os.environ.get("MXNET_HOME") or "~/.mxnet").expanduser() / "models"
    known = name in getattr(model_store, "_model_sha1", {})
    if known and (any(root.glob(f"{name}-*.params")) or data.reachable(model_store.apache_repo_url)):
        net, kind = get_model(name, pretrained=True), "pretrained"
    else:
        with pass_lock, quiet_unfused():
            net, kind = _seeded(get_model, name), "seeded"
    net.weights_kind = kind
    return net


def _seeded(get_model, name: str):
    import mxnet as mx  # for speed: it takes seconds, and is an extra

    class Init(mx.init.Xavier):
        """He's initialization for matrices; of vectors, scales are 1, others 0."""

        def _init_weight(self, description, array):
            if array.ndim > 1:
                return super()._init_weight(description, array)
            array[:] = float(str(description).endswith(("gamma", "var")))

    mx.random.seed(_SEED)
    try:  # detectors and the like load the weights of their backbone, unless told otherwise
        net = get_model(name, pretrained=False, pretrained_base=False)
    except (TypeError, Warning):
        net = get_model(name, pretrained=False)
    net.initialize(Init(rnd_type="gaussian", factor_type="in", magnitude=2))
    _calibrate(net, mx.nd.random.normal(shape=(1, *shape_of(name)[1:])))
    return net


def _calibrate(net, x) -> None:
    """Give each batch norm the moments of its input, and box predictors outputs with a spread of 1.

    Otherwise the outputs of a deep network with random weights are all the same, or infinite. Each batch norm
    also adds 1, which leaves more of its results above 0: if a ReLU zeroes half of them, each layer amplifies
    the difference between two inputs, and after a hundred layers the last digit of a sum decides the result.
    """
    import mxnet as mx  # for speed: it takes seconds, and is an extra

    def run(symbol, training: bool):
        arrays = {name: params[name] for name in symbol.list_arguments() if name != "data"} | {"data": x}
        states = {name: params[name] for name in symbol.list_auxiliary_states()}
        executor = symbol.bind(mx.cpu(), arrays, grad_req="null", aux_states=states)
        return [output.asnumpy() for output in executor.forward(is_train=training)]

    net(x)  # shapes of weights become known
    symbol, params = as_symbol(net)
    graph = json.loads(symbol.tojson())
    norms = [n for n, node in enumerate(graph["nodes"]) if node["op"].endswith("BatchNorm")]
    for number in norms:
        node = graph["nodes"][number]
        node.setdefault("attrs", {})["output_mean_var"] = "True"
        shift = graph["nodes"][node["inputs"][2][0]]["name"]
        params[shift][:] = 1.0
    graph["heads"] = [[number, output, 0] for number in norms for output in (1, 2)]
    moments = iter(run(mx.sym.load_json(json.dumps(graph)), training=True) if norms else [])
    for number in norms:
        node = graph["nodes"][number]
        mean, variance = (graph["nodes"][source]["name"] for source, *_ in node["inputs"][3:5])
        params[mean][:] = next(moments)
        # The second output is 1 / deviation. Maps of a few pixels have hardly any.
        params[variance][:] = np.maximum(next(moments) ** -2.0, _LEAST_VARIANCE)
    inside = symbol.get_internals()
    # The first of each name: some predict on maps of several sizes.
    heads = {name: n for n, name in reversed([*enumerate(inside.list_outputs())]) if _HEADS.search(name)}
    for _ in range(2 if heads else 0):  # the second time for those that read another
        predictions = run(mx.sym.Group([inside[n] for n in heads.values()]), training=False)
        for name, prediction in zip(heads, predictions, strict=True):
            params[name.removesuffix("fwd_output") + "weight"] /= prediction.std() or 1.0
    mx.nd.waitall()


@contextlib.contextmanager
def quiet_unfused():
    """Keep MXNet's library from logging, and from fusing, so that each inner value can be read."""
    stderr, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    backend = os.environ.get("MXNET_SUBGRAPH_BACKEND")
    os.environ["MXNET_SUBGRAPH_BACKEND"] = "NONE"
    try:
        sys.stderr.flush()
        os.dup2(nowhere, 2)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        del os.environ["MXNET_SUBGRAPH_BACKEND"]
        if backend is not None:
            os.environ["MXNET_SUBGRAPH_BACKEND"] = backend
        os.dup2(stderr, 2)
        os.close(stderr)
        os.close(nowhere)


def exported(name: str) -> tuple[Path, Path, str]:
    """Return a network of GluonCV's zoo as two files, which are written once, to the cache.

    The first has the symbol, the second the parameters; the kind of these, "pretrained" or "seeded", follows.
    """
    folder = data.writable_cache() / "mxnet"
    for kind in ("pretrained", "seeded"):
        files = folder / f"{name}-{kind}-symbol.json", folder / f"{name}-{kind}-0000.params"
        if all(file.is_file() for file in files):
            return *files, kind
    net = network(name)
    stem = f"{name}-{net.weights_kind}"
    files = folder / f"{stem}-symbol.json", folder / f"{stem}-0000.params"
    folder.mkdir(exist_ok=True)
    export(net, *files)
    return *files, net.weights_kind


def export(net, symbol_file: Path, params_file: Path) -> None:
    """Write a HybridBlock as `net.export` does, to files of our own names, each whole or not at all."""
    import mxnet as mx  # for speed: it takes seconds, and is an extra

    symbol, params = as_symbol(net)
    states = set(symbol.list_auxiliary_states())
    named = {f"{'aux' if name in states else 'arg'}:{name}": array for name, array in params.items()}
    for file, save in ((params_file, lambda part: mx.nd.save(part, named)), (symbol_file, symbol.save)):
        with data.atomic_path(file) as part:
            save(str(part))


def runner(symbol_file: Path, params_file: Path):
    """Load a network's two files into MXNet, hybridized, with memory planned once.

    The result is a function of the input "data", a NumPy array. It returns an array, or a list of several.
    """
    import mxnet as mx  # for speed: it takes seconds, and is an extra

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Cannot decide type")  # that of "data", which the first call sets
        block = mx.gluon.SymbolBlock.imports(str(symbol_file), ["data"], str(params_file))
    block.hybridize(static_alloc=True, static_shape=True)

    def run(x: np.ndarray):
        outputs = block(mx.nd.array(x))
        arrays = [each.asnumpy() for each in (outputs if isinstance(outputs, list | tuple) else [outputs])]
        return arrays[0] if len(arrays) == 1 else arrays

    return run


def as_symbol(block) -> tuple:
    """Return the symbol of a HybridBlock with one input, "data", and its parameters by name.

    Raises:
        ValueError: The parameters have no values yet, or the block takes more inputs.
    """
    import mxnet as mx  # for speed: it takes seconds, and is an extra

    try:
        data = mx.sym.var("data")
        outputs = block(data.as_np_ndarray() if mx.util.is_np_array() else data)
    except TypeError as error:
        raise ValueError(
            f"symbol: expected a HybridBlock with one input ({error}); give the symbol of this one"
        ) from None
    symbol = mx.sym.Group(list(_flat(outputs))) if isinstance(outputs, list | tuple) else outputs
    wanted = {*symbol.list_arguments(), *symbol.list_auxiliary_states()}
    try:
        return symbol, {name: p.data() for name, p in block.collect_params().items() if name in wanted}
    except (RuntimeError, mx.gluon.parameter.DeferredInitializationError):
        raise ValueError(
            "symbol: the HybridBlock's parameters have no values yet: call its initialize(), and run it on "
            "an array"
        ) from None


def _flat(outputs):
    for each in outputs:
        yield from _flat(each) if isinstance(each, list | tuple) else [each]


class Finder(importlib.abc.MetaPathFinder):
    """A finder for `sys.meta_path` that makes `import gluoncv` run `without_torch`."""

    def find_spec(self, name, path=None, target=None):
        """Return the spec of gluoncv with a loader that hides torch; None for any other module."""
        spec = importlib.machinery.PathFinder.find_spec(name, path, target) if name == "gluoncv" else None
        if spec is not None:
            spec.loader.exec_module = without_torch()(spec.loader.exec_module)
        return spec
