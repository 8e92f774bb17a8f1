"""What about a set of windows makes its figures doubtful?

Pure functions from windows to warnings, so that a stored record can be judged again. Each warning
says what was seen, in figures, and what to do; docs/warnings.md describes every code.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from cubemesh.measure.telemetry.gpu import THROTTLE_REASONS
from cubemesh.measure.telemetry.gpu_processes import GpuProcess
from cubemesh.schema.record import Window
from cubemesh.schema.warning import Warning, warn
from cubemesh.statistics import FEWEST_FOR_INTERVAL, drift, median, outliers
from cubemesh.units import format_bytes, format_number, format_seconds

OUTLIER_SHARE = 0.05
"""An outlier nearer than this to the median is far only because the others agree so well."""
SHORT_WINDOW_S = 0.001
"""Below this, waiting for the device and reading the clock are no longer small beside the steps."""
BUSY_SHARE = 0.05
"""Share of the processors that others may use before the figures are in doubt."""


CLOCK_SHARE = 0.05
"""From lowest to highest, as a share of the median, before a clock is called changing."""
FEWEST_READINGS = 3
"""Readings of a clock that show a change."""
SLOWING = (0x002, 0x004, 0x008, 0x010, 0x020, 0x040, 0x080)
"""Bits of `gpu_throttle_reasons` that hold a busy GPU back."""
THROTTLED_SHARE = 0.05
"""Share of the readings in which a reason must have held."""
CACHED_SHARE = 0.05
"""Share of the files in the page cache before that is told."""


def window_warnings(windows: Sequence[Window]) -> list[Warning]:
    """Warnings about measured windows, in the order of `WARNINGS`; none when nothing is amiss."""
    found = (_few(windows), _drift(windows), _outliers(windows), _short(windows))
    return [w for w in found if w is not None]


def not_steady(last: Sequence[Window], budget_s: float, needed: int) -> Warning:
    """The warm-up had to end after `budget_s`; `last` are its last windows, `needed` at most."""
    step_s = last[-1].step_s
    if len(last) < needed:
        counted = "1 window" if len(last) == 1 else f"{len(last)} windows"
        return warn(
            "not-steady",
            f"{format_seconds(budget_s)} of warm-up gave {counted} of steps of "
            f"{format_seconds(step_s)}, and {needed} are needed to see whether the step time had "
            "settled.",
            f"Set warmup_seconds={math.ceil(needed * step_s * 1.2)} or more.",
        )
    return warn(
        "not-steady",
        f"After {format_seconds(budget_s)} of warm-up the step time had not settled: its last "
        f"{needed} windows went from {format_seconds(last[0].step_s)} to {format_seconds(step_s)} "
        "a step.",
        f"Set warmup_seconds={math.ceil(2 * budget_s)} or more; stop other programs, and let a hot "
        "machine cool down first.",
    )


def wide_interval(wanted: float, reached: float | None, spent_s: float) -> Warning:
    """The half-width `reached` (a share of the figure; None for no interval) in `spent_s` of
    measuring stayed above the one that was `wanted`."""
    if reached is None:
        seen = f"There is no interval after {format_seconds(spent_s)} of measuring"
        much_s = 4 * spent_s
    else:
        spent = format_seconds(spent_s)
        seen = f"The interval is ± {_percent(reached)} after {spent} of measuring"
        much_s = spent_s * (reached / wanted) ** 2
    return warn(
        "wide-interval",
        f"{seen}; target_ci={wanted:g} asked for ± {_percent(wanted)}.",
        f"Set max_seconds={math.ceil(much_s)}, about what it takes at this rate, or stop other "
        "programs: they make windows differ.",
    )


def busy_host(share: float) -> Warning | None:
    """A warning where others used more than `BUSY_SHARE` of the processors (0 to 1)."""
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
    held = sum(p.memory_bytes or 0 for p in others)
    who = "Another process" if len(others) == 1 else f"{len(others)} other processes"
    pids = ", ".join(str(p.pid) for p in others[:5])
    memory = f", holding {format_bytes(held)} of its memory" if held else ""
    return warn(
        "shared-gpu",
        f"{who} had a context on this GPU ({pids}{', …' if len(others) > 5 else ''}){memory}.",
        "Stop them, or give this run a GPU of its own (CUDA_VISIBLE_DEVICES), and measure again.",
    )


def changing_clock(mhz: Sequence[float]) -> Warning | None:
    """A warning where readings of the GPU's clock (MHz) while steps were measured lie apart."""
    if len(mhz) < FEWEST_READINGS or (max(mhz) - min(mhz)) <= CLOCK_SHARE * median(mhz):
        return None
    return warn(
        "changing-clock",
        f"The GPU's clock went from {min(mhz):.0f} to {max(mhz):.0f} MHz in {len(mhz)} readings, "
        f"{median(mhz):.0f} MHz in the median.",
        "Measure longer (set seconds), so that the mean is that of a long training; the series of "
        "power, heat and clock beside the run show which came first.",
    )


