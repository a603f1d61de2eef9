"""What old scripts have beside schedules: `te.scan`, intrinsics of their own, passes on TensorIR, struct info."""

import numpy as np
import pytest
import tvm
from agreement import close
from old_api import enabled  # noqa: F401 (a fixture)
from test_classic_te import addition, chain, f64, loops, values
from tvm import te

from tvmclassic.te.stage import ScheduleError


def call(s, args, arrays, shapes, dtype="float32", options=None):
    """Compile a schedule for the CPU, call it, and return results of these shapes."""
    results = [tvm.nd.array(np.full(shape, 7, dtype)) for shape in shapes]
    tvm.build(s, args, "llvm", **(options or {}))(*map(tvm.nd.array, arrays), *results)
    return [result.numpy() for result in results]


# ---------------------------------------------------------------- scans


def test_a_scan_of_sums():
    m, n = te.var("m"), te.var("n")
    x, state = te.placeholder((m, n), name="x"), te.placeholder((m, n), name="state")
    start = te.compute((1, n), lambda _, i: x[0, i], name="start")
    step = te.compute((m, n), lambda t, i: state[t - 1, i] + x[t, i], name="step")
    total = te.scan(start, step, state, inputs=[x], name="total")
    s = te.create_schedule(total.op)
    s[start].vectorize(s[start].split(start.op.axis[1], factor=4)[1])  # what is read before has a schedule
    given = values(6, 5)
    wanted = f64(given).cumsum(0)
    close(call(s, [x, total], [given], [(6, 5)]), [wanted], 6, scale=np.abs(f64(given)).sum(0))
    with pytest.raises(ScheduleError, match="te: the schedule has no stage of 'step'; it has x, start, total"):
        s[step]


def test_a_scan_without_other_axes_may_start_with_more_steps():
    state = te.placeholder((12,), "int32", name="state")
    start = te.compute((2,), lambda i: tvm.tir.const(1, "int32"), name="start")
    step = te.compute((12,), lambda t: state[t - 1] + state[t - 2], name="step")
    numbers = te.scan(start, step, state, name="numbers")
    (found,) = call(te.create_schedule(numbers.op), [numbers], [], [(12,)], "int32")
    assert found.tolist() == [1, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144]


def recurrent(steps, n):
    """A recurrent layer, and the sum of squares of its first unit so far: two states, a reduction in the step."""
    x, weight = te.placeholder((steps, n), name="x"), te.placeholder((n, n), name="weight")
    h, energy = te.placeholder((steps, n), name="h"), te.placeholder((steps,), name="energy")
    k = te.reduce_axis((0, n), name="k")
    product = te.compute((steps, n), lambda t, i: te.sum(weight[i, k] * h[t - 1, k], axis=k), name="product")
    new_h = te.compute((steps, n), lambda t, i: te.tanh(product[t, i] + x[t, i]), name="new_h")
    new_energy = te.compute((steps,), lambda t: energy[t - 1] + new_h[t, 0] * new_h[t, 0], name="new_energy")
    first_h = te.compute((1, n), lambda _, i: te.tanh(x[0, i]), name="first_h")
    first_energy = te.compute((1,), lambda _: first_h[0, 0] * first_h[0, 0], name="first_energy")
    scanned = te.scan([first_h, first_energy], [new_h, new_energy], [h, energy], inputs=[x, weight])
    return [x, weight, *scanned]


def test_a_recurrent_layer_as_a_scan():
    steps, n = 5, 4
    x, weight, h, energy = recurrent(steps, n)
    twice = te.compute((steps, n), lambda t, i: h[t, i] * 2, name="twice")
    given, weights = values(steps, n), values(n, n)
    s = te.create_schedule([twice.op, energy.op])
    found = call(s, [x, weight, twice, energy], [given, weights], [(steps, n), (steps,)])
    wanted = np.zeros((steps, n))
    for t in range(steps):
        wanted[t] = np.tanh(f64(given)[t] + (f64(weights) @ wanted[t - 1] if t else 0))
    close(found, [2 * wanted, (wanted[:, 0] ** 2).cumsum()], 8 * steps, scale=np.abs(weights).sum() + 2)


