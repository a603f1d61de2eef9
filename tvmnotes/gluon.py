"""GluonCV's networks, and GluonCV beside torch: it refuses to be imported where it can import a torch of today.

The only file that imports mxnet.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import os
from pathlib import Path

from . import data
from .env import without_torch

_SEED = 233
_SIZES = {"cifar": 32, "inceptionv3": 299, "ssd_300": 300, "ssd_512": 512, "yolo3": 416, "center_net": 512,
          "faster_rcnn": 600, "fcn": 480, "psp": 480, "deeplab": 480, "danet": 480, "icnet": 480}  # fmt: skip


def installed() -> bool:
    """Whether MXNet and GluonCV are: the extra "mxnet", for Python 3.10 and 3.11."""
    return all(importlib.util.find_spec(name) for name in ("mxnet", "gluoncv"))


def shape_of(name: str) -> tuple[int, int, int, int]:
    """The input of a network of GluonCV's zoo, as it was trained: (1, 3, size, size)."""
    size = next((size for start, size in _SIZES.items() if name.startswith(start)), 224)
    return (1, 3, size, size)


def network(name: str):
    """A network of GluonCV's zoo as a HybridBlock; its `weights_kind` is "pretrained" or "seeded".

    Pretrained weights are taken where they are cached or can be fetched. Seeded ones are the same each time, and each
    batch norm's mean and variance are those of a random batch. Raises ModuleNotFoundError without MXNet and GluonCV,
    and ValueError for a name that the zoo lacks.
    """
    if not installed():
        raise ModuleNotFoundError(
            "MXNet and GluonCV are not installed: pip install 'tvmnotes[mxnet]', on Python 3.10 or 3.11"
        )
    with without_torch():
        from gluoncv.model_zoo import get_model, model_store
    root = Path(os.environ.get("MXNET_HOME") or "~/.mxnet").expanduser() / "models"
    known = name in getattr(model_store, "_model_sha1", {})
    if known and (any(root.glob(f"{name}-*.params")) or data.reachable(model_store.apache_repo_url)):
        net, kind = get_model(name, pretrained=True), "pretrained"
    else:
        net, kind = _seeded(get_model, name), "seeded"
    net.weights_kind = kind
    return net


def _seeded(get_model, name: str):
    import mxnet as mx

    class Init(mx.init.Xavier):
        """He's initialization for matrices, less for what predicts boxes; of vectors, scales are 1, others 0."""

        def _init_weight(self, description, array):
            if "predictor" in str(description):  # whose exponents are sizes of boxes
                return mx.init.Normal(0.01)._init_weight(description, array)
            if array.ndim > 1:
                return super()._init_weight(description, array)
            array[:] = float(str(description).endswith(("gamma", "var")))

    mx.random.seed(_SEED)
    try:  # detectors and the like load the weights of what they stand on, unless told otherwise
        net = get_model(name, pretrained=False, pretrained_base=False)
    except TypeError:
        net = get_model(name, pretrained=False)
    net.initialize(Init(rnd_type="gaussian", factor_type="in", magnitude=2))
    calibrate(net, mx.nd.random.normal(shape=(2, *shape_of(name)[1:])))
    return net


def calibrate(net, batch) -> None:
    """Give each batch norm the mean and the variance of its input for a batch."""
    import mxnet as mx

    norms = []
    net.apply(lambda block: norms.append(block) if isinstance(block, mx.gluon.nn.BatchNorm) else None)
    momentum = [norm._kwargs["momentum"] for norm in norms]
    for norm in norms:
        norm._kwargs["momentum"] = 0.0
    with mx.autograd.train_mode():
        net(batch)
    mx.nd.waitall()
    for norm, usual in zip(norms, momentum, strict=True):
        norm._kwargs["momentum"] = usual


def exported(name: str) -> tuple[Path, Path, str]:
    """A network of GluonCV's zoo as files: the symbol's, the parameters', and the kind of its weights.

    They are written once, to the cache.
    """
    folder = data.writable_cache() / "mxnet"
    for kind in ("pretrained", "seeded"):
        files = folder / f"{name}-{kind}-symbol.json", folder / f"{name}-{kind}-0000.params"
        if all(file.is_file() for file in files):
            return *files, kind
    net = network(name)
    files = folder / f"{name}-{net.weights_kind}-symbol.json", folder / f"{name}-{net.weights_kind}-0000.params"
    folder.mkdir(exist_ok=True)
    export(net, *files)
    return *files, net.weights_kind


def export(net, symbol_file: Path, params_file: Path) -> None:
    """Write a HybridBlock as `net.export` does, under names of our own, each file whole or not at all."""
    import mxnet as mx

    symbol, params = as_symbol(net)
    states = set(symbol.list_auxiliary_states())
    named = {f"{'aux' if name in states else 'arg'}:{name}": array for name, array in params.items()}
    for file, save in ((params_file, lambda part: mx.nd.save(part, named)), (symbol_file, symbol.save)):
        part = file.with_name(f".{file.name}-{os.getpid()}")
        try:
            save(str(part))
            part.replace(file)
        finally:
            part.unlink(missing_ok=True)


def as_symbol(block) -> tuple:
    """The symbol of a HybridBlock with one input, "data", and its parameters by name.

    Raises ValueError where the parameters have no values yet, or where the block wants more inputs.
    """
    import mxnet as mx

    try:
        made = block(mx.sym.var("data"))
    except TypeError as error:
        raise ValueError(
            f"symbol: expected a HybridBlock with one input ({error}); give the symbol of this one"
        ) from None
    symbol = mx.sym.Group(list(_flat(made))) if isinstance(made, list | tuple) else made
    wanted = {*symbol.list_arguments(), *symbol.list_auxiliary_states()}
    try:
        return symbol, {name: p.data() for name, p in block.collect_params().items() if name in wanted}
    except (RuntimeError, mx.gluon.parameter.DeferredInitializationError):
        raise ValueError(
            "symbol: the HybridBlock's parameters have no values yet: call its initialize(), and run it on an array"
        ) from None


def _flat(made):
    for each in made:
        yield from _flat(each) if isinstance(each, list | tuple) else [each]


class Finder(importlib.abc.MetaPathFinder):
    """On `sys.meta_path`, has `import gluoncv` run `without_torch`."""

    def find_spec(self, name, path=None, target=None):
        spec = importlib.machinery.PathFinder.find_spec(name, path, target) if name == "gluoncv" else None
        if spec is not None:
            spec.loader = _Loader(spec.loader)
        return spec


class _Loader(importlib.abc.Loader):
    def __init__(self, loader):
        self._loader = loader

    def create_module(self, spec):
        return self._loader.create_module(spec)

    def exec_module(self, module) -> None:
        with without_torch():
            self._loader.exec_module(module)
