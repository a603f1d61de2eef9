"""Keep what a `Let` binds in a variable on the stack, which LLVM turns into a register.

TVM 0.27's code generator simplifies what each `Let` binds, with the values of those inside put in for their
names. In a chain such as sigmoid(tanh(sigmoid(...))), where a function reads its argument several times, that
takes exponential time. So a kernel's stores become

    y[i] = let v = a(x[i]) in b(v, v)                v[0] = a(x[i])
                                                     y[i] = b(v[0], v[0])

    y[i] = let v = a(x[i]) in b(v, v) if c else 0    if c: v[0] = a(x[i])
                                                           w[0] = b(v[0], v[0])
                                                     else: w[0] = 0
                                                     y[i] = w[0]
"""

import tvm
import tvm_ffi
from tvm import tirx

from ...core.relax import op_name


def on_stack(store):
    """Return a lowered store, after those of what its value binds."""
    if not _has_let(store.value):
        return store
    return _sequence(_stored(store.buffer, store.value, store.indices, {}))


def _sequence(statements: list):
    return tirx.SeqStmt(statements) if len(statements) > 1 else statements[0]


def _has_let(expr) -> bool:
    found = []
    tvm_ffi.structural_walk(expr, (tirx.Let, found.append))
    return bool(found)


def _stored(buffer, expr, indices, names: dict) -> list:
    """Return statements that store the value of an expression without a `Let`.

    `names` has what reads the variables that were bound before, and gets those of the expression.
    """
    before, read = [], {}  # read: by placeholder, as a callback's result would be mapped once more

    def variable(value):
        place = tirx.decl_buffer((1,), str(value.ty.dtype), "value")  # "local" would be on the heap
        before.append(tirx.AllocBuffer(place))
        return place

    def let(node):
        while isinstance(node, tirx.Let):
            place = variable(node.value)
            before.extend(_stored(place, node.value, [0], names))
            names[node.var], node = place[0], node.body
        return held(mapped(node))

    def choice(call):
        if op_name(call) != "prim.if_then_else" or not any(map(_has_let, call.args[1:])):
            return call
        place, condition = variable(call), mapped(call.args[0])
        sides = [_sequence(_stored(place, side, [0], dict(names))) for side in call.args[1:]]
        before.append(tirx.IfThenElse(condition, *sides))
        return held(place[0])

    def held(value):
        placeholder = tirx.Var("value", str(value.ty.dtype))
        read[placeholder] = value
        return placeholder

    def mapped(expr):
        callbacks = [(tirx.Let, let), (tvm.ir.Call, choice), (tirx.Var, lambda var: names.get(var, var))]
        expr = tvm_ffi.structural_map(expr, callbacks, order="pre")
        return tvm_ffi.structural_map(expr, (tirx.Var, lambda var: read.get(var, var)))

    value = mapped(expr)
    return [*before, tirx.BufferStore(buffer, value, indices)]
