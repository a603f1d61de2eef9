"""Tables of old and new names: the replacement of each name that `tvmclassic` supports or rejects.

Notebook 22 shows these tables. Rows of operators come from the Relax functions that each declares; others are
in names.csv, one line per name.
`relax` is short for `tvm.relax`, `tn` for `tvmnotes`; `lib` is the result of `relay.build`, now `tn.build`.
"""

import ast
import re

import pandas as pd
import tvm
import tvm.rpc
from IPython.display import HTML
from pandas.io.formats.style import Styler

from . import graph_executor, modules, patches, removed
from .relay import build, ops, transform, vm

KINDS = ("calls", "methods", "autotvm", "passes", "operators", "gone")
_ABOUT = {
    "calls": "Functions and classes. A module with several names is listed once: `relay.op.nn.conv2d` is "
    "`relay.nn.conv2d`, `relay.expr.Call` is `relay.Call`, `graph_runtime` is `graph_executor`.",
    "methods": "What scripts call on an array, a library and the executor.",
    "autotvm": "AutoTVM and Ansor left the loop to the script; today it is `tn.tune`, whose records "
    "`tn.build` takes.",
    "passes": "Relay's passes, and those that do their work today. One without a new name leaves a module as "
    "it is.",
    "operators": "Relay's operators, and what each calls in Relax, as the translating code declares.",
    "gone": "Names that are not served, with what to use today. A script that uses one gets the note as an "
    "error.",
}

# Class names as the tables show them: our classes, and those of TVM that get patched.
_OURS = {
    graph_executor.GraphModule: "GraphModule",
    graph_executor.GraphModuleDebug: "GraphModuleDebug",
    build.ExecutorFactoryModule: "lib",
    vm.Executor: "GraphExecutor",
    vm.Executable: "tvm.runtime.vm.Executable",
    vm.VirtualMachine: "tvm.runtime.vm.VirtualMachine",
}
_TVMS = {
    tvm.target.Target: "tvm.target.Target",
    tvm.transform.PassContext: "tvm.transform.PassContext",
    tvm.IRModule: "tvm.IRModule",
    tvm.runtime.Tensor: "NDArray",
    tvm.runtime.Device: "Device",
    tvm.runtime.Module: "Module",
    tvm.rpc.LocalSession: "tvm.rpc.LocalSession",
    tvm.rpc.RPCSession: "tvm.rpc.RPCSession",
}


def table(kind: str | None = None):
    """Return the names of one kind, or of all.

    Args:
        kind: One of KINDS; None for all of them, in that order.

    Returns:
        A pandas DataFrame with one row per name and the columns old, new, note (strings).

    Raises:
        ValueError: `kind` is not one of KINDS.
    """
    if kind is not None and kind not in KINDS:
        raise ValueError(f"names.table: expected one of {', '.join(KINDS)}, or None for all; got {kind!r}")
    listed = [
        (old, *row) for wanted in KINDS if kind in (wanted, None) for old, row in _rows()[wanted].items()
    ]
    return pd.DataFrame(listed, columns=["old", "new", "note"])


def used_in(source: str):
    """Return the rows for the names that a script uses.

    Methods are recognized where they are called, by name alone, unless the object is an imported module.

    Args:
        source: Source text of the script.

    Returns:
        A pandas DataFrame like that of `table`: each row once, in the order of the source.

    Raises:
        SyntaxError: `source` is not Python.
    """
    tree = ast.parse(source)
    imported, uses = {}, []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            imported.update(_imported(node))
    row_of = _known()
    rows = {old: row for kind in KINDS for old, row in _rows()[kind].items()}
    methods = {old.rpartition(".")[2]: old for old in reversed(removed.ROWS["methods"])}
    called = {node.func for node in ast.walk(tree) if isinstance(node, ast.Call)}
    for node in ast.walk(tree):
        root, *rest = _dotted(node)
        name = ""
        if root in imported:
            name = _short(".".join([imported[root], *rest]))
        elif rest and node in called:
            name = methods.get(rest[-1], "")
        if row := rows.get(row_of.get(name, name)):
            uses.append(((node.end_lineno, node.end_col_offset), name, *row))
    listed = dict.fromkeys(row[1:] for row in sorted(uses))
    return pd.DataFrame(list(listed), columns=["old", "new", "note"])


