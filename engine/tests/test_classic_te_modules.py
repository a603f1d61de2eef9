"""`tvm.lower`, `tvm.build` and `today` of schedules of tensor expressions; those for GPUs; what is refused, by name."""

import numpy as np
import pytest
import tvm
from agreement import close
from emulated_gpu import emulate
from old_api import enabled  # noqa: F401 (a fixture)
from test_classic_te import addition, chain, f64, loops, matmul, nest, run_script, script_of, values
from tvm import te, topi

from tvmclassic.te.stage import ScheduleError, Unsupported


@pytest.fixture
def added():
    """A schedule of an addition, and its arguments."""
    a, b, c = addition(100)
    return te.create_schedule(c.op), [a, b, c]


# ---------------------------------------------------------------- modules


def test_a_module_has_its_old_methods(added, tmp_path):
    s, args = added
    module = tvm.build(s, args, "llvm", name="add")
    assert module.entry_name == "add" and module.type_key == "llvm" and module.imported_modules == []
    assert "define" in module.get_source() and "add" in module.get_source("asm")
    x, y, z = (tvm.nd.array(values(100)), tvm.nd.array(values(100)), tvm.nd.empty((100,)))
    module.entry_func(x, y, z)
    np.testing.assert_array_equal(z.asnumpy(), x.asnumpy() * 2)
    for timer in (
        module.time_evaluator(module.entry_name, tvm.cpu(0), number=2, repeat=3),
        module.time_evaluator("add", ctx=tvm.cpu(), number=1),
    ):
        assert timer(x, y, z).mean > 0
    for there_is_none in (
        lambda: module["subtract"],
        lambda: module.get_function("subtract"),
        lambda: module.time_evaluator("subtract", tvm.cpu()),
    ):
        with pytest.raises(AttributeError, match="Module has no function 'subtract'"):
            there_is_none()
    module.save(str(tmp_path / "add.o"))
    module.save(str(tmp_path / "add.ll"))
    assert (tmp_path / "add.o").stat().st_size and "define" in (tmp_path / "add.ll").read_text()
    module.export_library(str(tmp_path / "add.so"))
    loaded = tvm.runtime.load_module(str(tmp_path / "add.so"))
    z = tvm.nd.empty((100,))
    loaded(x, y, z)
    np.testing.assert_array_equal(z.asnumpy(), x.asnumpy() * 2)
    loaded["add"](x, y, z)


def test_what_is_lowered_can_be_built(added):
    s, args = added
    x, y = values(100), values(100)
    target = tvm.target.Target("llvm")
    for built in (
        tvm.build(tvm.lower(s, args), target="llvm"),
        tvm.build(tvm.lower(s, args, simple_mode=True), target="llvm"),
        tvm.build(tvm.lower(s, args, name="other")),
        tvm.build(tvm.lower(s, args), "llvm"),
        tvm.build(tvm.lower(s, args)["main"], target),
        tvm.build(s, args),
        tvm.build(s, args, "llvm", target_host="llvm", name="f"),
    ):
        z = tvm.nd.empty((100,))
        built(tvm.nd.array(x), tvm.nd.array(y), z)
        np.testing.assert_array_equal(z.numpy(), x + y)
    with target:
        assert tvm.build(s, args).entry_name == "default_function"
    assert "for i in range(100)" in str(tvm.lower(s, args, simple_mode=True))


def test_the_names_of_tvm_0_5():
    n = tvm.var("n")
    a = tvm.placeholder((n,), name="A")
    b = tvm.compute(a.shape, lambda i: tvm.select(a[i] > 0, tvm.exp(a[i]), tvm.const(0, "float32")), name="B")
    s = tvm.create_schedule(b.op)
    s[b].split(b.op.axis[0], factor=4)
    x = values(9)
    out = tvm.nd.empty((9,))
    tvm.build(s, [a, b], "llvm", name="relu_exp")(tvm.nd.array(x), out)
    close(out.asnumpy(), np.where(x > 0, np.exp(f64(x)), 0), 4)
    k = tvm.reduce_axis((0, 5), "k")
    total = tvm.compute((3,), lambda i: tvm.sum(a[i + k], axis=k))
    assert te.create_schedule(total.op)[total].op.reduce_axis[0].dom.extent == 5
    m = te.size_var("m")
    c = tvm.placeholder((m,), name="C")
    at = lambda i: tvm.floordiv(i, 2) * 2 + tvm.floormod(i, 2)  # noqa: E731
    d = tvm.compute((m,), lambda i: tvm.max(tvm.min_value("float32"), c[at(i)] + tvm.sin(c[i])), name="D")
    tvm.build(tvm.create_schedule(d.op), [c, d], "llvm")(tvm.nd.array(x), out)
    close(out.asnumpy(), f64(x) + np.sin(f64(x)), 4)


