"""`from_pytorch`: import an nn.Module, a traced or scripted module or an ExportedProgram.

The passes: capture (torch.export) -> decompose into core operators -> turn every weight, buffer and constant
into a parameter -> TVM's importer -> give the parameters of main their names.
"""

import functools
import inspect
import logging
import math
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import tvm
from torch.export import ExportedProgram, exported_program
from torch.export.graph_signature import (
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    TensorArgument,
)
from tvm import relax
from tvm.relax.frontend.torch.exported_program_translator import ExportedProgramImporter

from ...core import errors
from ...core.bounds_check import OutOfRange
from ...core.compat import hold_interrupt, pass_lock
from ...core.dims import dims_of
from ...core.specs import TensorSpec, dtype_of, parse_inputs, require_dense
from ..contract import as_model
from ..dynamic.probing import Model, with_dynamic_dims
from .complex import without_complex
from .dynamic import OF_PROGRAM, SCRIPTED, as_module, find_suspects, signature_of, unscript, zeros
from .inline import foreign, resizes_of_uint8, used_results, with_known_repeats
from .ops.converters import CONVERTERS
from .ops.decompositions import DECOMPOSITIONS
from .ops.losses import own_losses
from .ops.recurrent import PACKED, WholeLayers, packs
from .partial_update import combine, export
from .quantized_modules import check_converted, is_quantized, without_packing
from .type_promotion import exact, promote

# What PyTorch's batch norm and dropout become in a program that was captured in training mode.
_TRAINING_OPS = {
    *("_native_batch_norm_legit_functional.default", "native_dropout.default"),
    *("bernoulli.p", "bernoulli.default"),
}


@hold_interrupt()
def from_pytorch(model: Any, inputs: Any = None) -> tuple[tvm.IRModule, dict[str, tvm.runtime.Tensor]]:
    """Import a PyTorch network.

    Args:
        model: An nn.Module in eval mode, the result of torch.jit.trace, torch.jit.script or torch.jit.freeze,
            or an ExportedProgram. Quantized ones, too: of pt2e, and eager mode's modules and their traces.
        inputs: The inputs' shapes and dtypes, in the order of forward's arguments and in any form that
            `tvmfast.core.specs.parse_inputs` reads. A name in a shape, ("batch", 3, 224, 224), or a `Dim` is
            a dynamic dim. None, for an ExportedProgram, takes the program's own.

    Returns:
        `(mod, params)` as `tvmfast.frontends` describes. `params` holds copies, in the order of `main`'s
        parameters and under the weights' names in `state_dict()`; batch norm's statistics and constants of
        the graph are included, weights that the graph does not use are not. Nested outputs become one flat
        tuple, a single one a tensor; None among them comes back in its place. What forward writes into its
        own buffers is lost.

    Raises:
        TypeError: `model` is of another kind, or a weight is not a dense tensor of numbers.
        ValueError: The network is in training mode, or does not take these inputs.
        NotImplementedError: TVM's importer lacks operators; the message names all of them. Or one graph
            cannot serve all values of the dynamic dims.
        IndexError: The network holds an index out of range. One that is passed in or computed is an
            IndexError of the run.
    """
    _check_model(model)
    own = isinstance(model, ExportedProgram) and inputs is None
    specs = _program_inputs(model) if own else parse_inputs(inputs, dynamic_dims=True)
    _check_inputs(model, specs)
    model = without_packing(model, specs)

    signatures = {}  # by the static inputs

    def capture_at(static):
        program = _capture(model, static)
        if dims_of(spec.shape for spec in specs):
            signatures[tuple(static)] = signature_of(_decompose(program) if _transforms(program) else program)
        return program

    def signature_at(static):
        if tuple(static) not in signatures:
            with pass_lock, quiet():
                capture_at(static)
        return signatures[tuple(static)]

    def suspects_of(merged):
        with pass_lock, quiet(), WholeLayers():
            return find_suspects(model, merged.specs, merged)

    def takes(static):
        try:
            with torch.no_grad(), pass_lock, quiet():
                (as_module(model) if isinstance(model, ExportedProgram) else model)(*zeros(static))
        except Exception:
            return False
        return True

    import_at = functools.partial(_import, capture_at, specs)
    return with_dynamic_dims(import_at, specs, signature_at, suspects_of, takes)


