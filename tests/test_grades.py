"""What students handed in: verdicts from stored outputs, nothing run; and, asked to, run with a limit."""

import csv
import json

import pytest
from typer.testing import CliRunner

from tvmnotes import grades
from tvmnotes.__main__ import app
from tvmnotes.exercises import verdict
from tvmnotes.exercises.exercise import EXERCISES


def notebook(*cells):
    """A notebook of code, each cell a pair of source and printed text."""
    written = []
    for number, (source, text) in enumerate(cells):
        outputs = [{"output_type": "stream", "name": "stdout", "text": text}] if text else []
        written.append({"cell_type": "code", "id": f"cell-{number}", "metadata": {}, "source": source,
                        "execution_count": number, "outputs": outputs})  # fmt: skip
    return {"cells": written, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}


def checked(number, verdict):
    return f'tn.check("{number}", answer_1)', f"{number}: {verdict}\n"


def hand_in(folder, **notebooks):
    for name, cells in notebooks.items():
        path = folder / f"{name.replace('__', '/')}.ipynb"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(notebook(*cells)))
    return folder


def run(*words):
    return CliRunner().invoke(app, ["check", *map(str, words)], env={"COLUMNS": "400"})


def test_the_line_that_check_prints_is_the_one_that_is_read(monkeypatch, tmp_path):
    def cannot_write():
        raise OSError("the disk is full")

    said = {}
    monkeypatch.setattr("tvmfast.core.data.writable_cache", cannot_write)
    monkeypatch.setitem(EXERCISES, "06.1", EXERCISES["06.1"]._replace(test=lambda answer: answer()))
    for answer in (lambda: None, lambda: 1 / 0, None):
        text = f"06.1: {verdict('06.1', answer)}\n"
        hand_in(tmp_path, it=[('tn.check("06.1", answer_1)', text)])
        (found,) = grades.read(tmp_path).verdicts
        said[text.split()[1].strip(";.")] = found.verdict
    assert said == {"right": "right", "wrong": "wrong", "not": "not answered"}


def test_each_exercise_of_the_course_is_read(tmp_path):
    hand_in(tmp_path, it=[checked(number, "right") for number in EXERCISES])
    assert grades.read(tmp_path).by_student() == {"it": dict.fromkeys(sorted(EXERCISES), "right")}


def test_the_best_verdict_counts_whoever_the_folder_or_the_file_is_named_after(tmp_path):
    hand_in(
        tmp_path,
        Ada__one=[checked("06.1", "wrong. The tile: …"), checked("06.2", "not answered yet. …")],
        Ada__two=[checked("06.1", "right; this was not noted: …")],
        Bob__deep__three=[("#tn.check(\"06.3\", a)\ntn.course.check('07.1', a)", "07.1: right\n06.3: right\n")],
        **{"06_conv2d_by_hand-Cy": [("print('06.1: right')", "06.1: right\n")]},
        Ada__solutions__one=[checked("06.3", "right")],
    )
    found = grades.read(tmp_path)
    assert found.by_student() == {
        "Ada": {"06.1": "right", "06.2": "not answered"},
        "Bob": {"07.1": "right"},
        "Cy": {},
    }
    assert str(found).splitlines() == [
        "Ada: 1 solved",
        "    right: 06.1",
        "    not answered: 06.2",
        "Bob: 1 solved",
        "    right: 07.1",
        "Cy: 0 solved",
        "    problems: 06_conv2d_by_hand-Cy.ipynb: no exercise is checked in it",
        "3 students, 4 notebooks.",
    ]


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"cells": 1}', '{"cells": [{"cell_type": "code"}]}', "[" * 100_000, "\udcff", '{"cells": [[]]}'],
)
def test_a_file_that_is_no_notebook_is_named_and_the_others_are_read(tmp_path, text):
    hand_in(tmp_path, good=[checked("06.1", "right")])
    (tmp_path / "bad.ipynb").write_text(text, errors="surrogateescape")
    found = grades.read(tmp_path)
    assert found.by_student() == {"bad": {}, "good": {"06.1": "right"}}
    assert "bad.ipynb: not readable: " in str(found)
    (tmp_path / "bad.ipynb").unlink()
    assert grades.read(tmp_path).summary == "1 student, 1 notebook."


def test_names_reach_neither_the_terminal_nor_a_spreadsheet_as_commands(tmp_path):
    hand_in(tmp_path, **{"=1+1__a": [checked("06.1", "right")], "\x1b[31mred__a": [checked("06.1", "right")]})
    done = run(tmp_path, "--csv", tmp_path / "it.csv")
    assert done.exit_code == 0 and "\x1b" not in done.output
    rows = list(csv.DictReader((tmp_path / "it.csv").read_text().splitlines()))
    assert [(row["student"], row["exercise"], row["verdict"]) for row in rows] == [
        ("'=1+1", "06.1", "right"),
        ("?[31mred", "06.1", "right"),
    ]


def test_nothing_runs_unless_asked_and_then_with_a_warning(tmp_path):
    written = tmp_path / "written"
    cells = [
        (f"open({str(written)!r}, 'w').close()", ""),
        ('def check(number, answer): print(f"{number}: {answer}")\ncheck("06.1", "wrong. It ran")', "06.1: right\n"),
    ]
    hand_in(tmp_path, Ada=cells)
    done = run(tmp_path)
    assert done.exit_code == 0 and "right: 06.1" in done.output and not written.exists()
    done = run(tmp_path, "--run")
    assert done.exit_code == 0 and "--run runs the students' code with your rights" in done.output
    assert "wrong: 06.1" in done.output and written.exists()


def test_a_notebook_that_does_not_end_is_stopped_and_its_stored_outputs_do_not_count(tmp_path):
    hand_in(tmp_path, Ada=[("while True:\n    pass", ""), checked("06.1", "right")])
    found = grades.read(tmp_path, seconds=1)
    assert found.by_student() == {"Ada": {}} and "Ada.ipynb: stopped after 1 s" in str(found)


def test_a_folder_without_notebooks_is_refused(tmp_path):
    done = run(tmp_path)
    assert done.exit_code == 2 and "found no notebook" in done.output