def test_tvm_tir_is_tirx():
    from tvm import tir  # for speed: only where the old API is enabled

    assert tir.const is tvm.tirx.const and tir.Schedule is tvm.s_tir.Schedule
    assert tvm.tir.transform.VectorizeLoop is tvm.tirx.transform.VectorizeLoop
    with pytest.raises(AttributeError, match="tvmclassic serves no tvm.tir.stmt_; near names: stmt, "):
        tir.stmt_  # noqa: B018


# ---------------------------------------------------------------- today


def test_todays_script(added, capsys):
    s, args = added
    outer, inner = s[args[2]].split(args[2].op.axis[0], factor=32)
    s[args[2]].parallel(outer)
    s[args[2]].vectorize(inner)
    s.today()
    printed = capsys.readouterr().out
    assert printed == script_of(s, args) + "\n"
    assert printed.splitlines()[-6:] == [
        'c = sch.get_sblock("c")'.replace('"', "'"),
        "i, = sch.get_loops(c)",
        "i_outer, i_inner = sch.split(i, [None, 32])",
        "sch.parallel(i_outer)",
        "sch.vectorize(i_inner)",
        "mod = sch.mod",
    ]
    assert nest(tvm.lower(run_script(printed), simple_mode=True)["main"].body) == chain("p4", "v32")


def test_todays_script_of_a_product_in_a_cache():
    a, b, c = matmul(32, 16, 64)
    s = te.create_schedule(c.op)
    cc = s.cache_write(c, "global")
    _, jo, _, _ = s[c].tile(*s[c].op.axis, 8, 16)
    s[cc].compute_at(s[c], jo)
    text = script_of(s, [a, b, c])
    assert [line for line in text.splitlines() if "sch." in line and "Schedule" not in line] == [
        "C = sch.get_sblock('C')",
        "C_copy = sch.cache_write(C, 0, 'global')",
        "i, j = sch.get_loops(C_copy)",
        "i_outer, i_inner = sch.split(i, [None, 8])",
        "j_outer, j_inner = sch.split(j, [None, 16])",
        "sch.reorder(i_outer, j_outer, i_inner, j_inner)",
        "sch.compute_at(C, j_outer, preserve_unit_loops=True)",
        "*_, k = sch.get_loops(C)",
        "sch.decompose_reduction(C, k)",
        "mod = sch.mod",
    ]


# ---------------------------------------------------------------- GPUs


def shared_matmul(n=64, tile=32, threads=8, step=8):
    """A product in tiles of shared memory, as TVM's tutorials had it."""
    a, b, c = matmul(n, n, n)
    s = te.create_schedule(c.op)
    aa, bb = s.cache_read(a, "shared", [c]), s.cache_read(b, "shared", [c])
    al, bl = s.cache_read(aa, "local", [c]), s.cache_read(bb, "local", [c])
    cc = s.cache_write(c, "local")
    block_x, block_y = te.thread_axis("blockIdx.x"), te.thread_axis("blockIdx.y")
    thread_x, thread_y = te.thread_axis((0, threads), "threadIdx.x"), te.thread_axis((0, threads), "threadIdx.y")
    i, j = s[c].op.axis
    by, yi = s[c].split(i, factor=tile)
    bx, xi = s[c].split(j, factor=tile)
    ty, yi = s[c].split(yi, nparts=threads)
    tx, xi = s[c].split(xi, nparts=threads)
    s[c].reorder(by, bx, ty, tx, yi, xi)
    for axis, thread in ((by, block_y), (bx, block_x), (ty, thread_y), (tx, thread_x)):
        s[c].bind(axis, thread)
    s[cc].compute_at(s[c], tx)
    (k,) = s[cc].op.reduce_axis
    ko, ki = s[cc].split(k, factor=step)
    s[cc].reorder(ko, ki, *s[cc].op.axis)
    for stage, at in ((aa, ko), (bb, ko), (al, ki), (bl, ki)):
        s[stage].compute_at(s[cc], at)
    for stage in (aa, bb):
        y, x = s[stage].op.axis
        ty, y = s[stage].split(y, nparts=threads)
        tx, x = s[stage].split(x, nparts=threads)
        s[stage].reorder(ty, tx, y, x)
        s[stage].bind(ty, thread_y)
        s[stage].bind(tx, thread_x)
    return s, [a, b, c]


