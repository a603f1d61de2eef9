"""Operators on images: pooling, padding, resizing, depth to space and back."""

from tvm.relax import op as R

from tvmfast.frontends.ops.common import padded

from .operator import NEEDED, dtype_of, known_shape, numbers_of, operator, relax_function


def _pool(name):
    function, dims = relax_function(f"nn.{name}"), int(name[-2])
    ones, layout = (1,) * dims, "NC" + "DHW"[-dims:]
    attributes = {"pool_size": ones, "strides": ones, "dilation": ones, "padding": (0,) * dims}
    attributes |= {"layout": layout, "out_layout": "", "ceil_mode": False}
    if name.startswith("avg"):
        attributes["count_include_pad"] = False

    def body(data, /, pool_size, strides, dilation, padding, layout, out_layout, ceil_mode, **average):
        window, counted = (pool_size, strides, padding, dilation), average.get("count_include_pad", False)
        dtype, attrs = dtype_of(data), (ceil_mode, counted, layout, out_layout or None)
        if not average or "float" in dtype:
            return function(data, *window, *attrs)
        return R.astype(function(R.astype(data, "float64"), *window, *attrs), dtype)  # rounded towards 0

    operator(f"nn.{name}", relax=f"nn.{name}", attributes=attributes)(body)


for _name in ("max_pool1d", "max_pool2d", "max_pool3d", "avg_pool1d", "avg_pool2d", "avg_pool3d"):
    _pool(_name)


def _spatial(layout: str) -> list[int]:
    return [axis for axis, letter in enumerate(layout) if letter not in "NC"]


def _global_pools(spatial: str):
    """Register global pooling, and average pooling to a given output size, over the axes `spatial`."""
    dims, default = len(spatial), "NC" + spatial

    def average(data, /, layout=default, out_layout=""):
        return R.mean(data, _spatial(layout), True)

    def largest(data, /, layout=default, out_layout=""):
        return R.max(data, _spatial(layout), True)

    def adaptive(data, /, output_size=None, layout=default, out_layout=""):
        size = _many(output_size, dims) if output_size else None
        return relax_function(f"nn.adaptive_avg_pool{dims}d")(data, size, layout, out_layout or None)

    operator(f"nn.global_avg_pool{dims}d", relax="mean")(average)
    operator(f"nn.global_max_pool{dims}d", relax="max")(largest)
    operator(f"nn.adaptive_avg_pool{dims}d", relax=f"nn.adaptive_avg_pool{dims}d")(adaptive)


for _axes_of in ("W", "HW", "DHW"):
    _global_pools(_axes_of)


@operator("nn.adaptive_max_pool2d", relax="nn.max_pool2d")
def adaptive_max_pool2d(data, /, output_size=None, layout="NCHW", out_layout=""):
    size = [known_shape(data)[axis] for axis in _spatial(layout)]
    wanted = _many(output_size, 2) if output_size else size
    if any(a % b for a, b in zip(size, wanted, strict=True)):
        raise NotImplementedError(
            f"relay.nn.adaptive_max_pool2d of {size} to {list(wanted)}: only whole windows"
        )
    window = tuple(a // b for a, b in zip(size, wanted, strict=True))
    return R.nn.max_pool2d(data, window, window, layout=layout)


@operator("nn.pad", relax="nn.pad")
def pad(data, /, pad_width, pad_value=0, pad_mode="constant"):
    if pad_mode != "constant":
        return padded(data, pad_width, pad_mode)
    return R.nn.pad(data, numbers_of(pad_width), "constant", numbers_of(pad_value)[0])


@operator("nn.mirror_pad", relax="take")
def mirror_pad(data, /, pad_width, mode="SYMMETRIC"):
    return padded(data, pad_width, mode.lower())


@operator("nn.upsampling", relax="image.resize2d")
def upsampling(data, /, scale_h=1, scale_w=1, layout="NCHW", method="nearest_neighbor", align_corners=False):
    sizes, scales = [known_shape(data)[axis] for axis in _spatial(layout)], (scale_h, scale_w)
    size = [round(n * scale) for n, scale in zip(sizes, scales, strict=True)]
    return _resized(data, size, layout, method, "align_corners" if align_corners else "asymmetric")


_HOW = {"coordinate_transformation_mode": "half_pixel", "rounding_method": ""}
_RESIZE2D = {"size": NEEDED, "roi": None, "layout": "NCHW", "method": "linear", **_HOW}
_RESIZE2D |= {"cubic_alpha": -0.5, "cubic_exclude": 0, "extrapolation_value": 0.0, "out_dtype": None}
_RESIZE = {"size": NEEDED, "layout": "NCHW", "method": "bilinear", **_HOW}
_RESIZE |= {"bicubic_alpha": -0.5, "bicubic_exclude": 0, "out_dtype": None}


def _resize(data, /, size, layout, method, out_dtype, **others):
    own = {name.removeprefix("bi"): value for name, value in others.items()}
    mode, rounding = own.pop("coordinate_transformation_mode"), own.pop("rounding_method")
    if out_dtype and "float" not in dtype_of(data) and not method.startswith("nearest"):
        data = R.astype(data, "float32")
    result = _resized(data, _many(size, 2), layout, method, mode, rounding, **own)
    return R.astype(result, out_dtype) if out_dtype else result


operator("image.resize2d", relax="image.resize2d", attributes=_RESIZE2D)(_resize)
operator("image.resize", relax="image.resize2d", attributes=_RESIZE)(_resize)


def _resized(data, size, layout, method, mode, rounding="", *, roi=None, cubic_alpha=-0.5, **others):
    method = {"bilinear": "linear", "bicubic": "cubic"}.get(method, method)
    rounding = rounding or ("floor" if method == "nearest_neighbor" and mode != "align_corners" else "round")
    if method == "nearest_neighbor" and rounding == "round":  # a half away from 0; today, to an even number
        rounding = "round_prefer_ceil"
    size = tuple(int(s) for s in size)
    return R.image.resize2d(data, size, roi, layout, method, mode, rounding, cubic_alpha, **others)


def _many(value, count) -> tuple[int, ...]:
    return tuple(value) if isinstance(value, list | tuple) else (value,) * count


@operator("nn.depth_to_space", relax="permute_dims reshape")
def depth_to_space(data, /, block_size, layout="NCHW", mode="DCR"):
    n, c, h, w = _channels_first(data, layout)
    b, inner = block_size, c // block_size**2
    if mode == "DCR":
        blocks = R.permute_dims(R.reshape(data, (n, b, b, inner, h, w)), [0, 3, 4, 1, 5, 2])
    else:
        blocks = R.permute_dims(R.reshape(data, (n, inner, b, b, h, w)), [0, 1, 4, 2, 5, 3])
    return R.reshape(blocks, (n, inner, h * b, w * b))


@operator("nn.space_to_depth", relax="permute_dims reshape")
def space_to_depth(data, /, block_size, layout="NCHW"):
    n, c, h, w = _channels_first(data, layout)
    b = block_size
    blocks = R.permute_dims(R.reshape(data, (n, c, h // b, b, w // b, b)), [0, 3, 5, 1, 2, 4])
    return R.reshape(blocks, (n, c * b * b, h // b, w // b))


def _channels_first(data, layout) -> tuple[int, ...]:
    if layout != "NCHW":
        raise NotImplementedError(
            f"expected the layout NCHW, got {layout}: transpose the data before and after"
        )
    return known_shape(data)
