"""How is a forecast written on a terminal? Tables of what is reached and where time goes, and what
they rest on; with `--what-if`, what it was before."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rich.console import Console
from rich.text import Text

from cubemesh.forecast.energy import BusyPower, device_watts, sample_joules
from cubemesh.forecast.request import Forecast, ForecastRequest, Point
from cubemesh.forecast.what_if import Change
from cubemesh.schema import Cell, Column, Table
from cubemesh.units import format_quantity
from cubemesh.views import terminal

_COLUMNS = (
    Column(name="devices"),
    Column(name="minibatch of each"),
    Column(name="throughput", unit="samples/s"),
    Column(name="from", unit="samples/s"),
    Column(name="to", unit="samples/s"),
    Column(name="efficiency", unit="%"),
    Column(name="step", unit="ms"),
    Column(name="memory", unit="GiB"),
    Column(name="limit"),
)


@dataclass(frozen=True, kw_only=True)
class Said:
    """A forecast with what stands around it."""

    request: ForecastRequest
    """As changed."""
    network: str
    found: Forecast
    memory_bytes: Mapping[int, int]
    """By number of devices, of one device."""
    room_bytes: float | None
    power: BusyPower | None
    changes: tuple[Change, ...]


def say(console: Console, said: Said) -> None:
    """Write it."""
    request, found = said.request, said.found
    if said.changes:
        terminal.print_table(console, _before(said))
    title = (
        f"{said.network} on {request.system.name}, {request.precision}, {request.regime} "
        f"scaling, {request.sync}"
    )
    rows = tuple(_row(point, said.memory_bytes[point.devices]) for point in found.points)
    terminal.print_table(console, Table(title=title, columns=_COLUMNS, rows=rows))
    terminal.print_table(console, _parts(found))
    if said.power is not None:
        terminal.print_table(console, _energy(said, said.power))
    for line in _notes(said):
        console.print(Text(line), soft_wrap=True)


def _before(said: Said) -> Table:
    """Throughput with and without what was changed."""
    rows = tuple(
        (
            Cell(value=old.devices),
            Cell(value=old.samples_per_s),
            Cell(value=new.samples_per_s),
            Cell(value=new.samples_per_s / old.samples_per_s),
            Cell(text=old.limit),
        )
        for old, new in zip(said.found.before, said.found.points, strict=True)
    )
    what = ", ".join(f"{change.key}={change.value}" for change in said.changes)
    return Table(
        title=f"What if {what}",
        columns=(
            Column(name="devices"),
            Column(name="before", unit="samples/s"),
            Column(name="then", unit="samples/s"),
            Column(name="ratio", unit="×"),
            Column(name="limit before"),
        ),
        rows=rows,
    )


def _parts(found: Forecast) -> Table:
    """The parts that any point has."""
    names = [n for n in found.points[0].parts_s if any(p.parts_s[n] for p in found.points)]
    return Table(
        title="Where a step's time goes",
        columns=(Column(name="devices"), *(Column(name=n, unit="ms") for n in names)),
        rows=tuple(
            (Cell(value=p.devices), *(Cell(value=1e3 * p.parts_s[n]) for n in names))
            for p in found.points
        ),
    )


def _energy(said: Said, power: BusyPower) -> Table:
    known = said.found.calibration
    rows = tuple(
        (
            Cell(value=p.devices),
            Cell(value=p.devices * device_watts(p, power, known)),
            Cell(value=sample_joules(p, power, known)),
        )
        for p in said.found.points
    )
    return Table(
        title=f"Power of the devices ({power.origin}: {power.source})",
        columns=(
            Column(name="devices"),
            Column(name="power", unit="W"),
            Column(name="energy", unit="J/sample"),
        ),
        rows=rows,
    )


def _row(point: Point, memory_bytes: int) -> tuple[Cell, ...]:
    return (
        Cell(value=point.devices),
        Cell(value=point.batch_per_device),
        *(Cell(value=rate) for rate in (point.samples_per_s, point.low, point.high)),
        Cell(value=100 * point.efficiency),
        Cell(value=1e3 * point.step_s),
        Cell(value=memory_bytes / (1 << 30)),
        Cell(text=point.limit),
    )


def _notes(said: Said) -> list[str]:
    request, found, room = said.request, said.found, said.room_bytes
    notes = [f"One device: {found.device_source}."]
    sweeps = sorted({s.devices for s in found.calibration.sweeps if s.operation == "all-reduce"})
    where = f"measured on {', '.join(map(str, sweeps))} devices, else " if sweeps else ""
    notes.append(
        f"Exchange: {where}from the links' bandwidths and assumed latencies ({request.library})."
    )
    origins = [f.origin for f in found.calibration.factors.values()]
    fitted = [n for n, f in found.calibration.factors.items() if f.origin == "fitted"]
    notes.append(
        f"{origins.count('assumed')} of {len(origins)} factors are assumed"
        + (f"; fitted: {', '.join(fitted)}" if fitted else "")
        + ". --json lists each with its source."
    )
    too_large = [n for n, needed in said.memory_bytes.items() if room is not None and needed > room]
    if room is not None and too_large:
        notes.append(
            f"Memory: {format_quantity(room, 'B')} of a device are too little on "
            f"{', '.join(map(str, too_large))} devices; take a smaller minibatch."
        )
    return notes
