"""Compiled: what it takes and refuses, from any thread; saved whole or not at all; loaded only where it fits."""

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
import tvm
import tvm_ffi
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tvmfast import load
from tvmfast.core import machine
from tvmfast.core.specs import parse_inputs
from tvmfast.runtime import compiled

FILES = {"lib.so", "graph.json", "params.bin", "manifest.json"}


@pytest.fixture(scope="module")
def weigh(compile_function):
    """x - 2y, for an x of shape (3, 4) and a y of shape (4,)."""
    return compile_function(lambda x, y: x - 2 * y, {"x": (3, 4), "y": (4,)})


X = np.arange(12, dtype="float32").reshape(3, 4)
Y = np.array([1, 2, 3, 4], "float32")


# ---------------------------------------------------------------- calling


@pytest.mark.parametrize(
    ("args", "kwargs"), [((X, Y), {}), ((X,), {"y": Y}), ((), {"y": Y, "x": X})], ids=["position", "mixed", "name"]
)
def test_arguments_by_position_and_by_name(weigh, args, kwargs):
    y = weigh(*args, **kwargs)
    assert (type(y), y.dtype) == (np.ndarray, np.float32)
    np.testing.assert_array_equal(y, X - 2 * Y)


def unaligned(array, shift=4):
    """A copy at an address `shift` bytes past a multiple of 64."""
    buffer = np.zeros(array.nbytes + 128, "uint8")
    start = -buffer.ctypes.data % 64 + shift
    copy = buffer[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[:] = array
    return copy


def read_only(array):
    copy = array.copy()
    copy.flags.writeable = False
    return copy


WAYS = {
    "aligned": lambda x: unaligned(x, 0),
    "unaligned": unaligned,
    "by columns": np.asfortranarray,
    "every second": lambda x: np.repeat(x, 2, axis=0)[::2],
    "backwards": lambda x: x[::-1].copy()[::-1],
    "read-only": read_only,
    "broadcast": lambda x: np.broadcast_to(x[:1], x.shape),
    "tvm": tvm.runtime.tensor,
    "torch": torch.tensor,
    "torch with a gradient": lambda x: torch.tensor(x, requires_grad=True),
    "torch parameter": lambda x: torch.nn.Parameter(torch.tensor(x)),
    "torch by columns": lambda x: torch.tensor(x.T.copy()).T,
    "torch unaligned": lambda x: torch.cat([torch.zeros(1), torch.tensor(x).flatten()])[1:].view(3, 4),
    "torch expanded": lambda x: torch.tensor(x[:1]).expand(3, 4),
    "torch from inference": lambda x: torch.inference_mode()(torch.tensor)(x),
}


@pytest.mark.parametrize("way", WAYS)
def test_arrays_of_every_kind(weigh, way):
    given = WAYS[way](X)
    values = given.detach().numpy() if isinstance(given, torch.Tensor) else getattr(given, "numpy", lambda: given)()
    values = np.array(values)
    np.testing.assert_array_equal(weigh(given, Y), values - 2 * Y)
    after = given.detach().numpy() if isinstance(given, torch.Tensor) else getattr(given, "numpy", lambda: given)()
    np.testing.assert_array_equal(after, values)


@pytest.mark.parametrize("way", ["unaligned", "by columns", "every second", "torch by columns", "torch unaligned"])
def test_tvm_tensors_that_kernels_cannot_read_are_copied(weigh, way):
    """Kernels check neither strides nor alignment."""
    tensor = tvm_ffi.from_dlpack(WAYS[way](X), require_contiguous=False)
    assert isinstance(tensor, tvm.runtime.Tensor)
    np.testing.assert_array_equal(weigh(tensor, Y), X - 2 * Y)


def test_results_are_the_callers_own(weigh, compile_function):
    first = weigh(X, Y)
    copy = first.copy()
    weigh(X + 1, Y)
    np.testing.assert_array_equal(first, copy)
    x = unaligned(X, 0)
    same = compile_function(lambda x: x, {"x": (3, 4)})(x)
    same[:] = 0
    np.testing.assert_array_equal(x, X)


def test_a_result_that_is_a_view_of_an_input_outlives_its_run(compile_function):
    """TVM frees it in the next run, without Python's lock, which the array and PyTorch's tensor behind it need."""
    lib = compile_function(lambda x: (x + 1, x.reshape(-1), x * 2), {"x": (2, 3)})
    for _ in range(3):
        x = torch.randn(2, 3)
        np.testing.assert_array_equal(lib(x.numpy())[1], x.numpy().ravel())


def test_nan_and_infinity_pass_through(weigh):
    x = X.copy()
    x[0, :3] = np.nan, np.inf, -np.inf
    np.testing.assert_array_equal(weigh(x, Y), x - 2 * Y)


def test_a_scalar_input(compile_function):
    lib = compile_function(lambda x: x + 1, {"x": ()})
    negative_view = torch.tensor(-2j).conj().imag  # 2, of which the memory has -2
    assert negative_view.is_neg() and negative_view.is_contiguous()
    for x in (np.array(2, "float32"), torch.tensor(2.0), negative_view):
        assert lib(x) == 3 and lib(x).shape == ()


def test_threads_may_share_a_network(lib, small):
    inputs = [small.x * scale for scale in range(8)]
    wanted = [lib(x) for x in inputs]

    def run(i):
        return all(np.array_equal(lib(inputs[i]), wanted[i]) for _ in range(200))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(run, range(8)))


