"""Inconsistency: two figures, or a figure and a verdict, that cannot both be right.

`INCONSISTENCIES` lists every code; docs/audit.md describes each.
"""

from __future__ import annotations

from dataclasses import dataclass, field

INCONSISTENCIES: dict[str, str] = {
    "different-figures": "one workload has two throughputs that differ significantly",
    "ratio-differs": "a ratio is not the quotient of the figures next to it",
    "efficiency-differs": "an efficiency does not follow from the throughputs next to it",
    "parts-exceed-step": "measured parts of a step exceed it by more than 5 % and its interval",
    "parts-do-not-add-up": "the parts of a step do not add up to the step",
    "share-out-of-range": "a percentage of a whole is below 0 or above 100",
    "above-ceiling": "a rate exceeds a measured ceiling, without a warning that explains it",
    "above-peak": "a rate exceeds the datasheet's peak, without a warning that explains it",
    "sustained-above-fastest": "a sustained rate exceeds the fastest one",
    "above-stage": "training on files is faster than a stage of its own input",
    "above-resident": "training with input is faster than the same training without",
    "above-link": "a bus bandwidth exceeds that of the device's links",
    "different-image-size": "published figures are next to measurements of another image size",
    "farther-device": "published figures of this device exist, and another one is shown first",
    "not-comparable": "the two sides of a ratio differ in more than the text says",
    "projection-of-other-data": "a projection to 90 ImageNet epochs from another input",
    "verdict-without-evidence": "a verdict contradicts the figures that should support it",
    "verdicts-differ": "a run or a ratio has two verdicts that contradict each other",
    "cause-without-evidence": "a loss has a cause that no attribution or trial shows",
    "insignificant-verdict": "a verdict from a ratio whose interval contains 1",
    "unexplained-input-cost": "training is slower with input, and no figure says why",
    "unit-of-other-work": "a rate has the unit of another kind of work",
    "bytes-or-items": "bytes per second and items per second are confused",
    "interval-excludes-value": "a value is outside its own interval",
    "rate-and-step-differ": "throughput times step time is not the batch size",
    "energy-and-power-differ": "power over throughput is not the energy per sample",
    "figure-differs-from-windows": "a throughput is not that of the windows it was computed from",
    "cell-differs-from-run": "a table shows another throughput than the run it refers to",
    "latencies-contradict": "percentiles of a run contradict one another or its throughput",
    "same-name": "two answers, or two columns of a table, have the same name",
    "figure-of-failed-run": "a figure refers to a run that failed",
}


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where an inconsistency is shown."""

    run_ids: tuple[str, ...] = ()
    answer: str = ""
    """The experiment; empty for a stored run."""
    title: str = ""
    """The title of the answer."""
    table: str | None = None
    """Title of the table or chart; None for none."""
    finding: str = ""
    """Text of the finding; empty for none."""


@dataclass(frozen=True, kw_only=True)
class Inconsistency:
    """One contradiction."""

    code: str
    """A key of `INCONSISTENCIES`."""
    text: str
    """Both figures."""
    where: Place = field(default_factory=Place)
    remedy: str


def inconsistency(code: str, text: str, where: Place, remedy: str) -> Inconsistency:
    """An inconsistency of a known code; KeyError for another."""
    INCONSISTENCIES[code]
    return Inconsistency(code=code, text=text, where=where, remedy=remedy)
