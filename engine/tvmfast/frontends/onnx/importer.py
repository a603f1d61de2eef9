"""`from_onnx`: read and check an ONNX model, make every shape static and hand it to TVM's ONNX frontend.

TVM's frontend takes most networks as they are, but needs a constant for a dim that is computed inside the
graph (padding, resizing, position encodings). So the input shapes become static first, ONNX infers all others
from them, and whatever is then constant is folded here, before TVM sees the model. An If with a constant
condition is inlined, a Loop or Scan with a static trip count unrolled.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import tvm
from google.protobuf.message import DecodeError
from onnx import external_data_helper, inliner
from onnx.helper import make_node, make_tensor_value_info, tensor_dtype_to_np_dtype
from onnx.numpy_helper import from_array
from tvm import relax

from ...core.bounds_check import OutOfRange
from ...core.compat import pass_lock
from ...core.dims import Dim, dims_of, is_name
from ...core.errors import one_line
from ...core.packed_weights import Packed, weights_of, with_packed
from ...core.specs import TensorSpec, parse_inputs, unify_dims
from ..contract import as_model
from ..dynamic.probing import Model, with_dynamic_dims
from . import fused, quantized
from . import graph as passes
from .checks import as_constants, check_dtypes, check_functions, require_known
from .dynamic import compared
from .ops import Failed, Importer


def from_onnx(
    model: str | os.PathLike | bytes | onnx.ModelProto, inputs: Any = None, *, values: Any = None
) -> tuple[tvm.IRModule, dict[str, tvm.runtime.Tensor]]:
    """Import an ONNX model (format: https://onnx.ai/onnx/repo-docs/IR.html).

    Args:
        model: A file, its bytes, or a ModelProto, which is not changed. Weights stored outside the file
            (external data) are found next to it, so such a model must come as a path.
        inputs: The shapes and dtypes of the inputs, in any form that `tvmfast.core.specs.parse_inputs`
            reads. Dtypes, and inputs whose shape is static in the model, may be left out. A name in a shape,
            ("batch", 3, 224, 224), or a `Dim` is a dynamic dim; so is one that has a name in the model and no
            value here. A dim of 0 in the model counts as dynamic and without a name; in `inputs` it means an
            empty tensor.
        values: Inputs that become constants of the network, by name: `{"sr": 16000}`, or arrays. They are
            not inputs of the result. Give an input here that determines shapes, axes, the condition of an If
            or the trip count of a Loop.

    Returns:
        `(mod, params)` as `tvmfast.frontends` describes. The parameters of `mod["main"]` are the graph's
        inputs, then the weights that the network uses, under their ONNX names, whatever characters those hold
        (TVMScript prints "." and "/" as "_"); `params` has the weights in that order. A weight that is only a
        shape or an axis becomes part of the program instead.
        The weights of a MatMulNBits stay in 4 or 8 bits, with their scales under the name with ".scales", if
        core/packed_weights.py can hold them: in float32, blocks of a multiple of 8, whole zero points.

    Raises:
        FileNotFoundError: The file or its external data is missing.
        ValueError: The file is not an ONNX model, onnx.checker refuses it, it contradicts itself or has an
            opset that `onnx` does not know, `inputs` do not fit it, or a tensor exceeds this machine's
            memory.
        NotImplementedError: TVM lacks operators (the message names all), an input determines shapes, axes
            or trip counts, or the model does not support a dynamic dim.
        TypeError: `model`, `inputs` or `values` is of another kind.
        IndexError: The model holds an index out of range. One that is passed in or computed is an IndexError
            of the run.
    """
    proto = _load(model)
    check_dtypes(proto.graph)
    check_functions(proto)
    passes.check_widths(proto.graph)
    _fix_values(proto.graph, values)
    has_dynamic_axes = _has_dynamic_axes_of_older_exporter(proto)
    specs = _settle_inputs(proto.graph, inputs)

    operands = {}  # of comparisons, by the inputs
    packed: dict[str, Packed] = {}  # the weights of few bits, by name

    def import_at(static):
        copy, has_dynamic_dims = proto, bool(dims_of(spec.shape for spec in specs))
        if has_dynamic_dims:
            copy = onnx.ModelProto()
            copy.CopyFrom(proto)
        return _import(copy, static, operands.setdefault(tuple(static), {}), has_dynamic_dims, packed)

    try:
        mod, params = with_dynamic_dims(
            import_at, specs, suspects_of=lambda merged: compared(specs, merged, operands)
        )
        found = weights_of(mod["main"], packed)
        if found:
            mod, params = with_packed(mod, params, {var: packed[var.name] for var in found})
        return mod, {name: _tensor(array) for name, array in params.items()}
    except (NotImplementedError, ValueError) as error:
        is_dynamic = isinstance(error, ValueError) or dims_of(spec.shape for spec in specs)
        if not (is_dynamic and has_dynamic_axes and type(error) in (NotImplementedError, ValueError)):
            raise
        raise type(error)(
            f"{error}. The file comes from torch.onnx.export's older exporter, which may have turned sizes "
            "that the network computes with into those of its example: if so, export it with dynamo=True"
        ) from error


def _tensor(array) -> tvm.runtime.Tensor:
    return tvm.runtime.tensor(array) if isinstance(array, np.ndarray) else array


def _has_dynamic_axes_of_older_exporter(proto: onnx.ModelProto) -> bool:
    """Return whether torch.onnx.export wrote a file with dynamic axes, and without dynamo=True.

    With it, nodes have metadata, or are functions.
    """
    is_newer = proto.functions or any(node.metadata_props for node in proto.graph.node)
    if proto.producer_name != "pytorch" or is_newer:
        return False
    shapes = (value.type.tensor_type.shape.dim for value in proto.graph.input)
    return any(dim.dim_param for shape in shapes for dim in shape)


def _import(
    proto: onnx.ModelProto, specs: list[TensorSpec], operands: dict, has_dynamic_dims: bool, packed: dict
) -> Model:
    """Import a model, which is changed, for inputs of static shapes.

    See `fold_constants` for `operands` and `has_dynamic_dims`, and `quantized.expand` for what `packed` gets.
    """
    for value, spec in zip(proto.graph.input, specs, strict=True):
        value.CopyFrom(make_tensor_value_info(spec.name, value.type.tensor_type.elem_type, spec.shape))
    fused.claim(proto)
    proto = passes.with_output_shapes(proto)
    _check(proto)
    if proto.functions:
        proto = inliner.inline_local_functions(proto)
    quantized.check(proto.graph)
    packed |= quantized.expand(proto)
    fused.expand(proto)
    proto = passes.expand_functions(proto)
    passes.require_operators(proto)
    proto = passes.modernize(proto)
    as_constants(proto.graph)
    proto = passes.fold_constants(proto, operands, has_dynamic_dims)
    require_known(proto.graph)
    passes.check_shapes(proto.graph)
    quantized.check(proto.graph)  # the shapes of all tensors are known now
    passes.check_sizes(proto.graph)
    passes.prepare_for_tvm(proto.graph)
    return _to_relax(proto, specs)


def shapes_with_batch(file: str, batch: int) -> dict[str, tuple[int, ...]] | None:
    """Return shapes, as `from_onnx` takes them, for the inputs of a file whose first dim alone is dynamic.

    It becomes `batch`. None if there is no such input, or no file.
    """
    if not Path(file).is_file():
        return None
    graph = onnx.load(file, load_external_data=False).graph
    weights = {tensor.name for tensor in graph.initializer}
    shapes = {
        each.name: [dim.dim_value for dim in each.type.tensor_type.shape.dim]
        for each in graph.input
        if each.name not in weights
    }
    dynamic = {name: shape[1:] for name, shape in shapes.items() if shape and not shape[0] and all(shape[1:])}
    return {name: (batch, *remaining) for name, remaining in dynamic.items()} or None


def _load(model) -> onnx.ModelProto:
    source, folder = "the model", None
    if isinstance(model, onnx.ModelProto):
        proto = onnx.ModelProto()
        proto.CopyFrom(model)
    elif isinstance(model, bytes):
        proto = _parse(model, source)
    elif isinstance(model, str | os.PathLike):
        path = Path(model)
        if not path.is_file():
            raise FileNotFoundError(f"no ONNX file at {str(path)!r}; expected the path of a .onnx file")
        source, folder = repr(str(path)), path.parent
        proto = _parse(path.read_bytes(), source)
    else:
        raise TypeError(f"model: expected a path, bytes or an onnx.ModelProto, got {type(model).__name__}")
    _load_external_data(proto, source, folder)
    weights = {tensor.name for tensor in proto.graph.initializer}
    # Up to IR version 3 the weights were inputs too; from 4 on they need not be.
    passes.replace(proto.graph.input, [value for value in proto.graph.input if value.name not in weights])
    proto.ir_version = 4 if proto.ir_version == 3 else proto.ir_version
    return proto


def _parse(data: bytes, source: str) -> onnx.ModelProto:
    head = data[:512].lstrip().lower()
    if not data:
        cause = "it is empty"
    elif head.startswith(b"version https://git-lfs"):
        cause = "it is a Git LFS pointer, not the file itself: "
        cause += "run `git lfs pull`, or download the file by its raw link"
    elif head.startswith(b"<"):
        cause = "it is an HTML or XML page: the download fetched a web page in place of the file"
    elif head.startswith((b"pk\x03\x04", b"\x1f\x8b")):
        cause = "it is an archive: unpack it (a .pt or .pth file of PyTorch is one too: see from_pytorch)"
    else:
        proto = onnx.ModelProto()
        try:
            proto.ParseFromString(data)
        except (DecodeError, RuntimeError):
            cause = "it is cut short or damaged, or another kind of file"
        else:
            if proto.graph.output:
                return proto
            cause = "it is cut short or another kind of file: it holds no graph with outputs"
    raise ValueError(f"expected an ONNX model, but {source} ({len(data):,} bytes) is none: {cause}")


def _load_external_data(proto: onnx.ModelProto, source: str, folder: Path | None) -> None:
    tensors = [t for t in proto.graph.initializer if external_data_helper.uses_external_data(t)]
    locations = sorted({external_data_helper.ExternalDataInfo(tensor).location for tensor in tensors})
    if not locations:
        return
    if folder is None:
        raise ValueError(
            f"{source} keeps weights in other files ({', '.join(locations)}): pass its path, not its content"
        )
    if missing := [location for location in locations if not (folder / location).is_file()]:
        raise FileNotFoundError(
            f"{source} keeps weights in other files, and {', '.join(missing)} is missing in {str(folder)!r}; "
            "put the missing files there"
        )
    try:
        external_data_helper.load_external_data_for_model(proto, str(folder))
    except (onnx.checker.ValidationError, ValueError, OSError) as error:
        raise ValueError(
            f"the external data of {source} ({', '.join(locations)}) cannot be read: {one_line(error)}"
        ) from error


def _check(proto: onnx.ModelProto) -> None:
    try:
        onnx.checker.check_model(proto)
    except onnx.checker.ValidationError as error:
        raise ValueError(f"onnx.checker refuses this model: {one_line(error)}") from error
    if proto.ir_version < 3:
        raise NotImplementedError(
            f"the model is of IR version {proto.ir_version}, and TVM reads 3 and later; export it again"
        )
    newest = onnx.defs.onnx_opset_version()
    if (opset := passes.opset_of(proto, newest)) > newest:
        raise ValueError(
            f"the model is of opset {opset}, and onnx {onnx.__version__} knows opsets up to {newest}; export "
            "it again with one of these"
        )


def _fix_values(graph: onnx.GraphProto, values: Any) -> None:
    if not isinstance(values, Mapping | None):
        raise TypeError(
            f"values: expected a dictionary from input name to array, got {type(values).__name__}"
        )
    declared = {value.name: value for value in graph.input}
    for name, value in (values or {}).items():
        if name not in declared:
            raise ValueError(f"values: the model has no input {name!r}; its inputs are {', '.join(declared)}")
        dims, dtype = _declared(declared[name])
        array = np.asarray(value)
        if not isinstance(value, np.ndarray | np.generic):
            cast = array.astype(dtype)
            array = cast if cast.dtype.kind == "f" or np.array_equal(cast, array) else array
        shape = array.shape
        if dims is not None and len(dims) == 1 and not shape:  # a number for a tensor of one
            shape = (1,)
        fits = dims is None or len(dims) == len(shape)
        fits = fits and all(isinstance(n, str) or n == m for n, m in zip(dims or shape, shape, strict=True))
        if array.dtype.name != dtype or not fits:
            raise ValueError(
                f"values: the model takes {name} as {_described(dims, dtype)}; got {array.dtype.name} of "
                f"shape {array.shape}"
            )
        tensor = from_array(np.ascontiguousarray(array).reshape(shape), name)
        graph.node.insert(0, make_node("Constant", [], [name], value=tensor))
    passes.replace(graph.input, [value for value in graph.input if value.name not in (values or {})])


def _settle_inputs(graph: onnx.GraphProto, inputs: Any) -> list[TensorSpec]:
    """Match `inputs` with the graph's inputs and return all inputs."""
    declared = {value.name: _declared(value) for value in graph.input}
    dtypes = {name: dtype for name, (_, dtype) in declared.items()}
    requested = [] if inputs is None else parse_inputs(inputs, list(declared), dtypes, 0, dynamic_dims=True)
    wanted = {spec.name: spec for spec in requested}
    if unknown := [name for name in wanted if name not in declared]:
        raise ValueError(
            f"the model has no input {', '.join(map(repr, unknown))}; its inputs are {_listed(declared)}"
        )

    symbols = {}
    for name, spec in wanted.items():
        _match(spec, *declared[name], symbols)
    specs, unsettled = [], {}
    for name, (dims, dtype) in declared.items():
        known = ["?"] if dims is None else dims
        shape = wanted[name].shape if name in wanted else tuple(symbols.get(dim, (dim,))[0] for dim in known)
        shape = tuple(Dim(n) if is_name(n) else n for n in shape)
        if not any(isinstance(n, str) for n in shape):
            specs.append(TensorSpec(name, shape, dtype))
        else:
            unsettled[name] = tuple(1 if isinstance(n, str) else getattr(n, "name", n) for n in shape)
    if unsettled:
        raise ValueError(
            "a dynamic dim needs a name, a Python identifier, and these inputs have others: "
            f"{_listed(declared, unsettled)}; pass inputs={unsettled}, or whichever dims you need"
        )
    return unify_dims(specs)


def _match(spec: TensorSpec, dims: list | None, dtype: str, symbols: dict[str, tuple]) -> None:
    """Compare an input with its declaration; `symbols` maps each to its value and the input that set it."""
    if spec.dtype != dtype:
        raise ValueError(
            f"input {spec.name!r}: the model takes {dtype}, got {spec.dtype}; convert it to {dtype}"
        )
    if dims is None:
        return
    pairs = list(zip(dims, spec.shape, strict=False))
    if len(dims) != len(spec.shape) or any(isinstance(dim, int) and dim != n for dim, n in pairs):
        shape = tuple(getattr(n, "name", n) for n in spec.shape)
        raise ValueError(
            f"input {spec.name!r}: the model takes {_described(dims, dtype)}, got shape {shape}; "
            "the dims given there as numbers are static (export with dynamic axes for dynamic ones)"
        )
    for dim, n in pairs:
        if not isinstance(dim, str) or dim == "?":
            continue
        value, owner = symbols.setdefault(dim, (n, spec.name))
        if value != n:
            raise ValueError(
                f"input {spec.name!r}: {dim} is {n} here, but {value} in input {owner!r}; they must agree"
            )


def _declared(value: onnx.ValueInfoProto) -> tuple[list[int | str] | None, str]:
    """Return an input's declared dims (numbers, symbols or "?"; None: any rank) and its dtype."""
    tensor = value.type.tensor_type
    if value.type.WhichOneof("value") != "tensor_type" or tensor.elem_type in (0, onnx.TensorProto.STRING):
        raise NotImplementedError(f"input {value.name!r} is no tensor of numbers; TVM takes only those")
    dims = None
    if tensor.HasField("shape"):
        dims = [dim.dim_value if dim.dim_value > 0 else dim.dim_param or "?" for dim in tensor.shape.dim]
    return dims, tensor_dtype_to_np_dtype(tensor.elem_type).name


def _described(dims: list[int | str] | None, dtype: str) -> str:
    return f"{dtype} of any rank" if dims is None else f"{dtype}[{', '.join(map(str, dims))}]"


def _listed(declared: dict[str, tuple], names: Any = None) -> str:
    return ", ".join(f"{name}: {_described(*declared[name])}" for name in names or declared) or "none"


def _to_relax(proto: onnx.ModelProto, specs: list[TensorSpec]) -> Model:
    opset = passes.opset_of(proto, 1)
    shapes = {spec.name: spec.shape for spec in specs}
    dtypes = {spec.name: spec.dtype for spec in specs}
    try:
        with pass_lock:
            importer = Importer(shapes, dtypes, keep_params_in_input=True, sanitize=False)
            mod = importer.from_onnx(proto.graph, opset)
    except (Failed, Exception) as error:
        failed = isinstance(error, Failed)
        where, cause = (f"operator {error}", error.__cause__) if failed else ("this model", error)
        if isinstance(cause, OutOfRange):
            raise cause from None
        branches = any(node.op_type == "If" for node in proto.graph.node)
        way_out = "; if an input decides which branch an If takes, give it in `values`" if branches else ""
        raise NotImplementedError(
            f"TVM {tvm.__version__} cannot import {where}: {one_line(cause)}{way_out}"
        ) from cause
    main = mod["main"] = _SafeTake().visit_expr(mod["main"])
    names = (var.name for var in main.params[len(specs) :])
    arrays = dict(zip(names, main.attrs.get("params", []), strict=True))
    return as_model(mod, (spec.name for spec in specs), arrays, importer.values)


@relax.expr_functor.mutator
class _SafeTake(relax.PyExprMutator):
    """Make `take` clip: TVM 0.27 warns of its frontend's mode, which trusts even checked indices."""

    def visit_call_(self, call):
        call = self.visit_expr_post_order(call)
        if call.op == tvm.ir.Op.get("relax.take") and call.attrs.mode == "fast":
            return relax.op.take(*call.args, axis=call.attrs.axis, mode="clip")
        return call
