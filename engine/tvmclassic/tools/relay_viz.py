"""`tvm.contrib.relay_viz`: draws a Relay module as a printed tree or a file in the DOT language.

    viz = relay_viz.RelayVisualizer(mod, params, relay_viz.TermPlotter(), relay_viz.TermVizParser())
    viz.render()

A parser turns an expression into a node and edges; a plotter collects them in graphs and renders these.
Scripts can supply their own by the old interface: `VizNode`, `VizEdge`, `VizParser`, `VizGraph`, `Plotter`.
"""

import collections
import contextlib
from pathlib import Path

from ..relay import ir
from ..relay.ty import TensorType

UNKNOWN_TYPE = "unknown"


class VizNode:
    """A node: `identity` is unique within its graph, `type_name` and `detail` are its label."""

    def __init__(self, node_id: str, node_type: str, node_detail: str):
        self.identity, self.type_name = node_id, node_type
        self.detail = node_detail

    def __repr__(self) -> str:
        return f"VizNode(identity: {self.identity}, type_name: {self.type_name}, detail: {self.detail!r})"


class VizEdge:
    """An edge from node `start` to node `end`, which reads its value; both are identities."""

    def __init__(self, start_node: str, end_node: str):
        self.start, self.end = start_node, end_node


class VizParser:
    """Interface: turns an expression into a node and the edges that lead to it."""

    def get_node_edges(
        self, node, relay_param: dict, node_to_id: dict
    ) -> tuple[VizNode | None, list[VizEdge]]:
        """Return the node, None to draw none, and its incoming edges.

        Args:
            node: Relay expression.
            relay_param: Parameters by name.
            node_to_id: Identities of all expressions of the function.
        """
        raise NotImplementedError(
            "VizParser.get_node_edges: a parser of your own gives (VizNode or None, [VizEdge])"
        )


class VizGraph:
    """Interface: collects the nodes and edges of one function."""

    def node(self, viz_node: VizNode) -> None:
        """Add a node."""
        raise NotImplementedError("VizGraph.node: a graph of your own takes a VizNode")

    def edge(self, viz_edge: VizEdge) -> None:
        """Add an edge."""
        raise NotImplementedError("VizGraph.edge: a graph of your own takes a VizEdge")


class Plotter:
    """Interface: creates graphs and renders them."""

    def create_graph(self, name: str) -> VizGraph:
        """Return a new graph for the function `name`."""
        raise NotImplementedError("Plotter.create_graph: a plotter of your own gives a VizGraph")

    def render(self, filename: str) -> None:
        """Render all graphs."""
        raise NotImplementedError("Plotter.render: a plotter of your own shows its graphs")


class DefaultVizParser(VizParser):
    """Parser for all kinds of expressions; a detail holds types or attributes, one per line."""

    def get_node_edges(self, node, relay_param, node_to_id):
        """Return a node and its incoming edges."""
        identity = node_to_id[node]
        edges = [VizEdge(node_to_id[part], identity) for part in ir.all_parts(node)]
        kind, detail = type(node).__name__, ""
        match node:
            case ir.Var():
                kind = "Var(Param)" if node.name_hint in relay_param else "Var(Input)"
                detail = f"name_hint: {node.name_hint}\n{_type_lines(node)}"
            case ir.Constant():
                kind, detail = "Const", _type_lines(node)
            case ir.Call():
                kind = f"Call {_name(node.op)}"
                detail = "\n".join(f"{k}: {v}" for k, v in (node.attrs.items() if node.attrs else ()))
            case ir.Function():
                kind, detail = "Func", f"params: {', '.join(p.name_hint for p in node.params)}"
            case ir.TupleGetItem():
                detail = f"index: {node.index}"
        return VizNode(identity, kind, detail), edges


def _name(op) -> str:
    if isinstance(op, ir.Function):
        return "fn"
    if isinstance(op, ir.Op):
        return op.name
    return f"@{op.name_hint}" if hasattr(op, "name_hint") else "of a value"


def _type_lines(node) -> str:
    ty = node.known_type
    if isinstance(ty, TensorType):
        return f"shape: {ty.shape}\ndtype: {ty.dtype}"
    return f"type: {ty or UNKNOWN_TYPE}"


class RelayVisualizer:
    """Visualizer of a module's functions: passes a parser's nodes and edges to a plotter.

    Args:
        relay_mod: Relay module; TypeError for others.
        relay_param: Parameters by name.
        plotter: Default `TermPlotter()`.
        parser: Default `DefaultVizParser()`.
    """

    def __init__(self, relay_mod, relay_param=None, plotter=None, parser=None):
        if not isinstance(relay_mod, ir.IRModule):
            raise TypeError(f"RelayVisualizer: expected a Relay module, got {type(relay_mod).__name__}")
        self._plotter, parser = plotter or TermPlotter(), parser or DefaultVizParser()
        functions = relay_mod.by_name()
        for name, function in functions.items():
            with contextlib.suppress(ValueError, NotImplementedError):  # drawn with the types that are known
                function.infer(functions)
            order = ir.post_order(function, ir.all_parts)  # including called functions
            identities = {node: str(n) for n, node in enumerate(order)}
            graph = self._plotter.create_graph(name)
            for node in order:
                drawn, edges = parser.get_node_edges(node, relay_param or {}, identities)
                if drawn is not None:
                    graph.node(drawn)
                for edge in edges:
                    graph.edge(edge)

    def render(self, filename: str | None = None) -> None:
        """Render the graphs, to `filename` if it is given and the plotter writes files."""
        self._plotter.render(filename)


