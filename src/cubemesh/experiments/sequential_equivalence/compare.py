"""Did several devices compute what one device computes, and if not, where did they part?

What a training does is followed in the order in which one thing causes the next, and each link is
held against the training on one device:

    weights before ─┐
    samples fed ────┴─▶ own gradients ─▶ exchanged gradient ─▶ losses ─▶ weights after ─▶ error rate

The first link that is off holds the cause; what comes after it follows from it. The distance of two
gradients is that of the parameter where they differ most, ‖a − b‖ / ‖b‖ (`relative`), of two losses
|a − b| / |b|. What the cause is, is read from the numbers: `causes.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from cubemesh.experiments.sequential_equivalence.divergence_causes import (
    DivergenceCause,
    of_exchange,
    of_gradients,
    of_replicas,
    of_start,
)
from cubemesh.experiments.sequential_equivalence.sketch_distance import mean_of, relative
from cubemesh.schema import Figure, RankTrace, RunRecord

TOLERANCES = {"fp64": 1e-10, "fp32": 1e-4}
"""Largest distance at which two gradients or losses count as the same, by precision."""
ROUNDED = 1e-2
"""The same for precisions that round products: tf32, bf16 and fp16."""
FIRST_LOSSES = {"fp64": 5}
"""Steps whose losses are held against one another, by precision; of any other the first alone.
Updates magnify what rounding has left: in fp32 the fifth losses of resnet-18 differ by 5 % where
its first gradients agree to 6e-6."""


FEWER = "Differences of rounding grow from step to step; compare fewer iterations."
"""What to do where later steps cannot be compared."""
FINER = {"fp64": 3, "fp32": 2, "tf32": 1}
"""How fine a precision is; those that are not named are the coarsest."""


@dataclass(frozen=True, kw_only=True)
class CheckStep:
    """One link of the chain."""

    name: str
    distance: float
    limit: float
    """Largest distance that passes."""

    @property
    def passes(self) -> bool:
        """Whether it is the same within its tolerance."""
        return self.distance <= self.limit


@dataclass(frozen=True, kw_only=True)
class EquivalenceCheck:
    """A training on several devices held against one on one device."""

    run: RunRecord
    reference: RunRecord
    links: tuple[CheckStep, ...]
    cause: DivergenceCause | None
    """Why it is not the same; None where it is."""
    finer: tuple[RunRecord, ...] = ()
    """The same on one device in finer precisions: how far rounding alone moves an error rate."""

    @property
    def passes(self) -> bool:
        """Whether every link is the same within its tolerance."""
        return all(link.passes for link in self.links)

    @property
    def passes_by_rounding(self) -> bool:
        """Whether its error rate is not one device's in its own precision, but lies between that
        and what one device comes to in a finer one."""
        own = interval_gap(error_rate(self.run), error_rate(self.reference))
        return self.passes and own > 0


def tolerance(run: RunRecord) -> float:
    """The tolerance of a run's precision."""
    return TOLERANCES.get(run.spec.program.precision, ROUNDED)


