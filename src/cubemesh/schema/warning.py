"""Warnings: reasons to doubt a figure, stored with it and shown in every view.

A warning is data: a code (for tests and filters), the cause with its figures, and the remedy.
`WARNINGS` lists every code; docs/warnings.md describes each.
"""

from __future__ import annotations

from dataclasses import dataclass

SIMULATED = "simulated"
"""Of an answer, not of a run: the null framework measured nothing."""

INCONSISTENT = "inconsistent"
"""Of an answer: two of its figures, or a figure and a verdict, contradict each other."""

WARNINGS: dict[str, str] = {
    "not-steady": "the step time was still drifting at the end of the warm-up",
    "few-windows": "too few windows were measured for a 95 % confidence interval",
    "wide-interval": "the confidence interval is wide",
    "drift": "the step time drifted during the measurement",
    "outliers": "statistical outliers among the windows",
    "busy-host": "other processes used the CPU during the measurement",
    "shared-gpu": "other processes had a context on the GPU",
    "throttled": "the GPU clocks were throttled",
    "changing-clock": "the GPU clock changed during the measurement",
    "low-host-memory": "the host has less than twice the memory of its GPUs",
    "reduced": "the settings were reduced to fit this machine and a reasonable time",
    "above-ceiling": "training exceeded the measured matrix-product ceiling",
    "images-skipped": "unusable images were skipped and replaced by others",
    "above-peak": "the FLOP rate exceeds the peak of the device's datasheet",
    "unattributed": "more than 2 % of the step time is unattributed",
    "energy-mismatch": "the GPU's energy counter and its integrated power differ by over 5 %",
    "counter-restarted": "an energy counter restarted during the measurement",
    "page-cache": "data came, or may have come, from the page cache instead of the disk",
    "faster-link-unused": "a faster link between the ranks was available and not used",
    "checkpoint-failed": "a checkpoint could not be written",
    "checkpoint-damaged": "a checkpoint was incomplete, and the previous one was used",
    "event-file-failed": "the TensorBoard event file could not be written",
    "wrong-results": "a collective returned wrong results",
    "event-refused": "something that a rank or host reported was refused",
    "not-captured": "the step was not captured and ran kernel by kernel",
    "no-graph": "the network runs as it is; it could not become a graph of layers",
    "missing-kernels": "fused or compiled kernels could not be compiled and were not used",
    "precision-mismatch": "a part was computed in another precision than requested",
    SIMULATED: "the runs were simulated (null framework); nothing was computed",
    INCONSISTENT: "figures contradict each other; what they concern has no verdict",
    "oversubscribed": "devices shared CPU cores; times and rates are not valid",
    "tuned-for-other-batch-size": "the settings were tuned at another batch size",
    "slow-rank": "a rank is slower than the others, which wait for it",
    "imported": "the figures were read from the log of another program",
    "zero-map": "no detected box is right",
    "short-window": "windows were too short for the resolution of the clock",
}

CONDITION_CODES = frozenset(
    {
        *("throttled", "changing-clock", "low-host-memory", "reduced", "page-cache", "imported"),
        *("energy-mismatch", "counter-restarted", "event-file-failed"),
    }
)
"""Codes that name a condition of a measurement, and leave its throughput valid under it."""


@dataclass(frozen=True, kw_only=True)
class Warning:
    """One reason to doubt a figure."""

    code: str
    """A key of `WARNINGS`."""
    cause: str
    """What was observed, with figures."""
    remedy: str
    """How to avoid it."""


def warn(code: str, cause: str, remedy: str) -> Warning:
    """A warning of a known code; KeyError for a code that `WARNINGS` does not list."""
    WARNINGS[code]
    return Warning(code=code, cause=cause, remedy=remedy)
