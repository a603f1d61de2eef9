"""Postprocessing of a detector: the best scores, and non-maximum suppression of boxes.

spec        what a kernel computes, `TopKSpec` or `NmsSpec`, and the attribute that says so
arithmetic  what kernels for a CPU and for a GPU compute alike: corners, areas, overlaps, keys of scores
nms         both as sequential loops, which frontends call; on a GPU `compiler/cuda/nms.py` replaces them
regions     the maxima of regions of images, as ONNX has them
"""