def _transforms(program: ExportedProgram) -> bool:
    """Return whether a program has Fourier transforms, which pad or cut an axis to the size they take."""
    return any(str(node.target).startswith("aten.fft_") for node in program.graph.nodes)


def _import(capture_at: Callable, inputs: list[TensorSpec], specs: list[TensorSpec]) -> Model:
    """Import a network, which `capture_at` exports, for `inputs` with numbers for dynamic dims, `specs`."""
    has_dynamic_dims = bool(dims_of(spec.shape for spec in inputs))
    how = {"keep_params_as_input": True, "unwrap_unit_return_tuple": True, "no_bind_return_tuple": False}
    with pass_lock, quiet():
        program = _decompose(capture_at(specs))
        table = _decompositions()[1]
        without_complex(program.graph, table)
        used_results(program.graph, table)
        foreign(program.graph, table)
        if has_dynamic_dims:
            resizes_of_uint8(program.graph, table)
        combine(program, has_dynamic_dims)
        absent = _check_program(program)
        promote(program.graph_module)
        program, weights = _lift_weights(program)
        try:
            importer = ExportedProgramImporter()
            importer.has_dynamic_dims = has_dynamic_dims  # for converters
            converters = exact(CONVERTERS, importer)
            mod = importer.from_exported_program(program, custom_convert_map=converters, **how)
        except OutOfRange:
            raise
        except Exception as error:
            raise NotImplementedError(
                f"TVM's importer fails on this network: {errors.lines(error)[0]}; {_WAY_OUT}"
            ) from error
    mod = relax.transform.DeadCodeElimination()(mod)  # such as max pooling's indices, if nothing reads them
    if absent:
        mod["main"] = mod["main"].with_attr("tvmfast.absent", absent)
    # Copies of the weights, so that further training does not change what was built.
    arrays = {
        name: tvm.runtime.from_dlpack(tensor.cpu().clone(memory_format=torch.contiguous_format))
        for name, tensor in weights.items()
    }
    values = {node.name: value for node, value in importer.env.items()}
    return as_model(mod, (spec.name for spec in specs), arrays, values, program)


_WAY_OUT = (
    "write that part of the network with other operators, or export it with torch.onnx.export "
    "and import the file with tvmfast.from_onnx"
)


def _check_model(model: Any) -> None:
    if isinstance(model, torch.jit.ScriptFunction):
        return
    if not isinstance(model, torch.nn.Module | ExportedProgram):
        raise TypeError(
            "model: expected an nn.Module, a module from torch.jit.trace or torch.jit.script, or an "
            "ExportedProgram; got "
            f"{'the class ' + model.__name__ if inspect.isclass(model) else type(model).__name__}"
        )
    if isinstance(model, torch.jit.ScriptModule) and not hasattr(model, "forward"):
        raise NotImplementedError(
            f"model: a scripted {model.original_name} has one forward for tensors and one for packed "
            "sequences; import the module itself, or trace it (torch.jit.trace)"
        )
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        require_dense(tensor, f"model: {name!r}")
    if not isinstance(model, ExportedProgram):
        check_converted(model)
    # PyTorch makes quantized modules in training mode, in which they are what they are in eval mode.
    modules = () if isinstance(model, ExportedProgram) or is_quantized(model) else model.named_modules()
    training = [name or "the network" for name, part in modules if getattr(part, "training", False)]
    if training:
        raise ValueError(
            f"model: expected a network in eval mode, but {training[0]} is in training mode, where dropout "
            "and batch norm behave differently; call net.eval() first (before tracing, if you trace)"
        )