def _imported(node: ast.Import | ast.ImportFrom) -> dict[str, str]:
    """Map the names that an import statement binds to full names."""
    if isinstance(node, ast.ImportFrom):
        return {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    names = {}
    for alias in node.names:
        module = alias.name if alias.asname else alias.name.partition(".")[0]
        names[alias.asname or module] = module
    return names


def served() -> dict[str, object]:
    """Return every object that scripts can reach, keyed by the name they write; `modules` builds them."""
    values = {
        f"{space}.{name}": value for space, names in modules.spaces().items() for name, value in names.items()
    }
    for owner, name, value in patches.patches():
        path = _TVMS.get(owner, getattr(owner, "__name__", ""))
        values[path if name.startswith("__") and owner in _TVMS else f"{path}.{name}"] = value
    for ours, path in _OURS.items():
        values.update({f"{path}.{name}": value for name, value in vars(ours).items()})
    return {
        _short(name): value
        for name, value in values.items()
        if value is not None and not name.rpartition(".")[2].startswith("_")
    }


def _known() -> dict[str, str | None]:
    """Map each served name to the name that its row is listed under, or None if it has no row."""
    everything, rows = served(), {old for rows in _rows().values() for old in rows}
    first = {id(value): name for name, value in everything.items() if name in rows}
    group = {name: next((g for g in _groups() if name.startswith(g[:-1])), None) for name in everything}
    return {
        name: name if name in rows else first.get(id(value), group[name])
        for name, value in everything.items()
    }


def _short(name: str) -> str:
    """Shorten a full name: tvm.relay.var to relay.var, tvm.contrib.util.tempdir to util.tempdir."""
    return re.sub(r"^tvm\.(?=relay|autotvm|auto_scheduler)|^tvm\.contrib\.(debugger\.)?(?=\w)", "", name)


def _dotted(node) -> list[str]:
    """Return the names in `a.b.c`; the first is "" unless the chain starts with a variable."""
    names = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return [node.id if isinstance(node, ast.Name) else "", *reversed(names)]


def page() -> str:
    """Return all tables as one Markdown page, the text of notebooks/pages/old_names.md."""
    parts = [
        "# Old names, new names\n\nThe names of TVM 0.5 to 0.19 that `tvmclassic` serves, and what "
        "replaces each today. Lesson [22](../22_running_old_scripts.ipynb) shows how to use it. `relax` is "
        "short for `tvm.relax` and `tn` for `tvmnotes`, and `lib` is the result of `relay.build` or "
        "`tn.build`.\n"
    ]
    for kind in KINDS:
        parts.append(f"\n## {kind}\n\n{_ABOUT[kind]}\n\n| old | new | note |\n|---|---|---|\n")
        for row in table(kind).itertuples(index=False):
            new = ", ".join(f"`{name}`" for name in row.new.split(", ")) if row.new else ""
            parts.append(f"| `{row.old}` | {new} | {row.note} |\n".replace("||", "|\\|"))
    return "".join(parts)


# ---------------------------------------------------------------- rows, by kind


def _groups() -> dict[str, tuple[str, str]]:
    """Return the rows for whole modules whose names share one replacement."""
    return {
        **removed.ROWS["modules"],
        **{f"{old}.*": (f"tvm.support.{new}", "") for old, new in modules.SUPPORT.items()},
    }


def _rows() -> dict[str, dict[str, tuple[str, str]]]:
    there = served()
    listed = {
        kind: {old: row for old, row in removed.ROWS[kind].items() if old in there} for kind in KINDS[:3]
    }
    groups = {old: row for old, row in _groups().items() if any(name.startswith(old[:-1]) for name in there)}
    return {
        **listed,
        "calls": {**listed["calls"], **groups},
        "passes": {
            old: removed.ROWS["passes"][old] for old in map("relay.transform.{}".format, transform.NAMES)
        },
        "operators": {
            f"relay.{name}": _operator(operator) for name, operator in sorted(ops.OPERATORS.items())
        },
        "gone": removed.ROWS["gone"],
    }


def _operator(operator: ops.Operator) -> tuple[str, str]:
    if operator.relax == ["const"]:
        return "relax.const", "known when the program is compiled"
    note = "" if operator.relax else "the value itself"
    return ", ".join(f"relax.op.{name}" for name in operator.relax), note


def show(rows):
    """Return a table as HTML for notebooks: all rows, left-aligned, names in a monospace font.

    Args:
        rows: A DataFrame of `table` or `used_in`.

    Returns:
        An `IPython.display.HTML` object.
    """
    cells = [
        {"selector": "td, th", "props": "text-align: left; vertical-align: top"},
        {"selector": "td:not(:last-child)", "props": "font-family: monospace"},
        {"selector": "td:last-child", "props": "min-width: 14em; overflow-wrap: anywhere"},
    ]
    styled = Styler(rows, uuid="names", cell_ids=False).hide(axis="index").set_table_styles(cells)
    return HTML(styled.to_html())
