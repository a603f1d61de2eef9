"""The operators that each kernel fuses, noted between FuseOps and FuseTIR, for graph.json."""

import tvm
from tvm import relax

from ...core.compat import TIR_PREFIX

_OPERATORS = "tvmfast.operators"


def note_operators() -> tvm.transform.Pass:
    """Make a pass to run right after FuseOps: it notes each group's kernels in an attribute of the module."""

    @tvm.transform.module_pass(opt_level=0, name="NoteOperators")
    def run(mod, _context):
        functions = {var.name_hint: func for var, func in mod.functions_items()}
        groups = {
            name: [_base_name(var.name_hint, functions) for var in _called(func)]
            for name, func in functions.items()
            if isinstance(func, relax.Function) and name != "main"
        }
        return mod.with_attr(_OPERATORS, groups)

    return run


def operators(mod: tvm.IRModule, kernel: str) -> list[str]:
    """List the operators that a kernel of `mod` fuses, in order, by the kernel names of LegalizeOps."""
    noted = (mod.attrs or {}).get(_OPERATORS, {})
    alone = _base_name(kernel, {var.name_hint for var in mod.get_global_vars()})
    return [str(name) for name in noted.get(kernel, [alone])]


def _called(func):
    for block in func.body.blocks:
        for binding in block.bindings:
            value = binding.value
            if isinstance(value, tvm.ir.Call) and getattr(value.op, "name", "") == "relax.call_tir":
                yield value.args[0]


def _base_name(name: str, kernels) -> str:
    """Strip what TVM adds to a kernel's name: a prefix, and a number if kernels would share the name."""
    base = name.rstrip("0123456789")
    return (base if base in kernels else name).removeprefix(TIR_PREFIX)
