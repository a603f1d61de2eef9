"""What notebook 22 claims: its scripts run unchanged and give PyTorch's results, and so does the rewriting."""

import operator
import re
from pathlib import Path

import forked
import nbformat
import numpy as np
import pytest
import torch
from agreement import Reference, close, reference
from testing import Function

import tvmnotes as tn
from tvmclassic import names
from tvmnotes import digits

NOTEBOOK = Path(__file__).parents[1] / "notebooks" / "22_running_old_scripts.ipynb"
SOURCES = [cell.source for cell in nbformat.read(NOTEBOOK, as_version=4).cells if cell.cell_type == "code"]
COUNT = 12


def script(name):
    """The text of a script that the notebook writes."""
    head = f"%%writefile out/22/{name}\n"
    (source,) = (source for source in SOURCES if source.startswith(head))
    return source.removeprefix(head)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """What the scripts find: a network in two forms, pictures, themselves."""
    folder = tmp_path_factory.mktemp("scripts")
    x = digits.preprocess(digits.load_test_set()[0][:COUNT])
    np.save(folder / "pictures.npy", x)
    (folder / "digits.onnx").write_bytes(tn.models.onnx_file("digits")[0].read_bytes())
    torch.jit.trace(tn.models.load("digits"), torch.from_numpy(x)).save(folder / "digits.pt")
    for name in ("digits_2019.py", "digits_2023.py"):
        (folder / name).write_text(script(name))
    return folder


@pytest.fixture(scope="module")
def exact(folder):
    """PyTorch's scores and probabilities in double precision."""
    both = Function(lambda x: (scores := both.net(x), torch.softmax(scores, 1)))
    both.net = tn.models.load("digits")
    whole = reference(both, np.load(folder / "pictures.npy"))
    return [Reference([values], [moved]) for values, moved in zip(*whole, strict=True)]


@pytest.fixture(scope="module")
def answers(exact):
    return list(map(str, exact[0].values[0].argmax(axis=1)))


def run(folder, *command):
    return forked.run(*command, cwd=folder)


def test_without_classic_a_script_ends_at_its_imports(folder):
    done = run(folder, "digits_2019.py", "digits.onnx", "pictures.npy")
    assert done.returncode == 1
    assert "cannot import name 'relay' from 'tvm'" in done.stderr


def test_the_script_of_2019_gives_pytorchs_probabilities(folder, exact, answers):
    done = run(folder, "-m", "tvmclassic", "digits_2019.py", "digits.onnx", "pictures.npy")
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr
    assert done.stdout.split() == ["TVM", "reads:", *answers]
    close(np.load(folder / "2019.npy"), exact[1])


@pytest.mark.alone
def test_the_script_of_2023_tunes_and_gives_pytorchs_scores(folder, exact, answers):
    command = ("-m", "tvmclassic", "digits_2023.py", "digits.pt", "pictures.npy", "--trials", "2")
    done = run(folder, *command)
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr
    lines = done.stdout.splitlines()
    assert lines[:2] == ["imported: 21 convolutions, 21 batch norms", "simplified: 21 convolutions, 0 batch norms"]
    assert [line.split("]")[0] for line in lines if "(2/2)" in line] == ["[Task  1/ 8", "[Task  2/ 8"]
    assert len((folder / "digits.log").read_text().splitlines()) == 4
    assert ["TVM", "reads:", *answers] in [line.split() for line in lines]
    assert "Execution time summary:" in lines
    close(np.load(folder / "2023.npy"), exact[0])


def test_the_rewritten_script_gives_pytorchs_probabilities(folder, exact, answers, capsys):
    """The lesson's own cell."""
    (source,) = (source for source in SOURCES if source.startswith("data = np.load(folder"))
    found = {"np": np, "tn": tn, "folder": folder, "old": None, "largest_difference": lambda a, b: 0}
    exec(source, found)
    assert capsys.readouterr().out.splitlines()[0].split() == ["TVM", "reads:", *answers]
    close(found["out"], exact[1])


