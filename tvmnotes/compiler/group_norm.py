"""Group norm and instance norm of images of open size.

Their axes are not joined, for TVM's index arithmetic on joined axes of open sizes takes minutes to compile.
"""

from tvm import te

from ..base.relax import fixed_shape, known_shape, plain_sizes
from .special_values import default

OPERATORS = ("relax.nn.group_norm", "relax.nn.instance_norm")


def legalize(bb, call):
    """Lower a norm; of fixed sizes, of no image, or of another layout than (N, C, …), as TVM does."""
    x, attrs = call.args[0], call.attrs
    shape = known_shape(x.ty)
    if shape is None or fixed_shape(x.ty) is not None or str(x.ty.dtype) != "float32":
        return default(bb, call)
    axes = [int(axis) % len(shape) for axis in attrs.axes]
    if not axes or int(attrs.channel_axis) % len(shape) != 1 or axes != list(range(2, len(shape))):
        return default(bb, call)
    groups = int(attrs.num_groups) if call.op.name == OPERATORS[0] else shape[1]
    return bb.call_te(group_norm, *call.args, groups, float(attrs.epsilon), primfunc_name_hint="group_norm")


def group_norm(x, gamma, beta, groups: int, epsilon: float):
    """Compute (x - mean) / sqrt(variance + epsilon) * gamma + beta, each for a group of channels of x."""
    batch, channels, *image = plain_sizes(x.shape)
    each = channels // groups
    count = each
    for size in image:
        count = count * size
    count = float(count) if isinstance(count, int) else count.astype("float32")

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

    average = mean(lambda *at: x[at], "mean")

    def square(n, c, *at):
        difference = x[(n, c, *at)] - average[n, c // each]
        return difference * difference

    variance = mean(square, "variance")
    scale = te.compute((batch, groups), lambda n, g: 1.0 / te.sqrt(variance[n, g] + epsilon), name="scale")

    def normal(n, c, *at):
        group = c // each
        return (x[(n, c, *at)] - average[n, group]) * scale[n, group] * gamma[c] + beta[c]

    return te.compute(x.shape, normal, name="group_norm")
