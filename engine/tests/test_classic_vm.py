"""Programs of Relay with branches, recursion and dims of any length: relay.vm and the executors, against NumPy."""

import importlib
import inspect
import json
import sys

import numpy as np
import pytest
import tvm
from agreement import close
from old_api import Module, enabled  # noqa: F401 (a fixture)

from tvmclassic.relay import build, machine
from tvmclassic.relay import vm as vm_file
from tvmfast.runtime.saved import pack

relay, nn = Module(), Module("tvm.relay.nn")


def machine_of(program, params=None):
    exe = relay.vm.compile(program, target="llvm", params=params)
    return tvm.runtime.vm.VirtualMachine(exe, tvm.cpu())


def normal(*shape) -> np.ndarray:
    return np.random.default_rng(5).standard_normal(shape).astype("float32")


def double(x: np.ndarray) -> np.ndarray:
    return x.astype("float64")


def scalar(value, dtype="int32"):
    return np.asarray(value, dtype)


# ---------------------------------------------------------------- networks, which are compiled at once


def test_a_network_is_compiled_at_once_and_saved(tmp_path):
    x, w = relay.var("x", shape=(2, 5)), relay.var("w", shape=(4, 5))
    mod = tvm.IRModule.from_expr(relay.Function([x, w], nn.relu(nn.dense(x, w))))
    a, weight = normal(2, 5), normal(4, 5)
    wanted = np.maximum(double(a) @ double(weight).T, 0)
    exe = relay.vm.compile(mod, "llvm", params={"w": weight})
    assert exe.get_function_params("main") == ["x"] and exe.globals == ["main"] and exe.primitive_ops
    vm = tvm.runtime.vm.VirtualMachine(exe, tvm.cpu(0))
    close(vm.invoke("main", a).numpy(), wanted, 5)
    close(vm.run(x=tvm.nd.array(a)).numpy(), wanted, 5)
    vm.set_input("main", a)
    vm.invoke_stateful("main")
    close(vm.get_outputs()[0].numpy(), wanted, 5)
    assert len(vm.benchmark(tvm.cpu(), a, number=1, repeat=2).results) == 2
    assert len(vm.module.time_evaluator("invoke", tvm.cpu(), number=1)("main", a).results) == 1

    code, lib = exe.save()
    lib.export_library(str(tmp_path / "lib.so"))
    (tmp_path / "code.ro").write_bytes(code)
    loaded = tvm.runtime.load_module(str(tmp_path / "lib.so"))
    again = tvm.runtime.vm.Executable.load_exec(bytearray((tmp_path / "code.ro").read_bytes()), loaded)
    for vm in (tvm.runtime.vm.VirtualMachine(again, tvm.cpu()), tvm.runtime.vm.VirtualMachine(loaded, tvm.cpu())):
        vm.set_one_input("main", "x", a)
        close(vm.run().numpy(), wanted, 5)
    with pytest.raises(ValueError, match="code that exe.save"):
        tvm.runtime.vm.Executable.load_exec(bytearray(b"{}"), loaded)


def test_tuples_go_in_and_come_out():
    x = relay.var("x", relay.TupleType([relay.TensorType((2, 3)), relay.TensorType((3,))]))
    a, b = relay.TupleGetItem(x, 0), relay.TupleGetItem(x, 1)
    vm = machine_of(relay.Function([x], relay.Tuple([relay.Tuple([a + b, b]), relay.split(a, 2).astuple()])))
    m, v = normal(2, 3), normal(3)
    (total, same), halves = vm.run((m, v))
    close([total.numpy(), same.numpy()], [double(m) + double(v), double(v)])
    close([half.numpy() for half in halves], [double(m)[:1], double(m)[1:]])
    with pytest.raises(ValueError, match="expected a tuple of 2, got 1"):
        vm.run((m,))


def test_a_machine_of_todays_module_is_tvms():
    from tvm import relax
    from tvm.script import ir as I
    from tvm.script import relax as R

    @I.ir_module
    class Module:
        @R.function
        def main(x: R.Tensor((3,), "float32")) -> R.Tensor((3,), "float32"):
            with R.dataflow():
                y = R.add(x, x)
                R.output(y)
            return y

    vm = tvm.runtime.vm.VirtualMachine(tvm.compile(Module, "llvm"), tvm.cpu())
    assert type(vm) is relax.VirtualMachine
    np.testing.assert_array_equal(vm["main"](tvm.runtime.tensor(np.ones(3, "float32"))).numpy(), 2 * np.ones(3))


