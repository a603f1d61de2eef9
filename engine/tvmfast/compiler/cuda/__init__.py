"""NVIDIA GPUs, target "cuda".

gpu               targets and schedules
tensor_cores      the rule for products and convolutions on tensor cores
device_code       its CUDA source
tiles             its tiles, by product
operands          the pass that gives it its operands
codegen           code, by CUDA's compiler
nms               the pass that replaces a detector's loops, and the kernels of a suppression
topk              the kernels that find the k best scores
unroll_recurrent  the pass that makes a few kernels of each time step of a recurrent network
"""
