"""Convergence check of tuned settings: the first losses of a setting compared with the baseline's.

Both start from the same weights and train on the same minibatch repeatedly
(worker/run/steps.py). Each loss curve is averaged over quarters. A setting is *admitted* if in
every quarter its mean differs from the baseline's by at most

    max(1 % of the first baseline loss,  min(spread in that quarter, half of the descent))

The spread is the run-to-run spread: the largest difference between baseline runs with different
seeds (weights and samples). The descent is the drop of the baseline loss from the first to the last
quarter; half of it bounds the spread, so that a setting that learns less than half as much is never
admitted. The 1 % allows for rounding, which differs with the order of sums; it refers to the first
quarter, because a memorized minibatch has a loss near zero, which is all rounding.

A setting with lower precision is admitted only if the curve is informative: if the baseline loss
fell by at least twice the 1 %. Where baseline runs differ by more than half of the descent (dropout
over few samples, say), a diverging setting is rejected for too few losses, not for divergence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from cubemesh.schema import RunRecord
from cubemesh.schema.record import FIRST_LOSSES

QUARTERS = 4
ROUNDING = 0.01
"""Fraction of the first loss that rounding may change."""

NO_LOSSES, LOW_DESCENT, NOISY, DIVERGES = "no-losses", "low-descent", "noisy", "diverges"
"""Why a setting is rejected."""

Means = tuple[float, ...]
"""The mean loss of each quarter."""


@dataclass(frozen=True, kw_only=True)
class Admission:
    """Result of a comparison."""

    code: str = ""
    """Why it is rejected; empty where it is admitted."""
    why: str = ""
    """The same as a sentence without its full stop."""

    @property
    def admitted(self) -> bool:
        """Whether the losses agree with the baseline's."""
        return not self.code


def means_of(record: RunRecord) -> Means | None:
    """Mean loss of each quarter of a run's first steps; None if it logged none, or too few."""
    curve = next((c for c in record.curves if c.name == FIRST_LOSSES), None)
    if curve is None or len(curve.y) < QUARTERS:
        return None
    edges = [len(curve.y) * n // QUARTERS for n in range(QUARTERS + 1)]
    parts = [curve.y[a:b] for a, b in pairwise(edges)]
    return tuple(sum(part) / len(part) for part in parts)


def descent(stock: Means) -> float:
    """Drop of the loss from the first quarter to the last; 0 if it rose."""
    return max(0.0, stock[0] - stock[-1])


def spread(runs: Sequence[Means]) -> Means:
    """Largest difference between any two runs, in each quarter."""
    return tuple(max(quarter) - min(quarter) for quarter in zip(*runs, strict=True))


def allowed(stock: Means, runs: Sequence[Means]) -> Means:
    """Largest allowed difference from the baseline in each quarter; `runs` are baseline runs with
    different seeds."""
    half = descent(stock) / 2
    spreads = spread(runs) if len(runs) > 1 else (0.0,) * len(stock)
    return tuple(max(ROUNDING * abs(stock[0]), min(own, half)) for own in spreads)


def diverges(stock: Means, found: Means, runs: Sequence[Means] = ()) -> bool:
    """Whether a curve differs from the baseline's by more than `allowed`."""
    limits = allowed(stock, runs)
    return any(not abs(a - b) <= most for a, b, most in zip(stock, found, limits, strict=True))


def admission(
    stock: Means | None, found: Means | None, runs: Sequence[Means], *, lower_precision: bool
) -> Admission:
    """Whether a setting is admitted; `runs` are baseline runs with different seeds, the first of
    them `stock`, or empty if the spread is unknown."""
    if stock is None or found is None:
        return Admission(code=NO_LOSSES, why="it logged no losses")
    if lower_precision and descent(stock) < 2 * ROUNDING * abs(stock[0]):
        return Admission(
            code=LOW_DESCENT,
            why=f"the baseline loss only fell from {stock[0]:.4g} to {stock[-1]:.4g}, too little "
            "to check a lower precision; raise learning_rate or losses",
        )
    if not diverges(stock, found, runs):
        return Admission()
    limits = allowed(stock, runs)
    worst = max(range(len(stock)), key=lambda q: abs(found[q] - stock[q]) / (limits[q] or 1.0))
    if len(runs) > 1 and max(spread(runs)) > max(descent(stock) / 2, ROUNDING * abs(stock[0])):
        return Admission(
            code=NOISY,
            why=f"baseline runs differ by {max(spread(runs)):.2g} in the first steps, in which the "
            f"baseline loss fell by {descent(stock):.2g}: not conclusive; raise losses or the "
            "batch size",
        )
    return Admission(
        code=DIVERGES,
        why=f"its loss diverges from the baseline: {found[worst]:.4g} in quarter {worst + 1} of "
        f"the first steps, baseline {stock[worst]:.4g} ± {limits[worst]:.2g}",
    )
