"""Relay's passes: what instruments hear of them, what constant folding changes, and layouts that a script registers."""

import re

import numpy as np
import onnx
import pytest
import tvm
from agreement import close
from old_api import Module, enabled  # noqa: F401 (a fixture)

from tvmclassic.relay import rewrites

relay, nn, transform = Module(), Module("tvm.relay.nn"), Module("tvm.relay.transform")


def network():
    x, w = relay.var("x", shape=(1, 3, 8, 8)), relay.var("w", shape=(4, 3, 3, 3))
    return tvm.IRModule.from_expr(relay.Function([x, w], nn.relu(nn.conv2d(x, w) * relay.const(2.0))))


def outputs_of(program, **inputs) -> list[np.ndarray]:
    with tvm.transform.PassContext(opt_level=0):
        run = relay.create_executor("graph", program).evaluate()
        result = run(**inputs)
    return [each.numpy() for each in result] if isinstance(result, list) else [result.numpy()]


def names(mod) -> list[str]:
    calls = []
    relay.analysis.post_order_visit(mod["main"], lambda e: calls.append(e) if isinstance(e, relay.Call) else None)
    return [call.op.name for call in calls]


def normal(*shape) -> np.ndarray:
    return np.random.default_rng(7).standard_normal(shape).astype("float32")


# ---------------------------------------------------------------- instruments


def listener():
    @tvm.instrument.pass_instrument
    class Listener:
        def __init__(self):
            self.events, self.modules = [], []

        def enter_pass_ctx(self):
            self.events.append("enter")

        def exit_pass_ctx(self):
            self.events.append("exit")

        def run_before_pass(self, mod, info):
            self.events.append(f"before {info.name}")
            self.modules.append(mod)

        def run_after_pass(self, mod, info):
            self.events.append(f"after {info.name}")
            self.modules.append(mod)

    return Listener()


def test_instruments_hear_passes_in_pairs_nested():
    heard = listener()

    @transform.module_pass(opt_level=0, name="outer")
    def outer(mod, ctx):
        return transform.FoldConstant()(transform.InferType()(mod))

    passes = tvm.transform.Sequential([transform.CanonicalizeOps(), outer], name="all")
    with tvm.transform.PassContext(opt_level=3, instruments=[heard]):
        passes(network())
    assert heard.events == [
        "enter", "before all", "before CanonicalizeOps", "after CanonicalizeOps", "before outer", "before InferType",
        "after InferType", "before FoldConstant", "after FoldConstant", "after outer", "after all", "exit",
    ]  # fmt: skip
    assert all(isinstance(mod, relay.Module) and "nn.conv2d" in str(mod) for mod in heard.modules)
    passes(network())
    assert len(heard.events) == 12, "nothing outside of its context"


def test_a_pass_that_fails_leaves_the_context_balanced():
    heard = listener()

    @transform.function_pass(opt_level=0)
    def fails(function, mod, ctx):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"), tvm.transform.PassContext(instruments=[heard]):
        fails(network())
    assert heard.events == ["enter", "before fails", "exit"]
    with tvm.transform.PassContext(instruments=[heard]):
        tvm.transform.PassContext.current().override_instruments([])
        transform.InferType()(network())
    assert heard.events[3:] == ["enter", "exit"]


def test_instruments_outside_of_a_context_and_those_that_fail():
    heard = listener()
    current = tvm.transform.PassContext.current()
    current.override_instruments([heard])
    transform.InferType()(network())
    current.override_instruments([])
    transform.InferType()(network())
    assert heard.events == ["enter", "before InferType", "after InferType", "exit"]

    @tvm.instrument.pass_instrument
    class Fails:
        def enter_pass_ctx(self):
            raise KeyError("enter")

    depth = tvm.transform.PassContext.current().opt_level
    with pytest.raises(KeyError, match="enter"), tvm.transform.PassContext(opt_level=1, instruments=[heard, Fails()]):
        pytest.fail("the context is not entered")
    assert tvm.transform.PassContext.current().opt_level == depth
    x = relay.var("x", shape=(2,))
    assert relay.build(tvm.IRModule.from_expr(x + x), "llvm").compiled.opt_level == 3


