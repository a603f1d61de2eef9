"""ONNX models into Relax: `from_onnx` reads a file, checks it, fixes every shape and hands it to TVM's ONNX frontend.

TVM's frontend takes most networks as they come, but where a size is computed inside the graph (padding, resizing,
position encodings) it wants a constant. So the input shapes are settled first, ONNX infers all others from them, and
what can be computed then is computed here, before TVM sees the model.
"""

import contextlib
import io
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import tvm
from google.protobuf.message import DecodeError
from onnx import external_data_helper, inliner, numpy_helper, shape_inference, version_converter
from onnx.helper import make_attribute, make_node, make_tensor_value_info, tensor_dtype_to_np_dtype
from onnx.reference import ReferenceEvaluator
from tvm import relax
from tvm.relax.frontend.onnx import from_onnx as tvm_from_onnx
from tvm.relax.frontend.onnx import onnx_frontend

from ..spec import TensorSpec, parse_inputs

# Results with more elements than this are left for the compiler to fold: a model must not grow by being read.
FOLD_LIMIT = 1 << 16

# Operators that ONNX Runtime defines (domain com.microsoft) and TVM's frontend reads; there and nowhere else.
_MICROSOFT = {
    "AllClassNMS",
    "Attention",
    "BiasGelu",
    "EmbedLayerNormalization",
    "FastGelu",
    "MatMulInteger16",
    "SkipLayerNormalization",
}


def from_onnx(model: str | os.PathLike | bytes | onnx.ModelProto, inputs: Any = None):
    """Import an ONNX model: `(IRModule, params)`, as `tvmnotes.importers` describes.

    `model` is a file, its bytes, or a ModelProto, which stays as it is; weights stored outside the file (external data)
    are found beside it, so such a model comes as a path. `inputs` says what the model's inputs look like, in any form
    that `tvmnotes.spec.parse_inputs` reads; it may leave out inputs whose shape the model fixes itself, and dtypes.

    The parameters of `mod["main"]` are the graph's inputs, then the weights that the network still uses, all under
    their ONNX names; `params` maps weight names to tensors in that order. An integer weight that only says a
    shape or an axis becomes part of the program and is no parameter.

    Raises FileNotFoundError for a missing file or missing external data, ValueError for a file that is no ONNX model,
    a model that onnx.checker refuses and inputs that do not fit the model, NotImplementedError for what TVM has no
    counterpart of, and TypeError for a `model` or `inputs` of another kind. Format: https://onnx.ai/onnx/repo-docs/IR.html
    """
    proto = _load(model)
    specs = _settle_inputs(proto.graph, inputs)
    _check(proto)
    if proto.functions:
        proto = inliner.inline_local_functions(proto)
    _require_operators(proto)
    proto = _fold_constants(_modernize(proto))
    _prepare_for_tvm(proto.graph)
    return _to_relax(proto, specs)


# Reading


def _load(model) -> onnx.ModelProto:
    if isinstance(model, onnx.ModelProto):
        proto, source, folder = onnx.ModelProto(), "the model", None
        proto.CopyFrom(model)
    elif isinstance(model, bytes):
        proto, source, folder = _parse(model, "the bytes"), "the model", None
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
    inputs = [value for value in proto.graph.input if value.name not in weights]
    _replace(proto.graph.input, inputs)
    proto.ir_version = 4 if proto.ir_version == 3 else proto.ir_version
    return proto


def _parse(data: bytes, source: str) -> onnx.ModelProto:
    head = data[:512].lstrip().lower()
    if not data:
        found = "it is empty"
    elif head.startswith(b"version https://git-lfs"):
        found = "it is a Git LFS pointer, not the file itself: run `git lfs pull`, or download the file by its raw link"
    elif head.startswith(b"<"):
        found = "it is an HTML or XML page: the download fetched a web page in place of the file"
    elif head.startswith((b"pk\x03\x04", b"\x1f\x8b")):
        found = "it is an archive: unpack it (a .pt or .pth file of PyTorch is one too: see from_pytorch)"
    else:
        proto = onnx.ModelProto()
        try:
            proto.ParseFromString(data)
        except (DecodeError, RuntimeError):
            found = "it is cut short or damaged, or another kind of file"
        else:
            if proto.graph.output:
                return proto
            found = "it is cut short or another kind of file: it holds no graph with outputs"
    raise ValueError(f"expected an ONNX model, but {source} ({len(data):,} bytes) is none: {found}")


