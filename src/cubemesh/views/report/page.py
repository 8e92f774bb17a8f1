"""Parts of the report page for its template: cards, sections, charts, tables, runs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from cubemesh.experiments.analysis.roofline_chart import roofline, roofline_table
from cubemesh.experiments.collectives.report import sweep_tables
from cubemesh.schema import (
    WARNINGS,
    Answer,
    Chart,
    Curve,
    Finding,
    RunRecord,
    Series,
    Unknown,
    Warning,
)
from cubemesh.schema.outcome import STATUS_WORDS
from cubemesh.units import format_number
from cubemesh.views import formatting
from cubemesh.views.charts.files import inline_svg
from cubemesh.views.charts.sparkline import sparkline
from cubemesh.views.charts.vega import missing_points, vega_lite
from cubemesh.views.facts import run as run_facts
from cubemesh.views.report.timeline import timeline
from cubemesh.views.tables import TextTable, text_table
from cubemesh.views.theme import line_styles, variable

_STATIC_WIDTH = 560
_NARROW_COLUMNS = 5
_NARROW_LETTERS = 64
"""A table with longer rows than this is below its chart, not next to it."""


@dataclass(frozen=True, kw_only=True)
class Card:
    """A finding in large print."""

    question: str
    figure: str
    unit: str
    interval: str
    text: str
    remedy: str
    caveats: str
    """Codes of the warnings of its runs."""


@dataclass(frozen=True, kw_only=True)
class Chip:
    """Warnings of one code with every cause."""

    code: str
    label: str
    meaning: str
    seen: tuple[tuple[str, str], ...]
    """(cause, remedy), each pair once."""


def headline(answers: Sequence[Answer], records: Iterable[RunRecord]) -> str:
    """The title of the page: the first finding of measured runs, or the state of the runs."""
    first = next(_measured(answers), None)
    if first is not None:
        return formatting.clean(first.text)
    if any(answer.simulated for answer in answers):
        return "Simulated (null framework): nothing was measured."
    ended = [record.ok for record in records]
    if not ended:
        return "No runs on this machine yet."
    runs = "1 run" if len(ended) == 1 else f"{len(ended)} runs"
    if not any(ended):
        return f"{runs}, none with a result."
    return f"{runs}, no finding yet."


def lead(answers: Sequence[Answer]) -> str:
    """The remedy of the headline, where no card has it."""
    first = next(_measured(answers), None)
    return formatting.clean(first.remedy) if first and first.question is None else ""


def _measured(answers: Iterable[Answer]) -> Iterator[Finding]:
    return (f for answer in answers if not answer.simulated for f in answer.findings)


def cards(answers: Sequence[Answer]) -> tuple[Card, ...]:
    """A card for every question of the findings, from the first answer that has it. Where the
    headline is the same finding, the card has the title of the answer instead."""
    top = headline(answers, ())
    made: dict[str, Card] = {}
    for answer in answers:
        for finding in answer.findings:
            if finding.question is not None and finding.question not in made:
                made[finding.question] = _card(answer, finding, finding.question, top)
    return tuple(made.values())


def _card(answer: Answer, finding: Finding, question: str, top: str) -> Card:
    figure, unit, interval = "", "", ""
    if finding.value is not None:
        figure, unit, interval = formatting.split_figure(
            finding.value, finding.unit, finding.low, finding.high
        )
    text = formatting.clean(finding.text)
    return Card(
        question=formatting.clean(question),
        figure=figure,
        unit=unit,
        interval=interval,
        text=formatting.clean(answer.title) if text == top else text,
        remedy=formatting.clean(finding.remedy),
        caveats=", ".join(finding.caveats),
    )


def section(index: int, answer: Answer) -> dict[str, Any]:
    """The section of an answer; `index` (from 1) makes its anchor unique.

    `side_by_side`: whether its only chart and its only table are next to each other on a wide
    screen.
    """
    charts = tuple(map(drawn, answer.charts))
    tables = tuple(text_table(table) for table in answer.tables)
    return {
        "anchor": f"question-{index}",
        "answer": answer,
        "charts": charts,
        "tables": tables,
        "chips": chips(answer.warnings),
        "side_by_side": len(charts) == 1 and len(tables) == 1 and _is_narrow(tables[0]),
    }


def drawn(chart: Chart) -> dict[str, Any]:
    """A chart as a specification for the browser, and as SVG for a page without scripts."""
    spec = vega_lite(chart, width="container", legend=False, title=False)
    still = {name: value for name, value in spec.items() if name != "autosize"}
    names = [formatting.clean(line.name) for line in chart.lines]
    heat = chart.kind == "heat"  # its rows have their names
    lines = f"{'row' if heat else 'line'}{'' if len(names) == 1 else 's'}"
    return {
        "title": formatting.clean(chart.title),
        "kind": chart.kind,
        "summary": f"{formatting.clean(chart.title)}: {formatting.axis_title(chart.y)} against "
        f"{formatting.axis_title(chart.x)}, {len(names)} {lines}. Figures: see the table.",
        "spec": spec,
        "svg": Markup(inline_svg(still | {"width": _STATIC_WIDTH})),
        "legend": tuple(zip(names, line_styles(chart.lines), strict=True))
        if len(names) > 1 and not heat
        else (),
        "missing": _gathered(missing_points(chart)),
    }


def _gathered(missing: Sequence[tuple[str, str, str]]) -> tuple[tuple[str, str, str], ...]:
    """Missing points of one line with one reason, merged."""
    places: dict[tuple[str, str], list[str]] = {}
    for line, x, reason in missing:
        places.setdefault((line, reason), []).append(x)
    return tuple((line, "; ".join(xs), reason) for (line, reason), xs in places.items())


def _is_narrow(table: TextTable) -> bool:
    rows = [sum(len(cell.text) for cell in row if not cell.gap) for row in table.rows]
    rows.append(sum(len(text) for text, _ in table.headings))
    return len(table.headings) <= _NARROW_COLUMNS and max(rows) <= _NARROW_LETTERS


def chips(warnings: Iterable[Warning]) -> tuple[Chip, ...]:
    """One chip per code, in the order of the warnings."""
    by_code: dict[str, dict[tuple[str, str], None]] = {}
    for warning in warnings:
        seen = by_code.setdefault(warning.code, {})
        seen[formatting.clean(warning.cause), formatting.clean(warning.remedy)] = None
    return tuple(
        Chip(
            code=formatting.clean(code),
            label=formatting.clean(code).replace("-", " "),
            meaning=WARNINGS.get(code, ""),
            seen=tuple(seen),
        )
        for code, seen in by_code.items()
    )


@dataclass(frozen=True, kw_only=True)
class SmallChart:
    """A sparkline with its title and its range."""

    title: str
    svg: Markup
    note: str


def run_entry(
    record: RunRecord, series: Sequence[Series], unmeasured: Collection[Unknown] = ()
) -> dict[str, Any]:
    """The entry of a run, without what is `unmeasured` in several; each phase, and each part of
    the step, with the CSS variable of its colour."""
    steps = [window.step_s for window in record.measured]
    spark = _steps_spark(steps, "step time of each window", width=120, height=26)
    return {
        "record": record,
        "name": formatting.run_name(record.spec),
        "outcome": formatting.outcome_text(record),
        "ending": STATUS_WORDS[record.outcome.status],
        "result": formatting.result_text(record),
        "spark": Markup(spark),
        "facts": run_facts.run_facts(record, unmeasured),
        "settings": formatting.own_settings(record.spec),
        "phases": tuple(
            (phase, variable(_PHASE_COLOURS.get(phase.name, "c6")))
            for phase in run_facts.phase_shares(record)
        ),
        "parts": tuple(
            (part, variable(_PART_COLOURS[named.name]))
            for part, named in zip(run_facts.part_shares(record), record.parts, strict=True)
        ),
        "bottleneck": run_facts.bottleneck_text(record),
        "breakdowns": tuple(
            (f"Step time by {formatting.clean(b.name)}", run_facts.breakdown_facts(b))
            for b in record.breakdowns
        ),
        "roofline": _roofline(record),
        "losses": None if (table := roofline_table(record)) is None else text_table(table),
        "sweep": tuple(map(text_table, sweep_tables(record))),
        "small": tuple(_small(record)),
        "timeline": timeline(record, series),
        "chips": chips(record.warnings),
        "traceback": formatting.clean(str(record.outcome.facts.get("traceback", ""))),
    }


def _roofline(record: RunRecord) -> Markup:
    chart = roofline(record)
    return Markup(inline_svg(vega_lite(chart, title=False))) if chart else Markup("")


def _steps_spark(steps: Sequence[float], label: str, *, width: int, height: int) -> str:
    """Step times on a scale of at least ± 20 %, so that noise looks small."""
    if not steps:
        return ""
    middle = sorted(steps)[len(steps) // 2]
    low, high = min(*steps, 0.8 * middle), max(*steps, 1.2 * middle)
    return sparkline(steps, label=label, width=width, height=height, low=low, high=high)


_PHASE_COLOURS: Mapping[str, str] = {
    "import": "published",
    "build": "c3",
    "compile": "c2",
    "warm-up": "c4",
    "measure": "c1",
    "evaluate": "c5",
}


_PART_COLOURS: Mapping[str, str] = {
    "compute": "c1",
    "exposed_communication": "c5",
    "input_stall": "c2",
    "launch_gaps": "c3",
    "straggler_wait": "c6",
    "host": "c4",
    "other": "published",
}


def _small(record: RunRecord) -> list[SmallChart]:
    charts = []
    steps = [window.step_s for window in record.measured]
    if len(steps) > 1:
        ends = [formatting.quantity(end, "s") for end in (min(steps), max(steps))]
        note = f"{ends[0]} to {ends[1]}"
        svg = _steps_spark(steps, f"step time by window: {note}", width=220, height=48)
        charts.append(SmallChart(title="step time by window", svg=Markup(svg), note=note))
    # Telemetry is drawn in the timeline.
    charts += [_curve(curve) for curve in record.curves if curve.name not in record.series]
    return [chart for chart in charts if chart.svg]


def _curve(curve: Curve) -> SmallChart:
    title = formatting.words(f"{curve.name} by {curve.x_name}")
    ends = f"{format_number(curve.y[0])} to {format_number(curve.y[-1])}" if curve.y else ""
    svg = sparkline(curve.y, label=f"{title}: {ends}", width=220, height=48)
    return SmallChart(title=title, svg=Markup(svg), note=ends)
