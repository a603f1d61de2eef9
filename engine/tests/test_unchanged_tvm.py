"""TVM alone stays as it is: importing the package, an import of a model and a build change nothing of it for others.

A fresh process imports this file, and the package after it.
"""

import contextlib
import importlib
import pkgutil
import re
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx.parser
import tvm
import tvm_ffi
from tvm import relax
from tvm.relax.frontend.onnx import onnx_frontend

X = np.array([-2.0, 0.0, 1.0, 0.5, 3.0], "float32").reshape(1, 1, 1, 5)
ZERO, INFINITY = relax.const(0.0, "float32"), relax.const(np.inf, "float32")
ROW, ZEROS = relax.const(X[0, 0, 0]), relax.const(np.zeros((1, 1, 1, 2), "float32"))
ALIGNED = {"layout": "NCHW", "method": "linear", "coordinate_transformation_mode": "align_corners"}
OPERATORS = {  # those that builds legalize in another way, with operands for which that matters
    "add": lambda x: relax.op.add(x, ZERO),
    "subtract": lambda x: relax.op.subtract(ZERO, x),
    "multiply": lambda x: relax.op.multiply(x, ZERO),
    "divide": lambda x: relax.op.divide(x, ZERO),
    "full": lambda x: relax.op.full(X.shape, INFINITY, "float32"),
    "full_like": lambda x: relax.op.full_like(x, INFINITY),
    "resize2d": lambda x: relax.op.image.resize2d(x, (3, 5), **ALIGNED),
    "of constants": lambda x: relax.op.divide(relax.op.exp(relax.const(X)), ZERO),
    "max": lambda x: relax.op.max(x, 3),
    "argmax": lambda x: relax.op.argmax(x, 3),
    "max_pool2d": lambda x: relax.op.nn.max_pool2d(x, (1, 2)),
    "power": lambda x: relax.op.power(x, relax.const(3.0, "float32")),
    "softmax": lambda x: relax.op.nn.softmax(x),
    "astype": lambda x: relax.op.astype(x, "uint8"),
    "layer_norm": lambda x: relax.op.nn.layer_norm(x, ROW, ROW, 3),
    "instance_norm": lambda x: relax.op.nn.instance_norm(x, ROW, ROW, 3, [0, 1]),
    "scatter_elements": lambda x: relax.op.scatter_elements(x, relax.const(np.zeros((1, 1, 1, 2), "int64")), ZEROS, 2),
}
with np.errstate(all="ignore"):
    ALL_INFINITE = np.full_like(X, np.inf)
    RESULTS = {
        **{"add": X, "subtract": -X, "multiply": X * 0, "divide": X / np.float32(0)},
        **dict.fromkeys(("full", "full_like", "of constants"), ALL_INFINITE),
        "resize2d": np.broadcast_to(X, (1, 1, 3, 5)),
    }
MODEL = """<ir_version: 8, opset_import: ["": 17]> g (float[1, 1, 4, 4] x, float[1] most) => (float[1, 1, 2, 2] y) {
    pooled = MaxPool<kernel_shape = [2, 2], strides = [2, 2], auto_pad = "SAME_UPPER">(x)
    y = Mod<fmod = 1>(pooled, most)
}"""


