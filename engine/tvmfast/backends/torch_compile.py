"""`torch.compile(net, backend="tvmfast")`: each graph that Dynamo records becomes a compiled network.

PyTorch finds `backend` by the entry point in pyproject.toml. Dynamo calls it once for each graph, with the
weights among the graph's inputs, and calls what it returns with real tensors.

Weights are constants of a build, so that they fold and pack. A graph is built again where a call has other
weights, or weights that changed in place (PyTorch counts those changes in `_version`). What changes behind
PyTorch's back, in NumPy or by `weight.data.copy_(…)`, is not seen until `torch._dynamo.reset()`.

Shapes and scalars are static: each new set of them costs a build, which is cached. From the 33rd set on, new
ones run in PyTorch.
"""

import operator
import sys
import textwrap
import threading
import time
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn
from torch.autograd import grad_mode
from torch.export import ExportedProgram

from ..compiler.build import build, resolve_target
from ..compiler.pipeline import OPT_LEVELS
from ..compiler.records import resolve_records
from ..core import errors
from ..core.compat import hold_interrupt, pass_lock
from ..core.specs import dtype_of, require_dense
from ..frontends.pytorch.importer import from_pytorch, quiet
from ..frontends.pytorch.output_aliases import Outputs
from ..runtime.compiled import Compiled

_OPTIONS = ("target", "opt_level", "records")
_MOST_SETS = 32  # of shapes and scalars, for which a graph is built
_MOST_CHANGES = 3  # of a weight, after which it is an input: a build at each call would take seconds
_GRAD_MODES = {torch._C._set_grad_enabled, grad_mode._enter_inference_mode, grad_mode._exit_inference_mode}
_AUTOCASTS = {torch.amp.autocast_mode._enter_autocast, torch.amp.autocast_mode._exit_autocast}