@pytest.mark.parametrize("ago", [0, 2, -1])
def test_a_step_that_reads_what_is_not_there_is_refused(ago):
    state = te.placeholder((8,), name="state")
    start = te.compute((1,), lambda i: 1.0, name="start")
    step = te.compute((8,), lambda t: state[t - ago] * 2, name="step")
    with pytest.raises(
        NotImplementedError, match="te.scan scan: step reads state at .*; expected a state at one of the 1"
    ):
        te.scan(start, step, state)


def test_computations_of_a_step_may_share_an_axis_of_their_sums():
    steps, n = 4, 3
    x, state = te.placeholder((steps, n), name="x"), te.placeholder((steps, n), name="state")
    k = te.reduce_axis((0, n), name="k")
    first = te.compute((1, n), lambda _, i: x[0, i], name="first")
    total = te.compute((steps,), lambda t: te.sum(state[t - 1, k], axis=k), name="total")
    largest = te.compute((steps,), lambda t: te.max(state[t - 1, k], axis=k), name="largest")
    step = te.compute((steps, n), lambda t, i: x[t, i] + total[t] - largest[t], name="step")
    y = te.scan(first, step, state, name="y")
    given = np.arange(steps * n, dtype="float32").reshape(steps, n)
    wanted = given.copy()
    for t in range(1, steps):
        wanted[t] += wanted[t - 1].sum() - wanted[t - 1].max()
    (found,) = call(te.create_schedule(y.op), [x, y], [given], [(steps, n)])
    np.testing.assert_array_equal(found, wanted)


def test_states_without_a_step_of_their_own_are_refused():
    first, second = (te.placeholder((8,), name=name) for name in ("first", "second"))
    start = te.compute((1,), lambda i: 1.0, name="start")
    step = te.compute((8,), lambda t: first[t - 1] + second[t - 1], name="step")
    with pytest.raises(NotImplementedError, match="te.scan scan: expected a placeholder and a te.compute for each"):
        te.scan([start, start], [step, step], [first, second])
    with pytest.raises(NotImplementedError, match="te.scan scan: second: expected a te.compute with one result"):
        te.scan([start, start], [step, second], [first, second])


# ---------------------------------------------------------------- arguments


@pytest.mark.parametrize("how", ["inline", "within"])
def test_a_stage_in_the_loops_of_another_may_be_an_argument(how):
    x = te.placeholder((3, 4), name="x")
    y = te.compute(x.shape, lambda i, j: x[i, j] + 1, name="y")
    z = te.compute(x.shape, lambda i, j: y[i, j] * 2, name="z")
    s = te.create_schedule(z.op)
    if how == "inline":
        s[y].compute_inline()
    else:
        s[y].compute_at(s[z], z.op.axis[0])
    given = values(3, 4)
    found = call(s, [x, y, z], [given], [(3, 4), (3, 4)])
    np.testing.assert_array_equal(found[1], (given + 1) * 2)
    np.testing.assert_array_equal(found[0], np.full((3, 4), 7, "float32") if how == "inline" else given + 1)
    nest = chain("4") + chain("4") if how == "within" else chain("4")
    assert loops(s, [x, y, z]) == chain("3", inside=nest)


def test_of_several_results_the_only_one_that_is_read_has_loops():
    x, other = te.placeholder((3, 4), name="x"), te.placeholder((3, 4), name="other")
    plus, _times = te.compute(x.shape, lambda i, j: (x[i, j] + 2, x[i, j] * 3), name="both")
    y = te.compute(x.shape, lambda i, j: other[i, j] - plus[i, j], name="y")
    s = te.create_schedule(y.op)
    s[plus].compute_at(s[y], y.op.axis[0])
    assert loops(s, [x, other, y]) == chain("3", inside=chain("4") + chain("4"))
    given, more = values(3, 4), values(3, 4) + 1
    np.testing.assert_array_equal(call(s, [x, other, y], [given, more], [(3, 4)])[0], more - (given + 2))