def test_a_schedule_for_a_gpu_gives_its_source():
    s, args = shared_matmul()
    module = tvm.build(s, args, "cuda", name="product")
    source = module.imported_modules[0].get_source()
    for part in ("__global__", "__shared__", "__syncthreads()", "blockIdx.x", "threadIdx.y"):
        assert part in source
    assert "product" in module.entry_name
    lowered = tvm.lower(s, args).script()
    assert 'scope="shared"' in lowered and 'scope="local"' in lowered


def test_loops_of_a_schedule_for_a_gpu():
    s, args = shared_matmul()
    ((by, two, inside),) = loops(s, args)
    kinds = [by]
    while len(inside) == 1:
        ((kind, _, inside),) = inside
        kinds.append(kind)
    assert two == 2 and kinds == ["blockIdx.y", "blockIdx.x", "threadIdx.y", "threadIdx.x"]
    start, add, back = inside
    assert start == chain("4", "4")[0] and back == chain("4", "4")[0]
    assert add[:2] == ("serial", 8) and add[2][-1] == chain("8", inside=chain("4") * 2 + chain("4", "4"))[0]


@pytest.mark.parametrize("n", [64, 60, 33])
def test_what_the_threads_of_a_product_compute(n):
    s, args = shared_matmul(n)
    x, y, out = values(n, n), values(n, n + 1)[:, :n].copy(), tvm.nd.empty((n, n))
    tvm.build(emulate(tvm.lower(s, args)["main"]), "llvm")(tvm.nd.array(x), tvm.nd.array(y), out)
    close(out.numpy(), f64(x) @ f64(y), n, scale=np.abs(f64(x)) @ np.abs(f64(y)))


def test_threads_may_share_a_sum():
    n, threads = 64, 16
    x = te.placeholder((8, n), name="x")
    k = te.reduce_axis((0, n), name="k")
    total = te.compute((8,), lambda i: te.sum(x[i, k], axis=k), name="total")
    s = te.create_schedule(total.op)
    _, ki = s[total].split(k, factor=threads)
    part = s.rfactor(total, ki)
    thread = te.thread_axis("threadIdx.x")
    s[total].bind(s[total].op.axis[0], te.thread_axis("blockIdx.x"))
    s[total].bind(s[total].op.reduce_axis[0], thread)
    s[part].compute_at(s[total], s[total].op.reduce_axis[0])
    s[total].set_store_predicate(thread.var.equal(0))
    source = tvm.build(s, [x, total], "cuda").imported_modules[0].get_source()
    assert "threadIdx.x" in source and "total" in source
    assert "local" in tvm.lower(s, [x, total]).script()


@pytest.mark.parametrize("factored", [True, False])
@pytest.mark.parametrize("length, known", [(64, True), (60, True), (5, True), (50, False)])
def test_threads_may_share_a_sum_of_any_length(length, known, factored):
    n = length if known else te.var("n")
    x = te.placeholder((8, n), name="x")
    k = te.reduce_axis((0, n), name="k")
    total = te.compute((8,), lambda i: te.sum(x[i, k], axis=k), name="total")
    s = te.create_schedule(total.op)
    _, ki = s[total].split(k, factor=16)
    if factored:
        part = s.rfactor(total, ki)
        (ki,) = s[total].op.reduce_axis
        s[part].compute_at(s[total], ki)
    s[total].bind(s[total].op.axis[0], te.thread_axis("blockIdx.x"))
    s[total].bind(ki, te.thread_axis("threadIdx.x"))
    source = tvm.build(s, [x, total], "cuda").imported_modules[0].get_source()
    assert "threadIdx.x" in source and "__shfl_down_sync" in source
    given, out = values(8, length), tvm.nd.empty((8,))
    tvm.build(emulate(tvm.lower(s, [x, total])["main"]), "llvm")(tvm.nd.array(given), out)
    close(out.numpy(), f64(given).sum(1), length, scale=np.abs(f64(given)).sum(1))


