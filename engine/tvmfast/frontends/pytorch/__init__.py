"""PyTorch modules.

importer         `from_pytorch`
complex          complex numbers as pairs
dynamic          specializations, their guards, and dims at which these fail
inline           replacements of operators that need the whole graph
output_aliases   which outputs of a graph share memory
partial_update   updates of a part of a tensor, such as a cache
quantized_modules  quantized modules of eager mode, whose weights are packed
type_promotion   PyTorch's rules for the dtypes of results
ops              converters of operators to Relax
"""
