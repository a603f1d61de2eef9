"""Inline an ONNX If with a constant condition; unroll a Loop or Scan with a static trip count."""

from collections.abc import Callable

import numpy as np
import onnx
from onnx.helper import make_empty_tensor_value_info, make_graph, make_node
from onnx.numpy_helper import from_array
from onnx.reference import ReferenceEvaluator

MOST_NODES = 100_000  # that a loop is unrolled to
_JOINED = 16


def inline_if(node: onnx.NodeProto, condition: bool, used: set[str]) -> list[onnx.NodeProto]:
    """Return the nodes of the branch that a constant condition takes, under names that are not in `used`."""
    copies = _Copies(node, "then_branch" if condition else "else_branch", used)
    results = copies.add({})
    return copies.nodes + _named(results, node.output)


def unroll(node: onnx.NodeProto, values: dict, shapes: dict, opsets: dict, used: set[str]) -> list | None:
    """Return the nodes of an unrolled Loop or Scan, None if its trip count is not static.

    `values` are constants by name, `opsets` versions by domain, and `used` the names taken in the graph
    around. Raises NotImplementedError if the trip count is too large, or 0: an output has no shape then.
    """
    copies = _Copies(node, "body", used)
    is_loop = node.op_type == "Loop"
    results = _unroll_loop(node, copies, values, opsets) if is_loop else _unroll_scan(node, copies, shapes)
    if results is None:
        return None
    states, collected, axes, directions = results
    outputs = list(node.output)
    nodes = _named(states, outputs[: len(states)])
    stacks = zip(collected, outputs[len(states) :], axes, directions, strict=True)
    for parts, output, axis, backwards in stacks:
        if not output:
            continue
        if not parts:
            raise NotImplementedError(f"{label_of(node)}: its trip count is 0, so {output!r} has no shape")
        stacked = [copies.unsqueezed(part, axis, opsets) for part in parts]
        joined = copies.joined(stacked[::-1] if backwards else stacked, axis)
        nodes += _named([joined], [output])
    return copies.nodes + nodes


def _unroll_loop(node: onnx.NodeProto, copies: "_Copies", values: dict, opsets: dict) -> tuple | None:
    """Add the iterations of a Loop; return states, stacked outputs, their axes and directions."""
    limit, condition, *states = [*node.input, "", ""][: max(2, len(node.input))]
    if any(name and name not in values for name in (limit, condition)):
        return None
    count = int(values[limit].reshape(-1)[0]) if limit else None
    goes_on = bool(values[condition].reshape(-1)[0]) if condition else True
    decide = _condition(copies.graph, states, values, opsets)
    if decide is None:
        return None
    inputs = [value.name for value in copies.graph.input]
    collected = [[] for _ in copies.graph.output[1 + len(states) :]]
    step = 0
    while goes_on and (count is None or step < count):
        given = {name: copies.constant(value) for name, value in _numbers(copies.graph, step).items()}
        given |= zip(inputs[2:], states, strict=True)
        _, *results = copies.add(given)
        states = results[: len(states)]
        for parts, part in zip(collected, results[len(states) :], strict=True):
            parts.append(part)
        goes_on = decide(step)
        if goes_on is None:
            return None
        step += 1
    return states, collected, [0] * len(collected), [0] * len(collected)


def _unroll_scan(node: onnx.NodeProto, copies: "_Copies", shapes: dict) -> tuple | None:
    """Add the iterations of a Scan; return states, stacked outputs, their axes and directions."""
    attributes = {each.name: each for each in node.attribute}
    scanned = attributes["num_scan_inputs"].i
    states, elements = list(node.input[:-scanned]), list(node.input[-scanned:])

    def numbers(name: str, count: int) -> list[int]:
        return list(attributes[name].ints) if name in attributes else [0] * count

    axes, directions = numbers("scan_input_axes", scanned), numbers("scan_input_directions", scanned)
    if any(name not in shapes for name in elements):
        return None
    steps = shapes[elements[0]][axes[0]]
    inputs = [value.name for value in copies.graph.input]
    count = len(copies.graph.output) - len(states)
    collected = [[] for _ in range(count)]
    for step in range(steps):
        indices = [steps - 1 - step if backwards else step for backwards in directions]
        parts = [copies.element(x, k, axis) for x, k, axis in zip(elements, indices, axes, strict=True)]
        results = copies.add(dict(zip(inputs, [*states, *parts], strict=True)))
        states = results[: len(states)]
        for parts, part in zip(collected, results[len(states) :], strict=True):
            parts.append(part)
    return states, collected, numbers("scan_output_axes", count), numbers("scan_output_directions", count)


