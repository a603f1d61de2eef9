"""Reshapes become views of their tensors, where they can."""

import tvm
from tvm import s_tir, tirx
from tvm.relax import analysis
from tvm.relax import transform as t


def reshapes_to_views() -> tvm.transform.Pass:
    """Make TVM's pass, spared the kernels on which it fails, as a transpose of a dim such as n + 5."""

    @tvm.transform.module_pass(opt_level=0, name="RewriteDataflowReshape")
    def rewrite(mod, _context):
        hidden = {var: func for var, func in mod.functions_items() if _fails(func)}
        if not hidden:
            return t.RewriteDataflowReshape()(mod)
        mod = mod.clone()
        for var, func in hidden.items():
            root = s_tir.SBlock([], [], [], "root", tirx.Evaluate(0))
            mod[var] = func.with_body(s_tir.SBlockRealize([], True, root))
        mod = t.RewriteDataflowReshape()(mod)
        for var, func in hidden.items():
            mod[var] = func
        return mod

    return rewrite


def _fails(func) -> bool:
    """Return whether TVM cannot tell if a kernel is a reshape; one of static dims it always can."""
    if not isinstance(func, tirx.PrimFunc) or not isinstance(func.body, s_tir.SBlockRealize):
        return False
    types = (param.ty for param in func.params)
    dims = (dim for ty in types if isinstance(ty, tirx.BufferType) for dim in ty.shape)
    if all(isinstance(dim, tirx.IntImm) for dim in dims):
        return False
    try:
        analysis.has_reshape_pattern(func)
    except tvm.error.InternalError:
        return True
    return False
