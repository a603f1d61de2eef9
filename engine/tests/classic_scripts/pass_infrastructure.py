"""Relay's passes and instruments, as scripts of 2021 had them (TVM 0.8): python pass_infrastructure.py OUT"""

import sys

import numpy as np
import tvm
from tvm import relay


def calls_of(mod):
    """The operators of a module, in the order of their calls."""
    names = []
    relay.analysis.post_order_visit(
        mod["main"], lambda node: names.append(node.op.name) if isinstance(node, relay.Call) else None
    )
    return names


# A network with what passes find: constants, the same value twice, a batch norm.
rng = np.random.default_rng(0)
arrays = {
    "weight": rng.standard_normal((8, 3, 3, 3)), "gamma": rng.random(8) + 0.5, "beta": rng.standard_normal(8),
    "mean": rng.standard_normal(8), "var": rng.random(8) + 0.5,
}  # fmt: skip
params = {name: array.astype("float32") for name, array in arrays.items()}
x = relay.var("x", shape=(1, 3, 10, 10))
variables = {name: relay.var(name, shape=array.shape) for name, array in params.items()}
weight, *norm = variables.values()
conv = relay.nn.conv2d(x, weight, kernel_size=(3, 3), channels=8)
normed = relay.nn.batch_norm(conv, *norm)[0]
scale = relay.const(np.full((1, 8, 1, 1), 2, "float32"))
shift = relay.multiply(scale, relay.add(scale, scale))
once, twice = relay.add(normed, shift), relay.add(normed, shift)
function = relay.Function([x, *variables.values()], relay.nn.relu(relay.add(once, twice)))
mod = tvm.IRModule.from_expr(function)
print("as written:", *calls_of(mod))

# Passes in a row, by the opt level of the context and what it disables.
seq = tvm.transform.Sequential(
    [
        relay.transform.SimplifyInference(),
        relay.transform.FoldConstant(),
        relay.transform.EliminateCommonSubexpr(),
        relay.transform.DeadCodeElimination(),
    ]
)
for options in ({"opt_level": 2}, {"opt_level": 3}, {"opt_level": 3, "disabled_pass": ["EliminateCommonSubexpr"]}):
    with tvm.transform.PassContext(**options):
        print(*options.values(), "additions:", calls_of(seq(mod)).count("add"))


# A pass of the script's own: each constant three times as large.
@relay.transform.function_pass(opt_level=1)
class Multiplied:
    def __init__(self, multiplier):
        self.multiplier = multiplier

    def transform_function(self, func, mod, ctx):
        multiplier = self.multiplier

        class Replace(relay.ExprMutator):
            def visit_constant(self, const):
                return relay.multiply(multiplier, const)

        return Replace().visit(func)


mod = Multiplied(relay.const(3.0, "float32"))(mod)
print("constants multiplied:", calls_of(mod).count("multiply"))


# Instruments hear of each pass, and see Relay's modules: also while a network is built.
@tvm.instrument.pass_instrument
class Listener:
    def __init__(self):
        self.changes, self.before = [], None

    def should_run(self, mod, info):
        return info.name != "DeadCodeElimination"

    def run_before_pass(self, mod, info):
        self.before = len(calls_of(mod))

    def run_after_pass(self, mod, info):
        self.changes.append(f"{info.name} {self.before}->{len(calls_of(mod))}")


timing, listener = tvm.instrument.PassTimingInstrument(), Listener()
with tvm.transform.PassContext(opt_level=3, instruments=[timing, listener]):
    for each in (relay.transform.FoldConstant(), relay.transform.DeadCodeElimination()):
        mod = each(mod)
    executor = relay.create_executor("graph", mod, tvm.cpu(), "llvm", params)
    data = rng.standard_normal((1, 3, 10, 10)).astype("float32")
    result = executor.evaluate()(data).numpy()
    profile = timing.render()
print("heard:", *listener.changes)
print("timed FoldConstant:", profile.startswith("FoldConstant: "), "and a build:", "FuseOps: " in profile)
np.savez(sys.argv[1], x=data, result=result, **params)
