"""Why did several devices not compute what one computes? Read from what the ranks saw.

| what is seen | what it is called |
|---|---|
| a rank began from other weights, and was fed other samples | different seeds |
| a rank began from other weights | different initial weights |
| a rank was fed in step t what belongs to step t + s | a skipped batch |
| the ranks together were fed other samples | data order |
| the first layer whose result is off normalises over the minibatch | batch normalisation |
| the first layer whose result is off drops values | dropout |
| the exchanged gradient is the sum of all ranks' own | sum, not mean |
| some rank's own gradient is not in it | a missing rank |
| it is their mean, but for about what 16 bits leave | rounding |

What the exchanged gradient is made of is the solution of g = Σ cᵣ gᵣ by least squares: all cᵣ are
1/N in a mean over N ranks, and 1 in a sum.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cubemesh import networks
from cubemesh.experiments.sequential_equivalence.sketch_distance import (
    distances,
    mean_of,
    relative,
    sum_of,
    weights_in,
)
from cubemesh.networks.layers import BatchNorm, Dropout
from cubemesh.schema import NetworkWork, RankTrace, RunRecord
from cubemesh.units import format_list

NEAR = 0.02
"""How near a weight cᵣ must be to 1/N, 1 or 0 to be called that."""
SIXTEEN_BITS = 2.0**-6
"""Largest share of a gradient that rounding to bfloat16 (8 significant bits) and adding leaves."""


@dataclass(frozen=True, kw_only=True)
class DivergenceCause:
    """Why two trainings part."""

    name: str
    """In two or three words."""
    text: str
    """What was seen."""
    remedy: str


def of_start(ranks: Sequence[RankTrace], one: RankTrace, limit: float) -> DivergenceCause:
    """Ranks that began from other weights or were fed other samples."""
    other_weights = {r.rank for r in ranks if relative(r.weights, one.weights) > limit}
    other_samples = {r.rank for r in ranks if r.fed != _part(r, one, len(ranks))}
    if other_weights:
        who = _ranks(other_weights)
        if other_weights <= other_samples:
            return DivergenceCause(
                name="different seeds",
                text=f"{who} began from other weights and took other samples",
                remedy="Give every rank the same seed.",
            )
        return DivergenceCause(
            name="different initial weights",
            text=f"{who} began from other weights",
            remedy="Give every rank the same seed, or send one rank's weights to all.",
        )
    for replica in (r for r in ranks if r.rank in other_samples):
        skip = _skipped(replica, one, len(ranks))
        if skip is not None:
            step, ahead = skip
            count = "a batch" if ahead == 1 else f"{ahead} batches"
            return DivergenceCause(
                name="a skipped batch",
                text=f"rank {replica.rank} skipped {count}: in step {step + 1} it was fed what "
                f"belongs to step {step + 1 + ahead}",
                remedy="Every rank must take its part of every global minibatch.",
            )
    return DivergenceCause(
        name="data order",
        text=f"{_ranks(other_samples)} took other samples than their parts of the global minibatch",
        remedy="Give every rank the same seed and order of samples.",
    )


def _part(replica: RankTrace, one: RankTrace, ranks: int) -> tuple[tuple[int, ...], ...]:
    """The samples that are this rank's own part of what one device is fed."""
    own = []
    for fed in one.fed:
        size = len(fed) // ranks
        own.append(fed[replica.rank * size : (replica.rank + 1) * size])
    return tuple(own)


def _skipped(replica: RankTrace, one: RankTrace, ranks: int) -> tuple[int, int] | None:
    """(the first step with other samples, by how many steps they come too early)."""
    due = _part(replica, one, ranks)
    fed_and_due = zip(replica.fed, due, strict=True)
    step = next(n for n, (fed, own) in enumerate(fed_and_due) if fed != own)
    for later in range(step + 1, len(due)):
        if replica.fed[step] == due[later]:
            return step, later - step
    return None


