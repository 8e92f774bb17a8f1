"""Badge: the verdict of a machine's last acceptance test, as an image and as JSON."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from cubemesh.views.facts.acceptance import badge_svg
from cubemesh.views.json_output import envelope
from cubemesh.web.page import Asked, Parameter
from cubemesh.web.security.policy import CONTENT_POLICY
from cubemesh.web.stored import last_acceptance, machine_of

PARAMETERS: tuple[Parameter, ...] = ()


def document(asked: Asked) -> dict[str, Any]:
    """Verdict and date; null without an acceptance test that was completed."""
    machine = machine_of(asked)
    found = last_acceptance(asked.store, machine.machine_id)
    return envelope(
        "badge",
        machine_id=machine.machine_id,
        verdict=found and found.verdict.value,
        started_utc=found and found.started_utc,
        experiment_run_id=found and found.experiment_run_id,
    )


def view(asked: Asked) -> dict[str, Any]:
    """The image; a browser asks for it again every time."""
    found = last_acceptance(asked.store, machine_of(asked).machine_id)
    svg = badge_svg(None) if found is None else badge_svg(found.verdict, found.started_utc)
    headers = {"content-security-policy": CONTENT_POLICY, "cache-control": "no-cache"}
    return {"response": Response(svg.encode(), media_type="image/svg+xml", headers=headers)}