# ---------------------------------------------------------------- at the door

OUTLINE = r"expected 2 inputs \(x: float32\[3, 4\]; y: float32\[4\]\), got "
BAD = [
    ((X,), {}, TypeError, OUTLINE + "1 by position; missing: y"),
    ((), {}, TypeError, OUTLINE + "0 by position; missing: x, y"),
    ((X, Y, Y), {}, TypeError, OUTLINE + "3 by position"),
    ((X,), {"z": Y}, TypeError, OUTLINE + "1 by position and z by name; no such input: z; missing: y"),
    ((X, Y), {"x": X}, TypeError, OUTLINE + "2 by position and x by name; given twice: x"),
    (([1, 2], Y), {}, TypeError, "input 'x': expected a NumPy array, torch tensor or TVM tensor; got list"),
    ((None, Y), {}, TypeError, "input 'x': expected .*; got NoneType"),
    ((X, np.float32(3)), {}, TypeError, "input 'y': expected .*; got float32"),
    ((compiled.TensorSpec("x", (3, 4)), Y), {}, TypeError, "input 'x': expected .*; got TensorSpec"),
    ((X, Y[:3]), {}, ValueError, r"input 'y': expected the shape \(4,\), got \(3,\)"),
    ((X[None], Y), {}, ValueError, r"input 'x': expected the shape \(3, 4\), got \(1, 3, 4\)"),
    ((torch.zeros(4, 3), Y), {}, ValueError, r"input 'x': expected the shape \(3, 4\), got \(4, 3\)"),
    ((tvm.runtime.tensor(Y), Y), {}, ValueError, r"input 'x': expected the shape \(3, 4\), got \(4,\)"),
    ((X, Y.astype("float64")), {}, ValueError, "input 'y': expected the dtype float32, got float64"),
    ((X, Y.astype(">f4")), {}, ValueError, "input 'y': expected the dtype float32, got >f4"),
    ((X, torch.zeros(4, dtype=torch.int64)), {}, ValueError, "input 'y': expected the dtype float32, got int64"),
    ((X, tvm.runtime.tensor(Y.astype("int8"))), {}, ValueError, "input 'y': expected the dtype float32, got int8"),
]


NO_DENSE = {
    "masked array": lambda x: np.ma.masked_equal(x, 1),
    "layout torch.sparse_coo": lambda x: torch.tensor(x).to_sparse(),
    "layout torch.sparse_csr": lambda x: torch.tensor(x).to_sparse_csr(),
    "layout torch._mkldnn": lambda x: torch.tensor(x).to_mkldnn(),
    "nested": lambda x: torch.nested.nested_tensor(list(torch.tensor(x)), layout=torch.jagged),
    "nested one": lambda x: torch.nested.nested_tensor(list(torch.tensor(x))),
    "'meta'": lambda x: torch.tensor(x).to("meta"),
}


