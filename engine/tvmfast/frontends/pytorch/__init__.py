"""PyTorch modules.

importer         `from_pytorch`
complex          complex numbers as pairs
dynamic          open sizes as PyTorch's exporter sees them
graph_signature  what a program computes, to compare with other input sizes
inline           replacements of operators that need the whole graph
output_aliases   how the outputs of a graph share memory
partial_update   writes of a few elements
specializations  what the exporter's conditions on open sizes say
type_promotion   types of operators' results
ops              converters of operators to Relax
"""