# ---------------------------------------------------------------- dims of any length


def test_any_dims_are_those_that_come():
    x, w = relay.var("x", shape=(relay.Any(), 6)), relay.var("w", shape=(4, 6))
    weight = normal(4, 6)
    mod = tvm.IRModule.from_expr(relay.Function([x, w], nn.softmax(nn.dense(x, w))))
    vm = machine_of(mod, {"w": weight})
    for rows in (1, 3, 1):
        a = normal(rows, 6)
        exact = np.exp(double(a) @ double(weight).T)
        close(vm.run(a).numpy(), exact / exact.sum(1, keepdims=True), 6 + 4 + 4, scale=1)
    assert len(vm._exec._machine.networks) == 2, "a network for each shape"
    with pytest.raises(ValueError, match=r"input 'x': expected Tensor\[\(\?, 6\), float32\], got .*\(2, 5\)"):
        vm.run(normal(2, 5))
    assert "%x: Tensor[(?, 6), float32]" in str(mod)
    assert mod["main"].ret_type.shape[1] == 4


def test_shapes_and_bounds_that_are_computed():
    x, y = relay.var("x", shape=(relay.Any(), relay.Any())), relay.var("y", shape=(relay.Any(),))
    count = relay.var("count", shape=(), dtype="int32")
    body = relay.Tuple(
        [
            relay.reshape(x, newshape=(-1,)),
            x + y,
            relay.arange(relay.const(0), count, relay.const(1), dtype="int32"),
            relay.shape_of(x),
            relay.reshape(y, newshape=relay.shape_of(x)),
        ]
    )
    a, b = normal(3, 2), normal(6)
    run = relay.create_executor("vm", tvm.IRModule.from_expr(relay.Function([x, y, count], body))).evaluate()
    with pytest.raises(ValueError):
        run(a, b, scalar(4))  # 2 and 6 do not broadcast
    body = relay.Tuple([*body.fields[:1], *body.fields[2:]])
    run = relay.create_executor("vm", tvm.IRModule.from_expr(relay.Function([x, y, count], body))).evaluate()
    for n in (4, 2, 4):
        flat, numbers, shape, matrix = (result.numpy() for result in run(a, b, scalar(n)))
        np.testing.assert_array_equal(flat, a.ravel())
        np.testing.assert_array_equal(numbers, np.arange(n, dtype="int32"))
        np.testing.assert_array_equal(shape, [3, 2])
        np.testing.assert_array_equal(matrix, b.reshape(3, 2))


def test_a_convolution_of_images_of_any_size():
    x, w = relay.var("x", shape=(relay.Any(), 3, relay.Any(), relay.Any())), relay.var("w", shape=(4, 3, 3, 3))
    pooled = nn.global_avg_pool2d(nn.conv2d(x, w, padding=(1, 1)))
    weight = normal(4, 3, 3, 3)
    vm = machine_of(relay.Function([x, w], nn.batch_flatten(pooled)), {"w": weight})
    for shape in ((1, 3, 8, 8), (2, 3, 5, 7)):
        image = normal(*shape)
        padded = np.pad(double(image), ((0, 0), (0, 0), (1, 1), (1, 1)))
        windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
        wanted = np.einsum("nchwij,ocij->nohw", windows, double(weight)).mean((2, 3))
        terms = 27 + shape[2] * shape[3]
        close(vm.run(image).numpy(), wanted, terms, scale=np.abs(double(weight)).sum((1, 2, 3)).max() * 4)


def test_a_function_of_any_dims_is_called_by_a_network():
    mod = tvm.IRModule()
    x, y = relay.var("x", shape=(relay.Any(), 3)), relay.var("y", shape=(relay.Any(), 3))
    name = relay.GlobalVar("twice")
    mod[name] = relay.Function([x], nn.relu(x) + x)
    mod["main"] = relay.Function([y], name(y * y))
    vm = machine_of(mod)
    for rows in (4, 1, 0):
        m = normal(rows, 3)
        close(vm.run(m).numpy(), 2 * double(m) ** 2, 2)


