"""NVIDIA GPUs, target "cuda".

gpu               targets and schedules
products          which product of matrices a kernel is
tensor_cores      the rule for products and convolutions on tensor cores
tiles             its tiles, by product
tile_configs      the tiles that a tuner tries, and those that records have
skinny            the rule for products of a few rows
device_code       the CUDA source of both
operands          the pass that gives them their operands
workspaces        arrays that the launches of a kernel exchange
codegen           code, by CUDA's compiler
nms               the pass that replaces a detector's loops, and the kernels of a suppression
topk              the kernels that find the k best scores
unroll_recurrent  the pass that makes a few kernels of each time step of a recurrent network
"""
