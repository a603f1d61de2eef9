"""`tvm.contrib.tedd`: graphs of a TE schedule, in the DOT language or as an SVG in a notebook.

    tedd.viz_schedule_tree(s, dot_file_path="tree.dot")     # and then: dot -Tsvg tree.dot
    tedd.viz_dataflow_graph(s, show_svg=True)

Each function takes `show_svg`, whether to show the graph here, `dot_file_path`, a file to write, and
`output_dot_string`, whether to return the text, and else "". All raise TypeError for what is no TE schedule.
"""

import itertools
from pathlib import Path

from IPython.display import display

from tvmfast.profiling import flowchart

from ..te.ops import REDUCE, key, name_of, outputs_of
from ..te.schedule import Schedule
from ..te.steps import CacheRead, Split
from .relay_viz import dot_attributes


def viz_dataflow_graph(sch, show_svg=False, dot_file_path="", output_dot_string=False) -> str:
    """Draw the stages, and the tensors that each makes and reads, cache stages and factored sums included."""
    nodes, edges = {}, []
    reads = _reads(_checked(sch))
    for stage in sch.stages:
        edges += [((id(source), index), id(stage)) for source, index in reads[id(stage)]]
        nodes[id(stage)] = [stage.name, *_place(stage)]
        for index, tensor in enumerate(outputs_of(stage.op)):
            shape = ", ".join(map(str, tensor.shape))
            nodes[id(stage), index] = [tensor.name, f"({shape}) {tensor.dtype}"]
            edges.append((id(stage), (id(stage), index)))
    return _drawn(nodes, edges, show_svg, dot_file_path, output_dot_string)


def viz_schedule_tree(sch, show_svg=False, dot_file_path="", output_dot_string=False) -> str:
    """Draw the loops of each stage from the outermost in, below the loop in which the stage is computed."""
    nodes, edges = {"root": ["root"]}, []

    def add(stage, above) -> None:
        places = [(id(stage), key(axis)) for axis in stage.leaf_iter_vars]
        nodes[id(stage)] = [stage.name, *_place(stage)]
        for place, axis in zip(places, stage.leaf_iter_vars, strict=True):
            thread = stage.threads.get(key(axis))
            kind = thread.thread_tag if thread is not None else stage.kinds.get(key(axis))
            nodes[place] = [name_of(axis), _length(axis), *([kind] if kind else [])]
        edges.extend(itertools.pairwise([above, id(stage), *places]))
        for other in sch.stages:
            if other.attach_stage is stage:
                add(other, (id(stage), key(other.attach_ivar)))

    for stage in _checked(sch).stages:
        if stage.attach_type != "scope":
            add(stage, "root")
    return _drawn(nodes, edges, show_svg, dot_file_path, output_dot_string)


def viz_itervar_relationship_graph(sch, show_svg=False, dot_file_path="", output_dot_string=False) -> str:
    """Draw of each stage the axes, and the splits and fusions that made some of others."""
    nodes, edges = {}, []
    for stage in _checked(sch).stages:
        axes = {key(axis): axis for axis in stage.all_iter_vars}
        made = {key(part) for step in stage.steps for part in step.parts}
        for of, axis in axes.items():
            if of not in made:
                nodes[id(stage), of] = [f"{stage.name}: {name_of(axis)}", _length(axis)]
        for step in stage.steps:
            if step.parts:  # a reordering has none
                sized = f" by {step.size}" if isinstance(step, Split) else ""
                nodes[id(step)] = [f"{type(step).__name__.lower()}{sized}"]
                edges += [((id(stage), key(axis)), id(step)) for axis in step.of]
                edges += [(id(step), (id(stage), key(part))) for part in step.parts]
                for part in step.parts:
                    nodes[id(stage), key(part)] = [f"{stage.name}: {name_of(part)}", _length(part)]
    return _drawn(nodes, edges, show_svg, dot_file_path, output_dot_string)


def _checked(sch) -> Schedule:
    if not isinstance(sch, Schedule):
        raise TypeError(f"tedd: expected a schedule of te.create_schedule; got {type(sch).__name__}")
    return sch


def _reads(sch: Schedule) -> dict[int, list]:
    """Return what each stage reads, by its id: pairs of a stage and the number of its result."""
    new = {id(change.stage) for change in sch.changes}
    reads = {
        id(stage): [(sch[tensor], int(tensor.value_index)) for tensor in stage.origin_op.input_tensors]
        for stage in sch.stages
        if id(stage) not in new
    }
    for change in sch.changes:
        made = [(change.stage, index) for index in range(len(outputs_of(change.stage.op)))]
        if isinstance(change, CacheRead):
            reads[id(change.stage)] = [(change.source, 0)]
            for reader in map(id, change.readers):
                reads[reader] = [made[0] if each[0] is change.source else each for each in reads[reader]]
        else:
            reads[id(change.stage)], reads[id(change.result)] = reads[id(change.result)], made
    return reads


def _place(stage) -> list[str]:
    """Return where a stage is computed and its result is, in lines; none for the default."""
    lines = [f"in {stage.scope}"] if stage.scope else []
    if stage.attach_type == "inline":
        lines.append("inlined")
    if stage.attach_type == "scope":
        lines.append(f"at {stage.attach_stage.name}, {name_of(stage.attach_ivar)}")
    return lines


def _length(axis) -> str:
    return f"{axis.dom.extent}{', a reduction' if axis.iter_type == REDUCE else ''}"


def _drawn(nodes: dict, edges: list, show_svg: bool, dot_file_path, output_dot_string: bool) -> str:
    numbers, edges = {of: f"n{number}" for number, of in enumerate(nodes)}, list(dict.fromkeys(edges))
    labels = {of: dot_attributes({"label": "\n".join(text)}) for of, text in nodes.items()}
    lines = [f"  {numbers[of]} [{label}]" for of, label in labels.items()]
    lines += [f"  {numbers[of]} -> {numbers[to]}" for of, to in edges]
    dot = "\n".join(["digraph {", '  node [shape="box"]', *lines, "}", ""])
    if dot_file_path:
        Path(dot_file_path).write_text(dot)
    if show_svg:
        display(flowchart.Drawing(flowchart.svg(nodes, edges)))
    return dot if output_dot_string else ""


_GRAPHS = (viz_dataflow_graph, viz_schedule_tree, viz_itervar_relationship_graph)
NAMESPACES = {"tvm.contrib.tedd": {graph.__name__: graph for graph in _GRAPHS}}