def test_networks_that_were_not_used_for_long_are_dropped(monkeypatch):
    monkeypatch.setattr(machine, "_MOST_NETWORKS", 2)
    x, w = relay.var("x", shape=(relay.Any(), 3)), relay.var("w", shape=(4, 3))
    weight = normal(4, 3)
    vm = machine_of(relay.Function([x, w], nn.dense(x, w)), {"w": weight})
    networks = vm._exec._machine.networks

    def run(*counts):
        for rows in counts:
            m = normal(rows, 3)
            close(vm.run(m).numpy(), double(m) @ double(weight).T, 3)
        return [types[0][0][0] for _, types in networks]

    assert run(1, 2, 1, 3) == [1, 3]
    monkeypatch.setattr(machine, "_MOST_BYTES", -1)
    assert run(3) == [1, 3] and run(2) == [2], "the last one stays"


def test_calls_with_many_values_of_an_attribute_are_forgotten(monkeypatch):
    monkeypatch.setattr(machine, "_MOST_CALLS", 2)
    count, x = relay.var("count", shape=(), dtype="int32"), relay.var("x", shape=(2,), dtype="int32")
    numbers = relay.arange(relay.const(0), count, relay.const(1), dtype="int32")
    vm = machine_of(relay.Function([count, x], relay.concatenate([numbers, x], axis=0)))
    for n in (1, 2, 3, 1, 4, 3):
        np.testing.assert_array_equal(vm.run(n, np.array([7, 8], "int32")).numpy(), [*range(n), 7, 8])
    assert len(vm._exec._machine._settled) <= 2


def test_networks_are_compiled_as_where_the_program_was():
    qnn = importlib.import_module("tvm.relay.qnn.op")
    q = relay.var("q", shape=(relay.Any(),), dtype="int32")
    parts = relay.const(0.5), relay.const(0), relay.const(1.0), relay.const(0)
    function = relay.Function([q], qnn.requantize(q, *parts, out_dtype="int32"))
    values = np.arange(-3, 4, dtype="int32")
    results = []
    for rounding in ("UPWARD", "TONEAREST"):
        with qnn.requantize_config(rounding=rounding):
            vm = machine_of(function)
        results.append(vm.run(values).numpy())
    np.testing.assert_array_equal(results, [[-1, -1, 0, 0, 1, 1, 2], [-2, -1, -1, 0, 1, 1, 2]])
    static = relay.var("q", shape=(7,), dtype="int32")
    function = relay.Function([static], qnn.requantize(static, *parts, out_dtype="int32"))
    with qnn.requantize_config(rounding="TONEAREST"):
        graph = relay.create_executor("graph", tvm.IRModule.from_expr(function)).evaluate()
    np.testing.assert_array_equal(graph(values).numpy(), results[1])


# ---------------------------------------------------------------- branches


def test_a_branch_is_taken_by_a_value():
    flag, a = relay.var("flag", shape=(), dtype="bool"), relay.var("a", shape=(2, 3))
    branch = relay.If(flag, a * a, relay.exp(a))
    function = relay.Function([flag, a], branch + a)
    mod = tvm.IRModule.from_expr(function)
    m = normal(2, 3)
    for kind in ("vm", "debug"):
        run = relay.create_executor(kind, mod).evaluate()
        close(run(np.asarray(True), m).numpy(), double(m) ** 2 + double(m), 2)
        close(run(np.asarray(False), m).numpy(), np.exp(double(m)) + double(m), 4)
    assert "if (%flag)" in str(mod) and mod["main"].ret_type == relay.TensorType((2, 3))
    with pytest.raises(NotImplementedError, match=r"relay.If: .*relay.vm.compile"):
        relay.build(mod, "llvm")
    with pytest.raises(NotImplementedError, match="relay.vm.compile"):
        relay.create_executor("graph", mod).evaluate()


