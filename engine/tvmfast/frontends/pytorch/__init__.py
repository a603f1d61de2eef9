"""PyTorch modules.

importer         `from_pytorch`
complex          complex numbers as pairs
dynamic          dims at which PyTorch's guards fail
graph_signature  what a program computes, to compare with other dims
inline           replacements of operators that need the whole graph
output_aliases   which outputs of a graph share memory
partial_update   updates of a part of a tensor, such as a cache
specializations  exports at some dims, and their guards
type_promotion   PyTorch's rules for the dtypes of results
ops              converters of operators to Relax
"""