# ---------------------------------------------------------------- plotters


class TermGraph(VizGraph):
    """A function's nodes and edges, which `render` draws as a tree of text."""

    def __init__(self, name: str):
        self.name = name
        self.nodes, self.reads = {}, {}  # by identity: its node, the identities that it reads

    def node(self, viz_node: VizNode) -> None:
        """Add a node."""
        self.nodes[viz_node.identity] = viz_node

    def edge(self, viz_edge: VizEdge) -> None:
        """Add an edge."""
        self.reads.setdefault(viz_edge.end, []).append(viz_edge.start)

    def render(self) -> str:
        """Return the tree."""
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
            branch = "`--" if last else "|--"
            lines.append(indent + branch + number + (f"{node.type_name} as above" if again else label))
            drawn.add(identity)
            if not again:
                inner = indent + ("   " if last else "|  ")
                children = [(part, inner, n == len(parts) - 1) for n, part in enumerate(parts)]
                stack.extend(reversed(children))
        return "\n".join(lines)


class _Plotter(Plotter):
    def __init__(self):
        self._name_to_graph = {}  # by TVM's name, as a script's plotter fills it

    def create_graph(self, name: str) -> TermGraph:
        """Add a graph for the function `name`."""
        self._name_to_graph[name] = TermGraph(name)
        return self._name_to_graph[name]


class TermPlotter(_Plotter):
    """Plotter of one tree per function, with each value's operands below it.

    A value read several times is drawn once, then referred to by its number.
    """

    def render(self, filename: str | None = None) -> None:
        """Print the trees, or write them to `filename`."""
        text = "\n\n".join(graph.render() for graph in self._name_to_graph.values())
        if filename:
            Path(filename).write_text(text + "\n")
        else:
            print(text)


class DotPlotter(_Plotter):
    """Plotter to a file in the DOT language, for `dot -Tsvg`; attributes are dictionaries of Graphviz's."""

    def __init__(self, graph_attr=None, node_attr=None, edge_attr=None, get_node_attr=None):
        super().__init__()
        node_attr = {"shape": "box", **(node_attr or {})}
        self.attrs = {"graph": graph_attr or {}, "node": node_attr, "edge": edge_attr or {}}
        self.get_node_attr = get_node_attr or (lambda _node: {})

    def render(self, filename: str | None = None) -> None:
        """Write `filename`.gv, by default graph.gv."""
        lines = ["digraph {"]
        lines += [f"  {kind} [{dot_attributes(attrs)}]" for kind, attrs in self.attrs.items() if attrs]
        for number, graph in enumerate(self._name_to_graph.values()):
            lines += [f"  subgraph cluster_{number} {{", f"    {dot_attributes({'label': graph.name})}"]
            for identity, node in graph.nodes.items():
                attrs = {"label": f"{node.type_name}\n{node.detail}".strip(), **self.get_node_attr(node)}
                lines.append(f"    n{number}_{identity} [{dot_attributes(attrs)}]")
            for end, starts in graph.reads.items():
                lines += [f"    n{number}_{start} -> n{number}_{end}" for start in starts]
            lines.append("  }")
        Path(f"{filename or 'graph'}.gv").write_text("\n".join([*lines, "}", ""]))


def dot_attributes(attrs: dict) -> str:
    """Return Graphviz's attributes as DOT has them between brackets."""
    escapes = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})
    return ", ".join(f'{name}="{str(value).translate(escapes)}"' for name, value in attrs.items())


_CLASSES = (VizNode, VizEdge, VizParser, VizGraph, Plotter, DefaultVizParser)
_INTERFACE = {"UNKNOWN_TYPE": UNKNOWN_TYPE, **{each.__name__: each for each in _CLASSES}}
_TERMINAL = {"TermPlotter": TermPlotter, "TermVizParser": DefaultVizParser}  # plotters lay out the details
_DOT = {"DotPlotter": DotPlotter, "DotVizParser": DefaultVizParser}
NAMESPACES = {
    "tvm.contrib.relay_viz": {**_INTERFACE, **_TERMINAL, **_DOT, "RelayVisualizer": RelayVisualizer},
    "tvm.contrib.relay_viz.interface": _INTERFACE,
    "tvm.contrib.relay_viz.terminal": {**_TERMINAL, "TermGraph": TermGraph},
    "tvm.contrib.relay_viz.dot": _DOT,
}
