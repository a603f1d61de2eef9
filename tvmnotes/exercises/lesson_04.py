"""Exercises of lesson 04: counting kernels, an instrument, and an operator that keeps two kernels apart."""

from collections import Counter

import torch
import tvm
from tvm import relax, te
from tvm.relax.frontend.torch import from_exported_program

from .exercise import exercise, require


def _kernels(mod: tvm.IRModule) -> list[str]:
    """Return the names of the operators or kernels that `main` calls, in order."""
    names = []
    for block in mod["main"].body.blocks:
        for binding in block.bindings:
            call = binding.value
            if isinstance(call, tvm.ir.Call):
                called = call.args[0] if getattr(call.op, "name", "") == "relax.call_tir" else call.op
                names.append(getattr(called, "name_hint", None) or called.name)
    return names


@exercise(
    "04.1",
    "Hard swish is x * clip(x + 3, 0, 6) / 6. Of which kind are these operators?",
    "Run the list of section 4 on the imported block, and count as the lesson does: calls(passes(imported)).",
    minutes=10,
    difficulty=1,
)
def swish_kernels(answer):
    """The kernel calls of a block with a hard swish."""
    do = "Count the calls after FuseTIR; those before it are more."
    require(int(answer) <= 15, "the kernel calls", "fewer than before fusing", answer, do)
    do = "Elementwise kernels join the convolution whose result they read, however many they are."
    require(int(answer) == 6, "the kernel calls", "as many groups as rules 1 to 4 leave", answer, do)


@tvm.instrument.pass_instrument
class _Reference:
    """The count that an answer is compared with."""

    def __init__(self):
        self.runs = Counter()

    def run_before_pass(self, mod, info):
        """Count a pass."""
        self.runs[info.name] += 1


@exercise(
    "04.2",
    "Put @tvm.instrument.pass_instrument above the class; TVM calls its method run_before_pass(mod, info).",
    "__init__ makes self.runs = collections.Counter(), and run_before_pass adds 1 to self.runs[info.name].",
    minutes=15,
    difficulty=2,
)
def counting_instrument(answer):
    """An instrument that counts passes."""
    counting = answer()
    reference = _Reference()
    A = te.placeholder((4,), name="A")
    B = te.compute((4,), lambda i: A[i] + 1.0, name="B")
    mod = tvm.IRModule({"main": te.create_prim_func([A, B])})
    fold = relax.transform.FoldConstant()
    passes = tvm.transform.Sequential([fold, relax.transform.LegalizeOps(), fold])
    with tvm.transform.PassContext(instruments=[counting, reference]):
        passes(mod)
    runs = dict(counting.runs)
    do = "TVM calls run_before_pass once for each run of a pass; info.name is the name."
    require(set(runs) == set(reference.runs), "the passes in runs", sorted(reference.runs), sorted(runs), do)
    require(runs == reference.runs, "the counts in runs", dict(reference.runs), runs, do)


@exercise(
    "04.3",
    "An operator of which kind joins no convolution, but joins an elementwise reader?",
    "By rule 3 an injective kernel does not join a convolution. Reshape, flatten and permute are injective.",
    minutes=15,
    difficulty=2,
)
def kept_apart(answer):
    """An operator between a convolution and its ReLU."""
    net = (answer() if isinstance(answer, type) else answer).eval()
    x = torch.ones(1, 8, 16, 16)
    with torch.inference_mode():
        net(x)  # an error of the module itself comes from here
    mod = from_exported_program(torch.export.export(net, (x,)))
    mod = relax.transform.FoldConstant()(relax.transform.FoldBatchnormToConv2D()(mod))
    operators = _kernels(mod)
    do = "Write a module with one nn.Conv2d and one torch.relu after it."
    require(
        operators.count("relax.nn.conv2d") == 1, "the convolutions", 1, operators.count("relax.nn.conv2d"), do
    )
    require(operators.count("relax.nn.relu") == 1, "the ReLUs", 1, operators.count("relax.nn.relu"), do)
    transform = relax.transform
    steps = [
        transform.LegalizeOps(),
        transform.AnnotateTIROpPattern(),
        transform.FuseOps(),
        transform.FuseTIR(),
    ]
    kernels = _kernels(tvm.transform.Sequential(steps)(mod))
    do = "Read the four rules of FuseOps: which kind does not join the kernel whose result it reads?"
    together = [name for name in kernels if "conv2d" in name and "relu" in name]
    require(not together, "the kernels with both the convolution and the ReLU", "none", together, do)
    do = "One operator between the two is enough, and the ReLU should join it."
    require(len(kernels) == 2, "the kernels", 2, kernels, do)
