"""What does `cubemesh predict` say? Throughput on so many devices, with its parts and its band.

Gives the document of `--json` and a function that prints the same on a console. What was typed is
checked here: every complaint names the field and what it may be.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, get_args

from rich.console import Console
from rich.text import Text

from cubemesh import networks
from cubemesh.errors import DataError, UsageError, unknown_name
from cubemesh.machines.catalogue import datasheets, find
from cubemesh.machines.catalogue.systems import load_system
from cubemesh.model import Cell, Collective, Column, RunRecord, Table
from cubemesh.model.spec import NetworkWork, Precision, TrainSteps
from cubemesh.networks.graph import Network
from cubemesh.networks.memory import forecast
from cubemesh.predict.calibration import Calibration, defaults, read_sweeps
from cubemesh.predict.step import Forecast, Point, Question, Regime, predict
from cubemesh.predict.swept import sweep_of
from cubemesh.units import format_quantity
from cubemesh.views import terminal
from cubemesh.views.plain import envelope

Shown = tuple[dict[str, Any], Callable[[Console], None]]
MOST_SWEEP_BYTES = 4 << 20

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


def predicted(
    network: str,
    machine: str,
    devices: str,
    batch_per_device: int,
    precision: str,
    regime: str,
    measured: Sequence[str],
    calibrate: RunRecord | Path | None,
) -> Shown:
    """The forecast for a network on a machine. `calibrate` is a run of one device, or a file of
    measured collectives. UsageError or DataError for what cannot be meant."""
    if precision not in get_args(Precision):
        raise unknown_name("precision", precision, get_args(Precision), "", "precisions")
    if regime not in get_args(Regime):
        raise unknown_name("regime", regime, get_args(Regime))
    question = Question(
        network=networks.build(network),
        system=load_system(machine),
        batch_per_device=batch_per_device,
        precision=precision,  # type: ignore[arg-type]
        regime=regime,  # type: ignore[arg-type]
    )
    points, known = _measured(measured), defaults()
    if isinstance(calibrate, Path):
        known = known.with_sweeps(*read_sweeps(_text(calibrate), str(calibrate)))
    elif calibrate is not None and isinstance(calibrate.spec.work, Collective):
        known = known.with_sweeps(sweep_of(calibrate))
    elif calibrate is not None:
        points = {1: _one_device_rate(calibrate, network, question), **points}
    found = predict(question, _counts(devices), known, points)
    name = networks.canonical_name(network)
    memory = {p.devices: _memory_bytes(question, p) for p in found.points}
    sheet = datasheets().get(question.system.device)
    room = None if sheet is None else sheet.value("memory_bytes")
    plain = envelope(
        "prediction",
        network=name,
        machine=question.system.name,
        precision=precision,
        regime=regime,
        measured={str(n): rate for n, rate in points.items()},
        device_source=found.device_source,
        points=[_plain(p, memory[p.devices], room) for p in found.points],
        calibration=_calibration(found.calibration),
    )
    return plain, lambda console: _print(console, question, name, found, memory, room)


def _counts(text: str) -> list[int]:
    counts = [part.strip() for part in text.split(",")]
    for part in counts:
        if not (part.isascii() and part.isdigit() and int(part) >= 1):
            raise UsageError(
                f"--devices {text}: {part!r} is no number of devices. Give whole numbers of 1 or "
                "more with commas between them: 1,2,4,8."
            )
    return [int(part) for part in counts]


def _measured(given: Sequence[str]) -> dict[int, float]:
    points = {}
    for text in given:
        count, _, rate = text.partition("=")
        try:
            value = float(rate)
        except ValueError:
            value = math.nan
        whole = count.isascii() and count.isdigit() and int(count) >= 1
        if not (whole and math.isfinite(value) and value > 0):
            raise UsageError(
                f"--measured {text}: it must be DEVICES=SAMPLES_PER_S, a whole number of 1 or "
                "more and a rate above 0, such as 1=219."
            )
        points[int(count)] = value
    return points


def _one_device_rate(record: RunRecord, network: str, question: Question) -> float:
    """Samples per second of a stored run of training, which must be of what is asked."""
    work, rate = record.spec.work, record.figure("throughput_per_s")
    where = f"--calibrate {record.run_id}"
    if not isinstance(work, TrainSteps) or rate is None or not isinstance(work, NetworkWork):
        raise UsageError(f"{where}: this run measured no training steps. Name one that did.")
    wanted = {
        "devices": (len(record.ranks), 1),
        "network": (work.network, networks.canonical_name(network)),
        "batch_per_device": (work.batch_per_device, question.batch(1)),
        "precision": (record.spec.program.precision, question.precision),
        "input": (_inputs(networks.build_for(work)), _inputs(question.network)),
    }
    if _device(record) and question.system.device:  # where both are known
        wanted["device"] = (_device(record), question.system.device)
    for field, (given, asked) in wanted.items():
        if given != asked:
            raise UsageError(f"{where}: its {field} is {given}, and {asked} is asked for.")
    return rate


def _inputs(network: Network) -> str:
    return ", ".join(f"{i.name} {'×'.join(map(str, i.shape))}" for i in network.inputs)


def _device(record: RunRecord) -> str:
    """As the catalogue calls it; as the run does where it is in no catalogue; empty where the run
    did not keep its name."""
    name = record.ranks[0].device_name if record.ranks else ""
    sheet = find(name)
    return name if sheet is None else sheet.id


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(MOST_SWEEP_BYTES + 1)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}.") from None
    if len(data) > MOST_SWEEP_BYTES:
        raise DataError(f"{path} is larger than {MOST_SWEEP_BYTES >> 20} MiB: it is no sweep.")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is no text: byte {error.start} is not UTF-8.") from None


def _memory_bytes(question: Question, point: Point) -> int:
    on = "cuda" if question.system.topology.gpus else "cpu"
    return forecast(
        question.network,
        point.batch_per_device,
        question.precision,
        device=on,  # type: ignore[arg-type]
    ).total_bytes


def _plain(point: Point, memory_bytes: int, room: float | None) -> dict[str, Any]:
    return {
        "devices": point.devices,
        "batch_per_device": point.batch_per_device,
        "samples_per_s": point.samples_per_s,
        "low": point.low,
        "high": point.high,
        "efficiency": point.efficiency,
        "limit": point.limit,
        "step_s": point.step_s,
        "parts_s": dict(point.parts_s),
        "communication_s": point.communication_s,
        "exchanged_bytes": point.exchanged_bytes,
        "memory_bytes": memory_bytes,
        "fits": None if room is None else memory_bytes <= room,
    }


def _calibration(known: Calibration) -> dict[str, Any]:
    return {
        "factors": {
            name: {"value": f.value, "unit": f.unit, "origin": f.origin, "source": f.source}
            for name, f in known.factors.items()
        },
        "sweeps": [
            {"operation": s.operation, "devices": s.devices, "sizes": len(s.size_bytes)}
            | {"origin": "measured", "source": s.source}
            for s in known.sweeps
        ],
    }


def _print(
    console: Console,
    question: Question,
    name: str,
    found: Forecast,
    memory: dict[int, int],
    room: float | None,
) -> None:
    title = f"{name} on {question.system.name}, {question.precision}, {question.regime} scaling"
    rows = tuple(_row(point, memory[point.devices]) for point in found.points)
    terminal.print_table(console, Table(title=title, columns=_COLUMNS, rows=rows))
    parts = tuple(found.points[0].parts_s)
    terminal.print_table(
        console,
        Table(
            title="Where a step's time goes",
            columns=(Column(name="devices"), *(Column(name=p, unit="ms") for p in parts)),
            rows=tuple(
                (Cell(value=p.devices), *(Cell(value=1e3 * p.parts_s[part]) for part in parts))
                for p in found.points
            ),
        ),
    )
    for line in _notes(question, found, memory, room):
        console.print(Text(line), soft_wrap=True)


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


def _notes(
    question: Question, found: Forecast, memory: dict[int, int], room: float | None
) -> list[str]:
    notes = [f"One device: {found.device_source}."]
    sweeps = sorted({s.devices for s in found.calibration.sweeps if s.operation == "all-reduce"})
    where = f"measured on {', '.join(map(str, sweeps))} devices, else " if sweeps else ""
    notes.append(
        f"Exchange: {where}from the links' bandwidths and assumed latencies ({question.library})."
    )
    origins = [f.origin for f in found.calibration.factors.values()]
    fitted = [n for n, f in found.calibration.factors.items() if f.origin == "fitted"]
    notes.append(
        f"{origins.count('assumed')} of {len(origins)} factors are assumed"
        + (f"; fitted: {', '.join(fitted)}" if fitted else "")
        + ". --json lists each with its source."
    )
    too_large = [n for n, needed in memory.items() if room is not None and needed > room]
    if room is not None and too_large:
        notes.append(
            f"Memory: {format_quantity(room, 'B')} of a device are too little on "
            f"{', '.join(map(str, too_large))} devices; take a smaller minibatch."
        )
    return notes