def test_a_shared_sum_of_rows_that_leave_a_rest_is_refused():
    x = te.placeholder((9, 64), name="x")
    k = te.reduce_axis((0, 64), name="k")
    total = te.compute((9,), lambda i: te.sum(x[i, k], axis=k), name="total")
    s = te.create_schedule(total.op)
    outer, inner = s[total].split(total.op.axis[0], factor=4)
    s[total].bind(outer, te.thread_axis("blockIdx.x"))
    s[total].bind(inner, te.thread_axis("threadIdx.y"))
    s[total].bind(s[total].split(k, factor=16)[1], te.thread_axis("threadIdx.x"))
    with pytest.raises(Unsupported, match="bind of stage total: the loops of its splits leave a rest, which TVM"):
        tvm.lower(s, [x, total])


def test_virtual_threads_and_threads_without_a_loop_of_their_length():
    a, b, c = addition(64)
    s = te.create_schedule(c.op)
    outer, inner = s[c].split(c.op.axis[0], factor=16)
    s[c].bind(outer, te.thread_axis("vthread", name="v"))
    s[c].bind(inner, te.thread_axis((0, 16), "threadIdx.x"))
    assert "vthread.x" in script_of(s, [a, b, c])
    s[c].bind(inner, te.thread_axis((0, 32), "threadIdx.x"))
    with pytest.raises(Unsupported, match="bind of stage c, axis i.inner: threadIdx.x has 32 steps and the loop 16"):
        tvm.lower(s, [a, b, c])


@pytest.mark.skipif(not tvm.cuda().exist, reason="there is no GPU")
def test_a_product_on_a_gpu():
    s, args = shared_matmul()
    module = tvm.build(s, args, "cuda")
    x, y, out = values(64, 64), values(64, 65)[:, :64].copy(), tvm.nd.empty((64, 64), device=tvm.cuda())
    module(tvm.nd.array(x, tvm.cuda()), tvm.nd.array(y, tvm.cuda()), out)
    close(out.numpy(), f64(x) @ f64(y), 64, scale=np.abs(f64(x)) @ np.abs(f64(y)))


# ---------------------------------------------------------------- what is refused


def test_arguments(added):
    s, (a, b, c) = added
    with pytest.raises(TypeError, match=r"expected the arguments of the function, such as \[A, B, C\]"):
        tvm.lower(s)
    with pytest.raises(TypeError, match="expected a schedule of te.create_schedule, .*; got str"):
        tvm.lower("s", [a])
    with pytest.raises(ScheduleError, match="te: c is not among the arguments"):
        tvm.lower(s, [a, b])
    with pytest.raises(ScheduleError, match="te: b is not among the arguments"):
        tvm.lower(s, [a, c])
    with pytest.raises(ScheduleError, match="arguments of a function: expected tensors .*; got int 3"):
        tvm.lower(s, [a, b, c, 3])
    with pytest.raises(NotImplementedError, match="binds are gone"):
        tvm.lower(s, [a, b, c], binds={a: None})
    with pytest.raises(TypeError, match="te.create_schedule: expected operations, such as C.op"):
        te.create_schedule([3])
    with pytest.raises(TypeError, match="expected one schedule, module or function; got a dict"):
        tvm.build({"llvm": tvm.lower(s, [a, b, c])})


