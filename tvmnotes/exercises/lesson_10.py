"""Exercises of lesson 10: a space, a trace on another shape, records of a database, a space with faults."""

import itertools
import json
import tempfile
from pathlib import Path

import numpy as np
import tvm
from tvm import te, tirx
from tvm.s_tir import Schedule

from .exercise import agree, exercise, require, require_keys

_DRAWS = 300  # enough that a tile which is drawn once in 30 is found


def _product(rows: int, columns: int, inner: int, relu: bool = False) -> tirx.PrimFunc:
    """Return the kernel of A times B: a block C, or a block product and a block relu."""
    A = te.placeholder((rows, inner), name="A")
    B = te.placeholder((inner, columns), name="B")
    k = te.reduce_axis((0, inner), name="k")
    name = "product" if relu else "C"
    C = te.compute((rows, columns), lambda i, j: te.sum(A[i, k] * B[k, j], axis=k), name=name)
    if relu:
        C = te.compute((rows, columns), lambda i, j: te.max(C[i, j], 0.0), name="relu")
    return te.create_prim_func([A, B, C])


def _of_tiles(sch: Schedule) -> None:
    """Draw a schedule of `_product`, with one perfect tile."""
    i, j, k = sch.get_loops("C")
    columns = sch.sample_categorical([8, 16], [0.5, 0.5])
    j, column = sch.split(j, [None, columns])
    i, row = sch.split(i, sch.sample_perfect_tile(i, n=2, max_innermost_factor=6))
    sch.reorder(i, j, k, row, column)


def _loops(sch: Schedule, block: str) -> list[tuple[int, int]]:
    """Return the extents and kinds of a block's loops; `_update` is what a decomposed reduction adds."""
    names = [sch.get(each).name_hint for each in sch.get_child_blocks(sch.get_sblock("root"))]
    loops = [sch.get(loop) for loop in sch.get_loops(block if block in names else f"{block}_update")]
    return [(int(loop.extent), int(loop.kind)) for loop in loops]


def _drawn(answer, kernel: tirx.PrimFunc, seed: int) -> Schedule:
    """Return the schedule that a space draws with a seed."""
    sch = Schedule(kernel, seed=1 + 7919 * seed)
    answer(sch)
    return sch


def _samples(trace) -> list:
    """Return the instructions of a trace that draw."""
    return [inst for inst in trace.insts if trace.get_decision(inst) is not None]


def _run(sch: Schedule, sizes: tuple[int, int, int], relu: bool, what: str) -> None:
    """Require that a schedule of `_product` computes the product."""
    rows, columns, inner = sizes
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(shape, dtype="float32") for shape in ((rows, inner), (inner, columns)))
    tensors = [tvm.runtime.tensor(array) for array in (a, b, np.zeros((rows, columns), "float32"))]
    tvm.compile(sch.mod, target="llvm")(*tensors)
    reference = np.maximum(a @ b, 0) if relu else a @ b
    agree(tensors[-1], reference, f"the result of {what}", "A schedule must not change the result.")


