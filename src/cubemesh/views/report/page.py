"""What stands where on the report's page?

Turns answers, machines and records into the pieces the template prints: cards, sections, rows,
facts, runs. Nothing is judged here; what a piece says comes from the nouns alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from cubemesh.schema import WARNINGS, Answer, Cell, Chart, Finding, RunRecord, Table, Warning
from cubemesh.views import formatting as wording
from cubemesh.views.charts.files import inline_svg
from cubemesh.views.charts.vega import missing_points, vega_lite
from cubemesh.views.theme import LineLook, line_looks

_STATIC_WIDTH = 560
_MOST_COLUMNS_BESIDE = 5
_MOST_LETTERS_BESIDE = 64
"""A table with longer rows than this stands below its chart, not beside it."""


@dataclass(frozen=True, kw_only=True)
class Card:
    """An answer in large print."""

    question: str
    figure: str
    unit: str
    interval: str
    text: str
    remedy: str
    caveats: str
    """Codes of the warnings behind it, for people."""


@dataclass(frozen=True, kw_only=True)
class DrawnChart:
    """A chart, ready to be drawn by a browser and drawn already for one without scripts."""

    title: str
    kind: str
    summary: str
    spec: dict[str, Any]
    svg: Markup
    legend: tuple[tuple[str, LineLook], ...]
    missing: tuple[tuple[str, str, str], ...]


@dataclass(frozen=True, kw_only=True)
class Printed:
    """A cell as it is printed; `span` columns wide when one reason covers the rest of a row."""

    text: str
    span: int = 1
    gap: bool = False
    number: bool = False
    run_id: str = ""


@dataclass(frozen=True, kw_only=True)
class PrintedTable:
    """A table as it is printed."""

    title: str
    headings: tuple[tuple[str, bool], ...]
    """Each heading, and whether its column holds numbers."""
    rows: tuple[tuple[Printed, ...], ...]


@dataclass(frozen=True, kw_only=True)
class Chip:
    """Warnings of one code, told once with every cause."""

    code: str
    label: str
    meaning: str
    seen: tuple[tuple[str, str], ...]
    """(cause, remedy), each pair once."""


@dataclass(frozen=True, kw_only=True)
class Section:
    """One question with all that was found."""

    anchor: str
    answer: Answer
    charts: tuple[DrawnChart, ...]
    tables: tuple[PrintedTable, ...]
    chips: tuple[Chip, ...]
    beside: bool
    """Whether the one chart and the one table stand side by side on a wide screen."""


def headline(answers: Sequence[Answer], records: Iterable[RunRecord]) -> str:
    """The sentence on top: the first finding of what was measured, or what there is instead."""
    first = next(_measured(answers), None)
    if first is not None:
        return wording.clean(first.text)
    if any(answer.simulated for answer in answers):
        return "A script played all of this: nothing has been measured."
    ended = [record.ok for record in records]
    if not ended:
        return "Nothing has been measured on this machine yet."
    runs = "1 run" if len(ended) == 1 else f"{len(ended)} runs"
    if not any(ended):
        return f"No figure came of {runs}: each says why."
    return f"{runs}, and no finding yet."


def lead(answers: Sequence[Answer]) -> str:
    """What to do about the headline, where no card says it."""
    first = next(_measured(answers), None)
    return wording.clean(first.remedy) if first and first.question is None else ""


def _measured(answers: Iterable[Answer]) -> Iterator[Finding]:
    return (f for answer in answers if not answer.simulated for f in answer.findings)


def cards(answers: Sequence[Answer]) -> tuple[Card, ...]:
    """A card for every question that findings ask, from the first answer that has it: the other
    answers have their own sections. The one the headline already says in full tells what was
    compared instead."""
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
        figure, unit, interval = wording.split_figure(
            finding.value, finding.unit, finding.low, finding.high
        )
    text = wording.clean(finding.text)
    return Card(
        question=wording.clean(question),
        figure=figure,
        unit=unit,
        interval=interval,
        text=wording.clean(answer.title) if text == top else text,
        remedy=wording.clean(finding.remedy),
        caveats=", ".join(finding.caveats),
    )


def section(index: int, answer: Answer) -> Section:
    """The section of an answer; `index` (from 1) keeps anchors apart."""
    charts = tuple(_drawn(chart) for chart in answer.charts)
    tables = tuple(printed(table) for table in answer.tables)
    return Section(
        anchor=f"question-{index}",
        answer=answer,
        charts=charts,
        tables=tables,
        chips=chips(answer.warnings),
        beside=len(charts) == 1 and len(tables) == 1 and _is_narrow(tables[0]),
    )


def _drawn(chart: Chart) -> DrawnChart:
    looks = line_looks(chart.lines)
    spec = vega_lite(chart, width="container", legend=False, title=False)
    still = {name: value for name, value in spec.items() if name != "autosize"}
    names = [wording.clean(line.name) for line in chart.lines]
    return DrawnChart(
        title=wording.clean(chart.title),
        kind=chart.kind,
        summary=f"{wording.clean(chart.title)}: {wording.axis_title(chart.y)} against "
        f"{wording.axis_title(chart.x)}, {len(chart.lines)} "
        f"{_kind_of_line(chart)}{'' if len(chart.lines) == 1 else 's'}. The table has the figures.",
        spec=spec,
        svg=Markup(inline_svg(still | {"width": _STATIC_WIDTH})),
        legend=_legend(chart, names, looks),
        missing=_gathered(missing_points(chart)),
    )


def _legend(
    chart: Chart, names: Sequence[str], looks: Sequence[LineLook]
) -> tuple[tuple[str, LineLook], ...]:
    """What tells lines apart; a heat map names its rows beside them."""
    several = len(names) > 1 and chart.kind != "heat"
    return tuple(zip(names, looks, strict=True)) if several else ()


def _kind_of_line(chart: Chart) -> str:
    return "row" if chart.kind == "heat" else "line"


def _gathered(missing: Sequence[tuple[str, str, str]]) -> tuple[tuple[str, str, str], ...]:
    """Missing points of one line for one reason, told together."""
    places: dict[tuple[str, str], list[str]] = {}
    for line, x, reason in missing:
        places.setdefault((line, reason), []).append(x)
    return tuple((line, "; ".join(xs), reason) for (line, reason), xs in places.items())


def printed(table: Table) -> PrintedTable:
    """A table with every cell as text; a tail of gaps becomes one cell that says why."""
    numeric = [
        any(row[i].value is not None for row in table.rows) for i in range(len(table.columns))
    ]
    rows = []
    for row in table.rows:
        start = wording.gap_from(row)
        cells = [
            _printed(cell, wording.cell_text(cell, column), number)
            for cell, column, number in zip(row, table.columns, numeric, strict=True)
        ]
        if start is not None:
            tail = row[start:]
            reason = next(cell.reason for cell in tail if cell.reason)
            run_id = next((cell.run_id for cell in tail if cell.run_id), "")
            cells[start:] = [
                Printed(text=wording.clean(reason), span=len(tail), gap=True, run_id=run_id)
            ]
        rows.append(tuple(cells))
    headings = tuple(
        (wording.heading(column), number)
        for column, number in zip(table.columns, numeric, strict=True)
    )
    return PrintedTable(title=wording.clean(table.title), headings=headings, rows=tuple(rows))


def _printed(cell: Cell, text: str, number: bool) -> Printed:
    gap = wording.is_gap(cell)
    if gap and cell.reason:
        text = wording.clean(cell.reason)
    return Printed(text=text, gap=gap, number=number and not gap, run_id=cell.run_id)


def _is_narrow(table: PrintedTable) -> bool:
    rows = [sum(len(cell.text) for cell in row if not cell.gap) for row in table.rows]
    rows.append(sum(len(text) for text, _ in table.headings))
    return len(table.headings) <= _MOST_COLUMNS_BESIDE and max(rows) <= _MOST_LETTERS_BESIDE


def chips(warnings: Iterable[Warning]) -> tuple[Chip, ...]:
    """One chip for each code, in the order the codes come up."""
    by_code: dict[str, dict[tuple[str, str], None]] = {}
    for warning in warnings:
        seen = by_code.setdefault(warning.code, {})
        seen[wording.clean(warning.cause), wording.clean(warning.remedy)] = None
    return tuple(
        Chip(
            code=wording.clean(code),
            label=wording.clean(code).replace("-", " "),
            meaning=WARNINGS.get(code, ""),
            seen=tuple(seen),
        )
        for code, seen in by_code.items()
    )