def of_gradients(run: RunRecord, one: RankTrace, limit: float) -> DivergenceCause:
    """Own gradients whose mean is another, though weights and samples are the same."""
    ranks = run.replicas
    found = distances(sum_of(r.outputs for r in ranks), one.outputs)
    first = next(((name, far) for name, far in found if far > limit), None)
    if first is None:
        worst, far = max(
            distances(mean_of(r.own_gradients for r in ranks), one.own_gradients),
            key=lambda pair: pair[1],
        )
        return DivergenceCause(
            name="the backward pass",
            text=f"every layer's result agrees, and the gradient of {worst} is off by {far:.1g}",
            remedy="Look for a layer whose backward pass takes each device's samples alone.",
        )
    name, far = first
    return _of_layer(run, name, far)


def _of_layer(run: RunRecord, name: str, far: float) -> DivergenceCause:
    work = run.spec.work
    assert isinstance(work, NetworkWork)
    layer = next(n.layer for n in networks.build_for(work).nodes if n.name == name)
    seen = f"{name} is the first layer whose result is off, by {far:.1g}"
    if isinstance(layer, BatchNorm):
        return DivergenceCause(
            name="per-device batch normalisation",
            text=f"{seen}: it normalises over each device's {work.batch_per_device} samples, not "
            f"over all {run.spec.global_batch}",
            remedy="Set batch_norm=global, or give each device more samples.",
        )
    if isinstance(layer, Dropout):
        return DivergenceCause(
            name="dropout",
            text=f"{seen}: every rank draws what it drops by itself",
            remedy="Set deterministic=true, which draws it for the global minibatch.",
        )
    return DivergenceCause(
        name="the forward pass",
        text=f"{seen}, though it sees each sample alone ({type(layer).__name__})",
        remedy="Compare the precision and the software of the two runs.",
    )


def of_exchange(ranks: Sequence[RankTrace]) -> DivergenceCause:
    """An exchanged gradient that is not the mean of the ranks' own."""
    count = len(ranks)
    shares, rest = weights_in(ranks[0].gradients, [r.own_gradients for r in ranks])
    if rest > SIXTEEN_BITS:
        return DivergenceCause(
            name="the exchange",
            text=f"{rest:.0%} of the exchanged gradient is no combination of the ranks' own",
            remedy="Look for a transfer that is not waited for, or an array written over.",
        )
    told = ", ".join(f"{share:.3g}" for share in shares)
    missing = {r.rank for r, share in zip(ranks, shares, strict=True) if abs(share) < NEAR}
    if missing:
        text = f"the gradient of {_ranks(missing)} is not in the exchanged one (weights {told})"
        return DivergenceCause(
            name="a missing rank", text=text, remedy="Every rank must take part."
        )
    level = sum(shares) / count
    if any(abs(share - level) > NEAR * level for share in shares):
        text = f"the ranks' gradients enter with unequal weights ({told})"
        return DivergenceCause(
            name="unequal weights", text=text, remedy=f"Each must count 1/{count}."
        )
    if abs(level - 1) < NEAR:
        return DivergenceCause(
            name="sum, not mean",
            text=f"gradients were summed, not averaged: the exchanged one is {level * count:.3g} "
            "times the mean",
            remedy=f"Divide by the number of ranks, or the learning rate by {count}.",
        )
    if abs(level * count - 1) > NEAR:
        text = f"the exchanged gradient is {level * count:.3g} times the mean of the ranks' own"
        return DivergenceCause(
            name="another divisor", text=text, remedy=f"Divide the sum by {count}."
        )
    return DivergenceCause(
        name="rounding",
        text=f"the exchanged gradient is the mean but for {rest:.1g} of it, about what rounding to "
        "16 bits leaves",
        remedy="Set sync=all-reduce.",
    )


def of_replicas(ranks: Sequence[RankTrace], limit: float) -> DivergenceCause:
    """Ranks that hold other weights than the first in the end."""
    away = {r.rank for r in ranks if relative(r.final_weights, ranks[0].final_weights) > limit}
    return DivergenceCause(
        name="ranks apart",
        text=f"{_ranks(away)} ended with other weights than rank 0",
        remedy="Every rank must make the same update, or be sent the weights.",
    )


def _ranks(numbers: Iterable[int]) -> str:
    own = sorted(numbers)
    return f"rank {own[0]}" if len(own) == 1 else f"ranks {format_list(map(str, own))}"