@pytest.mark.filterwarnings("ignore:.*prototype|.*beta")
@pytest.mark.parametrize("what", NO_DENSE)
def test_what_is_no_dense_array(weigh, what):
    given, message = NO_DENSE[what](X), f"expected .*, got .*{what}"
    with pytest.raises(TypeError, match=f"^input 'x': {message}"):
        weigh(given, Y)
    if what == "'meta'":
        assert parse_inputs({"x": given}) == [compiled.TensorSpec("x", (3, 4))]  # an example is asked for its shape
    else:
        with pytest.raises(TypeError, match=f"^input 'x': {message}"):
            parse_inputs({"x": given})


@pytest.mark.parametrize(("args", "kwargs", "error", "message"), BAD)
def test_wrong_arguments_are_refused_before_anything_runs(weigh, monkeypatch, args, kwargs, error, message):
    monkeypatch.setattr(weigh, "_main", lambda *tensors: pytest.fail("the kernels ran"))
    with pytest.raises(error, match=f"^{message}"):
        weigh(*args, **kwargs)


# ---------------------------------------------------------------- saving and loading


def files(folder):
    return sorted(path.name for path in Path(folder).iterdir())


@pytest.fixture(scope="module")
def plus(compile_function):
    return compile_function(lambda x: x + 1, {"x": (3,)})


@pytest.fixture(scope="module")
def times(compile_function):
    return compile_function(lambda x: x * 10, {"x": (3,)})


V = np.arange(3, dtype="float32")


@pytest.fixture(scope="module")
def saved(lib, tmp_path_factory):
    """`lib`, saved. Not to be changed: `copy` is for that."""
    return lib.save(tmp_path_factory.mktemp("saved") / "net")


@pytest.fixture
def copy(saved, tmp_path):
    return Path(shutil.copytree(saved, tmp_path / "net"))


def test_what_is_saved_comes_back(lib, small, saved):
    assert set(files(saved)) == FILES and files(saved.parent) == ["net"]
    again = load(str(saved))
    np.testing.assert_array_equal(again(small.x), lib(small.x))
    assert (again.inputs, again.outputs, again.graph) == (lib.inputs, lib.outputs, lib.graph)
    assert (str(again.target), again.opt_level) == (str(lib.target), lib.opt_level)
    assert repr(again) == repr(lib)
    assert again.params.keys() == lib.params.keys()
    for name, array in lib.params.items():
        np.testing.assert_array_equal(again.params[name].numpy(), array.numpy())


def test_a_loaded_network_runs_in_a_process_without_frameworks(lib, small, saved, tmp_path, python):
    np.save(tmp_path / "x.npy", small.x)
    python(
        "import sys; sys.modules.update(torch=None, onnx=None)\n"
        "import numpy as np, tvmfast\n"
        f"lib = tvmfast.load({str(saved)!r})\n"
        f"np.save({str(tmp_path / 'y.npy')!r}, lib(np.load({str(tmp_path / 'x.npy')!r})))\n"
        "assert 'tvmfast.compiler' not in sys.modules"
    )
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), lib(small.x))


def test_several_outputs_come_back(compile_function, tmp_path):
    two = compile_function(lambda x: (x + 1, x.sum(), x > 1), {"x": (3,)})
    for lib in (two, load(two.save(tmp_path / "two"))):
        plus, total, more = lib(V)
        np.testing.assert_array_equal(plus, V + 1)
        assert (total, total.shape) == (3, ())
        np.testing.assert_array_equal(more, V > 1)


def test_a_loaded_network_saves_again(small, saved, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "")  # its library is linked already
    again = load(load(saved).save(tmp_path / "a" / "again"))
    np.testing.assert_array_equal(again(small.x), load(saved)(small.x))
    for name in FILES:
        assert (tmp_path / "a" / "again" / name).read_bytes() == (saved / name).read_bytes()


def test_a_saved_network_is_replaced_and_the_new_one_loaded(plus, times, tmp_path):
    folder = tmp_path / "net"
    plus.save(folder)
    old = load(folder)
    assert times.save(folder) == folder
    np.testing.assert_array_equal(load(folder)(V), V * 10)
    np.testing.assert_array_equal(old(V), V + 1)
    np.testing.assert_array_equal(load(old.save(tmp_path / "other"))(V), V + 1)  # not what has taken its folder
    np.testing.assert_array_equal(load(load(folder).save(folder))(V), V * 10)
    assert files(tmp_path) == ["net", "other"]


