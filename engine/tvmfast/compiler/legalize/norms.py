"""Group, instance and layer norms in two passes: means, and the means of squared differences from these.

TVM computes a variance as the mean of the squares less the square of the mean, which leaves no digit of one
that is a millionth of these, or a negative number. Sums are of differences to a row's first element, as those
of numbers far from 0 lose digits. The kernels are for images (N, C, …), and for rows along
the last axes; other layouts are transposed and reshaped. Axes are not fused, because TVM's index arithmetic
on fused dynamic axes takes minutes to compile. A group that is whole vectors, contiguous in memory, is read
as vectors.
"""

import math

from tvm import te
from tvm.relax import op as R

from ...core.compat import OPAQUE, OUT_EWISE_FUSABLE
from ...core.relax import known_shape, static_shape, unwrap_ints
from ..schedule.rules.row_reduction import centre, headroom, origin
from .ieee754 import default

OF_IMAGES = ("relax.nn.group_norm", "relax.nn.instance_norm")
OF_ROWS = "relax.nn.layer_norm"
_DTYPES = ("float32", "float16", "bfloat16")
_TASKS = 16  # parts of a group that threads share, at most


def of_images(bb, call, lanes: int | None = None, for_gpu: bool = False):
    """Lower a group or instance norm; of no element, or of float64, which comes decomposed, as TVM does.

    `lanes` are those of the target's vectors, to read such. For a GPU there are four kernels, since a block
    of threads computes each sum, and a thread each element.
    """
    x, attrs, shape = call.args[0], call.attrs, known_shape(call.args[0].ty)
    if not shape or 0 in (static_shape(x.ty) or ()) or str(x.ty.dtype) not in _DTYPES:
        return default(bb, call)
    axes = sorted(int(axis) % len(shape) for axis in attrs.axes)
    channel = int(attrs.channel_axis) % len(shape)
    kept = [axis for axis in range(len(shape)) if axis not in (*axes, channel)]
    order, weights = [*kept, channel, *axes], _weights(bb, call)
    if len(kept) != 1 or not axes or order != sorted(order):
        sizes = [shape[axis] for axis in order]
        # A batch norm by the batch's own statistics is one of a single image.
        image = (math.prod(sizes[: len(kept)]), *sizes[len(kept) :], *([] if axes else [1]))
        options = {"channel_axis": 1, "axes": list(range(2, len(image))), "epsilon": float(attrs.epsilon)}
        groups = {"num_groups": int(attrs.num_groups)} if call.op.name == OF_IMAGES[0] else {}
        norm = R.nn.group_norm if groups else R.nn.instance_norm
        return _transposed(bb, x, order, image, lambda x: norm(x, *weights, **groups, **options))
    groups = int(attrs.num_groups) if call.op.name == OF_IMAGES[0] else shape[1]
    args, how, static = (x, *weights), (groups, float(attrs.epsilon)), static_shape(x.ty)
    count = static and math.prod(static[1:]) // groups
    if count and for_gpu:
        rows = bb.emit(R.reshape(x, (shape[0], groups, count)))
        opaque = {"op_pattern": OPAQUE}  # a sum that also reads a row's first element has no schedule
        origins = bb.emit_te(_origins, rows, primfunc_name_hint="origin", primfunc_attrs=opaque)
        mean = bb.emit_te(_mean_of_rows, rows, origins, primfunc_name_hint="mean")
        variance = bb.emit_te(_mean_of_rows, rows, origins, mean, primfunc_name_hint="variance")
        return bb.call_te(_normal, *args, origins, mean, variance, how[1], primfunc_name_hint="group_norm")
    if not count or not lanes or count % lanes:
        return bb.call_te(group_norm, *args, *how, primfunc_name_hint="group_norm")
    tasks = math.gcd(count // lanes, _TASKS)
    vectors = R.reshape(x, (shape[0], groups, tasks, count // lanes // tasks, lanes))
    pattern = {"op_pattern": OUT_EWISE_FUSABLE}
    args = *args, *how, bb.emit(vectors)
    return bb.call_te(group_norm, *args, primfunc_name_hint="group_norm", primfunc_attrs=pattern)


def of_rows(bb, call, flat: bool = False):
    """Lower a layer norm; of no element, or of float64, which comes decomposed, as TVM does.

    With `flat` one of several axes becomes one of a single axis, for which there are better schedules.
    """
    x, attrs, shape = call.args[0], call.attrs, known_shape(call.args[0].ty)
    if not shape or 0 in (static_shape(x.ty) or ()) or str(x.ty.dtype) not in _DTYPES:
        return default(bb, call)
    axes, weights = sorted(int(axis) % len(shape) for axis in attrs.axes), _weights(bb, call)
    kept = [axis for axis in range(len(shape)) if axis not in axes]
    row, epsilon = [shape[axis] for axis in axes], float(attrs.epsilon)
    flat = flat and len(axes) > 1 and all(isinstance(size, int) for size in row)
    if [*kept, *axes] == sorted(axes + kept) and not flat:
        return bb.call_te(layer_norm, x, *weights, len(axes), epsilon, primfunc_name_hint="layer_norm")
    if flat:
        row = [math.prod(row)]
        weights = [bb.emit(R.reshape(each, row)) for each in weights]
    rows = (*(shape[axis] for axis in kept), *row)
    last = list(range(-len(row), 0))
    return _transposed(bb, x, [*kept, *axes], rows, lambda x: R.nn.layer_norm(x, *weights, last, epsilon))


def _weights(bb, call) -> list:
    """Return gamma and beta, ones and zeros in place of those that the norm leaves out."""
    (_, gamma, beta), attrs = call.args, call.attrs
    gamma = gamma if attrs.scale else bb.emit(R.ones_like(gamma))
    return [gamma, beta if attrs.center else bb.emit(R.zeros_like(beta))]


def _transposed(bb, x, order: list[int], shape: tuple, norm):
    """Return norm(x) of x in another order of axes and then in another shape, in its own layout."""

    def reshaped(x, shape):
        return x if static_shape(x.ty) == tuple(shape) else bb.emit(R.reshape(x, shape))

    sizes = known_shape(x.ty)
    moved = [axis for axis in order if sizes[axis] != 1]
    if moved == sorted(moved):  # a view
        return reshaped(bb.emit(norm(reshaped(x, shape))), sizes)
    normal = bb.emit(norm(reshaped(bb.emit(R.permute_dims(x, order)), shape)))
    back = [order.index(axis) for axis in range(len(order))]
    return R.permute_dims(reshaped(normal, [sizes[axis] for axis in order]), back)


# ---------------------------------------------------------------- kernels


def layer_norm(x, gamma, beta, count: int, epsilon: float):
    """Compute (x - mean) / sqrt(variance + epsilon) * gamma + beta, each along the last `count` axes of x."""
    shape = unwrap_ints(x.shape)
    rows, row = shape[:-count], shape[-count:]
    size, depth = math.prod(row), len(rows)
    number, factor = _float(size), headroom(size)
    origins = te.compute(rows, lambda *at: origin(_float(x[(*at, *[0] * count)])), "origin")

    def moved(*index):
        return _float(x[index]) - origins[index[:depth]]

    def total(value, name):
        axes = [te.reduce_axis((0, size), f"r{axis}") for axis, size in enumerate(row)]
        return te.compute(rows, lambda *at: te.sum(value(*at, *axes), axis=axes), name)

    sums = total(lambda *index: moved(*index) * factor, "sum")

    def mean(at):
        return sums[at] / (number * factor)

    def square(*index):
        difference = moved(*index) - mean(index[:depth])
        return difference * difference

    squares = total(square, "squares")

    def normal(*index):
        at, place = index[:depth], index[depth:]
        variance = squares[at] / number
        scale = 1.0 / te.sqrt(variance + epsilon)
        centred = moved(*index) - centre(mean(at), variance)
        return (centred * scale * _float(gamma[place]) + _float(beta[place])).astype(x.dtype)

    return te.compute(shape, normal, name="layer_norm")


def _float(value):
    """Return a number, or an expression, as one of float32."""
    return float(value) if isinstance(value, int) else value.astype("float32")


def _origins(rows):
    return te.compute(unwrap_ints(rows.shape)[:-1], lambda *at: origin(_float(rows[(*at, 0)])), name="origin")


def _mean_of_rows(rows, origins, mean=None):
    """Return the means of the last axis from `origins`, or of the squares of its differences to `mean`."""
    *shape, count = unwrap_ints(rows.shape)
    k, factor = te.reduce_axis((0, count), "k"), headroom(count) if mean is None else 1.0

    def element(*at):
        moved = _float(rows[(*at, k)]) - origins[at]
        if mean is None:
            return moved * factor
        difference = moved - mean[at]
        return difference * difference

    total = te.compute(shape, lambda *at: te.sum(element(*at), axis=k), name="total")
    return te.compute(shape, lambda *at: total[at] / (count * factor), name="mean")


def _normal(x, gamma, beta, origins, mean, variance, epsilon: float):
    each = int(x.shape[1]) // int(mean.shape[1])

    def normal(n, c, *at):
        group = n, c // each
        scale = _float(gamma[c]) / te.sqrt(variance[group] + epsilon)
        centred = _float(x[(n, c, *at)]) - origins[group] - centre(mean[group], variance[group])
        return (centred * scale + _float(beta[c])).astype(x.dtype)

    return te.compute(x.shape, normal, name="group_norm")


def group_norm(x, gamma, beta, groups: int, epsilon: float, vectors=None):
    """Compute (x - mean) / sqrt(variance + epsilon) * gamma + beta, each for a group of channels of x.

    `vectors` is x as (N, groups, tasks, vectors of a task, lanes), if that is known.
    """
    batch, channels, *image = unwrap_ints(x.shape)
    each = channels // groups
    count = each
    for size in image:
        count = count * size
    of_mean, count = headroom(count), _float(count)

    def mean_of_vectors(element, name, factor=1.0):
        """Return the mean of `element(*index) / factor` over each group: of lanes, and then of these."""
        _, _, tasks, depth, lanes = unwrap_ints(vectors.shape)
        k, *others = (te.reduce_axis((0, size), f"r{size}") for size in (depth, tasks, lanes))
        by_lane = te.compute(
            (batch, groups, tasks, lanes),
            lambda n, g, task, lane: te.sum(element(n, g, task, k, lane), axis=[k]),
            name=f"{name}_lanes",
        )
        total = te.compute(
            (batch, groups), lambda n, g: te.sum(by_lane[(n, g, *others)], axis=others), name=f"{name}_sum"
        )
        return te.compute((batch, groups), lambda n, g: total[n, g] / (count * factor), name=name)

    def mean(element, name, factor=1.0):
        """Return the mean of `element(*index) / factor` over each group: of rows, and then of these."""
        column = te.reduce_axis((0, image[-1]), "column")
        others = [te.reduce_axis((0, size), f"r{axis}") for axis, size in enumerate((each, *image[:-1]))]
        rows = te.compute(
            (batch, channels, *image[:-1]),
            lambda *at: te.sum(element(*at, column), axis=[column]),
            name=f"{name}_rows",
        )
        total = te.compute(
            (batch, groups),
            lambda n, g: te.sum(rows[(n, g * each + others[0], *others[1:])], axis=others),
            name=f"{name}_sum",
        )
        return te.compute((batch, groups), lambda n, g: total[n, g] / (count * factor), name=name)

    mean_of = mean if vectors is None else mean_of_vectors
    source = x if vectors is None else vectors
    first = [0] * len(image)
    origins = te.compute(
        (batch, groups), lambda n, g: origin(_float(x[(n, g * each, *first)])), name="origin"
    )

    size = each if vectors is None else 1  # of a group, along the second axis of `source`

    def moved(n, c, *at):
        return _float(source[(n, c, *at)]) - origins[n, c // size]

    average = mean_of(lambda *at: moved(*at) * of_mean, "mean", of_mean)

    def square(n, c, *at):
        difference = moved(n, c, *at) - average[n, c // size]
        return difference * difference

    variance = mean_of(square, "variance")
    scale = te.compute((batch, groups), lambda n, g: 1.0 / te.sqrt(variance[n, g] + epsilon), name="scale")
    middle = te.compute((batch, groups), lambda n, g: centre(average[n, g], variance[n, g]), name="centre")

    def normal(n, c, *at):
        group = c // each
        centred = _float(x[(n, c, *at)]) - origins[n, group] - middle[n, group]
        return (centred * scale[n, group] * _float(gamma[c]) + _float(beta[c])).astype(x.dtype)

    return te.compute(x.shape, normal, name="group_norm")
