"""Does a setting learn as the stock setting does? Two short curves of losses, held together.

Both begin from the same weights and are fed the same minibatch again and again
(worker/run/loss_probe.py). A curve is cut into quarters, and of each the mean loss is taken. A
setting is *admitted* where, in every quarter, its mean differs from the stock setting's by no more
than

    max(1 % of the first stock loss,  min(spread there, half of the descent))

The spread is how far apart runs of the stock setting itself are there that begin from other seeds
(other weights, other samples): the run-to-run spread. The descent is how far the stock loss fell
from the first quarter to the last; half of it bounds the spread, so that what learned less than
half as much never passes for it. The 1 % are for rounding, which differs wherever sums are taken in
another order; they are of the mean in the first quarter, since what is known by heart has a loss of
next to nothing, of which rounding is all.

A setting that computes with fewer digits is admitted only where the curve can tell at all: where
the stock loss fell by twice the 1 %. Nor can it tell where stock runs are themselves further apart
than half of the descent, as where dropout is drawn over a few samples: what departs there is
refused for want of losses, and not as one that learns otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from cubemesh.schema import RunRecord
from cubemesh.worker.run.loss_probe import CURVE

QUARTERS = 4
ROUNDING = 0.01
"""Share of the first loss that rounding may change."""

TOO_FEW = "too little to judge by; raise losses, or the minibatch"

Means = tuple[float, ...]
"""The mean loss of each quarter."""


@dataclass(frozen=True, kw_only=True)
class Admission:
    """What became of a comparison."""

    admitted: bool
    why: str = ""
    """Why not, in a sentence without its full stop."""


def means_of(record: RunRecord) -> Means | None:
    """The mean loss of each quarter of a run's first steps; None where it told none, or too few."""
    curve = next((c for c in record.curves if c.name == CURVE), None)
    if curve is None or len(curve.y) < QUARTERS:
        return None
    edges = [len(curve.y) * n // QUARTERS for n in range(QUARTERS + 1)]
    parts = [curve.y[a:b] for a, b in pairwise(edges)]
    return tuple(sum(part) / len(part) for part in parts)


def descent(stock: Means) -> float:
    """How far the loss fell from the first quarter to the last; 0 where it rose."""
    return max(0.0, stock[0] - stock[-1])


def spread(runs: Sequence[Means]) -> Means:
    """The largest difference between any two runs, in each quarter; 0 of fewer than two."""
    return tuple(max(quarter) - min(quarter) for quarter in zip(*runs, strict=True))


def allowed(stock: Means, runs: Sequence[Means]) -> Means:
    """How far a setting may be from the stock setting in each quarter; `runs` are the stock
    setting's own, from several seeds."""
    half = descent(stock) / 2
    apart = spread(runs) if len(runs) > 1 else (0.0,) * len(stock)
    return tuple(max(ROUNDING * abs(stock[0]), min(own, half)) for own in apart)


def departs(stock: Means, found: Means, runs: Sequence[Means] = ()) -> bool:
    """Whether a curve is further from the stock setting's than `allowed`."""
    limits = allowed(stock, runs)
    return any(not abs(a - b) <= most for a, b, most in zip(stock, found, limits, strict=True))


def judge(
    stock: Means | None, found: Means | None, runs: Sequence[Means], *, fewer_digits: bool
) -> Admission:
    """Whether a setting is admitted; `runs` are the stock setting's from several seeds, the first
    of them `stock`, or none where the spread is not known."""
    if stock is None or found is None:
        return Admission(admitted=False, why="it told no losses to judge it by")
    if fewer_digits and descent(stock) < 2 * ROUNDING * abs(stock[0]):
        return Admission(
            admitted=False,
            why=f"the stock loss fell from {stock[0]:.4g} to {stock[-1]:.4g} only, too little to "
            "judge fewer digits by; raise learning_rate, or losses",
        )
    if not departs(stock, found, runs):
        return Admission(admitted=True)
    limits = allowed(stock, runs)
    worst = max(range(len(stock)), key=lambda q: abs(found[q] - stock[q]) / (limits[q] or 1.0))
    if len(runs) > 1 and max(spread(runs)) > max(descent(stock) / 2, ROUNDING * abs(stock[0])):
        return Admission(
            admitted=False,
            why=f"stock runs are {max(spread(runs)):.2g} apart themselves in the first steps, in "
            f"which the stock loss fell by {descent(stock):.2g}, {TOO_FEW}",
        )
    return Admission(
        admitted=False,
        why=f"its loss departs: {found[worst]:.4g} in quarter {worst + 1} of the first steps, "
        f"where the stock setting's is {stock[worst]:.4g} ± {limits[worst]:.2g}",
    )
