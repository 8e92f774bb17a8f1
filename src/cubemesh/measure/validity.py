"""Validity of measured windows: pure functions from windows and telemetry to warnings.

A stored record can be checked again. Each warning gives what was measured and a remedy;
docs/warnings.md describes every code.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from cubemesh.measure.telemetry.gpu import THROTTLE_REASONS
from cubemesh.measure.telemetry.gpu_processes import GpuProcess
from cubemesh.schema.record import Figure, Window
from cubemesh.schema.warning import Warning, warn
from cubemesh.statistics import FEWEST_FOR_INTERVAL, drift, median, outliers
from cubemesh.units import format_bytes, format_number, format_seconds

OUTLIER_SHARE = 0.05
"""Outliers within this fraction of the median are ignored: they stand out only because the spread
is small."""
SHORT_WINDOW_S = 0.001
"""Below this, synchronizing and reading the clock are not negligible."""
BUSY_SHARE = 0.05
"""Fraction of the processors that other programs may use without a warning."""


CLOCK_SHARE = 0.05
"""Range of clock readings, relative to their median, above which the clock counts as changing."""
FEWEST_READINGS = 3
"""Readings of a clock needed to show a change."""
SLOWING = (0x002, 0x004, 0x008, 0x010, 0x020, 0x040, 0x080)
"""Bits of `gpu_throttle_reasons` that slow a busy GPU down."""
CLOCK_LOSS = "clock_loss_percent"
THROTTLED_SHARE = 0.05
"""Fraction of the readings in which a reason must have been active."""
CACHED_SHARE = 0.05
"""Fraction of the files in the page cache above which there is a warning."""


def window_warnings(windows: Sequence[Window]) -> list[Warning]:
    """Warnings about measured windows, in the order of `WARNINGS`."""
    found = (_few(windows), _drift(windows), _outliers(windows), _short(windows))
    return [w for w in found if w is not None]


def not_steady(windows: Sequence[Window], spent_s: float, needed: int) -> Warning:
    """The warm-up ended after `spent_s` without a steady step time in its last `needed` windows."""
    last = windows[-needed:]
    step_s = last[-1].step_s
    if len(last) < needed:
        counted = "1 window" if len(last) == 1 else f"{len(last)} windows"
        return warn(
            "not-steady",
            f"{format_seconds(spent_s)} of warm-up gave {counted} at {format_seconds(step_s)} a "
            f"step; {needed} are needed to check whether the step time is steady.",
            f"Set warmup_seconds={math.ceil(1.2 * needed * spent_s / len(last))} or more.",
        )
    return warn(
        "not-steady",
        f"The step time was not steady after {format_seconds(spent_s)} of warm-up: it went from "
        f"{format_seconds(last[0].step_s)} to {format_seconds(step_s)} over the last {needed} "
        "windows.",
        f"Set warmup_seconds={math.ceil(2 * spent_s)} or more; stop other programs, and let a hot "
        "machine cool down.",
    )


def wide_interval(wanted: float, reached: float | None, spent_s: float) -> Warning:
    """The relative half-width `reached` (None without an interval) after `spent_s` of measuring is
    above the target `wanted`."""
    if reached is None:
        seen = f"No interval after {format_seconds(spent_s)} of measuring"
        much_s = 4 * spent_s
    else:
        spent = format_seconds(spent_s)
        seen = f"The interval is ± {_percent(reached)} after {spent} of measuring"
        much_s = spent_s * (reached / wanted) ** 2
    return warn(
        "wide-interval",
        f"{seen}; target_ci={wanted:g} asked for ± {_percent(wanted)}.",
        f"Set max_seconds={math.ceil(much_s)}, the estimate at this rate, or stop other programs, "
        "which increase the spread between windows.",
    )


def busy_host(share: float) -> Warning | None:
    """A warning where other programs used more than `BUSY_SHARE` of the processors (0 to 1)."""
    if share <= BUSY_SHARE:
        return None
    return warn(
        "busy-host",
        f"Other processes used {_percent(share)} of the processors this run may use.",
        "Stop them, or give this run processors of its own (taskset, a Slurm allocation), and "
        "measure again.",
    )


def shared_gpu(others: Sequence[GpuProcess]) -> Warning | None:
    """A warning where other processes had a context on the GPU."""
    if not others:
        return None
    used_bytes = sum(p.memory_bytes or 0 for p in others)
    who = "Another process" if len(others) == 1 else f"{len(others)} other processes"
    pids = ", ".join(str(p.pid) for p in others[:5])
    memory = f", holding {format_bytes(used_bytes)} of its memory" if used_bytes else ""
    return warn(
        "shared-gpu",
        f"{who} had a context on this GPU ({pids}{', …' if len(others) > 5 else ''}){memory}.",
        "Stop them, or use another GPU (CUDA_VISIBLE_DEVICES), and measure again.",
    )


def changing_clock(mhz: Sequence[float]) -> Warning | None:
    """A warning where the GPU's clock (readings in MHz) changed while steps were measured."""
    if len(mhz) < FEWEST_READINGS or (max(mhz) - min(mhz)) <= CLOCK_SHARE * median(mhz):
        return None
    return warn(
        "changing-clock",
        f"The GPU's clock ranged from {min(mhz):.0f} to {max(mhz):.0f} MHz in {len(mhz)} readings; "
        f"median {median(mhz):.0f} MHz.",
        "Measure longer (set seconds), so that the mean is that of a long training; the run's "
        "series of power, temperature and clock show the cause.",
    )


