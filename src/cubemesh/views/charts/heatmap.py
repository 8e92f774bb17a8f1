"""Heat maps: cells whose opacity grows with the value, each labelled with it.

One colour at several opacities follows the light or dark page. A cell without a value has a cross,
with the reason in its tooltip.
"""

from __future__ import annotations

from typing import Any

import altair as alt

from cubemesh.schema import Chart, Point
from cubemesh.untrusted import clean
from cubemesh.views.charts.axes import gap_reason, x_text
from cubemesh.views.formatting import axis_title, bare_quantity, quantity
from cubemesh.views.theme import variable

_ROW_PIXELS = 44
_FAINTEST = 0.08
_TURNS = 0.55
"""Above this opacity the text in a cell has the colour of the page."""


def heat_layers(chart: Chart) -> tuple[list[alt.Chart], int]:
    """The layers of a heat map, and the height of its plot in pixels: lines are rows, the last on
    top; x runs to the right in the order of the values that were run."""
    values = [
        p.y
        for line in chart.lines
        for p in line.points
        if p.y is not None and gap_reason(chart, p) is None
    ]
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    rows = [
        _cell(chart, clean(line.name), point, low, high)
        for line in chart.lines
        for point in line.points
    ]
    names = [clean(line.name) for line in reversed(chart.lines)]
    places = dict.fromkeys(x_text(p) for p in _in_order(chart))
    base = alt.Chart({"values": rows}).encode(
        x=alt.X(
            "x:N",
            sort=list(places),
            axis=alt.Axis(title=axis_title(chart.x) or None, labelAngle=0, grid=False),
        ),
        y=alt.Y("row:N", sort=names, axis=alt.Axis(title=clean(chart.rows) or None, grid=False)),
    )
    tooltip = [
        alt.Tooltip("title:N"),
        alt.Tooltip("value:N", title=clean(chart.y.name) or "value"),
        alt.Tooltip("run:N", title="run"),
    ]
    described = {"description": alt.Description("description:N")}
    cells = base.mark_rect(fill=variable("accent"), cornerRadius=3).encode(
        fillOpacity=alt.FillOpacity("opacity:Q", scale=None, legend=None),
        tooltip=tooltip,
        **described,
    )
    words = base.mark_text(fontWeight=600, aria=False).encode(
        text="label:N", color=alt.Color("ink:N", scale=None, legend=None)
    )
    return [cells, words], max(2 * _ROW_PIXELS, _ROW_PIXELS * len(names))


def _in_order(chart: Chart) -> list[Point]:
    points = [p for line in chart.lines for p in line.points]
    if any(isinstance(p.x, str) for p in points):
        return points
    return sorted(points, key=lambda p: float(p.x))


def _cell(chart: Chart, row: str, point: Point, low: float, high: float) -> dict[str, Any]:
    reason = gap_reason(chart, point)
    place = f"{clean(chart.x.name)} {x_text(point)}".strip()
    title = f"{place} · {clean(chart.rows)} {row}".strip()
    cell = {"x": x_text(point), "row": row, "title": title, "run": clean(point.run_id)}
    if point.y is None or reason is not None:
        shown = reason or "not measured"
        return cell | {
            "opacity": 0.0,
            "ink": variable("soft"),
            "label": "×",
            "value": shown,
            "description": f"{title}, missing: {shown}",
        }
    share = (point.y - low) / (high - low) if high > low else 1.0
    opacity = round(_FAINTEST + (1 - _FAINTEST) * share, 3)
    value = quantity(point.y, chart.y.unit, point.low, point.high)
    return cell | {
        "opacity": opacity,
        "ink": variable("paper" if opacity > _TURNS else "ink"),
        "label": bare_quantity(point.y, unit if (unit := chart.y.unit).startswith("×") else ""),
        "value": value,
        "description": f"{title}: {value}",
    }
