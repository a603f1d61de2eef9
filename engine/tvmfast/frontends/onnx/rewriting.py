"""Operators written as others: what rules of quantized.py and fused.py take, and add."""

from collections.abc import Callable, Iterator

import numpy as np
import onnx
from onnx.helper import make_node
from onnx.numpy_helper import from_array, to_array

from .control_flow import label_of
from .graph import opset_of, replace


def nodes_of(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """Yield the nodes of a graph and of the graphs that they hold."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                yield from nodes_of(inner)


def key_of(node: onnx.NodeProto) -> tuple[str, str]:
    """Return a node's domain and operator, by which rules are found."""
    return node.domain.replace("ai.onnx", ""), node.op_type


def constants_of(graph: onnx.GraphProto) -> dict[str, onnx.TensorProto]:
    """Return the weights and the values of Constant nodes, by name."""
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant" and node.attribute and node.attribute[0].name == "value":
            tensors[node.output[0]] = node.attribute[0].t
    return tensors


class Rewritten:
    """A model whose operators are replaced.

    Attributes:
        opset: The version of ONNX's own operators.
        tensors: Its constants, by name.
    """

    def __init__(self, proto: onnx.ModelProto):
        graph = proto.graph
        self.proto, self.opset, self.tensors = proto, opset_of(proto, 1), constants_of(graph)
        self.names = {name for node in nodes_of(graph) for name in (*node.input, *node.output)}
        self.names |= {each.name for each in (*graph.initializer, *graph.input)}

    def rewrite(self, graph: onnx.GraphProto, rules: dict, part_of: Callable) -> None:
        """Replace the nodes of a graph that have a rule, in place; what rules add may have one, too."""
        nodes, waiting = [], list(reversed(graph.node))
        while waiting:
            node = waiting.pop()
            for attribute in node.attribute:
                for inner in (attribute.g, *attribute.graphs):
                    if inner.node:  # to write to an attribute that is no graph would make it one
                        self.rewrite(inner, rules, part_of)
            if (rule := rules.get(key_of(node))) is None:
                nodes.append(node)
                self.kept(node)
                continue
            part = part_of(node, self)
            rule(part)
            waiting += reversed(part.nodes)
        replace(graph.node, nodes)

    def kept(self, node: onnx.NodeProto) -> None:
        """Take note of a node that has no rule."""


class Part:
    """The nodes that replace an operator."""

    def __init__(self, node: onnx.NodeProto, model: Rewritten):
        self.node, self.model = node, model
        self.nodes: list[onnx.NodeProto] = []
        self.attributes = {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}

    def input(self, number: int | None) -> str:
        """Return the name of an input, "" if it is left out."""
        names = self.node.input
        return "" if number is None or number >= len(names) else names[number]

    def output(self, number: int) -> str:
        """Return the name of an output, "" if it is left out."""
        return self.node.output[number] if number < len(self.node.output) else ""

    def weight(self, number: int) -> np.ndarray | None:
        """Return the array of an input that is a weight, None if it is left out."""
        name = self.input(number)
        if name and name not in self.model.tensors:
            raise NotImplementedError(
                f"{label_of(self.node)}: its input {name!r} is computed in the run; expected a weight of the "
                "model"
            )
        return to_array(self.model.tensors[name]) if name else None

    def add(self, op: str, *inputs: str, output: str = "", **attributes) -> str:
        """Add a node, and return the name of its output."""
        output = output or self.unused(op)
        name = self.node.name or self.node.output[0]
        self.nodes.append(make_node(op, inputs, [output], name, **attributes))
        return output

    def unused(self, what: str) -> str:
        """Return a name of a value that the model does not have yet."""
        name = base = f"{self.node.output[0]}_{what}"
        number = 0
        while name in self.model.names:
            number += 1
            name = f"{base}{number}"
        self.model.names.add(name)
        return name

    def constant(self, value, dtype: str) -> str:
        """Add a constant, and return its name."""
        return self.add("Constant", value=from_array(np.array(value, dtype)))

    def refuse(self, what: str) -> None:
        """Raise NotImplementedError with the node's name."""
        raise NotImplementedError(f"{label_of(self.node)}: {what}")
