"""`te.gradient`: derivatives of tensor expressions, compared with central differences in float64."""

import numpy as np
import pytest
import tvm
from agreement import close
from old_api import enabled  # noqa: F401 (a fixture)
from tvm import te, tirx, topi

STEP = 1e-4


def tensor(*shape, name="x", dtype="float64"):
    return te.placeholder(shape, name=name, dtype=dtype)


def run(args, outputs, arrays):
    """What the outputs are for arrays."""
    func = tvm.build(te.create_schedule([each.op for each in outputs]), [*args, *outputs], "llvm")
    results = [tvm.nd.empty([int(n) for n in each.shape], str(each.dtype)) for each in outputs]
    func(*map(tvm.nd.array, arrays), *results)
    return [each.numpy() for each in results]


def differences(args, output, arrays, weights):
    """The derivatives of the sum of `output` times weights, an array for each of the arguments that is of floats."""
    func = tvm.build(te.create_schedule(output.op), [*args, output], "llvm")
    result = tvm.nd.empty([int(n) for n in output.shape], "float64")

    def total(place, at, step):
        moved = [array.copy() for array in arrays]
        moved[place][at] += step
        func(*map(tvm.nd.array, moved), result)
        return np.sum(result.numpy() * weights)

    found = []
    for place, array in enumerate(arrays):
        if array.dtype == "float64":
            steps = [total(place, at, STEP) - total(place, at, -STEP) for at in np.ndindex(array.shape)]
            found.append(np.reshape(steps, array.shape) / (2 * STEP))
    return found


def check(args, output, rng, arrays=None):
    """Compare the derivatives by all arguments of floats with differences; return the tensors."""
    arrays = arrays or [rng.uniform(0.5, 2, [int(n) for n in arg.shape]) for arg in args]
    weights = rng.standard_normal([int(n) for n in output.shape])
    head = tensor(*output.shape, name="head")
    by = [arg for arg in args if str(arg.dtype) == "float64"]
    gradients = te.gradient(output, by, head)
    found = run([*args, head], gradients, [*arrays, weights])
    for ours, theirs in zip(found, differences(args, output, arrays, weights), strict=True):
        assert ours.shape == theirs.shape
        # Differences are off by the square of a step, and by their rounding over a step.
        np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-6)
    return gradients


def sums_over(gradient):
    """The lengths of the axes that a derivative sums over."""
    return [int(axis.dom.extent) for axis in gradient.op.reduce_axis]


# ---------------------------------------------------------------- operations


def test_a_products_derivatives_are_products(rng):
    a, b = tensor(3, 4, name="a"), tensor(4, 5, name="b")
    k = te.reduce_axis((0, 4), "k")
    c = te.compute((3, 5), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="c")
    by_a, by_b = check([a, b], c, rng)
    assert (sums_over(by_a), sums_over(by_b)) == ([5], [3]), "no longer than those of a product"


FUNCTIONS = {
    "arithmetic": lambda x, y: (x - 2 * y) * x / (y + 3) - y,
    "exp and log": lambda x, y: tirx.exp(x / 2) * tirx.log(y),
    "roots": lambda x, y: tirx.sqrt(x) + tirx.rsqrt(y),
    "tanh and sigmoid": lambda x, y: tirx.tanh(x * y) - tirx.sigmoid(x),
    "sines": lambda x, y: tirx.sin(x * y) + tirx.cos(x - y),
    "erf": lambda x, y: tirx.erf(x - y),
    "powers": lambda x, y: tirx.power(x, y) + tirx.power(y, tirx.const(3, "float64")),
    "absolute values": lambda x, y: tirx.abs(x - 1.3 * y),
    "steps": lambda x, y: tirx.floor(x * 3) * y,
    "maxima and minima": lambda x, y: te.max(x, y) * x + te.min(x * y, y),
    "rectifiers": lambda x, y: te.max(x - 1, tirx.const(0, "float64")) * y,
    "choices": lambda x, y: tirx.Select(x > y, x * x, y) + tirx.if_then_else(x > 1, x * y, -x),
    "casts": lambda x, y: (x.astype("float32") * tirx.const(2, "float32")).astype("float64") * y,
}


@pytest.mark.parametrize("name", [name for name in FUNCTIONS if name != "casts"])
def test_functions_of_elements(name, rng):
    x, y = tensor(7), tensor(7, name="y")
    apart = 0.57 + 0.2 * np.arange(7), np.array([1.9, 1.6, 1.3, 0.8, 0.7, 1.5, 0.6])  # from where they have a bend
    check([x, y], te.compute((7,), lambda i: FUNCTIONS[name](x[i], y[i]), name="z"), rng, list(apart))