def throttled(reasons: Sequence[float]) -> Warning | None:
    """A warning where the GPU was throttled while steps were measured; `reasons` are readings of
    `gpu_throttle_reasons`, a bit for each."""
    if not reasons:
        return None
    shares = {
        words: sum(bool(int(r) & bit) for r in reasons) / len(reasons)
        for bit, words in THROTTLE_REASONS.items()
        if bit in SLOWING
    }
    active = {words: share for words, share in shares.items() if share >= THROTTLED_SHARE}
    if not active:
        return None
    seen = ", ".join(f"{words} in {_percent(share)}" for words, share in active.items())
    return warn(
        "throttled",
        f"The GPU was throttled: {seen} of {len(reasons)} readings.",
        "A power cap is usual under full load and applies in training too. Against heat, improve "
        "cooling; for other reasons, ask the administrator of the machine.",
    )


def clock_loss(
    reasons: Mapping[float, float], mhz: Mapping[float, float], highest_mhz: float
) -> Figure | None:
    """By how much throttling lowered the GPU's clock, in percent of `highest_mhz`, from readings of
    `gpu_throttle_reasons` and of the clock, each by its time; None without both."""
    times = [time for time in reasons if time in mhz]
    if not times or highest_mhz <= 0:
        return None
    throttled_at = {t for t in times if any(int(reasons[t]) & bit for bit in SLOWING)}
    lost = [max(0.0, 1 - mhz[t] / highest_mhz) if t in throttled_at else 0.0 for t in times]
    return Figure(
        value=100 * math.fsum(lost) / len(lost),
        unit="%",
        n=len(lost),
        method=f"mean of the SM clock below its highest reading ({highest_mhz:.0f} MHz) while "
        "throttled",
    )


def page_cache(share: float | None) -> Warning | None:
    """A warning where a fraction `share` of the files that a run reads was in the page cache before
    it, or where that is unknown (None)."""
    if share is not None and share < CACHED_SHARE:
        return None
    remedy = (
        "This is representative of later epochs of a data set that fits into memory. To measure "
        "the disk, set drop_page_cache=true."
    )
    if share is None:
        cause = "Whether the files were in the page cache before they were read is unknown."
        return warn("page-cache", cause, remedy)
    return warn(
        "page-cache",
        f"{_percent(share)} of the files were in the page cache before they were read: that "
        "measures memory, not the disk.",
        remedy,
    )


def _few(windows: Sequence[Window]) -> Warning | None:
    if len(windows) >= FEWEST_FOR_INTERVAL:
        return None
    return warn(
        "few-windows",
        f"{len(windows)} windows; a 95 % interval needs {FEWEST_FOR_INTERVAL}.",
        f"Set windows={FEWEST_FOR_INTERVAL} or more (12 is usual).",
    )


def _drift(windows: Sequence[Window]) -> Warning | None:
    values = [w.step_s for w in windows]
    if len(values) < FEWEST_FOR_INTERVAL:
        return None
    found = drift(values)
    if not found.significant:
        return None
    way = "slower" if found.relative_change > 0 else "faster"
    return warn(
        "drift",
        f"Steps became {_percent(abs(found.relative_change))} {way} over {len(values)} windows "
        f"(p = {format_number(found.p_value, 2)}).",
        "Measure longer (set seconds) after a longer warm-up (set warmup_seconds). Steps that slow "
        "down on a laptop indicate thermal throttling or a power limit.",
    )


def _outliers(windows: Sequence[Window]) -> Warning | None:
    values = [w.step_s for w in windows]
    middle = median(values)
    far = [values[i] for i in outliers(values) if abs(values[i] / middle - 1) > OUTLIER_SHARE]
    if not far:
        return None
    worst = max(far, key=lambda v: abs(v - middle))
    return warn(
        "outliers",
        f"{len(far)} of {len(values)} windows are outliers; the largest has "
        f"{format_seconds(worst)} a step, the median is {format_seconds(middle)}.",
        "Stop other programs and measure again; if it persists, the record's windows and series "
        "show when it happens.",
    )


def _short(windows: Sequence[Window]) -> Warning | None:
    length = median([w.elapsed_s for w in windows])
    if length >= SHORT_WINDOW_S:
        return None
    return warn(
        "short-window",
        f"The median window is {format_seconds(length)}; below {format_seconds(SHORT_WINDOW_S)} "
        "the synchronization at its end is not negligible.",
        "Set seconds to 0.1 or more, so that each window has more steps.",
    )


def _percent(share: float) -> str:
    return f"{format_number(100 * share, 2)} %"
