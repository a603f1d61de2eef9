"""`tvm.contrib.tedd`: the graphs of TE schedules, their nodes and edges worked out by hand."""

import re
from itertools import pairwise

import pytest
from old_api import enabled  # noqa: F401 (a fixture)
from tvm import te


def product(n=16):
    """A product, and twice it."""
    a, b = (te.placeholder((n, n), name=name) for name in "AB")
    k = te.reduce_axis((0, n), "k")
    c = te.compute((n, n), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="C")
    d = te.compute((n, n), lambda i, j: c[i, j] * 2, name="D")
    return te.create_schedule(d.op), a, b, c, d


def graph(draw, s):
    """The labels of a graph's nodes, and its edges as pairs of these; each label is there once."""
    text = draw(s, output_dot_string=True)
    assert text.startswith("digraph {\n") and text.endswith("}\n")
    labels = dict(re.findall(r'^  (n\d+) \[label="(.*)"\]$', text, re.M))
    edges = [(labels[a], labels[b]) for a, b in re.findall(r"^  (n\d+) -> (n\d+)$", text, re.M)]
    assert len(set(labels.values())) == len(labels) and len(text.splitlines()) == len(labels) + len(edges) + 3
    return set(labels.values()), set(edges)


def chain(*labels):
    return set(pairwise(labels))


T = r"(16, 16) float32"


def test_the_data_flow_from_stages_to_tensors():
    from tvm.contrib import tedd

    s, *_ = product()
    nodes, edges = graph(tedd.viz_dataflow_graph, s)
    tensors = {name: rf"{name}\n{T}" for name in "ABCD"}
    assert nodes == {*"ABCD", *tensors.values()}
    assert edges == {
        *((name, tensors[name]) for name in "ABCD"), (tensors["A"], "C"), (tensors["B"], "C"), (tensors["C"], "D"),
    }  # fmt: skip


def test_cache_stages_and_factored_sums_are_in_the_data_flow():
    from tvm.contrib import tedd

    s, a, _, c, d = product()
    s.cache_read(a, "shared", [c])
    local = s.cache_write(c, "local")
    s[local].compute_at(s[d], s[d].op.axis[0])
    s[c].compute_inline()
    _, edges = graph(tedd.viz_dataflow_graph, s)
    assert chain("A", rf"A\n{T}", r"A.shared\nin shared", rf"A.shared\n{T}", r"C.local\nin local\nat D, i") <= edges
    assert chain(r"C.local\nin local\nat D, i", rf"C.local\n{T}", r"C\ninlined", rf"C\n{T}", "D", rf"D\n{T}") <= edges
    assert (rf"A\n{T}", r"C.local\nin local\nat D, i") not in edges and len(edges) == 11

    s, _, _, c, _ = product()
    outer, _ = s[c].split(s[c].op.reduce_axis[0], 4)
    s.rfactor(c, outer)
    _, edges = graph(tedd.viz_dataflow_graph, s)
    assert chain(rf"B\n{T}", "C.rf", r"C.rf\n(4, 16, 16) float32", "C", rf"C\n{T}", "D") <= edges


def test_the_tree_of_loops():
    from tvm.contrib import tedd

    s, _, _, c, d = product()
    i, j = s[d].op.axis
    outer, _ = s[d].split(i, 4)
    s[d].parallel(outer)
    s[d].vectorize(j)
    s[c].compute_at(s[d], outer)
    nodes, edges = graph(tedd.viz_schedule_tree, s)
    of_c = r"C\nat D, i.outer", r"i\n16", r"j\n16", r"k\n16, a reduction"
    of_d = "D", r"i.outer\n4\nparallel", r"i.inner\n4", r"j\n16\nvectorize"
    assert nodes == {"root", "A", "B", *of_c, *of_d}
    assert edges == {("root", "A"), ("root", "B")} | chain("root", *of_d) | chain(of_d[1], *of_c)


def test_threads_and_inlined_stages_are_in_the_tree():
    from tvm.contrib import tedd

    s, _, _, c, d = product()
    s[d].bind(s[d].op.axis[0], te.thread_axis("blockIdx.x"))
    s[d].unroll(s[d].op.axis[1])
    s[c].compute_inline()
    nodes, edges = graph(tedd.viz_schedule_tree, s)
    assert {r"i\n16\nblockIdx.x", r"C\ninlined"} <= nodes and ("root", r"C\ninlined") in edges


def test_what_axes_come_from():
    from tvm.contrib import tedd

    s, _, _, c, d = product()
    outer, _ = s[c].split(s[c].op.reduce_axis[0], 4)
    s[c].reorder(outer, s[c].op.axis[0])
    fused = s[d].fuse(*s[d].op.axis)
    s[d].split(fused, nparts=8)
    nodes, edges = graph(tedd.viz_itervar_relationship_graph, s)
    whole, parts = r"D: i.j.fused\n256", (r"D: i.j.fused.outer\n8", r"D: i.j.fused.inner\n32")
    halves = r"C: k.outer\n4, a reduction", r"C: k.inner\n4, a reduction"
    assert edges == {
        (r"C: k\n16, a reduction", "split by 4"), *(("split by 4", half) for half in halves),
        (r"D: i\n16", "fuse"), (r"D: j\n16", "fuse"), ("fuse", whole),
        (whole, "split by 8"), *(("split by 8", part) for part in parts),
    }  # fmt: skip
    assert nodes == {r"C: i\n16", r"C: j\n16"} | {node for edge in edges for node in edge}


def test_a_graph_is_written_and_shown(tmp_path, monkeypatch):
    from tvm.contrib import tedd

    shown = []
    monkeypatch.setitem(tedd.viz_dataflow_graph.__globals__, "display", shown.append)
    s, *_ = product()
    for draw in (tedd.viz_dataflow_graph, tedd.viz_schedule_tree, tedd.viz_itervar_relationship_graph):
        path = tmp_path / "graph.dot"
        assert draw(s.normalize(), True, str(path)) == ""
        assert path.read_text() == draw(s, output_dot_string=True)
    assert len(shown) == 3 and all(each.startswith("<svg") and ">C" in each for each in shown)


def test_only_schedules_are_drawn():
    from tvm.contrib import tedd

    for draw in (tedd.viz_dataflow_graph, tedd.viz_schedule_tree, tedd.viz_itervar_relationship_graph):
        with pytest.raises(TypeError, match=r"tedd: expected a schedule of te\.create_schedule; got int"):
            draw(3)


def test_a_convolutions_graphs(tmp_path):
    from tvm import topi
    from tvm.contrib import tedd

    x, w = te.placeholder((1, 3, 8, 8), name="data"), te.placeholder((4, 3, 3, 3), name="kernel")
    y = topi.nn.relu(topi.nn.conv2d_nchw(x, w, 1, 1, 1))
    s = te.create_schedule(y.op)
    conv = y.op.input_tensors[0]
    s[conv.op.input_tensors[0]].compute_inline()
    s[conv].compute_at(s[y], s[y].op.axis[1])
    texts = []
    for draw in (tedd.viz_dataflow_graph, tedd.viz_schedule_tree, tedd.viz_itervar_relationship_graph):
        draw(s, dot_file_path=str(tmp_path / "graph.dot"))
        texts.append((tmp_path / "graph.dot").read_text())
    assert all(r"data\n(1, 3, 8, 8) float32" in text for text in texts[:1]) and "inlined" in texts[1]
    assert texts[1].count("a reduction") == texts[2].count("a reduction") == 3
