"""Operators become kernels, with the numbers that the frameworks compute.

lower            the remaining operators become kernels
accumulate       half floats accumulated in float32
bfloat16         each operation of bfloat16 rounded, once
bools            booleans compared and reduced as bytes
bounds_check     checks of indices, as kernels for a CPU
conv_transpose   transposed convolutions, where a weight may be infinite or NaN
dynamic_reshape  reshapes of dynamic shapes, which fuse as static ones do
ieee754          NaN, infinities, signed zeros and denormals, in kernels and in operators
lets             variables on the stack, so that chains of functions compile in linear time
long_sums        sums of many addends, in blocks
norms            group, instance and layer norms in two passes
quantize         numbers in 8 bits: a half is rounded to the even neighbour
scan             running sums and products
scatter          scatters by an index that is smaller than the data
wrap_around      sums, differences and products of integers wrap around
"""