@exercise(
    "10.1",
    "i, row = sch.split(i, sch.sample_perfect_tile(…)), with n=2 and the largest inner factor. "
    "sample_categorical draws a number of columns; split takes it as [None, columns].",
    "reorder(i, j, k, row, column), then unroll(row) and vectorize(column). The schedule draws, not Python's "
    "random: only what the schedule draws is in the trace.",
    minutes=20,
    difficulty=2,
)
def space_of_tiles(answer):
    """A space of tiles."""
    for sizes in ((12, 32, 5), (20, 48, 3)):
        rows, columns, inner = sizes
        what = f"{rows} rows and {columns} columns"
        found: dict[tuple[int, int], Schedule] = {}
        for seed in range(_DRAWS):
            sch = _drawn(answer, _product(*sizes), seed)
            loops = _loops(sch, "C")
            do = "Split i and j once each, and reorder."
            require(len(loops) == 5, "the loops of C", "i, j, k, rows and columns", f"{len(loops)} loops", do)
            extents = [extent for extent, _ in loops]
            do = "From the outside: i, j, k, rows, columns."
            require(
                extents[2] == inner, "the loop in the middle", f"k, of {inner}", f"one of {extents[2]}", do
            )
            found[extents[3], extents[4]] = sch
        wanted = {(row, column) for row in range(1, 7) if rows % row == 0 for column in (8, 16)}
        more, missing = sorted(set(found) - wanted), sorted(wanted - set(found))
        do = "A tile is (rows, columns): rows divide i and are at most 6, columns are 8 or 16."
        require(not more, f"the tiles of {what} that the space must not have", "none", more[:3], do)
        do += f" {_DRAWS} draws did not have these."
        require(not missing, f"the tiles of {what} that the space lacks", "none", missing[:3], do)
        (_, column), sch = next((tile, sch) for tile, sch in found.items() if tile[0] > 1)
        kinds = [kind for _, kind in _loops(sch, "C")[3:]]
        do = "unroll the rows, and vectorize the columns."
        names = {tirx.ForKind.UNROLLED: "unrolled", tirx.ForKind.VECTORIZED: "vectorized"}
        told = " and ".join(names.get(kind, "neither") for kind in kinds)
        require(kinds == list(names), "rows and columns", "unrolled and vectorized", told, do)
        drawn = len(_samples(sch.trace))
        do = "Let the schedule draw, by its own calls: MetaSchedule cannot change what Python has drawn."
        require(drawn == 2, "the decisions in a trace", 2, drawn, do)
        _run(sch, sizes, False, f"a tile of {column} columns")


@exercise(
    "10.2",
    "Among trace.insts, the one whose kind.name is SamplePerfectTile is that of the rows; "
    "trace.get_decision(inst) is [outer, inner].",
    "trace.with_decision(inst, [rows // inner, inner], remove_postproc=False) is another trace; "
    "apply_to_schedule(sch, remove_postproc=False) replays it on a new Schedule(kernel).",
    minutes=20,
    difficulty=2,
)
def on_another_shape(answer):
    """A trace on another shape."""
    traces = {}
    for seed in range(40):
        sch = _drawn(_of_tiles, _product(12, 32, 5), seed)
        traces[tuple(extent for extent, _ in _loops(sch, "C")[3:])] = sch.trace
    for (row, column), rows in itertools.product([(6, 16), (4, 8), (3, 8)], (24, 20, 7)):
        sizes = (rows, 48, 3)
        what = f"a trace with tiles of {row} by {column}, on {rows} rows"
        sch = answer(traces[row, column], _product(*sizes), rows)
        do = "Make a Schedule of the kernel, apply the trace, and return it."
        require(isinstance(sch, Schedule), what, "a Schedule", type(sch).__name__, do)
        wanted = max(n for n in range(1, row + 1) if rows % n == 0)
        loops = [extent for extent, _ in _loops(sch, "C")]
        do = "Replay the whole trace."
        require(len(loops) == 5, f"the loops of {what}", 5, len(loops), do)
        do = "Make the largest divisor of the rows that is not above the trace's the decision."
        require(loops[3] == wanted, f"the rows of the tile of {what}", wanted, loops[3], do)
        do = "Leave the other decisions as they are."
        require(loops[4] == column, f"the columns of the tile of {what}", column, loops[4], do)
        _run(sch, sizes, False, what)


_RECORDS = [  # workload, seconds of the repeats
    (1, [3e-3, 3e-3, 3e-3]),
    (0, [1e-3, 1e-3, 4e-3]),
    (2, [1e10]),
    (0, [1.8e-3, 1.9e-3, 1.7e-3]),
    (1, [1e10]),
    (3, [5e-4]),
    (0, [1e10]),
    (2, [1e10]),
]


