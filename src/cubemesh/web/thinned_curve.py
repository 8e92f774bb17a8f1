"""A curve as JSON for a chart, with at most so many points."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from cubemesh.views.charts.thinning import seen_points


def thinned(
    name: str,
    unit: str,
    x_name: str,
    x: Sequence[float],
    y: Sequence[float | None],
    points: int,
) -> dict[str, Any]:
    """A curve with its points; of more than `points` the lowest and highest of each part. A value
    that is not finite is null, and is left out where points are."""
    places, values = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    index: Any = slice(None)
    if places.size > points:
        span = float(places[-1] - places[0]) or 1.0
        index = seen_points((places - places[0]) / span * max(1, points // 2 - 2), values).index
    chosen = values[index]
    return {
        "name": name,
        "unit": unit,
        "x_name": x_name,
        "points": int(places.size),
        "x": places[index].tolist(),
        "y": [
            y if finite else None
            for y, finite in zip(chosen.tolist(), np.isfinite(chosen).tolist(), strict=True)
        ],
    }