def _condition(
    body: onnx.GraphProto, states: list[str], values: dict[str, np.ndarray], opsets: dict
) -> Callable[[int], bool | None] | None:
    """Return a function that evaluates a Loop's condition after each iteration, called in their order.

    The function returns None where an operator cannot be evaluated. There is none if the data decide.
    """
    inputs, outputs = ([value.name for value in side] for side in (body.input, body.output))
    makers = {name: node for node in body.node for name in node.output}
    first = {name: values.get(state) for name, state in zip(inputs[2:], states, strict=True)}
    constants = {tensor.name: tensor for tensor in body.initializer}
    needed, pending = {}, [outputs[0]]
    while pending:
        name = pending.pop()
        if name in needed:
            continue
        needed[name] = None
        if name in makers:
            pending += _read(makers[name])
        elif name in first:
            pending.append(outputs[inputs.index(name) - 1])
            if first[name] is None:
                return None
        elif name not in constants and name not in inputs:
            if name not in values:
                return None
            constants[name] = from_array(values[name], name)
    nodes = [node for node in body.node if needed.keys() & set(node.output)]
    carried = {name: outputs[inputs.index(name) - 1] for name in first if name in needed}
    graph = make_graph(
        nodes,
        "condition",
        [make_empty_tensor_value_info(name) for name in (*inputs[:2], *carried)],
        [make_empty_tensor_value_info(name) for name in dict.fromkeys((outputs[0], *carried.values()))],
        [constants[name] for name in needed if name in constants],
    )
    state = {name: first[name] for name in carried}
    try:
        evaluator = ReferenceEvaluator(graph, opsets=opsets)
    except Exception:  # it lacks an operator
        return None

    def decide(step: int) -> bool | None:
        feed = _numbers(body, step) | state
        try:
            results = evaluator.run(None, feed)
        except Exception:  # it lacks a version of an operator
            return None
        results = dict(zip((value.name for value in graph.output), results, strict=True))
        state.update((name, results[output]) for name, output in carried.items())
        return bool(np.asarray(results[outputs[0]]).reshape(-1)[0])

    return decide


def _numbers(body: onnx.GraphProto, step: int) -> dict[str, np.ndarray]:
    """Return iteration number and condition, of rank 1 if the body declares that, as in ONNX Runtime."""
    ranks = [len(value.type.tensor_type.shape.dim) for value in body.input[:2]]
    values = np.array(step, "int64"), np.array(True)
    pairs = zip(body.input[:2], values, ranks, strict=True)
    return {declared.name: value.reshape((1,) * rank) for declared, value, rank in pairs}


def _read(node: onnx.NodeProto) -> list[str]:
    """Return the names that a node reads, also in its subgraphs."""
    names = [name for name in node.input if name]
    for attribute in node.attribute:
        for graph in [attribute.g, *attribute.graphs]:
            made = {value.name for value in [*graph.input, *graph.initializer]}
            made |= {name for inner in graph.node for name in inner.output}
            read = [name for inner in graph.node for name in _read(inner)]
            names += [name for name in [*read, *(value.name for value in graph.output)] if name not in made]
    return names


def label_of(node: onnx.NodeProto) -> str:
    """Return how an error message names a node."""
    return f"{node.op_type} {node.name or ','.join(node.output)!r}"


def _named(results: list[str], outputs: list[str]) -> list[onnx.NodeProto]:
    pairs = zip(results, outputs, strict=True)
    return [make_node("Identity", [result], [output]) for result, output in pairs if output]


