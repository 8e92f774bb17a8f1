"""Spread between fresh processes: a variance, its degrees of freedom, and where it comes from.

Two processes have one degree of freedom, and Student's t is then 12.7. Earlier measurements of
other workloads lend theirs. If the variances of workloads are drawn from a scaled inverse
chi-squared distribution with d₀ degrees of freedom around s₀², a workload whose runs have the
variance s² with d degrees of freedom has the *moderated* variance

    (d₀ s₀² + d s²) / (d₀ + d)

and the mean of its runs Student's interval with d₀ + d degrees of freedom (Smyth, Statistical
Applications in Genetics and Molecular Biology 3, 2004, section 3; the method of limma). It is the
pooled variance of two spreads, the workload's own and the prior's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, kw_only=True)
class Spread:
    """How far ln(throughput) of fresh processes differs."""

    variance: float
    freedom: float
    source: str
    """Where it comes from, in words that begin with "of"."""


def spread_of(logs: Sequence[float], source: str) -> Spread | None:
    """The spread of repeated runs from their ln(throughput); None for fewer than two."""
    if len(logs) < 2:
        return None
    return Spread(variance=float(np.var(logs, ddof=1)), freedom=len(logs) - 1, source=source)


def pooled(spreads: Sequence[Spread]) -> Spread | None:
    """Several spreads as one, each counting by its degrees of freedom; None for none."""
    freedom = sum(s.freedom for s in spreads)
    if not spreads:
        return None
    return Spread(
        variance=sum(s.variance * s.freedom for s in spreads) / freedom,
        freedom=freedom,
        source=" and ".join(dict.fromkeys(s.source for s in spreads)),
    )