def test_a_factored_sum_can_be_printed():
    x = te.placeholder((4, 12), name="x")
    k = te.reduce_axis((0, 12), name="k")
    total = te.compute((4,), lambda i: te.sum(x[i, k], axis=k), name="total")
    s = te.create_schedule(total.op)
    part = s.rfactor(total, s[total].split(k, factor=3)[1])
    (body,) = s[total].op.body
    assert isinstance(body, te.Reduce) and [axis.dom.extent.value for axis in body.axis] == [3]
    assert [load.args[0].name for load in body.source] == ["total.rf"] == [part.name] and "comm_reducer" in str(body)


@pytest.mark.parametrize("transposed", [False, True])
def test_products_of_a_library(transposed):
    from tvm.contrib import cblas  # for speed: one test calls it

    a, b = te.placeholder((4, 6), name="a"), te.placeholder((5, 6) if transposed else (6, 5), name="b")
    shift = te.var("shift", "float32")
    product = cblas.matmul(a, b, transb=transposed)
    shifted = te.compute(product.shape, lambda i, j: product[i, j] + shift, name="shifted")
    x, y, z = values(4, 6), values(*map(int, b.shape)), tvm.nd.empty((4, 5))
    tvm.build(te.create_schedule(shifted.op), [a, b, shifted, shift], "llvm")(*map(tvm.nd.array, (x, y)), z, 10.0)
    wanted = f64(x) @ (f64(y).T if transposed else f64(y)) + 10
    close(z.numpy(), wanted, 7, scale=6 * np.abs(x).max() * np.abs(y).max() + 10)


def test_wrong_arguments_are_errors_of_tvm_and_of_their_kind():
    a, b, c = addition(8)
    func = tvm.build(te.create_schedule(c.op), [a, b, c], "llvm")
    arrays = [tvm.nd.array(values(8)) for _ in range(3)]
    for wrong in (tvm.nd.array(values(9)), tvm.nd.array(values(8, dtype="float64"))):
        with pytest.raises(tvm.TVMError) as caught:
            func(wrong, *arrays[1:])
        assert isinstance(caught.value, ValueError | TypeError)


# ---------------------------------------------------------------- intrinsics


def products(rows, columns, length, part):
    """C = A @ B.T, and a schedule whose inner loops are over `part` columns and all of the sum."""
    a, b = te.placeholder((rows, length), name="A"), te.placeholder((columns, length), name="B")
    k = te.reduce_axis((0, length), name="k")
    c = te.compute((rows, columns), lambda i, j: te.sum(a[i, k] * b[j, k], axis=k), name="C")
    s = te.create_schedule(c.op)
    _, inner = s[c].split(c.op.axis[1], factor=part)
    return s, (a, b, c), inner


def declared(part, length, make, **options):
    """An intrinsic for `part` sums of `length` products, whose statements `make(builder, ins, out)` writes."""
    a, b = te.placeholder((length,), name="a"), te.placeholder((part, length), name="b")
    k = te.reduce_axis((0, length), name="k")
    c = te.compute((part,), lambda i: te.sum(a[k] * b[i, k], axis=k), name="c")
    binds = {
        a: tvm.tir.decl_buffer(a.shape, a.dtype, name="A", offset_factor=1, strides=[1]),
        b: tvm.tir.decl_buffer(b.shape, b.dtype, name="B", offset_factor=1, strides=[te.var("stride"), 1]),
        c: tvm.tir.decl_buffer(c.shape, c.dtype, name="C", offset_factor=1, strides=[1]),
    }

    def statements(ins, outs):
        made = []
        count = 3 if options.get("three") else 2 if options.get("two") else 1
        for add in (True, False, True)[:count]:
            builder = tvm.tir.ir_builder.create()
            make(builder, ins, outs[0], add)
            made.append(builder.get())
        return tuple(made) if len(made) > 1 else made[0]

    return te.decl_tensor_intrin(c.op, statements, name="sums", binds=binds)


