"""Forecasts as tables, with parts, power and caveats, and as JSON."""

from __future__ import annotations

from math import inf
from typing import Any

from rich.console import Console
from rich.text import Text

from cubemesh.api.predict import PredictedPoint, Prediction
from cubemesh.forecast.calibration import Calibration
from cubemesh.forecast.energy import BusyPower
from cubemesh.forecast.request import Forecast
from cubemesh.forecast.styles import STYLES
from cubemesh.forecast.training.cost import known_columns
from cubemesh.forecast.training.epochs import EpochRule
from cubemesh.networks import rate_unit
from cubemesh.schema import Table
from cubemesh.schema.serialization import to_plain
from cubemesh.units import format_count, format_quantity
from cubemesh.views import terminal
from cubemesh.views.json_output import envelope
from cubemesh.views.tables import table_of_figures

_COLUMNS = {
    "devices": "",
    "batch per device": "",
    "throughput": "",
    "low": "",
    "high": "",
    "efficiency": "%",
    "step": "ms",
    "memory": "GiB",
    "limit": "",
}
"""Column → its unit; those of throughput have the network's."""


def document(found: Prediction) -> dict[str, Any]:
    """The JSON of `cubemesh predict`."""
    request = found.request
    return envelope(
        "prediction",
        network=found.network,
        machine=found.machine,
        precision=request.precision,
        mode=request.mode,
        sync=request.sync,
        style=request.style,
        input_limit=None if request.input_limit == inf else request.input_limit,
        unknown=request.unknown,
        what_if=dict(found.changes),
        measured={str(n): rate for n, rate in found.measured.items()},
        measured_others={other.name: other.samples_per_s for other in found.others},
        device_source=found.forecast.device_source,
        power=to_plain(found.power),
        priced_training=found.priced_training,
        points=[_point(one) for one in found.points],
        before=[_point(one) for one in found.before],
        epochs=None
        if found.epochs is None
        else {
            "rule": found.epochs.name,
            "source": found.epochs.source,
            "samples_per_epoch": found.samples_per_epoch,
            "published_on": found.epochs.published_on,
        },
        training=[to_plain(one) for one in found.training],
        calibration=_calibration(found.forecast.calibration),
    )


def _point(one: PredictedPoint) -> dict[str, Any]:
    return {
        **to_plain(one.point),
        "step_s": one.point.step_s,
        "memory_bytes": one.memory_bytes,
        "fits": one.fits,
        "power_watts": one.power_watts,
        "joules_per_sample": one.joules_per_sample,
        "cost": to_plain(one.cost),
    }


def _calibration(known: Calibration) -> dict[str, Any]:
    return {
        "factors": to_plain(known.factors),
        "sweeps": [
            {
                "operation": s.operation,
                "devices": s.devices,
                "sizes": len(s.size_bytes),
                "origin": "measured",
                "source": s.source,
            }
            for s in known.sweeps
        ],
    }


def print_prediction(console: Console, found: Prediction) -> None:
    """Throughput with its parts, its power and its caveats; first what `what_if` changes."""
    request = found.request
    if found.changes:
        terminal.print_table(console, _before(found))
    rates = dict.fromkeys(("throughput", "low", "high"), rate_unit(found.network))
    title = (
        f"{found.network} on {request.system.name}, {request.precision}, {request.mode} "
        f"scaling, {request.style or request.sync}"
    )
    terminal.print_table(
        console, table_of_figures(title, _COLUMNS | rates, map(_row, found.points))
    )
    terminal.print_table(console, _parts(found.forecast))
    if found.power is not None:
        terminal.print_table(console, _energy(found, found.power))
    if any(one.cost is not None for one in found.points):
        terminal.print_table(console, _costs(found))
    if found.epochs is not None:
        terminal.print_table(console, _training(found, found.epochs))
    for line in _notes(found):
        console.print(Text(line), soft_wrap=True)


def _before(found: Prediction) -> Table:
    """Throughput without and with the changes."""
    pairs = [(a.point, b.point) for a, b in zip(found.before, found.points, strict=True)]
    rows = [
        (a.devices, a.samples_per_s, b.samples_per_s, b.samples_per_s / a.samples_per_s, a.limit)
        for a, b in pairs
    ]
    unit = rate_unit(found.network)
    units = {"before": unit, "after": unit, "ratio": "×", "limit before": ""}
    what = ", ".join(f"{key}={value}" for key, value in found.changes.items())
    return table_of_figures(f"What if {what}", {"devices": "", **units}, rows)


