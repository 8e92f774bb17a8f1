"""Timeline of a run: telemetry over time in small panels with a common time axis.

A panel has quantities of one kind (compare utilization in figure 3 of NVIDIA's DGX-1 best
practices); the measured phase is shaded. Fractions and amounts start at zero; clocks and
temperatures have a scale of their own. Below each panel are the mean over the measured phase and
the range over the whole run.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from cubemesh.parallel.staleness import ORDER, STALENESS
from cubemesh.schema import RunRecord, Series
from cubemesh.units import format_seconds
from cubemesh.untrusted import clean
from cubemesh.views import formatting
from cubemesh.views.facts.run import REASONS, throttle_text
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


def timeline(record: RunRecord, series: Sequence[Series]) -> Timeline | None:
    """The telemetry of `record`; None where there is nothing to draw."""
    drawn = [s for s in series if len(s.times_s) > 1]
    if not drawn:
        return None
    span = min(s.times_s[0] for s in drawn), max(s.times_s[-1] for s in drawn)
    spans = measured_spans(record)
    panels, flat = [], []
    for group in (*_GROUPS, *_others(drawn)):
        lines = [s for name in group.names for s in drawn if s.name == name]
        if any(len(set(s.values)) > 1 for s in lines):
            panels.append(_panel(group, lines, span, spans))
        elif lines:
            amounts = dict.fromkeys(formatting.quantity(s.values[0], group.unit) for s in lines)
            flat.append(f"{formatting.words(group.title)} ({' and '.join(amounts)})")
    notes = [*_throttling(series, spans)]
    if flat:
        notes.append(f"Constant: {', '.join(flat)}.")
    return Timeline(
        panels=tuple(panels),
        start=format_seconds(span[0]),
        end=format_seconds(span[1]),
        measured=", ".join(f"{format_seconds(a)} to {format_seconds(b)}" for a, b in spans[:3])
        + (" …" if len(spans) > 3 else ""),
        notes=tuple(notes),
    )


def measured_spans(record: RunRecord) -> list[tuple[float, float]]:
    """When steps were measured, in seconds of the run."""
    return sorted(
        (phase.start_s, phase.start_s + phase.elapsed_s)
        for phase in record.phases
        if phase.name == "measure" and phase.rank == 0
    )


def _throttling(series: Sequence[Series], spans: Sequence[tuple[float, float]]) -> Iterator[str]:
    for one in series:
        within = [v for _, v in _within(one, spans)]
        if one.name == REASONS and within:
            text = throttle_text(within)
            yield f"GPU clock throttle reasons during the measurement: {text}."


def _others(drawn: Sequence[Series]) -> Iterator[_Group]:
    """A panel for each series that is in no group."""
    known = {name for group in _GROUPS for name in group.names} | set(_LEFT_OUT)
    for name in dict.fromkeys(s.name for s in drawn):
        if name not in known:
            yield _Group(name, "", {name: ""})


def _panel(
    group: _Group,
    lines: Sequence[Series],
    span: tuple[float, float],
    spans: Sequence[tuple[float, float]],
) -> Panel:
    values = [v for s in lines for v in s.values if math.isfinite(v)]
    top = group.top or max(values)
    bottom = 0.0 if group.from_zero else min(values)
    if not group.from_zero and top - bottom < _LEAST_SPAN * top:
        bottom = top - _LEAST_SPAN * top
    colours = [variable(f"c{n % 6 + 1}") for n in range(len(lines))]
    shapes = [_shade(a, b, span) for a, b in spans]
    for n, one in enumerate(lines):
        shapes.append(_path(one, span, (bottom, top), colours[n], _DASHES[n % len(_DASHES)]))
    keys = tuple(
        LegendEntry(
            colour=colour, name=_line_name(group, one, lines), note=_note(one, group.unit, spans)
        )
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
    left, right = _x(max(start, span[0]), span), _x(min(end, span[1]), span)
    if right <= left:
        return ""
    return (
        f'<rect class="measured" x="{left:.1f}" y="0" width="{right - left:.1f}" '
        f'height="{HEIGHT}"/>'
    )


def _path(
    one: Series,
    span: tuple[float, float],
    scale: tuple[float, float],
    colour: str,
    dash: str,
) -> str:
    bottom, top = scale
    points = []
    for t, v in zip(one.times_s, one.values, strict=True):
        if math.isfinite(v):
            share = (v - bottom) / (top - bottom) if top > bottom else 0.5
            y = _PAD + (HEIGHT - 2 * _PAD) * (1 - min(1.0, max(0.0, share)))
            points.append(f"{_x(t, span):.1f} {y:.1f}")
    dashes = f' stroke-dasharray="{dash}"' if dash else ""
    return f'<path class="spark-line" style="stroke:{colour}"{dashes} d="M{"L".join(points)}"/>'


def _x(t: float, span: tuple[float, float]) -> float:
    length = span[1] - span[0]
    return _PAD + (WIDTH - 2 * _PAD) * ((t - span[0]) / length if length > 0 else 0.5)


def _line_name(group: _Group, one: Series, lines: Sequence[Series]) -> str:
    name = group.names[one.name]
    if sum(s.name == one.name for s in lines) > 1:
        name = f"{name} {one.device}, rank {one.rank}".strip()
    return clean(name)


def _note(one: Series, unit: str, spans: Sequence[tuple[float, float]]) -> str:
    """`mean 612 W, 68 to 655 W`; the mean is over the measured phase."""
    known = [v for v in one.values if math.isfinite(v)]
    low, high = min(known), max(known)
    shown = f"{formatting.quantity(low, unit)} to {formatting.quantity(high, unit)}"
    if low == high:
        return formatting.quantity(low, unit)
    within = [v for _, v in _within(one, spans)]
    if not within:
        return shown
    mean = math.fsum(within) / len(within)
    return f"mean {formatting.quantity(mean, unit)}, {shown}"


def _within(one: Series, spans: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    pairs = zip(one.times_s, one.values, strict=True)
    return [(t, v) for t, v in pairs if any(a <= t <= b for a, b in spans) and math.isfinite(v)]
