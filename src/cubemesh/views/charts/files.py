"""Charts as SVG and PNG files, or as part of a page, rendered by vl-convert without a browser.

Files have the light colours on white; charts in a page keep CSS variables.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import vl_convert

from cubemesh.errors import UsageError
from cubemesh.schema import Answer, Chart
from cubemesh.views.charts.vega import vega_lite
from cubemesh.views.theme import LIGHT, resolved

FORMATS = ("svg", "png")
_PIXELS_PER_UNIT = 2.0


def write_charts(
    directory: Path, answers: Sequence[Answer], formats: Sequence[str] = FORMATS
) -> list[Path]:
    """Write every chart of the answers into `directory` (made where it is missing).

    A file has the name of its chart; where two charts have one name, the second is prefixed by its
    experiment's.
    Returns the paths in the order they were written. UsageError for a format not in `FORMATS`.
    """
    for name in formats:
        if name not in FORMATS:
            raise UsageError(f"'{name}' is not a format of charts. Known: {', '.join(FORMATS)}.")
    directory.mkdir(parents=True, exist_ok=True)
    paths = []
    for stem, chart in _stems(answers):
        for name in formats:
            path = directory / f"{stem}.{name}"
            path.write_bytes(_encoded(chart, name))
            paths.append(path)
    return paths


def inline_svg(spec: dict[str, Any]) -> str:
    """The drawing of a specification as an SVG element for a page; colours stay variables."""
    svg: str = vl_convert.vegalite_to_svg(spec)
    return svg


def svg_as_png(svg: str) -> bytes:
    """A drawing as a PNG image."""
    png: bytes = vl_convert.svg_to_png(svg, scale=_PIXELS_PER_UNIT)
    return png


def browser_bundle() -> str:
    """The JavaScript that draws specifications in a page: Vega, Vega-Lite and Vega-Embed."""
    bundle: str = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    return bundle


def _encoded(chart: Chart, name: str) -> bytes:
    spec = resolved(vega_lite(chart))
    spec["config"] = spec["config"] | {"background": LIGHT["paper"], "padding": 16}
    if name == "svg":
        svg: str = vl_convert.vegalite_to_svg(spec)
        return svg.encode("utf-8")
    png: bytes = vl_convert.vegalite_to_png(spec, scale=_PIXELS_PER_UNIT)
    return png


def _stems(answers: Sequence[Answer]) -> list[tuple[str, Chart]]:
    stems: dict[str, Chart] = {}
    for answer in answers:
        for chart in answer.charts:
            stem = re.sub(r"[^A-Za-z0-9-]+", "-", chart.name).strip("-") or "chart"
            if stem in stems:
                experiment = re.sub(r"[^A-Za-z0-9-]+", "-", answer.experiment)
                stem = f"{experiment}-{stem}"
            plain, count = stem, 1
            while stem in stems:
                count += 1
                stem = f"{plain}-{count}"
            stems[stem] = chart
    return list(stems.items())
