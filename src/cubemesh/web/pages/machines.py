"""Machines: those that measured something, with their devices."""

from __future__ import annotations

from typing import Any

from cubemesh.views.formatting import machine_line, machine_name
from cubemesh.views.json_output import envelope
from cubemesh.web.listing import latest_of_machines
from cubemesh.web.page import Asked, Parameter

PARAMETERS: tuple[Parameter, ...] = ()


def document(asked: Asked) -> dict[str, Any]:
    """Machines with the number of their runs and the newest, the one used last first."""
    known = latest_of_machines(asked.store)
    rows = []
    for machine in asked.store.machines():
        count, latest = known.get(machine.machine_id, (0, ""))
        rows.append(
            {
                "machine_id": machine.machine_id,
                "hostname": machine.hostname,
                "name": machine_name(machine),
                "summary": machine_line(machine),
                "gpus": [gpu.name for gpu in machine.gpus],
                "runs": count,
                "latest_utc": latest,
            }
        )
    rows.sort(key=lambda row: str(row["latest_utc"]), reverse=True)
    return envelope("machines", machines=rows)


def view(asked: Asked) -> dict[str, Any]:
    """The list."""
    return document(asked)
