"""from_mxnet: detection at thresholds, in other dtypes and formats, beside NaN, and regions outside, against MXNet."""

import numpy as np
import pytest
from test_import_mxnet import S, X, Y, hold, mxnets
from test_mxnet_lengths import agree, compiled

LEVELS = pytest.mark.parametrize("level", [0, 3])
PAIRS = pytest.mark.parametrize(("level", "dtype"), [(0, "float16"), (3, "float32"), (0, "float64")])


def boxes(rng, *shape: int) -> np.ndarray:
    low = rng.uniform(-0.1, 0.7, (*shape, 2))
    return np.concatenate([low, low + rng.uniform(0, 0.4, (*shape, 2))], -1)


def rows(rng, dtype: str) -> np.ndarray:
    """Rows of class, score, corners and a number, of which some scores are NaN, equal, infinite or a threshold."""
    scores = np.round(rng.uniform(-0.2, 1, (2, 20)), 1)
    scores[:, :4] = np.nan, np.inf, -np.inf, 0.3
    columns = [rng.integers(-1, 2, (2, 20)), scores, *np.moveaxis(boxes(rng, 2, 20), -1, 0), np.ones((2, 20))]
    return np.stack(columns, -1).astype(dtype)


@PAIRS
def test_suppression_in_each_dtype_and_format(rng, level, dtype):
    symbols = [
        S.contrib.box_nms(X, id_index=0, topk=topk, valid_thresh=0.3, overlap_thresh=0.3, **how)
        for topk in (-1, 0, 7)
        for how in ({}, {"in_format": "center", "out_format": "center", "background_id": 1})
    ]
    inputs, symbol = {"x": rows(rng, dtype)}, S.Group(symbols)
    agree(compiled(symbol, inputs, level), symbol, inputs)
    formats = [{"in_format": "center", "out_format": "corner"}, {"out_format": "center"}]
    symbol = S.Group([S.contrib.box_nms(X, id_index=0, **each) for each in formats])
    agree(compiled(symbol, inputs, level), symbol, inputs, terms=2)


@PAIRS
def test_overlaps_and_offsets_in_each_dtype_and_format(rng, level, dtype):
    inputs = {"x": boxes(rng, 5).astype(dtype), "y": boxes(rng, 2, 3).astype(dtype)}
    inputs["x"][0, 1], inputs["x"][1], inputs["y"][0, 0, 2] = np.nan, 0, np.inf
    symbol = S.Group([S.contrib.box_iou(X, Y, format=each) for each in ("corner", "center")])
    agree(compiled(symbol, inputs, level), symbol, inputs, terms=4)
    inputs = {"x": rng.uniform(-3, 3, (1, 5, 4)).astype(dtype), "y": boxes(rng, 1, 5).astype(dtype)}
    symbol = S.contrib.box_decode(X, Y, std0=0.1, std3=0.2, clip=0.3, format="corner")
    agree(compiled(symbol, inputs, level), symbol, inputs, terms=4)


@LEVELS
def test_detections_at_thresholds(rng, level):
    """Scores and overlaps may be as large as a threshold, which 0 or more than 1 switches off, with the order."""
    lines = np.array([[[0, 0, 1, 1], [0, 0, 1, 0.5], [0, 0, 0.5, 1], [0.5, 0.5, 1, 1]]], "float32")
    scores = np.array([[[0.1] * 4, [0, 0.5, 0.75, 0.25], [0, 0.25, np.nan, 0]]], "float32")
    inputs = {"x": scores, "y": np.zeros((1, 16), "float32"), "anchors": lines}
    anchors, symbols = S.var("anchors"), []
    for n, (overlap, least) in enumerate([(0.5, 0), (0.25, 0.25), (0, 0), (-1, 0.5), (1.5, -1)]):
        how = {"nms_threshold": overlap, "threshold": least, "background_id": n}
        symbols.append(S.contrib.MultiBoxDetection(X, Y, anchors, **how))
    symbol = S.Group(symbols)
    outputs, wanted = compiled(symbol, inputs, level)(*inputs.values()), mxnets(symbol, inputs, {})
    for ours, theirs in zip(outputs, wanted, strict=True):
        np.testing.assert_array_equal(ours[..., 0], theirs[..., 0])
        np.testing.assert_array_equal(ours[ours[..., 0] >= 0], theirs[theirs[..., 0] >= 0])


def regions(rng, dtype: str) -> np.ndarray:
    corners = np.sort(rng.uniform(-2, 14, (6, 2, 2)), 1).reshape(6, 4)
    corners[:3] = [[-2.5, -0.5, 2.5, 3.5], [1, 1, 1, 1], [20, 20, 30, 30]]
    return np.concatenate([rng.integers(0, 2, (6, 1)), corners], 1).astype(dtype)


@PAIRS
def test_regions_outside_and_in_each_dtype(rng, level, dtype):
    inputs = {"x": rng.uniform(-1, 1, (2, 8, 7, 9)).astype(dtype), "y": regions(rng, dtype)}
    if dtype != "float16":
        how = {"pooled_size": (2, 2), "spatial_scale": 0.3}
        symbol = S.Group([S.contrib.ROIAlign(X, Y, position_sensitive=each, **how) for each in (False, True)])
        hold(list(compiled(symbol, inputs, level)(*inputs.values())), mxnets(symbol, inputs, {}), 4 * 9)
        inputs["x"][0, 0, 2:5, 2:5], inputs["x"][1, 1] = np.nan, -np.inf
    inputs["y"][3:5, 0] = -1, 2  # of no image
    symbol = S.ROIPooling(X, Y, pooled_size=(3, 2), spatial_scale=1)
    agree(compiled(symbol, inputs, level), symbol, inputs)


@LEVELS
def test_a_deformable_convolution_reads_no_pixels_outside(rng, level):
    """Before the first pixel it reads 0, behind the last one that; with masks, it interpolates both with 0."""
    how = {"kernel": (3, 2), "pad": (1, 1), "num_filter": 4, "num_deformable_group": 2, "no_bias": True}
    symbol = S.contrib.DeformableConvolution(X, Y, S.var("weight"), **how)
    shapes = {"x": (1, 4, 6, 5), "y": (1, 24, 6, 6), "weight": (4, 4, 3, 2)}
    inputs = {name: rng.uniform(-2, 2, shape).astype("float32") for name, shape in shapes.items()}
    agree(compiled(symbol, inputs, level), symbol, inputs, terms=4 * 6)
