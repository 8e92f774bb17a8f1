"""What if: time, energy and cost of a training on other devices, as `cubemesh predict` forecasts.

A run that was measured calibrates the forecast where its device is in the catalogue; devices,
machine, precision and batch size are changed after that. The page names no file: machines are those
of the catalogue.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

from cubemesh.api.predict import PredictedPoint, Prediction, predict
from cubemesh.errors import UsageError, unknown_name
from cubemesh.experiments.scaling.forecast import system_of
from cubemesh.exports.record_json import finite
from cubemesh.frameworks import FRAMEWORKS
from cubemesh.machines.catalogue.system import System
from cubemesh.machines.catalogue.systems import system, system_names
from cubemesh.networks import NETWORKS, canonical_name
from cubemesh.networks.own_input import at_own_size
from cubemesh.schema import RunRecord
from cubemesh.schema.spec import Precision
from cubemesh.schema.work import Train, TrainSteps
from cubemesh.units import format_seconds
from cubemesh.untrusted import clean
from cubemesh.views.formatting import number, quantity, run_name
from cubemesh.views.json_output import envelope
from cubemesh.views.prediction import document as prediction_json
from cubemesh.web.page import Asked, Parameter
from cubemesh.web.stored import run_of_id

PARAMETERS = (
    Parameter(name="run", summary="A run of training that calibrates the forecast."),
    Parameter(name="network", summary="The network; default: that of the run."),
    Parameter(name="machine", summary="A system of the catalogue; default: like that of the run."),
    Parameter(name="devices", summary="Numbers of devices: `1,2,4,8`."),
    Parameter(name="precision", summary="fp32, tf32, bf16, fp16 or fp64; default: of the run."),
    Parameter(
        name="batch_per_device", summary="Batch size per device; default: of the run, or 64."
    ),
    Parameter(name="framework", summary="Framework; default: of the run, or pytorch."),
    Parameter(name="samples", summary="Samples to train in all; default: a million."),
    Parameter(name="kwh_price", summary="Price of a kWh."),
    Parameter(name="device_hour_price", summary="Price of an hour of a device."),
)
_MOST_COUNTS, _MOST_DEVICES = 8, 4096
_MOST_BATCH, _MOST_SAMPLES = 1_000_000, 1e15
_MOST_PRICE = 1e6
_SAMPLES = 1_000_000
_JOULES_PER_KWH = 3.6e6


@dataclass(frozen=True, kw_only=True)
class _Basis:
    """The run that calibrates, and what of it does."""

    record: RunRecord | None
    measured: Mapping[int | str, float]
    system: System | None
    """Of devices like that of the run; None where the catalogue has none."""
    notes: tuple[str, ...] = ()


def _basis(asked: Asked) -> _Basis:
    if not asked.one("run"):
        return _Basis(record=None, measured={}, system=None)
    record = run_of_id(asked.store, asked.one("run"))
    work, rate = record.spec.work, record.figure("throughput_per_s")
    if not isinstance(work, Train | TrainSteps) or not rate or not record.ranks:
        raise UsageError(f"Run {record.run_id} measured no training: choose one that did.")
    rank, devices = record.ranks[0], record.spec.placement.devices
    on_cpu = rank.device.startswith("cpu")
    machine = asked.store.machine(record.key.machine_id)
    name = rank.device_name or (machine.gpus[0].name if machine and machine.gpus else "")
    like = "none" if on_cpu else system_of(rank.device, name, devices)
    if isinstance(like, str):
        why = "a CPU is not a system of the catalogue" if on_cpu else like
        text = f"The run calibrates nothing: {why}. The forecast is from a datasheet."
        return _Basis(record=record, measured={}, system=None, notes=(text,))
    if not at_own_size(work):
        text = (
            "The run calibrates nothing: its input is not the network's own. The forecast is of "
            "the network at its own input size."
        )
        return _Basis(record=record, measured={}, system=like, notes=(text,))
    return _Basis(record=record, measured={devices: rate}, system=like)


@dataclass(frozen=True, kw_only=True)
class _Asked:
    """The form as it was filled in, with the defaults of the run."""

    network: str
    machine: str
    devices: tuple[int, ...]
    precision: str
    batch: int
    framework: str
    samples: float
    kwh_price: float | None
    device_hour_price: float | None


def _read(asked: Asked, basis: _Basis) -> _Asked:
    record = basis.record
    network, framework, precision, batch = "", "pytorch", "fp32", 64
    if record is not None:
        work, program = record.spec.work, record.spec.program
        assert isinstance(work, Train | TrainSteps)
        network, batch = work.network, work.batch_per_device
        framework, precision = program.framework, program.precision
    network = asked.one("network", network)
    if network:
        network = canonical_name(network)
        if network not in NETWORKS:
            raise unknown_name("network", clean(network, 40), NETWORKS, plural="networks")
    machine = asked.one("machine", basis.system.name if basis.system else "")
    if machine and machine not in system_names():
        raise unknown_name(
            "system of the catalogue", clean(machine, 40), system_names(), plural="systems"
        )
    return _Asked(
        network=network,
        machine=machine,
        devices=_counts(asked, machine),
        precision=asked.choice("precision", precision, get_args(Precision)),
        batch=asked.number("batch_per_device", batch, _MOST_BATCH),
        framework=asked.choice(
            "framework",
            framework if framework in _frameworks() else "pytorch",
            _frameworks(),
        ),
        samples=_above_zero(asked, "samples", _MOST_SAMPLES) or _SAMPLES,
        kwh_price=_above_zero(asked, "kwh_price", _MOST_PRICE),
        device_hour_price=_above_zero(asked, "device_hour_price", _MOST_PRICE),
    )


def _frameworks() -> tuple[str, ...]:
    return tuple(name for name, one in FRAMEWORKS.items() if not one.simulates and name != "plan")


def _counts(asked: Asked, machine: str) -> tuple[int, ...]:
    default = "1"
    if machine:
        most = max(1, len(system(machine).topology.gpus))
        default = ",".join(str(n) for n in (1, 2, 4, 8, 16) if n <= most)
    text = asked.one("devices", default)
    parts = [part.strip() for part in text.split(",") if part.strip()]
    good = [p for p in parts if p.isdecimal() and len(p) < 5 and 1 <= int(p) <= _MOST_DEVICES]
    if not parts or len(good) < len(parts) or len(parts) > _MOST_COUNTS:
        raise UsageError(
            f"devices={clean(text, 40)}: give at most {_MOST_COUNTS} whole numbers from 1 to "
            f"{_MOST_DEVICES} between commas."
        )
    return tuple(dict.fromkeys(map(int, parts)))


def _above_zero(asked: Asked, name: str, most: float) -> float | None:
    text = asked.one(name)
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value <= most:
        raise UsageError(f"{name}={clean(text, 40)}: give a number above 0, at most {most:,.0f}.")
    return value


def _predicted(form: _Asked, basis: _Basis) -> Prediction:
    """The forecast: of the system like the run's with what differs as changes, else of the system
    that was chosen."""
    like, record = basis.system, basis.record
    if record is None or like is None or not basis.measured:
        return predict(
            form.network,
            form.machine,
            devices=form.devices,
            batch_per_device=form.batch,
            precision=form.precision,  # type: ignore[arg-type]
            framework=form.framework,
        )
    work, program = record.spec.work, record.spec.program
    assert isinstance(work, Train | TrainSteps)
    given = {"machine": like.name, "precision": program.precision}
    wanted = {"machine": form.machine, "precision": form.precision}
    changes = {key: value for key, value in wanted.items() if value != given[key]}
    if form.batch != work.batch_per_device:
        changes["batch_per_device"] = str(form.batch)
    measured = basis.measured
    if form.network != work.network:
        measured = {f"{work.network}@{work.batch_per_device}": r for r in measured.values()}
    return predict(
        form.network,
        like.name,
        devices=form.devices,
        batch_per_device=work.batch_per_device,
        precision=program.precision,
        framework=program.framework,
        measured=measured,
        what_if=changes,
    )


def _found(asked: Asked) -> tuple[_Asked, _Basis, Prediction | None]:
    basis = _basis(asked)
    form = _read(asked, basis)
    if not form.network or not form.machine:
        return form, basis, None
    return form, basis, _predicted(form, basis)


def _row(one: PredictedPoint, form: _Asked) -> dict[str, Any]:
    """One number of devices: the time of all samples with the ends of its band, energy, cost."""
    point = one.point
    joules = one.joules_per_sample
    energy = None if joules is None else joules * form.samples / _JOULES_PER_KWH
    seconds = form.samples / point.samples_per_s
    cost = None
    if form.device_hour_price is not None:
        cost = form.device_hour_price * point.devices * seconds / 3600
    if form.kwh_price is not None and energy is not None:
        cost = (cost or 0.0) + form.kwh_price * energy
    return {
        "devices": point.devices,
        "batch_per_device": point.batch_per_device,
        "samples_per_s": point.samples_per_s,
        "low": point.low,
        "high": point.high,
        "step_s": point.step_s,
        "time_s": seconds,
        "time_low_s": form.samples / point.high,
        "time_high_s": form.samples / point.low,
        "energy_kwh": energy,
        "cost": cost,
        "efficiency": point.efficiency,
        "limit": point.limit,
        "fits": one.fits,
    }


def document(asked: Asked) -> dict[str, Any]:
    """The forecast by number of devices: throughput with its band, the time, energy and cost of
    all samples; and `prediction` as `cubemesh predict --json` prints it. Null without a network
    and a machine."""
    form, basis, found = _found(asked)
    return envelope(
        "what_if",
        network=form.network,
        machine=form.machine,
        samples=form.samples,
        measured={str(n): rate for n, rate in basis.measured.items()},
        points=None if found is None else [finite(_row(one, form)) for one in found.points],
        notes=list(basis.notes),
        prediction=None if found is None else finite(prediction_json(found)),
    )


def view(asked: Asked) -> dict[str, Any]:
    """The form and the forecast as a table."""
    form, basis, found = _found(asked)
    rows = [] if found is None else [_row(one, form) for one in found.points]
    return {
        "title": "What if",
        "form": form,
        "run": basis.record,
        "run_text": "" if basis.record is None else run_name(basis.record.spec),
        "measured": _measured(basis.record),
        "chosen": asked.given,
        "networks": sorted(NETWORKS),
        "machines": [(name, system(name).title) for name in system_names()],
        "precisions": get_args(Precision),
        "frameworks": _frameworks(),
        "counts": ",".join(map(str, form.devices)),
        "rows": [_texts(row) for row in rows],
        "has_cost": any(row["cost"] is not None for row in rows),
        "notes": [*basis.notes, *([] if found is None else _notes(found))],
        "command": _command(form, basis),
    }


def _measured(record: RunRecord | None) -> str:
    figure = None if record is None else record.figures.get("throughput_per_s")
    if figure is None:
        return ""
    return quantity(figure.value, "samples/s", figure.low, figure.high)


def _texts(row: Mapping[str, Any]) -> dict[str, Any]:
    energy, cost = row["energy_kwh"], row["cost"]
    low, high = format_seconds(row["time_low_s"]), format_seconds(row["time_high_s"])
    return {
        **row,
        "rate": number(row["samples_per_s"]),
        "band": f"{number(row['low'])} to {number(row['high'])}",
        "step": quantity(row["step_s"], "s"),
        "time": format_seconds(row["time_s"]),
        "time_band": f"{low} to {high}",
        "energy": "unknown" if energy is None else f"{number(energy)} kWh",
        "cost": "" if cost is None else number(cost),
        "memory": {True: "fits", False: "does not fit", None: "unknown"}[row["fits"]],
    }


def _notes(found: Prediction) -> list[str]:
    """What the figures rest on."""
    notes = [
        f"One device: {found.forecast.device_source}.",
        "The band is that of cubemesh predict: its factor contained nine in ten published rates.",
    ]
    if found.power is not None:
        text = f"Energy is of the devices alone ({found.power.origin}: {found.power.source})."
        notes.append(text)
    return [clean(note) for note in notes]


def _command(form: _Asked, basis: _Basis) -> str:
    """The same forecast in a shell; empty where a run calibrates it or something is missing."""
    if not form.network or not form.machine or basis.measured:
        return ""
    counts = ",".join(map(str, form.devices))
    return (
        f"cubemesh predict {form.network} --machine {form.machine} --devices {counts} "
        f"--batch-per-device {form.batch} --precision {form.precision} --framework {form.framework}"
    )
