"""A detector's last steps: the best scores, and non-maximum suppression of boxes.

spec        what a kernel computes, `TopKSpec` or `NmsSpec`, and the attribute that says so
arithmetic  what kernels for a CPU and for a GPU compute alike: corners, areas, overlaps, keys of scores
nms_cpu     both steps as loops, which importers call
nms_cuda    the pass that replaces these loops on a GPU, and the kernels of a suppression
topk_cuda   the kernels that find the k best scores on a GPU
"""
