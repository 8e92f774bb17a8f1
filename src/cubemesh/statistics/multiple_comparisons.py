"""Many comparisons in one table: which stay significant by Holm's procedure.

Of twenty comparisons of equal programs at 5 %, one is significant by chance. Holm's procedure
(Scandinavian Journal of Statistics 6, 1979) keeps the probability of any such error below 5 %: the
smallest of m p-values is compared with 0.05 / m, the next with 0.05 / (m - 1), until one fails.
"""

from __future__ import annotations

from collections.abc import Sequence

from cubemesh.statistics.intervals import CONFIDENCE


def holm(p_values: Sequence[float]) -> list[bool]:
    """Whether each remains significant among all of them."""
    significant = [False] * len(p_values)
    for done, index in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        if p_values[index] * (len(p_values) - done) > 1 - CONFIDENCE:
            break
        significant[index] = True
    return significant