def _load_external_data(proto: onnx.ModelProto, source: str, folder: Path | None) -> None:
    tensors = [t for t in proto.graph.initializer if external_data_helper.uses_external_data(t)]
    places = sorted({external_data_helper.ExternalDataInfo(tensor).location for tensor in tensors})
    if not places:
        return
    if folder is None:
        raise ValueError(f"{source} keeps weights in other files ({', '.join(places)}): pass its path, not its content")
    missing = [place for place in places if not (folder / place).is_file()]
    if missing:
        raise FileNotFoundError(
            f"{source} keeps weights in other files, and {', '.join(missing)} is missing in {str(folder)!r}; "
            "put it beside the model"
        )
    try:
        external_data_helper.load_external_data_for_model(proto, str(folder))
    except (onnx.checker.ValidationError, ValueError, OSError) as error:
        raise ValueError(
            f"the external data of {source} ({', '.join(places)}) cannot be read: {_one_line(error)}"
        ) from error


def _check(proto: onnx.ModelProto) -> None:
    try:
        onnx.checker.check_model(proto)
    except onnx.checker.ValidationError as error:
        raise ValueError(f"onnx.checker refuses this model: {_one_line(error)}") from error


# Inputs


def _settle_inputs(graph: onnx.GraphProto, inputs: Any) -> list[TensorSpec]:
    """Match the wishes in `inputs` with the graph's inputs, write the sizes into the graph and return them in order."""
    declared = {value.name: _declared(value) for value in graph.input}
    given = {}
    if inputs is not None:
        given = {spec.name: spec for spec in parse_inputs(_with_dtypes(inputs, declared), list(declared))}
    unknown = [name for name in given if name not in declared]
    if unknown:
        raise ValueError(f"the model has no input {', '.join(map(repr, unknown))}; its inputs are {_listed(declared)}")

    sizes = {}
    for name, spec in given.items():
        _match(spec, *declared[name], sizes)
    specs, unsettled = [], {}
    for name, (dims, dtype) in declared.items():
        known = ["?"] if dims is None else dims
        shape = given[name].shape if name in given else tuple(sizes.get(dim, (dim,))[0] for dim in known)
        if all(isinstance(n, int) for n in shape):
            specs.append(TensorSpec(name, shape, dtype))
        else:
            unsettled[name] = tuple(1 if isinstance(n, str) else n for n in shape)
    if unsettled:
        raise ValueError(
            f"TVM compiles for fixed sizes, and these inputs leave some open: {_listed(declared, unsettled)}; "
            f"pass inputs={unsettled}, or whichever sizes you need"
        )
    for value, spec in zip(graph.input, specs, strict=True):
        value.CopyFrom(make_tensor_value_info(spec.name, value.type.tensor_type.elem_type, spec.shape))
    return specs


def _match(spec: TensorSpec, dims: list[int | str] | None, dtype: str, sizes: dict[str, tuple[int, str]]) -> None:
    """Hold one input against its declaration; `sizes` collects what each symbol stands for, and who said so."""
    if spec.dtype != dtype:
        raise ValueError(f"input {spec.name!r}: the model takes {dtype}, got {spec.dtype}; convert it to {dtype}")
    if dims is None:
        return
    pairs = list(zip(dims, spec.shape, strict=False))
    if len(dims) != len(spec.shape) or any(isinstance(dim, int) and dim != n for dim, n in pairs):
        raise ValueError(
            f"input {spec.name!r}: the model takes {_described(dims, dtype)}, got shape {spec.shape}; "
            "the sizes given there as numbers are fixed (export with dynamic axes to leave them open)"
        )
    for dim, n in pairs:
        size, owner = sizes.setdefault(dim, (n, spec.name)) if isinstance(dim, str) and dim != "?" else (n, "")
        if size != n:
            raise ValueError(f"input {spec.name!r}: {dim} is {n} here, but {size} in input {owner!r}; they must agree")


def _declared(value: onnx.ValueInfoProto) -> tuple[list[int | str] | None, str]:
    """What the model says of an input: sizes, symbols and "?" for each dimension (None: any rank), and the dtype."""
    tensor = value.type.tensor_type
    if value.type.WhichOneof("value") != "tensor_type" or tensor.elem_type in (0, onnx.TensorProto.STRING):
        raise NotImplementedError(f"input {value.name!r} is no tensor of numbers; TVM takes only those")
    dims = None
    if tensor.HasField("shape"):
        dims = [dim.dim_value if dim.dim_value > 0 else dim.dim_param or "?" for dim in tensor.shape.dim]
    return dims, tensor_dtype_to_np_dtype(tensor.elem_type).name


