"""Timed intervals of a training log, and how exactly the log gives their seconds.

    Time 0.250 (0.310)        a running mean: the sum so far is mean × steps, and an interval is the
                              difference of two sums
    31ms/step, 5.7s/20 iters  the seconds of an interval
    Speed: 1234.5 samples/sec a rate: the seconds are samples ÷ rate

A program prints few digits, so every figure is known to half its last digit. In a difference of
sums that error grows with the sums: intervals are joined until it is below `MAX_ROUNDING` of their
seconds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from cubemesh.errors import DataError
from cubemesh.forecast.transformers.layout import Layout
from cubemesh.schema.spec import Precision

NUMBER = r"([0-9]{1,15}(?:\.[0-9]{1,15})?(?:[eE][+-]?[0-9]{1,3})?)"
"""Pattern of a number above or equal to 0, without a thousands separator."""
MAX_ROUNDING = 0.01
"""Largest share of an interval's seconds that rounding may change."""
MAX_INTERVALS = 500
"""Most intervals of a record; neighbours are joined in longer logs."""
MIN_SECONDS, MAX_SECONDS = 1e-6, 1e8
MAX_STEPS = 10**12
_ESCAPE = re.compile(r"\x1b\[[0-9;?]{0,32}[A-Za-z]|[\x08\x0f\x0e]")


@dataclass(frozen=True, kw_only=True)
class LogLine:
    """A line without escape sequences; a progress bar's redrawn parts are lines."""

    number: int
    text: str


@dataclass(frozen=True, kw_only=True)
class Interval:
    """Consecutive training steps and their seconds."""

    first_step: int
    """Steps of the log before it."""
    steps: int
    seconds: float
    errors_s: tuple[float, float]
    """Largest errors of its begin and its end, from the digits that were printed. The end of a
    difference of sums is the begin of the next one, and so is its error."""
    samples: int | None = None
    """None: the steps times the global batch size."""

    @property
    def rounding(self) -> float:
        """Largest relative error of the seconds."""
        return sum(self.errors_s) / self.seconds


@dataclass(frozen=True, kw_only=True)
class Sum:
    """Seconds of all steps since the start of an epoch, as a running mean gives them."""

    steps: int
    seconds: float
    error_s: float
    line: int


@dataclass(frozen=True, kw_only=True)
class LoggedTraining:
    """What a log states of one training; None where it does not."""

    intervals: tuple[Interval, ...]
    global_batch: int | None = None
    devices: int | None = None
    network: str | None = None
    precision: Precision | None = None
    data: str | None = None
    sequence_length: int | None = None
    layout: Layout | None = None
    """How the devices shared the work, where each was not a replica of the whole network."""
    includes: str = ""
    """What the printed times include besides training steps, as a clause."""


@dataclass(frozen=True, kw_only=True)
class LogContext:
    """What the user stated, for logs whose figures need it to become seconds."""

    file: str
    global_batch: int | None = None
    devices: int | None = None
    sequence_length: int | None = None

    def wrong(self, line: int, why: str) -> DataError:
        """The error of a line."""
        return DataError(f"{self.file}, line {line}: {why}.")


def log_lines(text: str, most: int) -> Iterator[LogLine]:
    """The lines of a log; those of more than `most` characters are left out."""
    for number, whole in enumerate(text.split("\n"), start=1):
        for part in whole.split("\r"):
            if 0 < len(part) <= most:
                yield LogLine(number=number, text=_ESCAPE.sub("", part))


def half_digit(text: str) -> float:
    """Half of the last digit of a printed number: 0.0005 of `0.250`, 50 of `1.2e3`."""
    mantissa, _, exponent = text.lower().partition("e")
    decimals = len(mantissa.partition(".")[2])
    return float(0.5 * 10.0 ** (int(exponent or 0) - decimals))