def _check_inputs(model: Any, specs: list[TensorSpec]) -> None:
    """Compare `specs` with what forward or the program takes: the count; a program's shapes and dtypes."""
    if isinstance(model, ExportedProgram):
        values = _input_values(model)
        names = list(values)
        least = most = len(values)
    elif isinstance(model, SCRIPTED):
        function = isinstance(model, torch.jit.ScriptFunction)
        arguments = model.schema.arguments if function else model.forward.schema.arguments[1:]
        names = [argument.name for argument in arguments]
        least, most = sum(not argument.has_default_value() for argument in arguments), len(arguments)
    else:
        arguments = list(inspect.signature(model.forward).parameters.values())
        positional = [a for a in arguments if a.kind in (a.POSITIONAL_ONLY, a.POSITIONAL_OR_KEYWORD)]
        names = [argument.name for argument in arguments]
        least = sum(a.default is a.empty for a in positional)
        most = math.inf if any(a.kind is a.VAR_POSITIONAL for a in arguments) else len(positional)
    if not least <= len(specs) <= most:
        count = f"at least {least}" if most == math.inf else f"{least} to {most}"
        count = str(least) if least == most else count
        raise ValueError(
            f"inputs: forward takes {count} ({', '.join(names)}), got {len(specs)}: {_listed(specs)}"
        )
    if isinstance(model, ExportedProgram):
        for spec, (name, value) in zip(specs, values.items(), strict=True):
            fits = len(spec.shape) == value.dim() and all(
                not isinstance(want, int) or got == want
                for got, want in zip(spec.shape, value.shape, strict=True)
            )
            if not fits or spec.dtype != dtype_of(value):
                raise ValueError(
                    f"input {spec.name!r}: the program was exported for {name}: {dtype_of(value)}"
                    f"[{', '.join(map(str, value.shape))}], got {spec}; give these, or export the network "
                    "anew"
                )


def _listed(specs: list[TensorSpec]) -> str:
    return "; ".join(map(str, specs))


def _input_values(program: ExportedProgram) -> dict[str, Any]:
    """Return the inputs of `program` in order: name -> torch's fake tensor, with shape and dtype."""
    fakes = {node.name: node.meta.get("val") for node in program.graph.find_nodes(op="placeholder")}
    values = {}
    for spec in program.graph_signature.input_specs:
        if spec.kind is InputKind.USER_INPUT:
            if not isinstance(spec.arg, TensorArgument):
                raise ValueError(
                    f"input {spec.arg.name!r}: expected every input of the program to be a tensor; this one "
                    f"is {getattr(spec.arg, 'value', spec.arg)!r}; export the network with tensors alone"
                )
            values[spec.arg.name] = fakes[spec.arg.name]
    return values


def _program_inputs(program: ExportedProgram) -> list[TensorSpec]:
    specs = []
    for name, value in _input_values(program).items():
        if not all(isinstance(n, int) for n in value.shape):
            raise ValueError(
                f"input {name!r}: the program has a dynamic shape ({', '.join(map(str, value.shape))}); "
                "give the shapes to build for, such as {'x': (1, 3, 224, 224)}"
            )
        specs.append(TensorSpec(name, tuple(value.shape), dtype_of(value)))
    return specs


@functools.cache
def _decompositions() -> tuple[dict, dict]:
    """Return the decompositions of composite operators, and those of all others.

    Composite operators that PyTorch decomposes by itself are not among them.
    """
    table = torch.export.default_decompositions()
    table.update(DECOMPOSITIONS)
    composite, others = exported_program._split_decomp_table_to_cia_and_python_decomp(dict(table.items()))
    preserve = exported_program._special_op_to_preserve_cia
    return {op: how for op, how in composite.items() if op in DECOMPOSITIONS or how is preserve}, others


def _decompose(program: ExportedProgram) -> ExportedProgram:
    """Do what `program.run_decompositions` does, without enumerating PyTorch's 1,000 composite operators.

    To enumerate them takes ten times as long as all else that it does to a small network.
    """
    composite, others = _decompositions()
    tables = {"cia_to_decomp": composite, "python_decomp_table": others}
    options = {"joint_loss_index": None, "decompose_custom_triton_ops": False}
    with own_losses():
        return exported_program._decompose_exported_program(program, **tables, **options)


