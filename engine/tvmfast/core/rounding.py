"""How far rounding may move a result, from the number of terms that it sums."""

import math


def share(terms: float, eps: float, summed: float | None = None) -> float:
    """Return by which share of the size of what was summed rounding may move a result, on any CPU.

    The errors of n roundings cancel like the steps of a random walk, so that they grow as the square root of
    n; twice that leaves room for the tail. N. J. Higham and T. Mary, "A new approach to probabilistic
    rounding error analysis", SIAM J. Sci. Comput. 41 (2019).

    Args:
        terms: How many terms a result is the sum of, or how often it was rounded.
        eps: The distance from 1 to the next number, in the result's dtype.
        summed: The same in the accumulator's dtype, where that is another.
    """
    return 2 * (min(eps, summed or eps) * math.sqrt(terms) + eps)