def _parts(found: Forecast) -> Table:
    """The parts that are above 0 for any number of devices."""
    names = [n for n in found.points[0].parts_s if any(p.parts_s[n] for p in found.points)]
    columns = {"devices": "", **dict.fromkeys(names, "ms")}
    rows = ((p.devices, *(1e3 * p.parts_s[n] for n in names)) for p in found.points)
    return table_of_figures("Breakdown of the step time", columns, rows)


def _energy(found: Prediction, power: BusyPower) -> Table:
    title = f"Power of the devices ({power.origin}: {power.source})"
    columns = {"devices": "", "power": "W", "energy": "J/sample"}
    rows = ((p.point.devices, p.power_watts, p.joules_per_sample) for p in found.points)
    return table_of_figures(title, columns, rows)


def _costs(found: Prediction) -> Table:
    """Time, energy and money of the training, for each number of devices."""
    columns = known_columns(one.cost for one in found.points)
    rows = (
        (one.point.devices, *(getattr(one.cost, name, None) for name in columns))
        for one in found.points
    )
    title = f"Cost of {found.priced_training}, money in the unit of the prices"
    return table_of_figures(title, {"devices": "", **dict(columns.values())}, rows)


def _training(found: Prediction, rule: EpochRule) -> Table:
    """The time to train, and where the rule has it the published one."""
    published = any(one.published_hours for one in found.training)
    units = {"devices": "", "global batch": "", "epochs": ""}
    units |= dict.fromkeys(("time", "low", "high"), "hours")
    rows = [
        (
            *(float(one.devices), float(one.global_batch), one.epochs),
            *(one.hours, one.hours_low, one.hours_high),
            *((one.published_hours,) if published else ()),
        )
        for one in found.training
    ]
    columns = units | ({"published": "hours"} if published else {})
    return table_of_figures(f"Time to train, --epochs {rule.name}", columns, rows)


def _row(one: PredictedPoint) -> tuple[float | str, ...]:
    point = one.point
    return (
        point.devices,
        point.batch_per_device,
        *(point.samples_per_s, point.low, point.high),
        100 * point.efficiency,
        1e3 * point.step_s,
        one.memory_bytes / (1 << 30),
        point.limit,
    )


LOSSES = {
    "overhead_scale": "Lost by several devices",
    "overhead_between": "Lost between systems, relative to that",
}
"""Factor of a calibration → what it multiplies, in words."""


def _epoch_notes(found: Prediction) -> list[str]:
    rule = found.epochs
    if rule is None:
        return []
    notes = [
        f"Assumed epochs: {rule.source}; {format_count(found.samples_per_epoch or 0)} samples an "
        "epoch. The interval is that of the throughput; validations and checkpoints are not in it."
    ]
    if any(one.published_hours for one in found.training):
        notes.append(f"Published: {rule.published_on}.")
    for note in dict.fromkeys(one.note for one in found.training if one.note):
        batches = [format_count(one.global_batch) for one in found.training if one.note == note]
        notes.append(f"Global batch {', '.join(batches)}: {note}.")
    return notes


def _notes(found: Prediction) -> list[str]:
    known, room = found.forecast.calibration, found.device_memory_bytes
    notes = [f"One device: {found.forecast.device_source}."]
    for name, what in LOSSES.items():
        factor = known.factors[name]
        if factor.origin == "fitted" and factor.low is not None and factor.high is not None:
            notes.append(
                f"{what}: {factor.value:.2g} times what is forecast ({factor.low:.2g} to "
                f"{factor.high:.2g}), from {factor.source}."
            )
    sweeps = sorted({s.devices for s in known.sweeps if s.operation == "all-reduce"})
    where = f"measured on {', '.join(map(str, sweeps))} devices, else " if sweeps else ""
    notes.append(
        f"Communication: {where}from link bandwidths and assumed latencies "
        f"({found.request.library})."
    )
    origins = [f.origin for f in known.factors.values()]
    notes.append(
        f"Of {len(origins)} factors {origins.count('assumed')} are assumed and "
        f"{origins.count('fitted')} fitted to published rates. --json lists each with its source."
    )
    notes += _epoch_notes(found)
    request = found.request
    if request.unknown and any(one.point.devices > 1 for one in found.points):
        one, more = known["band_unknown_one_system"], known["band_unknown_systems"]
        notes.append(
            f"Not given: {request.unknown}. That widens the band × {one:g} in one system and × "
            f"{more:g} beyond; give --style and --input-limit."
        )
    if request.style:
        style = STYLES[request.style]
        notes.append(f"Gradients: {style.framework}, {style.years} ({style.source}).")
    too_large = [str(one.point.devices) for one in found.points if one.fits is False]
    if room is not None and too_large:
        notes.append(
            f"Memory: {format_quantity(room, 'B')} per device is not enough on "
            f"{', '.join(too_large)} devices; use a smaller batch size."
        )
    return notes
