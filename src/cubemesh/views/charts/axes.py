"""Axes, scales and data rows of a chart, shared by its layers.

Value axes start at zero, except in a line chart whose values are all in the upper half of the range
and whose axis allows it. The ticks of a logarithmic x axis are the values that were run. Bars are
horizontal where their names are long.
"""

from __future__ import annotations

import math
import textwrap
from collections import Counter
from functools import cached_property
from typing import TYPE_CHECKING, Any

from cubemesh.schema import Chart, Point
from cubemesh.untrusted import clean
from cubemesh.views.formatting import axis_title, bare_quantity, number, quantity, split_figure
from cubemesh.views.theme import line_styles

if TYPE_CHECKING:
    import altair as alt

Row = dict[str, Any]

_SHORT_NAME = 10
_LABEL_LETTERS = 20
_AXIS_LETTERS = 80
"""Letters of all categories below an axis, next to each other on a narrow screen."""
_BELOW_LETTERS, _BETWEEN_LETTERS = 60, 2
"""Letters of the labels below an axis that fit in half of a page, and of the space between two
labels. Labels that overlap would be left out."""
_FEW_TICKS = 6
"""Integers on an axis that have a tick each; between fewer Vega draws ticks at halves."""
_FLUSH_PIXELS = 12
"""A label this close to an end of the axis is drawn inside of it."""
_AXIS_TOP, _SIDEWAYS_TOP = 1.06, 1.16
"""Room above the highest mark, as a factor, for its label."""
_LOG_BASE = {"log2": 2, "log10": 10}
_ROOF_PIXELS = 340
"""Least height of a scatter chart over several powers of ten."""
_ON_LOG = ("line", "scatter")
"""Kinds of chart whose axes may be logarithmic."""
_BYTES_LABEL = (
    "datum.value >= 1073741824 ? format(datum.value / 1073741824, '~g') + ' GiB' : "
    "datum.value >= 1048576 ? format(datum.value / 1048576, '~g') + ' MiB' : "
    "datum.value >= 1024 ? format(datum.value / 1024, '~g') + ' KiB' : "
    "datum.value + ' B'"
)