def test_branches_of_other_types():
    flag, a = relay.var("flag", shape=(), dtype="bool"), relay.var("a", shape=(2, 3))
    other = relay.If(flag, a, relay.concatenate([a, a], axis=0))
    mod = tvm.IRModule.from_expr(relay.Function([flag, a], relay.Tuple([other, relay.sum(other)])))
    assert repr(mod["main"].ret_type) == "(Tensor[(?, 3), float32], Tensor[(), float32])"
    m = normal(2, 3)
    run = relay.create_executor("vm", mod).evaluate()
    for taken, times in ((True, 1), (False, 2)):
        rows, total = (each.numpy() for each in run(np.asarray(taken), m))
        close([rows, total], [np.tile(double(m), (times, 1)), times * double(m).sum()], 12, scale=np.abs(m).sum())
    for wrong in (relay.cast(a, "int32"), relay.sum(a), relay.Tuple([a])):
        with pytest.raises(ValueError, match=r"relay.If: its branches are Tensor\[\(2, 3\), float32\] and "):
            relay.vm.compile(relay.Function([flag, a], relay.If(flag, a, wrong)))


def test_what_a_branch_shares_is_computed_once():
    x = relay.var("x", shape=(2, 3))
    y = relay.exp(x)
    total = relay.sum(y)
    body = relay.If(relay.less(total, relay.const(6.0)), y * y, y - total)
    vm = machine_of(relay.Function([x], relay.Tuple([body, total])))
    for a in (-np.abs(normal(2, 3)), np.abs(normal(2, 3))):
        exact = np.exp(double(a))
        wanted = exact**2 if exact.sum() < 6 else exact - exact.sum()
        close([each.numpy() for each in vm.run(a)], [wanted, exact.sum()], 6 + 4, scale=exact.sum() + 1)
    kernels = [kernel for network in vm._exec._machine.networks.values() for kernel in network.compiled.kernels.index]
    assert sum("exp" in kernel for kernel in kernels) == 1


def test_branches_in_branches_and_lets():
    n, a = relay.var("n", shape=(), dtype="int32"), relay.var("a", shape=(3,))
    builder = relay.ScopeBuilder()
    twice = builder.let("twice", a + a)
    more = builder.let("more", twice * a)
    with builder.if_scope(relay.less(n, relay.const(0))):
        builder.ret(builder.let("y", relay.exp(more)))
    with builder.else_scope():
        inner = relay.ScopeBuilder()
        with inner.if_scope(relay.equal(n, relay.const(0))):
            inner.ret(twice)
        with inner.else_scope():
            inner.ret(more - twice)
        builder.ret(inner.get())
    vm = machine_of(relay.Function([n, a], builder.get()))
    m = normal(3)
    exact = double(m)
    for value, wanted in ((-1, np.exp(2 * exact**2)), (0, 2 * exact), (1, 2 * exact**2 - 2 * exact)):
        close(vm.run(scalar(value), m).numpy(), wanted, 12, scale=np.abs(wanted).max() * 8)


# ---------------------------------------------------------------- recursion and loops


def test_a_function_that_calls_itself():
    mod = tvm.IRModule()
    name = relay.GlobalVar("power")
    n, x = relay.var("n", shape=(), dtype="int32"), relay.var("x", shape=(2,))
    rest = name(n - relay.const(1), x) * x
    mod[name] = relay.Function(
        [n, x], relay.If(relay.equal(n, relay.const(0)), relay.ones_like(x), rest), relay.TensorType((2,))
    )
    i, a = relay.var("i", shape=(), dtype="int32"), relay.var("a", shape=(2,))
    mod["main"] = relay.Function([i, a], name(i, a) + a)
    base = np.array([1.5, -0.5], "float32")
    vm = machine_of(mod)
    for exponent in (0, 1, 40):
        wanted = double(base) ** exponent + double(base)
        close(vm.run(scalar(exponent), base).numpy(), wanted, exponent + 2, scale=np.abs(wanted))
    close(vm.invoke("power", scalar(2), base).numpy(), double(base) ** 2)
    assert len(vm._exec._machine.networks) <= 5, "compiled once, however deep"
    assert "@power" in str(mod)


def test_a_loop_runs_until_its_condition_fails():
    def goes_on(i, _total, limit):
        return relay.less(i, limit)

    def next_values(i, total, limit):
        return [i + relay.const(1), total + relay.cast(i, "float32"), limit]

    i, limit = (relay.var(name, shape=(), dtype="int32") for name in ("i", "limit"))
    total = relay.var("total", shape=())
    loop = relay.loops.while_loop(goes_on, [i, total, limit], next_values)
    count = relay.var("count", shape=(), dtype="int32")
    result = relay.TupleGetItem(loop(relay.const(0), relay.const(0.0), count), 1)
    mod = tvm.IRModule.from_expr(relay.Function([count], result))
    run = relay.create_executor("vm", mod).evaluate()
    for n in (0, 1, 10, 3000):  # more than Python calls itself
        assert run(scalar(n)).numpy() == n * (n - 1) / 2
    assert mod["main"].ret_type == relay.TensorType((), "float32")