def test_an_instrument_may_skip_a_pass():
    @tvm.instrument.pass_instrument
    class Skips:
        def should_run(self, mod, info):
            return info.name != "FoldConstant"

    a = relay.var("a", shape=(2,))
    mod = tvm.IRModule.from_expr(a + relay.const(2.0) * relay.const(3.0))
    with tvm.transform.PassContext(opt_level=3, instruments=[Skips()]):
        assert names(transform.FoldConstant()(mod)) == ["multiply", "add"]
        assert names(transform.EliminateCommonSubexpr()(mod)) == ["multiply", "add"]
    with tvm.transform.PassContext(opt_level=3, instruments=[Skips()], required_pass=["FoldConstant"]):
        assert names(transform.FoldConstant()(mod)) == ["add"]


def test_the_timing_instrument_lists_each_pass_below_the_one_that_ran_it():
    timing = tvm.instrument.PassTimingInstrument()
    passes = tvm.transform.Sequential([transform.InferType(), transform.FoldConstant()])
    with tvm.transform.PassContext(opt_level=3, instruments=[timing]):
        passes(network())
        profile = timing.render()
    lines = profile.splitlines()
    assert [re.match(r" *\w+", line).group() for line in lines] == ["sequential", "    InferType", "    FoldConstant"]
    spent = [int(re.search(r"(\d+)us", line).group(1)) for line in lines]
    assert spent[0] >= spent[1] + spent[2] - 2 and lines[0].endswith("(100.00%)")
    with tvm.transform.PassContext(instruments=[timing]):
        tvm.relax.transform.CanonicalizeBindings()(tvm.IRModule())
    assert timing.render().startswith("CanonicalizeBindings: ")


