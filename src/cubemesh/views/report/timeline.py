"""Timeline of a run: telemetry over time in small panels with a common time axis.

A panel has quantities of one kind (compare utilization in figure 3 of NVIDIA's DGX-1 best
practices); the measured phase is shaded. Fractions and amounts start at zero; clocks and
temperatures have a scale of their own. Below each panel are the mean over the measured phase and
the range over the whole run.
"""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup

from cubemesh.parallel.staleness import ORDER, STALENESS
from cubemesh.schema import RunRecord, Series
from cubemesh.store.series_chunks import Samples
from cubemesh.units import format_seconds
from cubemesh.untrusted import clean
from cubemesh.views import formatting
from cubemesh.views.charts.thinning import Floats
from cubemesh.views.facts.run import REASONS, throttle_text
from cubemesh.views.report.curve import curve
from cubemesh.views.theme import variable

WIDTH, HEIGHT = 260, 64
_PAD = 2.0
_LEAST_SPAN = 0.1
"""Minimum span of a scale that does not start at zero, as a fraction of its top."""
_DASHES = ("", "5 3", "1.5 2.5")
_LEFT_OUT = (REASONS, "gpu_energy_joules", ORDER, STALENESS)
"""Series without a panel: shown as text, or redundant (power is the derivative of energy)."""


@dataclass(frozen=True)
class _Group:
    """Quantities of one panel."""

    title: str
    unit: str
    names: dict[str, str]
    """Series → name of its line."""
    top: float | None = None
    """Top of the scale; None: the highest value."""
    from_zero: bool = True


_GROUPS = (
    _Group(
        "utilization",
        "%",
        {
            "gpu_utilization_percent": "GPU",
            "cpu_utilization_percent": "CPU, this run",
            "host_cpu_percent": "CPU, machine",
        },
        top=100.0,
    ),
    _Group(
        "power",
        "W",
        {"gpu_power_watts": "GPU board", "cpu_package_watts": "CPU package", "dram_watts": "DRAM"},
    ),
    _Group("SM clock", "MHz", {"gpu_clock_sm_mhz": "GPU"}, from_zero=False),
    _Group("memory clock", "MHz", {"gpu_clock_memory_mhz": "GPU"}, from_zero=False),
    _Group("temperature", "°C", {"gpu_temperature_celsius": "GPU"}, from_zero=False),
    _Group("GPU memory", "bytes", {"gpu_memory_bytes": "in use"}),
    _Group("memory", "bytes", {"resident_bytes": "this run", "memory_used_bytes": "machine"}),
    _Group(
        "PCIe",
        "bytes/s",
        {"pcie_rx_bytes_per_s": "to the GPU", "pcie_tx_bytes_per_s": "from the GPU"},
    ),
    _Group(
        "NVLink",
        "bytes/s",
        {"nvlink_rx_bytes_per_s": "to the GPU", "nvlink_tx_bytes_per_s": "from the GPU"},
    ),
    _Group(
        "disks", "bytes/s", {"disk_read_bytes_per_s": "read", "disk_write_bytes_per_s": "written"}
    ),
    _Group(
        "network",
        "bytes/s",
        {"network_receive_bytes_per_s": "received", "network_transmit_bytes_per_s": "sent"},
    ),
)


