"""`tvm.contrib.relay_viz` draws a Relay module as text: a tree that is printed, or a file in the DOT language.

    viz = relay_viz.RelayVisualizer(mod, params, plotter=relay_viz.TermPlotter(), parser=relay_viz.TermVizParser())
    viz.render()

A parser says what node and edges an expression is, a plotter makes graphs of them and shows these; both can be
replaced by a script's own, by the interface of old: `VizNode`, `VizEdge`, `VizParser`, `VizGraph`, `Plotter`.
"""

import collections
from pathlib import Path

from ..relay import ir
from ..relay.ty import TensorType

UNKNOWN_TYPE = "unknown"


class VizNode:
    """A node to draw: `identity` within its graph, `type_name` and `detail` as text."""

    def __init__(self, node_id: str, node_type: str, node_detail: str):
        self.identity, self.type_name, self.detail = node_id, node_type, node_detail

    def __repr__(self) -> str:
        return f"VizNode(identity: {self.identity}, type_name: {self.type_name}, detail: {self.detail!r})"


class VizEdge:
    """The value of node `start` is read by node `end`; both are identities."""

    def __init__(self, start_node: str, end_node: str):
        self.start, self.end = start_node, end_node


class VizParser:
    """It makes a node of an expression, and the edges that lead into it."""

    def get_node_edges(
        self, node, relay_param: dict, node_to_id: dict
    ) -> tuple[VizNode | None, list[VizEdge]]:
        raise NotImplementedError(
            "VizParser.get_node_edges: a parser of your own gives (VizNode or None, [VizEdge])"
        )


class VizGraph:
    """It collects the nodes and edges of one function."""

    def node(self, viz_node: VizNode) -> None:
        raise NotImplementedError("VizGraph.node: a graph of your own takes a VizNode")

    def edge(self, viz_edge: VizEdge) -> None:
        raise NotImplementedError("VizGraph.edge: a graph of your own takes a VizEdge")


class Plotter:
    """It makes graphs and shows them."""

    def create_graph(self, name: str) -> VizGraph:
        raise NotImplementedError("Plotter.create_graph: a plotter of your own gives a VizGraph")

    def render(self, filename: str) -> None:
        raise NotImplementedError("Plotter.render: a plotter of your own shows its graphs")


class DefaultVizParser(VizParser):
    """Node and edges for each kind of expression; details are types and attributes, one a line."""

    def get_node_edges(self, node, relay_param, node_to_id):
        identity = node_to_id[node]
        edges = [VizEdge(node_to_id[part], identity) for part in ir.all_parts(node)]
        if isinstance(node, ir.Var):
            kind = "Param" if node.name_hint in relay_param else "Input"
            return VizNode(
                identity, f"Var({kind})", f"name_hint: {node.name_hint}\n{_type_lines(node)}"
            ), edges
        if isinstance(node, ir.Constant):
            return VizNode(identity, "Const", _type_lines(node)), edges
        if isinstance(node, ir.Call):
            attrs = "\n".join(f"{k}: {v}" for k, v in (node.attrs.items() if node.attrs else ()))
            return VizNode(identity, f"Call {_name(node.op)}", attrs), edges
        if isinstance(node, ir.Function):
            return VizNode(identity, "Func", f"params: {', '.join(p.name_hint for p in node.params)}"), edges
        if isinstance(node, ir.TupleGetItem):
            return VizNode(identity, "TupleGetItem", f"index: {node.index}"), edges
        return VizNode(identity, type(node).__name__, ""), edges


def _name(op) -> str:
    if isinstance(op, ir.Function):
        return "fn"
    return (
        op.name if isinstance(op, ir.Op) else f"@{op.name_hint}" if hasattr(op, "name_hint") else "of a value"
    )


def _type_lines(node) -> str:
    ty = node._type
    return (
        f"shape: {ty.shape}\ndtype: {ty.dtype}"
        if isinstance(ty, TensorType)
        else f"type: {ty or UNKNOWN_TYPE}"
    )


class RelayVisualizer:
    """It walks a module's functions with a parser, hands what it finds to a plotter, and renders."""

    def __init__(self, relay_mod, relay_param: dict | None = None, plotter: Plotter | None = None,
                 parser: VizParser | None = None):  # fmt: skip
        if not isinstance(relay_mod, ir.IRModule):
            raise TypeError(f"RelayVisualizer: expected a Relay module, got {type(relay_mod).__name__}")
        self._plotter, parser = plotter or TermPlotter(), parser or DefaultVizParser()
        for name, function in relay_mod.infer().by_name().items():
            order = ir.post_order(function, ir.all_parts)  # functions that are called too
            identities = {node: str(n) for n, node in enumerate(order)}
            graph = self._plotter.create_graph(name)
            for node in order:
                drawn, edges = parser.get_node_edges(node, relay_param or {}, identities)
                if drawn is not None:
                    graph.node(drawn)
                for edge in edges:
                    graph.edge(edge)

    def render(self, filename: str | None = None) -> None:
        """Show the graphs; to `filename` where one is given and the plotter writes files."""
        self._plotter.render(filename)


