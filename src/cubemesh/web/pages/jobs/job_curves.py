"""Curves of a job so far, of one of its runs, for charts: loss, throughput, accuracy, and what the
sensors measure (use, power and clock of the GPU or processor, wait for input)."""

from __future__ import annotations

from typing import Any

from cubemesh.jobs.feed import curves_until
from cubemesh.jobs.points import LOSS, RATE, SENSORS
from cubemesh.schema import Series
from cubemesh.views.facts.run import series_name
from cubemesh.views.formatting import words
from cubemesh.views.job_pages import event_line
from cubemesh.views.json_output import envelope
from cubemesh.web.page import Asked, Parameter
from cubemesh.web.queued import expected_of, job_of, queue_of
from cubemesh.web.thinned_curve import thinned

PARAMETERS = (
    Parameter(name="points", summary="Most points of a curve, 10 to 4000; default: 1000."),
    Parameter(name="run", summary="Which run of the job, from 1; default: the latest."),
)
_DEFAULT_POINTS, _MOST_POINTS = 1000, 4000
_MOST_RUN = 10**6
X_NAMES = {LOSS: "step", RATE: "seconds", **dict.fromkeys(SENSORS, "seconds")}
"""Curve → what it is plotted against; others are by epoch."""


def document(asked: Asked) -> dict[str, Any]:
    """Each curve with its points, that of the throughput with what was expected of the run, and
    `cursor`: the events after it have the points to come. `damaged` names the events whose points
    are missing."""
    job = job_of(asked)
    points = asked.number("points", _DEFAULT_POINTS, _MOST_POINTS)
    so_far = curves_until(queue_of(asked), job.job_id)
    found = so_far.curves
    latest = max(found, default=1)
    run = asked.number("run", latest, _MOST_RUN)
    curves = []
    for name, own in found.get(run, {}).items():
        x, y = [p[0] or 0.0 for p in own], [p[1] for p in own]
        x_name = X_NAMES.get(name, "epoch")
        title, unit = ("throughput", "samples/s") if name == RATE else (words(name), "")
        if name in SENSORS:
            title, unit = series_name(Series(name=name))
        curve = {"series": name, **thinned(title, unit, x_name, x, y, points)}
        if name == RATE:
            curve["expected"] = expected_of(queue_of(asked), job.job_id, run)
        curves.append(curve)
    curves.sort(key=_order)
    return envelope(
        "job_curves",
        job_id=job.job_id,
        run=run,
        runs=sorted(found),
        cursor=so_far.cursor,
        curves=curves,
        damaged=[event_line(event) for event in so_far.damaged],
    )


def _order(curve: dict[str, Any]) -> tuple[int, str]:
    """Loss and throughput first, sensors last."""
    name = curve["series"]
    if name in SENSORS:
        return 3 + SENSORS.index(name), name
    return (LOSS, RATE, name).index(name), name


def view(asked: Asked) -> dict[str, Any]:
    """The same as tables."""
    found = document(asked)
    return {name: found[name] for name in ("job_id", "run", "runs", "curves", "damaged")}
