"""Checks of claims about one device: its speed against the minibatch, its accuracy, how busy it is.

Each function takes what a claim speaks of and gives the check. Ratios, directions and bends are
tested on any machine; absolute figures on the document's device only, elsewhere what was measured
stands beside them; accuracies on the document's data and epochs only.
"""

from __future__ import annotations

from dataclasses import replace

from cubemesh.experiments.analysis.groups import Group, caveats
from cubemesh.experiments.analysis.ratios import bounds, ratio
from cubemesh.experiments.cpu_modes.report import gain
from cubemesh.experiments.minibatch.curvature import sample_ms, second_difference
from cubemesh.experiments.minibatch.input_bound import device_utilisation
from cubemesh.papers.claims.evidence import Check, Evidence
from cubemesh.papers.claims.verdicts import close, every, sided, untested
from cubemesh.schema import Claim, Figure, Train, Verdict


def throughput_of(network: str, batch: int | None, side: int | None = None) -> Check:
    """Samples per second at a minibatch (None: at the fastest one) of one very device."""

    def check(claim: Claim, evidence: Evidence) -> Verdict:
        groups = evidence.steps(network, side)
        if not groups or (batch is not None and batch not in groups):
            return untested(claim, _not_measured(network, batch or "any", side, evidence))
        key = batch or max(groups, key=lambda b: _throughput(groups[b]).value)
        figure, device = _throughput(groups[key]), claim.system.removeprefix("1 ")
        at = f"at minibatch {key}"
        return _from(_absolute(claim, evidence, device, figure, at), groups[key])

    return check


def step_time_of(network: str, batch: int) -> Check:
    """Milliseconds of a step at a minibatch, of one very device."""

    def check(claim: Claim, evidence: Evidence) -> Verdict:
        group = evidence.steps(network).get(batch)
        if group is None:
            return untested(claim, _not_measured(network, batch))
        rate = _throughput(group)
        low, high = bounds(rate)
        ms = 1e3 * batch
        figure = Figure(value=ms / rate.value, unit="ms", low=ms / high, high=ms / low)
        verdict = _absolute(claim, evidence, claim.system, figure, f"at minibatch {batch}")
        return _from(verdict, group)

    return check


def throughput_ratio(network: str, batch: int, over: int, side: int | None = None) -> Check:
    """Throughput at one minibatch over that at another, on any machine."""

    def check(claim: Claim, evidence: Evidence) -> Verdict:
        groups = _at(evidence, network, (batch, over), side)
        if isinstance(groups, str):
            return untested(claim, groups)
        what = f"{network}, throughput at minibatch {batch} over {over}"
        return _from(close(claim, _ratio(*groups), what), *groups)

    return check


def dearer_than_double(network: str, batch: int) -> Check:
    """Whether doubling a minibatch more than doubles the time of a step, on any machine."""

    def check(claim: Claim, evidence: Evidence) -> Verdict:
        groups = _at(evidence, network, (2 * batch, batch))
        if isinstance(groups, str):
            return untested(claim, groups)
        found = _ratio(*groups)
        low, high = bounds(found)
        time = Figure(value=2 / found.value, unit="x", low=2 / high, high=2 / low)
        what = f"{network}, step at minibatch {2 * batch} over {batch}, against 2"
        return _from(sided(claim, time, 2.0, 1.0, what), *groups)

    return check


def less_time_per_sample() -> Check:
    """Whether a sample takes less time at the largest minibatch than at the smallest, for every
    network that was measured."""

    def check(claim: Claim, evidence: Evidence) -> Verdict:
        return every(claim, evidence.networks(), lambda network: one(claim, evidence, network))

    def one(claim: Claim, evidence: Evidence, network: str) -> Verdict:
        batches = list(evidence.steps(network))
        if len(batches) < 2:
            return untested(claim, f"{network} was measured at one minibatch only")
        groups = _at(evidence, network, (batches[0], batches[-1]))
        if isinstance(groups, str):
            return untested(claim, groups)
        what = f"{network}, time per sample at minibatch {batches[-1]} over {batches[0]}"
        return _from(sided(claim, _ratio(*groups), 1.0, -1.0, what), *groups)

    return check