def test_a_build_shows_instruments_no_module_of_today():
    heard, timing = listener(), tvm.instrument.PassTimingInstrument()
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
        small (float[1, 3, 8, 8] x) => (float[1, 3, 8, 8] y) { y = Relu(x) }""")
    params = {"w": normal(4, 3, 3, 3)}
    with tvm.transform.PassContext(opt_level=3, instruments=[heard, timing]):
        mod = transform.InferType()(network())
        assert relay.build(mod, "llvm", params=params).compiled.opt_level == 3
        relay.vm.compile(mod, "llvm", params=params)
        relay.frontend.from_onnx(model)
        relay.quantize.quantize(mod, params)
        tvm.autotvm.task.extract_from_program(mod, params, "llvm")
        assert timing.render().startswith("InferType: ") and "FuseOps: " in timing.render()
    assert heard.events == ["enter", "before InferType", "after InferType", "exit"]


def test_instruments_of_tvm_print_relays_modules(capsys):
    with tvm.transform.PassContext(instruments=[tvm.ir.instrument.PrintAfterAll()]):
        transform.InferType()(network())
    assert "After Running Pass: Pass(InferType)" in (printed := capsys.readouterr().out)
    assert "nn.conv2d(%x, %w" in printed


# ---------------------------------------------------------------- constant folding


def test_folding_changes_constants_only():
    x = relay.var("x", shape=(2, 3))
    w, b = relay.const(normal(4, 3)), relay.const(normal(4))
    dense = nn.bias_add(nn.dense(x, relay.reverse(w, axis=1)), b + b)
    y = relay.var("y")
    program = relay.Let(y, nn.dropout(dense), nn.softmax(y) * y)
    mod = tvm.IRModule.from_expr(relay.Function([x], program))
    folded = transform.FoldConstant()(mod)
    body = folded["main"].body
    assert isinstance(body, relay.Let) and body.var is y
    found = []
    relay.analysis.post_order_visit(body.value, lambda e: found.append(getattr(getattr(e, "op", None), "name", None)))
    assert [name for name in found if name] == ["nn.dense", "nn.bias_add", "nn.dropout"]
    bias = body.value.args[0]
    np.testing.assert_array_equal(bias.args[1].data.numpy(), 2 * b.data.numpy())
    np.testing.assert_array_equal(bias.args[0].args[1].data.numpy(), w.data.numpy()[:, ::-1])
    a = normal(2, 3)
    logits = a.astype("float64") @ w.data.numpy().astype("float64")[:, ::-1].T + 2 * b.data.numpy().astype("float64")
    exact = np.exp(logits)
    wanted = exact / exact.sum(1, keepdims=True) * logits
    close(outputs_of(folded, x=a), wanted, 24, scale=np.abs(logits).max())


def test_what_nothing_folds_stays_the_same_object():
    mod = network()
    body = mod["main"].body
    assert transform.FoldConstant()(mod)["main"].body is body


def test_folding_goes_into_lets_branches_tuples_and_functions():
    flag, a = relay.var("flag", shape=(), dtype="bool"), relay.var("a", shape=(2,))
    two = relay.var("two")
    six = relay.const(2.0) * relay.const(3.0)
    inner = relay.var("inner", shape=(2,))
    function = relay.Function([inner], inner + relay.exp(relay.const(0.0)))
    pair = relay.Tuple([six, a])
    branch = relay.If(flag, a * six, relay.Call(function, [pair[1]]) + relay.TupleGetItem(pair, 0))
    mod = tvm.IRModule.from_expr(relay.Function([flag, a], relay.Let(two, relay.const(2.0), branch * two)))
    folded = transform.FoldConstant()(mod)
    body = folded["main"].body
    assert not isinstance(body, relay.Let), "a constant needs no name"
    text = str(folded)
    assert "multiply(%a, 6f)" in text and "exp" not in text and "1f" in text and ".0" not in text
    m = normal(2)
    run = relay.create_executor("vm", folded).evaluate()
    close(run(np.asarray(True), m).numpy(), 12 * m.astype("float64"))
    close(run(np.asarray(False), m).numpy(), 2 * (m.astype("float64") + 7), 2)


def test_folding_knows_shapes_and_makes_constants_of_several_results():
    x = relay.var("x", shape=(2, 3))
    halves = relay.split(relay.const(np.arange(6, dtype="float32").reshape(2, 3)), 2)
    rows = relay.concatenate([halves[1], x], axis=0)
    ones = relay.ones(shape=(3,), dtype="float32")
    mod = tvm.IRModule.from_expr(relay.Tuple([rows + ones, relay.shape_of(x)]))
    folded = transform.FoldConstant()(mod)
    assert names(folded) == ["concatenate", "add"]
    m = normal(2, 3)
    total, shape = outputs_of(folded, x=m)
    close(total, np.concatenate([[[3, 4, 5]], m]).astype("float64") + 1)
    assert shape.tolist() == [2, 3] and shape.dtype == "int32"


# ---------------------------------------------------------------- the program of today


def test_today_prints_the_relax_module(capsys):
    mod = network()
    assert mod.today() is None
    text = capsys.readouterr().out
    assert "R.nn.conv2d(x, w" in text and "R.nn.relu" in text and "@R.function" in text
    assert not hasattr(tvm.IRModule(), "today")
    flag = relay.var("flag", shape=(), dtype="bool")
    with pytest.raises(NotImplementedError, match=r"relay\.vm\.compile"):
        tvm.IRModule.from_expr(relay.If(flag, relay.const(1.0), relay.const(2.0))).today()


# ---------------------------------------------------------------- layouts


@pytest.mark.parametrize(
    ("source", "wanted"),
    [("NCHW", "NCHW4c"), ("NCHW", "NHWC"), ("NCHW4c", "NCHW"), ("NCHW4c", "NCHW2c"), ("OIHW", "OIHW4i2o")],
)
def test_layouts_are_transformed(source, wanted):
    shape = {"NCHW4c": (2, 2, 3, 5, 4)}.get(source, (2, 8, 3, 5))
    data = normal(*shape)
    x = relay.var("x", shape=shape)
    there = relay.layout_transform(x, source, wanted)
    moved, back = outputs_of(relay.Tuple([there, relay.layout_transform(there, wanted, source)]), x=data)
    np.testing.assert_array_equal(back, data)
    whole = data if source in ("NCHW", "OIHW") else data.transpose(0, 1, 4, 2, 3).reshape(2, 8, 3, 5)
    expected = {
        "NCHW": lambda: whole,
        "NHWC": lambda: whole.transpose(0, 2, 3, 1),
        "NCHW4c": lambda: whole.reshape(2, 2, 4, 3, 5).transpose(0, 1, 3, 4, 2),
        "NCHW2c": lambda: whole.reshape(2, 4, 2, 3, 5).transpose(0, 1, 3, 4, 2),
        "OIHW4i2o": lambda: whole.reshape(1, 2, 2, 4, 3, 5).transpose(0, 2, 4, 5, 3, 1),
    }
    np.testing.assert_array_equal(moved, expected[wanted]())


def test_layouts_that_do_not_fit_are_refused():
    x = relay.var("x", shape=(1, 6, 4, 4))
    with pytest.raises(ValueError, match="the axis C has 6 elements, no multiple of its block"):
        relay.build(relay.layout_transform(x, "NCHW", "NCHW4c"), "llvm")
    with pytest.raises(ValueError, match="expected a layout of the axes NCHW, got NCDHW"):
        relay.build(relay.layout_transform(x, "NCHW", "NCDHW"), "llvm")


def test_a_script_alters_layouts(monkeypatch):
    monkeypatch.setattr(rewrites, "_ALTERED", {})
    seen = []

    @relay.op.register_alter_op_layout("nn.conv2d", level=15)
    def blocked(attrs, inputs, tinfos, out_type):
        data, weight = inputs
        seen.append((tinfos[0].shape, tinfos[1].dtype, out_type.shape))
        if tinfos[1].shape[0] == 2:
            return None
        new = dict(attrs)
        new.update(data_layout="NCHW4c", kernel_layout="OIHW4i4o")
        return nn.conv2d(data, weight, **new)

    relay.op.register_alter_op_layout("nn.conv2d", lambda *_: pytest.fail("of a lower level"), level=10)
    shapes = {"x": (1, 4, 6, 6), "w1": (8, 4, 3, 3), "w2": (4, 8, 3, 3), "w3": (2, 4, 1, 1)}
    x, w1, w2, w3 = (relay.var(name, shape=shape) for name, shape in shapes.items())
    first = nn.relu(nn.conv2d(x, w1, padding=(1, 1)))
    body = nn.conv2d(nn.leaky_relu(nn.conv2d(first, w2, padding=(1, 1)), alpha=0.5), w3)
    mod = tvm.IRModule.from_expr(relay.Function([x, w1, w2, w3], body))
    with tvm.transform.PassContext(opt_level=3):
        altered = tvm.transform.Sequential([transform.AlterOpLayout()])(mod)
    assert seen[0] == ((1, 4, 6, 6), "float32", (1, 8, 6, 6)) and len(seen) == 3
    found = names(altered)
    assert found.count("nn.conv2d") == 3
    assert found.count("layout_transform") == 2 + 1 + 1, "of x and both weights, and one behind: none in between"
    arrays = {name: normal(*shape) for name, shape in shapes.items()}
    (got,) = outputs_of(altered, **arrays)

    def conv(a, w):
        pad = w.shape[-1] // 2
        padded = np.pad(a, ((0, 0), (0, 0), (pad, pad), (pad, pad)))
        return np.einsum("nchwij,ocij->nohw", np.lib.stride_tricks.sliding_window_view(padded, w.shape[2:], (2, 3)), w)

    exact = {name: array.astype("float64") for name, array in arrays.items()}
    a = conv(np.maximum(conv(exact["x"], exact["w1"]), 0), exact["w2"])
    wanted = conv(np.where(a > 0, a, a / 2), exact["w3"])
    sizes = conv(conv(conv(*(np.abs(exact[n]) for n in ("x", "w1"))), np.abs(exact["w2"])), np.abs(exact["w3"]))
    close(got, wanted, 36 + 72 + 4, scale=sizes.max())


def test_without_a_registered_function_layouts_stay(monkeypatch):
    monkeypatch.setattr(rewrites, "_ALTERED", {})
    mod = network()
    assert names(transform.AlterOpLayout()(mod)) == names(mod)
