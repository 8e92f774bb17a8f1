"""What does `cubemesh predict` say? Throughput on so many devices, with its parts and its band.

Gives the document of `--json` and a function that prints the same on a console. What was typed is
checked here: every complaint names the field and what it may be.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_args

from rich.console import Console

from cubemesh import networks
from cubemesh.errors import DataError, UsageError, unknown_name
from cubemesh.forecast.calibration import Calibration, defaults, read_sweeps
from cubemesh.forecast.energy import BusyPower, busy_power, device_watts, sample_joules
from cubemesh.forecast.from_records import told_by
from cubemesh.forecast.gradient_sync import STRATEGIES
from cubemesh.forecast.request import ForecastRequest, Point, Regime
from cubemesh.forecast.step import predict
from cubemesh.forecast.what_if import changed, read_changes
from cubemesh.machines.catalogue import datasheets
from cubemesh.machines.catalogue.systems import load_system
from cubemesh.networks.memory import forecast
from cubemesh.schema import RunRecord
from cubemesh.schema.spec import Precision
from cubemesh.views.json_output import envelope
from cubemesh.views.prediction_shown import Said, say

Shown = tuple[dict[str, Any], Callable[[Console], None]]
MOST_SWEEP_BYTES = 4 << 20


def predicted(
    network: str,
    machine: str,
    devices: str,
    batch_per_device: int,
    precision: str,
    regime: str,
    measured: Sequence[str],
    calibrate: Sequence[RunRecord | Path],
    sync: str = "all-reduce",
    what_if: Sequence[str] = (),
) -> Shown:
    """The forecast for a network on a machine. `calibrate` are stored runs, and files of
    measured collectives. UsageError or DataError for what cannot be meant."""
    if sync not in STRATEGIES:
        raise unknown_name("sync", sync, STRATEGIES)
    changes = read_changes(what_if)
    if precision not in get_args(Precision):
        raise unknown_name("precision", precision, get_args(Precision), "", "precisions")
    if regime not in get_args(Regime):
        raise unknown_name("regime", regime, get_args(Regime))
    request = ForecastRequest(
        network=networks.build(network),
        system=load_system(machine),
        batch_per_device=batch_per_device,
        precision=precision,  # type: ignore[arg-type]
        regime=regime,  # type: ignore[arg-type]
        sync=sync,
    )
    points, known, watts = _calibrated(calibrate, network, request)
    points |= _measured(measured)
    found = predict(request, _counts(devices), known, points, changes)
    name = networks.canonical_name(network)
    asked = changed(request, known, changes)[0]
    memory = {p.devices: _memory_bytes(asked, p) for p in found.points}
    sheet = datasheets().get(asked.system.device)
    room = None if sheet is None else sheet.value("memory_bytes")
    power_before = busy_power(request.system.device, watts)
    same = asked.system.device == request.system.device
    power = power_before if same else busy_power(asked.system.device)
    plain = envelope(
        "prediction",
        network=name,
        machine=request.system.name,
        precision=precision,
        regime=regime,
        sync=sync,
        what_if={change.key: change.value for change in changes},
        measured={str(n): rate for n, rate in points.items()},
        device_source=found.device_source,
        power=None if power is None else asdict(power),
        points=[_plain(p, memory[p.devices], room, power, found.calibration) for p in found.points],
        before=[
            _plain(p, _memory_bytes(request, p), None, power_before, known) for p in found.before
        ],
        calibration=_calibration(found.calibration),
    )
    shown = Said(
        request=asked,
        network=name,
        found=found,
        memory_bytes=memory,
        room_bytes=room,
        power=power,
        changes=changes,
    )
    return plain, lambda console: say(console, shown)


def _calibrated(
    given: Sequence[RunRecord | Path], network: str, request: ForecastRequest
) -> tuple[dict[int, float], Calibration, float | None]:
    """(rates by number of devices, factors with sweeps, power of a device) of all that was named;
    of two that tell the same the later counts."""
    points: dict[int, float] = {}
    known, watts = defaults(), None
    for source in given:
        if isinstance(source, Path):
            known = known.with_sweeps(*read_sweeps(_text(source), str(source)))
            continue
        told = told_by(source, network, request)
        points |= told.rates
        known = known.with_sweeps(*told.sweeps)
        watts = told.device_watts or watts
    return points, known, watts


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


def _memory_bytes(request: ForecastRequest, point: Point) -> int:
    on = "cuda" if request.system.topology.gpus else "cpu"
    return forecast(
        request.network,
        point.batch_per_device,
        request.precision,
        device=on,  # type: ignore[arg-type]
    ).total_bytes


def _plain(
    point: Point,
    memory_bytes: int,
    room: float | None,
    power: BusyPower | None,
    known: Calibration,
) -> dict[str, Any]:
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
        "power_watts": None if power is None else point.devices * device_watts(point, power, known),
        "joules_per_sample": None if power is None else sample_joules(point, power, known),
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
