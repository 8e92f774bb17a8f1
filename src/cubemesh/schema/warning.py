"""What may make a figure less than it seems: a warning that travels with it into every view.

A warning is data: a code (what tests and filters look for), the cause with its figures, and the
remedy. `WARNINGS` lists every code there is; each is described in docs/warnings.md.
"""

from __future__ import annotations

from dataclasses import dataclass

SCRIPTED = "scripted"
"""Of an answer, not of a run: what rests on it says nothing of the machine."""

WARNINGS: dict[str, str] = {
    "not-steady": "the step time was still drifting when the warm-up had to end",
    "few-windows": "too few windows were measured for a 95 % interval",
    "wide-interval": "the interval asked for was not reached in the time allowed",
    "drift": "the step time drifted during the measurement",
    "outliers": "some windows lie far from the others",
    "busy-host": "other processes used the processors during the measurement",
    "shared-gpu": "other processes had a context on the GPU",
    "throttled": "the GPU was held back below its clocks",
    "changing-clock": "the GPU's clock changed during the measurement",
    "few-host-memory": "the host has less than twice the memory of its GPUs",
    "reduced": "the settings were reduced to what this machine can do in reasonable time",
    "above-ceiling": "training did more counted operations a second than the ceiling measured",
    "images-set-aside": "images could not be used, and others took their places",
    "above-peak": "more counted operations a second than the device's datasheet allows",
    "unattributed": "more than 5 % of the step has no name in its attribution",
    "energy-disagrees": "the GPU's energy counter and its integrated power differ by over 5 %",
    "page-cache": "what was read came from memory and not from the disk, or may have",
    "idle-link": "something faster than what the ranks exchanged over was there and not used",
    "checkpoint-failed": "a checkpoint could not be written",
    "checkpoint-damaged": "a checkpoint was not whole, and the one before it was used",
    "events-failed": "TensorBoard's event file could not be written",
    "wrong-results": "what a collective brought was not what it must be",
    "not-captured": "the step was asked to be captured and ran kernel by kernel",
    "other-precision": "a part was computed in another precision than was asked for",
    SCRIPTED: "a script played the runs, and nothing was computed",
    "shared-cores": "devices shared cores, so that times and rates say nothing",
    "tuned-for-another": "settings were taken from a tuning at another minibatch",
    "short-window": "windows were too short for the clock to resolve well",
}


@dataclass(frozen=True, kw_only=True)
class Warning:
    """One reason for doubt about a figure."""

    code: str
    """A key of `WARNINGS`."""
    cause: str
    """What was seen, with figures."""
    remedy: str
    """What to do so that it does not come again."""


def warn(code: str, cause: str, remedy: str) -> Warning:
    """A warning of a known code; KeyError for a code that `WARNINGS` does not list."""
    WARNINGS[code]
    return Warning(code=code, cause=cause, remedy=remedy)