class _Copies:
    """Copies of a subgraph's nodes, for the graph around it; of its constants there is one copy.

    Attributes:
        graph: The subgraph.
        nodes: The copies.
    """

    def __init__(self, node: onnx.NodeProto, attribute: str, used: set[str]):
        (self.graph,) = (each.g for each in node.attribute if each.name == attribute)
        self.nodes = []
        self._label = label_of(node)
        self._constants = {}  # names by content
        self._count = 0
        # Other nodes' subgraphs may have the same names, hence the prefix.
        self._prefix = f"{next(filter(None, node.output))}/"
        while any(name.startswith(self._prefix) for name in used):
            self._prefix += "/"
        made = [make_node("Constant", [], [each.name], value=each) for each in self.graph.initializer]
        made += [each for each in self.graph.node if each.op_type == "Constant"]
        self._shared = {name: self._prefix + name for each in made for name in each.output}
        self._repeated = [each for each in self.graph.node if each.op_type != "Constant"]
        for each in made:
            self._append(each, self._shared)

    def add(self, given: dict[str, str]) -> list[str]:
        """Add the nodes once, with names for the inputs of the subgraph; return the names of its outputs."""
        own = [name for each in self._repeated for name in each.output if name]
        prefix = f"{self._prefix}{self._count}/" if given else self._prefix
        names = {**self._shared, **given, **{name: prefix + name for name in own}}
        for each in self._repeated:
            self._append(each, names)
        self._count += 1
        if max(len(self.nodes), self._count) > MOST_NODES:
            raise NotImplementedError(
                f"{self._label}: it unrolls to more than {MOST_NODES:,} nodes; export it with "
                "fewer iterations"
            )
        return [names.get(value.name, value.name) for value in self.graph.output]

    def constant(self, value: np.ndarray) -> str:
        """Return the name of a constant."""
        key = str(value.dtype), value.shape, value.tobytes()
        if key not in self._constants:
            self._constants[key] = f"{self._prefix}/constant{len(self._constants)}"
            self._emit("Constant", [], self._constants[key], value=from_array(value))
        return self._constants[key]

    def element(self, x: str, index: int, axis: int) -> str:
        """Return the name of an element of a tensor along an axis."""
        inputs = [x, self.constant(np.array(index, "int64"))]
        return self._emit("Gather", inputs, f"{self._prefix}/element{len(self.nodes)}", axis=axis)

    def unsqueezed(self, x: str, axis: int, opsets: dict) -> str:
        """Return the name of a tensor with another axis of size 1."""
        name = f"{self._prefix}/part{len(self.nodes)}"
        if opsets.get("", opsets.get("ai.onnx", 0)) < 13:
            return self._emit("Unsqueeze", [x], name, axes=[axis])
        return self._emit("Unsqueeze", [x, self.constant(np.array([axis], "int64"))], name)

    def joined(self, parts: list[str], axis: int) -> str:
        """Return the name of tensors joined along an axis, a few at a time: large kernels build slowly."""
        while len(parts) > 1:
            name = f"{self._prefix}/joined{len(self.nodes)}"
            groups = [parts[n : n + _JOINED] for n in range(0, len(parts), _JOINED)]
            parts = [
                self._emit("Concat", group, f"{name}/{n}", axis=axis) if len(group) > 1 else group[0]
                for n, group in enumerate(groups)
            ]
        return parts[0]

    def _emit(self, op: str, inputs: list[str], output: str, **attributes) -> str:
        self.nodes.append(make_node(op, inputs, [output], **attributes))
        return output

    def _append(self, node: onnx.NodeProto, names: dict[str, str]) -> None:
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        _rename(copy, names)
        self.nodes.append(copy)


def _rename(node: onnx.NodeProto, names: dict[str, str]) -> None:
    """Rename the values that a node reads and makes, also those that its subgraphs read."""
    node.input[:] = [names.get(name, name) for name in node.input]
    node.output[:] = [names.get(name, name) for name in node.output]
    for attribute in node.attribute:
        for graph in [attribute.g, *attribute.graphs]:
            hidden = {value.name for value in [*graph.initializer, *graph.input]}
            seen = {name: new for name, new in names.items() if name not in hidden}
            for inner in graph.node:
                _rename(inner, seen)
            for value in graph.output:
                value.name = seen.get(value.name, value.name)