def test_a_loop_over_what_grows():
    i = relay.var("i", shape=(), dtype="int32")
    rows = relay.var("rows", shape=(relay.Any(), 2))
    loop = relay.loops.while_loop(
        lambda i, rows: relay.less(i, relay.const(3)),
        [i, rows],
        lambda i, rows: [i + relay.const(1), relay.concatenate([rows, rows * relay.const(2.0)], axis=0)],
    )
    start = relay.var("start", shape=(1, 2))
    mod = tvm.IRModule.from_expr(relay.Function([start], relay.TupleGetItem(loop(relay.const(0), start), 1)))
    a = normal(1, 2)
    wanted = double(a)
    for _ in range(3):
        wanted = np.concatenate([wanted, 2 * wanted])
    close(relay.create_executor("debug", mod).evaluate()(a).numpy(), wanted)
    assert str(mod["main"].ret_type) == "Tensor[(?, 2), float32]"


def test_weights_are_read_in_a_loop():
    h, w = relay.var("h", shape=(1, 4)), relay.var("w", shape=(4, 4))
    i = relay.var("i", shape=(), dtype="int32")
    loop = relay.loops.while_loop(
        lambda i, h: relay.less(i, relay.const(5)),
        [i, relay.var("state", shape=(1, 4))],
        lambda i, h: [i + relay.const(1), relay.tanh(nn.dense(h, w))],
    )
    program = relay.Function([h, w], relay.TupleGetItem(loop(relay.const(0), h), 1))
    weight, a = normal(4, 4) / 4, normal(1, 4)
    wanted = double(a)
    for _ in range(5):
        wanted = np.tanh(wanted @ double(weight).T)
    close(machine_of(program, {"w": weight}).run(a).numpy(), wanted, 5 * (4 + 4), scale=1)


def test_functions_are_values():
    x, k = relay.var("x", shape=(3,)), relay.var("k", shape=(3,))
    y, f = relay.var("y", shape=(3,)), relay.var("f")
    flag = relay.var("flag", shape=(), dtype="bool")
    add, scale = relay.Function([x], x + k), relay.Function([x], x * k)
    body = relay.Let(f, relay.If(flag, add, scale), relay.Call(f, [relay.Call(f, [y])]))
    vm = machine_of(relay.Function([flag, y, k], body))
    a, b = normal(3), normal(3) + 2
    close(vm.run(np.asarray(True), a, b).numpy(), double(a) + 2 * double(b), 2)
    close(vm.run(np.asarray(False), a, b).numpy(), double(a) * double(b) ** 2, 2)


def test_a_closure_keeps_what_it_was_made_with():
    y, k, a, b, v = (relay.var(name, shape=(3,)) for name in "ykabv")
    make = relay.Function([k], relay.Function([y], y * k))
    f, g, h = (relay.var(name) for name in "fgh")
    body = relay.Call(g, [v]) - relay.Call(h, [v])
    body = relay.Let(f, make, relay.Let(g, relay.Call(f, [a]), relay.Let(h, relay.Call(f, [b]), body)))
    p, q, r = normal(3), normal(3) + 1, normal(3) + 2
    close(machine_of(relay.Function([a, b, v], body)).run(p, q, r).numpy(), double(r) * (double(p) - double(q)), 4)


def test_a_function_reads_what_another_has_as_its_parameter():
    x, z, flag = relay.var("x", shape=(3,)), relay.var("z", shape=(3,)), relay.var("flag", shape=(), dtype="bool")
    inner = relay.Function([x], x * x)
    outer = relay.Function([z], relay.Call(inner, [z]) + x)
    assert relay.analysis.free_vars(outer) == [x]
    body = relay.If(flag, relay.Call(outer, [x + x]), x) + x
    m = normal(3)
    close(machine_of(relay.Function([flag, x], body)).run(True, m).numpy(), 4 * double(m) ** 2 + 2 * double(m), 4)


