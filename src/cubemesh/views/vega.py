"""How is a chart that is data turned into a picture?

`vega_lite` makes a Vega-Lite specification of a `Chart`. Each line is drawn in its role: what was
measured as marks joined by a line, with its interval as a bar; a forecast dotted, with its interval
as a band; what was published dashed and grey; a reference with long dashes. A missing point is a
cross on the baseline that tells its reason. Value axes start at zero unless every value lies in
the upper half of the range; the ticks of a logarithmic x axis are the values that were run.

Colours are CSS variables (see `look`), so the picture follows the page it stands in; `charts`
puts real colours in their place for files.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from cubemesh.errors import UsageError
from cubemesh.model import Axis, Chart, Line, Point
from cubemesh.views.look import FONT, line_looks, variable
from cubemesh.views.wording import axis_title, clean, number, quantity

try:
    import altair as alt
except ImportError as error:
    raise UsageError(
        "Charts and reports need packages that are not installed here. "
        "Install them with: pip install 'cubemesh[views]'"
    ) from error

_SHORT_NAME = 10
_LABEL_LETTERS = 20
_AXIS_TOP = 1.06
"""Room above the highest mark, as a factor, for its label."""


def vega_lite(
    chart: Chart,
    *,
    width: int | Literal["container"] = 560,
    height: int = 260,
    legend: bool = True,
    title: bool = True,
) -> dict[str, Any]:
    """The Vega-Lite specification of a chart, as plain data.

    `width` and `height` are the plot's, in pixels; "container" takes the width of the element it
    is put into. Without `legend` or `title` the page has to say them itself.
    """
    drawing = _Drawing(chart, legend=legend)
    layers = list(drawing.layers())
    picture = alt.layer(*layers).properties(width=width, height=drawing.height(height))
    if title and chart.title:
        picture = picture.properties(title=clean(chart.title))
    if width == "container":
        picture = picture.properties(autosize=alt.AutoSizeParams(type="fit-x", contains="padding"))
    spec: dict[str, Any] = picture.to_dict()
    spec["config"] = _CONFIG
    del spec["$schema"]  # a newer Vega-Lite reads it just as well, without a warning
    return spec


def missing_points(chart: Chart) -> tuple[tuple[str, str, str], ...]:
    """(line, x, reason) of every point that has no value."""
    return tuple(
        (clean(line.name), _x_text(point), clean(point.reason) or "not measured")
        for line in chart.lines
        for point in line.points
        if point.y is None
    )


class _Drawing:
    """The layers of one chart, back to front, and the channels they share."""

    def __init__(self, chart: Chart, *, legend: bool) -> None:
        self.chart = chart
        self.looks = line_looks(chart.lines)
        self.names = _distinct([clean(line.name) for line in chart.lines])
        self.category = chart.x.scale == "category" or chart.kind == "bar"
        self.sideways = chart.kind == "bar" and any(
            len(_x_text(point)) > _SHORT_NAME for line in chart.lines for point in line.points
        )
        places = [x for line in chart.lines for x in {_x_text(p) for p in line.points}]
        self.shared = len(places) > len(set(places))
        self.legend = (
            alt.Legend(orient="top", title=None, **_SYMBOLS[chart.kind])
            if legend and len(chart.lines) > 1
            else None
        )

    def layers(self) -> Iterator[alt.Chart]:
        """The layers of every line; where no point has a value, one that only makes the axes."""
        if not any(_drawable(p, self.chart.x) for line in self.chart.lines for p in line.points):
            rows = [
                self._row(i, p) | {"y": 0}
                for i, ln in enumerate(self.chart.lines)
                for p in ln.points
            ]
            axes = self._base(rows).mark_point(opacity=0, aria=False)
            yield axes.encode(**{self._value: self._value_channel()})
        for index, line in enumerate(self.chart.lines):
            present = [p for p in line.points if _drawable(p, self.chart.x)]
            missing = [p for p in line.points if p.y is None]
            if present:
                draw = self._bars if self.chart.kind == "bar" else self._marks
                yield from draw(index, line, [self._row(index, p) for p in present])
            if missing:
                yield self._crosses(index, [self._row(index, p) for p in missing])

    def height(self, height: int) -> int:
        """Sideways bars take the height their number asks for."""
        if not self.sideways:
            return height
        bars = {_x_text(p) for line in self.chart.lines for p in line.points}
        abreast = len(self.chart.lines) if self.shared else 1
        return max(70, len(bars) * (20 + 18 * abreast))

    # Data and channels

    def _row(self, index: int, point: Point) -> dict[str, Any]:
        line, chart = self.chart.lines[index], self.chart
        row: dict[str, Any] = {
            "line": self.names[index],
            "x": self._category(point) if self.category else float(point.x),
            "title": f"{self.names[index]} · {_named(chart.x, _x_text(point))}",
            "role": "" if line.role == "measured" else line.role,
            "run": clean(point.run_id),
        }
        if point.y is None:
            row["reason"] = clean(point.reason) or "not measured"
            return row
        row["y"] = point.y
        row["label"] = number(point.y)
        row["value"] = quantity(point.y, chart.y.unit, point.low, point.high)
        if point.low is not None and point.high is not None:
            row |= {"low": point.low, "high": point.high}
            row["interval"] = f"{number(point.low, 4)} to {number(point.high, 4)}"
        return row

    def _base(self, rows: list[dict[str, Any]]) -> alt.Chart:
        return alt.Chart({"values": rows}).encode(**{self._along: self._along_channel()})

    def _category(self, point: Point) -> str:
        """The label of a category: beside a bar it takes several lines rather than be cut."""
        text = _x_text(point)
        return "\n".join(textwrap.wrap(text, _LABEL_LETTERS)) if self.sideways else text

    @property
    def _along(self) -> str:
        return "y" if self.sideways else "x"

    @property
    def _value(self) -> str:
        return "x" if self.sideways else "y"

    def _along_channel(self) -> Any:
        channel = alt.Y if self.sideways else alt.X
        axis: dict[str, Any] = {"title": axis_title(self.chart.x) or None, "grid": False}
        if self.category:
            axis |= {"labelAngle": 0, "labelLimit": 170, "labelOverlap": not self.sideways}
            if self.sideways:
                axis["title"] = None
            axis["labelExpr"] = "split(datum.label, '\\n')"
            order = {self._category(p): None for ln in self.chart.lines for p in ln.points}
            scale = (
                alt.Scale(paddingInner=0.3, paddingOuter=0.2)
                if self.chart.kind == "bar"
                else alt.Scale(padding=0.5)
            )
            return channel("x:N", sort=list(order), scale=scale, axis=alt.Axis(**axis))
        if self.chart.x.scale in ("log2", "log10"):
            axis |= {"values": self._x_values(), "labelOverlap": "greedy"}
        axis["format"] = ","
        return channel("x:Q", scale=self._scale(self.chart.x), axis=alt.Axis(**axis))

    def _x_values(self) -> list[float]:
        return sorted({float(p.x) for line in self.chart.lines for p in line.points})

    def _scale(self, axis: Axis) -> alt.Scale:
        if axis.scale == "log2":
            return alt.Scale(type="log", base=2, nice=False, padding=16)
        if axis.scale == "log10":
            return alt.Scale(type="log", base=10, nice=False, padding=16)
        return alt.Scale(zero=False, nice=False, padding=16)

    def _value_channel(self, field: str = "y") -> Any:
        channel = alt.X if self.sideways else alt.Y
        title = axis_title(self.chart.y)
        axis: dict[str, Any] = {"title": title or None, "tickCount": 5, "labelOverlap": True}
        if self.sideways:
            axis |= {"titleAnchor": "end"}
        else:  # the title lies flat above the axis, where it is read first
            axis |= {"titleAngle": 0, "titleAlign": "left", "titleAnchor": "start"}
            axis |= {"titleBaseline": "bottom", "titleX": 0, "titleY": -10}
        if self.chart.y.unit in ("bytes", "B"):
            axis["labelExpr"] = _BYTES_LABEL
        return channel(f"{field}:Q", scale=self._value_scale(), axis=alt.Axis(**axis))

    def _value_scale(self) -> alt.Scale:
        kind = self.chart.y.scale
        if kind in ("log2", "log10") and self.chart.kind == "line":
            return alt.Scale(type="log", base=2 if kind == "log2" else 10)
        ends = [
            end
            for line in self.chart.lines
            for p in line.points
            if p.y is not None
            for end in (p.y, p.low, p.high)
            if end is not None and math.isfinite(end)
        ]
        upper_half = bool(ends) and min(ends) > max(ends) / 2 > 0
        if self.chart.kind == "line" and upper_half and len(set(ends)) > 1:
            return alt.Scale(zero=False, nice=True)
        if not ends:
            return alt.Scale(domain=[0, 1])
        if min(ends) < 0:
            return alt.Scale(zero=True)
        return alt.Scale(domainMin=0, domainMax=max(ends) * _AXIS_TOP or 1, nice=True)

    def _colour(self) -> alt.Color:
        colours = [look.colour for look in self.looks]
        scale = alt.Scale(domain=list(self.names), range=colours)
        return alt.Color("line:N", scale=scale, legend=self.legend)

    def _dash(self) -> alt.StrokeDash:
        dashes = [list(look.dash) for look in self.looks]
        scale = alt.Scale(domain=list(self.names), range=dashes)
        return alt.StrokeDash("line:N", scale=scale, legend=self.legend)

    def _grouped(self, layer: alt.Chart) -> alt.Chart:
        """Bars of several lines stand side by side where they share a category."""
        if not self.shared:
            return layer
        domain = alt.Scale(domain=list(self.names))
        if self.sideways:
            return layer.encode(yOffset=alt.YOffset("line:N", scale=domain))
        return layer.encode(xOffset=alt.XOffset("line:N", scale=domain))

    # Layers

    def _marks(self, index: int, line: Line, rows: list[dict[str, Any]]) -> Iterator[alt.Chart]:
        look = self.looks[index]
        base = self._base(rows)
        if line.role == "reference" and len(rows) == 1:
            level = alt.Chart({"values": rows}).mark_rule(strokeWidth=1.5, aria=False)
            yield level.encode(
                y=self._value_channel(), color=self._colour(), strokeDash=self._dash()
            )
            return
        intervals = [row for row in rows if "low" in row]
        if line.role == "forecast" and intervals:
            band = self._base(intervals).mark_area(opacity=0.15, color=look.colour, aria=False)
            yield band.encode(y=self._value_channel("low"), y2="high:Q")
        measured = line.role == "measured"
        stroke = base.mark_line(strokeWidth=2.5 if measured else 1.75, aria=False)
        yield stroke.encode(y=self._value_channel(), color=self._colour(), strokeDash=self._dash())
        if measured and intervals:
            yield from self._interval_bars(self._base(intervals), look.colour)
        point = base.mark_point(
            size=64 if measured else 30,
            opacity=1,
            shape=look.shape,
            stroke=look.colour,
            fill=look.colour if measured else variable("paper"),
            aria=False,
        )
        yield point.encode(y=self._value_channel())
        if measured and sum(ln.role == "measured" for ln in self.chart.lines) == 1:
            ends = [rows[0], rows[-1]] if len(rows) > 1 else rows
            label = self._base(ends).mark_text(dy=-14, fontWeight=600, aria=False)
            yield label.encode(
                y=self._value_channel(), text="label:N", color=alt.value(variable("ink"))
            )
        # What the pointer meets: larger than the mark, and unseen.
        target = base.mark_circle(size=420, opacity=0, description=clean(line.name))
        yield target.encode(y=self._value_channel(), tooltip=self._tooltip(rows))

    def _bars(self, index: int, line: Line, rows: list[dict[str, Any]]) -> Iterator[alt.Chart]:
        look = self.looks[index]
        base = self._grouped(self._base(rows))
        hollow = line.role in ("forecast", "reference")
        bar = base.mark_bar(
            fillOpacity=0.15 if hollow else 1,
            stroke=look.colour if hollow else None,
            strokeDash=list(look.dash) if hollow else alt.Undefined,
            cornerRadiusEnd=2,
        )
        yield bar.encode(
            **{self._value: self._value_channel()},
            tooltip=self._tooltip(rows),
            color=self._colour(),
        )
        intervals = [row for row in rows if "low" in row]
        if intervals:
            yield from self._interval_bars(
                self._grouped(self._base(intervals)), variable("ink"), weight=1
            )
        end = {"dx": 6, "align": "left"} if self.sideways else {"dy": -8}
        # The label stands clear of the interval's end.
        field = "high" if len(intervals) == len(rows) else "y"
        label = base.mark_text(**end, fontWeight=600, aria=False)
        yield label.encode(
            **{self._value: self._value_channel(field)},
            text="label:N",
            color=alt.value(variable("ink")),
        )

    def _interval_bars(
        self, base: alt.Chart, colour: str, weight: float = 1.5
    ) -> Iterator[alt.Chart]:
        second = "x2" if self.sideways else "y2"
        low = self._value_channel("low")
        bar = base.mark_rule(strokeWidth=weight, color=colour, aria=False)
        yield bar.encode(**{self._value: low, second: "high:Q"})
        for end in ("low", "high"):
            across: Literal["vertical", "horizontal"] = (
                "vertical" if self.sideways else "horizontal"
            )
            cap = base.mark_tick(
                orient=across, size=9, thickness=weight, color=colour, aria=False, bandSize=9
            )
            yield cap.encode(**{self._value: self._value_channel(end)})

    def _crosses(self, index: int, rows: list[dict[str, Any]]) -> alt.Chart:
        base = self._base(rows)
        if self.chart.kind == "bar":
            base = self._grouped(base)
        cross = base.mark_point(
            shape="M-1,-1L1,1M-1,1L1,-1",
            size=64,
            strokeWidth=2,
            stroke=self.looks[index].colour,
            fill="transparent",
            description="missing",
            xOffset=8 if self.sideways else 0,
            yOffset=0 if self.sideways else -8,
        )
        baseline = alt.value(0) if self.sideways else alt.value("height")
        drawn: alt.Chart = cross.encode(**{self._value: baseline}, tooltip=self._missing_tooltip())
        return drawn

    def _tooltip(self, rows: list[dict[str, Any]]) -> list[alt.Tooltip]:
        fields = [
            alt.Tooltip("title:N"),
            alt.Tooltip("value:N", title=clean(self.chart.y.name) or "value"),
        ]
        if any("interval" in row for row in rows):
            fields.append(alt.Tooltip("interval:N", title="95 % interval"))
        if any(row["role"] for row in rows):
            fields.append(alt.Tooltip("role:N", title="kind"))
        if any(row["run"] for row in rows):
            fields.append(alt.Tooltip("run:N", title="run"))
        return fields

    def _missing_tooltip(self) -> list[alt.Tooltip]:
        return [alt.Tooltip("title:N"), alt.Tooltip("reason:N", title="missing")]


_SYMBOLS: Mapping[str, dict[str, Any]] = {
    "line": {"symbolType": "stroke", "symbolStrokeWidth": 3},
    "bar": {"symbolType": "square"},
}
_BYTES_LABEL = (
    "datum.value >= 1073741824 ? format(datum.value / 1073741824, '~g') + ' GiB' : "
    "format(datum.value / 1048576, '~g') + ' MiB'"
)


_CONFIG: dict[str, Any] = {
    "font": FONT,
    "background": "transparent",
    "padding": 4,
    "view": {"stroke": None},
    "axis": {
        "labelColor": variable("soft"),
        "labelFontSize": 12,
        "labelPadding": 6,
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
    },
    "legend": {
        "labelColor": variable("soft"),
        "labelFontSize": 12,
        "labelLimit": 240,
        "offset": 16,
    },
}
"""The same for every chart; plain data, as Vega-Lite's own names have it."""


def _drawable(point: Point, x: Axis) -> bool:
    """A point with a value that is a number, on an axis that can hold it."""
    if point.y is None or not math.isfinite(point.y):
        return False
    return x.scale not in ("log2", "log10") or float(point.x) > 0


def _x_text(point: Point) -> str:
    return clean(point.x) if isinstance(point.x, str) else number(point.x, 6)


def _named(axis: Axis, x: str) -> str:
    return f"{clean(axis.name)} {x}".strip() if axis.scale != "category" else x


def _distinct(names: list[str]) -> list[str]:
    """The names, with a number behind those that come a second time."""
    seen: dict[str, int] = {}
    for name in names:
        seen[name] = seen.get(name, 0) + 1
    count: dict[str, int] = {}
    distinct = []
    for name in names:
        count[name] = count.get(name, 0) + 1
        distinct.append(name if count[name] == 1 else f"{name} ({count[name]})")
    return distinct
