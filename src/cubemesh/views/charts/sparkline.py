"""Sparklines: small SVG drawings of a series of numbers, without scripts."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence

_MOST_POINTS = 240


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
    extremes of the values. More than 240 values are thinned to the extremes of each stretch, so
    that a spike stays visible.
    """
    shown = _thinned([value for value in values if math.isfinite(value)])
    if len(shown) < 2:
        return ""
    bottom = min(shown) if low is None else low
    top = max(shown) if high is None else high
    span = top - bottom
    pad = 2.0

    def y(value: float) -> float:
        share = (value - bottom) / span if span > 0 else 0.5
        return pad + (height - 2 * pad) * (1 - min(1.0, max(0.0, share)))

    step = (width - 2 * pad) / (len(shown) - 1)
    points = [(pad + i * step, y(value)) for i, value in enumerate(shown)]
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


def _thinned(values: list[float]) -> list[float]:
    """At most `_MOST_POINTS` of the values: the smallest and largest of each stretch, in order."""
    if len(values) <= _MOST_POINTS:
        return values
    stretch = math.ceil(len(values) / (_MOST_POINTS // 2))
    ends: list[float] = []
    for start in range(0, len(values), stretch):
        part = values[start : start + stretch]
        ends += [part[i] for i in sorted({part.index(min(part)), part.index(max(part))})]
    return ends
