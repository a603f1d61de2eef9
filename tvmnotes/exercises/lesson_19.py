"""Exercises of lesson 19: what rounding explains, the guilty pass, a vectorized loop with a tail."""

import math

import numpy as np
import tvm

from .exercise import agree, exercise, require


def _sums(dtype: str, terms: int) -> tuple[np.ndarray, np.ndarray]:
    """Return sums of random numbers, added up one by one, and the same in float64."""
    numbers = np.random.default_rng(0).standard_normal((50, terms)).astype(dtype)
    return np.cumsum(numbers, axis=1, dtype=dtype)[:, -1], numbers.astype("float64").sum(axis=1)


@exercise(
    "19.1",
    "Section 2 has the tolerance; its epsilon is that of the dtype of `got`.",
    "Compare the places of NaN and infinities first, and then the largest difference of the other elements.",
    minutes=10,
    difficulty=2,
)
def rounding(answer):
    """Whether rounding explains a difference."""
    for dtype, terms in (("float32", 9), ("float32", 2304), ("float16", 64)):
        got, wanted = _sums(dtype, terms)
        what = f"sums of {terms} terms in {dtype}, added up one by one"
        do = "Take the epsilon of the dtype, and the square root of the number of terms."
        require(bool(answer(got, wanted, terms)), what, "rounding", "a fault", do)
    got, wanted = _sums("float32", 9)
    size = np.abs(wanted).max()
    do = "The length of the sum belongs into the tolerance: short sums have smaller errors."
    off = got + np.float32(5e-5 * size)
    require(not answer(off, wanted, 9), "sums of 9 terms, 5e-05 off", "a fault", "rounding", do)
    require(bool(answer(off, wanted, 300**2)), "the same after 90,000 terms", "rounding", "a fault", do)
    do = "The tolerance is a share of the largest number, not an absolute one."
    tiny = answer(off * np.float32(1e-6), wanted * 1e-6, 9)
    require(not tiny, "the same numbers, a million times smaller", "a fault", "rounding", do)
    bad = got.copy()
    bad[3] = np.nan
    do = "A comparison with NaN is never true: look for NaN and infinities first."
    require(not answer(bad, wanted, 9), "a NaN where the reference has a number", "a fault", "rounding", do)
    spoiled = wanted.copy()
    spoiled[3] = np.nan
    require(bool(answer(bad, spoiled, 9)), "a NaN where the reference has one", "rounding", "a fault", do)
    do = "Compare the shapes first; NumPy broadcasts."
    require(not answer(got[:1], wanted, 9), "an array of another shape", "a fault", "rounding", do)


def _step(name: str) -> tvm.transform.Pass:
    """Make a pass that notes its name in the module."""
    return tvm.transform.module_pass(lambda mod, _: mod.with_attr(name, 1), opt_level=0, name=name)


@exercise(
    "19.2",
    "Keep the module after each pass. Bisect with the numbers of the modules that have not been tried.",
    "Where is_right raises an error, drop that number and try the middle of the others.",
    minutes=20,
    difficulty=3,
)
def guilty(answer):
    """The passes after which a module is wrong, by bisection."""
    mod = tvm.IRModule({}).with_attr("begin", 1)
    cases = [(1, 0, ()), (8, 0, ()), (8, 7, ()), (13, 5, ()), (13, None, ()), (30, 17, ())]
    for count, guilty, unfit in [*cases, (13, 5, (5, 6)), (6, 2, (1, 2, 3, 4, 5)), (20, 11, (10, 14))]:
        passes = [_step(f"Pass{n}") for n in range(count)]
        calls = []

        def is_right(mod, count=count, guilty=guilty, unfit=unfit, calls=calls):
            calls.append(mod)
            after = sum(f"Pass{n}" in (mod.attrs or {}) for n in range(count))
            if after in unfit:
                raise RuntimeError("this module cannot be compiled")
            return guilty is None or after <= guilty

        wanted = []
        if guilty is not None:
            fit = [n for n in range(count + 1) if n not in unfit]
            first, last = max(n for n in fit if n <= guilty), min(n for n in fit if n > guilty)
            wanted = [f"Pass{n}" for n in range(first, last)]
        got = [*(answer(passes, mod, is_right) or [])]
        what = f"the guilty ones of {count} passes"
        what += f", if the modules after {', '.join(map(str, unfit))} cannot be compiled" if unfit else ""
        do = "They are between the last module that is right and the first one that is wrong."
        require(got == wanted, what, wanted, got, do)
        most = math.ceil(math.log2(count)) + 1 + len(unfit)
        do = "One call for each pass is a search from end to end. Halve the list instead."
        require(
            len(calls) <= most, f"calls of is_right for {count} passes", f"at most {most}", len(calls), do
        )


@exercise(
    "19.3",
    "te.compute and te.create_prim_func make the function; a schedule splits its loop by 8 and vectorizes.",
    "schedule.split(i, [None, 8]) adds a condition where 8 does not divide n: the tail is right by itself.",
    minutes=20,
    difficulty=3,
)
def tail(answer):
    """A vectorized ReLU of a row of any length."""
    for n in (16, 30, 7, 1, 65):
        kernel = answer(n)
        do = "Return a PrimFunc of two buffers, the row and the result."
        require(
            isinstance(kernel, tvm.tirx.PrimFunc), f"answer({n})", "a PrimFunc", type(kernel).__name__, do
        )
        x = np.random.default_rng(n).standard_normal(n, dtype="float32")
        out = tvm.runtime.tensor(np.full(n, np.nan, "float32"))
        tvm.compile(kernel.with_attr("global_symbol", "main"), target="llvm")(tvm.runtime.tensor(x), out)
        do = "Each element of the tail must be computed from the element at its own place."
        agree(out.numpy(), np.maximum(x, 0), f"the result for {n} elements", do)
        do = "Split the loop by 8, and call schedule.vectorize for the inner one."
        vectorized = n < 8 or "T.vectorized(8)" in kernel.script()  # a shorter row is all tail
        require(vectorized, f"the loops for {n} elements", "a vectorized loop of 8", "none", do)