def _with_dtypes(inputs: Any, declared: dict[str, tuple]) -> Any:
    """Give every plain shape in `inputs` the dtype that the model declares; the rest stays as it came."""

    def complete(name, value):
        plain = isinstance(value, list | tuple) and all(isinstance(n, int | np.integer) for n in value)
        return (tuple(value), declared[name][1]) if plain and name in declared else value

    if hasattr(inputs, "items"):
        return {name: complete(name, value) for name, value in inputs.items()}
    if isinstance(inputs, list) and all(isinstance(entry, list | tuple) and len(entry) == 2 for entry in inputs):
        return [(name, complete(name, value)) for name, value in inputs]
    return inputs


def _described(dims: list[int | str] | None, dtype: str) -> str:
    return f"{dtype} of any rank" if dims is None else f"{dtype}[{', '.join(map(str, dims))}]"


def _listed(declared: dict[str, tuple], names: Any = None) -> str:
    return ", ".join(f"{name}: {_described(*declared[name])}" for name in names or declared) or "none"


# Operators


def _modernize(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Rewrite a model of an opset before 11, whose Slice, Upsample, Resize and broadcasts TVM's frontend misreads."""
    opset = next((entry.version for entry in proto.opset_import if entry.domain in ("", "ai.onnx")), 11)
    if opset >= 11:
        return proto
    try:
        proto = version_converter.convert_version(proto, 11)
    except RuntimeError as error:
        raise NotImplementedError(
            f"the model is of opset {opset}, TVM reads 11 and later, and onnx.version_converter fails on it "
            f"({_one_line(error)}); export it again with a newer opset"
        ) from error
    for node in _all_nodes(proto.graph):
        if node.op_type == "Resize":  # Upsample was, and Resize until 10, what 11 calls so; the converter leaves it out
            old = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
            node.attribute.extend(make_attribute(name, value) for name, value in old.items())
    return proto


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _require_operators(proto: onnx.ModelProto) -> None:
    """Raise NotImplementedError with every operator that TVM's frontend lacks; TVM itself looks at names alone."""
    opsets = {entry.domain or "ai.onnx": entry.version for entry in proto.opset_import}
    known = set(onnx_frontend._get_convert_map()) | {"If"}
    missing = set()
    for node in _all_nodes(proto.graph):
        domain = node.domain or "ai.onnx"
        here = {"ai.onnx": known - _MICROSOFT, "com.microsoft": _MICROSOFT}.get(domain, set())
        if node.op_type not in here:
            missing.add(f"{node.op_type} ({domain}, opset {opsets[domain]})")
    if missing:
        raise NotImplementedError(
            f"TVM {tvm.__version__} has no counterpart of {len(missing)} operator(s) of this model: "
            f"{', '.join(sorted(missing))}; export the model without them, or cut the graph before them"
        )


def _all_nodes(graph: onnx.GraphProto):
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for inner in [attribute.g, *attribute.graphs]:
                yield from _all_nodes(inner)


# Shapes and constants


def _fold_constants(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Infer all shapes and compute what depends on shapes and constants alone, until nothing of the kind is left.

    Inference copies the model each time, so large weights stand aside meanwhile, replaced by inputs of their shape.
    """
    weights, count = list(proto.graph.initializer), len(proto.graph.input)
    outputs = [onnx.ValueInfoProto.FromString(value.SerializeToString()) for value in proto.graph.output]
    light = [tensor for tensor in weights if _is_small(tensor.dims)]
    heavy = [make_tensor_value_info(t.name, t.data_type, t.dims) for t in weights if not _is_small(t.dims)]
    _replace(proto.graph.initializer, light)
    proto.graph.input.extend(heavy)
    del proto.graph.value_info[:]  # shapes that the exporter noted may be those of its example
    for value in proto.graph.output:
        value.type.tensor_type.ClearField("shape")

    folded = True
    while folded:
        try:
            proto = shape_inference.infer_shapes(proto, strict_mode=True, data_prop=True)
        except shape_inference.InferenceError as error:
            raise ValueError(f"the model does not work with inputs of these shapes: {_one_line(error)}") from error
        folded = _fold_once(proto)

    _replace(proto.graph.initializer, weights)
    del proto.graph.input[count:]
    for value, before in zip(proto.graph.output, outputs, strict=True):
        if not value.type.tensor_type.HasField("shape"):  # the data decide it
            value.CopyFrom(before)
    return proto


def _fold_once(proto: onnx.ModelProto) -> bool:
    """Replace nodes with constant inputs by Constant nodes, in place; returns whether there were any.

    Floating-point initializers are weights and count as unknown, so that they stay parameters under their names.
    """
    graph = proto.graph
    shapes = _static_shapes([*graph.input, *graph.value_info, *graph.output])
    opsets = {entry.domain: entry.version for entry in proto.opset_import}
    values = {
        tensor.name: numpy_helper.to_array(tensor)
        for tensor in graph.initializer
        if _is_small(tensor.dims) and tensor_dtype_to_np_dtype(tensor.data_type).kind in "iub"
    }
    nodes, folded = [], False
    for node in graph.node:
        results = _evaluate(node, values, shapes, opsets)
        if results is None:
            nodes.append(node)
            continue
        values.update(results)
        folded |= node.op_type != "Constant"
        for name, value in results.items():
            nodes.append(make_node("Constant", [], [name], value=numpy_helper.from_array(value, name)))
    _replace(graph.node, nodes)
    return folded


def _evaluate(node: onnx.NodeProto, values: dict, shapes: dict, opsets: dict) -> dict[str, np.ndarray] | None:
    """The outputs of a node, by name, where constants and shapes decide them and they are small; None otherwise."""
    outputs = [name for name in node.output if name]
    if node.domain not in ("", "ai.onnx") or not all(name in shapes and _is_small(shapes[name]) for name in outputs):
        return None
    if node.op_type == "Shape" and node.input[0] in shapes:
        ends = {attribute.name: attribute.i for attribute in node.attribute}
        return {outputs[0]: np.array(shapes[node.input[0]][ends.get("start", 0) : ends.get("end")], "int64")}
    if not all(name in values for name in node.input if name):
        return None
    if any(attribute.type in (attribute.GRAPH, attribute.GRAPHS) for attribute in node.attribute):
        return None
    try:
        results = ReferenceEvaluator(node, opsets=opsets).run(None, {name: values[name] for name in node.input if name})
    except Exception:  # it knows no quantized types and not every old operator version: TVM may, so the node stays
        return None
    results = {name: np.asarray(value) for name, value in zip(node.output, results, strict=False) if name}
    return results if all(value.dtype.kind in "biuf" for value in results.values()) else None


def _is_small(shape) -> bool:
    return math.prod(shape) <= FOLD_LIMIT


def _replace(field, messages: list) -> None:
    """Fill a repeated protobuf field, which knows no assignment."""
    del field[:]
    field.extend(messages)


def _static_shapes(values) -> dict[str, tuple[int, ...]]:
    shapes = {}
    for value in values:
        tensor = value.type.tensor_type
        if tensor.HasField("shape") and all(dim.HasField("dim_value") for dim in tensor.shape.dim):
            shapes[value.name] = tuple(dim.dim_value for dim in tensor.shape.dim)
    return shapes


# Into Relax


def _prepare_for_tvm(graph: onnx.GraphProto) -> None:
    """Work around two habits of TVM's frontend, in place.

    It takes an empty `scales` of Resize, which ONNX allows beside `sizes`, for a given one: its name is cleared. And it
    cuts "onnx::" off the names of weights, so that "onnx::w" and "w" become one: such a name gets the prefix twice.
    """
    constants = [node.attribute[0].t for node in graph.node if node.op_type == "Constant" and node.attribute[0].t.dims]
    empty = {tensor.name for tensor in [*graph.initializer, *constants] if 0 in tensor.dims}
    renamed = {t.name: f"onnx::{t.name}" for t in graph.initializer if t.name.startswith("onnx::")}
    for tensor in graph.initializer:
        tensor.name = renamed.get(tensor.name, tensor.name)
    for node in _all_nodes(graph):
        for i, name in enumerate(node.input):
            node.input[i] = "" if node.op_type == "Resize" and name in empty else renamed.get(name, name)
    for value in graph.output:
        value.name = renamed.get(value.name, value.name)


def _to_relax(proto: onnx.ModelProto, specs: list[TensorSpec]) -> tuple[tvm.IRModule, dict[str, tvm.runtime.Tensor]]:
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said):  # where TVM prints the node that it failed on
            mod = tvm_from_onnx(
                proto,
                shape_dict={spec.name: spec.shape for spec in specs},
                dtype_dict={spec.name: spec.dtype for spec in specs},
                keep_params_in_input=True,
                sanitize_input_names=False,
            )
    except Exception as error:
        where = said.getvalue().partition(", with inputs")[0].removeprefix("Error converting ")
        raise NotImplementedError(
            f"TVM {tvm.__version__} cannot import {where or 'this model'}: {_one_line(error)}"
        ) from error
    main = mod["main"]
    arrays = main.attrs.get("params", [])
    used = set(relax.analysis.free_vars(main.body))
    weights = [(var, array) for var, array in zip(main.params[len(specs) :], arrays, strict=True) if var in used]
    params = [*main.params[: len(specs)], *(var for var, _ in weights)]
    mod["main"] = relax.Function(params, main.body, main.ret_ty, main.is_pure, main.attrs).without_attr("params")
    return mod, {var.name: array for var, array in weights}