def test_a_loaded_network_outlives_its_folder(plus, tmp_path):
    old = load(plus.save(tmp_path / "net"))
    shutil.rmtree(tmp_path / "net")
    np.testing.assert_array_equal(old(V), V + 1)
    np.testing.assert_array_equal(load(old.save(tmp_path / "other"))(V), V + 1)


def test_folders_to_save_into(plus, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to("real")
    assert [plus.save(folder) for folder in ("empty", "a/b/c", "link", "link")] == [
        Path("empty"),
        Path("a/b/c"),
        Path("link"),
        Path("link"),
    ]
    for folder in ("empty", "a/b/c", "real"):
        np.testing.assert_array_equal(load(folder)(V), V + 1)
    assert (tmp_path / "link").is_symlink() and files(tmp_path) == ["a", "empty", "link", "real"]


def test_folders_of_others_are_left_alone(plus, tmp_path):
    (tmp_path / "file").write_text("mine")
    for name, content in {"thesis": ["chapter1.tex"], "extension": ["manifest.json", "background.js"]}.items():
        (tmp_path / name).mkdir()
        for file in content:
            (tmp_path / name / file).write_text("{}")
    for name in ("file", "thesis", "extension"):
        with pytest.raises(FileExistsError, match=f"{name} exists and is not a saved network"):
            plus.save(tmp_path / name)
    assert files(tmp_path) == ["extension", "file", "thesis"]
    assert files(tmp_path / "extension") == ["background.js", "manifest.json"]
    assert files(tmp_path / "thesis") == ["chapter1.tex"]


@pytest.mark.parametrize("step", ["export_library", "function", "replace"])
@pytest.mark.parametrize("before", [True, False])
def test_a_save_that_fails_changes_nothing(plus, times, tmp_path, monkeypatch, step, before):
    folder = tmp_path / "net"
    if before:
        plus.save(folder)

    def fail(*args, **kwargs):
        raise OSError("no space left on device")

    with monkeypatch.context() as patch:
        if step == "export_library":
            patch.setattr(type(times._library), step, fail)
        else:
            patch.setattr({"replace": Path, "function": compiled}[step], step, fail)
        with pytest.raises(OSError, match="no space left"):
            times.save(folder)
    assert files(tmp_path) == (["net"] if before else [])
    if before:
        np.testing.assert_array_equal(load(folder)(V), V + 1)


def test_without_a_linker_nothing_is_saved(plus, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(RuntimeError, match="needs a C\\+\\+ compiler: install g\\+\\+ or clang\\+\\+"):
        plus.save(tmp_path / "net")
    assert files(tmp_path) == []


# ---------------------------------------------------------------- what is not loaded


def change(folder, **entries):
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(manifest | entries))


def test_a_folder_that_is_missing_or_none_of_ours(tmp_path):
    with pytest.raises(
        FileNotFoundError, match="nothing does not exist; expected a folder or an archive that Compiled.save wrote"
    ):
        load(tmp_path / "nothing")
    with pytest.raises(FileNotFoundError, match="is not a saved network.*lacks manifest.json"):
        load(tmp_path)
    (tmp_path / "manifest.json").mkdir()
    with pytest.raises(ValueError, match="manifest.json cannot be read"):
        load(tmp_path)
    (tmp_path / "file").write_text("{}")
    with pytest.raises(ValueError, match="file is not a saved network: expected a folder or an archive"):
        load(tmp_path / "file")


@pytest.mark.parametrize("name", sorted(FILES))
def test_a_missing_file(copy, name):
    (copy / name).unlink()
    with pytest.raises(FileNotFoundError, match=f"lacks {name}"):
        load(copy)


@pytest.mark.parametrize("name", sorted(FILES - {"manifest.json"}))
@pytest.mark.parametrize("damage", ["flipped", "cut", "longer", "empty"])
def test_a_damaged_file(copy, name, damage):
    content = bytearray((copy / name).read_bytes())
    content[len(content) // 2] ^= 1
    damaged = {"flipped": content, "cut": content[:-1], "longer": content + b"\0", "empty": b""}[damage]
    (copy / name).write_bytes(damaged)
    with pytest.raises(ValueError, match=f"{name} is not the file that was saved"):
        load(copy)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", "3", "{}", '{"format": 2}', '{"format": 4}', "\xff", "[" * 100_000]
)
def test_a_manifest_that_is_none(copy, text):
    (copy / "manifest.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(ValueError, match="manifest.json (cannot be read|is not of format)"):
        load(copy)


@pytest.mark.parametrize(
    ("entries", "error", "message"),
    [
        ({"format": 1}, ValueError, "is not of format"),
        ({"files": {}}, ValueError, "expected the files lib.so, graph.json, params.bin; got "),
        ({"files": dict.fromkeys(["../x", "lib.so", "params.bin"])}, ValueError, r"got \.\./x"),
        ({"files": dict.fromkeys(["lib.so", "graph.json", "params.bin"])}, ValueError, "is not the file"),
        ({"files": ["lib.so", "graph.json", "params.bin"]}, ValueError, "is not of format"),
        ({"versions": {"apache-tvm": "0.18.0"}}, RuntimeError, "was built with apache-tvm 0.18.0; here is apache-tvm"),
        ({"architecture": "riscv64"}, RuntimeError, "cannot run here: it is built for riscv64, this machine is"),
        ({"instruction_sets": ["avx", "avx9000"]}, RuntimeError, "cannot run here: it uses .*avx9000, which this CPU"),
        ({"target": {"kind": "opencl"}}, ValueError, "not of kind llvm or cuda"),
        ({"target": {}}, ValueError, "not of kind llvm"),
        ({"target": "llvm"}, ValueError, "is not of format"),
    ],
)
def test_manifests_that_do_not_fit(copy, entries, error, message):
    change(copy, **entries)
    with pytest.raises(error, match=message):
        load(copy)


def test_a_library_for_another_architecture(compile_function, tmp_path, saved):
    other = "aarch64" if machine.platform.machine() == "x86_64" else "x86_64"
    shutil.copytree(saved, tmp_path / "net")
    change(tmp_path / "net", architecture=other, target={"kind": "llvm", "mtriple": f"{other}-linux-gnu"})
    with pytest.raises(RuntimeError, match=f"cannot run here: it is built for {other}, this machine is"):
        load(tmp_path / "net")


def test_a_library_for_a_better_cpu(copy, monkeypatch):
    used = json.loads((copy / "manifest.json").read_text())["instruction_sets"]
    assert used, "the target of this machine names no instruction set"
    monkeypatch.setattr(machine, "instruction_sets", lambda: tuple(used[:-1]))
    with pytest.raises(RuntimeError, match=f"cannot run here: it uses {used[-1]}, which this CPU"):
        load(copy)


def spots(value, path=()):
    """The paths to all parts of a JSON value."""
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(spot for key, child in children for spot in spots(child, (*path, key)))]


CHECKS = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-2, 2), st.floats(), st.text(max_size=3), st.sampled_from(["../x", "llvm"]),
    st.just([]), st.just({}), st.lists(st.integers(), max_size=2), st.dictionaries(st.text(max_size=2), st.none()),
)  # fmt: skip