def test_a_cast_casts_the_derivative(rng):
    x, y = tensor(7), tensor(7, name="y")
    z = te.compute((7,), lambda i: FUNCTIONS["casts"](x[i], y[i]), name="z")
    at = rng.uniform(0.5, 2, (2, 7))
    by_x, by_y = run([x, y], te.gradient(te.compute((), lambda: total_of(z), name="total"), [x, y]), at)
    np.testing.assert_array_equal(by_x, 2 * at[1].astype("float32"))
    np.testing.assert_array_equal(by_y, 2 * at[0].astype("float32"))


def total_of(z):
    i = te.reduce_axis((0, z.shape[0]), "i")
    return te.sum(z[i], axis=i)


@pytest.mark.parametrize("stride, padding, dilation", [(1, 1, 1), (2, 1, 1), (2, 0, 2)])
def test_a_convolutions_derivatives(stride, padding, dilation, rng):
    x, w = tensor(1, 2, 7, 6), tensor(3, 2, 3, 2, name="w")
    y = topi.sigmoid(topi.nn.conv2d_nchw(x, w, stride, padding, dilation))
    arrays = [rng.standard_normal((1, 2, 7, 6)), rng.standard_normal((3, 2, 3, 2))]
    _, by_w = check([x, w], y, rng, arrays)
    images = (7 + 2 * padding - 2 * dilation - 1) // stride + 1, (6 + 2 * padding - dilation - 1) // stride + 1
    assert np.prod(sums_over(by_w)) == np.prod(images), "each weight sums over the result's image"


def test_a_largest_of_equals_is_the_first(rng):
    x = tensor(2, 6)
    k = te.reduce_axis((0, 3), "k")
    y = te.compute((2, 2), lambda i, j: te.max(x[i, 3 * j + k], axis=k), name="y")
    check([x], y, rng, [rng.permutation(12).reshape(2, 6) / 4])
    head, weights = tensor(2, 2, name="head"), rng.standard_normal((2, 2))
    (found,) = run([x, head], te.gradient(y, [x], head), [np.ones((2, 6)), weights])
    np.testing.assert_array_equal(found[:, ::3], weights)
    assert not np.delete(found, [0, 3], axis=1).any()


def test_smallest_ones_over_two_axes(rng):
    x = tensor(3, 4, 2)
    i, k = te.reduce_axis((0, 3), "i"), te.reduce_axis((0, 2), "k")
    y = te.compute((4,), lambda j: te.min(x[i, j, k] * x[i, j, k], axis=[i, k]), name="y")
    check([x], y, rng, [rng.permutation(24).reshape(3, 4, 2) / 4])


def test_where_sums_count(rng):
    x = tensor(6)
    k = te.reduce_axis((1, 6), "k")
    check([x], te.compute((3,), lambda i: te.sum(x[k] * x[i], axis=k, where=k > i), name="y"), rng)


