"""Curves of a run: what it learned and what its sensors measured, for charts."""

from __future__ import annotations

from typing import Any

from cubemesh.views.facts.run import series_name
from cubemesh.views.formatting import words
from cubemesh.views.json_output import envelope
from cubemesh.web.page import Asked, Parameter
from cubemesh.web.stored import run_of
from cubemesh.web.thinned_curve import thinned

PARAMETERS = (
    Parameter(name="points", summary="Most points of a curve, 10 to 4000; default: 600."),
)
_DEFAULT_POINTS, _MOST_POINTS = 600, 4000


def document(asked: Asked) -> dict[str, Any]:
    """Each curve with its points; of more than `points` the lowest and highest of each part."""
    record = run_of(asked)
    points = asked.number("points", _DEFAULT_POINTS, _MOST_POINTS)
    found = [
        thinned(words(curve.name), "", words(curve.x_name), curve.x, curve.y, points)
        for curve in record.curves
        if curve.name not in record.series
    ]
    for series in asked.store.series(record.run_id):
        name, unit = series_name(series)
        found.append(thinned(name, unit, "seconds", series.times_s, series.values, points))
    return envelope("curves", run_id=record.run_id, curves=[one for one in found if one["x"]])


def view(asked: Asked) -> dict[str, Any]:
    """The same as tables."""
    return {"run_id": asked.path["run_id"], "curves": document(asked)["curves"]}
