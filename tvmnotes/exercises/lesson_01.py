"""Exercises of lesson 01: where a trace is wrong, a branch without an `if`, one graph for all batches."""

import contextlib
import io
import warnings

import numpy as np
import torch
from torch import nn
from torch.export import ExportedProgram
from tvm import tirx
from tvm.relax.frontend.torch import from_exported_program

from .exercise import agree, array, exercise, require


class _Sign(nn.Module):
    """A branch on a value."""

    def forward(self, x):
        """Turn a negative sum round."""
        return -x if x.sum() < 0 else 2 * x


class _Halved(nn.Module):
    """A loop whose length depends on a value."""

    def forward(self, x):
        """Halve until nothing is above 1."""
        while x.max() > 1:
            x = x / 2
        return x


@exercise(
    "01.1",
    "torch.jit.trace(module, example) once, before the loop over the inputs.",
    "Number n belongs to the list if torch.equal(traced(inputs[n]), module(inputs[n])) is False.",
    minutes=10,
    difficulty=1,
)
def where_a_trace_is_wrong(answer):
    """The inputs for which a trace is wrong."""
    inputs = [
        torch.tensor(values) for values in ([1.0, 2.0], [-1.0, -2.0], [3.0, -3.0], [0.5, 9.0], [-4.0, 1.0])
    ]
    cases = (
        ("without a branch", nn.Softmax(0), 0, []),
        ("with a branch on the sum, traced with a positive sum", _Sign(), 0, [1, 4]),
        ("with a branch on the sum, traced with a negative sum", _Sign(), 1, [0, 2, 3]),
        ("with a loop of two steps for its example", _Halved(), 2, [0, 1, 3, 4]),
    )
    for what, module, example, wanted in cases:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyTorch warns that it records one branch
            got = [int(n) for n in answer(module.eval(), inputs[example], inputs)]
        do = "Compare with what the module returns for the same input, element by element."
        if not got:
            do = "Trace once, with the example. A trace made anew for each input records that input's branch."
        elif example in got:
            do = "For its own example a trace is right. Which trace did you run, and on what?"
        require(got == wanted, f"the wrong inputs of a module {what}", wanted, got, do)


@exercise(
    "01.2",
    "torch.where(condition, a, b) takes elements of a or b; both are computed.",
    "The condition is a tensor with one element, x.sum() < 0. It need not become a Python bool.",
    minutes=10,
    difficulty=2,
)
def branch_without_if(answer):
    """A branch that torch.export accepts."""
    net = (answer() if isinstance(answer, type) else answer).eval()
    rng = np.random.default_rng(0)
    for x in (np.ones(3), -np.ones(3), np.zeros(3), rng.standard_normal(3), -np.abs(rng.standard_normal(3))):
        wanted = -x if x.sum() < 0 else 2 * x
        got = array(net(torch.from_numpy(x)).detach())
        do = "The module returns -x where the sum is negative, else 2 * x."
        require(
            np.array_equal(got, wanted),
            f"the result for {x.round(2).tolist()}",
            wanted.tolist(),
            got.tolist(),
            do,
        )
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # PyTorch prints the graph up to the error
            torch.export.export(net, (torch.ones(3),))
    except Exception as error:
        do = "Use torch.where in place of the `if`."
        require(False, "torch.export", "a graph", type(error).__name__, do)


class _Plain(nn.Module):
    """A network for any number of pictures."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.linear = nn.Linear(4, 2)

    def forward(self, x):
        """Return two scores for each picture."""
        return self.linear(torch.relu(self.conv(x)).mean(dim=(2, 3)))


class _Ranked(nn.Module):
    """A network for any number of rows, whose shape it asks for."""

    def forward(self, x):
        """Return each row's elements, the largest first."""
        return x.reshape(x.shape[0], -1).sort(dim=1, descending=True).values


@exercise(
    "01.3",
    'torch.export.export(net, (x,), dynamic_shapes=({0: torch.export.Dim("batch")},)) leaves axis 0 open.',
    "torch.export takes a 1 for a constant. If the example has one picture, export with two: "
    "torch.cat([example, example]).",
    minutes=15,
    difficulty=2,
)
def any_batch(answer):
    """One graph for every number of pictures."""
    generator = torch.Generator().manual_seed(0)
    for what, net, shape in (
        ("a convolution", _Plain(), (2, 3, 8, 8)),
        ("a network that sorts", _Ranked(), (3, 4, 5)),
        ("a convolution with one picture as its example", _Plain(), (1, 3, 8, 8)),
    ):
        example = torch.randn(shape, generator=generator)
        try:
            program = answer(net.eval(), example)
        except RuntimeError as error:  # of which torch.export's are
            told = str(error).strip().partition("\n")[0]
            do = "torch.export takes a dim of 1 for a constant. For the export, cat the example twice."
            require(shape[0] > 1, f"the export of {what}", "a program", told, do)
            raise
        kind = type(program).__name__
        do = "Return what torch.export.export returns."
        require(
            isinstance(program, ExportedProgram), f"the result for {what}", "an ExportedProgram", kind, do
        )
        for pictures in (2, 7, 1):
            x = torch.randn((pictures, *shape[1:]), generator=generator)
            do = "Name axis 0 in dynamic_shapes, without bounds; else the graph has the example's number."
            try:
                got = program.module()(x)
            except Exception as error:
                told = str(error).strip().partition("\n")[0]
                require(False, f"{pictures} pictures for {what}", "a result", told, do)
            agree(got.detach(), net(x).detach().numpy(), f"{pictures} pictures for {what}", do)
        size = from_exported_program(program)["main"].params[0].ty.shape[0]
        do = "Name axis 0 in dynamic_shapes."
        require(not isinstance(size, tirx.IntImm), f"axis 0 in Relax of {what}", "a name", size, do)