def _check_program(program: ExportedProgram) -> list[int]:
    """Raise the errors that a decomposed `program` shows before TVM's importer sees it.

    Returns the positions of None among its outputs.
    """
    nodes = program.graph.nodes
    calls = [node.target for node in nodes if node.op == "call_function"]
    if training := sorted({call.__name__ for call in calls} & _TRAINING_OPS):
        raise ValueError(
            f"model: it was captured in training mode ({training[0]}); call net.eval() before exporting or "
            "tracing it"
        )
    tags = {call.__name__: getattr(call, "tags", ()) for call in calls}
    if random := sorted(name for name in tags if torch.Tag.nondeterministic_seeded in tags[name]):
        raise NotImplementedError(f"{random[0]} draws random numbers in each run: pass them as an input")
    for node in program.graph.find_nodes(op="call_function", target=torch.ops.aten.as_strided.default):
        x, offset = node.args[0].meta["val"], node.args[3] if len(node.args) > 3 else None
        if not x.is_contiguous() or offset not in (None, x.storage_offset()):
            raise NotImplementedError(
                "as_strided reads the memory behind a tensor, and a compiled network has that of contiguous "
                "tensors alone: write it with slices"
            )
    scalars = [n.target for n in nodes if isinstance(n.meta.get("val"), torch.SymFloat | torch.SymInt)]
    arithmetic = sorted(each.__name__ for each in scalars if getattr(each, "__module__", "") == "_operator")
    if arithmetic:
        raise NotImplementedError(
            f"{arithmetic[0]} of a number that PyTorch takes from a tensor while it runs, and TVM has to "
            "know before; leave out .item(), and compute with the tensor"
        )
    known = ExportedProgramImporter().convert_map.keys() | CONVERTERS.keys()
    # TVM looks an operator up by its name alone; another library's relu need not be aten's
    ours = ("aten", "higher_order", "quantized_decomposed", "torchvision", "tvmfast")
    foreign = {call for call in calls if getattr(call, "namespace", "aten") not in ours}
    if missing := sorted({str(call) for call in calls if call.__name__ not in known or call in foreign}):
        raise NotImplementedError(f"TVM's importer lacks these operators: {', '.join(missing)}; {_WAY_OUT}")
    specs = program.graph_signature.output_specs
    outputs = [spec.arg for spec in specs if spec.kind is OutputKind.USER_OUTPUT]
    others = {
        n: getattr(arg, "value", arg) for n, arg in enumerate(outputs) if not isinstance(arg, TensorArgument)
    }
    absent = [n for n, value in others.items() if value is None]
    if len(absent) < len(others) or len(absent) == len(outputs):
        value = next((value for value in others.values() if value is not None), None)
        raise ValueError(
            f"model: expected the network to return tensors, and at most None beside them, but {value!r} is "
            f"{'among' if value is not None else 'all of'} its outputs; wrap it in a module that returns "
            "only tensors"
        )
    return absent


def _capture(model: Any, specs: list[TensorSpec]) -> ExportedProgram:
    """Capture an ExportedProgram with static shapes; ValueError if the network does not take such inputs."""
    examples = zeros(specs)
    if isinstance(model, ExportedProgram):
        is_static = all(isinstance(n, int) for value in _input_values(model).values() for n in value.shape)
        module = with_known_repeats(model) if is_static else as_module(model)
        if module is None:
            return model
        model = module
    try:
        with WholeLayers():
            if isinstance(model, SCRIPTED):
                program = torch.export.export(unscript(model, examples), examples)
            else:
                program = export(model, examples)
            while module := with_known_repeats(program):
                program = export(module, examples)
            return program
    except Exception as error:
        if packs(error):  # before a run on examples, which are zeros, and no lengths
            raise NotImplementedError(PACKED) from error
        try:
            with torch.no_grad():
                model(*examples)
        except Exception as cause:
            raise ValueError(
                f"the network does not take {_listed(specs)}; PyTorch says: {errors.lines(cause)[-1]}"
            ) from cause
        if holder := re.search(r"Found <class '([\w.]+)'> in output", str(error)):
            raise ValueError(
                f"model: it returns a {holder[1]}, which is no tensor; wrap it in a module that returns only "
                "tensors, and have a network of transformers made with use_cache=False"
            ) from error
        advice = (
            "where its Python code branches on values, write it without, or trace it on an example "
            "(torch.jit.trace) and import that"
        )
        raise NotImplementedError(
            f"PyTorch cannot capture this network as a graph: {errors.lines(error)[0]}; "
            f"{_WAY_OUT if isinstance(model, SCRIPTED) else advice}"
        ) from error