def backend(
    graph: fx.GraphModule,
    example_inputs: list,
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable:
    """Compile a graph for `torch.compile`, at its first call.

    Args:
        graph: What Dynamo recorded.
        example_inputs: Its inputs, which are not read.
        options: "target", a CPU, "opt_level" and "records" of `tn.build`.
        mode: Not taken.

    Returns:
        A function of the graph's inputs. A graph that cannot be compiled runs in PyTorch, and a warning says
        why.

    Raises:
        ValueError: An option is unknown or wrong, a mode is given, or a gradient is wanted. The compiled
            function raises it at its first call for a network in training mode.
        TypeError, OSError: What `tn.build` says of records.
    """
    options = dict(options or {})
    if unknown := sorted(options.keys() - set(_OPTIONS)):
        raise ValueError(f"options: expected {', '.join(_OPTIONS)}, as tn.build has them; got {unknown[0]!r}")
    if mode is not None:
        raise ValueError(f"mode: tvmfast has none, got {mode!r}; use options={{'opt_level': 0 to 3}}")
    if options.get("opt_level", 3) not in OPT_LEVELS:
        wanted = ", ".join(map(str, OPT_LEVELS))
        raise ValueError(f"options: expected an opt_level of {wanted}; got {options['opt_level']!r}")
    resolve_records(options.get("records"), resolve_target(options.get("target")))
    results = graph.graph.output_node().args[0]
    values = [result.meta.get("example_value") for result in results if isinstance(result, fx.Node)]
    if any(isinstance(value, Tensor) and value.grad_fn is not None for value in values):
        raise ValueError(
            "tvmfast compiles for inference, and this call would compute gradients: call it in "
            "torch.no_grad() or torch.inference_mode()"
        )
    return _Graph(graph, options)


class _TrainingMode(ValueError):
    """The network behaves as in training, which a compiled one cannot."""


class _Graph:
    """A graph of Dynamo, as a function: it is built for each new set of shapes, scalars and weights."""

    def __init__(self, graph: fx.GraphModule, options: dict):
        self._graph = graph
        self._options = options
        placeholders = graph.graph.find_nodes(op="placeholder")
        self._scalars = {n for n, node in enumerate(placeholders) if _is_scalar(node)}
        self._weights = [n for n, node in enumerate(placeholders) if _is_weight(node)]
        self._others = [n for n in range(len(placeholders)) if n not in self._weights]
        self._inference = _inference_graph(graph, [placeholders[n].name for n in self._scalars])
        self._operators = sum(node.op.startswith("call_") for node in self._inference.graph.nodes)
        self._changes = Counter()  # of a weight, by its index
        self._networks: dict[tuple, list] = {}  # by shapes and scalars
        self._lock = threading.Lock()
        self._warned = False

    def __call__(self, *args):
        key = tuple(self._key_of(n, args[n]) for n in self._others)
        network = self._find(key, args)
        if network is None:
            with self._lock:
                network = self._find(key, args) or self._add(key, args)
        return network(args)

    def _key_of(self, n: int, arg: Any) -> Any:
        if not isinstance(arg, Tensor):
            return arg
        if n in self._scalars:
            return repr(arg.item())  # where -0.0 is not 0.0, and NaN is itself
        dense = arg.layout is torch.strided and not arg.is_nested
        return (arg.shape, arg.stride()) if dense else arg.layout

    def _find(self, key: tuple, args: tuple) -> Callable | None:
        return next((each for each in self._networks.get(key, ()) if each.fits(args)), None)

    def _add(self, key: tuple, args: tuple) -> Callable:
        self._forget_changed()
        try:
            if key not in self._networks and len(self._networks) == _MOST_SETS:
                raise NotImplementedError(f"it was built for {_MOST_SETS} other sets of shapes and scalars")
            network = self._built(args)
        except _TrainingMode as error:
            raise ValueError(str(error)) from None
        except Exception as error:
            if not self._warned:
                self._warned = True
                reason = textwrap.shorten(errors.lines(error)[0], 300)
                warnings.warn(
                    f"tvmfast leaves a graph to PyTorch (operators: {self._operators}): {reason}",
                    stacklevel=3,
                )
            network = _Eager(self._graph)
        if key in self._networks or len(self._networks) < _MOST_SETS:
            self._networks.setdefault(key, []).append(network)
        return network

    def _forget_changed(self) -> None:
        """Drop networks whose weights are gone or have changed, and count the changes."""
        changed = set()
        for networks in self._networks.values():
            for network in list(networks):
                stale = [weight for weight in network.weights if not weight.is_current()]
                changed |= {weight.position for weight in stale if weight.tensor() is not None}
                if stale:
                    networks.remove(network)
        self._changes.update(changed)

    def _built(self, args: tuple) -> Callable:
        begin = time.perf_counter()
        args = [arg.item() if n in self._scalars else arg for n, arg in enumerate(args)]
        _check(self._inference, args)
        weights = [
            n for n in self._weights if self._changes[n] < _MOST_CHANGES and not args[n].is_inference()
        ]
        frozen = [_Weight(n, weakref.ref(args[n]), args[n]._version, args[n].data_ptr()) for n in weights]
        inputs = [n for n, arg in enumerate(args) if isinstance(arg, Tensor) and n not in weights]
        with torch.inference_mode(False), torch.no_grad(), pass_lock:
            outputs = Outputs(self._inference, args)
            if not outputs.computed and not outputs.writes:
                return _Eager(self._graph)
            part = _Part(self._inference, args, weights, outputs.computed)
            program = _captured(part, tuple(args[n].detach() for n in inputs), outputs.writes)
            library = build(*from_pytorch(program), **self._options)
        outputs.check(library)
        specs = ", ".join(f"{dtype_of(args[n])}{list(args[n].shape)}" for n in inputs) or "none"
        seconds = time.perf_counter() - begin
        counts = f"operators: {self._operators}; inputs: {specs}; weights: {len(weights)}"
        print(f"tvmfast: compiled a graph ({counts}) in {seconds:.1f} s", file=sys.stderr)
        return _Network(library, inputs, frozen, outputs)


def _is_scalar(node: fx.Node) -> bool:
    """Return whether a graph's input is a Python float, which Dynamo passes as a tensor."""
    return bool(node.users) and all(user.target == "item" for user in node.users)


def _is_weight(node: fx.Node) -> bool:
    """Return whether a graph's input is a parameter, a buffer or another tensor that a module holds."""
    return "_dynamo_static_input_type" in (node.meta.get("tensor_dict") or {})


def _inference_graph(graph: fx.GraphModule, scalars: list[str]) -> fx.GraphModule:
    """Copy a graph without changes of modes that do not matter here, and with `scalars` as numbers."""
    copy = fx.Graph()
    copy.output(copy.graph_copy(graph.graph, {}))
    ineffective = _GRAD_MODES if any(map(_turns_autocast_on, copy.nodes)) else _GRAD_MODES | _AUTOCASTS
    for node in reversed(list(copy.nodes)):
        if node.target in ineffective:
            copy.erase_node(node)
        elif node.target == "item" and node.args[0].name in scalars:
            node.replace_all_uses_with(node.args[0])
            copy.erase_node(node)
    return fx.GraphModule(graph, copy)


def _turns_autocast_on(node: fx.Node) -> bool:
    """Return whether a node begins a region with autocast on the CPU, rather than one without."""
    if node.target is not torch.amp.autocast_mode._enter_autocast:
        return False
    device, _, enabled, *_ = node.args
    return device == "cpu" and enabled


def _check(graph: fx.GraphModule, args: list) -> None:
    """Raise for what a compiled network does not support."""
    if any(map(_turns_autocast_on, graph.graph.nodes)) or torch.is_autocast_enabled("cpu"):
        raise NotImplementedError("autocast is on; convert the network instead, as by net.bfloat16()")
    held = [operator.attrgetter(node.target)(graph) for node in graph.graph.find_nodes(op="get_attr")]
    if any(isinstance(each, Tensor) for each in [*held, *graph.parameters(), *graph.buffers()]):
        raise NotImplementedError("it holds tensors of its own, whose changes would not be noticed")
    for arg in args:
        if not isinstance(arg, Tensor):
            continue
        require_dense(arg, "an input", data=False)
        if type(arg) not in (Tensor, nn.Parameter):
            raise NotImplementedError(f"an input is a {type(arg).__name__}")
        if arg.device.type != "cpu":
            raise NotImplementedError(f"an input is on the device {arg.device}, not on the CPU")
        if arg.is_complex() or arg.is_neg():
            raise NotImplementedError("an input is complex, or a view of a complex tensor")


class _Part(nn.Module):
    """A graph without its weights among its inputs, and with the outputs alone that are computed."""

    def __init__(self, graph: fx.GraphModule, args: list, weights: list[int], outputs: list[int]):
        super().__init__()
        self.graph = graph
        self._args = [None if isinstance(arg, Tensor) else arg for arg in args]
        self._inputs = [n for n, arg in enumerate(args) if isinstance(arg, Tensor) and n not in weights]
        self._outputs = outputs
        self._names = {n: f"weight{n}" for n in weights}
        for n, name in self._names.items():
            self.register_buffer(name, args[n].detach())
        self.eval()

    def forward(self, *inputs):
        args = list(self._args)
        for n, value in zip(self._inputs, inputs, strict=True):
            args[n] = value
        for n, name in self._names.items():
            args[n] = getattr(self, name)
        results = self.graph(*args)
        return tuple(results[n] for n in self._outputs)


@hold_interrupt()
def _captured(part: _Part, inputs: tuple[Tensor, ...], writes: bool) -> ExportedProgram:
    """Capture a part; raise if it trains, or writes to inputs or weights."""
    refusal = NotImplementedError("it writes to its inputs or weights")
    try:
        with quiet():
            program = torch.export.export(part, inputs)
    except Exception:
        if writes:
            raise refusal from None
        raise
    for node in program.graph.nodes:
        if _trains(node):
            raise _TrainingMode(
                f"the network is in training mode ({node.target}), where dropout and batch norm behave "
                "differently: call net.eval() first"
            )
    if writes:
        raise refusal
    return program


def _trains(node: fx.Node) -> bool:
    """Return whether a call of an operator has a flag of the training mode set."""
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return False
    given = {argument.name: value for argument, value in zip(schema.arguments, node.args, strict=False)}
    given.update(node.kwargs)
    # a batch norm without running statistics computes those of its input in any mode
    is_set = given.get("train") is True or given.get("training") is True
    return is_set and given.get("running_mean", node) is not None


class _Weight(NamedTuple):
    """A weight at the time of a build; `position` is its index among the graph's inputs."""

    position: int
    tensor: weakref.ref
    version: int
    address: int

    def is_current(self) -> bool:
        """Return whether the tensor has not changed since."""
        return self._is_unchanged(self.tensor())

    def is_(self, tensor: Tensor) -> bool:
        """Return whether `tensor` is the weight, unchanged."""
        return self.tensor() is tensor and self._is_unchanged(tensor)

    def _is_unchanged(self, tensor: Tensor | None) -> bool:
        if tensor is None:
            return False
        return tensor._version == self.version and tensor.data_ptr() == self.address


class _Eager:
    """A graph that runs in PyTorch."""

    weights = ()

    def __init__(self, graph: fx.GraphModule):
        self._graph = graph

    def fits(self, args: tuple) -> bool:
        return True

    def __call__(self, args: tuple) -> Any:
        return self._graph(*args)


class _Network:
    """A compiled graph with its weights, from tensors to tensors."""

    def __init__(self, library: Compiled, inputs: list[int], weights: list[_Weight], outputs: Outputs):
        self.weights = weights
        self._library = library
        self._inputs = inputs
        self._outputs = outputs
        self._constants = {tensor.data_ptr() for tensor in library.params.values()}

    def fits(self, args: tuple) -> bool:
        return all(weight.is_(args[weight.position]) for weight in self.weights)

    def __call__(self, args: tuple) -> tuple:
        inputs = [args[n] for n in self._inputs]
        taken = self._constants | {tensor.data_ptr() for tensor in inputs}
        tensors = []
        for tensor in map(torch.from_dlpack, self._library.run(inputs)):
            # where TVM eliminated a copy, the result aliases an input, a constant or another result
            tensors.append(tensor.clone() if tensor.data_ptr() in taken else tensor)
            taken.add(tensor.data_ptr())
        return self._outputs.with_aliases(tensors, args)
