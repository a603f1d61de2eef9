"""Arrays that the launches of one kernel exchange, as results of the call, which the graph allocates.

TVM itself takes them from a pool of the calling thread, which frees them when the thread ends; a CUDA graph
would go on using their addresses. A result is planned, counted and kept as all intermediate values are.
"""

import tvm
from tvm import relax, tirx

from ...core.relax import op_name


def workspaces_to_results(mod: tvm.IRModule) -> tvm.IRModule:
    """Return a module of scheduled kernels whose workspaces are further results of their calls.

    A kernel that also updates an input in place keeps its own.
    """
    functions = dict(mod.functions_items())
    graphs = {var: func for var, func in functions.items() if isinstance(func, relax.Function)}
    called = {}  # by kernel: the operators that call it

    def note(expr):
        if (op_name(expr) or "").startswith("call_tir"):
            called.setdefault(expr.args[0], set()).add(op_name(expr))

    for func in graphs.values():
        relax.analysis.post_order_visit(func, note)
    changed = {}  # by kernel: its new variable and its workspaces
    for var in [var for var, operators in called.items() if operators == {"call_tir"}]:
        func, found = _without_workspaces(functions[var])
        if found:
            del functions[var]
            made = tvm.ir.GlobalVar(var.name_hint)
            relax.expr._update_type(made, func.ty)
            functions[made] = func
            changed[var] = (
                made,
                [relax.TensorType([int(n) for n in each.shape], each.dtype) for each in found],
            )
    if not changed:
        return mod
    calls = _Calls(changed)
    functions |= {var: calls.visit_expr(func) for var, func in graphs.items()}
    return tvm.IRModule(functions, mod.attrs, mod.global_infos)


def _without_workspaces(func) -> tuple[tirx.PrimFunc, list]:
    """Return a kernel with its workspaces as last parameters, and them."""
    if not isinstance(func.body, tirx.SeqStmt):
        return func, []
    found, rest = [], []
    for statement in func.body.seq:
        is_workspace = isinstance(statement, tirx.AllocBuffer) and statement.buffer.scope() == "global"
        (found if is_workspace else rest).append(statement)
    buffers = [statement.buffer for statement in found]
    body = tirx.SeqStmt(rest) if len(rest) > 1 else rest[0]
    return tirx.PrimFunc([*func.params, *buffers], body, func.ret_type, func.attrs), buffers


@relax.expr_functor.mutator
class _Calls(relax.PyExprMutator):
    def __init__(self, changed: dict):
        super().__init__()
        self.changed = changed

    def visit_call_(self, call):
        call = self.visit_expr_post_order(call)
        if op_name(call) != "call_tir" or call.args[0] not in self.changed:
            return call
        kernel, workspaces = self.changed[call.args[0]]
        (type_,) = call.ty_args
        types = list(type_.fields) if isinstance(type_, tvm.ir.TupleType) else [type_]
        result = self.builder_.emit(relax.call_tir(kernel, call.args[1], [*types, *workspaces]))
        own = [self.builder_.emit(relax.TupleGetItem(result, n)) for n in range(len(types))]
        return relax.Tuple(own) if isinstance(type_, tvm.ir.TupleType) else own[0]
