"""Where a network is slow: `python engine/tests/slow_kernels.py [names]`, for those of test_transformers.py.

A line for each network: milliseconds, and the ratio to PyTorch's, marked `!` where that is faster. Below it, each
kernel that takes more than a twentieth of the time at less than a fifth of the machine's limit, if it takes long enough
to count.
"""

import sys

import torch
import transformers
from test_transformers import NETWORKS, imported
from torch.utils import _pytree as pytree

import tvmfast
from tvmfast.core import machine

SHARE, OF_LIMIT, SECONDS = 0.05, 0.2, 20e-6


def main(names: list[str]) -> None:
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(machine.threads())
    print(f"{'network':28} {'attention':10} {'TVM ms':>8} {'PyTorch ms':>10} {'ratio':>6}")
    for name in names or NETWORKS:
        for attention in NETWORKS[name][1]:
            try:
                measured(name, attention)
            except Exception as error:
                print(
                    f"{name:28} {attention:10} {type(error).__name__}: {' '.join(str(error).split())[:200]}", flush=True
                )


def measured(name: str, attention: str) -> None:
    """Print the lines of a network."""
    net, inputs, mod, params = imported(name, attention)
    lib = tvmfast.build(mod, params, records=False)
    arrays = [x.numpy() for x in inputs]

    def of_pytorch(*_):
        with torch.inference_mode():
            return pytree.tree_leaves(net(*inputs))

    times = tvmfast.compare({"TVM": lib, "PyTorch": of_pytorch}, *arrays, seconds=0.3)
    ours, theirs = times["TVM"].median, times["PyTorch"].median
    mark = "!" if ours > theirs else " "
    print(f"{name:28} {attention:10} {ours * 1e3:8.2f} {theirs * 1e3:10.2f} {ours / theirs:6.2f}{mark}", flush=True)
    for kernel in tvmfast.profile(lib, *arrays, seconds=0.2).kernels.values():
        spent = kernel.timing.median
        if kernel.limit < OF_LIMIT * spent and spent > SHARE * ours and spent / kernel.calls > SECONDS:
            speed = f"{kernel.limit / spent:5.1%} of {kernel.bound:7}"
            print(f"    {spent / ours:4.0%} at {speed} {kernel.calls:3} x {kernel} | {kernel.schedule[:60]}")


if __name__ == "__main__":
    main(sys.argv[1:])