def bend_at(batch: int, networks: tuple[str, ...] = ()) -> Check:
    """The sign of the second difference of time per sample over doublings of the minibatch, for
    every network measured on both sides (or of `networks` those that were)."""

    def check(claim: Claim, evidence: Evidence) -> Verdict:
        named = [n for n in evidence.networks() if not networks or n in networks]
        around = {batch // 2, batch, 2 * batch}
        full = [n for n in named if around <= evidence.steps(n).keys()]
        return every(claim, full or named, lambda network: one(claim, evidence, network))

    def one(claim: Claim, evidence: Evidence, network: str) -> Verdict:
        groups = _at(evidence, network, (batch // 2, batch, 2 * batch))
        if isinstance(groups, str):
            return untested(claim, groups)
        times = [f for g in groups if (f := sample_ms(g)) is not None]
        bend = second_difference(times, "ms a sample")
        what = f"{network}, bend of the time per sample at minibatch {batch}"
        return _from(sided(claim, bend, 0.0, claim.values[0], what), *groups)

    return check


def accuracy_of(network: str, batch: int, data: str, epochs: int) -> Check:
    """Validation accuracy after a document's epochs on a document's data."""

    def check(claim: Claim, evidence: Evidence) -> Verdict:
        records = evidence.trainings(network, batch)
        if not records:
            return untested(claim, _not_measured(network, batch))
        work = records[-1].spec.work
        assert isinstance(work, Train)
        figure = _times(records[-1].figures["accuracy"], 100.0, "%")
        if work.data != data:
            reason = f"{work.data} was learned, the document learned {data}"
            return untested(claim, reason, figure)
        if work.epochs != epochs:
            reason = f"it was learned for {work.epochs} epochs, the document's are {epochs}"
            return untested(claim, reason, figure)
        verdict = close(claim, figure, f"{network}, accuracy at minibatch {batch}")
        return replace(verdict, run_id=records[-1].run_id)

    return check


def utilisation_of(network: str, batch: int, side: int) -> Check:
    """Percent of the time in which the document's own device had work."""

    def check(claim: Claim, evidence: Evidence) -> Verdict:
        found = _busy(evidence, network, side)
        if batch not in found:
            return untested(claim, _not_measured(network, batch, side, evidence))
        group, kind, figure = found[batch]
        if kind != "GPU":
            return untested(claim, f"it speaks of a GPU; this is the {kind}'s", figure)
        device = claim.system.removeprefix("1 ")
        return _from(_absolute(claim, evidence, device, figure, f"at minibatch {batch}"), group)

    return check


def utilisation_at_least(network: str, batches: tuple[int, ...], side: int) -> Check:
    """Whether a GPU has work for so much of the time at every one of these minibatches."""

    def check(claim: Claim, evidence: Evidence) -> Verdict:
        found = _busy(evidence, network, side)
        for batch in batches:
            if batch not in found:
                return untested(claim, _not_measured(network, batch, side, evidence))
        group, kind, figure = min((found[b] for b in batches), key=lambda busy: busy[2].value)
        if kind != "GPU":
            return untested(claim, f"it speaks of a GPU; this is the {kind}'s lowest", figure)
        what = f"{network}, lowest utilisation, at minibatch {group.key}"
        return _from(sided(claim, figure, claim.values[0], 1.0, what), group)

    return check


def _busy(evidence: Evidence, network: str, side: int) -> dict[int, tuple[Group[int], str, Figure]]:
    """The runs, their kind of device and its utilisation, by minibatch."""
    return {
        batch: (group, found[0], Figure(value=found[1], unit="%"))
        for batch, group in evidence.steps(network, side).items()
        if (found := device_utilisation(group)) is not None
    }


def sampling_cost() -> Check:
    """Whether reading power costs less than a document allows: the most processor time that it
    took, of the run's own. Every processor second that a reading takes is lost to training at the
    most once, so that this bounds what it costs in performance where processors are the limit."""

    def check(claim: Claim, evidence: Evidence) -> Verdict:
        costs = [v for r in evidence.records if (v := r.figure("telemetry_cpu_percent"))]
        if not costs:
            return untested(claim, "no run says what reading its sensors cost")
        figure = Figure(value=max(costs), unit="%")
        if not any("mean_power_watts" in r.figures for r in evidence.records):
            return untested(claim, "no power sensor can be read here; this is all else", figure)
        what = "most processor time of a reading every 0.5 s, of the run's own"
        return sided(claim, figure, claim.values[0], -1.0, what)

    return check


def fastest_arrangement() -> Check:
    """Modes that firmware sets; what was measured of the arrangements that a user can choose."""

    def check(claim: Claim, evidence: Evidence) -> Verdict:
        reason = "it compares clustering and memory modes of a KNL, which its firmware sets"
        found = gain(evidence.records)
        if found is None:
            return untested(claim, reason)
        words, figure = found
        here = f"fastest of the arrangements that can be chosen here over the usual: {words}"
        return untested(claim, f"{reason}; {here}", figure)

    return check


def _absolute(claim: Claim, evidence: Evidence, device: str, figure: Figure, what: str) -> Verdict:
    if not evidence.ran_on(device):
        reason = f"an absolute figure of another device; measured here {what}"
        return untested(claim, reason, figure)
    return close(claim, figure, what)


def _at(
    evidence: Evidence, network: str, batches: tuple[int, ...], side: int | None = None
) -> tuple[Group[int], ...] | str:
    """The runs at each of `batches`; or which one is missing."""
    groups = evidence.steps(network, side)
    for batch in batches:
        if batch not in groups:
            return _not_measured(network, batch, side, evidence)
    return tuple(groups[batch] for batch in batches)


def _ratio(group: Group[int], over: Group[int]) -> Figure:
    """Throughput of one as a multiple of the other's."""
    return replace(ratio(_throughput(group), _throughput(over)), unit="x")


def _from(verdict: Verdict, *groups: Group[int]) -> Verdict:
    """`verdict` with the runs it rests on: one to look at, and the doubts of all."""
    return replace(verdict, run_id=groups[0].run_id, caveats=caveats(*groups))


def _throughput(group: Group[int]) -> Figure:
    figure = group.throughput
    assert figure is not None, "Evidence.steps leaves out groups without a figure"
    return figure


def _times(figure: Figure, factor: float, unit: str) -> Figure:
    low, high = bounds(figure)
    return replace(
        figure, value=factor * figure.value, low=factor * low, high=factor * high, unit=unit
    )


def _not_measured(
    network: str, batch: int | str, side: int | None = None, evidence: Evidence | None = None
) -> str:
    if side is None or evidence is None:
        return f"{network} at minibatch {batch} was not measured"
    others = ", ".join(str(s) for s in evidence.sides(network) if s != side)
    beside = f"; images of {others} pixels were" if others else ""
    return f"{network} at minibatch {batch} on images of {side} pixels was not measured{beside}"
