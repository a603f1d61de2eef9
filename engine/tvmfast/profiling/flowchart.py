"""Graphs from top to bottom as SVG, which shows wherever a notebook is read; Mermaid needs JupyterLab.

The method is Sugiyama's: a node's row is the longest path to it; an edge over several rows has a position in
each of them; a row is sorted by the mean position of its predecessors, so that few edges cross. Source: K.
Sugiyama, S. Tagawa, M. Toda, Methods for Visual Understanding of Hierarchical System Structures, 1981.
"""

import base64
from collections.abc import Sequence
from itertools import pairwise
from xml.sax.saxutils import escape

# In pixels: the width of a letter, the height of a line, and the distances between nodes, rows and to the
# border.
_LETTER, _LINE = 7.4, 17
_GAP = 26
_RISE = 28
_MARGIN = 10


def svg(nodes: dict, edges: list[tuple]) -> str:
    """Draw a graph as SVG.

    Args:
        nodes: A list of lines by key; the first line is the node's title.
        edges: Pairs (from, to) of keys; each edge leads to a later node of `nodes`.

    Returns:
        The SVG's text.
    """
    rows, steps = _rows(list(nodes), edges)
    size = {
        key: (_LETTER * max(map(len, lines)) + 14, _LINE * len(lines) + 10) for key, lines in nodes.items()
    }
    widths = [sum(size.get(key, (4, 0))[0] + _GAP for key in row) - _GAP for row in rows]
    positions = {}  # x of the middle, y of the top and of the bottom
    top, whole = _MARGIN, max(widths) + 2 * _MARGIN
    for row, width in zip(rows, widths, strict=True):
        left, tallest = (whole - width) / 2, max((size[key][1] for key in row if key in size), default=0)
        for key in row:
            across, down = size.get(key, (4, tallest))
            positions[key] = (left + across / 2, top, top + down)
            left += across + _GAP
        top += tallest + _RISE
    height = top - _RISE + _MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{whole:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {whole:.0f} {height:.0f}" font-family="monospace" font-size="12">',
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
        'orient="auto"><path d="M0 0L8 4L0 8z" fill="#555555"/></marker></defs>'
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for a, b in steps:
        (x, _, y), (to_x, to_y, _) = positions[a], positions[b]
        tip = ' marker-end="url(#tip)"' if b in nodes else ""
        middle = (y + to_y) / 2
        curve = f"M{x:.1f} {y:.1f}C{x:.1f} {middle:.1f} {to_x:.1f} {middle:.1f} {to_x:.1f} {to_y:.1f}"
        parts.append(f'<path d="{curve}" fill="none" stroke="#555555"{tip}/>')
    for key, (x, y, bottom) in positions.items():
        if key in nodes:
            parts += _box(nodes[key], x, y, *size[key])
        else:  # a long edge passes here
            parts.append(f'<path d="M{x:.1f} {y:.1f}V{bottom:.1f}" stroke="#555555"/>')
    return "\n".join([*parts, "</svg>"])


def img(drawn: str, alt: str) -> str:
    """Return an SVG as an HTML image: JupyterLab shows it in notebooks that it does not trust, too."""
    encoded = base64.b64encode(drawn.encode()).decode()
    return f'<img src="data:image/svg+xml;base64,{encoded}" alt="{escape(alt)}"/>'


class Drawing(str):
    """The text of an SVG, which a notebook shows as an image."""

    def _repr_html_(self) -> str:
        return img(self, "graph")

    def _repr_svg_(self) -> str:
        return self


def of_onnx(nodes: Sequence) -> Drawing:
    """Draw nodes of an ONNX graph, in its order, by their operators, without inputs from elsewhere."""
    maker = {name: index for index, node in enumerate(nodes) for name in node.output}
    edges = [(maker[name], index) for index, node in enumerate(nodes) for name in node.input if name in maker]
    return Drawing(svg({index: [node.op_type] for index, node in enumerate(nodes)}, edges))


def _rows(keys: list, edges: list[tuple]) -> tuple[list[list], list[tuple]]:
    """Return the keys by row, with positions for long edges, and the edges from row to row."""
    level = dict.fromkeys(keys, 0)
    for key in keys:
        level[key] = max((level[a] + 1 for a, b in edges if b == key), default=0)
    rows: list[list] = [[] for _ in range(1 + max(level.values(), default=0))]
    steps: list[tuple] = []
    for key in keys:
        rows[level[key]].append(key)
    for a, b in dict.fromkeys(edges):
        last = a
        for between in range(level[a] + 1, level[b]):
            rows[between].append((a, b, between))
            steps.append((last, (a, b, between)))
            last = (a, b, between)
        steps.append((last, b))
    for above, row in pairwise(rows):
        at = {key: index / len(above) for index, key in enumerate(above)}
        mean = {key: [at[a] for a, b in steps if b == key and a in at] for key in row}
        row.sort(key=lambda key: sum(mean[key]) / max(1, len(mean[key])))
    return rows, steps


def _box(lines: list[str], x: float, y: float, width: float, height: float) -> list[str]:
    """Draw a rounded box with its lines, the title in bold if others follow."""
    fill = "#dcebf5" if len(lines) == 1 else "#fdf1d6"
    parts = [
        f'<rect x="{x - width / 2:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="5" '
        f'fill="{fill}" stroke="#0072B2"/>'
    ]
    for index, line in enumerate(lines):
        weight = ' font-weight="bold"' if len(lines) > 1 and not index else ""
        down = y + 5 + _LINE * (index + 0.72)
        parts.append(f'<text x="{x:.1f}" y="{down:.1f}" text-anchor="middle"{weight}>{escape(line)}</text>')
    return parts
