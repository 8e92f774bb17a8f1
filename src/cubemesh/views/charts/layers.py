"""Layers of a Vega-Lite chart of lines, bars or points, drawn with altair.

altair takes 30 MiB and a third of a second, so this file and `heatmap.py` are imported when a chart
is drawn.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import altair as alt

from cubemesh.schema import Line
from cubemesh.untrusted import clean
from cubemesh.views.charts.axes import Frame, Row
from cubemesh.views.theme import variable

_MOST_MARKS = 40
"""A line with more points than this is drawn without marks."""
_MOST_REASON = 8
"""Letters of a reason that fit the width of a bar: "not run"."""
_MOST_LABELS = 14
"""More vertical bars than this are too close for labels."""


class Layers:
    """The layers of one chart, back to front."""

    def __init__(self, frame: Frame, legend: alt.Legend | None) -> None:
        self.frame = frame
        self.chart = frame.chart
        self.legend = legend

    def all(self) -> Iterator[alt.Chart]:
        """The layers of every line; where no point has a value, only the axes."""
        indices = range(len(self.chart.lines))
        if self.chart.kind == "bar" and self.chart.stacked:
            yield from self._stack()
            return
        if not any(self.frame.rows(index) for index in indices):
            rows = [row | {"y": 0} for i in indices for row in self.frame.missing_rows(i)]
            axes = self._base(rows).mark_point(opacity=0, aria=False)
            yield axes.encode(**{self.frame.value: self.frame.value_channel()})
        for index, line in enumerate(self.chart.lines):
            rows, missing = self.frame.rows(index), self.frame.missing_rows(index)
            if rows:
                draw = {"bar": self._bars, "scatter": self._scattered}.get(
                    self.chart.kind, self._marks
                )
                yield from draw(index, line, rows)
            if missing:
                yield self._crosses(index, missing)
                if self.chart.kind == "bar" and not self.frame.sideways:
                    yield from self._short_reasons(missing)

    def _base(self, rows: list[Row]) -> alt.Chart:
        channel = {self.frame.along: self.frame.along_channel()}
        return alt.Chart({"values": rows}).encode(**channel)

    def _colour(self) -> alt.Color:
        colours = [look.colour for look in self.frame.styles]
        scale = alt.Scale(domain=list(self.frame.names), range=colours)
        return alt.Color("line:N", scale=scale, legend=self.legend)

    def _dash(self) -> alt.StrokeDash:
        dashes = [list(look.dash) for look in self.frame.styles]
        scale = alt.Scale(domain=list(self.frame.names), range=dashes)
        return alt.StrokeDash("line:N", scale=scale, legend=self.legend)

    def _grouped(self, layer: alt.Chart) -> alt.Chart:
        """Bars of several lines are grouped where they share a category."""
        if not self.frame.shared:
            return layer
        domain = alt.Scale(domain=list(self.frame.names))
        if self.frame.sideways:
            return layer.encode(yOffset=alt.YOffset("line:N", scale=domain))
        return layer.encode(xOffset=alt.XOffset("line:N", scale=domain))

    def _marks(self, index: int, line: Line, rows: list[Row]) -> Iterator[alt.Chart]:
        look = self.frame.styles[index]
        base = self._base(rows)
        if line.role == "reference" and len(rows) == 1:
            level = alt.Chart({"values": rows}).mark_rule(strokeWidth=1.5, aria=False)
            yield level.encode(
                y=self.frame.value_channel(), color=self._colour(), strokeDash=self._dash()
            )
            return
        intervals = [row for row in rows if "low" in row]
        if line.role == "forecast" and intervals:
            band = self._base(intervals).mark_area(opacity=0.15, color=look.colour, aria=False)
            yield band.encode(y=self.frame.value_channel("low"), y2="high:Q")
        measured = line.role == "measured"
        stroke = base.mark_line(strokeWidth=2.5 if measured else 1.75, aria=False)
        yield stroke.encode(
            y=self.frame.value_channel(), color=self._colour(), strokeDash=self._dash()
        )
        if measured and intervals:
            yield from self._interval_bars(self._base(intervals), look.colour)
        if len(rows) <= _MOST_MARKS:
            yield self._points(index, base, filled=measured)
        if measured and sum(ln.role == "measured" for ln in self.chart.lines) == 1:
            yield from self._end_labels(rows)
        # The invisible target of the pointer is larger than the mark.
        target = base.mark_circle(size=420 if len(rows) <= _MOST_MARKS else 120, opacity=0)
        yield target.encode(y=self.frame.value_channel(), tooltip=self._tooltip(rows), **_DESCRIBED)

    def _end_labels(self, rows: list[Row]) -> Iterator[alt.Chart]:
        """The values of the first and the last point, clear of the interval's end and, inwards, of
        the axis."""
        if self.frame.category or len(rows) == 1:
            sides: list[tuple[Any, int, list[Row]]] = [
                ("center", 0, rows[:1]),
                ("center", 0, rows[1:][-1:]),
            ]
        else:
            sides = [("left", -5, rows[:1]), ("right", 5, rows[-1:])]
        for align, dx, own in sides:
            field = "high" if own and "low" in own[0] else "y"
            for look in (_HALO, {}) if own else ():
                label = self._base(own).mark_text(
                    align=align, dx=dx, dy=-14, fontWeight=600, aria=False, **look
                )
                yield label.encode(
                    y=self.frame.value_channel(field),
                    text="label:N",
                    color=alt.value(variable("ink")),
                )

    def _scattered(self, index: int, line: Line, rows: list[Row]) -> Iterator[alt.Chart]:
        base = self._base(rows)
        if line.role in ("reference", "published"):
            dash = list(self.frame.styles[index].dash) if line.role == "published" else [1, 0]
            front = base.mark_line(strokeWidth=1.75, strokeDash=dash, aria=False)
            yield front.encode(y=self.frame.value_channel(), color=self._colour())
            return
        intervals = [row for row in rows if "low" in row]
        if intervals:
            yield from self._interval_bars(self._base(intervals), self.frame.styles[index].colour)
        many = len(self.frame.points) > _MOST_MARKS
        mark = base.mark_point(
            size=45 if many else 70,
            filled=True,
            opacity=0.75 if many else 1,
            shape=self.frame.styles[index].shape,
        )
        yield mark.encode(y=self.frame.value_channel(), color=self._colour(), **_DESCRIBED)
        # In a roofline only some points have names: next to them, towards the middle.
        aside = self.chart.y.scale != "linear" and not self.frame.category
        middle = self.frame.middle
        for left in (True, False) if aside else (True,):
            own = [row for row in rows if (row["x"] <= middle) is left] if aside else rows
            turn = {"dx": 9, "align": "left"} if left else {"dx": -9, "align": "right"}
            place: dict[str, Any] = {**turn, "fontWeight": 600} if aside else {"dy": 15}
            below = not aside and own and all("low" in row for row in own)
            for look in [_HALO, {}] if aside and own else [{}] if own else []:
                label = self._base(own).mark_text(**place, **look, fontSize=11, aria=False)
                yield label.encode(
                    y=self.frame.value_channel("low" if below else "y"),
                    text="label:N",
                    color=alt.value(variable("ink" if aside else "soft")),
                )
        target = base.mark_circle(size=420, opacity=0)
        yield target.encode(y=self.frame.value_channel(), tooltip=self._tooltip(rows), **_DESCRIBED)

    def _points(self, index: int, base: alt.Chart, *, filled: bool) -> alt.Chart:
        look = self.frame.styles[index]
        points: alt.Chart = base.mark_point(
            size=64 if filled else 30,
            opacity=1,
            shape=look.shape,
            stroke=look.colour,
            fill=look.colour if filled else variable("paper"),
            aria=False,
        ).encode(y=self.frame.value_channel())
        return points

    def _bars(self, index: int, line: Line, rows: list[Row]) -> Iterator[alt.Chart]:
        look = self.frame.styles[index]
        base = self._grouped(self._base(rows))
        hollow = line.role in ("forecast", "reference")
        bar = base.mark_bar(
            fillOpacity=0.15 if hollow else 1,
            stroke=look.colour if hollow else None,
            strokeDash=list(look.dash) if hollow else alt.Undefined,
            cornerRadiusEnd=2,
        )
        yield bar.encode(
            **{self.frame.value: self.frame.value_channel()},
            tooltip=self._tooltip(rows),
            color=self._colour(),
            **_DESCRIBED,
        )
        intervals = [row for row in rows if "low" in row]
        if intervals:
            yield from self._interval_bars(
                self._grouped(self._base(intervals)), variable("ink"), weight=1
            )
        if not self.frame.sideways and len(self.frame.points) > _MOST_LABELS:
            return
        end = {"dx": 6, "align": "left"} if self.frame.sideways else {"dy": -11}
        # The label is clear of the interval's end.
        ends = [row | {"end": row.get("high", row["y"])} for row in rows]
        label = self._grouped(self._base(ends)).mark_text(**end, fontWeight=600, aria=False)
        yield label.encode(
            **{self.frame.value: self.frame.value_channel("end")},
            text="label:N",
            color=alt.value(variable("ink")),
        )

    def _stack(self) -> Iterator[alt.Chart]:
        """Stacked bars, the first line next to the axis."""
        rows = [
            row | {"place": i} for i in range(len(self.frame.names)) for row in self.frame.rows(i)
        ]
        bar = self._base(rows).mark_bar(stroke=variable("paper"), strokeWidth=1)
        value = self.frame.value_channel()
        value.stack = "zero"
        yield bar.encode(
            **{self.frame.value: value},
            color=self._colour(),
            order=alt.Order("place:Q"),
            tooltip=self._tooltip(rows),
            **_DESCRIBED,
        )

    def _interval_bars(
        self, base: alt.Chart, colour: str, weight: float = 1.5
    ) -> Iterator[alt.Chart]:
        second = "x2" if self.frame.sideways else "y2"
        low = self.frame.value_channel("low")
        bar = base.mark_rule(strokeWidth=weight, color=colour, aria=False)
        yield bar.encode(**{self.frame.value: low, second: "high:Q"})
        for end in ("low", "high"):
            cap = base.mark_tick(
                orient="vertical" if self.frame.sideways else "horizontal",
                size=9,
                thickness=weight,
                color=colour,
                aria=False,
            )
            yield cap.encode(**{self.frame.value: self.frame.value_channel(end)})

    def _crosses(self, index: int, rows: list[Row]) -> alt.Chart:
        base = self._base(rows)
        if self.chart.kind == "bar":
            base = self._grouped(base)
        cross = base.mark_point(
            shape="M-1,-1L1,1M-1,1L1,-1",
            size=64,
            strokeWidth=2,
            opacity=1,
            stroke=self.frame.styles[index].colour,
            fill="transparent",
            xOffset=8 if self.frame.sideways else 0,
            yOffset=0 if self.frame.sideways else -8,
        )
        baseline = alt.value(0) if self.frame.sideways else alt.value("height")
        tooltip = [alt.Tooltip("title:N"), alt.Tooltip("reason:N", title="missing")]
        drawn: alt.Chart = cross.encode(
            **{self.frame.value: baseline}, tooltip=tooltip, **_DESCRIBED
        )
        return drawn

    def _short_reasons(self, rows: list[Row]) -> Iterator[alt.Chart]:
        """Reasons that fit above the crosses of missing bars; all are below the chart."""
        short = [row for row in rows if len(row["reason"]) <= _MOST_REASON]
        if not short or len(self.frame.points) > _MOST_LABELS:
            return
        words = self._grouped(self._base(short)).mark_text(dy=-24, fontSize=11, aria=False)
        yield words.encode(
            y=alt.value("height"), text="reason:N", color=alt.value(variable("soft"))
        )

    def _tooltip(self, rows: list[Row]) -> list[alt.Tooltip]:
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


_DESCRIBED = {"description": alt.Description("description:N")}
"""The text of a mark for screen readers."""
_HALO: Mapping[str, Any] = {
    "stroke": variable("paper"),
    "strokeWidth": 4,
    "strokeJoin": "round",
}
"""Of a text that lines may cross."""