def test_relay_build_compiles_as_tn_build_does(folder):
    """In a process of its own: the old API stays out of this one."""
    done = run(
        folder,
        "-c",
        (
            "import numpy as np, onnx, tvm, tvmnotes as tn\n"
            "import tvmclassic\n"
            "tvmclassic.enable()\n"
            "from tvm import relay\n"
            f"shape = ({COUNT}, 1, 32, 32)\n"
            "mod, params = relay.frontend.from_onnx(onnx.load('digits.onnx'), {'image': shape})\n"
            "with tvm.transform.PassContext(opt_level=3):\n"
            "    old = relay.build(mod, target='llvm', params=params).compiled\n"
            "tvmclassic.disable()\n"
            "assert not hasattr(tvm, 'relay')\n"
            "new = tn.build(*tn.from_onnx('digits.onnx', {'image': shape}))\n"
            "assert old.kernels.equals(new.kernels)\n"
            "x = np.load('pictures.npy')\n"
            "assert np.array_equal(old(x), new(x))\n"
        ),
    )
    assert done.returncode == 0, done.stderr


def test_the_old_schedule_and_what_today_prints_are_the_same_loops(folder):
    """The lesson's own cells, in a process of its own: the old API stays out of this one."""
    typed, printed = (
        source for source in SOURCES if "tvm.create_schedule(C.op)\nsums" in source or "s.today(" in source
    )
    done = run(
        folder,
        "-c",
        "import runpy\nfrom pathlib import Path\nimport numpy as np, tvm, tvmnotes as tn, tvmclassic\n"
        "folder = Path('.')\ntvmclassic.enable()\n"
        f"{typed.replace('n = 512', 'n = 48')}\n{printed}\n"
        "mod = runpy.run_path('product.py')['mod']\n"
        "tvm.ir.assert_structural_equal(mod, tvm.lower(s, [A, B, C]))\n"
        "a, b = np.random.default_rng(0).standard_normal((2, n, n), dtype='float32')\n"
        "arrays = [tvm.nd.array(array) for array in (a, b, np.zeros_like(a))]\n"
        "old_kernel(*arrays)\n"
        "np.savez('product.npz', a=a, b=b, c=arrays[-1].numpy())\n",
    )
    assert done.returncode == 0, done.stderr
    saved = np.load(folder / "product.npz")
    close(saved["c"], saved["a"].astype("float64") @ saved["b"], terms=48)
    calls = re.findall(r"\bsch\.(\w+)\(", done.stdout)
    assert {"cache_write", "split", "reorder", "compute_at", "parallel", "unroll", "vectorize"} <= set(calls)
    assert calls[-1] == "decompose_reduction", "as the lesson predicts"


def test_the_scripts_names_are_in_the_tables():
    old, new = (names.used_in(script(name)) for name in ("digits_2019.py", "digits_2023.py"))
    for name in ("relay.build_config", "relay.build", "tvm.context", "graph_runtime.create", "NDArray.asnumpy",
                 "relay.frontend.from_onnx", "relay.Function", "relay.nn.softmax", "relay.Module", "util.tempdir",
                 "lib.export_library", "relay.save_param_dict", "tvm.module.load", "GraphModule.load_params",
                 ):  # fmt: skip
        assert name in old.old.tolist()
    for name in (
        "relay.frontend.from_pytorch",
        "tvm.transform.PassContext",
        "graph_executor.GraphModule",
        "relay.transform.SimplifyInference",
        "GraphModule.benchmark",
        "autotvm.tuner.GridSearchTuner",
        "autotvm.task.extract_from_program",
        "autotvm.apply_history_best",
    ):
        assert name in new.old.tolist()
    assert (old.new == "tn.build").sum() >= 2, "what has become one"


# ---------------------------------------------------------------- the page of names


def test_the_page_of_names_is_what_the_code_knows():
    stored = (NOTEBOOK.parent / "pages" / "old_names.md").read_text(encoding="utf-8")
    assert stored == names.page(), "write it anew: CONTRIBUTING.md says how"


def test_every_name_of_the_course_exists():
    written = " ".join(f"{row.new} {row.note}" for row in names.table().itertuples())
    paths = set(re.findall(r'(?<![\w."])tn\.(\w+(?:\.\w+)*)', written))
    assert {"build", "tune", "models.load"} < paths
    for path in paths:
        operator.attrgetter(path)(tn)