class Frame:
    """The axes of one chart, and its points as rows of data."""

    def __init__(self, chart: Chart) -> None:
        self.chart = chart
        self.styles = line_styles(chart.lines)
        self.names = _distinct([clean(line.name) for line in chart.lines])
        self.points = [point for line in chart.lines for point in line.points]
        texts = [x_text(point) for point in self.points]
        self.category = (
            chart.kind == "bar"
            or chart.x.scale == "category"
            or any(isinstance(point.x, str) for point in self.points)
        )
        below = sum(len(text) + _BETWEEN_LETTERS for text in set(texts))
        long = any(len(text) > _SHORT_NAME for text in texts) or below > _BELOW_LETTERS
        self.sideways = chart.kind == "bar" and long
        """Whether bars are horizontal, so that each has its name."""
        places = [x for line in chart.lines for x in {x_text(p) for p in line.points}]
        self.shared = len(places) > len(set(places)) and not chart.stacked
        """Whether two lines have a value for the same category."""
        self.along = "y" if self.sideways else "x"
        self.value = "x" if self.sideways else "y"

    def height(self, height: int) -> int:
        """Height of the plot in pixels: by the number of horizontal bars, more for a scatter chart
        over powers of ten."""
        if self.chart.kind == "scatter" and self.chart.y.scale in _LOG_BASE:
            return max(height, _ROOF_PIXELS)
        if not self.sideways:
            return height
        abreast = len(self.chart.lines) if self.shared else 1
        return max(70, len({x_text(p) for p in self.points}) * (20 + 18 * abreast))

    @property
    def middle(self) -> float:
        """The middle of a logarithmic x axis; of other axes their end."""
        places = [float(p.x) for p in self.points if not isinstance(p.x, str) and p.x > 0]
        if self.category or not places:
            return math.inf
        return math.sqrt(min(places) * max(places))

    def rows(self, index: int) -> list[Row]:
        """The points of a line that can be drawn."""
        points = self.chart.lines[index].points
        return [self._row(index, p) for p in points if gap_reason(self.chart, p) is None]

    def missing_rows(self, index: int) -> list[Row]:
        """The points of a line that are missing and have a place on the x axis."""
        points = self.chart.lines[index].points
        return [
            self._missing_row(index, point, reason)
            for point in points
            if (reason := gap_reason(self.chart, point)) and _has_place(self.chart, point)
        ]

    def _row(self, index: int, point: Point) -> Row:
        assert point.y is not None
        interval = _interval(point)
        low, high = interval or (None, None)
        unit = self.chart.y.unit
        ratio = unit if unit.startswith("×") else ""
        row = self._named_row(index, point)
        row |= {
            "y": point.y,
            "label": clean(point.label)
            if self.chart.kind == "scatter"
            else split_figure(point.y, ratio, low, high)[0],
            "value": quantity(point.y, unit, low, high),
        }
        row["description"] = f"{row['title']}: {row['value']}"
        if interval:
            row |= {"low": low, "high": high}
            ends = (bare_quantity(end, ratio, digits=4) for end in interval)
            row["interval"] = " to ".join(ends)
        return row

    def _missing_row(self, index: int, point: Point, reason: str) -> Row:
        row = self._named_row(index, point)
        return row | {"reason": reason, "description": f"{row['title']}, missing: {reason}"}

    def _named_row(self, index: int, point: Point) -> Row:
        role = self.chart.lines[index].role
        place = x_text(point)
        if not self.category:
            place = f"{clean(self.chart.x.name)} {place} {clean(self.chart.x.unit)}".strip()
        if point.label:
            place = f"{clean(point.label)} · {place}"
        return {
            "line": self.names[index],
            "x": self._category(point) if self.category else float(point.x),
            "title": f"{self.names[index]} · {place}",
            "role": "" if role == "measured" else role,
            "run": clean(point.run_id),
        }

    def _category(self, point: Point) -> str:
        """The label of a category, wrapped, not cut; below an axis to the room of one of them."""
        return "\n".join(textwrap.wrap(x_text(point), self._letters))

    @cached_property
    def _letters(self) -> int:
        """Letters in a line of a category's label."""
        if self.sideways:
            return _LABEL_LETTERS
        categories = len({x_text(point) for point in self.points})
        return max(_SHORT_NAME, _AXIS_LETTERS // max(1, categories))

    def along_channel(self) -> Any:
        """The channel of x: categories in their order, or numbers on their scale."""
        import altair as alt  # here: see layers.py

        channel = alt.Y if self.sideways else alt.X
        title = None if self.sideways else axis_title(self.chart.x) or None
        axis: dict[str, Any] = {"title": title, "grid": False}
        if self.category:
            axis |= {"labelAngle": 0, "labelLimit": 170, "labelOverlap": not self.sideways}
            axis["labelExpr"] = "split(datum.label, '\\n')"
            order = dict.fromkeys(self._category(point) for point in self.points)
            bars = alt.Scale(paddingInner=0.3, paddingOuter=0.2)
            scale = bars if self.chart.kind == "bar" else alt.Scale(padding=0.5)
            return channel("x:N", sort=list(order), scale=scale, axis=alt.Axis(**axis))
        base = _LOG_BASE.get(self.chart.x.scale)
        values = {float(p.x) for p in self.points if _has_place(self.chart, p)}
        scale = alt.Scale(zero=False, nice=False, padding=16)
        if not values:
            scale = alt.Scale(domain=[0, 1])
        elif base:
            own = [p for ln in self.chart.lines if ln.role == "measured" for p in ln.points]
            ran = {float(p.x) for p in own if _has_place(self.chart, p)}
            ticks = _decades(values) if self.chart.kind == "scatter" else sorted(ran or values)
            axis |= {"values": ticks, "labelOverlap": "greedy"}
            scale = alt.Scale(type="log", base=base, nice=False, padding=16)
        elif self.chart.kind == "scatter":
            axis |= {"tickCount": 8, "labelOverlap": "greedy"}
        plain = ",.4~r" if self.chart.kind == "scatter" else ","
        if all(value.is_integer() for value in values):
            axis["tickMinStep"] = 1
            if values and not base and max(values) - min(values) < _FEW_TICKS:
                axis["values"] = list(range(int(min(values)), int(max(values)) + 1))
            plain = plain if base else ",d"  # "," alone would round 120 to two digits, 1.2e+2
        if self.chart.x.unit in ("bytes", "B"):
            axis["labelExpr"] = _BYTES_LABEL
        axis |= {"format": plain, "labelFlush": _FLUSH_PIXELS}
        return channel("x:Q", scale=scale, axis=alt.Axis(**axis))

    def value_channel(self, field: str = "y") -> Any:
        """The channel of y, for the field of the rows that holds it."""
        import altair as alt  # here: see layers.py

        channel = alt.X if self.sideways else alt.Y
        axis: dict[str, Any] = {"title": axis_title(self.chart.y) or None, "tickCount": 5}
        if self.sideways:
            axis |= {"titleAnchor": "end", "labelFlush": False}
        else:  # the title is horizontal, above the axis
            axis |= {"titleAngle": 0, "titleAlign": "left", "titleAnchor": "start"}
            axis |= {"titleBaseline": "bottom", "titleX": 0, "titleY": -22}
        if self.chart.y.unit in ("bytes", "B"):
            axis["labelExpr"] = _BYTES_LABEL
        if self.chart.kind in _ON_LOG and self.chart.y.scale == "log10":
            del axis["tickCount"]
            axis |= {"values": _decades(self._drawn_values())}
            if self.chart.kind == "scatter":  # prefixes, such as k, are of units
                axis |= {"format": "~s" if self.chart.y.unit else "~e"}
        scale = self._value_scale()
        return channel(f"{field}:Q", scale=scale, axis=alt.Axis(**axis, labelOverlap=True))

    def _drawn_values(self) -> set[float]:
        drawn = (p.y for p in self.points if gap_reason(self.chart, p) is None)
        return {y for y in drawn if y is not None}

    def _value_scale(self) -> alt.Scale:
        import altair as alt  # here: see layers.py

        base = _LOG_BASE.get(self.chart.y.scale)
        if base and self.chart.kind == "line":
            return alt.Scale(type="log", base=base)
        if base and self.chart.kind == "scatter":
            return alt.Scale(type="log", base=base, nice=False, padding=18)
        drawn = [p for p in self.points if gap_reason(self.chart, p) is None]
        ends = [p.y for p in drawn if p.y is not None]
        if self.chart.stacked:
            sums: dict[str, float] = {}
            for p in drawn:
                sums[x_text(p)] = sums.get(x_text(p), 0.0) + (p.y or 0.0)
            return alt.Scale(domainMin=0, domainMax=max(sums.values(), default=1.0))
        ends += [end for p in drawn for end in _interval(p) or ()]
        if not ends:
            return alt.Scale(domain=[0, 1])
        lowest, highest = min(ends), max(ends)
        if lowest < 0:
            return alt.Scale(zero=True)
        far_from_zero = len(drawn) > 1 and highest / 2 < lowest < highest
        if self.chart.kind == "line" and far_from_zero and not self.chart.y.from_zero:
            return alt.Scale(zero=False, nice=True)
        return alt.Scale(
            domainMin=0,
            domainMax=highest * (_SIDEWAYS_TOP if self.sideways else _AXIS_TOP) or 1,
            nice=True,
        )


def gap_reason(chart: Chart, point: Point) -> str | None:
    """Why a point cannot be drawn, or None where it can."""
    if point.y is None:
        return clean(point.reason) or "not measured"
    if not math.isfinite(point.y):
        return clean(point.reason) or f"the value is {number(point.y)}"
    if chart.kind in _ON_LOG and chart.y.scale in _LOG_BASE and point.y <= 0:
        return f"{number(point.y)} cannot be drawn on a logarithmic axis"
    if not _has_place(chart, point):
        return f"{x_text(point)} cannot be drawn on a logarithmic axis"
    return None


def x_text(point: Point) -> str:
    """The x value of a point as text."""
    return clean(point.x) if isinstance(point.x, str) else number(point.x, 6)


def _has_place(chart: Chart, point: Point) -> bool:
    on_log = chart.kind in _ON_LOG and chart.x.scale in _LOG_BASE
    return not on_log or isinstance(point.x, str) or point.x > 0


def _decades(values: set[float]) -> list[float]:
    """The powers of ten that enclose `values`, all above 0."""
    if not values:
        return []
    first, last = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    return [10.0**power for power in range(first, last + 1)]


def _interval(point: Point) -> tuple[float, float] | None:
    if point.low is None or point.high is None:
        return None
    finite = math.isfinite(point.low) and math.isfinite(point.high)
    return (point.low, point.high) if finite else None


def _distinct(names: list[str]) -> list[str]:
    """The names, numbered from their second use on."""
    count: Counter[str] = Counter()
    distinct = []
    for name in names:
        count[name] += 1
        distinct.append(name if count[name] == 1 else f"{name} ({count[name]})")
    return distinct
