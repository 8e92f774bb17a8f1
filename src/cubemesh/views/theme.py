"""Theme of every drawing: colours, dashes, marks and fonts.

A drawing names its colours as CSS variables (`var(--accent)`). In a page the browser resolves them
for the light or dark scheme; for a file `resolved` replaces them by the light values.

The categorical colours are distinct under the common colour-vision deficiencies (Okabe and Ito,
"Color Universal Design", 2008, around our own green); lines also differ in their marks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cubemesh.frameworks import FRAMEWORKS
from cubemesh.schema import Line

_COLOURS: Mapping[str, tuple[str, str]] = {
    "ink": ("#14181f", "#e8ebf0"),
    "soft": ("#5b6472", "#9ba4b2"),
    "line": ("#e4e7ec", "#2a313c"),
    "paper": ("#ffffff", "#12161c"),
    "wash": ("#f6f7f9", "#1a2029"),
    "accent": ("#0b6e4f", "#3ecf9a"),
    "caution": ("#8a5a00", "#f2c14e"),
    "caution-wash": ("#fdf6e3", "#262214"),
    "fault": ("#b3261e", "#ff8a80"),
    "published": ("#6f7885", "#8b94a3"),
    "c1": ("#0b6e4f", "#3ecf9a"),
    "c2": ("#d55e00", "#ff8a3d"),
    "c3": ("#7b5ea7", "#a98be0"),
    "c4": ("#e0a100", "#f2c14e"),
    "c5": ("#2f7fc1", "#6cb2f0"),
    "c6": ("#b04a7a", "#e58bb5"),
    "c7": ("#6b4226", "#c8a07a"),
    "c8": ("#3c4858", "#c3cad5"),
}
"""Colour → its value on a light and on a dark page."""
LIGHT: Mapping[str, str] = {name: light for name, (light, _) in _COLOURS.items()}
DARK: Mapping[str, str] = {name: dark for name, (_, dark) in _COLOURS.items()}

FONT = "Inter, system-ui, -apple-system, 'Segoe UI', sans-serif"

_CATEGORIES = ("c1", "c2", "c3", "c4", "c5", "c6", "c7", "c8")
_PROGRAMS = {
    name: place - 1
    for place, (key, one) in enumerate(FRAMEWORKS.items())
    for name in (key, one.title)
}
"""Name of a framework or its programs → place of its colour, the same in every chart."""
_SHAPES = ("circle", "square", "triangle-up", "diamond", "triangle-down", "cross")
_DASHES: Mapping[str, tuple[int, ...]] = {
    "measured": (1, 0),
    "published": (5, 4),
    "forecast": (1, 4),
    "reference": (9, 4),
}


@dataclass(frozen=True, kw_only=True)
class LineStyle:
    """How one line of a chart is drawn."""

    colour: str
    """A CSS variable."""
    dash: tuple[int, ...]
    """Lengths of stroke and gap in pixels; (1, 0) is a solid line."""
    shape: str
    """Name of a Vega symbol."""


def variable(name: str) -> str:
    """The CSS variable of a colour of the tables above; KeyError for one that is not in them."""
    LIGHT[name]
    return f"var(--{name})"


def line_styles(lines: Sequence[Line]) -> tuple[LineStyle, ...]:
    """One style per line: categorical colours for measured and forecast lines, by program where all
    of them are programs; grey for published and reference lines."""
    styles = []
    names = [line.name for line in lines if line.role in ("measured", "forecast")]
    programs = all(name in _PROGRAMS for name in names)
    places = iter([_PROGRAMS[name] if programs else i for i, name in enumerate(names)])
    for line in lines:
        if line.role in ("measured", "forecast"):
            own = next(places)
            colour = variable(_CATEGORIES[own % len(_CATEGORIES)])
            shape = _SHAPES[own % len(_SHAPES)]
        else:
            colour = variable("published" if line.role == "published" else "soft")
            shape = "circle"
        styles.append(LineStyle(colour=colour, dash=_DASHES[line.role], shape=shape))
    return tuple(styles)


def css_variables(colours: Mapping[str, str]) -> str:
    """The colours as CSS declarations."""
    return "".join(f"--{name}:{value};" for name, value in colours.items())


def resolved(value: Any) -> Any:
    """`value` (JSON data) with the CSS variables replaced by the light colours."""
    if isinstance(value, dict):
        return {key: resolved(item) for key, item in value.items()}
    if isinstance(value, list):
        return [resolved(item) for item in value]
    if isinstance(value, str) and value.startswith("var(--") and value.endswith(")"):
        return LIGHT.get(value[len("var(--") : -1], value)
    return value


CONFIG: dict[str, Any] = {
    "font": FONT,
    "background": "transparent",
    "padding": 4,
    "view": {"stroke": None},
    "axis": {
        "labelColor": variable("soft"),
        "labelFontSize": 12,
        "labelPadding": 6,
        "labelSeparation": 6,
        "titleColor": variable("soft"),
        "titleFontSize": 12,
        "titleFontWeight": "normal",
        "titlePadding": 10,
        "gridColor": variable("line"),
        "ticks": False,
        "domain": False,
    },
    "text": {"font": FONT, "fontSize": 12},
    "title": {
        "color": variable("ink"),
        "fontSize": 15,
        "fontWeight": 600,
        "anchor": "start",
        "offset": 16,
        "subtitleColor": variable("soft"),
        "subtitleFontSize": 12,
        "subtitlePadding": 6,
    },
    "legend": {
        "labelColor": variable("soft"),
        "labelFontSize": 12,
        "labelLimit": 240,
    },
}
"""The same for every chart; plain data, as Vega-Lite's own names have it."""