def test_axes_of_others_and_steps_out_of_order(added):
    s, (a, b, c) = added
    axis = c.op.axis[0]
    _, _, other = addition(100)
    with pytest.raises(ScheduleError, match="split of stage c, axis i: it belongs to another stage or operation; the"):
        s[c].split(other.op.axis[0], 4)
    with pytest.raises(ScheduleError, match="the schedule has no stage of 'c'; it has a, b, c"):
        s[other]
    with pytest.raises(ScheduleError, match="expected either factor or nparts; got 4, 2"):
        s[c].split(axis, 4, 2)
    with pytest.raises(ScheduleError, match="expected a positive int, as TensorIR splits by these; got 0"):
        s[c].split(axis, 0)
    outer, inner = s[c].split(axis, 4)
    with pytest.raises(ScheduleError, match="axis i: it was split or fused before; the loops .* are i.outer, i.inner"):
        s[c].vectorize(axis)
    innermost = s[c].split(inner, 2)[1]
    with pytest.raises(ScheduleError, match="fuse of stage c, axis i.outer: i.inner.inner has to be the next loop"):
        s[c].fuse(outer, innermost)
    with pytest.raises(ScheduleError, match="reorder of stage c: expected each axis once"):
        s[c].reorder(outer, outer)
    with pytest.raises(ScheduleError, match="cache_write of c: call it before split"):
        s.cache_write(c, "local")
    with pytest.raises(ScheduleError, match="bind of stage c, axis i.outer: expected an axis of te.thread_axis"):
        s[c].bind(outer, inner)
    with pytest.raises(ScheduleError, match="compute_at of stage c: c is computed within it, or is the same"):
        s[c].compute_at(s[c], outer)
    with pytest.raises(ScheduleError, match=r"compute_at of stage a: expected a stage, such as s\[C\]; got Tensor"):
        s[a].compute_at(c, outer)
    with pytest.raises(ScheduleError, match="compute_inline of stage a: it is an input"):
        s[a].compute_inline()
        tvm.lower(s, [a, b, c])


def test_what_tvm_refuses_today_is_named(added):
    s, _args = added
    a, b, c = matmul(8, 8, 8)
    s = te.create_schedule(c.op)
    s[c].parallel(s[c].op.reduce_axis[0])
    with pytest.raises(ScheduleError, match="te: parallel of stage C, axis k: today's TVM refuses parallel: .*"):
        tvm.lower(s, [a, b, c])
    s = te.create_schedule(c.op)
    s[c].compute_inline()
    with pytest.raises(ScheduleError, match="te: compute_inline of stage C: today's TVM refuses compute_inline"):
        tvm.lower(s, [a, b, c])
    d, e, _ = matmul(8, 8, 8)
    up = te.compute((8, 8), lambda i, j: d[i, j] + 1, name="up")
    one = te.compute((8, 8), lambda i, j: up[i, j] + e[i, j], name="one")
    two = te.compute((8, 8), lambda i, j: up[i, j] - one[i, j], name="two")
    s = te.create_schedule(two.op)
    s[up].compute_at(s[two], two.op.axis[0])
    with pytest.raises(ScheduleError, match="te: compute_at of stage up at two, axis i: today's TVM refuses"):
        tvm.lower(s, [d, e, two])
    s = te.create_schedule(two.op)
    s[two].split(two.op.axis[0], 2)
    s[one].compute_at(s[two], s[two].leaf_iter_vars[0])
    s[two].split(s[two].leaf_iter_vars[0], 2)
    with pytest.raises(ScheduleError, match="compute_at of stage one at two, axis i.outer: the axis is no loop of two"):
        tvm.lower(s, [d, e, two])
    s = te.create_schedule(two.op)
    with pytest.raises(ScheduleError, match="cache_read of stage A: two does not read it, but up, one"):
        s.cache_read(d, "global", [two])
        tvm.lower(s, [d, e, two])


def test_a_stage_within_a_vector_is_refused(added):
    s, (a, b, c) = added
    d = te.compute((100,), lambda i: c[i] * c[i], name="d")
    s = te.create_schedule(d.op)
    _, inner = s[d].split(d.op.axis[0], factor=4)
    s[d].vectorize(inner)
    s[c].compute_at(s[d], inner)
    with pytest.raises(Unsupported, match="compute_at of stage c at d, axis i.inner: i.inner of d is vectorized"):
        tvm.lower(s, [a, b, d])


