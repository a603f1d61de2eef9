"""Networks with open sizes, from imports at a few fixed ones.

probing        the imports, and what of them is one network
merge          the union of several modules into one with open sizes
graphs         the graphs of modules, walked together
dim_inference  the expressions of sizes that fit all imports
padding        pads whose widths differ
"""