@pytest.mark.parametrize(
    "shape, index",
    [
        ((6,), lambda i: (i // 2, i % 2)),
        ((3,), lambda i: (2 - i, tirx.const(1, "int32"))),
        ((2, 3), lambda i, j: (j, i)),
        ((2,), lambda i: (i + 1, i)),
        ((6,), lambda i: (i // 2, i // 3)),
    ],
)
def test_elements_are_read_at_indices(shape, index, rng):
    x = tensor(3, 2)
    (by,) = check([x], te.compute(shape, lambda *at: x(*index(*at)) * x(*index(*at)), name="y"), rng)
    if index.__code__.co_argcount == 2:
        assert not sums_over(by), "a transposed tensor's derivative is one"


def test_a_reshaped_tensors_derivative_is_no_sum(rng):
    x = tensor(4, 3)
    (by,) = check([x], te.compute((12,), lambda i: tirx.exp(x[i // 3, i % 3]), name="y"), rng)
    assert not sums_over(by)
    x = tensor(12)
    (by,) = check([x], te.compute((4, 3), lambda i, j: tirx.exp(x[i * 3 + j]), name="y"), rng)
    assert not sums_over(by)


def test_elements_are_gathered(rng):
    x, rows = tensor(4, 3), tensor(5, name="rows", dtype="int32")
    y = te.compute((5, 3), lambda i, j: x[rows[i], j] * x[rows[i], j], name="y")
    check([x, rows], y, rng, [rng.standard_normal((4, 3)), np.array([3, 0, 3, 1, 3], "int32")])


def test_what_is_not_chosen_makes_no_nan():
    x = tensor(2)
    y = te.compute((2,), lambda i: tirx.if_then_else(x[i] > 0, tirx.log(x[i]), tirx.const(0, "float64")), name="y")
    head = tensor(2, name="head")
    (found,) = run([x, head], te.gradient(y, [x], head), [np.array([0.0, 2.0]), np.ones(2)])
    np.testing.assert_array_equal(found, [0, 0.5])


# ---------------------------------------------------------------- heads, inputs


def test_without_a_head_it_is_the_jacobian(rng):
    w, x = tensor(3, 2, name="w"), tensor(2)
    k = te.reduce_axis((0, 2), "k")
    y = te.compute((3,), lambda i: te.sum(w[i, k] * x[k], axis=k), name="y")
    z = te.compute((3,), lambda i: tirx.tanh(y[i]), name="z")
    by_w, by_x, by_y = te.gradient(z, [w, x, y])
    at = rng.standard_normal((3, 2)), rng.standard_normal(2)
    found = run([w, x], [by_w, by_x, by_y], at)
    slope = 1 - np.tanh(at[0] @ at[1]) ** 2
    close(found[2], np.diag(slope), 4)
    close(found[1], slope[:, None] * at[0], 4)
    close(found[0], np.einsum("i,ij,k->ijk", slope, np.eye(3), at[1]), 4)


def test_a_head_may_have_axes_of_its_own(rng):
    x, head = tensor(3), tensor(2, 3, name="head")
    y = te.compute((3,), lambda i: x[i] * x[i], name="y")
    at, weights = rng.standard_normal(3), rng.standard_normal((2, 3))
    (found,) = run([x, head], te.gradient(y, x, head), [at, weights])
    close(found, 2 * at * weights, 2)


def test_what_several_read_adds_up(rng):
    x = tensor(4)
    y = te.compute((4,), lambda i: tirx.exp(x[i]), name="y")
    z = te.compute((4,), lambda i: y[i] * y[3 - i] + x[i], name="z")
    check([x], z, rng)


def test_what_nothing_depends_on_has_zeros():
    x, other = tensor(4), tensor(2, 3, name="other")
    y = te.compute((4,), lambda i: 2 * x[i], name="y")
    _, zeros = te.gradient(y, [x, other])
    assert [int(n) for n in zeros.shape] == [4, 2, 3]
    (found,) = run([], [zeros], [])
    assert not found.any()


def test_a_networks_derivatives(rng):
    x, w, v = tensor(1, 1, 6, 6), tensor(2, 1, 3, 3, name="w"), tensor(3, 32, name="v")
    hidden = topi.nn.flatten(topi.sigmoid(topi.nn.conv2d_nchw(x, w, 1, 0, 1)))
    y = topi.sum(topi.nn.softmax(topi.nn.dense(hidden, v)) * topi.tanh(topi.nn.dense(hidden, v)))
    arrays = [rng.standard_normal(s) / 2 for s in ((1, 1, 6, 6), (2, 1, 3, 3), (3, 32))]
    check([x, w, v], y, rng, arrays)


def test_a_derivative_has_a_schedule(rng):
    a, b, head = tensor(8, 8, name="a"), tensor(8, 8, name="b"), tensor(8, 8, name="head")
    k = te.reduce_axis((0, 8), "k")
    c = te.compute((8, 8), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="c")
    (by_a,) = te.gradient(c, [a], head)
    s = te.create_schedule(by_a.op)
    i, j = s[by_a].op.axis
    outer, _ = s[by_a].split(i, 4)
    s[by_a].parallel(outer)
    s[by_a].vectorize(j)
    at, weights = rng.standard_normal((8, 8)), rng.standard_normal((8, 8))
    result = tvm.nd.empty((8, 8), "float64")
    tvm.build(s, [b, head, by_a], "llvm")(tvm.nd.array(at), tvm.nd.array(weights), result)
    close(result.numpy(), weights @ at.T, 8, scale=np.abs(weights) @ np.abs(at.T))


# ---------------------------------------------------------------- what is refused


def test_what_has_no_derivative_is_refused():
    x = tensor(4)
    k = te.reduce_axis((0, 4), "k")
    product = te.comm_reducer(lambda a, b: a * b, lambda of: tirx.const(1, of), "product")
    twice = te.compute((4,), lambda i: (x[i], x[i]), name="twice")[0]
    outside = te.extern((4,), [x], lambda ins, outs: tirx.call_packed("f", *ins, *outs), "outside", "float64")
    for y, words in (
        (te.compute((), lambda: product(x[k], axis=k), name="p"), "p: expected te.sum, te.max or te.min"),
        (te.compute((), lambda: te.sum(x[k], axis=k, init=tirx.const(1, "float64")), name="s"), "s: .* without init"),
        (twice, "twice: expected a te.compute with one result"),
        (outside, "outside: expected a te.compute with one result"),
        (te.compute((4,), lambda i: tirx.atan(x[i]), name="a"), "a: no derivative of atan is known here; expected"),
    ):
        with pytest.raises(NotImplementedError, match=f"te.gradient: {words}"):
            te.gradient(y, [x])


def test_a_head_has_to_fit():
    x = tensor(4)
    y = te.compute((4,), lambda i: 2 * x[i], name="y")
    for head in (tensor(3), tensor(), tensor(4, 3), tensor(4, dtype="float32")):
        with pytest.raises(ValueError, match="te.gradient: expected a tensor of floats, and a head of its dtype"):
            te.gradient(y, [x], head)
    whole = tensor(4, dtype="int32")
    with pytest.raises(ValueError, match="got int32"):
        te.gradient(te.compute((4,), lambda i: whole[i] + 1, name="y"), [whole])