def _lift_weights(program: ExportedProgram) -> tuple[ExportedProgram, dict[str, torch.Tensor]]:
    """Make every weight, buffer and constant of `program` a parameter; drop those that no output needs.

    TVM's importer takes only parameters as inputs of main; it embeds buffers and constants in the code. The
    program's graph is changed in place. Returns the new program and its parameters, in order, by name.
    """
    # The graph returns new values of what forward writes to (a buffer, an input), then the network's outputs.
    signature = program.graph_signature
    output_specs = [spec for spec in signature.output_specs if spec.kind is OutputKind.USER_OUTPUT]
    output = program.graph.output_node()
    returned = output.args[0][len(signature.output_specs) - len(output_specs) :]
    output.args = ([each for each in returned if each is not None],)
    arguments = [TensorArgument(each.name) for each in output.args[0]]
    output_specs = [OutputSpec(OutputKind.USER_OUTPUT, argument, None) for argument in arguments]
    program.graph.eliminate_dead_code()
    placeholders = {node.name: node for node in program.graph.find_nodes(op="placeholder")}
    specs, weights = [], {}
    state = {}
    for spec in signature.input_specs:
        if spec.kind is InputKind.USER_INPUT:
            specs.append(spec)
        elif spec.kind not in (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR):
            raise NotImplementedError(
                f"the network holds {spec.target!r}, which is no tensor ({spec.kind.name.lower()})"
            )
        elif not placeholders[spec.arg.name].users:
            program.graph.erase_node(placeholders[spec.arg.name])
        else:
            held = program.constants if spec.target in program.constants else program.state_dict
            tensor = held[spec.target]
            tensor = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
            # torch.jit.freeze names a weight self.conv.weight, and the converter adds its own prefix
            weights[spec.target.removeprefix("lifted_tensor_self.").removeprefix(OF_PROGRAM)] = (
                tensor.detach()
            )
            state[spec.target] = torch.nn.Parameter(tensor.detach(), requires_grad=False)
            specs.append(InputSpec(InputKind.PARAMETER, spec.arg, spec.target))
    lifted = ExportedProgram(
        root=program.graph_module,
        graph=program.graph,
        graph_signature=ExportGraphSignature(specs, output_specs),
        state_dict=state,
        range_constraints=program.range_constraints,
        module_call_graph=program.module_call_graph,
    )
    return lifted, weights


_NOISE = (
    r"Manually populate ",
    r"`isinstance\(treespec, LeafSpec\)` is deprecated",
    r"The tensor attributes? .*_flat_weights",  # of a recurrent layer, which sets them again
    r"Pred is a Python constant",  # the `if` of a scripted functional, whose condition is known
)
_LOGGERS = {  # the least level that they log: errors are raised, too
    "torch._export.non_strict_utils": logging.ERROR,
    "torch._subclasses.fake_tensor": logging.CRITICAL,
}


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress what torch logs and warns of its own internals while it exports and converts."""
    loggers = {logging.getLogger(name): level for name, level in _LOGGERS.items()}
    before = {logger: logger.level for logger in loggers}
    for logger, level in loggers.items():
        logger.setLevel(level)
    try:
        with warnings.catch_warnings():
            for message in _NOISE:
                warnings.filterwarnings("ignore", message=message)
            yield
    finally:
        for logger, level in before.items():
            logger.setLevel(level)
