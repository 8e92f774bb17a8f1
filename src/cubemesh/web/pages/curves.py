"""Curves of a run: what it learned and what its sensors measured, for charts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from cubemesh.views.charts.thinning import seen_points
from cubemesh.views.facts.run import series_name
from cubemesh.views.formatting import words
from cubemesh.views.json_output import envelope
from cubemesh.web.page import Asked, Parameter
from cubemesh.web.stored import run_of

PARAMETERS = (
    Parameter(name="points", summary="Most points of a curve, 10 to 4000; default: 600."),
)
_DEFAULT_POINTS, _MOST_POINTS = 600, 4000


def document(asked: Asked) -> dict[str, Any]:
    """Each curve with its points; of more than `points` the lowest and highest of each part."""
    record = run_of(asked)
    points = asked.number("points", _DEFAULT_POINTS, _MOST_POINTS)
    found = [
        _curve(words(curve.name), "", words(curve.x_name), curve.x, curve.y, points)
        for curve in record.curves
        if curve.name not in record.series
    ]
    for series in asked.store.series(record.run_id):
        name, unit = series_name(series)
        found.append(_curve(name, unit, "seconds", series.times_s, series.values, points))
    return envelope("curves", run_id=record.run_id, curves=[one for one in found if one["x"]])


def view(asked: Asked) -> dict[str, Any]:
    """The same as tables."""
    return {"run_id": asked.path["run_id"], "curves": document(asked)["curves"]}


def _curve(
    name: str, unit: str, x_name: str, x: Sequence[float], y: Sequence[float], points: int
) -> dict[str, Any]:
    places, values = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    index: Any = slice(None)
    if places.size > points:
        span = float(places[-1] - places[0]) or 1.0
        index = seen_points((places - places[0]) / span * max(1, points // 2 - 2), values).index
    return {
        "name": name,
        "unit": unit,
        "x_name": x_name,
        "points": int(places.size),
        "x": places[index].tolist(),
        "y": values[index].tolist(),
    }