def checked(
    context: LogContext,
    line: int,
    *,
    first_step: int,
    steps: int,
    seconds: float,
    rounding: float = 0.0,
    errors_s: tuple[float, float] | None = None,
    samples: int | None = None,
) -> Interval:
    """An interval of a log; DataError, naming the line, where its steps or seconds are not
    possible. `rounding` is the relative error of seconds that are printed, `errors_s` that of
    differences."""
    if not 0 < steps <= MAX_STEPS or first_step < 0:
        raise context.wrong(line, f"{steps} steps after step {first_step} are not possible")
    if not MIN_SECONDS <= seconds <= MAX_SECONDS:
        raise context.wrong(
            line,
            f"{seconds:g} s for {steps} steps; an interval takes {MIN_SECONDS:g} to "
            f"{MAX_SECONDS:g} s",
        )
    if samples is not None and not 0 < samples <= MAX_STEPS:
        raise context.wrong(line, f"{samples} samples are not possible")
    return Interval(
        first_step=first_step,
        steps=steps,
        seconds=seconds,
        errors_s=(seconds * min(rounding, 1.0), 0.0) if errors_s is None else errors_s,
        samples=samples,
    )


def differences(
    context: LogContext, epochs: Iterable[Sequence[Sum]], skip_steps: int
) -> Iterator[Interval]:
    """Intervals between sums of running means, epoch by epoch, each as short as `MAX_ROUNDING`
    allows. One ends where the skipped steps end, if a line is there."""
    before = 0
    for sums in epochs:
        for start, end in pairwise(_cuts(sums, skip_steps - before)):
            yield checked(
                context,
                end.line,
                first_step=before + start.steps,
                steps=end.steps - start.steps,
                seconds=end.seconds - start.seconds,
                errors_s=(start.error_s, end.error_s),
            )
        before += max((one.steps for one in sums), default=0)


def _cuts(sums: Sequence[Sum], skip_steps: int) -> list[Sum]:
    """The sums of an epoch between which intervals are exact; the rest of the epoch extends the
    last one."""
    cuts = [Sum(steps=0, seconds=0.0, error_s=0.0, line=0)]
    for one in sums:
        start = cuts[-1]
        seconds, error_s = one.seconds - start.seconds, one.error_s + start.error_s
        if one.steps <= start.steps or seconds <= 0:
            continue
        if error_s <= MAX_ROUNDING * seconds or start.steps < skip_steps <= one.steps:
            cuts.append(one)
    last = max(sums, key=lambda one: one.steps, default=cuts[-1])
    if last.steps > cuts[-1].steps:
        if len(cuts) > 1 and cuts[-1].steps != skip_steps:
            cuts.pop()
        if len(cuts) == 1 or last.seconds > cuts[-1].seconds:
            cuts.append(last)
    return cuts


def joined(intervals: Sequence[Interval], most: int = MAX_INTERVALS) -> tuple[Interval, ...]:
    """At most `most` intervals: neighbours are joined in equal numbers."""
    each = -(-len(intervals) // most)
    if each <= 1:
        return tuple(intervals)
    return tuple(_join(intervals[start : start + each]) for start in range(0, len(intervals), each))


def total_rounding(intervals: Sequence[Interval]) -> float:
    """Largest relative error of the seconds of all intervals: errors that two of them share cancel
    in their sum."""
    error_s = sum(sum(one.errors_s) for one in intervals)
    for one, following in pairwise(intervals):
        shared = one.errors_s[1]
        if shared == following.errors_s[0] and one.first_step + one.steps == following.first_step:
            error_s -= 2 * shared
    return error_s / sum(one.seconds for one in intervals)


def _join(some: Sequence[Interval]) -> Interval:
    seconds = sum(one.seconds for one in some)
    samples = [one.samples for one in some if one.samples is not None]
    return replace(
        some[0],
        steps=sum(one.steps for one in some),
        seconds=seconds,
        errors_s=(total_rounding(some) * seconds, 0.0),
        samples=sum(samples) if len(samples) == len(some) else None,
    )


def usual_step(numbers: Sequence[int]) -> int:
    """The usual distance between printed step numbers; 1 without two of them."""
    gaps = [b - a for a, b in pairwise(numbers) if b > a]
    return max(set(gaps), key=gaps.count) if gaps else 1