def in_vectors(part, length):
    """A maker of statements with a vectorized loop, which shows in what is lowered."""

    def make(builder, ins, out, add):
        (a, b), c = map(builder.buffer_ptr, ins), builder.buffer_ptr(out)
        with builder.for_range(0, length, "k") as k, builder.for_range(0, part, "i", kind="vectorize") as i:
            c[i] = c[i] + a[k] * b[i, k] if add else tvm.tir.const(0, "float32")

    return make


def test_a_declared_intrinsic_takes_the_place_of_loops():
    s, (a, b, c), inner = products(6, 8, 5, 4)
    s[c].tensorize(inner, declared(4, 5, in_vectors(4, 5)))
    assert loops(s, [a, b, c]) == chain("6", "2", inside=chain("4") + chain("5", "v4"))
    x, y = values(6, 5), values(8, 5)
    close(call(s, [a, b, c], [x, y], [(6, 8)]), [f64(x) @ f64(y).T], 5, scale=5 * np.abs(x).max() * np.abs(y).max())


def test_a_part_of_a_sum_takes_the_statement_that_adds():
    s, (a, b, c), inner = products(6, 8, 10, 4)
    outer, k = s[c].split(c.op.reduce_axis[0], factor=5)
    s[c].reorder(outer, inner, k)
    s[c].tensorize(inner, declared(4, 5, in_vectors(4, 5)))
    with pytest.raises(ScheduleError, match="tensorize of stage C, axis j.inner: the sum goes on outside of it"):
        tvm.lower(s, [a, b, c])
    s, (a, b, c), inner = products(6, 8, 10, 4)
    outer, k = s[c].split(c.op.reduce_axis[0], factor=5)
    s[c].reorder(outer, inner, k)
    s[c].tensorize(inner, declared(4, 5, in_vectors(4, 5), three=True))
    assert loops(s, [a, b, c]) == chain("6", "2", inside=chain("4") + chain("2", "5", "v4"))
    x, y = values(6, 10), values(8, 10)
    close(call(s, [a, b, c], [x, y], [(6, 8)]), [f64(x) @ f64(y).T], 10, scale=10 * np.abs(x).max() * np.abs(y).max())


def test_statements_that_add_to_a_sum_may_be_missing():
    s, (a, b, c), inner = products(6, 8, 5, 4)
    whole = declared(4, 5, in_vectors(4, 5), two=True)
    s[c].tensorize(inner, whole)
    assert loops(s, [a, b, c]) == chain("6", "2", inside=chain("4") + chain("5", "v4")) and not whole.updates


_IN_LLVM = """
define i32 @tests_sums(ptr %c, ptr %a, ptr %b, i32 %m, i32 %l, i32 %stride) {
entry:
  br label %rows
rows:
  %i = phi i32 [0, %entry], [%i1, %next]
  %pc = getelementptr float, ptr %c, i32 %i
  br label %columns
columns:
  %j = phi i32 [0, %rows], [%j1, %columns]
  %pa = getelementptr float, ptr %a, i32 %j
  %row = mul i32 %i, %stride
  %at = add i32 %row, %j
  %pb = getelementptr float, ptr %b, i32 %at
  %va = load float, ptr %pa
  %vb = load float, ptr %pb
  %product = fmul float %va, %vb
  %old = load float, ptr %pc
  %new = fadd float %old, %product
  store float %new, ptr %pc
  %j1 = add i32 %j, 1
  %more = icmp slt i32 %j1, %l
  br i1 %more, label %columns, label %next
next:
  %i1 = add i32 %i, 1
  %again = icmp slt i32 %i1, %m
  br i1 %again, label %rows, label %done
done:
  ret i32 0
}
"""