def test_a_function_without_types_is_called_with_two_dtypes():
    x, a, b = relay.var("x"), relay.var("a", shape=(2,)), relay.var("b", shape=(2,), dtype="int32")
    mod = tvm.IRModule({"more": relay.Function([x], x * 2 + 1)})
    name = mod.get_global_var("more")
    mod["main"] = relay.Function([a, b], relay.Tuple([name(a), name(b)]))
    m, n = normal(2), np.array([3, -4], "int32")
    floats, integers = (each.numpy() for each in machine_of(mod).run(m, n))
    close(floats, 2 * double(m) + 1, 2)
    np.testing.assert_array_equal(integers, [7, -7])


def test_the_same_expression_in_two_functions_has_two_values():
    x = relay.var("x", shape=(3,))
    shared = x * x
    inner = relay.Function([x], shared)
    flag = relay.var("flag", shape=(), dtype="bool")
    body = relay.If(flag, relay.Call(inner, [shared]), x) + shared
    m = normal(3)
    vm = machine_of(relay.Function([flag, x], body))
    close(vm.run(np.asarray(True), m).numpy(), double(m) ** 4 + double(m) ** 2, 4)
    # The same without a branch, which is compiled at once.
    close(machine_of(relay.Function([x], relay.Call(inner, [shared]) + shared)).run(m).numpy(),
          double(m) ** 4 + double(m) ** 2, 4)  # fmt: skip


# ---------------------------------------------------------------- programs in files


def saved(program, folder, params=None, ending="so"):
    """Save a program and load it again, as scripts do: a machine of it, from files only."""
    code, lib = relay.vm.compile(program, target="llvm", params=params).save()
    lib.export_library(str(folder / f"lib.{ending}"))
    (folder / "code.ro").write_bytes(code)
    loaded = tvm.runtime.load_module(str(folder / f"lib.{ending}"))
    exe = tvm.runtime.vm.Executable.load_exec(bytearray((folder / "code.ro").read_bytes()), loaded)
    return tvm.runtime.vm.VirtualMachine(exe, tvm.cpu())


@pytest.mark.parametrize("ending", ["so", "tar"])
def test_a_program_with_branches_and_a_loop_is_saved(tmp_path, ending):
    i, h, w = (
        relay.var("i", shape=(), dtype="int32"),
        relay.var("h", shape=(relay.Any(), 4)),
        relay.var("w", shape=(4, 4)),
    )
    loop = relay.loops.while_loop(
        lambda i, h: relay.less(i, relay.const(3)),
        [i, relay.var("state", shape=(relay.Any(), 4))],
        lambda i, h: [i + relay.const(1), relay.tanh(nn.dense(h, w))],
    )
    x, flag = relay.var("x", shape=(relay.Any(), 4)), relay.var("flag", shape=(), dtype="bool")
    mod = tvm.IRModule()
    name = relay.GlobalVar("halved")
    mod[name] = relay.Function([h], relay.split(h, 2, axis=1)[1] * 0.5)
    rows = relay.reshape(relay.TupleGetItem(loop(relay.const(0), x), 1), newshape=(-1, 4))
    mod["main"] = relay.Function([flag, x, w], relay.Tuple([relay.If(flag, rows, relay.exp(x)), name(x)]))
    weight = normal(4, 4) / 4
    vm = saved(mod, tmp_path, {"w": weight}, ending)
    assert vm._exec.get_function_params("main") == ["flag", "x"] and vm._exec.globals == ["halved", "main"]
    for count in (2, 3):
        a = normal(count, 4)
        wanted = double(a)
        for _ in range(3):
            wanted = np.tanh(wanted @ double(weight).T)
        taken, half = (each.numpy() for each in vm.run(np.asarray(True), a))
        close(taken, wanted, 3 * (4 + 4), scale=1)
        close(half, double(a)[:, 2:] / 2)
        close(vm.run(np.asarray(False), a)[0].numpy(), np.exp(double(a)), 4)
    with pytest.raises(ValueError, match=r"input 'x': expected Tensor\[\(\?, 4\), float32\]"):
        vm.run(np.asarray(True), normal(2, 5))
    again = tvm.runtime.vm.VirtualMachine(tvm.runtime.load_module(str(tmp_path / f"lib.{ending}")), tvm.cpu())
    close(again.invoke("halved", a).numpy(), double(a)[:, 2:] / 2)