@settings(max_examples=150, suppress_health_check=CHECKS)
@given(data=st.data())
def test_any_manifest_and_graph_load_or_are_refused_as_documented(saved, copy, data):
    for name in ("manifest.json", "graph.json"):
        shutil.copyfile(saved / name, copy / name)
    name = data.draw(st.sampled_from(["manifest.json", "manifest.json", "graph.json"]))
    content = json.loads((copy / name).read_text())
    spot = data.draw(st.sampled_from(spots(content)))
    value = data.draw(VALUES)
    if spot:
        parent = content
        for key in spot[:-1]:
            parent = parent[key]
        parent[spot[-1]] = value
    else:
        content = value
    (copy / name).write_text(json.dumps(content, indent=1))
    try:
        assert load(copy).inputs
    except (ValueError, RuntimeError) as error:
        assert str(copy) in str(error)


@settings(max_examples=50, suppress_health_check=CHECKS)
@given(data=st.data())
def test_a_manifest_with_other_bytes_loads_or_is_refused_as_documented(saved, copy, data):
    content = bytearray((saved / "manifest.json").read_bytes())
    start = data.draw(st.integers(0, len(content)))
    content[start : start + data.draw(st.integers(0, 20))] = data.draw(st.binary(max_size=5))
    (copy / "manifest.json").write_bytes(content)
    try:
        assert load(copy).inputs
    except (ValueError, RuntimeError) as error:
        assert str(copy) in str(error)
