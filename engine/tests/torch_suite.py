"""PyTorch's own samples of its operators (OpInfo), operator by operator: what becomes of each through `from_pytorch`.

In scope is what a network calls at inference: the first SAMPLES of each operator of torch.testing's database, with
tensors of float32, or of int64 or bool where it has no float32. Left out are samples without tensors, with empty ones,
with complex or sparse ones or results that are no tensors, and operators that are backward, random, losses, factories,
in place, of torch.masked, special functions that hardly a network has, or whose result's shape depends on the values.

Tensors are the network's inputs, everything else is a constant in it; of complex results view_as_real is compared. All
of an operator's samples are one network; only where that is not equal is each a network of its own. `outcome` runs one
operator here. `outcomes` runs many in a process of their own, which a crash ends for one operator alone.

`python engine/tests/torch_suite.py [level [names]]` prints what becomes of each, at opt level 0 unless told, and
counts. It fails where an operator is not as torch_suite.json says: that file has all that are not equal, with the
reason.
"""

import json
import os
import random
import re
import sys
import types
import unittest
import warnings
from collections import Counter
from collections.abc import Iterator
from functools import cache
from itertools import islice
from pathlib import Path

import forked
import numpy as np
import torch
from agreement import close, reference
from torch.utils import _pytree as pytree

import tvmfast

REFUSED = json.loads(Path(__file__).with_suffix(".json").read_text())  # by operator, why it is not equal
SAMPLES = 6
SECONDS = 180  # for one operator
_KINDS = (torch.float32, torch.int64, torch.bool)
_CLEAR = (NotImplementedError, ValueError, IndexError)
_NAMED = (
    r"aten[.:]+\w|PyTorch (cannot|takes|says)|captured in training|complex numbers"  # what is refused, besides by name
)
_OUT = re.compile(
    r"_refs|masked\.|.*\.grad$|.*subgradients.*|jiterator|signal\.|sparse|to_sparse|.*backward|.*_loss$|.*cross_entropy.*|.*with_distance_loss|.*dropout"
    r"|rand|.*normal$|normal\.|bernoulli|cauchy|exponential|geometric|uniform|multinomial|.*rrelu|.*fractional_max|.*_lowrank"
    r"|empty|new_empty|resize|zero_|.*(complex|cdouble|cfloat|chalf)|broadcast_shapes|equal$|allclose|item|hash_tensor"
    r"|argwhere|nonzero|masked_select|unique|bincount|combinations|repeat_interleave|histogram|histc"
    r"|special\.(?!entr|erfcx|i0e|i1e?$|log_ndtr|ndtri?$|polygamma|xlog1py)|torch\.(?!ops\.aten\._safe)|torch\.ops\.aten\._(eff|flash)"
    r"|igamma|.*kl_div|arange|linspace$|logspace$|polar|ones$|zeros$|full$|eye|scalar_tensor|tri[lu]_indices|.*multi_head"
    r"|linalg\.(eig$|eigvals$|ldl|lstsq|cond|matrix_rank|svd|eigh)|svd|istft|_segment|_chunk"
    r"|_batch_norm_with_update|_native_batch_norm_legit|as_strided|resolve"
)


