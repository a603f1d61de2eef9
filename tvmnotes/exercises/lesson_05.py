"""Exercises of lesson 05: passes by a mutator and a pattern, and an instrument that finds a broken one."""

import numpy as np
import tvm
import tvm_ffi
from tvm import relax
from tvm.script import relax as R

from .exercise import agree, exercise, require


def _module(arguments: dict[str, tuple], body) -> tvm.IRModule:
    """Make a module whose main computes `body(bb, *arguments)` in a dataflow block."""
    bb = relax.BlockBuilder()
    variables = [relax.Var(name, R.Tensor(shape, "float32")) for name, shape in arguments.items()]
    with bb.function("main", variables):
        with bb.dataflow():
            result = bb.emit_output(body(bb, *variables))
        bb.emit_func_output(result)
    return bb.get()


def _run(mod: tvm.IRModule, *arrays: np.ndarray) -> np.ndarray:
    """Compile a module without the instruments of the pass context around it, and run it."""
    with tvm.transform.PassContext():
        machine = relax.VirtualMachine(tvm.compile(mod, target="llvm"), tvm.cpu())
    return machine["main"](*map(tvm.runtime.tensor, arrays)).numpy()


def _operators(mod: tvm.IRModule) -> list[str]:
    """Return the names of the operators that main calls, in order, `relax.` left out."""
    names = []
    for block in mod["main"].body.blocks:
        for binding in block.bindings:
            if isinstance(binding.value, tvm.ir.Call):
                names.append(getattr(binding.value.op, "name", "another function").removeprefix("relax."))
    return names


def _rewritten(answer, mod: tvm.IRModule, what: str, kept: int, of: str) -> None:
    """Require that an answer leaves `kept` calls of an operator, computes the same, and spares its input."""
    rng = np.random.default_rng(0)
    shapes = [[int(n) for n in variable.ty.shape] for variable in mod["main"].params]
    arrays = [rng.standard_normal(shape, dtype="float32") for shape in shapes]
    reference = _run(mod, *arrays)
    before = tvm_ffi.structural_hash(mod)
    result = answer(mod)
    require(
        isinstance(result, tvm.IRModule),
        "the answer",
        "an IRModule",
        type(result).__name__,
        "Return the new module.",
    )
    require(
        tvm_ffi.structural_hash(mod) == before,
        "the module that was given",
        "the same as before the call",
        "another one",
        "A pass leaves its input alone: work on mod.clone(), or in a BlockBuilder.",
    )
    relax.analysis.well_formed(result)
    agree(_run(result, *arrays), reference, what, "A pass must not change what a network computes.")
    got = _operators(result).count(of)
    do = (
        "Does the rewritten function reach the module? Unread lines count too: DeadCodeElimination."
        if got > kept
        else "A call that is still needed has gone."
    )
    require(got == kept, f"the calls of {of} in {what}", kept, got, do)


@exercise(
    "05.1",
    "In visit_call_, a call of relax.permute_dims whose argument is bound to another one: "
    "if that is a variable, self.lookup_binding says what it is bound to. CanonicalizeBindings and "
    "DeadCodeElimination remove what is left over.",
    "call.attrs.axes are the axes, or None, which reverses them. Of two, axis i of the result is "
    "axis first[second[i]] of the argument; if that is i for each i, return the inner call's argument.",
    minutes=30,
    difficulty=2,
)
def cancelled_transpositions(answer):
    """Transpositions that cancel."""
    turn = relax.op.permute_dims

    def both(*axes):
        def body(bb, x):
            for each in axes:
                x = bb.emit(turn(x, each))
            return relax.op.negative(x)

        return body

    x = {"x": (2, 3, 5)}
    _rewritten(
        answer, _module(x, both((0, 2, 1), (0, 2, 1))), "a pair that swaps and swaps back", 0, "permute_dims"
    )
    _rewritten(
        answer, _module(x, both((1, 2, 0), (2, 0, 1))), "axes (1, 2, 0), then (2, 0, 1)", 0, "permute_dims"
    )
    _rewritten(answer, _module(x, both((1, 2, 0), (1, 2, 0))), "axes (1, 2, 0), twice", 2, "permute_dims")
    _rewritten(
        answer, _module(x, both(None, None)), "a pair without axes, which reverses twice", 0, "permute_dims"
    )

    def shared(bb, x):
        first = bb.emit(turn(x, (0, 2, 1)))
        second = bb.emit(turn(first, (0, 2, 1)))
        return relax.op.matmul(second, first)

    _rewritten(answer, _module(x, shared), "a pair whose first result has another reader", 1, "permute_dims")

    def of_constant(bb, x):
        return relax.op.add(x, turn(relax.const(np.ones(tuple(map(int, x.ty.shape))[::-1], "float32"))))

    _rewritten(answer, _module(x, of_constant), "a constant that is transposed once", 1, "permute_dims")