@dataclass(frozen=True, kw_only=True)
class LegendEntry:
    """A line of a panel: its colour, name, mean and range."""

    colour: str
    name: str
    note: str


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One small drawing."""

    title: str
    svg: Markup
    top: str
    """The value at the top of the scale."""
    bottom: str
    keys: tuple[LegendEntry, ...]


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """All panels of a run, over the same interval of time."""

    panels: tuple[Panel, ...]
    start: str
    end: str
    measured: str
    """When steps were measured; "" if never."""
    notes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class _Drawn:
    """A series with the numbers that its panel needs."""

    name: str
    rank: int
    device: str
    times_s: Floats
    values: Floats
    low: float
    high: float
    mean: float | None
    """Over the measured phase; None if nothing was sampled in it."""


def timeline(
    record: RunRecord, series: Sequence[Series | Samples], *, letters: bool = False
) -> Timeline | None:
    """The telemetry of `record`, thinned curves in `letters` for a script (`curve`); None where
    there is nothing to draw."""
    spans = measured_spans(record)
    several = [one for one in series if len(one.times_s) > 1]
    drawn = [found for one in several if (found := _drawn(one, spans)) is not None]
    if not several:
        return None
    ends = [float(s.times_s[i]) for s in drawn for i in (0, -1)] or [0.0]
    span = min(ends), max(ends)
    panels, flat = [], []
    for group in (*_GROUPS, *_others(drawn)):
        lines = [s for name in group.names for s in drawn if s.name == name]
        if any(s.low < s.high for s in lines):
            panels.append(_panel(group, lines, span, spans, letters=letters))
        elif lines:
            amounts = dict.fromkeys(formatting.quantity(s.low, group.unit) for s in lines)
            flat.append(f"{formatting.words(group.title)} ({' and '.join(amounts)})")
    notes = [*_throttling(series, spans)]
    if flat:
        notes.append(f"Constant: {', '.join(flat)}.")
    known = {s.name for s in drawn}
    if absent := dict.fromkeys(
        formatting.words(one.name) for one in several if one.name not in known
    ):
        notes.append(f"Without a number: {', '.join(absent)}.")
    return Timeline(
        panels=tuple(panels),
        start=format_seconds(span[0]),
        end=format_seconds(span[1]),
        measured=", ".join(f"{format_seconds(a)} to {format_seconds(b)}" for a, b in spans[:3])
        + (" …" if len(spans) > 3 else ""),
        notes=tuple(notes),
    )


def _drawn(one: Series | Samples, spans: Sequence[tuple[float, float]]) -> _Drawn | None:
    """None for a series of fewer than two samples, or without a number."""
    times, values = _numbers(one)
    known = values[np.isfinite(values)]
    if times.size < 2 or not known.size:
        return None
    within = _within(times, values, spans)
    return _Drawn(
        name=one.name,
        rank=one.rank,
        device=one.device,
        times_s=times,
        values=values,
        low=float(known.min()),
        high=float(known.max()),
        mean=float(within.mean()) if within.size else None,
    )


def _numbers(one: Series | Samples) -> tuple[Floats, Floats]:
    """Times and values in the order of time, those with a time."""
    times, values = np.asarray(one.times_s, np.float64), np.asarray(one.values, np.float64)
    if not np.isfinite(times).all():
        timed = np.isfinite(times)
        times, values = times[timed], values[timed]
    if (times[1:] < times[:-1]).any():
        order = np.argsort(times, kind="stable")
        times, values = times[order], values[order]
    return times, values


def measured_spans(record: RunRecord) -> list[tuple[float, float]]:
    """When steps were measured, in seconds of the run."""
    return sorted(
        (phase.start_s, phase.start_s + phase.elapsed_s)
        for phase in record.phases
        if phase.name == "measure" and phase.rank == 0
    )


def _throttling(
    series: Sequence[Series | Samples], spans: Sequence[tuple[float, float]]
) -> Iterator[str]:
    for one in series:
        if one.name == REASONS:
            within = _within(*_numbers(one), spans)
            if within.size:
                text = throttle_text(within.tolist())
                yield f"GPU clock throttle reasons during the measurement: {text}."


def _others(drawn: Sequence[_Drawn]) -> Iterator[_Group]:
    """A panel for each series that is in no group."""
    known = {name for group in _GROUPS for name in group.names} | set(_LEFT_OUT)
    for name in dict.fromkeys(s.name for s in drawn):
        if name not in known:
            yield _Group(name, "", {name: ""})


def _panel(
    group: _Group,
    lines: Sequence[_Drawn],
    span: tuple[float, float],
    spans: Sequence[tuple[float, float]],
    *,
    letters: bool,
) -> Panel:
    top = group.top or max(s.high for s in lines)
    bottom = 0.0 if group.from_zero else min(s.low for s in lines)
    if not group.from_zero and top - bottom < _LEAST_SPAN * top:
        bottom = top - _LEAST_SPAN * top
    colours = [variable(f"c{n % 6 + 1}") for n in range(len(lines))]
    shapes = [_shade(a, b, span) for a, b in spans]
    for n, one in enumerate(lines):
        dash = _DASHES[n % len(_DASHES)]
        style = f'style="stroke:{colours[n]}"' + (f' stroke-dasharray="{dash}"' if dash else "")
        shapes.append(_path(one, span, (bottom, top), style, letters=letters))
    keys = tuple(
        LegendEntry(colour=colour, name=_line_name(group, one, lines), note=_note(one, group.unit))
        for one, colour in zip(lines, colours, strict=True)
    )
    label = f"{formatting.words(group.title)}: " + "; ".join(f"{k.name} {k.note}" for k in keys)
    svg = (
        f'<svg class="panel" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{html.escape(clean(label), quote=True)}" '
        f'preserveAspectRatio="none">{"".join(shapes)}</svg>'
    )
    return Panel(
        title=formatting.words(group.title),
        svg=Markup(svg),
        top=formatting.quantity(top, group.unit),
        bottom=formatting.quantity(bottom, group.unit) if bottom else "0",
        keys=keys,
    )


def _shade(start: float, end: float, span: tuple[float, float]) -> str:
    left, right = _x(np.array([max(start, span[0]), min(end, span[1])]), span).tolist()
    if right <= left:
        return ""
    return (
        f'<rect class="measured" x="{left:.1f}" y="0" width="{right - left:.1f}" '
        f'height="{HEIGHT}"/>'
    )


def _path(
    one: _Drawn, span: tuple[float, float], scale: tuple[float, float], style: str, *, letters: bool
) -> str:
    bottom, top = scale
    share = np.full(one.values.size, 0.5)
    if top > bottom:
        share = np.clip((one.values - bottom) / (top - bottom), 0.0, 1.0)
    y = _PAD + (HEIGHT - 2 * _PAD) * (1 - share)
    drawn = curve(_x(one.times_s, span), y, top=int(_PAD), letters=letters)
    return f'<path class="spark-line" {style}{drawn}/>'


def _x(t: Floats, span: tuple[float, float]) -> Floats:
    length = span[1] - span[0]
    share = (t - span[0]) / length if length > 0 else np.full(t.size, 0.5)
    return _PAD + (WIDTH - 2 * _PAD) * share


def _line_name(group: _Group, one: _Drawn, lines: Sequence[_Drawn]) -> str:
    name = group.names[one.name]
    if sum(s.name == one.name for s in lines) > 1:
        name = f"{name} {one.device}, rank {one.rank}".strip()
    return clean(name)


def _note(one: _Drawn, unit: str) -> str:
    """`mean 612 W, 68 to 655 W`; the mean is over the measured phase."""
    if one.low == one.high:
        return formatting.quantity(one.low, unit)
    shown = f"{formatting.quantity(one.low, unit)} to {formatting.quantity(one.high, unit)}"
    return shown if one.mean is None else f"mean {formatting.quantity(one.mean, unit)}, {shown}"


def _within(times: Floats, values: Floats, spans: Sequence[tuple[float, float]]) -> Floats:
    """The numbers that were sampled in one of the spans."""
    inside = np.zeros(times.size, dtype=bool)
    for start, end in spans:
        inside |= (start <= times) & (times <= end)
    return values[inside & np.isfinite(values)]