def test_primitives_without_a_counterpart(added):
    s, (a, b, c) = added
    axis = c.op.axis[0]
    for refused, words in (
        (lambda: s[c].prefetch(a, axis, 1), "prefetch of stage c: TensorIR has none; leave"),
        (lambda: s[c].env_threads([]), "env_threads of stage c"),
        (lambda: s[c].rolling_buffer(), "rolling_buffer of stage c: call that of tvm.s_tir.Schedule"),
        (lambda: s[c].fuse(), "fuse of stage c without axes"),
        (lambda: s.create_group(outputs=c, inputs=a), "create_group: TensorIR has no groups"),
    ):
        with pytest.raises(Unsupported, match=words):
            refused()
    with pytest.raises(
        ScheduleError, match="tensorize of stage c, axis i: expected what te.decl_tensor_intrin returns"
    ):
        s[c].tensorize(axis, object())
    with pytest.raises(AttributeError, match="hybrid script was dropped"):
        te.hybrid  # noqa: B018
    s[c].set_store_predicate(a[0] > 0)
    with pytest.raises(Unsupported, match="set_store_predicate of stage c"):
        tvm.lower(s, [a, b, c])


def test_an_intrinsic_by_its_name():
    from tvm.script import tirx as T  # for speed: one test writes TensorIR

    @T.prim_func(s_tir=True)
    def described(a: T.handle, b: T.handle, c: T.handle) -> None:
        A = T.match_buffer(a, (4,), offset_factor=1)
        B = T.match_buffer(b, (4,), offset_factor=1)
        C = T.match_buffer(c, (4,), offset_factor=1)
        with T.sblock("root"):
            T.reads(A[0:4], B[0:4])
            T.writes(C[0:4])
            for i in T.serial(4):
                with T.sblock("c"):
                    v = T.axis.remap("S", [i])
                    C[v] = A[v] + B[v]

    @T.prim_func(s_tir=True)
    def made(a: T.handle, b: T.handle, c: T.handle) -> None:
        A = T.match_buffer(a, (4,), offset_factor=1)
        B = T.match_buffer(b, (4,), offset_factor=1)
        C = T.match_buffer(c, (4,), offset_factor=1)
        with T.sblock("root"):
            T.reads(A[0:4], B[0:4])
            T.writes(C[0:4])
            for i in T.vectorized(4):
                C[i] = A[i] + B[i]

    tvm.s_tir.TensorIntrin.register("tests.add4", described, made, override=True)
    a, b, c = addition(12)
    s = te.create_schedule(c.op)
    _, inner = s[c].split(c.op.axis[0], factor=4)
    s[c].tensorize(inner, "tests.add4")
    assert loops(s, [a, b, c]) == chain("3", "v4")
    x, y, z = tvm.nd.array(values(12)), tvm.nd.array(values(12)), tvm.nd.empty((12,))
    tvm.build(s, [a, b, c], "llvm")(x, y, z)
    np.testing.assert_array_equal(z.numpy(), x.numpy() + y.numpy())


# ---------------------------------------------------------------- what old tutorials lean on


def test_what_is_printed_may_leave_its_results_out(added):
    s, (a, b, _) = added
    assert nest(tvm.lower(s, [a, b], simple_mode=True)["main"].body) == chain("100")
    assert "c" in str(tvm.lower(s, [a, b], simple_mode=True)["main"].params[-1])
    with pytest.raises(ScheduleError, match="te: b is not among the arguments"):
        tvm.lower(s, [a], simple_mode=True)


def test_a_program_of_one_function_in_python():
    @tvm.register_func("tests.negated", override=True)
    def negated(x, y):
        tvm.nd.array(-x.numpy()).copyto(y)

    a = te.placeholder((6,), name="a")
    b = te.extern(a.shape, [a], lambda ins, outs: tvm.tir.call_packed("tests.negated", ins[0], outs[0]), name="b")
    x, y = tvm.nd.array(values(6)), tvm.nd.empty((6,))
    tvm.build(te.create_schedule(b.op), [a, b], "llvm")(x, y)
    np.testing.assert_array_equal(y.numpy(), -x.numpy())


