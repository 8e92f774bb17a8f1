"""Checks of claims about inference (DGX-1 V100 white paper, section 5.10, TensorRT): does an
optimizing engine answer faster than the framework, does choosing by measured time pay, and is lower
precision faster at the accuracy of fp32?

The paper has no figures there, so each is a direction, which is tested on any machine and with the
engines that are installed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from cubemesh.experiments.analysis.groups import Group, group_by
from cubemesh.experiments.analysis.ratios import bounds, ratio
from cubemesh.experiments.inference import latency
from cubemesh.experiments.inference_precision import TimedCandidate, timed_candidates
from cubemesh.frameworks import FRAMEWORKS
from cubemesh.papers.claims.evidence import Evidence, Untested, every, settled, sided
from cubemesh.schema import Claim, Figure, Infer, InferPrecision, RunRecord, Verdict

FRAMEWORK = "pytorch"
"""What runs the network as it was trained."""
Latencies = dict[int, dict[str, tuple[Figure, Group[tuple[int, str]]]]]
"""p50 by batch size and engine."""


def optimized_engine(claim: Claim, evidence: Evidence) -> Verdict:
    """Whether the fastest optimizing engine answers faster than eager PyTorch at the smallest batch
    size, for every network that was measured."""

    def one(found: Latencies, network: str) -> Verdict:
        batch = min(found)
        own = found[batch]
        others = {name: pair for name, pair in own.items() if name != FRAMEWORK}
        if FRAMEWORK not in own or not others:
            raise Untested(
                "not-measured", f"{network} was not measured in PyTorch and another engine"
            )
        name = min(others, key=lambda n: others[n][0].value)
        times = ratio(own[FRAMEWORK][0], others[name][0])
        what = f"{network}, p50 of PyTorch over {_title(name)} at batch size {batch}"
        return sided(claim, _figure(times), 1.0, 1.0, what, own[FRAMEWORK][1], others[name][1])

    return _each_network(claim, evidence, one)


def measured_choice(claim: Claim, evidence: Evidence) -> Verdict:
    """Whether choosing the engine of each batch size by its measured time beats the best engine for
    all of them, for every network that was measured at several batch sizes."""

    def one(found: Latencies, network: str) -> Verdict:
        everywhere = set.intersection(*(set(own) for own in found.values()))
        if len(found) < 2 or len(everywhere) < 2:
            raise Untested(
                "not-measured",
                f"{network} was not measured in two engines at several batch sizes",
            )
        fixed = min(everywhere, key=lambda n: math.prod(own[n][0].value for own in found.values()))
        best = {b: min(own, key=lambda n: own[n][0].value) for b, own in found.items()}
        shares = [ratio(own[fixed][0], own[best[b]][0]) for b, own in found.items()]
        groups = [own[best[b]][1] for b, own in found.items()]
        what = (
            f"{network}, p50 of {_title(fixed)} over that of the fastest engine at each of the "
            f"batch sizes {', '.join(map(str, sorted(found)))}, geometric mean"
        )
        if set(best.values()) == {fixed}:
            same = Figure(value=1.0, unit="x")
            reason = f"{network}: {_title(fixed)} is the fastest at every batch size"
            rivals = (
                ratio(own[name][0], own[fixed][0])
                for own in found.values()
                for name in everywhere - {fixed}
            )
            if any(bounds(rival)[0] <= 1 for rival in rivals):
                reason += ", but not clearly; inconclusive without more runs"
                raise Untested("inconclusive", reason, same, groups)
            return settled(claim, False, "below-limit", reason, same, *groups)
        ends = [(s.value, *bounds(s)) for s in shares if s.value != 1]
        value, low, high = (
            math.prod(end[n] for end in ends) ** (1 / len(shares)) for n in range(3)
        )
        return sided(
            claim, Figure(value=value, unit="x", low=low, high=high), 1.0, 1.0, what, *groups
        )

    return _each_network(claim, evidence, one)


def faster_at_kept_accuracy(claim: Claim, evidence: Evidence) -> Verdict:
    """Whether a precision below fp32 that keeps the accuracy answers faster than fp32, for every
    network that was measured."""

    def one(found: Sequence[TimedCandidate], network: str) -> Verdict:
        reference = next(c for c in found if c.paired is None)
        kept = [c for c in found if c.paired is not None and c.paired.verdict == "keeps"]
        if not kept:
            return _none_kept(claim, found, network)
        times = ratio(reference.seconds, kept[0].seconds)
        what = f"{network}, time of {reference.name} over {kept[0].name}, which keeps the accuracy"
        return sided(claim, _figure(times), 1.0, 1.0, what)

    return _each_trained(claim, evidence, one)


def calibration_keeps_accuracy(claim: Claim, evidence: Evidence) -> Verdict:
    """Whether calibrated 8-bit integers keep the accuracy, for every network that was measured."""

    def one(found: Sequence[TimedCandidate], network: str) -> Verdict:
        integers = [c for c in found if c.precision == "int8" and c.paired is not None]
        if not integers:
            raise Untested("not-measured", f"{network} was not measured in 8-bit integers")
        kept = [c for c in integers if c.paired is not None and c.paired.verdict == "keeps"]
        if not kept:
            return _none_kept(claim, integers, network)
        best = max(kept, key=lambda c: c.ratio)
        what = f"{network}, {best.name}: {best.paired}"
        return settled(claim, True, "above-limit", what, _accuracy(best))

    return _each_trained(claim, evidence, one)


def _none_kept(claim: Claim, found: Sequence[TimedCandidate], network: str) -> Verdict:
    """The verdict where no candidate keeps the accuracy: all lose it, or the samples cannot
    tell."""
    lower = [c for c in found if c.paired is not None]
    if not lower:
        raise Untested("not-measured", f"{network} was measured in fp32 alone")
    best = max(lower, key=lambda c: c.ratio)
    what = f"{network}, {best.name}: {best.paired}"
    if all(c.paired is not None and c.paired.verdict == "loses" for c in lower):
        return settled(claim, False, "below-limit", what, _accuracy(best))
    raise Untested("inconclusive", what, _accuracy(best))


def _accuracy(candidate: TimedCandidate) -> Figure:
    assert candidate.paired is not None
    found = candidate.paired
    return Figure(
        value=100 * found.ratio,
        unit="%",
        low=100 * found.interval.low,
        high=100 * found.interval.high,
        n=found.samples,
    )


def _each_trained(
    claim: Claim,
    evidence: Evidence,
    one: Callable[[Sequence[TimedCandidate], str], Verdict],
) -> Verdict:
    own: dict[str, list[RunRecord]] = {}
    for record in evidence.records:
        if isinstance(record.spec.work, InferPrecision) and record.ok:
            own.setdefault(record.spec.work.network, []).append(record)
    found = {n: c for n, records in own.items() if (c := timed_candidates(records))}
    return every(claim, found, lambda network: one(found[network], network))


def _each_network(
    claim: Claim, evidence: Evidence, one: Callable[[Latencies, str], Verdict]
) -> Verdict:
    """The verdict over the networks with latencies of requests one after another in fp32."""
    found: dict[str, Latencies] = {}
    for network in dict.fromkeys(_network(r) for r in evidence.records if _counts(r)):
        records = [r for r in evidence.records if _counts(r) and _network(r) == network]
        for group in group_by(records, _key):
            p50 = latency(group, "latency_p50_s")
            if p50 is not None:
                batch, engine = group.key
                found.setdefault(network, {}).setdefault(batch, {})[engine] = (p50, group)
    return every(claim, found, lambda network: one(found[network], network))


def _counts(record: RunRecord) -> bool:
    work, program = record.spec.work, record.spec.program
    single = isinstance(work, Infer) and work.scenario == "single-stream"
    return single and record.ok and program.precision == "fp32"


def _network(record: RunRecord) -> str:
    assert isinstance(record.spec.work, Infer)
    return record.spec.work.network


def _key(record: RunRecord) -> tuple[int, str]:
    assert isinstance(record.spec.work, Infer)
    return record.spec.work.batch_per_device, record.spec.program.framework


def _title(name: str) -> str:
    return FRAMEWORKS[name].title if name in FRAMEWORKS else name


def _figure(found: object) -> Figure:
    value, low, high = (getattr(found, name) for name in ("value", "low", "high"))
    return Figure(value=value, unit="x", low=low, high=high)
