"""Vega-Lite specifications of charts.

Each line is drawn by its role: measured as marks joined by a line, with its interval as a bar; a
forecast dotted, with its interval as a band; published dashed and grey; a reference with long
dashes. A missing point is a cross on the baseline, with the reason in its tooltip. In a scatter
chart points have labels and are not joined; a reference joins a Pareto front or a roof. Heat maps
are in `heatmap.py`.

Colours are CSS variables (`theme.py`), which follow the light or dark page; `files.py` replaces
them by the colours themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from cubemesh.schema import Chart
from cubemesh.untrusted import clean
from cubemesh.views.charts.axes import Frame, gap_reason, x_text
from cubemesh.views.theme import CONFIG

_MOST_ABREAST = 4
"""Legend entries per row."""


def vega_lite(
    chart: Chart,
    *,
    width: int | Literal["container"] = 560,
    height: int = 260,
    legend: bool = True,
    title: bool = True,
    caption: str = "",
) -> dict[str, Any]:
    """The Vega-Lite specification of a chart, as plain data.

    `width` and `height` are the plot's, in pixels; "container" takes the width of the element it
    is put into. Without `legend` or `title` the page has to show them itself.
    """
    import altair as alt  # here: see layers.py
    from altair.utils.schemapi import debug_mode

    from cubemesh.views.charts.heatmap import heat_layers
    from cubemesh.views.charts.layers import Layers

    options: dict[str, Any] = {"width": width}
    if title and chart.title:
        heading: dict[str, Any] = {"text": clean(chart.title)}
        heading |= {"subtitle": caption} if caption else {}
        options["title"] = alt.TitleParams(**heading)
    if width == "container":
        options["autosize"] = alt.AutoSizeParams(type="fit-x", contains="padding")
    # Validating each part again and again takes twice as long as drawing: a test does it.
    with debug_mode(False):
        if chart.kind == "heat":
            layers, height = heat_layers(chart)
        else:
            frame = Frame(chart)
            shown = legend and len(chart.lines) > 1
            entries = alt.Legend(**legend_options(chart)) if shown else None
            layers, height = list(Layers(frame, entries).all()), frame.height(height)
        picture = alt.layer(*layers, height=height, **options)
        spec: dict[str, Any] = picture.to_dict(validate=False)
    spec["config"] = CONFIG
    del spec["$schema"]  # avoids a warning of a newer Vega-Lite
    return spec


def missing_points(chart: Chart) -> tuple[tuple[str, str, str], ...]:
    """(line, x, reason) of every point that cannot be drawn."""
    return tuple(
        (clean(line.name), x_text(point), reason)
        for line in chart.lines
        for point in line.points
        if (reason := gap_reason(chart, point)) is not None
    )


def legend_options(chart: Chart) -> dict[str, Any]:
    """The legend of a chart of several lines, above it."""
    options = {"orient": "top", "offset": 40, "title": None, **_SYMBOLS[chart.kind]}
    if len(chart.lines) > _MOST_ABREAST:
        options["columns"] = _MOST_ABREAST
    return options


_SYMBOLS: Mapping[str, dict[str, Any]] = {
    "line": {"symbolType": "stroke", "symbolStrokeWidth": 3, "symbolSize": 500},
    "bar": {"symbolType": "square"},
    "scatter": {"symbolType": "circle"},
}