def module(*names: str) -> tvm.IRModule:
    """A function of x with the results of operators."""
    builder, x = relax.BlockBuilder(), relax.Var("x", relax.TensorType(X.shape, "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            results = [builder.emit(builder.normalize(OPERATORS[name](x))) for name in names]
            results = builder.emit_output(relax.Tuple(results))
        builder.emit_func_output(results)
    return builder.get()


# ---------------------------------------------------------------- what TVM is


def compiled(mod: tvm.IRModule) -> str:
    executable = tvm.compile(mod, "llvm")
    code = "".join(each.inspect_source("ll") for each in executable.mod.imports)
    return executable.as_text() + re.sub("0x[0-9a-f]+", "", code)  # addresses of buffers, which name their aliases


def outcome(step, given) -> str:
    try:
        result = step(given)
    except Exception as error:  # TVM alone fails on some
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"
    text = result if isinstance(result, str) else result.script(show_meta=True)
    return re.sub(r"(?<=elem_offset)_\d+", "", text)  # TVM's printer numbers them by their addresses


def programs() -> dict[str, list[str]]:
    """What TVM makes of each operator, and of a model of ONNX."""
    steps = relax.transform.LegalizeOps(), relax.transform.FoldConstant(), compiled
    made = {name: [outcome(step, module(name)) for step in steps] for name in OPERATORS}
    return made | {"onnx": [outcome(onnx_frontend.from_onnx, onnx.parser.parse_model(MODEL))]}


def tables() -> dict:
    """How TVM legalizes each operator of Relax, and converts each of ONNX."""
    operators = [*map(tvm.ir.Op.get, tvm.ir.Op.list_op_names())]
    legalized = {op.name: op.get_attr("FLegalize") for op in operators if op.has_attr("FLegalize")}
    return legalized | onnx_frontend._get_convert_map()


def definitions() -> dict:
    """The functions, classes and modules that TVM's modules hold, and the methods of the classes."""
    found = {}
    for name, each in list(sys.modules.items()):
        for key, value in vars(each).items() if name.partition(".")[0] in ("tvm", "tvm_ffi") else ():
            found[name, key] = value
            found |= {(name, key, part): vars(value)[part] for part in vars(value)} if isinstance(value, type) else {}
    return {key: value for key, value in found.items() if callable(value) or isinstance(value, type(sys))}


def changed(before: dict, after: dict) -> list:
    def same(one, other):
        return one is other or (isinstance(one, tvm_ffi.Function) and one.same_as(other))

    return [key for key, value in before.items() if not same(value, after.get(key))]


# ---------------------------------------------------------------- tests


def check() -> None:
    """Print what the package changes in a process that has imported TVM alone."""
    before = programs(), tables(), definitions()
    assert "tvmfast" not in sys.modules and len(before[1]) > 300 and len(before[2]) > 5000
    tvmfast, tvmclassic = map(importlib.import_module, ("tvmfast", "tvmclassic"))
    for package in (tvmfast, tvmclassic):
        for each in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            with contextlib.suppress(ModuleNotFoundError):  # an extra that is not installed
                if not each.name.endswith("__main__"):
                    importlib.import_module(each.name)
    tvmclassic.enable()
    tvmclassic.disable()
    results = tvmfast.build(module(*RESULTS), {})(X)
    np.testing.assert_array_equal(results[-1], RESULTS["resize2d"])
    lib = tvmfast.build(*tvmfast.from_onnx(onnx.parser.parse_model(MODEL)))
    lib(np.ones((1, 1, 4, 4), "float32"), np.array([3], "float32"))
    after = programs(), tables(), definitions()
    print([name for name in before[0] if before[0][name] != after[0][name]])
    print([key for old, new in zip(before[1:], after[1:], strict=True) for key in changed(old, new)])


def test_imports_and_builds_leave_tvm_as_it_is(python):
    code = "import test_unchanged_tvm; test_unchanged_tvm.check()"
    assert python(code, cwd=Path(__file__).parent).splitlines() == ["[]", "[]"]


def test_threads_that_build_at_once_compute_as_one_and_nobody_sees_them():
    engine, mod, before = importlib.import_module("tvmfast"), module(*RESULTS), tables()
    ready, done = threading.Barrier(3), threading.Event()

    def build():
        ready.wait(600)
        return [engine.build(mod, {}, opt_level=level)(X) for level in (0, 3)]

    def look():
        ready.wait(600)
        found = changed(before, tables())
        while not done.is_set():
            found += changed(before, tables())
        return found

    with ThreadPoolExecutor(3) as pool:
        seen, *built = pool.submit(look), pool.submit(build), pool.submit(build)
        try:
            results = [result for each in built for result in each.result()]
        finally:
            done.set()
        assert seen.result() == []
    for result in results:
        for array, right in zip(result, RESULTS.values(), strict=True):
            np.testing.assert_array_equal(array, right)
