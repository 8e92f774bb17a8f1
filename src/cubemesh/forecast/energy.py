"""Power of several devices during training, and energy per sample.

A device draws its busy power while it computes and its idle power while it waits:

    power = idle + (busy − idle) · share of the step in which it computes
    energy of a sample = devices · power · step / samples of a step

Busy power is measured in a run if there is one; otherwise it is the datasheet's limit, an upper
bound. Idle power is a fraction of the limit (`idle_power_share`, assumed). Hosts, switches and
cooling are left out.
"""

from __future__ import annotations

from dataclasses import dataclass

from cubemesh.forecast.calibration import Calibration, Origin
from cubemesh.forecast.request import Point
from cubemesh.machines.catalogue import datasheets

COMPUTING = ("forward", "backward", "slowdown", "update", "sharing")


@dataclass(frozen=True, kw_only=True)
class BusyPower:
    """Power of one device while it computes, and its source."""

    watts: float
    limit_watts: float
    origin: Origin
    source: str


def busy_power(device: str, measured_watts: float | None = None) -> BusyPower | None:
    """For a device of the catalogue; None if neither its datasheet nor a run has it."""
    sheet = datasheets().get(device)
    limit = None if sheet is None else sheet.value("power_watts")
    if measured_watts:
        return BusyPower(
            watts=measured_watts,
            limit_watts=limit or measured_watts,
            origin="measured",
            source="mean power of the run that calibrates",
        )
    if sheet is None or limit is None:
        return None
    return BusyPower(
        watts=limit,
        limit_watts=limit,
        origin="assumed",
        source=f"power limit of {sheet.name}, a bound",
    )


def device_watts(point: Point, power: BusyPower, known: Calibration) -> float:
    """Mean power of one device over a step, in watts."""
    computing = sum(point.parts_s[name] for name in COMPUTING) / point.step_s
    idle = min(power.watts, known["idle_power_share"] * power.limit_watts)
    return idle + (power.watts - idle) * computing


def sample_joules(point: Point, power: BusyPower, known: Calibration) -> float:
    """Energy that all devices together take for one sample, in joules."""
    return point.devices * device_watts(point, power, known) / point.samples_per_s