@exercise(
    "10.3",
    "json.loads of each line of database_tuning_record.json: number, (trace, seconds, target, arguments).",
    "A failed trial has the seconds [1e10]. For each number keep the smallest mean that is below that.",
    minutes=20,
    difficulty=2,
)
def fastest_records(answer):
    """The fastest record of each task."""
    with tempfile.TemporaryDirectory() as folder:
        lines = [
            json.dumps([number, [[[], []], seconds, {"kind": "llvm"}, []]]) for number, seconds in _RECORDS
        ]
        (Path(folder) / "database_tuning_record.json").write_text("\n".join(lines) + "\n")
        (Path(folder) / "database_workload.json").write_text('["1", ""]\n' * 4)
        got = answer(folder)
    do = "Leave out the workloads whose trials all failed; numbers are those of the lines."
    require_keys(got, (0, 1, 3), do)
    for number, wanted in ((0, 1.8e-3), (1, 3e-3), (3, 5e-4)):
        seconds = float(got[number])
        what = f"the seconds of workload {number}"
        do = "Take the mean of the repeats of each record first, and then the smallest mean."
        require(abs(seconds - wanted) < 1e-9, what, "the mean of its fastest record", f"{seconds:.2g}", do)


@exercise(
    "10.4",
    "Print the traces of two seeds, and compare their lines. Which loops does get_loops return if there is "
    "one row? Which line is missing with 4 columns?",
    "reverse_compute_at takes preserve_unit_loops=True. And vectorize in any case: a trace has no if.",
    minutes=25,
    difficulty=3,
)
def lost(answer):
    """A space that loses its way."""
    for sizes in ((12, 16, 5), (20, 24, 3)):
        rows, *_ = sizes
        tiles = [(r, c) for r in range(1, 5) if rows % r == 0 for c in (4, 8)]
        drawn = {}
        for seed in range(_DRAWS):
            sch = _drawn(answer, _product(*sizes, relu=True), seed)
            drawn[tuple(extent for extent, _ in _loops(sch, "product")[3:])] = sch
        do = "Leave the draws as they are: the rows by a perfect tile of at most 4, 4 or 8 columns."
        require(sorted(drawn) == tiles, f"the tiles of {rows} rows", tiles, sorted(drawn), do)
        for (before, sch), after in itertools.product(drawn.items(), tiles):
            what = f"a trace that drew {before[0]} by {before[1]}, replayed with {after[0]} by {after[1]}"
            replayed = _replayed(sch, rows, after, _product(*sizes, relu=True), what)
            product, relu = (_loops(replayed, block) for block in ("product", "relu"))
            got = tuple(extent for extent, _ in product[3:])
            require(got == after, f"the tile of {what}", after, got, "Both numbers must come from the draws.")
            vectors = [extent for extent, kind in product if kind == tirx.ForKind.VECTORIZED]
            do = "A trace has the calls of the branch that was taken, and no if."
            require(vectors == [after[1]], f"the vectorized loops of {what}", [after[1]], vectors, do)
            unrolled = [extent for extent, kind in relu if kind == tirx.ForKind.UNROLLED]
            do = "Which loop of relu is the last but one must not depend on the number of rows."
            require(unrolled == [after[0]], f"the unrolled loops of relu of {what}", [after[0]], unrolled, do)
        _run(drawn[4, 8], sizes, True, "a tile of 4 by 8")


def _replayed(sch: Schedule, rows: int, tile: tuple[int, int], kernel: tirx.PrimFunc, what: str) -> Schedule:
    """Replay a schedule's trace with another tile."""
    trace = sch.trace
    do = "Leave the two draws in place."
    require(len(_samples(trace)) == 2, "the decisions in a trace", 2, len(_samples(trace)), do)
    for inst in _samples(trace):
        perfect = inst.kind.name == "SamplePerfectTile"
        decision = [rows // tile[0], tile[0]] if perfect else (4, 8).index(tile[1])
        trace = trace.with_decision(inst, decision, remove_postproc=False)
    result = Schedule(kernel)
    try:
        trace.apply_to_schedule(result, remove_postproc=False)
        error = None
    except Exception as failure:
        error = type(failure).__name__
    do = "The calls of a trace, and the number of loops that they return, must not depend on the decisions."
    require(error is None, what, "a schedule", error, do)
    return result