def test_an_intrinsic_may_be_a_function_in_another_language():
    def make(builder, ins, out, _add):
        a, b = ins
        pointers = out.access_ptr("w"), a.access_ptr("r"), b.access_ptr("r")
        builder.emit(tvm.tir.call_extern("int32", "tests_sums", *pointers, 4, 5, b.strides[0]))

    s, (a, b, c), inner = products(6, 8, 5, 4)
    s[c].tensorize(inner, declared(4, 5, make))
    s[c].pragma(c.op.axis[0], "import_llvm", _IN_LLVM)
    x, y = values(6, 5), values(8, 5)
    close(call(s, [a, b, c], [x, y], [(6, 8)]), [f64(x) @ f64(y).T], 5, scale=5 * np.abs(x).max() * np.abs(y).max())


def test_an_intrinsic_without_a_sum():
    x = te.placeholder((4,), name="x")
    y = te.compute((4,), lambda i: x[i] * x[i], name="y")

    def square(ins, outs):
        builder = tvm.tir.ir_builder.create()
        source, target = builder.buffer_ptr(ins[0]), builder.buffer_ptr(outs[0])
        with builder.for_range(0, 4, kind="vectorize") as i:
            target[i] = source[i] * source[i]
        return builder.get()

    intrinsic = te.decl_tensor_intrin(y.op, square, default_buffer_params={"offset_factor": 1})
    a = te.placeholder((3, 8), name="a")
    b = te.compute((3, 8), lambda i, j: a[i, j] * a[i, j], name="b")
    s = te.create_schedule(b.op)
    s[b].tensorize(s[b].split(b.op.axis[1], factor=4)[1], intrinsic)
    assert loops(s, [a, b]) == chain("3", "2", "v4")
    given = values(3, 8)
    np.testing.assert_array_equal(call(s, [a, b], [given], [(3, 8)])[0], given * given)
    with pytest.raises(NotImplementedError, match="expected a te.compute with one result, and no scalar_params"):
        te.decl_tensor_intrin(y.op, square, scalar_params=[te.var("n")])


def test_loops_that_an_intrinsic_does_not_describe_are_refused():
    s, (a, b, c), inner = products(6, 8, 5, 2)
    s[c].tensorize(inner, declared(4, 5, in_vectors(4, 5)))
    with pytest.raises(ScheduleError, match="te: tensorize of stage C, axis j.inner: today's TVM refuses tensorize"):
        tvm.lower(s, [a, b, c])


# ---------------------------------------------------------------- TensorIR


