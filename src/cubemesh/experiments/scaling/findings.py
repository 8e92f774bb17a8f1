"""What a scaling found, in sentences: how far it goes, and why not further."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from cubemesh.experiments.analysis.groups import caveats
from cubemesh.experiments.analysis.ratios import ratio, significance
from cubemesh.experiments.scaling.design import ALONE, ScalingCurve
from cubemesh.experiments.scaling.efficiency import alone_rates, efficiency, efficiency_alone
from cubemesh.experiments.scaling.losses import StepOverhead, step_overhead
from cubemesh.experiments.scaling.modes import ScalingMode
from cubemesh.experiments.scaling.report import ScalingData, ScalingGroup
from cubemesh.schema import Finding
from cubemesh.units import format_devices, format_interval, format_list, format_seconds

MOST_NAMED = 3
"""Parts that are named as losses."""


def findings(shown: ScalingData) -> Iterator[Finding]:
    """Curve by curve: how far the largest number of devices comes, what the machine gives so many
    that work alone, what is lost to what, and what did not run."""
    card = True
    for scaled in shown.scaled:
        for sync in scaled.exchanges:
            done = [g for g in scaled.together if g.key[1] == sync and g.throughput]
            if scaled.one is not None and scaled.one.throughput is not None and done:
                yield from _of_curve(shown, scaled, scaled.one, done, card)
                card = False
        yield from not_run(shown, scaled)
    if not any(s.together for s in shown.scaled) and shown.scaled:
        yield Finding(
            text="One device is all that was measured, so nothing is scaled.",
            remedy="Name more with --set devices=…; on a CPU a device is a group of threads=… "
            "cores.",
        )


def not_run(shown: ScalingData, scaled: ScalingCurve) -> Iterator[Finding]:
    """Why points of a curve are missing."""
    for group in scaled.groups:
        if group.throughput is None:
            devices, sync = group.key
            where = f"{shown.name(scaled)} on {format_devices(devices)}, {sync}"
            yield Finding(text=f"{where}: {group.why}.")


def _of_curve(
    shown: ScalingData,
    scaled: ScalingCurve,
    one: ScalingGroup,
    done: list[ScalingGroup],
    card: bool,
) -> Iterator[Finding]:
    last = done[-1]
    devices, sync = last.key
    figure, reached = last.throughput, efficiency(last, one)
    assert figure is not None
    assert reached is not None
    yield Finding(
        question="How far does it scale?" if card else None,
        text=f"{shown.name(scaled, sync)}, {_regime(shown, last)}: {devices} devices train "
        f"{format_interval(figure.value, figure.low, figure.high)} samples/s, "
        f"{devices * reached.value / 100:.2f} times one device: an efficiency of "
        f"{format_interval(reached.value, reached.low, reached.high)} %.",
        value=reached.value,
        unit="%",
        low=reached.low,
        high=reached.high,
        caveats=caveats(last, one),
    )
    if (alone := scaled.at(devices, ALONE)) is not None:
        yield from _against_alone(last, one, alone)
    if (found := step_overhead(last, one)) is not None:
        yield _why(found, last, one)
    for fewer, more in pairwise(done):
        a, b = fewer.throughput, more.throughput
        if a and b and significance(ratio(b, a)) < 0:
            yield Finding(
                text=f"{format_devices(more.key[0])} train slower than "
                f"{format_devices(fewer.key[0])}.",
                caveats=caveats(more, fewer),
            )


def _regime(shown: ScalingData, group: ScalingGroup) -> str:
    spec = group.records[0].spec
    each, every = spec.batch_per_device, spec.global_batch
    fixed = {
        ScalingMode.WEAK: f"{each} a device, {every} in all",
        ScalingMode.STRONG: f"{every} in all, {each} a device",
        ScalingMode.CONSTANT_BATCH: f"{every} a host, {each} a device",
    }[shown.regime]
    return f"{shown.regime} scaling ({fixed})"


def _against_alone(last: ScalingGroup, one: ScalingGroup, alone: ScalingGroup) -> Iterator[Finding]:
    """What is lost to working at the same time, and what to training together."""
    rates, found = alone_rates(alone), efficiency_alone(last, alone)
    if not rates or found is None:
        return
    slowest, devices = min(rates, key=lambda rank: rates[rank]), last.key[0]
    text = (
        f"Each alone and all at once, the slowest of the {devices} devices (rank {slowest}) trains "
        f"{format_interval(rates[slowest], None, None)} samples/s: against {devices} times that, "
        f"training together reaches {format_interval(found.value, found.low, found.high)} %."
    )
    beside = efficiency(alone, one)
    if beside is not None and beside.high is not None and beside.high < 100:
        text += (
            f" The devices alone reach {format_interval(beside.value, beside.low, beside.high)} % "
            f"of {devices} times one: that much is lost to working at the same time, whatever they "
            "exchange."
        )
    yield Finding(text=text, caveats=caveats(last, alone))


def _why(found: StepOverhead, last: ScalingGroup, one: ScalingGroup) -> Finding:
    devices = last.key[0]
    ideal = "one device's" if last.records[0].spec.batch_per_device == _batch(one) else "its share"
    if not found.biggest:
        text = (
            f"A step on {devices} devices takes {format_seconds(found.step_s)}, as long as "
            f"{ideal}: no part of it lost 1 % of the step."
        )
        return Finding(text=text, caveats=caveats(last, one))
    named = [
        f"{format_seconds(seconds)} {name.replace('_', ' ')}"
        for name, seconds in list(found.by_part.items())[:MOST_NAMED]
        if seconds >= 0.01 * found.step_s
    ]
    share = 100 * found.by_part[found.biggest] / found.step_s
    longer = "longer" if found.extra_s >= 0 else "shorter"
    text = (
        f"A step on {devices} devices takes {format_seconds(found.step_s)}, "
        f"{format_seconds(abs(found.extra_s))} {longer} than {ideal}. It has "
        f"{format_list(named)} more. "
        f"The biggest loss is {found.biggest.replace('_', ' ')}, {share:.1f} % of the step."
    )
    remedy = found.remedy
    return Finding(
        text=text,
        remedy=f"{remedy[0].upper()}{remedy[1:]}." if remedy else "",
        caveats=caveats(last, one),
    )


def _batch(group: ScalingGroup) -> int | None:
    return group.records[0].spec.batch_per_device
