"""`taken`: the branch of an ONNX If whose condition is known, as nodes of the graph around it."""

import onnx
from onnx.helper import make_node


def taken(node: onnx.NodeProto, condition: bool, used: set[str]) -> list[onnx.NodeProto]:
    """Return nodes that compute what an If does, for a condition that is known.

    The names of the branch's own values begin with that of the node's first output, because the branches of
    other nodes may have the same names. No name in `used` is given to them.
    """
    wanted = "then_branch" if condition else "else_branch"
    (branch,) = (attribute.g for attribute in node.attribute if attribute.name == wanted)
    results = [name for each in branch.node for name in each.output if name]
    own = [*results, *(tensor.name for tensor in branch.initializer)]
    prefix = f"{node.output[0]}/"
    while any(prefix + name in used for name in own):
        prefix += "/"
    names = {name: prefix + name for name in own}
    nodes = [make_node("Constant", [], [names[each.name]], value=each) for each in branch.initializer]
    for each in branch.node:
        copy = onnx.NodeProto()
        copy.CopyFrom(each)
        _rename(copy, names)
        nodes.append(copy)
    results = [names.get(value.name, value.name) for value in branch.output]
    pairs = zip(results, node.output, strict=True)
    return nodes + [make_node("Identity", [result], [output]) for result, output in pairs if output]


def _rename(node: onnx.NodeProto, names: dict[str, str]) -> None:
    """Rename the values that a node reads and makes, also those that its branches read."""
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