@exercise(
    "05.2",
    "One wildcard may occur twice in a pattern: both places must then be the same value.",
    'is_op("relax.multiply")(x, is_op("relax.sigmoid")(x)), and rewrite_call with a function that returns '
    "relax.op.nn.silu(found[x]). Put the function that it returns into mod.clone().",
    minutes=20,
    difficulty=2,
)
def silu_by_pattern(answer):
    """SiLU by a pattern."""
    multiply, sigmoid = relax.op.multiply, relax.op.sigmoid

    def in_order(first_is_sigmoid):
        def body(bb, x):
            gate = bb.emit(sigmoid(x))
            return multiply(gate, x) if first_is_sigmoid else multiply(x, gate)

        return body

    for first_is_sigmoid, what in ((False, "x * sigmoid(x)"), (True, "sigmoid(x) * x")):
        mod = _module({"x": (3, 7)}, in_order(first_is_sigmoid))
        _rewritten(answer, mod, what, 0, "multiply")
        _rewritten(answer, mod, what, 1, "nn.silu")

    def of_two(bb, x, y):
        return multiply(x, bb.emit(sigmoid(y)))

    _rewritten(answer, _module({"x": (3, 7), "y": (3, 7)}, of_two), "x * sigmoid(y)", 0, "nn.silu")

    def nested(bb, x):
        for _ in range(3):
            x = bb.emit(multiply(x, bb.emit(sigmoid(x))))
        return relax.op.negative(x)

    _rewritten(answer, _module({"x": (2, 5)}, nested), "three of them, one after the other", 3, "nn.silu")


def _broken(operator: str, other, name: str):
    """Return a pass that computes another operator in place of the first call of one."""

    @relax.expr_functor.mutator
    class Breaker(relax.PyExprMutator):
        def visit_call_(self, call):
            """Replace the operator."""
            call = super().visit_call_(call)
            return other(call.args[0]) if getattr(call.op, "name", "") == operator else call

    @tvm.transform.module_pass(opt_level=0, name=name)
    def broken(mod, _context):
        breaker = Breaker(mod)
        breaker.builder_.update_func(mod.get_global_var("main"), breaker.visit_expr(mod["main"]))
        return breaker.builder_.get()

    return broken


@exercise(
    "05.3",
    "Run the module in run_before_pass and in run_after_pass, and compare by np.allclose. Passes run inside "
    "of passes, so keep a stack of results. The first culprit stays.",
    "What the instrument compiles runs passes too: do it within tvm.transform.PassContext(), which has no "
    "instruments. A list of passes is a pass itself, and ends after those in it.",
    minutes=30,
    difficulty=3,
)
def culprit(answer):
    """An instrument that names the pass that changes the result."""
    x = np.random.default_rng(0).standard_normal((3, 5), dtype="float32")

    def body(bb, x):
        return relax.op.exp(bb.emit(relax.op.tanh(bb.emit(relax.op.sin(x)))))

    mod = _module({"x": x.shape}, body)
    good = [relax.transform.FoldConstant(), relax.transform.LegalizeOps()]
    cosine = _broken("relax.sin", relax.op.cos, "Cosine")
    sigmoid = _broken("relax.tanh", relax.op.sigmoid, "Sigmoid")
    inner = tvm.transform.Sequential([good[0], sigmoid], name="Inner")
    lists = {
        "the passes are all right": (good, None),
        "the second of two breaks it": ([good[0], cosine], "Cosine"),
        "a list within the list breaks it, and a later pass too": ([inner, cosine], "Sigmoid"),
    }
    for what, (passes, wanted) in lists.items():
        instrument = answer(x)
        with tvm.transform.PassContext(instruments=[instrument]):
            tvm.transform.Sequential(passes)(mod)
        got = instrument.culprit
        do = "Compare the results of the module before and after each pass, and keep the first name."
        require(got == wanted, f"culprit, where {what}", wanted, got, do)
