"""The assembly of a kernel that TVM has compiled: its multiply-adds, and its innermost loop."""

import re
from collections import Counter

# The names on x86, with fused multiply-add and without, and on ARM.
_MULTIPLY_ADD = re.compile(r"\s+(v?fm(?:add|la)[\w.]*|v?mul[sp]s)\s")


def multiply_adds(kernel) -> dict[str, int]:
    """Count the multiply-adds in the assembly of a `tvm.compile` result, by instruction and register kind."""
    found: Counter = Counter()
    for line in _lines(kernel):
        if instruction := _MULTIPLY_ADD.match(line):
            register = re.sub(r"\d", "", line.split()[-1])
            found[f"{instruction[1]} {register}"] += 1
    return dict(found)


def inner_loop(kernel) -> str:
    """Return the assembly of the loop with the largest share of multiply-adds, from its label to the jump."""
    lines = _lines(kernel)
    labels, loops = {}, []
    for index, line in enumerate(lines):
        words = line.split()
        if label := re.match(r"(\.?\w+):", line):
            labels[label[1]] = index
        elif words and words[-1] in labels:
            loops.append(lines[labels[words[-1]] : index + 1])
    return "\n".join(max(loops, key=_share))


def _share(loop: list[str]) -> float:
    return sum(bool(_MULTIPLY_ADD.match(line)) for line in loop) / len(loop)


def _lines(kernel) -> list[str]:
    return kernel.mod.inspect_source("asm").splitlines()
