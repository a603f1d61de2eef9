"""`relay.frontend`: tvmfast's frontends under their old names, and errors for the removed ones."""

from tvmfast.core.specs import TensorSpec
from tvmfast.frontends.mxnet import importer

from .. import removed
from ..context import without_instruments
from .ir import IRModule
from .lift import from_relax


@without_instruments()
def from_pytorch(script_module, input_infos, custom_convert_map=None, default_dtype="float32", **_options):
    """Import a traced, scripted or untraced PyTorch module; return a Relay module and its params by name.

    `input_infos` lists (name, shape) or (name, (shape, dtype)) of each input.
    """
    from tvmfast.frontends.pytorch import importer as pytorch  # for speed: it takes seconds

    specs = {name: _spec(name, info, default_dtype) for name, info in input_infos}
    return _both(pytorch.from_pytorch(script_module, specs))


def _spec(name, info, dtype):
    if len(info) == 2 and isinstance(info[1], str):
        info, dtype = info
    return TensorSpec(name, tuple(int(n) for n in info), dtype)


@without_instruments()
def from_onnx(model, shape=None, dtype="float32", opset=None, freeze_params=False, **_options):
    """Import an ONNX model or file; return a Relay module and its params by name.

    `shape` maps input names to shapes.
    """
    from tvmfast.frontends.onnx import importer as onnx  # for speed: few scripts need it

    return _both(onnx.from_onnx(model, {k: tuple(v) for k, v in shape.items()} if shape else None))


@without_instruments()
def from_mxnet(symbol, shape=None, dtype="float32", arg_params=None, aux_params=None):
    """Import an MXNet symbol with its parameters, or a Gluon HybridBlock, which has its own.

    `shape` maps input names to shapes, `dtype` is one dtype or a dictionary by input name. Returns a Relay
    module and its params by name.
    """
    dtypes = dtype if isinstance(dtype, dict) else dict.fromkeys(shape or {}, dtype)
    shapes = {name: (tuple(sizes), dtypes.get(name, "float32")) for name, sizes in (shape or {}).items()}
    params = {**(arg_params or {}), **(aux_params or {})} or None
    return _both(importer.from_mxnet(symbol, params, shapes or None))


def _both(imported: tuple) -> tuple[IRModule, dict]:
    mod, params = imported
    if sizes := (mod["main"].attrs or {}).get("tvmfast.sizes"):
        raise ValueError(
            f"a Relay module has static shapes, and these dims are dynamic: {', '.join(map(str, sizes))}; "
            'give `shape` with numbers, such as {"data": (1, 3, 224, 224)}'
        )
    return from_relax(mod), params


def _gone(path: str, instead: str):
    def frontend(*_args, **_kwargs):
        raise NotImplementedError(f"{path}: TVM dropped this frontend with Relay; today, {instead}")

    return frontend


NAMES = {"from_pytorch": from_pytorch, "from_onnx": from_onnx, "from_mxnet": from_mxnet}
for _path, (_, _way) in removed.ROWS["gone"].items():
    if _path.startswith("relay.frontend."):
        NAMES[_path.rpartition(".")[2]] = _gone(_path, _way)
