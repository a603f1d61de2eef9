"""Schedule rules for CPUs, a file each, which register themselves in `RULES` when this package is imported.

direct_conv      convolutions
pointwise        1x1 convolutions of stride 1
depthwise        depthwise convolutions
winograd         3x3 convolutions of stride 1, with fewer multiplications
matmul           products with a weight known at compile time
winograd_int     3x3 convolutions of 8-bit integers, the same, where 16 bits are multiplied
dot_conv         convolutions of 8-bit integers
dot_matmul       products of 8-bit integers with a weight known at compile time
amx_conv         convolutions of 8-bit integers or bfloat16, by AMX
amx_matmul       products of 8-bit integers or bfloat16 with a weight known at compile time, by AMX
paired           convolutions and products in bfloat16, by AVX512_BF16
batch_matmul     products of two activations
skinny_gemm      products of a few rows with a strided view
packed_weights   products with weights of 8 or 4 bits, unpacked in registers or by panels
row_reduction    softmax and layer norm
repack_channels  concatenation and slices of channels in the blocked layout
default          every other kernel
metaschedule     kernels as TVM's own search found them

What they share is in the folder above.
"""

import importlib
import pkgutil

from ..rule import RULES, ScheduleRule

__all__ = ["RULES", "ScheduleRule"]

for _file in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_file.name}")