def compare(
    run: RunRecord, reference: RunRecord, finer: Sequence[RunRecord] = ()
) -> EquivalenceCheck:
    """Hold `run`, on any number of devices, against `reference`, on one, and its error rate against
    those in `finer` precisions on one, too; all have ended well."""
    (one,) = reference.replicas
    ranks, limit = run.replicas, tolerance(run)
    server = ranks[0]
    steps: list[tuple[CheckStep, Callable[[], DivergenceCause]]] = [
        (
            CheckStep(name="weights before", distance=_start(ranks, one), limit=limit),
            lambda: of_start(ranks, one, limit),
        ),
        (
            CheckStep(name="samples fed", distance=_fed(ranks, one), limit=0.0),
            lambda: of_start(ranks, one, limit),
        ),
        (
            CheckStep(
                name="own gradients",
                distance=relative(mean_of(r.own_gradients for r in ranks), one.own_gradients),
                limit=limit,
            ),
            lambda: of_gradients(run, one, limit),
        ),
        (
            CheckStep(
                name="exchanged gradient",
                distance=relative(server.gradients, one.gradients),
                limit=limit,
            ),
            lambda: of_exchange(ranks),
        ),
        (
            CheckStep(name="losses", distance=_losses(run, one), limit=limit),
            lambda: DivergenceCause(
                name="the update",
                text="the first gradients agree, and the losses after them do not",
                remedy="The optimizer does not do the same on every device.",
            ),
        ),
        (
            CheckStep(
                name="ranks apart",
                distance=max(relative(r.final_weights, server.final_weights) for r in ranks),
                limit=limit,
            ),
            lambda: of_replicas(ranks, limit),
        ),
        (
            CheckStep(name="error rate", distance=_errors(run, (reference, *finer)), limit=0.0),
            lambda: DivergenceCause(
                name="later steps",
                text="the first steps agree, and the error rates after the last one do not",
                remedy=FEWER,
            ),
        ),
    ]
    links = tuple(link for link, _ in steps)
    cause = next((why() for link, why in steps if not link.passes), None)
    return EquivalenceCheck(
        run=run, reference=reference, links=links, cause=cause, finer=tuple(finer)
    )


def _start(ranks: Sequence[RankTrace], one: RankTrace) -> float:
    return max(relative(r.weights, one.weights) for r in ranks)


def _fed(ranks: Sequence[RankTrace], one: RankTrace) -> float:
    """In how many of the steps that were looked at the ranks together were fed other samples."""
    steps = zip(one.fed, *(r.fed for r in ranks), strict=True)
    return float(sum(sorted(own) != sorted(sum(parts, ())) for own, *parts in steps))


def _losses(run: RunRecord, one: RankTrace) -> float:
    """The largest difference of the first losses; of several ranks their mean is the loss."""
    by_step = zip(*(r.losses for r in run.replicas), strict=True)
    together = [math.fsum(losses) / len(run.replicas) for losses in by_step]
    steps = FIRST_LOSSES.get(run.spec.program.precision, 1)
    pairs = list(zip(together, one.losses, strict=True))[:steps]
    return max(abs(a - b) / abs(b) for a, b in pairs)


def _errors(run: RunRecord, ones: Sequence[RunRecord]) -> float:
    """By how much the 95 % interval of an error rate misses what one device came to, in percent:
    from the least of its intervals to the most, in this precision and in finer ones."""
    ends = [end for one in ones for end in _ends(error_rate(one))]
    whole = Figure(value=ends[0], unit="%", low=min(ends), high=max(ends))
    return interval_gap(error_rate(run), whole)


def is_finer(one: RunRecord, run: RunRecord) -> bool:
    """Whether `one` computes in a finer precision than `run`."""
    rank, own = (FINER.get(r.spec.program.precision, 0) for r in (one, run))
    return rank > own


def error_rate(run: RunRecord) -> Figure:
    """Percent wrong of the samples held out, with its interval."""
    right = run.figures["accuracy"]
    low, high = (right.value if end is None else end for end in (right.low, right.high))
    return Figure(
        value=100 * (1 - right.value),
        unit="%",
        low=100 * (1 - high),
        high=100 * (1 - low),
        n=right.n,
    )


def interval_gap(a: Figure, b: Figure) -> float:
    """The gap between the intervals of two figures; 0 where they overlap."""
    lows, highs = zip(_ends(a), _ends(b), strict=True)
    return max(0.0, max(lows) - min(highs))


def _ends(figure: Figure) -> tuple[float, float]:
    """Of its interval; the value itself where it has none."""
    low = figure.value if figure.low is None else figure.low
    return low, figure.value if figure.high is None else figure.high


def comparable(records: Iterable[RunRecord]) -> list[RunRecord]:
    """Those that have something to compare: every rank's replica, and the error rate."""
    return [
        r
        for r in records
        if r.ok and len(r.replicas) == r.spec.placement.devices and "accuracy" in r.figures
    ]
