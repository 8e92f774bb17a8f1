"""Comparison of training on several devices with training on one, and where they diverge.

A training is a chain of steps of which each causes the next, and each is compared with the training
on one device:

    initial weights ─┐
    samples fed ─────┴▶ local gradients ▶ synchronized gradient ▶ losses ▶ final weights ▶ error

The first step that differs has the cause; the later ones follow from it. The distance of two
gradients is ‖a − b‖ / ‖b‖ (`relative`) of the parameter where it is largest, that of two losses
|a − b| / |b|. divergence_causes.py names the cause. Arrays are compared by their sketches.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from cubemesh.experiments.analysis.ratios import bounds
from cubemesh.experiments.sequential_equivalence.divergence_causes import (
    LATER_STEPS,
    UPDATE,
    DivergenceCause,
    cause_of_final_weights,
    cause_of_gradients,
    cause_of_start,
    cause_of_sync,
)
from cubemesh.experiments.sequential_equivalence.sketch_distance import mean_of, relative
from cubemesh.parallel.strategies import strategy
from cubemesh.schema import Figure, RankTrace, RunRecord

TOLERANCES = {"fp64": 1e-10, "fp32": 1e-4}
"""Largest distance at which two gradients or losses are equal, by precision."""
ROUNDED = 1e-2
"""The same for tf32, bf16 and fp16."""
FIRST_LOSSES = {"fp64": 5}
"""Number of steps whose losses are compared, by precision; otherwise the first. Updates amplify
rounding errors: in fp32 the fifth losses of resnet-18 differ by 5 %, and its first gradients by
6e-6."""
SYNCHRONIZED, ERROR_RATE = "synchronized gradient", "error rate"
"""Names of two steps of the chain."""
FINER = {"fp64": 3, "fp32": 2, "tf32": 1}
"""Rank of the precisions; the others are the coarsest."""


class CheckStep(NamedTuple):
    """One step of the chain."""

    name: str
    distance: float
    limit: float
    """Largest distance that is equal."""

    @property
    def passes(self) -> bool:
        """Whether it is equal within its tolerance."""
        return self.distance <= self.limit


@dataclass(frozen=True, kw_only=True)
class EquivalenceCheck:
    """The comparison of a training on several devices with one on one device."""

    run: RunRecord
    reference: RunRecord
    chain: tuple[CheckStep, ...]
    cause: DivergenceCause | None
    """The cause of a divergence; None without one."""
    finer: tuple[RunRecord, ...] = ()
    """The runs on one device in finer precisions: the effect of rounding on the error rate."""

    @property
    def passes(self) -> bool:
        """Whether every step is equal within its tolerance."""
        return all(step.passes for step in self.chain)

    @property
    def passes_by_rounding(self) -> bool:
        """Whether its error rate differs from one device's in the same precision, but is between
        that and one device's in a finer one."""
        own = interval_gap(error_rate(self.run), error_rate(self.reference))
        return self.passes and own > 0


def tolerance(run: RunRecord) -> float:
    """The tolerance of a run's precision."""
    return TOLERANCES.get(run.spec.program.precision, ROUNDED)


def compare(
    run: RunRecord, reference: RunRecord, finer: Sequence[RunRecord] = ()
) -> EquivalenceCheck:
    """Compare `run`, on any number of devices, with `reference`, on one, and its error rate with
    those of `finer` precisions on one, too. All must be successful."""
    (one,) = reference.replicas
    # The stages of a pipeline report the same: samples, losses, arrays of the whole network.
    program = run.spec.program
    together = strategy(program.sync).ranks_per_sample(len(run.replicas), program)
    ranks, limit = run.replicas[::together], tolerance(run)
    server = ranks[0]
    mean = mean_of(r.own_gradients for r in ranks)
    start = partial(cause_of_start, ranks, one, limit)
    gradients = partial(cause_of_gradients, run, ranks, one, limit)
    weights = max(relative(r.weights, one.weights) for r in ranks)
    away = max(relative(r.final_weights, server.final_weights) for r in ranks)
    final_weights = partial(cause_of_final_weights, ranks, limit)
    errors = _errors(run, (reference, *finer))
    steps: tuple[tuple[CheckStep, Callable[[], DivergenceCause]], ...] = (
        (CheckStep("initial weights", weights, limit), start),
        (CheckStep("samples fed", _fed(ranks, one), 0.0), start),
        (CheckStep("local gradients", relative(mean, one.own_gradients), limit), gradients),
        (
            CheckStep(SYNCHRONIZED, relative(server.gradients, one.gradients), limit),
            partial(cause_of_sync, ranks),
        ),
        (CheckStep("losses", _losses(run, one), limit), lambda: UPDATE),
        (CheckStep("final weights of the ranks", away, limit), final_weights),
        (CheckStep(ERROR_RATE, errors, 0.0), lambda: LATER_STEPS),
    )
    return EquivalenceCheck(
        run=run,
        reference=reference,
        chain=tuple(step for step, _ in steps),
        cause=next((why() for step, why in steps if not step.passes), None),
        finer=tuple(finer),
    )


def _fed(ranks: Sequence[RankTrace], one: RankTrace) -> float:
    """The number of compared steps in which the ranks were fed other samples."""
    steps = zip(one.fed, *(r.fed for r in ranks), strict=True)
    return float(sum(sorted(own) != sorted(sum(parts, ())) for own, *parts in steps))


def _losses(run: RunRecord, one: RankTrace) -> float:
    """The largest difference of the first losses; the loss of several ranks is their mean."""
    by_step = zip(*(r.losses for r in run.replicas), strict=True)
    together = [math.fsum(losses) / len(run.replicas) for losses in by_step]
    steps = FIRST_LOSSES.get(run.spec.program.precision, 1)
    pairs = list(zip(together, one.losses, strict=True))[:steps]
    return max(abs(a - b) / abs(b) for a, b in pairs)


def _errors(run: RunRecord, ones: Sequence[RunRecord]) -> float:
    """The gap in percent between the 95 % interval of an error rate and the range of one device's
    intervals in this precision and in finer ones."""
    ends = [end for one in ones for end in bounds(error_rate(one))]
    whole = Figure(value=ends[0], unit="%", low=min(ends), high=max(ends))
    return interval_gap(error_rate(run), whole)


def is_finer(one: RunRecord, run: RunRecord) -> bool:
    """Whether `one` has a finer precision than `run`."""
    rank, own = (FINER.get(r.spec.program.precision, 0) for r in (one, run))
    return rank > own


def error_rate(run: RunRecord) -> Figure:
    """Percentage of held-out samples that are wrong, with its interval."""
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
    """The gap between the intervals of two figures; 0 if they overlap."""
    lows, highs = zip(bounds(a), bounds(b), strict=True)
    return max(0.0, max(lows) - min(highs))


def comparable(records: Iterable[RunRecord]) -> list[RunRecord]:
    """The records with a trace of every rank and an error rate."""
    return [
        r
        for r in records
        if r.ok and len(r.replicas) == r.spec.placement.devices and "accuracy" in r.figures
    ]
