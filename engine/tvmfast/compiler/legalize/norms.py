"""Group norm and instance norm of images.

TVM computes a variance as the mean of the squares less the square of the mean, which leaves no digit of one
that is a millionth of these, or a negative number. Axes are not fused, because TVM's index arithmetic
on fused dynamic axes takes minutes to compile. A group that is whole vectors, contiguous in memory, is read
as vectors.
"""

import math

from tvm import relax, te

from ...core.compat import OUT_EWISE_FUSABLE
from ...core.relax import known_shape, static_shape, unwrap_ints
from .ieee754 import default

OPERATORS = ("relax.nn.group_norm", "relax.nn.instance_norm")
_TASKS = 16  # parts of a group that threads share, at most


def legalize(bb, call, lanes: int | None = None, for_gpu: bool = False):
    """Lower a norm; of no element, of no image, or of another layout than (N, C, …), as TVM does.

    `lanes` are those of the target's vectors, to read such. For a GPU there are three kernels, since a block
    of threads computes each sum, and a thread each element.
    """
    x, attrs = call.args[0], call.attrs
    shape = known_shape(x.ty)
    if shape is None or str(x.ty.dtype) != "float32":
        return default(bb, call)
    axes = [int(axis) % len(shape) for axis in attrs.axes]
    if not axes or int(attrs.channel_axis) % len(shape) != 1 or axes != list(range(2, len(shape))):
        return default(bb, call)
    groups = int(attrs.num_groups) if call.op.name == OPERATORS[0] else shape[1]
    norm, static = (groups, float(attrs.epsilon)), static_shape(x.ty)
    if static and 0 in static:
        return default(bb, call)
    count = static and math.prod(static[1:]) // groups
    if count and for_gpu:
        rows = bb.emit(relax.op.reshape(x, (shape[0], groups, count)))
        mean = bb.emit_te(_mean_of_rows, rows, primfunc_name_hint="mean")
        variance = bb.emit_te(_mean_of_rows, rows, mean, primfunc_name_hint="variance")
        return bb.call_te(_normal, *call.args, mean, variance, norm[1], primfunc_name_hint="group_norm")
    if not count or not lanes or count % lanes:
        return bb.call_te(group_norm, *call.args, *norm, primfunc_name_hint="group_norm")
    tasks = math.gcd(count // lanes, _TASKS)
    vectors = relax.op.reshape(x, (shape[0], groups, tasks, count // lanes // tasks, lanes))
    pattern = {"op_pattern": OUT_EWISE_FUSABLE}
    args = *call.args, *norm, bb.emit(vectors)
    return bb.call_te(group_norm, *args, primfunc_name_hint="group_norm", primfunc_attrs=pattern)


def _mean_of_rows(rows, mean=None):
    """Return the means of the last axis, or of the squares of its differences to `mean`."""
    *shape, count = unwrap_ints(rows.shape)
    k = te.reduce_axis((0, count), "k")

    def element(*at):
        if mean is None:
            return rows[(*at, k)]
        difference = rows[(*at, k)] - mean[at]
        return difference * difference

    total = te.compute(shape, lambda *at: te.sum(element(*at), axis=k), name="total")
    return te.compute(shape, lambda *at: total[at] / float(count), name="mean")


def _normal(x, gamma, beta, mean, variance, epsilon: float):
    each = int(x.shape[1]) // int(mean.shape[1])

    def normal(n, c, *at):
        scale = gamma[c] / te.sqrt(variance[n, c // each] + epsilon)
        return (x[(n, c, *at)] - mean[n, c // each]) * scale + beta[c]

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
    count = float(count) if isinstance(count, int) else count.astype("float32")

    def mean_of_vectors(element, name):
        """Return the mean of `element(*index)` over each group: of lanes, and then of these."""
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
        return te.compute((batch, groups), lambda n, g: total[n, g] / count, name=name)

    def mean(element, name):
        """Return the mean of `element(*index)` over each group: of rows, and then of these."""
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
        return te.compute((batch, groups), lambda n, g: total[n, g] / count, name=name)

    mean_of = mean if vectors is None else mean_of_vectors
    source = x if vectors is None else vectors
    average = mean_of(lambda *at: source[at], "mean")

    def square(n, c, *at):
        difference = source[(n, c, *at)] - average[n, c // each if vectors is None else c]
        return difference * difference

    variance = mean_of(square, "variance")
    scale = te.compute((batch, groups), lambda n, g: 1.0 / te.sqrt(variance[n, g] + epsilon), name="scale")

    def normal(n, c, *at):
        group = c // each
        return (x[(n, c, *at)] - average[n, group]) * scale[n, group] * gamma[c] + beta[c]

    return te.compute(x.shape, normal, name="group_norm")
