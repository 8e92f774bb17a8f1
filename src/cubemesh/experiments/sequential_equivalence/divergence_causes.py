"""Causes of a divergence between training on several devices and on one, from the ranks' traces.

| observation | cause |
|---|---|
| a rank began with other weights, and was fed other samples | different seeds |
| a rank began with other weights | different initial weights |
| a rank was fed in step t the samples of step t + s | a skipped batch |
| the ranks were fed other samples | data order |
| the first layer that differs is a batch normalization | per-device batch normalization |
| the first layer that differs is a dropout | dropout |
| the synchronized gradient is the sum of the local ones | sum, not mean |
| a rank's local gradient is not in it | a missing rank |
| it is their mean within the rounding of 16 bits | rounding |

The composition of the synchronized gradient is the least-squares solution of g = Σ cᵣ gᵣ: all cᵣ
are 1/N in a mean over N ranks, and 1 in a sum.
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
from cubemesh.networks.layers import Attention, BatchNorm, Dropout
from cubemesh.schema import NetworkWork, RankTrace, RunRecord
from cubemesh.units import format_list

NEAR = 0.02
"""Tolerance of a weight cᵣ to be 1/N, 1 or 0."""
SIXTEEN_BITS = 2.0**-6
"""Largest relative error of rounding to bfloat16 (8 significant bits) and adding."""


@dataclass(frozen=True, kw_only=True)
class DivergenceCause:
    """The cause of a divergence."""

    name: str
    """A short name."""
    text: str
    """The observation."""
    remedy: str


FEWER = "Rounding errors grow from step to step; compare fewer iterations."
"""The remedy if later steps cannot be compared."""
UPDATE = DivergenceCause(
    name="the update",
    text="the first gradients are equal, and the losses after them are not",
    remedy="Check that the optimizer does the same on every device.",
)
LATER_STEPS = DivergenceCause(
    name="later steps",
    text="the first steps are equal, and the error rates after the last one are not",
    remedy=FEWER,
)


def cause_of_start(ranks: Sequence[RankTrace], one: RankTrace, limit: float) -> DivergenceCause:
    """The cause if ranks began with other weights or were fed other samples."""
    other_weights = {r.rank for r in ranks if relative(r.weights, one.weights) > limit}
    due = {r.rank: _part(n, one, len(ranks)) for n, r in enumerate(ranks)}
    other_samples = {r.rank for r in ranks if r.fed != due[r.rank]}
    if other_weights:
        who = _ranks(other_weights)
        if other_weights <= other_samples:
            return DivergenceCause(
                name="different seeds",
                text=f"{who} began with other weights and other samples",
                remedy="Give every rank the same seed.",
            )
        return DivergenceCause(
            name="different initial weights",
            text=f"{who} began with other weights",
            remedy="Give every rank the same seed, or send one rank's weights to all.",
        )
    for replica in (r for r in ranks if r.rank in other_samples):
        skip = _skipped(replica, due[replica.rank])
        if skip is not None:
            step, ahead = skip
            count = "a batch" if ahead == 1 else f"{ahead} batches"
            return DivergenceCause(
                name="a skipped batch",
                text=f"rank {replica.rank} skipped {count}: in step {step + 1} it was fed the "
                f"samples of step {step + 1 + ahead}",
                remedy="Feed every rank its part of every global batch.",
            )
    return DivergenceCause(
        name="data order",
        text=f"{_ranks(other_samples)} were fed other samples than their parts of the global batch",
        remedy="Give every rank the same seed and order of samples.",
    )


def _part(number: int, one: RankTrace, parts: int) -> tuple[tuple[int, ...], ...]:
    """Part `number` of the samples that one device is fed."""
    sizes = [(fed, len(fed) // parts) for fed in one.fed]
    return tuple(fed[number * n : (number + 1) * n] for fed, n in sizes)


def _skipped(replica: RankTrace, due: Sequence[tuple[int, ...]]) -> tuple[int, int] | None:
    """(the first step with other samples than are `due`, how many steps too early they are)."""
    fed_and_due = zip(replica.fed, due, strict=True)
    step = next(n for n, (fed, own) in enumerate(fed_and_due) if fed != own)
    for later in range(step + 1, len(due)):
        if replica.fed[step] == due[later]:
            return step, later - step
    return None


def cause_of_gradients(
    run: RunRecord, ranks: Sequence[RankTrace], one: RankTrace, limit: float
) -> DivergenceCause:
    """The cause if the mean of the local gradients differs, with equal weights and samples."""
    if not all(r.outputs for r in ranks):
        return DivergenceCause(
            name="micro-batches",
            text="the gradient of the micro-batches differs; a pipeline's ranks do not record the "
            "outputs of layers",
            remedy="Look for batch normalization, whose statistics are each micro-batch's, or "
            "set micro_batches=1.",
        )
    for name, far in distances(sum_of(r.outputs for r in ranks), one.outputs):
        if far > limit:
            return _of_layer(run, name, far)
    gradients = distances(mean_of(r.own_gradients for r in ranks), one.own_gradients)
    worst, far = max(gradients, key=lambda pair: pair[1])
    return DivergenceCause(
        name="the backward pass",
        text=f"every layer's output is equal, and the gradient of {worst} differs by {far:.1g}",
        remedy="Look for a layer whose backward pass uses only the samples of its device.",
    )


def _of_layer(run: RunRecord, name: str, far: float) -> DivergenceCause:
    work = run.spec.work
    assert isinstance(work, NetworkWork)
    layer = next(n.layer for n in networks.build_for(work).nodes if n.name == name)
    seen = f"{name} is the first layer whose output differs, by {far:.1g}"
    if isinstance(layer, BatchNorm):
        return DivergenceCause(
            name="per-device batch normalization",
            text=f"{seen}: it normalizes over each device's {work.batch_per_device} samples, not "
            f"over all {run.spec.global_batch}",
            remedy="Set batch_norm=global, or give each device more samples.",
        )
    if isinstance(layer, Dropout):
        return DivergenceCause(
            name="dropout",
            text=f"{seen}: every rank draws its own mask",
            remedy="Set deterministic=true, which draws one mask for the global batch.",
        )
    if isinstance(layer, Attention) and layer.dropout:
        return DivergenceCause(
            name="dropout of attention",
            text=f"{seen}: every rank draws its own mask for its softmax",
            remedy="Compare a network without dropout in its attention.",
        )
    return DivergenceCause(
        name="the forward pass",
        text=f"{seen}, though it processes samples independently ({type(layer).__name__})",
        remedy="Compare the precision and the software of the two runs.",
    )


def cause_of_sync(ranks: Sequence[RankTrace]) -> DivergenceCause:
    """The cause if the synchronized gradient is not the mean of the local ones."""
    count = len(ranks)
    shares, rest = weights_in(ranks[0].gradients, [r.own_gradients for r in ranks])
    if rest > SIXTEEN_BITS:
        return DivergenceCause(
            name="gradient synchronization",
            text=f"{rest:.0%} of the synchronized gradient is not a combination of the local ones",
            remedy="Look for a missing wait for a transfer, or an overwritten array.",
        )
    weights = ", ".join(f"{share:.3g}" for share in shares)
    missing = {r.rank for r, share in zip(ranks, shares, strict=True) if abs(share) < NEAR}
    if missing:
        return DivergenceCause(
            name="a missing rank",
            text=f"the gradient of {_ranks(missing)} is not in the synchronized one (weights "
            f"{weights})",
            remedy="Include every rank.",
        )
    mean = sum(shares) / count
    if any(abs(share - mean) > NEAR * mean for share in shares):
        text = f"the local gradients have unequal weights ({weights})"
        return DivergenceCause(
            name="unequal weights", text=text, remedy=f"Weight each with 1/{count}."
        )
    if abs(mean - 1) < NEAR:
        return DivergenceCause(
            name="sum, not mean",
            text=f"gradients were summed, not averaged: {mean * count:.3g} times the mean",
            remedy=f"Divide by the number of ranks, or the learning rate by {count}.",
        )
    if abs(mean * count - 1) > NEAR:
        text = f"the synchronized gradient is {mean * count:.3g} times the mean of the local ones"
        return DivergenceCause(
            name="another divisor", text=text, remedy=f"Divide the sum by {count}."
        )
    return DivergenceCause(
        name="rounding",
        text=f"the synchronized gradient differs from the mean by {rest:.1g}, as expected from "
        "rounding to 16 bits",
        remedy="Set sync=all-reduce.",
    )


def cause_of_final_weights(ranks: Sequence[RankTrace], limit: float) -> DivergenceCause:
    """The cause if final weights differ between ranks."""
    away = {r.rank for r in ranks if relative(r.final_weights, ranks[0].final_weights) > limit}
    return DivergenceCause(
        name="diverged ranks",
        text=f"{_ranks(away)} ended with other weights than rank 0",
        remedy="Make the same update on every rank, or broadcast the weights.",
    )


def _ranks(numbers: Iterable[int]) -> str:
    own = sorted(numbers)
    return f"rank {own[0]}" if len(own) == 1 else f"ranks {format_list(map(str, own))}"