def throttled(reasons: Sequence[float]) -> Warning | None:
    """A warning where the GPU was held back while steps were measured; `reasons` are readings of
    `gpu_throttle_reasons`, a bit for each."""
    if not reasons:
        return None
    held = {
        words: sum(bool(int(r) & bit) for r in reasons) / len(reasons)
        for bit, words in THROTTLE_REASONS.items()
        if bit in SLOWING
    }
    told = {words: share for words, share in held.items() if share >= THROTTLED_SHARE}
    if not told:
        return None
    seen = ", ".join(f"{words} in {_percent(share)}" for words, share in told.items())
    return warn(
        "throttled",
        f"The GPU was held back below its clocks: {seen} of {len(reasons)} readings.",
        "A power cap is usual where a GPU has much to do, and holds in training too. Against heat, "
        "cool it; against other reasons, ask whoever administers the machine.",
    )


def page_cache(share: float | None) -> Warning | None:
    """A warning where a `share` of the files that a run reads was in the page cache before it, or
    where nobody can tell (None)."""
    if share is not None and share < CACHED_SHARE:
        return None
    remedy = (
        "Right for the later epochs of a data set that fits into memory. For the disk's own speed "
        "set drop_page_cache=true."
    )
    if share is None:
        cause = "Whether the files were in memory before they were read is not known here."
        return warn("page-cache", cause, remedy)
    return warn(
        "page-cache",
        f"{_percent(share)} of the files were in memory before they were read: reading these "
        "measures memory and no disk.",
        remedy,
    )


def _few(windows: Sequence[Window]) -> Warning | None:
    if len(windows) >= FEWEST_FOR_INTERVAL:
        return None
    return warn(
        "few-windows",
        f"There are {len(windows)} windows; a 95 % interval needs {FEWEST_FOR_INTERVAL}.",
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
        "Measure longer (set seconds) after a longer warm-up (set warmup_seconds); steps that "
        "become slower on a laptop point to heat or a power limit.",
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
        f"{len(far)} of {len(values)} windows lie far from the others: the farthest has "
        f"{format_seconds(worst)} a step, against a median of {format_seconds(middle)}.",
        "Stop other programs and measure again; where it stays, the windows and the series of the "
        "record show when it happens.",
    )


def _short(windows: Sequence[Window]) -> Warning | None:
    length = median([w.elapsed_s for w in windows])
    if length >= SHORT_WINDOW_S:
        return None
    return warn(
        "short-window",
        f"Half of the windows are shorter than {format_seconds(length)}; waiting for the device "
        f"once a window weighs on them below {format_seconds(SHORT_WINDOW_S)}.",
        "Set seconds to 0.1 or more, so that each window holds more steps.",
    )


def _percent(share: float) -> str:
    return f"{format_number(100 * share, 2)} %"
