"""Sparklines: small SVG drawings of a series of numbers, without scripts."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence

import numpy as np

from cubemesh.views.charts.thinning import most_points, seen_points


def sparkline(
    values: Sequence[float],
    *,
    label: str,
    width: int = 120,
    height: int = 26,
    low: float | None = None,
    high: float | None = None,
    area: bool = False,
) -> str:
    """An SVG line through `values`, evenly spaced; "" where fewer than two are numbers.

    `label` is for screen readers. The scale runs from `low` to `high`, by default the
    extremes of the values. More values than can be seen are thinned (`seen_points`), so that a
    spike stays visible.
    """
    known = [value for value in values if math.isfinite(value)]
    if len(known) < 2:
        return ""
    bottom = min(known) if low is None else low
    top = max(known) if high is None else high
    span = top - bottom
    pad = 2.0

    def y(value: float) -> float:
        share = (value - bottom) / span if span > 0 else 0.5
        return pad + (height - 2 * pad) * (1 - min(1.0, max(0.0, share)))

    step = (width - 2 * pad) / (len(known) - 1)
    points = [(pad + i * step, y(value)) for i, value in enumerate(known)]
    if len(points) > most_points(width):
        points = [points[i] for i in seen_points(*np.array(points).T).index]
    path = "M" + "L".join(f"{px:.1f} {py:.1f}" for px, py in points)
    shapes = f'<path class="spark-line" d="{path}"/>'
    if area:
        shapes = (
            f'<path class="spark-area" d="{path}L{points[-1][0]:.1f} {height}'
            f'L{points[0][0]:.1f} {height}Z"/>' + shapes
        )
    else:
        px, py = points[-1]
        shapes += f'<circle class="spark-end" cx="{px:.1f}" cy="{py:.1f}" r="2"/>'
    return (
        f'<svg class="spark" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-label="{html.escape(label, quote=True)}" '
        f'preserveAspectRatio="none">{shapes}</svg>'
    )