def test_passes_of_ones_own_see_the_loops_that_are_lowered():
    found = []

    def find(node):
        if isinstance(node, tvm.tir.For) and node.extent.value % 8 == 0:
            found.append(node)

    def replace(node):
        if node not in found:
            return None
        outer, inner = te.var("outer"), te.var("inner")
        body = tvm.tir.stmt_functor.substitute(node.body, {node.loop_var: outer * 8 + inner})
        body = tvm.tir.For(inner, 0, 8, tvm.tir.ForKind.VECTORIZED, body)
        return tvm.tir.For(outer, 0, node.extent.value // 8, tvm.tir.ForKind.SERIAL, body)

    @tvm.tir.transform.prim_func_pass(opt_level=0)
    def vectorize(func, _mod, _ctx):
        tvm.tir.stmt_functor.post_order_visit(func.body, find)
        return func.with_body(tvm.tir.stmt_functor.ir_transform(func.body, None, replace, ["tir.For"]))

    a, b, c = addition(64)
    s = te.create_schedule(c.op)
    with tvm.transform.PassContext(config={"tir.add_lower_pass": [(1, vectorize)]}):
        assert loops(s, [a, b, c]) == chain("8", "v8")
        x, y = values(64), values(65)[:64]
        (z,) = call(s, [a, b, c], [x, y], [(64,)])
    np.testing.assert_array_equal(z, x + y)
    assert loops(s, [a, b, c]) == chain("64")


def test_functors():
    n = te.var("n")
    a = tvm.tir.decl_buffer((n,), name="a")
    builder = tvm.tir.ir_builder.create()
    elements = builder.buffer_ptr(a)
    with builder.for_range(0, n, "i") as i, builder.if_scope(i > 2):
        elements[i] = elements[i] + 1.0
    stmt = builder.get()
    after, before = [], []
    tvm.tir.stmt_functor.post_order_visit(stmt, lambda node: after.append(type(node).__name__))
    tvm.tir.stmt_functor.pre_order_visit(
        stmt, lambda node: before.append(type(node).__name__) or not isinstance(node, tvm.tir.IfThenElse)
    )
    assert after[-1] == "For" and after.index("BufferStore") < after.index("IfThenElse") and "Add" in after
    assert before[0] == "For" and before[-1] == "IfThenElse" and "Add" not in before
    gone = tvm.tir.stmt_functor.ir_transform(
        stmt, lambda node: tvm.tir.Evaluate(0) if isinstance(node, tvm.tir.IfThenElse) else None, None
    )
    assert isinstance(gone.body, tvm.tir.Evaluate)
    assert tvm.ir.structural_equal(gone, gone) and not tvm.ir.structural_equal(gone, stmt)
    assert tvm.ir.structural_hash(gone) == tvm.ir.structural_hash(gone) != tvm.ir.structural_hash(stmt)


def test_a_functor_calls_each_node_once_whatever_it_returns():
    x = te.var("x")
    shared = x + 1
    stmt = tvm.tir.Evaluate(tvm.tir.Mul(shared, shared))
    for visit in (tvm.tir.stmt_functor.post_order_visit, tvm.tir.stmt_functor.pre_order_visit):
        for result in (None, True):
            kinds = []

            def note(node, kinds=kinds, result=result):
                kinds.append(type(node).__name__)
                return result

            visit(stmt, note)
            assert sorted(kinds) == ["Add", "Evaluate", "IntImm", "Mul", "Var"]
    after = []
    tvm.tir.stmt_functor.post_order_visit(stmt, lambda node: after.append(node) or 0)
    assert len(after) == 5 and isinstance(after[-1], tvm.tir.Evaluate)


def test_variables_become_numbers_but_for_that_of_a_loop():
    i, j = te.var("i"), te.var("j")
    a = tvm.tir.decl_buffer((8,), name="a")
    loop = tvm.tir.For(i, 0, 4, tvm.tir.ForKind.SERIAL, tvm.tir.BufferStore(a, tvm.tir.const(1.0, "float32"), [i + j]))
    new = tvm.tir.stmt_functor.substitute(loop, {j: 3})
    assert new.loop_var.same_as(i) and new.body.indices[0].b.value == 3 and new.body.indices[0].b.dtype == "int32"
    new = tvm.tir.stmt_functor.substitute(loop, {i: j * 2})
    assert new.loop_var.same_as(i) and isinstance(new.body.indices[0].a, tvm.tir.Mul)


def test_kinds_of_nodes_that_are_gone_are_refused():
    seen = []
    stmt = tvm.tir.Evaluate(te.var("x") + 1)
    tvm.tir.stmt_functor.ir_transform(stmt, seen.append, None, ["tir.Var", "tir.Block"])
    assert [type(node).__name__ for node in seen] == ["Var"]
    with pytest.raises(ValueError, match="ir_transform: TensorIR has no nodes 'tir.Store' today"):
        tvm.tir.stmt_functor.ir_transform(stmt, seen.append, None, ["tir.Store"])


def test_loops_of_the_builder_have_their_kinds_and_dtypes():
    n = te.var("n", "int64")
    a = tvm.tir.decl_buffer((n,), name="a")
    kinds = ("serial", "parallel", "vectorize", "unroll")
    for kind, option in zip(kinds, ("kind", "kind", "kind", "for_type"), strict=True):
        builder = tvm.tir.ir_builder.create()
        with builder.for_range(2, n if kind == "serial" else 6, **{option: kind}) as i:
            builder.buffer_ptr(a)[i] = 1.0
        loop = builder.get()
        assert loop.kind == kinds.index(kind) and loop.min.value == 2
        assert loop.loop_var.dtype == loop.extent.dtype == ("int64" if kind == "serial" else "int32")
    with pytest.raises(ValueError, match="expected a kind of serial, parallel, vectorize, unroll; got 'vectorized'"):
        builder.for_range(0, 4, kind="vectorized").__enter__()
    with pytest.raises(AttributeError, match="the IR builder has no 'allocate' here, but emit, for_range, .*TVMScript"):
        builder.allocate("float32", 4)


def test_elements_of_the_builder_by_axes_or_among_all():
    def make(ins, outs):
        builder = tvm.tir.ir_builder.create()
        rows, flat, other = builder.buffer_ptr(ins[0]), *(builder.buffer_ptr(out, shape=(4, 3)) for out in outs)
        with builder.for_range(0, 12) as i:
            flat[i] = rows[i // 6, i % 6] * 2
            other[i // 3, i % 3] = rows[i]
        return builder.get()

    x = te.placeholder((2, 6), name="x")
    y, z = te.extern([(3, 4), (2, 6)], [x], make, name="both")
    given = values(2, 6)
    found = call(te.create_schedule(y.op), [x, y, z], [given], [(3, 4), (2, 6)])
    np.testing.assert_array_equal(found[0], 2 * given.reshape(3, 4))
    np.testing.assert_array_equal(found[1], given)
    a = tvm.tir.decl_buffer((2, 3, 4), name="a")
    with pytest.raises(IndexError, match="a: expected 3 indices, or one among all elements; got 2"):
        tvm.tir.ir_builder.create().buffer_ptr(a)[0, 1]


def test_an_operator_with_a_rule_of_its_own():
    names = []

    def rule(op):
        names.append(op.op.name)
        return op.args[0] * 0.5 if op.dtype == "float32" else op

    tvm.ir.register_op_attr("tir.tests_half", "TCallEffectKind", tvm.tir.CallEffectKind.Pure)
    tvm.ir.register_intrin_lowering("tir.tests_half", target="llvm", f=rule, level=99)
    x = te.placeholder((6,), name="x")
    y = te.compute((6,), lambda i: tvm.tir.call_intrin("float32", "tir.tests_half", x[i]), name="y")
    given = values(6)
    np.testing.assert_array_equal(call(te.create_schedule(y.op), [x, y], [given], [(6,)])[0], given / 2)
    assert set(names) == {"tir.tests_half"}


def test_a_rule_for_an_operator_of_tvm_hears_its_old_name():
    names = []

    @tvm.ir.register_intrin_lowering("tir.hypot", target="llvm", level=99)
    def rule(op):
        names.append(op.op.name)
        x, y = op.args
        return tvm.tir.sqrt(x * x + y * y)

    assert rule.__name__ == "rule"
    x = te.placeholder((6,), name="x")
    y = te.compute((6,), lambda i: tvm.tir.hypot(x[i], x[i]), name="y")
    given = values(6)
    close(call(te.create_schedule(y.op), [x, y], [given], [(6,)]), [np.sqrt(2) * np.abs(f64(given))], 4)
    assert set(names) == {"tir.hypot"}


# ---------------------------------------------------------------- Relax


def test_struct_info_of_relax():
    from tvm import relax  # for speed: one test uses it
    from tvm.script import relax as R

    n = tvm.tir.Var("n", "int64")
    x = relax.Var("x", relax.TensorStructInfo((n, 4), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        y = builder.emit(relax.call_dps_packed("tests.shift", [x], out_sinfo=relax.TensorStructInfo((n, 4), "float32")))
        builder.emit_func_output(y)
    assert y.struct_info.dtype == "float32" and isinstance(y.struct_info, relax.TensorStructInfo)
    again = relax.call_dps_packed("tests.shift", [x], out_ty=R.Tensor((n, 4), "float32"))
    assert tvm.ir.structural_equal(again.ty_args, builder.get()["main"].body.blocks[0].bindings[0].value.ty_args)

    @tvm.register_func("tests.shift", override=True)
    def shift(given, result):
        tvm.nd.array(given.numpy() + 1).copyto(result)

    machine = relax.VirtualMachine(relax.build(builder.get(), "llvm"), tvm.cpu())
    given = values(3, 4)
    np.testing.assert_array_equal(machine["main"](tvm.nd.array(given)).numpy(), given + 1)