def test_a_saved_program_is_compiled_as_it_was_to_be(tmp_path):
    qnn = importlib.import_module("tvm.relay.qnn.op")
    q = relay.var("q", shape=(relay.Any(),), dtype="int32")
    parts = relay.const(0.5), relay.const(0), relay.const(1.0), relay.const(0)
    function = relay.Function([q], qnn.requantize(q, *parts, out_dtype="int32"))
    with qnn.requantize_config(rounding="TONEAREST"), tvm.transform.PassContext(opt_level=1):
        vm = saved(function, tmp_path)
    np.testing.assert_array_equal(vm.run(np.arange(-3, 4, dtype="int32")).numpy(), [-2, -1, -1, 0, 1, 1, 2])
    assert [each.compiled.opt_level for each in vm._exec._machine.networks.values()] == [1]


def test_functions_as_values_and_computed_attributes_are_saved(tmp_path):
    x, y, k = (relay.var(name, shape=(3,)) for name in "xyk")
    flag, count = relay.var("flag", shape=(), dtype="bool"), relay.var("count", shape=(), dtype="int32")
    f, add, scale = relay.var("f"), relay.Function([x], x + k), relay.Function([x], x * k)
    numbers = relay.arange(relay.const(0), count, relay.const(1), dtype="int32")
    body = relay.Let(f, relay.If(flag, add, scale), relay.Tuple([relay.Call(f, [relay.Call(f, [y])]), numbers]))
    vm = saved(relay.Function([flag, y, k, count], body), tmp_path)
    a, b = normal(3), normal(3) + 2
    for taken, wanted in ((True, double(a) + 2 * double(b)), (False, double(a) * double(b) ** 2)):
        value, numbers = vm.run(np.asarray(taken), a, b, scalar(4))
        close(value.numpy(), wanted, 2)
        np.testing.assert_array_equal(numbers.numpy(), np.arange(4))


def test_a_file_that_is_no_program_is_refused(tmp_path):
    x = relay.var("x", shape=(relay.Any(),))
    file = tmp_path / "lib.so"
    relay.vm.compile(relay.Function([x], x + x), "llvm").lib.save(str(file))
    parts = build.unpack(file, vm_file._PARTS)
    data = json.loads(parts["program.json"])
    data["expressions"][1][1] = "os.system"
    changed = {"program.json": json.dumps(data).encode(), "arrays.bin": parts["arrays.bin"]}
    file.unlink()
    pack(file, changed.items())
    with pytest.raises(ValueError, match="a program as exe.save.. gives it; it is damaged"):
        tvm.runtime.load_module(str(file))
    profiler = importlib.import_module("tvm.runtime.profiler_vm").VirtualMachineProfiler
    exe = relay.vm.compile(relay.Function([x], x + x), "llvm")
    with pytest.raises(NotImplementedError, match="profile: a program with branches"):
        profiler(exe, tvm.cpu()).profile(normal(3))


# ---------------------------------------------------------------- executors and errors


def test_the_debug_executor_evaluates_expressions_and_functions():
    executor = relay.create_executor("debug")
    assert executor.evaluate(relay.const(2.0) * relay.const(3.0)).numpy() == 6
    x = relay.var("x")
    assert executor.evaluate(relay.Function([x], x + x))(scalar(4)).numpy() == 8
    a = relay.var("a", shape=(2,))
    mod = tvm.IRModule()
    mod["twice"] = relay.Function([a], a + a)
    mod["main"] = relay.Function([a], mod.get_global_var("twice")(a))
    m = normal(2)
    executor = relay.create_executor("vm", mod, tvm.cpu(), "llvm")
    for program in (None, mod["main"], mod.get_global_var("twice")):
        close(executor.evaluate(program)(m).numpy(), 2 * double(m))


def test_each_opt_level_and_the_compiler_in_steps():
    x = relay.var("x", shape=(relay.Any(), 3))
    compiler = relay.vm.VMCompiler()
    with pytest.raises(ValueError, match=r"call lower\(mod, target\) first"):
        compiler.get_exec()
    with tvm.transform.PassContext(opt_level=1):
        compiler.lower(tvm.IRModule.from_expr(nn.softmax(x)), "llvm")
    compiler.codegen()
    exe = compiler.get_exec()
    m = normal(2, 3)
    exact = np.exp(double(m))
    close(tvm.runtime.vm.VirtualMachine(exe, tvm.cpu()).run(m).numpy(), exact / exact.sum(1, keepdims=True), 8)
    (network,) = exe._machine.networks.values()
    assert network.compiled.opt_level == 1, "as the context was that compiled it"