def test_all_but_reductions_and_results_are_inlined():
    x = te.placeholder((4, 6), name="x")
    doubled = te.compute(x.shape, lambda i, j: x[i, j] * 2, name="doubled")
    k = te.reduce_axis((0, 6), name="k")
    total = te.compute((4,), lambda i: te.sum(doubled[i, k] + 1, axis=k), name="total")
    shifted = te.compute((4,), lambda i: total[i] - 3, name="shifted")
    y = te.compute((4,), lambda i: shifted[i] * shifted[i], name="y")
    s = te.create_schedule(y.op)
    te.schedule.AutoInlineInjective(s)
    assert [stage.name for stage in s.stages if stage.attach_type == "inline"] == ["doubled", "shifted"]
    assert loops(s, [x, y]) == chain("4", "6") + chain("4")
    given, result = values(4, 6), tvm.nd.empty((4,))
    tvm.build(s, [x, y], "llvm")(tvm.nd.array(given), result)
    exact = ((f64(given) * 2 + 1).sum(1) - 3) ** 2
    close(result.numpy(), exact, 16, scale=(np.abs(f64(given) * 2 + 1).sum(1) + 3) ** 2)


def test_a_stage_whose_loops_are_split_is_not_inlined():
    x = te.placeholder((8,), name="x")
    doubled = te.compute(x.shape, lambda i: x[i] * 2, name="doubled")
    y = te.compute(x.shape, lambda i: doubled[i] + 1, name="y")
    s = te.create_schedule(y.op)
    s[doubled].vectorize(s[doubled].split(doubled.op.axis[0], factor=4)[1])
    te.schedule.AutoInlineInjective(s)
    assert s[doubled].attach_type == "root" and loops(s, [x, y]) == chain("2", "v4") + chain("8")


def test_a_variable_says_its_dtype():
    assert (te.var("n").dtype, te.var("x", "float32").dtype) == ("int32", "float32")
    assert tvm.tir.decl_buffer((3,), "int8").dtype == "int8"


# ---------------------------------------------------------------- schedules of TOPI


def kinds_of(loops_found):
    """The kinds of all loops in a nest."""
    return {kind for kind, _, _ in loops_found} | {k for _, _, inside in loops_found for k in kinds_of(inside)}


def test_a_schedule_of_topi_for_cpus():
    from tvm.topi import generic, x86

    x, w = te.placeholder((1, 4, 16, 64), name="x"), te.placeholder((8, 4, 3, 3), name="w")
    conv = topi.nn.conv2d_nchw(x, w, 1, 1, 1)
    out = topi.nn.relu(conv)
    image, weight, got = values(1, 4, 16, 64), values(8, 4, 3, 3), tvm.nd.empty((1, 8, 16, 64))
    padded = np.pad(f64(image), ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
    wanted = np.maximum(np.einsum("nchwij,ocij->nohw", windows, f64(weight)), 0)
    with tvm.target.Target("llvm"):
        s = x86.schedule_conv2d_nchw([out])
    assert kinds_of(loops(s, [x, w, out])) >= {"parallel", "vectorized"}
    tvm.build(s, [x, w, out], "llvm", name="conv")(tvm.nd.array(image), tvm.nd.array(weight), got)
    close(got.numpy(), wanted, 36, scale=np.abs(weight).sum((1, 2, 3)).max() * np.abs(image).max())

    a = te.placeholder((6, 32), name="a")
    total = topi.sum(topi.exp(a), axis=1)
    rows, sums = values(6, 32), tvm.nd.empty((6,))
    tvm.build(generic.schedule_reduce(total), [a, total], "llvm")(tvm.nd.array(rows), sums)
    close(sums.numpy(), np.exp(f64(rows)).sum(1), 32 + 4, scale=np.exp(f64(rows)).sum(1))
    refused = pytest.raises(NotImplementedError, match="topi: schedules for GPUs were dropped; tvm.s_tir.dlight")
    with refused, tvm.target.Target("cuda"):
        generic.schedule_injective(total)
    with pytest.raises(Unsupported, match="topi: the stage of .*begin with te.create_schedule"):
        s[out]
    with pytest.raises(TypeError, match="expected tensors of te or topi; got 3"):
        generic.schedule_injective(3)