# ---------------------------------------------------------------- plotters


class _Graph(VizGraph):
    def __init__(self, name: str):
        self.name, self.nodes, self.reads = name, {}, {}

    def node(self, viz_node: VizNode) -> None:
        self.nodes[viz_node.identity] = viz_node

    def edge(self, viz_edge: VizEdge) -> None:
        self.reads.setdefault(viz_edge.end, []).append(viz_edge.start)


class TermGraph(_Graph):
    """`render()` gives the tree as text."""

    def render(self) -> str:
        reads = collections.Counter(start for starts in self.reads.values() for start in starts)
        drawn = set()
        lines = [f"@{self.name}"]
        stack = [(identity, "", True) for identity in reversed(list(self.nodes)) if identity not in reads]
        while stack:
            identity, indent, last = stack.pop()
            node = self.nodes.get(identity)
            detail = ", ".join(node.detail.splitlines()) if node else ""
            label = f"{node.type_name}{f' ({detail})' if detail else ''}" if node else UNKNOWN_TYPE
            parts = self.reads.get(identity, [])
            number = f"[{identity}] " if reads[identity] > 1 and parts else ""
            again = bool(number) and identity in drawn
            lines.append(
                f"{indent}{'`' if last else '|'}--{number}{f'{node.type_name} as above' if again else label}"
            )
            drawn.add(identity)
            if not again:
                inner = indent + ("   " if last else "|  ")
                stack.extend(
                    (part, inner, n == len(parts) - 1) for n, part in reversed(list(enumerate(parts)))
                )
        return "\n".join(lines)


class _Plotter(Plotter):
    graph = _Graph

    def __init__(self):
        self.graphs = []

    def create_graph(self, name: str) -> _Graph:
        self.graphs.append(self.graph(name))
        return self.graphs[-1]


class TermPlotter(_Plotter):
    """A tree per function: under each value what it is made of. What stands more than once is drawn once, then named
    with its number.
    """

    graph = TermGraph

    def render(self, filename: str | None = None) -> None:
        """Print the trees, or write them to `filename`."""
        text = "\n\n".join(graph.render() for graph in self.graphs)
        if filename:
            Path(filename).write_text(text + "\n")
        else:
            print(text)


class DotPlotter(_Plotter):
    """A file in the DOT language, which `dot -Tsvg` draws; attributes are dictionaries of Graphviz's own."""

    def __init__(self, graph_attr: dict | None = None, node_attr: dict | None = None, edge_attr: dict | None = None,
                 get_node_attr=None):  # fmt: skip
        super().__init__()
        self.attrs = {
            "graph": graph_attr or {},
            "node": {"shape": "box", **(node_attr or {})},
            "edge": edge_attr or {},
        }
        self.get_node_attr = get_node_attr or (lambda _node: {})

    def render(self, filename: str | None = None) -> None:
        """Write `filename`.gv, graph.gv without a name."""
        lines = ["digraph {"]
        lines += [f"  {what} [{_dot(attrs)}]" for what, attrs in self.attrs.items() if attrs]
        for number, graph in enumerate(self.graphs):
            lines += [f"  subgraph cluster_{number} {{", f"    {_dot({'label': graph.name})}"]
            for identity, node in graph.nodes.items():
                label = f"{node.type_name}\n{node.detail}".strip()
                lines.append(
                    f"    n{number}_{identity} [{_dot({'label': label, **self.get_node_attr(node)})}]"
                )
            for end, starts in graph.reads.items():
                lines += [f"    n{number}_{start} -> n{number}_{end}" for start in starts]
            lines.append("  }")
        Path(f"{filename or 'graph'}.gv").write_text("\n".join([*lines, "}", ""]))


def _dot(attrs: dict) -> str:
    quoted = (
        (k, str(v).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")) for k, v in attrs.items()
    )
    return ", ".join(f'{k}="{v}"' for k, v in quoted)


_INTERFACE = {"UNKNOWN_TYPE": UNKNOWN_TYPE, "VizNode": VizNode, "VizEdge": VizEdge, "VizParser": VizParser,
             "VizGraph": VizGraph, "Plotter": Plotter, "DefaultVizParser": DefaultVizParser}  # fmt: skip
_TERMINAL = {
    "TermPlotter": TermPlotter,
    "TermVizParser": DefaultVizParser,
}  # a plotter puts the lines as it likes
_DOT = {"DotPlotter": DotPlotter, "DotVizParser": DefaultVizParser}
NAMESPACES = {
    "tvm.contrib.relay_viz": {**_INTERFACE, **_TERMINAL, **_DOT, "RelayVisualizer": RelayVisualizer},
    "tvm.contrib.relay_viz.interface": _INTERFACE,
    "tvm.contrib.relay_viz.terminal": {**_TERMINAL, "TermGraph": TermGraph},
    "tvm.contrib.relay_viz.dot": _DOT,
}