class Samples(torch.nn.Module):
    """A call of an operator for each (operator, sample), whose tensors are the inputs in order; its tensors, flat."""

    def __init__(self, samples):
        super().__init__()
        self.calls, self.tensors = [], []
        for op, sample in samples:
            leaves, spec = pytree.tree_flatten((sample.input, *sample.args, sample.kwargs))
            self.tensors += [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
            self.calls.append(
                (
                    op,
                    [None if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves],
                    [isinstance(leaf, torch.Tensor) for leaf in leaves],
                    spec,
                )
            )

    def forward(self, *tensors):
        given, results = iter(tensors), []
        for op, leaves, is_input, spec in self.calls:
            leaves = [next(given) if own else leaf for leaf, own in zip(leaves, is_input, strict=True)]
            *args, kwargs = pytree.tree_unflatten(leaves, spec)
            results += pytree.tree_leaves(op.op(*args, **kwargs))
        results = [
            torch.view_as_real(x.resolve_conj()) if isinstance(x, torch.Tensor) and x.is_complex() else x
            for x in results
        ]
        return tuple(results)


@cache
def operators() -> dict:
    """The operators in scope by name, the variant of an operator behind a dot."""
    # The database's module wants expecttest's TestCase for PyTorch's own tests, none of which runs here.
    sys.modules.setdefault("expecttest", types.SimpleNamespace(TestCase=unittest.TestCase, ACCEPT=False))
    from torch.testing._internal.common_methods_invocations import op_db  # for speed: it takes seconds

    every = {".".join(filter(None, (op.name, op.variant_test_name))): op for op in op_db}
    return {
        name: op for name, op in every.items() if not _OUT.match(name) and any(dtype in op.dtypes for dtype in _KINDS)
    }


def samples(op, count: int = SAMPLES) -> list:
    """The first samples of an operator that are in scope, the same in each run."""
    dtype = next(dtype for dtype in _KINDS if dtype in op.dtypes)
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002 the database draws from it
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return list(islice(filter(lambda sample: _in_scope(op, sample), op.sample_inputs("cpu", dtype)), count))


def _in_scope(op, sample) -> bool:
    network = Samples([(op, sample)])
    before = [x.clone() if _plain(x) else None for x in network.tensors]
    if not before or any(x is None for x in before) or sample.kwargs.get("dropout_p"):
        return False
    results = network(*(x.clone() for x in before))
    return bool(results) and all(isinstance(x, torch.Tensor) and _plain(x) for x in results)


def _plain(x) -> bool:
    return x.layout is torch.strided and not x.is_complex() and not x.is_quantized and x.numel() > 0


def outcome(op, opt_level: int = 0) -> str:
    """What becomes of an operator: "equal", or the worst of its samples: "refused", "unclear" or "wrong", and why."""
    found = samples(op)
    if not found or (together := _outcome(op, found, opt_level)) == "equal":
        return "equal" if found else "no sample"
    if len(found) == 1:
        return together
    apart = [_outcome(op, [sample], opt_level) for sample in found]
    worst = max(apart, key=lambda text: ["equal", "refused", "unclear", "wrong"].index(text.partition(":")[0]))
    return f"{together if worst == 'equal' else worst} ({apart.count('equal')} of {len(found)} equal)"


def _outcome(op, found, opt_level) -> str:
    try:
        check([(op, sample) for sample in found], opt_level)
    except AssertionError as error:
        return f"wrong: {' '.join(str(error).split())[:200]}"
    except Exception as error:
        cause = error if re.search("PyTorch (cannot|says)", str(error)) else error.__cause__ or error
        says = all(isinstance(each, _CLEAR) for each in (error, cause)) and "ir.Op" not in str(error)
        names = re.search(rf"{_NAMED}|{re.escape(op.name.rpartition('.')[2])}", str(error))
        text = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        return f"{'refused' if says and names else 'unclear'}: {text}"
    return "equal"


def check(found: list, opt_level: int = 0) -> None:
    """Build one network of these (operator, sample), and hold it against PyTorch; raises AssertionError, or what it
    is that the import, the build or the run raises."""
    network = Samples(found).eval()
    inputs = [x.detach().contiguous() for x in network.tensors]
    with torch.no_grad():
        wanted = network(*(x.clone() for x in inputs))
    compiled = tvmfast.build(
        *tvmfast.from_pytorch(network, [(f"in{i}", x) for i, x in enumerate(inputs)]), opt_level=opt_level
    )
    got = compiled(*(x.numpy() for x in inputs))
    got = got if isinstance(got, list | tuple) else [got]
    assert len(got) == len(wanted), f"{len(got)} outputs for {len(wanted)}"
    for index, (ours, theirs) in enumerate(zip(got, wanted, strict=True)):
        dtype = str(theirs.dtype).removeprefix("torch.")
        assert str(np.asarray(ours).dtype) == dtype, f"{ours.dtype} for {dtype}, of output {index}"
    close(got, reference(network, *inputs))


def outcomes(names: list[str], opt_level: int = 0) -> Iterator[tuple[str, str]]:
    """Each of these operators and what becomes of it: "crash" or "hang" where it ends its process, or never ends."""
    return forked.replies([sys.executable, __file__, "serve", str(opt_level)], names, SECONDS)


def _serve(opt_level: int) -> None:
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what an operator prints is no reply
    every = operators()
    for each in json.load(sys.stdin):
        print(json.dumps(outcome(every[each], opt_level)), file=replies, flush=True)


def kind(text: str) -> str:
    """Return "equal", "refused", "unclear", "wrong", "crash", "hang" or "no sample" of an outcome."""
    return text.partition(":")[0].partition(" (")[0]


def _main(opt_level: int, names: list[str]) -> None:
    counts, surprises = Counter(), []
    for name, text in outcomes(names or list(operators()), opt_level):
        counts[kind(text)] += 1
        print(f"{name}: {text}", flush=True)
        if kind(text) != ("refused" if name in REFUSED else "equal") and kind(text) != "no sample":
            surprises.append(name)
    print(dict(counts))
    if surprises:
        sys.exit(f"not as torch_suite.json says: {', '.join(surprises)}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        _serve(int(sys.argv[2]))
    else:
        _main(int((sys.argv[1:2] or [0])[0]), sys.argv[2:])