def test_inputs_that_are_set_are_timed_too():
    x = relay.var("x", relay.TupleType([relay.TensorType((2,)), relay.TensorType((2,))]))
    vm = machine_of(relay.Function([x], relay.TupleGetItem(x, 0) + relay.TupleGetItem(x, 1)))
    vm.set_input("main", (normal(2), normal(2)))
    for end_to_end in (False, True):
        assert len(vm.benchmark(tvm.cpu(), number=1, repeat=2, end_to_end=end_to_end).results) == 2


def test_calls_that_are_too_deep_are_refused():
    mod = tvm.IRModule()
    name, n = relay.GlobalVar("total"), relay.var("n", shape=(), dtype="int32")
    rest = name(n - relay.const(1)) + n
    is_last = relay.equal(n, relay.const(0))
    mod[name] = relay.Function([n], relay.If(is_last, n, rest), relay.TensorType((), "int32"))
    mod["main"] = relay.Function([n], name(n))
    vm = machine_of(mod)
    assert vm.run(100).numpy() == 5050  # all is compiled
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack(0)) + 300)
    try:
        with pytest.raises(RecursionError, match="let a function call itself in its last step"):
            vm.run(500)
    finally:
        sys.setrecursionlimit(limit)
    assert vm.run(200).numpy() == 20100


def test_what_is_wrong_is_said():
    x, n = relay.var("x", shape=(2,)), relay.var("n", shape=(), dtype="int32")
    vm = machine_of(relay.Function([x, n], relay.If(relay.less(n, relay.const(1)), x, x + x)))
    m = normal(2)
    for call, error, words in [
        (lambda: vm.run(m), TypeError, r"@main takes 2 inputs \(x, n\); got 1 by position"),
        (lambda: vm.run(m, scalar(1), m), TypeError, "got 3 by position"),
        (lambda: vm.run(m, m=scalar(1)), TypeError, "got 1 by position, m"),
        (lambda: vm.run(m, np.ones(2, "int32")), ValueError, r"input 'n': expected Tensor\[\(\), int32\]"),
        (lambda: vm.run(m, 1.5), ValueError, r"Tensor\[\(\), int32\], got float64 with numbers that int32 lacks"),
        (lambda: machine_of(relay.Function([x], relay.If(x, x, x + x))).run(m), ValueError, r"one element, got \(2,\)"),
        (lambda: relay.vm.compile(relay.Function([n], relay.Call(relay.Function([x], x), [n]))), ValueError,
         r"%x: its function takes Tensor\[\(2,\), float32\], and is called with Tensor\[\(\), int32\]"),
        (lambda: vm.set_one_input("main", m), TypeError, r"expected \(func_name, input, array\)"),
        (lambda: vm.invoke("other", m), ValueError, "no function 'other'; it has main"),
        (lambda: vm.set_one_input("main", "y", m), ValueError, "no input 'y'"),
        (lambda: relay.vm.compile(3), TypeError, "expected a Relay module or function, got int"),
        (lambda: relay.vm.compile(relay.Function([x], x + relay.const(np.ones(3, "float32")))), ValueError, "add"),
        (lambda: machine_of(relay.Function([n], relay.Call(relay.GlobalVar("f"), [n]))).run(scalar(1)),
         ValueError, "@f is called, and the module has no such function"),
    ]:  # fmt: skip
        with pytest.raises(error, match=words):
            call()
    y = relay.var("y", shape=(2,))
    run = relay.create_executor("graph", tvm.IRModule.from_expr(relay.Function([x, y], x + y))).evaluate()
    for args in ((m,), (m, m, m)):
        with pytest.raises(TypeError, match=rf"the program takes x, y; got {len(args)} by position"):
            run(*args)
    close(run(m, y=m).numpy(), 2 * double(m))
    vm.set_one_input("main", "x", m)
    with pytest.raises(TypeError, match="no value is set for n"):
        vm.run()
